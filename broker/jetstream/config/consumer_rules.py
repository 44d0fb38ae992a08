"""The rules for consumer configurations: valid values, allowed updates, and the defaults in place of zeros.

Pure decisions over values; a function argument returns whether a deliver subject is in use. The order of the checks is
nats-server's, because a client sees the first that fails.

Source: nats-server 2.15, server/consumer.go setConsumerConfigDefaults, checkConsumerCfg, checkNewConsumerConfig.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from broker.access.accounts import AccountLimits
from broker.base.gotime import ZERO_TIME_NS, format_duration
from broker.config.settings import ServerLimits
from broker.jetstream.config.consumer import ConsumerConfig
from broker.jetstream.config.stream import StreamConfig
from broker.jetstream.config.stream_rules import DESCRIPTION_MAX, METADATA_MAX, is_asset_name, with_static_metadata
from broker.jetstream.config.upstream_rules import check_shapes
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError, invalid_config
from broker.jetstream.wire.numbers import signed_decimal
from broker.protocol.subject import is_literal, is_valid, matches_any
from broker.protocol.subject_shapes import first_subset, overlapping

__all__ = ["check_consumer", "check_consumer_update", "check_work_queue", "check_work_queue_filters", "consumer_level",
           "fill_inactive_threshold", "fit_to_copy", "is_group_name", "same_consumer"]

ACK_WAIT_DEFAULT_NS = 30_000_000_000
MAX_ACK_PENDING_DEFAULT = 1000
MAX_WAITING_DEFAULT = 512
INACTIVE_THRESHOLD_DEFAULT_NS = 5_000_000_000
"""The time for which an ephemeral consumer without a threshold of its own outlives its last use."""
PRIORITY_TIMEOUT_DEFAULT_NS = 120_000_000_000
SOURCING_HEARTBEAT_NS = 1_000_000_000
_100_MS = 100_000_000
_MILLISECOND = 1_000_000

_GROUP_NAME = re.compile(r"[a-zA-Z0-9/_=-]{1,16}")
_SAMPLE = re.compile(r"[+-]?[0-9]+")


def is_group_name(name: str) -> bool:
    """Return whether the name of a priority group is valid."""
    return _GROUP_NAME.fullmatch(name) is not None


def check_consumer(given: ConsumerConfig, stream: StreamConfig, account: AccountLimits, server: ServerLimits, *,
                   pedantic: bool = False) -> ConsumerConfig:
    """Check a configuration for a consumer of ``stream`` and fill in its defaults.

    Args: ``pedantic`` refuses (10157) values that would otherwise be adjusted.
    Returns: a new configuration with its required API level in the metadata; ``given`` is not modified.
    Raises: ApiError.
    """
    config = given.copy()
    config.metadata = with_static_metadata(config.metadata, consumer_level(config))
    _fill_defaults(config, stream, account, server, pedantic)
    _check_basics(config, stream)
    if config.deliver_subject:
        _check_push(config, stream)
    else:
        _check_pull(config, stream, server)
    _check_bounds(config, stream, account, server)
    _check_filters(config)
    _check_start(config)
    _check_rest(config)
    return config


def fill_inactive_threshold(config: ConsumerConfig, *, durable: bool) -> None:
    """Fill in the default threshold of a consumer that is not durable: it is deleted some time after its last use.

    Args: ``durable``: whether the consumer is durable; in an update, whether it was before, as on nats-server.
    Source: nats-server, server/consumer.go (updateInactiveThreshold).
    """
    if not durable and config.inactive_threshold == 0:
        config.inactive_threshold = INACTIVE_THRESHOLD_DEFAULT_NS


def check_consumer_update(old: ConsumerConfig, new: ConsumerConfig, has_subscribers: Callable[[str], bool]) -> None:
    """Check ``new`` (already checked by itself, defaults filled in) as an update of ``old``.

    Args: ``has_subscribers`` returns whether anybody subscribes to a deliver subject.
    Raises: ApiError 10012 naming the field that cannot be updated, 10013 if the deliver subject is in use, 10116.
    """
    if old == new:
        return
    for field, what in (
        ("deliver_policy", "deliver policy"), ("mem_storage", "storage type"), ("direct", "direct"),
        ("sourcing", "sourcing"), ("opt_start_seq", "start sequence"), ("opt_start_time", "start time"),
        ("ack_policy", "ack policy"), ("replay_policy", "replay policy"), ("idle_heartbeat", "heart beats"),
        ("flow_control", "flow control"),
    ):
        if getattr(old, field) != getattr(new, field):
            raise ApiError(ApiErrors.CONSUMER_CREATE, err=f"{what} can not be updated")
    if old.deliver_subject != new.deliver_subject:
        if not old.deliver_subject:
            raise ApiError(ApiErrors.CONSUMER_CREATE, err="can not update pull consumer to push based")
        if not new.deliver_subject:
            raise ApiError(ApiErrors.CONSUMER_CREATE, err="can not update push consumer to pull based")
        if has_subscribers(old.deliver_subject):
            raise ApiError(ApiErrors.CONSUMER_NAME_EXIST)
    if old.max_waiting != new.max_waiting:
        raise ApiError(ApiErrors.CONSUMER_CREATE, err="max waiting can not be updated")


def fit_to_copy(given: ConsumerConfig, stream: StreamConfig, existing: ConsumerConfig | None,
                suffix: Callable[[], str]) -> ConsumerConfig:
    """Return the configuration of a consumer that a mirror, or a stream with sources, requests to copy ``stream``.

    Under interest and work-queue retention it must ack, so it becomes durable; otherwise it is a new one each time.

    Args: ``existing`` is the existing consumer of that name; ``suffix`` generates the end of a name.
    Source: nats-server, server/jetstream_api.go jsConsumerCreateRequest.
    """
    config = given.copy()
    if config.direct and config.name:
        if stream.retention == "limits":
            config.name += "-" + suffix()
        else:
            config.direct = False
            config.durable_name, config.ack_policy = config.name, "flow_control"
            config.ack_wait = config.max_deliver = config.inactive_threshold = 0
    elif config.durable_name and existing is not None:
        config.deliver_policy = existing.deliver_policy
        config.opt_start_seq, config.opt_start_time = existing.opt_start_seq, existing.opt_start_time
    return config


def check_work_queue(config: ConsumerConfig, others: Collection[ConsumerConfig]) -> None:
    """Check a new consumer of a work queue that has ``others``: each message is for one of them.

    Raises: ApiError 10098, 10101, 10099, 10100.
    """
    if config.copies:
        return
    _first_broken((config.ack_policy not in ("explicit", "flow_control"), ApiErrors.CONSUMER_WQ_REQUIRES_EXPLICIT_ACK),
                  (config.deliver_policy != "all", ApiErrors.CONSUMER_WQ_CONSUMER_NOT_DELIVER_ALL))
    if any(not other.copies for other in others):
        _first_broken((not config.filters, ApiErrors.CONSUMER_WQ_MULTIPLE_UNFILTERED))
        check_work_queue_filters(config, others)


def check_work_queue_filters(config: ConsumerConfig, others: Collection[ConsumerConfig]) -> None:
    """Check the filters of a consumer of a work queue. Raises: ApiError 10100."""
    mine = [subject.encode() for subject in config.filters]
    if not mine:
        return
    rivals = [other.filters for other in others if not other.copies]
    if not all(rivals) or overlapping(mine, [subject.encode() for theirs in rivals for subject in theirs]):
        raise ApiError(ApiErrors.CONSUMER_WQ_CONSUMER_NOT_UNIQUE)


def consumer_level(config: ConsumerConfig) -> int:
    """Return the API level that a server must have to serve such a consumer."""
    if config.ack_policy == "flow_control":
        return 4
    grouped = config.priority_policy != "none" or config.priority_timeout or config.priority_groups
    return 1 if grouped or config.pause_until not in (None, ZERO_TIME_NS) else 0


def same_consumer(new: ConsumerConfig, old: ConsumerConfig) -> bool:
    """Return whether creating ``new`` again would change nothing; the server's own metadata does not count."""
    a, b = new.copy(), old.copy()
    for one in (a, b):
        one.metadata = with_static_metadata(one.metadata, 0)
    return a == b


