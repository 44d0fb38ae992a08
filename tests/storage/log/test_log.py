"""The commit rules, the waiters' order, back-pressure, the lease: one test for each rule of the log."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from broker.cluster.ownership import seal_at
from broker.storage.format.block import Outcome
from broker.storage.format.errors import Corrupt
from broker.storage.format.header import ObjectHeader, ObjectKind, Position
from broker.storage.format.records.kinds import RecordKind
from broker.storage.log.commit_schedule import BURST_NS
from broker.storage.log.log import Log
from broker.storage.log.memory_log import MemoryLog
from broker.storage.objectstore.base import PreconditionFailed, StoreRefused, Transient
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.put import Fenced
from broker.storage.shard import Shard
from tests.manual_clock import ManualClock
from tests.plain_records import add_record
from tests.storage.listening import Listening
from tests.storage.objectstore.faulty import Faults
from tests.storage.rig import MS, PATHS, SECOND, Rig, Stream, fast, in_virtual_time


async def opened(clock: ManualClock, latency_ms: int = 10, **log: Any) -> tuple[Rig, Stream]:
    """Return a new shard with one stream, persisted."""
    rig = Rig(MemoryStore(), clock, faults=Faults(latency_ns=latency_ms * MS), settings=fast(**log))
    await rig.open()
    stream = Stream(rig.log)
    stream.create()
    await rig.log.persisted()
    return rig, stream


def test_a_put_begins_at_once_when_none_is_in_flight() -> None:
    """Shows that one publish is stored after one put's time, not a commit interval later."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock)
        began_ns = clock.monotonic_ns()
        stream.publish()
        await rig.log.persisted()
        assert clock.monotonic_ns() - began_ns < 11 * MS
        assert rig.log_keys()[-1] == Position(1, 2)
    in_virtual_time(main)


def test_gathers_while_a_put_is_in_flight() -> None:
    """Shows that messages that arrive during a put go into the next one together."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock)
        for _ in range(20):
            stream.publish()
            await asyncio.sleep(0.0004)
        await rig.log.persisted()
        assert rig.log.commit_count == 3
        assert [b.core.count for b in stream.persisted_blocks] == [0, 1, 19]
    in_virtual_time(main)


def test_full_segments_go_without_waiting_up_to_w() -> None:
    """Shows that full segments begin while others are in flight; the bound counts from the oldest not persisted one."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock, segment_bytes=50, puts_in_flight=3)
        stall = rig.store.stall_put(rig.store.puts)
        for _ in range(8):
            stream.publish(10)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await asyncio.sleep(5)
        # 2 is stalled, 3 and 4 are stored. No further put begins, since readers check at most W after a missing number.
        assert rig.log_keys() == [Position(1, n) for n in (0, 1, 3, 4)]
        assert rig.log.position == Position(1, 1)
        stall.release()
        await rig.log.persisted()
        assert rig.log.position == Position(1, 9)
    in_virtual_time(main)


def test_commit_interval_spaces_the_beginnings_of_puts() -> None:
    """Shows that with 50 ms between puts of 10 ms, a publisher that waits for each ack gets 20 a second; full segments
    are excepted."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock, commit_interval_ns=50 * MS, segment_bytes=1000)
        await asyncio.sleep(1)
        began_ns = clock.monotonic_ns()
        for _ in range(10):
            stream.publish()
            await rig.log.persisted()
        assert 9 * 50 * MS <= clock.monotonic_ns() - began_ns < 9 * 50 * MS + 15 * MS
        began_ns = clock.monotonic_ns()
        for _ in range(4):
            stream.publish(300)
            await rig.log.persisted()
        assert clock.monotonic_ns() - began_ns < 50 * MS
    in_virtual_time(main)


@pytest.mark.parametrize("interval_ms", [0, 20, 50])
def test_nobody_waits_for_more_than_two_commits(interval_ms: int) -> None:
    """Shows that a call at any instant waits for at most two puts without an interval, and with one for at most the
    interval and a put; and not for the interval if none has begun within it."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock, commit_interval_ns=interval_ms * MS)
        waits_ns: list[int] = []

        def publish() -> None:
            at_ns = clock.monotonic_ns()
            stream.publish()
            rig.log.wait(lambda: waits_ns.append(clock.monotonic_ns() - at_ns))

        rng = random.Random(interval_ms)
        for _ in range(300):
            publish()
            await asyncio.sleep(rng.choice((0.0001, 0.003, 0.012)))
        await rig.log.persisted()
        assert len(waits_ns) == 300
        assert max(waits_ns) < (max(interval_ms, 10) + 11) * MS
        for _ in range(3):
            await asyncio.sleep(1)
            publish()
            await rig.log.persisted()
            assert waits_ns[-1] < 11 * MS
    in_virtual_time(main)


