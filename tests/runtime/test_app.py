"""An owner that loses the shard becomes a standby and then owner again, within one process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import nats
import pytest

from broker.config.settings import ClientSettings, JetStreamSettings, Settings, StorageSettings
from broker.jetstream.engine import JetStream
from broker.runtime.app import App
from broker.runtime.costs import commit_cost, shared_cost
from broker.storage.log.log import Log
from broker.storage.put import Fenced
from broker.storage.read.reader import BlockReader
from tests.adversity.clients import until
from tests.harness import BrokerProcess
from tests.storage.objectstore.fake_s3 import fake_s3

LEASE_NS = 200_000_000


def app_on(path: Path) -> App:
    return App(Settings(
        clients=ClientSettings(host="127.0.0.1", port=-1), jetstream=JetStreamSettings(enabled=True),
        storage=StorageSettings(url=f"file://{path}", lease_ns=LEASE_NS, put_timeout_ns=LEASE_NS // 4)))


async def test_an_unforeseen_error_on_the_way_to_standby_ends_the_process(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has closed its clients and cannot serve again must end, and log why."""
    app = app_on(tmp_path)
    await app.start()
    assert app.jetstream is not None
    assert app.shard_owner is not None
    assert app.shard_owner.shard is not None

    async def broken(*, notify: bool = False) -> None:
        raise RuntimeError("nobody foresaw this")

    with monkeypatch.context() as patch:
        patch.setattr(app.jetstream, "close", broken)
        app.shard_owner.shard.log.fail(Fenced("another broker has taken the shard", "other"))
        assert "nobody foresaw this" in await asyncio.wait_for(app.failed(), 30)
    await app.stop()


async def test_an_owner_that_is_fenced_comes_back_on_its_port(tmp_path: Path) -> None:
    """The clients of a fenced owner are closed and reconnect to the same address, in the next epoch."""
    app = app_on(tmp_path)
    await app.start()
    assert app.shard_owner is not None
    shard = app.shard_owner.shard
    assert shard is not None
    nc = await nats.connect(f"nats://127.0.0.1:{app.server.port}", reconnect_time_wait=0.05, max_reconnect_attempts=-1)
    await nc.jetstream().add_stream(name="S", subjects=["s"])
    shard.log.fail(Fenced("another broker has taken the shard", "other"))

    async def back() -> bool:
        assert app.shard_owner is not None
        return app.shard_owner.shard not in (shard, None) and nc.is_connected

    await until(back)
    assert app.shard_owner.shard is not None
    assert app.shard_owner.shard.log.epoch == 2
    assert (await nc.jetstream().publish("s", b"x", timeout=30)).seq == 1
    await nc.close()
    await app.stop()


async def test_a_shard_lost_before_clients_could_connect_is_taken_again(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is fenced while its streams are loaded begins to serve once, not twice in parallel."""
    real = JetStream.open
    opened: list[int] = []

    async def lose_the_first(self: JetStream, shard: int, log: Log, reader: BlockReader, **how: Any) -> None:
        await real(self, shard, log, reader, **how)
        opened.append(log.epoch)
        if len(opened) == 1:
            log.fail(Fenced("another broker has taken the shard", "other"))
            await asyncio.sleep(0.05)

    monkeypatch.setattr(JetStream, "open", lose_the_first)
    app = app_on(tmp_path)
    await asyncio.wait_for(app.start(), 30)
    assert opened == [1, 2]
    nc = await nats.connect(f"nats://127.0.0.1:{app.server.port}")
    await nc.jetstream().add_stream(name="S", subjects=["s"])
    await asyncio.sleep(2 * LEASE_NS / 1e9)
    assert nc.is_connected
    assert opened == [1, 2]
    await nc.close()
    await app.stop()


async def test_dollars_only_where_aws_is_paid(tmp_path: Path) -> None:
    """The log has no price of commits for a MinIO endpoint or a directory."""
    assert "$648 a month" in commit_cost(20_000_000, at_aws=True)
    assert "each put is paid for" in commit_cost(0, at_aws=True)
    async with fake_s3() as fake:
        environ = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_ENDPOINT_URL": fake.endpoint}
        async with BrokerProcess("--store", "s3://bucket/x", environ=environ) as bucket:
            [said] = [line for line in bucket.stderr if "Commits: " in line]
            assert said.endswith("at most one put every 20 ms, 50 a second\n")
    async with BrokerProcess("-js", "-sd", str(tmp_path)) as directory:
        [said] = [line for line in directory.stderr if "Commits: " in line]
        assert "paid" not in said


def test_cost_of_several_owners() -> None:
    """With a lease of 15 s, a broker's heartbeats cost $2.6 a month, an idle shard $0.2, and watching eight $1.8."""
    line = shared_cost(8, 15_000_000_000, at_aws=True)
    assert [cost for cost in ("$2.59", "$0.21", "$1.79") if f"{cost} a month" in line] == ["$2.59", "$0.21", "$1.79"]
    assert "$" not in shared_cost(8, 15_000_000_000, at_aws=False)
