"""The tour's job: every .py file of the running Python's standard library is one message of the stream LIBRARY.

    python docs/tour/library.py publish                              publish them, many in flight; safe to run again
    python docs/tour/library.py read [--filter lib.asyncio.> …]      read them back with a durable pull consumer
    python docs/tour/library.py show lib.asyncio.events              show the last message of one subject

Each command has the option ``--url`` (by default $NATS_URL, or nats://127.0.0.1:4222). A message has the subject
``lib.<dotted.path>``, the file's bytes as payload, and their size and SHA-256 as headers. The stream keeps the last
message of each subject, so a file is stored once however often it is published; within a day its message id ensures
that. The program uses only nats-py, and works with any NATS server.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import pathlib
import re
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import nats
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig
from nats.js.errors import APIError, BadRequestError, NotFoundError, ServiceUnavailableError

__all__ = ["File", "Reading", "connect", "files", "main", "make_stream", "parse", "publish", "read"]

STREAM = "LIBRARY"
DAY_SECONDS = 86_400
DIFFERS = 10058
"""JetStream's error code: a stream of this name exists with another configuration."""


class Failed(Exception):
    """A command failed; the text says why, for its user."""


@dataclass(frozen=True)
class File:
    """A message with the contents of one file."""

    subject: str
    data: bytes

    @property
    def headers(self) -> dict[str, str]:
        digest = hashlib.sha256(self.data).hexdigest()
        return {"Size": str(len(self.data)), "SHA-256": digest, "Nats-Msg-Id": self.subject}


def files(root: pathlib.Path | None = None) -> list[File]:
    """Return the library's files in order of their paths: a few thousand, some of hundreds of kB."""
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


async def connect(url: str, report: Callable[[str], None] = lambda _: None) -> Client:
    """Connect, and reconnect after each restart of the broker; ``report`` is called when the connection is lost.

    Raises: Failed if no broker answers now.
    """
    why: list[Exception] = []

    async def first(error: Exception) -> None:
        why.append(error)

    async def quiet(_: Exception) -> None:
        """Ignore a lost connection: calls raise the errors that matter."""

    async def lost() -> None:
        if not nc.is_closed:
            report(f"the connection to {url} is lost; waiting for it to come back")

    try:
        # The first attempt does not wait for a broker that was never there.
        await (await nats.connect(url, allow_reconnect=False, max_reconnect_attempts=1, reconnect_time_wait=0.1,
                                  connect_timeout=5, error_cb=first)).close()
    except (OSError, NatsError, ValueError) as error:
        raise Failed(f"no broker at {url}: {why[0] if why else error}; `make run` starts one") from None
    nc = Client()
    await nc.connect(url, max_reconnect_attempts=-1, reconnect_time_wait=0.1, allow_reconnect=True, error_cb=quiet,
                     disconnected_cb=lost)
    return nc


async def make_stream(js: JetStreamContext) -> None:
    """Create the stream LIBRARY, or update it if an earlier run created it with another configuration."""
    config = StreamConfig(name=STREAM, subjects=["lib.>"], max_msgs_per_subject=1, duplicate_window=DAY_SECONDS,
                          allow_direct=True)
    try:
        await js.add_stream(config)
    except BadRequestError as error:
        if error.err_code != DIFFERS:
            raise
        await js.update_stream(config)


async def publish(nc: Client, todo: Iterable[File], *, in_flight: int = 200,
                  acked: Callable[[File, int, bool], None] | None = None, timeout: float = 5) -> dict[str, int]:
    """Publish until each file has its PubAck; repeat a publish under the same message id.

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
                except BadRequestError:  # a repetition would not help
                    raise
                except (TimeoutError, NatsError, APIError):  # the broker restarts: the id makes a repetition safe
                    await asyncio.sleep(0.05)
                    continue
                seqs[file.subject] = ack.seq
                if acked:
                    acked(file, ack.seq, bool(ack.duplicate))

    await asyncio.gather(*(one(file) for file in todo))
    return seqs


@dataclass
class Reading:
    """The messages that one durable consumer has received."""

    seqs: dict[str, int] = field(default_factory=dict)
    """Each subject's last sequence."""
    wrong: list[str] = field(default_factory=list)
    """Subjects of messages that differ from their own checksum or size."""
    moved: list[str] = field(default_factory=list)
    """Subjects that came with a second sequence, because they were published again meanwhile."""
    acked_at: dict[int, float] = field(default_factory=dict)
    again: list[tuple[int, float | None]] = field(default_factory=list)
    """(sequence, time of its ack or None) of each message that came more than once."""


