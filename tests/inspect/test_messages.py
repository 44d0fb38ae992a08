"""The reader without a broker: it reads the published messages that were not removed, and nothing else, from
directory and memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from broker.inspect.messages import Message, Missing, read_messages
from broker.inspect.problems import Problem
from broker.inspect.shardview import NoStream
from broker.inspect.source import Source
from broker.inspect.survey import read_survey
from broker.inspect.verify import verify
from broker.storage.format.errors import Corrupt
from broker.storage.format.header import Position
from broker.storage.objectstore.base import ObjectStore
from broker.storage.objectstore.file import FileStore
from broker.storage.objectstore.memory import MemoryStore
from tests.inspect.stores import PATHS, Owner, filled


@pytest_asyncio.fixture(params=["memory", "directory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    store: ObjectStore = MemoryStore() if request.param == "memory" else FileStore(tmp_path / "store")
    yield store
    await store.close()


async def read(store: ObjectStore, stream: str, **how: object) -> list[Message]:
    return [message async for message in read_messages(store, stream, **how)]  # type: ignore[arg-type]


async def test_all_live_messages_are_read_while_the_broker_runs(store: ObjectStore) -> None:
    """Both streams are read as their owner knows them: byte for byte, headers apart, in order, without removed
    messages."""
    owner = await filled(store)
    for name, stream in owner.streams.items():
        assert await read(store, name) == list(stream.live.values())
        assert await read(store, f"$G/{name}") == list(stream.live.values())
        assert await read(store, f"{stream.stream_id:016x}") == list(stream.live.values())
    orders = owner.streams["ORDERS"]
    orders.publish(("ORDERS.eu.1", b"", b"one more"))
    await owner.log.persisted()
    assert (await read(store, "ORDERS"))[-1].data == b"one more"
    await owner.stop()
    assert await read(store, "ORDERS") == list(orders.live.values())


async def test_from_limit_and_subject(store: ObjectStore) -> None:
    """The options give the same result as a plain filter of all messages, at every edge of blocks and frames."""
    owner = await filled(store)
    rows = list(owner.streams["logs"].live.values())
    for first in (1, 451, 539, 540, 600, 601, 1200, 1201):
        for limit in (None, 0, 1, 90, 400):
            for subject in (None, b"logs.7", b"logs.*", b"other.>", b">"):
                wanted = [row for row in rows if row[0] >= first and subject in (None, b"logs.*", b">", row[1])]
                assert await read(store, "logs", first_seq=first, limit=limit, subject=subject) == wanted[:limit]
    await owner.kill()


async def test_a_stream_that_is_not_there(store: ObjectStore) -> None:
    """The error lists the existing streams."""
    owner = await filled(store)
    await owner.kill()
    with pytest.raises(NoStream, match=r"\$G/ORDERS, \$G/logs"):
        await read(store, "orders")


async def test_large_messages_and_many_blocks() -> None:
    """Messages larger than any frame or window are read, and many blocks are read ahead; the store is verified, too."""
    store = MemoryStore()
    owner = Owner(store)
    await owner.start()
    stream = await owner.stream("s")
    for i in range(80):
        size = 12_000_000 if i == 40 else 50 + i
        stream.publish(("s.a", b"", owner.rng.randbytes(size)), ("s.b", b"", b""))
        await owner.log.persisted()
    assert await read(store, "s") == list(stream.live.values())
    assert await read(store, "s", subject=b"s.b") == [row for row in stream.live.values() if row[1] == b"s.b"]
    assert [m.seq for m in await read(store, "s", limit=5, first_seq=80)] == [80, 81, 82, 83, 84]
    source = Source(store)
    survey = await read_survey(source)
    assert survey.problems + (await verify(source, survey)).problems == []
    await owner.kill()


async def test_damage_hides_no_more_than_itself() -> None:
    """A damaged frame raises, or is reported while all other messages are read; so is an object that is gone."""
    store = MemoryStore()
    owner = await filled(store)
    await owner.kill()
    rows = owner.streams["logs"].live
    key = PATHS.log(Position(1, 4))
    sound = store.objects[key]
    store.objects[key] = sound[:-1] + bytes([sound[-1] ^ 1])
    with pytest.raises(Corrupt, match=r"frame 3"):
        await read(store, "logs")
    problems: list[Problem] = []
    found = await read(store, "logs", faults=problems.append)
    assert found == [row for seq, row in rows.items() if not 561 <= seq <= 600]
    assert [(problem.object, problem.means) for problem in problems] == [
        (key, "messages 561 to 600 of stream $G/logs cannot be read")]

    del store.objects[key]
    with pytest.raises(Missing, match="messages 451 to 600"):
        await read(store, "logs")
    problems.clear()
    assert await read(store, "logs", faults=problems.append) == [row for seq, row in rows.items() if seq > 600]
    assert [problem.object for problem in problems] == [key]


async def test_blocks_that_are_deleted_while_they_are_read() -> None:
    """A reader that began with an older state continues with a newer one."""
    store = MemoryStore()
    owner = await filled(store)
    logs = owner.streams["logs"]
    messages = read_messages(store, "logs", limit=10_000)
    first = await anext(messages)
    assert first.seq == 451
    logs.remove(451, 1100)
    owner.streams["ORDERS"].remove(1, 8)
    for _ in range(6):
        logs.publish(("logs.x", b"", b"later"))
        await owner.log.persisted()
        await owner.round()
        await asyncio.sleep(0.01)
    assert PATHS.log(Position(1, 5)) not in store.objects
    rest = [message async for message in messages]
    tail = [row for seq, row in logs.live.items() if seq > 1100]
    assert rest[-len(tail):] == tail
    assert [message.seq for message in rest] == sorted({message.seq for message in rest})
    await owner.kill()
