"""All performance targets in one run: the same load on the real nats-server and on jetblock, as ratios.

    python -m bench.run [--quick] [--only WORD …] [--repeat N]

Servers run one at a time on this machine, on fresh directories: nats-server with its defaults (no sync before a PubAck)
and with ``sync_interval: always``, jetblock on a directory (fsync before a PubAck) and on MinIO. Prints a table and
writes ``bench/results/<time>.json``. This is not a test: rates vary from run to run, ratios less so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from bench.core import run as core
from bench.cost import run as cost
from bench.servers import Minio, Server, jetblock, nats_server, with_tls
from broker import COMPILED
from tests.real import parts

HERE = pathlib.Path(__file__).resolve().parent

__all__ = ["main"]


_CPU = "cpu_s_per_million"
"""Key of the server's processor time for a million messages, in seconds."""

GROUPED_SECONDS = 300

_COLUMNS = "{:<58} {:>12} {:>12} {:<5} {:>6} {:>8} {:>8}  {}"

Measured = float | dict[str, Any] | None
"""A figure, or the result of a case of bench/load.py: its rate, and the server's processor time."""


@dataclass
class Table:
    """The measurements, a row for each case."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, work: str, mark: str, ours: Measured, theirs: Measured, unit: str = "/s", **more: Any) -> None:
        cpu, theirs_cpu = (side.get(_CPU) if isinstance(side, dict) else None for side in (ours, theirs))
        ours, theirs = (side.get("rate") if isinstance(side, dict) else side for side in (ours, theirs))
        ratio = ours / theirs if ours and theirs else None
        self.rows.append({"work": work, "mark": mark, "ours": ours, "theirs": theirs, "unit": unit, "ratio": ratio,
                          _CPU: cpu, f"theirs_{_CPU}": theirs_cpu, **more})
        print(self.line(self.rows[-1]), flush=True)

    @staticmethod
    def line(row: dict[str, Any]) -> str:
        def number(value: float | None) -> str:
            return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

        ratio = f"{row['ratio']:.2f}" if row["ratio"] else "-"
        cells = [number(row[key]) for key in ("ours", "theirs", _CPU, f"theirs_{_CPU}")]
        return _COLUMNS.format(row["work"], *cells[:2], row["unit"], ratio, *cells[2:], row["mark"]).rstrip()


def load(case: str, server: Server, **options: Any) -> dict[str, Any]:
    """Run one case of bench/load.py against a server; return its JSON, and the server's processor time."""
    words = [sys.executable, str(HERE / "load.py"), case, "--port", str(server.port)]
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        words += [flag] if value is True else [] if value is False else [flag, str(value)]
    cpu_s = server.cpu_s()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{case} on {server.name}: {done.stderr.strip().splitlines()[-1:]}\n{server.log_tail()}")
    result = dict(json.loads(done.stdout))
    if "rate" in result:
        result[_CPU] = (server.cpu_s() - cpu_s) / options["messages"] * 1e6
    return result


