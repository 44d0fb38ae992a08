"""A shard's state read from its objects: the newest usable checkpoint, then the log after it.

Owns: the choice of the checkpoint with which a read begins, and the conditions under which it must begin again. Does
not own: reading a checkpoint (root), walking the log (chain), requests and their answers (steps).

    newest root ── its pages ── the log after it, to its end

The log's end is valid only if no newer checkpoint appeared meanwhile, since the missing segment may have been deleted
after that checkpoint. If a root or one of its pages is damaged or gone, the root before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from broker.storage.format.checkpoint import Root
from broker.storage.format.errors import Corrupt, CutOff, VersionUnknown
from broker.storage.format.header import Position
from broker.storage.objectstore.base import ObjectStore
from broker.storage.paths import ShardPaths
from broker.storage.read.chain import Chain
from broker.storage.read.root import Unusable, load_root
from broker.storage.read.steps import Steps, list_positions, run
from broker.storage.state.applied import ShardState
from broker.storage.state.pages import held_of

__all__ = ["Snapshot", "catch_up", "extended", "read_snapshot", "replay", "replay_ended", "replay_from", "replay_to"]

RESTARTS_MAX = 20


class Snapshot(NamedTuple):
    """The result of ``replay``."""

    state: ShardState
    """The state at the end of the log; its replay is finished."""
    root: Root | None
    """The checkpoint that the replay began with; None: it began with the log's beginning."""
    members: dict[int, frozenset[int]]
    """The ids of the streams in each of the checkpoint's directory pages."""
    roots: list[Position]
    """The positions of all roots found, ascending."""
    sealed: bool
    """True if a seal ends the last epoch."""
    segments: int
    """The number of segments replayed, without empty ones."""
    objects: int
    """The number of all segments replayed."""
    epochs: int
    head_bytes: int
    """The bytes of the segments' heads replayed."""
    problems: list[str]
    """Texts about the checkpoints that could not be used."""


def replay(paths: ShardPaths, wanted: Callable[[str, str], bool] | None = None, *,
           thorough: bool = True, whole: bool = False) -> Steps[Snapshot]:
    """Read the shard's state as it stands in the store.

    Args: wanted(account, name) selects the streams: pages and blocks of others are not read, and ``state.counts`` is
        not made. None selects all. thorough: see ``Chain``; the log's owner does not need it. whole: as for
        ``ShardState``.
    Raises: Corrupt, which names the object, if the log cannot be read further; VersionUnknown if a newer broker wrote
        it; CutOff if the log changed faster than it could be read, RESTARTS_MAX times.
    """
    for _ in range(RESTARTS_MAX):
        roots = yield from list_positions(paths.checkpoints)
        problems: list[str] = []
        missing = ""
        snapshot: Snapshot | None = None
        for position in [*reversed(roots), None]:
            try:
                snapshot = yield from _from_root(paths, position, roots, problems, wanted, thorough=thorough,
                                                 whole=whole)
                break
            except CutOff as gone:
                problems.append(str(gone))
                if position is not None or not roots:  # segments before the newest usable root may be gone
                    missing = missing or gone.key
            except VersionUnknown:
                raise
            except Unusable as damaged:
                problems.append(str(damaged))
        again = yield from list_positions(paths.checkpoints)
        end = snapshot.state.position if snapshot is not None else Position(0, 0)
        if again != roots and (snapshot is None or (again and again[-1] > end)):
            continue  # the newer checkpoint may have released the missing segment: start again from that checkpoint
        if snapshot is None:
            why = ("neither a checkpoint nor the log from its beginning can be read: "
                   + "; ".join(dict.fromkeys(problems)))
            if missing:
                raise Corrupt(missing, "entry", 0, f"it is missing, and {why}")
            raise Corrupt(paths.checkpoints, "checkpoints", 0, why)
        if again and again[-1] > end:
            raise Corrupt(paths.checkpoint(again[-1]), "checkpoint", 0,
                          f"it cannot be used, and the log before it ends at {end}: " + "; ".join(problems))
        return snapshot
    raise CutOff(f"{paths.prefix}: the log moved on {RESTARTS_MAX} times while it was read")


def replay_ended(paths: ShardPaths, roots: Sequence[Position], ends: Mapping[int, int],
                 ahead: Snapshot | None = None) -> Steps[Snapshot]:
    """Read the shard's state at the end of epochs that have ended, from the newest of ``roots``, all roots found.

    Args: ends has the end of each epoch from that root's on. So nothing is searched. ahead is what ``replay`` has
        found a little earlier; it is extended if it began with the same root, and must not be used any more.
    Raises: CutOff or Corrupt, also if the root or one of its pages is damaged or gone; VersionUnknown. Then ``replay``
        may find an older root.
    """
    root = roots[-1] if roots else None
    if ahead is not None and root == (ahead.root.position if ahead.root is not None else None):
        chain = Chain(paths, ahead.state, ends=ends)
        yield from chain.read()
        return extended(ahead, chain)._replace(roots=list(roots))
    try:
        return (yield from _from_root(paths, root, list(roots), [], ends=ends))
    except Unusable as error:
        raise CutOff(str(error)) from None


