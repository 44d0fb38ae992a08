"""The page docs/TROUBLESHOOTING.md: the program prints each of its texts, and each has a cause and a remedy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.texts import texts_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "TROUBLESHOOTING.md").read_text()
ENTRIES = re.findall(r"^### `(.*?)`\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def printed() -> set[str]:
    return texts_of(ROOT / "broker") | {(ROOT / "Makefile").read_text()}


def test_each_text_is_in_the_program(printed: set[str]) -> None:
    """A text that was reworded or deleted in the program must change on the page, too."""
    gone = [text for text, _ in ENTRIES if not any(text in known for known in printed)]
    assert gone == [], "docs/TROUBLESHOOTING.md explains texts that the program does not print"


def test_each_entry_has_a_cause_and_a_remedy() -> None:
    assert len(ENTRIES) == PAGE.count("\n### ") >= 60
    for text, below in ENTRIES:
        assert re.fullmatch(r"\n\*\*Cause:\*\* .+?\n\n\*\*Remedy:\*\* .+?\n+", below, re.DOTALL), text


def test_texts_are_found_in_source(tmp_path: Path) -> None:
    """The values that a program fills in become … in each kind of string; docstrings do not count."""
    (tmp_path / "module.py").write_text(
        '"""A docstring."""\n'
        'log.info("took %d ms of %s", 1, 2)\n'
        'raise ValueError(f"{path}: gone; "\n    f"restore {key} now")\n'
        'ERRORS = {1: "offline: {err}"}\n')
    assert {"took … ms of …", "…: gone; restore … now", "offline: …"} <= texts_of(tmp_path)
    assert "A docstring." not in texts_of(tmp_path)
