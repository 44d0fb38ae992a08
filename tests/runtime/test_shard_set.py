"""All shards of a store are taken together, by a lease as on S3, in virtual time."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

from broker.config.settings import StorageSettings
from broker.runtime.shard_set import ShardSet
from broker.runtime.store_host import StoreHost
from broker.storage.objectstore.memory import MemoryStore
from tests.runtime.brokers import Costly, Inline, TrustedClock, in_virtual_time
from tests.storage.rig import MS, SECOND

SHARDS = 4
LEASE_SECONDS = 15


class Process:
    """A process with all shards of a store."""

    def __init__(self, name: str, shared: MemoryStore, clock: TrustedClock, seed: int) -> None:
        self.store = Costly(shared, 30 * MS, 0, seed)
        with patch("broker.runtime.store_host.open_store", lambda *_, **__: self.store):
            host = StoreHost(StorageSettings(url="s3://x/y", scrub_interval_ns=0, shards=SHARDS), name,
                             clock, lambda: 1 << 20)  # type: ignore[arg-type]
        host.encoders = Inline()
        self.losses: list[BaseException] = []
        self.shards = ShardSet(host, self.losses.append)


def test_a_take_over_of_all_shards_takes_one_lease() -> None:
    """A killed owner's shards are taken after T, not one after the other; a clean stop releases all of them at once."""
    async def main(clock: TrustedClock) -> None:
        shared = MemoryStore()
        first, second, third = (Process(name, shared, clock, seed) for seed, name in enumerate("abc"))
        assert [shard.number for shard in await first.shards.acquire()] == list(range(SHARDS))
        taking = asyncio.create_task(second.shards.acquire())
        await asyncio.sleep(60)
        assert not taking.done()
        first.store.halt()
        began_ns = clock.monotonic_ns()
        taken = await taking
        assert LEASE_SECONDS - 5 < (clock.monotonic_ns() - began_ns) / SECOND < LEASE_SECONDS + 5
        assert [shard.log.epoch for shard in taken] == [2] * SHARDS
        await first.shards.abandon()
        taking = asyncio.create_task(third.shards.acquire())
        await asyncio.sleep(20)
        assert not taking.done()
        began_ns = clock.monotonic_ns()
        await second.shards.give_back()
        assert [shard.log.epoch for shard in await taking] == [3] * SHARDS
        assert (clock.monotonic_ns() - began_ns) / SECOND < 10
        await third.shards.give_back()
        assert not first.losses

    in_virtual_time(main)
