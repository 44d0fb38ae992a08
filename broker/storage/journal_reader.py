"""Reads a directory's journal without changing anything: the commits that it has and the log does not have yet.

The journal ends at the first record that is not valid, and where a commit or a segment is missing (``format.journal``).
It is ignored if a later opening, or a seal at the first missing number, has ended its epoch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from broker.storage.format.errors import Corrupt
from broker.storage.format.header import HEADER_BYTES, KIND_AT, ObjectKind, Position
from broker.storage.format.journal import AREA_BYTES_MAX, JOURNAL, Area, JournaledSegment, decode_area, segments_of
from broker.storage.objectstore.base import NotFound, StoreRefused
from broker.storage.objectstore.file import FileStore
from broker.storage.paths import ShardPaths, parse

__all__ = ["Journaled", "find_journaled", "journal_path", "last_journaled"]


class Journaled(NamedTuple):
    """The commits of a journal that are not in the log.

    Attributes: epoch: of the log. segments: the segments to be stored, in order.
    """

    epoch: int
    segments: Sequence[JournaledSegment]


def journal_path(store: FileStore, paths: ShardPaths) -> str:
    """Return the path of the shard's journal."""
    return f"{store.path_of(paths.logs)}/{JOURNAL}"


def find_journaled(store: FileStore, paths: ShardPaths) -> Journaled | None:
    """Return the commits of the shard's journal that are not in the log; None: there are none.

    Raises: StoreError; FormatError.
    """
    areas = _areas(journal_path(store, paths))
    if not areas:
        return None
    newest = max(areas, key=lambda area: (area.header.epoch, area.header.serial)).header
    epoch = newest.epoch
    areas = [area for area in areas if (area.header.epoch, area.header.nonce) == (epoch, newest.nonce)]
    missing = _first_missing(store, paths, epoch)
    if missing is None:
        return None
    segments = list(segments_of(areas, missing))
    if not segments:
        return None
    last = segments[-1]
    if not last.closed and store.list_sync(f"{paths.logs}{epoch:08x}-", paths.log(Position(epoch, last.number - 1)), 1):
        if _exists(store, paths.log(Position(epoch, last.number))):
            segments.pop()
        else:
            raise Corrupt(JOURNAL, "commits", 0, f"segment {last.number} ends early, and a later one is in the log")
    return Journaled(epoch, segments) if segments else None


def last_journaled(store: FileStore, paths: ShardPaths) -> Position | None:
    """Return the position of the newest segment with commits in the journal, stored or not; None: there is none.

    The journal may be that of a running broker. Raises: StoreError; FormatError.
    """
    areas = _areas(journal_path(store, paths))
    return max((Position(area.header.epoch, place.segment) for area in areas for place in area.places()), default=None)


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


def _first_missing(store: FileStore, paths: ShardPaths, epoch: int) -> int | None:
    """Return the first number of the epoch's log without an entry; None if the epoch has ended."""
    roots = list(_positions(store, paths.checkpoints))
    if any(root.epoch > epoch for root in roots):
        return None
    number = max((root.number + 1 for root in roots if root.epoch == epoch), default=0)
    entries = _positions(store, paths.logs, paths.log(Position(epoch, number - 1)) if number else "")
    for entry in sorted(entries):
        if entry.epoch > epoch:
            if not entry.number and not _is_seal(store, paths.log(entry)):
                return None
        elif entry.epoch == epoch and entry.number == number:
            if _is_seal(store, paths.log(entry)):
                return None
            number += 1
    return number


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
