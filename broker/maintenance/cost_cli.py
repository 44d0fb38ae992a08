"""``jetblock cost``: the costs of a load on S3 in a month. The load is given, or measured in a store.

Exit status: 0; 2 for wrong arguments, or a store that cannot be read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from typing import Any, NamedTuple

from broker.base.gotime import format_duration
from broker.base.output import Table, count, printable, size
from broker.config.arguments import bytes_number, natural, seconds
from broker.inspect.source import CannotInspect, open_source
from broker.inspect.survey import Survey, read_survey, stream_row
from broker.maintenance.cost import Bill, Load, Prices, bill
from broker.storage.objectstore import StoreError

__all__ = ["TooYoung", "main", "make_parser", "measure_load"]


class _Option(NamedTuple):
    """A field of ``Load`` on the command line."""

    metavar: str
    about: str
    parse: Callable[[str], float]
    show: Callable[[Any], str] = "{:g}".format
    """Formats the default value for the help text."""


def _show_seconds(value: float) -> str:
    shown = format_duration(round(value * 1e6) * 1000)
    return shown.removesuffix("0s") if shown.endswith("m0s") else shown


_LOAD: dict[str, _Option] = {
    "messages": _Option("N", "messages a second", float),
    "size": _Option("BYTES", "size of a message: headers, subject, payload", bytes_number, size),
    "streams": _Option("N", "streams that the messages go to", natural),
    "subjects": _Option("N", "subjects that the messages of each stream have", natural),
    "days": _Option("N", "days for which messages are kept", float),
    "stored": _Option("SHARE", "stored bytes after compression, as a share of the bytes before", float),
    "cold_gets": _Option("N", "single messages a second that are read and are not in the broker's cache", float),
    "standbys": _Option("N", "brokers that wait to take over", natural),
    "shards": _Option("N", "shards of the store; all messages go to one of them", natural),
    "commit_interval_s": _Option("DURATION", "commit_interval", seconds, _show_seconds),
    "segment_bytes": _Option("BYTES", "segment_bytes", bytes_number, size),
    "lease_s": _Option("DURATION", "lease", seconds, _show_seconds),
    "inbox_interval_s": _Option("DURATION", "inbox_interval; 0: the broker reads the inbox only on request", seconds,
                                _show_seconds),
}
_HOUR_SECONDS = 3600.0
_PRICES = {"puts": "price of 1000 PUTs or LISTs", "gets": "price of 1000 GETs",
           "storage": "price of storing one GB for a month", "egress": "price of reading one GB"}


def main(arguments: Sequence[str]) -> int:
    """Print one bill; return the exit status."""
    try:
        options = _parse(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)
    load = Load(messages=0)
    try:
        if options.store is not None:
            load = asyncio.run(_load_of(options.store, time.time_ns(), any_age=options.messages is not None))
    except KeyboardInterrupt:
        return 130
    except (CannotInspect, StoreError, TooYoung) as error:
        print(f"jetblock cost: {printable(str(error))}", file=sys.stderr)
        return 2
    given = {name: value for name in _LOAD if (value := getattr(options, name)) is not None}
    load = replace(load, compaction=not options.no_compaction, ids=options.ids, **given)
    prices = Prices(**{name: value for name in _PRICES if (value := getattr(options, f"price_{name}")) is not None})
    found = bill(load, prices)
    if options.json:
        json.dump({"load": asdict(load), "prices": asdict(prices), "month": found.to_json()}, sys.stdout, indent=1)
        print()
    else:
        print("\n".join(_lines(load, found)))
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="jetblock cost", description="Requests, bytes and dollars of a month of constant load on S3.",
        epilog="Prices are list prices of AWS S3 Standard (us-east-1, 2025) unless given. docs/COST.md has the rules.")
    parser.add_argument("store", metavar="STORE_URL", nargs="?", help="file://DIR or s3://BUCKET/PREFIX: a store "
                        "whose messages, age and commits give the load, except for the options that are set")
    parser.add_argument("--store", dest="store_option", metavar="STORE_URL", help="the same")
    defaults = {field.name: field.default for field in fields(Load)}
    for name, option in _LOAD.items():
        default = defaults[name]
        text = f"{option.about} (default {option.show(default)})" if isinstance(default, (int, float)) else option.about
        parser.add_argument(f"--{name.removesuffix('_s').replace('_', '-')}", dest=name, type=option.parse,
                            metavar=option.metavar, help=text)
    parser.add_argument("--ids", action="store_true", help="messages have a Nats-Msg-Id")
    parser.add_argument("--no-compaction", action="store_true", help="the broker runs with compaction: false")
    for name, text in _PRICES.items():
        parser.add_argument(f"--price-{name}", type=float, metavar="DOLLARS", help=text)
    parser.add_argument("--json", action="store_true", help="one JSON document instead of text")
    return parser


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = make_parser()
    options = parser.parse_intermixed_args(list(arguments))
    if options.store is not None and options.store_option is not None:
        parser.error("give one store, STORE_URL or --store STORE_URL")
    options.store = options.store or options.store_option
    if options.messages is None and options.store is None:
        parser.error("give a load, --messages N, or the STORE_URL of a store to take it from")
    for name in (*_LOAD, *(f"price_{price}" for price in _PRICES)):
        value = getattr(options, name)
        least = 1 if name in ("segment_bytes", "shards", "streams", "subjects") else 0
        if value is not None and not least <= value < 1e15:
            parser.error(f"--{name.removesuffix('_s').replace('_', '-')} takes a number from {least} on")
    if options.stored is not None and options.stored > 1:
        parser.error("--stored takes a share from 0 to 1: 0.4 for 40 percent")
    if options.lease_s == 0:
        parser.error("--lease takes a number above 0")
    return options


class TooYoung(Exception):
    """The store's streams are too young to estimate the load of a month."""


