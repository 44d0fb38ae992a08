"""The hook of mkdocs.yml: adds files outside docs/ to the site, and the decisions to its navigation.

The Markdown files link to one another as files of the repository, so that the links work in a checkout and on a code
host. The site has the same files: docs/X is the page X, and any other file F that the navigation or a page names is
repository/F.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = "repository/"
_LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)\s]*)?\))")
_FENCE = re.compile(r"^( *```.*?^ *```)", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace a navigation entry that names a folder of docs/ by the pages in the folder."""
    for section in config.nav or ():
        for entry in next(iter(section.values())):
            if isinstance(entry, dict):
                for title, target in entry.items():
                    if isinstance(target, str) and target.endswith("/"):
                        pages = sorted((ROOT / "docs" / target).glob("*.md"))
                        entry[title] = [f"{target}{page.name}" for page in pages]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add each file outside docs/ that the navigation names or a page links to, and what these link to in turn."""
    waiting = [page.removeprefix(OUTSIDE) for page in _targets(config.nav) if page.startswith(OUTSIDE)]
    for file in files.documentation_pages():
        waiting += _links(file.src_uri, file.content_string)
    while waiting:
        target = waiting.pop()
        path, uri = ROOT / target, _page(target)
        if target.startswith("docs/") or not path.is_file() or uri in files.src_uris:
            continue
        files.append(File.generated(config, uri, abs_src_path=str(path)))
        if path.suffix == ".md":
            waiting += _links(uri, path.read_text())
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between the repository's files into links between the site's."""
    uri = page.file.src_uri

    def turned(link: re.Match[str]) -> str:
        target = _page(_target(uri, link[2]))
        if target not in files.src_uris:  # A folder: a code host lists its files, the site shows its first page.
            inside = sorted(name for name in files.src_uris if name.startswith(f"{target.rstrip('/')}/"))
            target = inside[0] if inside else target
        return f"{link[1]}{posixpath.relpath(target, posixpath.dirname(uri) or '.')}{link[3]}"

    parts = _FENCE.split(markdown)
    parts[::2] = [_LINK.sub(turned, part) for part in parts[::2]]
    return "".join(parts)


def _links(uri: str, markdown: str) -> list[str]:
    """Return the repository's files that a page links to."""
    return [_target(uri, link[2]) for part in _FENCE.split(markdown)[::2] for link in _LINK.finditer(part)]


def _target(uri: str, link: str) -> str:
    """Return the target of a page's link, as a path from the repository's root."""
    source = uri.removeprefix(OUTSIDE) if uri.startswith(OUTSIDE) else f"docs/{uri}"
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))


def _page(target: str) -> str:
    """Return the site's path of a file of the repository."""
    return target.removeprefix("docs/") if target.startswith("docs/") else f"{OUTSIDE}{target}"


def _targets(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [target for part in (nav.values() if isinstance(nav, dict) else nav or ()) for target in _targets(part)]
