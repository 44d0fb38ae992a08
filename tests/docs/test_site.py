"""The site of ``make docs``: its build has no warnings, its links work, and the command-line page is current."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]


class Html(HTMLParser):
    """The anchors of a page, its links, and the text of its paragraphs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.paragraphs: list[str] = []
        self._open = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name == "href" and value and tag == "a":
                self.links.append(value)
        if tag == "p":
            self._open += 1
            self.paragraphs.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "p":
            self._open -= 1

    def handle_data(self, data: str) -> None:
        if self._open:
            self.paragraphs[-1] += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Html]:
    """The built site: each page by its path."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    environ = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert (built.returncode, built.stdout + built.stderr) == (0, "")
    return {path: Html(path.read_text()) for path in folder.rglob("*.html") if path.name != "404.html"}


def test_links_lead_somewhere(site: dict[Path, Html]) -> None:
    """Each link within the site is to a file that is there, and to an anchor that its page has."""
    broken = []
    for path, page in site.items():
        for link in page.links:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            target = target / "index.html" if target.is_dir() else target
            known = target in site and (not url.fragment or unquote(url.fragment) in site[target].anchors | {"__skip"})
            if not known and (target in site or not target.is_file()):
                broken.append(f"{path.name}: {link}")
    assert broken == []


def test_lists_and_tables_are_rendered(site: dict[Path, Html]) -> None:
    """No paragraph has rows of a list or table in it: unlike a code host, the site needs an empty line before each."""
    clinging = re.compile(r"^(?:[*-] |\d+\. |\||```)", re.MULTILINE)
    found = [(path.name, text[:80]) for path, page in site.items() for text in page.paragraphs if clinging.search(text)]
    assert found == []


def test_every_document_and_decision_has_its_page(site: dict[Path, Html]) -> None:
    """Each Markdown file below docs/ is a page, and so are the design and the changelog."""
    documents = {path.stem for path in (ROOT / "docs").rglob("*.md")} | {"ARCHITECTURE", "CHANGELOG", "CONTRIBUTING"}
    assert documents <= {path.stem for path in site}


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="argparse of Python 3.13 words its help differently")
def test_the_command_line_page_is_current() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "generators" / "commands.py"))
    assert made["PAGE"].read_text() == made["page"](), "run: python docs/generators/commands.py"
