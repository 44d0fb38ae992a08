"""The store: what is in it, a map of each stream's blocks, epochs, compaction, verification, the bill."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nicegui import ui

from broker.base.output import size
from broker.console.frame import figure, figures, guarded, problem
from broker.console.pages.upkeep import Verification, show_upkeep
from broker.console.server import Refused
from broker.console.survey import in_thread, survey_store
from broker.console.tables import Table, column
from broker.inspect.problems import Problem
from broker.inspect.report import epoch_json, shard_json, stream_json
from broker.inspect.source import CannotInspect
from broker.inspect.survey import Survey
from broker.maintenance.cost import Bill, Load, bill
from broker.maintenance.cost_cli import TooYoung, measure_load
from broker.storage.objectstore import StoreError

if TYPE_CHECKING:
    from broker.console.session import Session

__all__ = ["build"]

_MAP_BLOCKS = 4000
"""Blocks of a stream's map at most: the largest."""
_PROBLEMS = 200
_SYSTEM = "$SYS"


async def build(session: Session) -> None:
    """Show the store."""
    if not session.sees_store:
        raise Refused("The store has the streams of all accounts, so it is not shown to users with restrictions.")
    ui.button("Read again", icon="refresh", on_click=lambda: read()).props("flat")
    place = ui.column().classes("w-full gap-4")

    @guarded
    async def read() -> None:
        place.clear()
        with place:
            ui.spinner(size="lg").props('role="status" aria-label="The store is read"')
        try:
            survey = await in_thread(lambda: survey_store(session.settings.store))
        except (CannotInspect, StoreError) as error:
            place.clear()
            with place:
                problem(f"The store {session.settings.store} cannot be read: {error}.")
            return
        place.clear()
        with place:
            _show(session, survey)

    ui.timer(0.05, read, once=True)


def _show(session: Session, survey: Survey) -> None:
    extent = survey.extent
    runs = survey.stream_runs.bytes + sum(one.runs.bytes for one in survey.shards)
    with figures():
        for text, value in (
                ("Objects", f"{extent.count:,}"), ("Bytes", size(extent.bytes)),
                ("Live in the log", size(sum(shard.live_bytes for shard in survey.shards))),
                ("Dead in the log", size(sum(shard.dead_bytes for shard in survey.shards))),
                ("Merged by compaction", size(runs)), ("Streams", f"{len(survey.streams):,}")):
            figure(text, value)
    _problems(survey.problems)
    parts: dict[str, Callable[[], None]] = {
        "Streams": lambda: _streams(session, survey), "Shards and epochs": lambda: _epochs(survey),
        "Compaction and scrub": lambda: show_upkeep(session, extent.bytes),
        "Verify": lambda: Verification(session.settings.store, _problems).build(), "Bill": lambda: _bill(survey)}
    with ui.tabs().classes("max-w-full").props('align=left outside-arrows aria-label="Parts of the store"') as tabs:
        for text in parts:
            ui.tab(text)
    with ui.tab_panels(tabs, value="Streams").classes("w-full bg-transparent"):
        for text, show in parts.items():
            with ui.tab_panel(text).classes("p-0 gap-2"):
                show()


def _problems(problems: Iterable[Problem]) -> None:
    shown = [one.to_json() for one in problems]
    if not shown:
        ui.label("No problems were found in listings and small objects; Verify reads all bytes.").props('role="status"')
        return
    with ui.card().classes("w-full border-l-4 border-red-500").props('role="alert"'):
        for one in shown[:_PROBLEMS]:
            ui.label(": ".join(str(part) for part in one.values() if part)).classes("break-all")
        if len(shown) > _PROBLEMS:
            ui.label(f"and {len(shown) - _PROBLEMS:,} more")


def _streams(session: Session, survey: Survey) -> None:
    server = session.server
    found: dict[str, tuple[dict[str, Any], Any]] = {}
    for shard, stream in survey.streams:
        if server.account in ("", _SYSTEM, stream.account):
            row = stream_json(stream, shard)
            key = f"{row['account']}/{row['name']}/{row['incarnation']}"
            row |= {"key": key, "shown_stored": size(row["stored_bytes"]), "shown_dead": size(row["dead_bytes"]),
                    "stored": row["stored_bytes"], "dead": row["dead_bytes"]}
            found[key] = (row, stream)

    async def show(key: str) -> None:
        _, stream = found[key]
        place.clear()
        with place:
            _map(stream.name, list(stream.blocks), stream.first_seq)

    table = Table([column("key", "Stream"), column("messages", "Messages", kind="number"),
                   column("blocks", "Blocks", kind="number"), column("stored", "Stored", kind="shown"),
                   column("dead", "Dead", kind="shown")], key="key", empty="No streams", per_page=25, on_open=show)
    table.rows = [{name: row[name] for name in (
        "key", "messages", "blocks", "stored", "dead", "shown_stored", "shown_dead")} for row, _ in found.values()]
    ui.label("A stream's name shows the map of its blocks.").classes("opacity-70")
    place = ui.column().classes("w-full")


