"""Compares a stream with a plain list of messages: any publishes, limits, deletes, purges and restarts lead to the same
state."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from broker.jetstream.filters import Filters
from broker.jetstream.stream.dropping import drop_blocks
from broker.storage.format.message_size import message_size
from broker.storage.log.settings import LogSettings
from tests.jetstream.stream.model import Model
from tests.jetstream.stream.world import TINY_CACHE_BYTES, World, everything, pub, publish, read_all

SUBJECTS = [b"S.a", b"S.b", b"S.b.c", b"S.d"]
EXAMPLES = int(os.environ.get("JETBLOCK_EXAMPLES", "50"))
FILTERS: list[bytes | None] = [None, b">", b"S.a", b"S.b", b"S.*", b"S.b.>", b"S.none"]

WANTED = Filters([b"S.b", b"S.b.>"])
"""A single filter for all steps, as a consumer has: the reader's state for it must follow the stream."""

messages = st.tuples(
    st.sampled_from(SUBJECTS),
    st.binary(max_size=40),
    st.sampled_from([{}, {}, {}, {"X": "y"}, {"Nats_Msg_Id": "1"}, {"Nats_Msg_Id": "2"}, {"Nats_Rollup": "sub"},
                     {"Nats_Rollup": "all"}, {"Nats_Expected_Last_Subject_Sequence": "?"}, {"Nats_TTL": "1s"},
                     {"Nats_TTL": "2"},
                     {"Nats_TTL": "never"}]))
TTLS = {"": 0, "1s": 1, "2": 2, "never": -1}


