"""The upkeep of a store: what the broker's compaction and scrub did, and a verification of all bytes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from nicegui import context, ui

from broker.base.output import size, when
from broker.console.frame import figure, figures, guarded
from broker.console.server import Refused
from broker.console.survey import Stopped, in_thread, verify_store
from broker.inspect.problems import Problem
from broker.inspect.source import CannotInspect
from broker.storage.objectstore import StoreError

if TYPE_CHECKING:
    from broker.console.session import Session

__all__ = ["Verification", "show_upkeep"]

_EVERY_SECONDS = 2.0
_COMPACTION = {"merges": "Merges", "blocks_in": "Blocks read", "blocks_out": "Blocks written",
               "read_bytes": "Read", "written_bytes": "Written"}
_SCRUB = {"passes": "Passes", "objects": "Objects in this pass", "bytes": "Bytes in this pass",
          "damaged": "Damaged objects"}


def show_upkeep(session: Session, stored: int) -> None:
    """Show compaction and scrub by the broker's monitoring page. Args: stored: bytes in the store."""
    monitor = session.monitor
    if monitor is None:
        ui.label("Start the console with --monitor to see what compaction and scrub did.")
        return
    labels: dict[tuple[str, str], ui.label] = {}
    for name, title, parts in (("compaction", "Compaction since the broker's start", _COMPACTION),
                               ("scrub", "Scrub", _SCRUB)):
        ui.label(title).classes("text-lg").props('role="heading"')
        with figures():
            labels |= {(name, key): figure(text, "…") for key, text in parts.items()}
    bar = ui.linear_progress(0, show_value=False).classes("w-96").props('aria-label="Progress of the scrub"')
    findings = ui.label().classes("text-negative").props('role="alert"')

    def update() -> None:
        monitor.look()
        sample = monitor.last
        if sample is None:
            return
        jetblock: dict[str, Any] = sample.varz.get("jetblock") or {}
        scrub = jetblock.get("scrub") or {}
        values = {"compaction": (jetblock.get("log") or {}).get("compaction") or {}, "scrub": scrub}
        for (name, key), label in labels.items():
            value = int(values[name].get(key, 0))
            label.text = size(value) if key.endswith("bytes") else f"{value:,}"
        bar.value = round(min(int(scrub.get("bytes", 0)) / max(stored, 1), 1), 3)
        findings.text = "; ".join(str(one) for one in scrub.get("findings") or ())

    update()
    ui.timer(_EVERY_SECONDS, update)


class Verification:
    """Reads all bytes of a store, with progress, until it is done or stopped."""

    _running: ClassVar[set[str]] = set()
    """Stores that are being read: a second reading at the same time would only cost more."""

    def __init__(self, store: str, show: Callable[[Iterable[Problem]], None]) -> None:
        self._store = store
        self._show = show
        self._busy = self._stop = False
        self._done = (0, 0, 0, 0)

    def build(self) -> None:
        """Show the button, and then what is found."""
        ui.label("Reads every object and compares checksums, counts and the replayed state. A running broker is not "
                 "disturbed, but the bytes are read from the store.")
        with ui.row().classes("items-center"):
            self._button = ui.button("Verify", on_click=guarded(self._run))
            self._bar = ui.linear_progress(0, show_value=False).classes("w-64").props(
                'aria-label="Progress of the verification"')
            self._state = ui.label().props('role="status"')
        self._bar.visible = False
        self._found = ui.column().classes("w-full")
        context.client.on_disconnect(self._end)

    def _end(self) -> None:
        self._stop = True

    async def _run(self) -> None:
        if self._busy:
            self._end()
            return
        if self._store in self._running:
            raise Refused("The store is being verified already, in another page.")
        self._running.add(self._store)
        self._busy, self._stop = True, False
        self._found.clear()
        self._bar.visible = True
        self._button.text = "Stop"
        task = asyncio.ensure_future(in_thread(lambda: verify_store(self._store, self._progress)))
        began = time.monotonic()
        try:
            while not task.done():
                await asyncio.wait((task,), timeout=0.3)
                self._tell(time.monotonic() - began)
            survey, verified = task.result()
        except Stopped:
            self._state.text += ", stopped"
            return
        except (CannotInspect, StoreError) as error:
            raise Refused(f"The store cannot be read: {error}.") from None
        finally:
            self._end()
            self._running.discard(self._store)
            self._busy = self._bar.visible = False
            self._button.text = "Verify"
        with self._found:
            if problems := [*survey.problems, *verified.problems]:
                self._show(problems)
            else:
                ui.label(f"All {verified.objects:,} objects are sound ({when(time.time_ns())}).").props('role="status"')

    def _tell(self, seconds: float) -> None:
        objects, _, read, of = self._done
        self._bar.value = round(min(read / of, 1), 3) if of else 0
        rate = read / max(seconds, 1e-3)
        left = f", {(of - read) / rate:,.0f} s left" if rate and of > read else ""
        self._state.text = f"{objects:,} objects, {size(read)} of {size(of)}{left}"

    def _progress(self, objects: int, of: int, read: int, of_bytes: int) -> None:
        if self._stop:
            raise Stopped
        self._done = (objects, of, read, of_bytes)
