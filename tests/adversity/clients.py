"""Stock clients for destructive tests: they survive lost connections and record what was acknowledged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

import nats
import nats.errors
from nats.aio.client import Client
from nats.js.api import ConsumerConfig, DeliverPolicy
from nats.js.errors import APIError

from tests.harness import BrokerProcess, fetch

__all__ = [
    "ANSWER_SECONDS",
    "FAILED",
    "Writer",
    "connect",
    "disconnect",
    "health",
    "raise_ended",
    "read_all",
    "resident_bytes",
    "running",
    "standby_health",
    "unexpected",
    "until",
]

FAILED = (nats.errors.Error, APIError, asyncio.TimeoutError, ConnectionError)
"""Errors that a stock client raises while its broker is unavailable or refuses."""

ANSWER_SECONDS = 2.0
"""Time that a client waits for an answer which a kill may have taken, before it sends the request again. A longer time
would only delay it."""


async def connect(*urls: str, **options: Any) -> Client:
    """Connect a client that reconnects forever, and quickly."""
    async def quiet(_: Exception) -> None:
        """Ignore the error: connections are lost by design here."""

    return await nats.connect(list(urls), **{"max_reconnect_attempts": -1, "reconnect_time_wait": 0.05,
                                             "connect_timeout": 1, "error_cb": quiet, "dont_randomize": True,
                                             **options})


@asynccontextmanager
async def running(stop: asyncio.Event,
                  clients: Iterable[Coroutine[Any, Any, None]]) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Run clients, as tasks, until the block ends, which sets ``stop``. Raises: the error that ended one of them."""
    tasks = [asyncio.create_task(client) for client in clients]
    try:
        yield tasks
    finally:
        stop.set()
        await asyncio.gather(*tasks, return_exceptions=True)
    raise_ended(tasks)


def raise_ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Raise the error that ended one of the tasks, if any has ended."""
    for task in tasks:
        if task.done():
            task.result()


async def disconnect(client: Client) -> None:
    """Close a client whose broker may have been killed, which nats-py reports as an error of the connection."""
    with suppress(ConnectionError):
        await client.close()


class Writer:
    """Publishes numbered messages, ``window`` at a time, each under one message id until it is acknowledged.

        async with Writer(stream_subject, *urls) as writer:
            await writer.acks(100)          100 more acknowledged from now on

    ``acked`` has sequences by number, ``answers`` the time of each, ``errors`` the API errors.
    """

    def __init__(self, subject: str, *urls: str, window: int = 10, size: int = 100, timeout: float = 1.0,
                 retry: bool = True) -> None:
        self.acked: dict[int, int] = {}
        self.answers: list[tuple[float, int]] = []
        self.errors: list[APIError] = []
        """The first ten API errors."""
        self.refusals = 0
        self.begun = 0
        self._subject, self._urls = subject, urls
        self._window, self._size, self._timeout, self._retry = window, size, timeout, retry
        self._moved = asyncio.Condition()
        self._stop = False
        self._tasks: list[asyncio.Task[None]] = []
        self.client: Client

    def payload(self, number: int) -> bytes:
        return (b"%d " % number).ljust(self._size, b"%d" % (number % 10))

    async def __aenter__(self) -> Self:
        self.client = await connect(*self._urls, pending_size=64 << 20)
        self._tasks = [asyncio.create_task(self._run()) for _ in range(self._window)]
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        await (self.stop() if kind is None else self.abort())

    async def stop(self) -> None:
        """Wait for publishes in progress, and disconnect."""
        self._stop = True
        tasks, self._tasks = self._tasks, []
        if tasks:
            await asyncio.gather(*tasks)
            await disconnect(self.client)

    async def abort(self) -> None:
        """Stop at once: a message that was not acknowledged by now may or may not be stored."""
        self._stop = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await disconnect(self.client)

    async def acks(self, count: int, seconds: float = 30.0) -> None:
        """Wait until ``count`` more messages are acknowledged than now."""
        goal = len(self.acked) + count
        async with asyncio.timeout(seconds), self._moved:
            await self._moved.wait_for(lambda: len(self.acked) >= goal or self._dead())
        for task in self._tasks:
            if task.done():
                task.result()

    async def refused(self, count: int = 1, seconds: float = 30.0) -> None:
        """Wait until there were ``count`` refusals in total."""
        async with asyncio.timeout(seconds), self._moved:
            await self._moved.wait_for(lambda: self.refusals >= count or self._dead())

    def _dead(self) -> bool:
        return any(task.done() for task in self._tasks)

    async def _run(self) -> None:
        js = self.client.jetstream()
        while not self._stop:
            self.begun += 1
            number = self.begun
            payload = self.payload(number)
            while True:
                try:
                    ack = await js.publish(self._subject, payload, headers={"Nats-Msg-Id": str(number)},
                                           timeout=self._timeout)
                except APIError as error:
                    async with self._moved:
                        self.refusals += 1
                        if len(self.errors) < 10:
                            self.errors.append(error.with_traceback(None))
                        self._moved.notify_all()
                except FAILED:
                    pass
                else:
                    async with self._moved:
                        self.acked[number] = ack.seq
                        self.answers.append((time.monotonic(), number))
                        self._moved.notify_all()
                    break
                if self._stop or not self._retry:
                    break
                await asyncio.sleep(0.02)

    def check(self, stored: dict[int, bytes]) -> None:
        """Check that every acknowledged message is at its PubAck's sequence, and that nothing is stored twice."""
        for number, seq in self.acked.items():
            assert stored.get(seq) == self.payload(number), (number, seq, stored.get(seq, b"")[:40])
        mine = list(stored.values())
        if self._size < 64:
            begun = {self.payload(n) for n in range(1, self.begun + 1)}
            mine = [data for data in mine if data in begun]
        assert len(set(mine)) == len(mine), "a message is stored twice"


