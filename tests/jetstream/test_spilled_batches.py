"""Atomic batches that are written to the store while they arrive, seen through a client's socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio

from broker.access.accounts import AccountLimits
from broker.config.settings import JetStreamSettings, ServerLimits
from broker.jetstream import inflight
from broker.jetstream.inbox.inbox import Inbox, InboxSettings
from broker.jetstream.stream.publish import atomic
from broker.storage.format.block import BlockPlace
from broker.storage.format.header import Position
from broker.storage.format.segment import decode_head
from broker.storage.objectstore.base import Buffers, StoreFull, StoreRefused
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.paths import ShardPaths, block_key
from broker.storage.state.applied import ShardState
from tests.jetstream.in_process import Inside
from tests.jetstream.inbox.staging import eventually

pytestmark = pytest.mark.shows("publish.atomic_limits")

Row = tuple[str, dict[str, str]]
"""The subject and headers of a message."""


@pytest_asyncio.fixture
async def broker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Inside]:
    """Yield a broker that writes a batch whenever it has more than 2000 bytes: about four of the messages below."""
    monkeypatch.setattr(atomic, "SPILL_BYTES", 2000)
    async with Inside() as inside:
        yield inside


def payload(batch: str, place: int) -> bytes:
    return b"%b %d " % (batch.encode(), place) * 20


async def publish(broker: Inside, rows: Sequence[Row], batch: str = "b", *, last: bool = True) -> dict[str, Any]:
    """Publish a whole batch and return the answer to its commit. Not ``last``: publish all but the commit."""
    for place, (subject, headers) in enumerate(rows[:-1] if last else rows, 1):
        given = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(place), **headers}
        await broker.client.publish(subject, payload(batch, place), headers=given)
    return await commit(broker, rows, batch) if last else {}


async def commit(broker: Inside, rows: Sequence[Row], batch: str = "b") -> dict[str, Any]:
    subject, headers = rows[-1]
    given = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(len(rows)), "Nats-Batch-Commit": "1", **headers}
    answer = await broker.client.request(subject, payload(batch, len(rows)), timeout=30, headers=given)
    answered: dict[str, Any] = json.loads(answer.data)
    return answered


async def create(broker: Inside, **config: Any) -> None:
    await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "allow_atomic": True, **config})


def rows_of(count: int, **headers: str) -> list[Row]:
    return [(f"s.{at % 3}", headers) for at in range(count)]


def runs(store: MemoryStore) -> list[str]:
    return [key for key in store.objects if "/runs/" in key]


def nothing_is_left(broker: Inside) -> None:
    shared = broker.js._inflight
    assert (shared.atomic, shared.staged_bytes, shared.writing.bytes, len(shared.writing.keys)) == (0, 0, 0, 0)


async def contents(broker: Inside, stream: str = "S") -> list[tuple[int, str, bytes]]:
    """Return every message, read by a consumer."""
    js = broker.client.jetstream()
    left = (await js.stream_info(stream)).state.messages
    if not left:
        return []
    subscription = await js.subscribe(">", stream=stream, ordered_consumer=True)
    found = [await subscription.next_msg(timeout=30) for _ in range(left)]
    await subscription.unsubscribe()
    return [(msg.metadata.sequence.stream, msg.subject, msg.data) for msg in found]


async def test_messages_of_a_large_batch_are_the_streams(broker: Inside) -> None:
    """Shows sequences, order and times over several runs; a waiting consumer, a mirror, and gets; also after a restart.

    Its ids are duplicates from then on, and the next publish follows.
    """
    await create(broker)
    await broker.ok("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "S"}})
    assert await broker.publish("s.0", b"before") == 1
    js = broker.client.jetstream()
    waiting = await js.subscribe("s.>", stream="S", ordered_consumer=True)
    assert (await waiting.next_msg(timeout=30)).data == b"before"
    rows: list[Row] = [(subject, {"Nats-Msg-Id": f"id{at}", "X": "y" * at})
                       for at, (subject, _) in enumerate(rows_of(30))]
    assert await publish(broker, rows) == {"stream": "S", "seq": 31, "batch": "b", "count": 30}
    assert len(runs(broker.store)) > 3
    nothing_is_left(broker)
    got = [await waiting.next_msg(timeout=30) for _ in rows]
    assert [(msg.metadata.sequence.stream, msg.subject, msg.data, msg.headers["X"])  # type: ignore[index]
            for msg in got] == [
        (at + 2, subject, payload("b", at + 1), headers["X"]) for at, (subject, headers) in enumerate(rows)]
    times = [msg.metadata.timestamp for msg in got]
    assert times == sorted(times)
    again = await broker.client.request("s.0", b"x", headers={"Nats-Msg-Id": "id29"}, timeout=30)
    assert json.loads(again.data) == {"stream": "S", "seq": 31, "duplicate": True}
    assert await broker.publish("s.9", b"after") == 32
    expected = await contents(broker)
    assert [seq for seq, _, _ in expected] == list(range(1, 33))

    async def mirrored() -> bool:
        return bool(await contents(broker, "M") == expected)

    for _ in range(2):
        await eventually(mirrored)
        assert (await js.get_msg("S", 12)).data == payload("b", 11)
        assert (await js.get_last_msg("S", "s.2")).seq == 31
        await broker.restart()
        assert await contents(broker) == expected
    again = await broker.client.request("s.0", b"x", headers={"Nats-Msg-Id": "id0"}, timeout=30)
    assert json.loads(again.data) == {"stream": "S", "seq": 2, "duplicate": True}


SAME: dict[str, tuple[dict[str, Any], list[Row]]] = {
    "plain": ({}, rows_of(12)),
    "its end refused by the last sequence": ({}, [*rows_of(11), ("s.1", {"Nats-Expected-Last-Sequence": "9"})]),
    "expected sequences": ({}, [("s.0", {"Nats-Expected-Last-Sequence": "2"}),
                                ("s.1", {"Nats-Expected-Last-Subject-Sequence": "2"}), *rows_of(9)]),
    "a subject's last sequence is another": ({}, [*rows_of(8), ("s.9", {"Nats-Expected-Last-Subject-Sequence": "4"})]),
    "another stream": ({}, [("s.0", {"Nats-Expected-Stream": "T"}), *rows_of(9)]),
    "an id twice": ({}, [("s.0", {"Nats-Msg-Id": "a"}), *rows_of(9), ("s.0", {"Nats-Msg-Id": "a"})]),
    "an id that was seen": ({}, [("s.0", {"Nats-Msg-Id": "seen"}), *rows_of(9)]),
    "a header that batches cannot have": ({}, [("s.0", {"Nats-Expected-Last-Msg-Id": "a"}), *rows_of(9)]),
    "no TTLs": ({}, [*rows_of(9), ("s.0", {"Nats-TTL": "10s"})]),
    "TTLs": ({"allow_msg_ttl": True}, [("s.0", {"Nats-TTL": "1h"}), *rows_of(9), ("s.0", {"Nats-TTL": "never"})]),
    "no roll-ups": ({}, [*rows_of(9), ("s.9", {"Nats-Rollup": "sub"})]),
    "a roll-up of a subject": ({"allow_rollup_hdrs": True},
                               [*rows_of(1), ("s.1", {"Nats-Rollup": "sub"}), *rows_of(9)]),
    "a roll-up of a subject in the batch": ({"allow_rollup_hdrs": True},
                                            [*rows_of(9), ("s.1", {"Nats-Rollup": "sub"})]),
    "a roll-up of all": ({"allow_rollup_hdrs": True}, [("s.1", {"Nats-Rollup": "all"}), *rows_of(9)]),
    "a roll-up of all by limits of subjects": ({"allow_rollup_hdrs": True, "max_msgs_per_subject": 2},
                                               [("s.1", {"Nats-Rollup": "all"}), *rows_of(9)]),
    "per subject": ({"max_msgs_per_subject": 2}, rows_of(12)),
    "per subject, refused": ({"max_msgs_per_subject": 4, "discard": "new", "discard_new_per_subject": True},
                             rows_of(12)),
    "per subject, room": ({"max_msgs_per_subject": 5, "discard": "new", "discard_new_per_subject": True}, rows_of(12)),
    "messages": ({"max_msgs": 5}, rows_of(12)),
    "messages, refused": ({"max_msgs": 13, "discard": "new"}, rows_of(12)),
    "messages, room": ({"max_msgs": 14, "discard": "new"}, rows_of(12)),
    "bytes": ({"max_bytes": 2000}, rows_of(12)),
    "what subjects may not keep makes room": ({"max_bytes": 800, "max_msgs_per_subject": 1}, [("s.0", {})] * 12),
    "messages, and per subject": ({"max_msgs": 4, "max_msgs_per_subject": 2}, [("s.0", {})] * 12),
    "what nobody waits for makes room": ({"retention": "interest", "max_msgs": 12}, rows_of(30)),
    "bytes, refused": ({"max_bytes": 2000, "discard": "new"}, rows_of(12)),
    "a message too large": ({"max_msg_size": 200}, [*rows_of(8), ("s.0", {"X": "y" * 100})]),
    "nobody is interested": ({"retention": "interest"}, rows_of(12)),
    "a work queue": ({"retention": "workqueue"}, rows_of(12)),
    "no acks": ({"no_ack": True, "max_msgs": 5}, rows_of(12)),
    "counters": ({"allow_msg_counter": True}, [(subject, {"Nats-Incr": "1"}) for subject, _ in rows_of(12)]),
    "schedules": ({"allow_msg_schedules": True, "allow_rollup_hdrs": True}, rows_of(12)),
    "another subject": ({"subject_transform": {"src": "s.*", "dest": "s.x.{{wildcard(1)}}"}}, rows_of(12)),
    "republished": ({"republish": {"src": "s.>", "dest": "r.>"}}, rows_of(12)),
    "in memory": ({"storage": "memory"}, rows_of(12)),
    "a header that only the server may set": ({}, [("s.0", {"Nats-Request-Info": "x"}), *rows_of(11)]),
}


@pytest.mark.parametrize("name", SAME)
async def test_a_commit_decides_as_for_a_small_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows the same answer, state and messages, also after a restart, whether the batch is written before or not.

    The runs of a refused batch are deleted.
    """
    config, rows = SAME[name]
    outcomes = []
    for spill_bytes in (1 << 20, 2000):
        monkeypatch.setattr(atomic, "SPILL_BYTES", spill_bytes)
        async with Inside() as broker:
            deleted: list[str] = []
            broker.js._inflight.writing.release_runs = deleted.extend
            await create(broker, **config)
            if name == "what nobody waits for makes room":
                await broker.ok("CONSUMER.CREATE.S.C", {"stream_name": "S", "config": {
                    "durable_name": "C", "ack_policy": "explicit", "filter_subject": "s.1"}})
            await broker.client.publish("s.0", b"x", headers={"Nats-Msg-Id": "seen"})
            await broker.client.publish("s.1", b"x")
            answer: dict[str, Any] = {}
            if config.get("no_ack"):
                await publish(broker, rows[:-1], last=False)
                await broker.client.publish("s.2", payload("b", 12), headers={
                    "Nats-Batch-Id": "b", "Nats-Batch-Sequence": "12", "Nats-Batch-Commit": "1"})
                await broker.client.flush()
            else:
                answer = await publish(broker, rows)
            outcome: list[Any] = [answer]
            for _ in range(1 if config.get("storage") == "memory" else 2):
                info = await broker.ok("STREAM.INFO.S", {"subjects_filter": ">", "deleted_details": True})
                state = {key: value for key, value in info["state"].items() if not key.endswith("_ts")}
                outcome += [state, await contents(broker) if config.get("retention") is None else None]
                if config.get("storage") != "memory":
                    await broker.restart()
            outcomes.append(outcome)
            nothing_is_left(broker)
            spilled = spill_bytes == 2000 and not {"storage", "republish", "subject_transform", "allow_msg_schedules",
                                                   "allow_msg_counter"} & config.keys()
            if "error" in answer:
                # A put that was in flight when the batch was refused may have stored its run or not.
                assert set(runs(broker.store)) <= set(deleted)
                assert bool(deleted) == spilled
            else:
                assert bool(runs(broker.store)) == spilled
                assert deleted == []
    assert outcomes[0] == outcomes[1]


