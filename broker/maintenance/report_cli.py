"""``jetblock report STORE_URL``: one HTML page about a store.

Exit status: 0 the page is written, and the store has no problem; 1 the page is written, and lists problems; 2 there is
no page, and the reason is on standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from broker.base.command import run_command
from broker.base.output import count, printable, size
from broker.base.progress import Progress
from broker.inspect.source import CannotInspect, open_source
from broker.inspect.survey import read_survey
from broker.inspect.verify import verify
from broker.maintenance.report import report_page
from broker.storage.objectstore import StoreError

__all__ = ["main", "make_parser"]


def main(arguments: Sequence[str]) -> int:
    """Write one page; return the exit status."""
    return run_command("report", lambda progress: _report(make_parser().parse_args(arguments), progress),
                       CannotInspect, StoreError, _CannotWrite, again="there is no page")


class _CannotWrite(Exception):
    """The page cannot be written."""


def _report(options: argparse.Namespace, progress: Progress) -> int:
    page, problems = asyncio.run(_page(options, progress))
    progress.clear()
    try:
        _write(page, options.output)
    except OSError as error:
        raise _CannotWrite(f"the page cannot be written to {options.output}: {error.strerror}") from None
    if options.output != "-":
        print(f"{printable(options.output)}: {size(len(page.encode()))}, {count(problems)} "
              f"problem{'' if problems == 1 else 's'}")
    return 1 if problems else 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="jetblock report", description="Write one HTML page about a store: streams, sizes, ages, dead bytes, "
        "growth, bill, problems, and what to do. The page needs no other file. Nothing in the store changes.",
        epilog="status: 0 no problem found, 1 problems listed, 2 no page")
    parser.add_argument("store", metavar="STORE_URL", help="file://DIR or s3://BUCKET/PREFIX; a broker may be running")
    parser.add_argument("--output", metavar="FILE", default="jetblock-report.html",
                        help="the page (default: %(default)s); - for standard output")
    parser.add_argument("--verify", action="store_true", help="also read every byte and check everything")
    return parser


async def _page(options: argparse.Namespace, progress: Progress) -> tuple[str, int]:
    source = open_source(options.store)
    try:
        survey = await read_survey(source)
        verified = await verify(source, survey, progress.objects) if options.verify else None
    finally:
        await source.close()
    problems = len(survey.problems) + (len(verified.problems) if verified is not None else 0)
    return report_page(survey, verified, time.time_ns()), problems


def _write(page: str, output: str) -> None:
    """Write the page in one step, so that a reader never gets a part of it."""
    if output == "-":
        sys.stdout.write(page)
        return
    path = Path(output)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.",
                                     delete=False) as new:
        try:
            new.write(page)
            new.close()
            Path(new.name).chmod(0o666 & ~_umask())
            Path(new.name).replace(path)
        except BaseException:
            Path(new.name).unlink(missing_ok=True)
            raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
