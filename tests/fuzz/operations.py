"""A player of protocol operations: it returns the frames that every connection of one server received after each step.

After a step, the player's own connection sends a request to the system account. nats-server's internal sender answers
it after the trace events and latency measurements of the step, because it has one queue. Then every connection is read
until the answer to a PING.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

from tests.fuzz import normal
from tests.fuzz.frames import Connection
from tests.fuzz.scenario import Config, Scenario, Step
from tests.fuzz.servers import FENCE, Server

__all__ = ["Played", "play"]

Played = list[tuple[str, Any]]
"""Each step as text, with the frames that every connection received."""

STUCK_SECONDS = 0.4
"""Time after which a connection whose PING has no answer is taken to be in the middle of an operation."""
TIMEOUT_SECONDS = 30.0
QUIET_SECONDS = 0.02
"""Time without a message after which JetStream has sent its last answer."""
ATTEMPTS = 100
"""Number of attempts to connect while the server may still count connections that have ended."""

_FENCED = ("_FENCE.", "$SYS.REQ.USER.INFO")


class _Player:
    """The connections of one scenario at one server."""

    def __init__(self, server: Server, scenario: Scenario, slowness: int) -> None:
        self._server = server
        self._scenario = scenario
        self._slowness = slowness
        self._stack = AsyncExitStack()
        self._connections: dict[str, Connection] = {}
        self._shown_closed: set[str] = set()
        self._stuck: set[str] = set()
        self._fences = 0
        self._stores = bool(scenario.configs and _storing(scenario.configs[0]))
        self._replies: dict[str, str] = {}
        members = Counter(step[3] for step in scenario.steps if step[1:2] == ["sub"] and step[3])
        self._shared = {queue for queue, count in members.items() if count > 1}

    async def play(self) -> Played:
        played: Played = []
        config = self._scenario.configs[0] if self._scenario.configs else {}
        async with self._stack:
            await self._connect_fence(config)
            for step in self._scenario.steps:
                played.append((json.dumps(step), await self._step(step)))
            for name, connection in self._connections.items():
                if name not in self._stuck:
                    connection.send(b"".join(b"UNSUB %b\r\n" % sid.encode("latin-1") for sid in connection.sids))
                    await connection.ping(TIMEOUT_SECONDS)
                await connection.leave()
            await self._remove_streams(config)
            await self._fence.leave()
        return played

    async def _remove_streams(self, config: Config) -> None:
        for name in _storing(config):
            cleaner = await self._stack.enter_async_context(Connection(self._server.port))
            fields = {"verbose": False, "user": f"{FENCE}.{name}", "pass": FENCE}
            cleaner.send(b"CONNECT " + json.dumps(fields).encode() + b"\r\nSUB _CLEAN.* 1\r\n")
            for subject in ("STREAM.NAMES", "STREAM.DELETE.S", "STREAM.NAMES"):
                cleaner.send(f"PUB $JS.API.{subject} _CLEAN.1 0\r\n\r\n".encode())
                if not await cleaner.receive(TIMEOUT_SECONDS):
                    return
            await cleaner.leave()

    async def _step(self, step: Step) -> Any:
        name, verb, *arguments = step
        extra: dict[str, Any] = {}
        if verb == "reload":
            config = self._scenario.configs[arguments[0]]
            refused = await self._server.reload(config)
            extra["reload"] = bool(refused)
            if self._fence.closed:
                await self._connect_fence(config)
        else:
            if name not in self._connections:
                self._connections[name] = await self._open()
            connection = self._connections[name]
            if verb == "leave":
                await connection.leave()
                self._shown_closed.add(name)
            else:
                if connection.closed:
                    return "closed before"
                connection.send(_encoded(verb, arguments, self._replies.get(name, "none")))
                if verb == "raw":
                    await connection.read_by_server()
                if verb == "sub":
                    connection.sids[arguments[2]] = arguments[1]
        received = await self._received(name, raw=verb == "raw")
        if verb == "reload":
            # nats-server checks the subscriptions of a client in the order of a Go map.
            received = {name: sorted(frames, key=lambda frame: (frame == "closed", json.dumps(frame)))
                        for name, frames in received.items()}
        return {**received, **extra}

    async def _open(self) -> Connection:
        """Connect, again if refused after another connection ended: nats-server closes a socket before it stops
        counting the client against ``max_connections``."""
        attempts = ATTEMPTS if any(other.closed for other in self._connections.values()) else 1
        while True:
            connection = await self._stack.enter_async_context(Connection(self._server.port))
            attempts -= 1
            if connection.info or not attempts:
                return connection
            await asyncio.sleep(0.001)

    async def _received(self, first: str, *, raw: bool) -> dict[str, Any]:
        if first in self._connections and not await self._ping(first):
            self._stuck.add(first)
        for _ in range(2 if raw else 1):
            await self._pass_fence()
            for name in self._connections:
                if name not in self._stuck:
                    await self._ping(name)
        if self._stores:
            # JetStream has separate queues for requests, acks and deliveries.
            await self._quiet()
        received: dict[str, Any] = {}
        pool: list[Any] = []
        for name, connection in self._connections.items():
            lines, messages = connection.pop_received()
            shown = []
            replies = []
            for message in messages:
                if message.subject.startswith(_FENCED):
                    continue
                queue = connection.sids.get(message.sid, "")
                shown_message = normal.message(message, self._shared)
                if queue in self._shared:
                    # Members may differ in their support of headers.
                    pool.append(["", queue, shown_message[2], [], shown_message[4]])
                else:
                    shown.append(shown_message)
                    replies.append((json.dumps(shown_message), message.reply))
            shown.sort(key=json.dumps)
            # A Go map decides which of several messages comes last.
            found = [reply for _, reply in sorted(replies, key=lambda one: one[0]) if reply]
            self._replies[name] = found[-1] if found else self._replies.get(name, "none")
            if connection.closed and name not in self._shown_closed:
                self._shown_closed.add(name)
                lines = [*lines, "closed"]
            if lines or shown:
                received[name] = [*lines, *shown]
        if pool:
            received["queue groups"] = sorted(pool, key=json.dumps)
        return received

    async def _quiet(self) -> None:
        """Wait until no connection receives more."""
        def count() -> int:
            return sum(len(one.lines) + len(one.messages) for one in self._connections.values())

        before = -1
        while before != count():
            before = count()
            await asyncio.sleep(QUIET_SECONDS * self._slowness)

    async def _ping(self, name: str) -> bool:
        return await self._connections[name].ping(STUCK_SECONDS * self._slowness)

    async def _connect_fence(self, config: Config) -> None:
        self._fence = await self._open()
        given = config.get("authorization", {})
        fields = {"verbose": False, "user": FENCE, "pass": FENCE}
        if "user" in given:
            fields |= {"user": given["user"], "pass": given.get("password", "")}
        if "token" in given:
            fields |= {"auth_token": given["token"]}
        self._fence.send(b"CONNECT " + json.dumps(fields).encode() + b"\r\nSUB _FENCE.* 1\r\n")
        await self._fence.ping(TIMEOUT_SECONDS)

    async def _pass_fence(self) -> None:
        """Wait until the server's internal sender has sent everything that was queued before."""
        self._fences += 1
        self._fence.send(b"PUB $SYS.REQ.USER.INFO _FENCE.%d 0\r\n\r\n" % self._fences)
        for _ in range(200):
            if not await self._fence.ping(TIMEOUT_SECONDS) or self._fence.closed:
                return
            if any(message.subject == f"_FENCE.{self._fences}" for message in self._fence.pop_received()[1]):
                return


