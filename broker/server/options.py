"""The server's options: plain values. Reading files and flags is ``broker.config``'s."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from broker.protocol.parser import MAX_CONTROL_LINE, MAX_PAYLOAD
from broker.server.auth.authenticator import Authenticate

__all__ = ["COMPATIBLE_VERSION", "ServerOptions"]

COMPATIBLE_VERSION = "2.15.1"
"""The nats-server release whose behaviour is offered: clients decide by INFO's version which features they use."""

_SECOND = 1_000_000_000


@dataclass(slots=True)
class ServerOptions:
    """Defaults are nats-server's. Durations in ns; sizes in bytes; 0 connections or subscriptions means no limit."""

    host: str = "0.0.0.0"
    port: int = 4222
    """-1: any free port."""

    server_name: str = ""
    """"" takes the server's id."""

    version: str = COMPATIBLE_VERSION
    api_level: int = 5
    jetstream: bool = False
    domain: str = ""
    headers: bool = True
    max_payload: int = MAX_PAYLOAD
    max_control_line: int = MAX_CONTROL_LINE
    max_pending: int = 64 * 1024 * 1024
    no_fast_producer_stall: bool = False
    """Never slow a publisher down for a receiver that is far behind."""

    max_connections: int = 65536
    max_subscriptions: int = 0
    ping_interval_ns: int = 120 * _SECOND
    ping_max: int = 2
    write_deadline_ns: int = 10 * _SECOND
    lame_duck_duration_ns: int = 120 * _SECOND
    lame_duck_grace_ns: int = 10 * _SECOND
    closed_connections_max: int = 1000
    """How many closed connections ``connections(closed=True)`` still lists."""

    trace: bool = False
    """Log each protocol line of each client."""

    max_traced_msg_len: int = 0
    """Bytes of a payload in such a line; 0: all."""

    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    users: Sequence[tuple[str, str]] = field(default=(), repr=False)
    """(user, password) pairs, beside or instead of the single one."""

    no_auth_user: str = ""
    """One of ``users``: the user of clients without credentials."""

    auth_timeout_ns: int = 2 * _SECOND
    authenticate: Authenticate | None = field(default=None, repr=False)
    """Decides in place of user, password, token and users."""

    connect_urls: Sequence[str] = ()
    """Other addresses of this server or its cluster for INFO, as host:port."""
