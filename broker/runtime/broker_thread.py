"""A broker in a thread of this program, for programs and tests without asyncio.

    with BrokerThread("data/streams") as broker:
        client = connect(broker.url)                # any NATS client
        broker.restart()

The server is imported when the first broker starts, because each run of pytest imports this module.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import os

    from broker.runtime.embedded import Broker

__all__ = ["BrokerThread"]


class BrokerThread:
    """A broker on an event loop of its own: a context manager, or an object to ``start`` and ``stop`` repeatedly."""

    def __init__(self, store: str | os.PathLike[str] | None = "memory://", *, host: str = "127.0.0.1", port: int = -1,
                 settings: Mapping[str, Any] | None = None, standby: bool = False) -> None:
        """Take the arguments of ``jetblock.Broker``; only port=None is missing, because every client needs the port.

        Raises: ConfigError.
        """
        from broker.runtime.embedded import Broker

        self._broker: Broker = Broker(store, host=host, port=port, settings=settings, standby=standby)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread

    def start(self) -> None:
        """Start the broker; return when clients can connect. Raises: StartError; StoreInUse, which is one."""
        if self._loop is not None:
            raise RuntimeError("the broker is running")
        runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = runner.get_loop()
        self._thread = threading.Thread(target=_run_loop, args=[runner], name="jetblock", daemon=True)
        self._thread.start()
        starting = asyncio.run_coroutine_threadsafe(self._broker.start(), self._loop)
        try:
            starting.result()
        except BaseException:
            # Only an interrupt of this thread leaves the broker in the middle of its start.
            starting.cancel()
            self._end_thread()
            raise

    def stop(self) -> None:
        """Stop the broker cleanly: pending commits are stored and answered, then clients are disconnected."""
        if self._loop is not None:
            try:
                asyncio.run_coroutine_threadsafe(self._broker.stop(), self._loop).result()
            finally:
                self._end_thread()

    def _end_thread(self) -> None:
        loop, self._loop = self._loop, None
        assert loop is not None
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()

    def restart(self) -> None:
        """Stop the broker and start it again on the same port. Streams in ``memory://`` are lost, as by any restart."""
        self.stop()
        self.start()

    @property
    def port(self) -> int:
        """The port for clients, after the first start."""
        return self._broker.port

    @property
    def url(self) -> str:
        """The address for clients: ``nats://127.0.0.1:4222``."""
        return self._broker.url

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.stop()


def _run_loop(runner: asyncio.Runner) -> None:
    with runner:
        runner.get_loop().run_forever()
