"""The system account: requests about this server, its events, and requests of every account about itself.

    $SYS.REQ.SERVER.PING.<page>, $SYS.REQ.SERVER.<id>.<page>      IDZ STATSZ, and the pages of monitoring
    $SYS.REQ.SERVER.<id>.KICK  LDM  RELOAD                        ends or moves a connection; reads the settings again
    $SYS.REQ.ACCOUNT.<account>.<page>                             pages about one account, CONNS
    in every account: $SYS.REQ.USER.INFO                          the requesting user
    in any other account: $SYS.REQ.ACCOUNT.PING.CONNZ  STATZ, $SYS.REQ.SERVER.PING.CONNZ, about the account itself

Owns: the choice of the subjects that are served, and the timers of periodic messages. Does not own: the pages
(monitor), which are passed in as functions; requests that other parts serve, which they register with
``requests.serve``.

Source: nats-server, server/events.go (initEventTracking, registerSystemImports).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Generator, Mapping
from functools import partial
from typing import Any, Final, Protocol

from broker.base.clock import Clock
from broker.base.gojson.encoding import marshal
from broker.config.settings import Settings
from broker.server.accounts.account import Account
from broker.server.accounts.directory import Accounts
from broker.server.connection.client import Client
from broker.server.system import statsz, user_info
from broker.server.system.events import Events
from broker.server.system.requests import Handler, Request, RequestError, Requests
from broker.server.system.selection import Selection

__all__ = ["AccountPage", "Page", "Steps", "System"]

Steps = Generator[None, None, dict[str, Any]]

Page = Callable[[dict[str, Any]], Steps]
"""Makes a page in steps, from a request's options by their lower-case names. Raises: RequestError; Unanswered."""

AccountPage = Callable[[str, dict[str, Any]], Steps]
"""Makes a page about one account in steps, from the account's name and the request's options."""

_GO_NAMES: Final = {"INFO": "AccInfo", "STATZ": "AccountStatz"}
_CONNECTIONS_SECONDS: Final = 30.0


class Host(Protocol):
    """The server."""

    clock: Clock
    rng: random.Random
    accounts: Accounts
    server_id: str
    server_name: str
    clients: dict[int, Client]

    @property
    def settings(self) -> Settings: ...

    def event_identity(self, at: str = "") -> dict[str, Any]:
        """Return the server as events show it, at the time ``at`` or now."""


