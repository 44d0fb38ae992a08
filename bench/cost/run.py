"""The cost of each JetStream operation beside the real nats-server: both run the same cases in turn, each on a fresh
store.

    python -m bench.cost.run [--quick] [--only WORD …] [--repeat N] [--ours]

Rates are by wall time, the best of all runs. Beside them is the server's least processor time for each operation, which
is comparable on a machine with other work. Cases that wait for commits run with the other server's promise, too, so
that acknowledgements mean the same: ``synced`` is nats-server with ``sync_interval: always``, and jetblock's ratio to
that; ``later`` is jetblock with ``sync_interval: 2m``, and its ratio to nats-server's default. ``MinIO`` is jetblock on
a bucket with its default commit interval, and its ratio to nats-server's default on a disk.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from bench.cost.cases import BUCKET, CASES, COMMITS, Figure, Trial
from bench.servers import Minio, Server, jetblock, nats_server

__all__ = ["CASES", "HEAD", "line", "main", "measure", "rows", "table"]

Measure = Callable[[str, float, int, bool], list[dict[str, Any]]]

_COLUMNS = "{:<78} {:>12} {:>12} {:<6}{:>6} {:>10} {:>11} {:>10}{:>7}{:>10}{:>7}{:>10}{:>7}"
HEAD = _COLUMNS.format("work", "jetblock", "nats-server", "", "ratio", "CPU µs", "nats CPU µs", "synced", "ratio",
                       "later", "ratio", "MinIO", "ratio")

MARK = 0.5
"""The goal: at least this part of nats-server's rate."""


def measure(name: str, scale: float, repeat: int, ours_only: bool = False) -> list[dict[str, Any]]:
    """Run a case ``repeat`` times on each server, in turn. Returns: a row for each figure."""
    trials = []
    for _ in range(repeat):
        for server in _servers(name, ours_only):
            with server:
                trials.append(Trial(server, scale))
                CASES[name](trials[-1])
    return rows(trials, max)


def _servers(name: str, ours_only: bool) -> Iterator[Server]:
    """Yield the servers for a case, one after the other."""
    if not ours_only:
        yield nats_server()
        if name in COMMITS:
            yield nats_server(sync=True)
    yield jetblock()
    if name in COMMITS:
        yield jetblock(sync_interval="2m")
    if name in BUCKET:
        with Minio() as minio:
            server = jetblock(store=minio.url, env=minio.env)
            server.name = "jetblock (MinIO)"
            yield server


def rows(trials: Iterable[Trial], better: Callable[..., tuple[float, str]]) -> list[dict[str, Any]]:
    """Return a row for each figure: the best of all trials on each server.

    Args: ``better`` chooses between two plain values.
    """
    best: dict[str, dict[str, Figure]] = {}
    values: dict[str, dict[str, tuple[float, str]]] = {}
    for trial in trials:
        server = trial.server.name
        for work, figure in trial.figures.items():
            known = best.setdefault(work, {}).setdefault(server, figure)
            known.seconds, known.cpu_s = min(known.seconds, figure.seconds), min(known.cpu_s, figure.cpu_s)
        for work, value in trial.values.items():
            known_value = values.setdefault(work, {}).setdefault(server, value)
            values[work][server] = better(known_value, value)
    found = []
    for work, by in best.items():
        of = {server: {"rate": f.operations / f.seconds, "cpu_us": 1e6 * f.cpu_s / f.operations}
              for server, f in by.items()}
        found.append({"work": work, "unit": next(iter(by.values())).unit, **of})
    for work, plain in values.items():
        found.append({"work": work, "unit": next(iter(plain.values()))[1],
                      **{s: {"value": v} for s, (v, _) in plain.items()}})
    return found


def line(row: dict[str, Any]) -> str:
    """Return a row of the printed table."""
    ours, theirs, synced, later, bucket = (row.get(server, {}) for server in (
        "jetblock", "nats-server", "nats-server (sync always)", "jetblock (sync 2m)", "jetblock (MinIO)"))
    key = "rate" if "rate" in ours else "value"
    cells = [_number(ours.get(key)), _number(theirs.get(key)), row["unit"]]
    if key == "rate":
        cells += [_ratio(ours, theirs, "rate"), _number(ours.get("cpu_us")), _number(theirs.get("cpu_us"))]
        cells += [_number(synced["rate"]), _ratio(ours, synced, "rate")] if synced else ["", ""]
        cells += [_number(later["rate"]), _ratio(later, theirs, "rate")] if later else ["", ""]
        cells += [_number(bucket["rate"]), _ratio(bucket, theirs, "rate")] if bucket else ["", ""]
    else:
        cells += [""] * 9
    return _COLUMNS.format(row["work"], *cells).rstrip()


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ratio(ours: dict[str, float], theirs: dict[str, float], key: str) -> str:
    if not ours.get(key) or not theirs.get(key):
        return "-"
    ratio = ours[key] / theirs[key]
    return f"{ratio:.2f}" + ("!" if ratio < MARK else "")


def main(words: list[str] | None = None) -> int:
    return table(__doc__ or "", CASES, measure, "cost", words)


def table(about: str, cases: Iterable[str], measure: Measure, kind: str, words: list[str] | None = None) -> int:
    """Run the command line: print the rows of the chosen cases, and write them to ``bench/results``."""
    p = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--quick", action="store_true", help="a fifth of the messages")
    p.add_argument("--only", nargs="*", default=[],
                   help=f"cases whose name holds one of these words, of: {', '.join(cases)}")
    p.add_argument("--repeat", type=int, default=2, help="runs on each server, of which the best counts")
    p.add_argument("--ours", action="store_true", help="jetblock alone")
    args = p.parse_args(words)
    print(HEAD)
    measured, failed = [], 0
    for name in cases:
        if args.only and not any(word in name for word in args.only):
            continue
        try:
            found = measure(name, 0.2 if args.quick else 1.0, args.repeat, args.ours)
        except Exception as e:  # a failing case must not cost the figures of the others
            failed += 1
            print(f"{name} failed: {type(e).__name__}: {e}", flush=True)
            continue
        measured += found
        for row in found:
            print(line(row), flush=True)
    results = pathlib.Path(__file__).resolve().parent.parent / "results"
    results.mkdir(exist_ok=True)
    (results / f"{time.strftime('%Y%m%d-%H%M%S')}-{kind}.json").write_text(json.dumps(measured, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
