"""kill -9 at random moments while a work queue and an interest stream are filled and drained; ``queue_load`` has the
checks.

The seed of the moments is printed on failure and read from JETBLOCK_KILL_SEED; JETBLOCK_KILL_ROUNDS sets the number of
kills.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from tests.adversity.clients import connect
from tests.adversity.queue_load import QueueLoad
from tests.harness import BrokerProcess

pytestmark = pytest.mark.asyncio

ROUNDS = int(os.environ.get("JETBLOCK_KILL_ROUNDS", "3"))


@pytest.mark.shows("consumer.survives", "store.kill")
async def test_work_queues_survive_kills(tmp_path: Path) -> None:
    """Publishers wait for PubAcks, consumers for the answers to their acks; the broker is killed meanwhile."""
    seed = int(os.environ.get("JETBLOCK_KILL_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"JETBLOCK_KILL_SEED={seed}")
    rng = random.Random(seed)
    async with BrokerProcess("-js", "-sd", str(tmp_path)) as broker:
        load = QueueLoad(broker.url)
        nc = await connect(broker.url)
        js = nc.jetstream()
        await load.make(js)
        publishers = [asyncio.create_task(one) for one in load.publishers()]
        consumers = [asyncio.create_task(one) for one in load.consumers()]
        for _ in range(ROUNDS):
            load.moved.clear()
            async with asyncio.timeout(30):
                await load.moved.wait()
            await asyncio.sleep(rng.random() * 0.4)
            await broker.kill()
            await broker.start()
        async with asyncio.timeout(60):
            load.stop.set()
            await asyncio.gather(*publishers)
            await asyncio.gather(*consumers)
        await load.check(js)
        await nc.close()
