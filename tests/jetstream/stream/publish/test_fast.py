"""Fast-ingest batches: the meaning of an ack, limits, time, and messages that wait for the store.

The scenarios "fast batches" in tests/jetstream/differential compare their answers with those of nats-server.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from broker.jetstream.bus import Msg
from broker.jetstream.inflight import BatchLimits, Inflight
from broker.jetstream.stream.publish.fast import FastBatches, FastMessage, Operation
from broker.jetstream.wire.errors import ApiError
from broker.storage.log.open_block import OpenBlock
from broker.storage.log.settings import LogSettings
from tests.jetstream.stream.world import TINY_CACHE_BYTES, World, ask, everything, pub, publish

START, APPEND, COMMIT, END, PING = Operation


def fast(place: int, operation: int = APPEND, *, subject: bytes = b"S.a", gap: str = "fail", flow: int = 2,
         **headers: str) -> Msg:
    """Return a message of the batch b."""
    return pub(subject, b"%d" % place, reply=f"in.b.{flow}.{gap}.{place}.{operation}.$FI".encode(), **headers)


def answers_to(world: World, *msgs: Msg) -> list[Any]:
    """Return all answers to these messages."""
    return [json.loads(payload) for msg in msgs for payload in world.bus.replies.get(msg[1], ())]


async def test_an_ack_means_stored() -> None:
    """Only the first ack, which promises nothing, is sent before the messages are stored."""
    world = World()
    stream = world.stream(allow_batched=True)
    await world.settle()
    msgs = [fast(1, START), *(fast(place) for place in range(2, 8)), fast(8, COMMIT)]
    publish(world, stream, *msgs)
    assert stream.last_seq == 8
    assert answers_to(world, *msgs) == [{"type": "ack", "seq": 0, "msgs": 2}]
    await world.settle(stream)
    assert answers_to(world, *msgs[1:]) == [*({"type": "ack", "seq": place, "msgs": 2} for place in (2, 4, 6)),
                                            {"stream": "S", "seq": 8, "batch": "b", "count": 8}]
    assert [payload for _, _, payload in await everything(stream)] == [b"%d" % place for place in range(1, 9)]
    await world.close()


async def test_the_first_ack_does_not_overtake_earlier_answers() -> None:
    """A message that is not stored yet, one with a wrong pattern, and the first one of a batch are answered in
    order."""
    world = World()
    stream = world.stream(allow_batched=True)
    await world.settle()
    wrong = pub(b"S.a", reply=b"in.c.2.fail.1.5.$FI")
    msgs = pub(b"S.a", b"x"), wrong, fast(1, START)
    for msg in msgs:
        publish(world, stream, msg)
    await world.settle(stream)
    assert [subject for subject in world.bus.order if subject in {msg[1] for msg in msgs}] == [msg[1] for msg in msgs]
    assert answers_to(world, wrong)[0]["error"]["err_code"] == 10206
    await world.close()


async def test_messages_wait_for_the_data_of_their_checks() -> None:
    """Nothing is in memory after a restart; each message is placed in the batch once."""
    world = World(settings=LogSettings(segment_count=3), cache_bytes=TINY_CACHE_BYTES)
    stream = world.stream(allow_batched=True, allow_rollup_hdrs=True)
    for i in range(30):
        await ask(world, stream, pub(b"S.%d" % i, b"x", Nats_Msg_Id=f"id{i}"))
    again = await world.restart(stream)
    last = "Nats_Expected_Last_Subject_Sequence"
    msgs = [fast(1, START, **{last: "30", last + "_Subject": "S.*"}), fast(2, Nats_Msg_Id="id29"),
            fast(3, subject=b"S.7", Nats_Rollup="sub"), fast(4, subject=b"S.8", **{last: "9"}), fast(5, COMMIT)]
    publish(world, again, *msgs)
    assert again.last_seq == 30
    await world.settle(again)
    assert answers_to(world, *msgs)[-1] == {"stream": "S", "seq": 34, "batch": "b", "count": 5}
    assert [seq for seq, _, _ in await everything(again)] == [*range(1, 8), *range(9, 35)]
    await world.close()


@pytest.mark.parametrize("flow", [1, 3, 7, 500])
async def test_runs_have_the_same_answers_as_single_messages(flow: int) -> None:
    """The messages of one read arrive in one call, or each in its own; another batch starts and ends in between."""
    found = []
    for together in (True, False):
        world = World()
        stream = world.stream(allow_batched=True)
        rng, place, runs = random.Random(flow), 1, [[fast(1, START, flow=flow)]]
        while place < 1500:
            count = rng.randrange(1, 200)
            runs.append([fast(at, flow=flow) for at in range(place + 1, place + 1 + count)])
            place += count
        runs.insert(4, [pub(b"S.a", reply=b"in.other.9.ok.1.0.$FI")])
        runs.insert(8, [pub(b"S.a", reply=b"in.other.9.ok.2.3.$FI")])
        runs.append([fast(place + 1, COMMIT, flow=flow)])
        for run in runs:
            for part in [run] if together else [[msg] for msg in run]:
                publish(world, stream, *part)
        await world.settle(stream)
        assert stream.last_seq == place + 2
        found.append(world.bus.replies)
        await world.close()
    assert found[0] == found[1]


async def test_runs_with_a_gap_or_commit_are_decided_one_by_one() -> None:
    """A run with gaps, another batch, or a commit is answered message by message."""
    world = World()
    stream = world.stream(allow_batched=True)
    msgs = [fast(1, START, gap="ok"), fast(2, gap="ok")]
    publish(world, stream, *msgs)
    runs = [[fast(4, gap="ok"), fast(5, gap="ok")], [fast(6, gap="ok"), fast(8, gap="ok")],
            [fast(9, gap="ok"), fast(10, COMMIT, gap="ok"), fast(11, gap="ok")]]
    for run in runs:
        publish(world, stream, *run)
    await world.settle(stream)
    answers = answers_to(world, *(msg for run in runs for msg in run))
    assert [one for one in answers if one.get("type") == "gap"] == [
        {"type": "gap", "last_seq": 3, "seq": 4}, {"type": "gap", "last_seq": 7, "seq": 8}]
    assert answers[-2] == {"stream": "S", "seq": 8, "batch": "b", "count": 10}
    assert answers[-1]["error"]["err_code"] == 10208
    await world.close()


class Opened:
    """Open batches on a clock that stands still."""

    def __init__(self, **limits: int) -> None:
        self.world = World()
        self.inflight = Inflight(BatchLimits(**limits))
        self.batches = self.another()

    def another(self) -> FastBatches:
        return FastBatches(self.inflight, self.world.clock,
                           lambda seq, name, count, again: b"over %d %d" % (seq, count))

    def code(self, batch_id: str, place: int, of: FastBatches | None = None) -> int:
        """Store one message; return the error code, or 0."""
        batches = self.batches if of is None else of
        reply = f"in.{batch_id}.9.fail.{place}.{APPEND if place > 1 else START}.$FI".encode()
        message = FastMessage.parse(reply)
        try:
            batch = batches.batch_of(message)
        except ApiError as error:
            return error.err_code
        assert batches.place(batch, message, pub(b"S.a", reply=reply)) == ([], True)
        batches.stored(batch, message, place)
        return 0

    async def close(self) -> None:
        self.batches.clear()
        assert self.inflight.fast == 0
        await self.world.close()


async def test_idle_batches_end() -> None:
    opened = Opened()
    begin_ns = opened.world.clock.monotonic_ns()
    assert [opened.code(name, 1) for name in "ab"] == [0, 0]
    opened.world.clock.advance(6_000_000_000)
    assert opened.code("b", 2) == 0
    assert opened.batches.expire(begin_ns + 10_000_000_000) == begin_ns + 16_000_000_000
    assert [opened.code("a", 2), opened.code("b", 3)] == [10208, 0]
    await opened.close()


async def test_open_batches_are_bounded() -> None:
    """There are limits in one stream, and in all streams."""
    opened = Opened(fast_per_stream=2, fast_total=3)
    other = opened.another()
    assert [opened.code(name, 1) for name in "abc"] == [0, 0, 10211]
    assert [opened.code(name, 1, other) for name in "de"] == [0, 10211]
    other.clear()
    assert opened.code("e", 1, other) == 0
    other.clear()
    await opened.close()


@pytest.mark.parametrize("gap, answers", [("fail", [b"over 1 1"]), ("ok", [])])
async def test_a_message_that_waited_too_long_is_missing(gap: str, answers: list[bytes]) -> None:
    """The message was refused without its batch. If gaps fail, the batch ends before it."""
    opened = Opened()
    msgs = [fast(1, START, gap=gap), fast(2, gap=gap), fast(3, gap=gap)]
    messages = [FastMessage.parse(msg[1]) for msg in msgs]
    batch = opened.batches.batch_of(messages[0])
    assert opened.batches.place(batch, messages[0], msgs[0]) == ([], True)
    opened.batches.stored(batch, messages[0], 1)
    assert opened.batches.place(batch, messages[1], msgs[1]) == ([], True)
    assert opened.batches.place(batch, messages[1], msgs[1]) == ([], True)
    assert opened.batches.place(batch, messages[2], msgs[2]) == (answers, gap == "ok")
    await opened.close()


async def test_nothing_is_acknowledged_after_a_message_lost_by_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    stream = world.stream(allow_batched=True)
    await world.settle()
    first, second = fast(1, START, flow=9), fast(2, COMMIT, flow=9)
    monkeypatch.setattr(OpenBlock, "append_run", lambda *_: 1 // 0)
    publish(world, stream, first)
    monkeypatch.undo()
    publish(world, stream, second)
    await world.settle(stream)
    assert stream.last_seq == 0
    assert answers_to(world, second)[0]["error"]["err_code"] == 10208
    await world.close()
