"""Ten thousand reads of an encrypted store that somebody has changed, who also corrects every checksum.

The store has objects of every kind: segments, runs, staged runs, checkpoints, requests, seals, and a journal. Before
each read, one of them is changed: bits are flipped, a part is overwritten by a part of another object, at the same or
another place, by an older object, or it is cut or deleted. Every message that is read is one that was published, with
its sequence, subject, headers and payload; and every stream's configuration is one that it had.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import StreamConfig

from broker.inspect.messages import Missing, read_messages
from broker.inspect.shardview import NoStream
from broker.inspect.source import CannotInspect, Source, open_source
from broker.runtime.embedded import Broker
from broker.storage.format.errors import CutOff, FormatError, KeyMissing
from broker.storage.format.header import ObjectKind
from broker.storage.format.sealing import staging_codec
from broker.storage.keys.master import LocalKey, Masters
from broker.storage.keys.opening import decode_all, open_all
from broker.storage.objectstore import StoreError, open_store
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.paths import parse
from broker.storage.read.snapshot import read_snapshot
from broker.storage.state.applied import ShardState
from tests.harness import BrokerProcess
from tests.jetstream.inbox.staging import request, stage
from tests.key_ring import forget_keys
from tests.maintenance.test_fsck import copy_of

pytestmark = [pytest.mark.shows("auth.encryption"), pytest.mark.soak, pytest.mark.timeout(3600)]

KEY = "the master key of these tests"
SETTINGS = {"storage.key": KEY, "storage.reader_grace_ns": 0, "storage.compaction_cpu": 100}
READS = 10_000
JOURNAL_READS = 1500
STREAMS = ("S", "T")
MESSAGES = 2 * 3 * 20 + 20 - 1
"""Two streams, three times 20 messages, 20 staged ones, and one that was deleted."""
Objects = dict[str, bytes]
Message = tuple[str, int, bytes, bytes, bytes]
_REFUSED = (NoStream, FormatError, CutOff, Missing, CannotInspect, StoreError, KeyMissing)


class _Equal(int):
    """A checksum that equals any other."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


