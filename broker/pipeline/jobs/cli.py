"""The jobs among the commands of ``jetblock pipeline``: arguments, session, progress and summary."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from broker.base.output import count, outline, size
from broker.base.progress import Progress
from broker.client.login_flags import add_login_flags, login_of
from broker.pipeline.errors import PipelineError
from broker.pipeline.write.options import WRITE_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["add_jobs"]

_EPILOG = """\
STORE_URL is the broker's --store; s3:// takes region and credentials from the AWS_* environment. TARGET is a directory,
or a URL that Spark can write to. Run the same command again to continue after an interruption.
status: 0 the job is done, 2 it is not, and the reason is on standard error
"""


class Result(Protocol):
    """The result of a job."""

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""


class Job(NamedTuple):
    """A command: its arguments, its function, and its summary."""

    name: str
    help: str
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[SparkSession, argparse.Namespace, Progress], Result]
    summary: Callable[[Any], dict[str, Any]]


def add_jobs(commands: Any) -> None:
    """Add the jobs to the commands of a parser; ``run`` in the parsed arguments is the function of the job."""
    for job in _JOBS:
        parser = commands.add_parser(job.name, help=job.help, description=job.description, epilog=_EPILOG,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("store", metavar="STORE_URL")
        parser.add_argument("stream", metavar="STREAM")
        job.add_arguments(parser)
        parser.add_argument("--account", default="$G", help="account of the stream (default $G)")
        parser.add_argument("--master", default="local[*]", help="Spark's master (default local[*])")
        parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", type=_setting,
                            help="a setting of Spark; may be given several times")
        parser.add_argument("--log", type=Path, metavar="FILE",
                            help="file for Spark's own log (default: a temporary file, kept if the job fails)")
        parser.add_argument("--json", action="store_true", help="one JSON document instead of text")
        parser.set_defaults(run=lambda options, job=job: _run(job, options))


def _run(job: Job, options: argparse.Namespace) -> int:
    from broker.pipeline.jobs.failures import summary
    from broker.pipeline.jobs.session import log_file, session

    progress = Progress(amount=count)
    with log_file(options.log) as log:
        try:
            with session(job.name, options.master, dict(options.conf), log) as spark:
                done = job.run(spark, options, progress)
        except PipelineError as error:
            raise PipelineError(f"{error} (Spark's log: {log})") from None
        except Exception as error:  # Spark's errors have no common base, and their texts have stack traces.
            raise PipelineError(f"{summary(error)} (Spark's log: {log})") from None
        finally:
            progress.clear()
    if options.json:
        json.dump(done.to_json(), sys.stdout, indent=1)
        print()
    else:
        print("\n".join(outline(job.summary(done))))
    return 0


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("to", metavar="TARGET", help="directory or URL; with --format iceberg, a table")
    parser.add_argument("--subjects", metavar="PATTERNS", default="",
                        help="NATS subjects, separated by commas: orders.*.created,alarm.>")
    parser.add_argument("--format", default="parquet", help="parquet (default), delta or iceberg")
    parser.add_argument("--partitionBy", default="day", metavar="COLUMNS",
                        help="day (default) and token1, token2, … of the subject, separated by commas; '' for none")
    parser.add_argument("--payload", default="bytes", help="bytes (default), or json: a column for each field")
    parser.add_argument("--schema", metavar="DDL",
                        help="the fields of JSON payloads, as 'id BIGINT, name STRING' (default: inferred)")
    parser.add_argument("--state", metavar="DIR", help="where the job keeps its state (default TARGET/_jetblock)")
    parser.add_argument("--maxBytesPerTrigger", metavar="SIZE", default="2g",
                        help="bytes of messages in one batch (default 2g)")
    parser.add_argument("--failOnDataLoss", default="true", choices=("true", "false"),
                        help="whether to fail if messages were removed before they were exported (default true)")


def _export(spark: SparkSession, options: argparse.Namespace, progress: Progress) -> Result:
    from broker.pipeline.jobs.export import export

    return export(spark, store=options.store, stream=options.stream, to=options.to, format=options.format,
                  account=options.account, subjects=options.subjects, partition_by=options.partitionBy,
                  payload=options.payload, schema=options.schema, state=options.state,
                  max_bytes_per_trigger=options.maxBytesPerTrigger,
                  fail_on_data_loss=options.failOnDataLoss == "true",
                  report=lambda done, of: progress.show("messages exported", done, of))


def _of_export(done: Any) -> dict[str, Any]:
    return {"exported": f"{count(done.messages)} messages in {_batches(done.batches)}, {done.seconds:.1f} s",
            "target": f"{done.target} ({done.format})",
            "next run": "begins at " + ", ".join(f"{name} {count(seq)}" for name, seq in done.next_seq.items())
            if done.next_seq else "begins where the last one ended: there was nothing new"}


def _add_audit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("to", metavar="TARGET", help="directory or URL for the tables")
    parser.add_argument("--page", metavar="FILE", help="the page, a local file (default TARGET/audit.html)")


def _audit(spark: SparkSession, options: argparse.Namespace, progress: Progress) -> Result:
    from broker.pipeline.jobs.audit import audit

    return audit(spark, store=options.store, stream=options.stream, to=options.to, account=options.account,
                 page=options.page, report=lambda done, of: progress.show("steps", done, of))


def _of_audit(done: Any) -> dict[str, Any]:
    return {"messages": f"{count(done.messages)}, payloads {size(done.bytes)}",
            "sequences": f"{done.first_seq} to {done.last_seq}" if done.messages else "-",
            "missing": f"{count(done.missing)} sequences in {count(done.gaps)} gaps",
            "repeated message IDs": count(done.duplicate_ids),
            "clock steps": f"{count(done.clock_steps)}, the longest {done.held_ns / 1e9:.3f} s",
            "tables": done.target, "page": done.page}


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="directory, file or URL; or what else FORMAT loads")
    parser.add_argument("--state", metavar="DIR", required=True,
                        help="where the job keeps its state; the next run with it continues")
    parser.add_argument("--format", default="parquet",
                        help="parquet (default), json, csv, … or another format of Spark's; table for a table's name")
    parser.add_argument("--schema", metavar="DDL", help="the columns of files, as 'id BIGINT, name STRING' (default: "
                        "inferred)")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", type=_setting,
                        help="an option of Spark's reader; may be given several times")
    parser.add_argument("--column", action="append", default=[], metavar="NAME=SQL", type=_setting,
                        help="an expression for subject, data, headers, msg_id, ts or ts_ns (default: the columns "
                             "with these names, or those of a table of Kafka's); may be given several times")
    parser.add_argument("--orderBy", action="append", default=[], metavar="SQL",
                        help="order of the messages of a batch (default: by time); may be given several times")
    for name, option in WRITE_OPTIONS.items():
        if name not in ("store", "account", "stream", "txnappid", "txnversion"):
            parser.add_argument(f"--{option.name}", dest=name, help=option.about)


def _import(spark: SparkSession, options: argparse.Namespace, progress: Progress) -> Result:
    from broker.pipeline.jobs.importing import import_messages

    sink = {option.name: value for name, option in WRITE_OPTIONS.items()
            if name not in ("store", "account", "stream") and (value := getattr(options, name, None)) is not None}
    return import_messages(spark, store=options.store, stream=options.stream, account=options.account,
                           source=options.source, state=options.state, format=options.format, schema=options.schema,
                           columns=dict(options.column), order_by=options.orderBy, read_options=dict(options.option),
                           report=lambda done, of: progress.show("rows imported", done, of), **sink)


def _of_import(done: Any) -> dict[str, Any]:
    return {"imported": f"{count(done.rows)} rows in {_batches(done.batches)}, {done.seconds:.1f} s",
            "source": f"{done.source} ({done.format})", "stream": f"{done.account}/{done.stream}"}


def _add_erase(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("to", metavar="TARGET", help="a local directory for the signed reports; another run with it "
                                                     "finishes an interrupted one")
    parser.add_argument("--subjects", metavar="PATTERNS", default="",
                        help="NATS subjects, separated by commas: orders.*.created,alarm.>")
    parser.add_argument("--where", metavar="SQL", default="",
                        help="a condition over seq, subject, ts, headers, data, msg_id, …: "
                             "\"ts < '2026-01-01' AND header(headers, 'Customer') = '4711'\"")
    parser.add_argument("--header", action="append", default=[], metavar="NAME[:VALUE]",
                        help="messages with this header; may be given several times")
    parser.add_argument("--from", dest="source", metavar="SOURCE", default="",
                        help="a table whose columns seq, msg_id or subject name messages")
    parser.add_argument("--format", default="parquet",
                        help="parquet (default), json, csv, … or another format of Spark's; table for a table's name")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", type=_setting,
                        help="an option of Spark's reader; may be given several times")
    parser.add_argument("--column", action="append", default=[], metavar="NAME=SQL", type=_setting,
                        help="an expression for seq, msg_id or subject in SOURCE; may be given several times")
    parser.add_argument("--server", default="", metavar="URL",
                        help="the running broker that has the store; without it, no broker may run")
    add_login_flags(parser, " for --server")
    parser.add_argument("--sign", default="", metavar="FILE", help="the NKey seed that signs the report")
    parser.add_argument("--grace", type=float, default=0.0, metavar="SECONDS",
                        help="without --server: keep replaced objects for so long, for readers that run (default 0)")
    parser.add_argument("--dry-run", action="store_true", help="count the messages, and erase nothing")


def _erase(spark: SparkSession, options: argparse.Namespace, progress: Progress) -> Result:
    from broker.pipeline.jobs.erasing import erase

    return erase(spark, store=options.store, stream=options.stream, to=options.to, account=options.account,
                 subjects=options.subjects, where=options.where, headers=options.header, source=options.source,
                 format=options.format, columns=dict(options.column), read_options=dict(options.option),
                 server=options.server, login=login_of(options), sign=options.sign, grace=options.grace,
                 dry_run=options.dry_run, report=progress.show)


def _of_erase(done: Any) -> dict[str, Any]:
    if not done.report:
        return {"found": f"{count(done.chosen)} messages, nothing was erased"}
    least = "at least " if done.uncounted else ""
    return {"erased": f"{least}{count(done.messages)} messages, copies included, {done.seconds:.1f} s",
            "objects": f"{count(done.deleted)} deleted, {count(done.made)} written with what was beside the messages",
            "report": f"{done.report}, signed by {done.signed_by}", "page": done.page,
            **({"not erased": "; ".join(done.not_erased)} if done.not_erased else {})}


def _batches(number: int) -> str:
    return f"{count(number)} batch{'' if number == 1 else 'es'}"


_JOBS = (
    Job("export", "copy a stream to Parquet, Delta or Iceberg",
        "Copy the messages of a stream that earlier runs did not copy to Parquet, Delta or Iceberg, each exactly once.",
        _add_export, _export, _of_export),
    Job("import", "publish what Spark reads to a stream",
        "Publish the rows of files or tables that earlier runs did not publish to a stream, each exactly once.",
        _add_import, _import, _of_import),
    Job("audit", "find gaps, repeated message IDs and clock steps of a stream",
        "Find gaps, repeated message IDs and clock steps of a stream, and count messages by size and time: as Parquet "
        "tables and as one HTML page.",
        _add_audit, _audit, _of_audit),
    Job("erase", "erase the messages that a query finds, with a signed report",
        "Find messages by subject, header, SQL or a table of sequences or message ids, and erase them from the store, "
        "with a signed report. The broker at --server erases, or without one this command, if no broker runs.",
        _add_erase, _erase, _of_erase),
)