async def read_all(client: Client, stream: str) -> dict[int, bytes]:
    """Return all messages in the stream, by sequence, read through a pull consumer without acks."""
    js = client.jetstream()
    state = (await js.stream_info(stream)).state
    name = f"all{time.monotonic_ns()}"
    await js.add_consumer(stream, ConsumerConfig(name=name, ack_policy="none", deliver_policy=DeliverPolicy.ALL,
                                                 inactive_threshold=30))
    held: dict[int, bytes] = {}
    sub = await js.pull_subscribe_bind(consumer=name, stream=stream)
    while len(held) < state.messages:
        for message in await sub.fetch(500, timeout=30):
            held[message.metadata.sequence.stream] = message.data
    await js.delete_consumer(stream, name)
    return held


async def until(check: Callable[[], Awaitable[bool]], seconds: float = 30.0) -> None:
    """Repeat ``check`` until it is true, for changes without an event to wait for."""
    for _ in range(int(seconds / 0.05)):
        if await check():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"not so within {seconds} s")


async def health(broker: BrokerProcess) -> tuple[int, str]:
    """Return /healthz of a broker that is or was ready."""
    status, body = await fetch(broker.monitor_url + "/healthz")
    return status, body.decode()


async def standby_health(broker: BrokerProcess) -> tuple[int, str]:
    """Return /healthz of a broker that has not been ready yet: its log names the port."""
    at = await broker.wait_line(r"Starting http monitor on (\S+)")
    status, body = await fetch(f"http://{at[1]}/healthz")
    return status, body.decode()


def resident_bytes(broker: BrokerProcess) -> int:
    """Return the broker's resident memory now (Linux)."""
    for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def unexpected(broker: BrokerProcess) -> list[str]:
    """Return the lines of the broker's log that no external fault may cause: tracebacks, failed assertions, lost
    exceptions."""
    signs = ("Traceback", "AssertionError", "never retrieved", "Exception in callback", "Unhandled",
             "was destroyed but")
    return [line for line in broker.stderr if any(sign in line for sign in signs)]
