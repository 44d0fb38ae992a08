"""Adoption on S3 while another broker takes the shard over: both owners see one request, and its answer is lost.

The owner is killed or paused at a random moment after a client asked it to grant the request. The other broker finds
the same request in the inbox, or its answer in the log.

JETBLOCK_KILL_ROUNDS sets the number of takeovers, JETBLOCK_KILL_SEED their moments.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from contextlib import AsyncExitStack, suppress
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError

from broker.inspect.source import Source
from broker.inspect.survey import read_survey
from broker.inspect.verify import verify
from broker.storage.objectstore import ObjectStore, open_store
from broker.storage.read.snapshot import read_snapshot
from broker.storage.staging.answers import answer_in
from broker.storage.staging.writer import request_id_of
from tests.adversity.clients import read_all, unexpected
from tests.eager_broker import EagerBrokerProcess, compaction
from tests.jetstream.inbox.staging import eventually, request, stage
from tests.real.s3 import S3Server

ROWS = 300
ENVIRON = {"JETBLOCK_LEASE": "3s", "JETBLOCK_PUT_TIMEOUT": "1s", "JETBLOCK_INBOX_INTERVAL": "200ms",
           **compaction(segments=8, quiet_ns=1_000_000_000)}


@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
async def test_both_owners_see_a_request(minio: S3Server, monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    """The request's messages join once, in order and without a gap among them. Each broker that answers gives the same
    answer. The store is sound and the inbox empty at the end."""
    for name, value in minio.env.items():
        monkeypatch.setenv(name, value)
    seed = int(os.environ.get("JETBLOCK_KILL_SEED", random.randrange(1 << 32)))
    print(f"JETBLOCK_KILL_SEED={seed}")
    rng, url = random.Random(seed), minio.new_url()
    rounds = int(os.environ.get("JETBLOCK_KILL_ROUNDS", rounds))
    store = open_store(url)
    expected: dict[int, bytes] = {}
    answered = 0
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        one, two = [EagerBrokerProcess("--store", url, "-n", name, environ={**ENVIRON, **minio.env})
                    for name in ("one", "two")]
        for broker in (one, two):
            stack.push_async_callback(broker.close)
        await one.start()
        client = await nats.connect(one.url)
        await client.jetstream().add_stream(name="S")
        await client.close()
        owner, other = one, two
        for number in range(rounds):
            if not other.running:
                await other.start(ready=False)
            await other.wait_line("standby: ")
            name = f"request {number}"
            rows = [b"%d/%d" % (number, row) for row in range(ROWS)]
            state = (await read_snapshot(store, 0)).state
            asked = await request(store,
                                  await stage(store, state, "S", [(b"S", row) for row in rows], block_messages=70,
                                              run_bytes=4000), name)
            question = json.dumps({"request": asked}).encode()
            client = await nats.connect(owner.url, allow_reconnect=False, ping_interval=300, error_cb=_quiet)
            asking = asyncio.create_task(_ask(client, question))
            await asyncio.sleep(rng.uniform(0, 0.3))
            pauses = rng.random() < 0.5
            if pauses:
                owner.send_signal(signal.SIGSTOP)
            else:
                await owner.kill()
            await other.wait_ready()
            there = await nats.connect(other.url)
            answer = await _ask(there, question)
            assert answer is not None
            assert (answer["messages"], answer["duplicates"]) == (ROWS, 0), answer
            assert answer["last_seq"] - answer["first_seq"] == ROWS - 1
            if pauses:
                owner.send_signal(signal.SIGCONT)
            first = await asking
            assert first in (None, answer) or first["error"]["err_code"] == 10008, first
            answered += first == answer
            assert await _ask(there, question) == answer
            assert unexpected(owner) == unexpected(other) == []
            expected |= dict(enumerate(rows, answer["first_seq"]))
            await client.close()
            await there.close()
            if pauses:
                await owner.wait_line("standby: ")
                await owner.kill()
            owner, other = other, owner
        await eventually(lambda: _empty(store), 60)
        client = await nats.connect(owner.url)
        found = await read_all(client, "S")
        await client.close()
        await owner.kill()
        stream = (await read_snapshot(store, 0)).state.stream("$G", "S")
        assert stream is not None
        assert all(answer_in(stream.extra, request_id_of(f"request {number}")) for number in range(rounds))
        survey = await read_survey(Source(store))
        checked = await verify(Source(store), survey)
        assert [*survey.problems, *checked.problems] == []
    print(f"{answered} answers came before the takeover")
    assert found == expected


async def _ask(client: Client, question: bytes) -> dict[str, Any] | None:
    """Return the answer to the request of staged messages, without the time at which it was given; None if the
    connection ended before it came."""
    with suppress(NatsError):
        answer: dict[str, Any] = json.loads(
            (await client.request("$JS.API.JETBLOCK.ADOPT.S", question, timeout=30)).data)
        answer.pop("ts", None)
        return answer
    return None


async def _empty(store: ObjectStore) -> bool:
    return not await store.list("v1/shards/0/inbox/")


async def _quiet(_: Exception) -> None:
    """Ignore the error: connections end by design here."""
