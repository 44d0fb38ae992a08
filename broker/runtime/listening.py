"""Ports that cannot be listened on, as errors in nats-server's words."""

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
    """Raises: StartError, which begins with ``what``, where binding or listening at ``port`` fails.

    Args: ``setting`` says how another port is chosen.
    """
    try:
        yield
    except (OSError, UnicodeError) as error:
        raise StartError(f"{what}: {_why(host, port, error)}{_remedy(error, setting)}") from None


def host_port(host: str, port: int) -> str:
    """An address as logs show it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _why(host: str, port: int, error: Exception) -> str:
    """Launchers look for ``port`` and for ``address already in use``."""
    where = host_port(host, max(port, 0))
    if isinstance(error, socket.gaierror | UnicodeError):
        return f'{where}, "listen tcp: lookup {host}: no such host"'
    number = error.errno if isinstance(error, OSError) else None
    why = os.strerror(number).lower() if number in (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES) else str(error)
    return f'{where}, "listen tcp {where}: bind: {why}"'


def _remedy(error: Exception, setting: str) -> str:
    """What to do about it, beyond nats-server's words; "" if that is not known."""
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRINUSE:
        return f"; another process listens there: stop it, or choose another port ({setting})"
    if number == errno.EACCES:
        return f"; ports below 1024 are for privileged users: choose another port ({setting})"
    if number == errno.EADDRNOTAVAIL:
        return "; this machine has no such address: name one that it has, or 0.0.0.0 for all"
    return ""
