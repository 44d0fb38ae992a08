"""Requests of writers, whose versions are granted once and in order, and requests about times; through sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from broker.jetstream.inbox.inbox import Carried, Inbox, InboxSettings
from broker.storage.format.request import Request, StagedRun, Version
from broker.storage.objectstore.base import Listing
from broker.storage.paths import ShardPaths
from broker.storage.staging.answers import answer_to
from broker.storage.staging.writer import request_object
from tests.jetstream.in_process import Inside
from tests.jetstream.inbox.staging import stage
from tests.manual_clock import ManualClock
from tests.sim.loop import SimLoop

T0 = 1_700_000_000_000_000_000


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[Inside]:
    async with Inside() as inside:
        await inside.ok("STREAM.CREATE.S", {"name": "S"})
        yield inside


async def put(broker: Inside, version: Version, payloads: Iterable[bytes] = (b"",), *, times: str = "raise",
              at: Iterable[int] | None = None) -> Request:
    """Put a request and its runs, one for each payload, each by a RunWriter of its own."""
    found = broker.state.stream("$G", "S")
    assert found is not None
    given = None if at is None else iter(at)
    entries: list[StagedRun] = []
    for payload in payloads:
        writer = await stage(broker.store, broker.state, "S", [(b"S", payload)],
                             times=None if given is None else [next(given)])
        entries += writer.entries
    asked = request_object("$G", "S", found.stream_id, version, entries, shard=0, times=times)
    await broker.store.put(asked.key, asked.data)
    return Request.decode(b"".join(asked.data), version.request_id(found.stream_id))


async def ask(broker: Inside, version: Version) -> dict[str, object]:
    answer = await broker.api("JETBLOCK.ADOPT.S", {"writer": version.writer, "version": version.number})
    return {key: value for key, value in answer.items() if key not in ("type", "adopted", "request", "ts")}


async def payloads(broker: Inside) -> list[bytes]:
    js = broker.client.jetstream()
    state = (await js.stream_info("S")).state
    return [(await js.get_msg("S", seq)).data or b"" for seq in range(state.first_seq, state.last_seq + 1)]


async def test_a_version_is_granted_once(broker: Inside) -> None:
    """Shows the same answer to a replay of the last version, and "already" to a lower one; neither stores anything.

    The request is replayed as another object with other runs, and asked for without an object; also after a restart.
    """
    await put(broker, Version("w", 6), [b"a"])
    assert (await ask(broker, Version("w", 6)))["messages"] == 1
    await put(broker, Version("w", 7), [b"b", b"c"])
    first = await ask(broker, Version("w", 7))
    assert first == {"messages": 2, "duplicates": 0, "raised": 0, "first_seq": 2, "last_seq": 3}
    already = {"already": 7, "messages": 0, "duplicates": 0, "raised": 0, "first_seq": 0, "last_seq": 0}
    for _ in range(2):
        for replay in (True, False):
            if replay:
                await put(broker, Version("w", 7), [b"x"] * 3)
                await put(broker, Version("w", 6), [b"y"])
            assert await ask(broker, Version("w", 7)) == first
            assert await ask(broker, Version("w", 6)) == already
        await broker.restart()
    assert await payloads(broker) == [b"a", b"b", b"c"]
    assert not [key for key in broker.store.objects if "/inbox/" in key]
    await put(broker, Version("other", 7), [b"d"])
    assert (await ask(broker, Version("other", 7)))["first_seq"] == 4


async def test_versions_in_the_inbox_are_carried_out_in_their_order(broker: Inside) -> None:
    """Shows that no version is passed over, whichever request is asked for, or found by a poll, first.

    Their ids are hashes, so their order in the inbox is arbitrary.
    """
    inbox = broker.js.shards[0].inbox
    assert inbox is not None
    expected: list[bytes] = []
    for turn in range(4):
        numbers = [turn * 100 + 3 * n for n in range(1, 8)]
        for number in numbers:
            await put(broker, Version("w", number), [b"%d" % number])
        if turn % 2:
            await inbox.carry_out_all()
        else:
            await ask(broker, Version("w", numbers[-1]))
        expected += [b"%d" % number for number in numbers]
    assert await payloads(broker) == expected


async def test_requests_of_many_writers_list_the_inbox_twice(broker: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows two listings for all requests that waited, of new writers and of one with many versions, and no proof of
    ownership for any of them, which would be a commit each."""
    versions = [Version(f"w{n}", 7) for n in range(20)] + [Version("many", 3 * n) for n in range(1, 20)]
    for version in versions:
        await put(broker, version, [f"{version.writer}/{version.number}".encode()])
    inbox = broker.js.shards[0].inbox
    assert inbox is not None
    listings, list_ = 0, broker.store.list

    async def counted(*args: Any) -> Listing:
        nonlocal listings
        listings += args[0] == "v1/shards/0/inbox/"
        return await list_(*args)

    async def proof() -> None:
        raise AssertionError("the request was carried out before")

    monkeypatch.setattr(broker.store, "list", counted)
    monkeypatch.setattr(inbox, "_prove_ownership", proof)
    carried = await inbox.carry_out_all()
    assert listings == 2
    assert sum(one.why == "" for one in carried) == len(versions)
    stored = await payloads(broker)
    assert len(stored) == len(versions)
    assert [one for one in stored if one.startswith(b"many")] == [b"many/%d" % (3 * n) for n in range(1, 20)]


