"""The main program of a broker behind a nats-server (``broker.front``): ``python -m broker.runtime.worker DESCRIPTOR``.

The descriptor is of a file with its settings, as the supervisor wrote them. SIGHUP reads it again. The end of standard
input means that the supervisor has ended.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading

from broker.config.settings import Settings
from broker.runtime.process import serve

__all__ = ["main"]


def main(descriptor: int) -> int:
    """Run the worker until it is stopped."""
    def read() -> Settings:
        # The file has no name: nobody but the supervisor can have written it.
        settings: Settings = pickle.loads(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
        return settings

    threading.Thread(target=_end_with_supervisor, name="wait for the supervisor's end", daemon=True).start()
    return serve(read(), read)


def _end_with_supervisor() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
