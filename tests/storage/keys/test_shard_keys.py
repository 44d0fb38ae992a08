"""The data keys of a shard: stored before what they seal, wrapped by the master key, and never lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.config.environment import master_keys
from broker.storage.format.codec import Compression
from broker.storage.format.errors import Corrupt, KeyMissing
from broker.storage.format.header import Position
from broker.storage.format.keyring import KEY_VARIABLE, Cipher
from broker.storage.format.section import SECTIONS, SectionHeader, SectionKind, SectionPosition
from broker.storage.format.wrapped_keys import WrappedKeys
from broker.storage.keys import shard_keys
from broker.storage.keys.master import PREVIOUS_VARIABLE, BadKey, LocalKey, Masters
from broker.storage.keys.opening import load_keys
from broker.storage.keys.shard_keys import KeyedStore, ShardKeys, keys_for_repair
from broker.storage.objectstore.base import Transient
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.paths import KEYS as PREFIX
from broker.storage.paths import ShardPaths, parse
from tests.key_ring import forget_keys

PATHS = ShardPaths(0)
OLD, NEW = LocalKey(b"the old key"), LocalKey(b"the new key")


@pytest.fixture(autouse=True)
def _empty_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_keys(monkeypatch)


async def _keys(store: MemoryStore, masters: Masters | None = None) -> ShardKeys:
    keys = ShardKeys(PATHS, masters or Masters(OLD), Cipher.AES, bytes(16), Compression.ZSTD)
    await keys.load(store)
    return keys


def _sealed(keys: ShardKeys, owner: int) -> tuple[SectionHeader, bytes, SectionPosition]:
    at: SectionPosition = (Position(1, 1), 0, owner, SectionKind.CORE, 0)
    return (*keys.codec.seal((b"secret", 6, 0), at), at)


async def _stored(store: MemoryStore) -> list[str]:
    return [info.key for info in await store.list(PREFIX)]


async def test_a_key_is_in_the_store_before_what_it_seals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows the order of puts, that a put which fails leaves the key to the next one, and that a new process opens
    everything."""
    store = MemoryStore()
    keys = await _keys(store)
    keyed = KeyedStore(store, keys)
    sealed = [_sealed(keys, owner) for owner in (0, 5, 6)]
    real, puts = store.put, []

    async def put(key: str, data: list[bytes]) -> None:
        puts.append(key)
        if len(puts) == 1:
            raise Transient("no answer")
        await real(key, data)

    monkeypatch.setattr(store, "put", put)
    with pytest.raises(Transient):
        await keyed.put("v1/shards/0/log/00000001-000000000001", [b"x"])
    await keyed.put("v1/shards/0/log/00000001-000000000001", [b"x"])
    await keyed.put("v1/shards/0/log/00000001-000000000002", [b"y"])
    assert [key.startswith(PREFIX) for key in puts] == [True, True, False, False]
    assert all(parse(key) is not None for key in puts)
    forget_keys(monkeypatch)
    await _keys(store)
    for header, stored, at in sealed:
        assert SECTIONS.open(header, stored, at) == b"secret"


async def test_a_new_master_key_rewraps_the_keys_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows a rotation by prev_key, that the old key opens nothing afterwards, and that data keys stay the same."""
    store = MemoryStore()
    keys = await _keys(store)
    sealed = _sealed(keys, 5)
    await KeyedStore(store, keys).put("v1/data", [b"x"])
    before = await _stored(store)
    forget_keys(monkeypatch)
    with pytest.raises(KeyMissing, match=f"master key {OLD.name}, and the configured key is {NEW.name}"):
        await _keys(store, Masters(NEW))
    await _keys(store, Masters(NEW, OLD))
    after = await _stored(store)
    assert len(after) == 1
    assert not set(after) & set(before)
    forget_keys(monkeypatch)
    with pytest.raises(KeyMissing, match=NEW.name):
        await _keys(store)
    await _keys(store, Masters(NEW))
    assert SECTIONS.open(*sealed) == b"secret"


async def test_many_objects_are_merged_and_no_key_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows the bound of objects, also while a fenced owner still adds and merges keys of its own."""
    monkeypatch.setattr(shard_keys, "_OBJECTS_MAX", 4)
    store = MemoryStore()
    fenced, owner = await _keys(store), await _keys(store)
    sealed = []
    for at in range(1, 20):
        keys = (fenced, owner)[at % 2]
        sealed.append(_sealed(keys, at))
        await KeyedStore(store, keys).put(f"v1/data-{at}", [b"x"])
        assert len(await _stored(store)) <= 12
    forget_keys(monkeypatch)
    await _keys(store)
    assert len(await _stored(store)) <= 6
    for one in sealed:
        assert SECTIONS.open(*one) == b"secret"


