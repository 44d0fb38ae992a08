"""The busy shards of a store share one ``commit_interval``: real logs in virtual time, and the rule alone."""

from __future__ import annotations

import asyncio

import pytest

from broker.storage.log.commit_budget import CommitBudget
from broker.storage.objectstore.memory import MemoryStore
from tests.cluster.test_heartbeat import Process
from tests.runtime.brokers import TrustedClock, in_virtual_time
from tests.storage.rig import SECOND, Stream


@pytest.mark.parametrize(("busy", "trickling", "puts", "slowest"), [(1, 3, 53, 0.1), (4, 0, 50, 0.2), (8, 0, 50, 0.3)])
def test_puts_do_not_grow_with_the_number_of_busy_shards(busy: int, trickling: int, puts: int, slowest: float) -> None:
    """All shards together put once in 20 ms, and a shard with few commits slows no other one down.

    Args: puts: a second, at most, in all. slowest: seconds that a commit waits.
    """
    async def main(clock: TrustedClock) -> None:
        process = Process("a", MemoryStore(), clock, 1, busy + trickling)
        streams = [Stream(shard.log, 100 + shard.number) for shard in await process.shards.acquire()]
        waits: list[float] = []

        async def publish(stream: Stream, pause: float) -> None:
            stream.create()
            while True:
                began_ns = clock.monotonic_ns()
                stream.publish()
                await stream.log.persisted()
                waits.append((clock.monotonic_ns() - began_ns) / SECOND)
                await asyncio.sleep(pause)

        tasks = [asyncio.create_task(publish(stream, 0.001 if number < busy else 1.0))
                 for number, stream in enumerate(streams)]
        await asyncio.sleep(20)
        process.store.counts.clear()
        waits.clear()
        await asyncio.sleep(20)
        assert process.store.counts["put"] / 20 <= puts * 1.1
        assert max(waits) < slowest
        for task in tasks:
            task.cancel()

    in_virtual_time(main)


class Log:
    """A log that would put so often."""

    def __init__(self, wanted: float) -> None:
        self.wanted = wanted
        self.commit_count = 0
        self.shards = 1.0

    def share_interval(self, shards: float) -> None:
        self.shards = shards

    def run(self, seconds: float) -> None:
        self.commit_count += round(min(self.wanted, 50 / self.shards) * seconds)


@pytest.mark.parametrize(("wanted", "others", "shards"), [
    ([50.0], 0.0, 1.0), ([50.0, 50.0], 0.0, 2.0), ([50.0] * 8, 0.0, 8.0), ([24.0] * 8, 0.0, 8.0), ([4.0] * 8, 0.0, 1.0),
    ([50.0], 3.0, 4.0), ([0.0, 0.0], 3.0, 3.0), ([0.0], 0.0, 1.0)])
def test_the_rule(wanted: list[float], others: float, shards: float) -> None:
    """The number of shards that share the interval, for the puts a second that each shard wants."""
    budget, logs = CommitBudget(20_000_000), [Log(one) for one in wanted]
    budget.others = lambda: others
    for second in range(60):
        budget.measure(logs, second * SECOND)
        for log in logs:
            log.run(1)
    assert logs[0].shards == pytest.approx(shards, rel=0.15)
