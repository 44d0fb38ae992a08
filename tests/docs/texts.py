"""The texts that the program can print: every string of its source, with ``…`` for the values that it fills in."""

from __future__ import annotations

import ast
import re
from pathlib import Path

__all__ = ["texts_of"]

_FILLED_IN = re.compile(r"%(?:\(\w+\))?[-#0-9.]*[sdrgxif]|\{\w+\}")
"""The places for values in logging's texts (``%s``) and in those of the error table (``{err}``)."""


def texts_of(package: Path) -> set[str]:
    """Return all strings of the package's modules, except docstrings."""
    found = set()
    for path in package.rglob("*.py"):
        tree = ast.parse(path.read_text())
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if id(node) in docstrings:
                continue
            if isinstance(node, ast.JoinedStr):
                found.add("".join(_text(part) for part in node.values))
            elif isinstance(node, ast.Constant):
                found.add(_text(node))
    return found


def _text(node: ast.expr) -> str:
    return _FILLED_IN.sub("…", node.value) if isinstance(node, ast.Constant) and isinstance(node.value, str) else "…"
