"""Atomic batches: all or nothing across a crash, limits, time, and commits that wait for the store.

The scenarios "batches" in tests/jetstream/differential compare their refusals, and the order of these, with
nats-server.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from broker.jetstream.bus import Msg
from broker.jetstream.inflight import BatchLimits, Inflight
from broker.jetstream.stream.publish import atomic as atomic_module
from broker.jetstream.stream.publish.atomic import AtomicBatches, Reason
from broker.jetstream.stream.publish.checks import ATOMIC, TABLE
from broker.jetstream.wire.errors import ApiError
from broker.storage.log.putter import Segment
from broker.storage.log.settings import LogSettings
from tests.jetstream.stream.world import TINY_CACHE_BYTES, World, ask, everything, pub, publish
from tests.storage.listening import Listening


def batch(batch_id: str, *msgs: tuple[bytes, dict[str, str]]) -> list[Msg]:
    """Return a whole batch; the last message commits it."""
    return [pub(subject, b"%b %d" % (batch_id.encode(), place), Nats_Batch_Id=batch_id, Nats_Batch_Sequence=str(place),
                **headers, **({"Nats_Batch_Commit": "1"} if place == len(msgs) else {}))
            for place, (subject, headers) in enumerate(msgs, 1)]


async def test_a_crash_leaves_all_of_a_batch_or_none() -> None:
    """Segments are full after a few messages, and every stored segment is a state that a crash may leave."""
    world = World(settings=LogSettings(segment_bytes=300, segment_count=4))
    stream = world.stream(allow_rollup_hdrs=True, allow_atomic=True)
    await world.settle()
    found: list[int] = []

    def applied(segment: Segment) -> None:
        found.append(world.log.state.streams[stream.stream_id].last_seq)

    world.log.listen(Listening(segment_applied=applied))
    rng, whole = random.Random(3), {0}
    for i in range(40):
        if rng.random() < 0.5:
            rows = [(b"S.%d" % rng.randrange(9), {}) for _ in range(rng.randrange(1, 30))]
            if rng.random() < 0.3:
                rows[0] = rows[0][0], {"Nats_Rollup": "all"}
            msgs = batch(f"b{i}", *rows)
            publish(world, stream, *msgs)
            whole.add(stream.last_seq)
        else:
            for _ in range(rng.randrange(1, 9)):
                publish(world, stream, pub(b"S.a", b"x" * 50))
                whole.add(stream.last_seq)
        if rng.random() < 0.3:
            await world.settle(stream)
    await world.settle(stream)
    assert len(found) > 20
    assert set(found) <= whole
    kept = await everything(stream)
    again = await world.restart(stream)
    assert await everything(again) == kept
    await world.close()


async def test_a_batch_is_answered_once_it_is_stored() -> None:
    """The other messages of a batch are answered at once, with an empty reply."""
    world = World()
    stream = world.stream(allow_atomic=True)
    await world.settle()
    first, last = batch("b", (b"S.a", {}), (b"S.b", {}))
    publish(world, stream, first, last)
    assert world.bus.replies == {first[1]: [b""]}
    assert (stream.last_seq, stream.safe_seq) == (2, 0)
    await world.settle(stream)
    assert world.bus.replies[last[1]] == [b'{"stream":"S","seq":2,"batch":"b","count":2}']
    await world.close()


async def test_an_open_batch_ends_with_the_process() -> None:
    world = World()
    stream = world.stream(allow_atomic=True)
    first, last = batch("b", (b"S.a", {}), (b"S.b", {}))
    publish(world, stream, first)
    again = await world.restart(stream, clean=True)
    assert (await ask(world, again, last))["error"]["err_code"] == 10176
    assert again.msgs == 0
    await world.close()


@pytest.mark.parametrize("config", [{}, {"max_msgs_per_subject": 2}], ids=["untracked", "tracked"])
async def test_a_commit_waits_for_the_data_of_its_checks(config: dict[str, int]) -> None:
    """The commit loads, after a restart, last sequences by subject and by wildcard, ids, and removals by roll-ups."""
    world = World(settings=LogSettings(segment_count=3), cache_bytes=TINY_CACHE_BYTES)
    stream = world.stream(allow_atomic=True, allow_rollup_hdrs=True, **config)
    for i in range(60):
        await ask(world, stream, pub(b"S.%b.%d" % (b"xyz"[i % 3:i % 3 + 1], i), b"%d" % i, Nats_Msg_Id=f"id{i}"))
    again = await world.restart(stream)
    last, subject = "Nats_Expected_Last_Subject_Sequence", "Nats_Expected_Last_Subject_Sequence_Subject"
    rows = [(b"S.x.0", {"Nats_Rollup": "sub", last: "1"}), (b"S.y.1", {"Nats_Rollup": "sub"}),
            (b"S.new", {last: "58", subject: "S.x.*", "Nats_Msg_Id": "new"}),
            (b"S.new", {last: "59", subject: "S.y.*"}),
            (b"S.x.3", {last: "60", subject: "S.z.>"})]
    msgs, after = batch("b", *rows), pub(b"S.after")
    publish(world, again, *msgs, after)
    assert again.last_seq == 60
    await world.settle(again)
    assert world.bus.answer(msgs[-1][1]) == {"stream": "S", "seq": 65, "batch": "b", "count": 5}
    assert world.bus.answer(after[1]) == {"stream": "S", "seq": 66}
    assert [seq for seq, _, _ in await everything(again)] == list(range(3, 67))
    known = await world.restart(again)
    repeated = batch("c", (b"S.a", {}), (b"S.b", {"Nats_Msg_Id": "id59"}))
    publish(world, known, *repeated)
    await world.settle(known)
    assert world.bus.answer(repeated[-1][1])["error"]["err_code"] == 10201
    assert known.last_seq == 66
    await world.close()


@pytest.mark.parametrize("config", [{}, {"max_msgs_per_subject": 2}, {"max_msgs": 12},
                                    {"max_msgs": 12, "discard": "new"},
                                    {"max_msg_size": 150}, {"retention": "interest"}, {"subject_transform": {
                                        "src": "S.>", "dest": "T.>"}}], ids=str)
@pytest.mark.parametrize("break_at", [None, 2, 5, 8])
async def test_a_batch_sent_at_once_is_as_one_sent_message_by_message(config: dict[str, Any],
                                                                      break_at: int | None) -> None:
    """A batch has the same answers, messages and bytes, whether it arrives in one read or in many.

    Another header on the way makes no difference either.
    """
    found = []
    for at_once in (True, False):
        world = World(settings=LogSettings(segment_count=7))
        stream = world.stream(allow_atomic=True, **config)
        answers = []
        for k, places in enumerate(([*range(1, 9)], [1, 2, 3, 5, 6], [1, 2, 2, 3], [*range(1, 9)])):
            msgs = [pub(b"S.%d" % (i % 3), b"%d" % i * (1 + 9 * (k == 3) * i),
                        reply=b"" if i < len(places) - 1 else None,
                        Nats_Batch_Id=f"b{k}", Nats_Batch_Sequence=str(place),
                        **({"Nats_Batch_Commit": "1"} if i == len(places) - 1 else {}),
                        **({"Nats_Msg_Id": f"id{k}"} if i == break_at else {})) for i, place in enumerate(places)]
            other = pub(b"S.other", b"between")
            msgs.insert(4, other)
            for some in (msgs,) if at_once else [[msg] for msg in msgs]:
                publish(world, stream, *some)
            await world.settle(stream)
            answers += [world.bus.replies.get(msgs[-1][1]), world.bus.replies.get(other[1])]
        found.append((answers, await everything(stream), stream.msgs, stream.live.size_bytes, stream.last_seq))
        again = await world.restart(stream)
        assert (await everything(again), again.msgs, again.live.size_bytes) == found[-1][1:4]
        await world.close()
    assert found[0] == found[1]


async def test_a_refused_batch_leaves_no_trace() -> None:
    """The index, the ids and the memory have nothing of it; the next batch of the same name starts afresh."""
    world = World()
    stream = world.stream(allow_atomic=True, max_msgs_per_subject=1)
    await ask(world, stream, pub(b"S.a", b"kept"))
    wrong = batch("b", (b"S.a", {"Nats_Msg_Id": "x"}), (b"S.b", {"Nats_Expected_Stream": "T"}))
    publish(world, stream, *wrong)
    right = batch("b", (b"S.b", {"Nats_Msg_Id": "x"}), (b"S.c", {}))
    publish(world, stream, *right)
    await world.settle(stream)
    assert world.bus.answer(wrong[-1][1])["error"]["err_code"] == 10060
    assert world.bus.answer(right[-1][1]) == {"stream": "S", "seq": 3, "batch": "b", "count": 2}
    assert [(seq, subject) for seq, subject, _ in await everything(stream)] == [(1, b"S.a"), (2, b"S.b"), (3, b"S.c")]
    await world.close()


class Staging:
    """Open batches on a clock that stands still."""

    def __init__(self, **limits: int) -> None:
        self.world = World()
        self.inflight = Inflight(BatchLimits(**limits))
        self.abandoned: list[tuple[bytes, Reason]] = []
        self.batches = self.another()

    def another(self) -> AtomicBatches:
        return AtomicBatches(self.inflight, self.world.clock,
                             lambda batch_id, reason: self.abandoned.append((batch_id, reason)))

    def stage(self, batch_id: str, place: int, *, size: int = 1, commit: bool = False,
              of: AtomicBatches | None = None) -> int:
        """Stage a message, and close the batch if it is committed; return the error code, or 0."""
        batches = self.batches if of is None else of
        headers = {b"Nats-Batch-Sequence": b"%d" % place} | ({b"Nats-Batch-Commit": b"1"} if commit else {})
        try:
            ready = batches.stage(pub(b"S.a", bytes(size)), batch_id.encode(), headers)
        except ApiError as error:
            return error.err_code
        if ready is not None:
            batches.close(ready)
        return 0

    async def close(self) -> None:
        self.batches.clear()
        assert (self.inflight.atomic, self.inflight.staged_bytes) == (0, 0)
        await self.world.close()


@pytest.mark.shows("publish.atomic_limits", "advisory.batch_abandoned")
async def test_idle_batches_are_abandoned() -> None:
    """A batch is abandoned ten seconds after its last message, with an advisory."""
    staging = Staging()
    clock, batches = staging.world.clock, staging.batches
    begin_ns = clock.monotonic_ns()
    assert staging.stage("a", 1) == staging.stage("b", 1) == 0
    clock.advance(6_000_000_000)
    assert staging.stage("b", 2) == 0
    assert batches.expire(begin_ns + 9_999_999_999) == begin_ns + 10_000_000_000
    assert batches.expire(begin_ns + 10_000_000_000) == begin_ns + 16_000_000_000
    assert staging.abandoned == [(b"a", "timeout")]
    assert staging.stage("a", 2) == 10176
    assert staging.stage("b", 3, commit=True) == 0
    assert batches.expire(begin_ns + 20_000_000_000) is None
    await staging.close()


@pytest.mark.shows("publish.atomic_limits")
async def test_open_batches_are_bounded() -> None:
    """There are limits in one stream, in all streams, on messages and on bytes."""
    staging = Staging(per_stream=2, total=3, max_msgs=3, staged_bytes=5000)
    other = staging.another()
    assert [staging.stage(name, 1) for name in "abc"] == [0, 0, 10210]
    assert [staging.stage(name, 1, of=other) for name in "de"] == [0, 10210]
    assert [staging.stage("a", place) for place in (2, 3, 4, 4)] == [0, 0, 10199, 10199]
    assert staging.abandoned == [(b"a", "large")]
    assert staging.stage("f", 1, size=4000) == 0
    assert staging.stage("f", 2, size=4000) == 10210
    assert staging.stage("f", 1, size=4000) == 0
    other.clear()
    await staging.close()


async def test_a_batch_fits_in_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic_module, "BATCH_BYTES_MAX", 2 << 20)
    staging = Staging()
    assert [staging.stage("a", place, size=900_000) for place in (1, 2, 3)] == [0, 0, 10199]
    assert staging.abandoned == [(b"a", "large")]
    await staging.close()


@pytest.mark.parametrize("header", [{}, {"Nats_Msg_Id": "id"}], ids=["stored at once", "one by one"])
async def test_an_unexpected_error_stores_nothing_of_a_batch(header: dict[str, str],
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    """An error before the block gets a message refuses the batch; an error after that stops the log."""
    world = World()
    stream = world.stream(allow_atomic=True, max_msgs_per_subject=5)
    await ask(world, stream, pub(b"S.a", b"kept"))
    msgs = batch("b", (b"S.a", {}), (b"S.b", header))
    index = stream.subjects.ready()
    calls: list[bytes] = []

    def fail(subjects: list[bytes], *rest: object) -> None:
        calls.extend(subjects)
        raise ZeroDivisionError

    monkeypatch.setattr(type(index), "add_run", fail)
    publish(world, stream, *msgs)
    monkeypatch.undo()
    await world.settle(stream)
    assert calls == [b"S.a"]
    assert world.bus.answer(msgs[-1][1])["error"]["err_code"] == 10008
    assert stream.last_seq == 1
    assert await ask(world, stream, pub(b"S.a", b"next")) == {"stream": "S", "seq": 2}
    await world.close()


def test_every_check_of_single_messages_has_one_for_batches() -> None:
    """Each check of TABLE is in ATOMIC, too, unless another check replaces it there."""
    # Unwanted messages are stored with their batch and then removed; a stream's own delete markers come in no batch.
    replaced = {"trim_before", "fast_ingest", "atomic", "sealed", "payload_size", "unwanted", "marker"}
    names = {rule.make.__name__ for rule in ATOMIC}
    also = {"disabled": "ttl_disabled", "subject_full": "discard_new"}
    for rule in TABLE:
        name = rule.make.__name__
        assert name in names | replaced or also[name] in names, name
