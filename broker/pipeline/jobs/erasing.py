"""The job ``erase``: Spark finds the messages, and the broker erases them, with a signed report.

    select, join ──> ranges of sequences ──> TARGET/_jetblock/erasing ──> requests ──> TARGET/erasure-N.json and .html

The sequences are recorded before anything is requested, and until the report is written. A run that is killed is
followed by one that erases them as well, and whose report has the objects of both. Spark reads no more than the query
needs; the choice by sequence costs the broker nothing.

Owns: the choice, the record, the files of the report. Does not own: the erasure (``erasure.carrying_out``).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.pipeline.errors import BadOption, PipelineError
from broker.pipeline.jobs.failures import plain_failures
from broker.pipeline.jobs.importing import load_rows
from broker.pipeline.jobs.target import Target
from broker.pipeline.spark.functions import header, headers_list, register_functions
from broker.pipeline.spark.session import explain_read, read

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from broker.storage.state.seq_ranges import SeqRanges

__all__ = ["ErasedMessages", "erase"]

_PACKAGE: Final = __name__.partition(".pipeline.")[0]
"""``broker``, or ``jetblock._broker`` in an installed wheel."""
_MSG_ID: Final = "Nats-Msg-Id"
_KEYS: Final = ("seq", "msg_id", "subject")
"""The columns of a table that name messages."""
_CHUNK: Final = 1_000_000
"""Sequences whose ranges are found by one task."""

Report = Callable[[str, int, int], object]
"""Receives what is done now, how much of it is done, and how much it is in all; 0: not known."""


@dataclass(frozen=True)
class ErasedMessages:
    """The result of one run.

    chosen: sequences that were found, or left by interrupted runs. messages: those that were removed from streams,
    copies and the messages of interrupted runs included. uncounted: whether an interrupted run may have removed more,
    because it ended before it had the number. deleted and made: numbers of objects. report and page: the files; empty
    if there was nothing to erase.
    """

    account: str
    stream: str
    chosen: int
    messages: int
    uncounted: bool
    deleted: int
    made: int
    report: str
    page: str
    signed_by: str
    not_erased: tuple[str, ...]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@plain_failures()
def erase(spark: SparkSession, *, store: str, stream: str, to: str, account: str = "$G",
          subjects: str | Iterable[str] = (), where: str = "", headers: str | Iterable[str] = (),
          rows: DataFrame | None = None, source: str = "", format: str = "parquet",
          columns: Mapping[str, str] | None = None, read_options: Mapping[str, str] | None = None, server: str = "",
          login: Mapping[str, Any] | None = None, sign: str = "", grace: float = 0.0, dry_run: bool = False,
          report: Report | None = None) -> ErasedMessages:
    """Erase the messages of a stream that fulfil all conditions, and wait until their bytes have left the store.

    Args:
        to: a local directory for the reports and the job's own files.
        subjects: NATS subjects; one must match.
        where: an SQL condition over the columns of the stream and ``msg_id``.
        headers: ``Name`` or ``Name: value``; the message must have all.
        rows: a table whose columns ``seq``, ``msg_id`` and ``subject``, those that it has, name messages. Instead of it
            ``source`` is a directory or URL, or what else ``format`` loads; with the format ``table``, a table's name.
        columns: SQL expressions over the table for ``seq``, ``msg_id`` and ``subject``.
        server: the URL of the broker that has the store; without one, no broker may run on it.
        login: ``user``, ``password``, ``creds``, ``nkey``, ``tls_ca`` for the server.
        sign: the file of the NKey seed that signs the report.
        grace: without a server, for how many seconds replaced objects stay.
        dry_run: count the messages, and erase nothing.
    Raises: PipelineError if the stream cannot be read, if another run uses ``to``, or if the erasure is refused.
    """
    from broker.storage.state.seq_ranges import SeqRanges

    if find_spec(f"{_PACKAGE}.erasure") is None:
        raise PipelineError("the job erase needs an installed jetblock on the driver, because the zip for Spark's "
                            "workers has no broker: run pip install jetblock there")

    began = time.monotonic()
    show = report if report is not None else lambda what, done, of: None
    names = [subjects] if isinstance(subjects, str) and subjects else list(subjects)
    wanted = [headers] if isinstance(headers, str) and headers else list(headers)
    if rows is None and source:
        rows = load_rows(spark.read, source, format, read_options or {}, None)
    if not (names or where or wanted or rows is not None):
        raise BadOption("say which messages: subjects, where, headers, or a table of sequences or message ids")
    place = Target(to)
    if place.local is None:
        raise BadOption(f"{to}: reports are written to a local directory")
    given = {"store": store, "stream": stream, "account": account}
    explain_read(spark, **given)
    with place.locked():
        record = _Record(place.local / "_jetblock" / "erasing", given)
        show("messages found", 0, 0)
        found = SeqRanges(_ranges(_chosen(spark, given, names, where, wanted, _keyed(rows, columns or {}))))
        if dry_run:
            return ErasedMessages(account, stream, found.count, 0, False, 0, 0, "", "", "", (), _since(began))
        found |= record.left
        if not found:
            return ErasedMessages(account, stream, 0, 0, False, 0, 0, "", "", "", (), _since(began))
        record.write(found)
        done, files = _carry_out(found, record, {**given, "server": server, "grace": grace}, login or {}, sign,
                                 place.local, show)
        record.remove()
    return ErasedMessages(account, stream, found.count, done["messages"], record.uncounted, len(done["deleted"]),
                          len(done["made"]), *files, done["signature"]["by"], tuple(done["not_erased"]), _since(began))


def _since(began: float) -> float:
    return round(time.monotonic() - began, 3)


def _keyed(rows: DataFrame | None, columns: Mapping[str, str]) -> DataFrame | None:
    """Return the columns of a table that name messages. Raises: BadOption."""
    from pyspark.sql import functions as F

    if unknown := sorted({*columns} - {*_KEYS}):
        raise BadOption(f"{unknown[0]}: a column names messages as {', '.join(_KEYS)}")
    if rows is None:
        return None
    keys = [F.expr(columns[name]).alias(name) if name in columns else F.col(name) for name in _KEYS
            if name in columns or (not columns and name in rows.columns)]
    if not keys:
        raise BadOption(f"the table has none of the columns {', '.join(_KEYS)}, and none is given: its columns are "
                        f"{', '.join(rows.columns)}")
    return rows.select(*keys).distinct()


def _chosen(spark: SparkSession, given: Mapping[str, str], subjects: list[str], where: str, headers: list[str],
            keyed: DataFrame | None) -> DataFrame:
    """Return the sequences of the messages that fulfil all conditions."""
    from pyspark.sql.types import StructType

    options = {**given, **({"subjects": ",".join(subjects)} if subjects else {})}
    schema = read(spark, **options).schema
    # A column that the condition needs is a word in it; the others need not be read.
    words = {word.lower() for word in re.findall(r"\w+", where)} | {"seq"} | {*(keyed.columns if keyed is not None
                                                                                else ())}
    if headers or "msg_id" in words:
        words.add("headers")
    messages = read(spark, schema=StructType([field for field in schema if field.name in words]), **options)
    register_functions(spark)
    if "msg_id" in words:
        messages = messages.withColumn("msg_id", header("headers", _MSG_ID))
    for text in headers:
        messages = messages.where(_has_header(text))
    if where:
        messages = messages.where(where)
    if keyed is not None:
        messages = messages.join(keyed, keyed.columns, "left_semi")
    return messages.select("seq")


def _has_header(text: str) -> Column:
    """Return whether a message has the header ``Name``, or ``Name: value`` among its values."""
    from pyspark.sql import functions as F

    name, colon, value = text.partition(":")

    def holds(one: Column) -> Column:
        named = one["name"] == F.lit(name.strip())
        return named & (one["value"] == F.lit(value.strip())) if colon else named

    return F.exists(headers_list("headers"), holds)


def _ranges(chosen: DataFrame) -> list[tuple[int, int]]:
    """Return sequences as ranges: of those that follow one another, neither the sequence less its rank differs."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    chunk = F.expr(f"seq div {_CHUNK}").alias("chunk")
    rank = F.row_number().over(Window.partitionBy("chunk").orderBy("seq"))
    islands = chosen.select("seq", chunk).withColumn("island", F.col("seq") - rank)
    return [(row[0], row[1]) for row in islands.groupBy("chunk", "island").agg(
        F.min("seq"), F.max("seq")).select("min(seq)", "max(seq)").toLocalIterator()]


