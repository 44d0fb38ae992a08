"""One user's connection to a NATS server: JetStream's API, and what the user may do there.

The connection reconnects for as long as the user's session lasts; pages show its state.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from nats.aio.client import Client
from nats.errors import Error, NoRespondersError
from nats.errors import TimeoutError as NoAnswer

from broker.console.login import BadLogin, Login
from broker.protocol.subject import matches_any

if TYPE_CHECKING:
    from nats.aio.msg import Msg

__all__ = ["Refused", "Server"]

_USER_INFO = "$SYS.REQ.USER.INFO"
_CONNECT_SECONDS = 5
_REQUEST_SECONDS = 10.0
_ATTEMPTS = 5
"""Attempts to connect, as long as the server resets the connection."""
_READING = ("INFO", "STREAM.LIST", "STREAM.INFO.", "STREAM.MSG.GET.", "CONSUMER.LIST.", "CONSUMER.INFO.")
"""Requests that change nothing."""
_READ_ONLY = "The console was started with --read-only, so it changes nothing."
_DENIED = re.compile(r'permissions violation for publish to "([^"]+)"')
_DENIED_INBOX = "permissions violation for subscription to"


class Refused(Exception):
    """A request that the server refused or did not answer; the text is one sentence for the user."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code
        """JetStream's error code (``err_code``); 0: none."""


