"""Consumers and messages that are sequenced and wait to be stored: nobody may receive them, and they count as pending.

A publisher that waits for no PubAck, but for the answer to a ping, knows that the server has its messages. Then every
answer must count them, as nats-server's do (nearly all: its consumers learn of a message a moment later).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
import pytest_asyncio
from nats.aio.msg import Msg

from broker.jetstream.consumer.cursor import cursor
from broker.storage.objectstore.memory import MemoryStore
from tests.jetstream.in_process import Inside
from tests.server.raw_client import Wire

SECONDS = 30.0


class SlowStore(MemoryStore):
    """A store whose puts wait while ``open`` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.open = asyncio.Event()
        self.open.set()

    async def put(self, key: str, data: Any) -> None:
        await self.open.wait()
        await super().put(key, data)


class Held(Inside):
    """A broker whose store can be held up."""

    def __init__(self) -> None:
        super().__init__()
        self.store: SlowStore = SlowStore()

    async def send(self, subjects: Iterable[str]) -> None:
        """Publish without waiting until the messages are stored."""
        for subject in subjects:
            await self.client.publish(subject, b"x")
        await self.client.flush()

    async def pull(  # type: ignore[override]
            self, names: str, *, prefix: str = "$JS.API.", **request: Any) -> asyncio.Queue[Msg]:
        """Send a pull request; return a queue of its answers."""
        inbox, answers = self.client.new_inbox(), asyncio.Queue[Msg]()

        async def queue_answer(msg: Msg) -> None:
            answers.put_nowait(msg)

        await self.client.subscribe(inbox, cb=queue_answer)
        await self.client.publish(f"{prefix}CONSUMER.MSG.NEXT.{names}", json.dumps(request).encode(), reply=inbox)
        await self.client.flush()
        return answers


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[Held]:
    """Yield a broker with a stream of ``a.>``, a consumer of all and one of ``a.2``; its store is held up."""
    async with Held() as held:
        await held.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["a.>"]})
        for name, filters in (("all", {}), ("two", {"filter_subject": "a.2"})):
            await held.ok(f"CONSUMER.CREATE.S.{name}" + (".a.2" if filters else ""), {
                "stream_name": "S", "config": {"name": name, "ack_policy": "explicit",
                                               "inactive_threshold": 10**12} | filters})
        held.store.open.clear()
        yield held
        held.store.open.set()


async def text(answers: asyncio.Queue[Msg]) -> str:
    """Return the next answer: a message's subject, or a status."""
    msg = await asyncio.wait_for(answers.get(), SECONDS)
    return (msg.headers or {}).get("Status") or msg.subject


@pytest.mark.parametrize("seqs_max", [1 << 20, 1], ids=["counted", "too many: after they are stored"])
async def test_info_and_list_count_what_waits_to_be_stored(broker: Held, monkeypatch: pytest.MonkeyPatch,
                                                          seqs_max: int) -> None:
    """Three messages are sequenced and the store is held up: the answers, which wait for it, have them as pending."""
    monkeypatch.setattr(cursor, "_TAIL_MAX", seqs_max)
    await broker.send(["a.1", "a.2", "a.2"])
    asked = [asyncio.ensure_future(broker.ok(subject, seconds=SECONDS))
             for subject in ("CONSUMER.INFO.S.all", "CONSUMER.INFO.S.two", "CONSUMER.LIST.S")]
    await broker.client.flush()
    assert not any(one.done() for one in asked)
    broker.store.open.set()
    everything, two, listed = await asyncio.gather(*asked)
    assert (everything["num_pending"], two["num_pending"]) == (3, 2)
    assert [one["num_pending"] for one in listed["consumers"]] == [3, 2]
    # Nothing is counted twice when it is stored.
    assert (await broker.ok("CONSUMER.INFO.S.two"))["num_pending"] == 2