async def test_a_copy_from_before_a_rotation_opens_with_the_new_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that objects of the old master key do not matter if others have their keys; and the error if they do."""
    store = MemoryStore()
    sealed = _sealed(keys := await _keys(store), 5)
    await keys.flush(store)
    kept = {key: await store.get(key) for key in await _stored(store)}
    await _keys(store, Masters(NEW, OLD))
    for key, data in kept.items():
        await store.put(key, [data])
    forget_keys(monkeypatch)
    await _keys(store, Masters(NEW))
    assert SECTIONS.open(*sealed) == b"secret"
    for key in set(await _stored(store)) - set(kept):
        await store.delete(key)
    for key, data in kept.items():
        if key not in await _stored(store):
            await store.put(key, [data])
    forget_keys(monkeypatch)
    with pytest.raises(KeyMissing, match=OLD.name):
        await _keys(store, Masters(NEW))


async def test_commands_read_the_key_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows the lines for no key and for a key that cannot be read, and that a plain store needs none."""
    store = MemoryStore()
    assert await keys_for_repair(store, PATHS, bytes(16)) is None
    keys = await _keys(store)
    await keys.flush(store)
    monkeypatch.delenv("JETBLOCK_KEY", raising=False)
    with pytest.raises(KeyMissing, match=f"master key {OLD.name}, and no key is configured"):
        await keys_for_repair(store, PATHS, bytes(16))
    monkeypatch.setenv("JETBLOCK_KEY", "file:/nowhere/key")
    with pytest.raises(KeyMissing, match="/nowhere/key: No such file"):
        await keys_for_repair(store, PATHS, bytes(16))
    monkeypatch.setenv("JETBLOCK_KEY", "the old key")
    assert await keys_for_repair(store, PATHS, bytes(16)) is not None


async def test_wrapped_keys_cannot_be_changed_or_moved() -> None:
    """Shows that a wrapped key is bound to its owner, its id, its shard and its object."""
    store = MemoryStore()
    await (await _keys(store)).flush(store)
    [key] = await _stored(store)
    parsed = parse(key)
    assert parsed is not None
    one = WrappedKeys.decode(await store.get(key), 0, parsed.object_id)
    with pytest.raises(Corrupt, match="another shard"):
        WrappedKeys.decode(await store.get(key), 1, parsed.object_id)
    secret = OLD.unwrap(one.wrapped)
    assert [found.owner for found in one.unwrap(secret)] == [0]
    for changed in (one.keys[0]._replace(owner=5), one.keys[0]._replace(since=2),
                    one.keys[0]._replace(key_id=bytes(8)), one.keys[0]._replace(wrapped=bytes(60))):
        with pytest.raises(Corrupt, match="another key wrapped it"):
            one._replace(keys=[changed]).unwrap(secret)
    with pytest.raises(Corrupt):
        one._replace(shard=1).unwrap(secret)


def test_the_variables_are_those_of_the_settings() -> None:
    """Commands without a configuration read the same two variables as the broker does."""
    environ = {KEY_VARIABLE: "new", PREVIOUS_VARIABLE: "old", "JETBLOCK_STORE": "file://x"}
    assert master_keys(environ) == {"storage.key": "new", "storage.prev_key": "old"}


def test_master_keys_by_text_and_by_file(tmp_path: Path) -> None:
    """Shows that a file and a text give the same key, that names tell keys apart, and the errors, without the key."""
    path = tmp_path / "key"
    path.write_text("the old key\n")
    masters = Masters.of(f"file:{path}", "the new key")
    assert masters is not None
    assert masters.previous is not None
    assert (masters.current.name, masters.previous.name) == (OLD.name, NEW.name)
    assert masters.current.unwrap(OLD.wrap(bytes(32))) == bytes(32)
    assert Masters.of("", "") is None
    with pytest.raises(BadKey, match="prev_key without a key"):
        Masters.of("", "the old key")
    path.write_text(" \n")
    with pytest.raises(BadKey, match="it is empty"):
        Masters.of(f"file:{path}", "")


def test_a_reader_of_a_plain_store_needs_no_key() -> None:
    """Shows that no key is asked for if the store has none."""
    assert load_keys("file:///x", lambda prefix: [], lambda key: b"", None) == []
