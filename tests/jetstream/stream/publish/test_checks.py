"""The table of checks: which checks a message passes, and what a check may do with it.

The refusals of the broker's own checks, and their order, are compared with the real nats-server by other tests.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from broker.jetstream.config.stream import StreamConfig
from broker.jetstream.stream.publish.candidate import Candidate, Check
from broker.jetstream.stream.publish.checks import ANY, TABLE, Checks, Rule
from broker.jetstream.stream.publish.context import CheckContext
from broker.jetstream.stream.state.rows import NotLoaded
from broker.jetstream.stream.stream import Stream
from broker.storage.format.message_size import message_size
from tests.jetstream.stream.world import World, ask, everything, pub, publish


def add(stream: Stream, check: Check, headers: frozenset[bytes] | None) -> None:
    """Make the stream's messages with ``headers`` pass one more check, before all others."""
    def make(context: CheckContext, config: StreamConfig) -> Check:
        return check
    stream.sequencer.checks = Checks(stream.sequencer.context, stream.config, [Rule(make, headers), *TABLE])


@pytest.mark.parametrize("headers, seen",
                         [(None, ["none", "foreign", "id", "expected"]), (ANY, ["foreign", "id", "expected"]),
                          (frozenset([b"Nats-Expected-Stream"]), ["expected"])],
                         ids=["every message", "messages with headers", "messages with one header"])
async def test_a_check_gets_the_messages_of_its_row(headers: frozenset[bytes] | None, seen: list[str]) -> None:
    """A publish of each kind, decided one by one, reaches the check only if its row asks for it."""
    world = World()
    stream = world.stream(max_msgs_per_subject=100, discard="new", discard_new_per_subject=True)
    payloads: list[str] = []
    add(stream, lambda candidate: payloads.append(candidate.body[candidate.hlen:].decode()), headers)
    publish(world, stream, pub(b"S.a", b"none"), pub(b"S.a", b"foreign", X="y"), pub(b"S.a", b"id", Nats_Msg_Id="1"),
            pub(b"S.a", b"expected", Nats_Expected_Stream="S", X="y"))
    await world.settle(stream)
    assert payloads == seen
    assert stream.msgs == 4
    await world.close()


async def test_headers_in_any_order_meet_the_same_checks() -> None:
    """Publish with more orders of headers than are cached; one of the headers is wrong."""
    world = World()
    stream = world.stream()
    right = {"Nats_Expected_Stream": "S", "Nats_Msg_Id": "", "Nats_Rollup": "", "Nats_Expected_Last_Msg_Id": ""}
    wrong = {"Nats_Expected_Last_Sequence": "9"}
    for order in permutations([*right, *wrong]):
        answer = await ask(world, stream, pub(b"S.a", **{name: (right | wrong)[name] for name in order}))
        assert answer["error"]["err_code"] == 10071
    for order in permutations(right):
        assert "error" not in await ask(world, stream, pub(b"S.a", **{name: right[name] for name in order}))
    assert stream.msgs == 24
    await world.close()


async def test_a_changed_candidate_is_what_is_stored() -> None:
    """The candidate's subject, headers and body are stored, and ``after`` is called once the message is in the
    stream."""
    world = World()
    stream = world.stream(max_msgs_per_subject=2, discard="new")
    stored: list[int] = []

    def rewrite(candidate: Candidate) -> None:
        candidate.subject, candidate.hlen, candidate.body = b"S.changed", 0, b"changed"
        candidate.size = message_size(b"S.changed", 0, b"changed")
        candidate.after = lambda: stored.append(stream.last_seq)

    add(stream, rewrite, frozenset([b"Nats-Expected-Stream"]))
    for seq in (1, 2, 3):
        assert await ask(world, stream, pub(b"S.a", b"x", Nats_Expected_Stream="S")) == {"stream": "S", "seq": seq}
    assert await everything(stream) == [(2, b"S.changed", b"changed"), (3, b"S.changed", b"changed")]
    assert (stored, stream.size_bytes) == ([1, 2, 3], 2 * message_size(b"S.changed", 0, b"changed"))
    await world.close()


