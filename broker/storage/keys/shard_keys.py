"""The data keys of a shard that this process owns, and the store that puts them before what they seal.

    seal a section ──> key_of(owner) ── known ──> its key
                                     └─ new ────> drawn, and *unsaved*
    put an object  ──> flush: an object with all unsaved keys ──> the object itself

So a sealed section is never in the store without its key. Keys are only added: an owner that has lost the shard cannot
remove a key of the next one.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

from broker.storage.format.codec import Compression
from broker.storage.format.errors import FormatError, KeyMissing
from broker.storage.format.keyring import KEY_BYTES, KEY_ID_BYTES, KEYS, NOT_SETTLED, Cipher, DataKey
from broker.storage.format.sealing import SealingCodec
from broker.storage.format.wrapped_keys import Destroyed, WrappedKeys
from broker.storage.keys.master import BadKey, Masters
from broker.storage.keys.opening import Opened, decode_all, missing_key, open_all
from broker.storage.objectstore.base import Buffers, NotFound, ObjectStore, Transient
from broker.storage.objectstore.wrapper import Wrapper
from broker.storage.paths import KEYS as PREFIX
from broker.storage.paths import ShardPaths
from broker.storage.state.ids import decode_ids
from broker.storage.state.stream import StreamState

__all__ = ["KeyedStore", "ShardKeys", "keys_for_repair", "read_objects", "read_wrapped"]

_log = logging.getLogger(__name__)

_OBJECTS_MAX = 64
"""More objects with keys than this are merged."""
_TRIES = 8
_DESTROYED_NS = 90 * 86_400_000_000_000
"""Destroyed keys are listed for so long; all objects from before have been merged by then."""


class ShardKeys:
    """The data keys of one shard, for the time of one ownership. Call ``load`` before anything is sealed.

    ``codec`` seals under these keys. ``flush`` must end before an object with sealed sections is put.
    """

    def __init__(self, paths: ShardPaths, masters: Masters, cipher: Cipher, nonce: bytes, compression: Compression,
                 randbytes: Callable[[int], bytes] = os.urandom) -> None:
        """Args: ``nonce``: the writer's. ``randbytes`` must never return the same bytes in two processes."""
        self.codec = SealingCodec(cipher, self.key_of, compression, randbytes, adopt=self.adopt)
        self._paths = paths
        self._masters = masters
        self._cipher = cipher
        self._nonce = nonce
        self._randbytes = randbytes
        self._by_owner: dict[int, DataKey] = {}
        self._keys: dict[bytes, DataKey] = {}
        """All keys. A shard may have several, if two processes started on a new store at once."""
        self._unsaved: dict[bytes, DataKey] = {}
        self._destroyed: dict[bytes, Destroyed] = {}
        """Destroyed keys: an object that was not merged may still have them."""
        self._objects: dict[str, WrappedKeys] = {}
        """The objects with keys in the store, as far as this process knows."""
        self._adopted: set[int] = set()
        """Streams that have come since the last call of ``take_adopted``: their keys stay."""
        self._drawing = Lock()
        self._since = 1
        """The ``since`` of keys that are drawn now."""
        self._secret = randbytes(KEY_BYTES)
        self._wrapped = b""
        self._merging = False

    async def load(self, store: ObjectStore) -> None:
        """Read the shard's keys, draw its own if it has none, and wrap all by the current master key.

        Raises: KeyMissing, with a line that names the missing key; Corrupt; StoreError.
        """
        found = await read_wrapped(store, self._paths)
        objects = decode_all(found)
        opened = await self._blocking(lambda: open_all(objects, self._masters, store.url))
        self._objects = {text: one for (text, _), one in zip(found, objects, strict=True)}
        self._destroyed = {key.key_id: key for one in objects for key in one.destroyed}
        self._keys = dict(opened.keys)
        self._by_owner = {key.owner: key for key in opened.keys.values()}
        self._wrapped = await self._blocking(lambda: self._masters.current.wrap(self._secret))
        self.key_of(0)
        if any(one.master != self._masters.current.name for one in objects):
            await self.merge(store)
            _log.info("%s: the keys of shard %d are wrapped by the master key %s now", store.url, self._paths.shard,
                      self._masters.current.name)
        elif self.must_merge:
            await self.merge(store)

    async def _blocking(self, call: Callable[[], Opened | bytes]) -> Any:
        local = all(master is None or master.local for master in self._masters)
        return call() if local else await asyncio.to_thread(call)

    def replay(self) -> None:
        """Draw the keys of streams that have none, while the journal of a killed owner is stored. Nobody has read the
        states of the streams yet, so ``begin`` says from which epoch on all of them is sealed."""
        self._since = NOT_SETTLED

    async def begin(self, epoch: int, streams: Iterable[StreamState], store: ObjectStore) -> None:
        """Draw keys for the streams that have none: their sections are sealed from ``epoch`` on.

        Call it once the shard is recovered; all sections of later streams are sealed. Streams with plain pages are
        marked, so that the next checkpoint writes them. Raises: StoreError.
        """
        self._since, settled = epoch, False
        for stream in streams:
            if stream.moves:  # runs from another shard's log, of higher epochs, may be plain, too
                foreign = max((run[0] for page in stream.blocks.pages for run, _ in page.run_counts(stream.stream_id)),
                              default=0)
                self._since = max(epoch, foreign + 1)
            if (key := self.key_of(stream.stream_id)).since == NOT_SETTLED:
                key, settled = self._settle(key), True
            since, self._since = key.since, epoch
            if any(page.place.position.epoch < since for page in stream.subjects):
                stream.subjects = ()  # only written once; a broker makes new ones
                stream.dirty = True
            stream.dirty = stream.dirty or since >= epoch
            if any(place.position.epoch < since for place in stream.ids.places):
                await self._load_ids(stream, since, store)
        self._since = 0
        if settled:
            await self.merge(store)

    def _settle(self, key: DataKey) -> DataKey:
        key = key._replace(since=self._since)
        with self._drawing:
            self._keys[key.key_id] = self._by_owner[key.owner] = key
        KEYS.settle(key)
        return key

    async def _load_ids(self, stream: StreamState, since: int, store: ObjectStore) -> None:
        """Load the message ids of plain pages, so that the next checkpoint writes them; it leaves whole pages alone."""
        for part in stream.ids.parts():
            if (ref := part.place) is None or ref.position.epoch >= since:
                continue
            try:
                data = await store.get(self._paths.pages(ref.position), ref.offset, ref.offset + ref.size)
                loaded = replace(part, chunks=tuple(decode_ids(part, data)[0]), place=None)
            except (NotFound, FormatError):
                loaded = part.lost()
            stream.ids.replace([part], loaded)
            stream.dirty = True

    def key_of(self, owner: int) -> DataKey:
        """Return the key of a stream, or of the shard (0); draw one if there is none. In any thread."""
        key = self._by_owner.get(owner)
        if key is None:
            with self._drawing:
                key = self._by_owner.get(owner)
                if key is None:
                    key = DataKey(self._randbytes(KEY_ID_BYTES), owner, self._randbytes(KEY_BYTES), self._since)
                    KEYS.add((key,))
                    self._keys[key.key_id] = self._unsaved[key.key_id] = self._by_owner[owner] = key
        return key

    def adopt(self, owner: int) -> None:
        """Take the keys of a stream that comes from another shard, where everything of it that it keeps is sealed.

        Its keys stay with the stream: no nonce repeats, because this owner draws a salt of its own.
        Raises: KeyMissing: this process has not read the key.
        """
        keys = KEYS.all_of_stream(owner)
        if not keys:
            raise KeyMissing(b"", f"the key of stream {owner:016x} is in no shard that this broker has read")
        with self._drawing:
            self._adopted.add(owner)
            for key in keys:
                if key.key_id not in self._keys:
                    key = key._replace(since=0)
                    self._keys[key.key_id] = self._unsaved[key.key_id] = self._by_owner[owner] = key
                    self._destroyed.pop(key.key_id, None)
        self.codec.forget(owner)

    def take_adopted(self) -> set[int]:
        """Return the streams that have come since the last call."""
        with self._drawing:
            adopted, self._adopted = self._adopted, set()
        return adopted

    @property
    def must_merge(self) -> bool:
        """True if there are too many objects with keys."""
        return len(self._objects) > _OBJECTS_MAX and not self._merging

    async def flush(self, store: ObjectStore) -> None:
        """Put the keys that were drawn since the last call. Raises: StoreError."""
        if self._unsaved:
            keys, one, text = self._next()
            await store.put(text, [one.encode(self._nonce)])
            self._saved(keys, one, text)

    def flush_sync(self, put: Callable[[str, Buffers], None]) -> None:
        """Do the same in a thread, by a blocking ``put``. Raises: StoreError."""
        if self._unsaved:
            keys, one, text = self._next()
            put(text, [one.encode(self._nonce)])
            self._saved(keys, one, text)

    def _next(self) -> tuple[list[DataKey], WrappedKeys, str]:
        # Each call puts all unsaved keys, even if another call is doing so: it must not return before they are saved.
        with self._drawing:
            keys = list(self._unsaved.values())
        one = self._wrap(keys)
        return keys, one, self._paths.wrapped_keys(one.keys_id)

    def _wrap(self, keys: Sequence[DataKey]) -> WrappedKeys:
        keys_id = int.from_bytes(self._randbytes(8), "little")
        return WrappedKeys.wrap(self._paths.shard, keys_id, self._cipher, self._masters.current.name, self._wrapped,
                                self._secret, keys, list(self._destroyed.values()))

    def _saved(self, keys: Iterable[DataKey], one: WrappedKeys, text: str) -> None:
        with self._drawing:
            self._objects[text] = one
            for key in keys:
                self._unsaved.pop(key.key_id, None)

    @property
    def streams(self) -> set[int]:
        """The streams that have keys, perhaps deleted ones."""
        with self._drawing:
            return {owner for owner in self._by_owner if owner}

    def _drop(self, streams: Collection[int]) -> list[DataKey]:
        """Drop the keys of ``streams`` from memory. A stream that has arrived meanwhile keeps its keys.

        The caller holds the lock ``_drawing``.

        Returns: the keys that were dropped.
        """
        gone = [key for key in self._keys.values() if key.owner in streams and key.owner not in self._adopted]
        for key in gone:
            del self._keys[key.key_id]
            self._unsaved.pop(key.key_id, None)
            self._by_owner.pop(key.owner, None)
        return gone

    async def destroy(self, streams: Collection[int], at_ns: int, store: ObjectStore) -> None:
        """Destroy the keys of deleted streams, of which nothing is needed any more; ``at_ns`` is the time.

        Raises: StoreError; then they are destroyed for this process, and the next call does the rest.
        """
        with self._drawing:
            gone = self._drop(streams)
            for key in gone:
                self._destroyed[key.key_id] = Destroyed(key.key_id, key.owner, at_ns)
            for old in [old for old in self._destroyed.values() if old.at_ns < at_ns - _DESTROYED_NS]:
                del self._destroyed[old.key_id]
        KEYS.destroy([key.key_id for key in gone])
        await self._remove(gone, store)

    async def release(self, streams: Collection[int], store: ObjectStore) -> None:
        """Drop the keys of streams that other shards have, with their keys. Raises: StoreError; then some are left."""
        with self._drawing:
            gone = self._drop(streams)
        await self._remove(gone, store)

    async def _remove(self, gone: Iterable[DataKey], store: ObjectStore) -> None:
        """Remove keys that were dropped from the store, also those that an earlier call has left there."""
        for key in gone:
            self.codec.forget(key.owner)
        if any(key.key_id not in self._keys for one in self._objects.values() for key in one.keys):
            await self.merge(store)

    async def elsewhere(self, streams: Collection[int], store: ObjectStore) -> tuple[set[int], set[int]]:
        """Return those of the streams that other shards have keys of: first those with all of this shard's keys, then
        the others. Raises: StoreError; FormatError."""
        others = [one for one in decode_all(await read_objects(store, PREFIX)) if one.shard != self._paths.shard]
        dead = {key.key_id for one in others for key in one.destroyed}
        found = {key.key_id: key.owner for one in others for key in one.keys
                 if key.owner in streams and key.key_id not in dead}
        partly = {key.owner for key in list(self._keys.values())
                  if key.owner in streams and key.key_id not in found}
        return set(found.values()) - partly, set(found.values()) & partly

    async def merge(self, store: ObjectStore) -> None:
        """Put one object with all keys, and delete the others. Raises: StoreError; then all keys are still there."""
        self._merging = True
        try:
            with self._drawing:
                old, keys = list(self._objects), list(self._keys.values())
            one = self._wrap(keys)
            text = self._paths.wrapped_keys(one.keys_id)
            await store.put(text, [one.encode(self._nonce)])
            self._saved(keys, one, text)
            for other in old:
                await store.delete(other)
                self._objects.pop(other, None)
        finally:
            self._merging = False