def _fill_defaults(config: ConsumerConfig, stream: StreamConfig, account: AccountLimits, server: ServerLimits,
                   pedantic: bool) -> None:
    for field, floor, must in (
        ("max_deliver", -1, "be set to -1"), ("max_waiting", 0, "not be negative"),
        ("max_ack_pending", -1, "be set to -1"), ("max_batch", 0, "not be negative"),
        ("max_expires", 0, "not be negative"), ("max_bytes", 0, "not be negative"),
        ("idle_heartbeat", 0, "not be negative"), ("inactive_threshold", 0, "not be negative"),
        ("priority_timeout", 0, "not be negative"),
    ):
        if getattr(config, field) < floor:
            if pedantic:
                raise ApiError(ApiErrors.PEDANTIC, err=f"{field} must {must}")
            setattr(config, field, floor)
    config.max_deliver = config.max_deliver or -1
    if not config.deliver_subject:
        config.max_waiting = config.max_waiting or MAX_WAITING_DEFAULT
    acking = config.ack_policy in ("explicit", "all")
    if config.ack_wait == 0 and acking:
        config.ack_wait = ACK_WAIT_DEFAULT_NS
    if config.backoff:
        if pedantic and config.ack_wait != config.backoff[0]:
            raise ApiError(ApiErrors.PEDANTIC, err="first backoff value has to equal batch AckWait")
        config.ack_wait = config.backoff[0]
    limits = stream.consumer_limits
    if config.max_ack_pending == 0:
        if pedantic and limits.max_ack_pending > 0:
            raise ApiError(ApiErrors.PEDANTIC, err="max_ack_pending must be set if it's configured in stream limits")
        config.max_ack_pending = limits.max_ack_pending
    if config.inactive_threshold == 0:
        if pedantic and limits.inactive_threshold > 0:
            raise ApiError(ApiErrors.PEDANTIC, err="inactive_threshold must be set if it's configured in stream limits")
        config.inactive_threshold = limits.inactive_threshold
    if config.max_ack_pending == 0 and config.ack_policy != "none":
        caps = [cap for cap in (server.max_ack_pending, account.max_ack_pending) if cap > 0]
        config.max_ack_pending = min([MAX_ACK_PENDING_DEFAULT, *caps])
    if not config.deliver_subject and config.max_batch == 0 and server.max_request_batch > 0:
        if pedantic:
            raise ApiError(ApiErrors.PEDANTIC, err="max_request_batch must be set if it's JetStream limits are set")
        config.max_batch = server.max_request_batch
    if config.priority_policy == "pinned_client" and config.priority_timeout == 0:
        config.priority_timeout = PRIORITY_TIMEOUT_DEFAULT_NS
    if config.ack_policy == "flow_control" and not pedantic:
        config.flow_control = True
        config.idle_heartbeat = SOURCING_HEARTBEAT_NS


