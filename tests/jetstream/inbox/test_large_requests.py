"""Requests of very many runs and subjects: all of them join, and the loop is never held for long."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from broker.storage.format import request as request_format
from broker.storage.format.request import Request, StagedRun, Version
from broker.storage.staging import check, read_ahead
from broker.storage.staging.check import Staged
from broker.storage.staging.writer import RunWriter, request_object
from tests.jetstream.in_process import Inside
from tests.jetstream.inbox.staging import stage

RUNS_MAX = request_format.RUNS_MAX


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[Inside]:
    async with Inside() as inside:
        await inside.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
        yield inside


def stream_id(broker: Inside) -> int:
    found = broker.state.stream("$G", "S")
    assert found is not None
    return found.stream_id


async def put_runs(broker: Inside, count: int) -> list[StagedRun]:
    """Put runs of one message each, whose subjects have at most ten names."""
    entries: list[StagedRun] = []
    for number in range(count):
        writer = RunWriter("$G", "S", stream_id(broker), now_ns=time.time_ns())
        writer.add(b"s.%d" % (number % 10), b"%d" % number)
        [run] = writer.finish()
        await broker.store.put(run.key, run.data)
        entries += writer.entries
    return entries


async def ask(broker: Inside, entries: list[StagedRun], number: int = 1) -> dict[str, object]:
    asked = request_object("$G", "S", stream_id(broker), Version("w", number), entries, shard=0)
    await broker.store.put(asked.key, asked.data)
    return await broker.api("JETBLOCK.ADOPT.S", {"writer": "w", "version": number}, seconds=120)


async def longest_turn(stopped: asyncio.Event) -> float:
    """Return the most processor time, in seconds, that the loop's thread took between two of its turns."""
    most, last = 0.0, time.thread_time()
    while not stopped.is_set():
        await asyncio.sleep(0)
        now = time.thread_time()
        most, last = max(most, now - last), now
    return most


