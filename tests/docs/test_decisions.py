"""The decisions in docs/adr: their numbers."""

from __future__ import annotations

from pathlib import Path

DECISIONS = sorted((Path(__file__).parents[2] / "docs" / "adr").glob("*.md"))


def test_each_decision_has_a_number_of_its_own() -> None:
    """File names begin with 0001, 0002 and so on without a gap, and each title repeats the number."""
    assert [path.name[:4] for path in DECISIONS] == [f"{number:04}" for number in range(1, len(DECISIONS) + 1)]
    for path in DECISIONS:
        assert path.read_text().startswith(f"# {path.name[:4]}: "), path.name
