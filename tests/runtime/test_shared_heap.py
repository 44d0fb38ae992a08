"""The threads of a broker allocate from one heap."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import nats
import pytest

from tests.harness import BrokerProcess

HEAP = re.compile(r"^([0-9a-f]+)-[0-9a-f]+ rw-p 00000000 00:00 0 *$", re.MULTILINE)
"""A mapping without a file, which may be the heap of a thread."""
HEAP_BYTES = 64 << 20
"""The heaps of threads begin at multiples of this (glibc, malloc/arena.c)."""


async def heaps(directory: Path, environ: dict[str, str]) -> int:
    """Return the number of heaps of threads, once threads have written large segments."""
    async with BrokerProcess("-js", "-sd", str(directory), environ=environ) as broker:
        client = await nats.connect(broker.url)
        js = client.jetstream()
        await js.add_stream(name="S", subjects=["s"])
        for _ in range(20):
            await js.publish("s", bytes(900_000))
        await client.close()
        return count_heaps(Path(f"/proc/{broker.pid}/maps"))


def count_heaps(maps: Path) -> int:
    """Return the number of heaps of threads among the mappings of a process."""
    return sum(int(start, 16) % HEAP_BYTES == 0 for start in HEAP.findall(maps.read_text()))


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc has several heaps")
async def test_threads_share_one_heap(tmp_path: Path) -> None:
    """By default they do; the usual variable of glibc says otherwise."""
    assert await heaps(tmp_path / "own", {}) == 0
    assert await heaps(tmp_path / "given", {"MALLOC_ARENA_MAX": "4"}) > 0
