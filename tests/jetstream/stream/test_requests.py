"""The answers that a stream keeps: how many, for how long, and which one a new one replaces."""

from __future__ import annotations

from typing import Any

import pytest

from broker.jetstream.stream import requests as requests_module
from broker.jetstream.stream.requests import Requests, refusal
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.storage.format.request import Version
from broker.storage.staging.answers import ALREADY, GRANTED, Answer, LastVersion

DAY = 86_400_000_000_000


def granted(request_id: int, at_ns: int) -> Answer:
    return Answer(request_id, GRANTED, at_ns, 1, 3, 2, 1, raised=1)


class Stored:
    """The answers of a stream, with the extra members that its records have made."""

    def __init__(self) -> None:
        self.extra: dict[str, Any] = {}
        self.requests = Requests({})

    def grant(self, writer: str, number: int, at_ns: int) -> None:
        version = Version(writer, number)
        self.requests.check_room(version, at_ns)
        self.record(self.requests.answer(granted(version.request_id(1), at_ns), version))

    def record(self, changes: dict[str, Any]) -> None:
        for key, value in changes.items():
            if value is None:
                del self.extra[key]
            else:
                self.extra[key] = value


def test_the_last_version_of_a_writer_outlives_other_answers() -> None:
    """Shows the answers to the last, lower and higher versions, before and after a restart, while the answers of
    writers without a name are forgotten."""
    stored = Stored()
    stored.grant("slow", 7, 5)
    for n in range(1, 1102):
        stored.record(stored.requests.answer(granted(n, 5 + n)))
    for requests in (stored.requests, Requests(stored.extra)):
        last = requests.granted(0, Version("slow", 7))
        assert last == granted(Version("slow", 7).request_id(1), 5)
        lower = requests.granted(0, Version("slow", 6))
        assert lower is not None
        assert (lower.state, lower.version, lower.messages, lower.last_seq) == (ALREADY, 7, 0, 0)
        assert requests.granted(0, Version("slow", 8)) is None
        assert requests.granted(0, Version("other", 1)) is None
        assert requests.last_version("slow") == 7
        assert requests.granted(101) is None
        assert requests.granted(102) is not None


def test_writers_are_bounded_and_only_idle_ones_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that a further writer is refused by name until one was idle for 90 days, which then leaves; a known writer
    goes on at any time."""
    monkeypatch.setattr(requests_module, "_WRITERS_MAX", 3)
    stored = Stored()
    for n, writer in enumerate(("a", "b", "c")):
        stored.grant(writer, 1, n * DAY)
    stored.grant("a", 2, 10 * DAY)
    for requests in (stored.requests, Requests(stored.extra)):
        with pytest.raises(ApiError, match="remembers 3 writers"):
            requests.check_room(Version("d", 1), 91 * DAY - 1)
        requests.check_room(Version("b", 9), 91 * DAY - 1)
        requests.check_room(None, 0)
    stored.grant("d", 1, 91 * DAY)
    assert sorted(stored.extra) == ["writer:a", "writer:c", "writer:d"]
    assert stored.requests.granted(0, Version("b", 1)) is None


def test_a_refused_version_may_be_granted_later() -> None:
    """Shows that the refusal is removed when another attempt at the same version is granted."""
    stored = Stored()
    version = Version("w", 1)
    request_id = version.request_id(1)
    error = ApiError(ApiErrors.STREAM_SEALED)
    stored.record(stored.requests.answer(refusal(request_id, b"nonce", error, 3)))
    assert stored.requests.refused(request_id, b"nonce") is not None
    stored.grant("w", 1, 4)
    assert sorted(stored.extra) == ["writer:w"]
    assert stored.requests.refused(request_id) is None


@pytest.mark.parametrize("packed", [[], None, [1] * 7, [1, 2, 3, 4, 5, 6, 7, -1], [1, 2, 3, 4, 5, 6, 7, "8"]])
def test_a_damaged_record_of_a_writer_is_an_error(packed: object) -> None:
    with pytest.raises(ValueError, match="no last version"):
        LastVersion.unpack(packed)
