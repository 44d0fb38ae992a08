"""Errors and notices about a file, each with its place, and the steps that the readers of all blocks share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from broker.base.suggest import did_you_mean
from broker.config import kinds
from broker.config.kinds import Kind
from broker.config.syntax import Value

__all__ = ["Findings", "aliases", "go_type", "go_value", "shown"]


def aliases(*rows: str) -> dict[str, str]:
    """Return a map from every spelling of a key to the first one of its row: ``"user username"``."""
    return {name: row.split()[0] for row in rows for name in row.split()}


class Findings:
    """Collects errors instead of raising, since an operator wants to see every mistake at once."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.notices: list[str] = []

    def wrong(self, value: Value, why: str) -> None:
        self.errors.append(f"{value.place}: {why}")

    def notice(self, value: Value, why: str) -> None:
        self.notices.append(f"{value.place}: {why}")

    def fields(self, block: Value, names: Mapping[str, str], unknown: str = 'unknown field "{}"',
               ) -> Iterator[tuple[str, str, Value]]:
        """Return the keys of a block: the usual spelling, the one used, and the value.

        A key that is not in ``names`` is an error, unless a variable refers to it.
        """
        for written, value in block.value.items():
            name = names.get(written.lower())
            if name is not None:
                yield name, written, value
            elif not value.used:
                self.wrong(value, unknown.format(written) + did_you_mean(written, names))

    def convert(self, kind: Kind, written: str, value: Value, *, secret: bool = False) -> Any:
        """Convert the value by ``kind``; add an error and return None if it is invalid."""
        given = value.value
        if value.literal and kind in (kinds.text, kinds.name):
            # A name or password of digits keeps its leading zeros.
            given = value.literal
        try:
            return kind(given)
        except ValueError as error:
            self.wrong(value, f"{written} {error}" + ("" if secret else f", not {shown(value)}"))
            return None

    def texts(self, what: str, value: Value) -> list[str] | None:
        """Read a list of texts, or a single one."""
        rows = value.value if isinstance(value.value, list) else [value]
        if not all(isinstance(row.value, str | int | float) for row in rows):
            self.wrong(value, f"error parsing {what}: unsupported type in array")
            return None
        return [row.literal or str(row.value) for row in rows]


def shown(value: Value) -> str:
    """Return a value in the form of messages."""
    if isinstance(value.value, dict):
        return "a block"
    return "a list" if isinstance(value.value, list) else repr(value.literal or value.value)


def go_type(value: Value) -> str:
    """Return the name of the type in nats-server's messages."""
    names: dict[type, str] = {dict: "map[string]interface {}", list: "[]interface {}", bool: "bool", int: "int64",
                              float: "float64", str: "string"}
    return names.get(type(value.value), "time.Time")


def go_value(value: Value) -> str:
    """Return the value in the form of nats-server's messages, except maps and lists."""
    if isinstance(value.value, bool):
        return "true" if value.value else "false"
    return go_type(value) if isinstance(value.value, dict | list) else str(value.value)
