"""Costs of ``jetblock --workers 1`` beside one broker and beside nats-server, in one run: ``python -m bench.workers``.

A client publishes 128-byte messages in batches, without waiting for each. Core NATS: another connection subscribes to
them, and the time until it has all of them counts. JetStream: each message asks for a PubAck, and the processor time of
all processes of the server counts, for each message that was acknowledged.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from pathlib import Path

from tests.front.fronted import FrontedProcess
from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess

SIZE, BATCH, WINDOW = 128, 500, 20
CORE, STREAM = 2_000_000, 100_000
ROUNDS = 3


async def connect(process: ServerProcess) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection that speaks the protocol itself, so that the client costs little."""
    reader, writer = await asyncio.open_connection("127.0.0.1", process.port, limit=1 << 22)
    await reader.readline()
    writer.write(b'CONNECT {"verbose":false,"no_responders":true,"headers":true}\r\nPING\r\n')
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


async def stream(process: ServerProcess, pids: list[int]) -> tuple[float, float]:
    """Return microseconds of processor time for each message, and messages per second."""
    reader, writer = await connect(process)
    writer.write(b"SUB in.* 1\r\n")
    config = json.dumps({"name": "S", "subjects": ["s"], "storage": "file"}).encode()
    writer.write(b"PUB $JS.API.STREAM.CREATE.S in.c %d\r\n%b\r\n" % (len(config), config))
    while b"created" not in await reader.readline():
        pass
    batch = b"PUB s in.a %d\r\n%b\r\n" % (SIZE, bytes(SIZE)) * BATCH
    used, begun = cpu(pids), time.perf_counter()
    acked = sent = 0
    while acked < STREAM:
        while sent < STREAM and sent - acked <= WINDOW * BATCH:
            writer.write(batch)
            sent += BATCH
        acked += (await reader.read(1 << 22)).count(b'"seq":')
    took = time.perf_counter() - begun
    spent = cpu(pids) - used
    writer.close()
    return spent / STREAM * 1e6, STREAM / took


def cpu(pids: list[int]) -> float:
    """Return the processor time of processes, in seconds."""
    def of(pid: int) -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    return sum(map(of, pids))


async def main() -> None:
    """Measure each server in turn, several times, and print the medians."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    for _ in range(ROUNDS):
        for name, kind in (("nats-server", NatsServerProcess), ("jetblock", BrokerProcess),
                           ("jetblock --workers 1", FrontedProcess)):
            with tempfile.TemporaryDirectory() as folder:
                async with kind("-js", "-sd", folder) as process:
                    pids = [process.pid]
                    if isinstance(process, FrontedProcess):
                        pids += [process.child("nats-server"), process.child("worker 1")]
                    found.setdefault(name, []).append((await core(process), *await stream(process, pids)))
    for name, rows in found.items():
        rates, costs, speeds = (sorted(column)[len(rows) // 2] for column in zip(*rows, strict=True))
        print(f"{name:21} core {rates / 1e6:5.2f} M msg/s   JetStream {costs:6.2f} us of CPU per message, "
              f"{speeds / 1e3:5.0f} k msg/s")


if __name__ == "__main__":
    asyncio.run(main())
