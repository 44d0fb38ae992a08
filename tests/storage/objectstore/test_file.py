"""FileStore: properties of a directory beyond the contract."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from broker.storage.objectstore import (
    NotFound,
    PreconditionFailed,
    StoreRefused,
    Transient,
    disk,
    open_store,
)
from broker.storage.objectstore import file as file_module
from broker.storage.objectstore.file import FileStore
from broker.storage.objectstore.memory import MemoryStore

both_ways = pytest.mark.parametrize("nameless", [True, False], ids=["nameless", "named"])


def temp_files(directory: Path) -> list[Path]:
    """Return the files in .tmp, without the folders of process runs."""
    return [path for path in directory.glob(".tmp/**/*") if path.is_file()]


@both_ways
async def test_an_object_is_synced_before_its_name_and_its_name_before_the_answer(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nameless: bool) -> None:
    """The steps have the order that survives a power cut: new directories into their parents, data, link, directory,
    answer. A refusal syncs the directory, too, since the object whose existence it reports must be durable."""
    done: list[str] = []

    def spy(name: str) -> None:
        real = getattr(os, name)

        def call(*args: object, **kwargs: object) -> object:
            result = real(*args, **kwargs)
            if name == "fsync":
                done.append("fsync " + os.readlink(f"/proc/self/fd/{args[0]}").removeprefix(str(tmp_path)))
            elif name != "mkdir" or ".tmp" not in str(args[0]):
                done.append(name if name != "mkdir" else f"mkdir {str(args[0]).removeprefix(str(tmp_path))}")
            return result

        monkeypatch.setattr(os, name, call)

    store = FileStore(tmp_path, nameless=nameless)
    for name in ("fdatasync", "link", "fsync", "mkdir"):
        spy(name)
    try:
        os.link("/nowhere", "/nowhere2")
    except OSError:
        done.clear()
    await store.put("a/b", [b"x"])
    relevant = [step for step in done if not step.startswith("fdatasync") or "mkdir /a" in done]
    assert relevant[-3:] == ["fdatasync", "link", "fsync /a"]
    assert done.index("mkdir /a") < done.index("fsync ") < done.index("link")
    done.clear()
    with pytest.raises(PreconditionFailed):
        await store.put("a/b", [b"y"])
    assert done == ["fdatasync", "fsync /a"]
    await store.close()


@both_ways
async def test_no_temporary_files_are_left(tmp_path: Path, nameless: bool) -> None:
    """Puts that worked, were refused or failed leave no temporary file."""
    store = FileStore(tmp_path, nameless=nameless)
    await asyncio.gather(*(store.put(f"k/{i % 5}", [b"x"]) for i in range(20)), return_exceptions=True)
    assert len(await store.list("")) == 5
    assert temp_files(tmp_path) == []
    await store.close()


@both_ways
async def test_many_buffers_and_short_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nameless: bool) -> None:
    """More buffers than writev takes, and a writev that stops half way, make the same object."""
    real = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, buffers: real(fd, [b"".join(buffers)[:777]]))
    store = FileStore(tmp_path, nameless=nameless)
    data = [random.Random(i).randbytes(i % 7) for i in range(5000)]
    await store.put("k", data)
    assert await store.get("k") == b"".join(data)
    await store.close()


async def test_a_file_system_without_nameless_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts use a temporary name without O_TMPFILE, or if /proc is not mounted."""
    real = os.open

    def refuse(path: str, flags: int, *rest: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "no O_TMPFILE")
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", refuse)
    store = FileStore(tmp_path)
    await store.put("a/b", [b"x"])
    await store.put("a/c", [b"y"])
    assert await store.get("a/c") == b"y"
    assert temp_files(tmp_path) == []
    await store.close()


CRASH = """
import os, sys
from broker.storage.objectstore.file import FileStore
store = FileStore(sys.argv[1], nameless=False)
os.link = lambda *a, **k: os._exit(9)     # killed after writing, before linking
store.put_sync("k", [b"half"])
"""


async def test_temporary_files_of_dead_processes_are_removed(tmp_path: Path) -> None:
    """A process that dies between write and link leaves a file that is never listed and that the next open removes;
    temporary files of a live process stay."""
    directory = tmp_path / "store"
    living = FileStore(directory, nameless=False)
    await living.put("before", [b"x"])
    died = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", CRASH, str(directory)], check=False)
    assert died.returncode == 9
    assert len(temp_files(directory)) == 1
    assert [info.key for info in await living.list("")] == ["before"]
    [run] = [path for path in directory.glob(".tmp/*") if not list(path.iterdir())]
    (run / "being-written").write_bytes(b"...")  # stands for a put in progress of the live process
    again = FileStore(directory, nameless=False)
    assert temp_files(directory) == [run / "being-written"]
    await again.close()
    await living.close()


