"""Bounds how many blocks of all streams are in memory as objects, some 800 bytes each.

A stream loads its blocks from the applied state when they are first needed, which takes microseconds a block and no
request. Above the bound, those of streams in which nothing has happened for a while are dropped: they are loaded again
with the next question.

Owns: when a stream's blocks are dropped, and whether something relies on them. Does not own: how they are loaded (live).
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
"""Some 100 MB."""
_INTERVAL_SECONDS: Final = 1.0
_IDLE_NS: Final = 60_000_000_000
"""Since a stream's last message, and since its blocks were last dropped: one in use loads them once a minute at most."""
_MANY: Final = 1024
"""Blocks of one stream: they are not dropped."""
_DROPPED_AT_ONCE: Final = 4096
"""Blocks dropped between two turns of the loop: about 2 ms."""
_ASKED_AT_ONCE: Final = 2048
"""Streams asked for their blocks between two turns of the loop: about a millisecond."""
_ID_BITS: Final = 64


def drop_blocks(stream: Stream) -> int:
    """Let go of a stream's blocks if nothing relies on them now; returns how many."""
    if (not stream.stored or not stream.live.blocks_loaded or stream.offline is not None or stream.queue.busy or stream.heads.walks
            or stream.msg_ids.loading or stream.tasks.running or stream.subjects.has_deferred or stream.msg_ids.has_deferred):
        return 0
    state = stream.applied()
    count = stream.live.unload_blocks(stream.applied) if state is not None and len(state.blocks) <= _MANY else 0
    if count:
        stream.msg_ids.blocks_unloaded()
        stream.chunks.blocks_unloaded()
        stream.rollups.forget()
    return count


class BlockBudget:
    """Drops blocks of idle ``streams``, while it runs, if there are more than ``most`` in all.

    It asks all streams, at most once a second, after ``changed``, and for as long as there are too many: where nothing happens
    it costs nothing, however many streams there are.
    """

    def __init__(self, streams: Callable[[], Iterable[Stream]], clock: Clock, most: int | None = None) -> None:
        self.most = _BLOCKS_MAX if most is None else most
        self._streams = streams
        self._clock = clock
        self._dropped_ns: dict[int, int] = {}
        """When the blocks of a stream were last dropped, by its id; for a minute at least, and until they are loaded again."""
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def changed(self) -> None:
        """There are more blocks, or may be: some were stored, or loaded."""
        self._changed.set()

    def start(self) -> None:
        """Watch from now on."""
        self.changed()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="blocks in memory")

    async def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def trim(self) -> int:
        """Drop blocks of idle streams, the longest idle first, until half as many are left as may be, if they are too many;
        returns how many."""
        from broker.jetstream.stream.state.in_turns import sorted_in_turns

        held = 0
        streams: dict[int, Stream] = {}
        async for stream in self._each():
            if stream.stored and (count := stream.live.blocks_held):
                held += count
                last_ns = stream.live.ahead.stored_at(stream.live.last_seq, stream.live.last_time_ns)
                streams[last_ns << _ID_BITS | stream.stream_id] = stream
        if held <= self.most:
            return 0
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
            self.changed()  # some may be idle in a while
        return dropped

    async def load_many(self) -> None:
        """Load the blocks that were dropped of streams that have got many since, in turns of the loop: the next question
        would load them at once."""
        now_ns, gone = self._clock.now_ns(), set(self._dropped_ns)
        async for stream in self._each():
            if (stream_id := stream.stream_id) not in gone:
                continue
            if not stream.live.blocks_loaded:
                gone.remove(stream_id)
                if (state := stream.applied()) is not None and len(state.blocks) > _MANY:
                    try:
                        await stream.load_blocks()
                    except FormatError as error:
                        stream.tasks.warn("its blocks cannot be loaded: %s", error)
            elif now_ns - self._dropped_ns[stream_id] < _IDLE_NS:
                gone.remove(stream_id)
        for stream_id in gone:
            del self._dropped_ns[stream_id]

    async def _each(self) -> AsyncIterator[Stream]:
        """The streams there are now, in as many turns of the loop as it takes to ask them."""
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
