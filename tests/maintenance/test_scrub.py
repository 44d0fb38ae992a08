"""Scrubbing: a broker reads its stored objects in the background, reports damage, and serves the rest."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from broker.base.clock import SystemClock
from broker.inspect.shardview import read_shard
from broker.inspect.source import Source
from broker.maintenance import scrub
from broker.maintenance.scrub import Affected, Finding, Scrubber, ScrubSettings
from broker.runtime.embedded import Broker
from broker.storage.format.header import Position
from broker.storage.objectstore import ObjectInfo, ObjectStore
from broker.storage.objectstore.base import StoreRefused, Transient
from broker.storage.objectstore.file import FileStore
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.objectstore.wrapper import Wrapper
from broker.storage.paths import ShardPaths, run_key
from broker.storage.read.snapshot import read_snapshot
from broker.storage.state.applied import ShardState
from tests.adversity.clients import connect, read_all, until
from tests.adversity.test_damaged_store import COUNT, change, filled, flip, segments_of
from tests.harness import BrokerProcess
from tests.jetstream.inbox.staging import stage
from tests.runtime.test_adopt import SOON, asked, made
from tests.runtime.test_adopt import until as broker_has

pytestmark = pytest.mark.shows("operation.scrub")

PATHS = ShardPaths(0)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store with streams A and B, whose broker was stopped."""
    folder = tmp_path_factory.mktemp("original") / "store"
    await filled(folder, stop=True)
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """Copy the store, so that a test can damage the copy."""
    return Path(shutil.copytree(original, tmp_path / "store"))


class Scrubbed:
    """A scrubber of a directory that nobody owns, and its findings."""

    def __init__(self, store: ObjectStore, bytes_per_second: int = 1 << 30) -> None:
        self.reported: list[Finding] = []
        self.scrubber = Scrubber(store, PATHS, SystemClock(), ScrubSettings(10**15, bytes_per_second),
                                 self.reported.append)
        self._store = store

    async def once(self) -> None:
        state = (await read_shard(Source(self._store), PATHS)).state
        self.scrubber._state = lambda: state
        await self.scrubber.scrub()

    @property
    def names(self) -> set[str]:
        return {finding["object"] for finding in self.scrubber.figures()["findings"]}


async def test_damage_is_reported_once_and_forgotten_after_its_repair(folder: Path) -> None:
    """A frame of A and a claim are damaged, and a segment is deleted; all other objects are checked."""
    store = FileStore(folder)
    scrubbed = Scrubbed(store)
    await scrubbed.once()
    whole = scrubbed.scrubber.objects
    assert whole == len(await store.list("v1/")) > 2 * COUNT
    assert scrubbed.reported == []
    paths = segments_of(folder)
    framed = next(path for path, head in paths if any(row.first_seq == 5 for row in head.rows)
                  and b"of A" in path.read_bytes())
    gone = next(path for path, head in paths if any(row.first_seq == 9 for row in head.rows)
                and b"of B" in path.read_bytes())
    claim = folder / "v1/shards/0/epochs/00000001"
    before = {path: path.read_bytes() for path in (framed, gone, claim)}
    change(framed, flip(len(before[framed]) - 5))
    change(claim, flip(30))
    gone.unlink()
    keys = {str(path.relative_to(folder)) for path in before}
    await scrubbed.once()
    assert scrubbed.names == keys
    assert scrubbed.scrubber.damaged == len(scrubbed.reported) == 3
    assert scrubbed.scrubber.objects == 2 * whole - 1
    affected = next(one.affected for one in scrubbed.reported if one.problem.object.endswith(framed.name))
    assert affected == (("$G", "A", 5, 5),)
    await scrubbed.once()
    assert len(scrubbed.reported) == 3
    for path, data in before.items():
        path.chmod(0o640) if path.exists() else None
        path.write_bytes(data)
    await scrubbed.once()
    assert scrubbed.names == set()
    await scrubbed.scrubber.stop()


