"""The owner's answer to a request. It is kept with the stream, so that the writer finds it in the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from broker.base.value import Value

__all__ = ["ANSWER", "GRANTED", "REFUSED", "Answer", "answer_in"]

ANSWER: Final = "request:"
GRANTED: Final = "granted"
REFUSED: Final = "refused"


class Answer(Value):
    """An answer to a request.

    Attributes: ``state`` GRANTED: the messages have first_seq to last_seq, except ``duplicates`` of them, which were
        dropped; if all were dropped, first_seq is above last_seq. ``state`` REFUSED: ``why`` is the reason, in
        nats-server's words if it has some, and ``nonce`` is that of the refused object, b"" in answers of earlier
        releases. A request with the same id and another nonce may be granted.
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

    @property
    def key(self) -> str:
        """The key of the answer among the stream's extra members."""
        return f"{ANSWER}{self.request_id:016x}"

    def pack(self) -> list[Any]:
        """Return the answer as a value for the record."""
        if self.state == REFUSED:
            return [self.state, self.at_ns, self.err_code, self.why, self.nonce]
        return [self.state, self.at_ns, self.first_seq, self.last_seq, self.messages, self.duplicates]

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
                    yield cls(request_id, state, at_ns, *rest[:4])


def answer_in(extra: Mapping[str, Any], request_id: int) -> Answer | None:
    """Return the answer to one request, from a stream's extra members in any reader's state, or None."""
    value = extra.get(f"{ANSWER}{request_id:016x}")
    return None if value is None else next(Answer.all_of({f"{ANSWER}{request_id:016x}": value}))
