"""Frames that a thread unpacks ahead: the messages are the same, damage is found, and memory stays within the
window."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import pytest

from broker.storage.format.errors import Corrupt
from broker.storage.format.index import Head
from broker.storage.format.section import SECTIONS, UNCOMPRESSED
from broker.storage.log.open_block import OpenBlock
from broker.storage.log.writer import encode_segment, seal_block
from broker.storage.paths import object_key
from broker.storage.read import unpacking
from broker.storage.read.cache import Cache
from broker.storage.read.reader import BlockReader
from tests.storage.read.test_reader import AT, SHARD, RecordingStore, Stored, unheeded

COUNT = 400
MEBIBYTE = 1 << 20


class Later(Executor):
    """An executor whose work the test runs; ``work`` has the calls."""

    def __init__(self) -> None:
        self.work: list[Callable[[], Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.work.append(lambda: fn(*args, **kwargs))
        return Future()

    def run(self) -> None:
        while self.work:
            self.work.pop(0)()


class Ended(Executor):
    """An executor whose threads have ended."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        raise RuntimeError("cannot schedule new futures after shutdown")


def body(i: int, *, text: bool) -> bytes:
    """Return the body of message ``i``: about 10 KB, each of another length."""
    rng = random.Random(i)
    return b"%06d" % i + (rng.randbytes(5000 + i).hex().encode() if text else rng.randbytes(10_000 + i))


async def make(executor: Executor, cache_bytes: int = 64 * MEBIBYTE, *,
               text: bool = True) -> tuple[RecordingStore, BlockReader, Stored]:
    """Make one block of 4 MiB in about 36 frames; with ``text`` it shrinks by half, else not at all."""
    store = RecordingStore()
    block: OpenBlock[None] = OpenBlock(77, None)
    for i in range(COUNT):
        block.append_run(100 + i, [b"S.%d" % (i % 3)], None, [body(i, text=text)], 1_000 + i)
    sealed = seal_block(block, AT)
    await store.put(SHARD.log(AT), encode_segment(AT, bytes(16), [sealed], SECTIONS if text else UNCOMPRESSED))
    assert sealed.ref is not None
    reader = BlockReader(store, Cache(cache_bytes), lambda ref: object_key(SHARD, ref), SHARD, executor=executor)
    return store, reader, Stored(sealed.ref)


async def read(reader: BlockReader, block: Stored, ordinal: int) -> bytes:
    chunk = reader.cached_chunk(block, ordinal) or await reader.chunk(block, ordinal, unheeded)
    found = chunk.bodies[ordinal - chunk.start]
    assert type(found) is bytes
    return found


@pytest.fixture
def on_the_loop(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the frames that the loop decompressed."""
    from broker.storage.read import reader as reader_module

    frames: list[int] = []
    original = reader_module.frame_body  # type: ignore[attr-defined]

    def noted(head: Head, number: int, *rest: Any) -> Any:
        frames.append(number)
        return original(head, number, *rest)

    monkeypatch.setattr(reader_module, "frame_body", noted)
    return frames


@pytest.mark.parametrize("text", [True, False], ids=["compressed", "as it is"])
async def test_a_reader_in_order_finds_frames_unpacked(text: bool, on_the_loop: list[int]) -> None:
    """The loop only cuts unpacked frames if the threads keep up, except the first frame of each load. Frames that are
    stored as they are stay with the loop, since a thread would cost more."""
    threads = Later()
    _, reader, block = await make(threads, text=text)
    work = 0
    for ordinal in range(COUNT):
        assert await read(reader, block, ordinal) == body(ordinal, text=text)
        work += len(threads.work)
        threads.run()
        assert reader.window.bytes <= reader.window.bytes_max
    assert len(on_the_loop) <= 5 if text else not work
    assert (reader.window.bytes, len(reader.window)) == (0, 0)


async def test_nobody_waits_for_a_thread(on_the_loop: list[int]) -> None:
    """The threads do not begin, and the loop decodes all frames; when the threads run at last, nothing of their work
    remains."""
    threads = Later()
    _, reader, block = await make(threads)
    for ordinal in range(COUNT):
        assert await read(reader, block, ordinal) == body(ordinal, text=True)
    head = reader.cached_head(block)
    assert head is not None
    assert sorted(on_the_loop) == list(range(len(head.frames)))
    assert threads.work
    threads.run()
    assert (reader.window.bytes, len(reader.window)) == (0, 0)


@pytest.mark.parametrize("seed", range(5))
async def test_any_order_of_threads_and_readers(seed: int) -> None:
    """Readers jump and read in order, while threads run now and then, with a cache that is too small: the message is
    always right, and the window never exceeds its bound."""
    rng, threads = random.Random(seed), Later()
    _, reader, block = await make(threads, cache_bytes=rng.choice((12, 24)) * MEBIBYTE)
    at = 0
    for _ in range(600):
        at = rng.randrange(COUNT) if rng.random() < 0.1 else (at + rng.randrange(4)) % COUNT
        assert await read(reader, block, at) == body(at, text=True)
        if threads.work and rng.random() < 0.5:
            threads.work.pop(rng.randrange(len(threads.work)))()
        assert reader.window.bytes <= reader.window.bytes_max
    for ordinal in range(COUNT):
        await read(reader, block, ordinal)
        threads.run()
    assert all(extent.size >= 0 for extent in reader.window)


async def test_a_thread_that_is_done_while_the_loop_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frame that the thread unpacked is dropped, since it is not needed any more, and does not count."""
    from broker.storage.read import reader as reader_module

    executor = Later()
    original = reader_module.frame_body  # type: ignore[attr-defined]

    def meanwhile(*args: Any) -> Any:
        executor.run()
        return original(*args)

    _, reader, block = await make(executor)
    assert await read(reader, block, 0) == body(0, text=True)
    executor.run()
    [extent] = [one for one in reader.window if one.bodies]
    monkeypatch.setattr(reader_module, "frame_body", meanwhile)
    head = reader.cached_head(block)
    assert head is not None
    for number in range(1, extent.end - 1):
        at = head.starts[number]
        assert await read(reader, block, at) == body(at, text=True)
        assert extent.bodies.keys() <= extent.unpacked.keys()
        assert reader.window.bytes == sum(one.size for one in reader.window)


async def test_real_threads() -> None:
    """Readers in any order get the right messages with real threads."""
    with ThreadPoolExecutor(2) as threads:
        _, reader, block = await make(threads)
        for _ in range(3):
            for ordinal in range(COUNT):
                assert await read(reader, block, ordinal) == body(ordinal, text=True)
    assert (reader.window.bytes, len(reader.window)) == (0, 0)


async def test_a_damaged_frame_fails_where_it_is_asked_for() -> None:
    """A thread that meets a damaged frame reports nothing. Frames before and after it are served, and it raises
    Corrupt each time."""
    threads = Later()
    store, reader, block = await make(threads)
    head = await reader.head(block)
    damaged = 7
    at = block.ref.frames_offset + head.frames[damaged].offset + 9
    sound = store.objects[SHARD.log(AT)]
    store.objects[SHARD.log(AT)] = sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1:]
    for ordinal in range(COUNT):
        if head.frame_of(ordinal) == damaged:
            with pytest.raises(Corrupt, match=f"frame {damaged}"):
                await read(reader, block, ordinal)
        else:
            assert await read(reader, block, ordinal) == body(ordinal, text=True)
        threads.run()


