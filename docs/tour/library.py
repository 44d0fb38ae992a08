"""The tour's job: every .py file of the running Python's standard library is one message of the stream LIBRARY.

    python docs/tour/library.py publish  [--url nats://127.0.0.1:4222]     publish them, many in flight; safe to run again
    python docs/tour/library.py read     [--filter lib.asyncio.> …]        read them back with a durable pull consumer
    python docs/tour/library.py show lib.asyncio.events                    the last message of one subject

Subject ``lib.<dotted.path>``, payload the file's bytes, headers its size and SHA-256. Uses nats-py alone; nothing here
knows which server answers.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import pathlib
import re
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import nats
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig
from nats.js.errors import APIError, NotFoundError

__all__ = ["File", "Reading", "connect", "files", "make_stream", "publish", "read"]

STREAM = "LIBRARY"


@dataclass(frozen=True)
class File:
    """One file as one message."""

    subject: str
    data: bytes

    @property
    def headers(self) -> dict[str, str]:
        return {"Size": str(len(self.data)), "SHA-256": hashlib.sha256(self.data).hexdigest(), "Nats-Msg-Id": self.subject}


def files(root: pathlib.Path | None = None) -> list[File]:
    """The library's files in order of their subjects; a few thousand, some of hundreds of kB."""
    root = root or pathlib.Path(sysconfig.get_paths()["stdlib"])
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if "site-packages" not in parts and "__pycache__" not in parts:
            subject = "lib." + ".".join(re.sub(r"[^A-Za-z0-9_-]", "_", part) for part in parts)
            if subject in found:
                raise ValueError(f"two files would have the subject {subject}")
            found[subject] = File(subject, path.read_bytes())
    return list(found.values())


async def connect(url: str) -> Client:
    """A connection that rides over a broker's restarts."""
    async def quiet(_: Exception) -> None:
        """Losing the connection is part of the job; what matters is raised by the calls themselves."""

    return await nats.connect(url, max_reconnect_attempts=-1, reconnect_time_wait=0.1, allow_reconnect=True, error_cb=quiet)


async def make_stream(js: JetStreamContext) -> None:
    await js.add_stream(StreamConfig(name=STREAM, subjects=["lib.>"], allow_direct=True))


async def publish(nc: Client, todo: Iterable[File], *, in_flight: int = 200,
                  acked: Callable[[File, int, bool], None] | None = None, timeout: float = 5) -> dict[str, int]:
    """Publish until each file has its PubAck, trying again under the same message id.

    Returns each subject's sequence. ``acked(file, seq, duplicate)`` is called for each PubAck.
    """
    js = nc.jetstream()
    seqs: dict[str, int] = {}
    slots = asyncio.Semaphore(in_flight)

    async def one(file: File) -> None:
        async with slots:
            while file.subject not in seqs:
                try:
                    ack = await js.publish(file.subject, file.data, headers=file.headers, timeout=timeout)
                except (TimeoutError, NatsError, APIError):  # killed, or not yet back: the id makes it safe
                    await asyncio.sleep(0.05)
                    continue
                seqs[file.subject] = ack.seq
                if acked:
                    acked(file, ack.seq, bool(ack.duplicate))

    await asyncio.gather(*(one(file) for file in todo))
    return seqs


@dataclass
class Reading:
    """What one durable consumer has seen."""

    seqs: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    acked_at: dict[int, float] = field(default_factory=dict)
    again: list[tuple[int, float | None]] = field(default_factory=list)
    """(sequence, when it had been acked, or None) of each message that came more than once."""


async def read(nc: Client, durable: str, filters: list[str], expected: int, *, batch: int = 100, reading: Reading | None = None,
               progress: Callable[[int], None] | None = None, ack_wait: float = 5) -> Reading:
    """Read ``expected`` different messages with a durable pull consumer, checking each against its headers, and ack them."""
    js = nc.jetstream()
    reading = reading or Reading()
    config = ConsumerConfig(durable_name=durable, ack_policy=AckPolicy.EXPLICIT, ack_wait=ack_wait,
                            filter_subjects=filters if len(filters) > 1 else None,
                            filter_subject=filters[0] if len(filters) == 1 else None)
    while True:
        try:
            await js.add_consumer(STREAM, config)
            sub = await js.pull_subscribe_bind(consumer=durable, stream=STREAM)
            break
        except (TimeoutError, NatsError, APIError):
            await asyncio.sleep(0.1)
    while len(reading.seqs) < expected:
        try:
            messages = await sub.fetch(batch, timeout=2)
        except (TimeoutError, NatsError, APIError):
            await asyncio.sleep(0.05)
            continue
        for msg in messages:
            seq, headers = msg.metadata.sequence.stream, msg.headers or {}
            if seq in reading.acked_at or msg.subject in reading.seqs:
                reading.again.append((seq, reading.acked_at.get(seq)))
            if (headers.get("SHA-256") != hashlib.sha256(msg.data).hexdigest() or headers.get("Size") != str(len(msg.data))
                    or reading.seqs.setdefault(msg.subject, seq) != seq):
                reading.wrong.append(msg.subject)
            try:
                await msg.ack()
                reading.acked_at[seq] = time.monotonic()
            except NatsError:  # the connection went; the message comes again
                pass
        if progress:
            progress(len(reading.seqs))
    await nc.flush()
    return reading


async def tour(args: argparse.Namespace) -> int:
    nc = await connect(args.url)
    js = nc.jetstream()
    began = time.perf_counter()
    if args.what == "publish":
        todo = files()
        await make_stream(js)
        counts = {True: 0, False: 0}

        def count(_: File, __: int, duplicate: bool) -> None:
            counts[duplicate] += 1

        await publish(nc, todo, acked=count)
        size = sum(len(f.data) for f in todo)
        seconds = time.perf_counter() - began
        print(f"{len(todo)} files, {size / 1e6:.1f} MB acknowledged in {seconds:.1f} s ({counts[True]} had been there before)")
    elif args.what == "read":
        filters = args.filter or []
        info = await js.stream_info(STREAM, subjects_filter=">")
        names = list(info.state.subjects or {})
        wanted = [n for n in names if not filters or any(n.startswith(f.removesuffix(">")) for f in filters)]
        durable = "tour-" + hashlib.sha256(repr(filters).encode()).hexdigest()[:8]
        try:
            await js.delete_consumer(STREAM, durable)
        except NotFoundError:
            pass
        got = await read(nc, durable, filters, len(wanted))
        print(f"{len(got.seqs)} messages read and acknowledged in {time.perf_counter() - began:.1f} s, "
              f"{len(got.wrong)} differ from their checksum")
        return bool(got.wrong)
    else:
        last = await js.get_last_msg(STREAM, args.subject, direct=True)
        print(f"sequence {last.seq}, {len(last.data or b'')} bytes, {dict(last.headers or {})}")
    await nc.close()
    return 0


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--url", default="nats://127.0.0.1:4222")
    what = p.add_subparsers(dest="what", required=True)
    what.add_parser("publish")
    what.add_parser("read").add_argument("--filter", nargs="*")
    what.add_parser("show").add_argument("subject")
    return asyncio.run(tour(p.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
