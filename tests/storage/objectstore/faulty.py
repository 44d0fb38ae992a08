"""A store that fails as real ones do, by a seed or by a script: for the simulation and the fault tests.

One of these faults may happen to a call, drawn from ``Faults`` by the given random.Random:

    slow         the call succeeds, after a while
    refused      nothing happens; the answer is Transient ("503")
    unanswered   the call takes effect; the answer is Transient (the real answer was lost)
    lost         nothing happens; the answer, after ``timeout_ns``, is Transient
    late         puts only: the answer is Transient, and the put takes effect after it, even much later
    torn         puts only, on a directory: as lost, and half the object stays behind as a temporary file

None of them breaks the contract of ``ObjectStore``. Listings and ranges are never altered. All waiting is by ``sleep``
(asyncio.sleep), so a virtual-time loop needs no real time, and one seed gives the same run every time.

A script controls single calls by hooks, which every call passes before and after; see ``before`` and ``after``. A
FaultyStore stands for one process's connection to the store: brokers that share a store each have one around it.
``halt`` ends that process: no further call reaches the store, and none is answered.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from broker.storage.objectstore.base import (
    Buffers,
    Listing,
    ObjectStore,
    StoreError,
    Transient,
    check_key,
    size_of,
)
from broker.storage.objectstore.file import FileStore
from broker.storage.objectstore.wrapper import Wrapper

__all__ = ["Faults", "FaultyStore", "Hook", "Stall"]

_T = TypeVar("_T")

Hook = Callable[[str, str], Awaitable[None]]
"""A function hook(operation, key), which may wait, or raise the error that the call shall raise."""


@dataclass(frozen=True)
class Faults:
    """Probabilities, each for one call, and durations. The default is a store without faults."""

    slow: float = 0.0
    slow_ns_max: int = 2_000_000_000
    refused: float = 0.0
    unanswered: float = 0.0
    lost: float = 0.0
    late: float = 0.0
    late_ns_max: int = 30_000_000_000
    torn: float = 0.0
    latency_ns: int = 0
    """The latency of every call, half of it before and half after the store is called; even 0 yields to the loop."""
    timeout_ns: int = 5_000_000_000

    def scaled(self, factor: float) -> Faults:
        """Return the same faults with all probabilities multiplied."""
        return replace(self, slow=self.slow * factor, refused=self.refused * factor, torn=self.torn * factor,
                       unanswered=self.unanswered * factor, lost=self.lost * factor, late=self.late * factor)


class Stall:
    """A call that waits until it is released: ``await stall.reached.wait()`` … ``stall.release()``."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.released = asyncio.Event()
        self.key = ""

    def release(self) -> None:
        """Let the call continue."""
        self.released.set()


