"""The main program of a broker behind a nats-server (``broker.front``): ``python -m broker.runtime.worker FILE``.

The file has its settings, as the supervisor wrote them. SIGHUP reads it again. The end of standard input means that the
supervisor has ended.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from pathlib import Path

from broker.config.settings import Settings
from broker.runtime.process import serve

__all__ = ["main"]


def main(path: str) -> int:
    """Run the worker until it is stopped."""
    def read() -> Settings:
        # The file is in a folder of mode 0700 that the supervisor made: nobody else can have written it.
        settings: Settings = pickle.loads(Path(path).read_bytes())
        return settings

    threading.Thread(target=_end_with_supervisor, name="wait for the supervisor's end", daemon=True).start()
    return serve(read(), read)


def _end_with_supervisor() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
