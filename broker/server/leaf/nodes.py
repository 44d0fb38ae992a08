"""All leaf connections of the server, and the remotes that open some of them.

Owns: the tasks of the remotes, the accounts' interest, the counts of leaf connections. Does not own: what one
connection does (``connection``).

Source: nats-server, server/leafnode.go (solicitLeafNodeRemotes, addLeafNodeConnection, closeConnection).
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any, Final

from broker.base.gotime import format_duration, format_time
from broker.base.shielded import shielded
from broker.config.leafnodes import LeafRemote
from broker.server.accounts.account import Account
from broker.server.connection.outbound import SLOW_BYTES
from broker.server.leaf.accepted import AcceptedLeaf, LeafPort
from broker.server.leaf.connection import LeafConnection
from broker.server.leaf.interest import AccountInterest
from broker.server.leaf.solicited import Remote, Server, SolicitedLeaf

__all__ = ["LeafNodes"]

log = logging.getLogger(__name__)

_READY_SECONDS: Final = 5.0
"""Time that a start waits until each remote has connected, or has failed to connect for the first time."""
_FLUSH_SECONDS: Final = 1.0


class LeafNodes:
    """The leaf nodes. ``start`` and ``stop`` may be repeated: a standby has no leaf connections."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.connections: dict[int, LeafConnection] = {}
        """Connections in use, by their number."""

        self._accepted: dict[AcceptedLeaf, None] = {}
        """Connections of other servers, also during their handshake."""

        self.slow_consumers = 0
        self.slow_by_bytes = 0
        self._interest: dict[str, tuple[AccountInterest, asyncio.Task[None] | None]] = {}
        self.remotes: list[Remote] = []
        leafnodes = server.settings.leafnodes
        self.port = LeafPort(leafnodes) if leafnodes.port is not None else None
        """The port for other servers; None if there is none."""
        self._informing: dict[int, bool] = {}
        """The connections that are being informed about all interest, and whether they must be again."""

        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[Remote, asyncio.Task[None]] | None = None
        """The tasks of the remotes; None unless started."""

    async def start(self) -> None:
        """Listen, and connect the remotes.

        Return when each remote has informed its hub about all interest, or has failed once. Raises: OSError if the port
        cannot be bound.
        """
        if self.port is not None:
            await self.port.start(self._server, self._accept)
        self.open_remotes()
        try:
            async with asyncio.timeout(_READY_SECONDS):
                await asyncio.gather(*(remote.settled.wait() for remote in self.remotes))
        except TimeoutError:
            log.warning("Not all leaf nodes are connected yet")

    def open_remotes(self) -> None:
        """Begin to connect the remotes."""
        self._running = {}
        self.remotes = []
        self.remotes_changed()

    async def stop(self) -> None:
        """Close all connections, and open no others."""
        if self.port is not None:
            self.port.stop_listening()
        self._running = None
        tasks, self._tasks = self._tasks, set()
        opening = [remote.connection for remote in self.remotes if remote.connection is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for leaf in (*self.connections.values(), *opening, *self._accepted):
            leaf.close("Server Shutdown")

    def _accept(self) -> AcceptedLeaf:
        assert self.port is not None
        leaf = AcceptedLeaf(self._server, self, self.port)
        self._accepted[leaf] = None
        return leaf

    def remotes_changed(self) -> None:
        """Apply the settings of the remotes: end those that are gone or disabled, and begin new ones.

        A changed remote ends and begins anew; its new TLS alone applies when it connects the next time.
        Source: nats-server, server/reload.go (leafNodeOption.Apply), which refuses most changes of a remote.
        """
        if self._running is None:
            return
        configured = self._server.settings.leafnodes.remotes
        wanted = [remote for remote in configured if not remote.disabled]
        kept = []
        for remote in self.remotes:
            same = next((one for one in wanted if one.replace(tls=remote.settings.tls) == remote.settings), None)
            if same is not None:
                wanted.remove(same)
                remote.settings = same
                kept.append(remote)
                continue
            disabled = remote.settings.replace(disabled=True) in configured
            log.info("Reloaded: LeafNode Remote %s %s", remote.settings.shown,
                     "Disabled value is: true" if disabled else "removed")
            leaf = remote.connection
            self._running.pop(remote).cancel()
            if leaf is not None:
                leaf.close("Client Closed")
        added = [Remote(remote, self._server, self) for remote in wanted]
        self.remotes = [*kept, *added]
        for remote in added:
            self._running[remote] = self._run(remote.run(), f"leaf node of {remote.settings.account}")

    def accounts_changed(self) -> None:
        """Inform the other servers about changed subject mappings."""
        for interest, _ in self._interest.values():
            interest.mappings_changed()

    def users_changed(self) -> None:
        """Check the logins of other servers again after a change of the users or accounts."""
        for leaf in list(self._accepted):
            if not leaf.closed:
                leaf.users_changed()

    # For connections

    def interest_of(self, account: Account) -> AccountInterest:
        """Return the interest of an account."""
        known = self._interest.get(account.name)
        if known is None:
            known = self._interest[account.name] = AccountInterest(account.router), None
        return known[0]

    def connected(self, leaf: LeafConnection) -> None:
        """Inform ``leaf``, whose handshake is complete, about all interest."""
        own = self._server.settings.jetstream.domain
        if leaf.cid not in self.connections:
            self._close_duplicate(leaf)
            self.connections[leaf.cid] = leaf
            if leaf.remote_domain != own:
                log.info('%s - JetStream using domains: local "%s", remote "%s"', leaf.label, own, leaf.remote_domain)
        if leaf.cid in self._informing:
            self._informing[leaf.cid] = True
        else:
            self._informing[leaf.cid] = False
            self._run(self._inform(leaf), f"interest for {leaf.label}")

    def _close_duplicate(self, leaf: LeafConnection) -> None:
        """Close an older connection of the same server for the same accounts: it did not notice that it had ended."""
        for other in list(self.connections.values()):
            if (leaf.accepted and other.accepted and other.account is leaf.account
                    and (other.remote_name, other.group, other.remote_account)
                    == (leaf.remote_name, leaf.group, leaf.remote_account)):
                other.fail("Duplicate Remote LeafNode Connection", "Duplicate Remote LeafNode Connection")

    async def _inform(self, leaf: LeafConnection) -> None:
        interest = self.interest_of(leaf.account)
        _, counting = self._interest[leaf.account.name]
        if counting is None:
            counting = asyncio.create_task(interest.count_existing(), name=f"interest of {leaf.account.name}")
            self._interest[leaf.account.name] = interest, counting
        await shielded(counting)
        await interest.inform(leaf)
        leaf.informed()
        while self._informing.get(leaf.cid):
            self._informing[leaf.cid] = False
            await interest.inform(leaf)
        self._informing.pop(leaf.cid, None)
        leaf.confirm(lambda: log.info("%s - Leafnode connection knows the interest of account %s", leaf.label,
                                      leaf.account.name))
        for remote in self.remotes:
            if remote.connection is leaf:
                remote.settled.set()

    def ended(self, leaf: LeafConnection) -> None:
        """Remove a connection that is closing."""
        self.connections.pop(leaf.cid, None)
        self._informing.pop(leaf.cid, None)
        if isinstance(leaf, AcceptedLeaf):
            self._accepted.pop(leaf, None)
        log.info("%s - Leafnode connection closed: %s%s", leaf.label, leaf.close_reason,
                 leaf.remote_name and f" - Remote: {leaf.remote_name}")

    def count_slow(self, leaf: LeafConnection, reason: str) -> None:
        self.slow_consumers += 1
        if reason == SLOW_BYTES:
            self.slow_by_bytes += 1
        log.info("%s - %s", leaf.label, reason)

    def identity(self, leaf: LeafConnection) -> dict[str, Any]:
        """Return ``leaf`` as JetStream's advisories show it. Source: nats-server, server/client.go (getClientInfo)."""
        fields = {"start": format_time(leaf.started_at_ns), "host": leaf.ip, "id": leaf.cid,
                  "acc": leaf.account.name, "name": leaf.remote_name, "rtt": leaf.rtt_ns,
                  "server": self._server.server_name, "kind": "Leafnode", "client_type": "nats"}
        return {name: value for name, value in fields.items() if value}

    # For JetStream

    def domains(self, account: str) -> set[str]:
        """Return the JetStream domains of the servers that are connected to an account, without this server's own."""
        own = self._server.settings.jetstream.domain
        return {leaf.remote_domain for leaf in self.connections.values() if leaf.account.name == account} - {"", own}

    def reaches(self, account: str, name: str) -> bool:
        """Return whether the account is connected to a hub of that name whose JetStream has no domain."""
        return self._hub(account, name) is not None

    def request(self, account: str, name: str, subject: bytes, reply: bytes, hlen: int, body: bytes) -> int:
        """Send a request to ``$JS.API`` of that hub; return 0 if it is not connected, or forbids this."""
        leaf = self._hub(account, name)
        return leaf.request(subject, reply, hlen, body) if leaf is not None else 0

    def _hub(self, account: str, name: str) -> SolicitedLeaf | None:
        return next((leaf for leaf in self.connections.values()
                     if isinstance(leaf, SolicitedLeaf) and leaf.account.name == account and name in leaf.plain_names),
                    None)

    async def flushed(self, account: str) -> None:
        """Return once the servers that are connected to an account have processed all that was sent to them."""
        loop = asyncio.get_running_loop()
        waiting = []
        for leaf in self.connections.values():
            if leaf.account.name == account and not leaf.closed:
                waiting.append(processed := loop.create_future())
                leaf.confirm(partial(_resolve, processed))
        if waiting:
            await asyncio.wait(waiting, timeout=_FLUSH_SECONDS)

    # For monitoring

    def rows(self, account: str = "", subscriptions: bool = False) -> list[dict[str, Any]]:
        """Return the entries of /leafz. Source: nats-server, server/monitor.go (LeafInfo)."""
        found = []
        for leaf in self.connections.values():
            if account in ("", leaf.account.name):
                row = {"id": leaf.cid, "name": leaf.remote_name, "is_spoke": not leaf.hub,
                       "account": leaf.account.name, "ip": leaf.ip, "port": leaf.port,
                       "rtt": format_duration(leaf.rtt_ns), "in_msgs": leaf.in_msgs, "out_msgs": leaf.out_msgs,
                       "in_bytes": leaf.in_bytes, "out_bytes": leaf.out_bytes, "subscriptions": len(leaf.subs)}
                if leaf.isolated:
                    row["is_isolated"] = True
                if subscriptions:
                    row["subscriptions_list"] = [subject.decode("utf-8", "replace") for subject, _ in leaf.subs]
                found.append(row)
        return found

    def varz(self) -> dict[str, Any]:
        """Return the block ``leaf`` of /varz. Source: nats-server, server/monitor.go (LeafNodeOptsVarz)."""
        shown: dict[str, Any] = {}
        settings = self._server.settings.leafnodes
        if self.port is not None:
            shown = {"host": settings.host, "port": self.port.port, "auth_timeout": settings.auth_timeout_ns / 1e9,
                     "tls_timeout": settings.tls.timeout_ns / 1e9}
            if (tls := self.port.tls) is not None:
                shown |= {"tls_required": True, "tls_cert_not_after": format_time(tls.not_after_ns)}
                shown |= {"tls_verify": True} if tls.verify else {}
        if settings.remotes:
            shown["remotes"] = [_remote_row(remote) for remote in settings.remotes]
        return shown

    def _run(self, steps: Any, name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(steps, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed", task.get_name(), exc_info=error)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _remote_row(remote: LeafRemote) -> dict[str, Any]:
    """Return a remote as /varz shows it, without secrets."""
    denied = {"imports": list(remote.deny_imports), "exports": list(remote.deny_exports)}
    denied = {name: subjects for name, subjects in denied.items() if subjects}
    return {"local_account": remote.account, "urls": [url.address for url in remote.urls],
            **({"deny": denied} if denied else {})}
