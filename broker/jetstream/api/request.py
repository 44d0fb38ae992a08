"""A request to $JS.API, as its handler sees it, and the routes that list handlers.

A handler is a coroutine function that takes a ``Request`` and returns the members of the answer after ``type``, or
raises ``ApiError``. It sets ``request.about`` to the stream that it read or changed. The answer is then sent after the
state that it shows is persisted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, TypeVar

from broker.jetstream.account.long_work import in_thread_if_long
from broker.jetstream.wire import fields as wire
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError

if TYPE_CHECKING:
    from broker.jetstream.account.account import Account
    from broker.jetstream.backup.transfers import Transfers
    from broker.jetstream.bus import Msg, Source
    from broker.jetstream.consumer.consumer import Consumer
    from broker.jetstream.stream.stream import Stream

__all__ = ["Handler", "Request", "Route", "Show", "Silent", "Tracked"]

T = TypeVar("T")

_ELEMENT_BYTES = 16
"""The bytes of JSON that take as long as one element of a configuration."""

Show = Callable[["Msg", "Source | None"], None]
"""A function that gets a request as it came, and the client that made it."""


class Silent(Exception):
    """Raised for a request that gets no answer, as nats-server gives none."""


@dataclass(slots=True)
class Request:
    """A request. ``tokens`` are those of its subject after ``$JS.API``; ``payload`` is its body without headers."""

    account: Account
    transfers: Callable[[], Transfers]
    tokens: list[str]
    reply: bytes
    payload: bytes
    about: Stream | None = None
    """The stream whose log the answer waits for: everything sequenced there so far; None: the account's log."""
    route: Route | None = None
    source: Source | None = None
    """The client that sent the request."""
    headers: bytes = b""
    """The request's header block."""
    answer_headers: bytes = b""
    """The header block of the answer, unless it is an error."""

    async def body(self, of: type[T], go_name: str) -> T:
        """Return the payload read as an ``of``; an empty payload gives all defaults.

        Raises: ApiError 10025.
        """
        lenient = not self.account.settings.strict
        return await self.decoded(
            lambda: wire.load_as(lambda value: wire.read(of, value, go_name, lenient=lenient), self.payload))

    async def decoded(self, decode: Callable[[], T]) -> T:
        """Decode the payload by ``decode``, in a thread if it is long."""
        return await in_thread_if_long(len(self.payload) // _ELEMENT_BYTES, decode)

    async def optional_body(self, of: type[T], go_name: str) -> T:
        """Do as ``body``, but read the payload only if it begins with { or [, as nats-server does here."""
        return await self.body(of, go_name) if self.payload.lstrip(b" \t\r\n")[:1] in (b"{", b"[") else of()

    async def is_empty(self) -> bool:
        """Return whether the payload is empty: no bytes, or an object without members."""
        if not self.payload or self.payload == b"{}":
            return True
        try:
            return await self.decoded(lambda: wire.load(self.payload)) == {}
        except ApiError:
            return False

    async def need_empty(self) -> None:
        """Check that the payload is empty. Raises: ApiError 10038."""
        if not await self.is_empty():
            raise ApiError(ApiErrors.NOT_EMPTY_REQUEST)

    async def need_body(self) -> None:
        """Check that the payload is not empty. Raises: ApiError 10003."""
        if await self.is_empty():
            raise ApiError(ApiErrors.BAD_REQUEST)

    def stream(self, name: str) -> Stream:
        """Return the account's stream of that name; the answer waits for its log from now on.

        Raises: ApiError 10059; 10194 if the stream is offline.
        """
        stream = self.account.stream(name)
        self.about = stream
        return stream

    def consumer(self, stream_name: str, name: str) -> Consumer:
        """Return a consumer of the account. Raises: ApiError 10059, 10014."""
        consumer = self.account.consumers.of(self.stream(stream_name)).get(name)
        if consumer is None:
            raise ApiError(ApiErrors.CONSUMER_NOT_FOUND)
        return consumer


class Tracked(Enum):
    """The answers that nats-server counts in its statistics and reports to the audit."""

    ALL = auto()
    ERRORS = auto()
    NONE = auto()


Handler = Callable[[Request], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Route:
    """The handler for one form of subject.

    Attributes:
        ``type``: the last part of the answer's type.
        ``zeros``: the members that nats-server shows next to an error.
        ``tracked``: which of its answers are counted and audited.
        ``apart``: true if the request may take long, so that other requests about the stream do not wait for it.
    """

    type: str
    handler: Handler
    zeros: Mapping[str, Any] = field(default_factory=dict)
    tracked: Tracked = Tracked.ALL
    apart: bool = False
