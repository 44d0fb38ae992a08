"""Costs of ``jetblock --workers`` beside one broker and beside nats-server, in one run: ``python -m bench.workers``.

A client publishes 128-byte messages in batches, without waiting for each. Core NATS: another connection subscribes to
them, and the time until it has all of them counts. JetStream: each message asks for a PubAck, and the processor time of
all processes of the server counts, for each message that was acknowledged. It publishes to one stream, and to four at
the same time. The part of nats-server in front is shown beside: from both parts follows what more cores would do.

If ``NATS_CLI`` names the program ``nats``, its ``nats bench`` publishes, too: to a subject without JetStream and with a
subscriber, and to four streams, asynchronously, and from 16 clients that wait for each PubAck.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tests.front.fronted import FrontedProcess
from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess

SIZE, BATCH, WINDOW = 128, 500, 20
CORE, STREAM = 2_000_000, 200_000
STREAMS = 4
ROUNDS = int(os.environ.get("ROUNDS", "3"))
CLI = os.environ.get("NATS_CLI", "")
_SEQ = b'"seq":'
_ERROR = b'"error"'
_RATE = re.compile(r"stats: ([\d,]+) msgs/sec")


async def connect(process: ServerProcess) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection that speaks the protocol itself, so that the client costs little."""
    reader, writer = await asyncio.open_connection("127.0.0.1", process.port, limit=1 << 22)
    await reader.readline()
    writer.write(b'CONNECT {"verbose":false,"pedantic":false,"no_responders":true,"headers":true}\r\nPING\r\n')
    while await reader.readline() != b"PONG\r\n":
        pass
    return reader, writer