class Bench:
    """The cases; each starts the servers it needs."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.table = args, Table()
        self.scale = 0.2 if args.quick else 1.0

    def n(self, messages: int) -> int:
        return max(int(messages * self.scale), 2000)

    def best(self, case: str, server: Server, **options: Any) -> dict[str, Any]:
        """Return the best of --repeat runs, by rate."""
        return max((load(case, server, **options) for _ in range(self.args.repeat)), key=lambda r: r.get("rate", 0.0))

    @contextlib.contextmanager
    def on(self, *servers: Server) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for server in servers:
                stack.enter_context(server)
            yield

    def publish_directory(self) -> None:
        rates: dict[str, dict[str, Any]] = {}
        for name, server in (("nats", nats_server()), ("ours", jetblock()), ("async", jetblock())):
            with server:
                load("setup", server, config=json.dumps({"persist_mode": "async"} if name == "async" else {}))
                for window in (5000, 10_000):
                    rates[f"{name}{window}"] = self.best("publish", server, messages=self.n(1_000_000),
                                                         in_flight=window)
        for window in (5000, 10_000):
            self.table.add(f"JetStream publish, {window} in flight, directory", ">= 1.5" if COMPILED else ">= 1.3",
                           rates[f"ours{window}"], rates[f"nats{window}"])
            self.table.add("  the same, persist_mode async", "", rates[f"async{window}"], rates[f"nats{window}"])

    def publish_synced(self) -> None:
        with nats_server(sync=True) as theirs:
            load("setup", theirs)
            one = self.best("one", theirs, messages=self.n(3000))
        with jetblock() as ours:
            load("setup", ours)
            mine = self.best("one", ours, messages=self.n(3000))
            many = self.best("publish", ours, messages=self.n(1_000_000), in_flight=10_000)
        self.table.add("one publish at a time, directory / sync_interval: always", ">= 1", mine, one,
                       p50_ms=mine["p50_ms"], theirs_p50_ms=one["p50_ms"])
        self.table.add("publish, 10 000 in flight / one at a time, sync always", ">= 50", many, one)

    def publish_minio(self) -> None:
        with nats_server() as theirs:
            load("setup", theirs)
            base = self.best("publish", theirs, messages=self.n(1_000_000), in_flight=10_000)
        for interval in ("0", "20ms"):
            with Minio() as minio, jetblock(store=minio.url, env=minio.env, commit_interval=interval) as ours:
                load("setup", ours)
                got = self.best("publish", ours, messages=self.n(1_000_000), in_flight=10_000)
                self.table.add(f"JetStream publish, 10 000 in flight, MinIO, interval {interval}",
                               ">= 1.2" if COMPILED else ">= 1", got, base)

    def thousand_streams(self) -> None:
        got = {}
        for streams in (1, 1000):
            with Minio() as minio, jetblock(store=minio.url, env=minio.env, commit_interval="20ms") as ours:
                load("setup", ours, streams=streams)
                before = ours.puts()
                began = time.monotonic()
                rate = load("publish", ours, messages=self.n(300_000), in_flight=10_000, streams=streams)
                got[streams] = rate, (ours.puts() - before) / (time.monotonic() - began)
        self.table.add("1000 streams round robin / one stream, MinIO", ">= 0.7", got[1000][0], got[1][0])
        self.table.add("  puts a second, 1000 streams / one", "~ 1", got[1000][1], got[1][1])

    def pull(self) -> None:
        got: dict[str, dict[bool, dict[str, Any]]] = {}
        for name, server in (("nats", nats_server()), ("ours", jetblock())):
            with server:
                load("setup", server)
                load("publish", server, messages=self.n(1_000_000), in_flight=5000)
                got[name] = {}
                for ack in (True, False):
                    runs = []
                    for k in range(self.args.repeat):
                        load("consumer", server, consumer=f"C{int(ack)}{k}", ack=ack)
                        runs.append(load("pull", server, consumer=f"C{int(ack)}{k}", ack=ack, messages=self.n(900_000)))
                    got[name][ack] = max(runs, key=lambda run: run.get("rate", 0.0))
        self.table.add("pull consume, explicit acks", ">= 1.8", got["ours"][True], got["nats"][True])
        self.table.add("pull consume, no acks", ">= 1.4", got["ours"][False], got["nats"][False])

    def work_queue(self) -> None:
        """Drain a work queue to the last message, and an interest stream that two consumers ack in turn."""
        drained: dict[str, dict[str, dict[str, Any]]] = {"workqueue": {}, "interest": {}}
        for name, begin in (("nats", nats_server), ("ours", jetblock)):
            for retention, consumers in (("workqueue", 1), ("interest", 2)):
                runs: list[dict[str, Any]] = []
                for _ in range(self.args.repeat):
                    with begin() as server:
                        load("setup", server, config=json.dumps({"retention": retention}))
                        for k in range(consumers):
                            load("consumer", server, consumer=f"C{k}", ack=True)
                        messages = self.n(1_000_000 // consumers)
                        load("publish", server, messages=messages, in_flight=5000)
                        for k in range(consumers - 1):
                            load("pull", server, consumer=f"C{k}", ack=True, messages=messages)
                        runs.append(load("drain", server, consumer=f"C{consumers - 1}", ack=True, messages=messages))
                drained[retention][name] = max(runs, key=lambda run: run.get("rate", 0.0))
        self.table.add("work queue drained", ">= 0.5", drained["workqueue"]["ours"], drained["workqueue"]["nats"])
        self.table.add("interest stream drained by its second consumer", ">= 0.5", drained["interest"]["ours"],
                       drained["interest"]["nats"])

    def core(self) -> None:
        got: dict[str, dict[int, dict[str, Any]]] = {}
        for name, server in (("nats", nats_server(jetstream=False)), ("ours", jetblock(jetstream=False))):
            with server:
                got[name] = {n: self.best("core", server, subscribers=n, messages=self.n(k))
                             for n, k in ((0, 4_000_000), (1, 2_000_000), (10, 400_000))}
        marks = ((">= 0.9", ">= 1.2", ">= 2.5") if COMPILED else (">= 0.7", ">= 0.8", ">= 2"))
        for n, work, mark in zip((0, 1, 10), ("no subscriber", "1 subscriber", "10 subscribers"), marks, strict=True):
            self.table.add(f"core publish -> {work}", mark, got["ours"][n], got["nats"][n])

    def core_tls(self) -> None:
        got: dict[str, dict[int, dict[str, Any]]] = {}
        for name, server in (("nats", nats_server(jetstream=False)), ("ours", jetblock(jetstream=False))):
            with with_tls(server):
                got[name] = {n: self.best("core", server, subscribers=n, messages=self.n(k), tls=True)
                             for n, k in ((0, 2_000_000), (1, 1_000_000), (10, 200_000))}
        for n, work in ((0, "no subscriber"), (1, "1 subscriber"), (10, "10 subscribers")):
            self.table.add(f"core publish over TLS -> {work}", "", got["ours"][n], got["nats"][n])

    def memory_and_lag(self) -> None:
        millions = self.n(5_000_000)
        with jetblock() as ours:
            load("setup", ours)
            load("publish", ours, messages=millions, in_flight=10_000)
            lag = ours.varz()["jetblock"]["loop_lag_ms"]
            self.table.add(f"loop lag while {millions:,} are published: p99", "<= 5", lag["p99"], None, "ms")
            self.table.add("  max", "<= 30", lag["max"], None, "ms")
            self.table.add(f"memory after {millions:,} messages of 128 B, one subject", "<= 200", ours.rss_mib(), None,
                           "MiB")
        with jetblock() as ours:
            load("setup", ours)
            load("publish", ours, messages=self.n(1_000_000), in_flight=10_000, subjects=self.n(1_000_000))
            state = load("info", ours)
            self.table.add(f"memory after {state['num_subjects']:,} subjects", "<= 400", ours.rss_mib(), None, "MiB")

    def stalls(self) -> None:
        blocks = self.n(1_000_000)
        words = [sys.executable, "-m", "bench.stalls", "--blocks", str(blocks), "--ids", str(blocks)]
        done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=HERE.parent)
        for what, (took, of_processor) in json.loads(done.stdout).items():
            self.table.add(f"longest pause, {blocks:,} blocks or ids: {what}", "<= 20", took, None, "ms",
                           cpu=of_processor)

    def jetstream_cost(self) -> None:
        """Measure the cost of each JetStream operation by ``bench.cost.run``, which has its own table."""
        self.of_cases(cost.CASES, cost.measure)

    def core_cost(self) -> None:
        """Measure the cost of core NATS by ``bench.core.run``."""
        self.of_cases(core.CASES, core.measure)

    def of_cases(self, cases: Iterable[str], measure: Callable[[str, float, int], list[dict[str, Any]]]) -> None:
        print(cost.HEAD)
        for name in cases:
            for row in measure(name, self.scale, self.args.repeat):
                self.table.rows.append(row)
                print(cost.line(row), flush=True)

    def restart(self) -> None:
        for messages in (5000, self.n(5_000_000)):
            with jetblock() as ours:
                load("setup", ours)
                load("publish", ours, messages=messages, in_flight=min(10_000, messages))
                ours.stop(signal.SIGKILL)
                killed = ours.start()
                last = load("info", ours)["last_seq"]
                ours.stop(signal.SIGTERM)
                clean = ours.start()
                assert load("info", ours)["last_seq"] == last >= messages, "messages were lost"
            self.table.add(f"restart with {messages:,} messages, after a clean stop", "<= 0.3", clean, None, "s")
            self.table.add(f"restart with {messages:,} messages, after kill -9", "<= 1.5", killed, None, "s")

    def spark(self) -> None:
        messages = self.n(4_000_000)
        with tempfile.TemporaryDirectory(prefix="jetblock-bench-") as directory, jetblock() as ours, \
                nats_server() as theirs:
            for server, count in ((ours, messages), (theirs, min(messages, 500_000))):
                load("setup", server)
                load("events", server, messages=count, size=200)
            got = self.spark_driver(ours, directory, messages, "", "--nats", str(theirs.port), "--per-trigger",
                                    str(messages // 4))
        self.table.add("Spark, micro-batches to noop", ">= 1,000,000", got["stream"]["rate"], None, "row/s",
                       **got["stream"])
        self.table.add("Spark, full scan: blocks / nats-server by a pull consumer", ">= 5",
                       messages / got["forms"]["jetblock"]["full scan to noop"]["wall"], got["server"]["rate"], "row/s")

    def spark_small_blocks(self) -> None:
        """Measure smaller blocks, made by a publisher with fewer messages in flight."""
        messages = self.n(2_000_000)
        with tempfile.TemporaryDirectory(prefix="jetblock-bench-") as directory, jetblock() as ours:
            load("setup", ours)
            load("events", ours, messages=messages, in_flight=1500, size=200)
            self.spark_driver(ours, directory, messages, " of small blocks", "--scan-only")

    def spark_grouped(self) -> None:
        """Measure blocks whose messages an idle broker has grouped by subject; the old objects stay a while."""
        messages = self.n(1_000_000)
        compaction = {"JETBLOCK_COMPACTION_CPU": "100", "JETBLOCK_COMPACTION_BYTES_PER_SECOND": "1GiB"}
        with tempfile.TemporaryDirectory(prefix="jetblock-bench-") as directory, jetblock(env=compaction) as ours:
            load("setup", ours)
            load("events", ours, messages=messages, size=200)
            store, began = pathlib.Path(ours.dir, "store", "v1"), time.monotonic()
            while self.size_of(store, "**/runs/*") < 0.6 * self.size_of(store, "shards/*/log/0*"):
                assert time.monotonic() - began < GROUPED_SECONDS, "compaction has not grouped the messages"
                time.sleep(1)
            self.spark_driver(ours, directory, messages, " of grouped blocks", "--per-trigger", str(messages // 4))

    @staticmethod
    def size_of(folder: pathlib.Path, pattern: str) -> int:
        """Return the bytes of all files that match; one may be deleted meanwhile."""
        total = 0
        for path in folder.glob(pattern):
            with contextlib.suppress(FileNotFoundError):
                total += path.stat().st_size
        return total

    def spark_driver(self, ours: Server, directory: str, messages: int, of: str, *options: str) -> dict[str, Any]:
        """Run the queries, and compare the answers of all forms; return all figures."""
        ours.stop()  # Spark needs no broker
        got = self.spark_process("bench.spark_driver", f"file://{ours.dir}/store", directory,
                                 "--repeat", str(self.args.repeat), *options)
        for query, ours_took in got["forms"]["jetblock"].items():
            mark = self.SPARK_MARKS.get(query, "")
            for codec in ("zstd", "snappy"):
                theirs_took = got["forms"][f"parquet {codec}"].get(query)
                if theirs_took is not None:
                    assert ours_took["answer"] == theirs_took["answer"], f"{query}: {ours_took} {theirs_took}"
                    self.table.add(f"Spark, {query}{of}: blocks / Parquet {codec}", mark,
                                   messages / ours_took["wall"], messages / theirs_took["wall"], "row/s",
                                   cpu=ours_took["cpu"], theirs_cpu=theirs_took["cpu"])
            if query not in got["forms"]["parquet zstd"]:
                self.table.add(f"Spark, {query}{of}", mark, messages / ours_took["wall"], None, "row/s",
                               cpu=ours_took["cpu"])
        ready = got["forms"]["ready batches"]["full scan to noop"]
        self.table.add(f"Spark, full scan{of}: a Python source with nothing to do", "", messages / ready["wall"], None,
                       "row/s", cpu=ready["cpu"])
        self.table.add(f"Spark, messages of a block{of}, on average", "", got["messages_of_a_block"], None, "messages")
        return got

    @staticmethod
    def spark_process(module: str, *arguments: str) -> dict[str, Any]:
        """Run a module with a Spark session of its own; return its figures."""
        environ = {**os.environ, "JAVA_HOME": str(parts.java()), "PYSPARK_PYTHON": sys.executable,
                   "PYTHONPATH": f"{HERE.parent}:{HERE.parent}/broker/pipeline/autoload"}
        done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False,
                              cwd=HERE.parent, env=environ)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "Error" in line]
            raise RuntimeError(errors[-1] if errors else done.stderr[-2000:])
        return dict(json.loads(done.stdout.splitlines()[-1]))

    def spark_writes(self) -> None:
        with tempfile.TemporaryDirectory(prefix="jetblock-bench-") as directory, jetblock() as ours:
            got = self.spark_process("bench.spark_writes", f"file://{ours.dir}/store", str(ours.port),
                                     f"{directory}/out", "--scale", str(self.n(1_000_000) / 1_000_000))
        for case, marks in (("sink", {"100 B": ">= 450,000", "2 kB": ">= 60,000"}), ("export", {})):
            for size, took in got[case].items():
                rows = took["rows"]
                self.table.add(f"Spark, {case}, rows of {size}: blocks / Parquet zstd", marks.get(size, ""),
                               rows / took["jetblock"]["wall"], rows / took["parquet"]["wall"], "row/s",
                               cpu=took["jetblock"]["cpu"], theirs_cpu=took["parquet"]["cpu"])
        self.table.add("Spark, save() of ten rows", "<= 0.3", got["save"]["median"], None, "s")
        self.table.add("Spark, stream to stream, trigger of 1500 rows", "<= 0.4", got["trigger"]["median"], None, "s")

    SPARK_MARKS: ClassVar = {"full scan to noop": ">= 0.5", "subject prefix, 0.1 %": ">= 1",
                             "count without payloads": ">= 2,000,000"}
    CASES = ("publish_directory", "publish_synced", "publish_minio", "pull", "work_queue", "core", "core_tls",
             "thousand_streams",
             "memory_and_lag", "stalls", "restart", "jetstream_cost", "core_cost", "spark", "spark_small_blocks",
             "spark_grouped", "spark_writes")


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--quick", action="store_true", help="a fifth of the messages")
    p.add_argument("--only", nargs="*", default=[], help="cases whose name holds one of these words")
    p.add_argument("--repeat", type=int, default=3, help="runs of which the best counts")
    args = p.parse_args()
    bench = Bench(args)
    print(f"jetblock's modules are {'compiled' if COMPILED else 'pure Python'}; "
          f"CPU is the server's processor time for a million messages, in seconds")
    print(_COLUMNS.format("work", "jetblock", "nats-server", "", "ratio", "CPU", "nats CPU", "mark"))
    failed = 0
    for name in Bench.CASES:
        if args.only and not any(word in name for word in args.only):
            continue
        try:
            getattr(bench, name)()
        except Exception as e:  # a failing case must not cost the figures of the others
            failed += 1
            print(f"{name} failed: {type(e).__name__}: {e}", flush=True)
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    out = results / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    machine = {"cores": os.cpu_count(), "python": sys.version.split()[0], "compiled": COMPILED}
    out.write_text(json.dumps({"machine": machine, "rows": bench.table.rows}, indent=1))
    print(f"written to {out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
