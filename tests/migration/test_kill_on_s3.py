"""``jetblock migrate`` into a broker on S3 that is killed again and again, while the command is killed and run again,
too."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from tests.adversity.clients import unexpected
from tests.harness import BrokerProcess, NatsServerProcess
from tests.jetstream.archives import Failed, api
from tests.migration.kinds import FILLED, fill, seen
from tests.migration.test_migrate import Run, migrate
from tests.real.s3 import S3Server

LONG = 20_000
"""The messages of the stream that takes the longest."""


@pytest.mark.parametrize("rounds", [3, pytest.param(30, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
async def test_broker_and_command_are_killed(minio: S3Server, tmp_path_factory: pytest.TempPathFactory,
                                             rounds: int) -> None:
    """Each run moves missing streams, ends with a clear error, or is killed; the last one completes the target. It is
    equal to the source: configurations, sequences, subjects, headers, times, consumers.

    JETBLOCK_KILL_ROUNDS sets the number of kills, JETBLOCK_KILL_SEED their moments.
    """
    seed = int(os.environ.get("JETBLOCK_KILL_SEED", random.randrange(1 << 32)))
    print(f"JETBLOCK_KILL_SEED={seed}")
    rng = random.Random(seed)
    environ = {**minio.env, "JETBLOCK_SERVER_NAME": "one"}
    async with (NatsServerProcess("-js", "-sd", str(tmp_path_factory.mktemp("real"))) as real,
                BrokerProcess("--store", minio.new_url(), environ=environ) as ours):
        client = await nats.connect(real.url)
        await fill(client)
        await api(client, "STREAM.CREATE.LONG", {"name": "LONG", "subjects": ["long.>"]})
        for number in range(LONG):
            await client.publish(f"long.{number % 7}", b"%d" % number, headers={"N": str(number)} if number % 3
                                 else None)
        await client.flush()
        wanted = {name: await seen(client, name) for name in (*FILLED, "LONG") if name != "MEMORY"}
        for _ in range(int(os.environ.get("JETBLOCK_KILL_ROUNDS", rounds))):
            await _delete(ours.url, rng.sample(("LONG", "BIG", "WORK", "LIMITS"), 3))
            run = await Run.begin(real.url, ours.url, "--memory-to-file")
            draw = rng.random()
            if draw < 0.7:
                await run.line("")  # it has begun
            await asyncio.sleep(rng.uniform(0, 0.4))
            killed = draw < 0.3 and run.process.returncode is None
            if killed:
                await run.kill()
            await ours.kill()
            assert unexpected(ours) == []
            await ours.start()
            if not killed:
                out, error = await asyncio.wait_for(run.process.communicate(), 60)
                assert run.process.returncode in (0, 1, 2), error.decode()
                assert b"Traceback" not in error + out
                if run.process.returncode:
                    print(run.process.returncode, (error or out).decode().strip().splitlines()[-3:])
        report = await migrate(real.url, ours.url, "--memory-to-file", "--verify")
        assert [one for one in report["streams"].values() if one["problems"]] == []
        await ours.kill()
        await ours.start()
        there = await nats.connect(ours.url)
        for name, one in wanted.items():
            assert await seen(there, name) == one
        assert await _long(there) == await _long(client)
        await client.close()
        await there.close()


async def _delete(url: str, names: Sequence[str]) -> None:
    """Delete streams at the target, if they are there, so that the next run has something to move."""
    client = await nats.connect(url)
    for name in names:
        with suppress(Failed):
            await api(client, f"STREAM.DELETE.{name}")
    await client.close()


async def _long(client: Client) -> list[tuple[Any, ...]]:
    """Read sequence, subject, headers, payload and time of each message of the long stream."""
    subscription = await client.jetstream().subscribe("long.>", stream="LONG", ordered_consumer=True)
    found: list[tuple[Any, ...]] = []
    for _ in range(LONG):
        msg = await subscription.next_msg(timeout=30)
        found.append((msg.metadata.sequence.stream, msg.subject, msg.headers, msg.data, msg.metadata.timestamp))
    await subscription.unsubscribe()
    return found
