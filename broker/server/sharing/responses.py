"""Responses on their way back to the requesting accounts: the reply subjects of an exported service.

    request   in the importing account   reply _INBOX.x.1
              in the exporting account   reply _R_.4f1c09.8a2b…, stored here
    response  in the exporting account   to _R_.4f1c09.8a2b…   →   _INBOX.x.1 in the importing account

A reply subject serves one response (singleton), or responses until an empty one (stream, chunked). It ends if no
response comes within the service's response threshold.

Source: nats-server, server/accounts.go (addRespServiceImport, processServiceImportResponse, checkExpiredResponses).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, Protocol

from broker.protocol.run import Msg
from broker.server.routing.router import Router
from broker.server.routing.subscription import Hop, Source, Subscription
from broker.server.sharing.latency import Measurement

__all__ = ["ACK", "CallLater", "Response", "Responses"]

ACK: Final = b"$JS.ACK."
"""Prefix of reply subjects that are passed on unchanged: acks must reach their consumers."""

WAITING_MAX: Final = 1_000_000
"""Bound on the waiting requests of one service; beyond it the oldest is dropped as if it had timed out."""

_TOKEN_BYTES: Final = 8
_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_MARGIN_S: Final = 0.001


class Timer(Protocol):
    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], Timer]
"""Function that calls another function after some seconds."""

AsResponder = Callable[[Source], Source]
"""Function that returns, for a responding client, the source that the account receiving the response sees."""


class Response:
    """An awaited response: its destination, and the request that it answers."""

    __slots__ = ("at_ns", "measurement", "reply", "router", "source", "subject")

    def __init__(self, reply: bytes, router: Router, subject: bytes, source: Source | None, at_ns: int,
                 measurement: Measurement | None) -> None:
        self.reply = reply
        self.router = router
        self.subject = subject
        self.source = source
        self.at_ns = at_ns
        self.measurement = measurement


class Responses:
    """The awaited responses of one service in the account of ``router``, whose clients respond.

    This is a relay on ``_R_.<six>.>``, subscribed when a response is first awaited.
    """

    def __init__(self, router: Router, *, single: bool, threshold_ns: int, call_later: CallLater,
                 now_ns: Callable[[], int], as_responder: AsResponder) -> None:
        self._router = router
        self._as_responder = as_responder
        self._single = single
        self._threshold_ns = threshold_ns
        self._call_later = call_later
        self._now_ns = now_ns
        self._prefix = b""
        self._subscription: Subscription | None = None
        # The responses by their reply subjects here, oldest first.
        self._waiting: dict[bytes, Response] = {}
        self._timer: Timer | None = None
        self._onward: dict[Router, Responses] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def expect(self, response: Response) -> bytes:
        """Wait for a response. Returns: the reply subject for it in this account."""
        waiting = self._waiting
        if not self._prefix:
            self._prefix = f"_R_.{''.join(secrets.choice(_DIGITS) for _ in range(6))}.".encode()
            self._subscription = Subscription(self._prefix + b">", b"", relay=self)
            self._router.add(self._subscription)
        # The token is secret: anyone who guesses a reply subject can answer instead of the service.
        while (reply := self._prefix + secrets.token_hex(_TOKEN_BYTES).encode()) in waiting:
            pass
        if len(waiting) >= WAITING_MAX:
            self._end(next(iter(waiting)), "timeout")
        waiting[reply] = response
        if self._timer is None:
            self._set_timer(self._threshold_ns)
        return reply

    def undelivered(self, reply: bytes) -> Response | None:
        """End the wait for a response, because nobody received the request. Returns: that response."""
        return self._end(reply, "no delivery")

    def lost(self, reply: bytes) -> None:
        """End the wait for a response, because nobody receives it any more."""
        self._end(reply, "interest lost")

    def _end(self, reply: bytes, why: str) -> Response | None:
        response = self._waiting.pop(reply, None)
        if response is not None and response.measurement is not None:
            response.measurement.failed(why)
        return response

    def close(self) -> None:
        """End the wait for all responses."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for response in self._waiting.values():
            if response.measurement is not None:
                response.measurement.dropped()
        self._waiting.clear()
        if self._subscription is not None:
            self._router.remove(self._subscription)
            self._subscription = None
            self._prefix = b""
        for onward in self._onward.values():
            onward.close()

    # A relay (broker.server.routing.route.Relay).

    def pass_on(self, msgs: Sequence[Msg], source: Source | None, now_ns: int, to: bytes) -> Sequence[int]:
        counts = [0] * len(msgs)
        ready: list[Msg] = []
        places: list[int] = []
        router: Router | None = None
        responder = source if source is None else self._as_responder(source)
        for at, (subject, reply, hlen, body) in enumerate(msgs):
            response = self._answered(to or subject, body, source, now_ns)
            if response is None:
                continue
            if reply and not reply.startswith(ACK):
                reply = self._responses_in(response.router).expect(
                    Response(reply, self._router, to or subject, source, now_ns, None))
            if response.router is not router and ready:
                assert router is not None
                self._send(router, ready, places, counts, responder, now_ns, msgs, to)
                ready, places = [], []
            router = response.router
            target = response.reply if router.mapper is None else router.mapper.map(response.reply)
            if to:
                counts[at] = router.import_msgs([(subject, reply, hlen, body)], responder, now_ns, target)[0]
                self._drop_unreceived(to, counts[at])
            else:
                ready.append((target, reply, hlen, body))
                places.append(at)
        if router is not None and ready:
            self._send(router, ready, places, counts, responder, now_ns, msgs, to)
        # Clients are not notified if nobody received a response. Consumers (source None) need the true counts.
        return counts if source is None else [1] * len(msgs)

    def _send(self, router: Router, ready: list[Msg], places: list[int], counts: list[int], source: Source | None,
              now_ns: int, msgs: Sequence[Msg], to: bytes) -> None:
        for place, count in zip(places, router.import_msgs(ready, source, now_ns), strict=True):
            counts[place] = count
            self._drop_unreceived(to or msgs[place][0], count)

    def _answered(self, reply: bytes, body: bytes, source: Source | None, now_ns: int) -> Response | None:
        """Return the awaited response that a message to ``reply`` answers; None if none is awaited."""
        waiting = self._waiting
        response = waiting.get(reply)
        if response is None:
            return None
        if self._single or not body:
            del waiting[reply]
        else:
            # Move the entry to the end, so that the oldest comes first.
            del waiting[reply]
            waiting[reply] = response
            response.at_ns = now_ns
        if response.measurement is not None:
            response.measurement.answered(source)
            response.measurement = None
        return response

    def _drop_unreceived(self, reply: bytes, count: int) -> None:
        if not count:
            self._waiting.pop(reply, None)

    def _responses_in(self, router: Router) -> Responses:
        """Return the awaited responses in ``router``'s account, for a response that is itself a request."""
        onward = self._onward.get(router)
        if onward is None:
            onward = self._onward[router] = Responses(
                router, single=self._single, threshold_ns=self._threshold_ns, call_later=self._call_later,
                now_ns=self._now_ns, as_responder=self._as_responder)
        return onward

    def interested(self, subject: bytes) -> bool:
        response = self._waiting.get(subject)
        return response is not None and response.router.interest(response.reply)

    def pending_bytes(self, subject: bytes) -> int:
        response = self._waiting.get(subject)
        return response.router.pending_bytes(response.reply) if response is not None else 0

    def hop(self, subject: bytes) -> Hop | None:
        response = self._waiting.get(subject)
        return Hop(response.router, response.reply, False) if response is not None else None

    # Expiry.

    def _set_timer(self, delay_ns: int) -> None:
        self._timer = self._call_later(max(delay_ns, 0) / 1e9 + _MARGIN_S, self._expire)

    def _expire(self) -> None:
        self._timer = None
        deadline_ns = self._now_ns() - self._threshold_ns
        waiting = self._waiting
        # Expire a bounded number at a time, so that a million of them do not block the loop.
        for reply in list(islice(waiting, 10_000)):
            if waiting[reply].at_ns > deadline_ns:
                break
            self._end(reply, "timeout")
        if waiting:
            self._set_timer(next(iter(waiting.values())).at_ns - deadline_ns)
