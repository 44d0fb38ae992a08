r"""Lines and payloads: bytes to values, for every protocol whose messages are a line and a payload.

    <verb> <subject> [<reply>] <size>\r\n<payload>\r\n
    <verb> <subject> [<reply>] <header size> <size>\r\n<headers><payload>\r\n
    <verb> [<arguments>]\r\n                                               anything else

A protocol's parser is a subclass that names its verbs and parses the lines that are no messages (``parser`` for clients).
Messages are parsed here, in one loop for all protocols, since a call for each message would cost a tenth of parsing it.

Verbs are case-insensitive, blanks and tabs separate arguments, a line ends with LF or CRLF; a payload must be followed by
exactly CRLF. Errors are found as early as possible: an unknown verb at its first wrong character, a control line or
payload that is too long before it has arrived.

Source: nats-server, server/parser.go (parse), server/client.go (processPub, processHeaderPub).
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, NamedTuple

from broker.protocol.run import Msg

__all__ = ["MAX_CONTROL_LINE", "MAX_PAYLOAD", "Framing", "MessageVerbs", "ProtocolError", "Verb", "number", "silent"]

MAX_CONTROL_LINE: Final = 4096
MAX_PAYLOAD: Final = 1024 * 1024

_SIZES_KEPT: Final = 4096

_LARGE_BYTES = 16 * 1024
"""A payload as large that comes in several reads is copied once."""

_LINE_FEED = (b"\n", b"")
"""The second byte of a line end, if it is there yet."""

_BURST_BYTES: Final = 1024
"""The fast path for bursts does not pay for fewer bytes."""

_TRACE: Final = b"Nats-Trace-"
_BLANK: Final = (b" ", b"\t")


class Verb(NamedTuple):
    """``blank``: a blank or tab must follow immediately. ``bare``: the rest of the line is ignored."""

    name: bytes
    blank: bool = True
    bare: bool = False


class MessageVerbs(NamedTuple):
    """The verbs of messages without headers and with them, each followed by its first byte."""

    plain: bytes
    plain_first: int
    with_headers: bytes
    with_headers_first: int


class ProtocolError(Exception):
    """The connection must be closed.

    ``text`` is sent as -ERR first unless it is None; ``reason`` is the close reason as monitoring names it; ``ops``
    (with ``Framing.marks``) were complete before the error and must still be served. ``too_large``: the part that has arrived
    of a message that is larger than allowed, and its size.
    """

    def __init__(self, reason: str, text: str | None, ops: list[Any] | None = None) -> None:
        super().__init__(text or reason)
        self.reason = reason
        self.text = text
        self.ops: list[Any] = ops if ops is not None else []
        self.too_large: tuple[Msg, int] | None = None


def _unknown() -> ProtocolError:
    return ProtocolError("Protocol Violation", "Unknown Protocol Operation")


def silent() -> ProtocolError:
    """The error that closes the connection with nothing sent."""
    return ProtocolError("Protocol Violation", None)


def _too_large(msg: Msg, size: int) -> ProtocolError:
    error = ProtocolError("Maximum Message Payload Exceeded", "Maximum Payload Violation")
    error.too_large = msg, size
    return error


def number(digits: bytes) -> int:
    """A size as nats-server reads it: 1 to 9 digits and nothing else; otherwise -1."""
    return int(digits) if digits.isdigit() and len(digits) < 10 else -1


def _argument(verb: bytes, line: bytes) -> bytes:
    """The line without its verb, the blanks after that, and the line end, LF or CRLF."""
    return line[len(verb):-1].lstrip(b" \t").removesuffix(b"\r")


class Framing:
    """One connection's parser, but for the verbs of its protocol.

    A subclass sets ``verbs``, none of which is a prefix of another, ``message_verbs``, and ``last_op``: the operation that
    ends a batch, because it decides what is allowed after it.

    Attributes that describe the batch last returned:
        marks: indexes of the items that are not a Msg.
        payload_bytes: sum of the bodies' lengths.
        reserved_replies: whether a reply may be one that only servers may use; if not, none is.
        traced: whether a message may ask to be traced; if not, none does.
        held: whether more may be waiting behind an operation that ended the batch: serve the batch, then feed b"".
        begun: the subject of the message whose line ended the input or the connection; None: no message had begun.
    The caller sets ``headers`` once HPUB is negotiated, and may ``limit`` it anew.
    """

    __slots__ = ("_chunks", "_have", "_large", "_line", "_need", "_rest", "_sizes", "_values", "begun", "headers", "held",
                 "marks", "max_control_line", "max_payload", "payload_bytes", "reserved_replies", "traced")

    verbs: ClassVar[tuple[Verb, ...]]
    message_verbs: ClassVar[MessageVerbs]
    last_op: ClassVar[type]

    def __init__(self, max_control_line: int = MAX_CONTROL_LINE, max_payload: int = MAX_PAYLOAD) -> None:
        self.max_control_line = max_control_line
        self.max_payload = max_payload
        self.headers = False
        self.held = False
        self.begun: bytes | None = None
        self.marks: list[int] = []
        self.payload_bytes = 0
        self.reserved_replies = False
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

    def feed(self, data: bytes) -> list[Any]:
        """Take the next bytes; return all operations that are now complete. Raises: ProtocolError."""
        large: bytes | None = None
        pos = 0
        if self._need:
            self._chunks.append(data)
            self._have += len(data)
            if self._have < self._need:
                self.marks = []
                self.payload_bytes = 0
                self.reserved_replies = self.traced = False
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

        ops: list[Any] = []
        append = ops.append
        find = data.find
        sizes = self._sizes
        last = self._line
        subject, reply, hlen, size = self._values
        marks: list[int] = []
        payload_bytes = 0
        reserved = bool(reply) and reply[:2] != b"_I"
        with_headers = hlen > 0
        limit = self.max_control_line
        width = len(last)
        repeats = False
        end_of_data = len(data)
        self.held = False
        self.begun = None
        plain, plain_first, rich, rich_first = self.message_verbs
        if large is None and end_of_data >= _BURST_BYTES:
            burst, pos, payload_bytes = self._parse_burst(data)
            ops += burst
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
                    if eol - pos > limit and self._too_long(line, limit):
                        raise ProtocolError("Maximum Control Line Exceeded", "maximum control line exceeded")
                    parts = line.split()
                    verb = parts[0] if parts else b""
                    # Blanks before a verb are not allowed, and split() would hide them.
                    if not ((verb == plain and line[0] == plain_first) or (verb == rich and line[0] == rich_first)):
                        verb = self._verb(line)
                        if verb != plain and verb != rich:
                            pos = start
                            op = self._parse_line(verb, _argument(verb, line))
                            if op is not None:
                                marks.append(len(ops))
                                append(op)
                                if type(op) is self.last_op:
                                    self._rest = data[pos:]
                                    self.held = pos < end_of_data
                                    break
                            continue
                    if verb == plain:
                        if len(parts) == 4:
                            _, subject, reply, digits = parts
                            # Inboxes are not reserved replies; another second letter needs a closer look.
                            if reply[:2] != b"_I":
                                reserved = True
                        elif len(parts) == 3:
                            _, subject, digits = parts
                            reply = b""
                        else:
                            raise self._miscounted(line)
                        hlen = 0
                    else:
                        if not self.headers:
                            raise silent()
                        if len(parts) == 5:
                            _, subject, reply, header_digits, digits = parts
                            if reply[:2] != b"_I":
                                reserved = True
                        elif len(parts) == 4:
                            _, subject, header_digits, digits = parts
                            reply = b""
                        else:
                            raise self._miscounted(line)
                        hlen = number(header_digits)
                        with_headers = True
                    try:
                        size = sizes[digits]
                    except KeyError:
                        size = self._size(digits)
                    if hlen and not 0 <= hlen <= size:
                        raise silent()
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
            self.reserved_replies = reserved
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
        size = number(digits)
        if size < 0:
            raise silent()
        if len(self._sizes) >= _SIZES_KEPT:
            self._sizes.clear()
        self._sizes[digits] = size
        return size

    # Of each protocol

    def _parse_line(self, verb: bytes, argument: bytes) -> Any:
        """Parse a line that is no message; None: it means nothing. Raises: ProtocolError."""
        raise NotImplementedError

    def _parse_burst(self, data: bytes) -> tuple[list[Msg], int, int]:
        """Parse the messages at the start of a long read, if they are alike in a way that the protocol knows.

        Returns: the messages, their end, and the bytes of their bodies; no messages and 0 if ``data`` is different.
        """
        return [], 0, 0

    # Lines

    def _verb(self, line: bytes) -> bytes:
        """The verb at the start of a complete line, in capitals."""
        for verb, blank, _ in self.verbs:
            if line[:len(verb)].upper() == verb:
                if blank and line[len(verb):len(verb) + 1] not in _BLANK:
                    break
                return verb
        raise _unknown()

    def _too_long(self, line: bytes, limit: int) -> bool:
        """Whether a complete line is longer than a control line may be; what follows PING and the like does not count."""
        verb = self._verb(line)
        return len(_argument(verb, line)) > limit and not any(bare for name, _, bare in self.verbs if name == verb)

    def _miscounted(self, line: bytes) -> ProtocolError:
        """The error for a message with a wrong number of arguments; without a blank after it, its verb is none at all."""
        self._verb(line)
        return silent()

    def _unfinished(self, line: bytes) -> bytes:
        """Check an incomplete line. Returns: the part of it to keep."""
        for verb, blank, bare in self.verbs:
            head = line[:len(verb)].upper()
            if verb.startswith(head) and len(line) <= len(verb):
                return line
            if head == verb:
                if bare:
                    return verb
                if blank and line[len(verb):len(verb) + 1] not in _BLANK:
                    break
                argument = line[len(verb):].lstrip(b" \t")
                if len(argument.rstrip(b"\r")) > self.max_control_line:
                    raise ProtocolError("Maximum Control Line Exceeded", "maximum control line exceeded")
                # Blanks before an argument are dropped, or an endless line of them would be kept.
                return line if argument else verb + line[len(verb):len(verb) + 1]
        raise _unknown()