class _Record:
    """The file with the sequences that a run has begun to erase.

    Attributes: ``left``: sequences of earlier runs that wrote no report. ``erasures``: the ids of their erasures, with
        the numbers of messages that these removed. ``uncounted``: whether an earlier run ended between a request and
        the answer, so that messages may be removed that no number includes.
    Raises: BadOption if the file is about another stream.
    """

    def __init__(self, path: Path, given: Mapping[str, str]) -> None:
        from broker.erasure.request import parse_ranges

        self._path = path
        self._given = dict(given)
        self._seqs = ""
        recorded = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if recorded and recorded["of"] != self._given:
            was = recorded["of"]
            raise BadOption(f"{path.parent.parent} has an unfinished erasure of {was['account']}/{was['stream']} in "
                            f"{was['store']}: finish that one first, or choose another target")
        self.left = parse_ranges(recorded.get("seqs", ""))
        self.erasures: dict[str, int] = dict(recorded.get("erasures", {}))
        self.uncounted = bool(recorded.get("uncounted"))
        self._asked = False

    def write(self, seqs: SeqRanges) -> None:
        """Record what will be requested."""
        self._seqs = seqs.text()
        self._write()

    def asks(self) -> None:
        """Record that a part is requested now."""
        self._asked = True
        self._write()

    def requested(self, erasure: str, messages: int) -> None:
        """Record the answer to a request: the id of the erasure, and how many messages it removed."""
        self.erasures[erasure] = messages
        self._asked = False
        self._write()

    def _write(self) -> None:
        temporary = self._path.with_suffix(".new")
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump({"of": self._given, "erasures": self.erasures, "uncounted": self.uncounted or self._asked,
                       "seqs": self._seqs}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)

    def remove(self) -> None:
        """The report is written."""
        self._path.unlink()


