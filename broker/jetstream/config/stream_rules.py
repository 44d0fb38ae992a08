"""The rules for stream configurations: valid values, allowed updates, and the defaults in place of zeros.

Pure decisions over values: other streams and limits are passed in. The order of the checks is nats-server's, because a
client sees the first that fails. Fields that this version cannot honour are refused by one table, ``UNSUPPORTED``,
rather than accepted and ignored.

Source: nats-server 2.15, server/stream.go checkStreamCfgLocked and configUpdateCheckLocked,
server/jetstream_versioning.go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from broker import JETSTREAM_API_LEVEL
from broker.access.accounts import AccountLimits
from broker.base.gotime import format_duration
from broker.config.settings import ServerLimits
from broker.jetstream.config.stream import Placement, StreamConfig
from broker.jetstream.config.upstream_rules import (
    Neighbours,
    check_cycles,
    check_mirror,
    check_prefixes,
    check_republish,
    check_shapes,
    check_sources,
    check_transform,
    is_asset_name,
)
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError, invalid_config
from broker.jetstream.wire.numbers import SEQ_MAX
from broker.protocol.subject import collide, is_valid, subset
from broker.protocol.subject_shapes import first_overlap, overlapping

__all__ = ["DESCRIPTION_MAX", "METADATA_MAX", "NAME_MAX", "UNSUPPORTED", "check_stream", "check_supported",
           "check_update", "is_asset_name", "required_level", "same_config", "subjects_overlap",
           "with_dynamic_metadata", "with_static_metadata"]

NAME_MAX = 255
DESCRIPTION_MAX = 4 * 1024
METADATA_MAX = 128 * 1024
REPLICAS_MAX = 5
DUPLICATE_WINDOW_DEFAULT_NS = 120_000_000_000
_100_MS = 100_000_000
_SECOND = 1_000_000_000

_API_SPACES = (b"$JS.>", b"$JSC.>", b"$NRG.>")

REQUIRED_LEVEL_KEY = "_nats.req.level"
VERSION_KEY = "_nats.ver"
LEVEL_KEY = "_nats.level"

UNSUPPORTED: tuple[tuple[str, Callable[[StreamConfig], object]], ...] = (
    ("mirror.consumer with external", lambda c: c.mirror is not None and c.mirror.consumer and c.mirror.external),
    ("sources.consumer with external", lambda c: any(
        source is not None and source.consumer and source.external for source in c.sources)),
)
"""Fields that are read and checked, but not implemented in this version.

