"""Events that the server publishes in its system account: connections, logins, and its own end.

    $SYS.ACCOUNT.<account>.CONNECT          a client logged in
    $SYS.ACCOUNT.<account>.DISCONNECT       a connection ended, with its traffic and the reason
    $SYS.ACCOUNT.<account>.SERVER.CONNS     an account's connections changed; repeated while it has any, except for $G
    $SYS.SERVER.ACCOUNT.<account>.CONNS     the same event under its old name
    $SYS.SERVER.<id>.CLIENT.AUTH.ERR        a login was refused
    $SYS.SERVER.<id>.LAMEDUCK, .SHUTDOWN    the server ends, after a while or now
    $SYS.ACCOUNT.CLIENT.AUTH.ERR            a login was refused; in the account of the connection

No event is built without subscribers. Events are published on a later turn of the loop, since a connection may end in
the middle of a delivery; only events about the server's end are published at once.

Source: nats-server, server/events.go (ConnectEventMsg, DisconnectEventMsg, AccountNumConns, sendShutdownEvent).
"""

from __future__ import annotations

import random
import string
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from broker.access.accounts import DEFAULT_ACCOUNT
from broker.base.clock import Clock
from broker.base.gojson.encoding import marshal
from broker.base.gotime import format_time
from broker.server.accounts.account import Account
from broker.server.connection.client import Client
from broker.server.connection.statistics import identity, token_fields
from broker.server.routing.router import Router

__all__ = ["Events", "connections_event"]

_ID_CHARS: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase
_NOWHERE: Final = {"gateways": {"msgs": 0, "bytes": 0}, "routes": {"msgs": 0, "bytes": 0}}
"""Traffic over routes and gateways, which do not exist."""


class Events:
    """Publishes the events. ``router`` is the system account's; ``server`` returns this server's current
    description."""

    def __init__(self, router: Router, clock: Clock, rng: random.Random, server_id: str,
                 server: Callable[[], dict[str, Any]], call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._router = router
        self._clock = clock
        self._rng = rng
        self._server_id = server_id
        self._server = server
        self._call_soon = call_soon
        self._queue: deque[tuple[Router, bytes, bytes]] = deque()

    def connected(self, client: Client) -> None:
        """Publish that ``client`` logged in."""
        subject = f"$SYS.ACCOUNT.{client.account.name}.CONNECT".encode()
        if self._router.interest(subject):
            shown = _shown(client)
            shown.pop("rtt", None)
            self._put(self._router, subject, self._typed("client_connect") | {"client": shown})

    def disconnected(self, client: Client) -> None:
        """Publish that ``client`` disconnected, also if it never logged in."""
        subject = f"$SYS.ACCOUNT.{client.account.name}.DISCONNECT".encode()
        if self._router.interest(subject):
            self._put(self._router, subject, self._ended(client, client.close_reason))

    def refused(self, client: Client, reason: str, *, in_account: bool) -> None:
        """Publish that a login of ``client`` was refused; ``in_account``: its account gets an event, too."""
        subject = f"$SYS.SERVER.{self._server_id}.CLIENT.AUTH.ERR".encode()
        own, own_subject = client.account.router, b"$SYS.ACCOUNT.CLIENT.AUTH.ERR"
        if in_account and own.interest(own_subject):
            self._put(own, own_subject, self._ended(client, reason))
        if self._router.interest(subject):
            self._put(self._router, subject, self._ended(client, reason))

    def connections_changed(self, account: Account) -> None:
        """Publish an account's number of connections, which has changed or is repeated."""
        if account.name == DEFAULT_ACCOUNT:
            return
        subjects = (f"$SYS.SERVER.ACCOUNT.{account.name}.CONNS".encode(),
                    f"$SYS.ACCOUNT.{account.name}.SERVER.CONNS".encode())
        if wanted := [subject for subject in subjects if self._router.interest(subject)]:
            event = self.connections(account)
            for subject in wanted:
                self._put(self._router, subject, event)

    def connections(self, account: Account) -> dict[str, Any]:
        """Return the event about an account's connections."""
        return self._typed("account_connections") | connections_event(account)

    def lame_duck(self) -> None:
        """Publish that the server asks its clients to reconnect elsewhere."""
        self._publish_end("LAMEDUCK")

    def shut_down(self) -> None:
        """Publish that the server is about to close its clients."""
        self._publish_end("SHUTDOWN")

    def flush(self) -> None:
        """Publish the queued events."""
        while self._queue:
            router, subject, body = self._queue.popleft()
            router.publish(subject, b"", 0, body)

    def _publish_end(self, what: str) -> None:
        self.flush()
        subject = f"$SYS.SERVER.{self._server_id}.{what}".encode()
        if self._router.interest(subject):
            self._router.publish(subject, b"", 0, marshal(self._server()))

    def _ended(self, client: Client, reason: str) -> dict[str, Any]:
        shown = _shown(client) | {"stop": format_time(client.stopped_at_ns or self._clock.now_ns())}
        return self._typed("client_disconnect") | {
            "client": shown, "sent": {"msgs": client.in_msgs, "bytes": client.in_bytes},
            "received": {"msgs": client.out_msgs, "bytes": client.out_bytes}, "reason": reason}

    def _typed(self, kind: str) -> dict[str, Any]:
        return {"type": f"io.nats.server.advisory.v1.{kind}", "id": "".join(self._rng.choices(_ID_CHARS, k=22)),
                "timestamp": format_time(self._clock.now_ns()), "server": self._server()}

    def _put(self, router: Router, subject: bytes, event: dict[str, Any]) -> None:
        if not self._queue:
            self._call_soon(self.flush)
        self._queue.append((router, subject, marshal(event)))


def _shown(client: Client) -> dict[str, Any]:
    return identity(client, "") | token_fields(client) | {
        "name_tag": client.account.settings.name_tag or client.account.name}


def connections_event(account: Account) -> dict[str, Any]:
    """Return an account's connections, subscriptions and traffic. Source: nats-server, server/events.go AccountStat."""
    traffic, leafs = account.traffic(), account.leaf_traffic()
    return {
        "acc": account.name, "name": account.name, "conns": account.connections, "leafnodes": len(account.leafs),
        "total_conns": account.connections + len(account.leafs), "num_subscriptions": account.subscriptions,
        "sent": {"msgs": traffic.out_msgs, "bytes": traffic.out_bytes, **_NOWHERE,
                 "leafs": {"msgs": leafs.out_msgs, "bytes": leafs.out_bytes}},
        "received": {"msgs": traffic.in_msgs, "bytes": traffic.in_bytes, **_NOWHERE,
                     "leafs": {"msgs": leafs.in_msgs, "bytes": leafs.in_bytes}},
        "slow_consumers": account.slow_consumers}