class Server:
    """A logged-in connection.

    Attributes:
        ``login``: the address and the credentials.
        ``info``: the server's INFO at the last connect.
        ``restricted``: True if the user may not publish to all subjects.
        ``read_only``: True if every request that changes something is refused here, whatever a page asks for.
    """

    def __init__(self, login: Login, *, read_only: bool = False) -> None:
        self.login = login
        self.read_only = read_only
        self.client = Client()
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        """Requests without an answer, by their subject in lower case, as nats-py gives it in an error."""
        self._refused: set[str] = set()
        """Subjects, in lower case, that the server has refused this user."""
        self._may: tuple[list[bytes], list[bytes]] = ([b">"], [])
        self.restricted = False
        self._inbox_denied = False
        self._learning: asyncio.Task[None] | None = None
        self.user = ""
        self.account = ""
        self.api_prefix = f"$JS.{login.domain}.API" if login.domain else "$JS.API"

    @classmethod
    async def connect(cls, login: Login, *, read_only: bool = False) -> Server:
        """Connect and log in. Raises: BadLogin."""
        server = cls(login, read_only=read_only)
        for attempt in range(_ATTEMPTS):
            try:
                await server._connect()
                break
            except (Error, OSError, ValueError, TimeoutError) as error:
                await server.close()
                # A server that refuses a login closes the connection at once; that can discard the reason it has sent.
                if not isinstance(error, ConnectionResetError | BrokenPipeError) or attempt + 1 == _ATTEMPTS:
                    raise BadLogin(f"{login.shown} cannot be used: {_reason(error)}.") from None
        server.client.options["allow_reconnect"] = True
        await server._learn_permissions()
        if server._inbox_denied:
            await server.close()
            raise BadLogin(f"This user may not subscribe to {login.inbox_prefix or '_INBOX'}.>, where answers arrive: "
                           "enter an inbox prefix that it may use.")
        return server

    async def _connect(self) -> None:
        """Connect once: nats-py would try again for ever, also with a wrong password."""
        self.client = client = Client()
        if (public := self.login.public_nkey) is not None:
            client._public_nkey = public
        async with asyncio.timeout(_CONNECT_SECONDS + 1):
            await client.connect(
                **self.login.options(), name="jetblock console", connect_timeout=_CONNECT_SECONDS,
                allow_reconnect=False, max_reconnect_attempts=-1, reconnect_time_wait=1, ping_interval=10,
                max_outstanding_pings=2, error_cb=self._on_error, reconnected_cb=self._on_reconnect)

    async def close(self) -> None:
        """Close the connection."""
        try:
            async with asyncio.timeout(2):
                await self.client.close()
        except (Error, OSError, TimeoutError):
            pass

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """False while nats-py reconnects."""
        return bool(self.client.is_connected)

    @property
    def name(self) -> str:
        """The server's name; its ID if it has none."""
        return str(self.info.get("server_name") or self.info.get("server_id", ""))

    @property
    def info(self) -> dict[str, Any]:
        """The members of the server's INFO."""
        return dict(self.client._server_info)

    def may(self, subject: str) -> bool:
        """Return whether the user may publish to ``subject``, as far as the console knows."""
        allowed, denied = self._may
        raw = subject.encode()
        return matches_any(allowed, raw) and not matches_any(denied, raw) and subject.lower() not in self._refused

    def may_call(self, call: str) -> bool:
        """Return whether the user may send a request of JetStream's API, such as ``STREAM.DELETE.ORDERS``."""
        if self.read_only and not call.startswith(_READING):
            return False
        return self.may(f"{self.api_prefix}.{call}")

    # --- requests -----------------------------------------------------------------------------------------------------

    async def api(self, call: str, body: Any = None, *, reads: bool = False,
                  seconds: float = _REQUEST_SECONDS) -> dict[str, Any]:
        """Send a request of JetStream's API, such as ``STREAM.INFO.ORDERS``; return its answer.

        Args: reads is True for requests about the console's own temporary consumers. Raises: Refused.
        """
        if self.read_only and not reads and not call.startswith(_READING):
            raise Refused(_READ_ONLY)
        data = b"" if body is None else json.dumps(body).encode()
        answer = decode(await self.request(f"{self.api_prefix}.{call}", data, seconds=seconds))
        if isinstance(error := answer.get("error"), dict):
            text = str(error.get("description", "unknown error"))
            raise Refused(f"{text[:1].upper()}{text[1:]}.", int(error.get("err_code", 0)))
        return answer

    async def pages(self, call: str, member: str, body: dict[str, Any] | None = None, *,
                    progress: Callable[[int, int], object] | None = None) -> list[Any]:
        """Return the elements of ``member`` of all answers to a request that is answered a page at a time.

        Args: progress is called with the elements so far and in total. Raises: Refused.
        """
        found: list[Any] = []
        while True:
            answer = await self.api(call, {**(body or {}), "offset": len(found)})
            page = answer.get(member) or []
            found += page
            total = int(answer.get("total", 0))
            if progress is not None:
                progress(len(found), total)
            if not page or len(found) >= total:
                return found

    async def publish(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> dict[str, Any]:
        """Publish a message to a stream; return the PubAck. Raises: Refused."""
        if self.read_only:
            raise Refused(_READ_ONLY)
        answer = decode(await self.request(subject, data, headers=headers))
        if isinstance(error := answer.get("error"), dict):
            raise Refused(str(error.get("description", "unknown error")), int(error.get("err_code", 0)))
        return answer

    async def request(self, subject: str, data: bytes = b"", *, headers: dict[str, str] | None = None,
                      seconds: float = _REQUEST_SECONDS) -> bytes:
        """Send a request, and return its answer's payload. Raises: Refused."""
        return bytes((await self.request_msg(subject, data, headers=headers, seconds=seconds)).data)

    async def request_msg(self, subject: str, data: bytes = b"", *, headers: dict[str, str] | None = None,
                          seconds: float = _REQUEST_SECONDS) -> Msg:
        """Send a request, and return its answer. Raises: Refused."""
        if not self.connected:
            raise Refused("The server cannot be reached at the moment.")
        denied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(subject.lower(), [])
        waiting.append(denied)
        answer = asyncio.ensure_future(self.client.request(subject, data, timeout=seconds, headers=headers))
        try:
            await asyncio.wait((answer, denied), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise Refused(f"This user may not publish to {subject}.")
            return answer.result()
        except NoRespondersError:
            raise Refused(f"Nobody answers {subject}. Is JetStream enabled for this account?") from None
        except (NoAnswer, TimeoutError):
            raise Refused(f"There was no answer to {subject} within {seconds:g} s.") from None
        except (Error, OSError, ValueError) as error:
            raise Refused(f"The request was not sent: {_reason(error)}.") from None
        finally:
            answer.cancel()
            waiting.remove(denied)
            if not waiting:
                self._waiting.pop(subject.lower(), None)

    async def _on_error(self, error: BaseException) -> None:
        text = str(error).lower()
        if found := _DENIED.search(text):
            self._refused.add(found[1])
            for waiting in self._waiting.get(found[1], ()):
                if not waiting.done():
                    waiting.set_result(None)
        elif _DENIED_INBOX in text:
            self._inbox_denied = True

    async def _on_reconnect(self) -> None:
        # nats-py waits for this callback before it reads answers.
        self._learning = asyncio.get_running_loop().create_task(self._learn_permissions(), name="learn permissions")

    async def _learn_permissions(self) -> None:
        """Ask what the user may do; it may have changed since the last connection."""
        self._refused.clear()
        try:
            answer = decode(await self.request(_USER_INFO, seconds=2))
        except Refused:
            self.restricted = _USER_INFO.lower() in self._refused  # else a server before 2.10
            return
        data = answer.get("data")
        if not isinstance(data, dict):
            return
        self.user, self.account = str(data.get("user", "")), str(data.get("account_name") or data.get("account", ""))
        publish = (data.get("permissions") or {}).get("publish") or {}
        allowed, denied = publish.get("allow") or [">"], publish.get("deny") or ()
        self._may = _encoded(allowed), _encoded(denied)
        self.restricted = bool(denied) or ">" not in allowed


def decode(data: bytes) -> dict[str, Any]:
    """Decode a JSON object. Raises: Refused."""
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise Refused("The server's answer is not a JSON object.")
    return value


def _encoded(subjects: Iterable[str]) -> list[bytes]:
    return [subject.encode() for subject in subjects]


def _reason(error: BaseException) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "the connection was refused"
    if isinstance(error, socket.gaierror):
        return "there is no such host"
    if isinstance(error, TimeoutError):
        return "the server did not answer in time"
    return " ".join((str(error).removeprefix("nats: ") or type(error).__name__).split()).rstrip(".")
