"""A Python session for the snippets of a page: ``python -P tests/docs/typed_python.py`` runs one snippet per line.

Like ``python -m asyncio``, it has one event loop and one namespace, and allows ``await`` at the top level. Each line of
its input is a snippet as JSON. Its answer is a line of JSON, too: the output of the snippet, and the traceback or "".
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import io
import json
import os
import sys
import traceback
from contextlib import redirect_stdout
from typing import Any

__all__ = ["run_python"]


async def run_python(text: str, names: dict[str, Any]) -> None:
    """Run a snippet with these names, to which it may add."""
    code = compile(text, "snippet", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    coroutine = eval(code, names)
    if inspect.iscoroutine(coroutine):
        await coroutine


async def main() -> None:
    # Programs that a snippet starts, such as Spark's Java, write to standard output, so answers use a copy of it.
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        names: dict[str, Any] = {"__name__": "__main__"}
        while line := await asyncio.to_thread(sys.stdin.readline):
            error = ""
            with redirect_stdout(io.StringIO()) as output:
                try:
                    await run_python(json.loads(line), names)
                except Exception:
                    error = traceback.format_exc()
            print(json.dumps([output.getvalue(), error]), file=answers, flush=True)


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    asyncio.run(main())
