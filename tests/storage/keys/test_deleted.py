"""The keys of deleted and moved streams: none is destroyed or dropped while something needs it, and none stays."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from broker.storage.format.codec import Compression
from broker.storage.format.header import Position
from broker.storage.format.keyring import KEYS, NOT_SETTLED, Cipher
from broker.storage.format.section import SECTIONS, SectionKind
from broker.storage.keys.deleted import KeysOfDeletedStreams
from broker.storage.keys.master import LocalKey, Masters
from broker.storage.keys.opening import decode_all
from broker.storage.keys.shard_keys import ShardKeys, read_objects
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.paths import KEYS as PREFIX
from broker.storage.paths import ShardPaths
from tests.key_ring import forget_keys
from tests.manual_clock import ManualClock

STREAM = 7
ROUNDS = 4
"""A key is destroyed once its stream was missing in so many checkpoints."""
EMPTY: Any = SimpleNamespace(streams={})
"""The state of a shard without streams."""


@pytest.fixture(autouse=True)
def _empty_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_keys(monkeypatch)


async def shard(store: MemoryStore, number: int) -> tuple[ShardKeys, KeysOfDeletedStreams]:
    """Return the keys of a shard that a broker has taken."""
    keys = ShardKeys(ShardPaths(number), Masters(LocalKey(b"master")), Cipher.AES, bytes(16), Compression.ZSTD)
    await keys.load(store)
    await keys.begin(1, (), store)
    return keys, KeysOfDeletedStreams(keys, store, ManualClock())


async def shards_with(store: MemoryStore) -> dict[bytes, list[int]]:
    """Return the shards that have each key of the stream."""
    found: dict[bytes, list[int]] = {}
    for one in sorted(decode_all(await read_objects(store, PREFIX)), key=lambda one: one.shard):
        for key in one.keys:
            if key.owner == STREAM and one.shard not in found.setdefault(key.key_id, []):
                found[key.key_id].append(one.shard)
    return found


async def moved(store: MemoryStore) -> tuple[tuple[ShardKeys, KeysOfDeletedStreams],
                                             tuple[ShardKeys, KeysOfDeletedStreams], bytes]:
    """Return two shards, of which the second one has got the stream from the first one, and its key."""
    first, second = await shard(store, 0), await shard(store, 1)
    key_id = first[0].key_of(STREAM).key_id
    await first[0].flush(store)
    second[0].adopt(STREAM)
    await second[0].flush(store)
    second[0].take_adopted()
    assert await shards_with(store) == {key_id: [0, 1]}
    return first, second, key_id


async def test_a_stream_comes_back_while_its_key_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first shard has forgotten the stream, and looks for its key elsewhere when the stream comes back: it keeps
    the key, and draws no other one, so the second shard drops it afterwards without destroying it."""
    store = MemoryStore()
    (keys, deleted), (_, others), key_id = await moved(store)
    for _ in range(ROUNDS - 1):
        await deleted.after_round(EMPTY)
    real = store.get

    async def get(key: str, *bounds: int) -> bytes:
        keys.adopt(STREAM)
        return await real(key, *bounds)

    with monkeypatch.context() as patch:
        patch.setattr(store, "get", get)
        await deleted.after_round(EMPTY)
    at = (Position(1, 1), 0, STREAM, SectionKind.CORE, 0)
    header, stored = keys.codec.seal((b"message", 7, 0), at)
    await keys.flush(store)
    back: Any = SimpleNamespace(streams={STREAM: None})
    for _ in range(ROUNDS):
        await deleted.after_round(back)
        await others.after_round(EMPTY)
    assert await shards_with(store) == {key_id: [0]}
    assert SECTIONS.open(header, stored, at) == b"message"


async def test_the_arrival_is_stored_later_than_the_next_checkpoint() -> None:
    """A stream that comes is in no state yet when the next round begins: its key stays."""
    store = MemoryStore()
    (keys, deleted), _, key_id = await moved(store)
    for _ in range(ROUNDS - 1):
        await deleted.after_round(EMPTY)
    keys.adopt(STREAM)
    await deleted.after_round(EMPTY)
    assert await shards_with(store) == {key_id: [0, 1]}


