"""Reads of a large stream from MinIO, beside the same bytes got by bare requests; and the cost of compaction and
restarts.

    python -m bench.reads [--gb 1] [--message-bytes 1000] [--sizes 128 1000 …] [--incompressible] [--only sizes]

A stream of ``--gb`` gigabytes of messages is published to a jetblock on its own MinIO. After restarts, so that
its cache is empty:

    sequential    a pull consumer reads all of it; beside it, in turns, the same client library gets the same objects in
                  ranges of 1 MiB, four at once; with processor seconds of the broker, or of the bare client, and of
                  MinIO
    random        direct gets by sequence, one at a time, of different blocks and then of the same again
    shared        eight consumers begin at different places and read all to the end, at the same time: GETs beside those
                  of one, and the fewest for such a cache; with and without a cache directory
    restart       the time until the broker serves again after kill -9
    compaction    publishing in commits of a few messages with and without it
    sizes         the sequential read as a table, a row for each size of messages: whose processor time it takes, the
                  broker's event loop (its first thread), its other threads, the client and MinIO

Compaction has ended before, and is off while reads are measured: GETs are the readers' alone. Rates are by wall time,
the best of the turns. The stream's payloads are hexadecimal digits, so they are stored in about half their size; with
``--incompressible``, random bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from bench.load import Connection
from bench.run import load
from bench.servers import Minio, Server, environment, jetblock
from broker.config.settings import StorageSettings
from broker.storage.objectstore.url import open_store
from tests.eager_broker import compaction

__all__ = ["main"]

_RANGE_BYTES = 1 << 20
_IN_FLIGHT = 4
_GETS = 300
_READERS = 8


class _Read(NamedTuple):
    """A read of all messages; all times are of processors, except ``seconds``."""

    seconds: float
    gets: int
    stored_bytes: int
    loop_s: float
    threads_s: float
    client_s: float
    minio_s: float


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=1.0, help="gigabytes of payload")
    parser.add_argument("--message-bytes", type=int, default=1000)
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 1000, 4096, 65_536],
                        help="sizes of messages, for that table")
    parser.add_argument("--incompressible", action="store_true", help="payloads of random bytes")
    parser.add_argument("--turns", type=int, default=2, help="turns of sequential reads")
    cases = ("sequential", "random", "shared", "restart", "compaction", "sizes")
    parser.add_argument("--only", choices=cases, action="append")
    args = parser.parse_args(words)
    wanted = set(args.only or cases)
    if wanted & {"sequential", "random", "shared", "restart"}:
        with _stream(args, args.message_bytes) as (minio, server, messages):
            if "sequential" in wanted:
                _sequential(minio, server, messages, args.message_bytes, args.turns)
            if "random" in wanted:
                _random(server, messages)
            if "shared" in wanted:
                _shared(server, messages, args.message_bytes)
            for _ in range(2 if "restart" in wanted else 0):
                _show("restart after kill -9, seconds", f"{_restarted(server, signal.SIGKILL):.2f}")
    if "compaction" in wanted:
        _compaction()
    if "sizes" in wanted:
        _sizes(args)
    return 0


@contextlib.contextmanager
def _stream(args: argparse.Namespace, size: int) -> Iterator[tuple[Minio, Server, int]]:
    """Run a server with a compacted stream of messages of ``size`` bytes; yield it with the number of messages."""
    messages = int(args.gb * 1e9 / size)
    with Minio() as minio, _server(minio) as server:
        load("setup", server)
        published = load("publish", server, messages=messages, size=size, incompressible=args.incompressible)
        _show("published", f"{messages:,} messages of {size} bytes, {_mb(published, size):.0f} MB/s")
        _compacted(server)
        server.env["JETBLOCK_COMPACTION"] = "false"
        yield minio, server, messages


def _sequential(minio: Minio, server: Server, messages: int, size: int, turns: int) -> tuple[_Read, float]:
    """Read all messages in turn with bare gets. Returns: the fastest read, and the rate of bare gets in bytes a
    second."""
    best, bare = None, 0.0
    for turn in range(turns):
        _restarted(server, signal.SIGTERM)
        load("consumer", server, consumer=f"C{turn}")
        done = _read_cold(minio, server, messages, f"C{turn}")
        best = done if best is None or done.seconds < best.seconds else best
        gb = done.stored_bytes / 1e9
        _show("sequential read, cold", f"{messages * size / done.seconds / 1e6:.0f} MB/s of messages; "
              f"{gb * 1e3 / done.seconds:.0f} MB/s of stored bytes in {done.gets} GETs; CPU s for 1 GB stored: "
              f"loop {done.loop_s / gb:.1f}, threads {done.threads_s / gb:.1f}, client {done.client_s / gb:.1f}, "
              f"MinIO {done.minio_s / gb:.1f}")
        with environment(minio.env):
            minio_cpu = minio.cpu_s()
            bare_bytes, bare_s, cpu = asyncio.run(_bare(minio.url))
            minio_cpu = minio.cpu_s() - minio_cpu
        bare = max(bare, bare_bytes / bare_s)
        gb = bare_bytes / 1e9
        _show("bare ranged gets",
              f"{gb * 1e3 / bare_s:.0f} MB/s; CPU s for 1 GB: {cpu / gb:.1f}, MinIO {minio_cpu / gb:.1f}")
    if best is None:
        raise ValueError("no turns")
    _show("sequential read / bare ranged gets", f"{best.stored_bytes / best.seconds / bare:.2f} of stored bytes, "
          f"{messages * size / best.seconds / bare:.2f} of messages' bytes")
    return best, bare


def _read_cold(minio: Minio, server: Server, messages: int, consumer: str) -> _Read:
    gets, stored = _gets(server)
    cpu, loop, minio_cpu = server.cpu_s(), server.loop_cpu_s(), minio.cpu_s()
    done = load("pull", server, messages=messages, consumer=consumer, silence_s=120)
    cpu, loop, minio_cpu = server.cpu_s() - cpu, server.loop_cpu_s() - loop, minio.cpu_s() - minio_cpu
    return _Read(done["seconds"], _gets(server)[0] - gets, _gets(server)[1] - stored, loop, cpu - loop, done["cpu_s"],
                 minio_cpu)


def _sizes(args: argparse.Namespace) -> None:
    """Print the table over sizes of messages."""
    rows: list[str] = []
    for size in args.sizes:
        with _stream(args, size) as (minio, server, messages):
            read, bare = _sequential(minio, server, messages, size, args.turns)
        gb, us = read.stored_bytes / 1e9, 1e6 / messages
        rows.append(f"| {size} | {messages / read.seconds / 1e3:.0f} | {messages * size / read.seconds / 1e6:.0f} | "
                    f"{read.stored_bytes / read.seconds / 1e6:.0f} | {bare / 1e6:.0f} | "
                    f"{read.stored_bytes / read.seconds / bare:.2f} | {messages * size / read.seconds / bare:.2f} | "
                    f"{read.gets} | {read.loop_s * us:.2f} | {read.threads_s * us:.2f} | {read.client_s * us:.2f} | "
                    f"{(read.loop_s + read.threads_s) / gb:.1f} | {read.minio_s / gb:.1f} |")
    print("| message bytes | thousand messages a second | MB/s of messages | MB/s as stored | bare gets, MB/s | ratio "
          "as stored | ratio of messages | GETs | loop, µs a message | threads, µs | client, µs | broker, s for 1 GB "
          "stored | MinIO, s |")
    print("|" + "---:|" * 13)
    print("\n".join(rows), flush=True)


async def _bare(url: str) -> tuple[int, float, float]:
    """Get the objects of all messages by ranges, a few at once. Returns: bytes, seconds, and processor seconds of this
    process."""
    store = open_store(url)
    try:
        ranges = [(key, at) for key, size in await _objects(store) for at in range(0, size, _RANGE_BYTES)]
        sizes: list[int] = []
        began, cpu, waiting = time.perf_counter(), time.process_time(), iter(ranges)

        async def work() -> None:
            for key, at in waiting:
                sizes.append(len(await store.get(key, at, at + _RANGE_BYTES)))

        await asyncio.gather(*[work() for _ in range(_IN_FLIGHT)])
        return sum(sizes), time.perf_counter() - began, time.process_time() - cpu
    finally:
        await store.close()


async def _objects(store: Any) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    after = ""
    while rows := await store.list("", after):
        found += [(row.key, row.size) for row in rows if "/log/" in row.key or "/runs/" in row.key]
        after = rows[-1].key
    return found


def _random(server: Server, messages: int) -> None:
    _restarted(server, signal.SIGTERM)
    rng, con = random.Random(3), Connection(server.port)
    seqs = [rng.randrange(messages) + 1 for _ in range(_GETS)]
    for name in ("cold", "warm"):
        times = sorted(_timed(con, seq) for seq in seqs)
        p50, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
        _show(f"get by sequence, {name}", f"p50 {p50 * 1e3:.2f} ms, p99 {p99 * 1e3:.2f} ms")


def _timed(con: Connection, seq: int) -> float:
    began = time.perf_counter()
    con.request("$JS.API.STREAM.MSG.GET.BENCH", {"seq": seq})
    return time.perf_counter() - began


def _shared(server: Server, messages: int, size: int) -> None:
    """Let readers that begin at different places read to the end at the same time, without and with a cache
    directory."""
    _restarted(server, signal.SIGTERM)
    before = _gets(server)[0]
    load("consumer", server, consumer="ONE")
    load("pull", server, messages=messages, consumer="ONE", silence_s=120)
    one = _gets(server)[0] - before
    for name, folder in (("", ""), (", cache directory", str(server.dir / "cache"))):
        server.env["JETBLOCK_CACHE_DIRECTORY"] = folder
        gets = _read_by_many(server, messages)
        fewest = 1.0 if folder else _fewest(StorageSettings().cache_bytes / (messages * size))
        _show(f"{_READERS} readers at different places{name}",
              f"{gets} GETs, {gets / one:.2f} of one reader's {one}; at the same "
              f"pace, with such a cache, at least {fewest:.2f}")
    server.env["JETBLOCK_CACHE_DIRECTORY"] = ""


def _read_by_many(server: Server, messages: int) -> int:
    """Return the number of GETs for eight readers."""
    _restarted(server, signal.SIGTERM)
    con, before = Connection(server.port), _gets(server)[0]
    tail = messages // (2 * _READERS)
    for i in range(_READERS):
        con.request(f"$JS.API.CONSUMER.CREATE.BENCH.R{i}", {"stream_name": "BENCH", "config": {
            "durable_name": f"R{i}", "ack_policy": "none", "deliver_policy": "by_start_sequence",
            "opt_start_seq": i * tail + 1}})

    def read(i: int) -> None:
        done = load("pull", server, messages=messages - i * tail, consumer=f"R{i}", silence_s=120)
        if "rate" not in done:
            raise RuntimeError(f"reader {i} stalled: {done}")

    with ThreadPoolExecutor(_READERS) as pool:
        list(pool.map(read, range(_READERS)))
    gets = _gets(server)[0] - before
    con = Connection(server.port)  # the other one may have been idle for too long
    for i in range(_READERS):
        con.request(f"$JS.API.CONSUMER.DELETE.BENCH.R{i}")
    return gets


def _fewest(cached: float) -> float:
    """Return the fewest GETs, in units of one reader's, for readers that begin a sixteenth of the stream apart and are
    equally fast.

    Args: ``cached``: the part of the stream that the cache holds.

    A reader finds in the cache the blocks since the reader ahead of it, a sixteenth of the stream: a cache of that size
    saves the GETs of one reader.
    """
    steps = 2 * _READERS
    reading = [min(_READERS, steps - step) for step in range(1, steps)]
    loads = [max(at_once - cached * steps, 1 if at_once == _READERS else 0) for at_once in reading]
    return (_READERS + sum(loads)) / steps


def _compaction() -> None:
    """Measure small commits of one publisher, in turn with and without compaction."""
    rates: dict[str, list[float]] = {"on": [], "off": []}
    lags: dict[str, list[float]] = {"on": [], "off": []}
    for _ in range(2):
        for name in rates:
            with jetblock(env={"JETBLOCK_COMPACTION": "true" if name == "on" else "false"}) as server:
                load("setup", server)
                rates[name].append(load("publish", server, messages=60_000, in_flight=20)["rate"])
                lags[name].append(server.varz()["jetblock"]["loop_lag_ms"]["p99"])
    on, off = max(rates["on"]), max(rates["off"])
    _show("publish, 20 in flight, with compaction / without", f"{on:,.0f} / {off:,.0f} a second, ratio {on / off:.2f}; "
          f"loop lag p99 {min(lags['on']):.2f} / {min(lags['off']):.2f} ms")


def _compacted(server: Server) -> None:
    """Wait until compaction has nothing to do."""
    before, since = -1, time.monotonic()
    while time.monotonic() - since < 5:
        merges = int(server.varz()["jetblock"]["log"]["compaction"]["merges"])
        if merges != before:
            before, since = merges, time.monotonic()
        time.sleep(0.5)
    _show("compaction", f"{before} merges")


def _restarted(server: Server, how: signal.Signals) -> float:
    server.stop(how)
    return server.start()


def _gets(server: Server) -> tuple[int, int]:
    """Return the number of requests and bytes so far."""
    row = server.varz()["jetblock"]["store"]["get"]
    return int(row["count"]), int(row["bytes"])


def _server(minio: Minio) -> Server:
    server = jetblock(store=minio.url, env={**minio.env, **compaction(quiet_ns=1_000_000_000)})
    server.words[server.words.index("broker")] = "tests.eager_broker"
    # The name lets it take the store back at once, without waiting for its own lease.
    server.words += ["--server_name", "reads"]
    return server


def _mb(done: dict[str, Any], size: int) -> float:
    return float(done["rate"]) * size / 1e6


def _show(what: str, value: str) -> None:
    print(f"{what:<52} {value}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
