"""The way to a stream that another server has.

    Link ── api ──> the other JetStream: requests below ``api``, such as $JS.hub.API or $JS.API
         <─ deliveries, below ``deliver``

An account's bus is a link if a leaf connection or an import carries the subjects. A connection to another NATS system
(``broker.upstreams``) is one, too.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from broker.jetstream.wire.ids import secret_id
from broker.protocol import headers

if TYPE_CHECKING:
    from broker.jetstream.bus import BatchHandler, Msg, Source, Subscription

__all__ = ["Link", "NoAnswer", "Remote", "ask", "identity_in"]

ANSWER_SECONDS = 5.0
_NO_RESPONDERS = b"NATS/1.0 503"


class NoAnswer(Exception):
    """Raised if a request gets no answer; the text says why."""


class Link(Protocol):
    """A subject space in which the other JetStream answers and delivers."""

    def subscribe(self, subject: bytes, handler: BatchHandler) -> Subscription:
        """Call ``handler`` with each run of messages to ``subject``."""

    def unsubscribe(self, subscription: Any) -> None:
        """End a subscription of this link."""

    def publish(self, subject: bytes, reply: bytes, hlen: int, body: bytes) -> int:
        """Publish one message; return 0 if it is known that nobody receives it."""


class Remote(NamedTuple):
    """The JetStream of another server: its API below ``api``, and the prefix of the subjects it delivers to."""

    link: Link
    api: str
    deliver: str


async def ask(link: Link, subject: bytes, body: bytes = b"", block: bytes = b"", *, inbox: str = "_INBOX",
              seconds: float = ANSWER_SECONDS) -> tuple[dict[str, Any], bytes]:
    """Send an API request with the header ``block``; return the answer and its headers. Raises: NoAnswer."""
    answered: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()

    def on_answer(ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> None:
        if not answered.done():
            answered.set_result(ops[start])

    reply = f"{inbox}.{secret_id()}".encode()
    subscription = link.subscribe(reply, on_answer)
    try:
        if not link.publish(subject, reply, len(block), block + body):
            raise NoAnswer(f"nobody receives {subject.decode()}")
        async with asyncio.timeout(seconds):
            _, _, hlen, data = await answered
    except TimeoutError:
        raise NoAnswer(f"no answer to {subject.decode()} within {seconds:g} s") from None
    finally:
        link.unsubscribe(subscription)
    if data.startswith(_NO_RESPONDERS):
        raise NoAnswer(f"nobody answers {subject.decode()}: JetStream is off there, or in that account")
    try:
        answer = json.loads(data[hlen:])
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise NoAnswer(f"the answer to {subject.decode()} is no JSON object")
    return answer, data[:hlen]


def identity_in(block: bytes) -> str:
    """Return the identity of the stream in the headers of an answer; "" if it is not there."""
    return (headers.get(block, b"Nats-Stream-Identity") or b"").decode("latin-1")