async def test_a_full_window_is_not_filled_further() -> None:
    """Frames are not unpacked ahead if the window is three quarters full: the rest is for other loads."""
    threads = Later()
    _, reader, block = await make(threads, cache_bytes=12 * MEBIBYTE)  # a window of 3 MiB; the block takes 2.1
    assert await read(reader, block, 0) == body(0, text=True)
    assert not threads.work
    assert reader.window.bytes == block.ref.frames_bytes


async def test_single_messages_are_not_unpacked_ahead() -> None:
    """A get by sequence decodes one frame."""
    threads = Later()
    _, reader, block = await make(threads)
    chunk = await reader.chunk(block, 200)
    assert chunk.bodies[200 - chunk.start] == body(200, text=True)
    assert not threads.work


async def test_reading_continues_without_threads() -> None:
    """While the broker stops, its threads may end before its readers."""
    _, reader, block = await make(Ended())
    for ordinal in range(COUNT):
        assert await read(reader, block, ordinal) == body(ordinal, text=True)


async def test_a_batch_is_about_a_mebibyte() -> None:
    """A batch has as many frames as have a mebibyte together."""
    threads = Later()
    _, reader, block = await make(threads)
    await read(reader, block, 0)
    head = reader.cached_head(block)
    assert head is not None
    assert len(threads.work) >= 1
    threads.run()
    raw = reader.window.bytes - block.ref.frames_bytes
    largest = max(frame.raw_bytes for frame in head.frames)
    assert unpacking._BATCH_BYTES - largest <= raw <= 2 * (unpacking._BATCH_BYTES + largest)


async def test_unpacked_frames_make_room_for_loads() -> None:
    """Unpacked frames only save time, and a load without room costs requests, so they are dropped. A frame that a
    thread unpacks later is dropped, too."""
    threads = Later()
    _, reader, block = await make(threads, cache_bytes=20 * MEBIBYTE)  # a window of 5 MiB, of which the block takes 2.1
    assert await read(reader, block, 0) == body(0, text=True)
    first, *later = threads.work
    first()
    window, stored = reader.window, block.ref.frames_bytes
    [extent] = window
    assert extent.bodies
    assert window.bytes > stored
    assert window.make_room(window.bytes_max - stored)
    assert (window.bytes, extent.size, extent.bodies) == (stored, stored, {})
    first()
    for work in later:
        work()
    assert not extent.bodies
    assert not window.make_room(window.bytes_max - stored + 1)
    for ordinal in range(COUNT):
        assert await read(reader, block, ordinal) == body(ordinal, text=True)
    assert (window.bytes, len(window)) == (0, 0)
