"""Routing in one account's subject space: finds the receivers of each message.

A *route* delivers to one set of subscriptions. Subjects with the same receivers share one route object, so that
messages of many subjects still travel as one run:

    ops   a.1 a.2 a.1 b.7 b.7 b.7        one read's messages
    runs  ───── R1 ── ───── R2 ──        one call for each: R.deliver(ops, start, end, …)

Routes are cached until a subscription that may match is added or removed (routes.py).

The router is the ``Bus`` that JetStream requires (broker/jetstream/bus.py); connections are ``Peer``s. A message that
the broker publishes through the router reaches clients at once. It reaches handlers, such as streams, on a later turn
of the loop (inward.py).

Source: nats-server, server/client.go (processMsgResults, deliverMsg, processInboundClientMsg).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from broker.base.clock import Clock
from broker.protocol.run import DeliveryRun, MixedPubAckRun, Msg, PubAckRun, mixed_pub_acks, pub_acks
from broker.server.routing.audience import audience
from broker.server.routing.interest import InterestWatch
from broker.server.routing.inward import Inward
from broker.server.routing.neighbours import Columns, Handle, InterestObserver, Mapper, Shadows, Tracing
from broker.server.routing.outward import AT_ONCE, Outward
from broker.server.routing.route import Route
from broker.server.routing.routes import Routes
from broker.server.routing.sublist import Match, Sublist
from broker.server.routing.subscription import BatchHandler, Peer, Source, Subscription

__all__ = ["Router"]

_JOINED_BODY_BYTES: Final = 4096
"""Size below which copying a body once more is cheaper than a separate write, in bytes."""

_REPLIES_AT_ONCE: Final = 100_000
"""Bound on the subscriptions that are visited to send no-responders replies, before the work is measured again."""

_HANDLED_AT_ONCE: Final = 512
"""Maximum number of a client's messages in one call of a handler, which counts its work after the call. A stream that
checks them one by one takes some milliseconds."""

_ALL: Final = 1 << 30

_NARROWED_MAX: Final = 64
"""Bound on the sets of queue groups, as servers name them, whose routes are kept."""

_DOT: Final = ord(".")
_HOPS_MAX: Final = 64
"""Bound on the accounts through which one message is followed."""

_REFUSED: Final = (b"$NRG.", b"_GR_.")
_SYSTEM: Final = "$SYS"
_REFUSED_BY_SYSTEM: Final = (b"_GR_.",)


class Router:
    """The router of one account.

    ``call_soon`` runs a function on a later turn of the loop: interest callbacks, and handlers of messages that the
    broker publishes.
    """

    def __init__(self, clock: Clock, rng: random.Random, call_soon: Callable[[Callable[[], None]], object],
                 name: str = "$G") -> None:
        self.name = name
        self._refused = _REFUSED_BY_SYSTEM if name == _SYSTEM else _REFUSED
        self._clock = clock
        self._rng = rng
        self._call_soon = call_soon
        self._inward = Inward(call_soon)
        self.outward = Outward(call_soon)
        self.subs: Sublist[Subscription] = Sublist()
        self.routes = Routes(self.subs, rng, self._inward, self.outward, self._refused)
        self._watches: dict[bytes, list[InterestWatch]] = {}
        # Connections to other accounts (broker/server/sharing); None if there are none.
        self.mapper: Mapper | None = None
        self.shadows: Shadows | None = None
        self.tracing: Tracing | None = None
        self.tracer: Any = None
        """The receiver of what streams and consumers do with messages (``broker.jetstream.bus.MessageTracer``)."""
        self._narrowed: dict[tuple[bytes, ...], Routes] = {}
        self._outside: Routes | None = None
        self._all_routes: tuple[Routes, ...] = (self.routes,)
        """``routes``, ``_outside``, and those of ``narrowed``."""
        self.interest_observer: InterestObserver | None = None
        """The observer that informs other servers about subscriptions; None if there are no leaf nodes."""

        self._removal_observers: tuple[Callable[[Subscription], None], ...] = ()

    @property
    def subscription_count(self) -> int:
        return self.subs.count

    def route(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int,
              routes: Routes | None = None) -> int:
        """Deliver ops[start:end], published by ``source``, as runs.

        Args: ``routes``: those of ``narrowed``, if not all queue groups receive the messages.
        Returns: the end of the delivered part. If a client's messages are too much work for one turn of the loop, the
        last ones are not delivered; at least one always is. The caller routes the rest on a later turn, once ``source``
        has no ``fan_outs``.
        """
        routes = routes or self.routes
        outward = self.outward
        by_subject = routes.by_subject
        msgs_of_run: list[Msg] = ops if isinstance(ops, list) else list(ops)
        waiting = source is None and outward.busy
        next_route: Route | None = None  # the route of ops[start], if it was already looked up, and its family
        next_head, next_dots = b"", 0
        # ``to`` is the only receiver of these single messages, so they are handed over together.
        subs: list[Subscription] = []
        msgs: list[Msg] = []
        to: Peer | None = None
        while start < end:
            subject = msgs_of_run[start][0]
            route = next_route or by_subject.get(subject)
            head, dots = (next_head, next_dots) if next_route is not None else (b"", 0)
            if route is None:
                route = routes.resolve(subject)
                head, dots = routes.family
            next_route = None
            at = start + 1
            stop = end
            while at < stop:
                following = msgs_of_run[at][0]
                if following is not subject:
                    # Acks and replies come in bursts: comparing the head avoids a lookup for each.
                    if not (head and following.startswith(head) and following.count(b".") == dots
                            and following[-1] != _DOT):
                        next_route, next_head = by_subject.get(following), b""
                        if next_route is None:
                            next_route = routes.resolve(following)
                            next_head, next_dots = routes.family
                            if outward.work > AT_ONCE:
                                break
                        if next_route is not route:
                            break
                    subject = following
                at += 1
                # The work of a client's run is measured after it. Messages behind the run would be looked up again.
                if at == start + 2 and source is not None:
                    stop = min(end, start + (_HANDLED_AT_ONCE if route.width == 1 else self._most(route, source)))
                    if at > stop:
                        at, next_route, next_head, next_dots = stop, route, head, dots
                        break
            else:
                next_route = None  # that of ops[at] was not looked up
            changes = routes.changes
            only = route.only_sub
            if only is not None and at - start == 1 and not waiting:
                msg = ops[start]
                peer = only.peer
                assert peer is not None
                if len(msg[3]) < _JOINED_BODY_BYTES and (peer is not source or not peer.no_echo):
                    if peer is not to:
                        if to is not None:
                            to.deliver_each(subs, msgs)
                            subs, msgs = [], []
                            if routes.changes != changes:
                                next_route = None
                        to = peer
                    subs.append(only)
                    msgs.append(msg)
                    only.delivered += 1
                    start = at
                    if outward.work > AT_ONCE and source is not None:
                        break
                    continue
            if to is not None:
                to.deliver_each(subs, msgs)
                to, subs, msgs = None, [], []
            if route.only_handler is not None and source is not None:
                route.call_only_handler(route.only_handler, ops, start, at, source, now_ns)
            else:
                route.deliver(ops, start, at, source, now_ns)
                if source is not None and source.fan_outs:
                    start = at
                    break
            if routes.changes != changes:
                next_route = None
            start = at
            if outward.work > AT_ONCE and source is not None:
                break
        if to is not None:
            to.deliver_each(subs, msgs)
        return start

    def _most(self, route: Route, source: Source) -> int:
        """Return the number of a client's messages that may be one run of a route whose width is not 1."""
        if route.width:
            most = route.msgs_at_once()
            return min(most, _HANDLED_AT_ONCE) if route.handlers else most
        # Each message needs a lookup of its reply subject, for the no-responders reply.
        return 1 + _REPLIES_AT_ONCE // (1 + self.subs.count) if source.wants_no_responders else _ALL

    # For JetStream (Bus).

    def count_work(self, amount: int) -> None:
        self.outward.work += amount

    def subscribe(self, subject: bytes, handler: BatchHandler, *, queue: bytes = b"", stream: str = "") -> Subscription:
        """Subscribe to ``subject`` (wildcards allowed) within the process. Such subscribers count as responders."""
        sub = Subscription(subject, queue, handler=handler, stream=stream)
        self.add(sub)
        return sub

    def unsubscribe(self, subscription: Handle) -> None:
        """End an in-process subscription; ending it twice does nothing."""
        assert isinstance(subscription, Subscription)
        self.remove(subscription)

    def publish(self, subject: bytes, reply: bytes, hlen: int, body: bytes) -> int:
        """Route one message to its subscribers; handlers receive it on a later turn. Returns: the number of
        receivers."""
        route = self.routes.route_of(subject)
        return route.deliver(((subject, reply, hlen, body),), 0, 1, None, self._clock.now_ns())

    def respond(self, reply: bytes, hlen: int, body: bytes) -> None:
        """Publish a response to a client's request, under the mappings of its account.

        nats-server's own services are imported from the system account, so their responses come through an import.
        """
        to = reply if self.mapper is None else self.mapper.map(reply)
        if to:
            self.publish(to, b"", hlen, body)

    def publish_all(self, msgs: Sequence[Msg]) -> None:
        """Route messages to their subscribers; handlers receive them on a later turn of the loop."""
        self.route(msgs, 0, len(msgs), None, self._clock.now_ns())

    def send(self, subject: bytes, reply: bytes, hlen: int, body: bytes) -> int:
        """``publish`` to connections, and to no handler of the broker. Returns: the number of receivers."""
        route = self._routes_outside().route_of(subject)
        return route.deliver(((subject, reply, hlen, body),), 0, 1, None, self._clock.now_ns())

    def send_run(self, subject: bytes, bodies: Sequence[bytes]) -> None:
        """``send`` messages to one subject, without reply subjects and headers."""
        run = DeliveryRun(b"", (subject,) * len(bodies), None, bodies, ())
        routes = self._routes_outside()
        sub = routes.route_of(subject).only_sub
        if sub is not None and not self.outward.waits_for((subject,)):
            sub.deliver(run)
        else:
            self.route(run.msgs, 0, run.count, None, self._clock.now_ns(), routes)

    def _routes_outside(self) -> Routes:
        if self._outside is None:
            self._outside = self.routes.outside()
            self._update_all_routes()
        return self._outside

    def deliver(self, to: bytes, batch: Columns, *, queue: bytes = b"") -> int:
        """Send each message to the subscribers of ``to``, which see the message's own subject.

        All subscribers of ``to`` receive the messages. With ``queue``, messages count as received only if that group
        subscribes. Returns: the number of messages at the front of the batch that had a receiver.
        """
        route = self.routes.route_of(to)
        count = len(batch)
        if not route.receivers or not count:
            return 0
        sub = route.only_sub
        alone = sub is not None and sub.hides is None and not self.outward.waits_for((to,))
        if queue and (alone or not route.serves(queue)):
            return 0
        numbers = (batch.delivered, batch.stream_seqs, batch.consumer_seqs, batch.times_ns, batch.pendings)
        run = DeliveryRun(batch.reply_prefix, batch.subjects, batch.hlens, batch.bodies, numbers)
        if sub is not None and alone:
            sub.deliver(run)
            return count
        msgs = run.msgs
        now_ns = self._clock.now_ns()
        hidden = any((sub.original or sub).hides is not None for sub in route.receivers)
        counts = ([self._deliver_permitted(route, msg, now_ns, to) for msg in msgs] if hidden
                 else route.deliver_counted(msgs, None, now_ns, to))
        return counts.index(0) if 0 in counts else count

    def _deliver_permitted(self, route: Route, msg: Msg, now_ns: int, to: bytes) -> int:
        """Send a message to the receivers of ``route`` that may receive its subject. Returns: their number.

        If no receiver may receive the subject, the message counts as received; otherwise the consumer would send it
        again for ever.
        """
        match = route.permitted(msg[0])
        if not match.plain and not match.groups:
            return 1
        return self.routes.route_of_match(match).deliver_counted([msg], None, now_ns, to)[0]

    def deliver_as(self, to: bytes, msgs: list[Msg], source: Source, now_ns: int, routes: Routes) -> None:
        """Deliver messages to the subscribers of ``to``, which see their own subjects; ``routes`` as for ``route``."""
        route = routes.route_of(to)
        if not any((sub.original or sub).hides is not None for sub in route.receivers):
            route.deliver_counted(msgs, source, now_ns, to)
            return
        for msg in msgs:
            permitted = routes.route_of_match(routes.route_of(to).permitted(msg[0]))
            permitted.deliver_counted([msg], source, now_ns, to)

    def narrowed(self, queues: tuple[bytes, ...]) -> Routes:
        """Return routes to plain subscriptions and to the queue groups in ``queues``, for messages of a leaf node."""
        routes = self._narrowed.get(queues)
        if routes is None:
            if len(self._narrowed) >= _NARROWED_MAX:
                del self._narrowed[next(iter(self._narrowed))]
            routes = self._narrowed[queues] = self.routes.narrowed(queues)
            self._update_all_routes()
        return routes

    def _update_all_routes(self) -> None:
        outside = () if self._outside is None else (self._outside,)
        self._all_routes = (self.routes, *outside, *self._narrowed.values())

    def import_msgs(self, msgs: Sequence[Msg], source: Source | None, now_ns: int, to: bytes = b"") -> list[int]:
        """Deliver messages that came through a service import; stream exports do not pass them on.

        Args: ``to`` is the subject that routes all messages if receivers are to see another subject; b"": each
        message's own subject routes it.
        Returns: the number of receivers of each message.
        """
        if to or len(msgs) == 1:
            return self._import_route(to or msgs[0][0]).deliver_counted(msgs, source, now_ns, to)
        counts: list[int] = []
        while len(counts) < len(msgs):
            start = end = len(counts)
            route = self._import_route(msgs[start][0])
            while end < len(msgs) and self._import_route(msgs[end][0]) is route:
                end += 1
            # Deliver at least one message: without shadows, each lookup may return another route object.
            counts += route.deliver_counted(msgs[start:max(end, start + 1)], source, now_ns)
        return counts

    def _import_route(self, subject: bytes) -> Route:
        route = self.routes.route_of(subject)
        if not route.shadowed:
            return route
        match: Match[Subscription] = Match()
        for sub in route.receivers:
            if sub.original is None:
                (match.groups.setdefault(sub.queue, []) if sub.queue else match.plain).append(sub)
        return self.routes.route_of_match(match)

    def pub_acks(self, source: object, replies: Sequence[bytes], prefix: bytes, first_seq: int,
                 suffix: bytes) -> None:
        """Publish ``prefix + str(first_seq + i) + suffix`` to ``replies[i]`` for each i with a reply (b"" has none)."""
        if len(replies) > 1 and (sub := self._only_receiver(replies)) is not None:
            sub.deliver(PubAckRun(replies, prefix, first_seq, suffix))
        elif msgs := pub_acks(replies, prefix, first_seq, suffix):
            self.publish_all(msgs)

    def pub_acks_each(self, acks: Sequence[Any]) -> None:
        """Publish ``prefix + str(seq) + b"}"`` for each PubAck; ``acks`` is flat: reply, prefix, seq, reply, …"""
        columns = acks[::3], acks[1::3], acks[2::3], b"}"
        sub = self._only_receiver(columns[0])
        if sub is not None:
            sub.deliver(MixedPubAckRun(*columns))
        else:
            self.publish_all(mixed_pub_acks(*columns))

    def _only_receiver(self, replies: Sequence[bytes]) -> Subscription | None:
        """Return the only subscription of all ``replies``, found by the inbox that they share; None if uncertain.

        A client's reply subjects begin with one inbox prefix, so one lookup and one formatting call serve a whole batch
        of PubAcks.
        """
        inbox = replies[0].rpartition(b".")[0]
        route = self.routes.inbox(inbox) if inbox and not self.outward.busy else None
        sub = route.only_sub if route is not None else None
        if sub is None:
            return None
        count, dotted, joined = len(replies), inbox + b".", b"\n".join(replies)
        # The first condition proves that all replies begin with the prefix and none is empty. The other conditions
        # prove that exactly one token follows the prefix.
        if (joined.count(b"\n" + dotted) == count - 1 and joined.count(b".") == count * dotted.count(b".")
                and b".\n" not in joined and joined[-1] != _DOT):
            return sub
        return None

    def interest(self, subject: bytes, queue: bytes = b"") -> bool:
        """Return whether the literal ``subject`` has a subscription (in the queue group ``queue``, if given)."""
        route = self.routes.route_of(subject)
        if not route.receivers:
            return False
        if not queue:
            return len(route.receivers) > len(route.relays) or any(relay.interested(subject) for relay in route.relays)
        return route.serves(queue)

    def has_client_interest(self, subject: bytes) -> bool:
        """Return whether a client subscribes to the literal ``subject``."""
        return any(sub.peer is not None for sub in self.routes.route_of(subject).receivers)

    def destination(self, subject: bytes) -> tuple[str, bytes] | None:
        return self.arrival(subject if self.mapper is None else self.mapper.map(subject))

    def arrival(self, subject: bytes, hops: int = _HOPS_MAX) -> tuple[str, bytes] | None:
        """Return ``destination`` of a subject that is already mapped, through at most ``hops`` accounts."""
        return self.routes.route_of(subject).destination(self.name, subject, hops)

    def receives(self, account: str, subject: bytes) -> bool:
        return account == self.name or (self.shadows is not None and self.shadows.carries(account, subject))

    def watch_interest(self, subject: bytes, queue: bytes, changed: Callable[[bool], None]) -> InterestWatch:
        """Call ``changed(now_interested)`` on a later turn of the loop, after each change of the exact interest."""
        watch = InterestWatch(subject, queue, changed, self._exact_interest(subject, queue), self._unwatch)
        self._watches.setdefault(subject, []).append(watch)
        return watch

    def pending_bytes(self, subject: bytes) -> int:
        """Return the unsent bytes to the subscriber of ``subject`` that is furthest behind."""
        route = self.routes.route_of(subject)
        behind = [sub.peer.pending_bytes for sub in route.receivers if sub.peer is not None]
        return max([*behind, *(relay.pending_bytes(subject) for relay in route.relays)], default=0)

    # For connections.

    def add(self, sub: Subscription) -> None:
        """Insert a subscription whose subject is valid."""
        self.subs.insert(sub)
        for routes in self._all_routes:
            routes.added(sub)
        self._changed(sub.subject)
        if self.shadows is not None:
            self.shadows.added(sub)
        if self.interest_observer is not None:
            self.interest_observer.added(sub)

    def subscriptions(self) -> list[Subscription]:
        """Return all subscriptions, in no order."""
        return self.subs.all()

    def remove(self, sub: Subscription) -> None:
        """Remove a subscription; an unknown one is ignored."""
        leaving, sub.ended = sub.ended, True
        if self.subs.remove(sub):
            for routes in self._all_routes:
                routes.leaving -= leaving
                routes.removed(sub)
            self._changed(sub.subject)
            if self.shadows is not None:
                self.shadows.removed(sub)
            if self.interest_observer is not None:
                self.interest_observer.removed(sub)
            for observer in self._removal_observers:
                observer(sub)

    def observe_removals(self, observer: Callable[[Subscription], None]) -> None:
        """Call ``observer`` after each removal of a subscription; registering it twice has no effect."""
        if observer not in self._removal_observers:
            self._removal_observers = (*self._removal_observers, observer)

    def stop_observing_removals(self, observer: Callable[[Subscription], None]) -> None:
        """Remove an observer; an unknown one is ignored."""
        self._removal_observers = tuple(other for other in self._removal_observers if other != observer)

    def end(self, subs: Collection[Subscription]) -> None:
        """Send these subscriptions nothing more. The caller removes them, on later turns of the loop if there are
        many."""
        for sub in subs:
            sub.ended = True
        for routes in self._all_routes:
            routes.will_leave(len(subs))
        if self.shadows is not None:
            self.shadows.end(subs)

    def limit(self, sub: Subscription, max: int) -> None:
        """Let ``sub`` receive ``max`` messages in all, including those already delivered."""
        sub.max = max
        for routes in self._all_routes:
            routes.limited(sub)

    def refuses(self, subject: bytes) -> bool:
        """Return whether clients may not publish to ``subject``."""
        return subject.startswith(self._refused)

    def audience(self, subject: bytes, source: Source,
                 routes: Routes | None = None) -> list[tuple[Subscription, str]]:
        return audience((routes or self.routes).match(subject), subject, source, self._rng)

    def send_to_leafs(self, msgs: Sequence[Msg], source: Source, routes: Routes | None = None) -> None:
        (routes or self.routes).route_of(msgs[0][0]).send_to_leafs(msgs, source)

    def plain_of(self, subject: bytes, peer: Peer) -> Subscription | None:
        """Return a subscription of ``peer`` without a queue group that matches the literal ``subject``, if any."""
        return self.routes.route_of(subject).plain_of(peer)

    # Interest.

    def _changed(self, subject: bytes) -> None:
        """Update the watches of ``subject``. A wildcard subscription affects no watch (see ``_exact_interest``)."""
        watched = self._watches.get(subject)
        if watched:
            self._update_watches(watched)

    def _update_watches(self, watches: list[InterestWatch]) -> None:
        for watch in list(watches):
            interested = self._exact_interest(watch.subject, watch.queue)
            if interested != watch.interested:
                watch.update(interested, self._call_soon)

    def _exact_interest(self, subject: bytes, queue: bytes) -> bool:
        """Return whether a subscription has exactly this subject and queue group.

        Subscriptions with wildcards do not count. A service import counts even if its service has no subscriber, since
        only a delivery through the import would show that.

        Source: nats-server, server/sublist.go (registerNotification).
        """
        return any(not sub.ended and (sub.denies is None or not sub.denies(subject))
                   for sub in self.subs.exact(subject, queue))

    def _unwatch(self, watch: InterestWatch) -> None:
        watches = self._watches.get(watch.subject)
        if watches and watch in watches:
            watches.remove(watch)
            if not watches:
                del self._watches[watch.subject]
