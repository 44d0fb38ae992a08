"""The distinction between a planted bug that the oracle detects and one that fails by itself, because the engine has
changed."""

from __future__ import annotations

import traceback

from tests.sim import broken, mutations

__all__ = ["outdated"]


def outdated(error: BaseException | None) -> bool:
    """Return whether ``error`` or one of its causes is about a name or a signature on which a planted bug relies."""
    while error is not None:
        frames = list(traceback.walk_tb(error.__traceback__))
        if (frames and isinstance(error, AttributeError | NameError | TypeError)
                and frames[-1][0].f_code.co_filename in (broken.__file__, mutations.__file__)):
            return True
        error = error.__cause__
    return False
