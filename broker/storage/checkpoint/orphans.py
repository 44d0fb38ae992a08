"""Finds objects of earlier owners that nothing names: segments beyond their epoch's end, pages without a root, runs
that were never adopted.

They are found by listing the log and the pages, which can take minutes for a long log on S3. So the search runs in the
background, a slice at a time, and nothing waits for it.

By its key a seal is like an orphan, and must not be taken for one. Every epoch below ours has a seal, so an unknown
object that is alone in its epoch is that seal. Only if there are more unknown objects are their headers read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from broker.storage.format.header import ObjectKind, Position, position_key
from broker.storage.format.staged import STAGED_EPOCH
from broker.storage.objectstore.base import NotFound, ObjectStore
from broker.storage.paths import STREAMS, ShardPaths, parse, run_key
from broker.storage.state.applied import ShardState

__all__ = ["orphan_pages", "orphan_runs", "orphan_segments"]

T = TypeVar("T")
Ask = Callable[[str, Callable[[], Awaitable[T]]], Awaitable[T]]
"""ask(what, call) returns the store's answer. Raises: NotFound; StoreError after the log has failed."""

_LISTED_AT_ONCE = 10_000
_TURN = 500
"""Keys parsed between two turns of the loop: about 3 ms."""
_ASKED_AT_ONCE = 32


async def orphan_segments(store: ObjectStore, paths: ShardPaths, state: ShardState, epoch: int,
                          is_seal: Callable[[str], Awaitable[bool]], ask: Ask[bool], list_: Ask[list[str]]
                          ) -> set[Position]:
    """Return the segments of the epochs below ``epoch``, ours, that ``state`` neither names nor has released."""
    known = {position_key(position) for released in state.released.values() for position in released.segments}
    unknown: list[Position] = []
    found: set[Position] = set()
    after: str | None = ""
    while after is not None:
        positions, after = await _some_below(store, paths.logs, epoch, after, list_)
        for position in positions:
            if unknown and unknown[0].epoch != position.epoch:
                found |= await _without_seals(unknown, paths, is_seal, ask)
                unknown = []
            key = position_key(position)
            if key not in state.counts.segments and key not in known:
                unknown.append(position)
        await asyncio.sleep(0)
    return found | await _without_seals(unknown, paths, is_seal, ask)


async def orphan_pages(store: ObjectStore, paths: ShardPaths, epoch: int, list_: Ask[list[str]]) -> set[Position]:
    """Return the page objects of the epochs below ``epoch``, including those that roots need."""
    found: set[Position] = set()
    after: str | None = ""
    while after is not None:
        positions, after = await _some_below(store, paths.page_objects, epoch, after, list_)
        found.update(positions)
    return found


async def orphan_runs(store: ObjectStore, paths: ShardPaths, state: ShardState, epoch: int, list_: Ask[list[str]]
                      ) -> list[str]:
    """Return the keys of runs of the epochs below ``epoch`` that ``state`` neither names nor has released.

    Only the writer of such a run could adopt it, by a record of its own epoch, which has ended. Runs of streams in
    other shards are left to the owners of these. Staged runs, which no owner wrote, are left to the inbox. Runs that an
    offline stream may need are left to the first owner after the stream's repair or deletion.
    """
    found: list[str] = []
    for prefix in (paths.runs, STREAMS):
        async def some(prefix: str = prefix) -> list[str]:
            return [info.key for info in await store.list(prefix)]

        texts = await list_(prefix, some)
        # A stream may have arrived from another shard meanwhile, with runs that are older than the listing.
        names = {stream.stream_id: (stream.account, stream.name) for stream in state.streams.values()}
        counts = state.counts
        known = {run_key(paths, run, *names.get(run[3], ("", ""))) for run in (*counts.runs, *counts.freed_runs)
                 if not run[3] or run[3] in names}
        known.update(*(released.runs for released in state.released.values()))
        for i, text in enumerate(texts):
            if i % _TURN == 0:
                await asyncio.sleep(0)
            key = parse(text)
            if (key is not None and key.kind is ObjectKind.RUN and key.position is not None
                    and STAGED_EPOCH < key.position.epoch < epoch and text not in known
                    and (key.incarnation is None or not state.is_elsewhere(paths.shard, key.incarnation))
                    and not state.is_offline(key.incarnation or 0)
                    and position_key(key.position) > counts.uncounted_to):
                found.append(text)
    return found


async def _without_seals(positions: list[Position], paths: ShardPaths, is_seal: Callable[[str], Awaitable[bool]],
                         ask: Ask[bool]) -> set[Position]:
    """Return those of one epoch's ``positions`` that exist and are not seals."""
    found: set[Position] = set()
    if len(positions) < 2:
        return found

    async def orphans(position: Position) -> bool:
        key = paths.log(position)
        try:
            return not await ask(key, lambda: is_seal(key))
        except NotFound:
            return False

    for at in range(0, len(positions), _ASKED_AT_ONCE):
        some = positions[at:at + _ASKED_AT_ONCE]
        answers = await asyncio.gather(*[orphans(position) for position in some])
        found.update(position for position, orphan in zip(some, answers, strict=True) if orphan)
    return found


async def _some_below(store: ObjectStore, prefix: str, epoch: int, after: str, list_: Ask[list[str]]
                      ) -> tuple[list[Position], str | None]:
    """Return the positions below ``epoch`` in the next keys below ``prefix``, after the key ``after``, ascending.

    Returns also the last of these keys; None: no more positions below ``epoch`` follow.
    """
    async def some() -> list[str]:
        return [info.key for info in await store.list(prefix, after, _LISTED_AT_ONCE)]

    keys = await list_(prefix, some)
    found: list[Position] = []
    for i, text in enumerate(keys):
        if i % _TURN == 0:
            await asyncio.sleep(0)
        key = parse(text)
        if key is None or key.position is None:
            continue
        if key.position.epoch >= epoch:
            return found, None
        found.append(key.position)
    return found, keys[-1] if len(keys) == _LISTED_AT_ONCE else None
