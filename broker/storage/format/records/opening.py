"""Record 11, in the shard's own block at number 0 of an epoch's log: its owner, and the ends of earlier epochs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from broker.storage.format.errors import VersionUnknown
from broker.storage.format.header import FORMAT_VERSION, Position
from broker.storage.format.records.body import RecordBody, as_map, pack_positions, required, unlisted, unpack_positions
from broker.storage.format.records.kinds import RecordKind

__all__ = ["SHARDS_VERSION", "Opening"]

SHARDS_VERSION: Final = 6
"""The ``reader_version`` of shard 0 in a store of several shards. All of its objects have ``FORMAT_VERSION``, so this
version alone lets earlier releases refuse the store: they would drop the catalogue at their first checkpoint."""

_LISTED: Final = frozenset(("owner", "reader_version", "at_ns", "ends"))


@dataclass(slots=True, eq=False, repr=False)
class Opening(RecordBody):
    """``reader_version`` is the lowest format version that may read on. ``at_ns`` is UTC.

    ``ends`` has a position for each epoch since the last opening, in order: the first that does not belong to the epoch
    (its seal's). A reader ignores everything from there on. ``extra`` has all other keys, which roots store too.
    """

    KIND: ClassVar = RecordKind.OPENING

    owner: str
    ends: Sequence[Position]
    at_ns: int
    reader_version: int = FORMAT_VERSION
    extra: dict[str, Any] = field(default_factory=dict)

    def encode(self) -> dict[str, Any]:
        return {"owner": self.owner, "reader_version": self.reader_version, "at_ns": self.at_ns,
                "ends": pack_positions(self.ends), **self.extra}

    @classmethod
    def decode(cls, body: Any, name: str = "record") -> Opening:
        """Decode an opening; name is the object's, for errors.

        Raises: Corrupt; VersionUnknown if this reader may not read on.
        """
        kind, body = cls.KIND, as_map(cls.KIND, body, name)
        reader_version = required(kind, body, "reader_version", int, name)
        if reader_version > SHARDS_VERSION:
            raise VersionUnknown(name, "opening", 0, f"readers need format version {reader_version}")
        return cls(required(kind, body, "owner", str, name),
                   tuple(unpack_positions(kind, "ends", body.get("ends"), name)),
                   required(kind, body, "at_ns", int, name), reader_version, unlisted(body, _LISTED))
