"""A stream whose block cannot be stored goes offline alone, whatever the cause, and no client gets a wrong answer.

The fault is injected at each place where it can occur: the stream's outcome, the columns of its block, the encoded
core. Another stream publishes into the same segments. A restart restores each stream as of its last good block.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from broker.jetstream.stream.stream import Stream
from broker.storage.log import putter, writer
from broker.storage.log.memory_log import MemoryLog
from tests.jetstream.in_process import Inside

pytestmark = pytest.mark.asyncio

BIG = b"x" * 40_000
"""A payload too large for a small block."""


def _plant(where: str, patch: pytest.MonkeyPatch, ids: set[int]) -> None:
    """Make blocks of streams in ``ids`` fail at the place ``where`` from now on."""
    def failing(real: Any, stream_id: Any) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            if stream_id(*args) in ids:
                raise OverflowError("planted")
            return real(*args, **named)

        return call

    if where == "sealing":
        patch.setattr(Stream, "sealing", failing(Stream.sealing, lambda stream, block: stream.stream_id))
    elif where == "seal_block":
        patch.setattr(putter, "seal_block",
                      failing(putter.seal_block, lambda block, position: block.stream_id))  # type: ignore[attr-defined]
    elif where == "encode_core":
        patch.setattr(writer, "encode_core",
                      failing(writer.encode_core, lambda core, *_: core.stream_id))  # type: ignore[attr-defined]
    elif where == "encode_small":
        patch.setattr(writer, "_encode_small", failing(writer._encode_small, lambda block, *_: block.stream_id))
    else:
        patch.setattr(Stream, "persisted", failing(Stream.persisted, lambda stream, block: stream.stream_id))


async def _publish(client: Client, subject: str, count: int, body: bytes, *,
                   silent: bool = False) -> list[asyncio.Future[Any]]:
    """Publishes and their answers. ``silent``: there may be none."""
    return [asyncio.ensure_future(client.request(subject, body, timeout=0.5 if silent else 30)) for _ in range(count)]


def _seqs(answers: list[Any]) -> list[int]:
    return [json.loads(one.data)["seq"] for one in answers if not isinstance(one, BaseException)
            and b'"error"' not in one.data]


@pytest.mark.parametrize(("where", "body"), [
    ("sealing", b"x"), ("sealing", BIG), ("seal_block", BIG), ("encode_core", BIG), ("encode_small", b"x"),
    ("persisted", b"x"), ("persisted", BIG)], ids=lambda value: value if isinstance(value, str) else str(len(value)))
async def test_one_stream_fails(where: str, body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Inside() as broker:
        for name in "BAD", "GOOD":
            await broker.ok(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name.lower()}.>"]})
        await broker.ok("CONSUMER.CREATE.BAD.C", {"stream_name": "BAD", "config": {
            "durable_name": "C", "ack_policy": "explicit"}})
        assert [await broker.publish("bad.a", body) for _ in range(3)] == [1, 2, 3]
        bad = broker.js.accounts["$G"].streams["BAD"]
        await broker.log.drain()
        _plant(where, monkeypatch, {bad.stream_id})

        waiting = [*await _publish(broker.client, "bad.a", 5, body, silent=True),
                   *await _publish(broker.client, "good.a", 5, body)]
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        if where == "persisted":  # stored messages may be acknowledged
            assert set(_seqs(answers[:5])) <= set(range(4, 9))
        else:
            assert _seqs(answers[:5]) == []
        assert sorted(_seqs(answers[5:])) == [1, 2, 3, 4, 5]

        assert broker.log.failure is None
        for subject, request in (("STREAM.INFO.BAD", b""), ("CONSUMER.INFO.BAD.C", b""),
                                 ("STREAM.CREATE.BAD", {"name": "BAD"})):
            assert await broker.error(subject, request) == 10194
        listed = await broker.ok("STREAM.LIST")
        assert "planted" in listed["offline"]["BAD"]
        with pytest.raises(nats.errors.NoRespondersError):
            await broker.publish("bad.a")
        assert await broker.publish("good.a", body) == 6

        monkeypatch.undo()
        await broker.restart()
        info = await broker.ok("STREAM.INFO.BAD")
        stored = info["state"]["last_seq"]
        assert stored == info["state"]["messages"] >= (max(_seqs(answers[:5]), default=0) or 3)
        if where != "persisted":
            assert stored == 3
        assert (await broker.ok("CONSUMER.INFO.BAD.C"))["num_pending"] == stored
        assert await broker.publish("bad.a") == stored + 1
        assert (await broker.ok("STREAM.INFO.GOOD"))["state"]["messages"] == 6


async def test_pub_acks_gathered_for_several_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Single publishes to many streams share one call for their PubAcks: only those of the failed stream are left
    out."""
    async with Inside() as broker:
        names = [f"S{i}" for i in range(6)]
        for name in names:
            await broker.ok(f"STREAM.CREATE.{name}", {"name": name, "subjects": [name.lower()]})
        bad = broker.js.accounts["$G"].streams["S3"]
        _plant("sealing", monkeypatch, {bad.stream_id})
        waiting = [future for _ in range(3) for name in names
                   for future in await _publish(broker.client, name.lower(), 1, b"", silent=name == "S3")]
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        told = [json.loads(one.data)["stream"] for one in answers if not isinstance(one, BaseException)]
        assert sorted(told) == sorted(name for name in names if name != "S3" for _ in range(3))
        assert broker.log.waiting_bytes == 0


