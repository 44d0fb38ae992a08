"""Record 8: the ``Nats-Msg-Id`` of messages in the same block, for deduplication after a restart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from broker.storage.format.records.body import RecordBody, damaged
from broker.storage.format.records.kinds import RecordKind

__all__ = ["MessageIds"]


@dataclass(slots=True, eq=False, repr=False)
class MessageIds(RecordBody):
    """``ids[i]`` is the id of the message with ordinal ``ordinals[i]`` in the block. In the stored bytes they are
    pairs.

    An id that is stored as text is read as its UTF-8 bytes; ids are written as bytes.
    """

    KIND: ClassVar = RecordKind.MESSAGE_IDS
    MUST_UNDERSTAND: ClassVar = False  # a reader that does not deduplicate may do without them

    ordinals: Sequence[int]
    ids: Sequence[bytes]

    def encode(self) -> list[tuple[int, bytes]]:
        return list(zip(self.ordinals, self.ids, strict=True))

    @classmethod
    def decode(cls, body: Any) -> MessageIds:
        if not body and type(body) is list:
            return cls((), ())
        try:
            # zip converts all pairs at once: after a restart there may be millions.
            ordinals, ids = zip(*body, strict=True)
        except (TypeError, ValueError):
            raise damaged(cls.KIND, "", "the body is not a list of pairs") from None
        if set(map(type, ordinals)) != {int} or not {bytes, str}.issuperset(types := set(map(type, ids))):
            raise damaged(cls.KIND, "", "the body is not a list of ordinals with ids")
        return cls(ordinals, ids if str not in types else tuple([i.encode() if type(i) is str else i for i in ids]))
