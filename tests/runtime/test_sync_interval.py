"""A broker with a sync interval: its files after a kill or a power cut, its next start, and its end if a sync fails."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import shutil
import struct
from pathlib import Path
from zlib import crc32

import nats
import pytest

from broker.base.clock import SystemClock
from broker.config.settings import ClientSettings, JetStreamSettings, Settings, StorageSettings
from broker.inspect.source import open_source
from broker.maintenance.fsck import fsck
from broker.runtime import shard_owner
from broker.runtime.app import App
from broker.storage import unsynced_tail
from broker.storage.format.segment import PUTS_IN_FLIGHT_MAX
from broker.storage.objectstore import file, unsynced
from broker.storage.objectstore.base import StoreError
from broker.storage.objectstore.file import FileStore, directory_of
from broker.storage.paths import ShardPaths
from broker.storage.read.snapshot import read_snapshot
from broker.storage.unsynced_tail import hide_torn

LOG = Path("v1/shards/0/log")


def app_on(path: Path, sync_interval_ns: int | None = 3_600_000_000_000) -> App:
    return App(Settings(
        clients=ClientSettings(host="127.0.0.1", port=-1), jetstream=JetStreamSettings(enabled=True),
        # The tests count segments, so each commit is one.
        storage=StorageSettings(url=f"file://{path}", sync_interval_ns=sync_interval_ns, journal=False)))


async def publish(app: App, count: int) -> None:
    nc = await nats.connect(f"nats://127.0.0.1:{app.server.port}", allow_reconnect=False)
    js = nc.jetstream()
    await js.add_stream(name="S", subjects=["s"])
    for n in range(count):
        await js.publish("s", b"%d" % n)
    await nc.close()


async def messages(app: App) -> list[bytes]:
    nc = await nats.connect(f"nats://127.0.0.1:{app.server.port}", allow_reconnect=False)
    js = nc.jetstream()
    last = (await js.stream_info("S")).state.last_seq
    found = [(await js.get_msg("S", seq)).data or b"" for seq in range(1, last + 1)]
    await nc.close()
    return found


async def cut_copy(tmp_path: Path, count: int) -> Path:
    """Copy the directory of a running broker that has acknowledged ``count`` messages, as another machine finds it."""
    app = app_on(tmp_path / "store")
    await app.start()
    await publish(app, count)
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "store", copy)
    await app.stop()
    assert not (tmp_path / "store" / LOG / unsynced.MARK).exists()
    return copy


async def killed_copy(tmp_path: Path, count: int) -> Path:
    """Copy the directory as the next start on the same machine finds it after kill -9."""
    copy = await cut_copy(tmp_path, count)
    mark = unsynced.read_mark(str(copy / LOG))
    assert mark is not None
    (copy / LOG / unsynced.MARK).write_bytes(mark._replace(place=unsynced.place_of(str(copy / LOG))).pack())
    return copy


@pytest.mark.shows("store.sync_interval")
@pytest.mark.parametrize("later_ns", [None, 3_600_000_000_000], ids=["always", "later"])
async def test_a_start_after_a_power_cut(tmp_path: Path, caplog: pytest.LogCaptureFixture,
                                         later_ns: int | None) -> None:
    """A torn segment ends the log: earlier messages are served, and the rest is moved away, with a log line. It makes
    no difference whether the setting was changed in between."""
    copy = await cut_copy(tmp_path, 8)
    segments = sorted(path for path in (copy / LOG).iterdir() if path.name[0] != ".")
    torn = segments[-3]
    os.truncate(torn, torn.stat().st_size // 2)
    app = app_on(copy, later_ns)
    with caplog.at_level(logging.WARNING):
        await app.start()
    assert await messages(app) == [b"0", b"1", b"2", b"3", b"4"]
    await publish(app, 1)
    await app.stop()
    assert sorted(path.name for path in (copy / LOG / ".torn").iterdir()) == [path.name for path in segments[-3:]]
    assert "3 objects beyond it" in caplog.text
    assert "messages acknowledged after" in caplog.text
    assert not (copy / LOG / unsynced.MARK).exists()


async def test_readers_of_a_torn_log(tmp_path: Path) -> None:
    """Readers without a broker see what its next start will serve, and change nothing."""
    copy = await cut_copy(tmp_path, 8)
    segments = sorted(path for path in (copy / LOG).iterdir() if path.name[0] != ".")
    segments[-2].write_bytes(bytes(segments[-2].stat().st_size))
    store = FileStore(copy, read_only=True)
    tail = hide_torn(store, 0)
    assert tail is not None
    assert [os.path.basename(key) for key in tail.beyond] == [path.name for path in segments[-2:]]
    stream = (await read_snapshot(store, 0)).state.stream("$G", "S")
    assert stream is not None
    assert stream.last_seq == 6
    source = open_source(f"file://{copy}")
    assert len(await source.list("v1/shards/0/log/")) == len(segments) - 2
    await source.close()
    assert len(list((copy / LOG).iterdir())) == len(segments) + 1


async def test_a_repair_of_a_torn_log(tmp_path: Path) -> None:
    """``fsck`` finds no fault in a torn log, and with --repair ends the log as a broker's start does."""
    copy = await cut_copy(tmp_path, 8)
    segments = sorted(path for path in (copy / LOG).iterdir() if path.name[0] != ".")
    os.truncate(segments[-2], 0)
    for repair in (False, True):
        store = FileStore(copy, read_only=not repair)
        done = await fsck(store, SystemClock(), random.Random(1), repair=repair)
        await store.close()
        assert not done.problems
        assert (copy / LOG / ".torn").exists() is repair
        assert (copy / LOG / unsynced.MARK).exists() is not repair
    app = app_on(copy)
    await app.start()
    assert len(await messages(app)) == 6
    await app.stop()


