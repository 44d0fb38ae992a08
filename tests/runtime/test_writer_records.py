"""The last versions of writers survive whatever happens to a store: restarts, copies, repairs, kills."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from pathlib import Path
from typing import Any

import nats

from broker.maintenance.copy_cli import main as copy
from broker.maintenance.fsck_cli import main as fsck
from broker.runtime.adopt_cli import main as adopt
from broker.runtime.embedded import Broker
from broker.storage.format.request import Version
from broker.storage.objectstore.base import PreconditionFailed
from broker.storage.objectstore.file import FileStore
from broker.storage.read.lookup import find_stream
from broker.storage.read.snapshot import read_snapshot
from tests.harness import BrokerProcess
from tests.jetstream.inbox.staging import stage

QUIET = {"storage.inbox_interval_ns": 0}


async def put(directory: Path, version: Version, payloads: list[bytes]) -> None:
    """Put a request, unless the one of this version is in the inbox."""
    store = FileStore(directory)
    writer = await stage(store, (await read_snapshot(store, 0)).state, "S", [(b"S", payload) for payload in payloads])
    asked = writer.request(version, 0)
    with contextlib.suppress(PreconditionFailed):
        await store.put(asked.key, asked.data)
    await store.close()


async def ask(url: str, version: Version) -> dict[str, Any]:
    client = await nats.connect(url)
    try:
        body = json.dumps({"writer": version.writer, "version": version.number}).encode()
        answer = json.loads((await client.request("$JS.API.JETBLOCK.ADOPT.S", body, timeout=30)).data)
        return {key: answer.get(key) for key in ("first_seq", "last_seq", "messages", "already")}
    finally:
        await client.close()


async def payloads(url: str) -> list[bytes]:
    client = await nats.connect(url)
    js = client.jetstream()
    count = (await js.stream_info("S")).state.messages
    found = [(await js.get_msg("S", seq)).data or b"" for seq in range(1, count + 1)]
    await client.close()
    return found


async def test_a_copy_and_a_repaired_store_know_the_writers(tmp_path: Path) -> None:
    """Shows the same answer, and nothing stored, for a replay on a backup, on a copy that ``jetblock adopt`` opens, and
    after fsck has repaired a store whose newest checkpoint is damaged."""
    source, backup, repaired = (tmp_path / name for name in ("source", "backup", "repaired"))
    async with Broker(source, settings=QUIET) as broker:
        client = await nats.connect(broker.url)
        await client.jetstream().add_stream(name="S")
        await client.close()
    async with Broker(source, settings=QUIET) as broker:
        await put(source, Version("w", 7), [b"a", b"b"])
        first = await ask(broker.url, Version("w", 7))
        assert (first["messages"], first["already"]) == (2, None)
        assert await asyncio.to_thread(copy, "backup", [f"file://{source}", f"file://{backup}"]) == 0
    assert await asyncio.to_thread(copy, "copy", [f"file://{source}", f"file://{repaired}"]) == 0
    newest = max((repaired / "v1/shards/0/checkpoint").iterdir())
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    assert await asyncio.to_thread(fsck, [f"file://{repaired}"]) == 1
    assert await asyncio.to_thread(fsck, [f"file://{repaired}", "--repair"]) in (0, 1)
    assert await asyncio.to_thread(fsck, [f"file://{repaired}"]) == 0
    for store in (backup, repaired):
        await put(store, Version("w", 7), [b"again"])
        await put(store, Version("w", 6), [b"earlier"])
        assert await asyncio.to_thread(adopt, [f"file://{store}"]) == 0
        async with Broker(store, settings=QUIET) as broker:
            assert await ask(broker.url, Version("w", 7)) == first
            assert (await ask(broker.url, Version("w", 6)))["already"] == 7
            assert await payloads(broker.url) == [b"a", b"b"]
        found = FileStore(store)
        stream = await find_stream(found, "$G", "S")
        await found.close()
        assert stream is not None
        assert [key for key in stream.extra if key.startswith("writer:")] == ["writer:w"]


async def test_a_writer_that_repeats_its_last_version_stores_it_once(tmp_path: Path) -> None:
    """Shows exactly one copy of each version, in order, over kill -9 of the broker at random moments.

    The writer does not know whether its last request was granted, so it stages and requests the version again.
    """
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    expected: list[bytes] = []
    done = 0

    async def write(url: str) -> None:
        nonlocal done
        while True:
            rows = [b"%d/%d" % (done, at) for at in range(1 + done % 5)]
            await put(tmp_path, Version("w", done), rows)
            answer = await ask(url, Version("w", done))
            assert answer["messages"] == len(rows), answer
            expected.extend(rows)
            done += 1

    async with BrokerProcess("-js", "-sd", str(tmp_path), environ={"JETBLOCK_INBOX_INTERVAL": "100ms"}) as broker:
        client = await nats.connect(broker.url)
        await client.jetstream().add_stream(name="S")
        await client.close()
        for _ in range(3):
            goal = done + 3
            writing = asyncio.create_task(write(broker.url))
            while done < goal and not writing.done():  # noqa: ASYNC110 (the writer has no event for this test)
                await asyncio.sleep(0.01)
            assert not writing.done()
            await asyncio.sleep(rng.uniform(0, 0.1))
            await broker.kill()
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            await broker.start()
        rows = [b"%d/%d" % (done, at) for at in range(1 + done % 5)]
        await put(tmp_path, Version("w", done), rows)
        assert (await ask(broker.url, Version("w", done)))["messages"] == len(rows)
        assert await payloads(broker.url) == expected + rows
        assert await broker.stop() == 0