async def test_staged_runs(tmp_path: Path) -> None:
    """The finding has the sequences of a damaged run's messages in their stream. A run that was not adopted gives
    none."""
    directory = tmp_path / "store"
    await made(directory, "S")
    async with Broker(directory, settings=SOON) as broker:
        client = await connect(broker.url)
        for n in range(3):
            await client.jetstream().publish("s.published", b"%d" % n)
        await client.close()
        await asked(directory, "S", "adopted", rows=[(b"s.staged", b"%d" % n) for n in range(5)])
        await broker_has(broker, "S", 8)
    store = FileStore(directory)
    await stage(store, (await read_snapshot(store, 0)).state, "S", [(b"s.staged", b"never asked for")])
    runs = [path for path in (directory / "v1/streams").rglob("*") if path.is_file()]
    assert len(runs) == 2
    for path in runs:
        change(path, flip(len(path.read_bytes()) - 1))
    scrubbed = Scrubbed(store)
    await scrubbed.once()
    assert [finding.affected for finding in scrubbed.reported] == [(Affected("$G", "S", 4, 8),)]
    await store.close()


async def test_damage_of_a_deleted_object_is_forgotten(folder: Path) -> None:
    """A damaged claim that was found and then deleted does not count for ever."""
    store = FileStore(folder)
    scrubbed = Scrubbed(store)
    claim = folder / "v1/shards/0/epochs/00000001"
    change(claim, flip(30))
    await scrubbed.once()
    assert scrubbed.names == {"v1/shards/0/epochs/00000001"}
    claim.unlink()
    await scrubbed.once()
    assert (scrubbed.names, scrubbed.scrubber.damaged) == (set(), 0)
    await scrubbed.scrubber.stop()


async def test_the_count_of_many_damaged_objects_does_not_grow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are more findings than are kept, in pass after pass: the count is that of one pass."""
    monkeypatch.setattr(scrub, "_FINDINGS_MAX", 2)
    scrubbed = Scrubbed(FileStore(folder))
    damaged = segments_of(folder)[:5]
    for path, _ in damaged:
        change(path, flip(len(path.read_bytes()) - 5))
    state = (await read_shard(Source(FileStore(folder)), PATHS)).state
    scrubbed.scrubber._state = lambda: state
    for _ in range(3):
        await scrubbed.scrubber.scrub()
        assert scrubbed.scrubber.damaged == len(damaged)
    await scrubbed.scrubber.stop()


class Unreadable(Wrapper):
    """A store that lists an object, but cannot read it, like a disk with a bad sector."""

    key = ""

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if key == self.key:
            raise StoreRefused("input/output error")
        return await super().get(key, start, end)


async def test_an_object_that_cannot_be_read_does_not_stop_the_pass(folder: Path) -> None:
    """The object is retried, as in an outage, then reported, and the rest is checked."""
    store = Unreadable(FileStore(folder))
    scrubbed = Scrubbed(store)
    state = (await read_shard(Source(store), PATHS)).state
    scrubbed.scrubber._state = lambda: state
    infos = await store.list("v1/")
    store.key = (await store.list("v1/shards/0/log/"))[10].key
    for _ in range(2):
        with pytest.raises(StoreRefused):
            await scrubbed.scrubber.scrub()
    assert scrubbed.reported == []
    await scrubbed.scrubber.scrub()
    assert scrubbed.names == {store.key}
    assert (scrubbed.scrubber.passes, scrubbed.scrubber.objects) == (1, len(infos) - 1)
    store.key = ""
    await scrubbed.scrubber.scrub()
    assert scrubbed.scrubber.damaged == 0
    await scrubbed.scrubber.stop()


async def test_many_runs_are_compared_in_turns_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """All runs with live blocks are listed: the loop gets a turn after each few of them."""
    scrubber = Scrubber(MemoryStore(), PATHS, SystemClock(), ScrubSettings())
    state = ShardState()
    state.counts.runs.update({(1, number, number, 0): 1 for number in range(1, 5001)})
    scrubber._state = lambda: state
    scrubber._place.upto = Position(2, 0)
    made, most = [0], 0

    def counted(*args: Any) -> str:
        made[0] += 1
        key = run_key(*args)
        scrubber._place.runs.add(key)
        return key

    monkeypatch.setattr(scrub, "run_key", counted)
    comparing = asyncio.create_task(scrubber._compare())
    while not comparing.done():
        before = made[0]
        await asyncio.sleep(0)
        most = max(most, made[0] - before)
    assert (made[0], scrubber.damaged) == (5000, 0)
    assert most <= 256


class Counted(Wrapper):
    """A store that counts reads of whole objects, and fails at one of them once."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.read: list[str] = []
        self.failing = ""

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if key == self.failing:
            self.failing = ""
            raise Transient("not now")
        if start == 0:
            self.read.append(key)
        return await super().get(key, start, end)

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> list[ObjectInfo]:
        return await super().list(prefix, after, limit)