async def _load_of(url: str, now_ns: int, *, any_age: bool) -> Load:
    source = open_source(url)
    try:
        return measure_load(await read_survey(source), now_ns, any_age=any_age)
    finally:
        await source.close()


def measure_load(survey: Survey, now_ns: int, *, any_age: bool = False) -> Load:
    """Estimate the load of a store: all messages that each stream ever got, over the time since the stream was created.

    A stream younger than an hour counts as one hour old, so that a short burst does not become the load of a month.

    Args: ``any_age`` is for callers that do not need the rate: it allows younger streams.
    Raises: TooYoung if no stream with messages is an hour old.
    """
    messages = raw = stored = days = eldest_s = commits = 0.0
    streams = 0
    for _, stream in survey.streams:
        if not stream.msgs:
            continue
        age_s = max(0, now_ns - min(stream.created_ns, stream.first_time_ns)) / 1e9
        published = max(stream.msgs, stream.last_seq - int(stream.config.get("first_seq") or 1) + 1)
        rate = published / max(age_s, _HOUR_SECONDS)
        row = stream_row(stream)
        streams += 1
        messages += rate
        raw += rate * stream.bytes / stream.msgs
        stored += rate * (row.stored_bytes - row.dead_stored_bytes) / stream.msgs
        days = max(days, (now_ns - stream.first_time_ns) / 1e9 / 86_400)
        eldest_s = max(eldest_s, age_s)
    for shard in {id(shard): shard for shard, stream in survey.streams if stream.msgs}.values():
        opening, end = shard.view.state.opening, shard.view.state.position
        if opening is not None and now_ns > opening.at_ns:
            commits += end.number / ((now_ns - opening.at_ns) / 1e9)
    if streams and eldest_s < _HOUR_SECONDS and not any_age:
        raise TooYoung(f"{survey.url}: the oldest stream with messages in this store is {eldest_s:.1f} s old, and less "
                       f"than an hour does not show the load of a month: give the number of messages in a second by "
                       f"--messages N; the rest is taken from the store")
    load = Load(messages=messages, shards=max(len(survey.shards), 1))
    if not streams:
        return load
    load = replace(load, streams=streams, size=raw / messages, stored=min(1.0, stored / raw))
    if eldest_s < _HOUR_SECONDS:
        return load
    load = replace(load, days=days)
    # If there are fewer commits than messages, use the interval that gives this number of commits.
    return replace(load, commit_interval_s=1 / commits) if 0 < commits < messages else load


def _lines(load: Load, found: Bill) -> list[str]:
    compaction = "on" if load.compaction else "off"
    lines = [f"load         {load.messages:g} messages/s of {load.size:.0f} bytes, in "
             f"{_number(load.streams, 'stream')}, kept for {load.days:g} days",
             f"settings     commit_interval {_show_seconds(load.commit_interval_s)}, compaction {compaction}, "
             f"{_number(load.standbys, 'standby')}{f', {load.shards} shards' if load.shards > 1 else ''}", ""]
    table = Table(["a month", "number", "dollars"], ["number", "dollars"])
    rows: list[tuple[str, Any, float | None]] = [
        ("PUT", count(round(found.puts)), None), ("LIST", count(round(found.lists)), found.puts_dollars),
        ("GET", count(round(found.gets)), found.gets_dollars), ("DELETE", count(round(found.deletes)), 0.0),
        ("written", size(round(found.written)), None), ("read", size(round(found.read)), found.egress_dollars),
        ("stored", size(round(found.stored)), found.storage_dollars), ("all", "", found.dollars)]
    for name, number, dollars in rows:
        table.add(name, number, "" if dollars is None else f"{dollars:.2f}")
    return [*lines, *table.flush(), "",
            "PUTs for: " + ", ".join(f"{name} {count(round(n))}" for name, n in found.parts.items())]


def _number(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