class StreamMachine(RuleBasedStateMachine):
    """The real stream and the model, with the same input."""

    @initialize(max_msgs=st.sampled_from([-1, -1, 5, 12]), max_bytes=st.sampled_from([-1, -1, 400]),
                per_subject=st.sampled_from([-1, -1, 1, 2, 3]), new=st.booleans(), new_per=st.booleans(),
                age=st.sampled_from([0, 0, 1_000_000_000]), kind=st.sampled_from(["file", "file", "memory", "async"]),
                cut=st.sampled_from([3, 7, 20_000]), cache=st.sampled_from([0, TINY_CACHE_BYTES, 1 << 20]))
    def begin(self, max_msgs: int, max_bytes: int, per_subject: int, new: bool, new_per: bool, age: int, kind: str,
              cut: int, cache: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.generation = 0
        self.errors: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda loop, context: self.errors.append(context))
        self.window_ns = 100_000_000 if age else 120_000_000_000
        limited = max_msgs > 0 or max_bytes > 0 or per_subject > 0
        config: dict[str, Any] = {
            "max_msgs": max_msgs, "max_bytes": max_bytes, "max_msgs_per_subject": per_subject, "max_age": age,
            "discard": "new" if new and limited else "old", "allow_rollup_hdrs": True,
            "allow_msg_ttl": True,
            "discard_new_per_subject": new and new_per and per_subject > 0, "duplicate_window": self.window_ns,
            "storage": "memory" if kind == "memory" else "file"}
        if kind == "async":
            config["persist_mode"] = "async"
        self.kind = kind

        async def make() -> None:
            self.world = World(settings=LogSettings(segment_count=cut), cache_bytes=cache)
            self.stream = self.world.stream(**config)
            await self.world.settle(self.stream)

        self.run(make())
        self.model = Model(max_msgs, max_bytes, per_subject, age, config["discard"], config["discard_new_per_subject"],
                           window_ns=self.window_ns)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 30))

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.stream.close()
            self.run(self.world.close())
            self.loop.close()

    @rule(run=st.lists(messages, min_size=1, max_size=12), settle=st.booleans(), exact=st.booleans())
    def publishes(self, run: list[tuple[bytes, bytes, dict[str, str]]], settle: bool, exact: bool) -> None:
        """Publish a run; expected-last headers have the right number, or a wrong one."""
        sent, expected = [], []
        now_ns = self.world.clock.now_ns()
        for subject, payload, given in run:
            headers, last = dict(given), None
            if "Nats_Msg_Id" in headers:
                headers["Nats_Msg_Id"] += f".{self.generation}"
            if "Nats_Expected_Last_Subject_Sequence" in headers:
                last = self.model.last(subject) + (0 if exact else 1)
                headers["Nats_Expected_Last_Subject_Sequence"] = str(last)
            msg = pub(subject, payload, **headers)
            sent.append(msg)
            expected.append(self.model.publish(
                subject, payload, message_size(subject, msg[2], msg[3]), now_ns, expected_last=last,
                msg_id=headers.get("Nats_Msg_Id", "").encode(), rollup=headers.get("Nats_Rollup", ""),
                ttl=TTLS[headers.get("Nats_TTL", "")]))
        self.model.enforce()
        self.loop.call_soon(lambda: publish(self.world, self.stream, *sent))

        async def outcome() -> None:
            await asyncio.sleep(0)
            if not settle and not self.stream.queue.closed:
                return
            await self.world.settle(self.stream)
            for msg, what in zip(sent, expected, strict=True):
                answer = self.world.bus.answer(msg[1])
                if isinstance(what, str):
                    assert answer["error"]["description"] == what, (answer, what)
                elif what < 0:
                    assert answer == {"stream": "S", "seq": -what, "duplicate": True}
                else:
                    assert answer == {"stream": "S", "seq": what}

        self.run(outcome())

    @rule(data=st.data())
    def deletes(self, data: st.DataObject) -> None:
        seq = data.draw(st.integers(0, self.model.last_seq + 1))
        assert self.run(self.stream.delete_msg(seq, True)) == self.model.delete(seq)

    @rule(wanted=st.sampled_from(FILTERS), keep=st.integers(0, 3))
    def purges(self, wanted: bytes | None, keep: int) -> None:
        assert self.run(self.stream.purge(wanted, 0, keep)) == self.model.purge(wanted, 0, keep)

    @rule(wanted=st.sampled_from(FILTERS), data=st.data())
    def purges_below(self, wanted: bytes | None, data: st.DataObject) -> None:
        seq = data.draw(st.integers(1, self.model.last_seq + 3))
        assert self.run(self.stream.purge(wanted, seq, 0)) == self.model.purge(wanted, seq, 0)

    @rule(ms=st.integers(1, 700))
    def time_passes(self, ms: int) -> None:
        self.world.clock.advance(ms * 1_000_000)

        async def expire() -> None:
            # Run whole passes from now on: none starts by itself meanwhile, because the loop's time hardly advances.
            self.stream.retention.expire()
            self.stream.ttls.passes.begin()
            for _ in range(50):
                await asyncio.sleep(0)

        self.run(expire())
        self.model.expire(self.world.clock.now_ns())

    @rule(max_msgs=st.sampled_from([-1, 4, 9]), per_subject=st.sampled_from([-1, 1, 2]))
    def limits_change(self, max_msgs: int, per_subject: int) -> None:
        if self.model.discard == "new":
            per_subject = self.model.max_msgs_per_subject

        async def change() -> None:
            await self.world.update(self.stream, max_msgs=max_msgs, max_msgs_per_subject=per_subject)

        self.run(change())
        self.model.update(max_msgs, per_subject)

    @rule()
    def cache_is_lost(self) -> None:
        """Clear the cache, so that persisted messages must be read from the store."""
        self.run(self.world.settle(self.stream))
        self.world.reader._cache.clear()

    @precondition(lambda self: self.kind != "memory")
    @rule(settle=st.booleans(), pack=st.booleans())
    def blocks_are_dropped(self, settle: bool, pack: bool) -> None:
        """Unload the blocks; loading them again gives the same, also from packed pages."""
        if settle:
            self.run(self.world.settle(self.stream))
        state = self.stream.applied()
        for page in state.blocks.pages if pack and state is not None else ():
            packed = page.pack()
            packed.body.pack()
            page.keep(packed)
        drop_blocks(self.stream)

    @precondition(lambda self: self.kind != "memory")
    @rule(clean=st.booleans())
    def restarts(self, clean: bool) -> None:
        async def again() -> None:
            await self.world.settle(self.stream)
            self.stream = await self.world.restart(self.stream, clean=clean)

        self.run(again())
        if any(msg_seq not in {msg.seq for msg in self.model.msgs} for msg_seq, _ in self.model.ids.values()):
            # A restart may or may not keep the ids of removed messages: use others from here on.
            self.generation += 1
        if self.kind == "async" and not clean and self.stream.last_seq != self.model.last_seq:
            # After a crash an async stream continues at its ceiling; the gap is part of the contract.
            assert self.stream.last_seq > self.model.last_seq
            self.model.last_seq = self.stream.last_seq
            self.model.empty_first_seq = self.stream.last_seq + 1
        if not self.model.last_seq:
            # A purge of a stream that never had a message makes its first sequence 1; that alone is not stored.
            self.model.empty_first_seq = self.stream.first_seq
            assert self.stream.first_seq in (0, 1)

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "model"):
            return
        model, stream = self.model, self.stream

        async def compare() -> None:
            state = await stream.info_state(True, b">")
            held = {subject.decode(): count for subject, count in model.counts().items()}  # type: ignore[attr-defined]
            assert state["subjects"] == held
            assert state.get("num_subjects", 0) == len(held)
            assert (state["messages"], state["bytes"]) == (len(model.msgs), model.bytes)
            assert stream.live.usage.size_bytes == model.bytes
            assert (state["first_seq"], state["last_seq"]) == (model.first_seq, model.last_seq)
            seqs = {msg.seq for msg in model.msgs}
            assert state.get("deleted", []) == (
                [s for s in range(model.first_seq, model.last_seq + 1) if s not in seqs] if seqs else [])
            for subject in SUBJECTS:
                msg = await stream.get_last(subject)
                assert (msg.seq if msg else 0) == model.last(subject)
            kept = [(msg.seq, msg.subject, msg.payload) for msg in model.msgs]
            assert await everything(stream) == kept
            assert await stream.last_seqs_by_subject(Filters([b"S.*"]), model.last_seq) == sorted(
                model.last(s) for s in SUBJECTS if model.last(s) and s.count(b".") == 1)
            limit = stream.safe_seq
            assert await read_all(stream) == [msg for msg in kept if msg[0] <= limit]
            wanted = WANTED
            assert await read_all(stream, wanted) == [m for m in kept if m[0] <= limit and wanted.match(m[1])]
            for filters in (None, wanted):
                middle = (model.first_seq + model.last_seq) // 2
                for seq in (0, middle):
                    expected = sum(1 for m in kept if seq <= m[0] <= limit and (filters is None or filters.match(m[1])))
                    assert await stream.count_from(seq, filters) == (expected, limit)
            if model.msgs:
                times = [msg.time_ns for msg in model.msgs]
                middle_ns = times[len(times) // 2]
                assert await stream.seq_at(middle_ns) == next(m.seq for m in model.msgs if m.time_ns >= middle_ns)
                assert stream.live.first_time[0] <= times[0]
            assert stream.queue.refused == 0

        self.run(compare())
        assert not self.errors, self.errors


@pytest.fixture
def cache_bytes() -> None:
    """Return None: histories choose their cache size at random."""


def test_stream_against_the_model() -> None:
    """Run random histories with restarts and lost caches; hypothesis prints the shortest one that differs."""
    run_state_machine_as_test(StreamMachine, settings=settings(
        max_examples=EXAMPLES, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)))
