"""Arrivals: streams that come into this broker's shards from others, from the entry in the catalogue on.

    catalogue says from, to      (1) read the stream in the other shard, and answer that this broker is ready
    departure is persisted       (2) read what was added since, hold requests about the stream
                                 (3) store the stream's state as it was then: the arrival
    arrival is persisted         (4) ask the other owner for what it holds, serve the stream; again, if that fails

Only a departure in the store is acted upon. A crash leaves the stream on its way before step 3, and here after it: the
shard's next owner begins anew, or restores the stream like any other.

Does not own: what the catalogue says (writer), the other shard's side (departures), the records' effect
(storage.state).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Coroutine, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol

from broker.base.within import within
from broker.jetstream.account.held import msgs_of
from broker.jetstream.account.unused import UnusedStream
from broker.jetstream.owners.departures import Departures
from broker.jetstream.owners.persisted import PersistedShards
from broker.jetstream.owners.requests import HeldRequests, Requests
from broker.jetstream.owners.serving_again import serve_again
from broker.jetstream.owners.stream_tasks import StreamTasks
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.storage.format.errors import CutOff, FormatError, KeyMissing
from broker.storage.format.records.arrival import Arrival
from broker.storage.objectstore.base import StoreError
from broker.storage.put import Fenced
from broker.storage.state.erasures import REMAINS
from broker.storage.state.stream_entry import pack_whole

if TYPE_CHECKING:
    from broker.jetstream.account.account import Account
    from broker.jetstream.bus import Msg
    from broker.jetstream.owners.peers import Peers
    from broker.jetstream.shard_streams import ShardStreams
    from broker.storage.format.records.catalogue import CatalogueEntry
    from broker.storage.state.stream import StreamState

__all__ = ["Arrivals", "StoredStream"]

_log = logging.getLogger(__name__)

_POLL_SECONDS: Final = 1.0
_RELEASE_SECONDS: Final = 0.5
_OPEN_SECONDS: Final = 5.0


class StoredStream(Protocol):
    """A stream of any shard, as far as it is persisted."""

    async def read(self) -> StreamState | None:
        """Return the state, with its message ids, that includes everything persisted when this call began.

        Raises: StoreError, FormatError, CutOff.
        """


class Arrivals:
    """The streams that come into ``shards``, which are this broker's; those in ``serving`` are not about to be closed.

    Args: ``read(shard, account, name, stream_id)`` returns a stream of another shard; ``applied(shard)`` is called
        once a stream serves here; ``moves(entry)`` returns whether the catalogue, as last read, has the entry
        unchanged; ``flushed(account)``: see ``Answers``.
    """

    def __init__(self, shards: Mapping[int, ShardStreams], serving: Container[int], accounts: Mapping[str, Account],
                 peers: Peers, requests: Requests, persisted: PersistedShards, departures: Departures,
                 changing: Callable[[int], AbstractContextManager[None]], *,
                 flushed: Callable[[str], Coroutine[Any, Any, None]],
                 moves: Callable[[CatalogueEntry], bool], read: Callable[[int, str, str, int], StoredStream],
                 applied: Callable[[int], object]) -> None:
        self._shards = shards
        self._serving = serving
        self._accounts = accounts
        self._peers = peers
        self._requests = requests
        self._flushed = flushed
        self._persisted = persisted
        self._departures = departures
        self._changing = changing
        self._moves = moves
        self._read = read
        self._applied = applied
        self._tasks = StreamTasks("receive a stream")
        self._ready: dict[int, asyncio.Event] = {}

    def begin(self, entry: CatalogueEntry, shard: ShardStreams) -> None:
        """Let a stream come into one of our shards, which serves; do nothing if that is being done."""
        self._tasks.begin(entry.stream_id, lambda: self._come(entry, shard))

    def expects(self, stream_id: int) -> bool:
        """Return whether a stream is about to come."""
        return stream_id in self._ready

    async def read_once(self, stream_id: int) -> None:
        """Return once what a stream that is about to come has so far was read."""
        if (event := self._ready.get(stream_id)) is not None:
            await event.wait()

    async def stop(self) -> None:
        """Stop all of them."""
        await self._tasks.stop()

    # --- one stream ---------------------------------------------------------------------------------------------------

    async def _come(self, entry: CatalogueEntry, shard: ShardStreams) -> None:
        ready = self._ready[entry.stream_id] = asyncio.Event()
        try:
            await self._until_come(entry, shard, ready)
        finally:
            del self._ready[entry.stream_id]

    async def _until_come(self, entry: CatalogueEntry, shard: ShardStreams, ready: asyncio.Event) -> None:
        assert entry.to is not None
        source = self._read(entry.shard, entry.account, entry.name, entry.stream_id)
        while self._is_expected(entry, shard):
            self._persisted.changed.clear()
            try:
                if entry.stream_id in shard.log.state.streams and not ready.is_set():
                    await shard.log.persisted()  # it may be about to be forgotten: a block is of one state of a stream
                state = await source.read()
                ready.set()
                if (state is not None and state.departed == entry.to and REMAINS not in state.extra
                        and shard.available):  # once its lease has expired, it may be another broker's
                    with self._changing(entry.stream_id):
                        await self._arrive(entry, shard, state)
                    return
            except (ApiError, StoreError, FormatError, CutOff, KeyMissing, ValueError) as error:
                _log.warning("stream %s > %s cannot come into shard %d yet: %s", entry.account, entry.name, entry.to,
                             error)
            except Fenced:
                return
            except Exception:
                _log.exception("stream %s > %s cannot come into shard %d", entry.account, entry.name, entry.to)
                await asyncio.sleep(_POLL_SECONDS)
            await within(self._persisted.changed.wait(), _POLL_SECONDS)

    def _is_expected(self, entry: CatalogueEntry, shard: ShardStreams) -> bool:
        if (entry.to is None or entry.to not in self._serving or self._shards.get(entry.to) is not shard
                or shard.log.failure is not None or not self._moves(entry)):
            return False
        here = shard.log.state.streams.get(entry.stream_id)
        return here is None or here.departed is not None

    async def _arrive(self, entry: CatalogueEntry, shard: ShardStreams, state: StreamState) -> None:
        """Store the stream here, and serve it. Raises: ApiError, ValueError; StoreError, Fenced."""
        account = self._accounts.get(entry.account)
        if account is None:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
        requests = self._requests.hold(entry.account, entry.name)
        try:
            await self._store_and_serve(entry, shard, state, account, requests)
        finally:
            requests.end()

    async def _store_and_serve(self, entry: CatalogueEntry, shard: ShardStreams, state: StreamState, account: Account,
                               requests: HeldRequests) -> None:
        shard.log.settings.codec.adopt(state.stream_id)
        shard.log.block(UnusedStream(state)).add(Arrival(entry.shard, pack_whole(state)))
        shard.log.barrier()
        shard.log.urgent()
        await shard.log.persisted()
        await self._flushed(entry.account)  # from now on requests come here, too
        msgs, acks, requests_there = await self._held(entry)
        openings = await serve_again(account, entry, shard.log, lambda: (
            self._shards.get(shard.number) is shard and shard.number in self._serving and shard.log.failure is None))
        if openings is None:
            return  # the next owner serves it
        account.deliver(entry.name, msgs, [])
        requests.stop_listening()
        self._requests.answer(entry.account, [*requests_there, *requests.take()])
        shard.erasure_marked()  # erasures of the stream go on here
        shard.streams += 1
        _log.info("stream %s > %s has come into shard %d from shard %d", entry.account, entry.name, shard.number,
                  entry.shard)
        self._applied(shard.number)
        if openings and acks:
            await asyncio.wait(openings, timeout=_OPEN_SECONDS)
            account.deliver(entry.name, [], acks)

    async def _held(self, entry: CatalogueEntry) -> tuple[list[Msg], list[Msg], list[Msg]]:
        """Return the publishes, acks and requests that the other owner holds; none if it does not answer."""
        answer: dict[str, Any]
        try:
            if entry.shard in self._shards:
                answer = await self._departures.release(entry.stream_id)
            else:
                answer = await self._peers.ask_owner(entry.shard, {"do": "release", "id": entry.stream_id},
                                                     _RELEASE_SECONDS)
            return msgs_of(answer["msgs"]), msgs_of(answer["acks"]), msgs_of(answer["requests"])
        except (ApiError, KeyError, TypeError, ValueError):
            return [], [], []  # clients repeat what is not answered