@pytest.mark.parametrize("seed", range(12))
def test_only_what_meets_a_quiet_log_waits_for_the_end_of_a_burst(seed: int) -> None:
    """Shows that a message that arrives during a put or an interval waits for one more put, as it would without bursts.

    Any other message waits for ``BURST_NS`` and a put at most.
    """
    rng = random.Random(seed)
    interval_ns, latency_ms = rng.choice((MS, 20 * MS, 50 * MS)), rng.choice((3, 30, 80))

    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock, latency_ms, commit_interval_ns=interval_ns, puts_in_flight=rng.choice((1, 4)))
        log, put_ns = rig.log, (latency_ms + 1) * MS
        late: list[tuple[bool, int]] = []

        def publish(count: int) -> None:
            at_ns, began_ns = clock.monotonic_ns(), log._segments.began_ns
            delayed = not log.idle or at_ns - began_ns < interval_ns
            most_ns = max(interval_ns, put_ns) if delayed else min(interval_ns, BURST_NS)
            stream.publish(count)
            log.wait(lambda: late.append((delayed, clock.monotonic_ns() - at_ns - most_ns - put_ns)))

        for _ in range(12):
            gap_ms = rng.choice((0.05, 0.5, 1.9, 2.1, 12))
            for _ in range(rng.choice((1, 16, 200))):
                publish(rng.choice((1, 1, 15, 16)))
                await asyncio.sleep(rng.choice((0, gap_ms / 1000)))
            await asyncio.sleep(rng.choice((0, 0.0019, 1)))
        await log.persisted()
        assert len(late) > 12
        assert max(late, key=lambda one: one[1])[1] <= 0
    in_virtual_time(main)


@pytest.mark.parametrize("puts", [1, 2])
def test_a_burst_behind_puts_waits_only_for_these(puts: int) -> None:
    """Shows that messages that arrived while no further put was allowed are put as soon as one is."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock, commit_interval_ns=20 * MS, puts_in_flight=puts)
        await asyncio.sleep(1)
        stall = rig.store.stall_put(rig.store.puts)
        for _ in range(puts):
            stream.publish()
            await asyncio.sleep(0.05)
        stored_ns: list[int] = []
        stream.publish(100)
        await asyncio.sleep(1)
        stall.release()
        rig.log.wait(lambda: stored_ns.append(clock.monotonic_ns()))
        released_ns = clock.monotonic_ns()
        await rig.log.persisted()
        assert stored_ns[0] - released_ns < 21 * MS  # the stalled put, and another one
    in_virtual_time(main)


def test_a_hasty_segment_skips_the_interval() -> None:
    """Shows that two commits follow each other at once if something cannot wait for the interval, and only then."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock, commit_interval_ns=SECOND)
        for hasty in (True, True, False):
            began_ns = clock.monotonic_ns()
            stream.publish()
            if hasty:
                rig.log.skip_interval()
            await rig.log.persisted()
            assert (clock.monotonic_ns() - began_ns < 11 * MS) is hasty
    in_virtual_time(main)


