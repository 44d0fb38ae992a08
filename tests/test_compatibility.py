"""docs/COMPATIBILITY.md agrees with the marks of the tests."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent

@pytest.fixture(scope="module")
def generator() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "generators" / "compatibility.py"))


def test_the_page_is_up_to_date(generator: dict[str, Any]) -> None:
    """A test that names an unknown feature, or missing data, is an error of the generator."""
    assert generator["PAGE"].read_text() == generator["page"](), "run: python docs/generators/compatibility.py"


def test_marks_that_count(generator: dict[str, Any], tmp_path: Path) -> None:
    """Marks of functions, classes and modules count; not those of tests that are skipped or expected to fail."""
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "test_parts.py").write_text("""
import pytest
pytestmark = [pytest.mark.asyncio, pytest.mark.shows("area.whole")]

@pytest.mark.shows("area.one", "area.two")
@pytest.mark.parametrize("n", [1])
async def test_here(n): ...

@pytest.mark.skip
@pytest.mark.shows("area.skipped")
def test_not_here(): ...

class TestGroup:
    @pytest.mark.shows("area.two")
    def test_inside(self): ...
""")
    shown = {feature: [(test.path, test.name) for test in tests]
             for feature, tests in generator["shown"](tmp_path).items()}
    where = "part/test_parts.py"
    assert shown == {"area.whole": [(where, "")], "area.one": [(where, "here")],
                     "area.two": [(where, "here"), (where, "inside")]}


def test_unknown_data_is_an_error(generator: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "jetstream" / "differential").mkdir(parents=True)
    (tmp_path / "jetstream" / "differential" / "ttls.py").write_text('SHOWS = {"area.one": ("no such scenario",)}')
    with pytest.raises(ValueError, match=r"'no such scenario' for area\.one"):
        generator["shown"](tmp_path)


def test_an_unknown_feature_is_an_error(generator: dict[str, Any]) -> None:
    area = generator["Area"]("Area", {"area.one": generator["Feature"]("one")})
    with pytest.raises(ValueError, match=r"not in compatibility.toml: area\.missing \(test_x\.py\)"):
        generator["page_of"]([area], {"area.missing": [generator["Shown"]("test_x.py", "it")]})


def test_rows(generator: dict[str, Any]) -> None:
    """A feature with a test is a yes, one without is a no, and an absent one stays absent, also if a test shows its
    refusal."""
    feature, test = generator["Feature"], generator["Shown"]("a/test_x.py", "it_is")
    rows = {"a.one": feature("one", differs="why"), "a.two": feature("two"),
            "a.three": feature("three", absent="because")}
    page = generator["page_of"]([generator["Area"]("An area", rows)], {"a.one": [test], "a.three": [test]})
    assert "| [An area](#an-area) | 1 | 1 | 1 |\n" in page
    shown = "[a/test_x](../tests/a/test_x.py): it\\_is"
    assert (f"| one<br>why | **yes** | {shown} |\n| two | **no** |  |\n"
            f"| three<br>because | **absent** | {shown} |\n") in page
