"""A client connection that logs its protocol lines, for ``-V``.

A class of its own, chosen when the server starts, so that connections pay nothing for tracing that is off. The form is
nats-server's, which people and tests search for ``[SUB foo 1]`` and the like:

    127.0.0.1:5000 - cid:5 - "v1.2:python3:name" - <<- [PUB foo 5]          from the client
    127.0.0.1:5000 - cid:5 - "v1.2:python3:name" - <<- MSG_PAYLOAD: ["hello"]
    127.0.0.1:5000 - cid:5 - "v1.2:python3:name" - ->> [MSG foo 1 5]        to it

Passwords, tokens and keys in CONNECT are left out. Source: nats-server, server/client.go (traceInOp, traceMsg).
"""

from __future__ import annotations

import logging
from typing import Any

from broker.protocol.parser import Connect, Err, Op, Ping, Sub, Unsub
from broker.server.connection.connect_options import shown_connect
from broker.server.connection.connection import Client

__all__ = ["TracedClient"]

log = logging.getLogger(__name__)

_TRACE = 5
"""Below DEBUG (broker.runtime.logging)."""


class TracedClient(Client):
    """See the module."""

    def _serve(self, ops: list[Op], now_ns: int) -> None:
        for op in ops:
            self._trace_op(op)
        super()._serve(ops, now_ns)

    def _proto(self, data: bytes) -> None:
        # INFO is not logged: it is sent before the client is known, and /varz shows the same.
        if not data.startswith(b"INFO"):
            for line in data.split(b"\r\n"):
                if line:
                    self._trace("->>", line)
        super()._proto(data)

    def send(self, buffers: list[bytes], size: int, count: int, body_bytes: int) -> None:
        self._trace_messages(b"".join(buffers))
        super().send(buffers, size, count, body_bytes)

    def _trace_op(self, op: Any) -> None:
        if type(op) is tuple:
            subject, reply, hlen, body = op
            words = [b"HPUB" if hlen else b"PUB", subject, reply, b"%d" % hlen if hlen else b"", b"%d" % len(body)]
            self._trace("<<-", b" ".join(word for word in words if word))
            self._trace_payload("<<-", body)
        elif type(op) is Connect:
            self._trace("<<-", b"CONNECT " + shown_connect(op.arg))
        elif type(op) is Sub:
            self._trace("<<-", b" ".join(word for word in (b"SUB", op.subject, op.queue, op.sid) if word))
        elif type(op) is Unsub:
            self._trace("<<-", b"UNSUB " + op.sid + (b" %d" % op.max if op.max >= 0 else b""))
        elif type(op) is Err:
            self._trace("<<-", b"-ERR " + op.arg)
        else:
            self._trace("<<-", b"PING" if type(op) is Ping else b"PONG")

    def _trace_messages(self, data: bytes) -> None:
        """MSG and HMSG lines, each followed by a payload whose size is the line's last word."""
        at = 0
        while (end := data.find(b"\r\n", at)) >= 0:
            line = data[at:end]
            size = int(line.rpartition(b" ")[2])
            self._trace("->>", line)
            self._trace_payload("->>", data[end + 2:end + 2 + size])
            at = end + 2 + size + 2

    def _trace_payload(self, way: str, body: bytes) -> None:
        if not body:
            return
        limit = self.server.settings.logging.max_traced_msg_len
        shown = body[:limit] if 0 < limit < len(body) else body
        rest = "..." if len(shown) < len(body) else ""
        self._log(f'{way} MSG_PAYLOAD: ["{_printable(shown)}{rest}"]')

    def _trace(self, way: str, line: bytes) -> None:
        self._log(f"{way} [{_printable(line)}]")

    def _log(self, text: str) -> None:
        log.log(_TRACE, "%s - %s", self.label, text)


def _printable(data: bytes) -> str:
    """One line, whatever the bytes: a client must not be able to write log lines of its own."""
    text = data.decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