class System:
    """Serves requests in ``account``, the system account, at once. From ``start`` on it publishes statistics, too."""

    def __init__(self, host: Host, account: Account, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._host = host
        self._account = account
        self._account_pages: Mapping[str, AccountPage] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.events = Events(account.router, host.clock, host.rng, host.server_id, host.event_identity, call_soon)
        self.requests = Requests(host.event_identity, self._selection, call_soon)
        self._statsz: statsz.Statsz | None = None
        self._serve_server("IDZ", self._idz)
        self._serve(f"$SYS.REQ.SERVER.{host.server_id}.KICK", self._kick)
        self._serve(f"$SYS.REQ.SERVER.{host.server_id}.LDM", self._send_lame_duck)
        self._serve("$SYS.REQ.ACCOUNT.*.CONNS", self._conns)
        host.accounts.watch(self._account_added)

    def provide(self, pages: Mapping[str, Page], account_pages: Mapping[str, AccountPage],
                reload: Callable[[Callable[[str], object]], None], streaming: Callable[[], Collection[str]]) -> None:
        """Serve pages by their names.

        Args: ``reload`` reads the settings again, then calls its argument with "" or the error; ``streaming`` returns
            the names of accounts with streams.
        """
        self._account_pages = account_pages
        for name, page in pages.items():
            self._serve_server(name, partial(_show, page, _go_type(name)))
        for name, account_page in account_pages.items():
            self._serve(f"$SYS.REQ.ACCOUNT.*.{name}", partial(_show_account, account_page, _go_type(name)))
        self._statsz = statsz.Statsz(self._account.router, self._host.server_id,
                                     lambda: self._figures(pages["VARZ"], streaming()))
        self._serve_server("STATSZ", self._stats, unanswered=True)
        self._serve("$SYS.REQ.SERVER.PING", self._stats, unanswered=True)
        self._serve(f"$SYS.REQ.SERVER.{self._host.server_id}.RELOAD", lambda request: self._reload(request, reload))
        for account in self._host.accounts:
            self._serve_account(account)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to publish periodically."""
        self._stop_timers()
        if self._statsz is not None:
            self._statsz.start(loop)
        self._timer = loop.call_later(_CONNECTIONS_SECONDS, self._repeat_connections, loop)

    def stop(self) -> None:
        """Stop the timers, and publish that the server ends."""
        self._stop_timers()
        self.events.shut_down()

    # Requests

    def _serve(self, subject: str, handler: Handler, *, unanswered: bool = False) -> None:
        self.requests.serve(self._account.router, subject, handler, unanswered=unanswered)

    def _serve_server(self, name: str, handler: Handler, *, unanswered: bool = False) -> None:
        for which in ("PING", self._host.server_id):
            self._serve(f"$SYS.REQ.SERVER.{which}.{name}", handler, unanswered=unanswered)

    def _selection(self) -> Selection:
        settings = self._host.settings
        return Selection(self._host.server_name, settings.clients.host or "0.0.0.0",
                         tags=frozenset(settings.server_tags), domain=settings.jetstream.domain)

    def _idz(self, request: Request) -> None:
        host = self._host
        request.send(marshal({"name": host.server_name, "host": host.settings.clients.host or "0.0.0.0",
                              "id": host.server_id}))

    def _stats(self, request: Request) -> None:
        assert self._statsz is not None
        request.members(_go_type("STATSZ"))
        if request.reply:
            request.send(self._statsz.message())
        else:
            self._statsz.publish()

    def _figures(self, varz: Page, streaming: Collection[str]) -> bytes:
        page: dict[str, Any] = {}
        steps = varz({})
        while not page:
            try:
                next(steps)
            except StopIteration as end:
                page = end.value
        # A stream counts as activity: on nats-server it is a client of its account.
        active = sum(bool(account.connections) or account.name in streaming for account in self._host.accounts)
        return self.requests.enveloped(statsz=statsz.figures(page, active))

    def _kick(self, request: Request) -> None:
        client = self._named(request, "no such client or leafnode id")
        client.close("Kicked")
        request.answer()

    def _send_lame_duck(self, request: Request) -> None:
        client = self._named(request, "no such client id")
        if not client.send_info(ldm=True):
            raise RequestError("client does not support Lame Duck Mode or is not ready to receive the notification")
        request.answer()

    def _named(self, request: Request, unknown: str) -> Client:
        """Return the client that a request names. Raises: RequestError."""
        cid = request.members().get("cid", 0)
        client = self._host.clients.get(cid) if type(cid) is int else None  # excludes True, which equals 1
        if client is None:
            raise RequestError(unknown)
        return client

    def _reload(self, request: Request, reload: Callable[[Callable[[str], object]], None]) -> None:
        request.members()
        source = request.source
        if source is not None:
            source.hold()

        def done(error: str) -> None:
            if source is not None:
                source.release()
            if error:
                request.refuse(error)
            else:
                request.answer()
        reload(done)

    def _conns(self, request: Request) -> None:
        name = request.token(3)
        account = self._host.accounts.get(name)
        if account is not None and account.connections and request.members().get("acc", name) == name:
            request.send(marshal(self.events.connections(account)))

    # Accounts

    def _account_added(self, account: Account) -> None:
        """Serve the requests of an account that was added."""
        account.on_connections = self.events.connections_changed
        self.requests.serve(account.router, user_info.SUBJECT, lambda request: user_info.user_info(
            request, self._host.accounts, self._host.clock.now_ns), imported=True)
        if self._account_pages:
            self._serve_account(account)

    def _serve_account(self, account: Account) -> None:
        """Serve the pages that an account may request about itself."""
        if account.is_system:
            return
        for subject, name in (("$SYS.REQ.ACCOUNT.PING.CONNZ", "CONNZ"), ("$SYS.REQ.SERVER.PING.CONNZ", "CONNZ"),
                              ("$SYS.REQ.ACCOUNT.PING.STATZ", "STATZ")):
            self.requests.serve(account.router, subject,
                                partial(_show, partial(self._account_pages[name], account.name), _go_type(name)),
                                imported=True)

    def _repeat_connections(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(_CONNECTIONS_SECONDS, self._repeat_connections, loop)
        for account in self._host.accounts:
            if account.connections:
                self.events.connections_changed(account)

    def _stop_timers(self) -> None:
        if self._statsz is not None:
            self._statsz.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _show(page: Page, go_type: str, request: Request) -> Generator[None, None, None]:
    made = yield from page(request.members(go_type))
    yield from request.answer_in_steps(made)


def _show_account(page: AccountPage, go_type: str, request: Request) -> Generator[None, None, None]:
    """Answer with a page about the account that the subject names."""
    made = yield from page(request.token(3), request.members(go_type))
    yield from request.answer_in_steps(made)


def _go_type(page: str) -> str:
    """Return nats-server's name for the type of a page's options, for error texts."""
    return f"{_GO_NAMES.get(page) or page.capitalize()}EventOptions"
