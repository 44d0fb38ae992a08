"""The Markdown files of the project: their tables are tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(path for path in ROOT.rglob("*.md") if not {part for part in path.relative_to(ROOT).parts if part.startswith(".")})

_BAR = re.compile(r"(?<!\\)\|")
_RULE = re.compile(r"\|?( *:?-+:? *\|)+( *:?-+:? *)?")


def faults(text: str) -> Iterator[str]:
    """What keeps a renderer from showing the tables of a page as they are meant, each with its line."""
    lines, fenced, columns = text.splitlines(), False, 0
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        if fenced:
            continue
        row = line.strip()
        if not row.startswith("|"):
            if columns and row and not row.startswith("<!--"):
                yield f"{number}: a row of the table goes on here, or an empty line is missing after it"
            columns = 0
        elif columns:
            if (cells := len(_cells(row))) != columns:
                yield f"{number}: {cells} cells in a table of {columns} columns: a | within a cell is written \\|"
        else:
            rule = lines[number].strip() if number < len(lines) else ""
            if not _RULE.fullmatch(rule):
                yield f"{number}: a table begins here, and the line below it is no rule such as |---|---|"
            elif number > 1 and (before := lines[number - 2].strip()) and not before.startswith(("#", "<!--")):
                yield f"{number}: an empty line is missing before the table"
            columns = len(_cells(row))


def _cells(row: str) -> list[str]:
    return _BAR.split(row.removeprefix("|").removesuffix("|"))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_tables(page: Path) -> None:
    """Each row of each table has as many cells as its heading."""
    assert list(faults(page.read_text("utf-8"))) == []


def test_broken_tables_are_found() -> None:
    """An empty line within a table, cells too many or too few, and text that clings to it; code is not looked at."""
    table = "| a | b |\n|---|---|\n| 1 | 2 |\n"
    assert list(faults(f"# t\n{table}\n```\n| x\n```\n")) == []
    for text, where in ((f"{table}\n| 3 | 4 |\n", 5), (f"{table}| 3 |\n", 4), (f"{table}| 3 | `4|5` |\n", 4),
                        (f"text\n{table}", 2), (f"{table}text\n", 4)):
        assert [int(fault.partition(":")[0]) for fault in faults(text)] == [where], text


PHRASE_MAX = 160
"""Characters in a cell, without the addresses of links."""
PARAGRAPHS = {"ARCHITECTURE.md", "CONTRIBUTING.md", "docs/BACKUP.md", "docs/COMPATIBILITY.md", "docs/CONFIGURATION.md",
              "docs/DEPENDENCIES.md", "docs/FAULTS.md", "docs/FORMAT.md", "docs/MONITORING.md", "docs/SPARK.md",
              "docs/STORES.md", "docs/UPGRADES.md"}
"""Pages that may still have longer cells."""


def long_cells(text: str) -> list[str]:
    fenced, found = False, []
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        if not fenced and line.lstrip().startswith("|"):
            cells = (re.sub(r"\]\([^)]*\)", "]", cell.strip()) for cell in _cells(line.strip()))
            found += [cell for cell in cells if len(cell) > PHRASE_MAX]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_cells_hold_phrases(page: Path) -> None:
    """A paragraph belongs below the table."""
    found = long_cells(page.read_text("utf-8"))
    assert found == [] or str(page.relative_to(ROOT)) in PARAGRAPHS
