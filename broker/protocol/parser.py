"""Client protocol, bytes to values, without I/O, clock or policy.

A ``Parser`` is fed the bytes of each read and returns all complete operations in them. Messages, nearly everything on a
busy connection, are plain ``Msg`` tuples; the others are small objects, whose positions are in ``marks``, so that routing
need not inspect each item.

    verb      arguments                       a wrong count or number
    PUB       subject [reply] size            closes the connection, with nothing sent
    HPUB      subject [reply] hlen size       the same; also if headers were not negotiated
    SUB       subject [queue] sid             the same
    UNSUB     sid [max]                       the same, but a max that is not a number means "now"
    CONNECT   JSON, decoded by the connection
    PING PONG ignored up to the newline
    INFO +OK  ignored
    -ERR      closes the connection

Verbs are case-insensitive, blanks and tabs separate arguments, a line ends with LF or CRLF; a payload must be followed by
exactly CRLF. Errors are found as early as possible: an unknown verb at its first wrong character, a control line or
payload that is too long before it has arrived.

Source: nats-server, server/parser.go (parse), server/client.go (processPub, processHeaderPub, parseSub, processUnsub).
"""

from __future__ import annotations

from typing import Final

from broker.protocol.run import Msg

__all__ = ["MAX_CONTROL_LINE", "MAX_PAYLOAD", "Connect", "Err", "Op", "Parser", "Ping", "Pong", "ProtocolError",
           "Sub", "Unsub"]

MAX_CONTROL_LINE: Final = 4096
MAX_PAYLOAD: Final = 1024 * 1024

_SIZES_KEPT: Final = 4096
_VERB_MAX: Final = 7

_BARE = (b"PING", b"PONG", b"+OK")
"""Verbs without arguments; the rest of the line is ignored."""

_ACK = b"PUB $JS.ACK."
_ACK_TAILS = {b" 0\r\n\r\n": b"", b"  0\r\n\r\n": b"", b" 4\r\n+ACK\r\n": b"+ACK", b"  4\r\n+ACK\r\n": b"+ACK",
              b" 4\r\n-NAK\r\n": b"-NAK", b"  4\r\n-NAK\r\n": b"-NAK"}
"""How clients end a plain ack or negative ack: after the subject an empty reply or none, the size, the payload."""

_LARGE_BYTES = 16 * 1024
"""A payload as large that comes in several reads is copied once."""

_LINE_FEED = (b"\n", b"")
"""The second byte of a line end, if it is there yet."""

_CROWD_BYTES = 1024
"""The fast path for acks does not pay for fewer bytes."""


class _Value:
    """Equality and display by slots, for ops that tests compare."""

    __slots__: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __hash__(self) -> int:
        return hash((type(self), *(getattr(self, name) for name in self.__slots__)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__slots__)})"


class Connect(_Value):
    """``arg`` is the JSON text as received."""

    __slots__ = ("arg",)

    def __init__(self, arg: bytes) -> None:
        self.arg = arg


class Sub(_Value):
    """``queue`` is b"" for a plain subscription."""

    __slots__ = ("queue", "sid", "subject")

    def __init__(self, subject: bytes, queue: bytes, sid: bytes) -> None:
        self.subject = subject
        self.queue = queue
        self.sid = sid


class Unsub(_Value):
    """``max`` is -1 if there is none."""

    __slots__ = ("max", "sid")

    def __init__(self, sid: bytes, max: int) -> None:
        self.sid = sid
        self.max = max


class Ping(_Value):
    __slots__ = ()


class Pong(_Value):
    __slots__ = ()


class Err(_Value):
    """The client reports an error; the server closes the connection."""

    __slots__ = ("arg",)

    def __init__(self, arg: bytes) -> None:
        self.arg = arg


Op = Msg | Connect | Sub | Unsub | Ping | Pong | Err


