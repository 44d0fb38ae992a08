"""``jetblock copy SOURCE DESTINATION``, and ``backup`` and ``restore``, which are copies for a certain purpose.

    copy       the destination is new, or an earlier copy, which is updated
    backup     the same
    restore    the destination must be new, and every byte of it is read and checked before it becomes a store

Exit status: 0 the copy is whole, no problem found; 1 it is finished, and problems are listed; 2 there is no finished
copy, and the reason is on standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence

from broker.base.command import run_command
from broker.base.output import count, size
from broker.base.progress import Progress
from broker.inspect.report import problem_lines
from broker.inspect.source import CannotInspect, Source, open_source
from broker.maintenance.copy import Copied, Copier
from broker.maintenance.destination import CopyRefused, Destination
from broker.storage.keys.reading import use_keys_of_url
from broker.storage.objectstore import StoreError, open_store

__all__ = ["main", "make_parser"]

_EPILOG = """\
A store is file://DIR or s3://BUCKET/PREFIX; s3:// takes region and credentials from the AWS_* environment. The source
is only read, and a broker may write to it meanwhile. Nothing in the destination is ever overwritten. After an
interruption, run the same command again: it continues.
status: 0 the copy is whole, 1 it is finished and problems are listed, 2 it is not finished, or was refused
"""
_DESCRIPTIONS = {
    "copy": "Copy a store, or bring an earlier copy of it up to date.",
    "backup": "Copy a store to a backup, or bring an earlier backup of it up to date.",
    "restore": "Copy a backup to an empty directory or prefix, and check every byte of the copy.",
}
_PUT_TIMEOUT_NS = 60_000_000_000


def main(verb: str, arguments: Sequence[str]) -> int:
    """Run one copy; return the exit status."""
    return run_command(verb, lambda progress: _copy(make_parser(verb).parse_args(arguments), progress),
                       CannotInspect, CopyRefused, StoreError, ValueError,
                       again="run the same command again to continue")


def _copy(options: argparse.Namespace, progress: Progress) -> int:
    done = asyncio.run(_run(options, progress))
    progress.clear()
    if options.json:
        json.dump({"source": options.source, "destination": options.destination} | done.to_json(), sys.stdout, indent=1)
        print()
    else:
        print("\n".join(_lines(done)))
        if done.problems:
            print("\n".join(problem_lines(done.problems)), file=sys.stderr)
    return 1 if done.problems or not done.whole else 0


def make_parser(verb: str) -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog=f"jetblock {verb}", description=_DESCRIPTIONS[verb], epilog=_EPILOG,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="BACKUP" if verb == "restore" else "SOURCE", help="the store to read")
    parser.add_argument("destination", metavar="DESTINATION", help="where to copy it")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of text")
    if verb == "restore":
        parser.set_defaults(verify=True, must_be_new=True)
    else:
        parser.add_argument("--verify", action="store_true", help="read every byte of the copy and check everything")
        parser.set_defaults(must_be_new=False)
    return parser


async def _run(options: argparse.Namespace, progress: Progress) -> Copied:
    """Run the copy. Raises: CopyRefused; CannotInspect; StoreError; ValueError for a URL of no known form."""
    source = open_source(options.source)
    try:
        destination = _open_destination(options.destination, source)
        try:
            return await Copier(source, destination, progress.objects).run(
                must_be_new=options.must_be_new, verifying=options.verify)
        finally:
            await destination.close()
    finally:
        await source.close()


def _open_destination(url: str, source: Source) -> Destination:
    if url.startswith("memory:"):
        raise CopyRefused("memory:// exists only inside its broker: there is nothing to copy to")
    use_keys_of_url(url)
    store = open_store(url, put_timeout_ns=_PUT_TIMEOUT_NS)
    if _place(store.url) == _place(source.url):
        raise CopyRefused(f"{url} is both source and destination")
    return Destination(store)


def _place(url: str) -> str:
    """Return the URL, or the path of a directory without symbolic links."""
    directory = url.removeprefix("file://")
    return url if directory == url else os.path.realpath(directory)


def _lines(done: Copied) -> list[str]:
    lines = [f"copied       {count(done.copied.count)} objects, {size(done.copied.bytes)}",
             f"there before {count(done.present.count)} objects",
             f"store        {done.store_id.hex()}"]
    lines += [f"shard {number}      ends at {position}" for number, position in done.ends.items()]
    if done.note:
        lines.append(done.note)
    if done.verified is not None:
        lines.append(f"verified     {count(done.verified.objects)} objects, {size(done.verified.bytes)}")
    lines.append("the copy is whole" if done.whole and not done.problems else
                 "the copy is finished, with the problems listed" if done.whole else
                 "the source lacks objects that its state names, and so does the copy")
    return lines
