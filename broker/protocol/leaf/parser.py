r"""The protocol of leaf nodes, bytes to values, without I/O, clock or policy.

    LMSG <subject> [<reply>] <size>                        a message for plain subscriptions
    LMSG <subject> + <reply> <queue> [<queue>…] <size>     also for one member of each named queue group
    LMSG <subject> | <queue> [<queue>…] <size>             the same without a reply
    HMSG                                                   like LMSG, with the size of the headers before the size
    LS+ <subject> [<queue> <weight>]                       the sender has such subscriptions
    LS- <subject> [<queue>]                                the sender has them no more
    CONNECT, INFO                                          JSON, decoded by the connection
    PING PONG +OK -ERR                                     as in the client protocol

Messages are plain ``Msg`` tuples. The queue groups of a message are kept in its reply as they were sent, ``+ reply
queue…`` or ``| queue…``: no reply has a blank, so ``split_route`` can tell both apart. The parser flags each read that
may contain one (``reserved_replies``), and reads without one cost nothing.

Source: nats-server, server/parser.go (parse), server/leafnode.go (processLeafSub, processLeafMsgArgs,
processLeafHeaderMsgArgs).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from broker.protocol.framing import Framing, MessageVerbs, Verb, parse_size, silent_error
from broker.protocol.operations import Connect, Err, Ping, Pong
from broker.protocol.run import Msg

__all__ = ["MAX_LINE", "Info", "Interest", "LeafOp", "LeafParser", "split_route"]

MAX_LINE: Final = 1024 * 1024
"""Bound on one line. nats-server has none for servers; interest and INFO lines of real servers stay far below it."""

_CLIENT_VERBS: Final = (b"PUB", b"HPUB", b"SUB", b"UNSUB", b"RS+", b"RS-", b"RMSG", b"A+", b"A-")
"""Verbs of clients and routes, which close a leaf connection without an answer."""


class Info(NamedTuple):
    """An INFO; ``arg`` is the JSON text as received."""

    arg: bytes


class Interest(NamedTuple):
    """The number of subscriptions that the sender has now: ``weight``, in a queue group if ``queue`` is not b""."""

    subject: bytes
    queue: bytes
    weight: int


LeafOp = Msg | Connect | Info | Interest | Ping | Pong | Err

_PING: Final = Ping()
_PONG: Final = Pong()


class LeafParser(Framing):
    """The parser of one leaf connection. The caller sets ``headers`` once headers are negotiated."""

    __slots__ = ()

    verbs = (Verb(b"LMSG"), Verb(b"HMSG"), Verb(b"LS+"), Verb(b"LS-"), Verb(b"PING", blank=False, bare=True),
             Verb(b"PONG", blank=False, bare=True), Verb(b"CONNECT", blank=False), Verb(b"INFO"),
             Verb(b"+OK", blank=False, bare=True), Verb(b"-ERR"), *(Verb(verb) for verb in _CLIENT_VERBS))
    message_verbs = MessageVerbs(b"LMSG", ord("L"), b"HMSG", ord("H"))
    last_op = Connect

    def _parse_line(self, verb: bytes, argument: bytes) -> LeafOp | None:
        if verb == b"LS+" or verb == b"LS-":
            parts = argument.split()
            if len(parts) == 1:
                return Interest(parts[0], b"", int(verb == b"LS+"))
            if len(parts) == 3 and verb == b"LS+" and (weight := parse_size(parts[2])) > 0:
                return Interest(parts[0], parts[1], weight)
            if len(parts) == 2 and verb == b"LS-":
                return Interest(parts[0], parts[1], 0)
            raise silent_error()
        if verb == b"PING":
            return _PING
        if verb == b"PONG":
            return _PONG
        if verb == b"INFO":
            return Info(argument)
        if verb == b"CONNECT":
            return Connect(argument)
        if verb == b"-ERR":
            return Err(argument)
        if verb in _CLIENT_VERBS:
            raise silent_error()
        return None

    def _routed_reply(self, parts: list[bytes], numbers: int, line: bytes) -> bytes:
        route = parts[2:-numbers]
        if len(route) < 2 or route[0] not in (b"+", b"|") or (route[0] == b"+" and len(route) < 3):
            raise self._miscounted(line)
        return b" ".join(route)


def split_route(reply: bytes) -> tuple[bytes, tuple[bytes, ...]]:
    """Split the reply of a parsed message. Returns: the reply subject, and the names of queue groups."""
    if b" " not in reply:
        return reply, ()
    sign, *words = reply.split(b" ")
    return (words[0], tuple(words[1:])) if sign == b"+" else (b"", tuple(words))
