"""The eraser: it makes the removed messages of one shard leave the store.

    messages removed, and marked in the log ──┐ a while, so that one pass serves many
      ┌───────────────────────────────────────┘
      ├─ find all objects that hold them, live or dead (``stored_blocks``)
      ├─ move everything that is live out of these objects (``compaction``), leaving the messages out
      ├─ record the objects, if somebody may ask for a report
      ├─ put roots until no kept one needs an older page or segment (``checkpoint``)
      ├─ overwrite the journal
      └─ the sweeper deletes the objects after its grace; once all are gone, the mark is removed

The marks are part of the stream's state, so they survive like messages do. Every step may be repeated: an owner that
begins finds the marks and starts with the first step. A fenced owner cannot harm: its records are never persisted, and
it deletes only what its log has released.

A stream that moves to another shard leaves bytes in objects that it shared with other streams. What the shard has left
of it is an erasure of all its messages, recorded by ``Remains``. The erasures of the stream in its new shard are done
only once that of each earlier shard is.

Owns: the order of the steps, and what is known of unfinished erasures. Does not own: the removal of messages from
streams, the choice of messages, and the report (jetstream, and the command ``erase``).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from hashlib import sha256
from typing import Protocol, TypeVar

from broker.base.clock import Clock
from broker.storage.checkpoint.checkpointer import Checkpointer
from broker.storage.compaction.compactor import Compactor
from broker.storage.compaction.inventory import ObjectKey
from broker.storage.erasure.stored_blocks import StoredBlocks
from broker.storage.format.block import BlockPlace
from broker.storage.format.errors import CutOff, FormatError
from broker.storage.format.header import HEADER_BYTES, ObjectKind
from broker.storage.format.records.release import Release
from broker.storage.format.staged import STAGED_EPOCH
from broker.storage.log.log import Log
from broker.storage.objectstore.base import NotFound, StoreError
from broker.storage.paths import ShardPaths, parse
from broker.storage.put import until_answered
from broker.storage.state.erasures import Erasure, LeftBehind, StoredFile, erasures_of, remains_of
from broker.storage.state.seq_ranges import SeqRanges
from broker.storage.state.stream import StreamState

__all__ = ["Eraser", "ErasingStreams", "ErasureSettings"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

Which = tuple[int, str, SeqRanges, int]
"""An erasure in a pass: stream, key, sequences, and how often the stream had moved."""

_RETRY_SECONDS = 60.0
_READ_BYTES = 8 << 20
_DIGEST_BYTES = 1 << 20
"""A checksum of so many bytes takes a millisecond or two."""
_MINUTES_NS = 240_000_000_000
_ELSEWHERE_NS = 60_000_000_000
"""The longest time between two reads of what other shards have of a stream."""
_REWRITING = "rewriting"
_CHECKPOINT = "a checkpoint, which may quote subjects and message ids"
_GONE = "deleted as no longer needed before its checksum was read"


class ErasureSettings:
    """Args: ``delay_ns``: marks are gathered for so long, because one pass costs the same for many. ``poll_ns``: how
    often a pass looks whether an object is deleted. ``grace_ns``: the sweeper's grace."""

    def __init__(self, *, delay_ns: int = 30_000_000_000, poll_ns: int = 5_000_000_000, grace_ns: int = 0) -> None:
        self.delay_ns = delay_ns
        self.grace_ns = grace_ns
        self.poll_ns = poll_ns


class ErasingStreams(Protocol):
    """The live streams of the shard."""

    async def remove_erased(self, stream_id: int) -> bool:
        """Remove the messages of a stream that an erasure names and that are live, as after a crash between the two.

        Returns: False if the stream cannot store anything now.
        """

    def record_erasures(self, stream_id: int, erasures: Sequence[Erasure], finished: Sequence[Erasure]) -> None:
        """Record changed erasures, and forget the finished ones, unless more messages have joined them meanwhile."""

    def record_remains(self, stream_id: int, erasure: Erasure) -> None:
        """Record the erasure of a stream that has moved to another shard, unless it comes back."""

    async def left_behind(self, stream: StreamState) -> Sequence[LeftBehind]:
        """Return what the earlier shards of a stream have of it. Raises: StoreError; FormatError; CutOff."""


