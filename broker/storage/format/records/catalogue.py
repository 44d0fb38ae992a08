"""Record 17, in the own block of shard 0: changes of the catalogue, which has the streams of other shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from broker.storage.format.records.body import RecordBody, as_map, damaged, optional, required, unlisted
from broker.storage.format.records.kinds import RecordKind

__all__ = ["Catalogue", "CatalogueEntry"]

_LISTED: Final = frozenset(("id", "shard", "account", "name", "config", "created_ns", "deleting", "to", "moves"))


@dataclass(slots=True, repr=False)
class CatalogueEntry:
    """A stream that is in another shard than 0, from before its creation there until after its deletion.

    ``config`` is the API's JSON: the configuration that the stream has, or is about to get. ``deleting``: the stream is
    deleted, or about to be. ``to``: it moves from ``shard`` to this one; then either may be shard 0. ``moves``: how
    often it has moved. ``extra`` has all other keys.
    """

    stream_id: int
    shard: int
    account: str
    name: str
    config: dict[str, Any]
    created_ns: int
    deleting: bool = False
    to: int | None = None
    moves: int = 0
    extra: dict[str, Any] = field(default_factory=dict)

    def encode(self) -> dict[str, Any]:
        """Return the entry as plain values."""
        body: dict[str, Any] = {"id": self.stream_id, "shard": self.shard, "account": self.account, "name": self.name,
                                "config": self.config, "created_ns": self.created_ns}
        if self.deleting:
            body["deleting"] = True
        if self.to is not None:
            body["to"] = self.to
        if self.moves:
            body["moves"] = self.moves
        return body | self.extra

    @classmethod
    def decode(cls, body: Any) -> CatalogueEntry:
        """Return the entry that ``encode`` returned. Raises: Corrupt."""
        kind = RecordKind.CATALOGUE
        body = as_map(kind, body)
        return cls(required(kind, body, "id", int), required(kind, body, "shard", int),
                   required(kind, body, "account", str), required(kind, body, "name", str),
                   required(kind, body, "config", dict), required(kind, body, "created_ns", int),
                   optional(kind, body, "deleting", bool, False),
                   required(kind, body, "to", int) if "to" in body else None, optional(kind, body, "moves", int, 0),
                   unlisted(body, _LISTED))


@dataclass(slots=True, eq=False, repr=False)
class Catalogue(RecordBody):
    """``entries`` are new or changed; ``gone`` are the incarnations whose entries are removed."""

    KIND: ClassVar = RecordKind.CATALOGUE

    entries: Sequence[CatalogueEntry] = ()
    gone: Sequence[int] = ()

    def encode(self) -> dict[str, Any]:
        body: dict[str, Any] = {}
        if self.entries:
            body["entries"] = [entry.encode() for entry in self.entries]
        if self.gone:
            body["gone"] = list(self.gone)
        return body

    @classmethod
    def decode(cls, body: Any) -> Catalogue:
        body = as_map(cls.KIND, body)
        gone = optional(cls.KIND, body, "gone", list, [])
        if not all(type(stream_id) is int for stream_id in gone):
            raise damaged(cls.KIND, "gone", "not a list of incarnations")
        return cls([CatalogueEntry.decode(entry) for entry in optional(cls.KIND, body, "entries", list, [])], gone)
