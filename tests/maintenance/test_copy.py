"""Copies of stores: whole, incremental, while a broker writes and deletes, interrupted anywhere, and refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from broker.inspect.messages import read_messages
from broker.inspect.source import CannotInspect, Source
from broker.inspect.survey import read_survey
from broker.inspect.verify import verify
from broker.maintenance.copy import Copied, Copier
from broker.maintenance.copy_cli import main
from broker.maintenance.destination import CopyRefused, Destination
from broker.storage.format.store import JOURNAL_VERSION, StoreFormat
from broker.storage.objectstore.base import Buffers, ObjectStore, PreconditionFailed, StoreRefused
from broker.storage.objectstore.file import FileStore
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.objectstore.probe import probe
from broker.storage.objectstore.wrapper import Wrapper
from broker.storage.paths import COPYING, FORMAT, PROBE
from broker.storage.read.snapshot import read_snapshot
from tests.inspect.stores import PATHS, STORE_ID, T0, Owner, filled
from tests.real.s3 import S3Server


async def copied(source: ObjectStore, destination: ObjectStore, *, must_be_new: bool = False) -> Copied:
    target = Destination(destination)
    try:
        return await Copier(Source(source), target).run(must_be_new=must_be_new, verifying=True)
    finally:
        for lock in target._locks:
            lock.release()


async def contents(store: ObjectStore) -> dict[str, bytes]:
    return {info.key: await store.get(info.key) for info in await store.list("v1/")}


async def rows(store: ObjectStore, stream: str) -> list[tuple[int, str, bytes]]:
    return [(m.seq, m.subject, m.data) async for m in read_messages(store, stream)]


async def sound(store: ObjectStore) -> None:
    source = Source(store)
    survey = await read_survey(source)
    assert survey.problems == []
    assert (await verify(source, survey)).problems == []


class Interrupting(Wrapper):
    """A store that refuses every put after the first ``left``, like a full disk."""

    def __init__(self, inner: ObjectStore, left: int) -> None:
        super().__init__(inner)
        self.left = left

    async def put(self, key: str, data: Buffers) -> None:
        if self.left <= 0:
            raise StoreRefused("the disk is full")
        self.left -= 1
        await self.inner.put(key, data)


class Watching(Wrapper):
    """A store that calls ``before`` with the number of each get of a whole object."""

    def __init__(self, inner: ObjectStore, before: Callable[[int], Awaitable[object]]) -> None:
        super().__init__(inner)
        self.before = before
        self.gets = 0

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if end is None and start == 0 and key not in (FORMAT, COPYING):
            self.gets += 1
            await self.before(self.gets)
        return await self.inner.get(key, start, end)


async def test_a_copy_is_the_store() -> None:
    """A copy has every object byte for byte, is marked as finished, and a second copy has nothing to do."""
    source, copy = MemoryStore(), MemoryStore()
    owner = await filled(source)
    done = await copied(source, copy)
    assert (done.whole, done.passes, done.problems) == (True, 1, [])
    assert await contents(copy) == await contents(source)
    assert done.copied.count == len(await source.list("v1/")) - 1  # `format` is put separately
    again = await copied(source, copy)
    assert (again.copied.count, again.present.count) == (0, done.copied.count)
    await owner.kill()


async def test_a_copy_is_brought_up_to_date() -> None:
    """Only new objects are copied, across take-overs, checkpoints and deletions of the source."""
    source, copy = MemoryStore(), MemoryStore()
    owner = await filled(source)
    await copied(source, copy)
    for _ in range(3):
        before = set(await contents(copy))
        for i in range(5):
            owner.streams["ORDERS"].publish(("ORDERS.eu.new", b"", b"new %d" % i))
            await owner.log.persisted()
        owner.streams["logs"].remove(1, 600)
        await owner.round()
        await owner.stop()
        await owner.start("broker-c")
        done = await copied(source, copy)
        new = set(await contents(source)) - before
        assert done.whole
        assert done.problems == []
        assert done.copied.count == len(new)
        assert await rows(copy, "ORDERS") == await rows(source, "ORDERS")
    await sound(copy)
    await owner.kill()


async def test_a_restored_copy_is_opened_by_a_broker() -> None:
    """A copy made under a running owner is taken over by another one, which continues in it. The first owner is not
    disturbed."""
    source, copy = MemoryStore(), MemoryStore()
    owner = await filled(source)
    await copied(source, copy)
    expected = await rows(source, "ORDERS")
    other = Owner(copy, seed=2)
    await other.start("broker-z")
    other.streams = owner.streams
    assert await rows(copy, "ORDERS") == expected
    owner.streams["ORDERS"].publish(("ORDERS.eu.1", b"", b"in the original"))
    await owner.log.persisted()
    assert await rows(copy, "ORDERS") == expected
    await other.stop()
    await owner.kill()
    await sound(copy)


@pytest.mark.parametrize("at", range(1, 26, 3))
async def test_a_broker_writes_and_deletes_while_it_is_copied(at: int) -> None:
    """A copy is whole although meanwhile the owner cuts checkpoints, deletes everything that it no longer needs, and
    is taken over."""
    source, copy = MemoryStore(), MemoryStore()
    owner = await filled(source)

    async def change(number: int) -> None:
        if number != at:
            return
        for i in range(3):
            owner.streams["ORDERS"].publish(("ORDERS.eu.new", b"", b"new %d" % i))
            await owner.log.persisted()
            await owner.round()
        owner.streams["ORDERS"].remove(1, 9)
        owner.streams["logs"].remove(451, 1000)
        await owner.log.persisted()
        for _ in range(4):
            await owner.round()
        await owner.stop()
        await owner.start("broker-c")
        await owner.round()

    watching = Watching(source, change)
    start = (await read_snapshot(source, 0)).state.position
    done = await copied(watching, copy)
    assert done.whole
    assert done.problems == []
    assert done.ends[0] >= start
    await sound(copy)
    await owner.kill()
    # The next pass copies everything that was deleted during this one and replaced.
    await copied(source, copy)
    assert await rows(copy, "ORDERS") == await rows(source, "ORDERS")


@pytest.mark.parametrize("puts", [1, 5, 1 << 30])
async def test_the_version_of_the_source_is_raised_between_two_copies(puts: int) -> None:
    """A finished copy, or one that was interrupted, gets the version of the source. A lower version is refused."""
    source, copy = MemoryStore(), MemoryStore()
    owner = await filled(source)
    older = StoreFormat.make(STORE_ID, T0)
    assert await source.get(FORMAT) == older.encode()
    with suppress(StoreRefused):
        await copied(source, Interrupting(copy, puts))
    await source.replace(FORMAT, [older._replace(version=JOURNAL_VERSION).encode()])
    assert (await copied(source, copy)).whole
    assert await contents(copy) == await contents(source)
    await source.replace(FORMAT, [older.encode()])
    with pytest.raises(CopyRefused, match="its format object differs"):
        await copied(source, copy)
    await owner.kill()


async def test_an_interrupted_copy_continues() -> None:
    """A copy is interrupted at each put. No broker opens the part, nobody copies or inspects it, and the same
    command finishes it without copying anything twice."""
    source = MemoryStore()
    owner = await filled(source)
    total = len(await source.list("v1/"))
    for puts in range(1, total + 1):
        copy = MemoryStore()
        with pytest.raises(StoreRefused):
            await copied(source, Interrupting(copy, puts))
        with pytest.raises(StoreRefused, match="unfinished copy"):
            await probe(copy, FORMAT, [StoreFormat.make(STORE_ID, T0).encode()], unfinished=COPYING)
        with pytest.raises(CannotInspect, match="unfinished copy"):
            await read_survey(Source(copy))
        with pytest.raises(CannotInspect, match="unfinished copy"):
            await copied(copy, MemoryStore())
        there = len(await copy.list("v1/")) - 1
        done = await copied(source, copy)
        assert (done.present.count, done.copied.count) == (there, total - 1 - there)
        assert await contents(copy) == await contents(source)
    await owner.kill()


async def test_an_interrupted_update_is_a_store() -> None:
    """An update is interrupted at each put: the copy can be read, with at least the objects that it had before."""
    source, first = MemoryStore(), MemoryStore()
    owner = await filled(source)
    await copied(source, first)
    before, old = await contents(first), await rows(first, "ORDERS")
    for i in range(3):
        owner.streams["ORDERS"].publish(("ORDERS.eu.new", b"", b"new %d" % i))
        await owner.log.persisted()
        await owner.round()
    await owner.stop()
    await owner.start("broker-c")
    owner.streams["ORDERS"].publish(("ORDERS.eu.new", b"", b"last"))
    await owner.log.persisted()
    await owner.round()
    now = await rows(source, "ORDERS")
    lacking = len(set(await contents(source)) - set(before))
    assert lacking > 8
    for puts in range(lacking):
        copy = MemoryStore()
        for key, data in before.items():
            await copy.put(key, [data])
        with pytest.raises(StoreRefused):
            await copied(source, Interrupting(copy, puts))
        there = await rows(copy, "ORDERS")
        assert there[:len(old)] == old
        assert there == now[:len(there)]
        assert (await copied(source, copy)).whole
        assert await rows(copy, "ORDERS") == now
    await owner.kill()


async def test_refused_destinations() -> None:
    """Nothing is written to a destination that is not a copy of the source."""
    source = MemoryStore()
    owner = await filled(source)
    await owner.stop()

    async def refused(destination: ObjectStore, words: str, *, must_be_new: bool = False) -> None:
        before = await contents(destination)
        with pytest.raises(CopyRefused, match=words):
            await copied(source, destination, must_be_new=must_be_new)
        assert await contents(destination) == before

    other = MemoryStore()
    await other.put(FORMAT, [StoreFormat.make(b"o" * 16, T0).encode()])
    await refused(other, "another store")
    half = MemoryStore()
    await half.put(COPYING, [StoreFormat.make(b"o" * 16, T0).encode()])
    await refused(half, "another store")
    strange = MemoryStore()
    await strange.put("v1/shards/0/log/00000001-000000000000", [b"?"])
    await refused(strange, "neither empty nor a copy")
    damaged = MemoryStore()
    await damaged.put(FORMAT, [b"?" * 200])
    await refused(damaged, "cannot be read")
    copy = MemoryStore()
    await copied(source, copy)
    await refused(copy, "there is a store already", must_be_new=True)
    opened = Owner(copy, seed=2)
    await opened.start("broker-z")
    await opened.kill()
    await refused(copy, "a broker has opened it")


async def test_a_source_that_was_set_back_is_refused() -> None:
    """A backup with newer entries than its source is not continued with another history."""
    source, copy, old = MemoryStore(), MemoryStore(), MemoryStore()
    owner = await filled(source)
    await copied(source, old)
    owner.streams["ORDERS"].publish(("ORDERS.eu.new", b"", b"new"))
    await owner.log.persisted()
    await owner.round()
    await copied(source, copy)
    await owner.kill()
    with pytest.raises(CopyRefused, match="was set back"):
        await copied(old, copy)
    again = Owner(old, seed=5)
    await again.start("broker-b")
    await again.kill()
    with pytest.raises(CopyRefused, match="nothing is ever overwritten"):
        await copied(old, copy)


async def test_an_object_with_other_bytes_is_not_overwritten() -> None:
    """An object of the destination that differs from the source's is reported, with any size."""
    source, copy = MemoryStore(), MemoryStore()
    owner = await filled(source)
    await owner.kill()
    key = PATHS.epoch(1)
    await copied(source, copy)
    await copy.delete(key)
    await copy.put(key, [b"shorter"])
    with pytest.raises(CopyRefused, match="nothing is ever overwritten"):
        await copied(source, copy)