async def test_damage_before_the_mark_is_no_end(tmp_path: Path) -> None:
    """Damage in synced objects is never the end of the log: the start fails and names the object."""
    copy = await cut_copy(tmp_path, 8)
    segments = sorted(path for path in (copy / LOG).iterdir() if path.name[0] != ".")
    mark = unsynced.read_mark(str(copy / LOG))
    assert mark is not None
    (copy / LOG / unsynced.MARK).write_bytes(mark._replace(first_key=f"{LOG}/{segments[-2].name}").pack())
    os.truncate(segments[3], 100)
    app = app_on(copy)
    with pytest.raises(Exception, match=segments[3].name):
        await app.start()
    await app.stop()


async def test_a_mark_that_cannot_be_read_is_not_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark that cannot be read is an error: without it a torn segment could not be distinguished from damage."""
    copy = await cut_copy(tmp_path, 1)

    def refused(folder: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(unsynced_tail, "read_mark", refused)
    app = app_on(copy)
    with pytest.raises(Exception, match="it says what was not synced"):
        await app.start()
    await app.stop()


async def test_a_sync_that_fails_ends_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed sync the broker acknowledges nothing. The next start checks unsynced objects, writes them again
    and serves them."""
    app = app_on(tmp_path)
    await app.start()
    await publish(app, 5)
    assert app.store_host is not None
    directory = directory_of(app.store_host.store)
    assert directory is not None

    def fails(fd: int, paths: list[str]) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(unsynced, "sync_files", fails)
        with pytest.raises(unsynced.SyncFailed):
            await asyncio.to_thread(directory.unsynced.sync)
        assert "may not be on the disk" in await asyncio.wait_for(app.failed(), 30)
        await app.stop()
    before = {path.name: path.stat().st_ino for path in (tmp_path / LOG).iterdir() if path.name[0] != "."}
    app = app_on(tmp_path)
    await app.start()
    assert await messages(app) == [b"%d" % n for n in range(5)]
    await app.stop()
    now = {path.name: path.stat().st_ino for path in (tmp_path / LOG).iterdir() if path.name in before}
    assert sum(now[name] != before[name] for name in now) >= 5, "the segments were not written again"


