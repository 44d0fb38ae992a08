"""An account: its own subject space, and the counts of its connections.

Owns: the router, and the counts of connections and messages. Does not own: who may log in to the account (auth), and
its streams (JetStream, which knows an account by its router).

Source: nats-server, server/accounts.go (Account), server/events.go (AccountStat).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from broker.access.accounts import NO_LIMIT, AccountSettings
from broker.server.routing.router import Router

__all__ = ["Account", "Member", "Traffic"]


class Traffic(NamedTuple):
    """Counts of messages and bytes, from clients and to clients."""

    in_msgs: int = 0
    in_bytes: int = 0
    out_msgs: int = 0
    out_bytes: int = 0

    def plus(self, other: Traffic) -> Traffic:
        return Traffic(*map(int.__add__, self, other))

    def minus(self, other: Traffic) -> Traffic:
        return Traffic(*map(int.__sub__, self, other))


class Member(Protocol):
    """A connection of the account. It keeps its own counts, so that a message costs the account nothing."""

    in_msgs: int
    in_bytes: int
    out_msgs: int
    out_bytes: int


class Account:
    """An account. ``settings`` may be replaced while in use; connections keep their copies until they are notified."""

    def __init__(self, settings: AccountSettings, router: Router, *, is_system: bool = False) -> None:
        self.name = settings.name
        self.router = router
        self.settings = settings
        self.is_system = is_system
        self.on_connections: Callable[[Account], None] | None = None
        """Observer of the number of connections."""

        self.total_connections = 0
        self.slow_consumers = 0
        # Each connection's counts at the time when it joined, since a connection may move between accounts.
        self._members: dict[Member, Traffic] = {}
        self._gone = Traffic()
        self._leafs_gone = Traffic()
        self.leafs: dict[Member, None] = {}
        """The members that are leaf connections."""

    @property
    def connections(self) -> int:
        """The number of clients."""
        return len(self._members) - len(self.leafs)

    @property
    def full(self) -> bool:
        """Flag: no further connection may join."""
        most = self.settings.max_connections
        return most != NO_LIMIT and len(self._members) >= most  # leaf connections count, too

    @property
    def subscriptions(self) -> int:
        return self.router.subscription_count

    def join(self, member: Member, *, leaf: bool = False) -> None:
        """Add a connection that belongs to no account; ``leaf``: it leads to another server."""
        self._members[member] = _traffic(member)
        if leaf:
            self.leafs[member] = None
        self.total_connections += 1
        if self.on_connections is not None:
            self.on_connections(self)

    def leave(self, member: Member) -> None:
        """Remove a connection that ends or moves; an unknown one is ignored."""
        before = self._members.pop(member, None)
        if before is not None:
            moved = _traffic(member).minus(before)
            self._gone = self._gone.plus(moved)
            if member in self.leafs:
                del self.leafs[member]
                self._leafs_gone = self._leafs_gone.plus(moved)
            if self.on_connections is not None:
                self.on_connections(self)

    def leaf_traffic(self) -> Traffic:
        """Return the part of the traffic that is from leaf connections and to them."""
        total = self._leafs_gone
        for leaf in self.leafs:
            total = total.plus(_traffic(leaf).minus(self._members[leaf]))
        return total

    def traffic(self) -> Traffic:
        """Return the traffic of all its connections, including closed ones."""
        members = self._members
        sums = (sum(counts) for counts in zip(Traffic(), *map(_traffic, members), strict=True))
        before = (sum(counts) for counts in zip(Traffic(), *members.values(), strict=True))
        return self._gone.plus(Traffic(*sums)).minus(Traffic(*before))


def _traffic(member: Member) -> Traffic:
    return Traffic(member.in_msgs, member.in_bytes, member.out_msgs, member.out_bytes)
