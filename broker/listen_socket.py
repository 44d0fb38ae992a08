"""An address that is bound before clients may connect to it.

A broker that finds its port in use only after taking the shard has ended the previous owner for nothing. So the port is
bound first: no other process can take it then, and clients are refused, as by a standby.
"""

from __future__ import annotations

import asyncio
import os
import socket

__all__ = ["Bound"]


class Bound:
    """Sockets on every address of one host name. ``port`` is the actual one."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        self._sockets = sockets
        self.port: int = sockets[0].getsockname()[1]

    @classmethod
    async def at(cls, host: str, port: int) -> Bound:
        """Args: host "" for all addresses; port 0 for any that is free.

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
        """Listen; the sockets are the caller's from here on.

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
