"""Logins at NATS servers, and the connections that they get: clients of nats-py, which do not reconnect.

Whoever uses a connection that breaks decides whether to begin again: the commands end with a clear error, and an
upstream connects to the next server.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from broker.base.client_tls import client_context
from broker.base.nkeys import KeyPair, split_credentials

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.transport import Transport

__all__ = ["ApiRefusal", "Connection", "ConnectionFailed", "Login", "NobodyAnswers", "connect",
           "tls_context"]

_CONNECT_SECONDS = 10


@dataclass(frozen=True)
class Login:
    """An address and credentials.

    ``nkey`` is the path of a file with a seed, ``seed`` the seed itself. ``account`` is, for a store as the target, the
    account there, since a store has no users; for a source, its name in reports. ``domain`` is the JetStream domain of
    the brokers, if the server at the address is none of them.
    """

    url: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    creds: str = ""
    nkey: str = ""
    seed: str = field(default="", repr=False)
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls: bool = False
    tls_first: bool = False
    tls_insecure: bool = False
    account: str = ""
    domain: str = ""

    @property
    def shown(self) -> str:
        """The address without secrets."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


class ConnectionFailed(Exception):
    """A server cannot be reached, or gives no answer; ``str()`` gives the reason and the remedy."""


class ApiRefusal(Exception):
    """The API refused a request; made of the ``error`` member of its answer."""

    def __init__(self, error: dict[str, Any]) -> None:
        code = error.get("err_code", error.get("code", 0))
        super().__init__(f"{error.get('description', 'unknown error')} (error {code})")
        self.err_code = int(error.get("err_code", 0))
        self.code = int(error.get("code", 0))
        """The kind of the error, as an HTTP status."""


class NobodyAnswers(ConnectionFailed):
    """Nobody subscribes to the subject."""


class Connection:
    """A connected client, and JetStream's API through it."""

    def __init__(self, client: Client, login: Login, lost: asyncio.Event) -> None:
        self.client = client
        self.shown = login.shown
        self._api = f"$JS.{login.domain}.API" if login.domain else "$JS.API"
        self.lost = lost
        self._asked: list[tuple[str, asyncio.Future[None]]] = []
        """The subjects of requests without an answer, each with a future that is done if the server refuses one."""

    def refuse(self, error: Exception) -> None:
        """End the requests that an error of the server refuses: it names their subject, which has no other answer."""
        text = str(error).lower()
        for subject, refused in self._asked:
            if f'permissions violation for publish to "{subject.lower()}"' in text and not refused.done():
                refused.set_result(None)

    async def api(self, subject: str, body: Any = None, *, seconds: float = 30.0) -> dict[str, Any]:
        """Send a request to the API, below ``$JS.API`` or that of the domain, and return its answer.

        Raises: ApiRefusal; ConnectionFailed.
        """
        data = b"" if body is None else json.dumps(body).encode()
        return self.decode(await self.request(f"{self._api}.{subject}", data, seconds))

    @staticmethod
    def decode(data: bytes) -> dict[str, Any]:
        """Decode the API's answer. Raises: ApiRefusal; ConnectionFailed."""
        try:
            value = json.loads(data)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise ConnectionFailed("an answer that is no JSON object")
        if isinstance(error := value.get("error"), dict):
            raise ApiRefusal(error)
        return value

    async def request(self, subject: str, data: bytes, seconds: float) -> bytes:
        """Send a request, and return its response. Raises: ConnectionFailed; NobodyAnswers."""
        from nats.errors import Error, NoRespondersError

        answer = asyncio.ensure_future(self.client.request(subject, data, timeout=seconds))
        lost = asyncio.ensure_future(self.lost.wait())
        asked = subject, asyncio.get_running_loop().create_future()
        self._asked.append(asked)
        try:
            await asyncio.wait((answer, lost, asked[1]), return_when=asyncio.FIRST_COMPLETED)
            if asked[1].done():
                raise ConnectionFailed(f"{self.shown}: the user may not publish to {subject}")
            if not answer.done():
                raise ConnectionFailed(f"{self.shown}: the connection was lost; run the same command again to continue")
            return bytes(answer.result().data)
        except NoRespondersError:
            raise NobodyAnswers(f"{self.shown}: nobody answers {subject}: JetStream is off there, or in this "
                                f"account") from None
        except TimeoutError:
            raise ConnectionFailed(f"{self.shown}: no answer to {subject} within {seconds:g} s") from None
        except (Error, OSError) as error:
            raise ConnectionFailed(f"{self.shown}: the connection was lost ({_reason(error)}); run the same command "
                                   f"again to continue") from None
        finally:
            self._asked.remove(asked)
            answer.cancel()
            lost.cancel()

    async def close(self) -> None:
        if not self.client.is_closed:
            await self.client.close()


