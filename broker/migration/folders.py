"""Streams in folders, as ``nats stream backup`` and ``nats account backup`` write them.

    FOLDER/backup.json          {"config": …, "state": …} of the API
    FOLDER/stream.tar.s2        the archive, which is no tar since nats-server 2.15
    FOLDER/<stream>/…           instead of these files: a folder with such files for each stream
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from broker.migration.errors import CannotMigrate, StreamFailed
from broker.migration.streams import Numbers, StreamToMove

__all__ = ["FolderSource"]

_FACTS, _ARCHIVE = "backup.json", "stream.tar.s2"
_READ_BYTES = 256 << 10
_NAME = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f]{1,255}")
"""The pattern of stream names, which become tokens of subjects."""


class FolderSource:
    """A backup, or a folder of backups, as the source."""

    def __init__(self, folder: Path) -> None:
        self.shown = str(folder)
        self._folder = folder
        self._folders: dict[str, Path] = {}

    async def streams(self) -> list[StreamToMove]:
        return await asyncio.to_thread(self._find)

    def _find(self) -> list[StreamToMove]:
        folder = self._folder
        try:
            if (folder / _FACTS).exists():
                folders = [folder]
            else:
                folders = sorted(one.parent for one in folder.glob(f"*/{_FACTS}"))
        except OSError as error:
            raise CannotMigrate(f"{folder}: cannot be read: {error.strerror}") from None
        if not folders:
            raise CannotMigrate(f"{folder}: no backup: neither it nor a folder in it has a {_FACTS}, which `nats "
                                f"stream backup` writes")
        found: list[StreamToMove] = []
        for one in folders:
            try:
                stream = _read(one)
            except CannotMigrate as error:
                if one == folder:
                    raise
                # `nats account backup` leaves such a folder for each stream in memory.
                found.append(StreamToMove(one.name, {}, Numbers(), unreadable=str(error)))
                continue
            if (other := self._folders.setdefault(stream.name, one)) != one:
                raise CannotMigrate(f"{one} and {other} are both backups of {stream.name}; move one of them away")
            found.append(stream)
        return found

    async def numbers(self, stream: StreamToMove) -> Numbers:
        return stream.numbers

    async def consumers(self, stream: StreamToMove) -> None:
        """Return None: only the archive has the consumers."""

    async def archive(self, stream: StreamToMove, *, consumers: bool) -> AsyncGenerator[bytes, None]:
        path = self._folders[stream.name] / _ARCHIVE
        try:
            with path.open("rb") as file:
                while data := await asyncio.to_thread(file.read, _READ_BYTES):
                    yield data
        except OSError as error:
            raise StreamFailed(f"{path}: cannot be read: {error.strerror}") from None

    async def close(self) -> None:
        pass


def _read(folder: Path) -> StreamToMove:
    facts, archive = folder / _FACTS, folder / _ARCHIVE
    try:
        value: Any = json.loads(facts.read_bytes())
        size = archive.stat().st_size
    except OSError as error:
        raise CannotMigrate(f"{error.filename}: cannot be read: {error.strerror}; the backup is not whole, take it "
                            f"again") from None
    except ValueError as error:
        raise CannotMigrate(f"{facts}: {error}: the backup is not whole, take it again") from None
    config = value.get("config") if isinstance(value, dict) else None
    state = value.get("state") if isinstance(value, dict) else None
    if not isinstance(config, dict) or not isinstance(state, dict) or not isinstance(config.get("name"), str):
        raise CannotMigrate(f"{facts}: no configuration and state of a stream in it: not what `nats stream backup` "
                            "writes")
    if not _NAME.fullmatch(config["name"]):
        raise CannotMigrate(f"{facts}: {config['name']!r} is no name of a stream")
    try:
        numbers = Numbers.of(state)
        consumers = int(state.get("consumer_count", 0))
    except (TypeError, ValueError):
        raise CannotMigrate(f"{facts}: its state is not one of a stream") from None
    return StreamToMove(config["name"], config, numbers, archive_bytes=size, consumers=consumers)
