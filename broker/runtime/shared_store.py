"""A store that several brokers own: this one takes shards, serves their streams, and gives them away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from broker.jetstream.owners.giving import Giving
from broker.jetstream.owners.peers import Peers
from broker.jetstream.owners.roster import Line
from broker.runtime.costs import shared_cost
from broker.runtime.own_shards import OwnShards
from broker.storage.read.followed import FollowedShard, FollowedStream

if TYPE_CHECKING:
    from broker.jetstream.engine import JetStream
    from broker.maintenance.scrub import Finding
    from broker.runtime.shard_owner import ShardOwner
    from broker.runtime.store_host import StoreHost
    from broker.server.routing.router import Router
    from broker.storage.shard import Shard

__all__ = ["SharedStore"]

log = logging.getLogger(__name__)

_CATALOGUE_SECONDS: Final = 1.0
"""On a directory, the interval at which the catalogue is read if another broker owns it and sends no hint."""

_REACH_SECONDS: Final = 1.0
_CUT_OFF_LEASES: Final = 2

_NAMES_SHOWN: Final = 5


class SharedStore:
    """The store of ``host``, whose streams ``jetstream`` serves.

    Args: ``system``: the subjects of the system account; ``server_id``, ``name``: of this broker;
        ``open_shard(owner, shard)`` opens the streams of a shard; ``connected()``: other servers are;
        ``has_clients()``: clients are connected; ``fail(why)`` ends the process; ``damaged``: as for ``ShardOwner``.
    """

    def __init__(self, host: StoreHost, jetstream: JetStream, system: Router, server_id: str, name: str, *,
                 open_shard: Callable[[ShardOwner, Shard], Awaitable[object]], fail: Callable[[str], object],
                 connected: Callable[[], bool], has_clients: Callable[[], bool],
                 damaged: Callable[[Finding], object]) -> None:
        self._host = host
        self._jetstream = jetstream
        self._open_shard = open_shard
        self._fail = fail
        self._connected = connected
        self._has_clients = has_clients
        self._watching: asyncio.Task[None] | None = None
        settings, clock = host.settings, jetstream.clock
        peers = Peers(system, host.store_id.hex())

        def read(number: int) -> FollowedShard:
            wanted = None if number else lambda account, stream: False
            return FollowedShard(host.store, number, clock, host.rng, wanted,
                                 read_keys=None if host.masters is None else host.read_keys)

        def read_stream(number: int, account: str, name: str, stream_id: int) -> FollowedStream:
            return FollowedStream(host.store, number, account, name, stream_id, clock, host.rng,
                                  read_keys=None if host.masters is None else host.read_keys)

        idle_seconds = settings.lease_ns / 3e9
        if host.store.try_lock is not None:
            idle_seconds = min(idle_seconds, _CATALOGUE_SECONDS)
        self._catalogue = jetstream.share(
            peers, settings.shards, read, idle_seconds=idle_seconds, read_stream=read_stream,
            keep_seconds=settings.reader_grace_ns / 1e9)
        self.shards = OwnShards(host, self, damaged=damaged)
        self._giving = Giving(self.shards, peers, Line(server_id, name, self.shards.own, {}), clock,
                              store={"store": host.store_id.hex(), "url": host.store.url},
                              why_fixed=self._why_fixed, interval_ns=settings.lease_ns,
                              prepare=self._prepare, busy=lambda: host.commit_budget.busy)
        host.commit_budget.others = lambda: sum(line.busy for line in self._giving.roster.others())

    def start(self) -> None:
        """Follow the catalogue, and answer the other brokers."""
        self._catalogue.start()
        self._giving.start()
        self._watching = asyncio.get_running_loop().create_task(self._watch_reach(), name="watch the connections")
        host = self._host
        if host.store.puts_cost:
            log.info("%s", shared_cost(host.settings.shards, host.settings.lease_ns, at_aws=host.store.at_aws))

    async def hand_over_all(self) -> None:
        """Give all shards to brokers that take them, before this one stops, and take no more."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._giving.stop()

    def ended(self, number: int) -> None:
        """See ``Services``."""
        self._catalogue.begin_to_settle(number)

    async def serve(self, owner: ShardOwner) -> None:
        """See ``Services``."""
        if (shard := owner.shard) is not None:
            await self._catalogue.settle(shard.log, shard.number)
            await self._open_shard(owner, shard)
            self._giving.opened(shard.number)

    async def close(self, number: int, *, given: bool) -> None:
        """See ``Services``."""
        self._giving.closed(number)
        await self._jetstream.close_shard(number, given=given)

    def fail(self, why: str) -> None:
        """See ``Services``."""
        self._fail(why)

    async def _watch_reach(self) -> None:
        """Give the shards up after two leases without a connection to another server, unless there are clients.

        Other brokers then take them, and the clients of the cluster can use the streams again.
        """
        clock, limit_ns = self._jetstream.clock, _CUT_OFF_LEASES * self._host.settings.lease_ns
        reached_ns = clock.monotonic_ns()
        while True:
            if self._connected():
                reached_ns = clock.monotonic_ns()
            self.shards.set_cut_off(clock.monotonic_ns() - reached_ns >= limit_ns, clients=self._has_clients())
            await asyncio.sleep(_REACH_SECONDS)

    async def _prepare(self, number: int, seconds: float) -> None:
        """Read what this broker needs before it takes a shard; return after so many seconds at the latest."""
        await asyncio.gather(self._catalogue.prepare(number, seconds), self._read_ahead(number, seconds))

    async def _read_ahead(self, number: int, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.shards.read_ahead(number)

    def _why_fixed(self, number: int) -> str:
        """Return why a shard cannot be given to another broker now, or ""."""
        shard = self._jetstream.shards.get(number)
        in_memory, restored = [], []
        for account in self._jetstream.accounts.values():
            in_memory += [f"{account.name}/{stream.name}" for stream in account.streams.values()
                          if not number and stream.config.storage == "memory"]
            restored += [f"{account.name}/{stream.name}" for stream in account.incoming.streams.values()
                         if shard is not None and stream.log is shard.log]
        if in_memory:
            return f"streams in memory would be lost: {_shown(in_memory)}"
        return f"streams are being restored: {_shown(restored)}" if restored else ""


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(sorted(names)[:_NAMES_SHOWN]) + more