async def core(process: ServerProcess) -> float:
    """Return messages per second from one client to another."""
    reader, subscriber = await connect(process)
    subscriber.write(b"SUB core 1\r\nPING\r\n")
    await reader.readline()
    _, publisher = await connect(process)
    batch = b"PUB core %d\r\n%b\r\n" % (SIZE, bytes(SIZE)) * BATCH
    expected = len(b"MSG core 1 %d\r\n\r\n" % SIZE + bytes(SIZE)) * CORE

    async def publish() -> None:
        for _ in range(CORE // BATCH):
            publisher.write(batch)
            await publisher.drain()

    begun = time.perf_counter()
    publishing = asyncio.create_task(publish())
    got = 0
    while got < expected:
        got += len(await reader.read(1 << 22))
    took = time.perf_counter() - begun
    await publishing
    publisher.close()
    subscriber.close()
    return CORE / took


async def publish_to(process: ServerProcess, name: str, messages: int) -> None:
    """Create a stream, and publish so many messages to it."""
    reader, writer = await connect(process)
    writer.write(b"SUB in.* 1\r\n")
    config = json.dumps({"name": name, "subjects": [name], "storage": "file"}).encode()
    writer.write(b"PUB $JS.API.STREAM.CREATE.%b in.c %d\r\n%b\r\n" % (name.encode(), len(config), config))
    while b"created" not in await reader.readline():
        pass
    batch = b"PUB %b in.a %d\r\n%b\r\n" % (name.encode(), SIZE, bytes(SIZE)) * BATCH
    acked = sent = 0
    rest = b""
    while acked < messages:
        while sent < messages and sent - acked <= WINDOW * BATCH:
            writer.write(batch)
            sent += BATCH
        if not (data := await reader.read(1 << 22)):
            raise ConnectionError(f"closed after {acked} PubAcks")
        data = rest + data
        if _ERROR in data:
            raise RuntimeError(f"refused after {acked} PubAcks: {data[data.index(_ERROR):][:200]!r}")
        acked += data.count(_SEQ)
        rest = data[-len(_SEQ) + 1:]  # it may have the beginning of the next one
    writer.close()


async def streams(process: ServerProcess, pids: list[int], count: int) -> tuple[float, float, float]:
    """Return microseconds of processor time for each message, of all processes and of the last one, and messages per
    second, of ``count`` streams.
    """
    used, used_last, begun = cpu(pids), cpu(pids[-1:]), time.perf_counter()
    each = STREAM // count
    await asyncio.gather(*(publish_to(process, f"S{count}{number}", each) for number in range(count)))
    took = time.perf_counter() - begun
    return (cpu(pids) - used) / STREAM * 1e6, (cpu(pids[-1:]) - used_last) / STREAM * 1e6, STREAM / took


async def nats_bench(process: ServerProcess, *words: str) -> float:
    """Run ``nats bench`` and return its messages per second."""
    child = await asyncio.create_subprocess_exec(
        CLI, "bench", *words, "--server", process.url, "--size", str(SIZE), "--no-progress",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT)
    output = (await child.communicate())[0].decode()
    if child.returncode:
        raise RuntimeError(output)
    return float(_RATE.findall(output)[0].replace(",", ""))


async def by_nats_bench(process: ServerProcess, pids: list[int]) -> list[float]:
    """Return messages per second: core NATS with a subscriber; four streams, asynchronously, then each awaited; and
    the microseconds of processor time for each message of the last two.
    """
    subscriber = asyncio.create_task(nats_bench(process, "sub", "core", "--msgs", "1000000"))
    await asyncio.sleep(1)
    await nats_bench(process, "pub", "core", "--msgs", "1000000")
    found = [await subscriber]
    costs = []
    for words, messages in ((("async", "--batch", "500"), 80_000), (("sync", "--clients", "4"), 4_000)):
        used, begun = cpu(pids), time.perf_counter()
        await asyncio.gather(*(
            nats_bench(process, "js", "pub", *words, f"{words[0]}{number}", "--create", "--stream",
                       f"{words[0]}{number}", "--msgs", str(messages)) for number in range(STREAMS)))
        found.append(STREAMS * messages / (time.perf_counter() - begun))
        costs.append((cpu(pids) - used) / (STREAMS * messages) * 1e6)
    return found + costs


def cpu(pids: list[int]) -> float:
    """Return the processor time of processes, in seconds."""
    def of(pid: int) -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    return sum(map(of, pids))


KINDS = {"nats-server": NatsServerProcess, "jetblock": BrokerProcess,
         "jetblock --workers 1": partial(FrontedProcess, workers=1),
         "jetblock --workers 2": partial(FrontedProcess, workers=2)}


async def measure(kind: Callable[..., ServerProcess]) -> tuple[list[float], list[float]]:
    """Return the figures of one new server: by the client here, and by ``nats bench``."""
    with tempfile.TemporaryDirectory() as folder:
        async with kind("-js", "-sd", folder) as process:
            pids = [process.pid]
            if isinstance(process, FrontedProcess):
                pids += [process.child(f"worker {number + 1}") for number in range(process.workers)]
                pids.append(process.child("nats-server"))
            own = [await core(process), *await streams(process, pids, 1), *await streams(process, pids, STREAMS)]
            return own, await by_nats_bench(process, pids) if CLI else []


async def main() -> None:
    """Measure each server in turn, several times, and print the medians."""
    found: dict[str, list[tuple[list[float], list[float]]]] = {name: [] for name in KINDS}
    for _ in range(ROUNDS):
        for name, kind in KINDS.items():
            found[name].append(await measure(kind))
    print(f"{'by a client of its own':22} core, M/s  1 stream: us, front, k/s  {STREAMS} streams: us, front, k/s")
    for name, rows in found.items():
        rate, cost, front, speed, costs, fronts, speeds = medians([own for own, _ in rows])
        print(f"{name:22} {rate / 1e6:9.2f}  {cost:10.2f} {front:5.2f} {speed / 1e3:6.0f}  "
              f"{costs:11.2f} {fronts:5.2f} {speeds / 1e3:6.0f}")
    if CLI:
        print(f"{'by nats bench':22} core, M/s  {STREAMS} streams, async: us, k/s  16 clients: us, k/s")
        for name, rows in found.items():
            rate, speed, waiting, cost, waiting_cost = medians([bench for _, bench in rows])
            print(f"{name:22} {rate / 1e6:9.2f}  {cost:17.2f} {speed / 1e3:7.0f}  {waiting_cost:10.1f} "
                  f"{waiting / 1e3:7.1f}")


def medians(rows: Sequence[Sequence[float]]) -> list[float]:
    return [sorted(column)[len(rows) // 2] for column in zip(*rows, strict=True)]


if __name__ == "__main__":
    asyncio.run(main())
