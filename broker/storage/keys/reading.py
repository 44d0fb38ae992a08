"""Loads the keys of a store for a program that only reads it, once a section needs them.

The master key comes from the environment (``JETBLOCK_KEY``): command lines and Spark's plans are shown to others.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

from broker.storage.format.errors import KeyMissing
from broker.storage.format.keyring import KEYS
from broker.storage.format.sealing import SealingCodec
from broker.storage.format.section import SECTIONS, SectionCodec
from broker.storage.keys.master import BadKey, Masters
from broker.storage.keys.opening import load_keys
from broker.storage.objectstore.base import ObjectInfo, ObjectStore
from broker.storage.paths import ShardPaths

__all__ = ["open_with_keys", "use_keys_of", "use_keys_of_url", "writer_codec"]

_used: set[str] = set()
_using = Lock()

_CODEC_SECONDS = 60.0
"""The time for which ``writer_codec`` answers without a request. A program that writes to a store while it becomes
encrypted seals what it puts after this time at the latest."""
_codecs: dict[tuple[str, int, int], tuple[float, SectionCodec]] = {}
"""Codecs by store, shard and stream, each with the ``time.monotonic()`` at which its keys were read."""


def _forget() -> None:
    """In a forked process: clients of the parent do not work, and the process opens its own ones."""
    _used.clear()
    _codecs.clear()
    KEYS.loaders.clear()


os.register_at_fork(after_in_child=_forget)


def use_keys_of(url: str, listed: Callable[[str], Sequence[ObjectInfo]], get: Callable[[str], bytes]) -> None:
    """Load the keys of the store at ``url`` by these blocking calls whenever this process meets an unknown key.

    The call that meets it raises KeyMissing if the environment has no key, or another one.
    """
    with _using:
        if url not in _used and not url.startswith("memory:"):
            _used.add(url)
            KEYS.loaders.append(lambda: load_keys(url, listed, get, _masters()))


def writer_codec(url: str, shard: int, stream_id: int, listed: Callable[[str], Sequence[ObjectInfo]],
                 get: Callable[[str], bytes]) -> SectionCodec:
    """Return the codec for staged runs of a stream, and for requests to the owner of its shard.

    The keys are read once a minute at most: a streaming query writes many small batches.
    Raises: KeyMissing, if the store is encrypted and the environment has no key, or another one.
    """
    now = time.monotonic()
    read_at, codec = _codecs.get((url, shard, stream_id), (-_CODEC_SECONDS, SECTIONS))
    if now - read_at >= _CODEC_SECONDS:
        codec = _read_codec(url, shard, stream_id, listed, get)
        _codecs[url, shard, stream_id] = now, codec
    return codec


def _read_codec(url: str, shard: int, stream_id: int, listed: Callable[[str], Sequence[ObjectInfo]],
                get: Callable[[str], bytes]) -> SectionCodec:
    objects = load_keys(url, listed, get, _masters(), ShardPaths(shard).keys)
    if not objects:
        return SECTIONS
    by_owner = {key.owner: found for one in objects for key in one.keys
                if (found := KEYS.get(key.key_id)) is not None}
    if 0 not in by_owner or stream_id not in by_owner:
        raise KeyMissing(b"", f"{url}: it is encrypted, and the stream has no key yet: start a broker on it")
    return SealingCodec(objects[-1].cipher, by_owner.__getitem__)


def use_keys_of_url(url: str, **options: Any) -> None:
    """Do the same through a client of its own, which is opened for each load with these options of ``open_store``."""
    def listed(prefix: str) -> Sequence[ObjectInfo]:
        found: Sequence[ObjectInfo] = _ask(url, options, lambda store: store.list(prefix))
        return found

    def get(key: str) -> bytes:
        data: bytes = _ask(url, options, lambda store: store.get(key))
        return data

    use_keys_of(url, listed, get)


def open_with_keys(url: str, **options: Any) -> ObjectStore:
    """Open a store as ``open_store`` does. If it is encrypted, this process reads it with the key in its environment.
    """
    from broker.storage.objectstore import open_store

    store = open_store(url, **options)
    use_keys_of_url(url, **options)
    return store


def _ask(url: str, options: Mapping[str, Any], call: Callable[[Any], Any]) -> Any:
    """Make a call on a loop of its own: the caller may be on one."""
    from broker.storage.objectstore import open_store

    async def ask() -> Any:
        store = open_store(url, **{**options, "read_only": True})
        try:
            return await call(store)
        finally:
            await store.close()

    with ThreadPoolExecutor(1, thread_name_prefix="keys") as thread:
        return thread.submit(lambda: asyncio.run(ask())).result()


def _masters() -> Masters | None:
    try:
        return Masters.of_environment(os.environ)
    except BadKey as error:
        raise KeyMissing(b"", str(error)) from None