async def test_a_damaged_source_is_copied_as_it_is() -> None:
    """Damage and losses of the source are reported, the rest is copied, and a second run reports the same."""
    source, copy = MemoryStore(), MemoryStore()
    owner = await filled(source)
    await owner.stop()
    state = (await read_snapshot(source, 0)).state
    entries = [entry for stream in state.streams.values() for entry in stream.blocks]
    lost, hurt = PATHS.log(entries[0].ref.position), PATHS.log(entries[-1].ref.position)
    await source.delete(lost)
    data = bytearray(await source.get(hurt))
    data[20] ^= 1
    await source.delete(hurt)
    await source.put(hurt, [bytes(data)])
    for _ in range(2):
        done = await copied(source, copy)
        assert not done.whole
        assert {lost, hurt} <= {problem.object for problem in done.problems}
    assert await contents(copy) == await contents(source)


async def test_a_locked_directory_is_refused(tmp_path: Path) -> None:
    """A directory that a broker or another copy has locked is refused as the destination."""
    source = MemoryStore()
    owner = await filled(source)
    await owner.kill()
    store = FileStore(tmp_path / "copy")
    await copied(source, store)
    lock = store._try_lock("v1/shards/0")
    assert lock is not None
    with pytest.raises(CopyRefused, match="holds the lock"):
        await copied(source, store)
    lock.release()
    assert (await copied(source, store)).whole
    await store.close()


