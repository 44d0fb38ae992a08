"""``python -m jetblock`` and the command ``jetblock``."""

from broker.__main__ import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
