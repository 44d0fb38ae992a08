"""MinIO is killed and started again under load, with the same credentials and with others, which the broker finds by
itself.

``load`` has the clients and what must hold. JETBLOCK_KILL_ROUNDS sets how often in the long run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from nats.js.api import StreamConfig

from tests.adversity.clients import connect, raise_ended, running, unexpected, until
from tests.adversity.load import STREAM, Load
from tests.harness import BrokerProcess
from tests.real.s3 import S3Server, own_minio

pytestmark = pytest.mark.shows("store.lost_store")

LEASE_S = 3


@contextlib.asynccontextmanager
async def under_load(server: S3Server, credentials: Path) -> AsyncIterator[tuple[BrokerProcess, Load]]:
    """Run a broker that has its credentials from a file, and clients; at the end check their answers."""
    async with BrokerProcess("--store", server.new_url(), "-n", "one", environ=environ(server, credentials)) as broker:
        load = Load(random.Random(1), broker.url, strict=False)
        nc = await connect(broker.url)
        await nc.jetstream().add_stream(StreamConfig(name=STREAM, subjects=["kill.>"]))
        await nc.close()
        async with running(load.stop, load.clients()) as tasks:
            await moved(load, tasks)
            yield broker, load
            await moved(load, tasks)
        load.check(*await load.stored())
        assert not unexpected(broker)
        await broker.restart()
        load.check(*await load.stored())
        print(load)


def environ(server: S3Server, credentials: Path) -> dict[str, str]:
    """Write the file of credentials, and return the environment of a broker that reads it."""
    write(credentials, server)
    return {name: value for name, value in server.env.items() if "KEY" not in name} | {
        "AWS_SHARED_CREDENTIALS_FILE": str(credentials), "AWS_CONFIG_FILE": "/dev/null",
        "JETBLOCK_LEASE": f"{LEASE_S}s", "JETBLOCK_PUT_TIMEOUT": "1s"}


def write(credentials: Path, server: S3Server) -> None:
    """Write as a program that renews the keys of a profile does: whole or not at all."""
    new = credentials.with_suffix(".new")
    new.write_text(f"[default]\naws_access_key_id = {server.env['AWS_ACCESS_KEY_ID']}\n"
                   f"aws_secret_access_key = {server.env['AWS_SECRET_ACCESS_KEY']}\n")
    new.replace(credentials)


async def moved(load: Load, tasks: Sequence[asyncio.Task[None]] = (), seconds: float = 60) -> None:
    """Wait until publishes that began after this call are acknowledged, and each kind of client received something."""
    acked, pushed, double = len(load.history.acked), load.pushed, len(load.double.double_acked)

    async def all_moved() -> bool:
        raise_ended(tasks)
        return len(load.history.acked) > acked + 60 and load.pushed > pushed and len(load.double.double_acked) > double

    await until(all_moved, seconds)


async def store_error(broker: BrokerProcess) -> bool:
    return bool((await broker.monitor("/varz"))["jetblock"]["log"]["store_error"])


async def test_minio_is_killed_and_its_keys_are_replaced(tmp_path: Path) -> None:
    """MinIO is killed and started again: the load continues. It is started again with other keys: the broker's are
    refused, and the log names the remedy. Once the new keys are in the profile, the load continues without a restart of
    the broker."""
    folder = tmp_path / "minio"
    folder.mkdir()
    with own_minio(folder) as server:
        async with under_load(server, tmp_path / "credentials") as (broker, load):
            epoch = (await broker.monitor("/varz"))["jetblock"]["log"]["epoch"]
            await asyncio.to_thread(server.end)
            await until(lambda: store_error(broker))
            await asyncio.to_thread(server.start_again)
            await moved(load)
            await asyncio.to_thread(server.end)
            await asyncio.to_thread(server.start_again, "another", secrets.token_hex(16))
            line = await broker.wait_line("segment .* is not in the store yet: .*InvalidAccessKeyId")
            assert "or the profile" in line.string
            write(tmp_path / "credentials", server)
            await broker.wait_line("the credentials were refused; others were found")
            await moved(load)
            assert (await broker.monitor("/varz"))["jetblock"]["log"]["epoch"] == epoch
            log = "".join(broker.stderr)
            assert server.env["AWS_SECRET_ACCESS_KEY"] not in log


@pytest.mark.soak
async def test_a_standby_whose_keys_are_replaced_takes_over(tmp_path: Path) -> None:
    """The owner dies while the store knows the keys of neither broker: the standby waits, logs the reason, and serves
    with other keys."""
    folder = tmp_path / "minio"
    folder.mkdir()
    with own_minio(folder) as server:
        url, env = server.new_url(), environ(server, tmp_path / "credentials")
        two = BrokerProcess("--store", url, "-n", "two", environ=env)
        async with BrokerProcess("--store", url, "-n", "one", environ=env) as one, contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(two.close)
            await two.start(ready=False)
            await two.wait_line("standby: one owns")
            nc = await connect(one.url, f"nats://127.0.0.1:{two.port}")
            await nc.jetstream().add_stream(StreamConfig(name=STREAM, subjects=["kill.>"]))
            await nc.jetstream().publish("kill.x", b"1")
            await asyncio.to_thread(server.end)
            await asyncio.to_thread(server.start_again, "another", secrets.token_hex(16))
            await two.wait_line("the store does not let us take over: .*InvalidAccessKeyId.*; waiting as a standby")
            await one.kill()
            write(tmp_path / "credentials", server)
            await two.wait_ready(60)
            await nc.close()
            nc = await connect(two.url)
            assert (await nc.jetstream().get_msg(STREAM, 1)).data == b"1"
            assert (await nc.jetstream().publish("kill.x", b"2")).seq == 2
            await nc.close()
            assert not unexpected(two)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_minio_is_killed_again_and_again(tmp_path: Path) -> None:
    """MinIO is killed at random moments, for random times, each third time with new keys."""
    rounds = int(os.environ.get("JETBLOCK_KILL_ROUNDS", "30"))
    seed = int(os.environ.get("JETBLOCK_KILL_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"JETBLOCK_KILL_SEED={seed}")
    rng = random.Random(seed)
    folder = tmp_path / "minio"
    folder.mkdir()
    with own_minio(folder) as server:
        async with under_load(server, tmp_path / "credentials") as (_, load):
            for number in range(rounds):
                await asyncio.sleep(rng.random() * 2)
                await asyncio.to_thread(server.end)
                await asyncio.sleep(rng.choice((0, 0.5, 2, LEASE_S + 2)))
                again = (f"user{number}", secrets.token_hex(16)) if number % 3 == 2 else ()
                await asyncio.to_thread(server.start_again, *again)
                write(tmp_path / "credentials", server)
                await moved(load)