def test_commits_that_were_saved_skip_the_interval() -> None:
    """Shows that publishes one at a time take a put's time each, until the saved commits are used up."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock, commit_interval_ns=SECOND, commit_burst=3)
        await asyncio.sleep(60)
        took_ns = []
        for _ in range(6):
            began_ns = clock.monotonic_ns()
            stream.publish()
            await rig.log.persisted()
            took_ns.append(clock.monotonic_ns() - began_ns)
        assert [took < 11 * MS for took in took_ns] == [True, True, True, True, False, False]
    in_virtual_time(main)


def test_with_an_interval_puts_overlap() -> None:
    """Shows that the next put begins once the interval has passed, also beside a slow put."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock, latency_ms=200, commit_interval_ns=50 * MS)
        await asyncio.sleep(1)
        began_ns = clock.monotonic_ns()
        for _ in range(4):
            stream.publish()
            await asyncio.sleep(0.050001)
        await rig.log.persisted()
        assert rig.log.commit_count == 1 + 4
        assert clock.monotonic_ns() - began_ns < 500 * MS
    in_virtual_time(main)


def test_waiters_run_in_log_order_although_puts_end_out_of_order() -> None:
    """The first put is stalled, the second succeeds: nothing is answered until the first succeeds."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock, segment_bytes=50)
        answered: list[int] = []
        stall = rig.store.stall_put(rig.store.puts)
        for i in range(6):
            stream.publish(10)
            rig.log.wait(answered.append, i)
            await asyncio.sleep(0.001)
        await asyncio.sleep(3)
        assert answered == []
        stall.release()
        await rig.log.persisted()
        assert answered == list(range(6))
    in_virtual_time(main)


def test_wait_with_nothing_unpersisted_runs_at_once() -> None:
    """Shows that a reply which depends only on persisted state is not delayed by lazy changes either."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock)
        rig.log.lazy(stream)
        answered: list[int] = []
        rig.log.wait(answered.append, 1)
        assert answered == [1]
    in_virtual_time(main)


def test_very_many_waiters_run_in_several_turns_in_log_order() -> None:
    """Shows that 5000 calls of one commit leave turns of the loop to others. Calls added meanwhile run later."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock)
        answered: list[int] = []
        stream.publish()
        began = asyncio.Event()
        rig.log.wait(began.set)
        for i in range(5000):
            rig.log.wait(answered.append, i)
        await began.wait()
        turns = 0
        rig.log.wait(answered.append, 5000)
        while len(answered) < 5001:
            await asyncio.sleep(0)
            turns += 1
        assert turns > 5
        assert answered == list(range(5001))
        rig.log.wait(answered.append, 5001)
        assert answered[-1] == 5001, "nothing is before it"
    in_virtual_time(main)


def test_waiters_do_not_pile_up_where_each_turn_adds_more() -> None:
    """Ten thousand calls are added in each turn, as by very many clients: as many are made in each turn."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock)
        answered: list[int] = []
        stream.publish()
        began = asyncio.Event()
        rig.log.wait(began.set)
        for i in range(20_000):
            rig.log.wait(answered.append, i)
        await began.wait()
        for turn in range(2, 8):
            for i in range(10_000 * turn, 10_000 * (turn + 1)):
                rig.log.wait(answered.append, i)
            await asyncio.sleep(0)
            assert len(answered) > 10_000 * (turn - 1)
        await rig.log.persisted()
        assert answered == list(range(80_000))
    in_virtual_time(main)


def test_waiters_of_a_later_turn_wait_for_a_new_proof_if_the_lease_has_ended() -> None:
    """The process is suspended between two turns that make calls: the others wait for a renewing put."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock, lease_ns=15 * SECOND, put_timeout_ns=5 * SECOND)
        answered: list[int] = []
        stream.publish()
        began = asyncio.Event()
        rig.log.wait(began.set)
        for i in range(5000):
            rig.log.wait(answered.append, i)
        await began.wait()
        before, commits = len(answered), rig.log.commit_count
        assert before < 5000
        rig.store.down = True
        clock.advance(20 * SECOND)
        await asyncio.sleep(5)
        assert rig.log.lease_expired
        assert len(answered) == before
        rig.store.down = False
        await rig.log.persisted()
        assert rig.log.commit_count > commits
        assert answered == list(range(5000))
    in_virtual_time(main)


def test_waiters_of_persisted_segments_run_even_if_the_log_ends_before_their_turn() -> None:
    """Shows that they depend on nothing that is lost, and that calls after them are not made."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock)
        answered: list[int] = []
        stream.publish()
        began = asyncio.Event()
        rig.log.wait(began.set)
        for i in range(5000):
            rig.log.wait(answered.append, i)
        await began.wait()
        assert len(answered) < 5000
        stream.publish()
        rig.log.wait(answered.append, 5000)
        rig.log.fail(Transient("planted"))
        assert answered == list(range(5000))
        await asyncio.sleep(10)
        assert answered == list(range(5000))
    in_virtual_time(main)


