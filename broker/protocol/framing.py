r"""Lines and payloads: bytes to values, for every protocol whose messages are a line and a payload.

    <verb> <subject> [<reply>] <size>\r\n<payload>\r\n
    <verb> <subject> [<reply>] <header size> <size>\r\n<headers><payload>\r\n
    <verb> [<arguments>]\r\n                                               anything else

A protocol's parser is a subclass that names its verbs and parses the lines of other operations (``parser`` for
clients). Messages are parsed here, in one loop for all protocols, because a method call for each message would make
parsing a tenth slower.

Verbs are case-insensitive, blanks and tabs separate arguments, and a line ends with LF or CRLF; exactly CRLF must
follow a payload. Errors are found as early as possible: an unknown verb at its first wrong character, a control line
or payload that is too long before it has arrived.

Source: nats-server, server/parser.go (parse), server/client.go (processPub, processHeaderPub).
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, NamedTuple

from broker.protocol.run import Msg

__all__ = ["MAX_CONTROL_LINE", "MAX_PAYLOAD", "Framing", "MessageVerbs", "ProtocolError", "Verb", "parse_size",
           "silent_error"]

MAX_CONTROL_LINE: Final = 4096
MAX_PAYLOAD: Final = 1024 * 1024

_SIZES_KEPT: Final = 4096

_LARGE_BYTES = 16 * 1024
"""Minimum size of a payload that is copied only once although it arrives in several reads."""

_LINE_FEED = (b"\n", b"")
"""The rest of a line end after its CR; b"" if it has not arrived."""

_BURST_BYTES: Final = 1024
"""Number of bytes below which the fast path for bursts does not pay."""

_TRACE: Final = b"Nats-Trace-"
_BLANK: Final = (b" ", b"\t")


class Verb(NamedTuple):
    """A verb. ``blank``: a blank or tab must follow immediately. ``bare``: the rest of the line is ignored."""

    name: bytes
    blank: bool = True
    bare: bool = False


class MessageVerbs(NamedTuple):
    """The verbs of messages without headers and with them; each is followed by the code of its first byte."""

    plain: bytes
    plain_first: int
    with_headers: bytes
    with_headers_first: int


class ProtocolError(Exception):
    """The connection must be closed.

    Attributes:
        ``text``: sent as -ERR first, unless it is None;
        ``reason``: the close reason as monitoring names it;
        ``ops``: operations before the error, with ``Framing.marks``, which must be served;
        ``too_large``: for a message that is larger than allowed, the part that has arrived, and the whole size.
    """

    def __init__(self, reason: str, text: str | None, ops: list[Any] | None = None) -> None:
        super().__init__(text or reason)
        self.reason = reason
        self.text = text
        self.ops: list[Any] = ops if ops is not None else []
        self.too_large: tuple[Msg, int] | None = None


def _unknown() -> ProtocolError:
    return ProtocolError("Protocol Violation", "Unknown Protocol Operation")


def silent_error() -> ProtocolError:
    """Return an error that closes the connection without sending anything."""
    return ProtocolError("Protocol Violation", None)


def _too_large(msg: Msg, size: int) -> ProtocolError:
    error = ProtocolError("Maximum Message Payload Exceeded", "Maximum Payload Violation")
    error.too_large = msg, size
    return error


def parse_size(digits: bytes) -> int:
    """Read a size as nats-server does. Returns: -1 unless ``digits`` is 1 to 9 digits and nothing else."""
    return int(digits) if digits.isdigit() and len(digits) < 10 else -1


def _argument(verb: bytes, line: bytes) -> bytes:
    """Return the line without its verb, the blanks after the verb, and the line end, LF or CRLF."""
    return line[len(verb):-1].lstrip(b" \t").removesuffix(b"\r")


class Framing:
    """The parser of one connection, apart from the verbs of its protocol.

    A subclass sets ``verbs``, none of which is a prefix of another; ``message_verbs``; and ``last_op``: the operation
    that ends a batch, because it decides which operations are allowed next.

    Attributes that describe the batch last returned:
        marks: indexes of the items that are not a Msg.
        payload_bytes: sum of the bodies' lengths.
        reserved_replies: flag; if false, no reply subject is reserved for servers.
        traced: flag; if false, no message requests a trace.
        held: flag; an operation ended the batch, and more may follow: serve the batch, then feed b"".
        begun: the subject of the incomplete or wrong message at the end of the input; None if there is none.
    The caller sets ``headers`` once the client may send HPUB, and may change the limits with ``limit``.
    """

    __slots__ = ("_chunks", "_have", "_large", "_line", "_need", "_rest", "_sizes", "_values", "_whole", "begun",
                 "headers", "held", "marks", "max_control_line", "max_payload", "payload_bytes", "reserved_replies",
                 "traced")

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
        # Chunks of an incomplete message, joined when it is complete. A large message's chunks do not include its line,
        # which is in ``_values``.
        self._chunks: list[bytes | memoryview] = []
        self._have = 0
        self._need = 0
        self._whole = 0  # ``_need`` may lack the last byte
        self._large = False
        # The last message's control line and its values, since publishers often repeat a line.
        self._line: bytes = b"\n\n"
        self._values: tuple[bytes, bytes, int, int] = (b"", b"", 0, 0)
        self._sizes: dict[bytes, int] = {}

    def limit(self, max_control_line: int, max_payload: int) -> None:
        """Set other limits, beginning with the next operation."""
        self.max_control_line = max_control_line
        self.max_payload = max_payload
        # Forget the last line: an equal line would not be checked against the new limits.
        self._line = b"\n\n"

    @property
    def idle(self) -> bool:
        """Flag: the next byte begins a new operation."""
        return not self._rest and not self._need

    @property
    def missing(self) -> int:
        """Number of bytes that complete the current message; 0 before its line is complete."""
        return self._whole - self._have if self._need else 0

    def feed(self, data: bytes) -> list[Any]:
        """Parse the next bytes. Returns: all operations that are complete now. Raises: ProtocolError."""
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
                    self._whole = size + 2
                else:
                    ops.append((subject, reply, hlen, large))
                    payload_bytes = size
                    repeats = True
                pos += 2
            while pos < end_of_data:
                # A publisher that repeated its line once probably repeats it again, so try that before any search.
                if repeats:
                    start = pos + width
                    repeats = data[pos:start] == last
                if not repeats:
                    eol = data.find(b"\n", pos)
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
                        op = self._parse_words(parts) if verb and line[len(verb)] == 32 and line[0] > 32 else None
                        if op is None:
                            verb = self._verb(line)
                        if op is not None or (verb != plain and verb != rich):
                            pos = start
                            if op is None:
                                op = self._parse_line(verb, _argument(verb, line))
                            if op is not None:
                                marks.append(len(ops))
                                ops.append(op)
                                if type(op) is self.last_op:
                                    self._rest = data[pos:]
                                    self.held = pos < end_of_data
                                    break
                            continue
                    if verb == plain:
                        if len(parts) == 4:
                            _, subject, reply, digits = parts
                            # No reply that begins with _I (an inbox) is reserved; the caller examines all others.
                            if reply[:2] != b"_I":
                                reserved = True
                        elif len(parts) == 3:
                            _, subject, digits = parts
                            reply = b""
                        else:
                            reply, reserved = self._routed_reply(parts, 1, line), True
                            subject, digits = parts[1], parts[-1]
                        hlen = 0
                    else:
                        if not self.headers:
                            raise silent_error()
                        if len(parts) == 5:
                            _, subject, reply, header_digits, digits = parts
                            if reply[:2] != b"_I":
                                reserved = True
                        elif len(parts) == 4:
                            _, subject, header_digits, digits = parts
                            reply = b""
                        else:
                            reply, reserved = self._routed_reply(parts, 2, line), True
                            subject, header_digits, digits = parts[1], parts[-2], parts[-1]
                        hlen = parse_size(header_digits)
                        with_headers = True
                    try:
                        size = sizes[digits]
                    except KeyError:
                        size = self._size(digits)
                    if hlen and not 0 <= hlen <= size:
                        raise silent_error()
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
                    self._chunks = [memoryview(data)[pos:] if self._large else data[pos:]]
                    self._have = end_of_data - pos
                    self._whole = end - pos + 2
                    # One byte after the payload suffices to refuse it.
                    self._need = end - pos + (1 if end >= end_of_data else 2)
                    break
                if data[end] != 13 or data[end + 1] != 10:
                    self.begun = subject
                    raise _unknown()
                ops.append((subject, reply, hlen, data[start:end]))
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
            self.traced = with_headers and data.find(_TRACE) >= 0
        return ops

    def _cut_large(self) -> tuple[bytes, bytes, int]:
        """Return a large message's payload, copied once; the bytes that contain its end; the position of the end."""
        chunks, size = self._chunks, self._values[3]
        data = bytes(chunks.pop())
        end = len(data) - (self._have - size)
        if end < 0:  # an earlier chunk ended with half of the line end
            last = chunks.pop()
            if len(last) > 1:
                chunks.append(last[:-1])
            return b"".join(chunks), b"\r" + data, 0
        chunks.append(memoryview(data)[:end])
        return b"".join(chunks), data, end

    def _size(self, digits: bytes) -> int:
        """Parse and cache a payload size: few sizes occur, and a lookup is cheaper than checking digits."""
        size = parse_size(digits)
        if size < 0:
            raise silent_error()
        if len(self._sizes) >= _SIZES_KEPT:
            self._sizes.clear()
        self._sizes[digits] = size
        return size

    # A protocol's parser overrides these methods.

    def _parse_line(self, verb: bytes, argument: bytes) -> Any:
        """Parse a line that is no message. Returns: its operation; None if there is none. Raises: ProtocolError."""
        raise NotImplementedError

    def _parse_words(self, parts: list[bytes]) -> Any:
        """Parse the words of a line that is no message, if its verb is frequent, in capitals, and followed by a blank.

        Returns: its operation; None if ``_parse_line`` is to parse the line.
        """
        return None

    def _parse_burst(self, data: bytes) -> tuple[list[Msg], int, int]:
        """Parse the messages at the start of a long read, if they all have a form that the protocol handles fast.

        Returns: the messages, their end, and the bytes of their bodies; no messages and 0 for other ``data``.
        """
        return [], 0, 0

    def _routed_reply(self, parts: list[bytes], numbers: int, line: bytes) -> bytes:
        """Return the reply of a message whose line has more than a reply between the subject and its ``numbers``.

        Raises: ProtocolError; only servers send such lines.
        """
        raise self._miscounted(line)

    # Lines

    def _verb(self, line: bytes) -> bytes:
        """Return the verb at the start of a complete line, in capitals. Raises: ProtocolError."""
        for verb, blank, _ in self.verbs:
            if line[:len(verb)].upper() == verb:
                if blank and line[len(verb):len(verb) + 1] not in _BLANK:
                    break
                return verb
        raise _unknown()

    def _too_long(self, line: bytes, limit: int) -> bool:
        """Return whether a complete line exceeds the bound of control lines; arguments of ``bare`` verbs are free."""
        verb = self._verb(line)
        return len(_argument(verb, line)) > limit and not any(bare for name, _, bare in self.verbs if name == verb)

    def _miscounted(self, line: bytes) -> ProtocolError:
        """Return the error for a message with a wrong number of arguments.

        Raises: ProtocolError if no blank follows the verb, which is then unknown.
        """
        self._verb(line)
        return silent_error()

    def _unfinished(self, line: bytes) -> bytes:
        """Check an incomplete line. Returns: the part of it to keep. Raises: ProtocolError."""
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
                # Blanks before an argument are dropped; otherwise an endless line of them would be kept.
                return line if argument else verb + line[len(verb):len(verb) + 1]
        raise _unknown()