class ProtocolError(Exception):
    """The connection must be closed.

    ``text`` is sent as -ERR first unless it is None; ``reason`` is the close reason as monitoring names it; ``ops``
    (with ``Parser.marks``) were complete before the error and must still be served. ``too_large``: the message that is larger
    than allowed, as far as it had come, and its size.
    """

    def __init__(self, reason: str, text: str | None, ops: list[Op] | None = None) -> None:
        super().__init__(text or reason)
        self.reason = reason
        self.text = text
        self.ops: list[Op] = ops if ops is not None else []
        self.too_large: tuple[Msg, int] | None = None


def _unknown() -> ProtocolError:
    return ProtocolError("Protocol Violation", "Unknown Protocol Operation")


def _silent() -> ProtocolError:
    return ProtocolError("Protocol Violation", None)


def _too_large(msg: Msg, size: int) -> ProtocolError:
    error = ProtocolError("Maximum Message Payload Exceeded", "Maximum Payload Violation")
    error.too_large = msg, size
    return error


_TRACE: Final = b"Nats-Trace-"

# Whether a blank or tab must follow the verb immediately. No verb is a prefix of another.
_VERBS: Final = ((b"PUB", True), (b"HPUB", True), (b"SUB", True), (b"UNSUB", True), (b"PING", False), (b"PONG", False),
                 (b"CONNECT", False), (b"INFO", True), (b"+OK", False), (b"-ERR", True))
_P: Final = ord("P")
_H: Final = ord("H")
_BLANK: Final = (b" ", b"\t")
_PING: Final = Ping()
_PONG: Final = Pong()


def _verb(line: bytes) -> bytes:
    """The verb at the start of a complete line, in capitals."""
    head = line[:_VERB_MAX].upper()
    for verb, blank in _VERBS:
        if head.startswith(verb):
            if blank and line[len(verb):len(verb) + 1] not in _BLANK:
                break
            return verb
    raise _unknown()


def _too_long(line: bytes, limit: int) -> bool:
    """Whether a complete line is longer than a control line may be; what follows PING and the like does not count."""
    verb = _verb(line)
    return verb not in _BARE and len(_argument(verb, line)) > limit


def _miscounted(line: bytes) -> ProtocolError:
    """The error for a PUB or HPUB with a wrong number of arguments; without a blank after it, it is not a verb at all."""
    _verb(line)
    return _silent()