def test_a_waiter_that_fails_keeps_no_other_waiting() -> None:
    """Shows that an exception in one reply goes to the loop's handler, and the next reply is made."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock)
        seen: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: seen.append(context["exception"]))
        stream.publish()
        rig.log.wait(int, "not a number")
        rig.log.wait(seen.append, "second")
        await rig.log.persisted()
        assert isinstance(seen[0], ValueError)
        assert seen[1:] == ["second"]
    in_virtual_time(main)


def test_lazy_changes_are_put_within_a_second_or_with_others() -> None:
    """Alone they wait for a second; with another owner's urgent change they are put at once."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock)
        other = Stream(rig.log, 8, "t")
        other.create()
        await rig.log.persisted()
        consumer = {"name": "c", "config": {}, "created_ns": 1}
        stream.record(RecordKind.CONSUMER_CREATE, consumer)
        await rig.log.persisted()
        state = rig.log.state.streams[7].consumers["c"]
        for wait_s, urgent in ((1.02, False), (0.02, True)):
            want = state.delivered_sseq + 1
            stream.lazy_records.append((RecordKind.CONSUMER_STATE, {"n": "c", "d": [want, want, 5]}))
            rig.log.lazy(stream)
            if urgent:
                other.publish()
            else:
                await asyncio.sleep(0.9)
                assert state.delivered_sseq == want - 1
                wait_s -= 0.9
            await asyncio.sleep(wait_s)
            assert state.delivered_sseq == want
    in_virtual_time(main)


def test_barrier_makes_lazy_changes_urgent() -> None:
    """Shows that an API read after an ack includes the ack: barrier, then wait."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock)
        stream.record(RecordKind.CONSUMER_CREATE, {"name": "c", "config": {}, "created_ns": 1})
        await rig.log.persisted()
        stream.lazy_records.append((RecordKind.CONSUMER_STATE, {"n": "c", "d": [3, 3, 5]}))
        rig.log.lazy(stream)
        rig.log.barrier(stream)
        began_ns = clock.monotonic_ns()
        await rig.log.persisted()
        assert clock.monotonic_ns() - began_ns < 30 * MS
        assert rig.log.state.streams[7].consumers["c"].delivered_sseq == 3
    in_virtual_time(main)


def test_without_changes_there_is_no_segment() -> None:
    """Shows that an owner without changes after all costs no put, and that its waiters are answered."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock)
        rig.log.lazy(stream)
        rig.log.barrier(stream)
        await rig.log.persisted()
        assert rig.log.commit_count == 1
        rig.log.block(stream)  # requested, nothing added
        await asyncio.sleep(2)
        assert rig.log.commit_count == 1
    in_virtual_time(main)