async def test_two_shards_drop_the_key_of_a_deleted_stream_at_the_same_moment() -> None:
    """Each sees that the other one has the key, so neither lists it as destroyed; no shard has it afterwards."""
    store = MemoryStore()
    (_, first), (_, second), _ = await moved(store)
    for _ in range(ROUNDS):
        await asyncio.gather(first.after_round(EMPTY), second.after_round(EMPTY))
    assert await shards_with(store) == {}
    assert await first.until_gone(STREAM) == []


async def test_a_stream_has_a_key_in_each_of_two_shards() -> None:
    """A store became encrypted while the first shard still had a state of the stream, so each shard drew a key. A shard
    to which the stream moves takes both. The first shard destroys its key only after the stream was deleted: until
    then, staged messages may be sealed under it."""
    store = MemoryStore()
    (one, first), (two, second), (three, third) = await shard(store, 0), await shard(store, 1), await shard(store, 2)
    ids = [keys.key_of(STREAM).key_id for keys in (one, two)]
    for keys in (one, two):
        await keys.flush(store)
    for _ in range(2 * ROUNDS):
        await first.after_round(EMPTY)
    assert await shards_with(store) == {ids[0]: [0], ids[1]: [1]}
    three.adopt(STREAM)
    await three.flush(store)
    assert await shards_with(store) == {ids[0]: [0, 2], ids[1]: [1, 2]}
    for _ in range(ROUNDS):
        await first.after_round(EMPTY)
        await second.after_round(EMPTY)
    assert await shards_with(store) == {ids[0]: [2], ids[1]: [2]}
    for _ in range(ROUNDS + 1):
        await third.after_round(EMPTY)
    assert await shards_with(store) == {}
    assert KEYS.of_stream(STREAM) is None


async def test_a_dropped_key_that_a_slow_put_brings_back_is_dropped_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge of the shard's keys that began before the stream's key was dropped ends after that."""
    store = MemoryStore()
    (keys, deleted), _, key_id = await moved(store)
    real, begun, ends = store.put, asyncio.Event(), asyncio.Event()

    async def put(key: str, data: Any) -> None:
        if not begun.is_set():
            begun.set()
            await ends.wait()
        await real(key, data)

    monkeypatch.setattr(store, "put", put)
    slow = asyncio.create_task(keys.merge(store))
    await begun.wait()
    for _ in range(ROUNDS):
        await deleted.after_round(EMPTY)
    ends.set()
    await slow
    await deleted.after_round(EMPTY)
    assert await shards_with(store) == {key_id: [1]}


async def test_keys_of_a_replay_are_settled_by_the_next_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that was drawn while a journal was replayed accepts plain sections of all epochs until the owner has read
    the state of its stream, also if the process was killed in between."""
    store = MemoryStore()
    keys = ShardKeys(ShardPaths(0), Masters(LocalKey(b"master")), Cipher.AES, bytes(16), Compression.ZSTD)
    await keys.load(store)
    keys.replay()
    assert keys.key_of(STREAM).since == NOT_SETTLED
    await keys.flush(store)
    forget_keys(monkeypatch)
    keys = ShardKeys(ShardPaths(0), Masters(LocalKey(b"master")), Cipher.AES, bytes(16), Compression.ZSTD)
    await keys.load(store)
    assert KEYS.plain_before(STREAM) == NOT_SETTLED
    stream: Any = SimpleNamespace(stream_id=STREAM, moves=1, subjects=(), dirty=False, ids=SimpleNamespace(places=()),
                                  blocks=SimpleNamespace(pages=[SimpleNamespace(run_counts=lambda _: [((9,), 1)])]))
    await keys.begin(3, [stream], store)
    assert KEYS.plain_before(STREAM) == 10
    [one] = decode_all(await read_objects(store, PREFIX))
    assert [key.since for key in one.keys if key.owner == STREAM] == [10]
