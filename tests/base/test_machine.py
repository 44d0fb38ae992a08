"""The memory of the machine is bounded by the control groups of the process, as Linux shows them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker.base.machine import memory_bytes
from tests.harness import BrokerProcess

PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize("files, expected", [
    ({}, PHYSICAL),
    ({"proc/self/cgroup": "0::/\n"}, PHYSICAL),
    # A container sees its own group as the root.
    ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1000000\n"}, 1_000_000),
    ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, PHYSICAL),
    ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "700\n", "sys/fs/cgroup/a/b/memory.max": "max\n"},
     700),
    ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "700\n", "sys/fs/cgroup/a/b/memory.max": "500\n"},
     500),
    # Version 1, whose "no bound" is a huge number.
    ({"proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/x\n0::/\n",
      "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "800\n",
      "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 800),
])
def test_memory(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert memory_bytes(tmp_path) == expected


@pytest.mark.parametrize("given, expected", [("", memory_bytes() // 4 * 3), ("max_memory_store: 64MiB", 64 << 20)])
async def test_bound_of_memory_streams(tmp_path: Path, given: str, expected: int) -> None:
    """The bound is three quarters of the memory unless configured; it is on nats-server's pages, and in force."""
    conf = tmp_path / "x.conf"
    conf.write_text(f"jetstream {{ store_dir: '{tmp_path}', max_file_store: 5m, {given} }}")
    async with BrokerProcess("-c", str(conf)) as broker:
        config = (await broker.monitor("/jsz"))["config"]
        assert (config["max_memory"], config["max_storage"]) == (expected, 5_000_000)
        await broker.wait_line(r"Max Storage: +4\.77 MB")