async def test_the_answer_is_in_the_store(broker: Inside) -> None:
    """Shows the answers that a program without a connection finds: none yet, granted, already, refused."""
    stored = broker.state.stream("$G", "S")
    assert stored is not None
    first, second = await put(broker, Version("w", 1)), await put(broker, Version("w", 2))
    assert answer_to(stored.extra, first) is None
    await ask(broker, Version("w", 2))
    found = [answer_to(stored.extra, request) for request in (first, second)]
    assert [one and (one.state, one.messages, one.version) for one in found] == [("already", 0, 2), ("granted", 1, 0)]
    await broker.ok("STREAM.UPDATE.S", {"name": "S", "sealed": True})
    third = await put(broker, Version("w", 3))
    assert "sealed" in str(await ask(broker, Version("w", 3)))
    refused = answer_to(stored.extra, third)
    assert refused is not None
    assert (refused.state, refused.why) == ("refused", "invalid operation on sealed stream")
    assert answer_to(stored.extra, third._replace(nonce=bytes(16))) is None


async def test_impossible_names_of_a_request_are_refused(broker: Inside) -> None:
    """Shows the error for a request named twice, by nothing, or by an impossible writer or version."""
    for body in ({}, {"writer": "w", "version": 1, "request": "0" * 16}, {"writer": "w", "version": -1},
                 {"writer": "x" * 256, "version": 1}):
        assert await broker.error("JETBLOCK.ADOPT.S", body) == 10003


async def test_times_below_an_earlier_runs_are_counted_or_refused(broker: Inside) -> None:
    """Shows the count in the answer, the times in the stream, and a request that is refused instead: nothing joins."""
    given = [T0 + n for n in (0, 100, 95, 100, 98, 101)]
    await put(broker, Version("w", 1), [b""] * 6, times="refuse", at=given)
    assert "2 of its messages have times below an earlier message's (the stream's last time is none" in str(
        await ask(broker, Version("w", 1)))
    await put(broker, Version("w", 1), [b""] * 6, at=given)
    answer = await ask(broker, Version("w", 1))
    assert (answer["raised"], answer["first_seq"]) == (2, 1)
    found = broker.state.stream("$G", "S")
    assert found is not None
    assert [block.ref.first_time_ns - T0 for block in found.blocks] == [0, 100, 100, 100, 100, 101]
    await put(broker, Version("w", 2), [b""] * 2, times="refuse", at=[T0 + 101, T0 + 102])
    assert (await ask(broker, Version("w", 2)))["raised"] == 0


async def test_a_live_stream_refuses_or_raises_older_times(broker: Inside) -> None:
    """Shows an import of old rows into a stream with a newer message: nothing is stored, or each is raised."""
    await broker.publish("S", b"live")
    await put(broker, Version("w", 1), [b"old"] * 3, times="refuse", at=[T0, T0 + 1, T0 + 2])
    refused = await ask(broker, Version("w", 1))
    assert "3 of its messages have times below an earlier message's (the stream's last time is 20" in str(refused)
    assert await payloads(broker) == [b"live"]
    await put(broker, Version("w", 1), [b"old"] * 3, at=[T0, T0 + 1, T0 + 2])
    assert (await ask(broker, Version("w", 1)))["raised"] == 3


@pytest.mark.parametrize("last", range(6))
async def test_the_streams_last_time_may_be_within_a_block(broker: Inside, last: int) -> None:
    """Shows the count if the stream's last time lies within the times of a block."""
    await put(broker, Version("w", 1), [b""], at=[T0 + 10 * last])
    await ask(broker, Version("w", 1))
    writer = await stage(broker.store, broker.state, "S", [(b"S", b"")] * 5, times=[T0 + 10 * n for n in range(5)])
    asked = writer.request(Version("w", 2), 0)
    await broker.store.put(asked.key, asked.data)
    assert (await ask(broker, Version("w", 2)))["raised"] == last


async def test_duplicates_are_not_raised(broker: Inside) -> None:
    """Shows that dropped messages do not count, so that a repeated request is not refused for its times."""
    began = time.time_ns() - 10_000_000_000
    for number, more in enumerate((0, 0, 1, 2), 1):
        rows = [(b"S", b"", b"%d" % n) for n in range(4 + more)]
        writer = await stage(broker.store, broker.state, "S", rows, block_messages=3,
                             times=[began + n for n in range(len(rows))])
        asked = writer.request(Version("w", number), 0, times="refuse")
        await broker.store.put(asked.key, asked.data)
        answer = await ask(broker, Version("w", number))
        assert (answer["raised"], answer["messages"]) == (0, len(rows) if number == 1 else min(more, 1))


def test_the_inbox_is_read_each_second_while_requests_come() -> None:
    """Shows the times of polls, in virtual time: each second for a minute after a request was found, then each 5
    minutes. A request that stays in the inbox does not count."""
    found = {0: [True], 600: [False], 900: [False], 910: [False]}
    polls: list[float] = []
    loop = SimLoop(ManualClock())

    async def show() -> None:
        log = SimpleNamespace(failure=None, store=None, state=SimpleNamespace(released={}))
        inbox = Inbox(SimpleNamespace(available=True), log, ShardPaths(0), loop.clock,  # type: ignore[arg-type]
                      InboxSettings(poll_ns=300_000_000_000), list.clear)
        start = loop.time()

        async def carry_out_all() -> list[Carried]:
            polls.append(loop.time() - start)
            return [Carried(1, "$G", "S", None, "", stays=not granted) for granted in found.get(round(polls[-1]), ())]

        inbox.carry_out_all, inbox.sweep = carry_out_all, asyncio.Event().set  # type: ignore[method-assign]
        inbox.start()
        await asyncio.sleep(1200)
        await inbox.stop()

    loop.run_until_complete(show())
    loop.close()
    assert [round(at) for at in polls] == [*range(61), 360, 660, 960]
