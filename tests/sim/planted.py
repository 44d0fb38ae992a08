"""True if it was the oracle that noticed a planted bug, or the bug failed by itself, since the engine has changed
below it."""

from __future__ import annotations

import traceback

from tests.sim import broken, mutations

__all__ = ["outdated"]


def outdated(error: BaseException | None) -> bool:
    """Return whether ``error``, or what caused it, is about a name or a signature that a planted bug relies on."""
    while error is not None:
        frames = list(traceback.walk_tb(error.__traceback__))
        if (frames and isinstance(error, AttributeError | NameError | TypeError)
                and frames[-1][0].f_code.co_filename in (broken.__file__, mutations.__file__)):
            return True
        error = error.__cause__
    return False
