"""An address that is bound before clients may connect to it, and that later accepts connections.

If a broker took the shard and then found its port in use, it would have ended the previous owner for nothing. So the
port is bound first: then no other process can take it, and clients are refused, as by a standby.

A listener accepts no connection while its descriptor would come from the reserve (``descriptors``): connections then
wait in the kernel's queue, and are accepted in order once others have closed. asyncio's own servers cannot do that. On
EMFILE, libuv accepts connections and closes them at once, and asyncio stops listening for a second.

Source: nats-server, server/server.go (acceptConnections, acceptError).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, Final

from broker.base.descriptors import is_free_for_connections, open_files_max, reserved

__all__ = ["Bound", "Listener"]

log = logging.getLogger(__name__)

_PAUSE_S: Final = 0.01
_PAUSE_S_MAX: Final = 0.25
"""The pause between two checks for a free descriptor, doubled each time. A check takes two system calls."""

_LOG_EVERY_S: Final = 60.0
"""The interval of log lines while the process is at the limit."""

_OF_ONE_CONNECTION: Final = frozenset((
    errno.ECONNABORTED, errno.EPERM, errno.EPROTO, errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN,
    errno.EHOSTUNREACH, errno.ENOPROTOOPT, errno.EOPNOTSUPP))
"""Errors of ``accept`` about a connection that has ended already, or that a firewall refuses."""


class Bound:
    """Bound sockets on every address of one host name. ``port`` is the port that they have."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        self._sockets = sockets
        self.port: int = sockets[0].getsockname()[1]

    @classmethod
    async def at(cls, host: str, port: int) -> Bound:
        """Bind. Args: host "" for all addresses; port 0 for any free port.

        Raises: OSError, UnicodeError: the host is unknown, or the address is not available.
        """
        found = await asyncio.get_running_loop().getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        sockets: list[socket.socket] = []
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                try:
                    bound = socket.socket(family, kind, protocol)
                except OSError:
                    continue  # an address family that this machine does not support
                sockets.append(bound)
                if os.name == "posix":
                    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                bound.bind(address)
            if not sockets:
                raise OSError(f"no address of {host} can be used")
        except BaseException:
            for each in sockets:
                each.close()
            raise
        return cls(sockets)

    def listen(self, backlog: int) -> list[socket.socket]:
        """Listen, and return the sockets, which the caller owns from then on.

        Raises: OSError if another process, which had bound the address at the same time, was faster; all are closed.
        """
        try:
            for each in self._sockets:
                each.setblocking(False)
                each.listen(backlog)
        except BaseException:
            self.close()
            raise
        sockets, self._sockets = self._sockets, []
        return sockets

    def close(self) -> None:
        """Release the address."""
        for each in self._sockets:
            each.close()
        self._sockets = []


class Listener:
    """Accepts connections at the addresses of a ``Bound``, from its creation on until ``close``.

    Args: ``what`` names these connections in the log, as in "client"; ``monitoring`` lets them use a part of the
        reserve; ``ssl_context``, with ``handshake_seconds`` for a handshake, selects asyncio's TLS.
    Raises: OSError if another process that had bound the address at the same time was faster.
    """

    def __init__(self, bound: Bound, backlog: int, factory: Callable[[], asyncio.Protocol], what: str, *,
                 monitoring: bool = False, ssl_context: ssl.SSLContext | None = None,
                 handshake_seconds: float | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._factory = factory
        self._what = what
        self._monitoring = monitoring
        self._tls: dict[str, Any] = {}
        if ssl_context is not None:
            self._tls = {"ssl": ssl_context, "ssl_handshake_timeout": handshake_seconds}
        self._sockets = bound.listen(backlog)
        self._timers: dict[socket.socket, asyncio.TimerHandle] = {}
        self._opening: set[asyncio.Task[Any]] = set()
        self._logged_s: float | None = None
        self._pausing = False
        for listening in self._sockets:
            self._watch(listening)

    def close(self) -> None:
        """Accept no more connections; those that were accepted stay."""
        sockets, self._sockets = self._sockets, []
        for listening in sockets:
            self._loop.remove_reader(listening.fileno())
            listening.close()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _watch(self, listening: socket.socket) -> None:
        self._loop.add_reader(listening.fileno(), self._accept, listening)

    def _accept(self, listening: socket.socket, pause_s: float = _PAUSE_S) -> None:
        """Accept one connection. The loop calls this again while more wait; a try that finds none costs more than a
        turn."""
        try:
            if not is_free_for_connections(listening.fileno(), monitoring=self._monitoring):
                self._pause(listening, pause_s, os.strerror(errno.EMFILE))
                return
            accepted, _ = listening.accept()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            if error.errno not in _OF_ONE_CONNECTION:
                self._pause(listening, pause_s, error.strerror or str(error))
                return
        else:
            accepted.setblocking(False)
            task = self._loop.create_task(self._open(accepted))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
        self._watch_again(listening)

    async def _open(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._factory, accepted, **self._tls)
        except (OSError, TimeoutError) as error:  # the handshake failed, or the peer has gone
            log.debug("a %s connection ended while it was opened: %s", self._what, error)
            accepted.close()

    def _pause(self, listening: socket.socket, pause_s: float, why: str) -> None:
        """Let connections wait in the kernel's queue for a while."""
        if listening not in self._timers:
            self._loop.remove_reader(listening.fileno())
        self._timers[listening] = self._loop.call_later(pause_s, self._accept, listening,
                                                        min(2 * pause_s, _PAUSE_S_MAX))
        now_s = time.monotonic()
        if self._logged_s is None or now_s - self._logged_s >= _LOG_EVERY_S:
            self._logged_s, self._pausing = now_s, True
            most = open_files_max()
            log.error("Temporary %s Accept Error (%s): connections wait until others close; this process may open %d "
                      "files, and the last %d are kept for the store, the logs and the configuration",
                      self._what, why.lower(), most, reserved(most))

    def _watch_again(self, listening: socket.socket) -> None:
        """Watch a socket again if it was paused."""
        if self._timers.pop(listening, None) is None:
            return
        self._watch(listening)
        if self._pausing:
            self._pausing = False
            log.info("%s connections are accepted again", self._what)