async def read_wrapped(store: ObjectStore, paths: ShardPaths) -> list[tuple[str, bytes]]:
    """Return the objects with the keys of a shard, each with its own key in the store. Raises: StoreError."""
    return await read_objects(store, paths.keys)


async def read_objects(store: ObjectStore, prefix: str) -> list[tuple[str, bytes]]:
    """Do the same for all shards whose objects have this prefix."""
    for _ in range(_TRIES):
        try:
            return [(info.key, await store.get(info.key)) for info in await store.list(prefix)]
        except NotFound:  # merged by an owner
            continue
    raise Transient(f"{store.url}: {prefix}: its objects change all the time")


async def keys_for_repair(store: ObjectStore, paths: ShardPaths, nonce: bytes) -> ShardKeys | None:
    """Return the keys of a shard for a command, by the environment's master key; None if the shard has no keys.

    Raises: KeyMissing; Corrupt; StoreError.
    """
    objects = decode_all([(info.key, await store.get(info.key)) for info in await store.list(paths.keys)])
    if not objects:
        return None
    try:
        masters = Masters.of_environment(os.environ)
    except BadKey as error:
        raise KeyMissing(b"", str(error)) from None
    if masters is None:
        raise missing_key(store.url, objects[0].master, None)
    keys = ShardKeys(paths, masters, objects[-1].cipher, nonce, Compression.ZSTD)
    await keys.load(store)
    return keys


class KeyedStore(Wrapper):
    """A store that puts the keys of sealed sections before the objects that have them."""

    def __init__(self, inner: ObjectStore, keys: ShardKeys) -> None:
        super().__init__(inner)
        self._keys = keys
        put_sync, put_unsynced = inner.put_sync, inner.put_unsynced
        if put_sync is not None:
            put_now = put_sync

            def put_after_keys(key: str, data: Buffers) -> None:
                keys.flush_sync(put_now)
                put_now(key, data)

            self.put_sync = put_after_keys
            if put_unsynced is not None:
                put_later = put_unsynced

                def put_later_after_keys(key: str, data: Buffers, first_key: str) -> None:
                    keys.flush_sync(put_now)
                    put_later(key, data, first_key)

                self.put_unsynced = put_later_after_keys

    async def put(self, key: str, data: Buffers) -> None:
        await self._keys.flush(self.inner)
        if self._keys.must_merge:
            await self._keys.merge(self.inner)
        await self.inner.put(key, data)
