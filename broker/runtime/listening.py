"""Errors for ports that cannot be listened on, in nats-server's words."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from broker.base.errors import StartError

__all__ = ["host_port", "or_start_error"]


@contextmanager
def or_start_error(what: str, host: str, port: int, setting: str) -> Iterator[None]:
    """Turn a failure to bind or to listen into a StartError that begins with ``what``.

    Args: ``setting`` names the setting and the flag for another port.
    """
    try:
        yield
    except (OSError, UnicodeError) as error:
        raise StartError(f"{what}: {_why(host, port, error)}{_remedy(error, setting)}") from None


def host_port(host: str, port: int) -> str:
    """Return an address in the form of log lines."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _why(host: str, port: int, error: Exception) -> str:
    """Return the reason in Go's words: programs that start a server search for ``port`` and ``address already in
    use``."""
    where = host_port(host, max(port, 0))
    if isinstance(error, socket.gaierror | UnicodeError):
        return f'{where}, "listen tcp: lookup {host}: no such host"'
    number = error.errno if isinstance(error, OSError) else None
    why = os.strerror(number).lower() if number in (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES) else str(error)
    return f'{where}, "listen tcp {where}: bind: {why}"'


def _remedy(error: Exception, setting: str) -> str:
    """Return what the operator can do, after nats-server's words; "" if that is unknown."""
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRINUSE:
        return f"; another process listens there: stop it, or choose another port ({setting})"
    if number == errno.EACCES:
        return f"; ports below 1024 are for privileged users: choose another port ({setting})"
    if number == errno.EADDRNOTAVAIL:
        return "; this machine has no such address: name one that it has, or 0.0.0.0 for all"
    return ""
