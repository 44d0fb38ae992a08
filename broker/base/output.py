"""Values as readable text and as JSON: aligned columns, sizes with units, times in UTC, bytes as text or base64.

Unprintable characters are escaped, so nothing in a store reaches a terminal raw.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

__all__ = ["Table", "count", "counted", "outline", "plain", "printable", "size", "when"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CELL_MAX = 60


def size(value: int) -> str:
    """Format bytes with a unit; at most three digits from 1 KiB on."""
    if value < 1024:
        return f"{value} B"
    number = float(value)
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        number /= 1024
        if number < 999.5 or unit == "PiB":
            break
    return f"{number:.{2 if number < 9.995 else 1 if number < 99.95 else 0}f} {unit}"


def count(value: int) -> str:
    """Format a number with its thousands separated."""
    return f"{value:,}".replace(",", " ")


def counted(value: int, noun: str) -> str:
    """Format a number of things: "1 stream", "10,002 streams"."""
    return f"{value:,} {noun}{'' if value == 1 else 's'}"


def when(at_ns: int) -> str:
    """Format Unix ns as UTC, to the millisecond; "-" for 0, which means none."""
    if not at_ns:
        return "-"
    try:
        at = _EPOCH + timedelta(microseconds=at_ns // 1000)
    except OverflowError:
        return f"{at_ns} ns"
    return f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d}Z"


def plain(value: Any) -> Any:
    """Return ``value`` as JSON values. Bytes become text if they are printable UTF-8, otherwise {"base64": …}."""
    if isinstance(value, bytes):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
        if all(c.isprintable() or c in "\r\n\t" for c in text):
            return text
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(plain(key)): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value


def printable(value: Any) -> str:
    """Return one line of text for a cell."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if isinstance(value, dict) and list(value) == ["base64"]:
        return f"base64:{value['base64']}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "-"
    text = value if isinstance(value, str) else repr(value) if isinstance(value, (list, dict)) else str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() if ord(c) < 0xD800 or ord(c) > 0xDFFF
                   else f"\\u{ord(c):04x}" for c in text)


class Table:
    """Rows in aligned columns, numbers to the right. ``flush`` it page by page, so that it needs little memory."""

    def __init__(self, columns: Sequence[str], right: Iterable[str] = (), *, indent: int = 0) -> None:
        self._columns = columns
        self._right = [column in set(right) for column in columns]
        self._widths = [len(column) for column in columns]
        self._rows: list[list[str]] = []
        self._headed = False
        self._indent = " " * indent

    def add(self, *cells: Any) -> None:
        """Add a row."""
        assert len(cells) == len(self._columns)
        self._rows.append([printable(cell) for cell in cells])

    def __len__(self) -> int:
        return len(self._rows)

    def flush(self) -> list[str]:
        """Return the lines of the rows added since the last call; the first call begins with the heading."""
        for row in self._rows:
            self._widths = [max(width, len(cell)) for width, cell in zip(self._widths, row, strict=True)]
        lines = [] if self._headed else [self._line([column.upper() for column in self._columns])]
        lines += [self._line(row) for row in self._rows]
        self._rows = []
        self._headed = True
        return lines

    def _line(self, cells: list[str]) -> str:
        line = "  ".join(cell.rjust(width) if right else cell.ljust(width)
                         for cell, width, right in zip(cells, self._widths, self._right, strict=True))
        return (self._indent + line).rstrip()


def outline(value: Any, indent: int = 0) -> list[str]:
    """Return nested values as indented lines: maps as ``name: value``, lists of flat maps as tables."""
    space = " " * indent
    lines: list[str] = []
    if isinstance(value, Mapping):
        width = max((len(printable(key)) for key, one in value.items() if not _nested(one)), default=0)
        for key, one in value.items():
            name = printable(key)
            if _nested(one):
                lines.append(f"{space}{name}:")
                lines += outline(one, indent + 2)
            else:
                lines.append(f"{space}{(name + ':').ljust(width + 1)} {printable(one)}")
    elif isinstance(value, list):
        if value and all(isinstance(row, Mapping) and not any(_nested(cell) for cell in row.values())
                         and row.keys() == value[0].keys() for row in value):
            table = Table([str(column) for column in value[0]],
                          [str(column) for column, cell in value[0].items()
                           if isinstance(cell, int) and not isinstance(cell, bool)], indent=indent)
            for row in value:
                table.add(*[_short(cell) for cell in row.values()])
            return table.flush()
        for number, one in enumerate(value):
            if _nested(one):
                lines.append(f"{space}- {number}")
                lines += outline(one, indent + 2)
            else:
                lines.append(f"{space}- {printable(one)}")
    else:
        lines.append(space + printable(value))
    return lines


def _nested(value: Any) -> bool:
    if isinstance(value, Mapping):
        return bool(value) and list(value) != ["base64"] and len(repr(value)) > _CELL_MAX
    return isinstance(value, list) and bool(value) and (
        any(isinstance(one, (Mapping, list)) for one in value) or len(repr(value)) > _CELL_MAX)


def _short(cell: Any) -> str:
    text = printable(cell)
    return text if len(text) <= _CELL_MAX else text[:_CELL_MAX - 1] + "…"
