"""The requests of a stream's inbox that were granted or refused. Each is answered once, and the answer stays the same.

Each answer is kept in the stream's extra members, under a key of its own. It is written into the same block as the
record that grants or refuses the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from broker.jetstream.wire.errors import ApiError
from broker.storage.staging.answers import ANSWER, REFUSED, Answer

__all__ = ["Requests", "refusal"]

_GRANTED_MAX: Final = 1000
_REFUSED_MAX: Final = 100


class _Kept(NamedTuple):
    granted: dict[int, Answer]
    refused: dict[int, Answer]


class Requests:
    """The answers of one stream; the oldest answers are dropped when there are many."""

    __slots__ = ("_kept",)

    def __init__(self, stored: Mapping[str, Any]) -> None:
        self._kept: _Kept | None = None
        if stored:  # most streams have no extra members
            for answer in sorted(Answer.all_of(stored), key=lambda answer: answer.at_ns):
                self._keep(answer)

    def granted(self, request_id: int) -> Answer | None:
        """Return the answer if the request was granted, else None."""
        return None if self._kept is None else self._kept.granted.get(request_id)

    def refused(self, request_id: int, nonce: bytes | None = None) -> ApiError | None:
        """Return the error if the request was refused; with ``nonce``, only if the object of that nonce was refused."""
        answer = None if self._kept is None else self._kept.refused.get(request_id)
        if answer is None or nonce not in (None, answer.nonce):
            return None
        return ApiError.of(answer.err_code, answer.why)

    def answer(self, answer: Answer) -> dict[str, Any]:
        """Keep an answer; return the changes to record: a value by key, None for a dropped answer."""
        changes: dict[str, Any] = {}
        kept = self._keep(answer)
        for answers, most in ((kept.granted, _GRANTED_MAX), (kept.refused, _REFUSED_MAX)):
            while len(answers) > most:
                oldest = next(iter(answers))
                del answers[oldest]
                changes[ANSWER + f"{oldest:016x}"] = None
        changes[answer.key] = answer.pack()
        return changes

    def _keep(self, answer: Answer) -> _Kept:
        if self._kept is None:
            self._kept = _Kept({}, {})
        kept = self._kept
        kept.refused.pop(answer.request_id, None)
        (kept.refused if answer.state == REFUSED else kept.granted)[answer.request_id] = answer
        return kept


def refusal(request_id: int, nonce: bytes, error: ApiError, at_ns: int) -> Answer:
    """Return the answer to a request that is refused."""
    return Answer(request_id, REFUSED, at_ns, err_code=error.err_code, why=error.description, nonce=nonce)
