"""Unexpected errors, injected into each step of a run of publishes: the stream stays consistent with its PubAcks.

Whatever fails, a later retry of each publish finds its message exactly once, at the acknowledged sequence, also after a
restart; the stream's numbers match its messages; other streams of the same log continue.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from broker.jetstream.config.stream import StreamConfig
from broker.jetstream.stream.publish import duplicates, expectations, limits
from broker.jetstream.stream.publish.candidate import Candidate, Check
from broker.jetstream.stream.publish.checks import TABLE, Checks
from broker.jetstream.stream.publish.context import CheckContext
from broker.jetstream.stream.stream import Stream
from tests.jetstream.stream.world import Listener, World, everything, pub, publish, turns

NOT_AVAILABLE = 10008


class Once:
    """A stand-in for a function: fails on its ``nth`` call, before or after its work, and on no other call."""

    def __init__(self, work: Callable[..., Any], nth: int, after: bool) -> None:
        self.work = work
        self.left = nth
        self.after = after
        self.met = False

    def __call__(self, *args: Any, **named: Any) -> Any:
        self.left -= 1
        fails = self.left == 0
        if fails and not self.after:
            self.met = True
            raise ZeroDivisionError("injected")
        result = self.work(*args, **named)
        if fails:
            self.met = True
            raise ZeroDivisionError("injected")
        return result


RUN = [("a", "1", {}), ("b", "2", {}), ("a", "3", {}), ("c", "4", {"Nats_Expected_Stream": "S"}), ("a", "2", {}),
       ("b", "5", {}), ("d", "6", {"Nats_Expected_Last_Sequence": "999"}), ("a", "7", {}), ("d", "8", {})]
"""(subject, id, headers): the fifth row is a duplicate, the seventh is refused."""

CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {}, "one a subject": {"max_msgs_per_subject": 1}, "two a subject": {"max_msgs_per_subject": 2},
    "limited": {"max_msgs": 4}, "both": {"max_msgs": 5, "max_msgs_per_subject": 1},
    "memory": {"storage": "memory"}, "memory, one a subject": {"storage": "memory", "max_msgs_per_subject": 1},
    "async": {"persist_mode": "async", "allow_msg_schedules": False}, "new": {"max_msgs": 50, "discard": "new"}}



class PlantedCheck:
    """A stream's checks with one check that is called by name, so that an error can be injected into it."""

    def __init__(self, stream: Stream, make: Callable[..., Check | None]) -> None:
        self.made: Check | None = None

        def planted(context: CheckContext, config: StreamConfig) -> Check | None:
            self.made = make(context, config)
            return self.made and (lambda candidate: self.check(candidate))

        table = [rule._replace(make=planted) if rule.make is make else rule for rule in TABLE]
        assert any(rule.make is planted for rule in table)
        stream.sequencer.checks = Checks(stream.sequencer.context, stream.config, table)

    def check(self, candidate: Candidate) -> None:
        assert self.made is not None
        self.made(candidate)


STEPS: dict[str, Callable[[Stream], tuple[Any, str]]] = {
    "expected stream": lambda stream: (PlantedCheck(stream, expectations.stream), "check"),
    "expected sequence": lambda stream: (PlantedCheck(stream, expectations.last_sequence), "check"),
    "duplicate": lambda stream: (PlantedCheck(stream, duplicates.duplicate), "check"),
    "header size": lambda stream: (PlantedCheck(stream, limits.header_size), "check"),
    "subject index": lambda stream: (PlantedCheck(stream, limits.subject_index), "check"),
    "discard new": lambda stream: (PlantedCheck(stream, limits.discard_new), "check"),
    "index": lambda stream: (stream.sequencer, "_index"),
    "append": lambda stream: (stream.sequencer.appender, "_add"),
    "block": lambda stream: (stream.log, "block"),
    "answer": lambda stream: (stream.sequencer.replies, "accepted"),
    "refusal": lambda stream: (stream.retention, "enforce"),
    "remove": lambda stream: (stream.retention, "remove_listed"),
    "trim": lambda stream: (stream.retention, "trim"),
    "front": lambda stream: (stream.retention, "remove_front"),
    "consumer": lambda stream: (stream.listeners.by_name["c"], "removed"),
}


