"""``jetblock fsck STORE_URL``: check a store; with ``--repair``, repair it.

Exit status: 0 the store is undamaged, perhaps after a repair; 1 problems are listed, after a repair those that remain;
2 the store could not be checked, or not be repaired because a broker owns it, and the reason is on standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
from collections.abc import Sequence

from broker.base.clock import SystemClock
from broker.base.command import run_command
from broker.base.output import count, size
from broker.base.progress import Progress
from broker.config.arguments import duration_ns
from broker.inspect.report import lost_table, problem_lines, repair_lines
from broker.inspect.source import CannotInspect
from broker.maintenance.fsck import Checked, Owned, fsck
from broker.storage.keys.reading import use_keys_of_url
from broker.storage.objectstore import StoreError, open_store
from broker.storage.objectstore.retrying import RetryingStore

__all__ = ["main", "make_parser"]

_EPILOG = """\
Without --repair nothing is written: the repair is planned, and tried on a copy in memory. With --repair, the store
keeps a copy of each replaced object below quarantine/, and no broker may run on the store.
status: 0 sound, 1 problems found or left, 2 not checked, or not repaired because a broker owns the store
"""
_GIVE_UP_NS = 30_000_000_000
_LEASE_NS_MAX = 10**15


def main(arguments: Sequence[str]) -> int:
    """Run one check; return the exit status."""
    return run_command("fsck", lambda progress: _fsck(_parse(arguments), progress),
                       CannotInspect, Owned, StoreError, ValueError)


def _fsck(options: argparse.Namespace, progress: Progress) -> int:
    done = asyncio.run(_run(options, progress))
    progress.clear()
    if options.json:
        json.dump({"store": options.store} | done.to_json(), sys.stdout, indent=1)
        print()
    else:
        print("\n".join(_lines(done)))
    return 1 if (done.remaining if done.repaired else done.problems) else 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="jetblock fsck", epilog=_EPILOG,
                                     description="Check every byte of a store, list lost messages, and repair what can "
                                                 "be repaired.",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", metavar="STORE_URL", help="file://DIR or s3://BUCKET/PREFIX")
    parser.add_argument("--repair", action="store_true", help="repair the store; without it nothing is written")
    parser.add_argument("--lease", type=duration_ns, default=15_000_000_000, metavar="DURATION",
                        help="on a bucket: the lease of its brokers, to see whether one runs (default 15s)")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of text")
    return parser


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = make_parser()
    options = parser.parse_args(arguments)
    if not 0 < options.lease < _LEASE_NS_MAX:
        parser.error("--lease takes a duration above 0, such as 15s")
    return options


async def _run(options: argparse.Namespace, progress: Progress) -> Checked:
    if options.store.startswith("memory:"):
        raise CannotInspect("memory:// exists only inside its broker: there is nothing to check from outside")
    clock, rng = SystemClock(), random.Random(os.urandom(32))
    use_keys_of_url(options.store)
    bare = open_store(options.store, read_only=True)  # a wrong path must not become an empty directory
    if options.repair:
        await bare.close()
        bare = open_store(options.store, put_timeout_ns=60_000_000_000)
    store = RetryingStore(bare, clock=clock, rng=rng, give_up_ns=_GIVE_UP_NS)
    try:
        return await fsck(store, clock, rng, repair=options.repair, lease_ns=options.lease, progress=progress.objects)
    finally:
        await store.close()


def _lines(done: Checked) -> list[str]:
    lines = [f"checked      {count(done.verified.objects)} objects, {size(done.verified.bytes)}",
             *([done.note] if done.note else [])]
    past = repair_lines(done.repairs)
    if not done.problems:
        return [*lines, "sound", *past]
    lines += problem_lines(done.problems)
    if done.lost:
        lines += ["", "lost: these messages cannot be read, and everything else of their streams can",
                  *lost_table(lost.to_json() for lost in done.lost)]
    elif done.repairable:
        lines += ["", "no message is lost"]
    lines += done.notes
    lines.append("")
    if done.repaired:
        lines.append(f"repaired; what was replaced is kept below {done.quarantine}")
        lines += problem_lines(done.remaining) if done.remaining else ["sound now"]
    elif done.repairable:
        lines.append("--repair would repair this" + (f", except {len(done.remaining)} problems:" if done.remaining
                                                   else ""))
        lines += problem_lines(done.remaining)
    else:
        lines.append(done.refused)
        lines.append("put damaged objects back from a backup, if there is one (docs/BACKUP.md)")
    return lines + past
