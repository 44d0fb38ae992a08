"""Requests to the broker itself: received from a router, and served one at a time.

    router ──> queue, while the requesting client is not read ──(one in each turn of the loop)──> handler ──> reply

Owns: the queue, the envelope of answers. Does not own: the content of answers (services).

Another part of the broker serves a subject of its own with ``serve``; its handler answers with the request's methods.

Source: nats-server, server/events.go (zReq, internalSendLoop, getAcceptEncoding, ServerAPIResponse).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, Protocol

from broker.base.gojson.encoding import marshal
from broker.protocol.content_encoding import encoded
from broker.protocol.run import Msg
from broker.server.routing.router import Router
from broker.server.system.selection import Selection, members_of

__all__ = ["BAD_REQUEST", "Handler", "Request", "RequestError", "Requests", "Unanswered"]

log = logging.getLogger(__name__)

_WAITING_MAX: Final = 1000
"""Bound on the queue, beyond which messages that no client sent are dropped."""

_COMPRESSED_MAX: Final = 1 << 20
"""Size up to which answers are compressed: compressing a longer one would block the loop for up to 50 ms."""
_ROWS: Final = 256
"""Number of rows of a list that are encoded in one step."""

BAD_REQUEST: Final = 400
FAILED: Final = 500


class RequestError(Exception):
    """A request's error, with nats-server's text."""

    def __init__(self, text: str, code: int = FAILED) -> None:
        super().__init__(text)
        self.code = code


class Unanswered(Exception):
    """Raised by a handler if the request gets no answer: it is for other servers, or there is nothing to answer."""


class Sender(Protocol):
    """The client that published a request."""

    def hold(self) -> None: ...

    def release(self) -> None: ...


class Request:
    """A request. ``reply`` b"": no answer is wanted; ``source`` None: the broker itself sent it."""

    __slots__ = ("_imported", "_requests", "_router", "body", "header", "reply", "source", "subject")

    def __init__(self, requests: Requests, router: Router, msg: Msg, source: Sender | None, *, imported: bool) -> None:
        subject, self.reply, hlen, body = msg
        self._imported = imported
        self.source = source
        self._requests = requests
        self._router = router
        self.subject = subject.decode("utf-8", "replace")
        self.header = body[:hlen]
        self.body = body[hlen:]

    def token(self, index: int) -> str:
        """Return one token of the subject."""
        return self.subject.split(".")[index]

    def members(self, go_type: str = "EventFilterOptions") -> dict[str, Any]:
        """Return the request's options by their lower-case names; error texts call their type ``go_type``.

        Raises: RequestError if they cannot be decoded; Unanswered if they select other servers.
        """
        try:
            members = members_of(self.body, go_type)
            selected = self._requests.selection().includes(members, go_type)
        except ValueError as error:
            raise RequestError(str(error), BAD_REQUEST) from None
        if not selected:
            raise Unanswered
        return members

    def answer(self, data: object = None, *, compressible: bool = True) -> None:
        """Answer with ``data``, or without data if it is None; compress the answer if the request allows it."""
        fields = {} if data is None else {"data": data}
        self.send(self._requests.enveloped(**fields), compressible=compressible)

    def answer_in_steps(self, data: object) -> Generator[None, None, None]:
        """Do what ``answer`` does, in steps, and free the rows of ``data``, which may list a million subscriptions."""
        parts = [self._requests.enveloped(data=None).removesuffix(b"null}")]
        yield from _marshal_in_steps(data, parts)
        parts.append(b"}")
        body = b"".join(parts)
        yield
        self.send(body, compressible=len(body) <= _COMPRESSED_MAX)

    def refuse(self, text: str, code: int = FAILED) -> None:
        """Answer with an error."""
        self.send(self._requests.enveloped(error={"code": code, "description": text}))

    def send(self, body: bytes, *, compressible: bool = False) -> None:
        """Answer with ``body`` unchanged, apart from compression."""
        if not self.reply:
            return
        hlen = 0
        if compressible:
            hlen, body = encoded(body, self.header)
        if self._imported and self.source is not None:
            self._router.respond(self.reply, hlen, body)
        else:
            self._router.publish(self.reply, b"", hlen, body)


Handler = Callable[[Request], Generator[None, None, None] | None]
"""Serves one request, in steps if it returns a generator. A RequestError that it raises is the answer; with Unanswered
there is no answer."""


class Requests:
    """The queue of requests.

    ``identity`` returns this server's current description, ``selection`` the values by which requests select it;
    ``call_soon`` runs a function on a later turn of the loop.
    """

    def __init__(self, identity: Callable[[], dict[str, Any]], selection: Callable[[], Selection],
                 call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._identity = identity
        self.selection = selection
        self._call_soon = call_soon
        self._queue: deque[tuple[Handler, Request]] = deque()
        self._serving: tuple[Generator[None, None, None], Request] | None = None
        """The request that is being served in steps."""

    def serve(self, router: Router, subject: str, handler: Handler, *, unanswered: bool = False,
              imported: bool = False) -> None:
        """Serve the requests to ``subject``, which may have wildcards, in one account with ``handler``.

        ``unanswered``: serve also requests without a reply subject; ``imported``: on nats-server, the account imports
        the service.
        """
        def queue_requests(ops: Sequence[Msg], start: int, end: int, source: Sender | None, now_ns: int) -> None:
            for i in range(start, end):
                if ops[i][1] or unanswered:
                    self._put(handler, Request(self, router, ops[i], source, imported=imported))

        router.subscribe(subject.encode(), queue_requests)

    def enveloped(self, **fields: object) -> bytes:
        """Return an answer: this server's description, and ``fields``."""
        return marshal({"server": self._identity(), **fields})

    def _put(self, handler: Handler, request: Request) -> None:
        # A request may list a million subscriptions: other work has its turn in between, and the requester must wait.
        if request.source is not None:
            request.source.hold()
        elif len(self._queue) >= _WAITING_MAX:
            # The queue needs a bound, because a consumer may deliver to such a subject and does not wait.
            return
        if not self._queue and self._serving is None:
            self._call_soon(self._turn)
        self._queue.append((handler, request))

    def _turn(self) -> None:
        serving, self._serving = self._serving, None
        if serving is None:
            handler, request = self._queue.popleft()
        else:
            request = serving[1]
        try:
            steps = handler(request) if serving is None else serving[0]
            if steps is not None and next(steps, self) is not self:
                self._serving = steps, request
        except Unanswered:
            pass
        except RequestError as error:
            request.refuse(str(error), error.code)
        except Exception:
            log.exception("the request %s failed", request.subject)
            request.refuse("internal error")
        finally:
            if self._serving is None and request.source is not None:
                request.source.release()
            if self._queue or self._serving is not None:
                self._call_soon(self._turn)


def _marshal_in_steps(value: object, parts: list[bytes]) -> Generator[None, None, None]:
    """Append ``marshal(value)`` to ``parts``, in steps if dictionaries contain long lists; those lists lose their
    rows."""
    if isinstance(value, dict) and value:
        between = b"{"
        for name, member in value.items():
            parts += (between, marshal(str(name)), b":")
            yield from _marshal_in_steps(member, parts)
            between = b","
        parts.append(b"}")
    elif isinstance(value, list) and (len(value) > _ROWS or any(isinstance(row, dict) and _long(row) for row in value)):
        between = b"["
        for at, row in enumerate(value):
            parts.append(between)
            if isinstance(row, dict) and _long(row):
                yield from _marshal_in_steps(row, parts)
            else:
                parts.append(marshal(row))
            value[at] = None  # freeing all rows at once would take as long again
            between = b","
            if at % _ROWS == _ROWS - 1:
                yield
        parts.append(b"]")
    else:
        parts.append(marshal(value))


def _long(row: dict[str, object]) -> bool:
    return any(isinstance(member, list) and len(member) > _ROWS for member in row.values())
