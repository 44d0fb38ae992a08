"""The catalogue: records in shard 0 about the streams of all other shards, and the order in which both are written.

    create    catalogue: the stream        persisted, then    its shard: the stream's create record
    update    catalogue: the new config    persisted, then    its shard: the update record
    delete    catalogue: deleting          persisted, then    its shard: the delete record
                                           persisted, then    catalogue: gone

So a name or subject is taken from before it is used until after it is no longer used, and a crash between two steps
leaves the catalogue ahead of the shard. ``settle`` carries out the missing steps before the shards serve. Each step
follows the one before it by a call of the log, whatever becomes of the request that began it.

Each record in a shard goes into a segment and not only into the journal (``barrier``): with ``sync_interval``, the put
of the segment syncs shard 0 first. Otherwise a power cut could leave a deletion without its entry.

A stream of shard 0 has no entry: its own records are in shard 0, so a store of one shard has no catalogue.

Source: docs/adr/0024-shards.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from broker.jetstream.account.unused import UnusedStream
from broker.jetstream.moves import clear, left_behind, settle_moves
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError, invalid_config
from broker.storage.format.block import Outcome
from broker.storage.format.records.catalogue import Catalogue as CatalogueRecord
from broker.storage.format.records.catalogue import CatalogueEntry
from broker.storage.format.records.stream_create import PER_SUBJECT, StreamCreate
from broker.storage.format.records.stream_update import StreamUpdate
from broker.storage.log.waiters import resolve
from broker.storage.state.stream import StreamState

if TYPE_CHECKING:
    from broker.base.clock import Clock
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.shard_streams import ShardStreams
    from broker.jetstream.stream.stream import Stream
    from broker.storage.log.log import Log
    from broker.storage.log.stream_log import StreamLog
    from broker.storage.state.erasures import LeftBehind

__all__ = ["SHARD", "Catalogue", "clear_moved", "settle", "settle_stream"]

_log = logging.getLogger(__name__)

SHARD: Final = "jetblock.shard"
"""The member of a stream's metadata that names the shard in which it is created."""