class Eraser:
    """The erasures of one shard by its owner.

    Attributes:
        on_done: called when objects are gone: caches may have parts of them.
        until_key_gone: waits for a while until no shard has a key of a stream, and returns the shards that still have
            one. It raises StoreError and FormatError.
        left: the objects whose end is waited for.
        damaged: those of them that stay, because they cannot be read or emptied, with the reason.
        waits_for: what other shards have of streams whose erasures wait for that alone, by stream.
    """

    def __init__(self, log: Log, paths: ShardPaths, checkpointer: Checkpointer, compactor: Compactor, clock: Clock,
                 rng: random.Random, settings: ErasureSettings, clock_trusted: Callable[[], bool] = lambda: True
                 ) -> None:
        self.settings = settings
        self.on_done: Callable[[], object] = lambda: None
        self.until_key_gone: Callable[[int], Awaitable[Sequence[int]]] = _nowhere
        self.left: set[str] = set()
        self._progress = ("waiting", 0, 0)
        self.damaged: dict[str, str] = {}
        self.waits_for: dict[int, list[LeftBehind]] = {}
        self.blocks = StoredBlocks(log.store, paths, log.state, self._call, self._call)
        self._log = log
        self._store = log.store
        self._paths = paths
        self._checkpointer = checkpointer
        self._compactor = compactor
        self._clock = clock
        self._rng = rng
        self._clock_trusted = clock_trusted
        self._streams: ErasingStreams | None = None
        self._waiting: set[Which] = set()
        """Erasures whose objects will be deleted: see ``_which``."""
        self._forget = False
        self._wake = asyncio.Event()
        self._working = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._finishing: set[asyncio.Task[None]] = set()

    def serve(self, streams: ErasingStreams) -> None:
        """Begin, with the erasures that earlier owners left."""
        self._streams = streams
        self._task = asyncio.get_running_loop().create_task(self._run(), name="erasures")
        if any(self._unfinished()):
            self._wake.set()

    def wake(self) -> None:
        """Begin a pass soon: messages were marked."""
        self._wake.set()

    def forget_soon(self) -> None:
        """Do ``forget_deleted`` soon: the last owner may have ended while somebody waited for it."""
        self._forget = True
        self._wake.set()

    async def stop(self) -> None:
        """End at once, with compaction; the next owner finishes what is left."""
        tasks = [*self._finishing, *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._compactor.stop()

    @property
    def expected_ns(self) -> int:
        """The time after which an erasure is done, if the store answers and there is no more to move than compaction
        does in a minute."""
        return 2 * self.settings.delay_ns + self.settings.grace_ns + _MINUTES_NS

    @property
    def progress(self) -> tuple[str, int, int]:
        """The present work of a pass, the bytes of objects with which it is through, and of how many; 0: not known."""
        what, done, of = self._progress
        return what, self._compactor.written_bytes - done if what == _REWRITING else done, of

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(self.settings.delay_ns / 1e9)
            self._wake.clear()
            try:
                complete = await self.work()
                if self._forget:
                    await self.forget_deleted()
                    self._forget = False
                if complete:
                    continue
                why: object = "a stream is offline, or the clock is not trusted"
            except StoreError as error:
                why = error
            except Exception as error:
                if self._log.failure is None:
                    _log.error("erasure failed; it continues later", exc_info=error)
                why = error
            if self._log.failure is not None:
                return
            _log.warning("erasure continues in a minute: %s", why)
            await asyncio.sleep(_RETRY_SECONDS)
            self._wake.set()

    async def work(self) -> bool:
        """Rewrite everything that holds marked messages, and begin to wait until the objects are deleted.

        Returns: False if something is left to do, and another pass must do it.
        Raises: StoreError once the log has failed.
        """
        async with self._working:
            return await self._work()

    async def rewrite(self, stream_id: int, erasures: Callable[[], Sequence[Erasure]]) -> bool:
        """Rewrite at once what holds the messages of unfinished ``erasures`` of a stream, whose marks end with it.

        Returns: False if it cannot be done now. Raises: StoreError once the log has failed.
        """
        if self._to_do(stream_id, erasures()):
            await self.work()
        return not self._to_do(stream_id, erasures())

    def _to_do(self, stream_id: int, erasures: Iterable[Erasure]) -> list[Erasure]:
        return [one for one in erasures if self._which(stream_id, one) not in self._waiting]

    def _are_same(self, stream_id: int, erasures: Iterable[Erasure], keys: Set[Which]) -> bool:
        """Return whether these erasures of a stream are those that a pass began with: ``keys``."""
        return all(self._which(stream_id, one) in keys for one in erasures)

    def _which(self, stream_id: int, one: Erasure) -> Which:
        """Return the identity of an erasure in one pass: more sequences may join it, and its stream may have left and
        come back with new objects since."""
        stream = self._log.state.streams.get(stream_id)
        return stream_id, one.key, one.seqs, -1 if stream is None else stream.moves

    async def forget_deleted(self) -> None:
        """Return once no replay and no kept root needs anything of streams that were deleted before.

        Raises: StoreError once the log has failed.
        """
        async with self._working:
            await self._persist()
            for _ in range(2):
                await self._checkpointer.erase({}, self._advance)
            await self._log.wipe_journal()

    async def done(self) -> None:
        """Return once no object is waited for."""
        while self._finishing:
            await asyncio.wait(self._finishing)

    def _unfinished(self) -> Iterable[tuple[StreamState, list[Erasure]]]:
        for stream in list(self._log.state.streams.values()):
            if stream.extra and stream.offline is None:
                try:
                    all_ = erasures_of(stream.extra) if stream.departed is None else [remains_of(stream.extra)]
                    found = [one for one in all_ if one is not None and not one.done_ns]
                except (TypeError, ValueError) as error:
                    _log.warning("an erasure of stream %s/%s cannot be read: %s", stream.account, stream.name, error)
                    continue
                if found:
                    yield stream, found

    async def _work(self) -> bool:
        streams = self._streams
        assert streams is not None
        log = self._log
        await self._persist()
        begun, complete = {stream.stream_id for stream, _ in self._unfinished()}, True
        for stream_id in begun:
            if not self._has_moved(stream_id):
                complete = await streams.remove_erased(stream_id) and complete
        await self._persist()
        found = {stream.stream_id: erasures for stream, erasures in self._unfinished() if stream.stream_id in begun}
        self._compactor.erase({stream_id: _seqs(erasures) for stream_id, erasures in found.items()
                               if not self._has_moved(stream_id)})
        found = {stream_id: new for stream_id, erasures in found.items()
                 if (new := self._to_do(stream_id, erasures))}
        if not found:
            self._progress = "waiting", 0, 0
            return complete
        if not self._clock_trusted():
            return False
        keys = {self._which(stream_id, one) for stream_id, erasures in found.items() for one in erasures}
        erased = {stream_id: _seqs(erasures) for stream_id, erasures in found.items()}
        async with self._compactor.working:
            held = await self._find(erased)
            reported = any(one.reported for erasures in found.values() for one in erasures)
            sums = {key: await self._stored_file(key) for key in held if reported}
            made = await self._compactor.empty([one for one in map(_object_key, held) if one is not None])
            self._compactor.release_orphans(held)
            self._progress = "writing checkpoints", 0, 0
            for key in held:
                if _object_key(key) in self._compactor.not_emptied:
                    self._stays(key, "blocks in it are damaged, and cannot be moved")
        old = await self._list(self._paths.page_objects) + await self._list(self._paths.checkpoints)
        self.left |= {*held, *old}
        pages = {key: await self._stored_file(key, _CHECKPOINT) for key in old if reported}
        for stream_id, erasures in found.items():
            found[stream_id] = [_with(one, [sums[key] for key, quoted in held.items() if _quotes(
                quoted, stream_id, one.seqs)], made) if one.reported else one for one in erasures]
        await self._record(found, keys)
        if not await self._checkpointer.erase(erased, self._advance):
            return False
        # Older objects that are still needed have pages of other messages' subjects and ids only.
        needed = {self._paths.pages(at) for root in self._checkpointer.roots for at in root.objects}
        self.left -= needed
        old = [key for key in old if key not in needed]
        found = {stream_id: [_with(one, [pages[key] for key in old], ()) if one.reported else one for one in erasures]
                 for stream_id, erasures in found.items()}
        await self._record(found, keys)
        await log.wipe_journal()
        self._waiting |= keys
        self._progress = "waiting", 0, 0
        task = asyncio.get_running_loop().create_task(self._finish(found, held, old, keys), name="erasures end")
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)
        return complete

    async def _record(self, found: Mapping[int, Sequence[Erasure]], keys: Set[Which]) -> None:
        """Record the objects of those erasures that somebody may ask for, except of streams that have come back."""
        assert self._streams is not None
        for stream_id, erasures in found.items():
            if not self._are_same(stream_id, erasures, keys):
                continue
            if self._has_moved(stream_id):
                for one in erasures:
                    self._streams.record_remains(stream_id, one)
            elif stream_id in self._log.state.streams:
                self._streams.record_erasures(stream_id, [one for one in erasures if one.reported], ())
        await self._persist()

    def _has_moved(self, stream_id: int) -> bool:
        stream = self._log.state.streams.get(stream_id)
        return stream is not None and stream.departed is not None

    async def _advance(self) -> None:
        """Persist something, so that the next root has a position of its own."""
        self._log.block(self._log.shard).add(Release((), (), (), ()))
        await self._persist()

    async def _persist(self) -> None:
        """Persist everything now: the caller of a delete may be waiting for the pass, so no lazy commit will do."""
        self._log.barrier()
        await self._log.persisted()

    async def _find(self, erased: Mapping[int, SeqRanges]) -> dict[str, list[tuple[int, int, int]]]:
        """Return the keys of the objects that hold these sequences, or quote them, each with what it has: stream, first
        and last sequence. Objects that cannot be read count as well."""
        names = {stream_id: (stream.account, stream.name) for stream_id in erased
                 if (stream := self._log.state.streams.get(stream_id)) is not None}
        held: dict[str, list[tuple[int, int, int]]] = {}
        searched = held_bytes = 0
        moved = {stream_id for stream_id in names if self._has_moved(stream_id)}
        names = {stream_id: name for stream_id, name in names.items() if stream_id not in moved}
        async for one in self.blocks.objects(names, moved):
            found = []
            searched += one.size
            self._progress = "searching", searched, self.blocks.listed_bytes
            for block in one.blocks:
                ref = block.ref
                if not erased[ref.stream_id].overlaps(ref.first_seq, ref.last_seq):
                    continue
                if not ref.gapless:
                    try:
                        head = await self.blocks.head(block)
                    except NotFound:
                        continue
                    except FormatError as error:
                        self._stays(one.key, str(error))
                        found.append((ref.stream_id, ref.first_seq, ref.last_seq))
                        continue
                    if not any(head.ordinal_of(first) < head.ordinal_of(last + 1)
                               for first, last in erased[ref.stream_id].within(ref.first_seq, ref.last_seq)):
                        continue
                found.append((ref.stream_id, ref.first_seq, ref.last_seq))
            found += [(stream_id, first, last) for _, stream_id, first, last in one.quoted
                      if erased[stream_id].overlaps(first, last)]
            if one.unreadable is not None:
                self._stays(one.key, one.unreadable.why)
                found += [(stream_id, 0, 1 << 64) for stream_id in erased]
            if found:
                held[one.key] = found
                held_bytes += one.size
        self._progress = _REWRITING, self._compactor.written_bytes, held_bytes
        return held

    def _stays(self, key: str, why: str) -> None:
        """Note that an object cannot be erased until it is repaired."""
        if self.damaged.get(key) != why:
            _log.error("erasure cannot read %s: %s; if it also has messages that live, it stays until the broker is "
                       "stopped and `jetblock fsck --repair` has replaced it", key, why)
        self.damaged[key] = why

    async def _finish(self, found: Mapping[int, Sequence[Erasure]],
                      held: Mapping[str, Sequence[tuple[int, int, int]]], old: Iterable[str],
                      waiting: Set[Which]) -> None:
        """Wait until the objects of each erasure are gone, then record that: those that held its messages, and the
        ``old`` parts of checkpoints. A damaged object stays, and with it the erasures that it may have messages of.
        The erasures of a stream that has moved wait for its earlier shards, too."""
        left, damaged, noted = list(dict.fromkeys((*held, *old))), list[str](), list[str]()
        poll_ns = self.settings.poll_ns
        while True:
            while left:
                try:
                    await self._get(left[-1], 0, HEADER_BYTES)
                except NotFound:
                    gone = left.pop()
                    self.left.discard(gone)
                    self.damaged.pop(gone, None)
                    continue
                except StoreError:
                    return  # the log has failed
                if left[-1] not in self.damaged:
                    break
                damaged.append(left.pop())
            if not left:
                ended: dict[int, list[Erasure]] = {}
                stay: dict[int, list[Erasure]] = {}
                for stream_id, erasures in found.items():
                    elsewhere = await self._left_behind(stream_id)
                    if not self._are_same(stream_id, erasures, waiting):
                        continue
                    for one in erasures:
                        stays = elsewhere is None or any(
                            _quotes(held.get(key, ()), stream_id, one.seqs) for key in damaged)
                        (stay if stays else ended).setdefault(stream_id, []).append(
                            _with_left_behind(one, elsewhere or ()))
                if ended:
                    self._end(ended)
                if not stay:
                    self._waiting -= waiting
                    return
                if damaged != noted:
                    self._note_damaged(stay)
                found, left, damaged, noted = stay, damaged, [], damaged
                if not left:  # other shards: reading each of them costs some requests
                    poll_ns = min(2 * poll_ns, max(poll_ns, _ELSEWHERE_NS))
            await asyncio.sleep(poll_ns / 1e9)

    def _note_damaged(self, found: Mapping[int, Sequence[Erasure]]) -> None:
        """Record which objects with messages of streams that have moved are damaged, for their new owners' answers."""
        assert self._streams is not None
        for stream_id, erasures in found.items():
            if self._has_moved(stream_id):
                for one in erasures:
                    self._streams.record_remains(stream_id, one._replace(held=tuple(
                        file.with_damage(self.damaged.get(file.key, "")) for file in one.held)))

    async def _left_behind(self, stream_id: int) -> Sequence[LeftBehind] | None:
        """Return the finished erasures of a stream in the shards that it has left; None if one is not done yet."""
        stream = self._log.state.streams.get(stream_id)
        if stream is None or stream.departed is not None or not stream.moves:
            self.waits_for.pop(stream_id, None)
            return []
        assert self._streams is not None
        try:
            found = await self._streams.left_behind(stream)
        except (StoreError, FormatError, CutOff) as error:
            _log.warning("erasure cannot read what stream %s/%s has left in other shards; it tries again: %s",
                         stream.account, stream.name, error)
            return None
        if waits_for := [one for one in found if not one.done]:
            if waits_for != self.waits_for.get(stream_id):
                for one in waits_for:
                    for file in one.damaged:
                        _log.error("the erasure of messages of stream %s/%s waits for shard %d, which the stream has "
                                   "left: %s is damaged there: %s", stream.account, stream.name, one.shard, file.key,
                                   file.damage)
            self.waits_for[stream_id] = waits_for
            return None
        self.waits_for.pop(stream_id, None)
        return found

    def _end(self, found: Mapping[int, Sequence[Erasure]]) -> None:
        """Record that erasures are done."""
        self.on_done()
        done_ns = self._clock.now_ns()
        assert self._streams is not None
        for stream_id, erasures in found.items():
            if self._has_moved(stream_id):
                for one in erasures:
                    self._streams.record_remains(stream_id, one._replace(done_ns=done_ns))
            elif stream_id in self._log.state.streams:
                self._streams.record_erasures(stream_id, [one._replace(done_ns=done_ns) for one in erasures
                                                          if one.reported],
                                              [one for one in erasures if not one.reported])
            self._waiting.difference_update(self._which(stream_id, one) for one in erasures)

    async def _stored_file(self, key: str, note: str = "") -> StoredFile:
        """Return an object's size and checksum; a note instead if the broker has deleted it in the meantime."""
        digest, size = sha256(), 0
        while True:
            try:
                data = await self._get(key, size, size + _READ_BYTES)
            except NotFound:
                return StoredFile(key, 0, b"", "; ".join(filter(None, (note, _GONE))))
            for at in range(0, len(data), _DIGEST_BYTES):
                digest.update(data[at:at + _DIGEST_BYTES])
                await asyncio.sleep(0)
            size += len(data)
            if len(data) < _READ_BYTES:
                return StoredFile(key, size, digest.digest(), note)

    async def _list(self, prefix: str) -> list[str]:
        return [info.key for info in await self._call(lambda: self._store.list(prefix), prefix)]

    async def _get(self, key: str, start: int, end: int) -> bytes:
        return await self._call(lambda: self._store.get(key, start, end), key)

    async def _call(self, call: Callable[[], Awaitable[T]], what: str) -> T:
        """Retry ``call`` until the store answers. Raises: NotFound; StoreError once the log has failed."""
        return await until_answered(call, self._rng, lambda _: self._log.failure is not None,
                                    lambda error: _log.warning("erasure waits for the store: %s: %s", what, error))


