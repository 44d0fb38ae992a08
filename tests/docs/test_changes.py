"""The fragments in changes/, from which a release makes its section of CHANGELOG.md."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FRAGMENTS = sorted(path for path in (ROOT / "changes").iterdir() if path.name != "template.jinja")
KINDS = [kind["directory"]
         for kind in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]["type"]]


def faults(name: str, text: str) -> list[str]:
    """Return the errors of a fragment."""
    found = []
    if not re.fullmatch(rf"[a-z0-9]+(-[a-z0-9]+)*\.({'|'.join(KINDS)})\.md", name):
        found.append(f"the name is not NAME.KIND.md, where KIND is one of {', '.join(KINDS)}")
    if not re.match(r"[A-Z0-9`\[]", text) or not text.endswith(".\n"):
        found.append("the text does not begin with a capital or code, or does not end with a full stop and a line end")
    if "\n\n" in text or re.search(r"^[*#-] ", text, re.MULTILINE):
        found.append("the text is not one paragraph")
    if max(map(len, text.splitlines()), default=0) > 120:
        found.append("a line is longer than 120 characters")
    return found


@pytest.mark.parametrize("path", FRAGMENTS, ids=lambda path: path.name)
def test_fragments_are_well_formed(path: Path) -> None:
    """Each fragment is one paragraph of sentences; its name has a topic and a kind; the targets of its links exist."""
    text = path.read_text()
    assert faults(path.name, text) == []
    assert [target for target in re.findall(r"\]\(([^)#]+)", text) if not (ROOT / target).exists()] == []


@pytest.mark.parametrize(("name", "text"), [
    ("A.fixed.md", "A bug.\n"), ("a.bug.md", "A bug.\n"), ("a.md", "A bug.\n"), ("a.fixed.md", "a bug.\n"),
    ("a.fixed.md", "A bug"), ("a.fixed.md", ""), ("a.fixed.md", "* A bug.\n"), ("a.fixed.md", "A bug.\n\nA second.\n"),
    ("a.fixed.md", "A " + "long " * 30 + "line.\n")])
def test_faulty_fragments_are_found(name: str, text: str) -> None:
    assert faults(name, text)


def test_a_release_moves_the_fragments_to_the_changelog(tmp_path: Path) -> None:
    """A release of a copy lists each kind's fragments above the earlier releases; no fragment is left."""
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "changes").mkdir()
    shutil.copy(ROOT / "changes" / "template.jinja", tmp_path / "changes")
    for kind in KINDS:
        (tmp_path / "changes" / f"one.{kind}.md").write_text(f"Something was {kind},\nsince it had to be.\n")
    subprocess.run([sys.executable, "-m", "towncrier", "build", "--yes", "--version", "9.8.7", "--date", "2030-01-02"],
                   cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60)
    before, after = (ROOT / "CHANGELOG.md").read_text(), (tmp_path / "CHANGELOG.md").read_text()
    head, tail = before.split("<!-- releases -->\n")
    section = after.removeprefix(f"{head}<!-- releases -->\n").removesuffix(tail)
    items = "".join(f"\n### {kind.title()}\n\n* Something was {kind},\n  since it had to be.\n" for kind in KINDS)
    assert re.sub(r"\n{3,}", "\n\n", section.strip()) == f"## 9.8.7 (2030-01-02)\n{items}".strip()
    assert [path.name for path in (tmp_path / "changes").iterdir()] == ["template.jinja"]