def numbers(stream: Stream) -> tuple[int, int]:
    return sum(block.live_msgs for block in stream.live.blocks), sum(block.live_bytes for block in stream.live.blocks)


class Recounting(Listener):
    """A consumer as the stream sees it, which counts requests to recount."""

    recounts = 0

    def notification_failed(self) -> None:
        self.recounts += 1


@pytest.mark.parametrize("after", [False, True], ids=["before its work", "after its work"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("config", CONFIGS)
async def test_an_unexpected_error_leaves_nothing_behind(config: str, step: str, after: bool,
                                                         caplog: pytest.LogCaptureFixture) -> None:
    """The error is injected at each call of the step in turn, until a run no longer meets it."""
    caplog.set_level(logging.CRITICAL)
    met = 0
    for nth in range(1, 12):
        world = World()
        stream, other = world.stream(**CONFIGS[config]), world.stream("T")
        stream.listeners.by_name["c"] = Recounting()
        await world.settle(stream)
        where, name = STEPS[step](stream)
        once = Once(getattr(where, name), nth, after)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(where, name, once, raising=False)
            publish(world, stream, *(pub(b"S.%b" % subject.encode(), msg_id.encode(), Nats_Msg_Id=msg_id, **headers)
                                     for subject, msg_id, headers in RUN))
        publish(world, other, pub(b"T.a", b"other", reply=b"_R.other.%d" % nth))
        if not once.met:
            await world.close()
            break
        met += 1
        await check(world, stream)
        assert world.bus.answer(b"_R.other.%d" % nth)["seq"] == 1
        assert world.log.failure is None
        await world.close()
    assert met or nth == 1
    if isinstance(where, PlantedCheck) and where.made and not after:
        assert met, "the check is needed, and was never called"


async def check(world: World, stream: Stream) -> None:
    """Check that the answers to a publisher that retries are right, now and after a restart."""
    await world.settle(stream)
    acked: dict[str, int] = {}
    for subject, msg_id, headers in RUN:
        if "Nats_Expected_Last_Sequence" in headers or msg_id in acked:
            continue
        msg = pub(b"S.%b" % subject.encode(), msg_id.encode(), Nats_Msg_Id=msg_id)
        publish(world, stream, msg)
        await world.settle(stream)
        acked[msg_id] = world.bus.answer(msg[1])["seq"]
    assert len(set(acked.values())) == len(acked)
    await check_messages(world, stream, acked)
    if stream.stored:
        await check_messages(world, await world.restart(stream, clean=True), acked)


async def check_messages(world: World, stream: Stream, acked: dict[str, int]) -> None:
    """Check that each id is at the acknowledged sequence if that is still live, and that the numbers are right."""
    await world.settle(stream)
    kept = {seq: payload.decode() for seq, _, payload in await everything(stream)}
    for msg_id, seq in acked.items():
        assert kept.get(seq, msg_id) == msg_id
    payloads = list(kept.values())
    assert len(set(payloads)) == len(payloads)
    assert stream.msgs == len(kept)
    assert (stream.msgs, stream.size_bytes) == numbers(stream)
    assert stream.last_seq >= max(acked.values())


async def test_an_id_without_its_message_is_not_remembered() -> None:
    """A publish between two others that fails is refused; neither it nor the others are treated as duplicates."""
    world = World()
    stream = world.stream()
    first, bad, last = (pub(b"S.a", msg_id.encode(), Nats_Msg_Id=msg_id, Nats_Expected_Stream="S") for msg_id in "xyz")
    with pytest.MonkeyPatch.context() as patch:
        planted = PlantedCheck(stream, expectations.stream)
        patch.setattr(planted, "check", Once(planted.check, 2, False))
        publish(world, stream, first, bad, last)
    await world.settle()
    assert [world.bus.answer(msg[1]).get("seq") for msg in (first, last)] == [1, 2]
    assert world.bus.answer(bad[1])["error"]["err_code"] == NOT_AVAILABLE
    for msg, expected in ((bad, {"stream": "S", "seq": 3}), (first, {"stream": "S", "seq": 1, "duplicate": True}),
                          (last, {"stream": "S", "seq": 2, "duplicate": True})):
        publish(world, stream, msg)
        await world.settle()
        assert json.loads(world.bus.replies[msg[1]][-1]) == expected
    await world.close()


async def test_a_failing_consumer_stops_nothing_else() -> None:
    """A consumer that fails on a removal must recount; the others are notified, and the message is acknowledged."""
    world = World()
    stream = world.stream(max_msgs=1)
    bad, good = Recounting("bad"), Recounting("good")
    stream.listeners.by_name = {"bad": bad, "good": good}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bad, "removed", Once(bad.removed, 1, False))
        replies = publish(world, stream, pub(b"S.a"), pub(b"S.a"))
    await world.settle()
    assert [world.bus.answer(reply)["seq"] for reply in replies] == [1, 2]
    assert (bad.recounts, good.recounts, len(good.gone), stream.msgs) == (1, 0, 1, 1)
    await world.close()


async def test_numbers_that_are_not_those_of_the_messages_stop_the_log() -> None:
    """A block with a message that is not counted is not persisted, and nothing is acknowledged."""
    world = World()
    stream = world.stream()
    await world.settle()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream.live, "appended", Once(stream.live.appended, 1, False))
        replies = publish(world, stream, pub(b"S.a"), pub(b"S.a"))
    assert isinstance(world.log.failure, ZeroDivisionError)
    assert not any(reply in world.bus.replies for reply in replies)
    again = await world.restart(stream)
    assert (again.last_seq, again.msgs, await everything(again)) == (0, 0, [])
    await world.close()