async def test_a_request_of_the_most_runs(broker: Inside) -> None:
    """Shows that all messages join in order, and stay after a restart, and that no turn of the loop takes 50 ms.

    A quiet machine takes less than 20 ms; a busy one counts some of the time of others.
    """
    entries = await put_runs(broker, RUNS_MAX)
    stopped = asyncio.Event()
    gc.disable()  # the collector's turns depend on all the objects of the test's process
    watch = asyncio.create_task(longest_turn(stopped))
    answer = await ask(broker, entries)
    stopped.set()
    gc.enable()
    assert (answer["messages"], answer["first_seq"], answer["last_seq"]) == (RUNS_MAX, 1, RUNS_MAX)
    assert await watch < 0.05
    js = broker.client.jetstream()
    for _ in range(2):
        for seq in (1, 2, RUNS_MAX // 2, RUNS_MAX):
            assert (await js.get_msg("S", seq)).data == b"%d" % (seq - 1)
        info = await broker.ok("STREAM.INFO.S", {"subjects_filter": ">"})
        assert sum(info["state"]["subjects"].values()) == RUNS_MAX
        await broker.restart()


async def test_a_request_beyond_the_limits_is_refused_before_anything_is_read(broker: Inside) -> None:
    """Shows the reason, for the program that makes the request and in the broker's answer."""
    writer = await stage(broker.store, broker.state, "S", [(b"s.a", b"")])
    one = writer.entries[0]
    for entries in ([one] * (RUNS_MAX + 1), [one._replace(blocks=4097)], [one._replace(size=(64 << 30) + 1)]):
        writer.entries = entries
        with pytest.raises(ValueError, match="too many for one request"):
            writer.request(1, 0)
        request = Request(Version("w", 1).request_id(stream_id(broker)), "$G", "S", stream_id(broker), entries,
                          bytes(16), Version("w", 1))
        await broker.store.put(f"v1/shards/0/inbox/{request.request_id:016x}", [request.encode()])
        assert "too many for one request" in str(await broker.api("JETBLOCK.ADOPT.S", {"writer": "w", "version": 1}))


async def test_subjects_are_bounded_only_where_they_are_counted(
        broker: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows more subjects than a stream may count, in a stream that does not count them; another is refused."""
    monkeypatch.setattr(check, "SUBJECTS_MAX", 1000)
    writer = await stage(broker.store, broker.state, "S", [(b"s.%d" % n, b"") for n in range(1001)])
    assert (await ask(broker, writer.entries))["messages"] == 1001
    await broker.ok("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "discard": "new", "max_msgs_per_subject": 2,
                                        "discard_new_per_subject": True})
    writer = await stage(broker.store, broker.state, "S", [(b"s.%d" % n, b"") for n in range(1001)])
    assert "more than 1000 subjects" in str(await ask(broker, writer.entries, 2))
    for number, messages in ((3, 1000), (4, None)):
        writer = await stage(broker.store, broker.state, "S", [(b"s.%d" % n, b"") for n in range(1000)])
        assert (await ask(broker, writer.entries, number)).get("messages") == messages


async def test_what_was_read_is_forgotten_in_turns(broker: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows a block without ids that keeps no subjects, and that no block, subject or id is left after an answer of
    either kind: a million that go together would hold the loop."""
    await broker.ok("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "discard": "new", "max_msgs_per_subject": 1,
                                        "discard_new_per_subject": True})
    inbox = broker.js.shards[0].inbox
    assert inbox is not None
    read, found = inbox._read, []

    async def seen(stream: object, request: Request) -> Staged:
        staged = await read(stream, request)  # type: ignore[arg-type]
        assert len(staged.subjects) == 5000
        found.append((staged, [len(block.ids.names) for block in staged.blocks]))
        return staged

    monkeypatch.setattr(inbox, "_read", seen)
    for number, msg_id in ((1, b""), (2, b"id")):
        writer = await stage(broker.store, broker.state, "S",
                             [(b"s.%d" % n, b"", msg_id and b"%d" % n) for n in range(5000)], block_messages=2500)
        answer = await ask(broker, writer.entries, number)
        assert answer.get("messages") == (5000 if number == 1 else None), answer
    assert [names for _, names in found] == [[0, 0], [2500, 2500]]
    assert all(not staged.blocks and not staged.subjects for staged, _ in found)


@pytest.mark.parametrize("accepted", [True, False])
async def test_subjects_are_checked_by_the_present_configuration(broker: Inside, monkeypatch: pytest.MonkeyPatch,
                                                                 accepted: bool) -> None:
    """Shows a stream whose subjects change after its request was read: the request is read again."""
    writer = await stage(broker.store, broker.state, "S", [(b"s.a", b"")])
    inbox = broker.js.shards[0].inbox
    assert inbox is not None
    read, reads = inbox._read, 0

    async def then_update(stream: object, request: Request) -> Staged:
        nonlocal reads
        staged = await read(stream, request)  # type: ignore[arg-type]
        reads += 1
        if reads == 1:
            await broker.ok("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.a" if accepted else "t.a"]})
        return staged

    monkeypatch.setattr(inbox, "_read", then_update)
    answer = await ask(broker, writer.entries)
    if accepted:
        assert (answer["messages"], reads) == (1, 2)
    else:
        assert "subject 's.a' is not one of the stream's" in str(answer)


async def test_small_runs_are_read_ahead_and_large_ones_in_pieces(
        broker: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows one get for a small run, several of them at once, and a large run between them."""
    monkeypatch.setattr(read_ahead, "_SMALL_BYTES", 2000)
    entries = await put_runs(broker, 20)
    writer = await stage(broker.store, broker.state, "S", [(b"s.%d" % n, b"large %d" % n) for n in range(500)])
    entries[10:10] = writer.entries
    gets, running, most = 0, 0, 0
    get = broker.store.get

    async def counted(key: str, start: int = 0, end: int | None = None) -> bytes:
        nonlocal gets, running, most
        counts = "/runs/" in key
        gets, running = gets + counts, running + counts
        most = max(most, running)
        await asyncio.sleep(0)
        try:
            return await get(key, start, end)
        finally:
            running -= counts

    monkeypatch.setattr(broker.store, "get", counted)
    assert (await ask(broker, entries))["messages"] == 520
    monkeypatch.undo()
    assert (gets, most > 5) == (23, True)
    js = broker.client.jetstream()
    assert [(await js.get_msg("S", seq)).data for seq in (10, 11, 510, 511)] == [b"9", b"large 0", b"large 499", b"10"]
