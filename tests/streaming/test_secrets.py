"""Channels on an encrypted store, and erasure of a channel's messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.cli import run
from tests.harness import BrokerProcess
from tests.key_ring import forget_keys
from tests.runtime.test_erasure import api, files_with, finished
from tests.streaming.stan_client import FIRST, Delivery, StanClient

pytestmark = pytest.mark.shows("auth.erasure")

KEY = "the master key of these tests"
STREAM = "STAN_pl4in:orders"
TEXTS = [b"pl4in-payload", b"pl4in.orders", b"pl4in:orders", b"pl4in-reply", b"pl4in-client", b"pl4in-durable",
         b"pl4in-queue"]


def environ(key: str) -> dict[str, str]:
    return {"JETBLOCK_ERASE_DELAY": "10ms", "JETBLOCK_READER_GRACE": "0s", **({"JETBLOCK_KEY": key} if key else {})}


@pytest.mark.parametrize("key", [KEY, ""], ids=["encrypted", "plain"])
def test_channels(tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch,
                  capsys: pytest.CaptureFixture[str]) -> None:
    """Shows that no file of an encrypted store has a message, a channel, a client or a durable, also after a kill;
    that a durable goes on; and that an erased message leaves the channel and the store, as the report proves later."""
    store, report = tmp_path / "store", tmp_path / "report.json"
    forget_keys(monkeypatch)
    monkeypatch.delenv("JETBLOCK_KEY", raising=False)

    def look() -> None:
        found = files_with(store, TEXTS)
        assert (found == {}) == bool(key), found

    asyncio.run(_serve(store, key, look))
    look()
    if key:
        monkeypatch.setenv("JETBLOCK_KEY", key)
    assert run(["erase", f"file://{store}", STREAM, "--seq", "5", "--report", str(report)]) == 0
    assert files_with(store, [b"pl4in-payload 5.", b"pl4in-reply.5"]) == {}
    assert json.loads(report.read_text())["messages"] == 1
    assert run(["erase", f"file://{store}", "--verify", str(report)]) == 0
    assert "has none of the erased messages" in capsys.readouterr().out
    look()


async def _serve(store: Path, key: str, look: Callable[[], None]) -> None:
    async with BrokerProcess("--store", f"file://{store}", "-cid", "test-cluster", environ=environ(key)) as server:
        client = await StanClient.open(server.url, "pl4in-client")
        for i in range(1, 7):
            assert not (await client.publish("pl4in.orders", b"pl4in-payload %d." % i, reply=f"pl4in-reply.{i}")).error
        sub = await client.subscribe("pl4in.orders", FIRST, durable="pl4in-durable")
        assert [one.seq for one in await sub.take(2)] == [1, 2]
        queue = await client.subscribe("pl4in.orders", FIRST, queue="pl4in-queue", durable="pl4in-durable")
        assert [one.seq for one in await queue.take(6)] == [1, 2, 3, 4, 5, 6]
        await client.nc.jetstream().stream_info(STREAM)  # the acks are stored then
        look()
        await client.nc.close()
        await server.kill()
        look()
        await server.start()
        client = await StanClient.open(server.url, "pl4in-other")
        answer = await api(client.nc, f"JETBLOCK.ERASE.{STREAM}", {"headers": ["Nats-Streaming-Reply: pl4in-reply.4"]})
        assert answer["messages"] == 1
        await finished(client.nc, STREAM, answer["erasure"])
        assert files_with(store, [b"pl4in-payload 4.", b"pl4in-reply.4"]) == {}
        sub = await client.subscribe("pl4in.orders", queue="pl4in-queue", durable="pl4in-durable")
        await client.publish_all("pl4in.orders", b"pl4in-payload 7.")
        assert await sub.next() == Delivery(7, b"pl4in-payload 7.")
        await client.nc.close()
