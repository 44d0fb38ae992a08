"""kill -9 while streams are restored over the API: afterwards each of them is whole, or not there at all."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client

from broker.jetstream.archive.contents import ArchiveWriter
from broker.jetstream.archive.values import ArchivedConsumer, ArchivedMsg, ArchivedStream
from tests.harness import BrokerProcess
from tests.jetstream.archives import Backup, api, restore

pytestmark = pytest.mark.asyncio

ROUNDS = int(os.environ.get("JETBLOCK_KILL_ROUNDS", "2"))
MESSAGES, BYTES = 2000, 500


def backup(name: str) -> Backup:
    writer = ArchiveWriter(1)
    msgs = [ArchivedMsg(seq, 10**18 + seq, f"{name}.x".encode(), 0, random.Random(seq).randbytes(BYTES))
            for seq in range(1, MESSAGES + 1)]
    consumer = ArchivedConsumer("C", {"durable_name": "C", "ack_policy": "explicit"}, (2, 2), (1, 1), {2: (2, 10**18)})
    archive = (writer.begin(ArchivedStream(MESSAGES, 0, 1, MESSAGES, "", "", 1)) + writer.consumer(consumer)
               + writer.messages(msgs) + writer.end())
    return Backup({"name": name, "subjects": [f"{name}.>"]}, {}, archive)


@pytest.mark.shows("store.kill")
async def test_killed_while_restoring(tmp_path: Path) -> None:
    seed = int(os.environ.get("JETBLOCK_KILL_SEED", random.randrange(1 << 32)))
    print(f"JETBLOCK_KILL_SEED={seed}")
    rng = random.Random(seed)
    names = ("A", "B", "C")
    backups = {name: backup(name) for name in names}
    answered: set[str] = set()

    async def quiet(_: Exception) -> None:
        """Ignore the error: connections are lost by design here."""

    async def one(client: Client, name: str) -> None:
        await restore(client, backups[name], chunk_bytes=rng.choice((1 << 14, 1 << 17)))
        answered.add(name)

    async with BrokerProcess("-js", "-sd", str(tmp_path)) as broker:
        for _ in range(ROUNDS):
            client = await nats.connect(broker.url, allow_reconnect=False, error_cb=quiet)
            tasks = [asyncio.create_task(one(client, name)) for name in names]
            await asyncio.sleep(rng.uniform(0.0, 0.8))
            await broker.kill()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await client.close()
            await broker.start()
            client = await nats.connect(broker.url)
            for name in names:
                if name not in ((await api(client, "STREAM.NAMES"))["streams"] or ()):
                    assert name not in answered
                    continue
                state = (await api(client, f"STREAM.INFO.{name}"))["state"]
                assert (state["messages"], state["last_seq"], state["consumer_count"]) == (MESSAGES, MESSAGES, 1)
                assert (await api(client, f"CONSUMER.INFO.{name}.C"))["num_ack_pending"] == 1
                await api(client, f"STREAM.DELETE.{name}")
            answered.clear()
            assert not (await api(client, "STREAM.NAMES"))["streams"]
            await client.close()
        client = await nats.connect(broker.url)
        for name in names:
            await one(client, name)
        await client.close()
