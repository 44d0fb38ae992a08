"""The replay of a directory's journal: an owner stores the commits that the owner before it has acknowledged.

    log of the epoch    … 40 41 42 __ 44          42 is the last segment before one that is missing
    journal                     42 43 44 45       43 and 45 are stored now, as they were closed; 44 is there and stays.
                                                  45 was still open: it is stored as far as the journal has it
    afterwards          … 40 41 42 43 44 45       the new owner seals 46

An owner replays the journal under the shard's lock, after ``repair_tail`` and before it claims an epoch. The journal is
removed last, so if the process is killed, the next start does the same again.

The journal ends at the first record that is not valid, and where a commit or a segment is missing (``format.journal``).
It is ignored if a later opening, or a seal at the first missing number, has ended its epoch.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from broker.storage.format.block import Removed
from broker.storage.format.errors import Corrupt
from broker.storage.format.header import HEADER_BYTES, KIND_AT, ObjectKind, Position
from broker.storage.format.journal import (
    AREA_BYTES_MAX,
    JOURNAL,
    Area,
    JournaledBlock,
    JournaledSegment,
    decode_area,
    segments_of,
)
from broker.storage.format.record import Record
from broker.storage.format.records.expiry import Expiry
from broker.storage.format.records.message_ids import MessageIds
from broker.storage.format.records.schedule import Schedule
from broker.storage.format.store import JOURNAL_VERSION, StoreFormat
from broker.storage.log.journal import JournalPlace
from broker.storage.log.open_block import OpenBlock
from broker.storage.log.writer import encode_segment, seal_block
from broker.storage.objectstore.base import NotFound, PreconditionFailed, StoreRefused
from broker.storage.objectstore.disk import sync_directory
from broker.storage.objectstore.file import FileStore
from broker.storage.objectstore.filesystem import network_file_system
from broker.storage.paths import FORMAT, ShardPaths, parse

__all__ = ["Journaled", "find_journaled", "journal_place", "log_journaled", "replay_journal"]

_log = logging.getLogger(__name__)


class Journaled(NamedTuple):
    """The commits of a journal that are not in the log.

    Attributes: epoch: of the log. segments: the segments to be stored, in order. messages: the number of their
        messages.
    """

    epoch: int
    segments: Sequence[JournaledSegment]
    messages: int


def journal_place(store: FileStore, paths: ShardPaths) -> JournalPlace | None:
    """Return where the owner of a shard keeps its journal; None if the store has none."""
    kind = network_file_system(store.path_of(""))
    if kind is not None:
        _log.info("%s is on %s, so there is no journal, and each commit is stored as a segment: another machine may "
                  "lose what this one has acknowledged", store.url, kind)
        return None
    return JournalPlace(_path(store, paths), store.put_unsynced is None, partial(_refuse_older_releases, store))


def replay_journal(store: FileStore, paths: ShardPaths) -> Journaled | None:
    """Store the commits of the shard's journal that are not in the log, and remove the journal.

    Call this under the shard's lock, after ``repair_tail`` and before an epoch is claimed.
    Returns: what was stored; None if there was nothing to do. Raises: StoreError; FormatError.
    """
    found = find_journaled(store, paths)
    path = _path(store, paths)
    assert store.put_sync is not None
    if found is not None:
        for segment in found.segments:
            position = Position(found.epoch, segment.number)
            with suppress(PreconditionFailed):  # it was stored before, perhaps by an earlier replay
                store.put_sync(paths.log(position), _encode(position, segment))
    try:
        os.unlink(path)
        sync_directory(os.path.dirname(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreRefused(f"{path}: {error.strerror or error}: it must be removed after its replay") from error
    return found


def log_journaled(found: Journaled | None, url: str) -> None:
    """Log what a replay has stored."""
    if found is not None:
        _log.info("%s: the broker before this one was killed; %d messages in %d segments came from its journal", url,
                  found.messages, len(found.segments))


def find_journaled(store: FileStore, paths: ShardPaths) -> Journaled | None:
    """Return the commits of the shard's journal that are not in the log; None: there are none.

    Raises: StoreError; FormatError.
    """
    areas = _areas(_path(store, paths))
    if not areas:
        return None
    newest = max(areas, key=lambda area: (area.header.epoch, area.header.serial)).header
    epoch = newest.epoch
    areas = [area for area in areas if (area.header.epoch, area.header.nonce) == (epoch, newest.nonce)]
    missing = _first_missing(store, paths, epoch)
    if missing is None:
        return None
    segments = list(segments_of(areas, missing.number))
    if not segments:
        return None
    last = segments[-1]
    if not last.closed and store.list_sync(f"{paths.logs}{epoch:08x}-", paths.log(Position(epoch, last.number - 1)), 1):
        if _exists(store, paths.log(Position(epoch, last.number))):
            segments.pop()
        else:
            raise Corrupt(JOURNAL, "commits", 0, f"segment {last.number} ends early, and a later one is in the log")
    messages = sum(sum(run[1] for run in block.runs) for segment in segments for commit in segment.commits
                   for block in commit.blocks)
    return Journaled(epoch, segments, messages) if segments else None


def _path(store: FileStore, paths: ShardPaths) -> str:
    return f"{store.path_of(paths.logs)}/{JOURNAL}"


def _areas(path: str) -> list[Area]:
    try:
        with open(path, "rb") as file:
            data = [os.pread(file.fileno(), AREA_BYTES_MAX, at * AREA_BYTES_MAX) for at in range(2)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StoreRefused(f"{path}: {error.strerror or error}; it has acknowledged messages, so it must be readable"
                           ) from error
    return [area for area in map(decode_area, data) if area is not None]


def _first_missing(store: FileStore, paths: ShardPaths, epoch: int) -> Position | None:
    """Return the first number of the epoch's log without an entry; None if the epoch has ended."""
    roots = list(_positions(store, paths.checkpoints))
    if any(root.epoch > epoch for root in roots):
        return None
    number = max((root.number + 1 for root in roots if root.epoch == epoch), default=0)
    entries = _positions(store, f"{paths.logs}", paths.log(Position(epoch, number - 1)) if number else "")
    for entry in sorted(entries):
        if entry.epoch > epoch:
            if not entry.number and not _is_seal(store, paths.log(entry)):
                return None
        elif entry.epoch == epoch and entry.number == number:
            if _is_seal(store, paths.log(entry)):
                return None
            number += 1
    return Position(epoch, number)


