"""Whole stores of earlier versions: today's broker reads them, continues to write, and leaves them sound."""

from __future__ import annotations

import json
import random
import tarfile
from pathlib import Path

import nats
import pytest

from broker.base.clock import SystemClock
from broker.maintenance.fsck import fsck
from broker.storage.objectstore.file import FileStore
from tests.golden.generate_store import IDS, IDS_LISTED, IDS_PAGED, STORES, expectation, publish_id
from tests.harness import BrokerProcess


@pytest.mark.parametrize("path", sorted(STORES.glob("*.tar.xz")), ids=lambda path: path.name.removesuffix(".tar.xz"))
async def test_an_upgrade(path: Path, tmp_path: Path) -> None:
    """Shows that each stream, message and consumer is unchanged, that more can be published, and that after a stop the
    store is sound and complete."""
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    wanted = json.loads((tmp_path / "expected.json").read_text())
    store = tmp_path / "store"
    async with BrokerProcess("--store", f"file://{store}") as broker:
        client = await nats.connect(broker.url)
        assert (await expectation(client, wanted)) == wanted
        assert (await client.jetstream().publish("holes", b"new")).seq == wanted["HOLES"]["state"]["last_seq"] + 1
        if IDS in wanted:
            for seq in range(1, IDS_PAGED + IDS_LISTED + 1):
                assert await publish_id(client, seq) == (seq, True)
        await client.close()
        await broker.stop()
        checked = await fsck(FileStore(store), SystemClock(), random.Random(1))
        assert checked.problems == []
        await broker.start()
        client = await nats.connect(broker.url)
        again = await expectation(client, wanted)
        assert again["HOLES"]["state"]["messages"] == wanted["HOLES"]["state"]["messages"] + 1
        # The sources and mirrors of HOLES and ALL have received the new message.
        for name in wanted.keys() - {"HOLES", "ALL"}:
            assert again[name] == wanted[name]
        await client.close()