async def test_messages_of_a_large_batch_expire_by_their_own_time(broker: Inside) -> None:
    """Shows expiry at once, and after a restart."""
    await create(broker, allow_msg_ttl=True)
    for left, (batch, restarts) in ((9, ("b", False)), (18, ("c", True))):
        rows: list[Row] = [("s.0", {"Nats-TTL": "1s"}), *rows_of(9), ("s.1", {"Nats-TTL": "1s"})]
        assert (await publish(broker, rows, batch))["count"] == 11
        if restarts:
            await broker.restart()

        async def expired(left: int = left) -> bool:
            return bool((await broker.ok("STREAM.INFO.S"))["state"]["messages"] == left)

        await eventually(expired)
        found = [data for _, _, data in await contents(broker) if data.startswith(batch.encode())]
        assert found == [payload(batch, place) for place in range(2, 11)]


async def test_a_batch_that_is_committed_by_its_end(broker: Inside) -> None:
    """The message that ends it is not stored; the one before it has the header of the commit, as on nats-server."""
    await create(broker)
    await publish(broker, rows_of(12), last=False)
    head = {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "13", "Nats-Batch-Commit": "eob"}
    answer = await broker.client.request("s.0", b"", headers=head, timeout=30)
    assert json.loads(answer.data) == {"stream": "S", "seq": 12, "batch": "b", "count": 12}
    js = broker.client.jetstream()
    last = await js.get_msg("S", 12)
    assert (last.data, (last.headers or {}).get("Nats-Batch-Commit")) == (payload("b", 12), "1")
    assert "Nats-Batch-Commit" not in ((await js.get_msg("S", 11)).headers or {})


