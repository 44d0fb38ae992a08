"""Verifies an erasure: no object of a store has the erased messages, wherever in the object they could be.

    objects that the report names        must not exist
    old versions in a versioned bucket   must not exist, if they are of objects that were deleted until then
    every segment and run of the store   must have no message with an erased sequence in a block, dead or alive
    everything else below the store      is named if nobody can say what is in it, such as what fsck set aside
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar

from broker.erasure.report import BadReport
from broker.storage.erasure.stored_blocks import BlockObject, StoredBlocks
from broker.storage.format.errors import FormatError
from broker.storage.format.header import ObjectKind
from broker.storage.objectstore.base import NotFound, ObjectStore, OldVersion
from broker.storage.paths import ShardPaths, parse
from broker.storage.read.snapshot import read_snapshot
from broker.storage.state.erasures import remains_of
from broker.storage.state.seq_ranges import SeqRanges

__all__ = ["Verified", "old_versions", "verify_store"]

T = TypeVar("T")

_AT_ONCE: Final = 16
_SKEW_SECONDS: Final = 60.0
"""How much the clocks of the broker and of the bucket may differ."""
_QUARANTINE: Final = "quarantine/"
_LISTED: Final = 20
_LEFT: Final = ("checkpoints of shard {shard}, which stream {name} has left: a broker that owns the shard is about to "
                "remove what the stream has left there")
_OTHER: Final = ("stream {name}, which is not the one that the report is about: it was made or restored later; if that "
                 "was from a backup with the messages, erase there, too")


class Verified(NamedTuple):
    """The result of a verification: ``holding`` are reasons why the erasure is not proved. ``objects`` were read.

    ``unchecked`` says what else is in the store, which nobody can relate to sequences.
    """

    objects: int
    holding: list[str]
    versions: list[OldVersion]
    unchecked: list[str]


async def verify_store(store: ObjectStore, report: Mapping[str, Any], progress: Callable[[int], object] = lambda _: None
                       ) -> Verified:
    """Look for the erased messages in a store, or in a copy or backup of it. Raises: BadReport; StoreError."""
    streams, names = _streams(report)
    holding: list[str] = []
    others: list[str] = []
    objects = 0
    for shard in sorted({parsed.shard for info in await store.list("v1/shards/")
                         if (parsed := parse(info.key)) is not None and parsed.shard is not None}):
        state = (await read_snapshot(store, shard)).state
        others += [_OTHER.format(name=name) for stream_id, (account, name) in names.items()
                   if (found := state.stream(account, name)) is not None and found.stream_id != stream_id]
        others += [_LEFT.format(name=name, shard=shard) for stream_id, (_, name) in names.items()
                    if (found := state.streams.get(stream_id)) is not None and found.departed is not None
                    and not ((remains := remains_of(found.extra)) is not None and remains.done_ns)]
        blocks = StoredBlocks(store, ShardPaths(shard), state, _ask, _ask)
        async for one in blocks.objects(names):
            objects += 1
            progress(objects)
            holding += [why async for why in _found(blocks, one, streams)]
    for info in await store.list(_QUARANTINE):
        holding.append(f"{info.key}: fsck has set this damaged object aside, and nobody can say what it holds: delete "
                       f"it")
    keys = [str(one["key"]) for one in report["deleted"]]
    for at in range(0, len(keys), _AT_ONCE):
        some = keys[at:at + _AT_ONCE]
        for key, exists in zip(some, await asyncio.gather(*[_exists(store, key) for key in some]), strict=True):
            if exists:
                holding.append(f"{key}: it held erased messages, and is still there")
    return Verified(objects, holding, await old_versions(store, report),
                    [*others, *await _unchecked(store)])


async def _unchecked(store: ObjectStore) -> list[str]:
    """Return lines about the objects that have no sequences. Raises: StoreError."""
    kinds: Counter[str] = Counter()
    unknown: list[str] = []
    for info in await store.list(""):
        parsed = parse(info.key)
        if parsed is None:
            if not info.key.startswith(_QUARANTINE):
                unknown.append(info.key)
        elif parsed.kind not in (ObjectKind.SEGMENT, ObjectKind.RUN):
            kinds[parsed.kind.name.lower() if parsed.kind is not None else "other"] += 1
    lines = [f"{key}: it is no object of jetblock's" for key in unknown[:_LISTED]]
    if len(unknown) > _LISTED:
        lines.append(f"{len(unknown) - _LISTED} more such objects")
    if kinds:
        numbers = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
        lines.append(f"objects without messages, of which only those in the report were looked for: {numbers}")
    return [*lines, "journals and cache directories of brokers, which are on their machines"]


async def old_versions(store: ObjectStore, report: Mapping[str, Any]) -> list[OldVersion]:
    """Return the versions that a versioned bucket still has of objects that were deleted until the end of the erasure.

    Each may have the messages: also objects that compaction had replaced before the erasure was requested.
    Raises: StoreError; BadReport.
    """
    done = str(report.get("done") or report.get("written", ""))
    try:
        until = datetime.fromisoformat(done[:19] + "+00:00").timestamp() + _SKEW_SECONDS
    except ValueError:
        raise BadReport(f"the report is damaged: {done!r} is no time") from None
    return list(await store.old_versions(until))


def _streams(report: Mapping[str, Any]) -> tuple[dict[int, SeqRanges], dict[int, tuple[str, str]]]:
    from broker.erasure.request import parse_ranges

    try:
        streams = {int(one["incarnation"], 16): parse_ranges(one["sequences"]) for one in report["streams"]}
        names = {int(one["incarnation"], 16): (str(report["account"]), str(one["stream"])) for one in report["streams"]}
        if not all(type(one["key"]) is str for one in report["deleted"]):
            raise ValueError("a key is no text")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadReport(f"the report is damaged: {error}") from None
    return streams, names


async def _found(blocks: StoredBlocks, one: BlockObject, streams: Mapping[int, SeqRanges]) -> Any:
    if one.unreadable is not None:
        yield f"{one.key}: it cannot be read, so nobody can say what it holds: {one.unreadable.why}"
    for block in one.blocks:
        ref, seqs = block.ref, streams[block.ref.stream_id]
        if not seqs.overlaps(ref.first_seq, ref.last_seq):
            continue
        try:
            head = await blocks.head(block)
        except NotFound:
            continue
        except FormatError as error:
            yield f"{one.key}: it cannot be read, so nobody can say what it holds: {error}"
            continue
        for first, last in seqs.within(ref.first_seq, ref.last_seq):
            if head.ordinal_of(first) < head.ordinal_of(last + 1):
                yield f"{one.key}: it has messages among {first} to {last} of stream {ref.stream_id:016x}"


async def _exists(store: ObjectStore, key: str) -> bool:
    try:
        await store.get(key, 0, 1)
    except (NotFound, ValueError):
        return False
    return True


async def _ask(call: Callable[[], Awaitable[T]], _what: str) -> T:
    return await call()