def extended(snapshot: Snapshot, chain: Chain) -> Snapshot:
    """Return ``snapshot`` after ``chain`` has applied more segments to its state."""
    return snapshot._replace(segments=snapshot.segments + chain.segments, objects=snapshot.objects + chain.objects,
                             epochs=snapshot.epochs + chain.epochs, head_bytes=snapshot.head_bytes + chain.head_bytes)


def replay_from(paths: ShardPaths, position: Position | None, end: Position) -> Steps[Snapshot]:
    """Read the shard's state from this one root, or, if None, from the log's beginning; ignore all other roots.

    Args: end is the log's last position. An updated copy of a store has old segments and lacks those that the source
        has deleted in between: the gap after them is not the log's end.
    Raises: Corrupt, which names the object, also if the root or one of its pages is damaged or gone; VersionUnknown;
        CutOff if a segment that must be replayed does not exist.
    """
    try:
        return (yield from _from_root(paths, position, [], [], end=end))
    except Unusable as error:
        assert position is not None
        raise Corrupt(paths.checkpoint(position), "checkpoint", 0, str(error)) from None


def replay_to(paths: ShardPaths, position: Position, wanted: Callable[[str, str], bool]) -> Steps[Snapshot]:
    """Read the streams that are ``wanted`` as they were at ``position``, or at the log's end, if that is earlier.

    Raises: CutOff if no checkpoint before ``position`` exists any more, or the log after it does not; Corrupt,
        VersionUnknown: as ``replay``.
    """
    roots = yield from list_positions(paths.checkpoints)
    problems: list[str] = []
    for root in [*(one for one in reversed(roots) if one <= position), None]:
        try:
            return (yield from _from_root(paths, root, roots, problems, wanted, position))
        except (CutOff, Unusable) as error:
            problems.append(str(error))
    raise CutOff(f"{paths.prefix}: the state at {position} is no longer in the store: {'; '.join(problems)}")


def catch_up(paths: ShardPaths, state: ShardState) -> Steps[None]:
    """Advance a ``state`` whose replay is finished to the current end of the log, for a reader that follows the log.

    If nothing is new, this costs a listing and five gets.
    Raises: CutOff if some of the next segments were deleted (then use ``replay``); Corrupt, VersionUnknown: as
        ``replay``. After any of them the state must not be used.
    """
    awaited = state.position
    for _ in range(RESTARTS_MAX):
        yield from Chain(paths, state, thorough=False).follow()
        end = state.position
        if end < awaited:
            raise CutOff(f"{paths.log(end)} is followed by nothing, and there is a checkpoint at {awaited}")
        # As in ``replay``: a checkpoint beyond the end shows that the next segment was deleted, or that the log has
        # grown.
        beyond = yield from list_positions(paths.checkpoints, paths.checkpoint(end) if end.epoch else "")
        if not beyond:
            break
        awaited = beyond[-1]
    else:
        raise CutOff(f"{paths.prefix}: the log moved on {RESTARTS_MAX} times while it was read")
    if state.wanted is not None:
        state.finish_replay()


def _from_root(paths: ShardPaths, position: Position | None, roots: list[Position], problems: list[str],
               wanted: Callable[[str, str], bool] | None = None, until: Position | None = None, *,
               thorough: bool = True, end: Position | None = None, whole: bool = False,
               ends: Mapping[int, int] | None = None) -> Steps[Snapshot]:
    root: Root | None = None
    members: dict[int, frozenset[int]] = {}
    if position is None:
        state = ShardState(wanted, whole=whole)
        state.replaying = True
    else:
        root, state, members = yield from load_root(paths, position, wanted, until, whole=whole)
    chain = Chain(paths, state, until, thorough=thorough, ends=ends)
    gone: dict[int, Position] = {}
    if root is not None:
        for stream_id, positions in _held(paths, root):
            stream = state.streams.get(stream_id)
            if stream is None:
                continue  # the reader does not want it
            stream.dirty = True
            if not stream.created_ns and not stream.account:
                del state.streams[stream_id]  # the checkpoint has only its id: the first of the segments creates it
            missing = yield from chain.read_held(stream_id, positions)
            if missing is not None:
                gone[stream_id] = missing
                state.set_offline(stream_id, f"{paths.log(missing)} is gone")
    yield from chain.read()
    for stream_id in gone.keys() & state.streams.keys():
        key = paths.log(gone[stream_id])
        raise CutOff(f"{key} is gone, and stream {stream_id:016x} needs it", key)
    if end is not None and state.position < end:
        raise CutOff(f"the log after {state.position} is gone, and it continues to {end}")
    if position is not None:
        try:
            state.finish_replay()
        except Corrupt as error:
            raise Unusable(f"{paths.checkpoint(position)}: {error}") from None
    else:
        state.finish_replay()
    return Snapshot(state, root, members, roots, chain.sealed, chain.segments, chain.objects, chain.epochs,
                    chain.head_bytes, problems)


def _held(paths: ShardPaths, root: Root) -> list[tuple[int, list[Position]]]:
    try:
        return held_of(root.extra, root.position)
    except (TypeError, ValueError) as error:
        raise Unusable(f"{paths.checkpoint(root.position)}: {error}") from None


async def read_snapshot(store: ObjectStore, shard: int) -> Snapshot:
    """Read the shard's state from the store, for a reader that does not own it. Raises: as ``replay``; StoreError."""
    return await run(replay(ShardPaths(shard)), store)
