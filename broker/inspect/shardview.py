"""The state of one shard as stored; if it is damaged, as far as its log can be read.

This is recovery's replay (``storage.read.snapshot``), in which everything beyond the position ``until`` is hidden. So
the state of a log with a damaged segment is that before the segment, and two replays of a growing log end at the same
position.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, NamedTuple, TypeVar

from broker.inspect.problems import NEWER, RESTORE, Problem
from broker.inspect.source import CannotInspect, Source, each, read_format
from broker.storage.format.block import BlockRef
from broker.storage.format.errors import CutOff, FormatError, VersionUnknown
from broker.storage.format.header import NUMBER_MAX, ObjectKind, Position
from broker.storage.objectstore import ObjectInfo
from broker.storage.paths import ShardPaths, block_key, parse
from broker.storage.read import steps as requests
from broker.storage.read.places import places
from broker.storage.read.snapshot import Snapshot, replay
from broker.storage.read.steps import Listing, Request, Steps
from broker.storage.state.applied import ShardState
from broker.storage.state.stream import StreamState

__all__ = ["NAMED_AND_GONE", "NoStream", "ShardView", "drive", "find_stream", "key_of", "read_shard",
           "require_shard", "shards"]

NAMED_AND_GONE = ", which it names, is gone"
"""The end of the error text in ``storage.read.root`` about a checkpoint's missing page."""
_DAMAGED_MAX = 32
_PROBES = 16
_POSITION = re.compile(r"\b([0-9a-f]{8})-([0-9a-f]{12})\b")
_KEY = re.compile(r"v1/[^\s:,;]+")

T = TypeVar("T")


class NoStream(Exception):
    """No stream has that name, or several streams have it; ``str()`` lists the existing ones."""


class ShardView(NamedTuple):
    """The state of a shard, and the problems met while reading it."""

    paths: ShardPaths
    snapshot: Snapshot | None
    """None if nothing could be read."""
    whole: bool
    """True if the snapshot covers the log; otherwise it ends before the objects of ``problems``."""
    problems: list[Problem]

    @property
    def state(self) -> ShardState:
        """The applied state; empty if nothing could be read."""
        return self.snapshot.state if self.snapshot is not None else ShardState()


async def shards(source: Source) -> list[int]:
    """Find the numbers of the store's shards, which are dense from 0. Each has a claim, which is never deleted."""
    found: list[int] = []
    while True:
        numbers = range(len(found), len(found) + _PROBES)
        there = [number async for number, rows in each(
            numbers, lambda n: source.list(ShardPaths(n).epochs, limit=1), source.at_once) if rows]
        if not there:
            return found or [0]
        found = list(range(there[-1] + 1))


async def require_shard(source: Source, number: int) -> None:
    """Check that a shard has any objects; a shard with a log but no claims is damaged, and can be inspected.

    Raises: CannotInspect if it has none, or if there is no store; StoreError.
    """
    there = await shards(source)
    try:
        found = number in there or bool(await source.list(ShardPaths(number).prefix, limit=1))
    except ValueError:  # no shard can have such a number
        found = False
    if not found:
        await read_format(source)
        raise CannotInspect(f"{source.url}: there is no shard {number}; there is: {', '.join(map(str, there))}")


async def read_shard(source: Source, paths: ShardPaths) -> ShardView:
    """Replay the shard; if an entry cannot be read, replay again up to the position before it. Raises: StoreError."""
    problems: list[Problem] = []
    until: Position | None = None
    for _ in range(_DAMAGED_MAX):
        try:
            snapshot = await drive(source, replay(paths), until)
        except (FormatError, CutOff) as error:
            problems.append(_replay_problem(paths, error))
            before = _before(error)
            if before is None or (until is not None and before >= until):
                break
            until = before
            continue
        problems += [_root_problem(paths, text) for text in snapshot.problems] if until is None else []
        return ShardView(paths, snapshot, until is None, problems)
    return ShardView(paths, None, False, problems)


async def drive(source: Source, steps: Steps[T], until: Position | None = None) -> T:
    """Run ``steps`` on the store up to ``until`` (None: all of it). Raises: the errors of ``steps``; StoreError."""
    return await requests.drive(steps, lambda request: _answer(source, request, until))


