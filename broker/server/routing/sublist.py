"""A tree of subscriptions by token, to find those that match a subject.

    foo.bar     ─ "foo" ── "bar"       [plain subs, queue groups]
    foo.*.baz   ─ "foo" ── star ── "baz"
    foo.>       ─ "foo" ── rest

A branch with only one subscription ends where it leaves the others: that node has the subscription itself. If there are
very many subscriptions, most have such a branch, which would otherwise be several nodes.

    foo.1.*.a, foo.2.*.a    ─ "foo" ─┬─ "1" [foo.1.*.a]
                                     └─ "2" [foo.2.*.a]

Does not own: delivery, or the caching of matches; the router knows when those become stale.

Source: nats-server, server/sublist.go (Insert, Match).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

__all__ = ["Listener", "Match", "Sublist"]


class Listener(Protocol):
    """The attributes that a subscription must have; ``queue`` b"": a plain subscription."""

    @property
    def subject(self) -> bytes: ...

    @property
    def queue(self) -> bytes: ...


S = TypeVar("S", bound=Listener)


class Match(Generic[S]):
    """The subscriptions of one subject: each of ``plain`` gets a message, and one member of each of ``groups``."""

    __slots__ = ("groups", "plain")

    def __init__(self) -> None:
        self.plain: list[S] = []
        self.groups: dict[bytes, list[S]] = {}


class _Node(Generic[S]):
    """The node of one token. Sets of subscriptions are dicts, to keep their order: the first subscriber is served
    first.

    Most nodes of a large tree have one child or one subscription, so dicts are made when they are needed.
    """

    __slots__ = ("children", "depth", "groups", "only", "plain", "rest", "star")

    def __init__(self, depth: int = 0, only: S | None = None) -> None:
        self.depth = depth
        """Number of tokens that lead here."""
        self.only = only
        """The only subscription at this node and below it; the other attributes are then unset."""
        self.plain: dict[S, None] | None = None
        self.groups: dict[bytes, dict[S, None]] | None = None
        self.children: dict[bytes, _Node[S]] | None = None
        self.star: _Node[S] | None = None
        self.rest: _Node[S] | None = None

    @property
    def empty(self) -> bool:
        return not (self.only or self.plain or self.groups or self.children or self.star or self.rest)

    def add(self, sub: S, tokens: list[bytes]) -> _Node[S] | None:
        """Add a subscription, whose subject has these tokens.

        Returns: the next node on its way, if there is one already; then nothing was added.
        """
        if self.only is not None:
            self.expand()
        if self.depth == len(tokens):
            if not sub.queue:
                if self.plain is None:
                    self.plain = {}
                self.plain[sub] = None
            else:
                if self.groups is None:
                    self.groups = {}
                self.groups.setdefault(sub.queue, {})[sub] = None
            return None
        token = tokens[self.depth]
        if token == b"*":
            if self.star is None:
                self.star = _Node(self.depth + 1, sub)
                return None
            return self.star
        if token == b">":
            if self.rest is None:
                self.rest = _Node(self.depth + 1, sub)
                return None
            return self.rest
        if self.children is None:
            self.children = {}
        following = self.children.get(token)
        if following is None:
            self.children[token] = _Node(self.depth + 1, sub)
        return following

    def expand(self) -> None:
        """Move the only subscription to where its subject leads."""
        if (only := self.only) is not None:
            self.only = None
            self.add(only, only.subject.split(b"."))

    def discard(self, sub: S) -> bool:
        """Remove a subscription. Returns: whether it was found."""
        groups = self.groups or {}
        members = groups.get(sub.queue) if sub.queue else self.plain
        if members is None or sub not in members:
            return False
        del members[sub]
        if sub.queue and not members:
            del groups[sub.queue]
        return True

    def following(self) -> list[_Node[S]]:
        """Return the nodes of all next tokens."""
        return [node for node in (*(self.children or {}).values(), self.star, self.rest) if node is not None]


class Sublist(Generic[S]):
    """The tree. ``insert`` takes only subjects that ``protocol.subject.is_valid`` accepts."""

    def __init__(self) -> None:
        self._root: _Node[S] = _Node()
        self.count = 0
        self.inserts = 0
        self.removes = 0
        self.visited = 0
        """Nodes that all lookups visited beyond one per token. With overlapping wildcards there may be very many."""

    def __iter__(self) -> Iterator[S]:
        """Yield all subscriptions. One that is inserted or removed meanwhile may be among them or not."""
        nodes = [self._root]
        while nodes:
            node = nodes.pop()
            if node.only is not None:
                yield node.only
                continue
            if node.plain:
                yield from tuple(node.plain)
            for members in tuple((node.groups or {}).values()):
                yield from tuple(members)
            nodes += node.following()

    def insert(self, sub: S) -> None:
        tokens = sub.subject.split(b".")
        node: _Node[S] | None = self._root
        while node is not None:
            node = node.add(sub, tokens)
        self.count += 1
        self.inserts += 1

    def remove(self, sub: S) -> bool:
        """Remove ``sub`` and any branch that becomes empty. Returns: whether it was found."""
        path: list[tuple[_Node[S], bytes]] = []
        node = self._root
        for token in sub.subject.split(b"."):
            if node.only is not None:
                break
            path.append((node, token))
            following = (node.star if token == b"*" else node.rest if token == b">" else
                         node.children.get(token) if node.children is not None else None)
            if following is None:
                return False
            node = following
        if node.only is sub:
            node.only = None
        elif not node.discard(sub):
            return False
        self.count -= 1
        self.removes += 1
        for parent, token in reversed(path):
            if not node.empty:
                break
            if token == b"*":
                parent.star = None
            elif token == b">":
                parent.rest = None
            elif parent.children is not None:
                del parent.children[token]
            node = parent
        return True

    def all(self) -> list[S]:
        """Return all subscriptions."""
        return list(self)

    def match(self, subject: bytes) -> Match[S]:
        """Return the subscriptions that match a literal subject; a subject with an empty token matches none."""
        found: Match[S] = Match()
        tokens = subject.split(b".")
        if b"" in tokens:
            return found
        node = self._root
        for at, token in enumerate(tokens):
            # Fast path while the tree does not fork, which is most of the way in most trees.
            if node.only is not None:
                if node.only.subject == subject or _leads_on(node.only.subject.split(b"."), tokens, at):
                    _collect_one(node.only, found)
                return found
            if node.rest is not None:
                self._collect(node.rest, found)
            star, children = node.star, node.children
            child = children.get(token) if children is not None else None
            if child is None:
                if star is None:
                    return found
                node = star
            elif star is None:
                node = child
            else:
                for node in self._descend(tokens[at + 1:], found, [star, child]):
                    self._collect(node, found)
                return found
        self._collect(node, found)
        return found

    def _descend(self, tokens: list[bytes], found: Match[S], level: list[_Node[S]]) -> list[_Node[S]]:
        """Return the nodes to which ``tokens`` lead from the nodes of ``level``.

        The ``>`` subscriptions on the way are added to ``found``.
        """
        for token in tokens:
            following: list[_Node[S]] = []
            for node in level:
                if node.only is not None:
                    node.expand()
                if node.rest is not None:
                    self._collect(node.rest, found)
                if node.star is not None:
                    following.append(node.star)
                if node.children is not None:
                    child = node.children.get(token)
                    if child is not None:
                        following.append(child)
            if not following:
                return following
            self.visited += len(following)
            level = following
        return level

    def exact(self, subject: bytes, queue: bytes) -> Iterable[S]:
        """Return the subscriptions with exactly this literal subject and queue group."""
        node = self._root
        for token in subject.split(b"."):
            following = node.children.get(token) if node.children is not None else None
            if following is None:
                return ()
            node = following
            node.expand()
        return (node.groups or {}).get(queue, ()) if queue else node.plain or ()

    def match_prefix(self, prefix: bytes) -> Match[S] | None:
        """Return the subscriptions that match ``prefix`` and any one further token; None if they depend on that
        token."""
        found: Match[S] = Match()
        tokens = prefix.split(b".")
        if b"" in tokens:
            return None
        for node in self._descend(tokens, found, [self._root]):
            node.expand()
            if node.children:
                return None
            if node.rest is not None:
                self._collect(node.rest, found)
            if node.star is not None:
                self._collect(node.star, found)
        return found

    @staticmethod
    def _collect(node: _Node[S], found: Match[S]) -> None:
        """Add the subscriptions whose subjects end at the node."""
        if (only := node.only) is not None:
            if only.subject.count(b".") + 1 == node.depth:
                _collect_one(only, found)
            return
        if node.plain is not None:
            found.plain.extend(node.plain)
        if node.groups is not None:
            for queue, members in node.groups.items():
                found.groups.setdefault(queue, []).extend(members)


def _collect_one(sub: S, found: Match[S]) -> None:
    if sub.queue:
        found.groups.setdefault(sub.queue, []).append(sub)
    else:
        found.plain.append(sub)


def _leads_on(pattern: list[bytes], tokens: list[bytes], start: int) -> bool:
    """Return whether the pattern matches the literal tokens, if the first ``start`` tokens do."""
    for at in range(start, len(pattern)):
        if at == len(tokens):
            return False
        token = pattern[at]
        if token != tokens[at] and token != b"*":
            return token == b">"
    return len(pattern) == len(tokens)