def _first_broken(*rules: tuple[object, int]) -> None:
    for broken, err_code in rules:
        if broken:
            raise ApiError(err_code)


def _check_basics(config: ConsumerConfig, stream: StreamConfig) -> None:
    if config.name and not is_asset_name(config.name):
        raise invalid_config(r"consumer name can not contain '.', '*', '>', '\', '/'")
    if config.durable_name and not is_asset_name(config.durable_name):
        raise invalid_config(r"consumer durable name can not contain '.', '*', '>', '\', '/'")
    _first_broken(
        (config.num_replicas > 0 and config.num_replicas > stream.num_replicas,
         ApiErrors.CONSUMER_REPLICAS_EXCEEDS_STREAM),
        (config.num_replicas < 0, ApiErrors.REPLICAS_COUNT_CANNOT_BE_NEGATIVE),
        (stream.retention != "limits" and config.num_replicas not in (0, stream.num_replicas),
         ApiErrors.CONSUMER_REPLICAS_SHOULD_MATCH_STREAM),
        (any(wait < 0 for wait in config.backoff), ApiErrors.CONSUMER_BACK_OFF_NEGATIVE),
        (config.ack_wait < 0, ApiErrors.CONSUMER_ACK_WAIT_NEGATIVE),
    )
    if config.ack_policy == "flow_control":
        _first_broken((not config.deliver_subject, ApiErrors.CONSUMER_ACK_FC_REQUIRES_PUSH),
                      (not config.flow_control, ApiErrors.CONSUMER_ACK_FC_REQUIRES_FC))
        if config.idle_heartbeat != SOURCING_HEARTBEAT_NS:
            raise invalid_config("flow control ack policy heartbeat needs to be 1s")
        _first_broken((config.max_ack_pending <= 0, ApiErrors.CONSUMER_ACK_FC_REQUIRES_MAX_ACK_PENDING),
                      (config.ack_wait != 0 or config.backoff, ApiErrors.CONSUMER_ACK_FC_REQUIRES_NO_ACK_WAIT),
                      (config.max_deliver > 0, ApiErrors.CONSUMER_ACK_FC_REQUIRES_NO_MAX_DELIVER))
    if config.backoff and config.max_deliver != -1 and len(config.backoff) > config.max_deliver:
        raise ApiError(ApiErrors.CONSUMER_MAX_DELIVER_BACKOFF)
    if len(config.description.encode()) > DESCRIPTION_MAX:
        raise ApiError(ApiErrors.CONSUMER_DESCRIPTION_TOO_LONG, max=DESCRIPTION_MAX)


