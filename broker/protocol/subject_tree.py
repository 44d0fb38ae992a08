"""A tree of very many patterns by token, to find those that overlap another pattern without visiting each.

    a.*   a.b.c   d.>        a ─┬─ *
                                └─ b ── c
                             d ─── >

Several owners may have the same pattern. Patterns are not validated.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

__all__ = ["SubjectTree"]

K = TypeVar("K", bound=Hashable)

_STAR, _REST = b"*", b">"


class _Node(Generic[K]):
    """The patterns that begin with some tokens: ``owners`` of the pattern that ends here, ``below`` by the next
    token."""

    __slots__ = ("below", "owners")

    def __init__(self) -> None:
        self.owners: set[K] | None = None
        self.below: dict[bytes, _Node[K]] = {}


class SubjectTree(Generic[K]):
    """A set of patterns with their owners."""

    def __init__(self) -> None:
        self._root: _Node[K] = _Node()

    def add(self, pattern: bytes, owner: K) -> None:
        """Add the pattern for an owner."""
        node = self._root
        for token in pattern.split(b"."):
            below = node.below.get(token)
            if below is None:
                below = node.below[token] = _Node()
            node = below
        if node.owners is None:
            node.owners = set()
        node.owners.add(owner)

    def discard(self, pattern: bytes, owner: K) -> None:
        """Remove an owner's pattern; an unknown one is ignored."""
        path, node = [], self._root
        for token in pattern.split(b"."):
            path.append((node, token))
            below = node.below.get(token)
            if below is None:
                return
            node = below
        if node.owners is not None:
            node.owners.discard(owner)
            node.owners = node.owners or None
        while path and not node.owners and not node.below:
            node, token = path.pop()
            del node.below[token]

    def overlapping(self, pattern: bytes) -> Iterator[K]:
        """Yield the owners of patterns that overlap ``pattern``: both match a common subject. An owner may come
        twice."""
        tokens = pattern.split(b".")
        nodes = [self._root]
        for i, token in enumerate(tokens):
            if token == _REST and i == len(tokens) - 1:
                for node in nodes:
                    yield from _all_below(node)
                return
            further = []
            for node in nodes:
                below = node.below
                if (rest := below.get(_REST)) is not None:
                    yield from rest.owners or ()
                if token == _STAR:
                    further += [one for name, one in below.items() if name != _REST]
                else:
                    further += [below[name] for name in (token, _STAR) if name in below]
            nodes = further
        for node in nodes:
            yield from node.owners or ()


def _all_below(node: _Node[K]) -> Iterator[K]:
    nodes = list(node.below.values())
    while nodes:
        node = nodes.pop()
        yield from node.owners or ()
        nodes += node.below.values()