def _carry_out(seqs: Any, record: _Record, given: Mapping[str, Any], login: Mapping[str, Any], sign: str,
               folder: Path, show: Report) -> tuple[dict[str, Any], tuple[str, str]]:
    """Erase, and write the report; return it and the names of its files. Raises: PipelineError."""
    try:
        from broker.client.connection import ApiRefusal, ConnectionFailed, Login
        from broker.erasure import report as reports
        from broker.erasure.carrying_out import Target as Where
        from broker.erasure.carrying_out import carry_out
        from broker.erasure.request import Choice
        from broker.storage.format.errors import FormatError, KeyMissing
        from broker.storage.objectstore import StoreError
    except ModuleNotFoundError as error:
        raise PipelineError(f"the driver has no package {error.name}: install all of jetblock on it, not its zip alone"
                            ) from None
    server = given["server"]
    where = Where(given["stream"], "" if server else given["store"], Login(server, **login) if server else None,
                  given["account"], given["grace"])
    try:
        pair = reports.signer(sign)
        # A notebook has an event loop of its own in this thread.
        with ThreadPoolExecutor(1) as thread:
            unsigned = thread.submit(lambda: asyncio.run(carry_out(
                where, Choice(seqs), show, known=dict(record.erasures), asks=record.asks,
                requested=record.requested))).result()
        chosen_by = "a query of Spark" + record.uncounted * (
            "; a run that was interrupted may have removed messages that are not counted")
        report = reports.sign({**unsigned, "chosen_by": chosen_by}, pair)
    except (ApiRefusal, ConnectionFailed, StoreError, FormatError, KeyMissing, reports.BadReport, OSError) as error:
        raise PipelineError(f"{error}: run the job again to finish the erasure") from None
    number = 1 + max((int(path.stem.partition("-")[2]) for path in folder.glob("erasure-*.json")
                      if path.stem.partition("-")[2].isdecimal()), default=0)
    files = folder / f"erasure-{number}.json", folder / f"erasure-{number}.html"
    files[0].write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    files[1].write_text(reports.html(report), encoding="utf-8")
    return report, (str(files[0]), str(files[1]))
