"""The growth and the cost of a store over time: objects, requests, bytes, dollars, the broker's memory and recovery.

    python -m bench.months.run [--only WORD …] [--scale FACTOR] [--json FILE]

The real engine runs in virtual time over a counting store in memory (``bench.months.broker``), each load for the time
in
the table. A figure for a month is extrapolated from the last half of that time. Prices: ``broker.maintenance.cost``.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import pathlib
import random
import resource
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from bench.months.broker import SECOND, VirtualBroker
from broker.maintenance.cost import MONTH_SECONDS, Prices
from tests.manual_clock import ManualClock
from tests.sim.loop import SimLoop

__all__ = ["LOADS", "LongLoad", "main", "simulate"]


@dataclass(frozen=True, slots=True)
class LongLoad:
    """A load of ``rate`` messages a second of ``size`` bytes in all, over ``streams`` in turn; kept for ``keep_s``.

    seconds: the simulated time.
    """

    name: str
    streams: int
    rate: float
    seconds: float
    keep_s: float
    size: int = 200
    commit_interval_s: float = 0.02
    compaction: bool = True


LOADS = [
    LongLoad("nothing published", 1, 0, 7 * 86_400, 0),
    LongLoad("1 stream, a message a minute", 1, 1 / 60, 7 * 86_400, 2 * 86_400),
    LongLoad("1 stream, 1 message/s", 1, 1, 86_400, 43_200),
    LongLoad("1000 streams, a message a minute each, 250 ms", 1000, 1000 / 60, 14_400, 7200, commit_interval_s=0.25),
    LongLoad("1000 streams, 1 message/s each, 250 ms", 1000, 1000, 2400, 600, commit_interval_s=0.25),
    LongLoad("1000 streams, 1 message/s each, 250 ms, without compaction", 1000, 1000, 2400, 600,
             commit_interval_s=0.25, compaction=False),
    LongLoad("1000 streams, 1 message/s each, 20 ms", 1000, 1000, 2400, 600),
    LongLoad("1000 streams, 1 message/s each, 20 ms, without compaction", 1000, 1000, 2400, 600, compaction=False),
    LongLoad("1 stream, 50 000 messages/s, 20 ms", 1, 50_000, 180, 60),
    LongLoad("1 stream, 50 000 messages/s, 250 ms", 1, 50_000, 180, 60, commit_interval_s=0.25),
]

_SAMPLES = 8
_GRACE_SHARE = 0.1
"""The grace before objects are deleted, as a part of the simulated time; 10 minutes at most."""
_WORDS = b'{"time": "%d", "level": "info", "service": "orders", "message": "order accepted", "id": "%b", "amount": %d}'


def simulate(load: LongLoad, scale: float = 1.0) -> dict[str, Any]:
    """Run ``load`` for its time, times ``scale``, and recover once more. Returns: the row of the table, and the
    samples."""
    clock = ManualClock()
    loop = SimLoop(clock)
    try:
        found = loop.run_until_complete(_run(load, scale, clock, loop))
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        if loop.errors:
            raise RuntimeError(str(loop.errors[0]))
        return found
    finally:
        loop.close()


async def _run(load: LongLoad, scale: float, clock: ManualClock, loop: SimLoop) -> dict[str, Any]:
    seconds, began_s = load.seconds * scale, time.process_time()
    broker = VirtualBroker(clock, loop, commit_interval_s=load.commit_interval_s, compaction=load.compaction,
                           grace_s=min(600, seconds * _GRACE_SHARE))
    await broker.start()
    for number in range(load.streams):
        await broker.ask(f"STREAM.CREATE.S{number}", {"name": f"S{number}", "subjects": [f"s.{number}"],
                                                      "max_age": int(load.keep_s * scale * SECOND)})
    made_s = time.process_time()
    memory = _memory_bytes() - _held(broker)
    samples: list[dict[str, Any]] = []
    sent = 0
    start_ns = clock.monotonic_ns()
    publisher = _Publisher(load, broker)
    for number in range(1, _SAMPLES + 1):
        until_ns = start_ns + int(seconds * SECOND * number / _SAMPLES)
        sent += await publisher.until(until_ns)
        gc.collect()
        samples.append({"hours": (clock.monotonic_ns() - start_ns) / SECOND / 3600,
                        "objects": len(broker.memory.objects),
                        "stored": _held(broker), "memory": _memory_bytes() - _held(broker),
                        **{name: stats.count for name, stats in broker.store.operations.items()},
                        "written": broker.store.operations["put"].bytes})
    worked_s = time.process_time() - made_s
    await asyncio.sleep(1)
    assert broker.acked == sent, (broker.acked, sent)
    await broker.stop()
    again = VirtualBroker(clock, loop, commit_interval_s=load.commit_interval_s, compaction=load.compaction,
                          memory=broker.memory)
    recovery_s = await again.start()
    await again.stop()
    return {**asdict(load), "simulated_s": seconds, "messages": sent, "processor_s": time.process_time() - began_s,
            "processor_us": worked_s / sent * 1e6 if sent else None, "recovery_s": recovery_s, "memory_before": memory,
            "samples": samples, "month": _month(samples, seconds)}


class _Publisher:
    """Publishes a load's messages when they are due."""

    def __init__(self, load: LongLoad, broker: VirtualBroker) -> None:
        self._load, self._broker = load, broker
        self._rng = random.Random(7)
        self._began_ns = broker.clock.monotonic_ns()
        self._due = 0.0
        self._next = 0
        self._subjects = [b"s.%d" % number for number in range(load.streams)]
        self._tick_s = max(load.commit_interval_s, 1 / load.rate if load.rate else 60.0)

    async def until(self, until_ns: int) -> int:
        """Publish all messages due until then; return their number."""
        load, clock, sent = self._load, self._broker.clock, 0
        while clock.monotonic_ns() < until_ns:
            await asyncio.sleep(self._tick_s)
            due = (clock.monotonic_ns() - self._began_ns) / SECOND * load.rate
            count = int(due - self._due)
            if not count:
                continue
            self._due += count
            subjects = [self._subjects[(self._next + i) % load.streams] for i in range(count)]
            self._next += count
            self._broker.publish(subjects, [self._body() for _ in range(count)])
            sent += count
        return sent

    def _body(self) -> bytes:
        rng = self._rng
        body = _WORDS % (self._broker.clock.now_ns(), b"%016x" % rng.getrandbits(64), rng.getrandbits(16))
        return body.ljust(self._load.size)[:self._load.size]


