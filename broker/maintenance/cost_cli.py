"""``jetblock cost``: what a load costs on S3 in a month, or that of a store as its log shows it.

Exit status: 0; 2 for wrong arguments, or a store that cannot be read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from broker.inspect.source import CannotInspect, open_source
from broker.inspect.survey import Survey, read_survey, stream_row
from broker.maintenance.cost import Bill, Load, Prices, bill
from broker.output import Table, count, printable, size
from broker.storage.objectstore import StoreError

__all__ = ["main", "measured"]

_LOAD: dict[str, tuple[str, str]] = {
    "messages": ("N", "messages a second"),
    "size": ("BYTES", "of a message: headers, subject, payload"),
    "streams": ("N", "that the messages go to"),
    "subjects": ("N", "that the messages of each stream have"),
    "days": ("N", "for which messages are kept"),
    "stored": ("SHARE", "of the bytes that compression leaves"),
    "cold_gets": ("N", "single messages a second that are read and not in the broker's cache"),
    "standbys": ("N", "brokers that wait to take over"),
    "commit_interval_s": ("SECONDS", "commit_interval"),
    "segment_bytes": ("BYTES", "segment_bytes"),
    "lease_s": ("SECONDS", "lease"),
    "inbox_interval_s": ("SECONDS", "inbox_interval; 0: the inbox is not looked at"),
}
_PRICES = {"puts": "of 1000 PUTs or LISTs", "gets": "of 1000 GETs", "storage": "of a GB for a month",
           "egress": "of a GB that is read"}


def main(arguments: Sequence[str]) -> int:
    """Print one bill; returns the exit status."""
    try:
        options = _parse(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)
    load = Load(messages=0)
    try:
        if options.store is not None:
            load = asyncio.run(_of_store(options.store))
    except (CannotInspect, StoreError) as error:
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


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="jetblock cost", description="Requests, bytes and dollars of a month of constant load on S3.",
        epilog="Prices are list prices of AWS S3 Standard (us-east-1, 2025) unless given. docs/COST.md has the rules.")
    parser.add_argument("--store", metavar="STORE_URL", help="take what is not given from this store: what its streams hold and "
                                                             "since when, and how often its broker commits")
    defaults = {field.name: field.default for field in fields(Load)}
    for name, (metavar, text) in _LOAD.items():
        kind = int if name in ("streams", "subjects", "standbys", "segment_bytes") else float
        said = f"{text} (default {defaults[name]:g})" if isinstance(defaults[name], (int, float)) else text
        parser.add_argument(f"--{name.removesuffix('_s').replace('_', '-')}", dest=name, type=kind, metavar=metavar, help=said)
    parser.add_argument("--ids", action="store_true", help="messages have a Nats-Msg-Id")
    parser.add_argument("--no-compaction", action="store_true", help="as with compaction: false")
    for name, text in _PRICES.items():
        parser.add_argument(f"--price-{name}", type=float, metavar="DOLLARS", help=text)
    parser.add_argument("--json", action="store_true", help="one JSON document instead of text")
    options = parser.parse_args(list(arguments))
    if options.messages is None and options.store is None:
        parser.error("give a load, --messages N, or a --store to take it from")
    for name in (*_LOAD, *(f"price_{price}" for price in _PRICES)):
        value = getattr(options, name)
        least = 1 if name in ("segment_bytes", "streams", "subjects") else 0
        if value is not None and not least <= value < 1e15:
            parser.error(f"--{name.removesuffix('_s').replace('_', '-')} takes a number from {least} on")
    if options.lease_s == 0:
        parser.error("--lease takes a number above 0")
    return options


async def _of_store(url: str) -> Load:
    source = open_source(url)
    try:
        return measured(await read_survey(source))
    finally:
        await source.close()


def measured(survey: Survey) -> Load:
    """The load that a store shows: each stream's messages and bytes over the time from its first message to its last."""
    messages = raw = stored = 0.0
    days = 0.0
    streams = 0
    seconds_of_log = commits = 0.0
    for shard, stream in survey.streams:
        if stream.msgs < 2 or stream.last_time_ns <= stream.first_time_ns:
            continue
        seconds = (stream.last_time_ns - stream.first_time_ns) / 1e9
        streams += 1
        messages += (stream.msgs - 1) / seconds
        raw += stream.bytes / seconds
        row = stream_row(stream)
        stored += (row.stored_bytes - row.dead_stored_bytes) / seconds
        days = max(days, seconds / 86_400)
        opening, end = shard.view.state.opening, shard.view.state.position
        if opening is not None and stream.last_time_ns > opening.at_ns:
            seconds_of_log = (stream.last_time_ns - opening.at_ns) / 1e9
            commits = end.number / seconds_of_log
    load = Load(messages=messages)
    if not streams:
        return load
    load = replace(load, streams=streams, size=raw / messages, stored=min(1.0, stored / raw), days=days)
    # Fewer commits than messages: the interval that gives as many.
    return replace(load, commit_interval_s=1 / commits) if 0 < commits < messages else load


def _lines(load: Load, found: Bill) -> list[str]:
    lines = [f"load         {load.messages:g} messages/s of {load.size:.0f} bytes in {load.streams} streams, kept for "
             f"{load.days:g} days",
             f"settings     commit_interval {load.commit_interval_s * 1000:g} ms, compaction {'on' if load.compaction else 'off'}, "
             f"{load.standbys} standbys", ""]
    table = Table(["a month", "number", "dollars"], ["number", "dollars"])
    rows: list[tuple[str, Any, float | None]] = [
        ("PUT", count(round(found.puts)), None), ("LIST", count(round(found.lists)), found.puts_dollars),
        ("GET", count(round(found.gets)), found.gets_dollars), ("DELETE", count(round(found.deletes)), 0.0),
        ("written", size(round(found.written)), None), ("read", size(round(found.read)), found.egress_dollars),
        ("stored", size(round(found.stored)), found.storage_dollars), ("all", "", found.dollars)]
    for name, number, dollars in rows:
        table.add(name, number, "" if dollars is None else f"{dollars:.2f}")
    return [*lines, *table.flush(), "", "PUTs for: " + ", ".join(f"{name} {count(round(n))}" for name, n in found.parts.items())]
