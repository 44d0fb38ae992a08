"""The heartbeats of all clients: one timer, and a heap of due times.

A client gets a request on its heartbeat inbox every ``interval``. If no answer comes within ``timeout``, the heartbeat
has failed. If nobody subscribes to the inbox, it fails at once. After more than ``fail_count`` failures in a row the
client is lost.

    due ──> asked ──answer──> due again after interval
              └──timeout──> failed ──> due again after interval, or lost

At most ``_AT_ONCE`` clients are handled in one turn of the loop: after a failover, a million may be due together.

Source: nats-streaming-server, server/server.go checkClientHealth.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.base.clock import Clock
    from broker.config.streaming import StreamingSettings
    from broker.jetstream.bus import Bus, Msg, Source
    from broker.streaming.client import Client

__all__ = ["Heartbeats"]

_AT_ONCE = 200


class Heartbeats:
    """The heartbeats of the clients that are added.

    Args: ``answered`` is called with a client for each of its answers, ``lost`` with a client that does not answer.
    """

    def __init__(self, bus: Bus, clock: Clock, settings: StreamingSettings, subject: str,
                 answered: Callable[[Client], object], lost: Callable[[Client], object]) -> None:
        self._bus = bus
        self._clock = clock
        self._settings = settings
        self._subject = subject.encode()
        self._client_answered = answered
        self._lost = lost
        self._heap: list[tuple[int, int, Client]] = []
        self._numbers = count()
        self._clients: dict[str, Client] = {}
        self._calls: dict[bytes, Callable[[], object]] = {}
        """A function to call on the answer to each request, by the last token of its reply subject."""
        self._tokens: dict[Client, bytes] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._subscription = bus.subscribe(self._subject + b".*", self._on_answers)

    def add(self, client: Client) -> None:
        """Begin with the heartbeats of a client."""
        self._clients[client.id] = client
        self._push(client, self._clock.monotonic_ns() + self._settings.hb_interval_ns)

    def remove(self, client: Client) -> None:
        """End the heartbeats of a client."""
        if self._clients.get(client.id) is client:
            del self._clients[client.id]
        if (token := self._tokens.pop(client, None)) is not None:
            self._calls.pop(token, None)

    def hasten(self, client: Client) -> None:
        """Send the next heartbeat now: the client has failed to answer, and seems to be back."""
        now_ns = self._clock.monotonic_ns()
        if not client.asked and client.due_ns > now_ns and self._clients.get(client.id) is client:
            self._push(client, now_ns)

    async def answers(self, client: Client, timeout_ns: int) -> bool:
        """Return whether the client answers a request on its heartbeat inbox within ``timeout_ns``."""
        answered = asyncio.Event()
        token = self._ask(client, answered.set)
        if not token:
            return False
        try:
            async with asyncio.timeout(timeout_ns / 1e9):
                await answered.wait()
        except TimeoutError:
            return False
        finally:
            self._calls.pop(token, None)
        return True

    def close(self) -> None:
        """End all heartbeats."""
        self._bus.unsubscribe(self._subscription)
        self._clients.clear()
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _ask(self, client: Client, answered: Callable[[], object]) -> bytes:
        """Send a heartbeat; return the token of its reply subject, or b"" if nobody receives it."""
        token = b"%d" % next(self._numbers)
        self._calls[token] = answered
        if self._bus.send(client.heartbeat_inbox.encode(), self._subject + b"." + token, 0, b""):
            return token
        del self._calls[token]
        return b""

    def _on_answers(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> None:
        for subject, _, _, _ in ops[start:end]:
            answered = self._calls.pop(subject.rpartition(b".")[2], None)
            if answered is not None:
                answered()

    def _push(self, client: Client, due_ns: int) -> None:
        client.due_ns = due_ns
        heapq.heappush(self._heap, (due_ns, next(self._numbers), client))
        if self._heap[0][2] is client:
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap:
            wait_ns = self._heap[0][0] - self._clock.monotonic_ns()
            self._timer = asyncio.get_running_loop().call_later(max(wait_ns, 0) / 1e9, self._on_timer)

    def _on_timer(self) -> None:
        now_ns = self._clock.monotonic_ns()
        left = _AT_ONCE
        while left and self._heap and self._heap[0][0] <= now_ns:
            left -= 1
            due_ns, _, client = heapq.heappop(self._heap)
            if client.due_ns == due_ns and self._clients.get(client.id) is client:
                self._handle(client, now_ns)
        self._arm()

    def _handle(self, client: Client, now_ns: int) -> None:
        if client.asked:
            self._calls.pop(self._tokens.pop(client, b""), None)
            self._failed(client, now_ns)
            return
        token = self._ask(client, lambda: self._answered(client))
        if token:
            client.asked = True
            self._tokens[client] = token
            self._push(client, now_ns + self._settings.hb_timeout_ns)
        else:
            self._failed(client, now_ns)

    def _answered(self, client: Client) -> None:
        self._tokens.pop(client, None)
        client.asked = False
        client.failed_heartbeats = 0
        self._client_answered(client)
        self._push(client, self._clock.monotonic_ns() + self._settings.hb_interval_ns)

    def _failed(self, client: Client, now_ns: int) -> None:
        client.asked = False
        client.failed_heartbeats += 1
        if client.failed_heartbeats > self._settings.hb_fail_count:
            self.remove(client)
            self._lost(client)
        else:
            self._push(client, now_ns + self._settings.hb_interval_ns)
