"""A broker process that counts the processor time of each turn of its event loop.

    python -m tests.growth.metered FD       a template: imports the broker once, then forks a broker for each request

The template reads requests from the socket ``FD``: a JSON object with the broker's arguments and the file for its
standard error, together with one end of a control socket. It forks, and the child runs the broker's own command line.
Only the event loop is replaced: by asyncio's, because a turn of uvloop has no place for a stop watch. A process of its
own has its own garbage collector and interpreter lock, so the test's work is not counted.

The control socket takes one command in each line and answers with one JSON object. A thread of the broker serves it,
so that it adds no turn to the loop. Its end ends the broker.

    start   {}                                     count from now on
    figures {"cpu_s": …, "turn_s": …, "turns": …}  processor time of all threads, the longest turn, the number of turns
    pace    {"pace_s": …}                          the processor time of ``reference_work`` now
    reload  {}                                     read the configuration file again
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import socket
import sys
import threading
import time
from importlib import import_module
from pkgutil import iter_modules
from statistics import median
from typing import Any

import broker.runtime

__all__ = ["fork_brokers", "reference_work"]


_PRELOADED = ("broker.config.load", "broker.config.reading.accounts", "broker.monitor.web", "broker.monitor.metrics",
              "broker.server.operator.accounts", "ctypes", "encodings.idna", "uvloop")


class MeteredLoop(asyncio.SelectorEventLoop):
    """Measures each turn: from one wait for events to the next, in the processor time of the loop's thread."""

    def __init__(self) -> None:
        super().__init__()
        METER.loop = self
        self.turn_s = 0.0
        self.turns = 0
        self.began_s: float | None = None

    def _run_once(self) -> None:
        self.began_s = began_s = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        self.turn_s = max(self.turn_s, time.thread_time() - began_s)
        self.turns += 1


def reference_work() -> float:
    """Do a fixed piece of work of the kind that a broker does. Returns: its processor time, in seconds."""
    began_s = time.thread_time()
    lengths: dict[bytes, int] = {}
    for i in range(6000):
        subject = b"%d.%d" % (i & 255, i)
        lengths[subject[:3]] = lengths.get(subject[:3], 0) + len(subject)
    return time.thread_time() - began_s


class Meter:
    """Serves the control socket in a thread."""

    loop: MeteredLoop | None = None

    def __init__(self) -> None:
        self._cpu_s = 0.0
        self._turns = 0
        self._commands = {"start": self.start, "figures": self.figures, "pace": self.pace, "reload": self.reload}

    def serve(self, control: socket.socket) -> None:
        threading.Thread(target=self._serve, args=(control,), name="meter", daemon=True).start()

    def _serve(self, control: socket.socket) -> None:
        with control, control.makefile("rw") as stream:
            for command in stream:
                stream.write(json.dumps(self._commands[command.strip()]()) + "\n")
                stream.flush()
        os._exit(0)

    def start(self) -> dict[str, Any]:
        loop = self.loop
        self._cpu_s = time.process_time()
        if loop is not None:
            loop.turn_s = 0.0
            self._turns = loop.turns
        return {}

    def figures(self) -> dict[str, Any]:
        loop = self.loop
        return {"cpu_s": time.process_time() - self._cpu_s, "turn_s": loop.turn_s if loop is not None else 0.0,
                "turns": loop.turns - self._turns if loop is not None else 0}

    def pace(self) -> dict[str, Any]:
        return {"pace_s": median(reference_work() for _ in range(5))}

    def reload(self) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGHUP)
        return {}


METER = Meter()


def fork_brokers(requests: socket.socket) -> None:
    """Fork a broker for each request, until the socket ends."""
    # All that a broker may import at its start or later.
    for name in (*_PRELOADED, *(f"broker.runtime.{one.name}" for one in iter_modules(broker.runtime.__path__))):
        import_module(name)
    # Ended brokers need no wait().
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, 1 << 16, 1)
        if not data:
            return
        if os.fork() == 0:
            requests.close()
            _become_broker(json.loads(data), socket.socket(fileno=descriptors[0]))
        os.close(descriptors[0])


def _become_broker(request: dict[str, Any], control: socket.socket) -> None:
    from broker.__main__ import main
    from broker.runtime import process

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    errors = os.open(request["errors"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(errors, 2)
    os.dup2(errors, 1)
    # Writes to the memory that this process shares with the template, so that the measured work does not pay for its
    # copies.
    gc.collect()
    METER.serve(control)
    METER.start()
    process._loop_factory = lambda: MeteredLoop  # type: ignore[assignment]
    sys.argv = ["jetblock", *request["arguments"]]
    try:
        main()
    except SystemExit as end:
        os._exit(int(end.code or 0))
    finally:
        os._exit(70)


if __name__ == "__main__":
    fork_brokers(socket.socket(fileno=int(sys.argv[1])))
