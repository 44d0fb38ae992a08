"""The cache directory on a real bucket: streams larger than the cache in memory are got once, and nothing depends on
it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from nats.js.api import ConsumerConfig, StreamConfig

from tests.adversity.clients import connect
from tests.harness import BrokerProcess
from tests.real.s3 import S3Server

COUNT, SIZE = 200, 50_000


async def read(broker: BrokerProcess) -> tuple[int, int]:
    """Read the whole stream by a new consumer. Returns: the number of its GETs, and the hits of the cache directory so
    far."""
    before = (await broker.monitor("/varz"))["jetblock"]["store"]["get"]["count"]
    nc = await connect(broker.url)
    sub = await nc.jetstream().subscribe("big.>", ordered_consumer=True, config=ConsumerConfig())
    for i in range(COUNT):
        msg = await sub.next_msg(timeout=30)
        assert msg.data[:8] == b"%08d" % i
        assert len(msg.data) == SIZE
    await nc.close()
    figures = (await broker.monitor("/varz"))["jetblock"]
    return figures["store"]["get"]["count"] - before, figures["cache"]["directory"]["hits"]


async def test_a_stream_is_got_once(minio: S3Server, tmp_path: Path) -> None:
    """The second reader of 10 MB costs no GET, with next to no memory. The third is unaffected by the folder's
    deletion. After kill -9 the cache is empty, has left nothing on the disk, and everything is read again."""
    folder = tmp_path / "cache"
    environ = {**minio.env, "JETBLOCK_SERVER_NAME": "one", "JETBLOCK_CACHE_BYTES": "1MiB",
               "JETBLOCK_COMPACTION": "false",
               "JETBLOCK_CACHE_DIRECTORY": str(folder), "JETBLOCK_CACHE_DIRECTORY_BYTES": "256MiB"}
    async with BrokerProcess("--store", minio.new_url(), environ=environ) as broker:
        nc = await connect(broker.url)
        js = nc.jetstream()
        await js.add_stream(StreamConfig(name="BIG", subjects=["big.>"]))
        for i in range(COUNT):
            await js.publish("big.x", b"%08d" % i + os.urandom(SIZE - 8))
        await nc.close()
        first, _ = await read(broker)
        second, hits = await read(broker)
        assert first > 10
        assert hits > 10
        assert second <= first // 10
        assert list(folder.iterdir()) == []
        folder.rmdir()
        third, _ = await read(broker)
        assert third <= first // 10
        await broker.kill()
        await broker.start()
        again, _ = await read(broker)
        assert again > 10
        assert (await broker.monitor("/varz"))["jetblock"]["cache"]["directory"]["off"] == ""


@pytest.mark.parametrize(("kind", "error"), [
    ("directory", "jetblock.cache_directory keeps what is read from a bucket, and the store is file://"),
    ("folder", "jetblock.cache_directory: no file can be made in "),
])
async def test_an_unusable_cache_directory_is_refused(kind: str, error: str, tmp_path: Path) -> None:
    """The broker does not start on a store that is a directory, or if the folder cannot be made; the error names the
    setting."""
    (tmp_path / "file").write_text("")
    url = f"file://{tmp_path / 'store'}" if kind == "directory" else "s3://bucket"
    environ = {"JETBLOCK_CACHE_DIRECTORY": str(tmp_path / ("cache" if kind == "directory" else "file")),
               "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    broker = BrokerProcess("--store", url, environ=environ)
    await broker.start(ready=False)
    assert await broker.wait_end() == 1
    assert error in broker.tail()
    await broker.close()
