"""The erasures of a stream, as its extra members have them: which sequences must leave the store, and what was done.

    marked ──> rewritten ──> done
      │          │             └── no object that held the messages is left
      │          └── all that lived beside them is elsewhere; ``held`` will be deleted, ``made`` replaces it
      └── the messages are removed from the stream, and stay in objects

An erasure has sequences and keys of objects, and nothing of the messages: it is in the log and in checkpoints itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from broker.storage.state.seq_ranges import SeqRanges

__all__ = ["ALL_SEQS", "ERASURE", "REMAINS", "Erasure", "LeftBehind", "StoredFile", "erasures_of", "remains_of",
           "unfinished"]

ERASURE: Final = "erase/"
"""The key of an erasure in the extra members of its stream is this and its id."""
REMAINS: Final = "remains"
"""The key in the extra members of a stream that has moved to another shard: the erasure of all its messages in this
one. A shard that has such a stream without this key still has its whole state."""
ALL_SEQS: Final = SeqRanges(((0, (1 << 64) - 1),))


_DAMAGED: Final = "damaged: "


class StoredFile(NamedTuple):
    """An object: its key, size and SHA-256; ``note`` says why it is listed, or why it cannot be deleted."""

    key: str
    size: int
    sha256: bytes
    note: str = ""

    @property
    def damage(self) -> str:
        """The reason why the object cannot be erased; empty: none is known."""
        return self.note.removeprefix(_DAMAGED) if self.note.startswith(_DAMAGED) else ""

    def with_damage(self, why: str) -> StoredFile:
        """Return the object with the reason why it cannot be erased; empty: without such a reason."""
        return self._replace(note=_DAMAGED + why if why else "") if why or self.damage else self


class Erasure(NamedTuple):
    """One erasure.

    Attributes:
        at_ns: when it was requested. done_ns: when the last object was gone; 0: some are left.
        reported: somebody may ask for its report, so it is kept for a while when it is done.
        held: the objects that held the messages. made: the runs that have the other messages of these objects.
    """

    erasure_id: str
    at_ns: int
    seqs: SeqRanges
    reported: bool = False
    done_ns: int = 0
    held: tuple[StoredFile, ...] = ()
    made: tuple[StoredFile, ...] = ()

    @property
    def key(self) -> str:
        """Its key in the extra members."""
        return ERASURE + self.erasure_id

    def pack(self) -> list[Any]:
        """Return the value of the extra member."""
        return [self.at_ns, self.seqs.pack(), self.reported, self.done_ns, [list(one) for one in self.held],
                [list(one) for one in self.made]]

    @classmethod
    def unpack(cls, key: str, packed: Any) -> Erasure:
        """Return the erasure of an extra member. Raises: ValueError; TypeError."""
        at_ns, seqs, reported, done_ns, held, made = packed
        return cls(key.removeprefix(ERASURE), int(at_ns), SeqRanges.unpack(seqs), bool(reported), int(done_ns),
                   tuple(StoredFile(*one) for one in held), tuple(StoredFile(*one) for one in made))


class LeftBehind(NamedTuple):
    """The rest of a stream in a shard that it has left: ``erasure`` is that of all its messages there, None if that has
    not begun. ``owned``: some broker owns the shard now."""

    shard: int
    owned: bool
    erasure: Erasure | None

    @property
    def done(self) -> bool:
        """True if the shard has no object with such messages any more."""
        return self.erasure is not None and bool(self.erasure.done_ns)

    @property
    def damaged(self) -> list[StoredFile]:
        """The objects that the shard cannot erase, if nothing else is left of the stream there."""
        return [] if self.erasure is None or self.done else [file for file in self.erasure.held if file.damage]


def erasures_of(extra: Mapping[str, Any]) -> Iterator[Erasure]:
    """Iterate over the erasures among a stream's extra members. Raises: ValueError; TypeError."""
    for key, packed in extra.items():
        if key.startswith(ERASURE):
            yield Erasure.unpack(key, packed)


def remains_of(extra: Mapping[str, Any]) -> Erasure | None:
    """Return the erasure of a stream that has moved, in the shard that it has left; None: that has not begun.

    Raises: ValueError; TypeError.
    """
    packed = extra.get(REMAINS)
    return None if packed is None else Erasure.unpack(f"{ERASURE}{REMAINS}-{packed[0]}", packed)


def unfinished(erasures: Iterable[Erasure]) -> SeqRanges:
    """Return the sequences that must leave the store and may still be in it."""
    return SeqRanges.union(erasure.seqs for erasure in erasures if not erasure.done_ns)
