"""Clients for the measurements of core NATS: many sockets, and counts of the received bytes."""

from __future__ import annotations

import re
import select
import selectors
import socket
import time
from collections.abc import Iterable, Sequence

from bench.load import Connection

__all__ = ["PATIENCE_S", "WebSocket", "connect_all", "exchange", "flow"]

PATIENCE_S = 60.0
_REPLIES = re.compile(rb"MSG _INBOX\.r\.(\d+) ")
_REQUESTS = re.compile(rb"MSG \S+ \S+ (\S+) (?:\d+ )?\d+\r\n")
"""Replies of requests; with headers, too, since nats-server sends a service the identity of a requester in another
account."""
_CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"lang":"bench","version":"1","protocol":1}\r\nPING\r\n'


def flow(senders: Sequence[socket.socket], blocks: Sequence[bytes], receivers: Sequence[socket.socket], *,
         sent_max: int, window: int, expected: int) -> float:
    """Send blocks in turn, each sender its own block ``sent_max`` times, until ``expected`` bytes have come back.

    Args: ``window``: bytes that may be in flight; the sum of ``blocks`` must equal the bytes that come back for them.

    Returns: the seconds taken.
    """
    for sock in (*senders, *receivers):
        sock.setblocking(False)
    poller = selectors.DefaultSelector()
    for sock in receivers:
        poller.register(sock, selectors.EVENT_READ)
    per_block = expected // (sent_max * len(senders))
    out = [memoryview(b"")] * len(senders)
    left = [sent_max] * len(senders)
    received = blocks_sent = 0
    buffer = bytearray(1 << 20)
    began = last = time.perf_counter()
    while received < expected:
        for at, sock in enumerate(senders):
            if not out[at] and left[at] and blocks_sent * per_block - received < window:
                out[at] = memoryview(blocks[at])
                left[at] -= 1
                blocks_sent += 1
            if out[at]:
                try:
                    out[at] = out[at][sock.send(out[at]):]
                except BlockingIOError:
                    continue
        waits = not any(left) or blocks_sent * per_block - received >= window
        for key, _ in poller.select(0.001 if any(out) else 1 if waits else 0):
            size = key.fileobj.recv_into(buffer)  # type: ignore[union-attr]
            if not size:
                raise ConnectionError("closed by the server")
            received += size
            last = time.perf_counter()
        if time.perf_counter() - last > PATIENCE_S:
            raise TimeoutError(f"{received} of {expected} bytes")
    return time.perf_counter() - began


def exchange(requester: Connection, responder: Connection, subject: str, count: int, in_flight: int) -> list[float]:
    """Send requests on ``subject``, to which the responder must be subscribed; return the time of each, sorted."""
    requester.send(b"SUB _INBOX.r.* 1\r\nPING\r\n")
    requester.until(b"PONG\r\n")
    socks = {con.sock: b"" for con in (requester, responder)}
    began: dict[int, float] = {}
    times: list[float] = []
    sent = 0
    while len(times) < count:
        if sent < count and len(began) < in_flight:
            new = range(sent, min(count, sent + in_flight - len(began)))
            sent = new.stop
            now = time.perf_counter()
            began.update(dict.fromkeys(new, now))
            requester.send(b"".join(b"PUB %b _INBOX.r.%d 2\r\nhi\r\n" % (subject.encode(), i) for i in new))
        readable, _, _ = select.select(list(socks), [], [], PATIENCE_S)
        if not readable:
            raise TimeoutError(f"{len(times)} of {count} answers")
        for sock in readable:
            data = socks[sock] + sock.recv(1 << 20)
            cut = data.rfind(b"\r\n") + 2
            socks[sock] = data[cut:]
            if sock is responder.sock:
                replies = _REQUESTS.findall(data, 0, cut)
                if replies:
                    responder.send(b"".join(b"PUB %b 2\r\nyo\r\n" % reply for reply in replies))
            else:
                now = time.perf_counter()
                times += (now - began.pop(int(i)) for i in _REPLIES.findall(data, 0, cut))
    return sorted(times)


def connect_all(port: int, count: int) -> list[socket.socket]:
    """Open ``count`` connections at once; return them when each has received its PONG."""
    poller = selectors.DefaultSelector()
    socks = []
    for _ in range(count):
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(("127.0.0.1", port))
        poller.register(sock, selectors.EVENT_READ, bytearray())
        socks.append(sock)
    waiting = count
    while waiting:
        ready = poller.select(PATIENCE_S)
        if not ready:
            raise TimeoutError(f"{waiting} of {count} connections have no answer")
        for key, _ in ready:
            sock, got = key.fileobj, key.data
            data = sock.recv(4096)  # type: ignore[union-attr]
            if not data:
                raise ConnectionError("closed by the server")
            begun = bool(got)
            got += data
            if not begun:
                sock.send(_CONNECT)  # type: ignore[union-attr]
            if b"PONG\r\n" in got:
                poller.unregister(sock)
                waiting -= 1
    return socks


class WebSocket:
    """A connection by WebSocket. Its mask is zero, so payloads are sent unchanged."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                          b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n")
        self.until(b'"}')
        self.sock.sendall(self.frame(_CONNECT))
        self.until(b"PONG\r\n")

    @staticmethod
    def frame(data: bytes) -> bytes:
        """Return a binary frame."""
        size = len(data)
        head = (bytes([0x80 | size]) if size < 126 else
                b"\xfe%b" % size.to_bytes(2) if size < 1 << 16 else b"\xff%b" % size.to_bytes(8))
        return b"\x82" + head + bytes(4) + data

    def until(self, mark: bytes) -> None:
        self.sock.settimeout(PATIENCE_S)
        got = b""
        while mark not in got:
            data = self.sock.recv(1 << 16)
            if not data:
                raise ConnectionError(f"closed by the server, after {got[-300:]!r}")
            got += data

    def count(self, mark: bytes, expected: int, blocks: Iterable[bytes], sender: socket.socket) -> float:
        """Send blocks from ``sender`` and read until ``mark`` has come ``expected`` times; return the seconds taken."""
        self.sock.setblocking(False)
        sender.setblocking(False)
        coming, out, seen, tail = iter(blocks), memoryview(b""), 0, b""
        began = time.perf_counter()
        while seen < expected:
            readable, writable, _ = select.select([self.sock], [sender], [], PATIENCE_S)
            if writable:
                out = out or memoryview(next(coming, b""))
                if out:
                    out = out[sender.send(out):]
            if readable:
                data = tail + self.sock.recv(1 << 20)
                seen += data.count(mark)
                tail = data[1 - len(mark):]
        return time.perf_counter() - began
