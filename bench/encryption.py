"""The cost of encryption and of secure deletes, beside the same work on a plain store.

    python -m bench.encryption [--messages 200000] [--size 256] [--turns 3] [--only publish spark deletes]

Three brokers run at once, on directories: plain, aes, chacha. All work is done on each of them in turns.

    publish    a window of 1000 unanswered messages; then a pull consumer without acks reads all of them
    spark      the full scan of the published stream to noop, in one session
    deletes    on a plain store: the latency of $JS.API.STREAM.MSG.DELETE with and without ``no_erase``, and the bytes
               that are written until the erased message has left the store, with messages of 1 kB

Rates and seconds are the best of all turns, by wall time; shares are those of the plain store in the same run. CPU is
the broker's, or for Spark that of its JVM and workers.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.load import Connection
from bench.run import load
from bench.servers import Server, jetblock

__all__ = ["main"]

_KEY = "the key of this bench"
_FORMS = ("plain", "aes", "chacha")
_STREAM = {"name": "BENCH", "subjects": ["bench.>"]}
_SECONDS = 120


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=256, help="bytes of a payload")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", choices=("publish", "spark", "deletes"), action="append")
    args = parser.parse_args(words)
    wanted = set(args.only or ("publish", "spark", "deletes"))
    if wanted & {"publish", "spark"}:
        with ExitStack() as stack:
            servers = {form: stack.enter_context(_server(form)) for form in _FORMS}
            _publish(servers, args.messages, args.size, args.turns)
            for server in servers.values():
                server.stop()
            if "spark" in wanted:
                _spark({form: f"file://{server.dir}/store" for form, server in servers.items()}, args.turns)
    if "deletes" in wanted:
        _deletes()
    return 0


def _server(form: str) -> Server:
    return jetblock(env={} if form == "plain" else {"JETBLOCK_KEY": _KEY, "JETBLOCK_CIPHER": form})


def _publish(servers: dict[str, Server], messages: int, size: int, turns: int) -> None:
    published: dict[str, list[dict[str, Any]]] = {form: [] for form in servers}
    pulled: dict[str, list[dict[str, Any]]] = {form: [] for form in servers}
    for turn in range(turns):
        for form, server in servers.items():
            api = Connection(server.port)
            if turn:
                api.request("$JS.API.STREAM.DELETE.BENCH")
            api.request("$JS.API.STREAM.CREATE.BENCH", _STREAM)
            published[form].append(load("events", server, messages=messages, size=size, in_flight=1000))
            api.request("$JS.API.CONSUMER.DURABLE.CREATE.BENCH.C", {
                "stream_name": "BENCH", "config": {"durable_name": "C", "ack_policy": "none"}})
            pulled[form].append(load("pull", server, messages=messages, consumer="C", batch=1000))
    _show("publish", published)
    _show("pull", pulled)


def _show(what: str, runs: dict[str, list[dict[str, Any]]]) -> None:
    rates = {form: max(one["rate"] for one in of) for form, of in runs.items()}
    cpu = {form: min(one["cpu_s_per_million"] for one in of) for form, of in runs.items()}
    for form in runs:
        print(f"{what:<10} {form:<8} {rates[form]:>12,.0f}/s  share {rates[form] / rates['plain']:.2f}   "
              f"CPU {cpu[form]:>6.1f} µs, share {cpu['plain'] / cpu[form]:.2f}", flush=True)


def _spark(stores: dict[str, str], turns: int) -> None:
    os.environ |= {"JETBLOCK_KEY": _KEY, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    from pyspark.sql import SparkSession

    from bench.spark_driver import measure, noop
    from tests.real import parts

    os.environ["JAVA_HOME"] = str(parts.java())
    spark = SparkSession.builder.master("local[2]").config(map={
        "spark.ui.enabled": "false", "spark.log.level": "ERROR"}).getOrCreate()
    frames = {form: spark.read.format("jetblock").options(store=url, stream="BENCH").load()
              for form, url in stores.items()}
    best: dict[str, dict[str, Any]] = {}
    for turn in range(turns + 1):  # The first turn starts the workers.
        for form, frame in frames.items():
            one = measure(lambda frame=frame: noop(frame), 1)  # type: ignore[misc]
            if turn and (form not in best or one["wall"] < best[form]["wall"]):
                best[form] = one
    plain = best["plain"]
    for form, one in best.items():
        print(f"full scan  {form:<8} {one['wall']:>10.2f} s  share {plain['wall'] / one['wall']:.2f}   "
              f"CPU {one['cpu']:>6.2f} s, share {plain['cpu'] / one['cpu']:.2f}", flush=True)
    spark.stop()


def _deletes(messages: int = 100_000, deletes: int = 50) -> None:
    with jetblock(env={"JETBLOCK_ERASE_DELAY": "0s", "JETBLOCK_READER_GRACE": "0s"}) as server:
        api = Connection(server.port)
        api.request("$JS.API.STREAM.CREATE.BENCH", _STREAM)
        load("events", server, messages=messages, size=1000, in_flight=1000)
        store = Path(server.dir) / "store"
        size = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
        print(f"deletes    {messages:,} messages of 1 kB, {size / 1e6:.1f} MB in the store", flush=True)
        for what, more in (("no_erase", {"no_erase": True}), ("secure", {})):
            times = []
            for i in range(deletes):
                began = time.perf_counter()
                api.request("$JS.API.STREAM.MSG.DELETE.BENCH", {"seq": 1 + i * 100 + (50 if more else 0), **more})
                times.append(time.perf_counter() - began)
            times.sort()
            print(f"deletes    {what:<9} answered after {times[len(times) // 2] * 1e3:.2f} ms (median), "
                  f"{times[-1] * 1e3:.2f} ms (longest)", flush=True)
        for what, seqs in (("one message", "60001"), ("one in each 1000 messages", ",".join(
                str(at) for at in range(500, messages, 1000)))):
            _settled(store)
            written, cpu, began = _written(server), server.cpu_s(), time.perf_counter()
            erasure = api.request("$JS.API.JETBLOCK.ERASE.BENCH", {"seqs": seqs})["erasure"]
            while True:
                answer = api.request("$JS.API.JETBLOCK.ERASURE.BENCH", {"erasure": erasure})
                if answer["streams"][0]["state"] == "done":
                    break
                if time.perf_counter() - began > _SECONDS:
                    raise RuntimeError(json.dumps(answer)[:500])
                time.sleep(0.02)
            print(f"erasure    {what}: done after {time.perf_counter() - began:.1f} s, "
                  f"{(_written(server) - written) / 1e6:.2f} MB written, {server.cpu_s() - cpu:.2f} s of CPU, "
                  f"{len(answer['streams'][0]['held'])} objects deleted", flush=True)


def _settled(store: Path) -> None:
    """Wait until compaction adds nothing more."""
    files: set[Path] = set()
    since = time.monotonic()
    while time.monotonic() - since < 3:
        if files != (files := {path for path in store.rglob("*") if path.is_file()}):
            since = time.monotonic()
        time.sleep(0.2)


def _written(server: Server) -> int:
    """Return the bytes that the broker's process has written."""
    assert server.child is not None
    text = Path(f"/proc/{server.child.pid}/io").read_text(encoding="ascii")
    return int(text.partition("wchar: ")[2].split()[0])


if __name__ == "__main__":
    sys.exit(main())