async def test_put_sync_is_put(tmp_path: Path) -> None:
    """put_sync from a thread, as the log calls it, is the same put, with the same refusals."""
    store = FileStore(tmp_path)
    assert store.put_sync is not None
    await asyncio.to_thread(store.put_sync, "a/b", [b"one", b"two"])
    assert await store.get("a/b") == b"onetwo"
    with pytest.raises(PreconditionFailed):
        await asyncio.to_thread(store.put_sync, "a/b", [b"x"])
    await store.close()


async def test_reads_that_are_not_cached_go_through_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the page cache answers (nothing, half of it, an error, "cannot say"), the bytes are the same."""
    store = FileStore(tmp_path)
    data = random.Random(5).randbytes(10_000)
    await store.put("k", [data])

    def raises(*_: object) -> int:
        raise BlockingIOError(errno.EAGAIN, "not cached")

    for preadv in (raises, lambda fd, buffers, at, flags: len(buffers[0]) // 2):
        monkeypatch.setattr(os, "preadv", preadv)
        assert await store.get("k", 100, 9000) == data[100:9000]
        assert await store.get("k", 9000) == data[9000:]
    monkeypatch.setattr(disk, "_NOWAIT", None)
    assert await store.get("k") == data
    await store.close()


@pytest.mark.parametrize(("code", "words"), [
    (errno.ENOSPC, "the disk is full"), (errno.EDQUOT, "quota"), (errno.EROFS, "read-only"),
    (errno.EACCES, "read and write access"), (errno.EXDEV, "another file system"), (errno.EPERM, "access"),
    (errno.EMLINK, "hard links")])
async def test_errors_that_trying_again_cannot_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int,
                                                    words: str) -> None:
    """A full disk and the like are refused with the store, the key and the remedy, and leave nothing half done."""
    store = FileStore(tmp_path)

    def fail(*_: object, **__: object) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(os, "writev", fail)
        with pytest.raises(StoreRefused, match=words) as caught:
            await store.put("a/key", [b"x"])
    assert str(tmp_path) in str(caught.value)
    assert "a/key" in str(caught.value)
    with pytest.raises(NotFound):
        await store.get("a/key")
    await store.put("a/key", [b"x"])
    await store.close()


@pytest.mark.parametrize(("call", "lands"), [("writev", False), ("fdatasync", False), ("link", False), ("fsync", True)])
async def test_a_failing_disk_is_transient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str,
                                           lands: bool) -> None:
    """EIO at each step of a put is Transient; the same put again succeeds, or is refused since the first one took
    effect."""
    store = FileStore(tmp_path)
    await store.put("a/other", [b"x"])

    def fail(*_: object, **__: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        with pytest.raises(Transient, match="a/key"):
            await store.put("a/key", [b"x"])
    if lands:
        with pytest.raises(PreconditionFailed):
            await store.put("a/key", [b"x"])
    else:
        await store.put("a/key", [b"x"])
    assert await store.get("a/key") == b"x"
    await store.close()


async def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """A real full file system (a tmpfs of 64 kB, if the machine allows to mount one) refuses, and works once it has
    room."""
    mount = await asyncio.to_thread(
        subprocess.run, ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(tmp_path)], capture_output=True,
        check=False)
    if mount.returncode:
        pytest.skip("mounting a tmpfs is not allowed here; ENOSPC is tried by injection above")
    try:
        store = FileStore(tmp_path)
        await store.put("a/1", [bytes(30_000)])
        with pytest.raises(StoreRefused, match="the disk is full"):
            await store.put("a/2", [bytes(60_000)])
        assert [info.key for info in await store.list("")] == ["a/1"]
        await store.delete("a/1")
        await store.put("a/2", [bytes(40_000)])
        await store.close()
    finally:
        await asyncio.to_thread(subprocess.run, ["umount", str(tmp_path)], check=True)


def test_directories_that_cannot_be_a_store(tmp_path: Path) -> None:
    """A file in place of the directory, or above it, is reported with nats-server's error text and the path."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreRefused, match="storage directory is not a directory") as caught:
        FileStore(tmp_path / "file")
    assert str(tmp_path / "file") in str(caught.value)
    with pytest.raises(StoreRefused, match="could not create storage directory"):
        FileStore(tmp_path / "file" / "below")
    with pytest.raises(StoreRefused, match="could not create storage directory"):
        FileStore("/proc/nothing/here")
    with pytest.raises(StoreRefused, match="no storage directory"):
        FileStore(tmp_path / "missing", read_only=True)
    assert not (tmp_path / "missing").exists()
    store = open_store(f"file://{tmp_path}/new/deep")
    assert isinstance(store, FileStore)
    assert store.url == f"file://{tmp_path}/new/deep"


