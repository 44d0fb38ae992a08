"""Messages published one at a time to a bucket: the resulting objects and bytes, beside the same messages in one
commit.

    python -m bench.trickle [--server minio|seaweed] [--messages 10000] [--only WORD …]

Stock nats-py publishes to a jetblock on a separate real S3 server, at ``commit_interval: 20ms`` and a short
``reader_grace``, and waits for each PubAck before the next message. Then nothing is published for ten minutes. The
bucket is listed by botocore alone.

    one stream       10 000 messages of 128 bytes
    100 streams      100 messages each, in turn
    key-value        1000 keys written ten times each, history 1
    restarts         as one stream, but the broker is killed and started again 20 times on the way
    one commit       the messages of each load above in as few commits as they fit in, before a clean stop
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import nats
from nats.js.api import StreamConfig

from tests.harness import BrokerProcess
from tests.real import s3

__all__ = ["main"]

_SIZE = 128
_STREAMS = 100
_KEYS = 1000
_KILLS = 20
_QUIET_S = 600
_WORDS = '{"time": "%d", "level": "info", "service": "orders", "id": "%016x", "amount": %d, "note": "accepted"}'


class _Load(NamedTuple):
    """A load: ``subject(i)`` of message i; ``streams`` by name with their subjects."""

    name: str
    streams: list[StreamConfig]
    subject: Callable[[int], str]
    kills: int = 0


_LOADS = [
    _Load("one stream", [StreamConfig(name="S", subjects=["s"])], lambda i: "s"),
    _Load("100 streams", [StreamConfig(name=f"S{n}", subjects=[f"s.{n}"]) for n in range(_STREAMS)],
          lambda i: f"s.{i % _STREAMS}"),
    _Load("key-value", [StreamConfig(name="KV_b", subjects=["$KV.b.>"], max_msgs_per_subject=1, allow_rollup_hdrs=True,
                                     allow_direct=True)], lambda i: f"$KV.b.key{i % _KEYS}"),
    _Load("restarts", [StreamConfig(name="S", subjects=["s"])], lambda i: "s", _KILLS),
]


def _body(kind: str, number: int, rng: random.Random) -> bytes:
    if kind == "hex":
        return rng.randbytes(_SIZE // 2).hex().encode()
    line = _WORDS % (1_760_000_000_000 + 40 * number, rng.getrandbits(64), rng.getrandbits(16))
    return line.encode().ljust(_SIZE)[:_SIZE]


def _client(server: s3.S3Server) -> Any:
    from botocore.config import Config
    from botocore.session import Session

    session = Session()
    session.set_credentials(server.env["AWS_ACCESS_KEY_ID"], server.env["AWS_SECRET_ACCESS_KEY"])
    return session.create_client("s3", region_name=server.env["AWS_REGION"], endpoint_url=server.endpoint,
                                 config=Config(s3={"addressing_style": "path"}))


def _listed(client: Any, url: str) -> tuple[Counter[str], Counter[str]]:
    """Count objects and bytes below a store's prefix, by their folder."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    objects: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix + "/"):
        for row in page.get("Contents", ()):
            folder = row["Key"].rsplit("/", 1)[0].rsplit("/", 1)[-1]
            folder = "runs" if "/streams/" in row["Key"] else folder
            objects[folder] += 1
            sizes[folder] += row["Size"]
    return objects, sizes


def _broker(server: s3.S3Server, url: str, interval: str, **more: str) -> BrokerProcess:
    environ = {**server.env, "JETBLOCK_STORE": url, "JETBLOCK_COMMIT_INTERVAL": interval, "JETBLOCK_READER_GRACE": "2s",
               "JETBLOCK_SERVER_NAME": "trickle", **more}
    return BrokerProcess("-js", environ=environ, ready_seconds=180)


