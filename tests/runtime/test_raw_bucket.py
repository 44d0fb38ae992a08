"""The raw bytes of a bucket and of a broker's cache directory, after each kind of operation: encrypted, none of them
has anything that a user stored; plain, the same search finds each of it, and after an erasure no more.

Whatever looks like a zstd frame is decompressed, too, so compression hides nothing.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from botocore.session import Session
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig, StreamSource

from broker.cli import run
from broker.runtime.embedded import Broker
from broker.storage.format.sealing import KnownKeysCodec
from broker.storage.format.section import SECTIONS
from broker.storage.objectstore.url import open_store
from tests.jetstream.inbox.staging import request, stage
from tests.real.s3 import S3Server
from tests.runtime.test_encryption import other_process  # noqa: F401 (a fixture)
from tests.runtime.test_erasure import SOON, api, finished, uncompressed

pytestmark = [pytest.mark.shows("auth.encryption"), pytest.mark.soak, pytest.mark.timeout(600)]

OLD, NEW = "the first key of this test", "the second key of this test"
MARK = b"pl4in"


class Raw:
    """Everything below a bucket and a directory, read without jetblock."""

    def __init__(self, server: S3Server, bucket: str, caches: Path) -> None:
        self._s3: Any = Session().create_client("s3", endpoint_url=server.env["AWS_ENDPOINT_URL"],
                                                region_name="us-east-1")
        self._bucket = bucket
        self._caches = caches

    def with_text(self, text: bytes) -> list[str]:
        """Return the keys and files that have a text in their names or contents."""
        return [name for name, data in self._all().items() if text in name.encode() or text in uncompressed(data)]

    def _all(self) -> dict[str, bytes]:
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self._bucket)
        found = {one["Key"]: self._s3.get_object(Bucket=self._bucket, Key=one["Key"])["Body"].read()
                 for page in pages for one in page.get("Contents", ())}
        found |= {str(path): path.read_bytes() for path in self._caches.rglob("*") if path.is_file()}
        assert len(found) > 5
        return found


def _shard(broker: Broker) -> Any:
    assert broker._app is not None
    assert broker._app.shard_owner is not None
    shard = broker._app.shard_owner.shard
    assert shard is not None
    return shard


async def _publish(client: Any, js: Any) -> None:
    await js.add_stream(StreamConfig(name="S", subjects=["s.>"], description="pl4in-1-description",
                                     metadata={"k": "pl4in-1-metadata"}))
    for i in range(30):
        await js.publish(f"s.pl4in-1-subject.{i}", b"pl4in-1-payload %d" % i + b"." * 300,
                         headers={"H": "pl4in-1-header", "Nats-Msg-Id": f"pl4in-1-id-{i}"})


async def _batch(client: Any, js: Any) -> None:
    await api(client, "STREAM.CREATE.A", {"name": "A", "subjects": ["a"], "allow_atomic": True})
    for i in range(1, 6):
        headers = {"Nats-Batch-Id": "pl4in-2-batch", "Nats-Batch-Sequence": str(i)}
        if i == 5:
            headers["Nats-Batch-Commit"] = "1"
        answer = json.loads((await client.request("a", b"pl4in-2-payload %d" % i, headers=headers)).data or b"{}")
        assert "error" not in answer


async def _buckets(client: Any, js: Any) -> None:
    kv = await js.create_key_value(bucket="B", history=3)
    for i in range(9):
        await kv.put(f"pl4in-3-key.{i % 3}", b"pl4in-3-value %d" % i)
    await kv.delete("pl4in-3-key.1")
    await (await js.create_object_store("O")).put("pl4in-3-object", b"pl4in-3-chunk" * 10_000)


async def _consume(client: Any, js: Any) -> None:
    await js.add_consumer("S", ConsumerConfig(durable_name="pl4in-4-consumer", description="pl4in-4-description",
                                              filter_subject="s.>", ack_policy=AckPolicy.EXPLICIT))
    subscription = await js.pull_subscribe_bind("pl4in-4-consumer", "S")
    for message in await subscription.fetch(10):
        await message.ack_sync()


async def _copy(client: Any, js: Any) -> None:
    await js.add_stream(StreamConfig(name="M", mirror=StreamSource(name="S"), description="pl4in-5-mirror"))
    await js.add_stream(StreamConfig(name="R", sources=[StreamSource(name="S")], description="pl4in-5-source"))
    for name in ("M", "R"):
        while (await js.stream_info(name)).state.messages < 30:  # noqa: ASYNC110 (a copy reports no event)
            await asyncio.sleep(0.02)


async def _remove(client: Any, js: Any) -> None:
    await api(client, "STREAM.MSG.DELETE.S", {"seq": 3, "no_erase": True})
    await api(client, "STREAM.PURGE.S", {"filter": "s.pl4in-1-subject.4"})
    await js.publish("s.x", b"pl4in-6-payload")


@asynccontextmanager
async def _running(url: str, caches: Path, key: str, **more: Any) -> AsyncIterator[tuple[Broker, Any, Any]]:
    settings = SOON | {"storage.cache_directory": str(caches), "storage.compaction_cpu": 100, **more}
    async with Broker(url, settings=settings | ({"storage.key": key} if key else {})) as broker:
        client = await nats.connect(broker.url)
        yield broker, client, client.jetstream()
        await client.close()


@pytest.mark.parametrize("encrypted", [True, False], ids=["encrypted", "plain"])
async def test_after_each_operation(tmp_path: Path, minio: S3Server, monkeypatch: pytest.MonkeyPatch,
                                    other_process: Callable[[], None], encrypted: bool) -> None:  # noqa: F811
    """Shows that no object, key or cached part has a user's text after each operation; and that the same search finds
    the texts of each in a plain store, where those of erased messages are found no more."""
    for name, value in minio.env.items():
        monkeypatch.setenv(name, value)
    key = OLD if encrypted else ""
    bucket, caches = f"raw-{secrets.token_hex(4)}", tmp_path / "caches"
    minio.make_bucket(bucket)
    url = f"s3://{bucket}/store"
    raw = Raw(minio, bucket, caches)

    async def look(what: str, mark: bytes = MARK) -> None:
        found = await asyncio.to_thread(raw.with_text, mark)
        assert (found == []) == encrypted, (what, mark, found)

    async with _running(url, caches, key) as (broker, client, js):
        shard = _shard(broker)
        for number, step in enumerate((_publish, _batch, _buckets, _consume, _copy, _remove), 1):
            await step(client, js)
            await shard.log.persisted()
            await look(step.__name__, b"pl4in-%d" % number)
        store = open_store(url)
        writer = await stage(store, shard.state, "S", [
            (b"s.pl4in-7-subject", b"pl4in-7-payload %d" % i, b"pl4in-7-id-%d" % i) for i in range(50)],
            codec=KnownKeysCodec() if encrypted else SECTIONS)
        await look("staged", b"pl4in-7")
        before = (await js.stream_info("S")).state.last_seq
        await request(store, writer, "raw")
        await look("requested", b"pl4in-7")
        await store.close()
        while (await js.stream_info("S")).state.last_seq < before + 50:  # noqa: ASYNC110 (adoption reports no event)
            await asyncio.sleep(0.02)
        await shard.checkpointer.cut()
        await look("adopted and cut", b"pl4in-7")
        await shard.compactor.work(quiet=True)
        for _ in range(2):
            await js.publish("s.x", b"pl4in-6-payload")
            await shard.log.persisted()
            await shard.checkpointer.cut()
        await look("compacted")
        answer = await api(client, "JETBLOCK.ERASE.S", {"subjects": ["s.pl4in-1-subject.7", "s.pl4in-7-subject"]})
        await finished(client, "S", answer["erasure"])
        for text in (b"pl4in-7", b"pl4in-1-payload 7.", b"pl4in-1-subject.7", b"pl4in-1-id-7"):
            assert await asyncio.to_thread(raw.with_text, text) == [], text
        await look("erased")
    await look("stopped")
    other_process()
    async with _running(url, caches, NEW if encrypted else "", **({"storage.prev_key": OLD} if encrypted else {})
                        ) as (broker, client, js):
        assert (await js.get_msg("S", 9)).data.startswith(b"pl4in-1-payload 8.")
        assert (await (await js.key_value("B")).get("pl4in-3-key.2")).value == b"pl4in-3-value 8"
        assert (await (await js.object_store("O")).get("pl4in-3-object")).data == b"pl4in-3-chunk" * 10_000
        await look("given another key")


def test_copies_of_the_store(tmp_path: Path, minio: S3Server, monkeypatch: pytest.MonkeyPatch,
                             other_process: Callable[[], None]) -> None:  # noqa: F811
    """Shows the same for backups, copies and restored stores."""
    for name, value in {**minio.env, "JETBLOCK_KEY": OLD}.items():
        monkeypatch.setenv(name, value)
    bucket, caches = f"raw-{secrets.token_hex(4)}", tmp_path / "caches"
    minio.make_bucket(bucket)
    raw = Raw(minio, bucket, caches)

    async def fill() -> None:
        async with _running(f"s3://{bucket}/store", caches, OLD) as (_, client, js):
            await _publish(client, js)
            await _buckets(client, js)

    asyncio.run(fill())
    for command in (["backup", f"s3://{bucket}/store", f"s3://{bucket}/backups"],
                    ["copy", f"s3://{bucket}/store", f"s3://{bucket}/copied"],
                    ["restore", f"s3://{bucket}/backups", f"s3://{bucket}/restored"],
                    ["inspect", f"s3://{bucket}/restored", "--verify"]):
        other_process()
        assert run(command) == 0, command
        assert raw.with_text(MARK) == [], command