@pytest.fixture
def corrected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every comparison of checksums succeed, as if somebody had corrected them."""
    import sys

    for name, module in list(sys.modules.items()):
        if name.startswith("broker.storage."):
            for attribute, value in list(vars(module).items()):
                if value is zlib.crc32 or attribute in ("checksum", "crc32"):
                    monkeypatch.setattr(module, attribute, lambda *_: _Equal(0))


async def _publish(client: Any, label: str) -> None:
    js = client.jetstream()
    for i in range(20):
        await js.publish(f"s.{i % 4}", f"{label} {i} ".encode() * 20, headers={"Nats-Msg-Id": f"{label}-{i}", "H": "x"})
        await js.publish("t", f"{label} {i}".encode())


async def _filled(directory: Path) -> None:
    """Make a store by three broker runs; the last one is killed, and leaves a journal."""
    for run in range(2):
        async with Broker(directory, settings=SETTINGS) as broker:
            client = await nats.connect(broker.url)
            js = client.jetstream()
            if not run:
                for name, subjects in (("S", ["s.*"]), ("T", ["t"])):
                    await js.add_stream(StreamConfig(name=name, subjects=subjects))
                await js.add_consumer("S", durable_name="C")
            await _publish(client, f"run {run}")
            assert broker._app is not None
            assert broker._app.shard_owner is not None
            shard = broker._app.shard_owner.shard
            assert shard is not None
            await shard.log.persisted()
            if run:
                await js.delete_msg("S", 5)
                await js.update_stream(StreamConfig(name="S", subjects=["s.*"], description="changed"))
                assert shard.compactor is not None
                await shard.compactor.work(quiet=True)
                await _ask_for(directory, shard.state, "1")  # carried out by the next run
            await client.close()
    environ = {"JETBLOCK_KEY": KEY, "JETBLOCK_JOURNAL": "true", "JETBLOCK_COMPACTION": "false"}
    async with BrokerProcess("-js", "--store", f"file://{directory}", environ=environ) as process:
        client = await nats.connect(process.url)
        while (await client.jetstream().stream_info("T")).state.messages < 60:  # noqa: ASYNC110 (no event)
            await asyncio.sleep(0.02)
        await _publish(client, "late")
        await process.kill()
        await client.close()
    await _ask_for(directory, shard.state, "2")


async def _ask_for(directory: Path, state: ShardState, name: str) -> None:
    """Stage messages, and request their adoption."""
    store, stream = open_store(f"file://{directory}"), state.stream("$G", "T")
    assert stream is not None
    writer = await stage(store, state, "T", [(b"t", b"staged %d" % i) for i in range(20)],
                         codec=staging_codec(stream.stream_id))
    await request(store, writer, name)
    await store.close()


def _journals(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*.journal") if path.stat().st_size]


def _objects(directory: Path) -> Objects:
    found = {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    return {key: data for key, data in found.items() if parse(key) is not None}


async def _read(source: Source | MemoryStore) -> tuple[set[Message], int]:
    """Return all messages that can be read, and the number of errors."""
    found: set[Message] = set()
    errors: list[object] = []
    for stream in STREAMS:
        try:
            async with aclosing(read_messages(source, stream, faults=errors.append)) as reading:
                async for one in reading:
                    found.add((stream, one.seq, one.subject, one.headers, one.data))
        except _REFUSED as error:
            errors.append(error)
    return found, len(errors)


async def _configurations(store: MemoryStore) -> list[dict[str, Any]]:
    try:
        return [stream.config for stream in (await read_snapshot(store, 0)).state.streams.values()]
    except _REFUSED:
        return []


def _tampered(data: bytes, others: list[bytes], rng: random.Random) -> tuple[str, bytes | None]:
    """Return a changed object, and how it was changed."""
    how = rng.choice(("flip", "flip", "flip", "splice", "splice", "moved", "older", "cut", "gone", "zeros"))
    changed = bytearray(data)
    at = rng.randrange(len(data))
    size = rng.choice((4, 16, 52, 200, 1000))
    other = rng.choice(others)
    if how == "flip":
        for _ in range(rng.choice((1, 1, 2, 8))):
            changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif how == "splice":
        changed[at:at + size] = other[at:at + size]
    elif how == "moved":
        start = rng.randrange(len(other))
        part = other[start:start + size]
        changed[at:at + len(part)] = part
    elif how == "older":
        return how, other
    elif how == "cut":
        return how, data[:at]
    elif how == "gone":
        return how, None
    else:
        changed[at:at + size] = bytes(len(changed[at:at + size]))
    return how, bytes(changed)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store with a journal."""
    folder = tmp_path_factory.mktemp("sealed") / "store"
    folder.mkdir()
    asyncio.run(_filled(folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JETBLOCK_KEY", KEY)
        yield folder


async def _ever(folder: Path) -> set[Message]:
    """Return all messages that were ever published."""
    source = open_source(f"file://{folder}")
    found, errors = await _read(source)
    await source.close()
    assert not errors
    assert len(found) == MESSAGES
    return found | {("S", 5, b"s.0", next(one[3] for one in found if one[:2] == ("S", 1)).replace(b"-0", b"-4"),
                     b"run 0 4 " * 20)} | {("T", 40 + i, b"t", b"", b"staged %d" % i) for i in range(200)}


async def test_ten_thousand_reads(stores: Path, corrected: None) -> None:
    """Shows the objects, those of keys excepted."""
    rng = random.Random(26)
    objects = {key: data for key, data in _objects(stores).items() if not key.startswith("v1/keys/")}
    kinds: dict[ObjectKind | None, list[str]] = {}
    for key in objects:
        parsed = parse(key)
        assert parsed is not None
        kinds.setdefault(parsed.kind, []).append(key)
    assert {ObjectKind.SEGMENT, ObjectKind.RUN, ObjectKind.ROOT, ObjectKind.PAGES, ObjectKind.INBOX} <= kinds.keys()
    ever, configurations = await _ever(stores), await _configurations(await copy_of(objects))
    assert len(configurations) == len(STREAMS)
    changed = [{**one, "description": text} for one in configurations for text in ("", "changed")]
    whole = len((await _read(await copy_of(objects)))[0])
    outcomes: Counter[str] = Counter()
    for number in range(READS):
        keys = kinds[rng.choice([*kinds, *[ObjectKind.SEGMENT, ObjectKind.RUN, ObjectKind.PAGES] * 4])]
        key = rng.choice(keys)
        how, data = _tampered(objects[key], [objects[other] for other in keys], rng)
        store = await copy_of({other: kept for other, kept in objects.items() if other != key})
        if data is not None:
            await store.put(key, [data])
        found, errors = await _read(store)
        assert found <= ever, (number, key, how, found - ever)
        for one in await _configurations(store):
            assert {k: v for k, v in one.items() if v} in [{k: v for k, v in c.items() if v} for c in changed], (
                number, key, how, one)
        outcomes["refused" if errors else "whole" if len(found) == whole else "fewer"] += 1
    print(outcomes)
    assert outcomes["refused"] > READS // 10


async def test_reads_of_a_changed_journal(stores: Path, corrected: None, tmp_path: Path) -> None:
    """Shows commits that no object has yet."""
    rng = random.Random(27)
    [journal] = _journals(stores)
    data, ever = journal.read_bytes(), await _ever(stores)
    used = len(data.rstrip(b"\0"))
    place = tmp_path / "store"
    shutil.copytree(stores, place)
    target = place / journal.relative_to(stores)
    refused = 0
    for number in range(JOURNAL_READS):
        _, changed = _tampered(data[:used], [data[:used]], rng)
        os.chmod(target, 0o600)
        target.write_bytes((changed or b"").ljust(len(data), b"\0"))
        try:
            source = open_source(f"file://{place}")
        except CannotInspect:
            refused += 1
            continue
        found, errors = await _read(source)
        await source.close()
        assert found <= ever, (number, found - ever)
        refused += bool(errors) or len(found) < MESSAGES
    assert refused > JOURNAL_READS // 10


async def test_changed_keys(stores: Path, corrected: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows objects with wrapped keys: a change is refused, or gives the same keys, or fewer."""
    rng = random.Random(28)
    masters = Masters(LocalKey(KEY.encode()))
    objects = {key: data for key, data in _objects(stores).items() if key.startswith("v1/keys/")}
    right = open_all(decode_all(objects.items()), masters, "the store").keys
    assert len(right) == 1 + len(STREAMS)
    refused = 0
    for number in range(2000):
        forget_keys(monkeypatch)
        key = rng.choice(list(objects))
        how, data = _tampered(objects[key], list(objects.values()), rng)
        try:
            opened = open_all(decode_all([(other, data if other == key else kept) for other, kept in objects.items()
                                          if other != key or data is not None]), masters, "the store").keys
        except (FormatError, KeyMissing, ValueError):
            refused += 1
            continue
        assert opened.items() <= right.items(), (number, how)
    assert refused > 500
