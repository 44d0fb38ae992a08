"""Record 2: a stream has a new configuration, or new values of ``extra``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from broker.storage.format.records.body import RecordBody, as_map, required, unlisted
from broker.storage.format.records.kinds import RecordKind

__all__ = ["StreamUpdate"]

_LISTED: Final = frozenset(("config",))


@dataclass(slots=True, eq=False, repr=False)
class StreamUpdate(RecordBody):
    """``config`` replaces the configuration. Keys of ``extra`` replace those of the stream; None removes one."""

    KIND: ClassVar = RecordKind.STREAM_UPDATE

    config: dict[str, Any]
    extra: dict[str, Any] = field(default_factory=dict)

    def encode(self) -> dict[str, Any]:
        return {"config": self.config, **self.extra}

    @classmethod
    def decode(cls, body: Any) -> StreamUpdate:
        body = as_map(cls.KIND, body)
        return cls(required(cls.KIND, body, "config", dict), unlisted(body, _LISTED))
