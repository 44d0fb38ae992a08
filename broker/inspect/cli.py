"""``jetblock inspect STORE_URL [what]``: inspect a store, and change nothing.

Exit status: 0 no problem found; 1 problems listed; 2 nothing could be inspected (no store, no such stream, wrong
credentials, wrong arguments), and the reason is on standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import IO, Any

from broker.base.output import Table, count, outline, plain, printable, size, when
from broker.base.progress import Progress
from broker.base.suggest import did_you_mean
from broker.config.arguments import natural
from broker.inspect.dump import dump, read_object
from broker.inspect.messages import read_messages
from broker.inspect.objects import Checked, read_head
from broker.inspect.plain import plain_objects
from broker.inspect.problems import RESTORE, Problem, of_error
from broker.inspect.report import (
    consumer_json,
    epoch_json,
    epoch_table,
    overview_json,
    overview_text,
    problem_lines,
    shard_json,
    stream_detail,
    stream_json,
    stream_table,
)
from broker.inspect.shardview import NoStream, find_stream, key_of, require_shard
from broker.inspect.source import CannotInspect, Source, each, open_source, read_format
from broker.inspect.survey import Survey, read_survey
from broker.inspect.verify import Diagnosis, verify
from broker.protocol import headers
from broker.protocol.subject import is_valid
from broker.storage.format.claim import Seal
from broker.storage.format.errors import FormatError, KeyMissing
from broker.storage.format.header import ObjectHeader, ObjectKind, Position
from broker.storage.objectstore import NotFound, ObjectInfo, StoreError
from broker.storage.paths import Key, parse

__all__ = ["inspect", "main", "make_parser", "parse_arguments"]

_EPILOG = """\
what:
  (nothing)         an overview: format, shards, epochs, log, checkpoints, streams, problems
  shards            each shard's log and checkpoints
  epochs            the shard's owners, and where each epoch ends
  streams           all streams
  stream NAME       one stream: numbers, configuration, consumers
  segments          the entries of the log, one by one
  blocks NAME       the blocks of a stream that hold live messages, and their objects
  messages NAME     the messages of a stream          --from SEQ --limit N --subject PATTERN
  consumers NAME    the consumers of a stream
  plain             the objects that are not encrypted, in a store that is or will be
  dump KEY          the object at a key, decoded as far as possible              --limit MESSAGES

A stream is NAME, ACCOUNT/NAME, or its incarnation. STORE_URL is the broker's --store; s3:// takes
region and credentials from the AWS_* environment.
status: 0 no problem found, 1 problems listed, 2 nothing could be inspected
"""
_NAMED = {"stream": "NAME", "blocks": "NAME", "messages": "NAME", "consumers": "NAME", "dump": "KEY"}
_WHAT = ("overview", "shards", "epochs", "streams", "segments", "plain", *_NAMED)
_LIMITED = ("messages", "segments", "blocks", "plain", "dump")
_PAGE_ROWS = 500


def main(arguments: Sequence[str]) -> int:
    """Run one inspection; return the exit status."""
    try:
        options = parse_arguments(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)
    try:
        return asyncio.run(_main(options))
    except KeyboardInterrupt:
        return 130


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="jetblock inspect", usage="jetblock inspect STORE_URL [what] [options]", epilog=_EPILOG,
        description="Inspect a store, read-only. No broker is needed, and one may be running.",
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", metavar="STORE_URL", help="file://DIR or s3://BUCKET/PREFIX")
    parser.add_argument("what", nargs="?", default="overview", help="see below")
    parser.add_argument("name", nargs="?", help="a stream's name, or a key")
    parser.add_argument("--verify", action="store_true", help="read every byte and check everything")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of text")
    parser.add_argument("--shard", type=natural, metavar="N", help="inspect only this shard")
    parser.add_argument("--from", dest="first_seq", type=natural, metavar="SEQ", help="messages from this sequence on")
    parser.add_argument("--limit", type=natural, metavar="N", help="rows at most; in a dump, messages of each block")
    parser.add_argument("--subject", metavar="PATTERN", help="messages whose subject matches")
    return parser


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line. Raises: SystemExit(2) after a message."""
    parser = make_parser()
    options = parser.parse_intermixed_args(list(arguments))
    what = options.what
    if what not in _WHAT:
        parser.error(f"there is no view {what!r}; one of {', '.join(_WHAT)}{did_you_mean(what, _WHAT)}")
    if (what in _NAMED) != (options.name is not None):
        parser.error(f"{what} takes {'a ' + _NAMED[what] if what in _NAMED else 'no name'}")
    if options.verify and what != "overview":
        parser.error("--verify checks the whole store: name no view")
    if what != "messages" and (options.first_seq is not None or options.subject is not None):
        parser.error("--from and --subject select messages: write `messages NAME`")
    if options.limit is not None and what not in _LIMITED:
        parser.error(f"--limit goes with {', '.join(_LIMITED)}")
    if options.subject is not None and not is_valid(options.subject.encode("utf-8", "surrogateescape")):
        parser.error(f"{options.subject!r} is no subject")
    return options


