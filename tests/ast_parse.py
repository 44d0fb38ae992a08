"""``ast.parse`` without garbage collection in the middle, for Python before 3.12.2.

Such a Python counts the depth of the tree that it converts in a variable of the interpreter (gh-106905). The collector
may run meanwhile, and a finalizer may raise. pytest then formats the traceback and parses source, too, to place its
carets. The interrupted call fails with ``SystemError: AST constructor recursion depth mismatch``. Hypothesis parses
source in any test.
"""

from __future__ import annotations

import ast
import gc
from typing import Any

__all__ = ["parse"]

_parse = ast.parse


def parse(*args: Any, **kwargs: Any) -> Any:
    """Call ``ast.parse``; finalizers of cyclic garbage run before or after it."""
    if not gc.isenabled():
        return _parse(*args, **kwargs)
    gc.disable()
    try:
        return _parse(*args, **kwargs)
    finally:
        gc.enable()
