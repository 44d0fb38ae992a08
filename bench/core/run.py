"""The cost of core NATS beside the real nats-server: both run the same cases in turn, each on a fresh server.

    python -m bench.core.run [--quick] [--only WORD …] [--repeat N] [--ours]

Rates are by wall time, the best of all runs. Beside them is the server's least processor time for each operation, which
is comparable on a machine with other work. Latencies and memory are the least of all runs.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from bench.core.cases import CASES, Case
from bench.cost.cases import Trial
from bench.cost.run import HEAD, line, rows, table
from bench.servers import Server, free_port, jetblock, nats_server, with_tls

__all__ = ["CASES", "HEAD", "line", "main", "measure"]


def measure(name: str, scale: float, repeat: int, ours_only: bool = False) -> list[dict[str, Any]]:
    """Run a case ``repeat`` times on each server, in turn. Returns: a row for each figure."""
    trials = []
    for _ in range(repeat):
        for server in (jetblock(jetstream=False),) if ours_only else (nats_server(jetstream=False),
                                                                      jetblock(jetstream=False)):
            with _configured(server, CASES[name]):
                _wait_until_idle(server)
                trials.append(Trial(server, scale))
                CASES[name].run(trials[-1])
    return rows(trials, min)


def _configured(server: Server, case: Case) -> Server:
    server.config = case.config.replace("{ws}", str(free_port()))
    return with_tls(server) if case.tls else server


def _wait_until_idle(server: Server) -> None:
    """Wait until the server has finished the work after its start."""
    cpu, since = server.cpu_s(), time.monotonic()
    while time.monotonic() - since < 0.3:
        time.sleep(0.05)
        if server.cpu_s() != cpu:
            cpu, since = server.cpu_s(), time.monotonic()


def main(words: list[str] | None = None) -> int:
    return table(__doc__ or "", CASES, measure, "core", words)


if __name__ == "__main__":
    sys.exit(main())
