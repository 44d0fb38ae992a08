"""The end of a directory's log that was not synced when its broker ended, and the damage by a power cut.

    durable                        not known                           after a power cut
    … 40 41 42 | 43 44 45 46 47                                        … 42 43 44 __ 46 ~~      __ missing, ~~ torn
               ^ the mark (objectstore.unsynced)                                   ^ the log ends here

The log ends at the first segment after the mark that is missing or torn. That segment and all later ones were
acknowledged and are lost, as with any server that acknowledges before it syncs. No durable object refers to them, since
every other object was synced after the objects that it refers to. Before the mark, and without a mark, a damaged
segment is damage and never the end.

    an owner     repairs the tail before it claims: sets aside the objects at or beyond the end, syncs the others,
                 and removes the mark last. If the power fails before that, the next start repeats all steps
    a reader     hides the objects at or beyond the end
    neither      does anything if the system that wrote still runs and nothing is torn (kill -9), or if there is no mark

Segments up to the newest root may be missing: the root was synced after them, and they may have been swept since.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from itertools import count
from typing import NamedTuple

from broker.storage.format.errors import Corrupt, FormatError, VersionUnknown
from broker.storage.format.frames import check_frame
from broker.storage.format.header import HEADER_BYTES, KIND_AT, NUMBER_MAX, ObjectHeader, ObjectKind, Position
from broker.storage.format.index import decode_index
from broker.storage.format.log_end import PROOF_BYTES, proves
from broker.storage.format.segment import PUTS_IN_FLIGHT_MAX, decode_head
from broker.storage.objectstore.base import NotFound, StoreRefused, Transient
from broker.storage.objectstore.file import FileStore
from broker.storage.objectstore.unsynced import MARK, Mark, mark_failed, place_of, read_mark, remove_mark
from broker.storage.paths import ShardPaths, parse

_log = logging.getLogger(__name__)

__all__ = ["Tail", "check_segment", "find_tail", "hide_torn", "log_tail", "repair_tail"]


class Tail(NamedTuple):
    """The part of the log from the mark on.

    Attributes: first: its first position. end: the position at which the log ends, None: nothing is known to be
        missing. beyond: keys at or beyond the end. sound: keys before the end. last_time_ns: of the newest message in
        the sound segments, 0: not known. rebooted: True if the system that wrote it has ended, or has lost the disk
        meanwhile. synced_at_ns: when everything before it had been synced. failed: True if a sync had failed.
    """

    first: Position
    end: Position | None
    beyond: list[str]
    sound: list[str]
    last_time_ns: int
    rebooted: bool
    synced_at_ns: int
    failed: bool


def repair_tail(store: FileStore, paths: ShardPaths) -> Tail | None:
    """Make the log durable up to its sound end. The caller holds the shard's lock and has claimed nothing yet.

    Returns: the tail as it was; None if there was nothing to do. Raises: StoreError.
    """
    folder = paths.logs.rstrip("/")
    tail = find_tail(store, paths)
    if tail is not None and not tail.failed and not store.sync_folder(folder, tail.sound):
        # Note the failure on disk: if this process ends before it is repaired, the next start's sync would succeed.
        try:
            mark_failed(store.path_of(paths.logs))
        except OSError as error:
            raise StoreRefused(
                f"{store.url}: {folder} cannot be synced: {error.strerror or error}: check the disk") from error
        tail = find_tail(store, paths)
    if tail is None:
        return None
    for key in tail.beyond:
        store.move_to_torn(key)
    if tail.beyond and not store.sync_folder(folder, ()):
        raise StoreRefused(f"{store.url}: {folder} cannot be synced: check the disk")
    if tail.failed:
        # The system may take for written what it could not write: only new files are certain to be on the disk.
        for key in tail.sound:
            store.replace_sync(key, [store.get_sync(key)])
        if not store.sync_folder(folder, ()):
            raise StoreRefused(f"{store.url}: {folder} cannot be synced: check the disk")
    try:
        remove_mark(store.path_of(paths.logs))
    except OSError as error:
        raise Transient(f"{store.url}: {folder}: {error.strerror or error}") from error
    return tail


def hide_all_torn(store: FileStore) -> None:
    """Call ``hide_torn`` for each shard of the store. Raises: StoreError."""
    hide_torn(store, 0)
    for shard in count(1):
        if not store.list_sync(ShardPaths(shard).epochs, limit=1):
            break
        hide_torn(store, shard)


def hide_torn(store: FileStore, shard: int) -> Tail | None:
    """Let a reader see the log as its next owner will: without the objects at or beyond the end after a power cut.

    Returns: the tail; None if there is nothing to hide. Raises: StoreError.
    """
    paths = ShardPaths(shard)
    tail: Tail | None = None
    while not store.is_locked(paths.prefix.rstrip("/")):
        try:
            tail = find_tail(store, paths)
            break
        except NotFound:
            continue  # a new owner has set it aside or swept it
    if tail is None or tail.end is None:
        return None
    store.hide(paths.log(tail.end), paths.log(Position(tail.end.epoch, NUMBER_MAX)))
    return tail


def log_tail(tail: Tail | None, url: str) -> None:
    """Log the tail that an owner has repaired."""
    if tail is None:
        return
    if tail.end is not None:
        _log.warning("%s: %s the log is sound up to %s, and %d objects beyond it, some of them torn "
                     "or missing, were set aside in .torn beside them", url, _why(tail), _before(tail.end),
                     len(tail.beyond))
    if tail.rebooted or tail.failed:
        _log.warning("%s: %s messages acknowledged after %s may be lost; up to %s all of them were synced", url,
                     _why(tail), _utc(tail.last_time_ns or tail.synced_at_ns), _utc(tail.synced_at_ns))


def _why(tail: Tail) -> str:
    return ("a sync had failed:" if tail.failed
            else "the machine or the disk went away, or the store was moved, before all that was acknowledged was "
                 "synced (sync_interval):")


def _utc(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9, UTC).isoformat(timespec="seconds") if time_ns else "its beginning"


def find_tail(store: FileStore, paths: ShardPaths) -> Tail | None:
    """Return the tail in its present state; None: everything was synced. Raises: StoreError."""
    folder = store.path_of(paths.logs)
    try:
        mark = read_mark(folder)
    except OSError as error:
        raise StoreRefused(f"{store.url}: {paths.logs}{MARK}: {error.strerror or error}; it says what was not synced, "
                           f"so it must be readable") from error
    if mark is None:
        return None
    first = _first(store, paths, mark)
    rebooted = not mark.place or mark.place != place_of(folder)
    keys = [info.key for info in store.list_sync(f"{paths.logs}{first.epoch:08x}-", paths.log(_before(first)))]
    unseen = Tail(first, None, [], keys, 0, rebooted, mark.synced_at_ns, mark.failed)
    if _opened_after(store, paths, first.epoch):
        # An older jetblock, which ignores marks, may have replayed this epoch and ended it.
        return unseen
    sound: list[str] = []
    last_time_ns = 0
    end: Position | None = None
    torn = False
    for at, key in enumerate(keys):
        position = Position(first.epoch, first.number + at)
        if key != paths.log(position):
            end = position
            break
        data = store.get_sync(key)
        if data[KIND_AT:KIND_AT + 1] == bytes([ObjectKind.SEAL]):
            break
        try:
            last_time_ns = max(last_time_ns, check_segment(data, position))
        except VersionUnknown:
            pass  # the replay reports it
        except Corrupt:
            end, torn = position, True
            break
        sound.append(key)
    # kill -9 tears nothing and omits only segments in flight. But the disk may have been lost and be back.
    remounted = torn or (end is not None and _was_stored(store, paths, end, keys[len(sound):]))
    if not (rebooted or mark.failed or remounted):
        return unseen
    beyond = [] if end is None else [key for key in keys[len(sound):] if not _is_seal(store, key)]
    return unseen._replace(end=end, beyond=beyond, sound=sound, last_time_ns=last_time_ns,
                           rebooted=rebooted or remounted)


def _was_stored(store: FileStore, paths: ShardPaths, missing: Position, later: list[str]) -> bool:
    """Return whether one of the entries ``later`` proves that the entry at ``missing`` was stored."""
    if later[-1] >= paths.log(Position(missing.epoch, missing.number + PUTS_IN_FLIGHT_MAX)):
        return True
    return any(key is not None and key.position is not None
               and proves(store.get_sync(text, 0, PROOF_BYTES), key.position, missing)
               for text, key in zip(later, map(parse, later), strict=True))


def check_segment(data: bytes, position: Position) -> int:
    """Check every checksum of a whole segment. Returns: the time of its newest message, 0: it has none.

    Raises: Corrupt; VersionUnknown.
    """
    head = decode_head(data, position, complete=True)
    if isinstance(head, int):
        raise Corrupt(str(position), "directory", len(data), "cut short")
    last_time_ns = 0
    for i in range(len(head)):
        core = head.core(i)
        ref = head.ref(i, core)
        if ref is None:
            continue
        last_time_ns = max(last_time_ns, core.last_time_ns)
        index = decode_index(data[ref.index_offset:ref.index_offset + ref.index_bytes], ref)
        for number, frame in enumerate(index.frames):
            start = ref.frames_offset + frame.offset
            check_frame(index, number, data[start:start + frame.stored_bytes])
    return last_time_ns


def _first(store: FileStore, paths: ShardPaths, mark: Mark) -> Position:
    """Return the first number that need not be durable: everything included in a root is durable."""
    key = parse(mark.first_key)
    if key is not None and key.position is not None:
        first = key.position
    else:
        # The mark itself is torn. Only the newest epoch can have a mark.
        first = Position(max((position.epoch for position in _positions(store, paths.logs)), default=1), 1)
    roots = [root.number + 1 for root in _positions(store, paths.checkpoints) if root.epoch == first.epoch]
    return Position(first.epoch, max([first.number, *roots]))


def _opened_after(store: FileStore, paths: ShardPaths, epoch: int) -> bool:
    if any(root.epoch > epoch for root in _positions(store, paths.checkpoints)):
        return True  # the opening may have been swept
    return any(position.epoch > epoch and not position.number and not _is_seal(store, paths.log(position))
               for position in _positions(store, paths.logs, paths.log(Position(epoch, NUMBER_MAX))))


def _positions(store: FileStore, prefix: str, after: str = "") -> list[Position]:
    return [key.position for info in store.list_sync(prefix, after)
            if (key := parse(info.key)) is not None and key.position is not None]


def _is_seal(store: FileStore, key: str) -> bool:
    try:
        return ObjectHeader.unpack(store.get_sync(key, 0, HEADER_BYTES), key).kind == ObjectKind.SEAL
    except FormatError:
        return False


def _before(position: Position) -> Position:
    return Position(position.epoch, position.number - 1)
