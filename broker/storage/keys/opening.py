"""Reads the wrapped keys of a store and adds them to the ring of this process.

Owns: the unwrapping, and the line that names a key that is missing. Does not own: the requests to the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from broker.storage.format.errors import KeyMissing
from broker.storage.format.keyring import KEY_VARIABLE, KEYS, DataKey
from broker.storage.format.wrapped_keys import WrappedKeys
from broker.storage.keys.master import Masters
from broker.storage.objectstore.base import NotFound, ObjectInfo
from broker.storage.paths import KEYS as PREFIX
from broker.storage.paths import parse

__all__ = ["Opened", "decode_all", "load_keys", "missing_key", "open_all"]

_TRIES = 8


class Opened:
    """The keys in some objects: those that are not destroyed, by id."""

    def __init__(self) -> None:
        self.keys: dict[bytes, DataKey] = {}
        self.secrets: dict[bytes, bytes] = {}
        """The keys of the objects, by their wrapped form: an owner uses one for all of its objects."""


def decode_all(found: Iterable[tuple[str, bytes]]) -> list[WrappedKeys]:
    """Decode objects, given with their keys. Raises: Corrupt; VersionUnknown."""
    decoded = []
    for text, data in found:
        key = parse(text)
        if key is not None and key.shard is not None:
            decoded.append(WrappedKeys.decode(data, key.shard, key.object_id))
    return decoded


def open_all(objects: Sequence[WrappedKeys], masters: Masters, url: str) -> Opened:
    """Unwrap the keys in ``objects`` and add them to the ring. Blocks, unless the masters are local.

    Raises: KeyMissing, with a line that names the missing key; Corrupt; StoreError.
    """
    opened = Opened()
    dead = {key.key_id for one in objects for key in one.destroyed}
    # A copy of a store keeps the objects from before a change of the master key; others have their keys, too.
    for one in sorted(objects, key=lambda one: masters.named(one.master) is None):
        secret = opened.secrets.get(one.wrapped)
        if secret is None:
            master = masters.named(one.master)
            if master is None:
                if all(key.key_id in opened.keys or key.key_id in dead for key in one.keys):
                    continue
                raise missing_key(url, one.master, masters)
            try:
                secret = master.unwrap(one.wrapped)
            except KeyMissing as error:
                raise KeyMissing(b"", f"{url}: {error}") from None
            opened.secrets[one.wrapped] = secret
        opened.keys.update((key.key_id, key) for key in one.unwrap(secret) if key.key_id not in dead)
    KEYS.destroy(dead)
    KEYS.add(opened.keys.values())
    for shard in {one.shard for one in objects}:
        of_shard = [one for one in objects if one.shard == shard]
        KEYS.add_shard(shard, of_shard[-1].cipher, [key for one in of_shard for row in one.keys
                                                    if (key := opened.keys.get(row.key_id)) is not None])
    return opened


def missing_key(url: str, master: str, masters: Masters | None) -> KeyMissing:
    """Return the error about a store whose keys were wrapped by ``master``, which is not configured."""
    if masters is None:
        return KeyMissing(b"", f"{url} is encrypted under the master key {master}, and no key is configured: set "
                               f"jetstream {{ key }}, or {KEY_VARIABLE}")
    return KeyMissing(b"", f"{url} is encrypted under the master key {master}, and the configured key is "
                           f"{masters.current.name}: set jetstream {{ key }} (or {KEY_VARIABLE}) to the store's key; "
                           f"to change the key, also set prev_key to the store's key")


def load_keys(url: str, listed: Callable[[str], Sequence[ObjectInfo]], get: Callable[[str], bytes],
              masters: Masters | None, prefix: str = PREFIX) -> list[WrappedKeys]:
    """Add the keys of a store, or of one shard, to the ring; blocks.

    Returns: the objects with the keys. Raises: as ``open_all``.
    """
    for _ in range(_TRIES):
        try:
            objects = decode_all([(info.key, get(info.key)) for info in listed(prefix)])
            break
        except NotFound:  # merged meanwhile
            continue
    else:
        raise KeyMissing(b"", f"{url}: its keys change all the time: try again")
    if objects and masters is None:
        raise missing_key(url, objects[0].master, None)
    if objects and masters is not None:
        open_all(objects, masters, url)
    return objects
