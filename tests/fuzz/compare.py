"""Differences between the results of two servers in one scenario."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz.scenario import Scenario

__all__ = ["CONFIGURATION", "Difference", "differences"]

CONFIGURATION = "configuration"
"""The only step of a scenario whose first configuration a server refuses."""

_WORD = re.compile(r"[A-Za-z_-]{4,}")


@dataclass(frozen=True)
class Difference:
    """A step whose results differ."""

    scenario: Scenario
    index: int
    step: str
    theirs: Any
    ours: Any
    earlier: tuple[Difference, ...] = field(default=(), repr=False)
    """Differences of the same run at earlier steps."""

    @property
    def signature(self) -> tuple[str, ...]:
        """The longer words that only one server sent: equal for differences of one kind."""
        theirs, ours = (set(_WORD.findall(json.dumps(one, default=str))) for one in (self.theirs, self.ours))
        return (json.loads(self.step)[1] if self.step.startswith("[") else self.step.split()[0],
                *sorted(theirs - ours), "/", *sorted(ours - theirs))

    def __str__(self) -> str:
        return (f"step {self.index}: {self.step}\n  nats-server: {json.dumps(self.theirs, default=str)}\n"
                f"  jetblock:    {json.dumps(self.ours, default=str)}")


def differences(scenario: Scenario, theirs: Sequence[tuple[str, Any]],
                ours: Sequence[tuple[str, Any]]) -> list[Difference]:
    """Return all steps whose results differ, in order."""
    assert [step for step, _ in theirs] == [step for step, _ in ours], "the servers played different steps"
    found: list[Difference] = []
    for index, ((step, expected), (_, got)) in enumerate(zip(theirs, ours, strict=True)):
        if expected != got:
            found.append(Difference(scenario, index, step, expected, got, tuple(found)))
    return found
