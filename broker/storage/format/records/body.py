"""The interface of the bodies of all kinds of records, and the checks that their decoders share."""

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
    """The body of one kind of record. ``decode`` is the inverse of ``encode``; the bytes between them are msgpack.

    Kinds of records are dataclasses without generated methods for equality and display. Generating these for each kind
    would take longer than all other work with these modules at a start, so this class has them once.
    """

    __slots__: tuple[str, ...] = ()

    KIND: ClassVar[RecordKind]

    VERSION: ClassVar[int] = 1
    """The version that is written. A reader accepts this one and all before it."""

    MUST_UNDERSTAND: ClassVar[bool] = True
    """True if a reader that does not know the kind or version must not read the stream."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__slots__)})"

    @abstractmethod
    def encode(self) -> object:
        """Return the body as plain values: maps, lists, str, bytes and numbers."""

    @classmethod
    @abstractmethod
    def decode(cls, body: Any) -> RecordBody:
        """Return the body that ``encode`` returned, by a writer of this version, or of any release with the same
        version.

        Raises: Corrupt, with the record and the key.
        """


def damaged(kind: RecordKind, key: str, why: str, name: str = "record") -> Corrupt:
    """Return the error for a body that docs/FORMAT.md does not allow; ``name`` is the object, if known."""
    where = f"record {kind} ({kind.name.lower().replace('_', ' ')})"
    return Corrupt(name, f"{where}, {key}" if key else where, 0, why)


def as_map(kind: RecordKind, body: object, name: str = "record") -> dict[str, Any]:
    """Return ``body``, which must be a map. Raises: Corrupt."""
    if type(body) is not dict:
        raise damaged(kind, "", "the body is not a map", name)
    return body


def required(kind: RecordKind, body: dict[str, Any], key: str, of: type[Value], name: str = "record") -> Value:
    """Return ``body[key]``, which must exist and be of exactly this type. Raises: Corrupt."""
    value = body.get(key)
    if type(value) is not of:
        raise damaged(kind, key, "missing" if key not in body else f"not of type {of.__name__}", name)
    return value


def optional(kind: RecordKind, body: dict[str, Any], key: str, of: type[Value], default: Value) -> Value:
    """Return ``required``, or ``default`` if the key is missing."""
    return required(kind, body, key, of) if key in body else default


def unlisted(body: dict[str, Any], listed: Collection[str]) -> dict[str, Any]:
    """Return the entries of ``body`` whose keys are not ``listed``."""
    return {key: value for key, value in body.items() if key not in listed}


def pack_positions(positions: Iterable[Position]) -> list[list[int]]:
    """Return [[epoch, number], …]."""
    return [list(position) for position in positions]


def unpack_positions(kind: RecordKind, key: str, packed: object, name: str = "record") -> list[Position]:
    """Return the positions that ``pack_positions`` packed. Raises: Corrupt."""
    if type(packed) is not list:
        raise damaged(kind, key, "not a list", name)
    for one in packed:
        if type(one) is not list or len(one) != 2 or not all(type(n) is int and n >= 0 for n in one):
            raise damaged(kind, key, "not a list of positions", name)
    return [Position(*one) for one in packed]
