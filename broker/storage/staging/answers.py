"""The owner's answer to a request. It is kept with the stream, so that the writer finds it in the store.

    request:<id>      the answer to a request without a writer; the stream forgets the oldest ones
    writer:<name>     the last version of a writer that the stream granted, the request's id, and the answer
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from broker.base.value import Value

if TYPE_CHECKING:
    from broker.storage.format.request import Request

__all__ = ["ALREADY", "ANSWER", "GRANTED", "REFUSED", "WRITER", "Answer", "LastVersion", "answer_in", "answer_to"]

ANSWER: Final = "request:"
WRITER: Final = "writer:"
GRANTED: Final = "granted"
REFUSED: Final = "refused"
ALREADY: Final = "already"


class Answer(Value):
    """An answer to a request.

    Attributes: ``state`` GRANTED: the messages have first_seq to last_seq, except ``duplicates`` of them, which were
        dropped; if all were dropped, first_seq is above last_seq. ``state`` REFUSED: ``why`` is the reason, in
        nats-server's words if it has some, and ``nonce`` is that of the refused object, b"" in answers of earlier
        releases. A request with the same id and another nonce may be granted. ``state`` ALREADY: the stream granted a
        later ``version`` of the writer at this time, so it stores nothing, and the other numbers are 0. ``raised``
        messages got a later time than their writer gave, because an earlier message has that time.
    """

    request_id: int
    state: str
    at_ns: int
    first_seq: int = 0
    last_seq: int = 0
    messages: int = 0
    duplicates: int = 0
    err_code: int = 0
    why: str = ""
    nonce: bytes = b""
    raised: int = 0
    version: int = 0

    @property
    def key(self) -> str:
        """The key of the answer among the stream's extra members."""
        return f"{ANSWER}{self.request_id:016x}"

    @property
    def already(self) -> bool:
        """True if the stream granted a later version."""
        return self.state == ALREADY

    def to_json(self) -> dict[str, int]:
        """Return the answer to a request that was not refused as members of a report."""
        shown = {"messages": self.messages, "duplicates": self.duplicates, "raised": self.raised,
                 "first_seq": self.first_seq, "last_seq": self.last_seq}
        return {"already": self.version, **shown} if self.already else shown

    def pack(self) -> list[Any]:
        """Return the answer as a value for the record."""
        if self.state == REFUSED:
            return [self.state, self.at_ns, self.err_code, self.why, self.nonce]
        return [self.state, *self.numbers]

    @property
    def numbers(self) -> tuple[int, int, int, int, int, int]:
        """The numbers of a granted request that are stored."""
        return self.at_ns, self.first_seq, self.last_seq, self.messages, self.duplicates, self.raised

    @classmethod
    def all_of(cls, extra: Mapping[str, Any]) -> Iterator[Answer]:
        """Iterate over the answers among a stream's extra members."""
        for key, value in extra.items():
            if key.startswith(ANSWER):
                state, at_ns, *rest = value
                request_id = int(key.removeprefix(ANSWER), 16)
                if state == REFUSED:
                    yield cls(request_id, state, at_ns, err_code=rest[0], why=rest[1],
                              nonce=rest[2] if len(rest) > 2 else b"")
                else:
                    first_seq, last_seq, messages, duplicates, *raised = rest
                    yield cls(request_id, state, at_ns, first_seq, last_seq, messages, duplicates,
                              raised=raised[0] if raised else 0)  # earlier releases did not count them


class LastVersion(NamedTuple):
    """The last version of a writer that a stream granted, the request's id, and the answer."""

    number: int
    request_id: int
    at_ns: int
    first_seq: int
    last_seq: int
    messages: int
    duplicates: int
    raised: int

    @classmethod
    def granted(cls, number: int, answer: Answer) -> LastVersion:
        """Return the version with this answer."""
        return cls(number, answer.request_id, *answer.numbers)

    @classmethod
    def unpack(cls, packed: Any) -> LastVersion:
        """Return the version that was stored as a list. Raises: ValueError for any other value."""
        if type(packed) is not list or [*map(type, packed)] != [int] * len(cls._fields) or min(packed) < 0:
            raise ValueError(f"{packed!r} is no last version of a writer")
        return cls._make(packed)

    @property
    def answer(self) -> Answer:
        """The answer to the request."""
        return Answer(self.request_id, GRANTED, self.at_ns, self.first_seq, self.last_seq, self.messages,
                      self.duplicates, raised=self.raised)

    def answer_to(self, number: int) -> Answer | None:
        """Return the answer to a request with this version of the writer; None: it may be granted."""
        if number > self.number:
            return None
        return self.answer if number == self.number else Answer(0, ALREADY, self.at_ns, version=self.number)


def answer_to(extra: Mapping[str, Any], request: Request) -> Answer | None:
    """Return the answer to ``request``, from a stream's extra members in any reader's state, or None."""
    if request.version is not None:
        packed = extra.get(WRITER + request.version.writer)
        given = None if packed is None else LastVersion.unpack(packed).answer_to(request.version.number)
        if given is not None:
            return given
    answer = answer_in(extra, request.request_id)
    return None if answer is not None and answer.nonce not in (b"", request.nonce) else answer


def answer_in(extra: Mapping[str, Any], request_id: int) -> Answer | None:
    """Return the answer to a request without a writer, from a stream's extra members in any reader's state, or None."""
    value = extra.get(f"{ANSWER}{request_id:016x}")
    return None if value is None else next(Answer.all_of({f"{ANSWER}{request_id:016x}": value}))