class FaultyStore(Wrapper):
    """A process's unreliable connection to ``inner``. It has no ``put_sync``, since threads have no virtual time."""

    def __init__(self, inner: ObjectStore, *, rng: random.Random, faults: Faults | None = None,
                 sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        super().__init__(inner)
        self.put_sync = None
        self.faults = faults or Faults()
        """The faults to draw from; a test may replace them at any time."""
        self.before: Hook | None = None
        """A hook awaited by each call before the store is called. If it raises, the call never reached the store."""
        self.after: Hook | None = None
        """A hook awaited by each call after the store was called. If it raises, the answer was lost."""
        self.down = False
        """True while the store is down: every call raises Transient, after a turn of the loop, without reaching the
        store."""
        self.puts = 0
        """The puts begun so far; ``stall_put`` counts from 0."""
        self.injected: dict[str, int] = {}
        """The count of each fault that happened, so that a test can prove that it tried the faults that it is about."""
        self._rng = rng
        self._sleep = sleep
        self._stalls: dict[int, Stall] = {}
        self._halted = False
        self._late: set[asyncio.Task[None]] = set()

    def stall_put(self, number: int) -> Stall:
        """Stall put ``number`` before it reaches the store; ``puts`` is the number of the next put."""
        if number < self.puts:
            raise ValueError(f"put {number} is over")
        return self._stalls.setdefault(number, Stall())

    def halt(self) -> None:
        """End the process: no later call reaches the store, and none in progress is answered. They wait to be
        cancelled.

        Late puts take effect nevertheless, like packets that are in the network.
        """
        self._halted = True
        for stall in self._stalls.values():
            stall.release()

    async def late_puts_done(self) -> None:
        """Wait until every late put has taken effect or been refused."""
        while self._late:
            await asyncio.gather(*self._late)

    async def put(self, key: str, data: Buffers) -> None:
        check_key(key)
        number, self.puts = self.puts, self.puts + 1
        if (stall := self._stalls.pop(number, None)) is not None:
            stall.key = key
            stall.reached.set()
            if not self._halted:
                await stall.released.wait()
        fault = self._draw("put", [("refused", self.faults.refused), ("unanswered", self.faults.unanswered),
                                   ("lost", self.faults.lost), ("late", self.faults.late), ("torn", self.faults.torn)])
        kept = [bytes(part) for part in data]
        if fault in ("late", "torn"):
            await self._pass("put", key, self.before)
            if fault == "late":
                task = asyncio.get_running_loop().create_task(self._put_late(key, kept), name=f"late put {key}")
                self._late.add(task)
                task.add_done_callback(self._late.discard)
            else:
                self._tear(kept)
            await self._time_out("put", key)
        await self._call("put", key, lambda: self.inner.put(key, kept), fault)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return await self._call("get", key, lambda: self.inner.get(key, start, end), self._draw_any("get"))

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        return await self._call("list", prefix, lambda: self.inner.list(prefix, after, limit), self._draw_any("list"))

    async def delete(self, key: str) -> None:
        await self._call("delete", key, lambda: self.inner.delete(key), self._draw_any("delete"))

    async def close(self) -> None:
        """Close ``inner``, too: if several of these share a store, close none of them."""
        for task in self._late:
            task.cancel()
        self.faults = Faults()
        await self.inner.close()

    def _draw_any(self, operation: str) -> str:
        return self._draw(operation, [("refused", self.faults.refused), ("unanswered", self.faults.unanswered),
                                      ("lost", self.faults.lost)])

    def _draw(self, operation: str, chances: Sequence[tuple[str, float]]) -> str:
        """Draw one fault at most. Each call uses one random number, whatever the chances, so that runs stay alike."""
        at = self._rng.random()
        for name, chance in chances:
            if at < chance:
                self.injected[name] = self.injected.get(name, 0) + 1
                return name
            at -= chance
        return ""

    async def _call(self, operation: str, key: str, call: Callable[[], Awaitable[_T]], fault: str) -> _T:
        await self._pass(operation, key, self.before)
        if fault == "lost":
            await self._time_out(operation, key)
        if fault == "refused":
            raise Transient(f"{self.url}: {operation} {key}: 503, please reduce your request rate (injected)")
        error: StoreError | None = None
        try:
            result = await call()
        except StoreError as e:
            error = e
        await self._pass(operation, key, self.after)
        if fault == "unanswered":
            await self._time_out(operation, key)
        if error is not None:
            raise error
        return result

    async def _pass(self, operation: str, key: str, hook: Hook | None) -> None:
        """Pass one way of the connection, there or back."""
        wait_ns = self.faults.latency_ns // 2
        if self.faults.slow and self._rng.random() < self.faults.slow:
            self.injected["slow"] = self.injected.get("slow", 0) + 1
            wait_ns += self._rng.randrange(1 + self.faults.slow_ns_max // 2)
        await self._sleep(wait_ns / 1e9)
        await self._unless_halted()
        if self.down:
            raise Transient(f"{self.url}: {operation} {key}: connection refused (injected)")
        if hook is not None:
            await hook(operation, key)
            await self._unless_halted()

    async def _time_out(self, operation: str, key: str) -> None:
        await self._sleep(self.faults.timeout_ns / 1e9)
        await self._unless_halted()
        raise Transient(f"{self.url}: {operation} {key}: no answer (injected)")

    async def _unless_halted(self) -> None:
        if self._halted:
            await asyncio.get_running_loop().create_future()

    async def _put_late(self, key: str, data: Buffers) -> None:
        wait_ns = self.faults.timeout_ns + self._rng.randrange(1 + self.faults.late_ns_max)
        await self._sleep(wait_ns / 1e9)
        try:
            await self.inner.put(key, data)
        except StoreError:
            pass  # no caller waits any more

    def _tear(self, data: Buffers) -> None:
        """Leave half the object where a process killed while writing would have left it."""
        store: ObjectStore = self.inner
        while isinstance(store, Wrapper):
            store = store.inner
        if isinstance(store, FileStore):
            folder = store.directory / ".tmp" / f"{self._rng.getrandbits(64):016x}"
            folder.mkdir(parents=True)
            (folder / "0").write_bytes(b"".join(data)[:size_of(data) // 2])