async def test_messages_published_after_the_commit_come_after_it(broker: Inside) -> None:
    """Shows one connection that does not wait, with messages to the stream and of another batch."""
    await create(broker)
    rows = rows_of(12)
    await publish(broker, rows[:-1], last=False)
    inbox = broker.client.new_inbox()
    answers = await broker.client.subscribe(inbox)
    head = {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "12", "Nats-Batch-Commit": "1"}
    await broker.client.publish("s.2", payload("b", 12), reply=inbox, headers=head)
    for number in range(3):
        await broker.client.publish("s.0", b"%d" % number, reply=inbox)
    await publish(broker, rows[:-1], "c", last=False)
    await broker.client.publish("s.2", payload("c", 12), reply=inbox, headers={**head, "Nats-Batch-Id": "c"})
    seqs = [json.loads((await answers.next_msg(timeout=30)).data)["seq"] for _ in range(5)]
    assert seqs == [12, 13, 14, 15, 27]
    assert [data for _, _, data in await contents(broker)] == [
        *(payload("b", place) for place in range(1, 13)), b"0", b"1", b"2",
        *(payload("c", place) for place in range(1, 13))]


async def test_a_batch_that_ends_without_a_commit_leaves_nothing(broker: Inside) -> None:
    """Shows a gap, and a stream that allows no batches any more: the runs are deleted,
    and nothing counts for the batch."""
    await create(broker)
    deleted: list[str] = []
    broker.js._inflight.writing.release_runs = deleted.extend
    await publish(broker, rows_of(20), last=False)
    await broker.client.flush()
    await eventually(lambda: _there(broker, 3))
    assert broker.js._inflight.writing.keys >= set(runs(broker.store))
    answer = await broker.client.request("s.0", b"x", headers={"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "30"},
                                         timeout=30)
    assert json.loads(answer.data)["error"]["err_code"] == 10176
    first = runs(broker.store)
    assert set(deleted) >= set(first)
    await publish(broker, rows_of(20), "c", last=False)
    await broker.client.flush()
    await eventually(lambda: _there(broker, len(first) + 3))
    await broker.ok("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"]})
    assert set(deleted) >= set(runs(broker.store))
    await eventually(lambda: _idle(broker))
    nothing_is_left(broker)
    assert (await broker.ok("STREAM.INFO.S"))["state"]["messages"] == 0