def _ack_crowd(data: bytes, limit: int) -> tuple[list[Op], int, int]:
    """The acks at the start of ``data``, if there are many of one form and nothing in between.

    The client of a busy consumer sends nothing else, and splitting them all at once costs a third of parsing line by line.
    Counting proves that each part is exactly ``PUB <subject><tail>``: there are as many heads and tails as parts, and no
    further blanks, tabs or line ends.

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


def _argument(verb: bytes, line: bytes) -> bytes:
    """The line without its verb, the blanks after that, and the line end, LF or CRLF."""
    return line[len(verb):-1].lstrip(b" \t").removesuffix(b"\r")


def _number(digits: bytes) -> int:
    """A size as nats-server reads it: 1 to 9 digits and nothing else; otherwise -1."""
    return int(digits) if digits.isdigit() and len(digits) < 10 else -1


class Parser:
    """One connection's parser.

    Attributes that describe the batch last returned:
        marks: indexes of the items that are not a Msg.
        payload_bytes: sum of the bodies' lengths.
        odd_replies: whether a reply may be one that clients must not use; if not, none is.
        traced: whether a message may ask to be traced; if not, none does.
        held: whether more may be waiting behind a CONNECT, which ends a batch because it decides what is allowed after it:
            serve the batch, then feed b"".
        begun: the subject of the message whose line ended the input or the connection; None: no message had begun.
    The caller sets ``headers`` once HPUB is negotiated, and may ``limit`` it anew.
    """

    __slots__ = ("_chunks", "_have", "_large", "_line", "_need", "_rest", "_sizes", "_values", "begun", "headers", "held",
                 "marks", "max_control_line", "max_payload", "odd_replies", "payload_bytes", "traced")

    def __init__(self, max_control_line: int = MAX_CONTROL_LINE, max_payload: int = MAX_PAYLOAD) -> None:
        self.max_control_line = max_control_line
        self.max_payload = max_payload
        self.headers = False
        self.held = False
        self.begun: bytes | None = None
        self.marks: list[int] = []
        self.payload_bytes = 0
        self.odd_replies = False
        self.traced = False
        self._rest = b""
        # An incomplete message: its chunks, joined once it is complete. Of a large one without its line, which is in _values.
        self._chunks: list[bytes] = []
        self._have = 0
        self._need = 0
        self._large = False
        # The last message's control line and its values: publishers repeat themselves.
        self._line: bytes = b"\n\n"
        self._values: tuple[bytes, bytes, int, int] = (b"", b"", 0, 0)
        self._sizes: dict[bytes, int] = {}

    def limit(self, max_control_line: int, max_payload: int) -> None:
        """Other limits from the next operation on."""
        self.max_control_line = max_control_line
        self.max_payload = max_payload
        # A line like the last one would not be checked.
        self._line = b"\n\n"

    @property
    def idle(self) -> bool:
        """Whether the next byte begins a new operation."""
        return not self._rest and not self._need

    @property
    def missing(self) -> int:
        """Bytes that complete the message that has begun; 0: none has."""
        return self._need - self._have if self._need else 0

    def feed(self, data: bytes) -> list[Op]:
        """Take the next bytes; return all operations that are now complete. Raises: ProtocolError."""
        large: bytes | None = None
        pos = 0
        if self._need:
            self._chunks.append(data)
            self._have += len(data)
            if self._have < self._need:
                self.marks = []
                self.payload_bytes = 0
                self.odd_replies = self.traced = False
                return []
            if self._large:
                large, data, pos = self._cut_large()
            else:
                data = b"".join(self._chunks)
            self._chunks = []
            self._need = 0
        elif self._rest:
            data = self._rest + data
            self._rest = b""

        ops: list[Op] = []
        append = ops.append
        find = data.find
        sizes = self._sizes
        last = self._line
        subject, reply, hlen, size = self._values
        marks: list[int] = []
        payload_bytes = 0
        odd = bool(reply) and reply[:2] != b"_I"
        with_headers = hlen > 0
        limit = self.max_control_line
        width = len(last)
        repeats = False
        end_of_data = len(data)
        self.held = False
        self.begun = None
        if large is None and end_of_data >= _CROWD_BYTES and data.startswith(_ACK) and self.max_payload >= 4:
            crowd, pos, payload_bytes = _ack_crowd(data, limit)
            ops += crowd
        try:
            if large is not None:
                if data[pos] != 13 or data[pos + 1:pos + 2] not in _LINE_FEED:
                    raise _unknown()
                if pos + 1 == end_of_data:
                    self._chunks, self._have, self._need = [large, b"\r"], size + 1, size + 2
                else:
                    append((subject, reply, hlen, large))
                    payload_bytes = size
                    repeats = True
                pos += 2
            while pos < end_of_data:
                # A publisher that repeated its line once is likely to do so again: then no newline is searched for.
                if repeats:
                    start = pos + width
                    repeats = data[pos:start] == last
                if not repeats:
                    eol = find(b"\n", pos)
                    if eol < 0:
                        self._rest = self._unfinished(data[pos:])
                        break
                    start = eol + 1
                    line = data[pos:start]
                    repeats = line == last
                if not repeats:
                    if eol - pos > limit and _too_long(line, limit):
                        raise ProtocolError("Maximum Control Line Exceeded", "maximum control line exceeded")
                    parts = line.split()
                    verb = parts[0] if parts else b""
                    # Blanks before a verb are not allowed, and split() would hide them.
                    if not ((verb == b"PUB" and line[0] == _P) or (verb == b"HPUB" and line[0] == _H)):
                        verb = _verb(line)
                        if verb != b"PUB" and verb != b"HPUB":
                            pos = start
                            op = self._control(verb, _argument(verb, line))
                            if op is not None:
                                marks.append(len(ops))
                                append(op)
                                if type(op) is Connect:
                                    self._rest = data[pos:]
                                    self.held = pos < end_of_data
                                    break
                            continue
                    if verb == b"PUB":
                        if len(parts) == 4:
                            _, subject, reply, digits = parts
                            # Inboxes are not reserved replies; another second letter needs a closer look.
                            if reply[:2] != b"_I":
                                odd = True
                        elif len(parts) == 3:
                            _, subject, digits = parts
                            reply = b""
                        else:
                            raise _miscounted(line)
                        hlen = 0
                    else:
                        if not self.headers:
                            raise _silent()
                        if len(parts) == 5:
                            _, subject, reply, header_digits, digits = parts
                            if reply[:2] != b"_I":
                                odd = True
                        elif len(parts) == 4:
                            _, subject, header_digits, digits = parts
                            reply = b""
                        else:
                            raise _miscounted(line)
                        hlen = _number(header_digits)
                        with_headers = True
                    try:
                        size = sizes[digits]
                    except KeyError:
                        size = self._size(digits)
                    if hlen and not 0 <= hlen <= size:
                        raise _silent()
                    if size > self.max_payload:
                        raise _too_large((subject, reply, hlen, data[start:start + hlen]), size)
                    last = line
                    width = start - pos
                end = start + size
                if end + 2 > end_of_data:
                    self.begun = subject
                    if end < end_of_data and data[end] != 13:
                        raise _unknown()
                    self._large = size >= _LARGE_BYTES and not hlen
                    if self._large:
                        pos = start
                    self._chunks = [data[pos:]]
                    self._have = end_of_data - pos
                    # One byte after the payload is enough to refuse it.
                    self._need = end - pos + (1 if end >= end_of_data else 2)
                    break
                if data[end] != 13 or data[end + 1] != 10:
                    self.begun = subject
                    raise _unknown()
                append((subject, reply, hlen, data[start:end]))
                payload_bytes += size
                pos = end + 2
        except ProtocolError as error:
            error.ops = ops
            raise
        finally:
            self._line = last
            self._values = (subject, reply, hlen, size)
            self.marks = marks
            self.payload_bytes = payload_bytes
            self.odd_replies = odd
            self.traced = with_headers and find(_TRACE) >= 0
        return ops

    def _cut_large(self) -> tuple[bytes, bytes, int]:
        """The payload of a large message, copied once; the bytes it ended in, and where in them."""
        data, size = self._chunks[-1], self._values[3]
        end = len(data) - (self._have - size)
        if end < 0:  # a chunk before ended with half of the line end
            data, end = b"".join(self._chunks), size
            return data[:end], data, end
        return b"".join([*self._chunks[:-1], data[:end]]), data, end

    def _size(self, digits: bytes) -> int:
        """Parse a payload size and remember it: few sizes occur, and a lookup is cheaper than checking digits."""
        size = _number(digits)
        if size < 0:
            raise _silent()
        if len(self._sizes) >= _SIZES_KEPT:
            self._sizes.clear()
        self._sizes[digits] = size
        return size

    def _control(self, verb: bytes, argument: bytes) -> Op | None:
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
            raise _silent()
        if verb == b"UNSUB":
            parts = argument.split()
            if len(parts) == 1:
                return Unsub(parts[0], -1)
            if len(parts) == 2:
                return Unsub(parts[0], _number(parts[1]))
            raise _silent()
        if verb == b"CONNECT":
            return Connect(argument)
        if verb == b"-ERR":
            return Err(argument)
        return None

    def _unfinished(self, line: bytes) -> bytes:
        """Check an incomplete line. Returns: the part of it to keep."""
        head = line[:_VERB_MAX].upper()
        for verb, blank in _VERBS:
            if verb.startswith(head):
                return line
            if head.startswith(verb):
                if verb in _BARE:
                    return verb
                if blank and line[len(verb):len(verb) + 1] not in _BLANK:
                    break
                argument = line[len(verb):].lstrip(b" \t")
                if len(argument.rstrip(b"\r")) > self.max_control_line:
                    raise ProtocolError("Maximum Control Line Exceeded", "maximum control line exceeded")
                # Blanks before an argument are dropped, or an endless line of them would be kept.
                return line if argument else verb + line[len(verb):len(verb) + 1]
        raise _unknown()
