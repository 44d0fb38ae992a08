"""``jetblock pipeline``: the zip for Spark's workers, the jar for its driver, the cost of a query, and jobs on Spark.

Exit status: 0 success; 2 failure (no store, no such stream, wrong credentials, wrong arguments), with the reason on
standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from broker.base.output import count, outline, printable, size
from broker.pipeline.errors import PipelineError
from broker.pipeline.jobs.cli import add_jobs

__all__ = ["main", "make_parser", "parse_arguments"]

_EPILOG = """\
STORE_URL is the broker's --store; s3:// takes region and credentials from the AWS_* environment. STREAM is a name,
several separated by commas, or a pattern with *.
"""
_SELECTING = (
    ("--account", "ACCOUNT", "account of the stream (default $G)"),
    ("--subjects", "PATTERNS", "NATS subjects, separated by commas: orders.*.created,alarm.>"),
    ("--startSeq", "SEQ", "first sequence"),
    ("--endSeq", "SEQ", "last sequence, inclusive"),
    ("--startTime", "TIME", "messages of this time and later: 2026-11-21T14:00:00Z, or Unix ns"),
    ("--endTime", "TIME", "messages before this time"),
    ("--asOf", "SNAPSHOT", "as of a log position EPOCH-NUMBER, seq:N, or a time"),
    ("--targetPartitionBytes", "SIZE", "bytes that one task reads, about: 64m"),
)


def main(arguments: Sequence[str]) -> int:
    """Run one command and return its exit status."""
    try:
        options = parse_arguments(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)
    try:
        status: int = options.run(options)
        return status
    except KeyboardInterrupt:
        return 130
    except PipelineError as error:
        return _cannot(str(error))
    except ModuleNotFoundError as error:
        return _cannot(f"no module {error.name!r}, which jetblock's extra 'spark' installs; in a checkout: pip install "
                       "'.[spark]'")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="jetblock pipeline", description="Streams for Spark.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    archive = commands.add_parser(
        "zip", help="write the zip for spark-submit --py-files",
        description="Write the modules that Spark's workers need to a zip file. They also need msgpack, zstandard, "
                    "numpy, pyarrow and obstore.")
    archive.add_argument("out", metavar="OUT.zip", type=Path)
    archive.set_defaults(run=_zip)
    jar = commands.add_parser(
        "jar", help="compile the jar for spark-submit --jars",
        description="Compile a small jar for the Spark that is installed here (or in SPARK_HOME). With it on Spark's "
                    "class path, queries read only the columns and rows they need, and tables can be created. Needs a "
                    "JDK.")
    jar.add_argument("out", metavar="OUT.jar", type=Path)
    jar.add_argument("--name", default="jetblock",
                     help="what queries call it (default jetblock, in place of the Python source)")
    jar.set_defaults(run=_jar)
    plan = commands.add_parser(
        "plan", help="estimate how many blocks and bytes a query will read", epilog=_EPILOG,
        description="Estimate how many blocks and bytes a query will read. Only the store's catalogue is read.")
    plan.add_argument("store", metavar="STORE_URL")
    plan.add_argument("stream", metavar="STREAM")
    for flag, metavar, text in _SELECTING:
        plan.add_argument(flag, metavar=metavar, help=text)
    plan.add_argument("--json", action="store_true", help="one JSON document instead of text")
    plan.set_defaults(run=_plan)
    add_jobs(commands)
    return parser


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; ``run`` in the result is the function of the command. Raises: SystemExit(2) after a
    message."""
    parser = make_parser()
    return parser.parse_args(list(arguments))


def _zip(options: argparse.Namespace) -> int:
    from broker.pipeline.bundle import write_zip

    return _write_file(options.out, ".zip", lambda file: f"{write_zip(file)} modules")


def _jar(options: argparse.Namespace) -> int:
    from broker.pipeline.jar import write_jar

    return _write_file(options.out, ".jar", lambda file: f"for Spark {write_jar(file, options.name)}")


def _write_file(out: Path, suffix: str, write: Callable[[IO[bytes]], str]) -> int:
    """Write a file whole or not at all, and print the description that ``write`` returns."""
    if out.suffix != suffix:
        return _cannot(f"{out}: Spark takes this file only if its name ends in {suffix}")
    new = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with new.open("wb") as file:
            what = write(file)
        new.replace(out)
    except OSError as error:
        return _cannot(f"{out}: {error.strerror}")
    finally:
        new.unlink(missing_ok=True)
    print(f"{out}: {what}, {size(out.stat().st_size)}")
    return 0


def _plan(options: argparse.Namespace) -> int:
    from broker.pipeline.read.query import forecast

    given = {flag[2:]: value for flag, _, _ in _SELECTING if (value := getattr(options, flag[2:])) is not None}
    found = forecast({"store": options.store, "stream": options.stream, **given})
    if options.json:
        json.dump(found, sys.stdout, indent=1)
        print()
        return 0
    shown: dict[str, Any] = {
        "streams": ", ".join(f"{one['account']}/{one['stream']}" for one in found["streams"]),
        "blocks": f"{count(found['blocks'])} of {count(found['blocks_of'])}",
        "excluded": f"{_blocks(found['blocks_of'] - found['blocks'])}, without reading anything of them",
        **_undecided(found["unsure_blocks"]),
        "messages": f"at most {count(found['messages'])}",
        "indexes": size(found["index_bytes"]),
        "frames": f"{'at most ' if found['unsure_blocks'] else ''}{size(found['frames_bytes'])}, if headers or data "
                  "are read",
        "partitions": count(found["partitions"]),
    }
    print("\n".join(outline(shown)))
    return 0


def _undecided(blocks: int) -> dict[str, str]:
    """Describe the blocks that the catalogue cannot exclude, if any. For a subject that no message has, this line shows
    why blocks are counted."""
    if not blocks:
        return {}
    return {"undecided": f"{_blocks(blocks)}, of which only the index can tell whether they hold what is wanted"}


def _blocks(number: int) -> str:
    return f"{count(number)} block{'' if number == 1 else 's'}"


def _cannot(why: str) -> int:
    print(f"jetblock pipeline: {printable(why)}", file=sys.stderr)
    return 2
