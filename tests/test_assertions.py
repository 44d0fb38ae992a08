"""What guards data is checked also where Python is run without assertions."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import broker

_ROOT = Path(broker.__file__).parent
_MODULES = sorted([*(_ROOT / "jetstream").rglob("*.py"), *(_ROOT / "storage").rglob("*.py"),
                   *(_ROOT / "server").rglob("*.py")])


def _tells_a_type(test: ast.expr) -> bool:
    """``x is not None``, ``isinstance(x, T)``, or the opposite: what a type checker cannot see."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test = test.operand
    if isinstance(test, ast.Compare):
        right = test.comparators[0]
        none = isinstance(right, ast.Constant) and right.value is None
        return isinstance(test.ops[0], (ast.Is, ast.IsNot)) and (none or isinstance(right, ast.Name))
    return isinstance(test, ast.Call) and isinstance(test.func, ast.Name) and test.func.id == "isinstance"


@pytest.mark.parametrize("path", _MODULES, ids=lambda path: str(path.relative_to(_ROOT)))
def test_assertions_only_tell_the_type_checker(path: Path) -> None:
    """Within functions ``assert`` says no more than which type a value has: whatever else must hold is a real check.

    A module may assert what its own constants are.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    found = {node.lineno: ast.unparse(node) for function in functions for node in ast.walk(function)
             if isinstance(node, ast.Assert) and not _tells_a_type(node.test)}
    assert not found
