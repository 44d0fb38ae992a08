"""A store whose checkpoint names very many nonexistent blocks, for planning, which reads none of them."""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import Any

from broker.storage.format.block import BlockPlace, BlockRef, SubjectSummary
from broker.storage.format.checkpoint import Root
from broker.storage.format.header import Position
from broker.storage.format.page import Page, PageKind, PageRef, encode_pages
from broker.storage.objectstore.base import ObjectStore
from broker.storage.read.snapshot import read_snapshot
from broker.storage.state.pages import shard_extra
from broker.storage.state.table import PAGE_ENTRIES, BlockEntry
from tests.pipeline.stores import PATHS, T0, Owner

__all__ = ["BLOCK_MESSAGES", "STREAM", "checkpoint_of"]

STREAM = "large"
BLOCK_MESSAGES = 1000
_STREAM_ID = 0x1234_5678_9ABC_DEF0
_NONCE = bytes(16)


async def checkpoint_of(store: ObjectStore, blocks: int, *, subjects: int) -> None:
    """Make a stream ``large`` of that many blocks of ``BLOCK_MESSAGES`` messages and 8 MB each, one a second.

    Args: subjects: the number of subjects in each block, in no other block and all in its summary; 0: no summary.
    """
    owner = Owner(store)
    await owner.start()
    await owner.kill()
    before = (await read_snapshot(store, 0)).state
    position = before.position
    rng = random.Random(1)
    # Entries are packed page by page, as a table of that many entries would be half a gigabyte.
    refs: list[PageRef] = []
    for at in range(0, blocks, PAGE_ENTRIES):
        entries = [BlockEntry(_block(n, subjects, rng)).pack() for n in range(at, min(blocks, at + PAGE_ENTRIES))]
        body = [PAGE_ENTRIES - len(entries), entries]
        own = Position(position.epoch, len(refs) + 1)
        buffers, [ref] = encode_pages(own, _NONCE, [Page(PageKind.BLOCKS, position, _STREAM_ID, body)])
        await store.put(PATHS.pages(own), buffers)
        refs.append(ref)
    last = blocks * BLOCK_MESSAGES
    # The layout is that of storage.pages.
    entry: list[Any] = [
        _STREAM_ID, "$G", STREAM, {"name": STREAM}, T0, 1, last, last, blocks * 8_000_000, T0, T0 + blocks * 10**9, 0,
        list(position), {}, [[0, None, ref.pack()] for ref in refs], []]
    own = Position(position.epoch, len(refs) + 1)
    buffers, directory = encode_pages(own, _NONCE, [Page(PageKind.DIRECTORY, position, 0, [entry])])
    await store.put(PATHS.pages(own), buffers)
    await store.put(PATHS.checkpoint(position),
                    [Root(position, position, tuple(directory), _result(shard_extra(before))).encode(_NONCE)])


def _block(n: int, subjects: int, rng: random.Random) -> BlockRef:
    first, at_ns = 1 + n * BLOCK_MESSAGES, T0 + n * 10**9
    rows: SubjectSummary | None = None
    if subjects:
        each = BLOCK_MESSAGES // subjects
        rows = tuple((b"orders.%s.%08d.%02d.created" % (rng.choice([b"eu", b"us", b"asia"]), n, i), each, first + i,
                      first + BLOCK_MESSAGES - subjects + i) for i in range(subjects))
        rows = tuple(sorted(rows))
    return BlockRef(BlockPlace.LOG, Position(1, n + 1), 0, _STREAM_ID, 160, 900, 1100, 9_000, 10_100, 8_000_000, first,
                    first + BLOCK_MESSAGES - 1, BLOCK_MESSAGES, 8_100_000, at_ns, at_ns + 999_999_999, rows)


def _result(steps: Generator[None, None, dict[str, Any]]) -> dict[str, Any]:
    try:
        while True:
            next(steps)
    except StopIteration as end:
        result: dict[str, Any] = end.value
        return result
