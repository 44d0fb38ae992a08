"""The part of a recorded history that a killed broker may have forgotten."""

from __future__ import annotations

import pytest

from tests.adversity import history
from tests.adversity.history import History, Violation


@pytest.mark.parametrize(("silent_s", "allowed"), [(0.0, False), (3.0, True)])
def test_an_ack_may_be_forgotten_before_it_was_to_be_stored(monkeypatch: pytest.MonkeyPatch, silent_s: float,
                                                            allowed: bool) -> None:
    """A broker that worked for two seconds between an ack and its kill must know the ack; one that was suspended
    meanwhile need not."""
    now = 100.0
    monkeypatch.setattr(history.time, "monotonic", lambda: now)  # type: ignore[attr-defined]
    record = History()
    record.begin(b"a", b"body")
    record.deliver(1, b"a", b"body")
    record.plain_ack(1, now)
    for _ in range(4 if silent_s else 20):
        now += 0.1
        record.ack(b"a", 1)
    now += silent_s
    record.killed()
    now += 1
    if allowed:
        record.deliver(1, b"a", b"body")
        assert record.redelivered == 1
    else:
        with pytest.raises(Violation, match="was delivered again"):
            record.deliver(1, b"a", b"body")
