"""kill -9 at random moments while buckets, counters, batches, TTLs, mirrors and sources are in use, with a checker.

    a bucket      acknowledged updates by revision neither disappear nor go back, and a lost update is never overwritten
    counters      each increment, repeated under its id until it is acknowledged, counts once; so it does in a sum of
                  sources
    batches       atomic batches are there as a whole or not at all; acknowledged ones are there
    mirrors       a mirror ends up the same as its origin: sequences, subjects, payloads
    TTLs          messages with a TTL expire, others stay, also in a source

The seed of the moments is printed on failure and read from JETBLOCK_KILL_SEED; JETBLOCK_KILL_ROUNDS sets the number
of kills of the long variant.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError, NotFoundError

from tests.adversity.clients import ANSWER_SECONDS, FAILED, connect, raise_ended, running, until
from tests.harness import BrokerProcess

BATCH = 4
KEYS = ("x", "y", "z")
STREAMS: dict[str, dict[str, Any]] = {
    "COUNT": {"subjects": ["count.*"], "allow_msg_counter": True},
    "SUM": {"allow_msg_counter": True, "sources": [{"name": "COUNT"}]},
    "BATCH": {"subjects": ["batch.*"], "allow_atomic": True},
    "MIRROR": {"mirror": {"name": "BATCH"}},
    "TTL": {"subjects": ["ttl.*"], "allow_msg_ttl": True},
    "STAYING": {"allow_msg_ttl": True, "sources": [{"name": "TTL", "filter_subject": "ttl.stays"}]},
}


class Run:
    """The clients and the acknowledgements that they received."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.stop = asyncio.Event()
        self.moved = asyncio.Event()
        self.revisions: dict[str, tuple[int, bytes]] = {}
        """The last acknowledged revision and value, by key of the bucket."""
        self.increments: Counter[str] = Counter()
        self.batches: set[str] = set()
        self.staying: set[bytes] = set()

    async def ask(self, nc: Client, subject: str, payload: bytes = b"", **headers: str) -> dict[str, Any] | None:
        """Publish to JetStream under an id until it is acknowledged; None if the run ended before."""
        while True:
            try:
                answer = json.loads((await nc.request(subject, payload, timeout=1, headers={
                    name.replace("_", "-"): value for name, value in headers.items()})).data)
            except FAILED:
                if self.stop.is_set():
                    return None
                await asyncio.sleep(0.02)
                continue
            if "error" not in answer:
                self.moved.set()
                return dict(answer)
            await asyncio.sleep(0.02)  # the broker has just started

    async def bucket(self, key: str) -> None:
        """Run the only writer of a key: it reads its last acknowledged value, or the one whose answer was lost."""
        nc = await connect(self.broker.url)
        number, begun = 0, b""
        while not self.stop.is_set():
            revision, value = self.revisions.get(key, (0, b""))
            try:
                kv = await nc.jetstream(timeout=ANSWER_SECONDS).key_value("KILL")
                try:
                    entry = await kv.get(key)
                    found = entry.revision or 0, entry.value or b""
                except KeyNotFoundError:
                    found = 0, b""
                assert found == (revision, value) or (found[0] > revision and found[1] == begun), f"{key} of {revision}"
                self.revisions[key] = found
                number += 1
                begun = b"%d" % number
                self.revisions[key] = await kv.update(key, begun, last=found[0]), begun
            except KeyWrongLastSequenceError:
                raise AssertionError(f"{key}: revision {found[0]} was read, and is not the last") from None
            except FAILED:
                await asyncio.sleep(0.02)
        await nc.close()

    async def counter(self, who: int) -> None:
        nc, number = await connect(self.broker.url), 0
        while not self.stop.is_set():
            number += 1
            key = KEYS[number % len(KEYS)]
            if await self.ask(nc, f"count.{key}", Nats_Incr="1", Nats_Msg_Id=f"{who}.{number}") is not None:
                self.increments[key] += 1
            else:
                self.increments[f"{key}?"] += 1
        await nc.close()

    async def batcher(self, who: int) -> None:
        nc, number = await connect(self.broker.url), 0
        while not self.stop.is_set():
            number += 1
            batch = f"{who}.{number}"
            try:
                for at in range(1, BATCH):
                    await nc.publish("batch.x", batch.encode(),
                                     headers={"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(at)})
                answer = json.loads((await nc.request("batch.x", batch.encode(), timeout=1, headers={
                    "Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(BATCH), "Nats-Batch-Commit": "1"})).data)
            except FAILED:
                await asyncio.sleep(0.02)
                continue
            if "error" not in answer:
                self.batches.add(batch)
                self.moved.set()
        await nc.close()

    async def mortal(self) -> None:
        nc, number = await connect(self.broker.url), 0
        while not self.stop.is_set():
            number += 1
            payload = b"%d" % number
            await self.ask(nc, "ttl.goes", payload, Nats_TTL="1s", Nats_Msg_Id=f"goes.{number}")
            if await self.ask(nc, "ttl.stays", payload, Nats_Msg_Id=f"stays.{number}") is not None:
                self.staying.add(payload)
        await nc.close()


async def _api(nc: Client, subject: str, body: Any = None) -> dict[str, Any]:
    msg = await nc.request(f"$JS.API.{subject}", json.dumps(body).encode() if body else b"", timeout=30)
    answer: dict[str, Any] = json.loads(msg.data)
    assert "error" not in answer, answer
    return answer


async def _msgs(nc: Client, stream: str) -> dict[int, tuple[str, bytes]]:
    """Return the messages of a stream: subject and payload by sequence."""
    js = nc.jetstream()
    count = (await js.stream_info(stream)).state.messages
    sub = await js.subscribe(">", stream=stream, ordered_consumer=True)
    found = {}
    while len(found) < count:
        msg = await sub.next_msg(timeout=30)
        found[msg.metadata.sequence.stream] = msg.subject, msg.data
    await sub.unsubscribe()
    return found


async def _check(run: Run, nc: Client) -> None:
    js = nc.jetstream()
    kv = await js.key_value("KILL")
    for key, (revision, value) in run.revisions.items():
        if not revision:
            continue  # none was acknowledged: on a busy machine it may have had no time
        entry = await kv.get(key)
        assert (entry.revision or 0) >= revision, key
        assert int(entry.value or b"0") >= int(value or b"0"), key

    async def total(stream: str, key: str) -> int:
        try:
            return int(json.loads((await js.get_last_msg(stream, f"count.{key}")).data or b"")["val"])
        except NotFoundError:
            return 0

    for key in KEYS:
        counted = await total("COUNT", key)
        assert run.increments[key] <= counted <= run.increments[key] + run.increments[f"{key}?"]

        async def summed(key: str = key, counted: int = counted) -> bool:
            return await total("SUM", key) == counted
        await until(summed)
    batches = await _msgs(nc, "BATCH")
    sizes = Counter(payload.decode() for _, payload in batches.values())
    assert set(sizes.values()) == {BATCH}
    assert run.batches <= sizes.keys()

    async def mirrored() -> bool:
        return await _msgs(nc, "MIRROR") == batches
    await until(mirrored)

    async def expired() -> bool:
        return not (await _api(nc, "STREAM.INFO.TTL", {"subjects_filter": "ttl.goes"}))["state"].get("subjects")
    await until(expired)
    origin = [payload for _, payload in (await _msgs(nc, "TTL")).values()]
    assert len(set(origin)) == len(origin)
    assert run.staying <= set(origin)

    async def copied() -> bool:
        return [payload for _, payload in (await _msgs(nc, "STAYING")).values()] == origin
    await until(copied)


async def _kill_rounds(directory: Path, rounds: int) -> None:
    seed = int(os.environ.get("JETBLOCK_KILL_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"JETBLOCK_KILL_SEED={seed}")
    rng = random.Random(seed)
    async with BrokerProcess("-js", "-sd", str(directory)) as broker:
        run = Run(broker)
        nc = await connect(broker.url)
        for name, config in STREAMS.items():
            await _api(nc, f"STREAM.CREATE.{name}", {"name": name, **config})
        await nc.jetstream().create_key_value(bucket="KILL", history=5)
        clients = (*(run.bucket(key) for key in KEYS), run.counter(1), run.counter(2), run.batcher(1), run.batcher(2),
                   run.mortal())
        async with running(run.stop, clients) as tasks:
            for _ in range(rounds):
                run.moved.clear()
                async with asyncio.timeout(60):
                    await run.moved.wait()  # The broker acknowledges publishes again.
                    # The clients are of three kinds, so no one event ends this wait.
                    while not (run.revisions and run.increments and run.batches):  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                await asyncio.sleep(rng.random() * 0.5)
                raise_ended(tasks)
                await broker.kill()
                await broker.start()
        await _check(run, nc)
        await nc.close()
    assert run.revisions
    assert run.batches


@pytest.mark.shows("copy.restart", "store.kill")
async def test_copies_and_counters_survive_kills(tmp_path: Path) -> None:
    await _kill_rounds(tmp_path, 2)


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_copies_and_counters_survive_many_kills(tmp_path: Path) -> None:
    await _kill_rounds(tmp_path, int(os.environ.get("JETBLOCK_KILL_ROUNDS", "30")))
