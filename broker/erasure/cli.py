"""``jetblock erase``: messages leave a stream, and their bytes leave the store, with a signed report."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from broker.base.command import run_command
from broker.base.output import count
from broker.base.progress import Progress
from broker.base.store_url import has_scheme
from broker.client.connection import ApiRefusal, ConnectionFailed, Login
from broker.client.login_flags import add_login_flags, login_of
from broker.erasure import report as reports
from broker.erasure.carrying_out import Target, carry_out, delete_versions, kept_by, look, versions_line
from broker.erasure.report import BadReport
from broker.erasure.request import Choice, parse_ranges
from broker.storage.format.errors import FormatError, KeyMissing
from broker.storage.objectstore import StoreError

__all__ = ["main", "make_parser"]

_EPILOG = f"""\
STORE is file://DIR or s3://BUCKET/PREFIX, on which no broker runs. With --server, a running broker erases, and STORE
is left out: jetblock erase --server URL STREAM … Its user needs
  publish:   $JS.API.JETBLOCK.ERASE.*  $JS.API.JETBLOCK.ERASURE.*  $JS.API.JETBLOCK.SHRED.*
  subscribe: _INBOX.>
and with --domain NAME, $JS.NAME.API in place of $JS.API.
Several of --subject, --header and --ids choose the messages that fulfil all of them. Removed messages count, too, as
long as their bytes are in the store. Mirrors and sources of the stream in the same account lose the same messages.
The report is signed by the NKey seed in --sign or {reports.SEED_VARIABLE}, else by a new key, whose public part the
command prints.
status: 0 erased, or verified; 1 something holds erased messages, which is listed; 2 not carried out
"""


def main(arguments: Sequence[str]) -> int:
    """Erase or verify; return the exit status."""
    return run_command("erase", lambda progress: _run(_parse(arguments), progress), ApiRefusal, ConnectionFailed,
                       BadReport, StoreError, FormatError, KeyMissing, ValueError, OSError,
                       again="run the same command again; the erasure goes on in the background")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="jetblock erase", epilog=_EPILOG,
                                     description="Erase messages from a stream and from its store, with a signed "
                                                 "report.",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", metavar="STORE STREAM", nargs="*", help="the store and the stream; with --verify, the "
                                                                         "store alone")
    parser.add_argument("--server", default="", metavar="URL", help="let this running broker erase")
    parser.add_argument("--domain", default="", metavar="NAME", help="with --server: the JetStream domain of the "
                                                                     "brokers, if the server is none of them")
    parser.add_argument("--subject", action="append", default=[], metavar="FILTER", help="messages with this subject")
    parser.add_argument("--seq", default="", metavar="SEQS", help="these sequences: 5,7-9, or @FILE with one a line")
    parser.add_argument("--header", action="append", default=[], metavar="NAME[:VALUE]",
                        help="messages with this header")
    parser.add_argument("--ids", default="", metavar="FILE", help="messages with one of these Nats-Msg-Ids, one a line")
    parser.add_argument("--shred", action="store_true",
                        help="all messages; then delete the stream and destroy its key")
    parser.add_argument("--account", default="", metavar="NAME", help="the account of the stream in STORE")
    parser.add_argument("--grace", type=float, default=0.0, metavar="SECONDS",
                        help="in STORE: keep replaced objects for so long, for readers that run (default 0)")
    parser.add_argument("--report", default="", metavar="FILE", help="write the report here, as JSON")
    parser.add_argument("--html", default="", metavar="FILE", help="write the report here, as a page")
    parser.add_argument("--sign", default="", metavar="FILE", help="the NKey seed that signs the report")
    parser.add_argument("--verify", default="", metavar="REPORT", help="prove that STORE has none of the messages")
    parser.add_argument("--signed-by", default="", metavar="NKEY",
                        help="with --verify: who must have signed the report")
    parser.add_argument("--delete-versions", action="store_true",
                        help="delete old versions of the deleted objects in a bucket with versions")
    parser.add_argument("--backup", action="append", default=[], metavar="URL",
                        help="also look for the messages in this backup or copy, and name it if it has them")
    add_login_flags(parser, " for --server")
    parser.add_argument("--json", action="store_true", help="print the report as JSON instead of text")
    return parser


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = make_parser()
    options = parser.parse_args(list(arguments))
    chosen = bool(options.seq) + bool(options.shred) + bool(options.subject or options.header or options.ids)
    expected = 1 if options.server or options.verify else 2
    if len(options.words) != expected:
        parser.error("give STORE" if options.verify else "give STREAM" if options.server else "give STORE and STREAM")
    if options.verify and (chosen or options.server):
        parser.error("--verify takes STORE alone: the report says which messages")
    if options.domain and not options.server:
        parser.error("--domain needs --server")
    if options.server and (options.account or options.grace or options.delete_versions):
        parser.error("--account, --grace and --delete-versions need STORE: with --server, the account is that of the "
                     "user, the broker keeps replaced objects for reader_grace, and --verify deletes old versions")
    if not options.verify and chosen != 1:
        parser.error("say which messages: --subject, --header and --ids together, or --seq, or --shred")
    options.store = "" if options.server else options.words[0]
    options.stream = "" if options.verify else options.words[-1]
    if options.store and (not has_scheme(options.store) or options.store.startswith("memory:")):
        parser.error(f"STORE {options.store!r} must be file:///DIR or s3://BUCKET/PREFIX")
    if options.store.startswith("file://") and not Path(options.store.removeprefix("file://")).is_dir():
        parser.error(f"{options.store}: there is no such directory")
    return options


def _run(options: argparse.Namespace, progress: Progress) -> int:
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    if options.verify:
        text = Path(options.verify).read_text(encoding="utf-8")
        return asyncio.run(_verify(options, reports.read(text, options.verify, options.signed_by), progress))
    pair = reports.signer(options.sign)
    choice = None if options.shred else _choice(options)
    report = reports.sign(asyncio.run(carry_out(_target(options), choice, progress.show)), pair)
    progress.clear()
    if options.report:
        Path(options.report).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if options.html:
        Path(options.html).write_text(reports.html(report), encoding="utf-8")
    if options.json:
        json.dump(report, sys.stdout, indent=1)
        print()
    else:
        print("\n".join(_lines(report)))
    return 1 if report["not_erased"] else 0


async def _verify(options: argparse.Namespace, report: dict[str, Any], progress: Progress) -> int:
    found = await look(options.store, report, progress.show)
    if options.delete_versions and found.versions:
        await delete_versions(options.store, found.versions)
        found = found._replace(versions=[])
    held = [*found.holding, *versions_line(found.versions)]
    held += [line for url in options.backup for line in kept_by(url, await look(url, report, progress.show))]
    progress.clear()
    if options.json:
        json.dump({"store": options.store, "erasure": report["erasure"], "objects": found.objects, "proved": not held,
                   "holding": held, "unchecked": found.unchecked}, sys.stdout, indent=1)
        print()
    else:
        proved = (f"{options.store} has none of the erased messages: {count(found.objects)} objects were read, and the "
                  f"{count(len(report['deleted']))} that held them are gone")
        print("\n".join([*(held or [proved]), *(f"not checked: {one}" for one in found.unchecked)]))
    return 1 if held else 0


def _target(options: argparse.Namespace) -> Target:
    login = Login(options.server, domain=options.domain, **login_of(options)) if options.server else None
    return Target(options.stream, options.store, login, options.account, options.grace, options.delete_versions,
                  options.backup)


def _choice(options: argparse.Namespace) -> Choice:
    seqs = options.seq
    if seqs.startswith("@"):
        seqs = ",".join(Path(seqs[1:]).read_text(encoding="utf-8").split())
    ids = Path(options.ids).read_text(encoding="utf-8").splitlines() if options.ids else []
    choice = Choice(parse_ranges(seqs), options.subject, options.header, list(filter(None, ids)))
    if not (choice.seqs or choice.subjects or choice.headers or choice.ids):
        raise ValueError(f"{options.ids or options.seq}: it names no message")
    return choice


def _lines(report: dict[str, Any]) -> list[str]:
    lines = [f"{count(report['messages'])} messages were removed, and {count(len(report['deleted']))} objects that "
             f"held them or quoted them are deleted; {count(len(report['made']))} have what was beside them"]
    if report["key"]:
        lines.append(f"the key {report['key']} of the stream is destroyed")
    lines += [f"not erased: {one}" for one in report["not_erased"]]
    return [*lines, f"the report is signed by {report['signature']['by']}"]