@pytest.mark.parametrize("fault", ["refused", "unanswered", "lost", "late"])
def test_a_put_is_tried_until_it_is_stored_with_the_same_bytes(fault: str) -> None:
    """Shows for any outcome of the put that the object exists once, and the reply is made once."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock)
        tries: list[bytes] = []
        put = rig.shared.put

        async def watching(key: str, data: Any) -> None:
            if key == PATHS.log(Position(1, 2)):
                tries.append(b"".join(data))
            await put(key, data)

        rig.shared.put = watching  # type: ignore[method-assign]
        answered: list[int] = []
        rig.store.faults = Faults(latency_ns=MS, **{fault: 1.0})
        stream.publish()
        rig.log.wait(answered.append, 1)
        await asyncio.sleep(0.01)
        rig.store.faults = Faults(latency_ns=MS)
        await rig.log.persisted()
        await rig.store.late_puts_done()
        await asyncio.sleep(60)
        assert answered == [1]
        assert len(set(tries)) == 1
        assert rig.log_keys() == [Position(1, 0), Position(1, 1), Position(1, 2)]
    in_virtual_time(main)


def test_a_store_that_refuses_for_good_is_tried_for_good() -> None:
    """The disk is full for an hour: nothing is answered or rolled back, and the reason is shown."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock)
        put = rig.shared.put

        async def full(key: str, data: Any) -> None:
            raise StoreRefused("the disk is full; free some room and it goes on")

        rig.shared.put = full  # type: ignore[method-assign]
        answered: list[int] = []
        stream.publish()
        rig.log.wait(answered.append, 1)
        await asyncio.sleep(3600)
        assert answered == []
        assert "disk is full" in str(rig.log.store_error)
        rig.shared.put = put  # type: ignore[method-assign]
        await rig.log.persisted()
        assert answered == [1]
        assert rig.log.store_error is None
    in_virtual_time(main)


def test_each_kind_of_failure_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A store that cannot be reached comes back and refuses the key: the log has both reasons, once each, and the end;
    for the next failure again."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock)
        put, errors = rig.shared.put, [Transient("cannot be reached"), StoreRefused("the key is unknown: check it")]

        async def failing(key: str, data: Any) -> None:
            errors.append(errors.pop(0))
            raise errors[-1]

        for _ in range(2):
            rig.shared.put = failing  # type: ignore[method-assign]
            stream.publish()
            await asyncio.sleep(600)
            rig.shared.put = put  # type: ignore[method-assign]
            await rig.log.persisted()
            lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("segment")]
            assert [sum(word in line for line in lines)
                    for word in ("cannot be reached", "the key is unknown", "is in the store")] == [1, 1, 1], lines
            caplog.clear()
    in_virtual_time(main)


def test_a_seal_in_place_of_a_put_fences_and_names_the_sealer() -> None:
    """Shows that no waiter is ever answered, and that a waiting coroutine gets Fenced."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock)
        other = Rig(rig.shared, clock, "b", 2)
        assert await seal_at(other.store, PATHS, Position(1, 2), 2, other.me, clock, other.rng) == ObjectKind.SEAL
        answered: list[int] = []
        failures: list[BaseException] = []
        rig.log.listen(Listening(log_failed=failures.append))
        stream.publish()
        rig.log.wait(answered.append, 1)
        with pytest.raises(Fenced, match="b has taken the shard") as fenced:
            await rig.log.persisted()
        assert fenced.value.by == "b"
        assert failures == [fenced.value]
        assert not rig.log.room()
        with pytest.raises(Fenced):
            await rig.log.persisted()
        rig.log.wait(answered.append, 2)
        stream.publish()
        await asyncio.sleep(10)
        assert answered == []
    in_virtual_time(main)


def test_another_writers_object_in_place_of_a_put_stops_the_log() -> None:
    """Shows that the log stops with the object's key, since only we may put there."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock)
        key = PATHS.log(Position(1, 2))
        await rig.shared.put(key, [ObjectHeader(ObjectKind.SEGMENT, Position(1, 2), bytes(16), 64).pack()])
        stream.publish()
        with pytest.raises(Corrupt, match=key):
            await rig.log.persisted()
    in_virtual_time(main)


