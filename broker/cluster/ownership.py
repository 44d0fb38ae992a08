"""Taking a shard: claim, seal, list checkpoints again, opening. Safety rests on put-if-absent alone, never on time.

    claim     put epochs/<e+1>; taken: the next one. An epoch has one process run, for ever.
    seal      every epoch below, used or not, from the newest checkpoint's on: at its first missing number. An old
              owner's put of that number fails from then on, and as he answers in log order he can never answer again.
    again     a checkpoint beyond a seal means that the number was swept, not missing: seal anew from that one
    opening   log/<e>-0 says who owns the epoch and where the earlier ones end: with it the epoch is part of the log
    replay    is the caller's (``storage.recovery``), and comes last: then nothing of the earlier epochs can change

To seal is to walk by putting: a segment has the number, one further; a seal has it, use it. Here numbers are first
asked for by their headers, 32 at a time, and the put begins at the first that is missing. A number found there is one
at which the put would have been refused, so the outcome is the same, for a GET each. Against an owner that lives and
is busy (two copies of one configuration) that race could be lost for seconds, so after two losses a seal goes some
numbers ahead of him first; what he has put beyond the epoch's end never existed, as ever.

Claims and seals are never deleted: put-if-absent remembers only what is still there.
"""

from __future__ import annotations

import asyncio
import random
from typing import NamedTuple

from broker.clock import Clock
from broker.cluster.identity import Identity
from broker.storage.format.block import Outcome
from broker.storage.format.claim import Claim, Seal
from broker.storage.format.errors import Corrupt, FormatError
from broker.storage.format.header import HEADER_BYTES, ObjectHeader, ObjectKind, Position
from broker.storage.format.opening import Opening
from broker.storage.format.record import RecordKind
from broker.storage.objectstore.base import NotFound, ObjectStore
from broker.storage.paths import ShardPaths, parse
from broker.storage.settle import Fenced, Patience, describe, put_ours
from broker.storage.writer import OpenBlock, encode_segment, seal_block

__all__ = ["BATCH", "Taken", "entries", "newest_checkpoint", "positions", "seal_at", "sealer_of", "take"]

BATCH = 32
_RACES_LOST = 2
"""Numbers lost to a living owner before a seal goes ahead of him."""


class Taken(NamedTuple):
    """epoch: ours now. ends: where the epochs before it end, one for each since the checkpoint's. began_ns: when, by
    the monotonic clock, the put of the opening began, from which the lease counts."""

    epoch: int
    ends: dict[int, int]
    began_ns: int


async def take(store: ObjectStore, paths: ShardPaths, me: Identity, clock: Clock, rng: random.Random) -> Taken:
    """Make this process run the owner of the shard; whoever was is fenced when this returns.

    Cancelled or failed it leaves a claim, seals, perhaps an opening: the next taker deals with all three.
    Raises: Fenced when somebody took a later epoch meanwhile; Corrupt, naming the object; Transient; StoreRefused.
    """
    patience = Patience(store, clock, rng)
    epoch = await _claim(store, paths, me, patience)
    ends = await _seal_below(store, paths, epoch, me, patience)
    position = Position(epoch, 0)
    opening = Opening(me.name, tuple(Position(e, n) for e, n in sorted(ends.items())), clock.now_ns())
    block: OpenBlock[None] = OpenBlock(0, None)
    block.add_record(RecordKind.OPENING, opening.to_body())
    block.outcome = Outcome()
    data = encode_segment(position, me.nonce, [seal_block(block, position)])
    began_ns = clock.monotonic_ns()
    key = paths.log(position)
    holder = await patience.ask(lambda: put_ours(store, key, data, me.nonce), f"put {key}")
    if holder is not None:
        if holder.kind != ObjectKind.SEAL:
            raise describe(holder, key)
        by = await sealer_of(store, key, patience)
        raise Fenced(f"{by or 'another broker'} took the shard before epoch {epoch} was opened", by)
    return Taken(epoch, ends, began_ns)


async def _claim(store: ObjectStore, paths: ShardPaths, me: Identity, patience: Patience) -> int:
    newest = await newest_checkpoint(store, paths, patience)
    # Claims are never deleted, so those from the checkpoint's epoch on are the last ones.
    after = paths.epoch(newest.epoch - 1) if newest.epoch else ""
    claims = await positions(store, paths.epochs, after, patience)
    epoch = max([newest.epoch, *(claim.epoch for claim in claims)]) + 1
    while True:
        key = paths.epoch(epoch)
        data = [Claim(epoch, me.name, me.nonce, patience.clock.now_ns()).encode()]
        holder = await patience.ask(
            lambda key=key, data=data: put_ours(store, key, data, me.nonce), f"put {key}")  # type: ignore[misc]
        if holder is None:
            return epoch
        epoch += 1


