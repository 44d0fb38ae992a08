"""Copy a store to another place, object by object, also while a broker writes to it.

A pass lists the objects that the destination lacks, then copies them. Both orders follow the history of a store. So at
any moment the destination has a state that the source could have left by a crash:

    listed    roots ── log ── pages ── runs ── claims ── keys an object is listed after the objects that name it
    copied    keys ── claims ── runs ── pages ── log ── roots an object is copied before the objects that name it

Objects that the source deletes meanwhile are missing from the copy. So the copy is replayed: if it lacks an object that
its state names, another pass copies the newer state, which no longer names that object. Passes are incremental, since
objects never change. An interrupted copy, or one that is updated a day later, continues in the same way.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from broker.inspect.problems import Problem, of_error
from broker.inspect.shardview import read_shard, shards
from broker.inspect.source import CannotInspect, Source, each, read_format
from broker.inspect.survey import Extent, ShardSurvey, Survey, read_shard_survey
from broker.inspect.verify import Verified, verify
from broker.maintenance.destination import CopyRefused, Destination
from broker.storage.format.errors import Corrupt, FormatError
from broker.storage.format.header import ObjectHeader, ObjectKind, Position
from broker.storage.format.store import StoreFormat
from broker.storage.objectstore import NotFound, ObjectInfo
from broker.storage.paths import COPYING, FORMAT, KEYS, STREAMS, Key, ShardPaths, parse

__all__ = ["Copied", "Copier"]

_PASSES_MAX = 8
_IN_FLIGHT_BYTES = 128 << 20


@dataclass(slots=True)
class Copied:
    """The outcome of a copy."""

    store_id: bytes = b""
    copied: Extent = field(default_factory=Extent)
    present: Extent = field(default_factory=Extent)
    """The objects that the destination had before."""
    passes: int = 0
    ends: dict[int, Position] = field(default_factory=dict)
    """The last position of each shard in the copy."""
    whole: bool = False
    """True if the copy has all objects that its state names."""
    verified: Verified | None = None
    note: str = ""
    """A line about the journal of the source, see ``Source.note``."""
    problems: list[Problem] = field(default_factory=list)
    """The faults in the copy; a damaged object of the source is copied unchanged, and listed."""

    def to_json(self) -> dict[str, Any]:
        """Return the report."""
        return {"store_id": self.store_id.hex(), "copied": _extent(self.copied), "present": _extent(self.present),
                "passes": self.passes, "note": self.note,
                "shards": [{"shard": n, "position": str(at)} for n, at in self.ends.items()],
                "whole": self.whole, "verified": None if self.verified is None else
                {"objects": self.verified.objects, "bytes": self.verified.bytes},
                "problems": [problem.to_json() for problem in self.problems]}


def _extent(extent: Extent) -> dict[str, int]:
    return {"objects": extent.count, "bytes": extent.bytes}


class Copier:
    """A copy from ``source`` to ``destination``."""

    def __init__(self, source: Source, destination: Destination,
                 progress: Callable[[int, int, int, int], None] = lambda *_: None) -> None:
        """Make a copier; progress(objects, all objects, bytes, all bytes) is called after each object of a pass."""
        self._source = source
        self._destination = destination
        self._progress = progress
        self._done = Copied(note=source.note)
        self._format = b""

    async def run(self, *, must_be_new: bool = False, verifying: bool = False) -> Copied:
        """Copy the missing objects, check the copy, and make it a store.

        Args: must_be_new refuses a destination that is a store. verifying reads every byte of the copy.
        Raises: CopyRefused; CannotInspect if the source is no store; StoreError. After an error the copied objects
            stay, and the next run does not copy them again.
        """
        done, source, destination = self._done, self._source, self._destination
        stored = await self._open(must_be_new)
        numbers = await shards(source)
        if not await source.landed(numbers):
            done.note = ("journal      the broker does not store what its journal has: the copy may lack messages that "
                         "it has acknowledged before the copy began")
        begun = {number: (await read_shard(source, ShardPaths(number))).state.position for number in numbers}
        destination.lock(numbers)
        while True:
            done.passes += 1
            lacking = await self._lacking(numbers)
            if lacking or not destination.finished or destination.outdated:
                await destination.begin(self._format, await self._newest_claim(numbers))
            gone = await self._copy(lacking)
            surveys = [await read_shard_survey(destination.view, ShardPaths(number)) for number in numbers]
            problems = [problem for survey in surveys for problem in survey.problems]
            done.ends = {survey.paths.shard: survey.view.state.position for survey in surveys}
            behind = [number for number in numbers if done.ends[number] < begun[number]]
            if not problems and not behind:
                done.whole = True
                break
            if not gone and not behind and await self._in_source(problems, numbers):
                break
            if done.passes >= _PASSES_MAX:
                raise CopyRefused(f"{destination.url}: after {done.passes} passes the copy is not complete: "
                                  f"{problems[0] if problems else 'it ends before the source did'}; run the same "
                                  f"command again to continue, best while less is deleted from the source")
        done.problems += problems
        if verifying:
            done.verified = await verify(destination.view, _survey(destination.url, stored, surveys))
            done.problems += done.verified.problems
        await destination.finish(self._format)
        return done

    async def _open(self, must_be_new: bool) -> StoreFormat:
        source = self._source
        if await source.find(FORMAT) is None and await source.find(COPYING) is not None:
            raise CannotInspect(f"{source.url}: this is an unfinished copy; finish it first")
        stored, problems = await read_format(source)
        if stored is None:
            raise CannotInspect(f"{source.url}: {problems[0]}: the store's id is not known; {problems[0].remedy}")
        self._format = await source.get(FORMAT)
        self._done.store_id = stored.store_id
        await self._destination.open(source, self._format, must_be_new=must_be_new)
        return stored

    async def _newest_claim(self, numbers: list[int]) -> bytes:
        """Read the claim of the highest epoch of all shards; b"" if there is none."""
        newest_epoch, newest_key = 0, ""
        for number in numbers:
            async for info in self._source.folder(ShardPaths(number).epochs):
                key = parse(info.key)
                if key is not None and key.position is not None and key.position.epoch > newest_epoch:
                    newest_epoch, newest_key = key.position.epoch, info.key
        return await self._source.find(newest_key) or b"" if newest_key else b""

    async def _in_source(self, problems: list[Problem], numbers: list[int]) -> bool:
        """Return True if the source has these problems, too, so that another pass would not help."""
        theirs = {problem.object for number in numbers
                  for problem in (await read_shard_survey(self._source, ShardPaths(number))).problems}
        return all(problem.object in theirs for problem in problems)

    # One pass.

    async def _lacking(self, numbers: list[int]) -> list[ObjectInfo]:
        """List the objects that the destination lacks, in the order of copying. Raises: CopyRefused; StoreError."""
        parts: list[list[ObjectInfo]] = []
        # Shard 0 last: its catalogue must have all streams that the copies of the other shards have.
        order = numbers[::-1]
        for number in order:
            paths = ShardPaths(number)
            beyond: list[Position] = []
            parts.append(await self._missing_in(paths.checkpoints, beyond))
            parts.append(await self._missing_in(paths.logs, beyond))
            await self._expect_released(paths, beyond)
            parts.append(await self._missing_in(paths.page_objects))
            parts.append(await self._missing_in(paths.runs))
            if number == order[-1]:
                parts.append(await self._missing_of(_all(await self._source.list(STREAMS)),
                                                    _all(await self._destination.view.list(STREAMS))))
            parts.append(await self._missing_in(paths.epochs))
            if number == order[-1]:
                parts.append(await self._missing_in(KEYS))
        return [info for part in reversed(parts) for info in part]

    async def _missing_in(self, prefix: str, beyond: list[Position] | None = None) -> list[ObjectInfo]:
        return await self._missing_of(self._source.folder(prefix), self._destination.view.folder(prefix), beyond)

    async def _missing_of(self, theirs: AsyncIterator[ObjectInfo], ours: AsyncIterator[ObjectInfo],
                          beyond: list[Position] | None = None) -> list[ObjectInfo]:
        """Return the objects that only the source has; add positions of those only in the destination to ``beyond``."""
        lacking = []
        mine = await anext(ours, None)
        async for info in theirs:
            while mine is not None and mine.key < info.key:
                _add_position(mine, beyond)
                mine = await anext(ours, None)
            if mine is not None and mine.key == info.key:
                if mine.size != info.size:
                    raise CopyRefused(f"{self._destination.url}: {info.key} has {mine.size} bytes there and "
                                      f"{info.size} in the source, and nothing is ever overwritten: the destination "
                                      f"has a history of its own, or this object is damaged in one of them (`jetblock "
                                      f"inspect URL --verify` shows which)")
                if self._done.passes == 1:
                    self._done.present.add(info.size)
                mine = await anext(ours, None)
            elif parse(info.key) is not None:
                lacking.append(info)
        while mine is not None:
            _add_position(mine, beyond)
            mine = await anext(ours, None)
        return lacking

    async def _expect_released(self, paths: ShardPaths, beyond: list[Position]) -> None:
        """Check that the newest object that only the copy has is older than a checkpoint of the source.

        Otherwise the source was set back to an older state. Raises: CopyRefused.
        """
        if not beyond:
            return
        newest = max([info.key async for info in self._source.folder(paths.checkpoints)], default="")
        if paths.checkpoint(max(beyond)) > newest:
            raise CopyRefused(f"{self._destination.url}: it continues to {max(beyond)}, which the source does not "
                              f"have: the source was set back; copy to an empty directory or prefix")

    async def _copy(self, lacking: list[ObjectInfo]) -> int:
        """Copy these objects, in order; return the number of those that the source had deleted meanwhile."""
        gone = count = size = 0
        all_bytes = sum(info.size for info in lacking)
        async for info, found in each(lacking, self._copy_one, self._destination.at_once, weight=lambda info: info.size,
                                      weight_max=_IN_FLIGHT_BYTES):
            gone += not found
            count += 1
            size += info.size
            self._progress(count, len(lacking), size, all_bytes)
        return gone

    async def _copy_one(self, info: ObjectInfo) -> bool:
        try:
            data = await self._source.get(info.key)
        except NotFound:
            return False
        key = parse(info.key)
        assert key is not None
        try:
            _expect_header(data, key, info.key)
        except FormatError as error:
            # Copy it nevertheless: readers could take a missing log entry for the log's end, but never a damaged one.
            means = "it is damaged in the source, and was copied as it is"
            self._done.problems.append(of_error(info.key, error, means))
        await self._destination.put(info.key, data)
        self._done.copied.add(len(data))
        return True


def _expect_header(data: bytes, key: Key, name: str) -> None:
    """Check that the object's header fits its key and its size. Raises: Corrupt."""
    header = ObjectHeader.unpack(data, name)
    kind = ObjectKind.SEAL if key.kind == ObjectKind.SEGMENT and header.kind == ObjectKind.SEAL else key.kind
    header.expect(kind, key.position, key.object_id)
    if header.size != len(data):
        raise Corrupt(name, "header", 40, f"the header gives {header.size} bytes, and there are {len(data)}")


def _add_position(info: ObjectInfo, beyond: list[Position] | None) -> None:
    key = parse(info.key)
    if beyond is not None and key is not None and key.position is not None:
        beyond.append(key.position)


async def _all(infos: list[ObjectInfo]) -> AsyncIterator[ObjectInfo]:
    for info in infos:
        yield info


def _survey(url: str, stored: StoreFormat, surveys: list[ShardSurvey]) -> Survey:
    return Survey(url, stored, surveys, Extent(), [problem for survey in surveys for problem in survey.problems])