async def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    """An unmounted directory is not mistaken for an empty store, neither by reads nor by puts."""
    store = FileStore(tmp_path / "s")
    (tmp_path / "s").rmdir()
    with pytest.raises(StoreRefused, match="gone"):
        await store.get("k")
    with pytest.raises(StoreRefused, match="gone"):
        await store.put("k", [b"x"])
    with pytest.raises(StoreRefused, match="gone"):
        await store.list("")
    assert not (tmp_path / "s").exists()
    await store.close()


async def test_the_lock(tmp_path: Path) -> None:
    """There is one holder at a time, in this process or another; the death of the holder releases the lock; it is no
    object."""
    first, second = FileStore(tmp_path), FileStore(tmp_path)
    assert first.try_lock is not None
    assert second.try_lock is not None
    lock = first.try_lock("v1/shards/0")
    assert lock is not None
    assert second.try_lock("v1/shards/0") is None
    assert second.try_lock("v1/shards/1") is not None
    assert await first.list("") == []
    lock.release()
    lock.release()
    code = ("import sys; from broker.storage.objectstore.file import FileStore\n"
            "lock = FileStore(sys.argv[1]).try_lock('v1/shards/0')\n"
            "print(lock is not None, flush=True); sys.stdin.read()")
    holder = await asyncio.create_subprocess_exec(sys.executable, "-c", code, str(tmp_path),
                                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert await holder.stdout.readline() == b"True\n"
    assert second.try_lock("v1/shards/0") is None
    holder.kill()
    await holder.wait()
    assert second.try_lock("v1/shards/0") is not None
    await first.close()
    await second.close()


async def test_folders_go_with_their_last_object(tmp_path: Path) -> None:
    """Deleting the last object below a folder removes it and its empty parents, while other calls put into it."""
    store = FileStore(tmp_path)
    await store.put("a/b/c/1", [b"x"])
    await store.put("a/2", [b"x"])
    await store.delete("a/b/c/1")
    assert not (tmp_path / "a" / "b").exists()
    assert (tmp_path / "a").exists()

    async def churn(name: int) -> None:
        for i in range(40):
            await store.put(f"f/g/{name}-{i}", [b"x"])
            await store.delete(f"f/g/{name}-{i}")

    await asyncio.gather(*(churn(name) for name in range(8)))
    assert [info.key for info in await store.list("")] == ["a/2"]
    await store.close()


@both_ways
async def test_folders_that_others_remove_at_every_step_of_a_put(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nameless: bool) -> None:
    """The folder is removed before each system call of a put in turn, and recreated or not. The put works
    nevertheless, and continues to use nameless files if it could."""
    for comes_back in (False, True):
        for step in range(12):
            store = FileStore(tmp_path / f"{comes_back}{step}", nameless=nameless)
            folder = store.directory / "f" / "g"
            folder.mkdir(parents=True)
            calls = 0

            def spy(name: str, step: int = step, folder: Path = folder, comes_back: bool = comes_back) -> None:
                real, rmdir, mkdir = getattr(os, name), os.rmdir, os.mkdir

                def call(*args: object, **kwargs: object) -> object:
                    nonlocal calls
                    if calls == step and folder.exists() and not any(folder.iterdir()):
                        rmdir(folder)
                        rmdir(folder.parent)
                        if comes_back:
                            mkdir(folder.parent)
                            mkdir(folder)
                    calls += 1
                    return real(*args, **kwargs)

                patch.setattr(os, name, call)

            with monkeypatch.context() as patch:
                for name in ("open", "fdatasync", "link", "fsync"):
                    spy(name)
                await store.put("f/g/k", [b"x"])
            assert await store.get("f/g/k") == b"x"
            assert store._nameless == nameless
            assert temp_files(store.directory) == []
            await store.close()


@pytest.mark.parametrize("ends", [True, False])
async def test_a_folder_whose_removal_is_slow(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool) -> None:
    """While ext4 removes a folder, it exists but accepts no nameless file (EPERM); creating it waits for the removal's
    end. If EPERM persists, the directory is not writable, and that is reported."""
    real_open, real_mkdir = os.open, os.mkdir
    going = True

    def open_(path: str, flags: int, *rest: int) -> int:
        if going and flags & os.O_TMPFILE == os.O_TMPFILE:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        return real_open(path, flags, *rest)

    def mkdir(path: str, *rest: int) -> None:
        nonlocal going
        if going and ends:
            going = False
            os.rmdir(path)
        real_mkdir(path, *rest)

    store = FileStore(tmp_path)
    (tmp_path / "f").mkdir()
    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "mkdir", mkdir)
    if ends:
        await store.put("f/k", [b"x"])
        assert await store.get("f/k") == b"x"
    else:
        with pytest.raises(StoreRefused, match="not permitted"):
            await store.put("f/k", [b"x"])
        with pytest.raises(StoreRefused, match="not permitted"):
            await store.put("k", [b"x"])
    await store.close()