async def read(nc: Client, durable: str, filters: list[str], expected: int, *, batch: int = 100,
               reading: Reading | None = None, progress: Callable[[int], None] | None = None,
               ack_wait: float = 5) -> Reading:
    """Read ``expected`` different messages with a durable pull consumer; compare each with its headers, and ack it."""
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
        except (BadRequestError, NotFoundError):
            raise
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
            digest, size = hashlib.sha256(msg.data).hexdigest(), str(len(msg.data))
            if (headers.get("SHA-256"), headers.get("Size")) != (digest, size):
                reading.wrong.append(msg.subject)
            if reading.seqs.get(msg.subject, seq) != seq:
                reading.moved.append(msg.subject)
            reading.seqs[msg.subject] = seq
            try:
                await msg.ack()
                reading.acked_at[seq] = time.monotonic()
            except NatsError:  # the connection is lost; the message comes again
                pass
        if progress:
            progress(len(reading.seqs))
    await nc.flush()
    return reading


async def publish_all(js: JetStreamContext, nc: Client) -> int:
    """Run the command ``publish``."""
    began = time.perf_counter()
    todo = files()
    await make_stream(js)
    counts = {True: 0, False: 0}

    def count(_: File, __: int, duplicate: bool) -> None:
        counts[duplicate] += 1

    await publish(nc, todo, acked=count)
    size = sum(len(f.data) for f in todo)
    seconds = time.perf_counter() - began
    print(f"{len(todo)} files, {size / 1e6:.1f} MB acknowledged in {seconds:.1f} s "
          f"({counts[True]} had been there before)")
    return 0


async def read_all(js: JetStreamContext, nc: Client, filters: list[str]) -> int:
    """Run the command ``read``."""
    began = time.perf_counter()
    wanted: set[str] = set()
    for one in filters or [">"]:
        info = await js.stream_info(STREAM, subjects_filter=one)
        found = info.state.subjects or {}
        if not found:
            raise Failed(f"no subject of the stream {STREAM} matches {one}" if filters
                         else f"the stream {STREAM} is empty")
        wanted.update(found)
    durable = "tour-" + hashlib.sha256(repr(filters).encode()).hexdigest()[:8]
    try:
        await js.delete_consumer(STREAM, durable)
    except NotFoundError:
        pass
    got = await read(nc, durable, filters, len(wanted))
    checked = f"{len(got.wrong)} differ from their checksum" if got.wrong else "all as their checksums say"
    print(f"{len(got.seqs)} messages read and acknowledged in {time.perf_counter() - began:.1f} s, {checked}")
    return bool(got.wrong)


async def show(js: JetStreamContext, subject: str) -> int:
    """Run the command ``show``."""
    await js.stream_info(STREAM)
    try:
        last = await js.get_last_msg(STREAM, subject, direct=True)
    except NotFoundError:
        raise Failed(f"no message under the subject {subject} in the stream {STREAM}") from None
    print(f"sequence {last.seq}, {len(last.data or b'')} bytes, {dict(last.headers or {})}")
    return 0


async def run(args: argparse.Namespace) -> int:
    """Run one command; return the exit status. Raises: Failed."""
    nc = await connect(args.url, lambda text: print(text, file=sys.stderr))
    js = nc.jetstream()
    try:
        if args.what == "publish":
            return await publish_all(js, nc)
        if args.what == "read":
            return await read_all(js, nc, args.filter or [])
        return await show(js, args.subject)
    except (NoRespondersError, ServiceUnavailableError):
        raise Failed(f"the broker at {args.url} has no JetStream, or not yet") from None
    except NotFoundError as error:
        raise Failed(f"the broker at {args.url} has no stream {STREAM}: publish first ({error.description})") from None
    except APIError as error:
        raise Failed(f"the broker at {args.url} answered: {error.description} ({error.err_code})") from None
    except (NatsError, TimeoutError) as error:
        raise Failed(f"the broker at {args.url}: {error or type(error).__name__}") from None
    finally:
        await nc.close()


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; ``--url`` is before the command or after it."""
    url = argparse.ArgumentParser(add_help=False)
    url.add_argument("--url", default=argparse.SUPPRESS,
                     help="URL of the broker (default: $NATS_URL, or nats://127.0.0.1:4222)")
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                parents=[url])
    what = p.add_subparsers(dest="what", required=True)
    what.add_parser("publish", parents=[url])
    what.add_parser("read", parents=[url]).add_argument(
        "--filter", nargs="+", metavar="SUBJECT", help="read only these subjects; * and > as in NATS")
    what.add_parser("show", parents=[url]).add_argument("subject")
    args = p.parse_args(arguments)
    if "url" not in args:
        args.url = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        return asyncio.run(run(parse(arguments)))
    except Failed as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
