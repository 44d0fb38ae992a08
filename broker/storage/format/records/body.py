"""What the body of every kind of record offers, and the checks on plain values that their decoders share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from typing import Any, ClassVar, TypeVar

from broker.storage.format.errors import Corrupt
from broker.storage.format.header import Position
from broker.storage.format.records.kinds import RecordKind

__all__ = ["RecordBody", "as_map", "damaged", "optional", "pack_positions", "required", "unlisted", "unpack_positions"]

Value = TypeVar("Value")


class RecordBody(ABC):
    """The body of one kind of record. ``decode`` undoes ``encode``; the bytes between them are msgpack.

    Kinds of records are dataclasses without methods for equality and display: those are written here once, since to generate
    them for each kind would take longer than all else that a start does with these modules.
    """

    __slots__: tuple[str, ...] = ()

    KIND: ClassVar[RecordKind]

    VERSION: ClassVar[int] = 1
    """The version that is written; this one and all before it are read."""

    MUST_UNDERSTAND: ClassVar[bool] = True
    """Whether a reader that does not know the kind or version must not read the stream."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__slots__)})"

    @abstractmethod
    def encode(self) -> object:
        """The body as plain values: maps, lists, str, bytes and numbers."""

    @classmethod
    @abstractmethod
    def decode(cls, body: Any) -> RecordBody:
        """From what ``encode`` gave to a writer of this version or of an earlier or later one that still has its number.

        Raises: Corrupt, naming the record and the key.
        """


def damaged(kind: RecordKind, key: str, why: str, name: str = "record") -> Corrupt:
    """The error for a body that its section of docs/FORMAT.md does not allow; ``name`` is the object, where it is known."""
    where = f"record {kind} ({kind.name.lower().replace('_', ' ')})"
    return Corrupt(name, f"{where}, {key}" if key else where, 0, why)


def as_map(kind: RecordKind, body: object, name: str = "record") -> dict[str, Any]:
    """``body``, which must be a map. Raises: Corrupt."""
    if type(body) is not dict:
        raise damaged(kind, "", "the body is not a map", name)
    return body


def required(kind: RecordKind, body: dict[str, Any], key: str, of: type[Value], name: str = "record") -> Value:
    """``body[key]``, which must be there and of this very type. Raises: Corrupt."""
    value = body.get(key)
    if type(value) is not of:
        raise damaged(kind, key, "missing" if key not in body else f"not of type {of.__name__}", name)
    return value


def optional(kind: RecordKind, body: dict[str, Any], key: str, of: type[Value], default: Value) -> Value:
    """As ``required``; ``default`` where the key is missing."""
    return required(kind, body, key, of) if key in body else default


def unlisted(body: dict[str, Any], listed: Collection[str]) -> dict[str, Any]:
    """The entries of ``body`` whose keys are not ``listed``."""
    return {key: value for key, value in body.items() if key not in listed}


def pack_positions(positions: Iterable[Position]) -> list[list[int]]:
    """[[epoch, number], …]"""
    return [list(position) for position in positions]


def unpack_positions(kind: RecordKind, key: str, packed: object, name: str = "record") -> list[Position]:
    """Undo ``pack_positions``. Raises: Corrupt."""
    if type(packed) is not list:
        raise damaged(kind, key, "not a list", name)
    for one in packed:
        if type(one) is not list or len(one) != 2 or not all(type(n) is int and n >= 0 for n in one):
            raise damaged(kind, key, "not a list of positions", name)
    return [Position(*one) for one in packed]
