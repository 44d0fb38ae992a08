"""Service imports: requests to another account's service.

    PUB api.users _INBOX.x.1      in the importing account, which imports req.users of A as api.users
    MSG req.users _R_.4f1c09.…    in A, with Nats-Request-Info

An import is a subscription of the importing account, of the kind relay. It returns the number of receivers of each
request in A, so that "no responders" crosses accounts. A request may pass on through an import of A. A request that
returns to a service that it has already passed is dropped.

Source: nats-server, server/client.go (processServiceImport), server/accounts.go (addServiceImport).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final
from weakref import WeakValueDictionary, ref

from broker.access.sharing import Export, Import, local_subject
from broker.protocol import headers
from broker.protocol.run import Msg
from broker.protocol.subject import is_literal, matches
from broker.protocol.subject_transform import SubjectTransform, numbered, unnumbered
from broker.protocol.traced import DEST, DISABLED, TracedMsg
from broker.server.routing.router import Router
from broker.server.routing.subscription import Hop, Peer, Source, Subscription
from broker.server.sharing.latency import Measurement, Meter
from broker.server.sharing.lost_interest import LostInterest
from broker.server.sharing.request_info import OwnClient, describe, with_info, with_service
from broker.server.sharing.responses import ACK, CallLater, Response, Responses

__all__ = ["Requester", "Service", "ServiceImport"]

THRESHOLD_NS: Final = 120_000_000_000

_TARGETS_MAX: Final = 4096
"""Bound on the cached subjects; beyond it all are dropped."""

_DEPTH_MAX: Final = 64
"""Bound on the accounts that a message of the broker itself may pass. A client's ``Requester`` records its path."""


class Service:
    """An exported service in use, with the parts that its imports share."""

    def __init__(self, settings: Export, router: Router, rng: random.Random, call_later: CallLater,
                 now_ns: Callable[[], int]) -> None:
        self.settings = settings
        self.router = router
        self.responses = Responses(router, single=settings.response_type == "singleton", call_later=call_later,
                                   threshold_ns=settings.response_threshold_ns or THRESHOLD_NS, now_ns=now_ns,
                                   as_responder=self._responder)
        self._responders: WeakValueDictionary[int, Requester] = WeakValueDictionary()
        self.meter = Meter(settings.latency, router, rng, now_ns) if settings.latency is not None else None

    def _responder(self, source: Source) -> Source:
        responder = self._responders.get(id(source))
        if responder is None:
            responder = self._responders[id(source)] = Responder(source, self, share=True)
        return responder


class Requester:
    """A client as the exporting account sees it.

    The exporting account sends it no no-responders replies: the client's own account does so if neither account has
    receivers.
    """

    __slots__ = ("__weakref__", "_service", "_share", "source")

    wants_no_responders = False

    def __init__(self, source: Source, service: Service, *, share: bool) -> None:
        self.source = source
        self._service = service
        self._share = share

    @property
    def no_echo(self) -> bool:
        return self.source.no_echo

    @property
    def peer(self) -> Peer:
        return self.source.peer

    @property
    def rtt_ns(self) -> int:
        return self.source.rtt_ns

    def has_passed(self, service: Service) -> bool:
        """Return whether its requests have already passed ``service``."""
        source = self.source
        return self._service is service or (isinstance(source, Requester) and source.has_passed(service))

    def no_responders(self, subject: bytes, reply: bytes) -> None:
        raise RuntimeError("no_responders was called on a source that does not want it")

    def refuse_publish(self, subject: bytes) -> None:
        self.source.refuse_publish(subject)

    def identity(self) -> dict[str, Any]:
        """Return the part of the client's identity that the import shares."""
        known = self.source.identity()
        if not self._share:
            known = {name: known[name] for name in ("acc", "rtt", "server") if name in known}
        return {**known, "svc": self._service.router.name}

    def hold(self) -> None:
        self.source.hold()

    def release(self) -> None:
        self.source.release()

    @property
    def fan_outs(self) -> int:
        return self.source.fan_outs

    def fan_out_began(self) -> None:
        self.source.fan_out_began()

    def fan_out_ended(self) -> None:
        self.source.fan_out_ended()


class Responder(Requester):
    """A client whose response crosses to the account that made the request.

    If that response is a request there, it does not pass the same service again.
    """

    __slots__ = ()

    def identity(self) -> dict[str, Any]:
        """Return the whole identity, from which the next import chooses its part."""
        return self.source.identity()