def test_our_own_object_in_place_of_a_put_is_ours() -> None:
    """The answer to the first attempt was lost, the second is refused: the header shows that the first succeeded."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock)
        seen = 0

        async def lose(operation: str, key: str) -> None:
            nonlocal seen
            if operation == "put" and not seen:
                seen = 1
                raise Transient("lost")

        rig.store.after = lose
        stream.publish()
        await rig.log.persisted()
        assert seen
        assert rig.log.position == Position(1, 2)
    in_virtual_time(main)


def test_back_pressure_in_bytes() -> None:
    """Shows that the tail counts open and in-flight bytes, and that a caller that waits for room is called in time."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock, tail_bytes_max=10_000)
        stall = rig.store.stall_put(rig.store.puts)
        called: list[int] = []
        rig.log.when_room(lambda: called.append(0))
        assert called == [0]
        for _ in range(4):
            stream.publish(10, b"x" * 300)
            await asyncio.sleep(0.001)
        assert rig.log.tail_bytes == 12_000
        assert not rig.log.room()
        rig.log.when_room(lambda: called.append(1))
        await asyncio.sleep(30)
        assert called == [0]
        stall.release()
        await rig.log.persisted()
        assert called == [0, 1]
        assert rig.log.tail_bytes == 0
    in_virtual_time(main)


def test_calls_that_wait_for_a_commit_take_room_too() -> None:
    """Shows a bound on calls that add nothing to the tail, as for duplicates, while the store does not answer."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock, tail_bytes_max=100_000)
        stall = rig.store.stall_put(rig.store.puts)
        stream.publish(10)
        called: list[int] = []
        answers = 0
        while rig.log.room():
            rig.log.wait(called.append, b"x" * 100)
            answers += 1
            assert answers < 1000
        assert rig.log.tail_bytes < 1000
        assert rig.log.waiting_bytes > 90_000
        rig.log.when_room(lambda: called.append(-1))
        await asyncio.sleep(0.1)
        assert not called
        stall.release()
        await rig.log.persisted()
        assert len(called) == answers + 1
        assert rig.log.waiting_bytes == 0
        assert rig.log.room()
    in_virtual_time(main)


def test_the_lease_counts_from_the_beginning_of_the_last_successful_put() -> None:
    """Empty segments renew it every T/3. If the store does not answer, it expires after T; the next put renews it."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock, lease_ns=15 * SECOND, put_timeout_ns=5 * SECOND)
        await asyncio.sleep(60)
        assert not rig.log.lease_expired
        assert 11 <= rig.log.position.number <= 13
        assert all(len(b.core.records) for b in stream.persisted_blocks)
        rig.store.down = True
        stream.publish()
        await asyncio.sleep(9)
        assert not rig.log.lease_expired
        await asyncio.sleep(11)
        assert rig.log.lease_expired
        rig.store.down = False
        await rig.log.persisted()
        assert not rig.log.lease_expired
    in_virtual_time(main)


def test_listeners_are_notified_when_an_expired_lease_is_renewed() -> None:
    """Shows it for a renewal by an empty segment: only this call wakes streams that delayed something."""
    async def main(clock: ManualClock) -> None:
        rig, _ = await opened(clock, lease_ns=15 * SECOND, put_timeout_ns=5 * SECOND)
        renewals: list[int] = []
        rig.log.listen(Listening(lease_renewed=lambda: renewals.append(clock.monotonic_ns())))
        await asyncio.sleep(60)
        assert not renewals
        rig.store.down = True
        await asyncio.sleep(25)
        assert rig.log.lease_expired
        rig.store.down = False
        await asyncio.sleep(30)
        assert not rig.log.lease_expired
        assert len(renewals) == 1
    in_virtual_time(main)


def test_a_slow_put_times_out_and_is_tried_again() -> None:
    """A put that never returns does not block the log forever."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock, put_timeout_ns=5 * SECOND)
        rig.store.stall_put(rig.store.puts)
        stream.publish()
        began_ns = clock.monotonic_ns()
        await rig.log.persisted()
        assert 5 * SECOND <= clock.monotonic_ns() - began_ns < 6 * SECOND
    in_virtual_time(main)


def test_without_a_lease_an_idle_log_writes_nothing() -> None:
    """Shows that a directory needs no heartbeats: its lock is its lease."""
    async def main(clock: ManualClock) -> None:
        rig, _ = await opened(clock)
        await asyncio.sleep(3600)
        assert rig.log.commit_count == 1
        assert not rig.log.lease_expired
    in_virtual_time(main)


def test_an_owner_that_cannot_give_its_outcome_is_the_only_one_that_stops() -> None:
    """Shows that nothing of that owner is stored or answered any more, and that the log continues."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock)
        before = stream.last_seq

        def broken(block: Any) -> None:
            raise RuntimeError("no idea")

        stream.sealing = broken  # type: ignore[method-assign]
        answered: list[str] = []
        for _ in range(3):
            stream.publish()
            rig.log.wait(answered.append, "of the stream", of=stream)
            rig.log.wait(answered.append, "of none")
            await rig.log.persisted()
        assert [str(error) for error in stream.failures] == ["no idea"]
        assert answered == ["of none"] * 3
        assert rig.log.failure is None
        assert rig.log.state.streams[stream.stream_id].last_seq == before
        assert rig.log.tail_bytes == rig.log.waiting_bytes == 0
    in_virtual_time(main)


