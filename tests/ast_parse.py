"""``ast.parse`` without garbage collection in the middle, for Python before 3.12.2.

There the conversion of a tree counts its depth in a variable of the interpreter (gh-106905). When the collector runs in
the middle and a finalizer raises, pytest formats the traceback, which parses source too, to place its carets: the call
that was interrupted then fails with ``SystemError: AST constructor recursion depth mismatch``. Hypothesis parses source
in any test.
"""

from __future__ import annotations

import ast
import gc
from typing import Any

__all__ = ["parse"]

_parse = ast.parse


def parse(*args: Any, **kwargs: Any) -> Any:
    """As ``ast.parse``; finalizers of cyclic garbage run before or after."""
    if not gc.isenabled():
        return _parse(*args, **kwargs)
    gc.disable()
    try:
        return _parse(*args, **kwargs)
    finally:
        gc.enable()