async def _answer(source: Source, request: Request, until: Position | None) -> Any:
    if isinstance(request, Listing):
        rows: list[ObjectInfo] = await source.list(request.prefix, request.after)
        return rows if until is None else [row for row in rows if not _beyond(row.key, until)]

    async def get(key: str, start: int, end: int | None) -> bytes | None:
        if until is not None and _beyond(key, until):
            return None
        return await source.find(key, start, end)

    return await asyncio.gather(*[get(*range_) for range_ in request.ranges])


def _beyond(key: str, until: Position) -> bool:
    parsed = parse(key)
    if parsed is None or parsed.position is None:
        return False
    return (parsed.kind in (ObjectKind.SEGMENT, ObjectKind.ROOT, ObjectKind.CLAIM)) and parsed.position > until


def _before(error: FormatError | CutOff) -> Position | None:
    """Return the position before the log entry that ``error`` is about; None if it names none."""
    parsed = parse(error.key) if isinstance(error, CutOff) else None
    if parsed is not None and parsed.position is not None:
        epoch, number = parsed.position
    elif (match := _POSITION.search(str(error))) is not None:
        epoch, number = (int(part, 16) for part in match.groups())
    else:
        return None
    if number:
        return Position(epoch, number - 1)
    return Position(epoch - 1, NUMBER_MAX) if epoch > 1 else None


def _replay_problem(paths: ShardPaths, error: FormatError | CutOff) -> Problem:
    """Make a problem of the error that stopped a replay."""
    means = ("the log cannot be read past this: a broker will not start on the store, and what follows is not shown "
             "here")
    if isinstance(error, CutOff):
        return Problem(error.key or _key_in(str(error), paths.prefix), str(error), means, RESTORE)
    key = error.name
    if parse(key) is None and (match := _POSITION.search(key)) is not None:
        key = paths.log(Position(int(match[1], 16), int(match[2], 16)))
    if isinstance(error, VersionUnknown):
        return Problem(key, error.why, means, NEWER, error.section, error.offset)
    return Problem(key, error.why, means, RESTORE, error.section, error.offset)


def _root_problem(paths: ShardPaths, text: str) -> Problem:
    """Make a problem of an unusable checkpoint; an earlier one, or the log alone, was used."""
    key = _key_in(text, paths.checkpoints)
    if text.endswith(NAMED_AND_GONE):
        return Problem(key, "it is missing, and a checkpoint names it", "a broker starts from an older checkpoint and "
                       "replays more", f"let a broker run until it has cut new ones; or {RESTORE}")
    return Problem(key, text.removeprefix(f"{key}: ").removeprefix(f"{key} "), "a broker starts from an older "
                   "checkpoint and replays more", f"let a broker run until it has cut new ones; or {RESTORE}")


def _key_in(text: str, otherwise: str) -> str:
    match = _KEY.search(text)
    return match[0] if match is not None else otherwise


def key_of(paths: ShardPaths, stream: StreamState, ref: BlockRef) -> str:
    """Return the key of the object that holds a block of ``stream``."""
    return block_key(paths, stream.account, stream.name, ref)


async def find_stream(source: Source, wanted: str, account: str | None = None, *, shard: int | None = None
                      ) -> tuple[ShardView, StreamState]:
    """Find a stream by ``wanted``: its name, ``ACCOUNT/NAME``, or its incarnation in hexadecimal.

    Raises: NoStream; StoreError.
    """
    first, slash, rest = wanted.partition("/")
    if slash:
        account, wanted = first, rest
    found: list[tuple[ShardView, StreamState]] = []
    names: list[str] = []
    problems: list[Problem] = []
    views: dict[int, ShardView] = {}
    for number in [shard] if shard is not None else await shards(source):
        views[number] = await read_shard(source, ShardPaths(number))
        problems += views[number].problems
    catalogue = views[0].state.catalogue if 0 in views else None
    for number, stream in places(((number, view.state) for number, view in views.items()), catalogue):
        names.append(f"{stream.account}/{stream.name}")
        if (wanted in (stream.name, f"{stream.stream_id:016x}")) and account in (None, stream.account):
            found.append((views[number], stream))
    if len(found) == 1:
        return found[0]
    existing = ", ".join(sorted(names)[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    if found:
        which = ", ".join(f"{stream.account}/{stream.name}" for _, stream in found)
        raise NoStream(f"{wanted} is the name of several streams: {which}; give the account too")
    hidden = "".join(f"; {problem}" for problem in problems)
    raise NoStream(f"no stream {wanted!r} in the store; there is: {existing or 'none'}{hidden}")

