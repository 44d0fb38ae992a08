"""The quarantine: a folder for each repair, which keeps all objects that the repair replaces.

    quarantine/<time>/<key>         the old bytes of the object
    quarantine/<time>/record.json   the record of the repair
    quarantine/<time>/done          put when the repair is finished; without it, the next repair continues this one

No broker and no reader uses this folder, and only people delete from it. To undo a repair, put a copy back under its
key.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

from broker.inspect.repaired import QUARANTINE
from broker.storage.objectstore import NotFound, ObjectStore, PreconditionFailed, StoreRefused

__all__ = ["QUARANTINE", "Quarantine", "Unfinished", "finish_repair", "unfinished_repairs"]


class Quarantine:
    """The folder of one repair."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self.folder = folder
        self._store = store

    @classmethod
    async def make(cls, store: ObjectStore, now_ns: int) -> Quarantine:
        """Choose a folder that no earlier repair has."""
        at = datetime.fromtimestamp(now_ns // 1_000_000_000, UTC).strftime("%Y%m%dT%H%M%SZ")
        number = 0
        while await store.list(folder := f"{QUARANTINE}{at}{f'-{number:03d}' if number else ''}/", limit=1):
            number += 1
        return cls(store, folder)

    async def keep(self, keys: Iterable[str]) -> list[str]:
        """Copy these objects, and return the keys of those that exist.

        Raises: StoreError, also if a copy reads back differently.
        """
        kept = []
        for key in keys:
            try:
                data = await self._store.get(key)
            except NotFound:
                continue
            await self._store.put(f"{self.folder}{key}", [data])
            if await self._store.get(f"{self.folder}{key}") != data:
                raise StoreRefused(f"{self._store.url}: {self.folder}{key} was put but reads back differently; "
                                   f"nothing was changed")
            kept.append(key)
        return kept

    async def record(self, facts: dict[str, Any]) -> None:
        """Put the record of the repair: the problems, the substitutes and the losses."""
        await self._store.put(f"{self.folder}record.json", [json.dumps(facts, indent=1).encode()])


class Unfinished(NamedTuple):
    """Interrupted repairs: their folders, the keys that they replace, and their rows about lost messages."""

    folders: list[str]
    replaced: set[str]
    lost: list[dict[str, Any]]


async def unfinished_repairs(store: ObjectStore) -> Unfinished:
    """Find the repairs that have a record and no ``done``. Raises: StoreError."""
    found = Unfinished([], set(), [])
    keys = {info.key for info in await store.list(QUARANTINE)}
    for key in sorted(keys):
        folder = key.removesuffix("record.json")
        if key == folder or f"{folder}done" in keys:
            continue
        record = json.loads(await store.get(key))
        found.folders.append(folder)
        found.replaced.update(record["replaced"])
        found.lost.extend(record["lost"])
    return found


async def finish_repair(store: ObjectStore, folder: str) -> None:
    """Mark a repair as finished."""
    with suppress(PreconditionFailed):
        await store.put(f"{folder}done", [b"done\n"])

