"""An account's subject mappings: a message published to one subject goes to another.

    orders.*   orders.v1.{{wildcard(1)}}  80 %
               orders.v2.{{wildcard(1)}}  20 %

The first mapping whose source matches applies. If the weights are less than 100 %, the rest stays at the source. But
if the source is itself a destination with a weight of its own, the rest is dropped, which simulates loss.

Source: nats-server, server/accounts.go (AddWeightedMappings, selectMappedSubject).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Final

from broker.access.sharing import SubjectMapping
from broker.protocol.run import Msg
from broker.protocol.subject import subset
from broker.protocol.subject_transform import SubjectTransform, numbered

__all__ = ["Mappings"]

_KNOWN_MAX: Final = 8192
"""Bound on the cached subjects; beyond it all are dropped."""


class _Mapping:
    """A mapping of one source, with a destination chosen by weight."""

    def __init__(self, mapping: SubjectMapping, rng: random.Random) -> None:
        self._rng = rng
        self.source = source = mapping.source.encode()
        # A single broker is in no cluster, so destinations for clusters do not apply.
        own = [one for one in mapping.destinations if not one.cluster]
        found = [(one.weight, SubjectTransform(source, one.subject.encode(), rng=rng)) for one in own]
        left = 100 - sum(one.weight for one in own)
        if left and not any(one.subject == mapping.source for one in mapping.destinations):
            found.append((left, SubjectTransform(source, numbered(source))))
        total = 0
        self._choices: list[tuple[int, SubjectTransform]] = []
        for weight, transform in sorted(found, key=lambda choice: choice[0]):
            total += weight
            self._choices.append((total, transform))
        self.constant = len(found) == 1 and total == 100 and found[0][1].repeatable
        """Flag: the mapping always gives the same result for a subject."""

    def matches(self, subject: bytes) -> bool:
        return subject == self.source or subset(subject, self.source)

    def map(self, subject: bytes) -> bytes:
        chosen = self._rng.randrange(100)
        for below, transform in self._choices:
            if chosen < below:
                return transform.apply(subject)
        return b""


class Mappings:
    """The mappings of one account (``broker.server.routing.neighbours.Mapper``).

    Raises: TransformError for a destination that its source cannot fill.
    """

    def __init__(self, mappings: Iterable[SubjectMapping], rng: random.Random) -> None:
        self._mappings = [_Mapping(mapping, rng) for mapping in mappings]
        # Subjects with a constant result; subjects that no mapping changes; subjects whose mapping must choose each
        # time.
        self._constant: dict[bytes, bytes] = {}
        self._unmapped: set[bytes] = set()
        self._choosing: dict[bytes, _Mapping] = {}

    @property
    def sources(self) -> list[bytes]:
        """The subjects, with wildcards, to which the mappings apply."""
        return [mapping.source for mapping in self._mappings]

    def map(self, subject: bytes) -> bytes:
        """Return the subject to which a message to ``subject`` goes; b"": the message is dropped."""
        if subject in self._unmapped:
            return subject
        known = self._constant.get(subject)
        if known is not None:
            return known
        mapping = self._choosing.get(subject)
        return mapping.map(subject) if mapping is not None else self._learn(subject)

    def applies(self, subject: bytes) -> bool:
        """Return whether ``subject`` is a source of a mapping, which may map the subject to itself."""
        return any(mapping.matches(subject) for mapping in self._mappings)

    def map_run(self, ops: Sequence[Msg], start: int, end: int) -> Sequence[Msg] | None:
        """Return ops[start:end] under their mapped subjects; None if no subject changes."""
        if self._unmapped.issuperset([msg[0] for msg in ops[start:end]]):
            return None
        find = self.map
        return [(find(subject), reply, hlen, body) for subject, reply, hlen, body in ops[start:end]]

    def _learn(self, subject: bytes) -> bytes:
        if len(self._constant) + len(self._unmapped) + len(self._choosing) >= _KNOWN_MAX:
            self._constant.clear()
            self._unmapped.clear()
            self._choosing.clear()
        mapping = next((one for one in self._mappings if one.matches(subject)), None)
        if mapping is None:
            self._unmapped.add(subject)
            return subject
        if not mapping.constant:
            self._choosing[subject] = mapping
            return mapping.map(subject)
        mapped = self._constant[subject] = mapping.map(subject)
        return mapped
