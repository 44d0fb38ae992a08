"""Record 15: blocks that somebody else staged join the end of the stream, as its inbox asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from broker.storage.format.records.body import RecordBody, as_map, damaged, required, unlisted
from broker.storage.format.records.kinds import RecordKind

__all__ = ["Append"]

_LISTED: Final = frozenset(("blocks", "dead"))


@dataclass(slots=True)
class Append(RecordBody):
    """All of ``blocks`` follow the stream's last message, in their order, before the messages of the record's own block.

    Each is a packed BlockRef with the sequences and times that its messages have from now on. ``dead`` are messages of them
    that do not join, as [first_seq, last_seq, messages, bytes]. ``extra`` is as of a stream update: it has the answer to the
    request.
    """

    KIND: ClassVar = RecordKind.APPEND

    blocks: Sequence[Sequence[Any]]
    dead: Sequence[Sequence[int]] = ()
    extra: dict[str, Any] = field(default_factory=dict)

    def encode(self) -> dict[str, Any]:
        body = {"blocks": list(self.blocks), **self.extra}
        return {**body, "dead": [list(one) for one in self.dead]} if self.dead else body

    @classmethod
    def decode(cls, body: Any) -> Append:
        body = as_map(cls.KIND, body)
        dead = required(cls.KIND, body, "dead", list) if "dead" in body else []
        if not all(type(row) is list and [*map(type, row)] == [int] * 4 and 1 <= row[0] <= row[1] for row in dead):
            raise damaged(cls.KIND, "dead", "not a list of ranges")
        return cls(required(cls.KIND, body, "blocks", list), dead, unlisted(body, _LISTED))
