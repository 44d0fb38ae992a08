"""Record 15: staged blocks of another writer join the end of the stream, as a request in the inbox asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from broker.storage.format.records.body import RecordBody, as_map, damaged, required, unlisted
from broker.storage.format.records.kinds import RecordKind

__all__ = ["Append"]

_LISTED: Final = frozenset(("blocks", "dead"))


@dataclass(slots=True, eq=False, repr=False)
class Append(RecordBody):
    """All of ``blocks`` follow the stream's last message, in their order, before the messages of the record's own
    block.

    Each is a packed BlockRef with the sequences and times that its messages have from now on. ``dead`` are their
    messages that do not join, as [first_seq, last_seq, messages, bytes]. If these are scattered over a block, the range
    is the whole block's, and a fifth value has a bit for each sequence, lowest bit of a byte first. ``extra`` works as
    in a stream update: it has the answer to the request.
    """

    KIND: ClassVar = RecordKind.APPEND

    blocks: Sequence[Sequence[Any]]
    dead: Sequence[Sequence[Any]] = ()
    extra: dict[str, Any] = field(default_factory=dict)

    def encode(self) -> dict[str, Any]:
        body = {"blocks": list(self.blocks), **self.extra}
        return {**body, "dead": [list(one) for one in self.dead]} if self.dead else body

    @classmethod
    def decode(cls, body: Any) -> Append:
        body = as_map(cls.KIND, body)
        dead = required(cls.KIND, body, "dead", list) if "dead" in body else []
        if not all(map(_is_range, dead)):
            raise damaged(cls.KIND, "dead", "not a list of ranges")
        return cls(required(cls.KIND, body, "blocks", list), dead, unlisted(body, _LISTED))


def _is_range(row: Any) -> bool:
    if (type(row) is not list or [*map(type, row[:4])] != [int] * 4
            or not (1 <= row[0] <= row[1] and row[2] >= 0 <= row[3])):
        return False
    if len(row) == 4:
        return True
    span, bits = row[1] - row[0] + 1, row[-1]
    if len(row) != 5 or type(bits) is not bytes or len(bits) != (span + 7) >> 3:
        return False
    marked = int.from_bytes(bits, "little")
    return bool(marked >> span == 0 and marked.bit_count() == row[2])
