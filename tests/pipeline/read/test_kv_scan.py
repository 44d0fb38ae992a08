"""A slow scan of a key-value bucket whose keys are put repeatedly meanwhile: every key, or an error."""

from __future__ import annotations

import asyncio

import pytest

from broker.pipeline.errors import DataLoss
from broker.pipeline.plan.options import Options
from broker.pipeline.plan.schema import requested
from broker.pipeline.read import query
from broker.storage.objectstore.memory import MemoryStore
from tests.pipeline.stores import MemoryObjectClient, Owner, Stream

KEYS = 1000
PARTS = 5
SCHEMA = requested("messages", [("subject", "string"), ("data", "binary")])


async def bucket(store: MemoryStore, reader_grace_ns: int) -> tuple[Owner, Stream]:
    """Make a bucket with history 1 in which each key was put once."""
    owner = Owner(store)
    owner.settings.sweep_grace_ns = reader_grace_ns
    await owner.start()
    stream = await owner.make("KV", config={"max_msgs_per_subject": 1})
    await put_all(owner, stream, 0)
    await owner.round()
    return owner, stream


async def put_all(owner: Owner, stream: Stream, value: int) -> None:
    """Put each key, a block of 50 at a time; history 1 removes the previous value."""
    for first in range(0, KEYS, 50):
        keys = [b"KV.%d" % key for key in range(first, first + 50)]
        stream.append([(key, b"", b"%d" % value) for key in keys])
        seqs = range(stream.last_seq - KEYS - 49, stream.last_seq - KEYS + 1)
        if seqs[0] > 0:
            stream.remove(seqs[0], seqs[-1])
        await owner.log.persisted()


async def slow_scan(owner: Owner, stream: Stream, swept: bool, **given: str) -> dict[str, bytes]:
    """Read a plan of five partitions; between them every key is put again, and a checkpoint cut, four times."""
    options = Options.parse({"store": "s3://bucket/there", "stream": "KV", "targetPartitionBytes": "1", **given})
    parts = query.partitions(options, options.selection(), SCHEMA)
    assert len(parts) == KEYS // 50
    rows: dict[str, bytes] = {}
    value = 0
    for turn in range(PARTS):
        for part in parts[turn::PARTS]:
            for batch in query.read(options, options.selection(), SCHEMA, part):
                rows |= zip(batch["subject"].to_pylist(), batch["data"].to_pylist(), strict=True)
        for _ in range(4):
            value += 1
            await put_all(owner, stream, value)
            await owner.round()
        objects = owner.store.objects  # type: ignore[attr-defined]
        async with asyncio.timeout(30):
            while swept and any(task.key in objects for part in parts for task in part.tasks):
                await owner.round()  # the sweeper has turns meanwhile
    return rows


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    made = MemoryStore()
    monkeypatch.setattr(query, "open_object_client", lambda url: MemoryObjectClient(made))
    return made


async def test_within_the_grace_every_key_is_read(store: MemoryStore) -> None:
    """Each key has its value at the time of the plan, though all were put again twenty times; a second plan with the
    same ``asOf`` reads the same."""
    owner, stream = await bucket(store, 600 * 10**9)
    position = query.position({"store": "s3://bucket/there", "stream": "KV"})
    for _ in range(2):
        rows = await slow_scan(owner, stream, False, asOf=position)
        assert rows == {f"KV.{key}": b"0" for key in range(KEYS)}
    await owner.kill()


async def test_past_the_grace_a_query_fails(store: MemoryStore) -> None:
    """The query does not leave out the keys whose objects were deleted, unless ``failOnDataLoss=false``."""
    owner, stream = await bucket(store, 0)
    with pytest.raises(DataLoss, match=r"stream \$G/KV: messages between .* reader_grace"):
        await slow_scan(owner, stream, True)
    rows = await slow_scan(owner, stream, True, failOnDataLoss="false")
    assert 0 < len(rows) < KEYS
    await owner.kill()
