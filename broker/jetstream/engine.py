"""JetStream of one broker: its accounts, the logs that their streams write, and when they may.

    JetStream ── Api: $JS.API.> ── Account "$G" ── streams
        └─ log (streams with storage file), memory_log (storage memory)

``listen`` at the start of the process, ``open`` when the shard is ours, ``close`` when it no longer is; outside of that,
requests are answered with 10008.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from broker.clock import Clock
from broker.config.settings import ClientSettings, JetStreamSettings
from broker.jetstream.account import Account
from broker.jetstream.api.dispatcher import Api
from broker.jetstream.stream.stream import Stream
from broker.jetstream.usage import Usage
from broker.storage.log.memory_log import MemoryLog

if TYPE_CHECKING:
    from broker.jetstream.bus import Bus
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.listeners import Listener
    from broker.storage.log.log import Log
    from broker.storage.read.reader import BlockReader
    from broker.storage.state.stream import StreamState

__all__ = ["JetStream"]

_log = logging.getLogger(__name__)


class JetStream:
    """JetStream of one broker. Exists from start to end; has streams between ``open`` and ``close``.

    Args: ``buses`` by account name; ``settings`` from the configuration;
        ``direct_bytes_max`` are the bytes after which a batched direct get ends (nats-server: max_pending).
    Attributes: ``accounts`` and ``apis``, the API of each account, by account name.
    """

    def __init__(self, buses: Mapping[str, Bus], clock: Clock, rng: random.Random,
                 settings: JetStreamSettings | None = None, *, server_name: str = "jetblock",
                 direct_bytes_max: int = ClientSettings().max_pending) -> None:
        self.settings = settings or JetStreamSettings()
        self.server_name = server_name
        self.direct_bytes_max = direct_bytes_max
        self.clock = clock
        self.rng = rng
        self._log: Log | None = None
        self._memory_log: MemoryLog | None = None
        self._reader: BlockReader | None = None
        self._opening: set[asyncio.Task[None]] = set()
        limits = self.settings.server
        self._usage = {"memory": Usage("memory", limits.max_memory), "file": Usage("file", limits.max_storage)}
        self.accounts = {name: Account(self, name, bus, clock, rng, self.settings) for name, bus in buses.items()}
        self.apis = {name: Api(account) for name, account in self.accounts.items()}

    @property
    def available(self) -> bool:
        """Whether the shard is ours and our proof of it is fresh."""
        log = self._log
        return log is not None and log.failure is None and not log.lease_expired

    @property
    def log(self) -> Log:
        assert self._log is not None, "JetStream is not open"
        return self._log

    def listen(self) -> None:
        """Begin to answer the API, with 10008 until ``open``."""
        for api in self.apis.values():
            api.start()

    async def open(self, log: Log, reader: BlockReader, *, wait_seconds: float = 5.0) -> None:
        """Take up the streams and consumers of ``log.state``, which is ours from now on.

        Returns once the consumers serve, or after ``wait_seconds``: those whose messages take long to count go on
        opening.
        """
        self._log, self._reader = log, reader
        log.on_lease_renewed, log.on_small_segment = self._wake, reader.admit_segment
        self._memory_log = MemoryLog(log.clock_trusted)
        tasks = []
        for state in list(log.state.streams.values()):
            account = self.accounts.get(state.account)
            if account is None:
                _log.error("stream %s belongs to account %s, which does not exist here", state.name, state.account)
                continue
            tasks += [self._loop_task(opening) for opening in account.restore(state)]
        if tasks:
            await asyncio.wait(tasks, timeout=wait_seconds)

    async def close(self, *, tell: bool = False) -> None:
        """Let go of all streams and consumers at once.

        Args: ``tell`` for a clean stop: waiting pull requests hear of it, and each stream says its last, which is
            persisted when the log is drained, after this. Else nothing is written and nobody is told.
        """
        if tell:
            for account in self.accounts.values():
                account.prepare_shutdown()
        for api in self.apis.values():
            await api.drop()
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        for account in self.accounts.values():
            account.release()
        if self._memory_log is not None:
            self._memory_log.stop()
        self._log = self._memory_log = self._reader = None

    async def stop(self) -> None:
        """Stop answering the API."""
        for api in self.apis.values():
            await api.stop()

    def make_stream(self, account: str, bus: Bus, config: StreamConfig, state: StreamState | None = None, *,
                    listeners: Mapping[str, Listener]) -> Stream:
        """A live stream: a new one, or one as its persisted blocks left it; ``listeners`` are its consumers by name."""
        assert self._reader is not None
        assert self._memory_log is not None
        memory = config.storage == "memory"
        return Stream(
            config, state, account=account, stream_id=self._stream_id() if state is None else state.stream_id,
            created_ns=self.clock.now_ns() if state is None else state.created_ns,
            log=self._memory_log if memory else self.log, reader=self._reader, bus=bus, clock=self.clock,
            rng=self.rng, domain=self.settings.domain, usage=self._usage[config.storage], listeners=listeners)

    def _wake(self) -> None:
        """The lease was renewed: consumers go on with deliveries that they held back."""
        for account in self.accounts.values():
            for stream in account.streams.values():
                for consumer in account.consumers(stream).values():
                    consumer.wake()

    def _stream_id(self) -> int:
        """An incarnation that no stream of this log has: random, so that no two brokers agree on one by chance."""
        taken = self.log.state.streams
        while True:
            stream_id = self.rng.getrandbits(63) | 1 << 62
            if stream_id not in taken:
                return stream_id

    def _loop_task(self, opening: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(opening, name="open consumer")
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        return task
