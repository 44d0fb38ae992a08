"""The store: shards, epochs, streams with their dead bytes, a map of blocks, verification, the bill."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nicegui import context, ui

from broker.base.output import count, size, when
from broker.console.frame import guarded, problem
from broker.console.server import Refused
from broker.inspect.problems import Problem
from broker.inspect.report import epoch_json, stream_json
from broker.inspect.source import CannotInspect, Source, open_source
from broker.inspect.survey import Survey, read_survey
from broker.inspect.verify import verify
from broker.maintenance.cost import Bill, bill
from broker.maintenance.cost_cli import TooYoung, measure_load
from broker.storage.objectstore import StoreError

if TYPE_CHECKING:
    from broker.console.session import Session

__all__ = ["build"]

_MAP_BLOCKS = 4000
"""Blocks of a stream's map at most: the largest."""
_PROBLEMS = 200


async def build(session: Session) -> None:
    """Show the store."""
    place = ui.column().classes("w-full gap-4")

    @guarded
    async def read() -> None:
        place.clear()
        with place:
            ui.spinner(size="lg")
        try:
            source = open_source(session.settings.store)
            try:
                survey = await read_survey(source)
            finally:
                await source.close()
        except (CannotInspect, StoreError) as error:
            place.clear()
            with place:
                problem(f"The store {session.settings.store} cannot be read: {error}.")
            return
        place.clear()
        with place:
            _show(session, survey)

    ui.button("Read again", icon="refresh", on_click=read).props("flat")
    await read()


def _show(session: Session, survey: Survey) -> None:
    extent = survey.extent
    with ui.row().classes("gap-4"):
        for text, value in (
                ("Objects", count(extent.count)), ("Bytes", size(extent.bytes)),
                ("Live in the log", size(sum(shard.live_bytes for shard in survey.shards))),
                ("Dead in the log", size(sum(shard.dead_bytes for shard in survey.shards))),
                ("Merged by compaction", size(survey.stream_runs.bytes + sum(one.runs.bytes for one in survey.shards))),
                ("Streams", count(len(survey.streams)))):
            with ui.card().classes("items-start gap-0 min-w-32"):
                ui.label(text).classes("text-sm opacity-70")
                ui.label(value).classes("text-lg")
    _problems(survey.problems)
    with ui.tabs().props("align=left") as tabs:
        streams, epochs, check, cost = (ui.tab(text) for text in ("Streams", "Epochs", "Verify", "Bill"))
    with ui.tab_panels(tabs, value=streams).classes("w-full bg-transparent"):
        with ui.tab_panel(streams).classes("p-0"):
            _streams(survey)
        with ui.tab_panel(epochs).classes("p-0"):
            _epochs(survey)
        with ui.tab_panel(check).classes("p-0"):
            _Verification(session.settings.store).build()
        with ui.tab_panel(cost).classes("p-0"):
            _bill(survey)


def _problems(problems: Iterable[Problem]) -> None:
    shown = [one.to_json() for one in problems]
    if not shown:
        ui.label("No problems were found in listings and small objects; Verify reads all bytes.").props('role="status"')
        return
    with ui.card().classes("w-full border-l-4 border-red-500").props('role="alert"'):
        for one in shown[:_PROBLEMS]:
            ui.label(": ".join(str(part) for part in one.values() if part))
        if len(shown) > _PROBLEMS:
            ui.label(f"and {count(len(shown) - _PROBLEMS)} more")


def _streams(survey: Survey) -> None:
    rows = [stream_json(stream, shard) for shard, stream in survey.streams]
    for row in rows:
        row["key"] = f"{row['account']}/{row['name']}/{row['incarnation']}"
        row["shown_stored"], row["shown_dead"] = size(row["stored_bytes"]), size(row["dead_bytes"])
    table = ui.table(rows=rows, row_key="key", pagination=25, columns=[
        {"name": "account", "label": "Account", "field": "account", "align": "left", "sortable": True},
        {"name": "name", "label": "Stream", "field": "name", "align": "left", "sortable": True},
        {"name": "messages", "label": "Messages", "field": "messages", "sortable": True,
         ":format": "value => value.toLocaleString()"},
        {"name": "blocks", "label": "Blocks", "field": "blocks", "sortable": True},
        {"name": "stored", "label": "Stored", "field": "stored_bytes", "sortable": True,
         ":format": "(value, row) => row.shown_stored"},
        {"name": "dead", "label": "Dead", "field": "dead_bytes", "sortable": True,
         ":format": "(value, row) => row.shown_dead"},
    ]).classes("w-full").props('no-data-label="No streams"')
    ui.label("A row shows the map of its stream's blocks.").classes("opacity-70")
    place = ui.column().classes("w-full")

    def show(event: Any) -> None:
        key = event.args[1]["key"]
        found = next((stream for row, (_, stream) in zip(rows, survey.streams, strict=True) if row["key"] == key), None)
        place.clear()
        if found is not None:
            with place:
                _map(found.name, list(found.blocks), found.first_seq)

    table.on("rowClick", show)