async def test_removed_before_it_is_stored(broker: Held) -> None:
    """A message that leaves the stream before it was stored is not pending."""
    await broker.send(["a.1", "a.2", "a.2"])
    removed = asyncio.ensure_future(broker.ok("STREAM.MSG.DELETE.S", {"seq": 2}, seconds=SECONDS))
    asked = [asyncio.ensure_future(broker.ok(f"CONSUMER.INFO.S.{name}", seconds=SECONDS)) for name in ("all", "two")]
    await broker.client.flush()
    broker.store.open.set()
    await removed
    assert [one["num_pending"] for one in await asyncio.gather(*asked)] == [2, 1]


@pytest.mark.parametrize("tail_max", [4096, 1], ids=["counted", "too many to count"])
async def test_no_wait_gets_what_was_published_before(broker: Held, monkeypatch: pytest.MonkeyPatch,
                                                     tail_max: int) -> None:
    """A one-shot waits for the store if a message will come, and gets all that were published before it."""
    monkeypatch.setattr(cursor, "_TAIL_MAX_EACH", tail_max)
    await broker.send(["a.1", "a.2"])
    answers = await broker.pull("S.two", batch=5, no_wait=True)
    both = await broker.pull("S.all", batch=2, no_wait=True)
    assert answers.empty()
    assert both.empty()
    broker.store.open.set()
    assert [await text(answers), await text(answers)] == ["a.2", "404"]
    assert [await text(both), await text(both)] == ["a.1", "a.2"]


@pytest.mark.parametrize("removal", [("STREAM.PURGE.S", b""), ("STREAM.MSG.DELETE.S", {"seq": 1})],
                         ids=["purged", "deleted"])
async def test_no_wait_ends_where_the_message_is_removed(broker: Held, removal: tuple[str, Any]) -> None:
    """The message that a one-shot waits for leaves the stream before it is stored: there is none."""
    await broker.send(["a.2"])
    answers = await broker.pull("S.two", batch=1, no_wait=True)
    removed = asyncio.ensure_future(broker.ok(*removal, seconds=SECONDS))
    await broker.client.flush()
    assert answers.empty()
    broker.store.open.set()
    await removed
    assert await text(answers) == "404"


async def test_streams_in_memory(broker: Held) -> None:
    """Shows that messages in memory, whether they wait or not, are counted the same way."""
    broker.store.open.set()
    await broker.ok("STREAM.CREATE.M", {"name": "M", "subjects": ["m"], "storage": "memory"})
    await broker.ok("CONSUMER.CREATE.M.c", {"stream_name": "M", "config": {"name": "c", "ack_policy": "none",
                                                                          "inactive_threshold": 10**12}})
    broker.store.open.clear()
    await broker.send(["a.1", "m"])
    answers = await broker.pull("M.c", batch=2, no_wait=True)
    broker.store.open.set()
    assert [await text(answers), await text(answers)] == ["m", "404"]


async def test_no_wait_does_not_wait_for_others_messages(broker: Held) -> None:
    """A one-shot ends at once if none of the messages that wait to be stored matches."""
    await broker.send(["a.1"])
    assert await text(await broker.pull("S.two", batch=1, no_wait=True)) == "404"


async def test_a_new_consumer_delivers_once_it_is_stored(broker: Held) -> None:
    """The answer to the request is sent first, then messages; a client may not expect any before."""
    broker.store.open.set()
    for _ in range(3):
        await broker.publish("a.1")
    broker.store.open.clear()
    config = {"name": "p", "ack_policy": "none", "deliver_subject": "delivered", "inactive_threshold": 10**12}
    body = json.dumps({"stream_name": "S", "config": config}).encode()
    async with Wire(broker.server.port) as wire:
        wire.send(b'CONNECT {"verbose":false}\r\nSUB reply 1\r\nSUB delivered 2\r\n'
                  b"PUB $JS.API.CONSUMER.CREATE.S.p reply %d\r\n%b\r\n" % (len(body), body))
        for _ in range(20):
            assert await wire.settled() == b"PONG\r\n"
        broker.store.open.set()
        received = b"".join([await wire.until(b"MSG a.1 2 ") for _ in range(3)])
    assert received.startswith(b"MSG reply 1 ")
    assert b'"num_pending":3' in received
