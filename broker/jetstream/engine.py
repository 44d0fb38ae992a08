"""JetStream of one broker: its accounts, and the shards that hold their streams.

    JetStream ── Api: $JS.API.> ── Account "$G" ── streams
        │     ├─ DisabledApi: $JS.API.>           (an account without JetStream: 10039)
        │     └─ SystemApi: $JS.API.>             (the system account)
        └─ ShardStreams: log, reader, inbox (streams with storage file); memory_log (storage memory)

Accounts may change at any time (``add_account``, ``change_limits``, ``remove_account``). Call ``listen`` at process
start, ``open`` when this broker gets the shard, and ``close`` when it loses the shard. Outside of ``open`` to
``close``, requests are answered with 10008. The streams of a removed account stay in the store, and are restored when
the account is added again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.access.accounts import AccountLimits
from broker.base.clock import Clock
from broker.config.settings import ClientSettings, JetStreamSettings
from broker.jetstream.account.account import Account
from broker.jetstream.account.external import ExternalFollowers
from broker.jetstream.account.quota import NO_ROOM, STORAGES, reserved
from broker.jetstream.api.dispatcher import Api
from broker.jetstream.api.first_use import load_first_used_later
from broker.jetstream.api.system import SystemApi
from broker.jetstream.api.waiting import Waiting
from broker.jetstream.catalogue import Catalogue
from broker.jetstream.inbox.inbox import InboxSettings
from broker.jetstream.inflight import BatchLimits, Inflight
from broker.jetstream.shard_streams import Merger, ShardStreams
from broker.jetstream.stream.dropping import BlockBudget
from broker.jetstream.usage import ServerUsage, Usage
from broker.jetstream.wire.advisories import SystemEvents
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.storage.log.memory_log import MemoryLog

if TYPE_CHECKING:
    from broker.jetstream.account.leafs import Leafs
    from broker.jetstream.api.disabled import DisabledApi
    from broker.jetstream.bus import Bus, Msg, Source, Subscription
    from broker.jetstream.config.consumer import ConsumerConfig
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.consumer.delivery.receiver import Receiver
    from broker.jetstream.owners.arrivals import StoredStream
    from broker.jetstream.owners.peers import Peers
    from broker.jetstream.owners.persisted import Shard
    from broker.jetstream.owners.shared_catalogue import SharedCatalogue
    from broker.jetstream.stream.shared.listeners import Listener
    from broker.jetstream.stream.stream import Stream
    from broker.jetstream.stream.upstream.link import Remote
    from broker.storage.erasure.eraser import Eraser
    from broker.storage.format.request import Version
    from broker.storage.log.log import Log
    from broker.storage.log.stream_log import StreamLog
    from broker.storage.read.reader import BlockReader
    from broker.storage.staging.answers import Answer
    from broker.storage.state.stream import StreamState

__all__ = ["JetStream"]

_log = logging.getLogger(__name__)

NO_LIMITS = AccountLimits()


class JetStream:
    """JetStream of one broker. It exists as long as the process, and has streams between ``open`` and ``close``.

    Args: ``settings`` from the configuration; ``direct_bytes_max`` are the bytes after which a batched direct get ends
        (nats-server: max_pending).
    Attributes:
        ``accounts``: the accounts that have JetStream, by name.
        ``apis``: the APIs of all accounts, by name.
        ``shards``: the shards that this broker owns, by number.
        ``catalogue``: the streams of other shards than 0.
        ``external``: the mirrors and sources of other accounts' streams; they retry when accounts share other things.
        ``receivers``: returns the receiver of a consumer that serves another protocol; None: there is none.
        ``upstreams``: returns the way to another NATS system, by account and API prefix (``Host.upstream``); None:
            there is none.
        ``leaf_nodes``: returns the leaf nodes of the server, or None; None: there are none.
    """

    receivers: Callable[[Stream, ConsumerConfig], Receiver | None] | None = None
    upstreams: Callable[[str, str], Remote | None] | None = None
    leaf_nodes: Callable[[], Leafs | None] | None = None

    def __init__(self, clock: Clock, rng: random.Random, settings: JetStreamSettings | None = None, *,
                 server_name: str = "jetblock", direct_bytes_max: int = ClientSettings().max_pending) -> None:
        self.settings = settings or JetStreamSettings()
        self.server_name = server_name
        self.direct_bytes_max = direct_bytes_max
        self.clock = clock
        self.rng = rng
        self.accounts: dict[str, Account] = {}
        self.apis: dict[str, Api | DisabledApi] = {}
        self._system_api: SystemApi | None = None
        self._system_events: SystemEvents | None = None
        self.shards: dict[int, ShardStreams] = {}
        self.catalogue = Catalogue(self.shards, clock)
        self.shared: SharedCatalogue | None = None
        """The catalogue if other brokers own shards of the store, too; None if this broker owns all."""
        self._complete = False
        """True once all shards are open."""
        self._listening = False
        self._memory_log: MemoryLog | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping: dict[str, asyncio.Task[None]] = {}
        limits = self.settings.server
        self.external = ExternalFollowers()
        self._waiting = Waiting(self.settings, self._publish_dropped)
        self._inflight = Inflight(BatchLimits.of(limits))
        self._budget = BlockBudget(
            lambda: [stream for account in self.accounts.values() for stream in account.streams.values()], clock)
        self._usage = {storage: ServerUsage(storage, limits.bytes_max(storage)) for storage in STORAGES}

    @property
    def available(self) -> bool:
        """True if all shards of this broker are open, and the proof of owning them is fresh."""
        return self._complete and all(shard.available for shard in self.shards.values())

    def serves(self, stream: Stream | None) -> bool:
        """Return whether requests about a stream may be answered, or, for None, those about an account."""
        if self.shared is None:
            return self.available
        if stream is None:
            return self.shared.leads and self.shards[0].available
        return all(shard.available for shard in self.shards.values() if shard.log is stream.log)

    @property
    def leads(self) -> bool:
        """See ``Host.leads``."""
        return self.shared is None or self.shared.leads

    @property
    def subscribe_api(self) -> Callable[[str], Callable[[str], list[Subscription]]] | None:
        """See ``Host.subscribe_api``."""
        return None if self.shared is None else self._subscriber_of

    def _subscriber_of(self, account: str) -> Callable[[str], list[Subscription]]:
        api = self.apis.get(account)
        return api.subscribe_stream if isinstance(api, Api) else lambda _: []

    @property
    def stuck(self) -> bool:
        """True if a shard's log stores nothing, or too many calls wait for it."""
        return any(shard.log.stuck or shard.log.waiting_bytes * 4 > shard.log.tail_bytes_max
                   for shard in self.shards.values())

    @property
    def leafs(self) -> Leafs | None:
        """The leaf nodes of the server; None if it has none."""
        return self.leaf_nodes() if self.leaf_nodes is not None else None

    @property
    def streaming(self) -> set[str]:
        """The accounts that have streams here."""
        return {name for name, account in self.accounts.items() if account.streams}

    @property
    def log(self) -> Log:
        """The log of the first shard, whose owner answers the requests that are about no stream."""
        return self._first_shard().log

    def wait(self, fn: Callable[..., object], *args: Any) -> None:
        """Call ``fn(*args)`` once everything sequenced so far in all shards is persisted."""
        logs = [shard.log for shard in self.shards.values()]
        for log in logs[1:]:
            fn, args = partial(log.wait, fn), args
        logs[0].wait(fn, *args)

    def shard_of(self, account: str, name: str) -> ShardStreams:
        """Return the shard of a stored stream; for any other name, the first shard."""
        for shard in self.shards.values():
            if shard.log.state.stream(account, name) is not None:
                return shard
        return self._first_shard()

    def stream_failed(self, stream: Stream, reason: str) -> None:
        """Remember until the shard's next start that ``stream`` cannot store anything, and why."""
        for shard in self.shards.values():
            if shard.log is stream.log:
                shard.failed_streams[stream.stream_id] = reason

    def share(self, peers: Peers, count: int, read: Callable[[int], Shard], *, idle_seconds: float,
              read_stream: Callable[[int, str, str, int], StoredStream], keep_seconds: float,
              ) -> SharedCatalogue:
        """Own some of the ``count`` shards of a store, beside other brokers. Call it before accounts are added.

        For the arguments, see ``SharedCatalogue``.
        """
        from broker.jetstream.api.request import Request
        from broker.jetstream.api.stream_requests import StreamRequests
        from broker.jetstream.api.streams import stream_info
        from broker.jetstream.owners.shared_catalogue import SharedCatalogue

        async def show(account: Account, stream: Stream) -> dict[str, Any]:
            api = self.apis[account.name]
            assert isinstance(api, Api)
            return await stream_info(Request(account, api.transfers, [], b"", b""), stream, dynamic=True, domain=False)

        async def flushed(account: str) -> None:
            if (leafs := self.leafs) is not None:
                await leafs.flushed(account)

        self.catalogue = self.shared = SharedCatalogue(
            self.shards, self.accounts, peers, StreamRequests(self.apis), count, read, self.rng,
            idle_seconds=idle_seconds, flushed=flushed, show=show, read_stream=read_stream, clock=self.clock,
            keep_seconds=keep_seconds)
        return self.shared

    def _first_shard(self) -> ShardStreams:
        if not self.shards:
            raise RuntimeError("JetStream is not open")
        return self.shards[min(self.shards)]

    # --- accounts -----------------------------------------------------------------------------------------------------

    def add_account(self, name: str, bus: Bus, limits: AccountLimits | None = NO_LIMITS) -> asyncio.Future[None]:
        """Serve an account on its ``bus``; its stored state is restored, now or at ``open``.

        Args: ``limits`` None: JetStream is not enabled for the account, and every request gets 10039.
        Returns: a future that is done once the streams are restored, or at once while JetStream is not open.
        Raises: ApiError 10028, 10047 if the limits of all accounts exceed the server's; ValueError: the account exists.
        """
        from broker.jetstream.api.disabled import DisabledApi

        if name in self.apis:
            raise ValueError(f"account {name} has been added already")
        api: Api | DisabledApi
        restored = _done()
        if limits is None:
            api = DisabledApi(name, bus, self.clock, self.rng, self.settings, self.server_name, self._show)
        else:
            self._check_limits(name, limits)
            account = self.accounts[name] = Account(self, name, bus, self.clock, self.rng, self.settings, limits)
            api = Api(account, self.rng, self._waiting, self._show, self.shared)
            if self.shared is not None:
                self.shared.account_added(account)
            if self.shards:
                restored = self._start(self._restore_later(account), "restore account")
        self.apis[name] = api
        if self._listening and (self.shared is None or 0 in self.shards):
            api.start()
        return restored

    def change_limits(self, name: str, limits: AccountLimits | None) -> asyncio.Future[None]:
        """Change an account's limits; None disables JetStream for it. Existing streams stay, even if they exceed the
        limits.

        Returns: as ``remove_account`` if this disables JetStream, otherwise as ``add_account``.
        Raises: ApiError as ``add_account``, and nothing has changed; KeyError: there is no such account.
        """
        api, account = self.apis[name], self.accounts.get(name)
        if account is not None and limits is not None:
            self._check_limits(name, limits)
            account.change_limits(limits)
        elif account is not None or limits is not None:
            if limits is not None:
                self._check_limits(name, limits)
            removed = self.remove_account(name)
            added = self.add_account(name, api.bus, limits)
            return removed if limits is None else added
        return _done()

    def remove_account(self, name: str) -> asyncio.Future[None]:
        """Stop serving an account: its requests get no answer from now on, and its stored streams stay in the store.

        Returns: a future that is done once everything that its streams had sequenced is stored. The account may be
            added again before that.
        Raises: KeyError: there is no such account.
        """
        api, account = self.apis.pop(name), self.accounts.pop(name, None)
        api.stop_listening()
        self.external.wake_all()
        task = self._start(self._stop_account(api, account, self._stopping.get(name)), "remove account")
        self._stopping[name] = task
        task.add_done_callback(lambda _: self._account_stopped(name, task))
        return task

    def serve_system(self, name: str, bus: Bus) -> None:
        """Answer the API in the system account, which is none of ``apis``. Call it before ``listen``."""
        self._system_api = SystemApi(name, bus, self.settings.domain, self.purge)
        self._system_events = SystemEvents(bus, self.clock, self.rng, self.settings.domain, self.server_name)

    def _publish_dropped(self, requests: int) -> None:
        if self._system_events is not None:
            self._system_events.limit_reached(requests)

    def _show(self, request: Msg, source: Source | None) -> None:
        if self._system_api is not None:
            self._system_api.show(request, source)

    def purge(self, name: str) -> asyncio.Task[None]:
        """Delete all streams of an account, including stored ones that are not served here; the account stays.

        It leaves streams that are being restored from an archive, and streams that cannot store anything.
        Returns: a task that is done once the deletions are stored.
        Raises, when awaited: ApiError 10008; StoreError, FormatError.
        """
        task = self._start(self._purge(name, self._stopping.get(name)), "purge account")
        # The account's streams are not restored in between: they are in the applied state until the deletions are
        # stored.
        self._stopping[name] = task
        task.add_done_callback(lambda _: self._account_stopped(name, task))
        return task

    async def _purge(self, name: str, before: asyncio.Task[None] | None) -> None:
        from broker.jetstream.purging import purge_account

        if before is not None:
            await asyncio.wait([before])
        await purge_account(name, self.accounts.get(name), self.shards, self.catalogue, self.shared)

    async def _stop_account(self, api: Api | DisabledApi, account: Account | None,
                            before: asyncio.Task[None] | None) -> None:
        try:
            if before is not None:
                await asyncio.wait([before])
            await api.stop()
            if account is None:
                return
            await account.consumers.openings.cancel()
            account.prepare_shutdown()
        finally:
            if account is not None:
                account.release()
        for shard in list(self.shards.values()):
            await shard.log.persisted()

    def _account_stopped(self, name: str, task: asyncio.Task[None]) -> None:
        if self._stopping.get(name) is task:
            del self._stopping[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("changes of the streams of account %s could not be stored: %s", name, error)

    async def _restore_later(self, account: Account) -> None:
        """Restore an account after everything sequenced before its removal is in the applied state."""
        while stopping := self._stopping.get(account.name):
            await asyncio.wait([stopping])
        if self.shards and self.accounts.get(account.name) is account:
            self._restore(account, self.shards.values())

    def _restore(self, account: Account, shards: Iterable[ShardStreams]) -> list[asyncio.Task[None]]:
        return account.restore([state for shard in shards for state in shard.log.state.streams.values()
                                if state.account == account.name])

    def _check_limits(self, name: str, limits: AccountLimits) -> None:
        """Check an account's limits against the server's, with the reservations of all accounts and streams.

        Raises: ApiError 10028, 10047 if they exceed the server's limits.
        Source: nats-server, server/jetstream.go sufficientResources.
        """
        account = self.accounts.get(name)
        for storage in STORAGES:
            server_max = self.settings.server.bytes_max(storage)
            had = account.limits.bytes_max(storage) if account is not None else 0
            more = max(limits.bytes_max(storage), 0) - max(had, 0)
            given = sum(max(other.limits.bytes_max(storage), 0) for other in self.accounts.values())
            if more > 0 and 0 <= server_max < more + max(given, self.reserved(storage)):
                raise ApiError(NO_ROOM[storage])

    # --- life ---------------------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Start answering the API, with 10008 until ``open``."""
        self._listening = True
        if self.shared is None:
            for api in self._all_apis():
                api.start()

    async def load_modules(self) -> None:
        """Load the modules that the first request needs, after a while."""
        await load_first_used_later()

    async def open(self, shard: int, log: Log, reader: BlockReader, *, wait_seconds: float = 5.0,
                   inbox: InboxSettings | None = None,
                   release_runs: Callable[[Sequence[str]], object] = lambda keys: None, eraser: Eraser | None = None,
                   merger: Merger | None = None, more: bool = False) -> None:
        """Restore the streams and consumers of ``log.state``, the state of ``shard``, which this broker now owns.

        Return once the consumers serve, or after ``wait_seconds``. Consumers whose messages take long to count continue
        opening after that.
        Args: ``inbox``: how often the shard's inbox is read, None: only on request; ``release_runs(keys)`` deletes runs
            that nothing will ever name; ``eraser``: the shard's, None: no bytes of removed messages are erased;
            ``merger``: moves blocks of streams that move to other shards, None: no stream does; ``more``: other shards
            follow, and no request is served before the last one.
        """
        opened = self.shards[shard] = ShardStreams(shard, log, reader, self, self._budget)
        opened.merger = merger
        if shard == 0:
            self.catalogue.open(log.state.catalogue)
        if self._memory_log is None:
            self._memory_log = MemoryLog(log.clock_trusted)
            self._budget.start()
        unknown = Counter(state.account for state in log.state.streams.values() if state.account not in self.accounts)
        for name, count in unknown.items():
            _log.warning("%d streams of account %s stay in the store unused: "
                         "there is no such account here with JetStream", count, name)
        openings = [opening for account in self.accounts.values() for opening in self._restore(account, (opened,))]
        self._complete = not more
        if self.shared is not None:
            self.shared.opened(shard)
            if not shard:
                for api in self._all_apis():
                    api.start()
        if openings:
            await asyncio.wait(openings, timeout=wait_seconds)
        settings, writing = inbox or InboxSettings(poll_ns=None), self._inflight.writing
        writing.in_thread, writing.release_runs = settings.in_thread, release_runs
        opened.start_inbox(self.clock, settings, release_runs, open_runs=writing.keys)
        if eraser is not None:
            opened.start_erasing(eraser)

    async def close_shard(self, number: int, *, given: bool = False) -> None:
        """Drop the streams and consumers of one shard at once.

        Args: ``given``: another broker takes the shard now, so waiting pull requests are notified, and each stream
            writes its last record, as by ``close``. Otherwise it was lost: nothing is written, and no client is
            notified.
        """
        shard = self.shards.get(number)
        if shard is None or self.shared is None:
            return
        self.shared.closing(number)
        if given:
            for account in self.accounts.values():
                account.prepare_shutdown(shard.log)
        logs: list[StreamLog] = [shard.log]
        if not number:
            for api in self._all_apis():
                await api.stop()
            if self._memory_log is not None:
                logs.append(self._memory_log)
        await shard.stop_inbox()
        for name, account in list(self.accounts.items()):
            for log in logs:
                names = [stream.name for stream in account.streams.values() if stream.log is log]
                api = self.apis[name]
                if names and isinstance(api, Api):
                    await api.drop_streams(names)
                await account.release_streams(log)
            account.release_offline(state.name for state in shard.log.state.streams.values()
                                    if state.account == name)
            self.shared.released(account, number)
        self.shards.pop(number, None)
        for account in list(self.accounts.values()):
            await account.release_streams(shard.log)  # those that were created in the meantime
        self.shared.closed(number)
        self.external.wake_all()

    async def close(self, *, notify: bool = False) -> None:
        """Drop all streams and consumers at once.

        Args: ``notify`` for a clean stop: waiting pull requests are notified, and each stream writes its last record,
            which is persisted when the log is drained, after this. Otherwise nothing is written and no client is
            notified.
        """
        if self.shared is not None:
            await self.shared.stop()
        for shard in self.shards.values():
            await shard.stop_inbox()
        if notify:
            for account in self.accounts.values():
                account.prepare_shutdown()
        for api in self._all_apis():
            await api.drop()
        await self._budget.stop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for account in self.accounts.values():
            account.upstreams.stop_all()
        for account in self.accounts.values():
            await account.consumers.openings.cancel()
            account.release()
        if self._memory_log is not None:
            self._memory_log.stop()
        self._memory_log = None
        self._complete = False
        self.shards.clear()

    async def stop(self) -> None:
        """Stop answering the API."""
        self._listening = False
        self._waiting.close()
        for api in self._all_apis():
            await api.stop()

    # --- for accounts (Host) ------------------------------------------------------------------------------------------

    def server_usage(self, storage: str) -> ServerUsage:
        """Return the bytes of all streams of a storage kind."""
        return self._usage[storage]

    def reserved(self, storage: str, *, except_stream: Stream | None = None) -> int:
        """Return the total max_bytes of all accounts' streams of a storage kind, except one stream; streams that are
        being created count."""
        return sum(reserved(account.streams, storage, except_stream=except_stream) + account.coming_bytes[storage]
                   + account.reserved_elsewhere(storage) for account in self.accounts.values())

    def stream(self, account: str, name: str) -> Stream:
        """Return the live stream of an account. Raises: ApiError, as that account's API answers."""
        found = self.accounts.get(account)
        if found is None:
            raise ApiError(ApiErrors.NOT_ENABLED_FOR_ACCOUNT)
        return found.stream(name)

    def receiver_of(self, stream: Stream, config: ConsumerConfig) -> Receiver | None:
        """Return the receiver of a consumer that serves another protocol than JetStream's; None for all others."""
        return None if self.receivers is None else self.receivers(stream, config)

    def upstream(self, account: str, api: str) -> Remote | None:
        """Return the way to an upstream of the account that answers below ``api``; None if there is none.

        Raises: ConnectionError: it is not connected now.
        """
        return None if self.upstreams is None else self.upstreams(account, api)

    async def carry_out(self, request_id: int, stream: Stream, version: Version | None) -> Answer:
        """Answer a request in the inbox of the stream's shard now. Raises: ApiError; StoreError."""
        inbox = self.shard_of(stream.account, stream.name).inbox if self.shards else None
        if inbox is None:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
        return await inbox.carry_out(request_id, stream, version)

    def make_stream(self, account: str, bus: Bus, config: StreamConfig, state: StreamState | None = None,
                    created_ns: int | None = None, *, listeners: Mapping[str, Listener], usage: Usage,
                    shard: int = 0, stream_id: int | None = None) -> Stream:
        """Make a live stream: a new one, or one restored from its persisted state.

        Args: ``created_ns`` is a new stream's time of creation, None for now; ``listeners`` are its consumers by name;
            ``usage`` counts its bytes; ``shard`` is the number of a new stream's shard, ``stream_id`` its incarnation,
            None for a random one.
        """
        from broker.jetstream.stream.stream import Stream

        of = self.shards[shard] if state is None else self.shard_of(account, config.name)
        assert self._memory_log is not None
        memory = config.storage == "memory"
        if state is not None:
            created_ns = state.created_ns
        elif created_ns is None:
            created_ns = self.clock.now_ns()
        stream = Stream(
            config, state, account=account,
            stream_id=state.stream_id if state is not None else stream_id or of.new_stream_id(self.rng),
            created_ns=created_ns,
            log=self._memory_log if memory else of.log, reader=of.reader, bus=bus, clock=self.clock, rng=self.rng,
            domain=self.settings.domain, usage=usage, inflight=self._inflight, listeners=listeners)
        stream.on_loaded = self._budget.changed
        stream.erasures.on_marked = of.erasure_marked
        return stream

    def _all_apis(self) -> list[Api | DisabledApi | SystemApi]:
        return [*self.apis.values(), *([self._system_api] if self._system_api is not None else [])]

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _done() -> asyncio.Future[None]:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done