A value other than the default is refused with 10052, which names the field.
"""


def check_supported(config: StreamConfig) -> None:
    """Refuse fields that this version would have to ignore.

    Raises: ApiError 10052 that names the field.
    """
    for field, used in UNSUPPORTED:
        if used(config):
            raise invalid_config(f"stream configuration field {field!r} is not supported by this server yet")


def check_stream(given: StreamConfig, neighbours: Neighbours, account: AccountLimits, server: ServerLimits, *,
                 pedantic: bool = False) -> StreamConfig:
    """Check a configuration and fill in its defaults.

    Args: ``pedantic`` refuses (10157) values that would otherwise be adjusted.
    Returns: a new configuration; ``given`` is not modified.
    Raises: ApiError, 10052 for most, otherwise the code of the rule.
    """
    _check_names(given)
    config = given.copy()
    if config.num_replicas == 0:
        config.num_replicas = 1
    if config.num_replicas > REPLICAS_MAX:
        raise invalid_config(f"maximum replicas is {REPLICAS_MAX}")
    if config.num_replicas < 0:
        raise ApiError(ApiErrors.REPLICAS_COUNT_CANNOT_BE_NEGATIVE)
    for limit in ("max_msgs", "max_msgs_per_subject", "max_bytes", "max_msg_size", "max_consumers"):
        value = getattr(config, limit)
        if value == 0 or value < -1:
            if pedantic and value < -1:
                raise ApiError(ApiErrors.PEDANTIC, err=f"{limit} must be set to -1")
            setattr(config, limit, -1)
    _check_age_and_window(config, server, pedantic)
    _check_flags(config, pedantic)
    check_mirror(config, neighbours, pedantic)
    check_sources(config, neighbours)
    check_prefixes(config, neighbours)
    check_cycles(config, neighbours)
    _check_subjects(config)
    _check_bytes(config, account)
    check_transform(config)
    check_republish(config, pedantic)
    if config.placement == Placement():
        config.placement = None
    if config.placement is not None and config.placement.preferred:
        raise invalid_config("preferred server not permitted in placement")
    if config.first_seq > SEQ_MAX:
        raise invalid_config(f"first sequence can not be above {SEQ_MAX}")
    return config


def check_update(old: StreamConfig, given: StreamConfig, neighbours: Neighbours, account: AccountLimits,
                 server: ServerLimits, *, pedantic: bool = False) -> StreamConfig:
    """Check ``given`` as an update of ``old``; omitted fields go back to their defaults.

    Returns: the new configuration, with defaults filled in and the consequences of sealing applied.
    Raises: ApiError.
    """
    new = check_stream(given, neighbours, account, server, pedantic=pedantic)
    # nats-server checks an update a second time, with the settings that the first check turned on.
    _check_flags(new, pedantic)
    if new.name != old.name:
        raise invalid_config("stream configuration name must match original")
    if new.num_replicas > 1:
        raise ApiError(ApiErrors.STREAM_REPLICAS_NOT_SUPPORTED)
    for broken, reason in (
        (new.storage != old.storage, "stream configuration update can not change storage type"),
        (new.retention != old.retention and "workqueue" in (new.retention, old.retention),
         "stream configuration update can not change retention policy to/from workqueue"),
        (old.sealed and not new.sealed, "stream configuration update can not unseal a sealed stream"),
        (old.deny_delete and not new.deny_delete, "stream configuration update can not cancel deny message deletes"),
        (old.deny_purge and not new.deny_purge, "stream configuration update can not cancel deny purge"),
    ):
        if broken:
            raise invalid_config(reason)
    if new.mirror is not None and new.mirror != old.mirror:
        raise ApiError(ApiErrors.STREAM_MIRROR_NOT_UPDATABLE)
    for broken, reason in (
        (old.allow_msg_ttl and not new.allow_msg_ttl, "message TTL status can not be disabled"),
        (old.allow_msg_counter != new.allow_msg_counter,
         "stream configuration update can not change message counter setting"),
        (old.allow_msg_schedules and not new.allow_msg_schedules, "message schedules can not be disabled"),
        (old.persist_mode != new.persist_mode, "stream configuration update can not change persist mode"),
    ):
        if broken:
            raise invalid_config(reason)
    if new.sealed:
        new.max_age = 0
        new.discard = "new"
        new.deny_delete = new.deny_purge = True
        new.allow_rollup_hdrs = False
    return new


def subjects_overlap(subjects: Iterable[str], others: Iterable[StreamConfig]) -> bool:
    """Return whether a subject could belong to one of ``subjects`` and to one of the ``others``."""
    theirs = [subject for other in others for subject in other.subjects_bytes]
    return bool(theirs and overlapping([subject.encode() for subject in subjects], theirs))


# --- metadata ---------------------------------------------------------------------------------------------------------

def required_level(config: StreamConfig) -> int:
    """Return the API level that a server must have to serve such a stream."""
    if config.allow_batched:
        return 4
    if config.allow_msg_counter or config.allow_atomic or config.allow_msg_schedules or config.persist_mode == "async":
        return 2
    return 1 if config.allow_msg_ttl or config.subject_delete_marker_ttl > 0 else 0


def with_static_metadata(metadata: Mapping[str, str], level: int) -> dict[str, str]:
    """Return metadata as stored: with the required level, without the members that only answers show."""
    kept = {key: value for key, value in metadata.items() if key not in (VERSION_KEY, LEVEL_KEY)}
    return kept | {REQUIRED_LEVEL_KEY: str(level)}


def with_dynamic_metadata(metadata: Mapping[str, str], version: str) -> dict[str, str]:
    """Return metadata as answers show it."""
    return dict(sorted({**metadata, VERSION_KEY: version, LEVEL_KEY: str(JETSTREAM_API_LEVEL)}.items()))


def same_config(new: StreamConfig, old: StreamConfig) -> bool:
    """Return whether creating ``new`` again would change nothing; the server's own metadata does not count."""
    return _without_versions(new) == _without_versions(old)


def _without_versions(config: StreamConfig) -> dict[str, object]:
    shown = config.to_json()
    shown["metadata"] = {key: value for key, value in config.metadata.items()
                         if key not in (REQUIRED_LEVEL_KEY, VERSION_KEY, LEVEL_KEY)}
    return shown


# --- the rules, in nats-server's order --------------------------------------------------------------------------------

def _check_names(config: StreamConfig) -> None:
    if not is_asset_name(config.name):
        raise invalid_config(r"stream name is required and can not contain '.', '*', '>', '\', '/'")
    if len(config.name.encode()) > NAME_MAX:
        raise invalid_config(f"stream name is too long, maximum allowed is {NAME_MAX}")
    if len(config.description.encode()) > DESCRIPTION_MAX:
        raise invalid_config(f"stream description is too long, maximum allowed is {DESCRIPTION_MAX}")
    if sum(len(key.encode()) + len(value.encode()) for key, value in config.metadata.items()) > METADATA_MAX:
        raise invalid_config(f"stream metadata exceeds maximum size of {METADATA_MAX} bytes")


