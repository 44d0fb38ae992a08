"""Long lists: the rows stay in the console, which sorts and filters them and sends the browser one page at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from operator import itemgetter
from typing import Any

from nicegui import events, ui

from broker.console.frame import guarded

__all__ = ["Table", "column"]

_SIZES = [25, 50, 100, 250]
_INTEGER = {":format": "value => value.toLocaleString('en-US')"}

Row = dict[str, Any]


def column(name: str, label: str, *, kind: str = "text", sortable: bool = True) -> dict[str, Any]:
    """Return a column. Args: kind: ``text``; ``number``; ``shown``: a number whose text is the row's ``shown_NAME``."""
    look: dict[str, Any] = {"align": "left"} if kind == "text" else {"align": "right"}
    if kind == "number":
        look |= _INTEGER
    elif kind == "shown":
        look[":format"] = f"(value, row) => row.shown_{name}"
    return {"name": name, "label": label, "field": name, "sortable": sortable, **look}


class Table:
    """A table of any length.

    Args:
        key: the member of a row that names it; its column has a link, or a button that calls ``on_open`` with the name.
        empty: the text of a table without rows.
        on_open: what the rows do; without it, their ``href`` is where the links lead.
    """

    def __init__(self, columns: list[dict[str, Any]], *, key: str, empty: str, per_page: int = 50,
                 sort: str = "", descending: bool = False, dense: bool = False,
                 on_open: Callable[[str], Awaitable[object]] | None = None) -> None:
        self._rows: list[Row] = []
        self._found: list[Row] = []
        self._key = key
        self._filter = ""
        self._sort, self._descending = sort or key, descending
        self._page, self._per_page = 1, per_page
        self.element = ui.table(columns=columns, rows=[], row_key=key, pagination=self._pagination()).classes("w-full")
        self.element.props(f':rows-per-page-options="{_SIZES}" no-data-label="{empty}" binary-state-sort '
                           f'{"dense" if dense else ""}')
        self.element.add_slot("no-data", '<span class="opacity-70">{{ props.message }}</span>')
        self.element.on("request", self._request, ["pagination"])
        self.element.on_pagination_change(self._show)  # the browser has sent the one that it began with
        if on_open is None:
            self.element.add_slot(f"body-cell-{key}", (
                '<q-td :props="props"><a :href="props.row.href" class="text-primary jb-name">{{ props.value }}</a>'
                "</q-td>"))
            return
        opener = guarded(on_open)
        self.element.add_slot(f"body-cell-{key}", (
            '<q-td :props="props"><a href="#" role="button" class="text-primary jb-name"'
            f' @click.prevent.stop="$parent.$emit(\'open\', props.row.{key})"'
            f' @keydown.space.prevent="$parent.$emit(\'open\', props.row.{key})">{{{{ props.value }}}}</a></q-td>'))

        async def clicked(event: events.GenericEventArguments) -> None:
            await opener(event.args[1][key])

        async def opened(event: events.GenericEventArguments) -> None:
            await opener(event.args)

        self.element.on("rowClick", clicked)
        self.element.on("open", opened)

    @property
    def rows(self) -> list[Row]:
        return self._rows

    @rows.setter
    def rows(self, rows: list[Row]) -> None:
        self._rows = rows
        self._arrange()

    def find(self, text: str) -> None:
        """Show the rows that have ``text`` in their name, or in another text that begins a column."""
        self._filter = text.strip().lower()
        self._page = 1
        self._arrange()

    def _arrange(self) -> None:
        wanted = self._filter
        self._found = [row for row in self._rows if wanted in str(row[self._key]).lower()] if wanted else [*self._rows]
        try:
            self._found.sort(key=itemgetter(self._sort), reverse=self._descending)
        except TypeError:  # a newer server's values
            self._found.sort(key=lambda row: str(row[self._sort]), reverse=self._descending)
        self._show()

    def _show(self) -> None:
        self._page = max(1, min(self._page, -(-len(self._found) // self._per_page)))
        start = (self._page - 1) * self._per_page
        rows = self._found[start:start + self._per_page]
        if self.element.rows != rows:
            self.element.rows = rows
        if self.element.pagination != (pagination := self._pagination()):
            self.element.pagination = pagination

    def _pagination(self) -> dict[str, Any]:
        return {"page": self._page, "rowsPerPage": self._per_page, "rowsNumber": len(self._found),
                "sortBy": self._sort, "descending": self._descending}

    def _request(self, event: events.GenericEventArguments) -> None:
        wanted = event.args["pagination"]
        columns = {column["name"] for column in self.element.columns}
        sort, descending = wanted.get("sortBy"), bool(wanted.get("descending"))
        per_page = int(wanted.get("rowsPerPage") or 0)
        self._page = int(wanted.get("page") or 1)
        self._per_page = per_page if per_page in _SIZES else self._per_page
        if sort in columns and (sort, descending) != (self._sort, self._descending):
            self._sort, self._descending = sort, descending
            self._arrange()
        else:
            self._show()
