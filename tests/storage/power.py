"""A file system that loses power: computes the contents of the disk from the syncs that a store has made.

The store under test writes to a real directory. Its syncs are recorded instead of executed, so at any moment it is
known which data and which names are durable. ``crashed`` builds one of the directories that a power cut may leave:

    a name      present if it was synced with its folder. A newer name is present or not, independently of others
    a delete    since its folder was synced: all such files are back, or none. File systems with a journal keep the
                order of deletes, and a directory's deletes are not synced: if a single root were back, fsck would
                report a fault
    data        unchanged if it was synced. Otherwise: whole, empty, cut short, or with zeros in some of it
    the mark    is overwritten in place: it has its last synced content, its last written content, or neither
    the journal is overwritten in place: each sector of it has its last synced content, or a later one
"""

from __future__ import annotations

import asyncio
import os
import random
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from broker.storage.format.journal import JOURNAL
from broker.storage.log.journal import JournalThread
from broker.storage.objectstore import disk, unsynced
from broker.storage.objectstore.file import FileStore

__all__ = ["InlineJournal", "InlineStore", "PowerDisk"]

_SECTOR = 512
T = TypeVar("T")


class InlineJournal(JournalThread):
    """A journal's thread whose calls are made at once, on the loop."""

    def run(self, call: Callable[[], T], then: Callable[[T], object]) -> None:
        asyncio.get_running_loop().call_soon(then, call())

    async def end(self) -> None:
        pass


class InlineStore(FileStore):
    """A directory store whose calls are made on the loop, so that the same program runs the same way each time."""

    async def _in_thread(self, call: Callable[..., Any], *args: object) -> Any:
        return call(*args)


class PowerDisk:
    """Records the syncs of all stores below any directory while ``patched``; ``boot`` stands for the running system."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.boot = 0
        self.syncs = 0
        self.on_sync: Callable[[], object] = lambda: None
        """Called before each sync has an effect: a point at which the power may fail."""
        self._data: dict[int, bytes] = {}
        """The durable content of each file, by inode. Objects never change, so a reused inode is noticed."""
        self._deleted_are_back = False
        self._names: dict[str, dict[str, tuple[int, bytes | None]]] = {}
        """The durable names of each folder, with inode and content; content None: a folder."""

    def patched(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "fsync", self._fsync)
        monkeypatch.setattr(os, "fdatasync", self._fsync)
        monkeypatch.setattr(disk, "_syncfs", lambda: self._sync_all)
        monkeypatch.setattr(unsynced, "place_of", lambda folder: f"boot-{self.boot}")
        monkeypatch.setattr("broker.storage.unsynced_tail.place_of", lambda folder: f"boot-{self.boot}")

    def _fsync(self, fd: int) -> None:
        self._before()
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            self._sync_folder(os.readlink(f"/proc/self/fd/{fd}"))
        else:
            self._data[os.fstat(fd).st_ino] = Path(f"/proc/self/fd/{fd}").read_bytes()

    def _sync_all(self, fd: int) -> None:
        self._before()
        for folder, _, names in os.walk(self.root):
            for name in names:
                path = os.path.join(folder, name)
                self._data[os.stat(path).st_ino] = Path(path).read_bytes()
            self._sync_folder(folder)

    def _before(self) -> None:
        self.syncs += 1
        self.on_sync()

    def _sync_folder(self, folder: str) -> None:
        self._names[folder] = {
            name: (os.stat(path).st_ino, None if os.path.isdir(path) else Path(path).read_bytes())
            for name in os.listdir(folder) if os.path.exists(path := os.path.join(folder, name))}

    root: Path

    def use(self, root: Path) -> None:
        """Use ``root`` as the file system from now on; everything in it is durable."""
        self.root = root
        self._data.clear()
        self._names.clear()
        calls, self.on_sync = self.on_sync, lambda: None
        self._sync_all(-1)
        self.on_sync = calls

    def crashed(self, to: Path) -> Path:
        """Fill ``to`` with what the disk may have if the power fails now."""
        self._deleted_are_back = self.rng.random() < 0.5
        self._rebuild(str(self.root), to)
        return to

    def _rebuild(self, folder: str, to: Path) -> None:
        to.mkdir()
        durable = self._names.get(folder, {})
        now = {name: os.stat(os.path.join(folder, name)).st_ino for name in os.listdir(folder)}
        for name in sorted(durable.keys() | now.keys()):
            path = os.path.join(folder, name)
            was = durable.get(name)
            if was is not None and name not in now:
                if self._deleted_are_back and was[1] is not None:
                    (to / name).write_bytes(was[1])
                continue
            changed = (was and was[0]) != now.get(name)
            if changed and self.rng.random() < 0.5:
                if was is not None and was[1] is not None:  # it was replaced: restore the old content
                    (to / name).write_bytes(was[1])
            elif name in now:
                if os.path.isdir(path):
                    self._rebuild(path, to / name)
                else:
                    (to / name).write_bytes(self._content(path, now[name]))

    def _content(self, path: str, inode: int) -> bytes:
        content, durable = Path(path).read_bytes(), self._data.get(inode)
        if durable == content:
            return content
        if os.path.basename(path) == JOURNAL:
            return self._mixed(durable or b"", content)
        kind = self.rng.random()
        if os.path.basename(path) == unsynced.MARK and durable is not None and kind < 0.9:
            return content if kind < 0.45 else durable
        if kind < 0.3 or not content:
            return content
        at = self.rng.randrange(len(content))
        if kind < 0.5:
            return b""
        if kind < 0.65:
            return content[:at]
        if kind < 0.8:
            return content[:at] + bytes(len(content) - at)
        end = min(len(content), at + 1 + self.rng.randrange(64))
        return content[:at] + bytes(end - at) + content[end:]

    def _mixed(self, old: bytes, new: bytes) -> bytes:
        """Return ``new`` with some of its sectors as they were in ``old``."""
        old = old.ljust(len(new), b"\0")
        kept = self.rng.random()
        return b"".join((old if self.rng.random() < kept else new)[at:at + _SECTOR]
                        for at in range(0, len(new), _SECTOR))