async def connect(login: Login, transport: Transport | None = None, *, client: Client | None = None,
                  name: str = "jetblock migrate", on_error: Callable[[Exception], object] | None = None) -> Connection:
    """Connect and log in. Raises: ConnectionFailed.

    Args: ``client`` is new; ``on_error`` is called with each error that the server sends on the connection.
    """
    try:
        from nats.aio.client import Client
        from nats.errors import Error
    except ImportError:
        raise ConnectionFailed("the NATS client is not installed: pip install nats-py") from None

    client, lost, problems = client or Client(), asyncio.Event(), list[Exception]()
    connected = False
    connection = Connection(client, login, lost)
    if transport is not None:
        client._transport = transport

    async def on_lost() -> None:
        lost.set()

    async def note(error: Exception) -> None:
        connection.refuse(error)
        if not connected:
            problems.append(error)
        elif on_error is not None:
            on_error(error)

    options: dict[str, Any] = {"disconnected_cb": on_lost, "closed_cb": on_lost, "error_cb": note}
    logins = (("user", login.user), ("password", login.password), ("token", login.token))
    options |= {key: value for key, value in logins if value}
    if login.tls or login.tls_ca or login.tls_cert or login.url.startswith(("tls://", "wss://")):
        options |= {"tls": tls_context(login), "tls_handshake_first": login.tls_first}
    if login.creds:
        token, pair = _credentials(login.creds)
        options |= {"user_jwt_cb": lambda: bytearray(token.encode()), "signature_cb": _signer(pair)}
    elif login.nkey or login.seed:
        pair = _pair(login.seed or _read(login.nkey).strip(), login.nkey or "nkey")
        client._public_nkey = pair.public
        options["signature_cb"] = _signer(pair)
    try:
        async with asyncio.timeout(3 * _CONNECT_SECONDS):
            # With 0 attempts nats-py tries for ever, every two seconds; with 1 it tries twice.
            await client.connect(login.url, allow_reconnect=False, max_reconnect_attempts=1, reconnect_time_wait=0,
                                 connect_timeout=_CONNECT_SECONDS, name=name, **options)
    except (Error, OSError, ValueError, TimeoutError) as error:
        reason = _reason(problems[-1] if problems else error)
        raise ConnectionFailed(f"{login.shown}: cannot connect: {reason}; check the address, that the server is up, "
                               f"and the credentials") from None
    connected = True
    return connection


def _reason(error: BaseException) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, socket.gaierror):
        return "there is no such host"
    text = str(error).removeprefix("nats: ") or type(error).__name__
    return " ".join(text.split())


def tls_context(login: Login) -> ssl.SSLContext:
    """Return the TLS settings of a login. Raises: ConnectionFailed."""
    try:
        context = client_context(ca_file=login.tls_ca)
        if login.tls_cert:
            context.load_cert_chain(login.tls_cert, login.tls_key or None)
        if login.tls_insecure:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    except (OSError, ssl.SSLError) as error:
        raise ConnectionFailed(f"{login.shown}: TLS: {_reason(error)}; check the files") from None
    return context


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeError) as error:
        raise ConnectionFailed(f"{path}: cannot be read: {_reason(error)}") from None


def _credentials(path: str) -> tuple[str, KeyPair]:
    text = _read(path)
    try:
        token, seed = split_credentials(text)
    except ValueError as error:
        raise ConnectionFailed(f"{path}: {error}") from None
    return token, _pair(seed, path)


def _pair(seed: str, path: str) -> KeyPair:
    try:
        return KeyPair.of_seed(seed)
    except ValueError:
        raise ConnectionFailed(f"{path}: the seed in it is not valid") from None


def _signer(pair: KeyPair) -> Callable[[str], bytes]:
    return lambda nonce: base64.b64encode(pair.sign(nonce.encode()))
