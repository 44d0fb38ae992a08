"""The views ``kv`` and ``objects``, compared with what nats-py says of the same buckets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import KeyValueConfig

import jetblock
from broker.pipeline.errors import BadOption
from tests.pipeline.published import broker_on


async def read(url: str, stream: str, **options: Any) -> list[dict[str, Any]]:
    return await asyncio.to_thread(lambda: jetblock.scan(url, stream, **options).read_all().to_pylist())


@pytest.mark.parametrize("history", [1, 5])
async def test_entries(tmp_path: Path, history: int) -> None:
    """Key, value, revision, operation and time of the latest entries, and of all, are those of nats-py; keys have
    dots."""
    url = f"file://{tmp_path}/store"
    async with broker_on(url) as (_, nc):
        js = nc.jetstream()
        kv = await js.create_key_value(KeyValueConfig(bucket="B", history=history))
        for n in range(60):
            await kv.put(f"key.{n % 20}", b"%d" % n)
        await kv.delete("key.3")
        await kv.purge("key.4")
        await kv.put("key.5", b"last")
        expected = {}
        for n in range(20):
            [*_, entry] = await kv.history(f"key.{n}")
            expected[entry.key] = (entry.value or b"", entry.revision, entry.operation or "PUT")
        every = {(entry.key, entry.revision) for n in range(20) for entry in await kv.history(f"key.{n}")}
        assert expected["key.3"][2] == "DEL"
        assert expected["key.4"][2] == "PURGE"
        latest = await read(url, "KV_B", view="kv")
        assert {row["key"]: (row["value"], row["revision"], row["operation"]) for row in latest} == expected
        assert len(latest) == 20
        assert {(row["key"], row["revision"]) for row in await read(url, "KV_B", view="kv", history="all")} == every
        stored = await js.get_msg("KV_B", latest[0]["revision"])
        assert latest[0]["created"].replace(microsecond=0) == stored.time.replace(microsecond=0)
        some = await read(url, "KV_*", view="kv", columns=["stream", "key"], targetPartitionBytes=1)
        assert [tuple(row.values()) for row in some] == [("KV_B", row["key"]) for row in latest]
        with pytest.raises(BadOption, match="option history has no meaning for view=messages"):
            await read(url, "KV_B", history="all")


async def test_objects(tmp_path: Path) -> None:
    """Name, size, chunks, digest and description are those of nats-py, also of a deleted object and of one with an
    empty body; chunks are no rows."""
    url = f"file://{tmp_path}/store"
    async with broker_on(url) as (_, nc):
        store = await nc.jetstream().create_object_store("B")
        for name, data in (("a/b.txt", b"text"), ("ü", b"x" * 300_000), ("empty", b""), ("gone", b"1")):
            await store.put(name, data)
        await store.put("a/b.txt", b"again")
        await store.delete("gone")
        expected = {info.name: (info.size, info.chunks, info.digest, bool(info.deleted), info.nuid)
                    for info in await store.list(ignore_deletes=False)}
        rows = await read(url, "OBJ_B", view="objects")
        assert {row["name"]: (row["size"], row["chunks"], row["digest"], row["deleted"], row["nuid"])
                for row in rows} == expected
        assert len(rows) == len(expected) >= 3
        assert all(row["modified"] is not None for row in rows)