async def test_a_check_may_wait_for_data() -> None:
    """All checks run again once the data is loaded; messages published later stay behind the waiting one."""
    world = World()
    stream = world.stream()
    loaded: list[int] = []

    async def load() -> None:
        loaded.append(stream.last_seq)

    def check(candidate: Candidate) -> None:
        if not loaded:
            raise NotLoaded("something", work=load)

    add(stream, check, frozenset([b"Nats-Expected-Stream"]))
    replies = publish(world, stream, pub(b"S.a", b"1"), pub(b"S.a", b"2", Nats_Expected_Stream="S"), pub(b"S.a", b"3"))
    await world.settle(stream)
    assert [world.bus.answer(reply)["seq"] for reply in replies] == [1, 2, 3]
    assert loaded == [1]
    await world.close()


@pytest.mark.parametrize("limits", [
    {"max_msgs_per_subject": 1, "discard": "new"},
    {"max_msgs_per_subject": 1, "max_bytes": 1 << 20, "discard": "new"},
    {"max_msgs_per_subject": 2, "max_msgs": 10},
    {"max_msgs": 10, "max_age": 10**12},
], ids=["bucket", "bucket with max_bytes", "history", "age"])
async def test_messages_within_the_limits_are_not_decided_one_by_one(limits: dict[str, Any]) -> None:
    """Publish single messages and a run, far from the limits: the faster ways take them, and old values are
    replaced."""
    world = World()
    stream = world.stream(**limits)
    await ask(world, stream, pub(b"S.a", b"0"))  # a stream that limits subjects makes its index for its first message
    stream.sequencer.reset_checks()
    for body in (b"1", b"2"):
        assert "error" not in await ask(world, stream, pub(b"S.a", body))
    publish(world, stream, pub(b"S.b", b"3"), pub(b"S.a", b"4"), pub(b"S.b", b"5"))
    await world.settle(stream)
    assert stream.sequencer.checks is None
    kept = limits.get("max_msgs_per_subject", 9)
    expected = [(seq, subject, body) for subject, values in ((b"S.a", (1, 2, 3, 5)), (b"S.b", (4, 6)))
                for seq, body in list(zip(values, (b"0", b"1", b"2", b"4") if subject == b"S.a" else (b"3", b"5"),
                                          strict=True))[-kept:]]
    assert await everything(stream) == sorted(expected)
    await world.close()


@pytest.mark.parametrize("limits, err", [
    ({"max_msgs": 3}, "maximum messages exceeded"),
    ({"max_msgs": 3, "max_msgs_per_subject": 5}, "maximum messages exceeded"),
    ({"max_bytes": 3 * message_size(b"S.a", 0, b"x")}, "maximum bytes exceeded"),
    ({"max_msgs_per_subject": 3, "discard_new_per_subject": True}, "maximum messages per subject exceeded"),
], ids=["max_msgs", "max_msgs and subjects", "max_bytes", "per subject"])
@pytest.mark.parametrize("at_once", [1, 3])
async def test_the_message_beyond_a_limit_is_refused(limits: dict[str, Any], err: str, at_once: int) -> None:
    """Fill a stream that discards new messages, by single messages or by runs: exactly the fourth one is refused."""
    world = World()
    stream = world.stream(discard="new", **limits)
    for at in range(0, 6, at_once):
        publish(world, stream, *[pub(b"S.a", b"x", reply=b"r%d" % i) for i in range(at, at + at_once)])
        await world.settle(stream)
    answers = [world.bus.answer(b"r%d" % i) for i in range(6)]
    assert [answer["seq"] for answer in answers] == [1, 2, 3, 0, 0, 0]
    assert {answer["error"]["description"] for answer in answers[3:]} == {err}
    await world.close()