def _storing(config: Config) -> list[str]:
    """Return the accounts that may have streams."""
    accounts = config.get("accounts")
    if not isinstance(accounts, dict) or "jetstream" not in config:
        return []
    return [name for name, account in accounts.items() if isinstance(account, dict) and "jetstream" in account]


def _encoded(verb: str, arguments: list[Any], last_reply: str) -> bytes:
    """Encode a step as bytes. Arguments that were shrunk to nonsense must make some operation, too."""
    def text(value: Any) -> str:
        return str(value).replace("{R}", last_reply)

    if verb == "connect":
        return b"CONNECT " + json.dumps(arguments[0]).encode() + b"\r\n"
    if verb == "sub":
        subject, queue, sid = arguments
        return f"SUB {text(subject)} {queue} {sid}\r\n".replace("  ", " ").encode("latin-1")
    if verb == "unsub":
        sid, count = arguments
        return (f"UNSUB {sid} {count}\r\n" if count else f"UNSUB {sid}\r\n").encode("latin-1")
    if verb == "pub":
        subject, reply, body = arguments
        data = text(body).encode("latin-1")
        head = f"PUB {text(subject)} {text(reply)} {len(data)}\r\n"
        return head.replace("  ", " ").encode("latin-1") + data + b"\r\n"
    if verb == "hpub":
        subject, reply, headers, body = arguments
        data = text(body).encode("latin-1")
        block = ("NATS/1.0\r\n" + "".join(": ".join(header) + "\r\n" for header in headers) + "\r\n").encode("latin-1")
        head = f"HPUB {text(subject)} {text(reply)} {len(block)} {len(block) + len(data)}\r\n"
        return re.sub(" +", " ", head).encode("latin-1") + block + data + b"\r\n"
    assert verb == "raw", f"no verb: {verb}"
    return str(arguments[0]).encode("latin-1")


async def play(server: Server, scenario: Scenario, slowness: int = 1) -> Played:
    """Play a scenario, and return the frames that every connection received after each step.

    Args: ``slowness``: the factor of the time to wait for a connection that does not answer.
    """
    return await _Player(server, scenario, slowness).play()