def test_a_stream_that_fails_twice_is_offline_from_its_first_failure_on() -> None:
    """Its block of one segment cannot be encoded. Before that put is done, it cannot give its outcome for the next
    segment. Neither is stored, so neither is answered."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock, commit_interval_ns=MS)
        other = Stream(rig.log, 8, "other")
        other.create()
        await rig.log.persisted()
        before = stream.last_seq
        answered: list[int] = []
        outcomes = iter([Outcome(1, 1 << 70, 1, 43, 1000)])

        def broken(block: Any) -> None:
            block.outcome = next(outcomes)  # the second time there is none

        stream.sealing = broken  # type: ignore[method-assign]
        for number in range(3):
            stream.publish()
            other.publish()
            rig.log.wait(answered.append, number, of=stream)
            rig.log.wait(answered.append, -number)
            await asyncio.sleep(0.003)
        assert stream.failures
        assert not answered
        await rig.log.persisted()
        assert answered == [0, -1, -2]
        assert rig.log.state.streams[stream.stream_id].last_seq == before
        assert len(stream.failures) == 1
        assert rig.log.failure is None
        assert rig.log.tail_bytes == rig.log.waiting_bytes == 0
    in_virtual_time(main)


class Later(Executor):
    """An executor that runs calls 10 ms later."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()

        def run() -> None:
            try:
                done.set_result(fn(*args, **kwargs))
            except BaseException as error:
                done.set_exception(error)

        asyncio.get_running_loop().call_later(0.01, run)
        return done


def test_a_segment_after_one_that_fails_to_encode_has_nothing_of_the_stream() -> None:
    """Three segments are cut before the first is encoded. The first one's block cannot be encoded, the third one's
    cannot even be sealed. The second one's depends on the first, so it is not stored either."""
    async def main(clock: ManualClock) -> None:
        rig = Rig(MemoryStore(), clock, settings=fast(inline_bytes_max=0, segment_bytes=1, puts_in_flight=4))
        taken = await rig.take_shard()
        rig.shard = await Shard.open(rig.store, PATHS, taken.epoch, rig.me.nonce, clock, rig.rng, rig.settings,
                                     executor=Later())
        stream = Stream(rig.log)
        stream.create()
        await rig.log.persisted()
        answered: list[int] = []
        outcomes = iter([Outcome(1, 1 << 70, 1, 43, 1000), Outcome(1, 2, 2, 86, 1000)])

        def broken(block: Any) -> None:
            block.outcome = next(outcomes)

        stream.sealing = broken  # type: ignore[method-assign]
        for number in range(3):
            stream.publish()
            rig.log.wait(answered.append, number, of=stream)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await rig.log.persisted()
        await asyncio.sleep(1)
        assert len(stream.failures) == 1
        assert not answered
        assert rig.log.state.streams[stream.stream_id].msgs == 0
        assert not stream.persisted_blocks[1:]
    in_virtual_time(main)


def test_the_log_ends_if_the_shards_own_block_fails() -> None:
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock)

        def broken(block: Any) -> None:
            raise RuntimeError("no idea")

        rig.log.shard.sealing = broken  # type: ignore[method-assign]
        add_record(rig.log.block(rig.log.shard), RecordKind.RELEASE, {})
        stream.publish()
        with pytest.raises(RuntimeError, match="no idea"):
            await rig.log.persisted()
        assert rig.log_keys()[-1] == Position(1, 1)
    in_virtual_time(main)


