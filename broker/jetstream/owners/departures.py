"""Departures: streams of this broker's shards that move to other shards, from the entry in the catalogue on.

    catalogue says to          (1) move the stream's blocks out of objects that it shares, while it is used
    the other owner is ready   (2) stop the stream, hold its publishes and acks
                               (3) store its last records; move the last blocks
    departure is persisted     (4) from here on only the other shard may have it
    the other owner serves     (5) pass it what is held

Steps 2 and 3 take ``HOLD_SECONDS`` at most; otherwise the stream is restored here, and all is tried again later. After
a crash the shard's next owner begins anew before step 4, and has nothing to do after it.

Does not own: what the catalogue says (writer), the other shard's side (arrivals), the records' effect (storage.state).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, Final

from broker.jetstream.account.held import HeldMessages
from broker.jetstream.account.unused import UnusedStream
from broker.jetstream.owners.stream_tasks import StreamTasks
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.storage.format.errors import FormatError
from broker.storage.format.records.departure import Departure
from broker.storage.objectstore.base import StoreError
from broker.storage.put import Fenced

if TYPE_CHECKING:
    from broker.jetstream.account.account import Account
    from broker.jetstream.owners.peers import Peers
    from broker.jetstream.shard_streams import Merger, ShardStreams
    from broker.jetstream.stream.stream import Stream
    from broker.storage.format.records.catalogue import CatalogueEntry

__all__ = ["HOLD_SECONDS", "Departures"]

_log = logging.getLogger(__name__)

HOLD_SECONDS: Final = 1.0
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

    Args: ``changing(stream_id)``: no request or entry changes the stream in the body; ``requested(account, name)``
        returns whether a request about a stream is being carried out, and ``drop_requests`` drops them unanswered;
        ``flushed(account)``: see ``Answers``; ``keep(entry)`` is called when a stream is stopped, ``left(entry)`` once
        it has left, and ``here(account, entry)`` before it serves here again.
    """

    def __init__(self, shards: Mapping[int, ShardStreams], serving: Container[int], accounts: Mapping[str, Account],
                 peers: Peers, changing: Callable[[int], AbstractContextManager[None]], *,
                 requested: Callable[[str, str], bool],
                 drop_requests: Callable[[str, Sequence[str]], Coroutine[Any, Any, None]],
                 flushed: Callable[[str], Coroutine[Any, Any, None]],
                 keep: Callable[[CatalogueEntry], object], left: Callable[[CatalogueEntry], object],
                 here: Callable[[Account, CatalogueEntry], object]) -> None:
        self._shards = shards
        self._serving = serving
        self._accounts = accounts
        self._peers = peers
        self._changing = changing
        self._requested = requested
        self._drop_requests = drop_requests
        self._flushed = flushed
        self._keep = keep
        self._left = left
        self._here = here
        self._tasks = StreamTasks("move a stream")
        self._held: dict[int, tuple[Account, HeldMessages]] = {}
        """The messages that are held for streams that have left, by stream."""

    def begin(self, entry: CatalogueEntry) -> None:
        """Let a stream leave one of our shards, which serves; do nothing if that is being done."""
        self._tasks.begin(entry.stream_id, lambda: self._leave(entry))

    async def stop(self) -> None:
        """Stop all of them; streams that are held were stopped with their shards."""
        await self._tasks.stop()
        for _, held in self._held.values():
            held.end()
        self._held.clear()

    async def release(self, stream_id: int) -> dict[str, Any]:
        """Return what was held for a stream that has left, and that its new owner is about to serve."""
        if (found := self._held.pop(stream_id, None)) is None:
            return {"acks": [], "msgs": []}
        account, held = found
        held.end()
        await self._flushed(account.name)  # nothing more comes then
        return held.pack(_PACKED_BYTES_MAX)

    # --- one stream ---------------------------------------------------------------------------------------------------

    async def _leave(self, entry: CatalogueEntry) -> None:
        shard = self._shards[entry.shard]
        while self._is_here(entry, shard):
            try:
                if await self._try(entry, shard):
                    return
            except (ApiError, StoreError, FormatError) as error:
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
                and state is not None and state.departed is None)

    async def _try(self, entry: CatalogueEntry, shard: ShardStreams) -> bool:
        """Let the stream leave; return False if it could not be stopped in time.

        Raises: ApiError: it cannot leave now; Damaged (Exception): its blocks cannot be moved; StoreError, Fenced.
        """
        account, merger = self._accounts.get(entry.account), shard.merger
        if account is None or merger is None:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
        stream = account.stream(entry.name)
        if stream.stream_id != entry.stream_id:
            raise ApiError(ApiErrors.STREAM_NOT_FOUND)
        async with merger.working:
            _check_erased(stream)
            for _ in range(_PASSES_MAX):
                if await merger.isolate(entry.stream_id) <= _LITTLE_BYTES:
                    break
            assert entry.to is not None
            question = {"do": "expect", "account": entry.account, "name": entry.name, "id": entry.stream_id}
            await self._peers.ask_owner(entry.to, question, _READY_SECONDS)
            with self._changing(entry.stream_id):
                with suppress(TimeoutError):
                    async with asyncio.timeout(_RETRY_SECONDS):
                        while self._requested(entry.account, entry.name):  # noqa: ASYNC110 (no event says so)
                            await asyncio.sleep(0.01)
                async with account.changes.lock_of(entry.name):
                    # A request may be waiting for the lock: it comes first.
                    if (self._requested(entry.account, entry.name) or not self._is_here(entry, shard)
                            or account.streams.get(entry.name) is not stream):
                        return False
                    _check_erased(stream)  # an erasure may have begun meanwhile
                    return await self._stop_and_leave(entry, shard, account, stream, merger)

    async def _stop_and_leave(self, entry: CatalogueEntry, shard: ShardStreams, account: Account, stream: Stream,
                              merger: Merger) -> bool:
        assert entry.to is not None
        began, departs = asyncio.get_running_loop().time(), False
        await self._drop_requests(entry.account, [entry.name])
        held = await account.hold(stream)
        self._keep(entry)  # its name stays taken
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(began + HOLD_SECONDS):
                    await shard.log.persisted()
                    while await merger.isolate(entry.stream_id, hurried=True):
                        pass
            departs = self._may_depart(entry, shard, began)
            if departs:
                shard.log.block(UnusedStream(shard.log.state.streams[entry.stream_id])).add(Departure(entry.to))
                shard.log.barrier()
                shard.log.urgent()
            await shard.log.persisted()
        except BaseException:
            held.end()
            if not departs and self._is_here(entry, shard):
                self._resume(entry, shard, account, held)
            raise
        if not departs:
            if not self._is_here(entry, shard):
                held.end()  # the shard is lost, or is being given away
                return False
            self._resume(entry, shard, account, held)
            _log.warning("stream %s > %s stays in shard %d for now: it could not be stopped within %g s", entry.account,
                         entry.name, entry.shard, HOLD_SECONDS)
            return False
        shard.streams -= 1
        self._held[entry.stream_id] = account, held
        asyncio.get_running_loop().call_later(_ASKED_SECONDS, self._expire, entry.stream_id, held)
        _log.info("stream %s > %s has left shard %d for shard %d", entry.account, entry.name, entry.shard, entry.to)
        self._left(entry)
        return True

    def _may_depart(self, entry: CatalogueEntry, shard: ShardStreams, began: float) -> bool:
        """Return whether the stream shares no object, within the time for which it may be stopped."""
        state = shard.log.state.streams[entry.stream_id]
        return (asyncio.get_running_loop().time() - began <= HOLD_SECONDS and self._is_here(entry, shard)
                and not any(True for page in state.blocks.pages for _ in page.log_keys())
                and all(run[3] for page in state.blocks.pages for run, _ in page.run_counts(entry.stream_id)))

    def _resume(self, entry: CatalogueEntry, shard: ShardStreams, account: Account, held: HeldMessages) -> None:
        """Serve the stream here again, from its applied state; all its records are persisted."""
        held.end()
        self._here(account, entry)
        account.restore([shard.log.state.streams[entry.stream_id]])
        account.deliver(entry.name, *held.take())

    def _expire(self, stream_id: int, held: HeldMessages) -> None:
        if (found := self._held.get(stream_id)) is not None and found[1] is held:
            del self._held[stream_id]
            held.end()
            held.refuse()


def _check_erased(stream: Stream) -> None:
    """Raises: ApiError: the shard still has to remove erased messages of the stream from its objects."""
    if stream.erasures.unfinished:
        raise ApiError.of(ApiErrors.CLUSTER_NOT_AVAIL, "messages of it are being erased")
