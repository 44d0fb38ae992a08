"""Taking a shard: claim, seal, list checkpoints again, opening. Safety rests on put-if-absent alone, never on time.

    claim     put epochs/<e+1>; if it exists, the next one. An epoch belongs to one process run, for ever.
    seal      every epoch below, used or not, from the newest checkpoint's on, at its first missing number. From then on
              an old owner's put of that number fails; it acknowledges in log order, so it never acknowledges again.
    again     a checkpoint beyond a seal shows that the number was swept, not missing: seal again from that checkpoint
    opening   log/<e>-0 names the owner of the epoch and the ends of earlier epochs, and makes the epoch part of the log
    replay    is the caller's (``storage.read.recovery``), and comes last: the earlier epochs cannot change any more

The opening of an epoch has the ends of the epochs before it (``openings``). Every other end is found by puts: if a
segment has the number, the next number is tried; if a seal has it, that is the end. To save puts, headers are read
first (``entries``), which takes a few round trips for a log of any length, and the first put is at the first missing
number. A put at a skipped number would have been refused, so the outcome is the same. If later entries show that the
store has lost the segment at a missing number, that number is not sealed (``_expect_end``). Between claim and opening,
standbys have no other sign that the taker is alive. So this must not take long, and epochs are sealed concurrently.

If the owner before has sealed its own epoch (a clean stop, or a hand-over), nothing is left to search or to seal. The
taker reads that seal itself: it trusts no one who says that it is there. Then it reads beside its claim and its opening
what it would otherwise read after them (``Earlier``).

A live, busy owner (two copies of one configuration) may win the race for the next number again and again. So after two
losses a seal is put some numbers ahead of it. As always, everything beyond the epoch's end never existed.

Stored messages are safe without time. Answers are not: an owner reads from memory for T after its last stored put. So a
taker serves at once only if no such lease can be running, and otherwise T after its seals are stored
(``_leases_over``).

Claims and seals are never deleted: put-if-absent remembers only what still exists.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

from broker.base.clock import Clock
from broker.cluster.entries import BATCH, end_of_segments, entries, expect_entry, proof_of
from broker.cluster.heartbeat import delete_heartbeats, heartbeats_after
from broker.cluster.identity import Identity
from broker.cluster.openings import known_ends
from broker.storage.format.claim import Claim, Seal
from broker.storage.format.errors import Corrupt, FormatError
from broker.storage.format.header import EPOCH_MAX, FORMAT_VERSION, HEADER_BYTES, ObjectKind, Position
from broker.storage.format.log_end import is_being_copied
from broker.storage.format.opening import encode_opening
from broker.storage.format.records.opening import Opening
from broker.storage.objectstore.base import NotFound, ObjectStore, StoreError
from broker.storage.paths import COPYING, ShardPaths, parse
from broker.storage.put import Fenced, StoreRetry, key_taken_error, put_ours

__all__ = ["Earlier", "Overtaken", "Taken", "Watched", "do_nothing", "newest_checkpoint", "newest_claim",
           "newest_claimant", "positions", "seal_at", "sealer_of", "take_shard"]

_RACES_LOST = 2
"""The numbers lost to a live owner before a seal is put ahead of it."""


async def do_nothing() -> None:
    """Do nothing."""


class Watched(NamedTuple):
    """The end of the log when a standby's wait ended.

    epoch: the newest claimed epoch, 0: none. number: the first number of its log without an entry, or with a seal.
    silent: no entry came for T; otherwise a short cut ended the wait. run_id: the process run that claimed the epoch,
    b"" if unknown. heartbeat: the number of its newest heartbeat that was found, 0: none.
    """

    epoch: int
    number: int
    silent: bool
    run_id: bytes = b""
    heartbeat: int = 0


class Earlier(NamedTuple):
    """The epochs before the one of a taker, once they cannot change any more.

    ends: the end of each of them, from that of the newest checkpoint on. roots: the positions of all checkpoints,
    ascending.
    """

    ends: dict[int, int]
    roots: list[Position]


class Overtaken(Fenced):
    """Another broker has claimed an epoch since the wait ended: we own nothing, and must wait for the new owner."""


class Taken(NamedTuple):
    """A shard that was taken.

    epoch: our epoch. ends: the end of each earlier epoch from the checkpoint's on. began_ns: the time, by the outside
    clock, at which the put of the opening began; the lease counts from then. serve_from_ns: the time, by the monotonic
    clock, before which nothing may be answered because the former owner may answer; 0: it cannot. opening: the object
    that opens the epoch.
    """

    epoch: int
    ends: dict[int, int]
    began_ns: int
    serve_from_ns: int
    opening: bytes


async def take_shard(store: ObjectStore, paths: ShardPaths, me: Identity, clock: Clock, rng: random.Random,
                     watched: Watched | None = None, lease_ns: int = 0, *, reader_version: int = FORMAT_VERSION,
                     before_claim: Callable[[], Awaitable[object]] = do_nothing,
                     ended: Callable[[Earlier], object] = lambda _: None) -> Taken:
    """Make this process run the owner of the shard, and fence the owner before it.

    A call that fails or is cancelled leaves a claim, seals, perhaps an opening: the next taker handles all three.
    Args: watched is what the wait for ``lease_ns``, T, ended with; None if a lock replaces the lease. reader_version is
        that of the opening. before_claim is awaited before anything is put; the first reads run beside it. ended is
        called as soon as no earlier owner can store anything more: if this call succeeds, what is read from then on is
        not older than what any of them acted on.
    Raises: Overtaken, before anything is put, if an epoch beyond ``watched`` is claimed; Fenced if one later than ours
        is; Corrupt, naming the object; Transient; StoreRefused; the errors of before_claim.
    """
    retry = StoreRetry(store, clock, rng)
    (newest, roots, sealed), _ = await asyncio.gather(_newest(store, paths, retry, watched), before_claim())
    earlier = _cleanly_ended(watched, newest, roots) if sealed else None
    clean = earlier is not None
    if earlier is not None:
        ended(earlier)
    epoch = await _claim(store, paths, me, retry, watched, newest)
    if earlier is None:
        earlier = await _seal_below(store, paths, epoch, me, retry, watched)
        ended(earlier)
    ends = earlier.ends
    sealed_ns = clock.monotonic_ns()
    position = Position(epoch, 0)
    opening = Opening(me.name, tuple(Position(e, n) for e, n in sorted(ends.items())), clock.now_ns(),
                      reader_version)
    data = [encode_opening(opening, position, me.nonce)]
    began_ns = clock.outside_ns()
    key = paths.log(position)
    # The two are independent: what shows whether a lease is over was stored before our claim, or never counts.
    holder, over = await asyncio.gather(
        retry.call(lambda: put_ours(store, key, data, me.nonce), f"put {key}"),
        _leases_over(store, paths, ends, me, retry, None if clean else watched))
    if holder is not None:
        if holder.kind != ObjectKind.SEAL:
            raise key_taken_error(holder, key)
        by = await sealer_of(store, key, retry)
        raise Fenced(f"{by or 'another broker'} took the shard before epoch {epoch} was opened", by)
    if over and watched is not None and watched.silent and watched.heartbeat:
        with suppress(StoreError):  # they are only garbage, and the shard is ours
            await delete_heartbeats(store, watched.run_id, watched.heartbeat, retry)
    return Taken(epoch, ends, began_ns, 0 if over else sealed_ns + lease_ns, data[0])


async def _newest(store: ObjectStore, paths: ShardPaths, retry: StoreRetry, watched: Watched | None,
                  ) -> tuple[int, list[Position], bool]:
    """Return the highest claimed epoch, the positions of all checkpoints, and whether the owner of the epoch in
    ``watched`` has sealed it where its log was seen to end."""
    listing = positions(store, paths.checkpoints, "", retry)
    if watched is not None and watched.epoch:
        return await asyncio.gather(newest_claim(store, paths, Position(watched.epoch, 0), retry), listing,
                                    _sealed_by_owner(store, paths, Position(watched.epoch, watched.number), retry))
    roots = await listing
    return await newest_claim(store, paths, _last(roots), retry), roots, False


def _cleanly_ended(watched: Watched | None, newest: int, roots: list[Position]) -> Earlier | None:
    """Return the earlier epochs if the one in ``watched``, which its owner has sealed, is the ``newest`` and has the
    newest checkpoint.

    Then nothing is left to seal: that owner sealed all epochs before its own. No entry can be swept between this call
    and the opening, because no owner is left. Whoever claims the next epoch owns the shard after it, and nobody else.
    """
    if watched is None or not watched.number or newest != watched.epoch:
        return None
    root = _last(roots)
    if max(1, root.epoch) != newest or root >= (newest, watched.number):
        return None
    return Earlier({newest: watched.number}, roots)


async def _leases_over(store: ObjectStore, paths: ShardPaths, ends: dict[int, int], me: Identity, retry: StoreRetry,
                       watched: Watched | None) -> bool:
    """Return whether no owner of the epochs just sealed can still answer from its lease; ``watched`` None: there are
    none, or the last one has ended by itself.

    The epochs are checked from the newest down. Those that were never opened do not count, nor do those under our own
    name: an operator who gives two processes one name says that the earlier one has ended. The first other epoch
    decides. Its lease is over if its log has not grown for T and its owner has put no heartbeat, or if its owner sealed
    it, which an owner does last. The leases of older epochs are then over, too: these epochs were sealed before this
    one was opened, and no owner seals its own epoch, or puts a root in it, before the leases below it are over.
    """
    if watched is None:
        return True
    opened = [Position(epoch, end) for epoch, end in sorted(ends.items(), reverse=True) if end]
    if watched.silent and opened and opened[0].epoch == watched.epoch and opened[0].number <= watched.number:
        # A heartbeat that is stored later is followed by a question that finds our claim (``heartbeat``).
        return not (watched.run_id and await heartbeats_after(store, watched.run_id, watched.heartbeat, retry))
    for at in range(0, len(opened), BATCH):
        batch = opened[at:at + BATCH]
        by_owner = await asyncio.gather(*[_sealed_by_owner(store, paths, end, retry) for end in batch])
        names = await asyncio.gather(*[_claimant(store, paths, end.epoch, retry) for end in batch])
        for sealed, name in zip(by_owner, names, strict=True):
            if sealed:
                return True
            if name != me.name:
                return False
    return True


async def _claim(store: ObjectStore, paths: ShardPaths, me: Identity, retry: StoreRetry, watched: Watched | None,
                 newest: int) -> int:
    """Claim the epoch after ``newest``, the highest claimed one, or a later one. Raises: Overtaken."""
    epoch = newest + 1
    while True:
        if watched is not None and epoch != watched.epoch + 1:
            by = await _claimant(store, paths, epoch - 1, retry)
            raise Overtaken(f"{by or 'another broker'} claimed epoch {epoch - 1} first", by)
        key = paths.epoch(epoch)
        data = [Claim(epoch, me.name, me.nonce, retry.clock.now_ns()).encode()]
        holder = await retry.call(
            lambda key=key, data=data: put_ours(store, key, data, me.nonce), f"put {key}")  # type: ignore[misc]
        if holder is None:
            return epoch
        epoch += 1


async def newest_claim(store: ObjectStore, paths: ShardPaths, newest: Position, retry: StoreRetry) -> int:
    """Return the highest claimed epoch, 0: none. ``newest`` is the position of the newest checkpoint, or of any entry
    of the log."""
    # Claims are never deleted, so those from that epoch on are the last ones.
    after = paths.epoch(newest.epoch - 1) if newest.epoch else ""
    claims, opened = await asyncio.gather(positions(store, paths.epochs, after, retry),
                                    _is_opened(store, paths, newest.epoch + 1, retry))
    epoch = max([newest.epoch, *(claim.epoch for claim in claims)])
    if epoch > newest.epoch:
        opened = await _is_opened(store, paths, epoch + 1, retry)
    # The log shows a newer epoch if the store has lost its claim. Claiming that epoch again would give it two writers.
    while opened:
        epoch += 1
        opened = await _is_opened(store, paths, epoch + 1, retry)
    return epoch


async def _is_opened(store: ObjectStore, paths: ShardPaths, epoch: int, retry: StoreRetry) -> bool:
    """Return whether an epoch has an opening, or a seal in its place."""
    return epoch <= EPOCH_MAX and (await entries(store, paths, epoch, [0], retry))[0] is not None


async def _seal_below(store: ObjectStore, paths: ShardPaths, epoch: int, me: Identity, retry: StoreRetry,
                      watched: Watched | None) -> Earlier:
    """End every epoch below ``epoch``, from the newest checkpoint's on. ``watched`` saves the search in the log of its
    epoch: all numbers below its own had segments.
    """
    newest = await newest_checkpoint(store, paths, retry)
    while True:
        if newest.epoch >= epoch:
            raise Fenced(f"epoch {newest.epoch} has a checkpoint already; ours is {epoch}",
                         await newest_claimant(store, paths, retry))
        firsts = [Position(e, max(newest.number + 1 if e == newest.epoch else 0,
                                  watched.number if watched is not None and watched.epoch == e else 0))
                  for e in range(max(1, newest.epoch), epoch)]
        known = await known_ends(store, paths, range(newest.epoch + 1, epoch), retry)
        if (end := known.get(newest.epoch)) is not None and end <= newest.number:
            # No owner puts such a root: its number was stored, and the number of an end was not.
            raise Corrupt(paths.checkpoint(newest), "header", 8,
                          f"epoch {newest.epoch} ended at number {end}, before it")
        ends: dict[int, int] = {}
        for at in range(0, len(firsts), BATCH):
            batch = firsts[at:at + BATCH]
            found = await asyncio.gather(*[_seal_epoch(store, paths, first, known.get(first.epoch), epoch, me, retry)
                                           for first in batch])
            ends |= {first.epoch: end for first, end in zip(batch, found, strict=True)}
        roots = await positions(store, paths.checkpoints, "", retry)
        again = _last(roots)
        if again.epoch < epoch and not (again.epoch in ends and again.number >= ends[again.epoch]):
            return Earlier(ends, roots)
        newest = again


async def _seal_epoch(store: ObjectStore, paths: ShardPaths, first: Position, known: int | None, epoch: int,
                      me: Identity,
                      retry: StoreRetry) -> int:
    """Seal an epoch, unless it has a seal. Returns: the number at which it ends; ``known`` is that number or None."""
    if known is not None:
        end = Position(first.epoch, known)
        [header] = await entries(store, paths, end.epoch, [end.number], retry)
        if header is None:  # the seal is lost
            await _put_seal(store, paths, end, epoch, me, retry, known - 1)
        return known
    lost = 0
    while True:
        number, header = await end_of_segments(store, paths, first, retry)
        if header is not None:
            return number
        await _expect_end(store, paths, Position(first.epoch, number), retry)
        if lost >= _RACES_LOST:
            # A live owner can keep winning this race; placing a seal ahead of it ends the race, since it acknowledges
            # in order. The epoch still ends at the first number that the owner has not used by then.
            await _put_seal(store, paths, Position(first.epoch, number + (1 << lost)), epoch, me, retry, number - 1)
        if await _put_seal(store, paths, Position(first.epoch, number), epoch, me, retry,
                           number - 1) == ObjectKind.SEAL:
            return number
        lost += 1
        first = Position(first.epoch, number)


async def _expect_end(store: ObjectStore, paths: ShardPaths, end: Position, retry: StoreRetry) -> None:
    """Make sure that ``end``, a number without an entry, never had one: a seal there would be the end of all that
    follows.

    If a later entry proves that there was one, the store has lost it, unless it was swept. Raises: Corrupt.
    """
    later = await proof_of(store, paths, end, retry)
    if later is None:
        return
    [entry] = await entries(store, paths, end.epoch, [end.number], retry)
    if entry is None and await newest_checkpoint(store, paths, retry) < end and not await _is_being_copied(
            store, end.epoch, retry):
        raise Corrupt(paths.log(end), "entry", 0, f"it is missing, and {later} shows that it was there")


async def _is_being_copied(store: ObjectStore, epoch: int, retry: StoreRetry) -> bool:
    try:
        mark = await retry.call(lambda: store.get(COPYING, 0, HEADER_BYTES), f"get {COPYING}")
    except NotFound:
        return False
    return is_being_copied(mark, epoch)


async def seal_at(store: ObjectStore, paths: ShardPaths, position: Position, epoch: int, me: Identity, clock: Clock,
                  rng: random.Random) -> ObjectKind:
    """Put a seal at ``position`` as the owner of ``epoch``; return the kind of the entry there, SEAL or SEGMENT.

    A clean stop puts it at the first unused number of its own epoch, after all segments before it are stored.
    """
    return await _put_seal(store, paths, position, epoch, me, StoreRetry(store, clock, rng), position.number - 1)


async def _put_seal(store: ObjectStore, paths: ShardPaths, position: Position, epoch: int, me: Identity,
                    retry: StoreRetry, stored_up_to: int) -> ObjectKind:
    """Put a seal. Args: stored_up_to: all entries up to this number are known to be stored; below 0: none is."""
    key = paths.log(position)
    seal = [Seal(position, me.name, epoch, me.nonce, retry.clock.now_ns(),
                 stored_up_to if stored_up_to >= 0 else None).encode()]
    holder = await retry.call(lambda: put_ours(store, key, seal, me.nonce), f"put {key}")
    if holder is None:
        return ObjectKind.SEAL
    return expect_entry(holder, position, key).kind


async def newest_checkpoint(store: ObjectStore, paths: ShardPaths, retry: StoreRetry) -> Position:
    """Return the position of the newest root; (0, 0) if there is none."""
    return _last(await positions(store, paths.checkpoints, "", retry))


def _last(roots: list[Position]) -> Position:
    return roots[-1] if roots else Position(0, 0)


async def newest_claimant(store: ObjectStore, paths: ShardPaths, retry: StoreRetry) -> str:
    """Return the name of the broker that claimed the highest epoch; "" if there is none or it cannot be read."""
    epoch = await newest_claim(store, paths, await newest_checkpoint(store, paths, retry), retry)
    return await _claimant(store, paths, epoch, retry)


async def _claimant(store: ObjectStore, paths: ShardPaths, epoch: int, retry: StoreRetry) -> str:
    """Return the name of the broker that claimed ``epoch``; "" if it cannot be read."""
    key = paths.epoch(epoch)
    try:
        return Claim.decode(await retry.call(lambda: store.get(key), f"get {key}"), epoch).owner
    except (NotFound, FormatError):
        return ""


async def positions(store: ObjectStore, prefix: str, after: str, retry: StoreRetry) -> list[Position]:
    """Return the positions in the keys below ``prefix``, ascending; a claim's number is 0."""
    found = await retry.call(lambda: store.list(prefix, after), f"list {prefix}")
    return [key.position for info in found if (key := parse(info.key)) is not None and key.position is not None]


async def sealer_of(store: ObjectStore, key: str, retry: StoreRetry) -> str:
    """Return the name of the broker that put the seal at ``key``; "" if it cannot be read."""
    parsed = parse(key)
    assert parsed is not None
    assert parsed.position is not None
    seal = await _seal(store, key, parsed.position, retry)
    return "" if seal is None else seal.sealer


async def _sealed_by_owner(store: ObjectStore, paths: ShardPaths, end: Position, retry: StoreRetry) -> bool:
    """Return whether the seal at ``end`` comes from a clean stop."""
    seal = await _seal(store, paths.log(end), end, retry)
    return seal is not None and seal.sealer_epoch == end.epoch


async def _seal(store: ObjectStore, key: str, position: Position, retry: StoreRetry) -> Seal | None:
    """Return the seal at ``key``; None if it cannot be read."""
    try:
        return Seal.decode(await retry.call(lambda: store.get(key), f"get {key}"), position)
    except (NotFound, FormatError):
        return None
