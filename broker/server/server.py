"""The server: it listens, keeps the clients and counters, and shuts down in order.

Owns: the listening sockets, INFO, admission, the server's counters and lame duck mode. Does not own: what a client may
do (connection), where messages go (routing), who may log in (auth), the counts of an account (accounts).

A shutdown accepts no more connections, then sends each client its queued bytes and closes it. In lame duck mode it
notifies the clients first, and closes them one by one. The counters can be read afterwards. JetStream stops earlier, in
``app``; the router works until the last client is closed.

Source: nats-server, server/server.go (createClientEx, lameDuckMode, Shutdown), server/monitor.go (ConnInfo).
"""

from __future__ import annotations

import asyncio
import base64
import logging
import random
import secrets
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from broker import JETSTREAM_API_LEVEL, NATS_SERVER_VERSION
from broker.access.accounts import NO_LIMIT, AccountSettings
from broker.access.sharing import SubjectMapping
from broker.base.clock import Clock, SystemClock
from broker.base.gotime import format_time
from broker.base.listen_socket import Bound, Listener
from broker.config.settings import AuthSettings, Settings
from broker.server.accounts.account import Account
from broker.server.accounts.directory import Accounts, domain_mappings, user_of, wanted_accounts
from broker.server.auth.authenticator import AuthenticatorChain, authenticator, warnings
from broker.server.auth.login import Authenticator, Refusal
from broker.server.auth.passwords import PasswordChecks
from broker.server.connection.client import Client
from broker.server.connection.outbound import SLOW_BYTES, Flusher, Outbound
from broker.server.connection.statistics import connection_row, identity, subscription_row, uptime
from broker.server.delegation import Delegation
from broker.server.listeners.entrance import ClientPort, users_by_certificate
from broker.server.routing.router import Router
from broker.server.sharing.exchange import Exchange
from broker.server.system.system import System

if TYPE_CHECKING:
    from broker.server.leaf.nodes import LeafNodes
    from broker.server.listeners.websocket import WebSocketListener

__all__ = ["Server"]

log = logging.getLogger(__name__)

_BACKLOG = 4096

_NONCE_BYTES = 11

_CLOSED_SUBS_MAX = 1000
"""Bound on the subscriptions that are kept of one closed connection."""

_CLOSE_SECONDS = 2.0
"""Time for which ``close`` waits until clients have received their queued bytes."""


