"""The Markdown files of the project: their tables, and the length of their lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(path for path in ROOT.rglob("*.md")
               if not any(part.startswith(".") for part in path.relative_to(ROOT).parts))
LINE_MAX = 120

_BAR = re.compile(r"(?<!\\)\|")
_RULE = re.compile(r"\|?( *:?-+:? *\|)+( *:?-+:? *)?")


def outside_fences(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page that are not code, with their numbers. The line that opens a fence is among them."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if not fenced:
            yield number, line
        if line.lstrip().startswith("```"):
            fenced = not fenced


def faults(text: str) -> Iterator[str]:
    """Yield each error in the tables of a page, with its line. A renderer would not show such a table as a table."""
    lines, columns = text.splitlines(), 0
    for number, line in outside_fences(text):
        row = line.strip()
        if not row.startswith("|"):
            if columns and row and not row.startswith(("<!--", "```")):
                yield f"{number}: a row of the table continues here, or an empty line is missing after the table"
            columns = 0
        elif columns:
            if (cells := len(_cells(row))) != columns:
                yield f"{number}: {cells} cells in a table of {columns} columns: a | within a cell is written \\|"
        else:
            rule = lines[number].strip() if number < len(lines) else ""
            if not _RULE.fullmatch(rule):
                yield f"{number}: a table begins here, and the line below it is not a rule such as |---|---|"
            elif number > 1 and (before := lines[number - 2].strip()) and not before.startswith(("#", "<!--")):
                yield f"{number}: an empty line is missing before the table"
            columns = len(_cells(row))


def _cells(row: str) -> list[str]:
    return _BAR.split(row.removeprefix("|").removesuffix("|"))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_tables(page: Path) -> None:
    """Each row of a table has as many cells as the table's heading."""
    assert list(faults(page.read_text("utf-8"))) == []


def test_broken_tables_are_found() -> None:
    """The test finds an empty line within a table, too many or too few cells, and text without an empty line between.

    It ignores code.
    """
    table = "| a | b |\n|---|---|\n| 1 | 2 |\n"
    assert list(faults(f"# t\n{table}\n```\n| x\n```\n")) == []
    for text, where in ((f"{table}\n| 3 | 4 |\n", 5), (f"{table}| 3 |\n", 4), (f"{table}| 3 | `4|5` |\n", 4),
                        (f"text\n{table}", 2), (f"{table}text\n", 4)):
        assert [int(fault.partition(":")[0]) for fault in faults(text)] == [where], text


PHRASE_MAX = 160
"""Characters in a cell, without the addresses of links."""


def long_cells(text: str) -> list[str]:
    found = []
    for _, line in outside_fences(text):
        if line.lstrip().startswith("|"):
            cells = (re.sub(r"\]\([^)]*\)", "]", cell.strip()) for cell in _cells(line.strip()))
            found += [cell for cell in cells if len(cell) > PHRASE_MAX]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_cells_hold_phrases(page: Path) -> None:
    """No cell of a table is a paragraph: that belongs below the table."""
    assert long_cells(page.read_text("utf-8")) == []


def long_lines(text: str) -> list[int]:
    """Return the numbers of the lines that are too long and could be wrapped: not tables, headings or comments."""
    return [number for number, line in outside_fences(text)
            if len(line) > LINE_MAX and not line.lstrip().startswith(("|", "#", "<!--")) and " " in line.strip()]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_prose_is_wrapped(page: Path) -> None:
    assert long_lines(page.read_text("utf-8")) == []


def test_long_lines_are_found() -> None:
    """Prose and list items count; tables, headings and code do not."""
    long = "word " * 30
    assert long_lines(f"{long}\n\n* {long}\n") == [1, 3]
    assert long_lines(f"# {long}\n\n| {long} |\n\n```\n{long}\n```\n") == []