async def test_an_interrupted_pass_continues_at_the_same_object(folder: Path) -> None:
    """No object is read twice after an outage of the store, or after the shard was lost and taken again."""
    store = Counted(FileStore(folder))
    scrubbed = Scrubbed(store)
    state = (await read_shard(Source(store), PATHS)).state
    scrubbed.scrubber._state = lambda: state
    store.read.clear()
    keys = [info.key for info in await store.list("v1/shards/0/log/")]
    store.failing = keys[10]
    with pytest.raises(Transient):
        await scrubbed.scrubber.scrub()
    await scrubbed.scrubber.stop()
    assert scrubbed.scrubber.figures()["at"] == keys[9]
    scrubbed.scrubber._state = lambda: state
    await scrubbed.scrubber.scrub()
    assert len(store.read) == len(set(store.read)) == scrubbed.scrubber.objects
    assert scrubbed.scrubber.passes == 1
    await scrubbed.scrubber.stop()


async def test_the_rate_is_kept(folder: Path) -> None:
    """Reading the bytes of a second takes a second; small objects count as 64 KiB."""
    store = FileStore(folder)
    infos = await store.list("v1/")
    assert max(info.size for info in infos) < 64 << 10
    scrubbed = Scrubbed(store, bytes_per_second=len(infos) << 16)
    began = time.monotonic()
    await scrubbed.once()
    assert time.monotonic() - began > 0.8
    await scrubbed.scrubber.stop()


async def test_a_broker_scrubs_while_it_serves(folder: Path) -> None:
    """The damage is in /varz, in the metrics, in the log once, and in an advisory of the stream's account. The rest
    is served."""
    often = {"JETBLOCK_SCRUB_INTERVAL": "200ms", "JETBLOCK_SCRUB_BYTES_PER_SECOND": "1GB"}
    async with BrokerProcess("--store", f"file://{folder}", environ=often) as broker:
        nc = await connect(broker.url)
        advisories = await nc.subscribe("$JS.EVENT.ADVISORY.STREAM.DAMAGED.>")
        await nc.flush()

        async def passed() -> bool:
            return bool((await broker.monitor("/varz"))["jetblock"].get("scrub", {}).get("passes", 0))

        await until(passed)
        assert (await broker.monitor("/varz"))["jetblock"]["scrub"]["damaged"] == 0
        path = next(path for path, head in segments_of(folder)
                    if any(row.first_seq == 5 for row in head.rows) and b"of A" in path.read_bytes())
        damaged = folder.parent / "damaged"  # replaces it at once: the broker may read it at any time
        shutil.copyfile(path, damaged)
        change(damaged, flip(len(path.read_bytes()) - 5))
        damaged.replace(path)
        advisory = json.loads((await advisories.next_msg()).data)
        assert (advisory["stream"], advisory["first_seq"], advisory["last_seq"]) == ("A", 5, 5)
        assert advisory["object"].endswith(path.name)
        figures = (await broker.monitor("/varz"))["jetblock"]["scrub"]
        assert figures["damaged"] == 1
        assert figures["findings"][0]["object"] == advisory["object"]
        assert len(await read_all(nc, "B")) == COUNT
        await nc.close()
        assert len([line for line in broker.stderr if "scrubbing found damage" in line]) == 1
