"""Delivery of messages to one set of subscriptions.

Owns: handing a run of messages to peers, queue groups and handlers. Does not own: bytes on the wire, which each peer
makes for its own protocol; the subscriptions of a subject, and how long they are cached (router).

Source: nats-server, server/client.go (processMsgResults, deliverMsg).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Final

from broker.protocol.run import LARGE_BYTES, Msg, Run
from broker.protocol.traced import TracedMsg
from broker.server.routing.inward import Inward
from broker.server.routing.outward import AT_ONCE, Outward
from broker.server.routing.queue_group import assign
from broker.server.routing.sublist import Match
from broker.server.routing.subscription import (
    BatchHandler,
    Peer,
    Relay,
    Source,
    Subscription,
    report_no_responders,
)

__all__ = ["RECEIVERS_MANY", "Refusal", "Route"]

RECEIVERS_MANY: Final = 2000
"""Number of receivers above which making a route visits each of them only once."""

_JOINED: Final = 64
"""Number of further messages in a run that cost a receiver as much as the first one."""

_ALL: Final = 1 << 30

_SUBJECT = itemgetter(0)
_PEER = attrgetter("peer")
_ORIGINAL = attrgetter("original")

_Renamed = dict[Callable[[bytes], bytes], Run]
"""Runs of the same messages under the subjects of each import, by the import's rename function."""


