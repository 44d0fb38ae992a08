"""Large atomic batches: their messages are written to the store while they arrive, and join the stream at the commit.

    message ──> batch in memory ── every SPILL_BYTES ──> put as a staged run
                   │                                        │
                   └─ headers stay, for the commit's checks └─ joined by one record (stream.appending), or deleted

A run that no commit names belongs to no stream: after a crash the inbox deletes it, as it deletes all unused staged
runs.

Owns: writing the runs, and deleting the runs of a batch that is dropped. Does not own: the batch (atomic), its checks
(batching), how the messages join the stream (stream.appending), the limit on concurrent writes of all batches
(inflight), the limit on an account's staged bytes (usage).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from broker.base.shielded import shielded
from broker.jetstream.stream.publish.headers import MSG_ID, as_stored, find
from broker.storage.format.staged import staged_position
from broker.storage.objectstore.base import StoreRefused
from broker.storage.paths import StreamPaths
from broker.storage.put import key_taken_error, put_ours, until_answered
from broker.storage.staging.run import Row, encode_run, in_blocks

if TYPE_CHECKING:
    from broker.jetstream.bus import Msg, Source
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.inflight import Inflight
    from broker.jetstream.stream.shared.stream_parts import StreamParts
    from broker.storage.format.block import BlockRef
    from broker.storage.format.header import Position
    from broker.storage.log.log import Log

__all__ = ["BLOCKS_MAX", "SPILL_BYTES", "Spill", "may_spill"]

_log = logging.getLogger(__name__)

SPILL_BYTES: Final = 16 << 20
"""A batch with more bytes than this in memory is written as one run.

A smaller batch goes into the stream's own block.
"""

BLOCKS_MAX: Final = 1024
"""Maximum number of blocks of one batch, which one record names; a block has 4 MiB or one larger message."""

_IDS: Final = frozenset((MSG_ID,))


def may_spill(config: StreamConfig) -> bool:
    """Return whether the stream stores messages as they arrive.

    In other streams the commit changes messages, or needs their bodies again.
    """
    return config.storage != "memory" and not (
        config.allow_msg_counter or config.allow_msg_schedules or config.subject_transform or config.republish)


class Spill:
    """The part of one batch that is in the store, or being written.

    Attributes: ``payloads``: length of each message's payload, in the batch's order; ``blocks``: number of blocks.
    """

    __slots__ = ("_ended", "_inflight", "_log", "_named", "_parts", "_runs", "_staged_bytes", "_usage", "blocks",
                 "payloads")

    def __init__(self, parts: StreamParts, inflight: Inflight) -> None:
        self.payloads: list[int] = []
        self.blocks = 0
        self._parts, self._inflight, self._usage = parts, inflight, parts.live.usage
        # Batches are written for stored streams only.
        self._log = cast("Log", parts.log)
        self._staged_bytes = 0
        self._runs: list[tuple[str, asyncio.Task[list[BlockRef]]]] = []
        self._named = self._ended = False

    @property
    def writing(self) -> bool:
        """True while some run is being written."""
        return not all(task.done() for _, task in self._runs)

    def refusal(self, size: int) -> int:
        """Return the error code that refuses ``size`` more bytes, or 0."""
        return self._usage.staging_refusal(size, self._parts.clock.now_ns())

    def write(self, msgs: Sequence[Msg], source: Source | None) -> tuple[list[Msg], int]:
        """Write the next messages of the batch in the background.

        Returns: the messages with their headers alone, which must be kept; and the number of bytes that this frees.
        """
        parts, writing = self._parts, self._inflight.writing
        rows, left, freed, copied, staged = [], [], 0, 0, 0
        for subject, _, hlen, body in msgs:
            freed += len(body)
            staged += len(subject) + len(body)
            block = body[:hlen]
            if hlen and as_stored(hlen, block) != (hlen, block):
                hlen, body = as_stored(hlen, body)
                block = body[:hlen]
            rows.append(Row(subject, body, hlen, find(block, _IDS).get(MSG_ID, b"")))
            left.append((subject, b"", hlen, block))
            self.payloads.append(len(body) - hlen)
            freed -= hlen
            copied += hlen
        self._staged_bytes += staged
        self._usage.staged_bytes += staged
        blocks = in_blocks(rows)
        self.blocks += len(blocks)
        position, run_id = staged_position(parts.clock.now_ns()), parts.rng.getrandbits(64) or 1
        key = StreamPaths(parts.account, parts.name, parts.stream_id).run(position, run_id)
        writing.keys.add(key)
        # Until the run is written, its headers are in memory twice.
        self._inflight.staged_bytes += copied
        writing.began(freed + copied, source)
        task = asyncio.get_running_loop().create_task(self._put(key, position, run_id, blocks),
                                                      name=f"batch {parts.name}")
        task.add_done_callback(partial(self._done, freed + copied))
        self._runs.append((key, task))
        return left, freed

    async def written(self) -> list[BlockRef]:
        """Return all blocks, in order, once they are in the store.

        Raises: StoreError, or another error that kept one out.
        """
        blocks: list[BlockRef] = []
        for _, task in self._runs:
            put = await shielded(task)
            blocks += put
        return blocks

    def joined(self) -> None:
        """Keep the runs in the store: a record that names them is being written."""
        self._named = True

    def end(self) -> None:
        """Release the batch, which has joined or never will; in the latter case, delete its runs."""
        if self._ended:
            return
        self._ended = True
        self._usage.staged_bytes -= self._staged_bytes
        writing = self._inflight.writing
        keys = [key for key, _ in self._runs]
        writing.keys.difference_update(keys)
        if self._named:
            return
        for _, task in self._runs:
            task.cancel()
        # A cancelled put may still reach the store after the deletion. The inbox deletes that object, and also all runs
        # if the log has ended.
        if keys and self._log.room():
            writing.release_runs(keys)

    async def _put(self, key: str, position: Position, run_id: int, blocks: list[Sequence[Row]]) -> list[BlockRef]:
        parts, log, writing = self._parts, self._log, self._inflight.writing
        async with writing.encoding:
            data, refs = await writing.in_thread(encode_run, parts.stream_id, position, run_id, log.nonce, blocks,
                                                 log.settings.codec)
        blocks.clear()

        async def put() -> None:
            holder = await put_ours(log.store, key, data, log.nonce)
            if holder is not None:
                raise key_taken_error(holder, key)

        # A refusal ends the wait: until the batch is decided, all requests to the stream may wait, even a purge that
        # would make room.
        await until_answered(put, parts.rng, lambda error: isinstance(error, StoreRefused) or log.failure is not None,
                             lambda error: _log.warning("a batch waits for the store: cannot put %s: %s", key, error))
        return list(refs)

    def _done(self, size: int, task: asyncio.Task[list[BlockRef]]) -> None:
        self._inflight.staged_bytes -= size
        self._inflight.writing.ended(size)
        if not task.cancelled():
            task.exception()  # ``written`` raises it, if the batch is committed