def _check_push(config: ConsumerConfig, stream: StreamConfig) -> None:
    subject = config.deliver_subject.encode()
    _first_broken(
        (not is_literal(subject), ApiErrors.CONSUMER_DELIVER_TO_WILDCARDS),
        (not is_valid(subject), ApiErrors.CONSUMER_INVALID_DELIVER_SUBJECT),
        (matches_any(stream.subjects_bytes, subject), ApiErrors.CONSUMER_DELIVER_CYCLE),
        (config.max_waiting != 0, ApiErrors.CONSUMER_PUSH_MAX_WAITING),
        (config.max_ack_pending > 0 and config.ack_policy == "none",
         ApiErrors.CONSUMER_MAX_PENDING_ACK_POLICY_REQUIRED),
        (0 < config.idle_heartbeat < _100_MS, ApiErrors.CONSUMER_SMALL_HEARTBEAT),
    )


def _check_pull(config: ConsumerConfig, stream: StreamConfig, server: ServerLimits) -> None:
    _first_broken(
        (config.ack_policy == "none" and stream.retention == "workqueue", ApiErrors.CONSUMER_PULL_REQUIRES_ACK),
        (config.rate_limit_bps > 0, ApiErrors.CONSUMER_PULL_WITH_RATE_LIMIT),
        (config.idle_heartbeat > 0, ApiErrors.CONSUMER_HB_REQUIRES_PUSH),
        (config.flow_control, ApiErrors.CONSUMER_FC_REQUIRES_PUSH),
        (0 < config.max_expires < _MILLISECOND, ApiErrors.CONSUMER_MAX_REQUEST_EXPIRES_TOO_SMALL),
    )
    if 0 < server.max_request_batch < config.max_batch:
        raise ApiError(ApiErrors.CONSUMER_MAX_REQUEST_BATCH_EXCEEDED, limit=server.max_request_batch)


def _check_bounds(config: ConsumerConfig, stream: StreamConfig, account: AccountLimits, server: ServerLimits) -> None:
    limits = stream.consumer_limits
    for cap in (server.max_ack_pending, account.max_ack_pending, limits.max_ack_pending):
        if 0 < cap < config.max_ack_pending:
            raise ApiError(ApiErrors.CONSUMER_MAX_PENDING_ACK_EXCESS, limit=cap)
    if 0 < limits.inactive_threshold < config.inactive_threshold:
        raise ApiError(ApiErrors.CONSUMER_INACTIVE_THRESHOLD_EXCESS, limit=format_duration(limits.inactive_threshold))
    if config.direct:
        _first_broken((not config.deliver_subject, ApiErrors.CONSUMER_DIRECT_REQUIRES_PUSH),
                      (config.durable_name, ApiErrors.CONSUMER_DIRECT_REQUIRES_EPHEMERAL))


