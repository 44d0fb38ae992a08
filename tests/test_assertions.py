"""Checks of data work also where Python is run without assertions."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import broker

_ROOT = Path(broker.__file__).parent
_MODULES = sorted([*(_ROOT / "jetstream").rglob("*.py"), *(_ROOT / "storage").rglob("*.py"),
                   *(_ROOT / "server").rglob("*.py")])


def _narrows_a_type(test: ast.expr) -> bool:
    """Return whether the test is ``x is not None``, ``isinstance(x, T)``, or the opposite, which a type checker cannot
    infer."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test = test.operand
    if isinstance(test, ast.Compare):
        right = test.comparators[0]
        none = isinstance(right, ast.Constant) and right.value is None
        return isinstance(test.ops[0], (ast.Is, ast.IsNot)) and (none or isinstance(right, ast.Name))
    return isinstance(test, ast.Call) and isinstance(test.func, ast.Name) and test.func.id == "isinstance"


@pytest.mark.parametrize("path", _MODULES, ids=lambda path: str(path.relative_to(_ROOT)))
def test_assertions_only_narrow_types(path: Path) -> None:
    """Within functions ``assert`` states only the type of a value. Any other condition is a real check.

    A module may assert properties of its own constants.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    found = {node.lineno: ast.unparse(node) for function in functions for node in ast.walk(function)
             if isinstance(node, ast.Assert) and not _narrows_a_type(node.test)}
    assert not found
