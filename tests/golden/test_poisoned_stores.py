"""Stores in which an earlier version stored times that it could not read back: today's broker opens them."""

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
from tests.golden.generate_store import STORES
from tests.harness import BrokerProcess

POISONED = STORES / "poisoned"
"""Stores with an ``expected.json``: for each stream, the sequences that were acknowledged on its subject
``STREAM.data``.

schedule-after-2262: three streams with schedules that are due in 2300, 2266 and 2554. These were stored although their
publishers got no answer. There are messages and consumers' acks before and after them; then a start that took the three
streams offline, and a kill.
"""


@pytest.mark.parametrize("name", ["schedule-after-2262"])
async def test_all_acknowledged_messages_are_there(name: str, tmp_path: Path) -> None:
    """Shows that every message is read, one more can be published, and a stop with a checkpoint changes nothing."""
    with tarfile.open(POISONED / f"{name}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    acked: dict[str, list[int]] = json.loads((tmp_path / "expected.json").read_text())
    store = tmp_path / "store"
    async with BrokerProcess("--store", f"file://{store}") as broker:
        for more in range(2):
            client = await nats.connect(broker.url)
            js = client.jetstream()
            for stream, seqs in acked.items():
                assert len(seqs) >= 30
                for number, seq in enumerate(seqs, 1):
                    msg = await js.get_msg(stream, seq)
                    assert (msg.subject, msg.data) == (f"{stream}.data", b"message %d" % number)
                info = await js.stream_info(stream)
                assert info.state.last_seq >= seqs[-1]
                seqs.append((await js.publish(f"{stream}.data", b"message %d" % (len(seqs) + 1))).seq)
            consumer = await js.consumer_info("P0", "C")
            assert (consumer.ack_floor.stream_seq, consumer.num_ack_pending) == (10, 0)
            await client.close()
            await broker.stop()
            assert (await fsck(FileStore(store), SystemClock(), random.Random(1))).problems == []
            if not more:
                await broker.start()
