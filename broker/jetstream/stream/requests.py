"""The requests of a stream's inbox that were granted or refused. Each is answered once, and the answer stays the same.

Each answer is kept in the stream's extra members, under a key of its own. It is written into the same block as the
record that grants or refuses the request.

    a request        its answer is kept
    with a writer    until the same writer's next version is granted; after 90 days another writer may replace it
    without one      until 1000 others are granted
    refused          until 100 others are refused
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.storage.staging.answers import ANSWER, REFUSED, WRITER, Answer, LastVersion

if TYPE_CHECKING:
    from broker.storage.format.request import Version

__all__ = ["Requests", "refusal"]

_GRANTED_MAX: Final = 1000
_REFUSED_MAX: Final = 100
_WRITERS_MAX: Final = 10_000
_IDLE_DAYS: Final = 90
"""A writer that was idle for so many days is forgotten when a new one needs its place."""
_DAY_NS: Final = 86_400_000_000_000


class _Kept(NamedTuple):
    granted: dict[int, Answer]
    refused: dict[int, Answer]
    writers: dict[str, LastVersion]
    """The last version of each writer; the writer that was idle longest is first."""


class Requests:
    """The answers of one stream; the oldest answers are dropped when there are many."""

    __slots__ = ("_kept",)

    def __init__(self, stored: Mapping[str, Any]) -> None:
        self._kept: _Kept | None = None
        if stored:  # most streams have no extra members
            for answer in sorted(Answer.all_of(stored), key=lambda answer: answer.at_ns):
                self._keep(answer)
            writers = [(key.removeprefix(WRITER), LastVersion.unpack(packed)) for key, packed in stored.items()
                       if key.startswith(WRITER)]
            for writer, last in sorted(writers, key=lambda one: one[1].at_ns):
                self._keep_version(writer, last)

    def granted(self, request_id: int, version: Version | None = None) -> Answer | None:
        """Return the answer if the request was granted, or a later version of its writer was; else None."""
        if self._kept is None:
            return None
        if version is None:
            return self._kept.granted.get(request_id)
        last = self._kept.writers.get(version.writer)
        return None if last is None else last.answer_to(version.number)

    def last_version(self, writer: str) -> int | None:
        """Return the last version of this writer that was granted; None: the writer is unknown."""
        last = None if self._kept is None else self._kept.writers.get(writer)
        return None if last is None else last.number

    def check_room(self, version: Version | None, now_ns: int) -> None:
        """Check that the stream can remember the writer. Raises: ApiError."""
        kept = self._kept
        if version is None or kept is None or version.writer in kept.writers or len(kept.writers) < _WRITERS_MAX:
            return
        idle = next(iter(kept.writers.values()))
        if now_ns - idle.at_ns < _IDLE_DAYS * _DAY_NS:
            raise ApiError(ApiErrors.STREAM_GENERAL, err=(
                f"the stream remembers {_WRITERS_MAX} writers, the most it can, and each was active in the last "
                f"{_IDLE_DAYS} days: use the name of one of them, or request without a writer"))

    def refused(self, request_id: int, nonce: bytes | None = None) -> ApiError | None:
        """Return the error if the request was refused; with ``nonce``, only if the object of that nonce was refused."""
        answer = None if self._kept is None else self._kept.refused.get(request_id)
        if answer is None or nonce not in (None, answer.nonce):
            return None
        return ApiError.of(answer.err_code, answer.why)

    def answer(self, answer: Answer, version: Version | None = None) -> dict[str, Any]:
        """Keep an answer; return the changes to record: a value by key, None for a dropped answer.

        Args: ``version``: that of a granted request, if it has a writer.
        """
        changes: dict[str, Any] = {}
        if version is not None:
            if self._kept is not None and self._kept.refused.pop(answer.request_id, None) is not None:
                changes[answer.key] = None
            last = LastVersion.granted(version.number, answer)
            kept = self._keep_version(version.writer, last)
            changes[WRITER + version.writer] = list(last)
            while len(kept.writers) > _WRITERS_MAX:
                idle = next(iter(kept.writers))
                del kept.writers[idle]
                changes[WRITER + idle] = None
            return changes
        kept = self._keep(answer)
        for answers, most in ((kept.granted, _GRANTED_MAX), (kept.refused, _REFUSED_MAX)):
            while len(answers) > most:
                oldest = next(iter(answers))
                del answers[oldest]
                changes[ANSWER + f"{oldest:016x}"] = None
        changes[answer.key] = answer.pack()
        return changes

    def _keep(self, answer: Answer) -> _Kept:
        kept = self._all()
        kept.refused.pop(answer.request_id, None)
        (kept.refused if answer.state == REFUSED else kept.granted)[answer.request_id] = answer
        return kept

    def _keep_version(self, writer: str, last: LastVersion) -> _Kept:
        kept = self._all()
        kept.writers.pop(writer, None)  # so that the writer becomes the last one
        kept.writers[writer] = last
        return kept

    def _all(self) -> _Kept:
        if self._kept is None:
            self._kept = _Kept({}, {}, {})
        return self._kept


def refusal(request_id: int, nonce: bytes, error: ApiError, at_ns: int) -> Answer:
    """Return the answer to a request that is refused."""
    return Answer(request_id, REFUSED, at_ns, err_code=error.err_code, why=error.description, nonce=nonce)