class Route:
    """The receivers of some subjects. Only ``limit`` changes a route, so iterating is safe while subscriptions change.

    Messages without a ``source`` come from the broker itself and reach handlers through ``inward`` only.
    If there are many receivers, messages reach them on later turns through ``outward``.
    """

    __slots__ = ("__weakref__", "_counts_each", "_first", "_one_by_one", "clients", "groups", "handler_subs",
                 "handlers", "inward", "kept", "limited", "only_handler", "only_sub", "outward", "receivers", "relays",
                 "rng", "shadowed", "shadows", "width")

    def __init__(self, match: Match[Subscription], receivers: Sequence[Subscription], rng: random.Random,
                 inward: Inward, outward: Outward) -> None:
        self.receivers = receivers
        self.rng = rng
        self.inward = inward
        self.outward = outward
        self.kept = False
        """True if a cache has had it, so that its receivers are counted."""
        self.width = len(match.plain) + len(match.groups)
        """Upper bound of the deliveries of one message."""
        self._first: dict[Peer, Subscription] | None = None
        self.shadows: Sequence[Subscription] = ()
        self.relays: Sequence[Relay] = ()
        self.handler_subs: Sequence[Subscription] = ()
        self.handlers: Sequence[BatchHandler] = ()
        self.groups: Sequence[list[Subscription]] = ()
        self.shadowed = False
        self.only_handler: BatchHandler | None = None
        """The handler, if it is the only receiver; each run is passed to it unchanged."""
        self.only_sub: Subscription | None = None
        """The only receiver, if it is a client's subscription without limit and ``on_delivery``; otherwise None."""
        if len(receivers) == len(match.plain) == 1 and receivers[0].peer is not None and receivers[0].original is None:
            # Fast path for the usual case: if subjects never repeat, each message makes a route.
            self.clients = match.plain
            self.limited = bool(receivers[0].max)
            self._one_by_one = False
            self._counts_each = receivers[0].on_delivery is not None
            if not self.limited and not self._counts_each:
                self.only_sub = receivers[0]
            return
        plain = match.plain
        self.groups = list(match.groups.values())
        self.shadowed = any(map(_ORIGINAL, receivers))
        peers = list(map(_PEER, plain))
        if self.shadowed or None in peers:
            self.clients = [sub for sub in plain if sub.peer is not None and sub.original is None]
            self.shadows = [sub for sub in plain if sub.original is not None]
            self.relays = [relay for sub in plain if (relay := sub.relay) is not None]
            self.handler_subs = [sub for sub in plain if sub.handler is not None]
            self.handlers = [sub.handler for sub in self.handler_subs if sub.handler is not None]
        else:
            self.clients = plain
        # A connection with two matching sids gets its messages one by one. Members of one queue group never get the
        # same message.
        self._one_by_one = _repeats(chain(
            filter(None, peers), *({_PEER(sub) for sub in group if sub.peer is not None} for group in self.groups)))
        if len(receivers) > RECEIVERS_MANY:
            # Deliveries to so many receivers are split into steps, which visit each receiver anyway.
            self.limited = self._counts_each = True
            return
        self.limited = any(sub.max for sub in receivers)
        self._counts_each = (bool(self.groups or self.shadows or self.relays) or self._one_by_one
                         or any(sub.on_delivery is not None for sub in receivers))
        self.only_handler = self.handlers[0] if len(receivers) == len(self.handlers) == 1 else None

    def limit(self) -> None:
        """Record that one of the receivers now has a limit of messages."""
        self.limited = True
        self.only_sub = None

    def destination(self, account: str, subject: bytes, hops: int) -> tuple[str, bytes] | None:
        """Find the handler of the broker that receives a message to the literal ``subject`` of ``account``.

        The message may pass through at most ``hops`` other accounts.
        Returns: the receiving account and the subject there; None if no handler receives the message.
        """
        if self.handler_subs:
            return account, subject
        for relay in self.relays if hops else ():
            hop = relay.hop(subject)
            if hop is not None and (found := hop.router.arrival(hop.to, hops - 1)) is not None:
                return found
        return None

    def permitted(self, subject: bytes) -> Match[Subscription]:
        """Return the receivers whose clients may receive messages with the literal ``subject``."""
        match: Match[Subscription] = Match()
        for sub in self.receivers:
            hides = (sub.original or sub).hides
            if hides is None or not hides(subject):
                (match.groups.setdefault(sub.queue, []) if sub.queue else match.plain).append(sub)
        return match

    def deliver(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> int:
        """Deliver ops[start:end] to all receivers. Returns: the number of deliveries."""
        if ((self.width > 1 or (source is None and self.outward.busy and self._behind_queued(ops[start:end])))
                and self._must_postpone(end - start, source)):
            return (end - start) * self._postpone(ops[start:end], source, now_ns)
        if self._counts_each or self.limited:
            counts = self._deliver_now(ops[start:end], source, now_ns)
            if source is not None and source.wants_no_responders and not all(counts):
                report_no_responders([ops[start + i] for i, count in enumerate(counts) if not count], source)
            return sum(counts)
        declined_indexes: list[int] = []
        clients = self.clients
        if clients:
            if source is not None and source.no_echo:
                silent = source.peer
                clients = [sub for sub in clients if sub.peer is not silent]
            if clients:
                _deliver(clients, Run(ops[start:end]))
        handlers = self.handlers
        if source is None:
            for sub in self.handler_subs:
                self.inward.put(sub, ops, start, end, now_ns)
        else:
            for handler in handlers:
                refused = handler(ops, start, end, source, now_ns)
                if refused:
                    declined_indexes += refused
        count = len(clients) + len(handlers)
        if source is not None and source.wants_no_responders:
            if not count:
                report_no_responders(ops[start:end], source)
            elif declined_indexes:
                by_all = [i for i, times in Counter(declined_indexes).items() if times == count]
                report_no_responders([ops[i] for i in by_all], source)
        return count * (end - start) - len(declined_indexes)

    def call_only_handler(self, handler: BatchHandler, ops: Sequence[Msg], start: int, end: int, source: Source,
                          now_ns: int) -> None:
        """Do what ``deliver`` does, for a route whose only receiver is ``handler``."""
        declined_indexes = handler(ops, start, end, source, now_ns)
        if declined_indexes and source.wants_no_responders:
            report_no_responders([ops[i] for i in declined_indexes], source)

    def send_to_leafs(self, msgs: Sequence[Msg], source: Source) -> None:
        """Send messages to the other servers only: there are none."""

    def serves(self, queue: bytes) -> bool:
        """Return whether a receiver is a member of the queue group."""
        return any(group[0].queue == queue for group in self.groups)

    def deliver_counted(self, msgs: Sequence[Msg], source: Source | None, now_ns: int, to: bytes = b"") -> list[int]:
        """Deliver messages under any mixture of limits, queue groups and ``on_delivery``, and count their receivers.

        Args: ``to`` is the subject that routes all messages if receivers are to see another subject; b"": each
        message's own subject routes it.
        Returns: the number of receivers of each message.
        """
        if ((self.width > 1 or (source is None and self.outward.busy and self._behind_queued(msgs, to)))
                and self._must_postpone(len(msgs), source)):
            return [self._postpone(msgs, source, now_ns, to)] * len(msgs)
        return self._deliver_now(msgs, source, now_ns, to)

    def _deliver_now(self, msgs: Sequence[Msg], source: Source | None, now_ns: int, to: bytes = b"") -> list[int]:
        """Do what ``deliver_counted`` does, in this turn of the loop."""
        count = len(msgs)
        if self._one_by_one and count > 1:
            return [self._deliver_now([msg], source, now_ns, to)[0] for msg in msgs]
        counts = [0] * count
        silent = source.peer if source is not None and source.no_echo else None
        run = Run(msgs) if self.clients else None
        if run is not None and self._one_by_one:
            counts[0] = _deliver_to_present(self.clients, run, silent)
        elif run is not None:
            for sub in self.clients:
                if (sub.peer is not silent or silent is None) and (room := sub.room(count)):
                    _deliver_limited(sub, run if room == count else Run(msgs[:room]))
                    for i in range(room):
                        counts[i] += 1
        renamed: _Renamed = {}
        for sub in self.shadows:
            if sub.peer is silent and silent is not None:
                continue
            room = sub.room(count)
            if room:
                if room == count:
                    self._deliver_to_shadow(sub, msgs, source, now_ns, to, renamed)
                else:
                    self._deliver_to_shadow(sub, msgs[:room], source, now_ns, to, {})
                for i in range(room):
                    counts[i] += 1
        for relay in self.relays:
            counts = list(map(int.__add__, counts, relay.pass_on(msgs, source, now_ns, to)))
        for group in self.groups:
            for sub, indexes in assign(group, count, silent, self.rng):
                for i in indexes:
                    counts[i] += 1
                own = (msgs if len(indexes) == count else msgs[indexes.start:indexes.stop] if isinstance(indexes, range)
                       else [msgs[i] for i in indexes])
                if sub.original is not None:
                    self._deliver_to_shadow(sub, own, source, now_ns, to, {})
                elif sub.handler is not None:
                    if source is None:
                        self.inward.put(sub, own, 0, len(own), now_ns)
                    else:
                        sub.handler(own, 0, len(own), source, now_ns)
                else:
                    if own is msgs and run is None:
                        run = Run(msgs)
                    _deliver_limited(sub, run if run is not None and own is msgs else Run(own))
        for sub in self.handler_subs:
            declined_indexes: Collection[int] | None = None
            if source is None:
                self.inward.put(sub, msgs, 0, count, now_ns)
            elif sub.handler is not None:
                declined_indexes = sub.handler(msgs, 0, count, source, now_ns)
            for i in range(count):
                counts[i] += 1
            for i in declined_indexes or ():
                counts[i] -= 1
        return counts

    def plain_of(self, peer: Peer) -> Subscription | None:
        """Return the first subscription of ``peer`` without a queue group, if there is one."""
        if len(self.clients) <= RECEIVERS_MANY:
            return next((sub for sub in self.clients if sub.peer is peer), None)
        if self._first is None:
            self._first = {sub.peer: sub for sub in reversed(self.clients) if sub.peer is not None}
        return self._first.get(peer)

    # Many receivers.

    def work(self, count: int) -> int:
        """Return the work of sending ``count`` messages.

        Messages of one run that are encoded together cost little more than one message.
        """
        return self.width * (count if self._one_by_one else 1 + count // _JOINED)

    def msgs_at_once(self) -> int:
        """Return the number of messages of a run that are sent in one turn of the loop."""
        if self.width > AT_ONCE:
            return _ALL  # one turn cannot send even one message to all receivers
        share = max(AT_ONCE // self.width, 1)
        return share if self._one_by_one else _JOINED * share

    def _must_postpone(self, count: int, source: Source | None) -> bool:
        """Return whether ``count`` messages are too much work for the current turn.

        Only the broker's own messages may wait because of earlier work in this turn. A client must not publish more
        until its messages are sent; its connection ends the turn instead.
        """
        outward = self.outward
        work = self.work(count)
        outward.work += work
        return work > AT_ONCE or (source is None and (outward.busy or outward.work > AT_ONCE))

    def _behind_queued(self, msgs: Sequence[Msg], to: bytes = b"") -> bool:
        """Return whether earlier messages of the broker to these subjects are queued: then ``msgs`` must wait, too."""
        return bool(self.receivers) and self.outward.waits_for(_routed_by(msgs, to))

    def _postpone(self, msgs: Sequence[Msg], source: Source | None, now_ns: int, to: bytes = b"") -> int:
        """Send ``msgs`` on later turns. Returns: the number of receivers of each message."""
        silent = source.peer if source is not None and source.no_echo else None
        if source is not None and silent is not None and all(sub.peer is silent for sub in self.receivers):
            for subject, reply, _, _ in msgs if source.wants_no_responders else ():
                if reply:
                    source.no_responders(subject, reply)
            return 0
        self.outward.put(self.steps(msgs, source, now_ns, to), source, _routed_by(msgs, to))
        return self.width

    def steps(self, msgs: Sequence[Msg], source: Source | None, now_ns: int, to: bytes = b"") -> Iterator[int]:
        """Do what ``deliver_counted`` does, in steps; yield the work of each step.

        Subscriptions that end between two steps get no more messages.
        """
        if self._one_by_one and len(msgs) > 1:
            for msg in msgs:
                yield from self.steps([msg], source, now_ns, to)
            return
        silent = source.peer if source is not None and source.no_echo else None
        count = len(msgs)
        run = Run(msgs)
        each = 1 + count // 16 + run.bytes // LARGE_BYTES
        size = max(AT_ONCE // (4 * each), 1)
        for at in range(0, len(self.clients), size):
            part = self.clients[at:at + size]
            _deliver_to_present(part, run, silent)
            yield each * len(part)
        rest = [sub for sub in (*self.shadows, *self.handler_subs) if not sub.ended]
        for at in range(0, len(rest), size):
            part_match: Match[Subscription] = Match()
            part_match.plain = rest[at:at + size]
            self._part(part_match)._deliver_now(msgs, source, now_ns, to)
            yield each * len(part_match.plain)
        for relay in self.relays:
            relay.pass_on(msgs, source, now_ns, to)
            yield each
        for group in self.groups:
            part_match = Match()
            part_match.groups = {group[0].queue: [sub for sub in group if not sub.ended]}
            if part_match.groups[group[0].queue]:
                self._part(part_match)._deliver_now(msgs, source, now_ns, to)
            yield each + len(group) // 8

    def _part(self, match: Match[Subscription]) -> Route:
        """Return a route to some of the receivers."""
        receivers = (*match.plain, *chain.from_iterable(match.groups.values()))
        return Route(match, receivers, self.rng, self.inward, self.outward)

    def _deliver_to_shadow(self, shadow: Subscription, msgs: Sequence[Msg], source: Source | None, now_ns: int,
                           to: bytes, renamed: _Renamed) -> None:
        """Send ``msgs`` to the shadow's original, under the subjects of its account.

        Args: ``renamed`` caches the runs already made for other shadows of the same import; this call adds its own.
        """
        sub, rename = shadow.original, shadow.rename
        assert sub is not None
        assert rename is not None
        known = renamed.get(rename)
        if known is None:
            if not to or sub.handler is not None:
                traced = msgs[0]
                msgs = [(rename(to or subject), reply, hlen, body) for subject, reply, hlen, body in msgs]
                if not all(map(_SUBJECT, msgs)):  # b"": the subject is too long under the import's name
                    msgs = [msg for msg in msgs if msg[0]]
                    if not msgs:
                        return
                if shadow.allow_trace and isinstance(traced, TracedMsg):
                    msgs = [traced.as_changed(msgs[0])]
            known = Run(msgs)
            if not to:
                renamed[rename] = known
        if sub.handler is None:
            _deliver_limited(sub, known)
        elif source is None:
            self.inward.put(sub, known.msgs, 0, known.count, now_ns)
        else:
            sub.handler(known.msgs, 0, known.count, source, now_ns)


def _routed_by(msgs: Sequence[Msg], to: bytes) -> Collection[bytes]:
    """Return the subjects that route the messages: ``to``, or each message's own."""
    return (to,) if to else {msg[0] for msg in msgs}


class Refusal(Route):
    """The route of subjects to which only servers may publish."""

    __slots__ = ()

    def deliver(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> int:
        if source is not None:
            for i in range(start, end):
                source.refuse_publish(ops[i][0])
        return 0


def _repeats(peers: Iterator[Peer | None]) -> bool:
    """Return whether one peer occurs twice; stop at the first repetition."""
    seen: set[Peer | None] = set()
    for peer in peers:
        if peer in seen:
            return True
        seen.add(peer)
    return False


def _deliver_to_present(subs: Sequence[Subscription], run: Run, silent: Peer | None) -> int:
    """Deliver ``run`` to the members of ``subs`` that have not ended. Returns: the number of subscriptions served.

    A message for many subscriptions of one peer is handed over once, at a tenth of the cost.
    """
    count = run.count
    sent = 0
    joins = count == 1 and run.bytes < LARGE_BYTES
    to: Peer | None = None
    joined: list[Subscription] = []
    for sub in subs:
        peer = sub.peer
        if peer is not to:
            if joined and to is not None:
                to.deliver_to_all(joined, run)
                joined = []
            to = peer
        if peer is None or sub.ended or peer.closed or peer is silent:
            continue
        if joins and not sub.max and sub.on_delivery is None:
            joined.append(sub)
            sub.delivered += 1
            sent += 1
        elif room := sub.room(count):
            if joined:
                peer.deliver_to_all(joined, run)
                joined = []
            _deliver_limited(sub, run if room == count else Run(run.msgs[:room]))
            sent += 1
    if joined and to is not None:
        to.deliver_to_all(joined, run)
    return sent


def _deliver(subs: Sequence[Subscription], run: Run) -> None:
    count = run.count
    for sub in subs:
        peer = sub.peer
        assert peer is not None
        sub.delivered += count
        peer.deliver(sub, run)


def _deliver_limited(sub: Subscription, run: Run) -> None:
    """Deliver ``run`` to a subscription that may have ``max`` or ``on_delivery``."""
    sub.deliver(run)
    if sub.on_delivery is not None:
        sub.on_delivery(run.msgs)
    if sub.max and sub.delivered >= sub.max:
        assert sub.peer is not None
        sub.peer.expire(sub)
