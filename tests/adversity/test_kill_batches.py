"""kill -9 while large atomic batches are written and committed: at the end each is there whole, in one piece, or not
at all."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client

from broker.inspect.source import Source
from broker.inspect.survey import read_survey
from broker.inspect.verify import verify
from broker.storage.objectstore.file import FileStore
from tests.harness import BrokerProcess

pytestmark = pytest.mark.asyncio

ROUNDS = int(os.environ.get("JETBLOCK_KILL_ROUNDS", "3"))
COUNT, SIZE = 20, 900_000
"""Size of a batch, larger than a broker keeps in memory."""


def body(name: str, place: int) -> bytes:
    return b"%b %d " % (name.encode(), place) + bytes(SIZE)


async def send(client: Client, name: str) -> dict[str, object]:
    """Send a whole batch; return the answer to its commit."""
    for place in range(1, COUNT + 1):
        headers = {"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(place)}
        if place == COUNT:
            answer = await client.request("S", body(name, place), headers={**headers, "Nats-Batch-Commit": "1"},
                                          timeout=30)
            found: dict[str, object] = json.loads(answer.data)
            return found
        await client.publish("S", body(name, place), headers=headers)
        if place % 8 == 0:
            await client.flush()
    raise AssertionError


@pytest.mark.shows("store.kill")
async def test_killed_while_large_batches_are_committed(tmp_path: Path) -> None:
    """Another client publishes messages in between. Every byte is sound, and no stream has messages of batches that
    were not committed."""
    seed = int(os.environ.get("JETBLOCK_KILL_SEED", random.randrange(1 << 32)))
    print(f"JETBLOCK_KILL_SEED={seed}")
    rng = random.Random(seed)
    sent: list[str] = []
    committed: dict[str, int] = {}
    acked: dict[int, bytes] = {}

    async def quiet(_: Exception) -> None:
        """Ignore the error: connections are lost by design here."""

    async def batches(client: Client, round_: int) -> None:
        for number in range(3):
            sent.append(f"b{round_}-{number}")
            answer = await send(client, sent[-1])
            assert answer.get("count") == COUNT, answer
            committed[sent[-1]] = int(str(answer["seq"]))

    async def publish(client: Client, round_: int) -> None:
        for number in range(10_000):
            payload = b"p%d-%d" % (round_, number)
            acked[(await client.jetstream().publish("S", payload)).seq] = payload

    async with BrokerProcess("-js", "-sd", str(tmp_path)) as broker:
        client = await nats.connect(broker.url)
        created = await client.request("$JS.API.STREAM.CREATE.S", b'{"name": "S", "allow_atomic": true}', timeout=30)
        assert b"error" not in created.data
        assert (await send(client, "first"))["seq"] == COUNT
        sent.append("first")
        committed["first"] = COUNT
        await client.close()
        for round_ in range(ROUNDS):
            clients = [await nats.connect(broker.url, allow_reconnect=False, error_cb=quiet) for _ in range(2)]
            tasks = [asyncio.create_task(work(client, round_))
                     for work, client in zip((batches, publish), clients, strict=True)]
            await asyncio.sleep(rng.uniform(0.05, 0.8))
            await broker.kill()
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, AssertionError):
                    raise result
            for client in clients:
                with contextlib.suppress(Exception):
                    await client.close()
            await broker.start()
        client = await nats.connect(broker.url)
        js = client.jetstream()
        subscription = await js.subscribe("S", ordered_consumer=True)
        there: dict[int, bytes] = {}
        for _ in range((await js.stream_info("S")).state.messages):
            msg = await subscription.next_msg(timeout=30)
            there[msg.metadata.sequence.stream] = msg.data.rstrip(b"\0")
        await client.close()
    assert acked.items() <= there.items()
    for name in sent:
        places = [seq for seq, data in there.items() if data.startswith(name.encode() + b" ")]
        if places or name in committed:
            last = committed.get(name, places[-1] if places else 0)
            assert places == list(range(last - COUNT + 1, last + 1)), name
            assert [there[seq] for seq in places] == [body(name, at).rstrip(b"\0") for at in range(1, COUNT + 1)]
    store = FileStore(tmp_path)
    survey = await read_survey(Source(store))
    found = await verify(Source(store), survey)
    assert [*survey.problems, *found.problems] == []
    await store.close()