async def test_queued_publishes_continue_after_an_error() -> None:
    """The loop reports an error at a queued publish, and the publishes behind it are decided."""
    world = World()
    stream = world.stream()
    async with stream.queue.turn():
        replies = [publish(world, stream, pub(b"S.a"))[0] for _ in range(3)]
        sequence = stream.queue._sequence
        stream.queue._sequence = Once(sequence, 1, True)
        end = stream.queue.end
        stream.queue.end = lambda: None  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        end()
    stream.queue.end = end  # type: ignore[method-assign]
    await world.settle(stream)
    assert [world.bus.answer(reply)["seq"] for reply in replies] == [1, 2, 3]
    assert not stream.queue.closed
    await world.close()


async def test_a_stream_that_fails_while_its_queue_drains() -> None:
    """The stream accepts nothing more, even in that turn of the loop: a PubAck for a later publish would be false."""
    world = World()
    stream, other = world.stream(), world.stream("O")
    await world.settle()
    sequence = stream.queue._sequence

    def failing(*run: Any) -> int:
        work = sequence(*run)
        world.log._set_offline(stream, world.log._segments.next.number, OverflowError("planted"))
        return work

    stream.queue._sequence = failing
    stream.queue.begin()
    replies = publish(world, stream, pub(b"S.a")) + publish(world, stream, pub(b"S.b"))
    stream.queue.end()
    replies += publish(world, stream, pub(b"S.c"))
    beside, = publish(world, other, pub(b"O.a"))
    await world.settle()
    await turns()
    assert world.bus.answer(beside)["seq"] == 1
    assert replies[0] not in world.bus.replies
    assert [world.bus.answer(reply)["error"]["err_code"] for reply in replies[1:]] == [10194, 10194]
    await world.close()
