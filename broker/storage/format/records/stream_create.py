"""Record 1: a stream was created. The first record of its first block."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from broker.storage.format.records.body import RecordBody, as_map, optional, required, unlisted
from broker.storage.format.records.kinds import RecordKind

__all__ = ["PER_SUBJECT", "RESTORING", "StreamCreate"]

PER_SUBJECT: Final = "per_subject"
"""A key of ``extra``: the most messages that any subject of the stream can have. Missing: not known."""

RESTORING: Final = "restoring"
"""A key of ``extra``: true while the stream is being restored from a backup. Until an update removes it, the stream
does not exist for others; an owner that finds such a stream at its start deletes it."""

_LISTED: Final = frozenset(("account", "name", "config", "created_ns", "ceiling"))


@dataclass(slots=True, eq=False, repr=False)
class StreamCreate(RecordBody):
    """``config`` is the API's JSON. ``ceiling`` is that of the ``Ceiling`` record; 0: none.

    ``extra`` has all other keys, known or not: they are stored with the stream and in its checkpoints.
    """

    KIND: ClassVar = RecordKind.STREAM_CREATE

    account: str
    name: str
    config: dict[str, Any]
    created_ns: int
    ceiling: int = 0
    extra: dict[str, Any] = field(default_factory=dict)

    def encode(self) -> dict[str, Any]:
        body: dict[str, Any] = {"account": self.account, "name": self.name, "config": self.config,
                                "created_ns": self.created_ns}
        if self.ceiling:
            body["ceiling"] = self.ceiling
        return body | self.extra

    @classmethod
    def decode(cls, body: Any) -> StreamCreate:
        kind, body = cls.KIND, as_map(cls.KIND, body)
        return cls(required(kind, body, "account", str), required(kind, body, "name", str),
                   required(kind, body, "config", dict), required(kind, body, "created_ns", int),
                   optional(kind, body, "ceiling", int, 0), unlisted(body, _LISTED))
