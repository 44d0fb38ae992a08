"""Large publishes beside the real nats-server, and beside what the disk or the bucket takes from a bare program.

    python -m bench.large [--sizes 65536 131072 1000000] [--mib 256] [--repeat 3] [--only later always minio]

Each server stores ``--mib`` MiB of random bytes, one message at a time (half as many) and 32 in flight. All rows of a
size come from the same run, in turns; a rate is the best of the turns, a processor time the least.

    later    nats-server by default, jetblock with ``sync_interval: 2m``; bare: writes to one file
    always   both flush before each PubAck; bare: writes and flushes, one for each window of messages
    minio    jetblock on MinIO with its default interval; bare: PUTs of 4 MiB, four at once
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.cost.client import Client, pub
from bench.servers import Minio, Server, environment, jetblock, nats_server
from broker.storage.objectstore.url import open_store

__all__ = ["main"]

_MIB = 1 << 20
_WINDOWS = (1, 32)
_MESSAGES = 32
_PUT_BYTES = 4 * _MIB

Figure = tuple[float, float, float]
"""MiB a second, and milliseconds for a MiB: of all threads, and of the first one."""


class Large:
    """One run: messages of one size, and the figures of each server and window."""

    def __init__(self, size: int, mib: float) -> None:
        self._size = size
        self._mib = mib
        self._body = random.Random(size).randbytes(size)
        self._requests = [pub("bench.C.x", self._body[at:] + self._body[:at]) for at in range(_MESSAGES)]
        self.figures: dict[tuple[str, int], list[Figure]] = {}

    def count(self, window: int) -> int:
        """Return the number of messages."""
        return max(_MESSAGES, int(self._mib * _MIB / self._size) // (2 if window == 1 else 1))

    def publish(self, name: str, server: Server) -> None:
        """Measure a server that is not running yet."""
        with server:
            client = Client(server.port)
            client.create(allow_direct=True, allow_rollup_hdrs=True)
            client.exchange(iter(self._requests), 1, 4)
            for window in _WINDOWS:
                count = self.count(window)
                cpu, loop, began = server.cpu_s(), server.loop_cpu_s(), time.perf_counter()
                client.exchange((self._requests[i % _MESSAGES] for i in range(count)), 1, window)
                seconds = time.perf_counter() - began
                time.sleep(0.3)  # the last segment is stored after its PubAcks
                self._add(name, window, seconds, server.cpu_s() - cpu, server.loop_cpu_s() - loop)

    def write(self, *, flushed: bool) -> None:
        """Measure bare writes."""
        with tempfile.TemporaryDirectory(prefix="jetblock-bench-") as folder:
            for window in _WINDOWS:
                fd = os.open(f"{folder}/{window}", os.O_CREAT | os.O_WRONLY)
                cpu, began = time.process_time(), time.perf_counter()
                for i in range(self.count(window)):
                    os.write(fd, self._body)
                    if flushed and (i + 1) % window == 0:
                        os.fdatasync(fd)
                self._add("bare", window, time.perf_counter() - began, time.process_time() - cpu, 0)
                os.close(fd)

    async def put(self, url: str) -> None:
        """Measure bare PUTs, four at once: the same figure for both windows."""
        store = open_store(url)
        try:
            await store.put("first", [b"x"])
            total = self.count(32) * self._size
            names = iter(range(total // _PUT_BYTES))
            data = [random.Random(1).randbytes(_PUT_BYTES)]
            cpu, began = time.process_time(), time.perf_counter()

            async def some() -> None:
                for number in names:
                    await store.put(f"bare/{number}", data)

            await asyncio.gather(*[some() for _ in range(4)])
            for window in _WINDOWS:
                share = self.count(window) / self.count(32)
                self._add("bare", window, (time.perf_counter() - began) * share,
                          (time.process_time() - cpu) * share, 0)
        finally:
            await store.close()

    def _add(self, name: str, window: int, seconds: float, cpu_s: float, loop_s: float) -> None:
        mib = self.count(window) * self._size / _MIB
        self.figures.setdefault((name, window), []).append((mib / seconds, cpu_s * 1e3 / mib, loop_s * 1e3 / mib))

    def show(self, kind: str) -> None:
        """Print a row for each server and window."""
        best = {key: (max(f[0] for f in all_), min(f[1] for f in all_), min(f[2] for f in all_))
                for key, all_ in self.figures.items()}
        for (name, window), (rate, cpu, loop) in best.items():
            others = [other for other in ("nats-server", "bare") if other != name and (other, window) in best]
            ratios = ", ".join(f"{rate / best[other, window][0]:.2f} of {other}" for other in others)
            print(f"{kind:<7} {self._size:>8} B, {window:>2} in flight, {name:<12} {rate:7.0f} MiB/s; ms of CPU for a "
                  f"MiB: {cpu:5.2f}, loop {loop:5.2f}; {ratios}", flush=True)


@contextmanager
def _minio() -> Iterator[Minio]:
    with Minio() as minio, environment(minio.env):
        yield minio


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[65_536, 131_072, 1_000_000])
    parser.add_argument("--mib", type=float, default=256)
    parser.add_argument("--repeat", type=int, default=3)
    kinds = ("later", "always", "minio")
    parser.add_argument("--only", choices=kinds, nargs="+", default=kinds)
    args = parser.parse_args(words)
    for size in args.sizes:
        for kind in args.only:
            run = Large(size, args.mib)
            for _ in range(args.repeat):
                run.publish("nats-server", nats_server(sync=kind == "always"))
                if kind == "minio":
                    with _minio() as minio:
                        run.publish("jetblock", jetblock(store=minio.url, env=minio.env))
                        asyncio.run(run.put(minio.url))
                else:
                    run.publish("jetblock", jetblock(sync_interval="2m" if kind == "later" else ""))
                    run.write(flushed=kind == "always")
            run.show(kind)
    return 0


if __name__ == "__main__":
    sys.exit(main())
