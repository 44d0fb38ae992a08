"""``jetblock migrate SOURCE TARGET``: move streams and consumers from a nats-server into a jetblock, or into a store.

Exit status: 0 all chosen streams are at the target as they were; 1 the run is finished, and problems are listed; 2
it is not finished, or could not begin, and the reason is on standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from broker.base.nats_server_store import find_store_dir
from broker.base.output import Table, count, printable, size
from broker.base.progress import Progress
from broker.base.store_url import has_scheme
from broker.base.suggest import did_you_mean
from broker.client.connection import ConnectionFailed, Login, connect, tls_context
from broker.migration.errors import CannotMigrate
from broker.migration.folders import FolderSource
from broker.migration.run import PRESENT, Choice, Moved, choose_streams, move
from broker.migration.server_source import ServerSource
from broker.migration.store_dir_server import StoreDirServer
from broker.migration.streams import Origin
from broker.migration.target import Target

__all__ = ["main", "make_parser"]

_SERVER = ("nats://", "tls://", "ws://", "wss://")
_STORE = ("file://", "s3://")
_SECRET = {"user", "password", "token", "creds", "nkey"}

_EPILOG = """\
SOURCE is one of:
  nats://HOST:PORT   a running nats-server, version 2.15 or newer; with --from-streaming a nats-streaming-server
  a folder           written by `nats stream backup` or `nats account backup`
  a store_dir        of a stopped nats-server; a nats-server on PATH serves it during the move
