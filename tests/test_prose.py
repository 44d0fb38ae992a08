"""Docstrings and comments are plain English, as far as a program can judge it: CONTRIBUTING.md, "English"."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

_MODULES = sorted(path for folder in ("broker", "jetblock", "tests", "bench") for path in (ROOT / folder).rglob("*.py"))

_HEADLESS = re.compile(r"(Of|Not|In which|Whether|What|Who|Whose|Those|That|Which|So|And|But)\b")
"""Beginnings of docstrings that name neither an action nor a thing."""

_PRIVATE = re.compile(
    r"\b(told|hears?|heard|news|lets? go|errands?|doubts?|crowds?|unforeseen|patience|pulse)\b")
"""Words with a meaning of this project's own, for which the field has a word: notify, queue, store, evict, …"""


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each docstring, those below assignments included."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for before, one in zip([None, *body], body, strict=False):
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str):
                first = before is None and isinstance(
                    node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
                if first or isinstance(before, (ast.Assign, ast.AnnAssign)):
                    yield one.lineno, one.value.value


def _comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


@pytest.mark.parametrize("path", _MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_prose_is_plain(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    docstrings = list(_docstrings(ast.parse(text)))
    found = [f"line {line}: a docstring begins with {match[0]!r}" for line, prose in docstrings
             if (match := _HEADLESS.match(prose.strip()))]
    for line, prose in (*docstrings, *_comments(text)):
        quoted = re.sub(r"``[^`]*``|\"[^\"]*\"", "", prose)
        found += [f"line {line}: {word!r}" for word in _PRIVATE.findall(quoted)]
    assert not found
