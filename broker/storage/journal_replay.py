"""The replay of a directory's journal: an owner stores the commits that the owner before it has acknowledged.

    log of the epoch    … 40 41 42 __ 44          42 is the last segment before one that is missing
    journal                     42 43 44 45       43 and 45 are stored now, as they were closed; 44 is there and stays.
                                                  45 was still open: it is stored as far as the journal has it
    afterwards          … 40 41 42 43 44 45       the new owner seals 46

An owner replays the journal under the shard's lock, after ``repair_tail`` and before it claims an epoch. The journal is
removed last, so if the process is killed, the next start does the same again. If the disk is full, the replay uses the
store's reserve, which is kept for this.

Memory: the bytes of the journal, 64 MiB at most, and one segment.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from broker.storage.format.header import Position
from broker.storage.format.journal import JournaledBlock, JournaledSegment
from broker.storage.format.record import Record
from broker.storage.format.records.expiry import Expiry
from broker.storage.format.records.message_ids import MessageIds
from broker.storage.format.records.schedule import Schedule
from broker.storage.format.sealing import KnownKeysCodec
from broker.storage.format.section import SECTIONS, SectionCodec
from broker.storage.format.store import JOURNAL_VERSION, StoreFormat
from broker.storage.journal_reader import find_journaled, journal_path
from broker.storage.log.journal import JournalPlace
from broker.storage.log.open_block import OpenBlock
from broker.storage.log.writer import encode_segment, seal_block
from broker.storage.objectstore.base import NotFound, PreconditionFailed, StoreFull, StoreRefused, size_of
from broker.storage.objectstore.disk import sync_directory
from broker.storage.objectstore.file import FileStore
from broker.storage.objectstore.filesystem import network_file_system
from broker.storage.paths import FORMAT, ShardPaths

__all__ = ["Replayed", "journal_place", "log_replayed", "replay_journal", "show_all_journaled", "show_journaled",
           "total"]

_log = logging.getLogger(__name__)


class Replayed(NamedTuple):
    """The numbers of segments and messages that a replay has stored."""

    segments: int
    messages: int


def journal_place(store: FileStore, paths: ShardPaths) -> JournalPlace | None:
    """Return where the owner of a shard keeps its journal; None if the store has none."""
    kind = network_file_system(store.path_of(""))
    if kind is not None:
        _log.info("%s is on %s, so there is no journal, and each commit is stored as a segment: another machine may "
                  "lose what this one has acknowledged", store.url, kind)
        return None
    return JournalPlace(journal_path(store, paths), store.put_unsynced is None, partial(_refuse_older_releases, store))


def replay_journal(store: FileStore, paths: ShardPaths, codec: SectionCodec = SECTIONS,
                   before_put: Callable[[], object] = lambda: None,
                   begin: Callable[[], object] = lambda: None) -> Replayed | None:
    """Store the commits of the shard's journal that are not in the log, and remove the journal.

    Call this under the shard's lock, after ``repair_tail`` and before an epoch is claimed.
    Args: ``codec`` seals the segments; ``before_put`` is called before each of them is put; ``begin`` is called
        before anything is sealed.
    Returns: what was stored; None if there was nothing to do. Raises: StoreError; FormatError.
    """
    found = find_journaled(store, paths)
    path = journal_path(store, paths)
    messages = 0
    if found is not None:
        begin()
    for segment in found.segments if found is not None else ():
        assert found is not None
        position = Position(found.epoch, segment.number)
        data, msgs = _encode(position, segment, codec)
        messages += msgs
        before_put()
        _put(store, paths.log(position), data)
    try:
        os.unlink(path)
        sync_directory(os.path.dirname(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreRefused(f"{path}: {error.strerror or error}: it must be removed after its replay") from error
    return None if found is None else Replayed(len(found.segments), messages)


def show_all_journaled(store: FileStore) -> Replayed | None:
    """Call ``show_journaled`` for each shard of the store. Returns: what is shown of all; None: nothing.

    Raises: StoreError; FormatError.
    """
    shown = []
    for shard in count():
        if shard and not store.list_sync(ShardPaths(shard).epochs, limit=1):
            break
        if (found := show_journaled(store, shard)) is not None:
            shown.append(found)
    return total(shown)


def total(replayed: Sequence[Replayed]) -> Replayed | None:
    """Return the sum of several; None: there are none."""
    return Replayed(sum(one.segments for one in replayed), sum(one.messages for one in replayed)) if replayed else None


def show_journaled(store: FileStore, shard: int) -> Replayed | None:
    """Let a reader see the log as the next owner will: with the segments that only the journal of a killed broker has.

    Call this after ``hide_torn``. Nothing is written. While a broker owns the shard, its journal changes all the time:
    the reader sees the log without it, which is a prefix.

    Returns: what is shown; None: nothing. Raises: StoreError; FormatError.
    """
    paths = ShardPaths(shard)
    while not store.is_locked(paths.prefix.rstrip("/")):
        try:
            found = find_journaled(store, paths)
        except NotFound:
            continue  # a new owner has swept a part of the log meanwhile
        if found is None:
            return None
        messages, codec = 0, KnownKeysCodec()
        for segment in found.segments:
            position = Position(found.epoch, segment.number)
            data, msgs = _encode(position, segment, codec)
            messages += msgs
            store.show(paths.log(position), b"".join(data))
        return Replayed(len(found.segments), messages)
    return None


def log_replayed(replayed: Replayed | None, url: str) -> None:
    """Log what a replay has stored."""
    if replayed is not None:
        _log.info("%s: the broker before this one was killed; %d messages in %d segments came from its journal", url,
                  replayed.messages, replayed.segments)


def _put(store: FileStore, key: str, data: list[bytes]) -> None:
    """Put a segment, which may be there already, perhaps from an earlier replay; use the reserve if necessary."""
    assert store.put_sync is not None
    reserve = None if store.reserve is None else store.reserve(0, lambda: 0)
    while True:
        try:
            store.put_sync(key, data)
        except PreconditionFailed:
            return
        except StoreFull as full:
            if reserve is None or not reserve.release(size_of(data), 0.0):
                raise StoreFull(f"{full}; the journal has acknowledged messages that need room in the log: free some, "
                                "and start again; until then they are safe in the journal") from full
        else:
            return


def _encode(position: Position, segment: JournaledSegment, codec: SectionCodec) -> tuple[list[bytes], int]:
    """Return the object of a segment, as its owner would have stored it, and the number of its messages."""
    blocks: dict[int, OpenBlock[None]] = {}
    records: dict[int, list[Record]] = {}
    listed: dict[int, list[Record]] = {}
    for commit in segment.commits():
        for part in commit.blocks:
            block = blocks.get(part.stream_id)
            if block is None:
                block = blocks[part.stream_id] = OpenBlock(part.stream_id, None)
                records[part.stream_id], listed[part.stream_id] = [], []
            _extend(block, part)
            records[part.stream_id] += part.records
            listed[part.stream_id] += part.listed
    sealed = []
    for stream_id, block in blocks.items():
        block.records = records[stream_id]
        if not segment.closed:
            block.records = [*_joined(listed[stream_id], block), *block.records]
        if not block.empty:
            sealed.append(seal_block(block, position))
    return (encode_segment(position, segment.nonce, sealed, codec, landed=position.number - 1),
            sum(block.count for block in blocks.values()))


def _extend(block: OpenBlock[None], part: JournaledBlock) -> None:
    at = 0
    for first_seq, msgs, time_ns in part.runs:
        end = at + msgs
        block.append_run(first_seq, part.subjects[at:end], None if part.hlens is None else part.hlens[at:end],
                         part.bodies[at:end], time_ns)
        at = end
    for removed in part.removed:
        block.remove(*removed)
    block.outcome = part.outcome


def _joined(listed: Sequence[Record], block: OpenBlock[Any]) -> list[Record]:
    """Return one record of each kind that lists messages, without messages that were removed later."""
    ordinals: list[int] = []
    ids: list[bytes] = []
    expiries: dict[int, int] = {}
    due: dict[int, int] = {}
    schedules = [record for record in listed if record.kind == Schedule.KIND]
    for record in (*(one for one in listed if one.kind != Schedule.KIND),
                   *schedules[-1:]):  # a schedule has all changes since the last segment
        body = record.decode()
        if isinstance(body, MessageIds):
            ordinals += body.ordinals
            ids += body.ids
        elif isinstance(body, Expiry):
            expiries.update(zip(body.seqs, body.expires_at_ns, strict=True))
        elif isinstance(body, Schedule):
            due.update(zip(body.seqs, body.due_at_ns, strict=True))
    removed = _Ranges(block)
    joined: list[Record] = []
    if ids:
        joined.append(Record.pack(MessageIds(ordinals, ids), block.last_seq))
    if seqs := [seq for seq in sorted(expiries) if seq not in removed]:
        joined.append(Record.pack(Expiry(seqs, [expiries[seq] for seq in seqs]), block.last_seq))
    if seqs := [seq for seq in sorted(due) if not (due[seq] and seq in removed)]:
        joined.append(Record.pack(Schedule(seqs, [due[seq] for seq in seqs]), block.last_seq))
    return joined


class _Ranges:
    """The sequences that a block removes."""

    def __init__(self, block: OpenBlock[Any]) -> None:
        self._first_live = block.outcome.first_seq
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        last = 0
        for removed in sorted(block.removed):
            last = max(last, removed.last_seq)
            self._firsts.append(removed.first_seq)
            self._lasts.append(last)

    def __contains__(self, seq: int) -> bool:
        at = bisect_right(self._firsts, seq)
        return seq < self._first_live or (at > 0 and seq <= self._lasts[at - 1])


def _refuse_older_releases(store: FileStore) -> None:
    """Let releases without a journal refuse the store: they would seal the log, and lose what the journal has.

    Raises: StoreError; FormatError.
    """
    found = StoreFormat.decode(store.get_sync(FORMAT))
    if found.version < JOURNAL_VERSION:
        store.replace_sync(FORMAT, [found._replace(version=JOURNAL_VERSION).encode()])