async def test_a_sync_that_fails_in_a_start_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start may end before all is written again; a later sync would succeed and prove nothing, so a mark remains."""
    copy = await killed_copy(tmp_path, 5)
    folder = copy / LOG
    before = {path.name: path.stat().st_ino for path in folder.iterdir() if path.name[0] != "."}

    def fails(*args: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    store = FileStore(copy)
    with monkeypatch.context() as patch:
        patch.setattr(file, "sync_files", fails)
        patch.setattr(os, "fdatasync", fails)
        with pytest.raises(StoreError, match="Input/output error"):
            unsynced_tail.repair_tail(store, ShardPaths(0))
    await store.close()
    app = app_on(copy)
    await app.start()
    assert await messages(app) == [b"%d" % n for n in range(5)]
    await app.stop()
    now = {path.name: path.stat().st_ino for path in folder.iterdir() if path.name in before}
    assert sum(now[name] != before[name] for name in now) >= 5, "the segments were not written again"


@pytest.mark.parametrize("left", ["torn", "far apart", "known to be there"])
async def test_a_disk_that_went_without_the_machine(left: str, tmp_path: Path,
                                                    caplog: pytest.LogCaptureFixture) -> None:
    """A disk that was detached and mounted again has lost what a power cut takes, although the machine kept running."""
    copy = await killed_copy(tmp_path, PUTS_IN_FLIGHT_MAX + 3)
    segments = sorted(path for path in (copy / LOG).iterdir() if path.name[0] != ".")
    torn = segments[-PUTS_IN_FLIGHT_MAX - 1]
    if left == "torn":
        os.truncate(torn, torn.stat().st_size // 2)
    else:
        torn.unlink()
    if left == "known to be there":
        segments[-1].unlink()  # the segment before it shows that all earlier ones were stored
    store = FileStore(copy, read_only=True)
    tail = hide_torn(store, 0)
    assert tail is not None
    assert tail.end is not None
    assert torn.name.endswith(f"{tail.end.number:x}")
    app = app_on(copy)
    with caplog.at_level(logging.WARNING):
        await app.start()
    assert await messages(app) == [b"0", b"1"]
    await app.stop()
    more = {"torn": 1, "far apart": 0, "known to be there": -1}[left]
    assert len(list((copy / LOG / ".torn").iterdir())) == PUTS_IN_FLIGHT_MAX + more
    assert "messages acknowledged after" in caplog.text


def in_flight_with_the_one_before(segment: bytes) -> bytes:
    """Return ``segment`` as if its put had begun while one more was in flight."""
    fixed = struct.pack("<4sI", segment[64:68], struct.unpack_from("<I", segment, 68)[0] + 1) + segment[72:100]
    return segment[:64] + fixed + crc32(fixed).to_bytes(4, "little") + segment[104:]


async def test_a_kill_leaves_nothing_to_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After a kill, a later put may exist without an earlier one; neither was acknowledged, and nothing is moved
    away."""
    copy = await killed_copy(tmp_path, 5)
    segments = sorted(path for path in (copy / LOG).iterdir() if path.name[0] != ".")
    segments[-2].unlink()
    segments[-1].write_bytes(in_flight_with_the_one_before(segments[-1].read_bytes()))
    app = app_on(copy)
    with caplog.at_level(logging.WARNING):
        await app.start()
    assert len(await messages(app)) == 3
    await app.stop()
    assert not (copy / LOG / ".torn").exists()
    assert "sync_interval" not in caplog.text


async def test_a_reader_while_an_owner_sets_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that a reader has listed may be gone: it lists again, and sees the owner's result."""
    copy = await cut_copy(tmp_path, 5)
    segments = sorted(path for path in (copy / LOG).iterdir() if path.name[0] != ".")
    os.truncate(segments[-2], 0)
    get, owner = FileStore.get_sync, FileStore(copy)

    def settled_first(self: FileStore, key: str, *args: int) -> bytes:
        if key.endswith(segments[-2].name):
            monkeypatch.setattr(FileStore, "get_sync", get)
            unsynced_tail.repair_tail(owner, ShardPaths(0))
        return get(self, key, *args)

    monkeypatch.setattr(FileStore, "get_sync", settled_first)
    store = FileStore(copy, read_only=True)
    assert hide_torn(store, 0) is None
    stream = (await read_snapshot(store, 0)).state.stream("$G", "S")
    assert stream is not None
    assert stream.last_seq == 3


async def test_damage_of_an_older_jetblocks_log_is_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older jetblock knows no marks, so an old mark does not cover the objects that it has put and synced."""
    first = await cut_copy(tmp_path, 3)
    with monkeypatch.context() as patch:
        patch.setattr(shard_owner, "repair_tail", lambda store, paths: None)
        app = app_on(first, None)
        await app.start()
        await publish(app, 2)
        assert app.shard_owner is not None
        assert app.shard_owner.shard is not None
        await app.shard_owner.shard.checkpointer.cut()
        await publish(app, 3)
        copy = tmp_path / "older"
        shutil.copytree(first, copy)
        await app.stop()
    assert (copy / LOG / unsynced.MARK).exists()
    segments = sorted(path for path in (copy / LOG).iterdir() if path.name[0] != ".")
    os.truncate(segments[-2], 100)
    app = app_on(copy)
    with pytest.raises(Exception, match=segments[-2].name):
        await app.start()
    await app.stop()
    assert not (copy / LOG / ".torn").exists()
