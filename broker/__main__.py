"""``python -m broker`` and the command ``jetblock``."""

from __future__ import annotations

import gc
import signal
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line and end the process with its status."""
    # Starting allocates much and frees little: collections would take a tenth of the time, most of it during imports.
    # `broker.runtime.process` enables them again, and `broker.cli` for the other commands.
    gc.disable()
    # Until the broker handles it, SIGINT ends the process as it ends others, without a traceback; `broker.cli` lets the
    # other commands be interrupted.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from broker.cli import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