async def _one_by_one(server: s3.S3Server, load: _Load, kind: str, messages: int) -> dict[str, Any]:
    url, client, rng = server.new_url(), _client(server), random.Random(7)
    began = time.monotonic()
    async with _broker(server, url, "20ms") as broker:
        nc = await nats.connect(broker.url)
        js = nc.jetstream(timeout=60)
        for config in load.streams:
            await js.add_stream(config)
        kill_at = {messages * (n + 1) // (load.kills + 1) for n in range(load.kills)}
        for i in range(messages):
            body = _body(kind, i, rng)
            await js.publish(load.subject(i), body)
            if i in kill_at:
                await nc.close()
                await broker.kill()
                await broker.restart()
                nc = await nats.connect(broker.url)
                js = nc.jetstream(timeout=60)
        took = time.monotonic() - began
        at_end = _listed(client, url)
        counts: list[tuple[float, int]] = []
        while not counts or counts[-1][0] < _QUIET_S:
            await asyncio.sleep(15)
            settled = _listed(client, url)
            counts.append((time.monotonic() - began - took, sum(settled[0].values())))
        stored = [(await js.stream_info(config.name or "")).state.messages for config in load.streams]
        await nc.close()
    return {"published_s": took, "at_end": at_end, "settled": settled, "messages": sum(stored), "counts": counts,
            "tens_s": next((at for at, objects in counts if objects < 100), None)}


async def _at_once(server: s3.S3Server, load: _Load, kind: str, messages: int) -> dict[str, Any]:
    """Publish the same messages without waiting, in one commit of the log, and stop cleanly."""
    url, client, rng = server.new_url(), _client(server), random.Random(7)
    more = {"JETBLOCK_LEASE": "30s", "JETBLOCK_COMPACTION": "false", "JETBLOCK_SEGMENT_BYTES": "64MB"}
    async with _broker(server, url, "5s", **more) as broker:
        nc = await nats.connect(broker.url)
        js = nc.jetstream(timeout=60)
        for config in load.streams:
            await js.add_stream(config)
        acks = []
        for i in range(messages):
            acks.append(await js.publish_async(load.subject(i), _body(kind, i, rng)))
        await nc.flush()
        await asyncio.gather(*acks)
        log = _listed(client, url)
        with suppress(Exception):
            await nc.close()
    return {"settled": log}


def _line(name: str, kind: str, found: dict[str, Any], once: dict[str, Any]) -> str:
    def all_of(listed: tuple[Counter[str], Counter[str]]) -> tuple[int, int]:
        return sum(listed[0].values()), sum(listed[1].values())

    (end_objects, end_bytes), (objects, size) = all_of(found["at_end"]), all_of(found["settled"])
    once_objects, once_bytes = all_of(once["settled"])
    data, once_data = (sum(listed[1][folder] for folder in ("log", "runs"))
                       for listed in (found["settled"], once["settled"]))
    return (f"| {name}, {kind} | {end_objects:,} / {end_bytes / 1000:,.0f} | {objects} / {size / 1000:,.0f} | "
            f"{found['tens_s'] or 0:.0f} s | {once_objects} / {once_bytes / 1000:,.0f} | {size / once_bytes:.2f} | "
            f"{data / once_data:.2f} |")


async def _measure(server: s3.S3Server, load: _Load, kind: str, messages: int) -> None:
    once = await _at_once(server, load, kind, messages)
    found = await _one_by_one(server, load, kind, messages)
    print(_line(load.name, kind, found, once), flush=True)
    print(f"  published in {found['published_s']:.0f} s, {found['messages']} messages; settled "
          f"{dict(found['settled'][0])} {dict(found['settled'][1])}; one commit {dict(once['settled'][0])} "
          f"{dict(once['settled'][1])}; objects by seconds "
          f"{[(round(at), objects) for at, objects in found['counts']]}", file=sys.stderr, flush=True)


async def _run(server: s3.S3Server, args: argparse.Namespace) -> None:
    print("| load | when the last was published: objects / kB | after 10 min: objects / kB | below 100 objects after | "
          "in one commit: objects / kB | bytes, ratio | of log and runs |\n|---|---:|---:|---:|---:|---:|---:|",
          flush=True)
    loads = [load for load in _LOADS if not args.only or any(word in load.name for word in args.only)]
    pairs = [(load, kind) for load in loads for kind in args.kinds]
    for at in range(0, len(pairs), args.side_by_side):
        await asyncio.gather(*[_measure(server, load, kind, args.messages)
                               for load, kind in pairs[at:at + args.side_by_side]])


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", choices=("minio", "seaweed"), default="minio")
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--kinds", nargs="+", choices=("hex", "json"), default=["hex", "json"],
                        help="what the messages hold")
    parser.add_argument("--side-by-side", type=int, default=2, help="loads at a time, a broker each")
    parser.add_argument("--only", nargs="*", default=[], help="loads whose name holds one of these words")
    args = parser.parse_args(words)
    command = s3._minio_command if args.server == "minio" else s3._seaweed_command
    with tempfile.TemporaryDirectory() as folder:
        server = s3._start(args.server, Path(folder), command)
        try:
            asyncio.run(_run(server, args))
        finally:
            server.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