def _held(broker: VirtualBroker) -> int:
    return sum(map(len, broker.memory.objects.values()))


def _memory_bytes() -> int:
    """Return the resident memory now."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _month(samples: list[dict[str, Any]], seconds: float) -> dict[str, float]:
    """Extrapolate the second half of the samples to a month."""
    middle, last, prices = samples[len(samples) // 2 - 1], samples[-1], Prices()
    times = MONTH_SECONDS / (seconds / 2)
    made = {name: (last[name] - middle[name]) * times for name in ("put", "get", "list", "delete", "written")}
    dollars = (made["put"] + made["list"]) / 1000 * prices.puts + made["get"] / 1000 * prices.gets
    return {**made, "request_dollars": dollars}


def line(row: dict[str, Any]) -> str:
    """Return a row of the table in Markdown."""
    month, last, middle = row["month"], row["samples"][-1], row["samples"][_SAMPLES // 2 - 1]
    def mib(size: float) -> str:
        return f"{size / 2**20:,.1f}"

    simulated = f"{row['simulated_s'] / 3600:g} h" if row["simulated_s"] >= 3600 else f"{row['simulated_s'] / 60:g} min"
    cells = (row["name"], simulated, f"{row['messages']:,}", f"{middle['objects']:,} / {last['objects']:,}",
             mib(last["stored"]), f"{month['put']:,.0f}", f"{month['get']:,.0f}", f"{month['written'] / 2**30:,.1f}",
             f"{month['request_dollars']:,.2f}", mib(last["memory"] - row["memory_before"]), f"{row['recovery_s']:.2f}")
    return "| " + " | ".join(cells) + " |"


HEAD = ("| load | simulated | messages | objects, halfway / at the end | stored MiB | PUT a month | GET a month | "
        "written GiB a month | requests, $ a month | memory MiB | recovery s |\n" + "|---|" + 10 * "---:|")


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="loads whose name holds one of these words")
    parser.add_argument("--scale", type=float, default=1.0, help="this part of each load's time")
    parser.add_argument("--json", type=pathlib.Path, help="write all samples to this file")
    args = parser.parse_args(words)
    rows = []
    print(HEAD)
    for load in LOADS:
        if not args.only or any(word in load.name for word in args.only):
            rows.append(simulate(load, args.scale))
            print(line(rows[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
