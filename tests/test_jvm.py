"""The archive of Spark's classes, which only saves time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real import jvm


def test_a_machine_that_is_too_busy_for_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions start without the archive, and nothing is left of the attempt."""
    monkeypatch.setattr(jvm, "TRAINING_SECONDS", 0)
    jvm._make(tmp_path / "classes.jsa", tmp_path)
    assert list(tmp_path.iterdir()) == []
