"""A client for the cost measurements: raw sockets, requests encoded beforehand, many of them unanswered at once.

The module owns windows of requests and the counting of answers, flow control included. ``cases`` owns the requests.
"""

from __future__ import annotations

import re
import select
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bench.load import Connection, Count

__all__ = ["STREAM", "Client", "grouped", "pub"]

STREAM = "BENCH"
"""The stream of most cases, with the subjects ``bench.>``."""

DELIVERED = b" $JS.ACK."
"""Text in the head of every delivered message, and in no payload."""

_FLOW_CONTROL = re.compile(rb"HMSG \S+ \S+ (\$JS\.FC\.\S+) ")
_PATIENCE_S = 60.0
_STALE_S = 60.0
"""Time after which an idle connection, which does not answer the server's PINGs, is replaced."""


def pub(subject: str, payload: bytes, reply: str = "_INBOX.b.x", headers: bytes = b"") -> bytes:
    """Encode a PUB, or an HPUB with ``headers`` (their lines)."""
    words = f"{subject} {reply}".rstrip().encode()
    if not headers:
        return b"PUB %b %d\r\n%b\r\n" % (words, len(payload), payload)
    block = b"NATS/1.0\r\n%b\r\n" % headers
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (words, len(block), len(block) + len(payload), block, payload)


class Client(Connection):
    """A connection that gets its answers at ``_INBOX.b.*`` and deliveries at ``_INBOX.d``; and another one for API
    requests, since deliveries may come sooner than the answer to the request that causes them."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._port = port
        self._api, self._asked_s = Connection(port), time.monotonic()
        self.send(b"SUB _INBOX.b.* 1\r\nSUB _INBOX.d 2\r\nPING\r\n")
        self.until(b"PONG\r\n")

    def request(self, subject: str, body: object = None, seconds: float = 300) -> dict[str, Any]:
        if time.monotonic() - self._asked_s > _STALE_S:
            self._api.sock.close()
            self._api = Connection(self._port)
        try:
            return self._api.request(subject, body, seconds)
        finally:
            self._asked_s = time.monotonic()

    def create(self, name: str = STREAM, **config: Any) -> None:
        """Create a stream; the subjects are ``bench.>`` unless given."""
        if "mirror" not in config and "sources" not in config:
            config = {"subjects": ["bench.>"], **config}
        self.request(f"$JS.API.STREAM.CREATE.{name}", {"name": name, "storage": "file", **config})

    def state(self, name: str = STREAM) -> dict[str, Any]:
        return dict(self.request(f"$JS.API.STREAM.INFO.{name}")["state"])

    def consumer(self, name: str, **config: Any) -> dict[str, Any]:
        """Create a consumer, without acks unless ``config`` has a policy; return its info."""
        config = {"name": name, "ack_policy": "none", "deliver_policy": "all", **config}
        return self.request(f"$JS.API.CONSUMER.CREATE.{STREAM}.{name}", {"stream_name": STREAM, "config": config})

    def ordered(self, name: str, **config: Any) -> dict[str, Any]:
        """Create a push consumer as clients do for a watch or for an object: with flow control, in memory."""
        return self.consumer(name, deliver_subject="_INBOX.d", flow_control=True, idle_heartbeat=5_000_000_000,
                             max_deliver=1,
                             mem_storage=True, num_replicas=1, inactive_threshold=300_000_000_000, **config)

    def next(self, consumer: str, batch: int) -> bytes:
        """Encode a pull request, whose messages go to ``_INBOX.d``."""
        return pub(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{consumer}", b'{"batch":%d}' % batch, "_INBOX.d")

    def until(self, mark: bytes, seconds: float = 60) -> bytes:
        self.sock.setblocking(True)
        return super().until(mark, seconds)

    def exchange(self, rounds: Iterable[bytes], each: int = 1, in_flight: int = 1, mark: bytes = b'"seq":') -> int:
        """Send ``rounds`` of ``each`` requests, with at most ``in_flight`` requests unanswered; return the number of
        answers.

        Raises: RuntimeError at the first error.
        """
        answers, errors, sent = Count(mark), Count(b'"error"'), 0
        coming, out, more = iter(rounds), memoryview(b""), True
        self.sock.setblocking(False)
        last = time.perf_counter()
        while more or out or answers.n < sent:
            room = bool(out) or (more and sent + each - answers.n <= max(in_flight, each))
            readable, writable, _ = select.select([self.sock], [self.sock] if room else [], [], 5)
            if readable:
                data = self._received()
                answers.feed(data)
                errors.feed(data)
                if errors.n:
                    raise RuntimeError(f"the server answered {data[-400:]!r}")
                last = time.perf_counter()
            if writable:
                if not out:
                    out = memoryview(next(coming, b""))
                    more = bool(out)
                    sent += each if more else 0
                if out:
                    out = out[self.sock.send(out):]
            if time.perf_counter() - last > _PATIENCE_S:
                raise TimeoutError(f"{answers.n} answers to {sent} requests")
        return answers.n

    def receive(self, count: int, requests: bytes = b"", taken: Callable[[bytes], object] | None = None,
                mark: bytes = DELIVERED) -> int:
        """Send ``requests`` and read until ``count`` messages have come; answer flow control. ``taken`` gets the bytes,
        in whole lines. Returns: the number of bytes read."""
        seen, size, rest, out = Count(mark), 0, b"", bytearray(requests)
        self.sock.setblocking(False)
        last = time.perf_counter()
        while seen.n < count or out:
            readable, writable, _ = select.select([self.sock], [self.sock] if out else [], [], 5)
            if readable:
                data = self._received()
                size += len(data)
                seen.feed(data)
                data = rest + data
                cut = data.rfind(b"\n") + 1  # the rest may be the beginning of a message's head
                for reply in _FLOW_CONTROL.findall(data, 0, cut):
                    out += b"PUB %b 0\r\n\r\n" % reply
                if taken is not None:
                    taken(data[:cut])
                rest = data[cut:]
                last = time.perf_counter()
            if writable:
                del out[:self.sock.send(out)]
            if time.perf_counter() - last > _PATIENCE_S:
                raise TimeoutError(f"{seen.n} of {count} messages")
        return size

    def wait(self, done: Callable[[], bool], seconds: float = 300) -> None:
        """Repeat ``done`` until it is true."""
        until = time.perf_counter() + seconds
        while not done():
            if time.perf_counter() > until:
                raise TimeoutError("the expected state was not reached")
            time.sleep(0.01)

    def _received(self) -> bytes:
        data = self.sock.recv(1 << 20)
        if not data:
            raise ConnectionError("closed by the server")
        return data


def grouped(messages: Sequence[bytes], size: int) -> list[bytes]:
    """Join ``messages``, ``size`` at a time."""
    return [b"".join(messages[i:i + size]) for i in range(0, len(messages), size)]
