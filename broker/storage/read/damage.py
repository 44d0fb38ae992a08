"""Error texts for damaged objects: they name the store, the object's key and the remedy.

The formats name an object by kind and position, since a codec knows no keys; ``key_of`` finds the key again.
"""

from __future__ import annotations

import re

from broker.storage.format.errors import FormatError, VersionUnknown
from broker.storage.format.header import Position
from broker.storage.paths import FORMAT, ShardPaths

__all__ = ["explain", "key_of"]

_NAME = re.compile(r"(\w+) ([0-9a-f]{8})-([0-9a-f]{12})\Z")


def key_of(error: FormatError, paths: ShardPaths) -> str:
    """Return the key of the object that an error is about; its name in the error if it is no object of a shard."""
    found = _NAME.match(error.name)
    if found is None:
        return error.name
    position = Position(int(found[2], 16), int(found[3], 16))
    match found[1]:
        case "format":
            return FORMAT
        case "claim":
            return paths.epoch(position.epoch)
        case "segment" | "seal" | "block":
            return paths.log(position)
        case "root":
            return paths.checkpoint(position)
        case "pages":
            return paths.pages(position)
    return error.name


def explain(error: FormatError, paths: ShardPaths, store_url: str) -> str:
    """Return one line that names the store, the object, the damage and the remedy."""
    key = key_of(error, paths)
    where = f"{store_url}: {key}: {error.section} at byte {error.offset}: {error.why}"
    if isinstance(error, VersionUnknown):
        return f"{where}: a newer jetblock wrote this; run that version on it, or a newer one"
    return (f"{where}: put {key} back from a copy of the store (a backup, or an older version of the object where the "
            f"bucket keeps them); `jetblock inspect {store_url} --verify` lists what else is damaged")
