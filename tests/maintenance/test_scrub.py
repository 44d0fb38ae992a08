"""Scrubbing: a broker reads its stored objects in the background, tells what is damaged, and serves the rest."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
import pytest_asyncio

from broker.clock import SystemClock
from broker.inspect.shardview import read_shard
from broker.inspect.source import Source
from broker.maintenance.scrub import Finding, Scrubber, ScrubSettings
from broker.storage.objectstore import ObjectInfo, ObjectStore
from broker.storage.objectstore.base import Transient
from broker.storage.objectstore.file import FileStore
from broker.storage.objectstore.wrapper import Wrapper
from broker.storage.paths import ShardPaths
from tests.adversity.clients import connect, read_all, until
from tests.adversity.test_damaged_store import COUNT, change, filled, flip, segments_of
from tests.harness import BrokerProcess

pytestmark = pytest.mark.shows("operation.scrub")

PATHS = ShardPaths()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Streams A and B, as a broker left them that was stopped."""
    folder = tmp_path_factory.mktemp("original") / "store"
    await filled(folder, stop=True)
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    return Path(shutil.copytree(original, tmp_path / "store"))


class Scrubbed:
    """A scrubber over a directory that nobody owns, and what it told."""

    def __init__(self, store: ObjectStore, bytes_per_second: int = 1 << 30) -> None:
        self.told: list[Finding] = []
        self.scrubber = Scrubber(store, PATHS, SystemClock(), ScrubSettings(10**15, bytes_per_second), self.told.append)
        self._store = store

    async def once(self) -> None:
        state = (await read_shard(Source(self._store), PATHS)).state
        self.scrubber._state = lambda: state
        await self.scrubber.scrub()

    @property
    def names(self) -> set[str]:
        return {finding["object"] for finding in self.scrubber.figures()["findings"]}


async def test_damage_is_found_told_once_and_forgotten_when_it_is_mended(folder: Path) -> None:
    """A frame of A's, a claim, and a segment that is gone; all other objects are checked."""
    store = FileStore(folder)
    scrubbed = Scrubbed(store)
    await scrubbed.once()
    whole = scrubbed.scrubber.objects
    assert whole == len(await store.list("v1/")) > 2 * COUNT
    assert scrubbed.told == []
    paths = segments_of(folder)
    framed = next(path for path, head in paths if any(row.first_seq == 5 for row in head.rows) and b"of A" in path.read_bytes())
    gone = next(path for path, head in paths if any(row.first_seq == 9 for row in head.rows) and b"of B" in path.read_bytes())
    claim = folder / "v1/shards/0/epochs/00000001"
    before = {path: path.read_bytes() for path in (framed, gone, claim)}
    change(framed, flip(len(before[framed]) - 5))
    change(claim, flip(30))
    gone.unlink()
    keys = {str(path.relative_to(folder)) for path in before}
    await scrubbed.once()
    assert scrubbed.names == keys
    assert scrubbed.scrubber.damaged == len(scrubbed.told) == 3
    assert scrubbed.scrubber.objects == 2 * whole - 1
    affected = next(one.affected for one in scrubbed.told if one.problem.object.endswith(framed.name))
    assert affected == (("$G", "A", 5, 5),)
    await scrubbed.once()
    assert len(scrubbed.told) == 3
    for path, data in before.items():
        path.chmod(0o640) if path.exists() else None
        path.write_bytes(data)
    await scrubbed.once()
    assert scrubbed.names == set()
    await scrubbed.scrubber.stop()


class Counted(Wrapper):
    """Counts whole objects read, and fails at one of them once."""

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


async def test_an_interrupted_pass_goes_on_where_it_was(folder: Path) -> None:
    """After an outage of the store, and after the shard was lost and taken again, no object is read twice."""
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
    """A second's bytes take a second; small objects count as 64 KiB."""
    store = FileStore(folder)
    infos = await store.list("v1/")
    assert max(info.size for info in infos) < 64 << 10
    scrubbed = Scrubbed(store, bytes_per_second=len(infos) << 16)
    began = time.monotonic()
    await scrubbed.once()
    assert time.monotonic() - began > 0.8
    await scrubbed.scrubber.stop()


async def test_a_broker_scrubs_while_it_serves(folder: Path) -> None:
    """The damage is in /varz, in the metrics, in the log once, and an advisory of the stream's account; the rest is served."""
    often = {"JETBLOCK_SCRUB_INTERVAL": "200ms", "JETBLOCK_SCRUB_BYTES_PER_SECOND": "1GB"}
    async with BrokerProcess("--store", f"file://{folder}", environ=often) as broker:
        nc = await connect(broker.url)
        told = await nc.subscribe("$JS.EVENT.ADVISORY.STREAM.DAMAGED.>")
        await nc.flush()

        async def passed() -> bool:
            return bool((await broker.monitor("/varz"))["jetblock"].get("scrub", {}).get("passes", 0))

        await until(passed)
        assert (await broker.monitor("/varz"))["jetblock"]["scrub"]["damaged"] == 0
        path = next(path for path, head in segments_of(folder)
                    if any(row.first_seq == 5 for row in head.rows) and b"of A" in path.read_bytes())
        change(path, flip(len(path.read_bytes()) - 5))
        advisory = json.loads((await told.next_msg(20)).data)
        assert (advisory["stream"], advisory["first_seq"], advisory["last_seq"]) == ("A", 5, 5)
        assert advisory["object"].endswith(path.name)
        figures = (await broker.monitor("/varz"))["jetblock"]["scrub"]
        assert figures["damaged"] == 1
        assert figures["findings"][0]["object"] == advisory["object"]
        assert len(await read_all(nc, "B")) == COUNT
        await nc.close()
        assert len([line for line in broker.stderr if "scrubbing found damage" in line]) == 1
