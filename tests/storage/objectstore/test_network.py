"""S3Store on a real MinIO behind a failing network: the caller's result, and the effect on the store."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest

from broker.base.clock import SystemClock
from broker.storage.objectstore import PreconditionFailed, Transient
from broker.storage.objectstore.retrying import RetryingStore
from broker.storage.objectstore.s3 import S3Store
from tests.real.proxy import TcpProxy
from tests.real.s3 import S3Server


@pytest.fixture
async def proxy(minio: S3Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TcpProxy]:
    for name, value in minio.env.items():
        monkeypatch.setenv(name, value)
    async with TcpProxy.to(minio.endpoint) as proxy:
        yield proxy


def store_behind(proxy: TcpProxy, minio: S3Server, timeout_ns: int = 30_000_000_000, url: str = "") -> S3Store:
    bucket, _, prefix = (url or minio.new_url()).removeprefix("s3://").partition("/")
    return S3Store(bucket, prefix, endpoint=proxy.endpoint, put_timeout_ns=timeout_ns, get_timeout_ns=timeout_ns)


async def test_a_put_without_an_answer_took_effect(proxy: TcpProxy, minio: S3Server) -> None:
    """The network swallows the answer: the put raises Transient after the time-out, and the object exists."""
    url = minio.new_url()
    patient = store_behind(proxy, minio, url=url)
    await patient.put("first", [b"x"])
    for seconds in (1, 4, 16):  # a busy machine may take that long for the request itself
        store = store_behind(proxy, minio, seconds * 10**9, url)
        with contextlib.suppress(Transient):
            await store.get("first")
        key = f"k{seconds}"
        proxy.swallow()
        with pytest.raises(Transient, match="no answer"):
            await store.put(key, [b"ours"])
        proxy.resume()
        await store.close()
        try:
            await patient.put(key, [b"ours"])
        except PreconditionFailed:
            break
    else:
        pytest.fail("no put has landed")
    assert await patient.get(key) == b"ours"
    await patient.close()


async def test_cut_connections_are_retried(proxy: TcpProxy, minio: S3Server) -> None:
    """Connections are reset in the middle of puts, and refused for a while: all puts of the retrying store succeed,
    whole."""
    store = RetryingStore(store_behind(proxy, minio), clock=SystemClock(), rng=random.Random(1), pause_ns=10_000_000)
    data = random.Random(1).randbytes(1 << 20)

    async def put(i: int) -> None:
        try:
            await store.put(f"k{i}", [data, b"%d" % i])
        except PreconditionFailed:
            pass  # an earlier try of ours

    puts = [asyncio.create_task(put(i)) for i in range(12)]
    await proxy.passed(3 << 20)
    proxy.cut()
    await proxy.passed(6 << 20)
    proxy.refuse()
    await asyncio.sleep(0.1)
    proxy.resume()
    await asyncio.gather(*puts)
    for i in range(12):
        assert await store.get(f"k{i}") == data + b"%d" % i
    assert store.retries > 0
    await store.close()


async def test_a_stalled_network_delays_and_loses_nothing(proxy: TcpProxy, minio: S3Server) -> None:
    """Bytes held for less than the time-out arrive: no error, no retry."""
    store = store_behind(proxy, minio)
    await store.put("k", [b"x"])
    proxy.stall()
    get = asyncio.create_task(store.get("k"))
    await asyncio.sleep(0.2)
    assert not get.done()
    proxy.resume()
    assert await get == b"x"
    await store.close()
