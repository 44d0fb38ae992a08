"""``jetblock archive``: mirrors streams of another NATS system in a store, once or as long as it runs."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from broker.archive.archiver import Archiver
from broker.base.output import Table, count, printable, size
from broker.base.progress import Progress
from broker.base.store_url import has_scheme
from broker.client.connection import ConnectionFailed, Login, connect
from broker.config.leafnodes import LeafTls
from broker.config.upstreams import UpstreamSettings

__all__ = ["main", "make_parser"]

_SERVER: Final = ("nats://", "tls://", "ws://", "wss://")
_UPDATE_SECONDS: Final = 0.25
_LIST_SECONDS: Final = 10.0
"""Time between two looks for new streams at the origin."""

_EPILOG = """\
URL is that of a server of the other system; USER:PASSWORD@ or TOKEN@ may stand before HOST. The user there needs
  publish:   $JS.API.STREAM.INFO.*  $JS.API.CONSUMER.CREATE.*  $JS.API.CONSUMER.CREATE.*.>  $JS.FC.>
             $JS.API.STREAM.NAMES, if a PATTERN has wildcards
  subscribe: _INBOX.>
PATTERN is a stream's name, or has the wildcards of a shell in quotes: 'EVENTS_*'. STORE is file://DIR or
s3://BUCKET/PREFIX, on which no broker runs. The archive has mirrors, with the sequences and times of the origin. The
same command again continues.
status: 0 all streams are archived, 1 some are not, which are listed, 2 not started, or the connection was lost
"""


def main(arguments: Sequence[str]) -> int:
    """Archive streams; return the exit status."""
    try:
        options = _parse(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    progress = Progress(amount=count)
    try:
        archiver = asyncio.run(_run(options, progress))
    except ConnectionFailed as error:
        progress.clear()
        print(f"jetblock archive: {printable(str(error))}", file=sys.stderr)
        return 2
    progress.clear()
    streams = list(archiver.streams.values())
    if options.json:
        json.dump({"origin": Login(options.url).shown, "store": options.store,
                   "streams": [one.to_json() for one in streams]}, sys.stdout, indent=1)
        print()
    else:
        print("\n".join(_lines(archiver)))
    return 1 if any(one.error for one in streams) or not streams else 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="jetblock archive", epilog=_EPILOG,
                                     description="Mirror streams of another NATS system in a store.",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", metavar="URL", help="a server of the other system, nats://HOST:PORT")
    parser.add_argument("patterns", metavar="PATTERN", nargs="+", help="streams to archive, also those made later")
    parser.add_argument("--store", required=True, metavar="STORE", help="where the archive is")
    parser.add_argument("--once", action="store_true", help="end when all streams have caught up")
    parser.add_argument("--upstream", default="origin", metavar="NAME",
                        help="name of the other system in the mirrors' configurations (default origin)")
    parser.add_argument("--creds", default="", metavar="FILE", help="credentials (JWT and seed)")
    parser.add_argument("--nkey", default="", metavar="FILE", help="the seed of a user's nkey")
    parser.add_argument("--tls-ca", default="", metavar="FILE", help="the CA of the server's certificate")
    parser.add_argument("--tls-cert", default="", metavar="FILE", help="our certificate")
    parser.add_argument("--tls-key", default="", metavar="FILE", help="the private key of that certificate")
    parser.add_argument("--json", action="store_true", help="one JSON document at the end instead of text")
    return parser


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = make_parser()
    options = parser.parse_args(list(arguments))
    if not options.url.startswith(_SERVER):
        parser.error(f"URL {options.url!r} is not a server's: nats://HOST:PORT")
    if not options.upstream or set(options.upstream) & set(". *>\t"):
        parser.error(f"--upstream {options.upstream!r} must be one token of a subject")
    if not has_scheme(options.store) or options.store.startswith("memory:"):
        parser.error(f"STORE {options.store!r} must be file:///DIR or s3://BUCKET/PREFIX")
    return options


async def _run(options: argparse.Namespace, progress: Progress) -> Archiver:
    """Archive until all have caught up (``--once``), or until a signal. Raises: ConnectionFailed."""
    from broker.runtime.inside import InsideBroker

    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    login = Login(options.url, creds=options.creds, nkey=options.nkey, tls_ca=options.tls_ca,
                  tls_cert=options.tls_cert, tls_key=options.tls_key)
    async with AsyncExitStack() as stack:
        # First, since a wrong password must not leave a new store.
        await (await connect(login, name="jetblock archive")).close()
        inside = InsideBroker(options.store, (), "jetblock-archive", settings={
            "jetstream.upstreams": (_upstream(options),)})
        await inside.start()
        stack.push_async_callback(inside.stop)
        here = await inside.connect("")
        stack.push_async_callback(here.close)
        archiver = Archiver(login, here, options.patterns, f"$JS.{options.upstream}.API")
        stack.push_async_callback(archiver.close)
        await _watch(archiver, stopped, progress, once=options.once)
        return archiver


async def _watch(archiver: Archiver, stopped: asyncio.Event, progress: Progress, *, once: bool) -> None:
    now = time.monotonic
    list_at, shown, copied_before = 0.0, set[tuple[str, str]](), -1
    while not stopped.is_set():
        if now() >= list_at:
            try:
                await archiver.add_new()
            except ConnectionFailed as error:
                if once:
                    raise
                progress.line(str(error))
            list_at = now() + _LIST_SECONDS
        await archiver.update()
        streams = list(archiver.streams.values())
        for one in streams:
            if one.error and (one.name, one.error) not in shown:
                shown.add((one.name, one.error))
                progress.line(f"{one.name}: {one.error}")
        if once and all(one.caught_up(now()) or one.failed(now()) for one in streams):
            return
        copied, lag = sum(one.messages - one.began_msgs for one in streams), sum(one.lag for one in streams)
        # Without a terminal, nothing is printed while nothing comes.
        if copied != copied_before and progress.show(f"{count(len(streams))} streams, messages", copied, copied + lag):
            copied_before = copied
        try:
            async with asyncio.timeout(_UPDATE_SECONDS):
                await stopped.wait()
        except TimeoutError:
            continue


def _upstream(options: argparse.Namespace) -> UpstreamSettings:
    """Return the origin as an upstream of the broker. Raises: ConnectionFailed."""
    try:
        seed = Path(options.nkey).read_text().strip() if options.nkey else ""
    except (OSError, UnicodeError) as error:
        raise ConnectionFailed(f"{options.nkey}: cannot be read: {error}") from None
    tls = LeafTls(ca_file=options.tls_ca, cert_file=options.tls_cert, key_file=options.tls_key)
    given = options.tls_ca or options.tls_cert or options.url.startswith(("tls://", "wss://"))
    return UpstreamSettings(name=options.upstream, urls=(options.url,), credentials=options.creds, nkey=seed,
                            tls=tls if given else None)


def _lines(archiver: Archiver) -> list[str]:
    streams = archiver.streams.values()
    if not streams:
        return ["no stream there has such a name"]
    table = Table(["stream", "messages", "bytes", "last", "behind", "status"], ["messages", "bytes", "last", "behind"])
    now = time.monotonic()
    for one in streams:
        status = f"not archived: {one.error}" if one.error else "caught up" if one.caught_up(now) else "not caught up"
        table.add(one.name, one.messages, size(one.bytes), one.last_seq, one.lag, status)
    return table.flush()
