"""Requests whose messages make the stream act: TTLs, roll-ups and purge markers, seen through a client's socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress

import pytest
import pytest_asyncio
from nats.js.errors import NotFoundError

from broker.protocol import headers as header_block
from broker.storage.staging.writer import Acting, RowRefused, RunWriter, request_id_of
from tests.jetstream.in_process import Inside
from tests.jetstream.inbox.staging import eventually

Pairs = tuple[tuple[bytes, bytes], ...]
Message = tuple[bytes, bytes, Pairs]

SUB: Pairs = ((b"Nats-Rollup", b"sub"),)
ALL: Pairs = ((b"Nats-Rollup", b"all"),)


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[Inside]:
    async with Inside() as inside:
        yield inside


async def adopt(broker: Inside, stream: str, messages: Iterable[Message], name: str = "job", *,
                acting: str = "apply", block_messages: int = 32_768, time_ns: int | None = None) -> dict[str, object]:
    """Stage messages, request them, and return the broker's answer."""
    found = broker.state.stream("$G", stream)
    assert found is not None
    writer = RunWriter("$G", stream, found.stream_id, now_ns=0, acting=acting, block_messages=block_messages)
    for subject, payload, pairs in messages:
        writer.add(subject, payload, header_block.build(pairs) if pairs else b"", time_ns=time_ns)
    for run in writer.finish():
        await broker.store.put(run.key, run.data)
    request = writer.request(request_id_of(name), 0)
    await broker.store.put(request.key, request.data)
    return await broker.api(f"JETBLOCK.ADOPT.{stream}", {"request": f"{request_id_of(name):016x}"})


async def contents(broker: Inside, stream: str) -> list[tuple[int, str, bytes]]:
    """Return the messages that the stream has at one time."""
    js = broker.client.jetstream()
    while True:
        before = (await js.stream_info(stream)).state
        found: list[tuple[int, str, bytes]] = []
        with suppress(NotFoundError):
            while True:
                msg = await js._jsm.get_msg(stream, seq=found[-1][0] + 1 if found else 1, next=True, subject=">")
                found.append((msg.seq or 0, msg.subject or "", msg.data or b""))
        if (await js.stream_info(stream)).state == before:  # nothing has expired meanwhile
            assert len(found) == before.messages
            assert not found or found[-1][0] == before.last_seq
            return found


@pytest.mark.parametrize("block_messages", [100, 2, 1])
async def test_a_roll_up_removes_what_was_before_it(broker: Inside, block_messages: int) -> None:
    """Shows earlier messages of the subject removed, of the stream and of the request, also after a restart.

    Messages of other subjects, and later ones, stay. A consumer that had not read the removed ones does not get them.
    """
    await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "allow_rollup_hdrs": True})
    js = broker.client.jetstream()
    for subject in ("s.a", "s.b", "s.a"):
        await js.publish(subject, b"old")
    waiting = await js.pull_subscribe("s.>", "reader", stream="S")
    rows: list[Message] = [(b"s.b", b"b1", ()), (b"s.a", b"a1", ()), (b"s.a", b"a2", SUB), (b"s.a", b"a3", ()),
                           (b"s.c", b"c1", ()), (b"s.c", b"c2", SUB)]
    answer = await adopt(broker, "S", rows, block_messages=block_messages)
    assert answer["messages"] == 6, answer
    expected = [("s.b", b"old"), ("s.b", b"b1"), ("s.a", b"a2"), ("s.a", b"a3"), ("s.c", b"c2")]
    assert [row[1:] for row in await contents(broker, "S")] == expected
    got = [(msg.subject, msg.data) for msg in await waiting.fetch(5, timeout=30)]
    assert got == expected
    assert (await js.consumer_info("S", "reader")).num_pending == 0
    before = await contents(broker, "S")
    await broker.restart()
    assert await contents(broker, "S") == before
    assert await broker.publish("s.z", b"after") == answer["last_seq"] + 1  # type: ignore[operator]


async def test_a_roll_up_of_the_stream(broker: Inside) -> None:
    """Shows that nothing before the last roll-up of the whole stream stays."""
    await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "allow_rollup_hdrs": True})
    await broker.publish("s.a", b"old")
    rows: list[Message] = [(b"s.b", b"1", ()), (b"s.b", b"2", SUB), (b"s.a", b"3", ALL), (b"s.b", b"4", ()),
                           (b"s.c", b"5", SUB)]
    await adopt(broker, "S", rows, block_messages=2)
    for _ in range(2):
        assert [row[1:] for row in await contents(broker, "S")] == [("s.a", b"3"), ("s.b", b"4"), ("s.c", b"5")]
        await broker.restart()