def _map(name: str, entries: list[Any], first_seq: int) -> None:
    """Show a stream's blocks as areas, by their bytes; the redder, the more of a block is dead."""
    largest = sorted(entries, key=lambda entry: -entry.ref.frames_bytes)[:_MAP_BLOCKS]
    nodes, live, dead = [], 0, 0
    for entry in sorted(largest, key=lambda entry: int(entry.ref.first_seq)):
        ref = entry.ref
        before = max(min(ref.count, first_seq - ref.first_seq), 0)
        share = min((entry.dead_count + before) / ref.count, 1) if ref.count else 0
        dead += round(ref.frames_bytes * share)
        live += round(ref.frames_bytes * (1 - share))
        nodes.append({"name": f"from {ref.first_seq:,}: {ref.count:,} messages, {size(ref.frames_bytes)}, "
                              f"{share:.0%} dead", "value": max(ref.frames_bytes, 1),
                      "itemStyle": {"color": f"rgb({round(60 + 170 * share)},{round(140 - 90 * share)},90)"}})
    ui.label(f"{name}: {len(entries):,} blocks" + (
        f", the {_MAP_BLOCKS:,} largest are shown" if len(entries) > _MAP_BLOCKS else "") +
        f"; {size(live)} live (green), {size(dead)} dead (red)").classes("text-lg").props('role="heading"')
    ui.echart({"tooltip": {"renderMode": "richText"}, "series": [{
        "type": "treemap", "data": nodes, "roam": False, "nodeClick": False, "breadcrumb": {"show": False},
        "left": 0, "right": 0, "top": 0, "bottom": 0, "animation": False,
        "label": {"show": False}, "itemStyle": {"gapWidth": 1}}]}).classes("w-full h-72").props(
            'role="img" aria-label="Map of blocks"')


def _epochs(survey: Survey) -> None:
    rows = []
    for shard in survey.shards:
        about = shard_json(shard)
        log = about["log"]
        ui.label(f"Shard {about['shard']}: owner {about['owner'] or 'none'}, at {about['position']}; "
                 f"{log['segments']:,} segments with {size(log['bytes'])}, "
                 f"{about['runs']['objects']:,} runs with {size(about['runs']['bytes'])}, "
                 f"{len(about['checkpoints']):,} checkpoints; a start replays {about['replayed_segments'] or 0:,} "
                 f"segments.")
        for epoch in shard.epochs:
            row = epoch_json(epoch)
            rows.append({"shard": shard.paths.shard, "epoch": row["epoch"], "owner": row["owner"] or "",
                         "claimed": row["claimed_at"] or "", "state": row["begun"], "entries": row["entries"],
                         "bytes": row["bytes"], "shown_bytes": size(row["bytes"]),
                         "end": "" if row["end"] is None else f"sealed at {row['end']}",
                         "key": f"{shard.paths.shard}/{row['epoch']}", "href": "#"})
    ui.label(f"Runs of single streams: {survey.stream_runs.count:,} with {size(survey.stream_runs.bytes)}.")
    columns = [column("epoch", "Epoch", kind="number"), column("shard", "Shard"), column("owner", "Owner"),
               column("claimed", "Claimed"), column("state", "State"), column("entries", "Segments", kind="number"),
               column("bytes", "Bytes", kind="shown"), column("end", "End")]
    Table(columns, key="key", empty="No epochs", per_page=25, sort="epoch", descending=True).rows = rows


def _bill(survey: Survey) -> None:
    try:
        load = measure_load(survey, time.time_ns())
    except TooYoung:
        ui.label("The oldest stream with messages is less than an hour old, which does not show the load of a month. "
                 "With --monitor, the overview has the price at the rate of the last minutes.")
        return
    now = bill(load)
    _bill_table(now)
    cheaper = [(saved, text, other.dollars) for text, other in _others(load)
               if (saved := now.dollars - other.dollars) > max(now.dollars * 0.02, 0.01)]
    ui.label("What would lower it:" if cheaper else "No setting that is tried here would lower it by 2 %.")
    for saved, text, dollars in sorted(cheaper, reverse=True):
        ui.label(f"{text}: ${dollars:,.2f}, which is ${saved:,.2f} less")


def _others(load: Load) -> Iterable[tuple[str, Bill]]:
    for seconds in (0.1, 0.5, 1.0):
        if seconds > load.commit_interval_s:
            yield (f"commit_interval {seconds:g}s (PubAcks take that long)",
                   bill(replace(load, commit_interval_s=seconds)))
    if not load.compaction:
        yield "compaction", bill(replace(load, compaction=True))
    if load.inbox_interval_s:
        yield "inbox_interval 0", bill(replace(load, inbox_interval_s=0))
    yield "half of the retention", bill(replace(load, days=load.days / 2))


def _bill_table(found: Bill) -> None:
    ui.label(f"${found.dollars:,.2f} a month at the rate of the store's streams and AWS's list prices").classes(
        "text-lg").props('role="heading"')
    rows = [{"part": text, "amount": amount, "dollars": f"{dollars:,.2f}"} for text, amount, dollars in (
        ("PUT and LIST requests", f"{round(found.puts + found.lists):,}", found.puts_dollars),
        ("GET requests", f"{round(found.gets):,}", found.gets_dollars),
        ("stored", size(round(found.stored)), found.storage_dollars),
        ("read out of the region", size(round(found.read)), found.egress_dollars))]
    ui.table(rows=rows, columns=[{"name": key, "label": text, "field": key, "align": "left"} for key, text in (
        ("part", "For"), ("amount", "In a month"), ("dollars", "Dollars"))]).classes("w-full max-w-xl")
