"""A scenario: all data for one comparison of the two servers, as values that JSON can hold.

    kind      "protocol", "reload" or "requests": the fuzzer that made it
    configs   configuration files as nested values; the first is loaded at the start, the others by ``reload`` steps
    steps     lists, each of a connection's name, a verb and its arguments

Steps of ``protocol`` and ``reload`` (``tests.fuzz.operations`` plays them):

    [NAME, "connect", {field: value}]                 CONNECT; the first step of a name opens the connection
    [NAME, "sub", SUBJECT, QUEUE, SID]                SUB
    [NAME, "unsub", SID, MAX]                         UNSUB; MAX 0: at once
    [NAME, "pub", SUBJECT, REPLY, PAYLOAD]            PUB; ``{R}`` is the last reply subject that was received
    [NAME, "hpub", SUBJECT, REPLY, HEADERS, PAYLOAD]  HPUB; HEADERS: a list of [name, value]
    [NAME, "raw", TEXT]                               these bytes, as Latin-1
    [NAME, "leave"]                                   the client closes the connection
    ["", "reload", INDEX]                             the server reads ``configs[INDEX]``

Steps of ``requests`` are lines of ``tests.jetstream.differential.player``: ["", LINE].
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

__all__ = ["CORPUS", "Config", "Scenario", "Step", "corpus"]

Config = dict[str, Any]
Step = list[Any]

CORPUS = Path(__file__).parent / "corpus"


@dataclass(frozen=True)
class Scenario:
    """Configurations and steps; ``origin`` names the seed that made them."""

    kind: str
    configs: list[Config]
    steps: list[Step]
    origin: str = ""

    def to_json(self) -> str:
        """Encode with one line for each configuration and each step, so that a difference between two versions is
        readable."""
        def lines(values: list[Any]) -> str:
            return "[\n" + ",\n".join(f"  {json.dumps(value)}" for value in values) + "\n ]" if values else "[]"

        return (f'{{"kind": {json.dumps(self.kind)}, "origin": {json.dumps(self.origin)},\n'
                f' "configs": {lines(self.configs)},\n "steps": {lines(self.steps)}}}\n')

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))

    def but(self, **fields: Any) -> Scenario:
        """Return a copy with other fields."""
        return replace(self, **fields)

    def __str__(self) -> str:
        return f"# save as tests/fuzz/corpus/NAME.json\n{self.to_json()}"


def corpus(kind: str) -> dict[str, Scenario]:
    """Return the kept scenarios of one kind, by name."""
    found = {path.stem: Scenario.from_json(path.read_text()) for path in sorted(CORPUS.glob("*.json"))}
    return {name: scenario for name, scenario in found.items() if scenario.kind == kind}
