"""Departures: streams of this broker's shards that move to other shards, from the entry in the catalogue on.

    catalogue says to          (1) move the stream's blocks out of objects that it shares, while it is used
    the other owner is ready   (2) stop the stream, hold its publishes, acks and requests
                               (3) store its last records; move the last blocks
    departure is persisted     (4) from here on only the other shard may have it
    the other owner serves     (5) pass it what is held

The last blocks must be moved within ``HOLD_SECONDS``; otherwise the stream is restored here, and all is tried again
later. After a crash the shard's next owner begins anew before step 4, and has nothing to do after it.

Before step 3 the owner may give the move up: on request, or because a block cannot be read. It stores the stream's
number of moves, one higher (``StreamState.moves``). From then on nobody acts on the entry's ``to``, whose ``moves`` is
lower, and shard 0's owner stores that the stream stays.

Does not own: what the catalogue says (writer), the other shard's side (arrivals), the records' effect (storage.state).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Coroutine, Mapping
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from broker.jetstream.account.held import HeldMessages, packed
from broker.jetstream.account.unused import UnusedStream
from broker.jetstream.owners.requests import HeldRequests, Requests
from broker.jetstream.owners.serving_again import serve_again
from broker.jetstream.owners.stream_tasks import StreamTasks
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.storage.format.errors import FormatError
from broker.storage.format.records.departure import Departure
from broker.storage.format.records.stream_update import StreamUpdate
from broker.storage.objectstore.base import StoreError
from broker.storage.put import Fenced
from broker.storage.state.stream import MOVES

if TYPE_CHECKING:
    from broker.jetstream.account.account import Account
    from broker.jetstream.owners.peers import Peers
    from broker.jetstream.shard_streams import Merger, ShardStreams
    from broker.jetstream.stream.stream import Stream
    from broker.storage.format.records.catalogue import CatalogueEntry

__all__ = ["HOLD_SECONDS", "Departures"]

_log = logging.getLogger(__name__)

HOLD_SECONDS: Final = 0.5
"""Half of the second for which a stream may be stopped: the rest is for its departure and its arrival."""
_READY_SECONDS: Final = 4.0
_RETRY_SECONDS: Final = 1.0
_ASKED_SECONDS: Final = 10.0
"""The time for which the other owner may ask for what is held; then it is refused."""
_LITTLE_BYTES: Final = 1 << 20
"""Once no more than this was written meanwhile, the rest is moved while the stream is stopped."""
_PASSES_MAX: Final = 8
_PACKED_BYTES_MAX: Final = 512 << 10
"""The bytes of held messages in one answer: below the usual max_payload."""


class Departures:
    """The streams that leave ``shards``, which are this broker's; those in ``serving`` are not about to be closed.

    Args: ``changing(stream_id)``: no request or entry changes the stream in the body; ``flushed(account)``: see
        ``Answers``; ``keep(entry)`` is called when a stream is stopped, and ``left(entry)`` once it has left.
    """

    def __init__(self, shards: Mapping[int, ShardStreams], serving: Container[int], accounts: Mapping[str, Account],
                 peers: Peers, requests: Requests, changing: Callable[[int], AbstractContextManager[None]], *,
                 flushed: Callable[[str], Coroutine[Any, Any, None]],
                 keep: Callable[[CatalogueEntry], object], left: Callable[[CatalogueEntry], object]) -> None:
        self._shards = shards
        self._serving = serving
        self._accounts = accounts
        self._peers = peers
        self._changing = changing
        self._requests = requests
        self._flushed = flushed
        self._keep = keep
        self._left = left
        self._tasks = StreamTasks("move a stream")
        self.why_stays: dict[int, str] = {}
        """Why this broker gave the last move of a stream up, by stream."""
        self._stopped: set[int] = set()
        """The streams that do not serve."""
        self._held: dict[int, _Held] = {}
        """The messages and requests that are held for streams that have left, by stream."""

    def begin(self, entry: CatalogueEntry) -> None:
        """Let a stream leave one of our shards, which serves; do nothing if that is being done, or was given up."""
        shard = self._shards.get(entry.shard)
        if shard is not None and self._is_here(entry, shard):
            self._tasks.begin(entry.stream_id, lambda: self._leave(entry, shard))

    async def give_up(self, entry: CatalogueEntry) -> None:
        """Give up the move of a stream that is in one of our shards. Raises: ApiError 10008: it has left."""
        while entry.stream_id in self._stopped:  # noqa: ASYNC110 (no event says so)
            await asyncio.sleep(0.01)
        self._tasks.cancel(entry.stream_id)
        self.why_stays.pop(entry.stream_id, None)
        self._tasks.begin(entry.stream_id, lambda: self._stay(entry, "its move was given up on request"))
        await self._tasks.wait(entry.stream_id)
        if entry.stream_id not in self.why_stays:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)

    async def stop(self) -> None:
        """Stop all of them; streams that are held were stopped with their shards."""
        await self._tasks.stop()
        for held in self._held.values():
            held.end()
        self._held.clear()

    async def release(self, stream_id: int) -> dict[str, Any]:
        """Return what was held for a stream that has left, and that its new owner is about to serve."""
        if (held := self._held.pop(stream_id, None)) is None:
            return {"acks": [], "msgs": [], "requests": []}
        held.stop_listening()
        await self._flushed(held.account.name)  # nothing more comes then
        return held.msgs.pack(_PACKED_BYTES_MAX) | {"requests": packed(held.requests.take())}

    # --- one stream ---------------------------------------------------------------------------------------------------

    async def _leave(self, entry: CatalogueEntry, shard: ShardStreams) -> None:
        self.why_stays.pop(entry.stream_id, None)
        while self._is_here(entry, shard):
            try:
                if await self._try(entry, shard):
                    return
            except FormatError as error:
                await self._stay(entry, f"a block cannot be read: {error}")
                return
            except (ApiError, StoreError) as error:
                _log.warning("stream %s > %s stays in shard %d for now: %s", entry.account, entry.name, entry.shard,
                             error)
            except Fenced:
                return
            except Exception:
                _log.exception("stream %s > %s cannot leave shard %d", entry.account, entry.name, entry.shard)
            await asyncio.sleep(_RETRY_SECONDS)

    def _is_here(self, entry: CatalogueEntry, shard: ShardStreams) -> bool:
        state = shard.log.state.streams.get(entry.stream_id)
        return (entry.shard in self._serving and self._shards.get(entry.shard) is shard and shard.log.failure is None
                and state is not None and state.departed is None and state.moves <= entry.moves)

    async def _stay(self, entry: CatalogueEntry, why: str) -> None:
        """Store that the stream stays, so that no owner of this shard lets it leave for this entry."""
        shard, account = self._shards.get(entry.shard), self._accounts.get(entry.account)
        if shard is None or account is None:
            return  # the shard's next owner begins the move anew
        with self._changing(entry.stream_id):
            async with account.changes.lock_of(entry.name):
                if not self._is_here(entry, shard):
                    return
                moves = {MOVES: entry.moves + 1}
                stream = account.streams.get(entry.name)
                if stream is not None and stream.stream_id == entry.stream_id:
                    record = stream.enforcement.update_record(stream.config)
                    shard.log.block(stream).add(StreamUpdate(record.config, {**record.extra, **moves}))
                else:
                    state = shard.log.state.streams[entry.stream_id]
                    shard.log.block(UnusedStream(state)).add(StreamUpdate(state.config, moves))
                shard.log.barrier()
                shard.log.urgent()
                with suppress(Fenced, StoreError):
                    await shard.log.persisted()
                    self.why_stays[entry.stream_id] = why
                    _log.warning("stream %s > %s stays in shard %d: %s", entry.account, entry.name, entry.shard, why)
                    self._left(entry)

    async def _try(self, entry: CatalogueEntry, shard: ShardStreams) -> bool:
        """Let the stream leave; return False if it could not be stopped in time.

        Raises: ApiError: it cannot leave now; FormatError: one of its blocks cannot be read; StoreError, Fenced.
        """
        account, merger = self._accounts.get(entry.account), shard.merger
        if account is None or merger is None:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
        stream = account.stream(entry.name)
        if stream.stream_id != entry.stream_id:
            raise ApiError(ApiErrors.STREAM_NOT_FOUND)
        async with merger.working:
            for _ in range(_PASSES_MAX):
                if await merger.isolate(entry.stream_id) <= _LITTLE_BYTES:
                    break
            async with merger.without_rounds():
                await merger.isolate(entry.stream_id)
                assert entry.to is not None
                question = {"do": "expect", "account": entry.account, "name": entry.name, "id": entry.stream_id}
                await self._peers.ask_owner(entry.to, question, _READY_SECONDS)
                return await self._between_requests(entry, shard, account, stream, merger)

    async def _between_requests(self, entry: CatalogueEntry, shard: ShardStreams, account: Account, stream: Stream,
                                merger: Merger) -> bool:
        """Let the stream leave while no request about it is being carried out."""
        with self._changing(entry.stream_id):
            with suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_SECONDS):
                    while self._requests.waiting(entry.account, entry.name):  # noqa: ASYNC110 (no event says so)
                        await asyncio.sleep(0.01)
            async with account.changes.lock_of(entry.name):
                # A request may be waiting for the lock: it comes first.
                if (self._requests.waiting(entry.account, entry.name) or not self._is_here(entry, shard)
                        or account.streams.get(entry.name) is not stream):
                    return False
                self._stopped.add(entry.stream_id)
                try:
                    return await self._stop_and_leave(entry, shard, account, stream, merger)
                finally:
                    self._stopped.discard(entry.stream_id)

    async def _stop_and_leave(self, entry: CatalogueEntry, shard: ShardStreams, account: Account, stream: Stream,
                              merger: Merger) -> bool:
        assert entry.to is not None
        ends, in_time, departs = asyncio.get_running_loop().time() + HOLD_SECONDS, False, False
        requests = self._requests.hold(entry.account, entry.name)
        held = _Held(account, await account.hold(stream), requests)
        self._keep(entry)  # its name stays taken
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(ends):
                    await shard.log.persisted()
                    while await merger.isolate(entry.stream_id, hurried=True):
                        pass
                    in_time = True  # the clock does not tell: a timeout may come at the very end of the time
            departs = in_time and self._may_depart(entry, shard, stream)
            if departs:
                shard.log.block(UnusedStream(shard.log.state.streams[entry.stream_id])).add(Departure(entry.to))
                shard.log.barrier()
                shard.log.urgent()
            await shard.log.persisted()
        except BaseException:
            if departs:
                held.end()
            else:
                await self._resume(entry, shard, held)
            raise
        if not departs:
            if not await self._resume(entry, shard, held):
                return False
            _log.warning("stream %s > %s stays in shard %d for now: its last blocks could not be moved within %g s",
                         entry.account, entry.name, entry.shard, HOLD_SECONDS)
            return False
        shard.streams -= 1
        self._held[entry.stream_id] = held
        asyncio.get_running_loop().call_later(_ASKED_SECONDS, self._expire, entry.stream_id, held)
        _log.info("stream %s > %s has left shard %d for shard %d", entry.account, entry.name, entry.shard, entry.to)
        self._left(entry)
        return True

    def _may_depart(self, entry: CatalogueEntry, shard: ShardStreams, stream: Stream) -> bool:
        """Return whether the stored state of the stream has all of its messages, and shares no object."""
        state = shard.log.state.streams[entry.stream_id]
        return (self._is_here(entry, shard) and state.last_seq == stream.live.last_seq
                and not any(True for page in state.blocks.pages for _ in page.log_keys())
                and all(run[3] for page in state.blocks.pages for run, _ in page.run_counts(entry.stream_id)))

    async def _resume(self, entry: CatalogueEntry, shard: ShardStreams, held: _Held) -> bool:
        """Serve the stream here again, from its applied state; all its records are persisted.

        Returns: False if the shard is lost, or is being given away.
        """
        if self._is_here(entry, shard):
            held.stop_listening()
        if await serve_again(held.account, entry, shard.log, lambda: self._is_here(entry, shard)) is None:
            held.end()
            return False
        held.account.deliver(entry.name, *held.msgs.take())
        self._requests.answer(entry.account, held.requests.take())
        return True

    def _expire(self, stream_id: int, held: _Held) -> None:
        if self._held.get(stream_id) is held:
            del self._held[stream_id]
            held.end()


class _Held(NamedTuple):
    """All that is held for a stream of ``account``."""

    account: Account
    msgs: HeldMessages
    requests: HeldRequests

    def stop_listening(self) -> None:
        """Hold nothing more."""
        self.msgs.end()
        self.requests.stop_listening()

    def end(self) -> None:
        """Hold nothing more, and refuse what is held."""
        self.msgs.end()
        self.msgs.refuse()
        self.requests.end()
