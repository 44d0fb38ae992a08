"""``jetblock adopt`` without its arguments: takes a shard, carries out the requests in its inbox, and gives it back.

Streams are opened as a broker opens them, so limits, duplicate windows and consumers are respected as they are there.
What becomes due meanwhile (messages that are too old, scheduled ones, mirrors) happens as with a broker.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping

from broker.access.accounts import AccountLimits, AccountSettings
from broker.base.clock import GuardedClock
from broker.base.errors import StartError, StoreInUse
from broker.config.settings import Settings
from broker.jetstream.engine import JetStream
from broker.jetstream.inbox.inbox import Carried, Inbox, InboxSettings
from broker.jetstream.wire.errors import ApiError
from broker.runtime.shard_set import ShardSet
from broker.runtime.store_host import StoreHost
from broker.server.accounts.directory import wanted_accounts
from broker.server.routing.router import Router
from broker.storage.objectstore.base import StoreError
from broker.storage.shard import Shard

__all__ = ["Owned", "adopt"]

_log = logging.getLogger(__name__)


class Owned(Exception):
    """A broker owns the store."""


async def adopt(settings: Settings) -> list[Carried]:
    """Carry out all requests in the inbox of the store that ``settings`` name; returns what became of each.

    Raises: Owned; StartError when the store cannot be used; StoreError.
    """
    clock, rng = GuardedClock(), random.Random()
    lost: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    def report_loss(error: BaseException) -> None:
        if not lost.done():
            lost.set_result(error)

    host = StoreHost(settings.storage, settings.server_name, clock, lambda: settings.clients.max_payload)
    owners = ShardSet(host, report_loss)
    js = JetStream(clock, rng, settings.jetstream)
    accounts = {one.name: one for one in wanted_accounts(settings.accounts).values()}
    most = settings.clients.max_payload
    try:
        await host.check(must_exist=True)
        shards = await _acquire(owners, host.store.url)
        _add_accounts(js, clock, rng, accounts,
                      {stream.account for shard in shards for stream in shard.state.streams.values()})
        inbox = InboxSettings(
            poll_ns=None, staged_grace_ns=settings.storage.staged_grace_ns,
            max_payload=lambda name: accounts[name].payload_bytes_max(most) if name in accounts else most)
        for owner, shard in zip(owners, shards, strict=True):
            await js.open(shard.number, shard.log, owner.reader, release_runs=shard.sweeper.release_runs,
                          eraser=shard.eraser, inbox=inbox, more=shard is not shards[-1])
        carried = asyncio.create_task(
            _carry_out([shard.inbox for shard in js.shards.values() if shard.inbox is not None]), name="inbox")
        await asyncio.wait((carried, lost), return_when=asyncio.FIRST_COMPLETED)
        if not carried.done():
            carried.cancel()
            raise Owned(f"another broker took the store meanwhile: {lost.result()}")
        return await carried
    finally:
        await js.close(notify=not owners.failed)
        await owners.give_back()
        await host.close()


async def _carry_out(inboxes: list[Inbox]) -> list[Carried]:
    """Carry out all requests, then delete old staged runs. Raises: StoreError if the requests cannot be listed."""
    done = [carried for inbox in inboxes for carried in await inbox.carry_out_all()]
    try:
        for inbox in inboxes:
            await inbox.sweep()
    except StoreError as error:
        _log.warning("staged runs that nobody asked for are swept another time: %s", error)
    return done


async def _acquire(owners: ShardSet, url: str) -> list[Shard]:
    """Acquire the shards. Raises: Owned; StartError."""
    try:
        return await owners.acquire(wait=False)
    except StoreInUse:
        raise Owned(f"{url}: a broker owns the store. It looks at its inbox by itself, and at once when it is asked "
                    f"to by $JS.API.JETBLOCK.ADOPT") from None


def _add_accounts(js: JetStream, clock: GuardedClock, rng: random.Random, configured: Mapping[str, AccountSettings],
                  stored: set[str]) -> None:
    """Add the accounts that have streams, with their configured limits. Raises: StartError."""
    loop = asyncio.get_running_loop()
    for name in sorted(stored):
        account = configured.get(name)
        limits = account.jetstream if account is not None and account.jetstream is not None else AccountLimits()
        try:
            js.add_account(name, Router(clock, rng, loop.call_soon, name), limits)
        except ApiError as error:
            raise StartError(f"account {name!r}: {error}") from None
