"""``python -m broker`` and the command ``jetblock``."""

from __future__ import annotations

import gc
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line and end the process with its status."""
    # Starting allocates much and frees little: collections would take a tenth of the time, most of it during imports.
    # `broker.runtime.process` enables them again, and `broker.cli` for the other commands.
    gc.disable()
    from broker.cli import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
