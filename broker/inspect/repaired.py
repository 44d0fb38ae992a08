"""The record that each finished repair left in the store: what was lost then, and which damaged objects nothing needs since.

A repair removes the messages that cannot be read, so the store is sound without them. The damaged objects stay until a broker
deletes them, because nothing else in them is needed. They are no new problem, and what was lost with them is in the past.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from broker.inspect.problems import UNNEEDED, Problem
from broker.inspect.source import Source

__all__ = ["QUARANTINE", "Repaired", "new_problems", "read_repairs"]

QUARANTINE = "quarantine/"
"""The folder in which each repair keeps the objects that it replaced (``maintenance.quarantine``)."""


class Repaired(NamedTuple):
    """A repair that came to its end. objects: those that it found damaged or missing. lost: rows of messages: account, stream,
    first_seq, last_seq, messages, object."""

    folder: str
    at_ns: int
    objects: frozenset[str]
    lost: list[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """The report's row."""
        return {"quarantine": self.folder, "at_ns": self.at_ns, "lost": self.lost}


async def read_repairs(source: Source) -> list[Repaired]:
    """The finished repairs, oldest first; a record that cannot be read is left out. Raises: StoreError."""
    found = []
    keys = {info.key for info in await source.list(QUARANTINE)}
    for key in sorted(keys):
        folder = key.removesuffix("record.json")
        if key == folder or f"{folder}done" not in keys:
            continue
        try:
            record = json.loads(await source.find(key) or b"")
            found.append(Repaired(folder, int(record["at_ns"]), frozenset(one["object"] for one in record["problems"]),
                                  [dict(row) for row in record["lost"]]))
        except (ValueError, LookupError, TypeError):
            continue  # it was changed by hand, or is damaged: what it was about is listed as if it were new
    return found


def new_problems(problems: Iterable[Problem], repairs: Iterable[Repaired]) -> list[Problem]:
    """``problems`` without the damage that a repair has dealt with: it is in an object of the record, and nothing needs it."""
    known = frozenset().union(*(repair.objects for repair in repairs))
    return [problem for problem in problems if problem.object not in known or problem.means not in UNNEEDED]
