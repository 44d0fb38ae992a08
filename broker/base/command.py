"""The frame of a command that does one piece of work: its progress, its errors, and its exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable

from broker.base.output import printable
from broker.base.progress import Progress

__all__ = ["run_command"]


def run_command(name: str, run: Callable[[Progress], int], *errors: type[Exception],
                again: str = "run it again") -> int:
    """Run a command; return its exit status, which is the result of ``run`` if the command was carried out.

    Args: errors are the failures that ``run`` may end with. Each is a line on standard error and status 2, as a wrong
        command line is; ``remedy`` of the error, if it has one, ends the line. again says what a user does after an
        interruption, which is status 130.
    """
    progress = Progress()
    try:
        return run(progress)
    except SystemExit as ended:  # argparse has printed the reason
        return int(ended.code or 0)
    except KeyboardInterrupt:
        status, text = 130, f"interrupted; {again}"
    except errors as error:
        status, text = 2, printable(str(error)) + getattr(error, "remedy", "")
    finally:
        progress.clear()
    print(f"jetblock {name}: {text}", file=sys.stderr)
    return status
