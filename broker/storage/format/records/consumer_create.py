"""Record 4: a consumer was created."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from broker.storage.format.records.body import RecordBody, as_map, required, unlisted
from broker.storage.format.records.consumer_state import ConsumerDelta
from broker.storage.format.records.kinds import RecordKind

__all__ = ["ConsumerCreate"]

_LISTED: Final = frozenset(("name", "config", "created_ns", "d", "f", "la", "add", "drop", "re", "x"))


@dataclass(slots=True, eq=False, repr=False)
class ConsumerCreate(RecordBody):
    """``config`` is the API's JSON; ``start`` is the state that the consumer begins with, under the consumer's name.

    ``extra`` has all other keys, which are stored with the consumer as those of ``start.extra`` are.
    """

    KIND: ClassVar = RecordKind.CONSUMER_CREATE

    name: str
    config: dict[str, Any]
    created_ns: int
    start: ConsumerDelta
    extra: dict[str, Any] = field(default_factory=dict)

    def encode(self) -> dict[str, Any]:
        body: dict[str, Any] = {"name": self.name, "config": self.config, "created_ns": self.created_ns}
        self.start.encode_into(body)
        return body | self.extra

    @classmethod
    def decode(cls, body: Any) -> ConsumerCreate:
        kind, body = cls.KIND, as_map(cls.KIND, body)
        name = required(kind, body, "name", str)
        return cls(name, required(kind, body, "config", dict), required(kind, body, "created_ns", int),
                   ConsumerDelta.decode_from(body, name, kind), unlisted(body, _LISTED))
