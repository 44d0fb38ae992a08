"""``python -m broker`` and the command ``jetblock``."""

from __future__ import annotations

import sys

from broker.cli import run

__all__ = ["main"]


def main() -> None:
    """Run the command line and end the process with its status."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