async def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands copy, backup and restore give the right exit statuses and reports."""
    store = FileStore(tmp_path / "store")
    owner = await filled(store)
    await owner.stop()
    expected = await rows(store, "ORDERS")

    def run(verb: str, *arguments: str) -> int:
        import threading

        status: list[int] = []
        thread = threading.Thread(target=lambda: status.append(main(verb, arguments)))
        thread.start()
        thread.join()
        return status[0]

    url, backup, again = store.url, f"file://{tmp_path / 'backup'}", f"file://{tmp_path / 'again'}"
    assert run("backup", url, backup) == 0
    assert "the copy is whole" in capsys.readouterr().out
    assert run("backup", url, backup, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["copied"]["objects"], report["whole"], report["problems"]) == (0, True, [])
    assert report["shards"] == [{"shard": 0, "position": str((await read_snapshot(store, 0)).state.position)}]
    assert run("restore", backup, again, "--json") == 0
    assert json.loads(capsys.readouterr().out)["verified"]["objects"] > 20
    (tmp_path / "link").symlink_to(Path(url.removeprefix("file://")))
    for arguments, words in (((backup, again), "there is a store already"), ((url, url), "both source and destination"),
                             ((url, f"file://{tmp_path / 'link'}"), "both source and destination"),
                             ((f"file://{tmp_path / 'nothing'}", again), "no storage directory"),
                             ((url, "memory://"), "nothing to copy to"), ((url, "ftp://x"), "no store of the kind")):
        assert run("restore", *arguments) == 2
        assert words in capsys.readouterr().err
    assert run("copy", "--help") == 0
    assert run("copy") == 2
    restored = FileStore(tmp_path / "again")
    assert await rows(restored, "ORDERS") == expected
    await restored.close()
    await store.close()


def test_between_a_directory_and_a_bucket(tmp_path: Path, minio: S3Server, monkeypatch: pytest.MonkeyPatch,
                                          capsys: pytest.CaptureFixture[str]) -> None:
    """A directory is copied to a bucket, updated there, and restored to a directory."""
    import asyncio

    for name, value in minio.env.items():
        monkeypatch.setenv(name, value)
    bucket = minio.new_url()

    async def fill() -> None:
        store = FileStore(tmp_path / "store")
        owner = await filled(store)
        await owner.kill()
        await store.close()

    async def more() -> None:
        store = FileStore(tmp_path / "store")
        owner = Owner(store, seed=9)
        await owner.start("broker-d")
        await owner.round()
        await owner.stop()
        await store.close()

    asyncio.run(fill())
    here, back = f"file://{tmp_path / 'store'}", f"file://{tmp_path / 'back'}"
    assert main("copy", [here, bucket]) == 0
    asyncio.run(more())
    assert main("copy", [here, bucket, "--verify"]) == 0
    assert main("restore", [bucket, back]) == 0
    assert "the copy is whole" in capsys.readouterr().out

    def files(path: Path) -> dict[str, bytes]:
        return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*")
                if file.is_file() and file.name != "lock"}

    original, copy = files(tmp_path / "store"), files(tmp_path / "back")
    assert {key: copy[key] for key in original} == original


class Racy(MemoryStore):
    """A bucket that checks whether a key exists, and puts the object a moment later."""

    puts_cost = True

    async def put(self, key: str, data: Buffers) -> None:
        if key in self.objects:
            raise PreconditionFailed(key)
        await asyncio.sleep(0.001)
        await self.delete(key)
        await super().put(key, data)


async def test_a_destination_whose_puts_are_not_atomic() -> None:
    """Such a destination is refused before anything is copied, since no broker would run on it. Objects of a killed
    probe do not prevent a copy to a correct store."""
    source = MemoryStore()
    await (await filled(source)).kill()
    racy = Racy()
    with pytest.raises(StoreRefused, match="at the same moment"):
        await Copier(Source(source), Destination(racy)).run()
    assert racy.objects == {}
    right = MemoryStore()
    right.puts_cost = True
    await right.put(f"{PROBE}{7:016x}", [b"left"])
    assert (await Copier(Source(source), Destination(right)).run()).whole
