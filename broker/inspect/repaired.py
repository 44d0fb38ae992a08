"""The records of finished repairs: the messages that were lost, and the damaged objects that nothing needs any more.

A repair removes the messages that cannot be read, so the store is consistent without them. The damaged objects stay
until a broker deletes them, because nothing else in them is needed. They are not a new problem, and no more messages
are lost.
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
    """A finished repair."""

    folder: str
    at_ns: int
    objects: frozenset[str]
    """The keys of the objects that it found damaged or missing."""
    lost: list[dict[str, Any]]
    """Rows of lost messages: account, stream, first_seq, last_seq, messages, object."""

    def to_json(self) -> dict[str, Any]:
        """Return the row of the report."""
        return {"quarantine": self.folder, "at_ns": self.at_ns, "lost": self.lost}


async def read_repairs(source: Source) -> list[Repaired]:
    """Read the records of finished repairs, oldest first; leave out records that cannot be read. Raises: StoreError."""
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
            continue  # the record was changed by hand, or is damaged: its problems are listed as new ones
    return found


def new_problems(problems: Iterable[Problem], repairs: Iterable[Repaired]) -> list[Problem]:
    """Return ``problems`` without those that a repair has solved: its record has the object, and nothing needs it."""
    known = frozenset().union(*(repair.objects for repair in repairs))
    return [problem for problem in problems if problem.object not in known or problem.means not in UNNEEDED]
