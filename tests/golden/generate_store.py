"""Writes a whole store in the format of this version: ``python -m tests.golden.generate_store NAME``.

Run it at each release that changes what is stored, and keep the result for ever: ``stores/NAME.tar.xz`` has the store
and ``expected.json``, the view that a client had of each stream.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client

from tests.eager_broker import EagerBrokerProcess, compaction
from tests.harness import BrokerProcess
from tests.migration.kinds import FILLED, fill, seen

STORES = Path(__file__).parent / "stores"

LASTING = tuple(name for name in FILLED if name not in ("MEMORY", "AGED", "KV_config"))
"""Streams whose view does not change in years."""
PAGED = "PAGED"
"""A stream with so many blocks that the checkpoint has its subjects; in stores of versions that wrote such pages."""


IDS = "IDS"
"""A stream whose checkpoint has a page of message ids, and some ids inline. They are duplicates for fifty years."""
IDS_PAGED, IDS_LISTED = 150, 10


async def expectation(client: Client, names: Iterable[str] = (*LASTING, PAGED, IDS)) -> dict[str, Any]:
    """Return the view that a client has of these streams, without values that time changes."""
    found = {}
    for name in names:
        found[name] = await seen(client, name)
        for consumer in found[name]["consumers"].values():
            for key in ("num_ack_pending", "num_redelivered", "num_pending"):
                del consumer[key]
    return dict(json.loads(json.dumps(found)))


async def fill_paged(client: Client) -> None:
    """Fill the stream PAGED: the last two messages of each of fifty subjects, each message in its own block."""
    js = client.jetstream()
    await js.add_stream(name=PAGED, subjects=["paged.*"], max_msgs_per_subject=2)
    for i in range(130):
        await js.publish(f"paged.{i % 50}", b"%d" % i)


async def fill_ids(client: Client, first: int, last: int) -> None:
    """Publish messages first..last of the stream IDS, each with an id of its own."""
    for seq in range(first, last + 1):
        assert await publish_id(client, seq) == (seq, None)


async def publish_id(client: Client, seq: int) -> tuple[int, bool | None]:
    """Publish message ``seq`` of the stream IDS. Returns: its sequence, and whether it was a duplicate."""
    ack = await client.jetstream().publish("ids", b"%d" % seq, headers={"Nats-Msg-Id": f"the id of message {seq}"})
    return ack.seq, ack.duplicate


async def write(name: str) -> None:
    """Write streams of every kind, partly merged: then stop cleanly, publish a little more, and kill."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        often = compaction(segments=16, quiet_ns=300_000_000)
        async with EagerBrokerProcess("--store", f"file://{store}", environ=often) as broker:
            client = await nats.connect(broker.url)
            await fill(client)
            while not (await broker.monitor("/varz"))["jetblock"]["log"]["compaction"]["merges"]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            await client.close()
            await broker.stop()
            await broker.start()
            client = await nats.connect(broker.url)
            await client.jetstream().publish("limits.x", b"after the restart")
            await client.close()
            await broker.stop()
        async with BrokerProcess("--store", f"file://{store}", environ={"JETBLOCK_COMPACTION": "false"}) as broker:
            client = await nats.connect(broker.url)
            await fill_paged(client)
            await client.jetstream().add_stream(name=IDS, subjects=["ids"], duplicate_window=50 * 365 * 86_400)
            await fill_ids(client, 1, IDS_PAGED)
            await client.close()
            await broker.stop()
            await broker.start()
            client = await nats.connect(broker.url)
            await fill_ids(client, IDS_PAGED + 1, IDS_PAGED + IDS_LISTED)
            (Path(folder) / "expected.json").write_text(json.dumps(await expectation(client)))
            await client.close()
            await broker.kill()
        STORES.mkdir(exist_ok=True)
        with tarfile.open(STORES / f"{name}.tar.xz", "w:xz") as archive:
            for part in ("store", "expected.json"):
                archive.add(Path(folder) / part, part, filter=_plain)


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1]))