async def _there(broker: Inside, count: int) -> bool:
    return len(runs(broker.store)) >= count


async def _idle(broker: Inside) -> bool:
    return broker.js._inflight.staged_bytes == 0


async def test_the_inbox_sweeps_no_open_batch(broker: Inside) -> None:
    """Shows a grace of zero; runs of a batch that a restart ended are swept."""
    await create(broker)
    await publish(broker, rows_of(20), last=False)
    await broker.client.flush()
    await eventually(lambda: _there(broker, 3))
    deleted: list[str] = []
    shared = broker.js._inflight.writing

    async def swept() -> list[str]:
        inbox = Inbox(broker.js, broker.log, ShardPaths(0), broker.clock,
                      InboxSettings(poll_ns=0, staged_grace_ns=-(1 << 60)), deleted.extend, open_runs=shared.keys)
        await inbox.sweep()
        return deleted

    assert await swept() == []
    answer = await commit(broker, rows_of(21))
    assert answer["count"] == 21
    assert await swept() == []
    there = set(runs(broker.store))
    await publish(broker, rows_of(20), "c", last=False)
    await broker.client.flush()
    await eventually(lambda: _there(broker, len(there) + 3))
    await broker.restart()
    assert sorted(await swept()) == sorted(set(runs(broker.store)) - there)
    assert len(await contents(broker)) == 21


