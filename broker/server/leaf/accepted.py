"""Connections of other servers to this one, which is their hub, and the port on which they arrive.

    INFO ──> CONNECT ──> login, as a client's ──> second INFO, with permissions ──> LS+ of all interest ──> in use

Owns: the listening socket, the hub's side of the handshake, duplicates. Does not own: the connection in use
(``connection``), the check of credentials (auth).

Source: nats-server, server/leafnode.go (createLeafNode, processLeafNodeConnect), server/auth.go (isLeafNodeAuthorized).
"""

from __future__ import annotations

import asyncio
import base64
import logging
import secrets
from collections.abc import Callable, Collection
from typing import Any, Final

from broker import JETSTREAM_API_LEVEL, NATS_SERVER_VERSION
from broker.access.accounts import NO_LIMIT, Permissions, SubjectPermission
from broker.base.listen_socket import Bound, Listener
from broker.config.settings import AuthSettings, LeafSettings, Settings
from broker.protocol import encoder
from broker.server.auth.authenticator import AuthenticatorChain
from broker.server.auth.login import Login, Refusal
from broker.server.connection.connect_options import go_quoted, read_connect
from broker.server.connection.handshake import EVERYBODY, Handshake
from broker.server.connection.host import Host
from broker.server.leaf.connection import (
    LeafConnection,
    LeafNodes,
    Passage,
    domain_denials,
    jetstream_denials,
    texts,
    with_denials,
)
from broker.server.leaf.solicited import PROTOCOL, Server, decoded, takes_traces
from broker.server.listeners.certificates import TlsParameters
from broker.server.listeners.opening import Opening

__all__ = ["AcceptedLeaf", "LeafPort"]

log = logging.getLogger(__name__)

_BACKLOG: Final = 256
_NONCE_BYTES: Final = 11


class LeafPort:
    """The port for other servers (``Entrance``). ``port`` is the actual number once it is bound."""

    connection_type = "LEAFNODE"
    client_type = "leafnode"
    id_label = "lid"
    tls_name = "leafnode"
    proxies = None
    allow_non_tls = False
    proxy_protocol = False

    def __init__(self, settings: LeafSettings) -> None:
        self.settings = settings
        self.port = settings.port or 0
        self.authenticator: AuthenticatorChain | None = None
        self.user_names: Collection[str] = ()
        self.tls: TlsParameters | None = None
        self.ping_interval_ns = 0
        self.auth_timeout_ns = 0
        self._bound: Bound | None = None
        self._listener: Listener | None = None

    def prepare(self, settings: Settings,
                chain_of: Callable[[AuthSettings, bool], AuthenticatorChain | None]) -> Callable[[], None]:
        """Prepare for new settings, as the client port does. Raises: ValueError."""
        own, auth = settings.leafnodes, settings.auth
        tls = TlsParameters(own.tls) if own.tls.enabled else None
        if own.users or own.nkeys:
            auth = auth.replace(user="", password="", token="", no_auth_user="", users=own.users, nkeys=own.nkeys)
        authenticator = chain_of(auth, own.tls.verify_and_map)

        def apply() -> None:
            self.tls, self.authenticator, self.user_names = tls, authenticator, auth.names
            self.ping_interval_ns = settings.clients.ping_interval_ns
            self.auth_timeout_ns = own.auth_timeout_ns

        return apply

    def describe(self, info: dict[str, Any]) -> None:
        """Do nothing: INFO for other servers is made here."""

    def address(self, local_ip: str) -> tuple[str, int]:
        """Return the host and port that other servers may also connect to.

        Args: ``local_ip``: the address at which one of them has reached this server. nats-server offers its first
            address that is not local instead.
        """
        if self.settings.advertise:
            host, _, port = self.settings.advertise.rpartition(":")
            return (host.strip("[]"), int(port)) if port.isdigit() else (self.settings.advertise, self.port)
        host = self.settings.host
        return (local_ip if host in ("", "0.0.0.0", "::") and local_ip else host), self.port

    async def bind(self) -> None:
        """Bind the port. Raises: OSError if it is not available."""
        if self._bound is None and self._listener is None:
            self._bound = await Bound.at(self.settings.host, max(self.port, 0))

    def unbind(self) -> None:
        """Release the port if it is bound and not listened on yet."""
        if self._bound is not None:
            self._bound.close()
            self._bound = None

    async def start(self, server: Host, accept: Callable[[], AcceptedLeaf]) -> None:
        """Listen. Raises: OSError."""
        await self.bind()
        assert self._bound is not None
        bound, self._bound = self._bound, None
        self.port = bound.port
        self._listener = Listener(bound, _BACKLOG, lambda: self._new_connection(server, accept()), "Leafnode")
        log.info("Listening for leafnode connections on %s:%d", self.settings.host, self.port)
        if self.tls is not None:
            log.info("TLS required for leafnode connections")

    def _new_connection(self, server: Host, leaf: AcceptedLeaf) -> asyncio.Protocol:
        return leaf if self.tls is None else Opening(server, leaf, self)

    def stop_listening(self) -> None:
        """Accept no more connections."""
        self.unbind()
        if self._listener is not None:
            self._listener.close()
            self._listener = None


