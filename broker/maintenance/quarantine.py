"""Where a repair keeps what it replaces: ``quarantine/<time>/<key>``, the same bytes, and ``quarantine/<time>/record.json``.
``done`` beside them says that the repair came to its end; otherwise the next one goes on from the record.

No broker and no reader looks there, and nothing is ever deleted from it but by hand. To undo a repair, put a copy back under
its key.
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
    """One repair's folder."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self.folder = folder
        self._store = store

    @classmethod
    async def make(cls, store: ObjectStore, now_ns: int) -> Quarantine:
        """A folder that no earlier repair has."""
        at = datetime.fromtimestamp(now_ns // 1_000_000_000, UTC).strftime("%Y%m%dT%H%M%SZ")
        number = 0
        while await store.list(folder := f"{QUARANTINE}{at}{f'-{number:03d}' if number else ''}/", limit=1):
            number += 1
        return cls(store, folder)

    async def keep(self, keys: Iterable[str]) -> list[str]:
        """Copy these objects; returns those that exist. Raises: StoreError, also if a copy is not what was put."""
        kept = []
        for key in keys:
            try:
                data = await self._store.get(key)
            except NotFound:
                continue
            await self._store.put(f"{self.folder}{key}", [data])
            if await self._store.get(f"{self.folder}{key}") != data:
                raise StoreRefused(f"{self._store.url}: {self.folder}{key} was put but reads back differently; nothing was changed")
            kept.append(key)
        return kept

    async def record(self, facts: dict[str, Any]) -> None:
        """Say beside the copies what was found and what is done about it."""
        await self._store.put(f"{self.folder}record.json", [json.dumps(facts, indent=1).encode()])


class Unfinished(NamedTuple):
    """Repairs that were interrupted: their folders, the keys that they replace, and rows of what they said is lost."""

    folders: list[str]
    replaced: set[str]
    lost: list[dict[str, Any]]


async def unfinished_repairs(store: ObjectStore) -> Unfinished:
    """The repairs with a record and no end. Raises: StoreError."""
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
    """Say that nothing is left to do for a repair."""
    with suppress(PreconditionFailed):
        await store.put(f"{folder}done", [b"done\n"])

