"""Limits on open batches: their number in one stream and in total, their duration, and their memory.

Large atomic batches are written to the store while they arrive (``stream.publish.spill``). ``Writing`` has the state
that all of them share: the bytes being written, the publishers that wait for these writes, and the runs that no stream
names yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from broker.base.value import Value

if TYPE_CHECKING:
    from broker.config.settings import ServerLimits
    from broker.jetstream.bus import Source

__all__ = ["BATCH_BYTES_MAX", "BatchLimits", "Inflight", "Writing"]

BATCH_BYTES_MAX: Final = 64 << 20
"""Bytes in memory of one atomic batch. A batch that cannot be spilled is stored in one block."""

_WRITING_BYTES: Final = 48 << 20
"""Publishers are held while more than this is being written."""

_ENCODING_MAX: Final = 2
"""Runs encoded at a time. Encoding one takes once or twice its size in memory."""

_HOLD_SECONDS: Final = 4.0
"""Publishers are held no longer than this, because their connections carry more than the batch."""


class BatchLimits(Value):
    """Limits on open batches, nats-server's by default.

    ``staged_bytes`` bounds the memory of all uncommitted atomic batches, which nats-server keeps on disk.
    """

    max_msgs: int = 1000
    per_stream: int = 50
    total: int = 1000
    timeout_ns: int = 10_000_000_000
    staged_bytes: int = 256 << 20
    fast_per_stream: int = 1000
    fast_total: int = 50_000

    @classmethod
    def of(cls, given: ServerLimits) -> BatchLimits:
        """Return the configured limits, with defaults for the others."""
        usual = cls()
        per_stream, total = given.batch_max_inflight_per_stream, given.batch_max_inflight_total
        return cls(max_msgs=given.batch_max_msgs or usual.max_msgs,
                   timeout_ns=given.batch_timeout_ns or usual.timeout_ns,
                   per_stream=per_stream or usual.per_stream, total=total or usual.total,
                   fast_per_stream=per_stream or usual.fast_per_stream, fast_total=total or usual.fast_total)


class Writing:
    """The bytes of atomic batches that are being written to the store.

    Attributes:
        ``in_thread``: runs a function of some milliseconds outside the loop.
        ``release_runs(keys)``: deletes runs that nothing will ever name.
        ``keys``: the runs of open batches; no stream names them yet, and they must not be swept.
        ``encoding``: bounds the runs encoded at a time (``_ENCODING_MAX``).
    """

    def __init__(self) -> None:
        self.in_thread: Callable[..., Awaitable[Any]] = asyncio.to_thread
        self.release_runs: Callable[[Sequence[str]], object] = lambda keys: None
        self.keys: set[str] = set()
        self.encoding = asyncio.Semaphore(_ENCODING_MAX)
        self.bytes = 0
        self._held: list[Source] = []
        self._timer: asyncio.TimerHandle | None = None

    def began(self, size: int, source: Source | None) -> None:
        """Count ``size`` bytes from ``source`` that are to be written, and hold ``source`` if there are too many."""
        self.bytes += size
        if source is None or self.bytes <= _WRITING_BYTES:
            return
        source.hold()
        self._held.append(source)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_HOLD_SECONDS, self._release)

    def ended(self, size: int) -> None:
        """Subtract bytes that were written or dropped."""
        self.bytes -= size
        if self._held and self.bytes <= _WRITING_BYTES:
            self._release()

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held, self._held = self._held, []
        for source in held:
            source.release()


class Inflight:
    """Open batches of all streams together."""

    __slots__ = ("atomic", "fast", "limits", "staged_bytes", "writing")

    def __init__(self, limits: BatchLimits | None = None) -> None:
        self.limits = limits or BatchLimits()
        self.atomic = self.fast = 0
        self.staged_bytes = 0
        self.writing = Writing()