async def _seal_below(store: ObjectStore, paths: ShardPaths, epoch: int, me: Identity, patience: Patience
                      ) -> dict[int, int]:
    """End every epoch below ``epoch`` from the newest checkpoint's on; returns where each ends."""
    newest = await newest_checkpoint(store, paths, patience)
    while True:
        if newest.epoch >= epoch:
            raise Fenced(f"epoch {newest.epoch} has a checkpoint already; ours is {epoch}")
        ends: dict[int, int] = {}
        for e in range(max(1, newest.epoch), epoch):
            first = newest.number + 1 if e == newest.epoch else 0
            ends[e] = await _seal_epoch(store, paths, Position(e, first), epoch, me, patience)
        again = await newest_checkpoint(store, paths, patience)
        if again.epoch < epoch and not (again.epoch in ends and again.number >= ends[again.epoch]):
            return ends
        newest = again


async def _seal_epoch(store: ObjectStore, paths: ShardPaths, first: Position, epoch: int, me: Identity,
                      patience: Patience) -> int:
    """The number at which an epoch ends: that of a seal, ours unless there was one."""
    number = first.number
    size, lost = 1, 0
    while True:
        for header in await entries(store, paths, Position(first.epoch, number), size, patience):
            if header is None:
                if lost >= _RACES_LOST:
                    # The owner lives and puts faster than we look and put. A seal ahead of him stops him there, as he
                    # answers in order; where the epoch ends is still the first number that he has not taken by then.
                    await _put_seal(store, paths, Position(first.epoch, number + (1 << lost)), epoch, me, patience)
                kind = await _put_seal(store, paths, Position(first.epoch, number), epoch, me, patience)
                if kind == ObjectKind.SEAL:
                    return number
                lost += 1
            elif header.kind == ObjectKind.SEAL:
                return number
            number += 1
        size = BATCH


async def seal_at(store: ObjectStore, paths: ShardPaths, position: Position, epoch: int, me: Identity, clock: Clock,
                  rng: random.Random) -> ObjectKind:
    """Put a seal at ``position`` as the owner of ``epoch``; returns what lies there then, SEAL or SEGMENT.

    At a clean stop: at the first number of our own epoch that was never used.
    """
    return await _put_seal(store, paths, position, epoch, me, Patience(store, clock, rng))


async def _put_seal(store: ObjectStore, paths: ShardPaths, position: Position, epoch: int, me: Identity,
                    patience: Patience) -> ObjectKind:
    key = paths.log(position)
    seal = [Seal(position, me.name, epoch, me.nonce, patience.clock.now_ns()).encode()]
    holder = await patience.ask(lambda: put_ours(store, key, seal, me.nonce), f"put {key}")
    if holder is None:
        return ObjectKind.SEAL
    return _entry(holder, position, key).kind


async def entries(store: ObjectStore, paths: ShardPaths, first: Position, count: int, patience: Patience
                  ) -> list[ObjectHeader | None]:
    """The headers of ``count`` log entries from ``first`` on; None for a number where there is none.

    Raises: Corrupt for an entry that is there and cannot be read: it is never taken for a missing one.
    """
    async def header(number: int) -> ObjectHeader | None:
        position = Position(first.epoch, number)
        key = paths.log(position)
        try:
            data = await patience.ask(lambda: store.get(key, 0, HEADER_BYTES), f"get {key}")
        except NotFound:
            return None
        return _entry(ObjectHeader.unpack(data, key), position, key)

    return list(await asyncio.gather(*[header(first.number + i) for i in range(count)]))


def _entry(header: ObjectHeader, position: Position, key: str) -> ObjectHeader:
    if header.position != position or header.kind not in (ObjectKind.SEGMENT, ObjectKind.SEAL):
        raise Corrupt(key, "header", 8, f"it holds the bytes of {header.name}")
    return header


async def newest_checkpoint(store: ObjectStore, paths: ShardPaths, patience: Patience) -> Position:
    """The position of the newest root; (0, 0) when there is none."""
    found = await positions(store, paths.checkpoints, "", patience)
    return found[-1] if found else Position(0, 0)


async def positions(store: ObjectStore, prefix: str, after: str, patience: Patience) -> list[Position]:
    """The positions in the keys below ``prefix``, rising; a claim's number is 0."""
    found = await patience.ask(lambda: store.list(prefix, after), f"list {prefix}")
    return [key.position for info in found if (key := parse(info.key)) is not None and key.position is not None]


async def sealer_of(store: ObjectStore, key: str, patience: Patience) -> str:
    """The name of who put the seal at ``key``; "" where it cannot be read."""
    parsed = parse(key)
    assert parsed is not None
    assert parsed.position is not None
    try:
        return Seal.decode(await patience.ask(lambda: store.get(key), f"get {key}"), parsed.position).sealer
    except (NotFound, FormatError):
        return ""