class Catalogue:
    """The catalogue of a broker that owns shard 0. ``shards`` are the shards that it owns, by number."""

    def __init__(self, shards: Mapping[int, ShardStreams], clock: Clock) -> None:
        self._shards = shards
        self._clock = clock
        self.entries: dict[int, CatalogueEntry] = {}
        """The entries as decided, by incarnation, including what is not stored yet."""

    def open(self, entries: Mapping[int, CatalogueEntry]) -> None:
        """Begin with the entries in the store."""
        self.entries.clear()
        self.entries.update(entries)

    def place(self, config: StreamConfig) -> int:
        """Return the shard for a new stream: the one that its metadata names, or the one with the fewest streams.

        Raises: ApiError 10052: there is no such shard.
        """
        shards = self._shards
        wanted = config.metadata.get(SHARD)
        if wanted is None or config.storage == "memory":
            return min(shards, key=lambda number: (shards[number].streams, number))
        found = next((number for number in shards if str(number) == wanted), None)
        if found is None:
            raise invalid_config(f"metadata {SHARD} is {wanted!r}, and the store has the shards "
                                 f"{', '.join(map(str, sorted(shards)))}")
        return found

    def check_update(self, stream: Stream, config: StreamConfig) -> None:
        """Refuse an update that names another shard than the stream's and cannot move the stream there. A restored or
        moved stream may have another shard's number already.

        Raises: ApiError 10052; 10008.
        """
        wanted, shard = config.metadata.get(SHARD), self._of(stream.log)
        if shard is not None and wanted not in (None, str(shard.number), stream.config.metadata.get(SHARD)):
            self._check_move(wanted, shard.number)

    def _check_move(self, wanted: str, shard: int) -> None:
        """Refuse to move a stream from ``shard`` to the shard of this number. Raises: ApiError 10052; 10008."""
        raise invalid_config(f"metadata {SHARD} is {wanted!r}, and the stream is in shard {shard}: streams move only "
                             f"between shards that brokers share (jetblock {{ own }})")

    async def move_updated(self, stream: Stream, before: StreamConfig) -> None:
        """Move a stream whose update changed the shard that its metadata names. Raises: ApiError."""

    def create(self, stream: Stream, record: StreamCreate) -> asyncio.Future[None] | None:
        """Store the first record of a new stream.

        Returns: None if it is sequenced, otherwise a future that is done once it is.
        """
        shard = self._of(stream.log)
        if shard is not None:
            shard.streams += 1
        if shard is None or not shard.number:
            _record(stream, record)
            return None
        entry = CatalogueEntry(stream.stream_id, shard.number, record.account, record.name, record.config,
                               record.created_ns)
        return self._then(entry, stream, lambda: record)

    def update(self, stream: Stream, config: StreamConfig) -> asyncio.Future[None] | None:
        """Store an update of a stream to ``config``; returns as ``create`` does."""
        entry = self.entries.get(stream.stream_id)
        if entry is None:
            _record(stream, stream.enforcement.update_record(config))
            return None
        # The record is made when it is added: it says how many messages a subject has until then.
        return self._then(replace(entry, config=config.to_json()), stream,
                          lambda: stream.enforcement.update_record(config))

    @asynccontextmanager
    async def deleting(self, stream: Stream) -> AsyncIterator[None]:
        """Enter the body, which deletes the stream, once the stream may be disconnected. Raises: ApiError."""
        yield

    def is_elsewhere(self, shard: int) -> bool:
        """Return whether another broker owns a shard."""
        return False

    def create_elsewhere(self, account: str, config: StreamConfig, shard: int, now_ns: int,
                         ) -> tuple[CatalogueEntry, asyncio.Future[None]]:
        """Let another broker create a stream. Returns: its entry, and a future that is done once it is persisted."""
        raise NotImplementedError("this broker owns all shards")

    async def shown(self, entry: CatalogueEntry) -> dict[str, Any]:
        """Return the info of a stream in another broker's shard, once it serves. Raises: ApiError."""
        raise NotImplementedError("this broker owns all shards")

    async def infos(self, account: str, names: Iterable[tuple[str, int]]) -> dict[str, dict[str, Any]]:
        """Return the infos of streams in other brokers' shards that come in time, by name."""
        return {}

    async def usages(self, account: str) -> list[dict[str, int]]:
        """Return what an account uses in the shards of other brokers."""
        return []

    def is_coming(self, shard: int, stream_id: int) -> bool:
        """Return whether a stream that has left a shard of this broker may be about to come back."""
        return False

    async def left_behind(self, stream: StreamState, shard: int) -> list[LeftBehind]:
        """Return what the other shards have of a stream that has moved, and is in ``shard`` now.

        Raises: StoreError; FormatError; CutOff.
        """
        states = {number: one.log.state.streams.get(stream.stream_id) for number, one in self._shards.items()}
        return [one for number, state in states.items() if number != shard
                and (one := left_behind(number, state, owned=True)) is not None]

    def remains_removed(self, stream_id: int) -> None:
        """Forget a stream that had moved, if it is deleted: a shard of this broker has nothing of it any more."""
        if stream_id not in self.entries:
            self._clear_deleted(stream_id)

    def _clear_deleted(self, stream_id: int) -> None:
        """Empty what the shards have of a deleted stream that had moved, then forget it."""
        for shard in self._shards.values():
            state = shard.log.state.streams.get(stream_id)
            if state is not None and state.departed is not None:
                clear_moved(shard, state, self._clock.now_ns(), deleted=True)

    def delete(self, stream_id: int, log: StreamLog, delete: Callable[[], object]) -> asyncio.Future[None] | None:
        """Call ``delete``, which adds the delete record of a stream to its ``log``, or returns False if it cannot.

        Returns: None if that is done, or an earlier call is about to do it, otherwise a future that is done once the
            name is free. It fails with 10008 if the record cannot be added; the next start adds it.
        """
        entry = self.entries.get(stream_id)
        if entry is not None and entry.deleting:
            return None
        if (shard := self._of(log)) is not None:
            shard.streams -= 1
        if entry is None:
            delete()
            return None
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def forget() -> None:
            self.entries.pop(stream_id, None)
            self._clear_deleted(stream_id)
            self._change(gone=[stream_id], then=lambda: resolve(done))

        def follow() -> None:
            if delete() is False:
                if not done.done():
                    done.set_exception(ApiError(ApiErrors.CLUSTER_NOT_AVAIL))
                return
            log.barrier()
            log.wait(forget)

        self._change([replace(entry, deleting=True)], then=follow)
        return done

    def _then(self, entry: CatalogueEntry, stream: Stream,
              record: Callable[[], StreamCreate | StreamUpdate]) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def follow() -> None:
            _record(stream, record())
            stream.log.barrier()
            resolve(done)

        self._change([entry], then=follow)
        return done

    def _change(self, entries: Sequence[CatalogueEntry] = (), gone: Sequence[int] = (), *,
                then: Callable[[], object]) -> None:
        """Change the catalogue; call ``then`` once the change is persisted."""
        self.entries.update({entry.stream_id: entry for entry in entries})
        first = self._shards.get(0)
        if first is None:
            return  # the shards were lost meanwhile; the next start settles it
        first.log.block(first.log.shard).add(CatalogueRecord(entries, gone))
        first.log.urgent()
        first.log.wait(then)

    def _of(self, log: StreamLog) -> ShardStreams | None:
        """Return the shard with this log; None for streams in memory."""
        for shard in self._shards.values():
            if shard.log is log:
                return shard
        return None