async def _main(options: argparse.Namespace) -> int:
    try:
        source = open_source(options.store)
    except CannotInspect as error:
        return _cannot(error, sys.stderr)
    try:
        return await inspect(source, options, sys.stdout, sys.stderr)
    finally:
        await source.close()


async def inspect(source: Source, options: argparse.Namespace, out: IO[str], err: IO[str]) -> int:
    """Show the view that the options name; return the exit status."""
    try:
        return await _Inspection(source, options, out, err).run()
    except (CannotInspect, KeyMissing, NoStream, StoreError) as error:
        return _cannot(error, err)


def _cannot(error: Exception, err: IO[str]) -> int:
    print(f"jetblock inspect: {printable(str(error))}{getattr(error, 'remedy', '')}", file=err)
    return 2


class _Inspection:
    def __init__(self, source: Source, options: argparse.Namespace, out: IO[str], err: IO[str]) -> None:
        self.source = source
        self.options = options
        self.json: bool = options.json
        self.out = out
        self.err = err
        self.problems: list[Problem] = []

    async def run(self) -> int:
        show: dict[str, Callable[[], Any]] = {
            "overview": self.overview, "shards": self.shards, "epochs": self.epochs, "streams": self.streams,
            "stream": self.stream, "segments": self.segments, "blocks": self.blocks, "messages": self.messages,
            "consumers": self.consumers, "plain": self.plain, "dump": self.dump}
        if self.options.shard is not None:
            await require_shard(self.source, self.options.shard)
        if self.source.note:
            print(self.source.note, file=self.err)
        await show[self.options.what]()
        return 1 if self.problems else 0

    # Views that are one value.

    def print(self, lines: Iterable[str]) -> None:
        for line in lines:
            print(line, file=self.out)

    def print_value(self, value: dict[str, Any], lines: Callable[[], list[str]]) -> None:
        """Print one value: as JSON with the problems, or as text with the problems on standard error."""
        if self.json:
            json.dump(value | {"problems": [problem.to_json() for problem in self.problems]}, self.out, indent=1)
            print(file=self.out)
        else:
            self.print(lines())
            self.print_problems()

    def print_problems(self) -> None:
        if self.problems:
            print("\n".join(problem_lines(self.problems)), file=self.err)

    async def survey(self) -> Survey:
        survey = await read_survey(self.source, self.options.shard)
        self.problems += survey.problems
        return survey

    async def overview(self) -> None:
        survey = await self.survey()
        verified = None
        if self.options.verify:
            progress = Progress(self.err)
            verified = await verify(self.source, survey, progress.objects)
            progress.clear()
        if verified is not None:
            self.problems += verified.problems
        if self.json:
            json.dump(overview_json(survey, verified), self.out, indent=1)
            print(file=self.out)
        else:
            self.print(overview_text(survey, verified))

    async def shards(self) -> None:
        survey = await self.survey()
        rows = [{name: value for name, value in shard_json(shard).items() if name != "epochs"}
                for shard in survey.shards]
        self.print_value({"shards": rows}, lambda: outline(rows))

    async def epochs(self) -> None:
        survey = await self.survey()

        def lines() -> list[str]:
            return [line for shard in survey.shards for line in (
                *([f"shard {shard.paths.shard}"] if len(survey.shards) > 1 else []), *epoch_table(shard))]

        self.print_value({"epochs": [epoch_json(epoch) | {"shard": shard.paths.shard}
                                     for shard in survey.shards for epoch in shard.epochs]}, lines)

    async def streams(self) -> None:
        survey = await self.survey()
        self.print_value({"streams": [stream_json(stream, shard) for shard, stream in survey.streams]},
                         lambda: stream_table(survey))

    async def stream(self) -> None:
        view, stream = await self.find_stream()
        value = stream_detail(stream, view.paths.shard)
        self.print_value(value, lambda: outline(value))

    async def consumers(self) -> None:
        _, stream = await self.find_stream()
        whole = [consumer_json(consumer, whole=True) for consumer in stream.consumers.values()]
        table = Table(["consumer", "delivered", "ack floor", "ack pending", "redelivered", "last active", "filter"],
                      ["delivered", "ack floor", "ack pending", "redelivered"])
        for consumer in stream.consumers.values():
            config = consumer.config
            subjects = config.get("filter_subjects") or [config.get("filter_subject") or ">"]
            table.add(consumer.name, consumer.delivered_sseq, consumer.floor_sseq, len(consumer.pending),
                      len(consumer.redelivered), when(consumer.last_active_ns), " ".join(map(str, subjects)))
        self.print_value({"stream": stream.name, "account": stream.account, "consumers": whole},
                         lambda: table.flush() if len(table) else ["no consumers"])

    async def dump(self) -> None:
        key, data = await read_object(self.source, self.options.name)
        limit = self.options.limit
        value = dump(key, data, limit if limit is not None or self.json else 20)
        self.problems += [Problem(key, row["what"], "this part of the object cannot be used", RESTORE, row["section"],
                                  row["offset"]) for row in value["wrong"]]
        self.print_value(value, lambda: outline(value))

    async def find_stream(self) -> Any:
        _, problems = await read_format(self.source)
        view, stream = await find_stream(self.source, self.options.name, shard=self.options.shard)
        self.problems += problems + view.problems
        if stream.offline is not None:
            self.problems.append(Problem(f"stream {stream.account}/{stream.name}", stream.offline,
                                         "the stream is offline: its state before this is shown", RESTORE))
        return view, stream

    # Views that are rows, printed one at a time: a long list is never held in memory.

    async def print_rows(self, name: str, value: dict[str, Any],
                         rows: AsyncIterator[tuple[dict[str, Any], Sequence[Any]]], table: Table) -> None:
        """Print rows: as JSON, ``value`` with the list ``name`` and one row per line; or as a table.

        Args: rows yields each row as a JSON value, and as the cells of the table.
        """
        limit = self.options.limit
        shown = 0
        if self.json:
            begin = json.dumps(value)[:-1]
            self.out.write(f"{begin}{', ' if value else ''}{json.dumps(name)}: [")
        async for row, cells in rows:
            if limit is not None and shown >= limit:
                break
            if self.json:
                self.out.write(f"{',' if shown else ''}\n{json.dumps(row)}")
            else:
                table.add(*cells)
                if len(table) >= _PAGE_ROWS:
                    self.print(table.flush())
            shown += 1
        if self.json:
            self.out.write(f"\n], \"problems\": {json.dumps([problem.to_json() for problem in self.problems])}}}\n")
            return
        self.print(table.flush())
        self.print_problems()

    async def messages(self) -> None:
        view, stream = await self.find_stream()
        options = self.options
        subject = options.subject.encode("utf-8", "surrogateescape") if options.subject is not None else None

        async def rows() -> AsyncIterator[tuple[dict[str, Any], Sequence[Any]]]:
            async for message in read_messages(self.source, stream.name, first_seq=options.first_seq or 1,
                                               limit=options.limit, subject=subject, view=(view, stream),
                                               faults=self.problems.append):
                pairs = headers.items(message.headers) if message.headers else []
                value: dict[str, Any] = {"seq": message.seq, "time": when(message.time_ns), "time_ns": message.time_ns,
                                         "subject": plain(message.subject)}
                if message.headers:
                    value["headers"] = [[plain(name), plain(text)] for name, text in pairs]
                value["data"] = plain(message.data)
                yield value, (message.seq, when(message.time_ns), message.subject, len(pairs),
                              len(message.data), message.data[:48] if not self.json else b"")

        await self.print_rows("messages", {"account": stream.account, "stream": stream.name}, rows(), Table(
            ["seq", "time", "subject", "headers", "bytes", "begins"], ["seq", "headers", "bytes"]))

    async def blocks(self) -> None:
        view, stream = await self.find_stream()

        async def rows() -> AsyncIterator[tuple[dict[str, Any], Sequence[Any]]]:
            for entry in stream.blocks:
                ref = entry.ref
                stored = ref.core_bytes + ref.index_bytes + ref.frames_bytes
                key = key_of(view.paths, stream, ref)
                subjects = len(ref.subjects) if ref.subjects is not None else None
                yield ({"first_seq": ref.first_seq, "last_seq": ref.last_seq, "messages": ref.count,
                        "dead_messages": entry.dead_count, "bytes": ref.bytes, "stored_bytes": stored,
                        "first_time": when(ref.first_time_ns), "last_time": when(ref.last_time_ns),
                        "subjects": subjects, "object": key, "core_offset": ref.core_offset,
                        "index_offset": ref.index_offset, "index_bytes": ref.index_bytes,
                        "frames_offset": ref.frames_offset, "frames_bytes": ref.frames_bytes},
                       (ref.first_seq, ref.last_seq, count(ref.count), count(entry.dead_count), size(ref.bytes),
                        size(stored), when(ref.first_time_ns), "many" if subjects is None else subjects, key))

        await self.print_rows("blocks", {"account": stream.account, "stream": stream.name}, rows(), Table(
            ["first_seq", "last_seq", "messages", "dead", "bytes", "stored", "first message", "subjects", "object"],
            ["first_seq", "last_seq", "messages", "dead", "bytes", "stored", "subjects"]))

    async def plain(self) -> None:
        await read_format(self.source)

        async def rows() -> AsyncIterator[tuple[dict[str, Any], Sequence[Any]]]:
            async for one in plain_objects(self.source):
                yield ({"object": one.key, "stored_bytes": one.size, "plain_parts": one.plain, "parts": one.parts,
                        "streams": [f"{stream:016x}" for stream in one.streams if stream]},
                       (one.key, size(one.size), one.plain, one.parts))

        await self.print_rows("plain", {}, rows(), Table(
            ["object", "stored", "plain", "parts"], ["stored", "plain", "parts"]))

    async def segments(self) -> None:
        survey = await self.survey()

        async def rows() -> AsyncIterator[tuple[dict[str, Any], Sequence[Any]]]:
            for shard in survey.shards:
                diagnosis = Diagnosis(shard)
                entries = (ObjectInfo(shard.paths.log(position), size_) for position, size_ in shard.log)
                positions = (position for position, _ in shard.log)
                found = each(entries, partial(self._entry, diagnosis=diagnosis), self.source.at_once,
                             gently=self.options.limit is not None)
                async for info, value in found:
                    position = next(positions)
                    if value is None:
                        continue  # it was deleted after the listing
                    yield ({"shard": shard.paths.shard, "position": str(position), "object": info.key,
                            "stored_bytes": info.size} | value,
                           (str(position), value["kind"], size(info.size), value["blocks"], value["messages"],
                            size(value["raw_bytes"]), value["live_blocks"], value["state"]))

        await self.print_rows("segments", {}, rows(), Table(
            ["position", "kind", "stored", "blocks", "messages", "raw", "live", "state"],
            ["stored", "blocks", "messages", "raw", "live"]))

    async def _entry(self, info: ObjectInfo, diagnosis: Diagnosis) -> dict[str, Any] | None:
        """Describe an entry of the log by its head; None if it has been deleted."""
        key = parse(info.key)
        assert key is not None
        assert key.position is not None
        value: dict[str, Any] = {"kind": "segment", "blocks": 0, "messages": 0, "raw_bytes": 0, "live_blocks": 0,
                                 "state": ""}
        try:
            await self._describe(info, key, key.position, diagnosis, value)
        except NotFound:
            return None
        except FormatError as error:
            value["state"] = f"damaged: {error.section}: {error.why}"
            self.problems.append(of_error(info.key, error, "see --verify"))
        return value

    async def _describe(self, info: ObjectInfo, key: Key, position: Position, diagnosis: Diagnosis,
                        value: dict[str, Any]) -> None:
        checked = Checked(info, key)
        data = await self.source.get(info.key, 0, 4096)
        checked.header = ObjectHeader.unpack(data, info.key)
        if checked.header.kind == ObjectKind.SEAL:
            seal = Seal.decode(data, position)
            value |= {"kind": "seal", "state": f"ends its epoch, by {seal.sealer} at {when(seal.at_ns)}"}
            return

        async def read(start: int, end: int) -> bytes:
            return data[start:end] if end <= len(data) else await self.source.get(info.key, start, end)

        head = await read_head(read, info, key)
        live = diagnosis.live.get(info.key, ())
        value |= {"blocks": len(head), "messages": sum(row.messages for row in head.rows),
                  "raw_bytes": sum(row.raw_bytes for row in head.rows), "live_blocks": len(live)}
        orphan = diagnosis.orphan(checked)
        if orphan is not None:
            value["state"] = f"orphan: {orphan}"
        elif position in diagnosis.released:
            value["state"] = "released, to be deleted"
        elif live:
            value["state"] = "holds live messages"
        elif diagnosis.root is None or position > diagnosis.root.replay_from:
            value["state"] = "replayed at a start"
        else:
            value["state"] = "nothing live"
