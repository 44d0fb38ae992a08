"""kill -9 while staged messages join a stream: at the end the messages of each request are there once, all of
them, in order."""

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
from broker.storage.read.snapshot import read_snapshot
from broker.storage.staging.answers import GRANTED, answer_in
from broker.storage.staging.writer import RunWriter, request_id_of
from tests.harness import BrokerProcess
from tests.jetstream.inbox.staging import eventually, request, stage

pytestmark = pytest.mark.asyncio

ROUNDS = int(os.environ.get("JETBLOCK_KILL_ROUNDS", "3"))


@pytest.mark.shows("store.kill")
async def test_killed_while_adopting(tmp_path: Path) -> None:
    """A client sends the request, publishes in between, and asks again after each start; the owner also polls. A fresh
    reader finds exactly the granted messages, and every byte sound."""
    seed = int(os.environ.get("JETBLOCK_KILL_SEED", random.randrange(1 << 32)))
    print(f"JETBLOCK_KILL_SEED={seed}")
    rng = random.Random(seed)
    store = FileStore(tmp_path)
    asked: dict[str, list[bytes]] = {}
    acked: set[bytes] = set()

    async def quiet(_: Exception) -> None:
        """Ignore the error: connections are lost by design here."""

    async def publish(client: Client, round_: int) -> None:
        for number in range(10_000):
            payload = b"p%d-%d" % (round_, number)
            await client.jetstream().publish("S", payload)
            acked.add(payload)

    async def ask(client: Client, round_: int) -> None:
        for number in range(100):
            name = f"{round_}-{number}"
            rows = [b"%b/%d" % (name.encode(), at) for at in range(rng.choice((1, 40, 300)))]
            state = (await read_snapshot(store, 0)).state
            writer: RunWriter = await stage(store, state, "S", [(b"S", row) for row in rows],
                                            block_messages=rng.choice((7, 1000)), run_bytes=rng.choice((500, 1 << 20)))
            asked[name] = rows
            asked_id = await request(store, writer, name)
            if rng.random() < 0.8:
                await client.request("$JS.API.JETBLOCK.ADOPT.S", json.dumps({"request": asked_id}).encode(), timeout=30)

    async with BrokerProcess("-js", "-sd", str(tmp_path), environ={"JETBLOCK_INBOX_INTERVAL": "100ms"}) as broker:
        client = await nats.connect(broker.url)
        await client.jetstream().add_stream(name="S")
        await client.close()
        for round_ in range(ROUNDS):
            client = await nats.connect(broker.url, allow_reconnect=False, error_cb=quiet)
            tasks = [asyncio.create_task(work(client, round_)) for work in (publish, ask)]
            await asyncio.sleep(rng.uniform(0.05, 0.7))
            await broker.kill()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with contextlib.suppress(Exception):
                await client.close()
            await broker.start()

        async def answered() -> bool:
            return not await store.list("v1/shards/0/inbox/")

        await eventually(answered, 60)
    snapshot = await read_snapshot(store, 0)
    stream = snapshot.state.stream("$G", "S")
    assert stream is not None
    expected: dict[int, bytes] = {}
    unanswered = 0
    for name, rows in asked.items():
        answer = answer_in(stream.extra, request_id_of(name))
        if answer is None:
            unanswered += 1  # the client was killed before the request was put
            continue
        assert (answer.state, answer.messages, answer.duplicates) == (GRANTED, len(rows), 0)
        expected |= dict(zip(range(answer.first_seq, answer.last_seq + 1), rows, strict=True))
    assert unanswered <= ROUNDS
    survey = await read_survey(Source(store))
    found = await verify(Source(store), survey)
    assert [*survey.problems, *found.problems] == []
    await store.close()
    async with BrokerProcess("-js", "-sd", str(tmp_path)) as broker:
        client = await nats.connect(broker.url)
        js = client.jetstream()
        subscription = await js.subscribe("S", ordered_consumer=True)
        there = {}
        for _ in range(stream.msgs):
            msg = await subscription.next_msg(timeout=30)
            there[msg.metadata.sequence.stream] = msg.data
        await client.close()
    assert {seq: payload for seq, payload in there.items() if b"/" in payload} == expected
    assert acked <= set(there.values())
    assert len(set(there.values())) == len(there)