def _positions(store: FileStore, prefix: str, after: str = "") -> Iterable[Position]:
    return (key.position for info in store.list_sync(prefix, after)
            if (key := parse(info.key)) is not None and key.position is not None)


def _is_seal(store: FileStore, key: str) -> bool:
    return store.get_sync(key, 0, HEADER_BYTES)[KIND_AT:KIND_AT + 1] == bytes((ObjectKind.SEAL,))


def _exists(store: FileStore, key: str) -> bool:
    try:
        store.get_sync(key, 0, 1)
    except NotFound:
        return False
    return True


def _encode(position: Position, segment: JournaledSegment) -> list[bytes]:
    """Return the object of a segment, as its owner would have stored it."""
    blocks: dict[int, OpenBlock[None]] = {}
    listed: dict[int, list[Record]] = {}
    for commit in segment.commits:
        for part in commit.blocks:
            block = blocks.get(part.stream_id)
            if block is None:
                block = blocks[part.stream_id] = OpenBlock(part.stream_id, None)
            _extend(block, part)
            listed.setdefault(part.stream_id, []).extend(part.listed)
    sealed = []
    for block in blocks.values():
        if not segment.closed:
            block.records = [*_joined(listed[block.stream_id], block), *block.records]
        if not block.empty:
            sealed.append(seal_block(block, position))
    return encode_segment(position, segment.nonce, sealed, landed=position.number - 1)


def _extend(block: OpenBlock[None], part: JournaledBlock) -> None:
    at = 0
    for first_seq, count, time_ns in part.runs:
        end = at + count
        block.append_run(first_seq, part.subjects[at:end], None if part.hlens is None else part.hlens[at:end],
                         part.bodies[at:end], time_ns)
        at = end
    for removed in part.removed:
        block.remove(*removed)
    block.records = [*block.records, *part.records]
    block.outcome = part.outcome


def _joined(listed: Sequence[Record], block: OpenBlock[Any]) -> list[Record]:
    """Return one record of each kind that lists messages, without messages that were removed later."""
    ids, expiries, due = MessageIds([], []), dict[int, int](), dict[int, int]()
    for record in listed:
        body = record.decode()
        if isinstance(body, MessageIds):
            ids = MessageIds([*ids.ordinals, *body.ordinals], [*ids.ids, *body.ids])
        elif isinstance(body, Expiry):
            expiries.update(zip(body.seqs, body.expires_at_ns, strict=True))
        elif isinstance(body, Schedule):
            due = dict(zip(body.seqs, body.due_at_ns, strict=True))  # each has all changes since the last segment
    joined: list[Record] = []
    if ids.ids:
        joined.append(Record.pack(ids, block.last_seq))
    if seqs := [seq for seq in sorted(expiries) if not _is_removed(seq, block)]:
        joined.append(Record.pack(Expiry(seqs, [expiries[seq] for seq in seqs]), block.last_seq))
    if seqs := [seq for seq in sorted(due) if not (due[seq] and _is_removed(seq, block))]:
        joined.append(Record.pack(Schedule(seqs, [due[seq] for seq in seqs]), block.last_seq))
    return joined


def _is_removed(seq: int, block: OpenBlock[Any]) -> bool:
    return seq < block.outcome.first_seq or any(_within(seq, removed) for removed in block.removed)


def _within(seq: int, removed: Removed) -> bool:
    return removed.first_seq <= seq <= removed.last_seq


def _refuse_older_releases(store: FileStore) -> None:
    """Let releases without a journal refuse the store: they would seal the log, and lose what the journal has.

    Raises: StoreError; FormatError.
    """
    found = StoreFormat.decode(store.get_sync(FORMAT))
    if found.version < JOURNAL_VERSION:
        store.replace_sync(FORMAT, [found._replace(version=JOURNAL_VERSION).encode()])