class AcceptedLeaf(LeafConnection):
    """The connection of a spoke to this server."""

    accepted = True
    hub = True
    entrance: LeafPort

    def __init__(self, server: Server, nodes: LeafNodes, port: LeafPort) -> None:
        super().__init__(server, nodes, port)
        self._port = port
        self._server = server
        self.login: Login = EVERYBODY
        self.options: dict[str, Any] = {}
        self.nonce = base64.urlsafe_b64encode(secrets.token_bytes(_NONCE_BYTES)).rstrip(b"=")
        self.isolated = server.settings.leafnodes.isolate_leafnode_interest
        self._login_holds = 0
        self._connect: dict[str, Any] | None = None
        """The fields of CONNECT; None before it."""

        self._handshake: Handshake = Handshake(server, port, self)

    # Opening and closing

    def greet(self) -> None:
        """Send the first INFO."""
        info = self._info()
        self.send_line(encoder.info({**info, "nonce": self.nonce.decode(), "compression": "off"}))
        self._outbound.flush()
        log.info("%s - Leafnode connection created", self.label)

    def begin(self) -> None:
        """Start the timeout of the login."""
        self._handshake.set_timer()
        super().begin()

    def _leave(self) -> None:
        self._handshake.close()
        super()._leave()

    def _break_cycles(self) -> None:
        super()._break_cycles()
        self._handshake.forget_connection()

    def _info(self) -> dict[str, Any]:
        server, settings = self._server, self.server.settings
        local = self._transport.get_extra_info("sockname")
        host, port = self._port.address(local[0] if isinstance(local, tuple) else "")
        address = f"{f'[{host}]' if ':' in host else host}:{port}"
        info: dict[str, Any] = {
            "server_id": server.server_id, "server_name": server.server_name, "version": NATS_SERVER_VERSION,
            "proto": PROTOCOL, "host": host, "port": port, "ip": address,
            "headers": not settings.clients.no_header_support, "auth_required": True,
            "max_payload": settings.clients.max_payload, "jetstream": settings.jetstream.enabled,
            "client_id": self.cid, "domain": settings.jetstream.domain,
            # As nats-server: a server without a cluster has its own name as one where it solicits, too.
            "cluster": server.server_name if settings.leafnodes.remotes else "", "api_lvl": JETSTREAM_API_LEVEL,
            "info_on_connect": True}
        if (tls := self._port.tls) is not None:
            info |= {"tls_required": True, "tls_verify": tls.verify}
        shown = {name: value for name, value in info.items() if value not in ("", False)}
        return {**shown, "leafnode_urls": [] if self._port.settings.no_advertise else [address]}

    # Login (Applicant of the handshake)

    def hold(self) -> None:
        """Hold the connection during its login only: JetStream refuses another server's messages instead."""
        if self._handshake.checking:
            self._login_holds += 1
            self._reading.hold()

    def release(self) -> None:
        """Undo a ``hold`` during the login."""
        if self._login_holds:
            self._login_holds -= 1
            self._reading.release()

    def serve_early(self, early: bytes) -> None:
        """Serve the bytes that arrived after CONNECT while its login was checked."""
        self._reading.receive_first(early)

    def close_refused(self, refusal: Refusal) -> None:
        """Close after a refused login, with an error that does not give the cause."""
        self.fail("Authorization Violation", refusal.reason)

    def _receive_info(self, arg: bytes) -> None:
        """Ignore the INFO of a spoke, which has nothing that this server needs, but close if it is no JSON."""
        if decoded(arg) is None:
            self.fail(None, "Protocol Violation")

    def _receive_connect(self, arg: bytes) -> None:
        fields, known = decoded(arg), read_connect(arg)
        if fields is None or known is None or self.registered:
            self.fail(None, "Protocol Violation")
        elif fields.get("lang"):
            self.fail("attempted to connect to leaf node port", "Wrong Port")
        else:
            self._connect = fields
            self.options.update(known)
            self._handshake.connect(self.options)

    def finish_connect(self, login: Login) -> None:
        """Finish CONNECT after its credentials were accepted."""
        fields = self._connect or {}
        if fields.get("gateway"):
            self.fail(f"Rejecting connection from gateway {go_quoted(str(fields['gateway']))} on the leafnode port",
                      "Wrong Gateway")
            return
        least = self.server.settings.leafnodes.min_version
        if least and _version(fields.get("version")) < _version(least):
            self.send_line(encoder.info({**self._info(), "connect_info": True}))
            self.fail(f'connection rejected since minimum version required is "{least}"', "Minimum Version Required")
            return
        if " " in _text(fields, "cluster"):
            self.fail("cluster name cannot contain spaces", "Protocol Violation")
            return
        own_cluster = self._info().get("cluster")
        if own_cluster and fields.get("cluster") == own_cluster:
            self.fail("remote leafnode has same cluster name", "Cluster Name Conflict")
            return
        if not self.become_user(login):
            return
        self.remote_name = _text(fields, "name") or _text(fields, "server_id")
        self.remote_account, self.remote_domain = _text(fields, "remote_account"), _text(fields, "domain")
        self.group = _text(fields, "cluster")
        self.hub = not fields.get("is_hub")
        if not self.hub:
            # A hub that connects says nothing of its limits: those of this server, as its configuration has them.
            self.peer_payload_max = self.account.settings.payload_bytes_max(self.server.settings.clients.max_payload)
        self.isolated = self.isolated or bool(fields.get("isolate"))
        self.traces = takes_traces(fields.get("protocol"))
        self.parser.headers = bool(fields.get("headers")) and not self.server.settings.clients.no_header_support
        permissions = _permissions(login)
        info = {**self._info(), "connect_info": True, "remote_account": self.account.name}
        shown = {"import": permissions.subscribe, "export": permissions.publish}
        info |= {name: _shown(one) for name, one in shown.items() if one != SubjectPermission()}
        if self.account.is_system:
            info["acc_is_sys"] = True
        self.send_line(encoder.info(info))
        settings = self.server.settings
        denied = (*jetstream_denials(self.account, settings.accounts.default_domains),
                  *domain_denials(settings), *texts(fields.get("deny_pub")))
        receives = permissions.publish if permissions.publish != SubjectPermission() else None
        self.register(Passage(with_denials(permissions.subscribe, denied), receives, receives))

    def become_user(self, login: Login) -> bool:
        """Take the account and user of ``login``. Returns: False if the connection was closed instead."""
        account = self.server.accounts.get(login.account)
        if account is None:
            log.error("%s - Problem registering with account %s", self.label, go_quoted(login.account))
            self.fail("Failed Account Registration", "Authentication Failure")
            return False
        most = account.settings.max_leafnodes
        if most != NO_LIMIT and len(account.leafs) >= most:
            log.error("%s - maximum account active connections exceeded", self.label)
            self.fail("maximum account active connections exceeded", "Maximum Account Connections Exceeded")
            return False
        self.account, self.router, self.login = account, account.router, login
        return True

    def users_changed(self) -> None:
        """Check the login again after a change of the users.

        nats-server keeps such a connection even if its user was removed; here it is closed, as a client's would be.
        """
        self._handshake.recheck_login(self._port.user_names)

    def update_login(self, login: Login) -> None:
        """Close if the user's permissions changed: the spoke learns the new ones when it connects again."""
        if _permissions(login) != _permissions(self.login):
            self.close("Client Closed")
        self.login = login

    # In use

    def _refuse_interest(self, subject: bytes) -> None:
        """Close: the spoke knows from INFO what it may not receive. A hub that connects tells all its interest."""
        if self.hub:
            self._refuse(f"Permissions Violation for Subscription to {_quoted(subject)}")

    def refuse_publish(self, subject: bytes) -> None:
        """Close: the spoke knows from INFO what it may not send. A hub that connects ignores it; drop its message."""
        if self.hub:
            self._refuse(f"Permissions Violation for Publish to {_quoted(subject)}")

    def _refuse(self, text: str) -> None:
        log.error("%s - %s", self.label, text)
        self.fail(text, "Permissions Violation")


def _permissions(login: Login) -> Permissions:
    return login.rules.permissions if login.rules is not None else Permissions()


def _shown(permission: SubjectPermission) -> dict[str, list[str]]:
    """Return a permission in INFO's form."""
    parts = {"allow": list(permission.allow or ()), "deny": list(permission.deny)}
    return {name: subjects for name, subjects in parts.items() if subjects}


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def _quoted(subject: bytes) -> str:
    return go_quoted(subject.decode("utf-8", "surrogateescape"))


def _version(text: object) -> tuple[int, ...]:
    """Return a version's numbers; none for anything that is no version."""
    words = str(text or "").removeprefix("v").partition("-")[0].split(".")
    return tuple(map(int, words)) if all(word.isdigit() for word in words) else ()