async def test_a_time_to_live_counts_from_the_message(broker: Inside) -> None:
    """Shows a message that has expired already, one that expires soon, and those that stay; also after a restart."""
    await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "allow_msg_ttl": True})
    rows: list[Message] = [(b"s.gone", b"", ((b"Nats-TTL", b"1s"),)), (b"s.never", b"", ((b"Nats-TTL", b"never"),)),
                           (b"s.hour", b"", ((b"Nats-TTL", b"3600"),))]
    long_ago = 1_600_000_000_000_000_000
    await adopt(broker, "S", rows, "old", time_ns=long_ago)
    await adopt(broker, "S", [(b"s.soon", b"", ((b"Nats-TTL", b"1"),)), *rows[1:], (b"s.plain", b"", ())], "new")
    left = ["s.never", "s.never", "s.hour", "s.plain"]

    async def holds() -> bool:
        return [row[1] for row in await contents(broker, "S")] == left

    await eventually(holds)
    await broker.restart()
    assert await holds()


async def test_a_bucket_is_written(broker: Inside) -> None:
    """Shows puts, a delete marker and a purge marker of a bucket as nats-py reads them, with its history."""
    js = broker.client.jetstream()
    bucket = await js.create_key_value(bucket="B", history=5)
    for key in ("kept", "deleted", "purged", "purged"):
        await bucket.put(key, b"old")
    operation = b"KV-Operation"
    await adopt(broker, "KV_B", [
        (b"$KV.B.new", b"1", ()), (b"$KV.B.deleted", b"", ((operation, b"DEL"),)), (b"$KV.B.purged", b"2", ()),
        (b"$KV.B.purged", b"", ((operation, b"PURGE"), *SUB)), (b"$KV.B.kept", b"3", ())])
    assert (await bucket.get("new")).value == b"1"
    assert [(one.value, one.operation) for one in await bucket.history("kept")] == [(b"old", None), (b"3", None)]
    assert [one.operation for one in await bucket.history("deleted")] == [None, "DEL"]
    assert [one.operation for one in await bucket.history("purged")] == ["PURGE"]
    await bucket.put("purged", b"again")
    assert (await bucket.get("purged")).value == b"again"


@pytest.mark.parametrize(("config", "pairs", "code", "text"), [
    ({}, SUB, 10111, "rollup not permitted"),
    ({"allow_rollup_hdrs": True}, ((b"Nats-Rollup", b"some"),), 10111, 'rollup value invalid: "some"'),
    ({}, ((b"Nats-TTL", b"5s"),), 10166, "per-message TTL is disabled"),
    ({"allow_msg_ttl": True}, ((b"Nats-TTL", b"soon"),), 10165, "invalid per-message TTL")])
async def test_headers_that_the_stream_refuses(broker: Inside, config: dict[str, object], pairs: Pairs, code: int,
                                               text: str) -> None:
    """Shows the errors that a publish gets; nothing is stored."""
    await broker.ok("STREAM.CREATE.S", {"name": "S", **config})
    answer = await adopt(broker, "S", [(b"S", b"", ()), (b"S", b"", pairs)])
    assert answer["error"]["err_code"] == code  # type: ignore[index]
    assert text in answer["error"]["description"]  # type: ignore[index]
    assert (await broker.ok("STREAM.INFO.S"))["state"]["messages"] == 0


async def test_headers_act_only_if_the_request_says_so(broker: Inside) -> None:
    """Shows that a writer refuses such rows by default, and other acting headers in any case; and a duplicate does not
    act."""
    await broker.ok("STREAM.CREATE.S", {"name": "S", "allow_rollup_hdrs": True})
    for acting, header in ((Acting.REFUSE, b"Nats-Rollup"), (Acting.APPLY, b"Nats-Expected-Last-Sequence")):
        with pytest.raises(RowRefused, match=header.decode()):
            RunWriter("$G", "S", 1, now_ns=0, acting=acting).add(b"S", b"", header_block.build([(header, b"sub")]))
    js = broker.client.jetstream()
    await js.publish("S", b"1", headers={"Nats-Msg-Id": "1"})
    answer = await adopt(broker, "S", [(b"S", b"2", ((b"Nats-Msg-Id", b"1"), *SUB)), (b"S", b"3", ())])
    assert (answer["messages"], answer["duplicates"]) == (1, 1)
    assert [row[2] for row in await contents(broker, "S")] == [b"1", b"3"]


async def test_many_roll_ups(broker: Inside) -> None:
    """Shows as many subjects as one request may roll up, and one more refused; the loop is not held for long."""
    await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "allow_rollup_hdrs": True})
    names = [b"s.%d" % number for number in range(10_001)]
    await adopt(broker, "S", [(name, b"old", ()) for name in names], "old")
    answer = await adopt(broker, "S", [(name, b"", SUB) for name in names], "too many")
    assert "it rolls up 10001 subjects, and one request may roll up 10000" in str(answer["error"])
    answer = await adopt(broker, "S", [(name, b"new", SUB) for name in names[1:]], "many")
    state = (await broker.ok("STREAM.INFO.S"))["state"]
    assert (state["messages"], state["first_seq"], state["num_subjects"]) == (10_001, 1, 10_001)
    assert await asyncio.wait_for(broker.publish("s.0", b""), 30) == answer["last_seq"] + 1  # type: ignore[operator]