TARGET is a running jetblock (nats://HOST:PORT), or a store (file://DIR, s3://BUCKET/PREFIX) on which no broker runs.
USER:PASSWORD@ or TOKEN@ may stand before HOST. Nothing at the source is changed. After an interruption, run the same
command again: it continues with the streams that are missing at the target. Each stream there is complete or absent.

FILE of --accounts is a JSON list with an object for each account: {"source": {…}, "target": {…}, "streams": […]}. The
members of source and target may be user, password, token, creds and nkey, and account if the target is a store.
status: 0 all streams were moved without change, 1 finished and problems are listed, 2 not finished, or refused
"""


class _Work(NamedTuple):
    """The work for one account."""

    source: Login
    target: Login
    names: tuple[str, ...]


def main(arguments: Sequence[str]) -> int:
    """Run one migration; return the exit status."""
    try:
        options = _parse(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)
    # A run on a store has a broker inside; only its errors are of interest.
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    progress, moved = Progress(), list[Moved]()
    error = ""
    try:
        asyncio.run(_run(options, progress, moved))
    except KeyboardInterrupt:
        progress.clear()
        print("jetblock migrate: interrupted; run the same command again to continue", file=sys.stderr)
        return 130
    except (CannotMigrate, ConnectionFailed) as failed:
        error = str(failed)
    progress.clear()
    if options.json:
        json.dump({"source": _without_secrets(options.source), "target": _without_secrets(options.target),
                   "finished": not error, "error": error, "streams": [one.to_json() for one in moved]}, sys.stdout,
                  indent=1)
        print()
    else:
        if moved or not error:
            print("\n".join(_lines(moved)))
    if error:
        print("\n".join(map(printable, f"jetblock migrate: {error}".split("\n"))), file=sys.stderr)
        return 2
    return 1 if any(one.problems for one in moved) else 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="jetblock migrate", epilog=_EPILOG,
                                     description="Move streams and consumers from a nats-server into a jetblock.",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="SOURCE", help="a nats-server's URL, its store_dir, or a folder with backups")
    parser.add_argument("target", metavar="TARGET", help="a jetblock's URL, or a store's")
    parser.add_argument("--stream", action="append", default=[], metavar="NAME",
                        help="only this stream; may be repeated")
    parser.add_argument("--from-streaming", action="store_true",
                        help="SOURCE is a nats-streaming-server: move its channels")
    parser.add_argument("--cluster-id", default="", metavar="ID",
                        help="the cluster ID of that server (default test-cluster)")
    parser.add_argument("--monitoring", default="", metavar="URL", help="the monitoring port of that server, "
                        "http://HOST:8222, which shows its channels, limits and durable positions")
    parser.add_argument("--channel", action="append", default=[], metavar="NAME",
                        help="only this channel of that server; may be repeated")
    parser.add_argument("--no-consumers", action="store_true", help="leave the consumers out")
    parser.add_argument("--replace", action="store_true",
                        help="move a stream again if the target has an older state of it, which is deleted first")
    parser.add_argument("--memory-to-file", action="store_true", help="store streams that are in memory at the source")
    parser.add_argument("--verify", action="store_true", help="read all messages again on both sides, and compare them")
    for side in ("source", "target"):
        parser.add_argument(f"--{side}-creds", default="", metavar="FILE",
                            help=f"credentials (JWT and seed) for the {side}")
        parser.add_argument(f"--{side}-nkey", default="", metavar="FILE", help=f"the seed of a user's nkey for "
                            f"the {side}")
        parser.add_argument(f"--{side}-tls-ca", default="", metavar="FILE", help=f"the CA of the {side}'s certificate")
        parser.add_argument(f"--{side}-tls-cert", default="", metavar="FILE", help=f"our certificate for the {side}")
        parser.add_argument(f"--{side}-tls-key", default="", metavar="FILE", help="the private key of that certificate")
    parser.add_argument("--source-account", default="", metavar="NAME", help="move the streams of this "
                        "account only, if SOURCE is a store_dir")
    parser.add_argument("--target-account", default="", metavar="NAME",
                        help="the account that gets the streams, if TARGET is a store (default $G)")
    parser.add_argument("--accounts", default="", metavar="FILE", help="several accounts in one run")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of text")
    return parser


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = make_parser()
    options = parser.parse_args(list(arguments))
    if not options.target.startswith((*_SERVER, *_STORE)):
        parser.error(f"TARGET {options.target!r} is neither a server's URL nor a store's: nats://HOST:PORT, "
                     f"file:///DIR or s3://BUCKET/PREFIX")
    if has_scheme(options.source) and not options.source.startswith(_SERVER):
        parser.error(f"SOURCE {options.source!r} is neither nats://HOST:PORT nor a folder; to copy a store, use "
                     "jetblock copy")
    _check_streaming(parser, options)
    options.store_dir = None if options.source.startswith(_SERVER) else find_store_dir(options.source)
    if options.store_dir is None and not options.source.startswith(_SERVER) and not Path(options.source).exists():
        parser.error(f"SOURCE {options.source}: there is no such folder; a server is nats://HOST:PORT")
    if options.source_account and options.store_dir is None:
        parser.error("--source-account is for a store_dir; on a server, the credentials decide the account")
    if options.accounts and not options.source.startswith(_SERVER):
        parser.error("--accounts is for a server as the source: a folder has one account's streams")
    if options.target_account and not options.target.startswith(_STORE):
        parser.error("--target-account is for a store as the target; on a server, the credentials decide the account")
    return options


def _check_streaming(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse flags that mean nothing for the kind of source."""
    if not options.from_streaming:
        for flag, value in (("--cluster-id", options.cluster_id), ("--monitoring", options.monitoring),
                            ("--channel", options.channel)):
            if value:
                parser.error(f"{flag} is for a nats-streaming-server; give --from-streaming, too")
        return
    if not options.source.startswith(_SERVER):
        parser.error("--from-streaming is for a running nats-streaming-server: nats://HOST:PORT")
    for flag, value, remedy in (
            ("--stream", options.stream, "name channels with --channel"),
            ("--accounts", options.accounts, "run the command once for each account"),
            ("--memory-to-file", options.memory_to_file, "channels are always stored")):
        if value:
            parser.error(f"{flag} is not for a nats-streaming-server: {remedy}")
    if not options.monitoring and not options.channel:
        parser.error("only its monitoring port shows which channels a nats-streaming-server has: give --monitoring "
                     "http://HOST:8222, or name each one with --channel")
    if options.monitoring and not options.monitoring.startswith(("http://", "https://")):
        parser.error(f"--monitoring {options.monitoring!r} is no address of a monitoring port: http://HOST:8222")


# --- the work ---------------------------------------------------------------------------------------------------------

def _work(options: argparse.Namespace) -> list[_Work]:
    """Return the work for each account. Raises: CannotMigrate."""
    source, target = (
        Login(url, creds=getattr(options, f"{side}_creds"), nkey=getattr(options, f"{side}_nkey"),
              tls_ca=getattr(options, f"{side}_tls_ca"), tls_cert=getattr(options, f"{side}_tls_cert"),
              tls_key=getattr(options, f"{side}_tls_key"))
        for side, url in (("source", options.source), ("target", options.target)))
    target = replace(target, account=options.target_account)
    names = tuple(dict.fromkeys(options.stream))
    if not options.accounts:
        return [_Work(source, target, names)]
    path = options.accounts
    try:
        rows = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise CannotMigrate(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise CannotMigrate(f"{path}: {error}") from None
    if not isinstance(rows, list) or not rows:
        raise CannotMigrate(f"{path}: expected a list with an object for each account")
    work = []
    for number, row in enumerate(rows, 1):
        where = f"{path}, account {number}"
        row = _object(where, row, ("source", "target", "streams"))
        streams = row.get("streams", list(names))
        if not isinstance(streams, list) or not all(isinstance(name, str) for name in streams):
            raise CannotMigrate(f"{where}: streams is not a list of names")
        sides = {side: _texts(f"{where}: {side}", row.get(side, {}), allowed)
                 for side, allowed in (("source", _SECRET), ("target", _SECRET | {"account"}))}
        if sides["target"].get("account") and not options.target.startswith(_STORE):
            raise CannotMigrate(f"{where}: target: account is for a store; on a server, the credentials decide the "
                                "account")
        work.append(_Work(replace(source, **sides["source"]), replace(target, **sides["target"]), tuple(streams)))
    return work


def _object(where: str, value: Any, allowed: Sequence[str] | set[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CannotMigrate(f"{where}: expected an object")
    for key in value:
        if key not in allowed:
            raise CannotMigrate(f"{where}: unknown key {key!r}{did_you_mean(key, allowed)}")
    return value


def _texts(where: str, value: Any, allowed: set[str]) -> dict[str, Any]:
    for key, text in _object(where, value, allowed).items():
        if not isinstance(text, str):
            raise CannotMigrate(f"{where}: {key} is not text")
    assert {one.name for one in fields(Login)} >= allowed
    return dict(value)


def _accounts_of(options: argparse.Namespace) -> list[str]:
    """Return the accounts of a store_dir that are moved. Raises: CannotMigrate."""
    accounts = list(options.store_dir.streams)
    if options.source_account:
        if options.source_account not in accounts:
            raise CannotMigrate(f"{options.source}: there is no account {options.source_account}; those with streams "
                                f"are {', '.join(accounts)}{did_you_mean(options.source_account, accounts)}")
        return [options.source_account]
    if len(accounts) > 1 and (options.target_account or not options.target.startswith(_STORE)):
        raise CannotMigrate(f"{options.source}: there are streams of several accounts, {', '.join(accounts)}, and one "
                            f"account to move them to: choose one with --source-account, or give a store as the "
                            f"target, without --target-account")
    return accounts


async def _run(options: argparse.Namespace, progress: Progress, moved: list[Moved]) -> None:
    """Move the streams of all chosen accounts. Raises: CannotMigrate."""
    work = _work(options)
    if options.store_dir is None:
        await _move_all(options, options.source, work, progress, moved)
        return
    [(_, target, names)] = work
    for account in _accounts_of(options):
        server = StoreDirServer(options.store_dir, account, options.target)
        same_name = options.target.startswith(_STORE) and not options.target_account
        own = replace(target, account=account) if same_name else target
        try:
            await server.start()
            part = _Work(Login(server.url, user=server.user, password=server.password, account=account), own, names)
            await _move_all(options, server.url, [part], progress, moved)
        finally:
            await server.stop()


async def _move_all(options: argparse.Namespace, source: str, work: list[_Work], progress: Progress,
                    moved: list[Moved]) -> None:
    """Connect to both sides, and move the streams of each account. Raises: CannotMigrate."""
    lasting = options.target.startswith(_STORE)

    def report(done: Moved) -> None:
        moved.append(done)
        progress.line(_line(done))

    async with AsyncExitStack() as stack:
        store = None
        if lasting:
            from broker.runtime.inside import InsideBroker

            store = InsideBroker(options.target, [one.target.account for one in work], "jetblock-migrate",
                                 remedy="stop it, or give its URL (nats://…) as the target")
        # Sources are connected first, because a wrong password there must not leave a new store here.
        origins = []
        for one in work:
            origin = await _origin(source, one, options)
            stack.push_async_callback(origin.close)
            origins.append((origin, await choose_streams(origin, one.names)))
        if store is not None:
            await store.start()
            stack.push_async_callback(store.stop)
        for one, (origin, streams) in zip(work, origins, strict=True):
            connection = await (connect(one.target) if store is None else store.connect(one.target.account))
            stack.push_async_callback(connection.close)
            choice = Choice(consumers=not options.no_consumers, replace=options.replace,
                            memory_to_file=options.memory_to_file, verify=options.verify, lasting=lasting)
            await move(_account(one), origin, streams, Target(connection), choice, progress, report)


async def _origin(source: str, work: _Work, options: argparse.Namespace) -> Origin:
    if options.from_streaming:
        # Only this kind of source needs protobuf.
        from broker.migration.streaming_pages import StreamingPages
        from broker.migration.streaming_source import StreamingSource

        tls = tls_context(work.source) if options.monitoring.startswith("https://") else None
        pages = StreamingPages(options.monitoring, tls) if options.monitoring else None
        return await StreamingSource.open(await connect(work.source), options.cluster_id or "test-cluster", pages,
                                          tuple(dict.fromkeys(options.channel)))
    if source.startswith(_SERVER):
        return ServerSource(await connect(work.source))
    return FolderSource(Path(source))


def _account(work: _Work) -> str:
    """Return the account's name in reports."""
    source = work.source
    return work.target.account or source.account or source.user or Path(source.creds or source.nkey).stem or "-"


def _without_secrets(url: str) -> str:
    return Login(url).shown if url.startswith(_SERVER) else url


# --- the report -------------------------------------------------------------------------------------------------------

def _line(done: Moved) -> str:
    if done.problems:
        return f"{done.name}: {done.status}: {done.problems[0]}"
    text = f"{done.name}: {done.status}, {count(done.numbers.messages)} messages, {size(done.numbers.bytes)}"
    return text if done.status == PRESENT else f"{text}, {done.seconds:.1f} s"


def _lines(moved: list[Moved]) -> list[str]:
    table = Table(["account", "stream", "messages", "bytes", "first", "last", "consumers", "verified", "status"],
                  ["messages", "bytes", "first", "last", "consumers", "verified"])
    for one in moved:
        table.add(one.account, one.name, one.numbers.messages, size(one.numbers.bytes), one.numbers.first_seq,
                  one.numbers.last_seq, one.consumers, one.verified, one.status)
    lines = table.flush() if moved else ["the source has no streams"]
    for heading, pick in (("problems", "problems"), ("notes", "notes")):
        rows = [f"  {printable(one.name)}: {printable(text)}" for one in moved for text in getattr(one, pick)]
        if rows:
            lines += ["", f"{heading}:", *rows]
    return lines
