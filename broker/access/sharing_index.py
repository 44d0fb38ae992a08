"""Finds exports and imports by their subjects, for accounts with thousands of them.

Does not own the rules between them (``sharing``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from copy import copy
from typing import Final, Generic, Protocol, TypeVar

from broker.protocol.subject import subset
from broker.protocol.subject_tree import SubjectTree

__all__ = ["ImportList", "exports_for", "is_covered"]


class _Export(Protocol):
    @property
    def subject(self) -> str: ...

    @property
    def kind(self) -> str: ...


class _Import(Hashable, Protocol):
    @property
    def account(self) -> str: ...

    @property
    def subject(self) -> str: ...

    @property
    def kind(self) -> str: ...


E = TypeVar("E", bound=_Export)
I = TypeVar("I", bound=_Import)  # noqa: E741

_INDEXES_MAX: Final = 256


class _ExportIndex(Generic[E]):
    """An index of one account's exports."""

    def __init__(self, exports: Sequence[E]) -> None:
        self.exports = exports
        self._same: dict[tuple[str, str], list[E]] = {}
        self._numbers = {id(export): number for number, export in enumerate(exports)}
        self._trees: dict[str, SubjectTree[str]] = {"stream": SubjectTree(), "service": SubjectTree()}
        for export in exports:
            self._same.setdefault((export.kind, export.subject), []).append(export)
            self._trees[export.kind].add(export.subject.encode(), export.subject)

    def find(self, kind: str, subject: str) -> list[E]:
        """Return the exports of the same subject, or else all wider ones."""
        same = self._same.get((kind, subject))
        if same is not None:
            return same
        wider = self._wider(kind, subject)
        return [export for (other, one), exports in self._same.items() if other == kind and one in wider
                for export in exports] if wider else []

    def covered(self, export: E, subject: str) -> bool:
        """Return whether ``export``, or one of its kind before it, has ``subject`` or a wider one."""
        last = self._numbers[id(export)]
        return any(self._numbers[id(self._same[export.kind, one][0])] <= last
                   for one in self._wider(export.kind, subject))

    def _wider(self, kind: str, subject: str) -> set[str]:
        """Return the subjects of exports that contain ``subject``, itself among them."""
        wanted = subject.encode()
        return {one for one in self._trees[kind].overlapping(wanted) if subset(wanted, one.encode())}


_indexes: dict[int, _ExportIndex[_Export]] = {}


def exports_for(exports: Sequence[E], kind: str, subject: str) -> list[E]:
    """Return the exports of this kind with the same subject, or else those with a wider one; ``exports`` never
    change."""
    return _index(exports).find(kind, subject)  # type: ignore[return-value]


def is_covered(exports: Sequence[E], export: E, subject: str) -> bool:
    """Return whether ``export``, one of ``exports``, or one of its kind before it, has ``subject`` or a wider one."""
    return _index(exports).covered(export, subject)


def _index(exports: Sequence[_Export]) -> _ExportIndex[_Export]:
    index = _indexes.get(id(exports))
    if index is None or index.exports is not exports:
        if len(_indexes) >= _INDEXES_MAX:
            _indexes.clear()
        index = _indexes[id(exports)] = _ExportIndex[_Export](exports)
    return index


class ImportList(Generic[I]):
    """Imports of one account, in the order in which they were added. ``here``: the local subjects of one, as a
    pattern."""

    def __init__(self, here: Callable[[I], bytes]) -> None:
        self._here = here
        self._numbers: dict[I, int] = {}
        self._by_subject: dict[tuple[str, str, str], I] = {}
        self._by_here: dict[tuple[str, str, bytes], I] = {}
        self._trees: dict[str, SubjectTree[I]] = {"stream": SubjectTree(), "service": SubjectTree()}
        self._end: int | None = None

    def before(self, one: I) -> ImportList[I]:
        """Return the same imports, of which ``colliding`` finds only those added before ``one``."""
        earlier = copy(self)
        earlier._end = self._numbers[one]
        return earlier

    def __iter__(self) -> Iterator[I]:
        return iter(self._numbers)

    def append(self, one: I) -> None:
        self._numbers.setdefault(one, len(self._numbers))
        here = self._here(one)
        self._by_subject.setdefault((one.kind, one.account, one.subject), one)
        self._by_here.setdefault((one.kind, one.account, here), one)
        self._trees[one.kind].add(one.subject.encode() if one.kind == "service" else here, one)

    def same_subject(self, one: I) -> I | None:
        """Return the first import of the same subject of the same account."""
        return self._by_subject.get((one.kind, one.account, one.subject))

    def same_place(self, one: I, here: bytes) -> I | None:
        """Return the first import from the same account that arrives under ``here``."""
        return self._by_here.get((one.kind, one.account, here))

    def colliding(self, kind: str, wanted: bytes) -> list[I]:
        """Return the imports that collide with ``wanted``: services by the exporter's subject, streams by the local
        one."""
        numbers, end = self._numbers, self._end
        found = sorted(set(self._trees[kind].overlapping(wanted)), key=numbers.__getitem__)
        return found if end is None else [one for one in found if numbers[one] < end]
