"""The client protocol, bytes to values, without I/O, clock or policy.

A ``Parser`` is fed the bytes of each read and returns all complete operations in them. Messages, nearly everything on
a busy connection, are plain ``Msg`` tuples. The other operations are small objects, whose positions are in ``marks``,
so routing need not inspect each item.

    verb      arguments                       a wrong count or number
    PUB       subject [reply] size            closes the connection, with nothing sent
    HPUB      subject [reply] hlen size       closes it, too; also if headers were not negotiated
    SUB       subject [queue] sid             closes it, too
    UNSUB     sid [max]                       closes it, too; but a max that is not a number means "now"
    CONNECT   JSON, decoded by the connection
    PING PONG ignored up to the newline
    INFO +OK  ignored
    -ERR      closes the connection

Owns: the client's verbs. Does not own: lines and payloads (framing), the values of operations (operations).

Source: nats-server, server/parser.go (parse), server/client.go (parseSub, processUnsub).
"""

from __future__ import annotations

from typing import Final

from broker.protocol.framing import Framing, MessageVerbs, Verb, parse_size, silent_error
from broker.protocol.operations import Connect, Err, Ping, Pong, Sub, Unsub
from broker.protocol.run import Msg

__all__ = ["Op", "Parser"]

_ACK = b"PUB $JS.ACK."
_ACK_TAILS = {b" 0\r\n\r\n": b"", b"  0\r\n\r\n": b"", b" 4\r\n+ACK\r\n": b"+ACK", b"  4\r\n+ACK\r\n": b"+ACK",
              b" 4\r\n-NAK\r\n": b"-NAK", b"  4\r\n-NAK\r\n": b"-NAK"}
"""Forms in which clients end a plain ack or negative ack: an empty reply or none, the size, the payload. Each maps to
its payload."""


Op = Msg | Connect | Sub | Unsub | Ping | Pong | Err

_PING: Final = Ping()
_PONG: Final = Pong()


class Parser(Framing):
    """The parser of one client. The caller sets ``headers`` once HPUB is negotiated."""

    __slots__ = ()

    verbs = (Verb(b"PUB"), Verb(b"HPUB"), Verb(b"SUB"), Verb(b"UNSUB"), Verb(b"PING", blank=False, bare=True),
             Verb(b"PONG", blank=False, bare=True), Verb(b"CONNECT", blank=False), Verb(b"INFO"),
             Verb(b"+OK", blank=False, bare=True), Verb(b"-ERR"))
    message_verbs = MessageVerbs(b"PUB", ord("P"), b"HPUB", ord("H"))
    last_op = Connect

    def _parse_line(self, verb: bytes, argument: bytes) -> Op | None:
        if verb == b"PING":
            return _PING
        if verb == b"PONG":
            return _PONG
        if verb == b"SUB":
            parts = argument.split()
            if len(parts) == 2:
                return Sub(parts[0], b"", parts[1])
            if len(parts) == 3:
                return Sub(*parts)
            raise silent_error()
        if verb == b"UNSUB":
            parts = argument.split()
            if len(parts) == 1:
                return Unsub(parts[0], -1)
            if len(parts) == 2:
                return Unsub(parts[0], parse_size(parts[1]))
            raise silent_error()
        if verb == b"CONNECT":
            return Connect(argument)
        if verb == b"-ERR":
            return Err(argument)
        return None

    def _parse_words(self, parts: list[bytes]) -> Op | None:
        verb, count = parts[0], len(parts)
        if verb == b"SUB":
            if count == 3:
                return Sub(parts[1], b"", parts[2])
            if count == 4:
                return Sub(parts[1], parts[2], parts[3])
        elif verb == b"UNSUB" and count == 2:
            return Unsub(parts[1], -1)
        return None

    def _parse_burst(self, data: bytes) -> tuple[list[Msg], int, int]:
        if not data.startswith(_ACK) or self.max_payload < 4:
            return [], 0, 0
        return _ack_burst(data, self.max_control_line)


def _ack_burst(data: bytes, limit: int) -> tuple[list[Msg], int, int]:
    """Parse the acks at the start of ``data``, if there are many of one form and nothing between them.

    The client of a busy consumer sends nothing else, and splitting them all at once costs a third of parsing line by
    line. Counting proves that each part is exactly ``PUB <subject><tail>``: there are as many heads and tails as parts,
    and no further blanks, tabs or line ends.

    Returns: the messages, their end, and the bytes of their bodies; no messages if ``data`` is different.
    """
    first = data.find(b" ", 4)
    end = data.find(b"\r\n", data.find(b"\n", first) + 1) + 2
    tail = data[first:end]
    body = _ACK_TAILS.get(tail)
    if body is None:
        return [], 0, 0
    end = data.rfind(tail) + len(tail)
    part = data[:end]
    count = part.count(tail)
    if (part.count(_ACK) != count or part.count(b"\n") != 2 * count or part.count(b"\r") != 2 * count
            or part.count(b" ") != count * (1 + tail.count(b" ")) or b"\t" in part):
        return [], 0, 0
    subjects = part[4:-len(tail)].split(tail + b"PUB ")
    if len(subjects) != count or max(map(len, subjects)) > limit - 16:
        return [], 0, 0
    return [(subject, b"", 0, body) for subject in subjects], end, count * len(body)