def _map(name: str, entries: list[Any], first_seq: int) -> None:
    """Show a stream's blocks as areas, by their bytes; the redder, the more of a block is dead."""
    largest = sorted(entries, key=lambda entry: -entry.ref.frames_bytes)[:_MAP_BLOCKS]
    nodes = []
    for entry in sorted(largest, key=lambda entry: int(entry.ref.first_seq)):
        ref = entry.ref
        before = max(min(ref.count, first_seq - ref.first_seq), 0)
        share = min((entry.dead_count + before) / ref.count, 1) if ref.count else 0
        nodes.append({"name": f"from {ref.first_seq:,}: {ref.count:,} messages, {size(ref.frames_bytes)}, "
                              f"{share:.0%} dead", "value": max(ref.frames_bytes, 1),
                      "itemStyle": {"color": f"rgb({round(60 + 170 * share)},{round(140 - 90 * share)},90)"}})
    ui.label(f"{name}: {count(len(entries))} blocks" + (
        f", the {count(_MAP_BLOCKS)} largest are shown" if len(entries) > _MAP_BLOCKS else "")).classes("text-lg")
    ui.echart({"tooltip": {}, "series": [{
        "type": "treemap", "data": nodes, "roam": False, "nodeClick": False, "breadcrumb": {"show": False},
        "label": {"show": False}, "itemStyle": {"gapWidth": 1}}]}).classes("w-full h-72").props(
            'role="img" aria-label="Map of blocks"')


def _epochs(survey: Survey) -> None:
    rows = []
    for shard in survey.shards:
        for epoch in reversed(shard.epochs):
            row = epoch_json(epoch)
            rows.append({"shard": shard.paths.shard, "epoch": row["epoch"], "owner": row["owner"] or "",
                         "claimed": row["claimed_at"] or "", "state": row["begun"], "entries": row["entries"],
                         "bytes": size(row["bytes"]), "end": "" if row["end"] is None else f"sealed at {row['end']}",
                         "key": f"{shard.paths.shard}/{row['epoch']}"})
    ui.table(rows=rows, row_key="key", pagination=25, columns=[
        {"name": key, "label": text, "field": key, "align": "left", "sortable": True} for key, text in (
            ("shard", "Shard"), ("epoch", "Epoch"), ("owner", "Owner"), ("claimed", "Claimed"), ("state", "State"),
            ("entries", "Segments"), ("bytes", "Bytes"), ("end", "End"))]).classes("w-full")


class _Verification:
    """Reads all bytes of a store, with progress, until it is done or cancelled."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._task: asyncio.Task[None] | None = None
        self._done = (0, 0, 0, 0)

    def build(self) -> None:
        ui.label("Reads every object and compares checksums, counts and the replayed state. A running broker is not "
                 "disturbed, but the bytes are read from the store.")
        with ui.row().classes("items-center"):
            self._button = ui.button("Verify", on_click=guarded(self._run))
            self._bar = ui.linear_progress(0, show_value=False).classes("w-64")
            self._state = ui.label().props('role="status"')
        self._bar.visible = False
        self._found = ui.column().classes("w-full")
        context.client.on_disconnect(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        if self._task is not None:
            self._cancel()
            return
        self._found.clear()
        self._bar.visible = True
        self._button.text = "Stop"
        task = self._task = asyncio.ensure_future(self._verify())
        began = time.monotonic()
        try:
            while not task.done():
                await asyncio.wait((task,), timeout=0.3)
                objects, _, read, of = self._done
                self._bar.value = read / of if of else 0
                rate = read / max(time.monotonic() - began, 1e-3)
                left = f", {(of - read) / rate:,.0f} s left" if rate and of > read else ""
                self._state.text = f"{count(objects)} objects, {size(read)} of {size(of)}{left}"
            if task.cancelled():
                self._state.text += ", stopped"
                return
            task.result()
        except (CannotInspect, StoreError) as error:
            raise Refused(f"The store cannot be read: {error}.") from None
        finally:
            task.cancel()
            self._task = None
            self._bar.visible = False
            self._button.text = "Verify"

    async def _verify(self) -> None:
        source: Source = open_source(self._store)
        try:
            survey = await read_survey(source)
            verified = await verify(source, survey, self._progress)
        finally:
            await source.close()
        with self._found:
            problems = [*survey.problems, *verified.problems]
            if problems:
                _problems(problems)
            else:
                ui.label(f"All {count(verified.objects)} objects are sound ({when(time.time_ns())}).").props(
                    'role="status"')

    def _progress(self, objects: int, of: int, read: int, of_bytes: int) -> None:
        self._done = (objects, of, read, of_bytes)


def _bill(survey: Survey) -> None:
    try:
        load = measure_load(survey, time.time_ns())
    except TooYoung as error:
        ui.label(f"{error}.")
        return
    now = bill(load)
    _bill_table(now)
    slower = bill(replace(load, commit_interval_s=max(load.commit_interval_s * 5, 0.1)))
    compacted = bill(replace(load, compaction=True))
    for text, other in ((f"with commit_interval {max(load.commit_interval_s * 5, 0.1):g}s", slower),
                        ("with compaction", compacted), ("with half of the retention", bill(
                            replace(load, days=load.days / 2)))):
        if now.dollars - other.dollars > max(now.dollars * 0.02, 0.01):
            ui.label(f"{text}: ${other.dollars:,.2f}, which is ${now.dollars - other.dollars:,.2f} less")


def _bill_table(found: Bill) -> None:
    ui.label(f"${found.dollars:,.2f} a month at the rate of the store's streams and AWS's list prices").classes(
        "text-lg")
    rows = [{"part": text, "amount": amount, "dollars": f"{dollars:,.2f}"} for text, amount, dollars in (
        ("PUT and LIST requests", count(round(found.puts + found.lists)), found.puts_dollars),
        ("GET requests", count(round(found.gets)), found.gets_dollars),
        ("stored", size(round(found.stored)), found.storage_dollars),
        ("read out of the region", size(round(found.read)), found.egress_dollars))]
    ui.table(rows=rows, columns=[{"name": key, "label": text, "field": key, "align": "left"} for key, text in (
        ("part", "For"), ("amount", "In a month"), ("dollars", "Dollars"))]).classes("w-full max-w-xl")
