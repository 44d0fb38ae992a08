"""Check a store and repair it: ``inspect``'s verification, then a plan, tried on an overlay before anything is written.

    verify ── problems? ── plan, on an overlay ── apply it there ── verify again ── not worse? ── apply it to the store
                                   └─────────── else the same with fewer parts ───────────┘ or nothing is changed

A plan is applied in four steps:

    1. Copies of the objects to replace go to quarantine, with a record of the whole repair.
    2. Substitutes replace these objects.
    3. An owner that serves no clients corrects streams and cuts three checkpoints.
    4. Damaged checkpoints are deleted.

If fsck is killed at any point, the next run continues. Each step leaves the store at least as readable as before, and
the quarantine has all bytes that were replaced or deleted.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from broker.base.clock import Clock
from broker.inspect.problems import NEWER, Problem
from broker.inspect.repaired import Repaired, new_problems
from broker.inspect.shardview import read_shard, shards
from broker.inspect.source import Source
from broker.inspect.survey import Survey, read_survey
from broker.inspect.verify import Verified, verify
from broker.maintenance.overlay import Overlay
from broker.maintenance.owner import correct_shard
from broker.maintenance.plan import Lost, Part, Plan, make_plan
from broker.maintenance.quarantine import Quarantine, Unfinished, finish_repair, unfinished_repairs
from broker.maintenance.substitute import Unrepairable
from broker.storage.format.claim import Seal
from broker.storage.format.errors import CutOff, FormatError
from broker.storage.format.header import NONCE_BYTES, ObjectKind, Position
from broker.storage.format.staged import STAGED_EPOCH
from broker.storage.journal_replay import Replayed, log_replayed, replay_journal, show_journaled, total
from broker.storage.keys.shard_keys import keys_for_repair
from broker.storage.objectstore import ObjectStore, StoreLock
from broker.storage.objectstore.file import FileStore, directory_of
from broker.storage.paths import HEARTBEATS, ShardPaths, parse
from broker.storage.put import Fenced
from broker.storage.unsynced_tail import hide_torn, log_tail, repair_tail

__all__ = ["Checked", "Owned", "fsck"]


_Progress = Callable[[int, int, int, int], object]
_PARTS = tuple(map(frozenset, (
    (Part.LOG, Part.CLAIMS, Part.ENTRIES), (Part.LOG, Part.ENTRIES), (Part.LOG, Part.CLAIMS), (Part.LOG,),
    (Part.CLAIMS, Part.ENTRIES), (Part.CLAIMS,), (Part.ENTRIES,), ())))
"""The parts of the plans to try, in order, until one succeeds. So a part that fails does not prevent the others."""


class Owned(Exception):
    """A broker owns the store; nothing was changed."""


@dataclass(slots=True)
class Checked:
    """The outcome of a check, and of the repair after it."""

    verified: Verified
    problems: list[Problem]
    """The problems that the check found."""
    lost: list[Lost] = field(default_factory=list)
    """Messages that cannot be read, and that no repair can restore."""
    notes: list[str] = field(default_factory=list)
    substitutes: list[str] = field(default_factory=list)
    """The keys of the substitutes."""
    repairable: bool | None = None
    """True if a repair is possible; None if there is nothing to repair."""
    repaired: bool = False
    refused: str = ""
    """The reason why the store cannot be, or was not, repaired; "" if there is none."""
    quarantine: str = ""
    remaining: list[Problem] = field(default_factory=list)
    """The problems that remain after the repair, or would remain after it."""
    repairs: list[Repaired] = field(default_factory=list)
    """Earlier repairs."""
    note: str = ""
    """A line about the journal of the broker, see ``Source.note``."""

    def to_json(self) -> dict[str, Any]:
        """Return the report."""
        return {"objects": self.verified.objects, "bytes": self.verified.bytes, "orphans": len(self.verified.orphans),
                "problems": [problem.to_json() for problem in self.problems],
                "lost": [lost.to_json() for lost in self.lost],
                "notes": self.notes, "substitutes": self.substitutes, "repairable": self.repairable,
                "repaired": self.repaired, "refused": self.refused, "quarantine": self.quarantine,
                "remaining": [problem.to_json() for problem in self.remaining],
                "repairs": [repair.to_json() for repair in self.repairs], "note": self.note}


async def fsck(store: ObjectStore, clock: Clock, rng: random.Random, *, repair: bool = False,
               lease_ns: int = 15_000_000_000, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
               progress: _Progress = lambda *_: None) -> Checked:
    """Check the store; with ``repair``, repair all that can be repaired.

    Args: progress(objects, all objects, bytes, all bytes) is called as objects are read, in each of up to three
        readings.
    Raises: CannotInspect if there is no store, or one of a newer format; Owned; StoreError.
    """
    locks = await _expect_no_owner(store, lease_ns, sleep) if repair else []
    journaled: list[Replayed] = []
    try:
        if (directory := directory_of(store)) is not None:
            # Segments that were not synced before a power cut are not damage: the log ends before them.
            for shard in await shards(Source(store)):
                if repair:
                    log_tail(repair_tail(directory, ShardPaths(shard)), store.url)
                    log_replayed(await _replay(directory, ShardPaths(shard), rng), store.url)
                else:
                    hide_torn(directory, shard)
                    if (found := show_journaled(directory, shard)) is not None:
                        journaled.append(found)
        done = await _check(store, clock, rng, progress, repair=repair)
        done.note = Source(store, journal=total(journaled)).note
        return done
    except Fenced as fenced:
        raise Owned(f"{store.url}: {fenced}; a broker took the store meanwhile. Stop it, and run this again") from None
    finally:
        for lock in locks:
            lock.release()


async def _replay(directory: FileStore, paths: ShardPaths, rng: random.Random) -> Replayed | None:
    """Replay the journal of a shard, perhaps an encrypted one. Raises: KeyMissing; StoreError; FormatError."""
    keys = await keys_for_repair(directory, paths, rng.randbytes(NONCE_BYTES))
    if keys is None or directory.put_sync is None:
        return replay_journal(directory, paths)
    return replay_journal(directory, paths, keys.codec, partial(keys.flush_sync, directory.put_sync), keys.replay)


async def _check(store: ObjectStore, clock: Clock, rng: random.Random, progress: _Progress, *, repair: bool) -> Checked:
    survey, verified = await _examine(store, progress)
    problems = [*survey.problems, *verified.problems]
    done = Checked(verified, problems, remaining=problems, repairs=survey.repairs)
    unfinished = await unfinished_repairs(store)
    if not problems and not unfinished.folders:
        return done
    # A staged run that no stream has adopted may come from any program, so it does not prevent a repair.
    unadopted = {orphan.object for orphan in verified.orphans if _is_staged(orphan.object)}
    if any(problem.remedy == NEWER and problem.object not in unadopted for problem in problems):
        done.repairable, done.refused = False, "not repaired: a newer jetblock wrote part of it; use that version"
        return done
    refused = ""
    concerned = _concerned(problems)
    for parts in dict.fromkeys(parts & concerned for parts in _PARTS):
        try:
            plan, remaining = await _try(store, survey, problems, unfinished, parts, clock, rng, progress)
        except Unrepairable as error:
            refused = refused or str(error)
            continue
        if plan or not refused:
            break
    else:
        done.repairable, done.refused = False, refused
        return done
    done.lost, done.notes, done.substitutes = plan.lost, plan.notes, list(plan.substitutes)
    if not plan:
        for folder in unfinished.folders if repair else ():
            await finish_repair(store, folder)
        if problems:
            done.repairable = False
            done.refused = "there is nothing to repair: the problems listed keep no broker from serving the rest"
        return done
    if refused:
        done.notes.append(f"not everything can be repaired: {refused}")
    done.repairable, done.remaining = True, remaining
    if not repair:
        return done
    quarantine = await Quarantine.make(store, clock.now_ns())
    kept = await quarantine.keep(plan.damaged)
    await quarantine.record({"at_ns": clock.now_ns(), "kept": kept, "replaced": list(plan.substitutes),
                             "problems": [problem.to_json() for problem in problems],
                             "lost": [lost.to_json() for lost in plan.lost], "notes": plan.notes})
    done.quarantine = quarantine.folder
    for key, data in plan.substitutes.items():
        await store.replace(key, [data])
    await _apply(store, plan, clock, rng)
    for folder in (*(unfinished.folders if Part.LOG in parts else ()), quarantine.folder):
        await finish_repair(store, folder)
    survey, verified = await _examine(store, progress)
    done.repaired, done.remaining = True, [*survey.problems, *verified.problems]
    return done


def _concerned(problems: list[Problem]) -> frozenset[Part]:
    """Return the parts of a plan that these problems may need, because each trial reads the whole store."""
    kinds = {key.kind for problem in problems if (key := parse(problem.object)) is not None}
    return frozenset({Part.LOG} | ({Part.CLAIMS} if ObjectKind.CLAIM in kinds else set())
                     | ({Part.ENTRIES} if ObjectKind.SEGMENT in kinds else set()))


async def _try(store: ObjectStore, survey: Survey, problems: list[Problem], unfinished: Unfinished,
               parts: frozenset[Part], clock: Clock, rng: random.Random,
               progress: _Progress) -> tuple[Plan, list[Problem]]:
    """Make a plan with these parts and carry it out on an overlay; return the plan, and the problems that remain.

    Raises: Unrepairable, with the reason, if there is no plan, or the outcome would be worse; StoreError.
    """
    trial = Overlay(store)
    try:
        plan = await make_plan(trial, problems, unfinished, rng, clock.now_ns(), parts)
        if not plan:
            return plan, problems
        await _apply(trial, plan, clock, rng)
        after, verified = await _examine(trial, progress)
    except (Unrepairable, FormatError, CutOff) as error:
        raise Unrepairable(f"not repairable: {error}") from None
    record = Repaired("", 0, frozenset(problem.object for problem in problems), [])
    remaining = new_problems([*after.problems, *verified.problems], [record])
    if worse := _worse(survey, problems, after, remaining, parts):
        raise Unrepairable(f"not repaired: a repair was tried on a copy in memory, and did not work: {worse}")
    return plan, remaining


def _is_staged(object_: str) -> bool:
    key = parse(object_)
    return (key is not None and key.kind == ObjectKind.RUN and key.position is not None
            and key.position.epoch == STAGED_EPOCH)


async def _examine(store: ObjectStore, progress: _Progress) -> tuple[Survey, Verified]:
    source = Source(store)
    survey = await read_survey(source)
    return survey, await verify(source, survey, progress)


async def _apply(store: ObjectStore, plan: Plan, clock: Clock, rng: random.Random) -> None:
    """Apply the plan, whose substitutes have been put already."""
    for number in plan.shards:
        paths = ShardPaths(number)
        if not await correct_shard(store, paths, plan.corrections.get(number, ()), clock, rng):
            continue
        view = await read_shard(Source(store), paths)
        root = view.snapshot.root if view.snapshot is not None else None
        rows = root.extra.get("roots", ()) if root is not None else ()
        needed = {paths.checkpoint(Position(*at)) for at, _ in rows}
        needed |= {paths.pages(Position(*page)) for _, pages in rows for page in pages}
        for key in plan.checkpoints:
            parsed = parse(key)
            if root is not None and parsed is not None and parsed.shard == number and key not in needed:
                await store.delete(key)


def _worse(before: Survey, problems: list[Problem], after: Survey, remaining: list[Problem],
           parts: frozenset[Part]) -> str:
    """Return the reason why the outcome of a trial is not acceptable; "" if it is."""
    for old, new in zip(before.shards, after.shards, strict=True):
        if not new.view.whole and (old.view.whole or Part.LOG in parts):
            return str(new.view.problems[-1]) if new.view.problems else "the log cannot be read"
        if new.view.state.position < old.view.state.position:
            return f"the log would end at {new.view.state.position}"
    known = {problem.object for problem in problems}
    if all(shard.view.whole for shard in before.shards):
        for problem in remaining:
            if problem.object not in known:
                return str(problem)
    return ""


async def _expect_no_owner(store: ObjectStore, lease_ns: int,
                           sleep: Callable[[float], Awaitable[object]]) -> list[StoreLock]:
    """Lock the shards of a directory; watch the log of a bucket for longer than the lease.

    Raises: Owned; StoreError.
    """
    source = Source(store)
    numbers = await shards(source)
    if store.try_lock is not None:
        locks: list[StoreLock] = []
        for number in numbers:
            lock = store.try_lock(ShardPaths(number).prefix.rstrip("/"))
            if lock is None:
                for held in locks:
                    held.release()
                raise Owned(f"{store.url}: a broker holds the lock of shard {number}; stop it, and run this again")
            locks.append(lock)
        return locks
    seen = {number: await _newest(source, ShardPaths(number)) for number in numbers}
    if all(sealed for _, sealed in seen.values()):
        return []
    beats = await _heartbeats(source)
    await sleep((lease_ns + lease_ns // 4) / 1e9)
    if not await _heartbeats(source) <= beats:
        raise Owned(f"{store.url}: a broker owns shards; stop it, and run this again")
    for number in numbers:
        if await _newest(source, ShardPaths(number)) != seen[number]:
            raise Owned(f"{store.url}: a broker writes to shard {number}; stop it, and run this again")
    return []


async def _heartbeats(source: Source) -> set[str]:
    """Return the keys of all heartbeats: the logs of idle shards are quiet if their owner has several."""
    return {info.key async for info in source.folder(HEARTBEATS)}


async def _newest(source: Source, paths: ShardPaths) -> tuple[str, bool]:
    """Return the keys of the last claim and log entry, and True if the last owner has sealed its own epoch."""
    claim = entry = ""
    async for info in source.folder(paths.epochs):
        claim = info.key
    async for info in source.folder(paths.logs):
        entry = info.key
    key = parse(entry)
    sealed = False
    if key is not None and key.position is not None and parse(claim) is not None:
        try:
            seal = Seal.decode(await source.find(entry) or b"", key.position)
            sealed = seal.sealer_epoch == seal.position.epoch and claim == paths.epoch(seal.position.epoch)
        except FormatError:
            pass
    return f"{claim} {entry}", sealed
