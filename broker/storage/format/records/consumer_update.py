"""Record 5: a consumer was given another configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from broker.storage.format.records.body import RecordBody, as_map, required, unlisted
from broker.storage.format.records.kinds import RecordKind

__all__ = ["ConsumerUpdate"]

_LISTED: Final = frozenset(("name", "config"))


@dataclass(slots=True, eq=False, repr=False)
class ConsumerUpdate(RecordBody):
    """``config`` replaces the configuration. Keys of ``extra`` replace those of the consumer; None removes one."""

    KIND: ClassVar = RecordKind.CONSUMER_UPDATE

    name: str
    config: dict[str, Any]
    extra: dict[str, Any] = field(default_factory=dict)

    def encode(self) -> dict[str, Any]:
        return {"name": self.name, "config": self.config, **self.extra}

    @classmethod
    def decode(cls, body: Any) -> ConsumerUpdate:
        kind, body = cls.KIND, as_map(cls.KIND, body)
        return cls(required(kind, body, "name", str), required(kind, body, "config", dict), unlisted(body, _LISTED))
