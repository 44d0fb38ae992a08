"""Limits the number of blocks of all streams that are in memory as objects of about 800 bytes each.

A stream loads its blocks from the applied state when they are first needed, which takes microseconds per block and no
request. Above the limit, blocks of idle streams are unloaded: the next access loads them again.

Owns: the choice of streams whose blocks are unloaded, and the conditions for it. Does not own: the loading (live).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Final

from broker.storage.format.errors import FormatError

if TYPE_CHECKING:
    from broker.base.clock import Clock
    from broker.jetstream.stream.stream import Stream

__all__ = ["BlockBudget", "drop_blocks"]

_BLOCKS_MAX: Final = 1 << 17
"""Maximum number of blocks in memory, about 100 MB."""
_INTERVAL_SECONDS: Final = 1.0
_IDLE_NS: Final = 60_000_000_000
"""Minimum time since a stream's last message and last unloading: a stream in use loads its blocks once a minute at
most."""
_MANY: Final = 1024
"""A stream with more blocks than this is never unloaded."""
_DROPPED_AT_ONCE: Final = 4096
"""Blocks unloaded between two turns of the loop: about 2 ms."""
_ASKED_AT_ONCE: Final = 2048
"""Streams examined between two turns of the loop: about a millisecond."""
_ID_BITS: Final = 64


def drop_blocks(stream: Stream) -> int:
    """Unload a stream's blocks if nothing relies on them now; return how many."""
    if (not stream.stored or not stream.live.blocks_loaded or stream.offline is not None or stream.queue.busy
            or stream.heads.walks or stream.msg_ids.loading or stream.tasks.running or stream.subjects.has_deferred
            or stream.msg_ids.has_deferred):
        return 0
    state = stream.applied()
    count = stream.live.unload_blocks(stream.applied) if state is not None and len(state.blocks) <= _MANY else 0
    if count:
        stream.msg_ids.blocks_unloaded()
        stream.chunks.blocks_unloaded()
        stream.rollups.forget()
    return count


class BlockBudget:
    """Unloads blocks of idle ``streams``, while it runs, if there are more than ``most`` in all.

    It examines all streams after ``changed``, at most once a second, and again as long as there are too many blocks.
    Idle streams cost nothing, however many there are.
    """

    def __init__(self, streams: Callable[[], Iterable[Stream]], clock: Clock, most: int | None = None) -> None:
        self.most = _BLOCKS_MAX if most is None else most
        self._streams = streams
        self._clock = clock
        self._dropped_ns: dict[int, int] = {}
        """Maps a stream_id to the time of its last unloading. An entry is kept for at least a minute, and until the
        blocks are loaded again."""
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def changed(self) -> None:
        """Request a check, because blocks were stored or loaded."""
        self._changed.set()

    def start(self) -> None:
        """Start the task that checks the number of blocks."""
        self.changed()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="blocks in memory")

    async def stop(self) -> None:
        """Stop the task."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def trim(self) -> int:
        """Unload blocks of idle streams, the longest idle first, until half of the maximum is left; return how many.

        If there are not too many blocks, nothing is unloaded.
        """
        held = 0
        streams: dict[int, Stream] = {}
        async for stream in self._each():
            if stream.stored and (count := stream.live.blocks_held):
                held += count
                last_ns = stream.live.ahead.stored_at(stream.live.last_seq, stream.live.last_time_ns)
                streams[last_ns << _ID_BITS | stream.stream_id] = stream
        if held <= self.most:
            return 0
        from broker.jetstream.stream.state.in_turns import sorted_in_turns

        now_ns = self._clock.now_ns()
        dropped = turn = 0
        for key in await sorted_in_turns(list(streams)):
            stream = streams[key]
            if held - dropped <= self.most // 2 or now_ns - (key >> _ID_BITS) < _IDLE_NS:
                break
            if now_ns - max(key >> _ID_BITS, self._dropped_ns.get(stream.stream_id, 0)) < _IDLE_NS:
                continue
            if count := drop_blocks(stream):
                self._dropped_ns[stream.stream_id] = now_ns
            dropped += count
            turn += count + 32
            if turn >= _DROPPED_AT_ONCE:
                turn = 0
                await asyncio.sleep(0)
        if held - dropped > self.most:
            self.changed()  # more streams may be idle in a while
        return dropped

    async def load_many(self) -> None:
        """Load the blocks of unloaded streams that have got many blocks since then, in several turns of the loop.

        Otherwise the next access would load them all at once.
        """
        now_ns, obsolete = self._clock.now_ns(), set(self._dropped_ns)
        async for stream in self._each():
            if (stream_id := stream.stream_id) not in obsolete:
                continue
            if not stream.live.blocks_loaded:
                obsolete.remove(stream_id)
                if (state := stream.applied()) is not None and len(state.blocks) > _MANY:
                    try:
                        await stream.load_blocks()
                    except FormatError as error:
                        stream.tasks.warn("its blocks cannot be loaded: %s", error)
            elif now_ns - self._dropped_ns[stream_id] < _IDLE_NS:
                obsolete.remove(stream_id)
        for stream_id in obsolete:
            del self._dropped_ns[stream_id]

    async def _each(self) -> AsyncIterator[Stream]:
        """Yield the present streams, in as many turns of the loop as needed."""
        for at, stream in enumerate(list(self._streams()), 1):
            yield stream
            if at % _ASKED_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(_INTERVAL_SECONDS)
            self._changed.clear()
            await self.trim()
            if self._dropped_ns:
                await self.load_many()
