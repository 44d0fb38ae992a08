"""Delivery of messages to subscriptions of which some belong to other servers, through leaf nodes.

A leaf gets a message once, however many of its subscriptions match: one line names all queue groups of which a member
behind that leaf was chosen.

    match   client 7, leaf A (plain), leaf A (queue q), leaf B (queue q)
    sent    client 7                                    like any route
            leaf A with q, or leaf A and leaf B with q  one of the two, by the number of members behind each

A queue group with members on this server is never served by a leaf.

Source: nats-server, server/client.go (processMsgResults, deliverMsg).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from broker.protocol.run import Msg, Run
from broker.server.routing.inward import Inward
from broker.server.routing.outward import Outward
from broker.server.routing.route import Route
from broker.server.routing.sublist import Match
from broker.server.routing.subscription import Leaf, Peer, Source, Subscription

__all__ = ["LeafRoute", "reaches_leaf"]


def reaches_leaf(match: Match[Subscription]) -> bool:
    """Return whether some of these subscriptions belong to a leaf node."""
    return any(sub.leaf is not None for subs in (match.plain, *match.groups.values()) for sub in subs)


class LeafRoute(Route):
    """The receivers of some subjects, at least one of them a leaf."""

    __slots__ = ("_contested", "_local", "_queues", "_targets")

    def __init__(self, match: Match[Subscription], receivers: Sequence[Subscription], rng: random.Random,
                 inward: Inward, outward: Outward) -> None:
        local: Match[Subscription] = Match()
        fixed: dict[Leaf, list[bytes]] = {}
        shadowed: set[tuple[Leaf, object]] = set()
        for sub in match.plain:
            if sub.leaf is None:
                local.plain.append(sub)
            elif sub.original is None:
                fixed.setdefault(sub.leaf, [])
            elif (sub.leaf, sub.rename) not in shadowed:  # a leaf gets an imported message once, too
                shadowed.add((sub.leaf, sub.rename))
                local.plain.append(sub)
        self._contested: list[tuple[bytes, list[Subscription]]] = []
        """The groups of which several leafs have members, and nobody else."""
        for queue, group in match.groups.items():
            own = [sub for sub in group if sub.leaf is None or sub.original is not None]
            if own:
                local.groups[queue] = own
            elif len(group) > 1:
                self._contested.append((queue, group))
            else:
                [sub] = group
                assert sub.leaf is not None
                fixed.setdefault(sub.leaf, []).append(queue)
        self._targets = [(leaf, tuple(queues)) for leaf, queues in fixed.items()]
        """The leafs, and the groups that each of them serves alone."""
        kept = (*local.plain, *(sub for group in local.groups.values() for sub in group))
        super().__init__(local, kept, rng, inward, outward)
        self._local = bool(kept)
        self._queues = frozenset(match.groups)
        self.receivers = receivers
        self.width += len(self._targets) + len(self._contested)
        self.only_sub = self.only_handler = None
        self._counts_each = True

    def send_to_leafs(self, msgs: Sequence[Msg], source: Source) -> None:
        """Send messages to the other servers only."""
        self._send(msgs, source, b"")

    def serves(self, queue: bytes) -> bool:
        return queue in self._queues

    def _deliver_now(self, msgs: Sequence[Msg], source: Source | None, now_ns: int, to: bytes = b"") -> list[int]:
        if self._one_by_one and len(msgs) > 1:
            return [self._deliver_now([msg], source, now_ns, to)[0] for msg in msgs]
        counts = super()._deliver_now(msgs, source, now_ns, to) if self._local else [0] * len(msgs)
        sent = self._send(msgs, source, to)
        return list(map(int.__add__, counts, sent)) if self._local else sent

    def steps(self, msgs: Sequence[Msg], source: Source | None, now_ns: int, to: bytes = b"") -> Iterator[int]:
        if self._one_by_one and len(msgs) > 1:
            for msg in msgs:
                yield from self.steps([msg], source, now_ns, to)
            return
        yield from super().steps(msgs, source, now_ns, to)
        self._send(msgs, source, to)
        yield len(msgs) * (len(self._targets) + len(self._contested))

    def _send(self, msgs: Sequence[Msg], source: Source | None, to: bytes) -> list[int]:
        """Send ``msgs`` to the leafs. Returns: the number of leafs that get each message."""
        silent = source.peer if source is not None and source.no_echo else None
        if self._contested:
            return [self._send_chosen(msg, silent, to) for msg in msgs]
        run = Run(msgs)
        count = 0
        cluster = _cluster(silent)
        for leaf, queues in self._targets:
            if leaf is not silent and leaf.group != cluster and not leaf.closed:
                leaf.deliver_routed(run, queues, to)
                count += 1
        return [count] * len(msgs)

    def _send_chosen(self, msg: Msg, silent: Peer | None, to: bytes) -> int:
        """Send one message to the leafs, after choosing one for each contested group. Returns: their number."""
        cluster = _cluster(silent)
        chosen: dict[Leaf, list[bytes]] = {
            leaf: list(queues) for leaf, queues in self._targets
            if leaf is not silent and leaf.group != cluster and not leaf.closed}
        for queue, group in self._contested:
            members = [sub for sub in group if sub.leaf is not None and sub.leaf is not silent
                       and sub.leaf.group != cluster and not sub.leaf.closed]
            if members:
                leaf = self.rng.choices(members, [sub.weight for sub in members])[0].leaf
                assert leaf is not None
                chosen.setdefault(leaf, []).append(queue)
        for leaf, queues in chosen.items():
            leaf.deliver_routed(Run([msg]), queues, to)
        return len(chosen)


def _cluster(publisher: Peer | None) -> str | None:
    """Return the cluster of a publishing leaf, whose servers exchange messages themselves; None for a client."""
    return getattr(publisher, "group", None)
