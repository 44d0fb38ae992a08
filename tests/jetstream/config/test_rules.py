"""The rules for configurations and updates: defaults, error codes, and that no unsupported setting is accepted.

The full set of refusals, in nats-server's order and wording, is in scenarios.py.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from broker.access.accounts import AccountLimits
from broker.config.settings import ServerLimits
from broker.jetstream.config.consumer_rules import (
    check_consumer,
    check_consumer_update,
    same_consumer,
)
from broker.jetstream.config.stream_rules import (
    check_stream,
    check_supported,
    check_update,
    required_level,
    same_config,
    subjects_overlap,
    with_static_metadata,
)
from broker.jetstream.config.types import ConsumerConfig, StreamConfig
from broker.jetstream.wire.errors import ApiError

SECOND = 1_000_000_000


def stream(value: dict[str, Any], *, account: AccountLimits | None = None, server: ServerLimits | None = None,
           neighbours: dict[str, StreamConfig] | None = None, pedantic: bool = False) -> StreamConfig:
    given = StreamConfig.from_json({"name": "S", **value})
    return check_stream(given, neighbours or {}, account or AccountLimits(), server or ServerLimits(),
                        pedantic=pedantic)


def consumer(value: dict[str, Any], on: StreamConfig | None = None, **limits: Any) -> ConsumerConfig:
    return check_consumer(ConsumerConfig.from_json(value), on or stream({}), limits.get("account", AccountLimits()),
                          limits.get("server", ServerLimits()))


class refused:
    """``with refused(10052): …`` checks that the block raises that error; its text is then ``description``."""

    def __init__(self, err_code: int) -> None:
        self.err_code = err_code
        self.description = ""

    def __enter__(self) -> refused:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        assert isinstance(error, ApiError), "nothing was refused"
        assert error.err_code == self.err_code, error.description
        self.description = error.description
        return True


def test_defaults_take_the_place_of_zeros() -> None:
    config = stream({})
    assert config.subjects == ["S"]
    assert (config.max_msgs, config.max_bytes, config.max_msg_size, config.max_consumers) == (-1, -1, -1, -1)
    assert (config.num_replicas, config.duplicate_window) == (1, 120 * SECOND)


@pytest.mark.shows("operation.limits")
def test_the_window_for_duplicates_fits_into_age_and_server_limit() -> None:
    assert stream({"max_age": 5 * SECOND}).duplicate_window == 5 * SECOND
    server = ServerLimits(duplicate_window_ns=7 * SECOND)
    assert stream({}, server=server).duplicate_window == 7 * SECOND
    with refused(10052) as error:
        stream({"duplicate_window": 8 * SECOND}, server=server)
    assert error.description.endswith("server limit of 7s")


def test_the_given_configuration_is_left_alone() -> None:
    given = StreamConfig(name="S")
    check_stream(given, {}, AccountLimits(), ServerLimits())
    assert given == StreamConfig(name="S")


def test_account_limits_bound_bytes() -> None:
    with refused(10113):
        stream({}, account=AccountLimits(max_bytes_required=True))
    with refused(10122):
        stream({"max_bytes": 11}, account=AccountLimits(storage_max_stream_bytes=10))
    assert stream({"max_bytes": 11, "storage": "memory"}, account=AccountLimits(storage_max_stream_bytes=10))


@pytest.mark.parametrize("value, err_code", [
    ({"mirror": {"name": "T"}, "subjects": ["a"]}, 10034),
    ({"mirror": {"name": "T"}, "sources": [{"name": "U"}]}, 10031),
    ({"mirror": {"name": "T"}, "first_seq": 5}, 10143), ({"mirror": {"name": "T"}, "allow_atomic": True}, 10198),
    ({"mirror": {"name": "a.b"}}, 10142), ({"sources": [{"name": ""}]}, 10141), ({"sources": [None]}, 10141),
    ({"sources": [{"name": "T"}, {"name": "T"}]}, 10140),
    ({"sources": [{"name": "T"}], "allow_msg_schedules": True}, 10187),
    ({"mirror": {"name": "T"}, "max_msg_size": 5}, 10030), ({"sources": [{"name": "T"}], "max_msg_size": 5}, 10046),
    ({"allow_msg_counter": True, "discard": "new"}, 10052), ({"subject_delete_marker_ttl": 5}, 10052),
    ({"republish": {"src": ">", "dest": "S"}}, 10052), ({"sources": [{"name": "S"}]}, 10052),
])
def test_settings_of_other_features_are_checked_all_the_same(value: dict[str, Any], err_code: int) -> None:
    with refused(err_code):
        stream(value, neighbours={"T": StreamConfig(name="T", subjects=["t"], max_msg_size=10)})


@pytest.mark.shows("copy.own_consumer")
@pytest.mark.parametrize("value, field", [
    ({"mirror": {"name": "T", "external": {"api": "JS.a.API"}, "consumer": {"name": "C", "deliver_subject": "d"}}},
     "mirror.consumer with external"),
    ({"sources": [{"name": "T", "external": {"api": "JS.a.API"}, "consumer": {"name": "C", "deliver_subject": "d"}}]},
     "sources.consumer with external"),
])
def test_what_this_version_cannot_do_is_refused_by_name(value: dict[str, Any], field: str) -> None:
    with refused(10052) as error:
        check_supported(stream(value))
    assert field in error.description


def test_everything_else_is_supported() -> None:
    check_supported(stream({"compression": "s2", "persist_mode": "async", "allow_rollup_hdrs": True, "placement": {
        "cluster": "c"}, "metadata": {"a": "b"}, "num_replicas": 1, "first_seq": 7, "no_ack": True}))
    check_supported(stream({"allow_atomic": True, "allow_batched": True}))


@pytest.mark.parametrize("old, new, err_code", [
    ({}, {"storage": "memory"}, 10052), ({"deny_delete": True}, {}, 10052), ({"sealed": True}, {}, 10052),
    ({}, {"num_replicas": 3}, 10074), ({"allow_msg_ttl": True}, {}, 10052), ({}, {"persist_mode": "async"}, 10052),
    ({"retention": "workqueue"}, {}, 10052), ({}, {"allow_msg_counter": True}, 10052),
    ({"mirror": {"name": "T"}}, {"mirror": {"name": "U"}}, 10055), ({}, {"name": "T"}, 10052),
])
def test_updates_that_cannot_be(old: dict[str, Any], new: dict[str, Any], err_code: int) -> None:
    before = stream(old)
    with refused(err_code):
        check_update(before, StreamConfig.from_json({"name": "S", **new}), {}, AccountLimits(), ServerLimits())


def test_sealing_shuts_everything_else() -> None:
    after = check_update(stream({"max_age": SECOND}), StreamConfig(name="S", sealed=True, allow_rollup_hdrs=True), {},
                         AccountLimits(), ServerLimits())
    assert (after.max_age, after.discard, after.deny_delete, after.deny_purge, after.allow_rollup_hdrs) == (
        0, "new", True, True, False)


def test_the_servers_own_metadata_makes_no_difference() -> None:
    one, other = stream({"metadata": {"a": "b", "_nats.ver": "1"}}), stream({"metadata": {"a": "b"}})
    other.metadata = with_static_metadata(other.metadata, required_level(other))
    assert same_config(one, other)
    assert other.metadata == {"a": "b", "_nats.req.level": "0"}
    assert not same_config(one, stream({"metadata": {"a": "c"}}))


@pytest.mark.parametrize("value, level", [
    ({}, 0), ({"allow_msg_ttl": True}, 1), ({"persist_mode": "async"}, 2), ({"allow_atomic": True}, 2),
    ({"allow_batched": True}, 4),
])
def test_the_api_level_that_a_stream_needs(value: dict[str, Any], level: int) -> None:
    assert required_level(StreamConfig.from_json(value)) == level


def test_patterns_overlap_in_both_directions() -> None:
    others = [StreamConfig(name="T", subjects=["a.*", "b"])]
    assert subjects_overlap(["a.b"], others)
    assert subjects_overlap([">"], others)
    assert not subjects_overlap(["a", "c.>"], others)


def test_consumer_defaults_depend_on_its_kind() -> None:
    pull = consumer({"ack_policy": "explicit"})
    assert (pull.ack_wait, pull.max_deliver, pull.max_waiting, pull.max_ack_pending) == (30 * SECOND, -1, 512, 1000)
    push = consumer({"deliver_subject": "d"})
    assert (push.ack_wait, push.max_waiting, push.max_ack_pending) == (0, 0, 0)
    assert consumer({"ack_policy": "all", "backoff": [SECOND, 2 * SECOND]}).ack_wait == SECOND


def test_consumers_take_their_stream_s_limits() -> None:
    on = stream({"consumer_limits": {"max_ack_pending": 5, "inactive_threshold": 60 * SECOND}})
    config = consumer({"ack_policy": "explicit"}, on)
    assert (config.max_ack_pending, config.inactive_threshold) == (5, 60 * SECOND)
    with refused(10121):
        consumer({"ack_policy": "explicit", "max_ack_pending": 6}, on)
    with refused(10153) as error:
        consumer({"inactive_threshold": 61 * SECOND}, on)
    assert error.description.endswith("1m0s")


@pytest.mark.shows("operation.limits")
def test_server_limits_are_defaults_and_bounds_of_consumers() -> None:
    server = ServerLimits(max_ack_pending=7, max_request_batch=9)
    config = consumer({"ack_policy": "explicit"}, server=server)
    assert (config.max_ack_pending, config.max_batch) == (7, 9)
    with refused(10125):
        consumer({"max_batch": 10}, server=server)
    with refused(10121):
        consumer({"ack_policy": "explicit", "max_ack_pending": 8}, account=AccountLimits(max_ack_pending=7))


@pytest.mark.parametrize("change, word", [
    ({"deliver_policy": "new"}, "deliver policy"), ({"ack_policy": "all"}, "ack policy"),
    ({"mem_storage": True}, "storage"),
    ({"replay_policy": "original"}, "replay"), ({"max_waiting": 7}, "max waiting"), ({"deliver_subject": "d"}, "pull"),
])
def test_fields_that_an_update_of_a_consumer_cannot_change(change: dict[str, Any], word: str) -> None:
    base = {"durable_name": "D", "ack_policy": "explicit"}
    with refused(10012) as error:
        check_consumer_update(consumer(base), consumer(base | change), lambda subject: False)
    assert word in error.description


def test_a_deliver_subject_in_use_stays() -> None:
    old, new = consumer({"deliver_subject": "d"}), consumer({"deliver_subject": "e"})
    check_consumer_update(old, new, lambda subject: False)
    with refused(10013):
        check_consumer_update(old, new, lambda subject: subject == "d")


def test_creating_a_consumer_again_is_seen_as_such() -> None:
    there = consumer({"durable_name": "D"})
    assert same_consumer(consumer({"durable_name": "D", "metadata": {"_nats.ver": "9"}}), there)
    assert not same_consumer(consumer({"durable_name": "D", "max_deliver": 2}), there)


def test_a_copy_of_a_consumer_shares_nothing_that_changes() -> None:
    """Shows that the original stays as it was when the copy is changed."""
    given = {"durable_name": "D", "backoff": [1], "filter_subjects": ["a", "b"], "metadata": {"k": "v"},
             "priority_groups": ["g"]}
    original = ConsumerConfig.from_json(deepcopy(given))
    copy = original.copy()
    assert copy == original
    copy.backoff.append(2)
    copy.filter_subjects.clear()
    copy.metadata["k"] = "other"
    copy.priority_groups.append("h")
    copy.max_deliver = 7
    assert original == ConsumerConfig.from_json(given)