def clear_moved(shard: ShardStreams, state: StreamState, now_ns: int, *, deleted: bool) -> None:
    """Empty what a shard has of a stream that has left it, in the background; see ``moves.clear``."""
    if shard.log.failure is None and clear(state, shard.log, now_ns, deleted=deleted):
        shard.log.urgent()
        shard.log.wait(shard.erasure_marked)
        if deleted and shard.log.settings.codec.sealing and shard.eraser is not None:
            shard.log.wait(shard.eraser.forget_soon)  # somebody may wait until no shard has its key


def _record(stream: Stream, record: StreamCreate | StreamUpdate) -> None:
    stream.log.block(stream).add(record)
    stream.log.urgent()


async def settle(logs: Mapping[int, Log], now_ns: int) -> None:
    """Carry out what an earlier owner recorded in the catalogue and not in the stream's shard.

    Call it before the shards' streams are restored. Args: ``logs`` of all shards, by number; ``now_ns``: the time.
    Raises: Fenced, or whatever stopped a log.
    """
    gone: list[int] = []
    changed: set[int] = set()
    moved = await settle_moves(logs, now_ns)
    for entry in ({**logs[0].state.catalogue, **{one.stream_id: one for one in moved}}).values():
        if entry.deleting:
            gone.append(entry.stream_id)
        if settle_stream(entry, logs[entry.shard]):
            changed.add(entry.shard)
    strays = _strays(logs, changed)
    for number in changed:
        logs[number].urgent()
    for number in changed:
        await logs[number].persisted()
    if gone or strays or moved:
        logs[0].block(logs[0].shard).add(CatalogueRecord([*moved, *strays], gone))
        logs[0].urgent()
        await logs[0].persisted()


def settle_stream(entry: CatalogueEntry, log: Log) -> bool:
    """Record in the stream's shard what its entry says and the shard does not have; return whether that was anything.

    Call it while the stream does not serve.
    """
    state = log.state.streams.get(entry.stream_id)
    if entry.deleting:
        if state is None:
            return False
        UnusedStream(state).delete(log)
    elif state is None and entry.moves:
        _log.error("stream %s > %s is not in shard %d, to which it has moved", entry.account, entry.name, entry.shard)
        return False
    elif state is None:
        state = StreamState(entry.stream_id, entry.account, entry.name, entry.config, entry.created_ns)
        log.block(_Created(state)).add(StreamCreate(entry.account, entry.name, entry.config, entry.created_ns))
    elif state.config != entry.config and state.offline is None:
        log.block(UnusedStream(state)).add(StreamUpdate(entry.config, {PER_SUBJECT: None}))
    else:
        return False
    return True


def _strays(logs: Mapping[int, Log], changed: set[int]) -> list[CatalogueEntry]:
    """Return entries for the streams that have none; add the shards of deleted streams to ``changed``.

    They are in copies of a store alone: a stream may be deleted after its shard's log was copied and before shard 0's.
    If its name is taken in the catalogue or in shard 0, another stream has it since; then the stray is deleted.
    """
    catalogue = logs[0].state.catalogue
    taken = {*logs[0].state.names, *((one.account, one.name) for one in catalogue.values() if not one.deleting)}
    found: list[CatalogueEntry] = []
    for number, log in logs.items():
        for state in log.state.streams.values() if number else ():
            if state.stream_id in catalogue or state.departed is not None:
                continue
            name = state.account, state.name
            if name in taken:
                _log.warning("stream %s > %s of shard %d was deleted before the store was copied; it is deleted",
                             *name, number)
                UnusedStream(state).delete(log)
                changed.add(number)
                continue
            taken.add(name)
            found.append(CatalogueEntry(state.stream_id, number, *name, state.config, state.created_ns,
                                        moves=state.moves))
    return found


class _Created(UnusedStream):
    """The owner of the first block of a stream whose creation a crash interrupted."""

    def sealing(self, block: Any) -> None:
        first = self._state.config.get("first_seq") or 0
        block.outcome = Outcome(first, max(first - 1, 0))