async def test_a_change_meanwhile_that_needs_the_bodies_refuses_it(broker: Inside) -> None:
    await create(broker)
    await publish(broker, rows_of(20), last=False)
    await broker.client.flush()
    await broker.ok("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "allow_atomic": True,
                                        "republish": {"src": "s.>", "dest": "r.>"}})
    assert (await commit(broker, rows_of(21)))["error"]["description"] == "atomic publish batch is too large: 64 MiB"
    assert (await broker.ok("STREAM.INFO.S"))["state"]["messages"] == 0


@pytest.mark.parametrize(("change", "err_code"), [({"sealed": True}, 10109), ({"allow_atomic": False}, 10174)])
async def test_a_change_while_the_commit_waits_that_allows_no_batch_refuses_it(change: dict[str, Any], err_code: int,
                                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that a stream that was sealed while the store was slow gets no messages."""
    monkeypatch.setattr(atomic, "SPILL_BYTES", 2000)
    inside = Inside()
    inside.store = store = Recorded()
    async with inside as broker:
        await create(broker)
        store.free.clear()
        waiting = asyncio.create_task(publish(broker, rows_of(12)))
        await eventually(lambda: _committing(broker))
        stream = broker.js.accounts["$G"].streams["S"]
        update = {"name": "S", "subjects": ["s.>"], "allow_atomic": True, **change}
        changing = asyncio.create_task(broker.ok("STREAM.UPDATE.S", update))

        async def changed() -> bool:
            return stream.config.sealed or not stream.config.allow_atomic

        await eventually(changed)
        store.free.set()
        assert (await waiting)["error"]["err_code"] == err_code
        assert (await changing)["state"]["messages"] == 0
        nothing_is_left(broker)


async def test_a_batch_of_too_many_blocks_is_refused(broker: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that the written runs are deleted with the batch."""
    monkeypatch.setattr(atomic, "BLOCKS_MAX", 3)
    await create(broker)
    deleted: list[str] = []
    broker.js._inflight.writing.release_runs = deleted.extend
    assert (await publish(broker, rows_of(22)))["error"]["err_code"] == 10176
    assert len(deleted) == 3
    await eventually(lambda: _idle(broker))
    nothing_is_left(broker)
    assert (await broker.ok("STREAM.INFO.S"))["state"]["messages"] == 0


@pytest.mark.parametrize("whose", ["the account's", "the server's"])
async def test_open_batches_take_no_more_of_the_store_than_the_limit(whose: str,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows batches that are never committed: they are abandoned with that limit's error.

    There is room again once the others have ended.
    """
    monkeypatch.setattr(atomic, "SPILL_BYTES", 2000)
    most = 20_000
    inside = (Inside(limits=AccountLimits(max_storage=most)) if whose == "the account's"
              else Inside(JetStreamSettings(server=ServerLimits(max_storage=most))))
    async with inside as broker:
        deleted: set[str] = set()
        broker.js._inflight.writing.release_runs = deleted.update
        await create(broker)
        advisories = await broker.client.subscribe("$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.S")
        refused = []
        for number in range(20):
            batch = f"b{number}"
            await publish(broker, rows_of(19), batch, last=False)
            answer = await broker.client.request("s.0", payload(batch, 20), timeout=20, headers={
                "Nats-Batch-Id": batch, "Nats-Batch-Sequence": "20"})
            if answer.data:
                assert json.loads(answer.data)["error"]["err_code"] == 10176  # not a batch any more
                refused.append(batch)
        assert 5 < len(refused) < 18
        abandoned = [json.loads((await advisories.next_msg(timeout=30)).data) for _ in refused]
        assert [(one["batch"], one["reason"]) for one in abandoned] == [(batch, "large") for batch in refused]
        body = bytes(1800)
        last = await broker.client.subscribe(inbox := broker.client.new_inbox())
        for place in range(1, 15):
            await broker.client.publish("s.0", body, reply=inbox,
                                        headers={"Nats-Batch-Id": "c", "Nats-Batch-Sequence": f"{place}"})
        answers = [(await last.next_msg(timeout=30)).data for _ in range(14)]
        first = next(json.loads(data) for data in answers if data)
        assert first["error"]["err_code"] == (10002 if whose == "the account's" else 10023)
        await eventually(lambda: _written(broker))
        staged = sum(len(broker.store.objects[key]) for key in runs(broker.store) if key not in deleted)
        assert most // 8 < staged <= most
        await broker.ok("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"]})
        await broker.ok("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "allow_atomic": True})
        assert (await publish(broker, rows_of(21), "d"))["count"] == 21
        nothing_is_left(broker)


class Recorded(MemoryStore):
    """A store that records the order of its puts, and waits before those that ``slow`` is set for."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []
        self.free = asyncio.Event()
        self.free.set()
        self.writing = self.most = 0

    async def put(self, key: str, data: Buffers) -> None:
        size = sum(map(len, data))
        self.writing += size
        self.most = max(self.most, self.writing)
        try:
            if "/runs/" in key:
                await self.free.wait()
            await super().put(key, data)
        finally:
            self.writing -= size
        self.order.append(key)


async def test_killed_between_any_two_steps_there_are_all_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows a replay of the store after each put: it has all messages or none, and everything acknowledged so far."""
    monkeypatch.setattr(atomic, "SPILL_BYTES", 2000)
    inside = Inside()
    inside.store = Recorded()
    async with inside as broker:
        await create(broker, allow_rollup_hdrs=True)
        await broker.publish("s.0", b"before")
        rows = [("s.0", {"Nats-Rollup": "all"}), *rows_of(20)]
        assert (await publish(broker, rows))["seq"] == 22
        acked = len(inside.store.order)
        await broker.publish("s.0", b"after")
        states = []
        for end in range(1, len(inside.store.order) + 1):
            states.append(_replayed(inside.store, inside.store.order[:end]))
        assert states[-1] == (2, 23, 22)
        seen = list(dict.fromkeys(states))
        assert seen == [(0, 0, 0), (1, 1, 1), (2, 22, 21), (2, 23, 22)], seen
        assert states[acked - 1] == (2, 22, 21)


def _replayed(store: MemoryStore, keys: Sequence[str]) -> tuple[int, int, int]:
    """Return first sequence, last sequence and messages of the stream, by these objects alone,
    with the runs of its blocks."""
    paths, state = ShardPaths(0), _state(store, keys)
    stream = next(iter(state.streams.values()), None)
    if stream is None:
        return 0, 0, 0
    for entry in stream.blocks:
        assert block_key(paths, stream.account, stream.name, entry.ref) in keys
    return stream.first_seq, stream.last_seq, stream.msgs


def _state(store: MemoryStore, keys: Sequence[str]) -> ShardState:
    """Return the state that a start finds in these objects."""
    state = ShardState()
    state.apply_segment(Position(1, 0))
    paths = ShardPaths(0)
    for number in range(1, len(keys) + 1):
        position = Position(1, number)
        key = paths.log(position)
        if key not in keys:
            break
        head = decode_head(store.objects[key], position, complete=True)
        if isinstance(head, int):
            raise AssertionError(key)
        state.apply_segment(position)
        for at, row in enumerate(head.rows):
            core = head.core(at)
            state.apply_block(core, row.ref(BlockPlace.LOG, core) if row.messages else None)
    return state


@pytest.mark.parametrize("name", ["messages, and per subject", "what subjects may not keep makes room",
                                  "what nobody waits for makes room"])
async def test_a_start_behind_its_record_takes_out_what_would_have_left(name: str,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows a start from the store after each put behind the commit.

    Messages of the batch that are to leave in any case make room, before the limits of the stream remove others.
    """
    monkeypatch.setattr(atomic, "SPILL_BYTES", 2000)
    config, rows = SAME[name]
    interest = config.get("retention") == "interest"
    inside = Inside()
    inside.store = Recorded()
    async with inside as broker:
        await create(broker, **config)
        if interest:
            await broker.ok("CONSUMER.CREATE.S.C", {"stream_name": "S", "config": {
                "durable_name": "C", "ack_policy": "explicit", "filter_subject": "s.1"}})
        before = [await broker.publish("s.1", b"x") for _ in range(2 if interest else 1)]
        await publish(broker, rows[:-1], last=False)
        begun = len(inside.store.order)
        await commit(broker, rows)
        await broker.log.drain()
        expected = await _seqs(broker)
        assert set(before) <= set(expected)
    starts = 0
    for end in range(begun + 1, len(inside.store.order) + 1):
        keys = inside.store.order[:end]
        state = _state(inside.store, keys)
        stream = next(iter(state.streams.values()))
        if stream.last_seq == before[-1]:
            continue
        starts += stream.msgs > len(expected)
        again = Inside(opened=False)
        again.store.objects.update({key: inside.store.objects[key] for key in keys})
        async with again:
            again.state = state
            await again.open()

            async def all_has_left(again: Inside = again) -> bool:
                return len(await _seqs(again)) <= len(expected)

            await eventually(all_has_left)
            assert await _seqs(again) == expected
    assert starts


async def _seqs(broker: Inside) -> list[int]:
    """Return the sequences that the stream has."""
    state = (await broker.ok("STREAM.INFO.S", {"deleted_details": True}))["state"]
    return [seq for seq in range(state["first_seq"], state["last_seq"] + 1) if seq not in state.get("deleted", ())]


async def test_a_publisher_waits_for_a_slow_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that no more is held than the bytes that may be written and those read already;
    all of it arrives in the end."""
    monkeypatch.setattr(atomic, "SPILL_BYTES", 100_000)
    monkeypatch.setattr(inflight, "_WRITING_BYTES", 300_000)
    monkeypatch.setattr(inflight, "_HOLD_SECONDS", 60.0)
    inside = Inside()
    inside.store = store = Recorded()
    async with inside as broker:
        await create(broker)
        writing = broker.js._inflight.writing
        body = bytes(20_000)
        store.free.clear()
        for place in range(1, 201):
            await broker.client.publish("s.0", body, headers={"Nats-Batch-Id": "b", "Nats-Batch-Sequence": str(place)})
        await eventually(lambda: _held(broker))
        # The rest is in the socket's buffers and in the bytes of one read.
        assert 300_000 < writing.bytes < 2_000_000
        assert broker.js._inflight.staged_bytes < 2_500_000
        store.free.set()
        answer = await broker.client.request("s.0", body, timeout=30, headers={
            "Nats-Batch-Id": "b", "Nats-Batch-Sequence": "201", "Nats-Batch-Commit": "1"})
        assert json.loads(answer.data)["count"] == 201
        assert not writing._held
        nothing_is_left(broker)


async def test_headers_count_while_they_are_written(broker: Inside) -> None:
    """A batch of headers alone takes its memory twice meanwhile, so publishers are held as for payloads."""
    broker.store = store = Recorded()
    await broker.restart()
    await create(broker)
    shared = broker.js._inflight
    store.free.clear()
    rows: list[Row] = [("s.0", {"X": "y" * 5000})] * 10
    await publish(broker, rows, last=False)
    await broker.client.flush()
    assert shared.writing.bytes > 9 * 5000
    assert shared.staged_bytes > 19 * 5000
    store.free.set()
    await eventually(lambda: _written(broker))
    assert 10 * 5000 < shared.staged_bytes < 11 * 6000
    assert (await commit(broker, [*rows, *rows_of(1)]))["count"] == 11
    nothing_is_left(broker)


async def _written(broker: Inside) -> bool:
    return broker.js._inflight.writing.bytes == 0


@pytest.mark.parametrize("ends", ["the stream is deleted", "the store comes back", "the broker stops"])
async def test_a_commit_that_waits_for_the_store(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that publishes wait behind it, and that it is carried out when the store answers.

    If that never happens, nothing of it is left behind.
    """
    monkeypatch.setattr(atomic, "SPILL_BYTES", 2000)
    inside = Inside()
    inside.store = store = Recorded()
    async with inside as broker:
        await create(broker)
        await broker.publish("s.0", b"before")
        store.free.clear()
        waiting = asyncio.create_task(publish(broker, rows_of(12)))
        await eventually(lambda: _committing(broker))
        behind = asyncio.create_task(broker.publish("s.0", b"behind"))
        if ends == "the store comes back":
            store.free.set()
            assert (await waiting)["seq"] == 13
            assert await behind == 14
        else:
            if ends == "the stream is deleted":
                await broker.ok("STREAM.DELETE.S")
            else:
                await broker.restart()
            await eventually(lambda: _idle(broker))
            store.free.set()
            for task in (waiting, behind):
                task.cancel()
            await asyncio.gather(waiting, behind, return_exceptions=True)
        nothing_is_left(broker)
        if ends == "the broker stops":
            assert [data for _, _, data in await contents(broker)] == [b"before"]
            assert await broker.publish("s.0", b"goes on") == 2


@pytest.mark.parametrize(("error", "err_code"), [(StoreFull, 10023), (StoreRefused, 10008)])
async def test_a_commit_that_the_store_refuses(error: type[StoreRefused], err_code: int,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is refused if the store has no room, or refuses it for another reason.

    Requests to the stream do not wait behind it for ever, so that a purge can make room, and the same batch can be
    published again.
    """
    monkeypatch.setattr(atomic, "SPILL_BYTES", 2000)
    inside = Inside()
    inside.store = store = Refusing()
    async with inside as broker:
        await create(broker)
        await broker.publish("s.0", b"before")
        store.error = error("refused")
        assert (await publish(broker, rows_of(12)))["error"]["err_code"] == err_code
        nothing_is_left(broker)
        assert (await broker.ok("STREAM.PURGE.S"))["purged"] == 1
        assert await broker.publish("s.0", b"after") == 2
        store.error = None
        assert (await publish(broker, rows_of(12)))["seq"] == 14


class Refusing(MemoryStore):
    """A store that refuses runs with ``error``, while there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.error: StoreRefused | None = None

    async def put(self, key: str, data: Buffers) -> None:
        if self.error is not None and "/runs/" in key:
            raise self.error
        await super().put(key, data)


async def _committing(broker: Inside) -> bool:
    return broker.js._inflight.writing.bytes > 0 and not broker.js._inflight.atomic


async def _held(broker: Inside) -> bool:
    return bool(broker.js._inflight.writing._held)