def _check_age_and_window(config: StreamConfig, server: ServerLimits, pedantic: bool) -> None:
    if config.max_age < 0:
        raise invalid_config("max age can not be negative")
    if 0 < config.max_age < _100_MS:
        raise invalid_config("max age needs to be >= 100ms")
    limit = server.duplicate_window_ns
    if config.duplicate_window == 0 and config.mirror is None and not config.sources:
        window = DUPLICATE_WINDOW_DEFAULT_NS
        if 0 < limit < window:
            if pedantic:
                raise ApiError(ApiErrors.PEDANTIC, err="duplicate window limits are higher than current limits")
            window = limit
        if 0 < config.max_age < window:
            if pedantic:
                raise ApiError(ApiErrors.PEDANTIC, err="duplicate window cannot be bigger than max age")
            window = config.max_age
        config.duplicate_window = window
    if config.duplicate_window < 0:
        raise invalid_config("duplicates window can not be negative")
    if config.max_age and config.duplicate_window > config.max_age:
        raise invalid_config("duplicates window can not be larger then max age")
    if 0 < limit < config.duplicate_window:
        raise invalid_config(f"duplicates window can not be larger then server limit of {format_duration(limit)}")
    if 0 < config.duplicate_window < _100_MS:
        raise invalid_config("duplicates window needs to be >= 100ms")


def _check_flags(config: StreamConfig, pedantic: bool) -> None:
    discard_new = config.discard == "new"
    counter = config.allow_msg_counter
    for broken, reason in (
        (config.deny_purge and config.allow_rollup_hdrs, "roll-ups require the purge permission"),
        (counter and discard_new, "counter stream cannot use discard new"),
        (counter and config.allow_msg_ttl, "counter stream cannot use message TTLs"),
        (counter and config.allow_msg_schedules, "counter stream cannot use message schedules"),
        (counter and config.retention != "limits", "counter stream can only use limits retention"),
        (config.discard_new_per_subject and not discard_new,
         "discard new per subject requires discard new policy to be set"),
        (config.discard_new_per_subject and config.max_msgs_per_subject <= 0,
         "discard new per subject requires max msgs per subject > 0"),
        (config.subject_delete_marker_ttl < 0, "subject delete marker TTL must not be negative"),
        (0 < config.subject_delete_marker_ttl < _SECOND, "subject delete marker TTL must be at least 1 second"),
    ):
        if broken:
            raise invalid_config(reason)
    if config.subject_delete_marker_ttl:
        if not config.allow_msg_ttl:
            if pedantic:
                raise invalid_config("subject delete marker cannot be set if message TTLs are disabled")
            config.allow_msg_ttl = True
        _need_rollup(config, pedantic, "subject delete marker cannot be set if roll-ups are disabled")
    if config.allow_msg_schedules:
        if discard_new:
            raise invalid_config("message scheduling cannot use discard new")
        _need_rollup(config, pedantic, "message scheduling cannot be set if roll-ups are disabled")
    if config.persist_mode == "async":
        for broken, reason in (
            (config.storage != "file", "async persist mode is only supported on file storage"),
            (config.num_replicas > 1, "async persist mode is not supported on replicated streams"),
            (config.allow_atomic, "async persist mode is not supported with atomic batch publish"),
        ):
            if broken:
                raise invalid_config(reason)


def _need_rollup(config: StreamConfig, pedantic: bool, reason: str) -> None:
    if not config.allow_rollup_hdrs:
        if pedantic:
            raise invalid_config(reason)
        config.allow_rollup_hdrs, config.deny_purge = True, False


def _check_subjects(config: StreamConfig) -> None:
    if not config.subjects:
        if config.mirror is None and not config.sources:
            config.subjects = [config.name]
        return
    subjects = config.subjects_bytes
    check_shapes(subjects, "subjects")
    overlaps_later = first_overlap(subjects)
    for i, subject in enumerate(subjects):
        if not is_valid(subject):
            raise invalid_config("invalid subject")
        if subject == b">":
            if not config.no_ack:
                raise invalid_config("capturing all subjects requires no-ack to be true")
            if config.num_replicas != 1:
                raise invalid_config("capturing all subjects requires replicas of 1")
        if not config.no_ack and subject[:1] in (b"$", b"*", b">"):
            if any(collide(subject, space) for space in _API_SPACES) and not subset(subject, b"$JS.EVENT.>"):
                raise invalid_config("subjects that overlap with jetstream api require no-ack to be true")
            if collide(subject, b"$SYS.>") and not subset(subject, b"$SYS.ACCOUNT.>"):
                raise invalid_config("subjects that overlap with system api require no-ack to be true")
        # nats-server counts the same subject again as an overlap, too.
        if i == overlaps_later:
            other = next(later for later in config.subjects[i + 1:] if collide(subject, later.encode()))
            raise invalid_config(f'subject "{config.subjects[i]}" overlaps with "{other}"')


def _check_bytes(config: StreamConfig, account: AccountLimits) -> None:
    if account.max_bytes_required and config.max_bytes <= 0:
        raise ApiError(ApiErrors.STREAM_MAX_BYTES_REQUIRED)
    limit = account.memory_max_stream_bytes if config.storage == "memory" else account.storage_max_stream_bytes
    if 0 < limit < config.max_bytes:
        raise ApiError(ApiErrors.STREAM_MAX_STREAM_BYTES_EXCEEDED)
