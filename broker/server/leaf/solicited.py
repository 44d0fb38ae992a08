"""Connections that this server opens to a hub, as its spoke, and keeps open.

    connect ──> INFO ──[TLS]──> CONNECT ──> second INFO ──> LS+ of all interest ──> in use
       ^                                                                              │
       └───────────── a pause, then the next URL <───────── connection lost

Owns: the choice of the URL, the handshake, the pauses. Does not own: the connection in use (``connection``).

Source: nats-server, server/leafnode.go (connectToRemoteLeafNode, sendLeafConnect, processLeafnodeInfo).
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol, cast

from broker import NATS_SERVER_VERSION
from broker.base.client_tls import client_context
from broker.base.nkeys import KeyPair, encode_base64url, split_credentials
from broker.config.leafnodes import LEAF_PORT, LeafRemote, LeafTls, LeafUrl
from broker.protocol.leaf import encoder as leaf_encoder
from broker.protocol.leaf.parser import MAX_LINE
from broker.server.accounts.account import Account
from broker.server.auth.permissions import PublishRules
from broker.server.connection.host import Host
from broker.server.leaf.connection import (
    RECONNECT_DELAY_NS,
    LeafConnection,
    LeafNodes,
    Passage,
    domain_denials,
    jetstream_denials,
    permission_of,
    with_denials,
)

__all__ = ["PROTOCOL", "Remote", "RemoteFailed", "SolicitedLeaf", "takes_traces", "tls_context"]

log = logging.getLogger(__name__)

_SECOND_INFO_SECONDS: Final = 2.0
_VERSION_DELAY_NS: Final = 5_000_000_000
_LONG_PAUSES: Final = {"Loop detected": RECONNECT_DELAY_NS, "Permissions Violation": RECONNECT_DELAY_NS,
                       "remote leafnode has same cluster name": RECONNECT_DELAY_NS,
                       "connection rejected since minimum version": _VERSION_DELAY_NS}
"""The pauses after errors of the other server, by the beginning of the error."""

PROTOCOL: Final = 3
"""The version of the protocol between servers: from 3 on, traces of messages pass."""

_INFO_FIELDS: Final = (
    "cluster", "domain", "export", "headers", "import", "info_on_connect", "jetstream", "leafnode_urls", "max_payload",
    "proto", "remote_account", "server_id", "server_name")
"""The fields that later INFO lines may change. No others are kept: a hub could send new ones without end."""

_DISCOVERED_MAX: Final = 100
"""The most URLs of a hub that are kept: a remote tries all of them before it pauses."""

_STALE: Final = "Stale Leaf Node Connection - Closing"


class RemoteFailed(Exception):
    """An attempt to connect failed; the text is for the log."""


class Server(Host, Protocol):
    """This server."""

    server_id: str
    server_name: str

    async def load_account(self, name: str) -> Account | None:
        """Return an account, whose token may have to be fetched; None if there is no such account."""


class RemoteEntrance:
    """The settings of connections that this server opens."""

    connection_type = "LEAFNODE"
    client_type = "leafnode"
    id_label = "lid"
    authenticator = None
    proxies = None
    auth_timeout_ns = 0

    def __init__(self, server: Host) -> None:
        self._server = server

    @property
    def ping_interval_ns(self) -> int:
        return self._server.settings.clients.ping_interval_ns

    def describe(self, info: dict[str, Any]) -> None:
        """Do nothing: this side sends no INFO."""


class SolicitedLeaf(LeafConnection):
    """The connection of a spoke to its hub; with ``hub: true`` in the remote, that of a hub to its spoke."""

    accepted = False

    def __init__(self, server: Server, nodes: LeafNodes, remote: Remote, account: Account,
                 info: dict[str, Any]) -> None:
        super().__init__(server, nodes, RemoteEntrance(server))
        self.account, self.router = account, account.router
        self.remote = remote
        self.hub = remote.settings.hub
        self.isolated = (server.settings.leafnodes.isolate_leafnode_interest
                         or remote.settings.isolate_leafnode_interest)
        self.ended = asyncio.Event()
        self.known_info = info
        self.pause_ns = 0
        """The pause before the next attempt, if the other server's error asks for a longer one."""

        self._waiting: asyncio.TimerHandle | None = None
        self.parser.headers = bool(info.get("headers")) and not server.settings.clients.no_header_support

    def introduce(self, connect: Mapping[str, object]) -> None:
        """Send CONNECT, and wait for the second INFO if the hub sends one."""
        log.info("%s - Leafnode connection created for account: %s", self.label, self.account.name)
        self.send_line(leaf_encoder.connect(connect))
        log.debug("%s - Remote leafnode connect msg sent", self.label)
        if self.known_info.get("info_on_connect"):
            self._waiting = self._loop.call_later(_SECOND_INFO_SECONDS, self.fail, _STALE, _STALE)
        else:
            self._complete()

    def _receive_info(self, arg: bytes) -> None:
        info = decoded(arg)
        if info is None:
            self.fail(None, "Protocol Violation")
            return
        before = self.known_info
        self.known_info = before | {name: info[name] for name in _INFO_FIELDS if name in info}
        self.remote.discover(self.known_info)
        if not self.registered:
            self._complete()
        elif any(before.get(name) != self.known_info.get(name) for name in ("import", "export")):
            self.change_passage(self._passage())
            self._nodes.connected(self)

    def _complete(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        self.remote_name = str(self.known_info.get("server_name") or self.known_info.get("server_id") or "")
        self.remote_account = str(self.known_info.get("remote_account") or "")
        self.remote_domain = str(self.known_info.get("domain") or "")
        self.group = str(self.known_info.get("cluster") or "") if self.hub else ""
        self.traces = takes_traces(self.known_info.get("proto"))
        most = self.known_info.get("max_payload")
        self.peer_payload_max = most if isinstance(most, int) and most > 0 else 0
        self.register(self._passage())

    def _passage(self) -> Passage:
        remote, info = self.remote.settings, self.known_info
        imports, exports = permission_of(info.get("import")), permission_of(info.get("export"))
        denied = jetstream_denials(self.account, self.server.settings.accounts.default_domains)
        own = domain_denials(self.server.settings)
        limited = imports is not None or bool(remote.deny_imports)
        return Passage(with_denials(exports, (*remote.deny_exports, *denied, *own)),
                       with_denials(imports, (*remote.deny_imports, *denied)),
                       with_denials(imports, remote.deny_imports) if limited else None)

    def _receive_connect(self, arg: bytes) -> None:
        self.fail(None, "Protocol Violation")

    def _receive_error(self, text: str) -> None:
        self.pause_ns = next((pause for begin, pause in _LONG_PAUSES.items() if text.startswith(begin)), 0)

    def _close_loop(self) -> None:
        super()._close_loop()
        self.pause_ns = RECONNECT_DELAY_NS

    def _refuse_interest(self, subject: bytes) -> None:
        """Ignore the interest: nothing on this subject is sent."""

    @property
    def plain_names(self) -> tuple[str, ...]:
        """The names of the hub's cluster and server, if its JetStream has no domain that names it."""
        info = self.known_info
        return (str(info.get("cluster")), self.remote_name) if info.get("jetstream") and not self.remote_domain else ()

    def request(self, subject: bytes, reply: bytes, hlen: int, body: bytes) -> int:
        """Send a request to ``$JS.API``, which no client's message may cross; return 0 if the hub forbids it."""
        exports = with_denials(permission_of(self.known_info.get("export")), self.remote.settings.deny_exports)
        if not PublishRules(exports.allow, exports.deny).permits(subject):
            return 0
        self._deliver(((subject, reply, hlen, body),), len(body), (), b"")
        return 1

    def _leave(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        super()._leave()
        self.ended.set()


class Remote:
    """One configured remote: keeps one connection to one of its URLs. ``settled`` is set after the first attempt."""

    def __init__(self, settings: LeafRemote, server: Server, nodes: LeafNodes) -> None:
        self.settings = settings
        self._server = server
        self._nodes = nodes
        self.urls = list(settings.urls)
        """The addresses, the next one to try first."""

        if not settings.no_randomize:
            server.rng.shuffle(self.urls)
        self._discovered: list[LeafUrl] = []
        self.connection: SolicitedLeaf | None = None
        self.settled = asyncio.Event()

    async def run(self) -> None:
        """Connect, again and again, until the task is cancelled."""
        attempts = tried = 0
        settings = self._server.settings.leafnodes
        while True:
            url = self._next_url()
            attempts += 1
            try:
                connection = await self._connect(url)
            except RemoteFailed as error:
                # As nats-server: the first failure and every 3600th are errors.
                level = logging.ERROR if attempts == 1 or not attempts % 3600 else logging.DEBUG
                log.log(level, 'Error trying to connect as leafnode to remote server "%s" (attempt %d): %s',
                        url.address, attempts, error)
                self.settled.set()
                self._postpone(url)
                tried += 1
                if tried % len(self.urls):
                    # nats-server pauses here, too. But if servers of a cluster fail one after the other, the cluster
                    # would be without this one's interest for up to three intervals.
                    await asyncio.sleep(0)
                else:
                    await asyncio.sleep(settings.reconnect_interval_ns / 1e9 * (1 + self._server.rng.random()))
                continue
            tried = 0
            began = self._server.loop.time()
            try:
                await connection.ended.wait()
            finally:
                self.connection = None
            self.settled.set()
            if connection.registered:
                attempts = 0
            self._postpone(url)
            pause = max(settings.reconnect_interval_ns, connection.pause_ns) / 1e9
            if (connection.registered and not connection.pause_ns and len(self.urls) > 1
                    and self._server.loop.time() - began > pause):
                # nats-server waits the whole interval. But a connection that lasted was most likely lost with its
                # server, and the cluster is without this one's interest until another server has it.
                pause *= self._server.rng.random() / 4
            await asyncio.sleep(pause)

    def discover(self, info: Mapping[str, Any]) -> None:
        """Add the URLs that the hub offers; they replace those that it offered before. More than 100 are not kept."""
        offered = info.get("leafnode_urls")
        if self.settings.ignore_discovered_servers or not isinstance(offered, list):
            return
        configured = {(url.host, url.port) for url in self.settings.urls}
        found: dict[tuple[str, int], None] = {}
        for text in offered:
            url = _address(text) if isinstance(text, str) else None
            if url is not None and (url.host, url.port) not in configured:
                found[url.host, url.port] = None
                if len(found) == _DISCOVERED_MAX:
                    break
        first = self.settings.urls[0]
        self._discovered = [LeafUrl(host, port, first.user, first.password, first.scheme) for host, port in found]
        self._server.rng.shuffle(self._discovered)
        self.urls = [*self._discovered, *(url for url in self.urls if (url.host, url.port) in configured)]

    def _next_url(self) -> LeafUrl:
        return self.urls[0]

    def _postpone(self, url: LeafUrl) -> None:
        """Try ``url`` after all others."""
        if url in self.urls:
            self.urls.remove(url)
            self.urls.append(url)

    async def _connect(self, url: LeafUrl) -> SolicitedLeaf:
        """Open a connection and send CONNECT. Raises: RemoteFailed."""
        server, settings = self._server, self.settings
        log.debug('Trying to connect as leafnode to remote server on "%s"', url.address)
        account = await server.load_account(settings.account)
        if account is None:
            raise RemoteFailed(f'cannot find local account "{settings.account}" specified in leafnode remote')
        loop = server.loop
        tls = settings.tls
        greeting = _Greeting(loop)
        transport: asyncio.Transport | None = None
        try:
            context = tls_context(tls) if tls is not None or url.tls else None
            first = tls is not None and tls.handshake_first
            async with asyncio.timeout((settings.dial_timeout_ns or server.settings.leafnodes.dial_timeout_ns) / 1e9):
                transport, _ = await loop.create_connection(
                    lambda: greeting, url.host, url.port, ssl=context if first else None,
                    server_hostname=url.host if first else None)
            async with asyncio.timeout(settings.first_info_timeout_ns / 1e9):
                info = await greeting.info()
            # With no_advertise, nats-server sends no leafnode_urls. Only leaf ports answer CONNECT with another INFO.
            if not info.get("client_id") or not ("leafnode_urls" in info or info.get("info_on_connect")):
                raise RemoteFailed("attempted to connect to wrong port")
            if not first and (info.get("tls_required") or context is not None):
                async with asyncio.timeout((tls or LeafTls()).timeout_ns / 1e9):
                    transport = cast(asyncio.Transport, await loop.start_tls(
                        transport, greeting, context or tls_context(tls), server_hostname=url.host))
            fields = self._connect_fields(url, info, account)
        except TimeoutError:
            if transport is not None:
                transport.abort()
            raise RemoteFailed("i/o timeout") from None
        except (OSError, ValueError, RemoteFailed) as error:
            if transport is not None:
                transport.abort()
            raise RemoteFailed(_why(url, error)) from None
        except BaseException:
            if transport is not None:
                transport.abort()
            raise
        connection = self.connection = SolicitedLeaf(server, self._nodes, self, account, info)
        assert transport is not None
        transport.set_protocol(connection)
        connection.connection_made(transport)
        if greeting.lost:
            connection.connection_lost(None)
            return connection
        self.discover(info)
        connection.introduce(fields)
        if greeting.rest:
            connection.data_received(greeting.rest)
        return connection

    def _connect_fields(self, url: LeafUrl, info: Mapping[str, Any], account: Account) -> dict[str, object]:
        """Return the fields of CONNECT. Raises: OSError, ValueError: the credentials cannot be read."""
        server, settings = self._server, self.settings
        jetstream = server.settings.jetstream
        fields: dict[str, object] = {"version": NATS_SERVER_VERSION}
        nonce = str(info.get("nonce") or "").encode()
        if settings.credentials:
            token, seed = split_credentials(Path(settings.credentials).read_text())
            fields |= {"jwt": token, "sig": encode_base64url(KeyPair.of_seed(seed).sign(nonce))}
        elif settings.nkey:
            keys = KeyPair.of_seed(settings.nkey)
            fields |= {"nkey": keys.public, "sig": encode_base64url(keys.sign(nonce))}
        elif url.user:
            fields["user"] = url.user
            fields |= {"pass": url.password} if url.password else {"auth_token": url.user}
        fields |= {"server_id": server.server_id, "domain": jetstream.domain, "name": server.server_name,
                   "cluster": server.server_name, "headers": not server.settings.clients.no_header_support,
                   "jetstream": jetstream.enabled, "deny_pub": list(settings.deny_imports),
                   "isolate": settings.request_isolation, "is_hub": settings.hub, "compress_mode": "off",
                   "remote_account": account.name, "protocol": PROTOCOL}
        return {name: value for name, value in fields.items() if value not in ("", False, [])}


class _Greeting(asyncio.Protocol):
    """The protocol of a new connection until INFO has arrived and, if it is required, TLS is established."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._line: asyncio.Future[bytes] = loop.create_future()
        self._data = b""
        self.rest = b""
        self.lost = False

    async def info(self) -> dict[str, Any]:
        """Return the first INFO. Raises: OSError; RemoteFailed if something else arrives."""
        line = await self._line
        info = decoded(line[5:]) if line[:5].upper() == b"INFO " else None
        if info is None:
            raise RemoteFailed(line[:100].decode("utf-8", "replace").strip() if line.startswith(b"-ERR")
                               else "expected INFO, got something else; is it the port for leaf nodes?")
        return info

    def data_received(self, data: bytes) -> None:
        if self._line.done():
            self.rest += data
            return
        self._data += data
        line, end, self.rest = self._data.partition(b"\n")
        if end or len(self._data) > MAX_LINE:
            self._line.set_result(line)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if not self._line.done():
            self._line.set_exception(exc if isinstance(exc, OSError) else ConnectionResetError("EOF"))
            self._line.exception()  # it is retrieved, even if nobody waits any more


def takes_traces(protocol: object) -> bool:
    """Return whether the server of a protocol's version continues the traces of messages."""
    return isinstance(protocol, int) and protocol >= PROTOCOL


def tls_context(settings: LeafTls | None) -> ssl.SSLContext:
    """Return the TLS context of a remote. Raises: ValueError, which names the file that cannot be used."""
    settings = settings or LeafTls()
    for path in filter(None, (settings.ca_file, settings.cert_file, settings.key_file)):
        try:
            open(path, "rb").close()
        except OSError as error:
            raise ValueError(f"open {path}: {(error.strerror or str(error)).lower()}") from None
    try:
        context = client_context(ca_file=settings.ca_file)
    except ssl.SSLError:
        raise ValueError(f"failed to parse root ca certificate: {settings.ca_file} has none in PEM") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if settings.min_version == "1.3" else ssl.TLSVersion.TLSv1_2
    if settings.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.cert_file:
        try:
            context.load_cert_chain(settings.cert_file, settings.key_file, _no_password)
        except OSError as error:
            why = "the private key does not match" if "MISMATCH" in str(error) else str(error)
            raise ValueError(f"error parsing X509 certificate/key pair: {settings.cert_file}, {settings.key_file}: "
                             f"{why}") from None
    return context


def _no_password() -> str:
    """Refuse encrypted keys; without this callback OpenSSL prompts for the password on the terminal."""
    raise OSError("the private key is encrypted")


def decoded(arg: bytes) -> dict[str, Any] | None:
    """Return the JSON object ``arg``; None if it is none."""
    try:
        fields = json.loads(arg)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


def _address(text: str) -> LeafUrl | None:
    """Return a discovered ``host:port`` as a URL; None if it is none."""
    host, colon, port = text.rpartition("://")[2].rpartition(":")
    if not colon:
        host, port = text, str(LEAF_PORT)
    return LeafUrl(host.strip("[]"), int(port)) if host and port.isdigit() and int(port) < 65536 else None


def _why(url: LeafUrl, error: Exception) -> str:
    """Return the reason in Go's words where operators search for them."""
    if isinstance(error, ConnectionRefusedError):
        return f"dial tcp {url.address}: connect: connection refused"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS handshake: tls: failed to verify certificate: {error.verify_message}"
    return str(error) or type(error).__name__
