"""``nats bench`` on jetblock and nats-server in turn, each on a fresh directory: rates, ratios and processor time.

    NATS_CLI=path/to/nats python -m bench.nats_bench [--repeat N] [--scale F] [--only WORD …]

``nats`` is built by ``go install github.com/nats-io/natscli/nats@v0.3.0``. Rates are those that it prints, the best of
all runs; with several subscribers, their sum. Processor time is the server's for each message that is published, got or
delivered to one consumer, the least of all runs. In the cases on MinIO jetblock has its default commit interval, and
nats-server is on a disk.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Final

from bench.servers import Minio, Server, jetblock, nats_server

__all__ = ["main"]

_RATE = re.compile(r"stats: ([\d,]+) msgs/sec")
_STREAM: Final = 300_000
"""Messages in the stream that consumers read."""

_CASES: Final = {
    "core publish, no subscriber": (("pub core", 4_000_000),),
    "core publish, 1 subscriber": (("sub core --clients 1", 0), ("pub core", 1_000_000)),
    "core publish, 10 subscribers": (("sub core --clients 10", 0), ("pub core", 300_000)),
    "JetStream publish, 2000 in flight": (("js pub async js.a --create --purge --batch 2000", 300_000),),
    "JetStream publish, 10 000 in flight": (("js pub async js.a --create --purge --batch 10000", 300_000),),
    "publish, 1 client": (("js pub sync js.a --create --purge", 15_000),),
    "publish, 16 clients": (("js pub sync js.a --create --purge --clients 16", 64_000),),
    "KV put": (("kv put", 12_000),),
    "KV get": (("kv put", 20_000), ("kv get", 20_000)),
    "get by sequence": (("js pub async js.a --create --purge --batch 2000", 20_000), ("js get sync", 20_000)),
    "atomic batches of 500": (("js pub batch js.a --create --purge --batch 500", 200_000),),
    "pull, explicit acks: consume": (("js pub async js.a --create --purge --batch 2000", _STREAM),
                                     ("js consume", _STREAM)),
    "pull, explicit acks: fetch": (("js pub async js.a --create --purge --batch 2000", _STREAM),
                                   ("js fetch", _STREAM)),
    "pull, no acks": (("js pub async js.a --create --purge --batch 2000", _STREAM),
                      ("js consume --acks none", _STREAM)),
    "ordered consumer": (("js pub async js.a --create --purge --batch 2000", _STREAM), ("js ordered", _STREAM)),
}
"""The commands of each case, with their numbers of messages; the last one is measured. A ``sub`` runs beside it."""

_OTHERS: Final = {"always": ("publish, 1 client", "publish, 16 clients", "KV put"),
                  "MinIO": ("JetStream publish, 2000 in flight", "JetStream publish, 10 000 in flight",
                            "atomic batches of 500")}
"""The cases that are measured with ``sync_interval: always``, and on MinIO, too."""


def _servers(kind: str) -> Iterator[tuple[str, Server]]:
    if kind == "MinIO":
        with Minio() as minio:
            yield "jetblock", jetblock(store=minio.url, env=minio.env)
    else:
        yield "jetblock", jetblock(sync_interval=kind)
    yield "nats-server", nats_server(sync=kind == "always")


def _run(server: Server, name: str, scale: float) -> tuple[float, float]:
    """Run a case. Returns: messages per second, and processor time for a message in microseconds."""
    *before, (words, full) = _CASES[name]
    count = int(full * scale)
    beside: list[subprocess.Popen[str]] = []
    for line, of in before:
        if of:
            _start(server, line, int(of * scale)).communicate(timeout=300)
        else:
            beside.append(_start(server, line, count))
            time.sleep(1)  # ``nats bench sub`` prints nothing when it has subscribed
    began_s = server.cpu_s()
    measured = [_start(server, words, count), *beside]
    printed = [one.communicate(timeout=300)[0] for one in measured]
    cpu_us = 1e6 * (server.cpu_s() - began_s) / count
    rates = _RATE.findall(printed[-1])
    if not rates or any(one.returncode for one in measured):
        raise RuntimeError(f"nats bench {words}:\n{printed[-1]}")
    # With several clients, a line for all of them precedes or follows the lines of each.
    return max(float(rate.replace(",", "")) for rate in rates), cpu_us


def _start(server: Server, words: str, count: int) -> subprocess.Popen[str]:
    command = [os.environ["NATS_CLI"], "-s", f"nats://127.0.0.1:{server.port}", "bench", *words.split(),
               "--no-progress", "--msgs", str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def main(words: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--repeat", type=int, default=1, help="runs on each server, in turn")
    p.add_argument("--scale", type=float, default=1.0, help="factor of the numbers of messages")
    p.add_argument("--only", nargs="*", default=[""], help="cases whose name has one of these words")
    args = p.parse_args(words)
    cases = [(name, kind) for name in _CASES for kind in ("2m", *(kind for kind in _OTHERS if name in _OTHERS[kind]))]
    for name, kind in cases:
        work = f"{name}, {kind}"
        if not any(word in work for word in args.only):
            continue
        found: dict[str, list[tuple[float, float]]] = {}
        for _ in range(args.repeat):
            for label, server in _servers(kind):
                with server:
                    found.setdefault(label, []).append(_run(server, name, args.scale))
        best = {label: (max(rate for rate, _ in runs), min(cpu for _, cpu in runs)) for label, runs in found.items()}
        (ours, our_cpu), (theirs, their_cpu) = best["jetblock"], best["nats-server"]
        print(f"| {work} | {ours:,.0f}/s | {theirs:,.0f}/s | {ours / theirs:.2f} "
              f"| {our_cpu:.3g} µs | {their_cpu:.3g} µs |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