async def test_a_stream_in_memory_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Inside() as broker:
        for name in "BAD", "GOOD":
            await broker.ok(f"STREAM.CREATE.{name}", {"name": name, "subjects": [name.lower()], "storage": "memory"})
        bad = broker.js.accounts["$G"].streams["BAD"]
        assert isinstance(bad.log, MemoryLog)
        _plant("sealing", monkeypatch, {bad.stream_id})
        waiting = [*await _publish(broker.client, "bad", 3, b"", silent=True),
                   *await _publish(broker.client, "good", 3, b"")]
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert _seqs(answers[:3]) == []
        assert _seqs(answers[3:]) == [1, 2, 3]
        assert await broker.error("STREAM.INFO.BAD") == 10194
        assert await broker.publish("good") == 4


async def test_waiting_pulls_are_answered_when_the_stream_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Inside() as broker:
        await broker.ok("STREAM.CREATE.BAD", {"name": "BAD", "subjects": ["bad"]})
        await broker.ok("CONSUMER.CREATE.BAD.C", {"stream_name": "BAD", "config": {
            "durable_name": "C", "ack_policy": "explicit"}})
        inbox = await broker.client.subscribe(broker.client.new_inbox())
        await broker.client.publish("$JS.API.CONSUMER.MSG.NEXT.BAD.C", b'{"expires": 5000000000}', reply=inbox.subject)
        await broker.client.flush()
        account = broker.js.accounts["$G"]
        _plant("sealing", monkeypatch, {account.streams["BAD"].stream_id})
        await broker.client.publish("bad", b"")
        told = await inbox.next_msg(timeout=30)
        assert "BAD" in account.offline
        assert told.headers is not None
        assert told.headers["Status"] == "409"


async def test_waiting_requests_are_answered_when_the_stream_fails() -> None:
    """A publish queued for the stream, and those behind it, are answered; none counts as waiting forever."""
    async with Inside() as broker:
        await broker.ok("STREAM.CREATE.BAD", {"name": "BAD", "subjects": ["bad"]})
        account = broker.js.accounts["$G"]
        bad = account.streams["BAD"]
        bad.queue.begin()  # a publish waits for the store
        subjects = ["STREAM.PURGE.BAD", "STREAM.INFO.BAD", "CONSUMER.NAMES.BAD"]
        waiting = [asyncio.ensure_future(broker.error(subject)) for subject in subjects]
        await broker.client.flush()
        async with asyncio.timeout(30):
            while broker.js.apis["$G"]._waiting.count < 3:  # noqa: ASYNC110  # it is the broker's
                await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        assert broker.js.apis["$G"]._waiting.count == 3
        bad.failed(OverflowError("planted"))
        assert await asyncio.gather(*waiting) == [10194] * 3
        assert broker.js.apis["$G"]._waiting.count == 0
