"""The speed of NATS Streaming beside the real nats-streaming-server on its file store, whose PubAcks mean synced, too.

    python -m bench.streaming.run [--quick] [--only WORD …] [--repeat N] [--ours]

Rates are by wall time, the best of all runs; beside them is the server's least processor time for each operation. Each
case runs a second time with jetblock's ``journal: true``; the real server's figure is the same in both rows.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

from bench.cost.cases import Trial
from bench.cost.run import rows, table
from bench.servers import Server, jetblock
from bench.streaming.cases import CASES, CLUSTER_ID
from tests.real import parts

__all__ = ["main"]


_JOURNAL = ", with a journal"


def _servers(ours_only: bool) -> Iterator[tuple[Server, list[str]]]:
    """Yield each server, and what to add to the names of its figures."""
    if not ours_only:
        # The table has one column for the real server, whichever it is.
        yield Server("nats-server", [str(parts.nats_streaming_server()), "-cid", CLUSTER_ID, "-store", "file", "-dir",
                                     "{dir}/store"]), ["", _JOURNAL]
    for journal in (False, True):
        ours = jetblock(env={"JETBLOCK_JOURNAL": str(journal).lower()})
        ours.words += ["-cid", CLUSTER_ID]
        yield ours, [_JOURNAL if journal else ""]


def _wait_until_serving(server: Server) -> None:
    """Wait until the server answers clients of NATS Streaming, which may be after its port is open.

    The real server says so in its log only: a request that comes between its first state and this line is not answered.
    """
    url = f"http://127.0.0.1:{server.http}/streaming/serverz"
    for _ in range(1000):
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            if json.load(answer)["state"] == "STANDALONE" and (
                    server.name != "nats-server" or "Streaming Server is ready" in server.log_tail()):
                return
        time.sleep(0.01)
    raise RuntimeError(f"{server.name} does not serve:\n{server.log_tail()}")


def measure(name: str, scale: float, repeat: int, ours_only: bool = False) -> list[dict[str, Any]]:
    """Run a case ``repeat`` times on each server, in turn. Returns: a row for each figure."""
    trials = []
    for _ in range(repeat):
        for server, names in _servers(ours_only):
            with server:
                _wait_until_serving(server)
                trial = Trial(server, scale)
                CASES[name](trial)
                trial.figures = {work + name: figure for name in names for work, figure in trial.figures.items()}
                trials.append(trial)
    return rows(trials, min)


def main(words: list[str] | None = None) -> int:
    return table(__doc__ or "", CASES, measure, "streaming", words)


if __name__ == "__main__":
    sys.exit(main())