def test_drain_and_stop() -> None:
    """Shows that all changes are persisted, and that the seal's number is the first unused one."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock)
        stream.publish(urgent=False)
        await rig.log.drain()
        assert rig.log.position == Position(1, 2)
        assert rig.log.stop() == Position(1, 3)
        stream.publish()
        await asyncio.sleep(5)
        assert rig.log_keys()[-1] == Position(1, 2)
    in_virtual_time(main)


def test_small_blocks_of_many_streams_wait_for_more_messages() -> None:
    """Shows that if many blocks of a few messages gather, a put waits while more arrive: until there are enough, until
    a pause, or as long as the last such put took. Blocks without messages do not wait."""
    async def main(clock: ManualClock) -> None:
        rig, _ = await opened(clock)
        streams = [Stream(rig.log, 100 + i, f"s{i}") for i in range(300)]
        began_ns = clock.monotonic_ns()
        for stream in streams:
            stream.create()
        await rig.log.persisted()
        assert clock.monotonic_ns() - began_ns < 11 * MS

        for _ in range(8):
            for stream in streams:
                stream.publish()
            await asyncio.sleep(0.001)
        await rig.log.persisted()
        assert {stream.persisted_blocks[-1].core.count for stream in streams} == {8}

        began_ns = clock.monotonic_ns()
        for stream in streams:
            stream.publish()
        await rig.log.persisted()
        assert 11 * MS < clock.monotonic_ns() - began_ns < 15 * MS

        stored_at: list[int] = []
        for stream in streams:
            stream.publish()
        began_ns = clock.monotonic_ns()
        rig.log.wait(lambda: stored_at.append(clock.monotonic_ns()))
        while not stored_at:
            streams[0].publish()
            await asyncio.sleep(0.001)
        assert stored_at[0] - began_ns < 25 * MS
    in_virtual_time(main)


def test_segments_are_cut_at_a_count_too() -> None:
    """Shows a bound on the messages of a segment, so that its columns never block the loop for long."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock, segment_count=100)
        for _ in range(10):
            stream.publish(50, b"")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await rig.log.persisted()
        assert all(block.core.count <= 150 for block in stream.persisted_blocks)
        stream.publish(1000, b"")
        stream.publish(1, b"")
        await rig.log.persisted()
        assert stream.persisted_blocks[-1].core.count <= 1001
        assert stream.last_seq == 1501
    in_virtual_time(main)


def test_memory_log_answers_in_order_and_stores_nothing() -> None:
    """Shows that blocks are sealed and returned, without a place in any store."""
    async def main(clock: ManualClock) -> None:
        log = MemoryLog()
        stream = Stream(log)  # type: ignore[arg-type]
        answered: list[int] = []
        log.wait(answered.append, 0)
        stream.publish(3)
        log.wait(answered.append, 1)
        assert answered == [0]
        await log.persisted()
        assert answered == [0, 1]
        [block] = stream.persisted_blocks
        assert block.ref is None
        assert sum(map(len, block.chunks)) == 3
        stream.lazy_records.append((RecordKind.CONSUMER_STATE, {"n": "c"}))
        log.lazy(stream)
        log.barrier(stream)
        await log.persisted()
        assert len(stream.persisted_blocks) == 2
        log.lazy(stream)
        await asyncio.sleep(1.1)
        assert len(stream.persisted_blocks) == 2
        assert log.room()
    in_virtual_time(main)


def test_log_keeps_the_contract_of_refusals() -> None:
    """Shows that PreconditionFailed without an existing object is retried."""
    async def main(clock: ManualClock) -> None:
        rig, stream = await opened(clock)
        lies = 2

        async def lie(operation: str, key: str) -> None:
            nonlocal lies
            if operation == "put" and lies:
                lies -= 1
                raise PreconditionFailed(f"{key} exists")

        rig.store.before = lie
        stream.publish()
        await rig.log.persisted()
        assert lies == 0
        assert isinstance(rig.log, Log)
    in_virtual_time(main)