def _check_filters(config: ConsumerConfig) -> None:
    _first_broken((config.filter_subject and config.filter_subjects, ApiErrors.CONSUMER_DUPLICATE_FILTER_SUBJECTS))
    if config.filter_subject and not is_valid(config.filter_subject.encode()):
        raise invalid_config("invalid subject")
    _first_broken(("" in config.filter_subjects, ApiErrors.CONSUMER_EMPTY_FILTER))
    filters = [one.encode() for one in config.filters]
    check_shapes(filters, "filter subjects")
    invalid = next((i for i, subject in enumerate(filters) if not is_valid(subject)), len(filters))
    contained = first_subset(filters)
    if invalid <= contained and invalid < len(filters):
        raise invalid_config("invalid subject")
    if contained < len(filters):
        raise ApiError(ApiErrors.CONSUMER_OVERLAPPING_SUBJECT_FILTERS)


_START_RULES = {
    # deliver policy: (its name in messages, needs a sequence, needs a time)
    "all": ("all", False, False),
    "last": ("last", False, False),
    "last_per_subject": ("last per subject", False, False),
    "new": ("new", False, False),
    "by_start_sequence": ("by start sequence", True, False),
    "by_start_time": ("by start time", False, True),
}


def _check_start(config: ConsumerConfig) -> None:
    name, takes_seq, takes_time = _START_RULES[config.deliver_policy]
    prefix = f"consumer delivery policy is deliver {name}, but optional"
    has_seq, has_time = config.opt_start_seq > 0, config.opt_start_time is not None
    seq_word = "start sequence" if takes_time else "sequence"
    for broken, rest in (
        (takes_seq and not has_seq, "start sequence is not set"),
        (takes_time and not has_time, "start time is not set"),
        (has_seq and not takes_seq, f"start {seq_word} is also set"),
        (has_time and not takes_time, "start time is also set"),
        (config.deliver_policy == "last_per_subject" and not config.filters, "filter subject is not set"),
    ):
        if broken:
            raise ApiError(ApiErrors.CONSUMER_INVALID_POLICY, err=f"{prefix} {rest}")


def _check_rest(config: ConsumerConfig) -> None:
    if config.sample_freq:
        number = config.sample_freq.removesuffix("%")
        if not _SAMPLE.fullmatch(number):
            raise ApiError(ApiErrors.CONSUMER_INVALID_SAMPLING, err=f'strconv.Atoi: parsing "{number}": invalid syntax')
        percent = signed_decimal(number.encode())
        if percent is None:
            raise ApiError(ApiErrors.CONSUMER_INVALID_SAMPLING,
                           err=f'strconv.Atoi: parsing "{number}": value out of range')
        if percent < 0:
            raise ApiError(ApiErrors.CONSUMER_INVALID_SAMPLING, err="<nil>")
    _first_broken((config.flow_control and config.idle_heartbeat == 0,
                   ApiErrors.CONSUMER_WITH_FLOW_CONTROL_NEEDS_HEARTBEATS),
                  (config.durable_name and config.name and config.name != config.durable_name,
                   ApiErrors.CONSUMER_CREATE_DURABLE_AND_NAME_MISMATCH))
    if sum(len(key.encode()) + len(value.encode()) for key, value in config.metadata.items()) > METADATA_MAX:
        raise ApiError(ApiErrors.CONSUMER_METADATA_LENGTH, limit=f"{METADATA_MAX // 1024}KB")
    if config.priority_policy == "none":
        _first_broken((config.priority_groups, ApiErrors.CONSUMER_PRIORITY_GROUP_WITH_POLICY_NONE),
                      (config.priority_timeout > 0, ApiErrors.CONSUMER_PINNED_TTL_WITHOUT_PRIORITY_POLICY_NONE))
        return
    _first_broken((config.deliver_subject, ApiErrors.CONSUMER_PUSH_WITH_PRIORITY_GROUP),
                  (not config.priority_groups, ApiErrors.CONSUMER_PRIORITY_POLICY_WITHOUT_GROUP))
    for group in config.priority_groups:
        _first_broken((not group, ApiErrors.CONSUMER_EMPTY_GROUP_NAME),
                      (not is_group_name(group), ApiErrors.CONSUMER_INVALID_GROUP_NAME))
