"""Messages that fill a segment by themselves are acknowledged like others."""

from __future__ import annotations

from pathlib import Path

import nats
import pytest

from jetblock import Broker

MIB = 1 << 20


@pytest.mark.parametrize("journal", [True, False])
async def test_each_message_gets_its_pub_ack(journal: bool, tmp_path: Path) -> None:
    """Large and small messages in turn, one at a time: a large one closes the open segment while it is published."""
    async with Broker(tmp_path, settings={"clients.max_payload": 16 * MIB, "storage.journal": journal}) as broker:
        client = await nats.connect(broker.url)
        js = client.jetstream(timeout=60)
        await js.add_stream(name="LARGE", subjects=["large"])
        for number, size in enumerate((9 * MIB, 9 * MIB, 5 * MIB, 0, 9 * MIB, 100, 2 * MIB, 0), 1):
            assert (await js.publish("large", bytes(size))).seq == number
        await client.close()
