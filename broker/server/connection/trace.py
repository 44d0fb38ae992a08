"""The protocol lines of one connection in the log, for ``-V``.

The connection passes received operations to this observer, and the outbound buffer passes sent bytes, so it works with
any transport. The format is nats-server's: people and tests search for ``[SUB foo 1]`` and the like.

    127.0.0.1:5000 - cid:5 - "v1.2:python3:name" - <<- [PUB foo 5]          from the client
    127.0.0.1:5000 - cid:5 - "v1.2:python3:name" - <<- MSG_PAYLOAD: ["hello"]
    127.0.0.1:5000 - cid:5 - "v1.2:python3:name" - ->> [MSG foo 1 5]        to the client

Passwords, tokens and keys in CONNECT are left out. Source: nats-server, server/client.go (traceInOp, traceMsg).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

from broker.config.settings import LoggingSettings
from broker.protocol.operations import Connect, Err, Ping, Sub, Unsub
from broker.server.connection.connect_options import shown_connect
from broker.server.connection.outbound import Outbound

__all__ = ["Trace", "TracedOutbound"]

log = logging.getLogger(__name__)

_TRACE = 5
"""Log level below DEBUG (broker.runtime.logging)."""


class Labelled(Protocol):
    """The connection; ``label`` is the prefix of its log lines."""

    label: str


class Trace:
    """The trace of one connection. It shows ``max_traced_msg_len`` bytes of a payload at most; 0: all bytes."""

    def __init__(self, client: Labelled, settings: LoggingSettings) -> None:
        self._client = client
        self._payload_max = settings.max_traced_msg_len
        self._headers_only = settings.trace_headers

    def received(self, ops: Sequence[Any]) -> None:
        """Log operations from the client."""
        for op in ops:
            if type(op) is tuple:
                subject, reply, hlen, body = op
                words = [b"HPUB" if hlen else b"PUB", subject, reply, b"%d" % hlen if hlen else b"", b"%d" % len(body)]
                self._line("<<-", b" ".join(word for word in words if word))
                self._payload("<<-", body, hlen)
            elif type(op) is Connect:
                self._line("<<-", b"CONNECT " + shown_connect(op.arg))
            elif type(op) is Sub:
                self._line("<<-", b" ".join(word for word in (b"SUB", op.subject, op.queue, op.sid) if word))
            elif type(op) is Unsub:
                self._line("<<-", b"UNSUB " + op.sid + (b" %d" % op.max if op.max >= 0 else b""))
            elif type(op) is Err:
                self._line("<<-", b"-ERR " + op.arg)
            else:
                self._line("<<-", b"PING" if type(op) is Ping else b"PONG")

    def sent(self, buffers: Sequence[bytes]) -> None:
        """Log bytes sent to the client: whole lines, each followed by its payload if there is one."""
        data = b"".join(buffers)
        at = 0
        while (end := data.find(b"\r\n", at)) >= 0:
            line = data[at:end]
            at = end + 2
            # INFO is not logged: it is sent before the client is known, and /varz shows the same.
            if not line.startswith(b"INFO"):
                self._line("->>", line)
            if line.startswith((b"MSG ", b"HMSG ")):
                words = line.split(b" ")
                size = int(words[-1])
                self._payload("->>", data[at:at + size], int(words[-2]) if line[:1] == b"H" else 0)
                at += size + 2

    def _payload(self, way: str, body: bytes, hlen: int) -> None:
        if self._headers_only:
            # Leave out the two line ends after the headers.
            body = body[:max(hlen - 4, 0)]
        if not body:
            return
        limit = self._payload_max
        shown = body[:limit] if 0 < limit < len(body) else body
        rest = "..." if len(shown) < len(body) else ""
        self._log(f'{way} MSG_PAYLOAD: ["{_printable(shown)}{rest}"]')

    def _line(self, way: str, line: bytes) -> None:
        self._log(f"{way} [{_printable(line)}]")

    def _log(self, text: str) -> None:
        log.log(_TRACE, "%s - %s", self._client.label, text)


class TracedOutbound(Outbound):
    """An outbound buffer that also passes its bytes to ``trace``, which must be set at once; None: no tracing."""

    __slots__ = ("trace",)

    trace: Trace | None

    def write(self, buffers: list[bytes], size: int) -> None:
        if self.trace is not None:
            self.trace.sent(buffers)
        super().write(buffers, size)


def _printable(data: bytes) -> str:
    """Return ``data`` as one printable line, so that a client cannot forge log lines."""
    text = data.decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