async def test_a_refused_put_whose_folder_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key exists, but its object is deleted, with its folder, before the refusal is durable: the key is free."""
    store = FileStore(tmp_path)
    await store.put("f/k", [b"old"])
    real = os.link

    def link(*args: object, **kwargs: object) -> None:
        try:
            real(*args, **kwargs)  # type: ignore[arg-type]
        except FileExistsError:
            (tmp_path / "f" / "k").unlink()
            (tmp_path / "f").rmdir()
            raise

    monkeypatch.setattr(os, "link", link)
    await store.put("f/k", [b"new"])
    assert await store.get("f/k") == b"new"
    await store.close()


async def test_a_folder_that_cannot_be_removed_fails_no_delete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The object is deleted even if its folder cannot be removed."""
    def refuse(path: str) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    store = FileStore(tmp_path)
    await store.put("f/k", [b"x"])
    monkeypatch.setattr(os, "rmdir", refuse)
    await store.delete("f/k")
    with pytest.raises(NotFound):
        await store.get("f/k")
    await store.close()


async def test_listing_across_folders_is_as_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random trees, prefixes, afters and limits: the walk over directories equals a sorted list of keys.

    (The contract keeps after and limit to single folders, for SeaweedFS's sake; a directory has no such limit.)
    """
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)
    for seed in range(20):
        rng = random.Random(seed)

        def word(rng: random.Random = rng) -> str:
            return "".join(rng.choice("ab-0z~é") for _ in range(rng.randint(1, 3)))

        files, memory = FileStore(tmp_path / str(seed)), MemoryStore()
        taken: set[str] = set()
        for _ in range(60):
            key = "/".join(word() for _ in range(rng.randint(1, 4)))
            parents = {key[:i] for i, c in enumerate(key) if c == "/"}
            if parents & taken or any(other == key or other.startswith(key + "/") for other in taken):
                continue
            taken.add(key)
            await files.put(key, [b"x" * len(key)])
            await memory.put(key, [b"x" * len(key)])
        anything = [*taken, *(word() for _ in range(20)), *(key[:rng.randint(0, len(key))] for key in taken), ""]
        for _ in range(100):
            prefix = rng.choice(["", "", rng.choice(anything)])
            after, limit = rng.choice(anything), rng.choice([None, 1, 3])
            assert await files.list(prefix, after, limit) == await memory.list(prefix, after, limit), (
                seed, prefix, after, limit)
        await files.close()


async def test_other_files_in_the_directory(tmp_path: Path) -> None:
    """Dot files and lock files are not objects; nor are files outside the directory, for any prefix."""
    (tmp_path / "outside").write_text("secret")
    store = FileStore(tmp_path / "s")
    (tmp_path / "s" / ".hidden").write_text("x")
    (tmp_path / "s" / "lost+found").mkdir()
    await store.put("k", [b"x"])
    assert [info.key for info in await store.list("")] == ["k"]
    for prefix in ("../", "..", "/", str(tmp_path) + "/", "k/../../", "./", ".tmp/"):
        assert await store.list(prefix) == []
    await store.close()


async def test_many_reads_in_one_turn_leave_the_loop_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first few reads are copied from the page cache on the loop, the others in threads; the next turn starts
    from zero."""
    inline: list[str] = []
    read_cached = file_module.read_cached  # type: ignore[attr-defined]

    def counted(path: str, start: int, end: int | None) -> bytes | None:
        data = read_cached(path, start, end)
        if data is not None:
            inline.append(path)
        return data

    monkeypatch.setattr(file_module, "read_cached", counted)
    store = FileStore(tmp_path)
    objects = {f"a/{i}": random.Random(i).randbytes(100_000) for i in range(12)}
    for key, data in objects.items():
        await store.put(key, [data])
    assert await asyncio.gather(*map(store.get, objects)) == list(objects.values())
    assert len(inline) <= 6
    inline.clear()
    for key, data in objects.items():
        assert await store.get(key) == data
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert len(inline) == (12 if hasattr(os, "RWF_NOWAIT") and await _nowait(tmp_path) else 0)
    await store.close()


async def _nowait(directory: Path) -> bool:
    """Return True if this file system reports which pages its page cache has."""
    (directory / "probe").write_bytes(b"x")
    return disk.read_cached(str(directory / "probe"), 0, None) is not None