class Server:
    """A server of core NATS on one client port, and on a WebSocket port if that is configured.

    ``start`` binds the port, unless ``bind`` did, and accepts connections. From then on ``port`` is the actual number.
    """

    def __init__(self, settings: Settings, clock: Clock | None = None, rng: random.Random | None = None, *,
                 authenticators: Sequence[Authenticator] = (), tracer: Any = None) -> None:
        """Args: ``authenticators`` are tried before those in ``settings.auth``; ``tracer``: that of all routers."""
        self.settings = settings
        self.clock: Clock = clock if clock is not None else SystemClock()
        self.rng = rng if rng is not None else random.Random()
        self._tracer = tracer
        self.accounts = Accounts(settings.accounts, self._make_router,
                                 Exchange(self.rng, self._call_later, self.clock.now_ns, self._own_client), self.rng,
                                 _mappings(settings),
                                 operator=settings.operator.enabled)
        self.delegation = Delegation(self, settings)
        self.server_id = self.delegation.server_id or _server_id(self.rng)
        self._event_seq = 0
        self.clients: dict[int, Client] = {}
        self.server_name = settings.server_name or self.server_id
        self.password_checks = PasswordChecks()
        self._authenticators = authenticators
        self._loaded = False
        self.entrance = ClientPort()
        self.websocket: WebSocketListener | None = None
        if settings.websocket.port is not None:
            # The import takes 60 ms and is rarely needed.
            from broker.server.listeners.websocket import WebSocketListener

            self.websocket = WebSocketListener(self)
        self.leafs: LeafNodes | None = None
        """The connections to other servers; None if no settings mention them."""

        if settings.leafnodes.remotes or settings.leafnodes.port is not None:
            from broker.server.leaf.nodes import LeafNodes  # rarely needed, too

            self.leafs = LeafNodes(self)
        self.warnings = warnings(settings.auth, by_certificate=settings.tls.verify_and_map)
        """Warnings about the settings, which are logged at the start."""
        self.started_at_ns = self.configured_at_ns = self.clock.now_ns()
        self.host = settings.clients.host
        self.port = settings.clients.port
        self.lame = False
        self.stalled: list[Outbound] = []
        """Receivers that are far behind and got messages from the current read."""

        self.total_connections = 0
        self.slow_consumers = 0
        self.slow_by_bytes = 0
        self.stale_connections = 0
        self.stalled_clients = 0
        self._closed: deque[dict[str, Any]] = deque(maxlen=settings.clients.max_closed_clients)
        self._last_cid = 0
        self._bound: Bound | None = None
        self._listener: Listener | None = None
        self._transports = 0
        # Set while there are no clients; set while no connection has output left to write.
        self._no_clients = asyncio.Event()
        self._no_clients.set()
        self._silent = asyncio.Event()
        self._silent.set()
        self._info: dict[str, Any] = {}
        self._connect_urls: list[str] = []
        account = self.accounts.system
        self.system = System(self, account, self._call_soon) if account is not None else None
        """The system account's services; None if there is no system account."""

    @property
    def router(self) -> Router:
        """The default account's router."""
        return self.accounts.default.router

    @property
    def subscription_count(self) -> int:
        """The number of subscriptions of all accounts."""
        return sum(account.subscriptions for account in self.accounts)

    # Start and shutdown

    def _make_router(self, name: str) -> Router:
        router = Router(self.clock, self.rng, self._call_soon, name)
        router.tracer = self._tracer
        return router

    async def bind(self) -> None:
        """Bind the port, but refuse connections until ``start``. Raises: OSError if it is not available."""
        if self._bound is None and self.settings.clients.listen:
            self._bound = await Bound.at(self.settings.clients.host, max(self.port, 0))
        if self.websocket is not None:
            await self.websocket.bind()

    def unbind(self) -> None:
        """Release the port if it is bound and the server does not listen on it yet."""
        if self._bound is not None:
            self._bound.close()
            self._bound = None
        if self.websocket is not None:
            self.websocket.unbind()
        if self.leafs is not None and self.leafs.port is not None:
            self.leafs.port.unbind()

    async def start(self) -> None:
        """Listen. A second start uses the same port, which clients know. Raises: OSError if it cannot be bound."""
        self.loop = asyncio.get_running_loop()
        self.flusher = Flusher(self.loop)
        if not self._loaded:
            self.load()
        await self.delegation.resolve_system()
        await self.bind()
        bound, self._bound = self._bound, None
        if bound is not None:
            self._listener = Listener(bound, _BACKLOG, self._new_connection, "Client")
            self.port = bound.port
            log.info("Listening for client connections on %s", _host_port(self.settings.clients.host, self.port))
            if self.settings.tls.enabled:
                log.info("TLS %s for client connections",
                         "available" if self.settings.clients.allow_non_tls else "required")
                if self.settings.tls.handshake_first_ns == 0:
                    log.warning('Clients that are not using "TLS Handshake First" option will fail to connect')
        self._set_info()
        if self.websocket is not None:
            await self.websocket.start(_BACKLOG)
        if self.system is not None:
            self.system.start(self.loop)
        if self.leafs is not None:
            await self.leafs.start()

    async def connect(self) -> socket.socket:
        """Open a connection within this process, without a port. Returns: the client's end."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        await self.loop.connect_accepted_socket(self._new_connection, ours)
        return theirs

    def _new_connection(self) -> asyncio.Protocol:
        if not self.entrance.needs_opening:
            return Client(self)
        # This import, with the reader of PROXY headers, takes 2 ms, and only ports with TLS or behind a proxy need it.
        from broker.server.listeners.opening import Opening

        return Opening(self, Client(self), self.entrance)

    async def close(self) -> None:
        """Stop accepting, send each client its queued bytes, and close all clients."""
        self.stop_listening()
        self.delegation.close()
        if self.system is not None:
            self.system.stop()
        for client in list(self.clients.values()):
            client.close("Server Shutdown")
        if self.leafs is not None:
            await self.leafs.stop()
        await _within(self._silent, _CLOSE_SECONDS)

    async def lame_duck(self) -> None:
        """Ask clients to reconnect elsewhere, wait for the grace period, then close them one by one in the rest of the
        time."""
        if self.lame:
            return
        self.lame = True
        log.info("Entering lame duck mode, stop accepting new clients")
        if self.system is not None:
            self.system.events.lame_duck()
        self.stop_listening()
        self._set_info()
        for client in list(self.clients.values()):
            client.send_info()
        grace_s = self.settings.clients.lame_duck_grace_period_ns / 1e9
        rest_s = self.settings.clients.lame_duck_duration_ns / 1e9 - grace_s
        if rest_s <= 0:
            rest_s = 1.0
        if not await _within(self._no_clients, grace_s):
            log.info("Closing existing clients")
            clients = list(self.clients.values())
            # If there are few clients, closing them need not take the whole time.
            between_s = min(rest_s / len(clients), 1.0)
            for client in clients:
                client.close("Server Shutdown")
                if client is not clients[-1]:
                    await asyncio.sleep(between_s * self.rng.uniform(0.5, 1.0))
        await self.close()

    def advertise(self, connect_urls: list[str]) -> None:
        """Change the addresses that INFO offers, and send it to the clients."""
        if connect_urls != self._connect_urls:
            self._connect_urls = list(connect_urls)
            self._set_info()
            for client in list(self.clients.values()):
                client.send_info()

    def stop_listening(self) -> None:
        """Accept no more connections."""
        self.unbind()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self.websocket is not None:
            self.websocket.stop_listening()
        if self.leafs is not None and self.leafs.port is not None:
            self.leafs.port.stop_listening()

    # Other settings

    def load(self) -> None:
        """Load the certificates and users; ``start`` does this if it was not done before. Raises: ValueError."""
        self.delegation.load(self.settings)
        for apply in self._prepare_entrances(self.settings, wanted_accounts(self.settings.accounts)):
            apply()
        self._loaded = True

    def prepare(self, settings: Settings) -> Callable[[], None]:
        """Prepare for new settings. Returns: a function that applies them at once. Raises: ValueError; nothing has
        changed.

        Source: nats-server, server/reload.go (reloadAuthorization, maxConnOption).
        """
        wanted = wanted_accounts(settings.accounts, operator=settings.operator.enabled)
        if self.delegation.operator is not None:
            wanted |= {account.name: account.settings for account in self.accounts}
        delegate = self.delegation.prepare(settings)
        entrances = self._prepare_entrances(settings, wanted)

        def apply() -> None:
            before = self.settings
            access_changed = (settings.auth, settings.accounts, settings.operator) != (
                before.auth, before.accounts, before.operator)
            delegate()
            self.settings = settings
            self.configured_at_ns = self.clock.now_ns()
            for apply_entrance in entrances:
                apply_entrance()
            self.accounts.change(wanted)
            if self.leafs is None and settings.leafnodes.remotes:
                from broker.server.leaf.nodes import LeafNodes

                self.leafs = LeafNodes(self)
                if self._listener is not None:
                    self.leafs.open_remotes()
            if self.leafs is not None:
                self.leafs.remotes_changed()
                self.leafs.accounts_changed()
            if self._listener is not None:
                self._set_info()
            clients = list(self.clients.values())
            for client in clients:
                client.settings_changed()
            # With configured users or accounts, nats-server checks all clients at every reload. If the access settings
            # are the same, the check can only fail for a client that sent an nkey: without configured nkeys, its login
            # did not check the nkey.
            checked = settings.auth.users or settings.accounts.configured
            for client in clients:
                if not client.closed and (access_changed or (checked and client.options.get("nkey"))):
                    client.users_changed(settings.auth.names)
            if access_changed and self.leafs is not None:
                self.leafs.users_changed()
            self._close_surplus()
            self.accounts.drop_deleted()

        return apply

    def _close_surplus(self) -> None:
        limit = self.settings.clients.max_connections
        surplus = list(self.clients.values())[limit:] if limit else []
        for client in surplus:
            client.fail("maximum connections exceeded", "Maximum Connections Exceeded")
        if surplus:
            log.info("Closed %d connections to fall within max_connections", len(surplus))
        for account in self.accounts:
            most = account.settings.max_connections
            if most != NO_LIMIT and account.connections > most:
                members = [client for client in self.clients.values() if client.account is account and client.connected]
                for client in members[max(most, 0):]:
                    client.exceed_account()

    def _prepare_entrances(self, settings: Settings,
                           accounts: Mapping[str, AccountSettings]) -> list[Callable[[], None]]:
        def chain_of(auth: AuthSettings, by_certificate: bool) -> AuthenticatorChain | None:
            by_tokens = self.delegation.by_tokens(settings, self._authenticators)
            if by_tokens is not None:
                return by_tokens
            auth = auth.replace(users=tuple(user_of(user, accounts.get(user.account)) for user in auth.users),
                                nkeys=tuple(user_of(user, accounts.get(user.account)) for user in auth.nkeys))
            chain = authenticator(auth, self.password_checks, self._authenticators, by_certificate=by_certificate,
                                  certificate_only=certificate_only)
            return self.delegation.with_service(chain, auth)

        certificate_only = users_by_certificate(settings)
        ready = [self.entrance.prepare(settings, chain_of)]
        if self.websocket is not None:
            ready.append(self.websocket.entrance.prepare(settings, chain_of))
        if self.leafs is not None and self.leafs.port is not None:
            ready.append(self.leafs.port.prepare(settings, chain_of))
        if any(remote.tls is not None for remote in settings.leafnodes.remotes):
            from broker.server.leaf.solicited import tls_context

            for remote in settings.leafnodes.remotes:
                if remote.tls is not None:
                    tls_context(remote.tls)  # a file that cannot be used is an error at once
        return ready

    def _call_soon(self, callback: Any) -> None:
        # Use the loop that runs at that time: JetStream watches subjects before the server listens.
        asyncio.get_running_loop().call_soon(callback)

    @staticmethod
    def _call_later(seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, callback)

    # For connections

    async def load_account(self, name: str) -> Account | None:
        """Return an account; in operator mode, its token is fetched first. None: there is no such account."""
        operator = self.delegation.operator
        if self.accounts.get(name) is None and operator is not None:
            from broker.server.operator.accounts import AccountError

            try:
                await operator.get(name)
            except AccountError as error:
                log.error("Account %s: %s", name, error)
        return self.accounts.get(name)

    def next_cid(self) -> int:
        self._last_cid += 1
        return self._last_cid

    def count_opened(self) -> None:
        """Count an open connection."""
        self._transports += 1
        self._silent.clear()

    def count_closed(self) -> None:
        """Count a connection that has ended: its output was written or dropped."""
        self._transports -= 1
        if not self._transports:
            self._silent.set()

    def admit(self, client: Client) -> str:
        """Register ``client``. Returns: the error to send; "" if it may stay."""
        self.total_connections += 1
        limit = self.settings.clients.max_connections
        if limit and len(self.clients) >= limit:
            return "maximum connections exceeded"
        self.clients[client.cid] = client
        client.account.join(client)
        self._no_clients.clear()
        return ""

    def remove_client(self, client: Client) -> None:
        """Remove ``client``, which is closing; keep its counts and its last row."""
        client.account.leave(client)
        if self.clients.pop(client.cid, None) is not None:
            if self._closed.maxlen:
                account = client.account.name
                subs = [{"account": account, "account_tag": account, **subscription_row(sub)}
                        for sub in islice(client.subs.values(), _CLOSED_SUBS_MAX)]
                self._closed.append({**self.row(client), "subscriptions_list_detail": subs})
            if not self.clients:
                self._no_clients.set()
        if self.system is not None:
            self.system.events.disconnected(client)

    def publish_login(self, client: Client) -> None:
        """Send the event that ``client`` was accepted as a user."""
        if self.system is not None:
            self.system.events.connected(client)

    def publish_refusal(self, client: Client, refusal: Refusal) -> None:
        """Send the event that ``client`` was refused as a user; it is closing."""
        if self.system is not None:
            self.system.events.refused(client, refusal.reason, in_account=not refusal.after_login)

    def count_slow(self, client: Client, reason: str) -> None:
        self.slow_consumers += 1
        client.account.slow_consumers += 1
        if reason == SLOW_BYTES:
            self.slow_by_bytes += 1
        log.info("%s - %s", client.label, reason)

    def info(self, client: Client) -> dict[str, Any]:
        """Return INFO's fields for ``client``."""
        fields = dict(self._info)
        fields["client_id"] = client.cid
        if client.ip_known:
            fields["client_ip"] = client.ip
        fields["max_payload"] = client.parser.max_payload
        chain, proxies = client.entrance.authenticator, client.entrance.proxies
        if ((chain is not None and chain.wants_nonce) or proxies is not None) and not client.connected:
            client.nonce = client.nonce or _nonce()
            fields["nonce"] = client.nonce.decode()
        client.entrance.describe(fields)
        if client.tls_first:
            # This client uses TLS already, even if TLS is optional for others.
            fields["tls_required"] = True
        return fields

    def _own_client(self) -> dict[str, Any]:
        """Return a new client of the broker itself, as services see it.

        Source: nats-server, server/client.go (getClientInfo).
        """
        return {"start": format_time(self.clock.now_ns()), "id": self.next_cid(), "server": self.server_name}

    def identity(self, client: Client) -> dict[str, Any]:
        """Return ``client`` as JetStream's advisories show it."""
        return identity(client, self.server_name)

    def event_identity(self, at: str = "") -> dict[str, Any]:
        """Return this server as events show it, at the time ``at`` or now.

        Source: nats-server, server/events.go ServerInfo.
        """
        self._event_seq += 1
        settings = self.settings
        shown: dict[str, Any] = {
            "name": self.server_name, "host": settings.clients.host or "0.0.0.0", "id": self.server_id}
        if settings.jetstream.domain:
            shown["domain"] = settings.jetstream.domain
        shown["ver"] = NATS_SERVER_VERSION
        shown["feature_flags"] = self.settings.jetstream.feature_flags()
        if settings.server_tags:
            shown["tags"] = list(settings.server_tags)
        if settings.server_metadata:
            shown["metadata"] = dict(settings.server_metadata)
        return {**shown, "jetstream": settings.jetstream.enabled, "flags": int(settings.jetstream.enabled),
                "seq": self._event_seq, "time": at or format_time(self.clock.now_ns())}

    def _set_info(self) -> None:
        clients, jetstream = self.settings.clients, self.settings.jetstream
        fields: dict[str, Any] = {
            "server_id": self.server_id, "server_name": self.server_name, "version": NATS_SERVER_VERSION, "proto": 1,
            "go": f"cpython{sys.version_info[0]}.{sys.version_info[1]}", "host": clients.host or "0.0.0.0",
            "port": self.port, "headers": not clients.no_header_support, "max_payload": clients.max_payload,
        }
        if self.entrance.authenticator is not None and not self.settings.auth.no_auth_user:
            fields["auth_required"] = True
        if jetstream.enabled:
            fields["jetstream"] = True
        if jetstream.domain:
            fields["domain"] = jetstream.domain
        if self._connect_urls:
            fields["connect_urls"] = self._connect_urls
        if self.lame:
            fields["ldm"] = True
        fields["api_lvl"] = JETSTREAM_API_LEVEL
        self._info = fields

    # For monitoring: plain snapshots

    def varz(self) -> dict[str, Any]:
        """Return this server's part of /varz."""
        traffic, leafs = self.accounts.traffic(), self.accounts.leaf_traffic()
        clients, tls = self.settings.clients, self.entrance.tls
        return {
            "server_id": self.server_id, "server_name": self.server_name, "version": NATS_SERVER_VERSION, "proto": 1,
            "host": clients.host or "0.0.0.0", "port": self.port,
            **({"auth_required": True} if self.entrance.authenticator is not None else {}),
            **({"connect_urls": list(self._connect_urls)} if self._connect_urls else {}),
            **({"max_subscriptions": clients.max_subscriptions} if clients.max_subscriptions else {}),
            "max_connections": clients.max_connections, "max_payload": clients.max_payload,
            "max_control_line": clients.max_control_line, "max_pending": clients.max_pending,
            "ping_interval": clients.ping_interval_ns, "ping_max": clients.ping_max,
            **({"tls_required": True} if tls is not None and not clients.allow_non_tls else {}),
            **({"tls_verify": True} if tls is not None and tls.verify else {}),
            "tls_timeout": self.settings.tls.timeout_ns / 1e9,
            "auth_timeout": self.settings.auth.timeout_ns / 1e9, "write_deadline": clients.write_deadline_ns,
            "start": format_time(self.started_at_ns), "now": format_time(self.clock.now_ns()),
            "uptime": uptime(self.clock.now_ns() - self.started_at_ns),
            "connections": len(self.clients), "total_connections": self.total_connections,
            "in_msgs": traffic.in_msgs, "in_bytes": traffic.in_bytes,
            "out_msgs": traffic.out_msgs, "out_bytes": traffic.out_bytes,
            "in_client_msgs": traffic.in_msgs - leafs.in_msgs, "in_client_bytes": traffic.in_bytes - leafs.in_bytes,
            "out_client_msgs": traffic.out_msgs - leafs.out_msgs,
            "out_client_bytes": traffic.out_bytes - leafs.out_bytes,
            "leafnodes": len(self.leafs.connections) if self.leafs is not None else 0,
            "leaf": self.leafs.varz() if self.leafs is not None else {},
            "slow_leafs": self.leafs.slow_consumers if self.leafs is not None else 0,
            "slow_consumers": self.slow_consumers,
            "stale_connections": self.stale_connections, "stalled_clients": self.stalled_clients,
            "subscriptions": self.subscription_count,
        }

    def connections(self, *, closed: bool = False) -> list[dict[str, Any]]:
        """Return /connz entries in order of cid; ``closed``: of closed connections, with ``subscriptions_list_detail``.

        Entries of open connections have no such list: it may have a million elements (``overview.subscriptions_of``).
        """
        if closed:
            return list(self._closed)
        return [self.row(client) for client in self.clients.values()]

    def row(self, client: Client) -> dict[str, Any]:
        """Return the /connz entry of one connection."""
        return connection_row(client, self.clock.now_ns(), authenticated=client.entrance.authenticator is not None)


async def _within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for ``event`` for at most ``seconds``. Returns: whether it was set."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host or '0.0.0.0'}:{port}"


def _nonce() -> bytes:
    """Return a nonce for one client to sign."""
    return base64.urlsafe_b64encode(secrets.token_bytes(_NONCE_BYTES)).rstrip(b"=")


def _mappings(settings: Settings) -> list[SubjectMapping]:
    """Return the mappings of all accounts: JetStream's domain may be named in requests."""
    if not settings.jetstream.enabled or not settings.jetstream.domain:
        return []
    return domain_mappings(settings.jetstream.domain, api=not settings.storage.is_shared)


def _server_id(rng: random.Random) -> str:
    """Return an id in the form of a server's public key: N and 55 base32 characters."""
    return "N" + base64.b32encode(rng.randbytes(35)).decode()[:55]