class ServiceImport:
    """An import of ``service`` into the account of ``router``; a relay.

    Args:
        ``own``: the broker's own client in that account;
        ``passing``: the imports that a message of the broker itself is passing now.
    Raises: TransformError.
    """

    def __init__(self, settings: Import, service: Service, router: Router, lost: LostInterest, own: OwnClient,
                 passing: list[ServiceImport]) -> None:
        self._lost = lost
        self._own = own
        self._passing = passing
        self.settings = settings
        self.service = service
        self._router = router
        source, local = settings.subject.encode(), local_subject(settings).encode()
        self._target: Callable[[bytes], bytes]
        self.local = local
        if is_literal(source):
            self._target = lambda subject: source
        elif source == local:
            self._target = lambda subject: subject
        else:
            self.local = unnumbered(local)
            self._target = SubjectTransform(unnumbered(source), numbered(local), strict=True).reverse().apply
        self._targets: dict[bytes, bytes] = {}
        self.subscription = Subscription(self.local, b"", relay=self)
        self._requesters: WeakValueDictionary[int, Requester] = WeakValueDictionary()
        self._described: tuple[Callable[[], Source | None], int, bytes] = (lambda: None, -1, b"")
        """The client described last, its round-trip time then, and the description."""

    def start(self) -> None:
        self._router.add(self.subscription)

    def stop(self) -> None:
        self._router.remove(self.subscription)

    def covers(self, subject: bytes) -> bool:
        """Return whether it imports the literal ``subject``."""
        return matches(self.local, subject)

    def target(self, subject: bytes) -> bytes:
        """Return the subject in the exporting account, after that account's mappings."""
        target = self._targets.get(subject)
        if target is None:
            if len(self._targets) >= _TARGETS_MAX:
                self._targets.clear()
            target = self._targets[subject] = self._target(subject)
        mapper = self.service.router.mapper
        return target if mapper is None else mapper.map(target)

    # A relay (broker.server.routing.route.Relay).

    def pass_on(self, msgs: Sequence[Msg], source: Source | None, now_ns: int, to: bytes) -> Sequence[int]:
        service = self.service
        # A message of the broker itself has no source that could record its path, so ``passing`` does.
        passing = self._passing
        again = (any(one.service is service for one in passing) or len(passing) >= _DEPTH_MAX if source is None
                 else isinstance(source, Requester) and source.has_passed(service))
        if again:
            return [0] * len(msgs)
        requester = self._requester(source)
        info = self._describe(source)
        alone = with_info(b"", info)
        ready: list[Msg] = []
        replies: list[bytes] = []
        traced = first if isinstance(first := msgs[0], TracedMsg) else None
        for subject, reply, hlen, body in msgs:
            measurement = self._measure(source, body[:hlen]) if service.meter is not None else None
            if reply and not reply.startswith(ACK):
                reply = self._expect(Response(reply, self._router, to or subject, source, now_ns, measurement))
            elif measurement is not None and not reply:
                measurement.failed("bad request")
            block = self._block(body[:hlen], source, info, traced) if hlen else alone
            ready.append((subject if to else self.target(subject), reply, len(block), block + body[hlen:]))
            replies.append(reply)
        if traced is not None and service.settings.allow_trace:
            ready = [traced.as_changed(ready[0])]
        if source is None:
            passing.append(self)
        try:
            counts = service.router.import_msgs(ready, requester, now_ns, self.target(to) if to else b"")
        finally:
            if source is None:
                passing.pop()
        for count, reply in zip(counts, replies, strict=True):
            if not count and reply:
                service.responses.undelivered(reply)
        return counts

    def _expect(self, response: Response) -> bytes:
        expected = self.service.responses.expect(response)
        if response.measurement is not None:
            reply, lost = response.reply, self._lost
            lost.watch(reply, expected, self.service.responses.lost)
            response.measurement.on_end = lambda: lost.forget(reply, expected)
        return expected

    def interested(self, subject: bytes) -> bool:
        return self.service.router.interest(self.target(subject))

    def pending_bytes(self, subject: bytes) -> int:
        return self.service.router.pending_bytes(self.target(subject))

    def hop(self, subject: bytes) -> Hop | None:
        return Hop(self.service.router, self.target(subject), self.service.settings.allow_trace)

    def _requester(self, source: Source | None) -> Requester | None:
        """Return the same object for the same source: JetStream compares sources by identity."""
        if source is None:
            return None
        requester = self._requesters.get(id(source))
        if requester is None:
            requester = self._requesters[id(source)] = Requester(
                source, self.service, share=self.settings.share)
        return requester

    def _measure(self, source: Source | None, block: bytes) -> Measurement | None:
        meter = self.service.meter
        assert meter is not None
        first = self._passing[0] if self._passing else self
        return meter.measure(source or first._own, self._router.name, block, share=self.settings.share)

    def _block(self, block: bytes, source: Source | None, info: bytes, traced: TracedMsg | None) -> bytes:
        """Return the header block of a request that already has one, with its request information."""
        requested = isinstance(source, Requester) and not isinstance(source, Responder)
        if requested or (source is None and self._passing):
            # An import without ``share`` shows the server only, which each message of the broker itself has.
            info = with_service(block, self._router.name, source or self._own, share=self.settings.share) or info
        block = with_info(block, info)
        if traced is not None:
            # ``traced`` continues the trace; the header must not start one on the exporting account's subjects.
            block = headers.move(block, DEST, DISABLED)
        return block

    def _describe(self, source: Source | None) -> bytes:
        """Return the request information of ``source``; that of the last source is cached."""
        share = self.settings.share
        if source is None:
            return describe(None, self._own, self._router.name, share=share)
        last, rtt_ns, info = self._described
        if last() is not source or rtt_ns != source.rtt_ns:
            info = describe(source, self._own, self._router.name, share=share)
            self._described = (ref(source), source.rtt_ns, info)
        return info
