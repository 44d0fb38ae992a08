"""Puts staged runs and requests into a store, as a Spark job does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

from broker.storage.format.section import SECTIONS, SectionCodec
from broker.storage.objectstore.base import ObjectStore, PreconditionFailed
from broker.storage.staging.writer import RunWriter, request_id_of
from broker.storage.state.applied import ShardState

__all__ = ["Row", "eventually", "request", "stage", "text_id"]

Row = tuple[bytes, bytes] | tuple[bytes, bytes, bytes]
"""A message: subject, payload, message id."""


async def stage(store: ObjectStore, state: ShardState, stream: str, rows: Iterable[Row], *, account: str = "$G",
                block_messages: int = 32_768, run_bytes: int = 32 << 20, now_ns: int | None = None,
                times: Iterable[int] | None = None, codec: SectionCodec = SECTIONS) -> RunWriter:
    """Put the runs of ``rows`` for a stream; returns their writer."""
    found = state.stream(account, stream)
    assert found is not None, f"{stream} is not in the store yet"
    writer = RunWriter(account, stream, found.stream_id, now_ns=time.time_ns() if now_ns is None else now_ns,
                       block_messages=block_messages, run_bytes=run_bytes, codec=codec)
    at = iter(times) if times is not None else None
    for subject, payload, *msg_id in rows:
        writer.add(subject, payload, msg_id=msg_id[0] if msg_id else None, time_ns=None if at is None else next(at))
    for run in writer.finish():
        await store.put(run.key, run.data)
    return writer


async def request(store: ObjectStore, writer: RunWriter, *name: str) -> str:
    """Put the request to adopt the runs, unless it exists already; returns its id as the API has it."""
    asked = writer.request(request_id_of(*name), 0)
    try:
        await store.put(asked.key, asked.data)
    except PreconditionFailed:
        pass
    return text_id(*name)


def text_id(*name: str) -> str:
    return f"{request_id_of(*name):016x}"


async def eventually(holds: Callable[[], Awaitable[object]], seconds: float = 30.0) -> None:
    """Wait until the condition holds, by polling: for background work without a notification."""
    async with asyncio.timeout(seconds):
        while not await holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
