"""Editing a configuration as JSON: the difference is shown before it is applied."""

from __future__ import annotations

import difflib
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from nicegui import ui

from broker.console.frame import code, editor, guarded
from broker.console.server import Refused

if TYPE_CHECKING:
    from broker.console.session import Session

__all__ = ["edit"]

Json = dict[str, Any]


async def edit(session: Session, title: str, config: Json, apply: Callable[[Json], Awaitable[object]]) -> None:
    """Let the user change a configuration, and show the difference before it is applied."""
    before = json.dumps(config, indent=2, ensure_ascii=False)
    compared: list[Json] = []
    with ui.dialog() as dialog, ui.card().classes("w-full max-w-3xl"):
        ui.label(title).classes("text-lg").props('role="heading"')
        text = editor(session, before)
        difference = code().classes("max-h-60")
        difference.visible = False
        wrong = ui.label().classes("text-negative").props('role="alert"')

        @guarded
        async def check() -> None:
            wrong.text = ""
            try:
                changed = json.loads(text.value)
                if not isinstance(changed, dict):
                    raise ValueError("an object is expected")
            except ValueError as error:
                wrong.text = f"This is not JSON: {error}."
                return
            if compared != [changed]:
                compared[:] = [changed]
                difference.text = _difference(before, changed)
                difference.visible = True
                button.text = "Apply"
                return
            try:
                await apply(changed)
                dialog.close()
            except Refused as error:
                wrong.text = str(error)

        def edited() -> None:
            compared.clear()
            difference.visible = False
            button.text = "Compare"

        text.on_value_change(edited)
        with ui.row().classes("w-full justify-end"):
            ui.button("Cancel", on_click=dialog.close).props("flat")
            button = ui.button("Compare", on_click=check)
    await dialog


def _difference(before: str, changed: Json) -> str:
    after = json.dumps(changed, indent=2, ensure_ascii=False)
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "now", "changed", lineterm="")
    return "\n".join(lines) or "Nothing is changed."