def _seqs(erasures: Iterable[Erasure]) -> SeqRanges:
    return SeqRanges.union(erasure.seqs for erasure in erasures)


def _quotes(quoted: Iterable[tuple[int, int, int]], stream_id: int, seqs: SeqRanges) -> bool:
    """Return whether any of these (stream, first, last) has one of the sequences of the stream."""
    return any(one == stream_id and seqs.overlaps(first, last) for one, first, last in quoted)


def _with(erasure: Erasure, held: Iterable[StoredFile], made: Iterable[StoredFile]) -> Erasure:
    """Return the erasure with more objects; one that an earlier pass has listed keeps the checksum it had then."""
    all_held = {one.key: one for one in (*held, *(file.with_damage("") for file in erasure.held))}
    all_made = {one.key: one for one in (*made, *erasure.made)}
    return erasure._replace(held=tuple(all_held.values()), made=tuple(all_made.values()))


def _with_left_behind(erasure: Erasure, found: Iterable[LeftBehind]) -> Erasure:
    """Return a reported erasure with the objects that earlier shards of its stream had when it was requested."""
    for one in found:
        if erasure.reported and one.erasure is not None and erasure.at_ns <= one.erasure.done_ns:
            note = f"of shard {one.shard}, which the stream has left"
            held = [file._replace(note="; ".join(filter(None, (note, file.note)))) for file in one.erasure.held]
            erasure = _with(erasure, held, one.erasure.made)
    return erasure


def _object_key(key: str) -> ObjectKey | None:
    """Return the key of an object with blocks as an inventory has it."""
    parsed = parse(key)
    if parsed is None or parsed.position is None or parsed.kind not in (ObjectKind.SEGMENT, ObjectKind.RUN):
        return None
    place = BlockPlace.LOG
    if parsed.kind is ObjectKind.RUN:
        place = (BlockPlace.STAGED if parsed.position.epoch == STAGED_EPOCH else
                 BlockPlace.RUN if parsed.incarnation is None else BlockPlace.STREAM_RUN)
    return int(place), *parsed.position, parsed.object_id, parsed.incarnation or 0


async def _nowhere(_: int) -> Sequence[int]:
    return ()
