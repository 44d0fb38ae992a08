"""How an owner answered a request: kept with the stream, so that whoever asked finds it in the store too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from broker.base.value import Value

__all__ = ["ANSWER", "GRANTED", "REFUSED", "Answer", "answer_in"]

ANSWER: Final = "request:"
GRANTED: Final = "granted"
REFUSED: Final = "refused"


class Answer(Value):
    """``granted``: the messages have first_seq to last_seq, but for ``duplicates`` of them, which were dropped. Where all
    were, first_seq is above last_seq. ``refused``: ``why``, in nats-server's words where it has some, and the ``nonce`` of the
    object that was refused, b"" where an earlier release did: another request with that id may be granted."""

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
        """Its key among the stream's extra members."""
        return f"{ANSWER}{self.request_id:016x}"

    def pack(self) -> list[Any]:
        """For the record."""
        if self.state == REFUSED:
            return [self.state, self.at_ns, self.err_code, self.why, self.nonce]
        return [self.state, self.at_ns, self.first_seq, self.last_seq, self.messages, self.duplicates]

    @classmethod
    def all_of(cls, extra: Mapping[str, Any]) -> Iterator[Answer]:
        """Those among a stream's extra members."""
        for key, value in extra.items():
            if key.startswith(ANSWER):
                state, at_ns, *rest = value
                request_id = int(key.removeprefix(ANSWER), 16)
                if state == REFUSED:
                    yield cls(request_id, state, at_ns, err_code=rest[0], why=rest[1], nonce=rest[2] if len(rest) > 2 else b"")
                else:
                    yield cls(request_id, state, at_ns, *rest[:4])


def answer_in(extra: Mapping[str, Any], request_id: int) -> Answer | None:
    """The answer to one request, from a stream's extra members in any reader's state; None: there is none yet."""
    value = extra.get(f"{ANSWER}{request_id:016x}")
    return None if value is None else next(Answer.all_of({f"{ANSWER}{request_id:016x}": value}))
