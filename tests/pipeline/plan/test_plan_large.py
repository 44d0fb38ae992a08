"""Planning 100 000 blocks: from the store to pickled partitions, in a separate process, within seconds and 500 MiB."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from broker.storage.objectstore.file import FileStore
from tests.pipeline.large import BLOCK_MESSAGES, STREAM, checkpoint_of

BLOCKS = 100_000
MEMORY_MAX = 500 << 20
SECONDS_MAX = 30
"""Upper bound of processor time, which is about 3 s; wall time depends on the other load of the machine."""

PLAN = """
import json, pickle, resource, sys, time
from broker.pipeline.store.objects import open_object_client
from broker.pipeline.plan.snapshot import read_store
from broker.pipeline.plan.plan import pack, tasks
from broker.pipeline.plan.selection import Selection

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

url, stream, subject = sys.argv[1:]
before, began, cpu = peak(), time.monotonic(), time.process_time()
[snapshot] = read_store(open_object_client(url), stream=stream)
selection = Selection(subjects=(subject.encode(),)) if subject else Selection()
found = tasks(snapshot, selection)
parts = [pickle.dumps(part) for part in pack(found, 64 << 20)]
print(json.dumps({"blocks": len(snapshot.blocks), "tasks": len(found), "parts": len(parts),
                  "bytes": sum(map(len, parts)), "messages": sum(task.messages for task in found),
                  "seconds": time.monotonic() - began, "cpu": time.process_time() - cpu, "memory": peak() - before}))
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    return asyncio.run(_made(tmp_path_factory.mktemp("plain"), subjects=0))


@pytest.fixture(scope="module")
def summed_up(tmp_path_factory: pytest.TempPathFactory) -> str:
    return asyncio.run(_made(tmp_path_factory.mktemp("summed-up"), subjects=16))


async def _made(folder: Path, *, subjects: int) -> str:
    store = FileStore(folder / "store")
    await checkpoint_of(store, BLOCKS, subjects=subjects)
    await store.close()
    return store.url


def planned(url: str, subject: str = "") -> dict[str, float]:
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", PLAN, url, STREAM, subject], cwd=root, stdout=subprocess.PIPE,
                          check=True, timeout=110)
    found: dict[str, float] = json.loads(done.stdout)
    print(f"{url}: {found}")
    assert found["blocks"] == BLOCKS
    assert found["memory"] <= MEMORY_MAX
    assert found["cpu"] <= SECONDS_MAX
    return found


async def test_all_of_blocks_without_summaries(plain: str) -> None:
    """Nothing can be pruned: every block is planned, eight or nine to a partition of about 64 MiB."""
    found = planned(plain)
    assert (found["tasks"], found["messages"]) == (BLOCKS, BLOCKS * BLOCK_MESSAGES)
    assert BLOCKS / 9 <= found["parts"] <= BLOCKS / 8


async def test_all_of_blocks_with_summaries(summed_up: str) -> None:
    """Unused summaries cost little."""
    assert planned(summed_up)["tasks"] == BLOCKS


async def test_a_third_by_subject(summed_up: str) -> None:
    """Every summary is examined, 1.6 million subjects in all."""
    found = planned(summed_up, "orders.asia.*.03.*")
    assert BLOCKS / 3.2 < found["tasks"] < BLOCKS / 2.8
    assert found["messages"] == found["tasks"] * (BLOCK_MESSAGES // 16)


async def test_one_block_by_subject(summed_up: str) -> None:
    """A pattern that only one block matches."""
    found = planned(summed_up, "orders.*.00077777.>")
    assert (found["tasks"], found["parts"]) == (1, 1)
