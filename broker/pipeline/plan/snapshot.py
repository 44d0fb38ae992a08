"""Snapshots of the store's streams. A query reads one snapshot, which later changes by a broker do not affect.

A snapshot has all streams of a shard at one position in its log. The driver replays the newest checkpoint and the log
after it (``storage.read.snapshot``), and reads only the checkpoint's pages that the requested streams need. Brokers may
publish, checkpoint and sweep at the same time.

``asOf`` names another state, or bounds the newest one:

    00000003-00000000002a   a log position, as ``jetblock inspect`` prints it: the streams as they were there, with
                            messages that were deleted later. The store must have an earlier checkpoint and the log
                            after it. Otherwise, if messages may have been removed since, the query fails, or reads
                            the remaining messages
    seq:N                   the newest state's messages up to N
    a time                  the newest state's messages up to and at that time (ISO 8601, or ns)
"""

from __future__ import annotations

import gc
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from broker.pipeline.errors import BadOption, DataLoss, Gone, NoStream, Unreachable, from_format_error
from broker.pipeline.plan.selection import time_ns
from broker.pipeline.store.objects import ObjectClient, check_store
from broker.storage.format.block import BlockPlace, BlockRef, decode_core
from broker.storage.format.errors import CutOff, FormatError
from broker.storage.format.header import Position
from broker.storage.format.index import decode_index
from broker.storage.format.records.commits import UNKNOWN, Commits
from broker.storage.objectstore.base import NotFound
from broker.storage.paths import ShardPaths, block_key
from broker.storage.read.places import places
from broker.storage.read.snapshot import Snapshot, replay, replay_to
from broker.storage.read.steps import Steps, run_answering
from broker.storage.state.applied import ShardState
from broker.storage.state.consumer import ConsumerState
from broker.storage.state.stream import StreamState
from broker.storage.state.table import BlockEntry

__all__ = [
    "AsOf",
    "Blocks",
    "StreamSnapshot",
    "gc_paused",
    "key_of",
    "last_of",
    "matcher",
    "names",
    "newest",
    "no_stream",
    "read_store",
    "replay_shard",
    "run_steps",
    "seq_at_time",
    "shards_of",
    "snapshot_of",
    "wanted_by",
]

_POSITION: Final = re.compile(r"([0-9a-fA-F]{8})-([0-9a-fA-F]{12})")
_TRIES: Final = 3
_NAMES_SHOWN: Final = 20
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AsOf:
    """A query's ``asOf``; exactly one field is set."""

    position: Position | None = None
    seq: int | None = None
    time_ns: int | None = None

    @classmethod
    def parse(cls, text: str) -> AsOf:
        """Parse the option. Raises: BadOption naming the value and what is allowed."""
        word = text.strip()
        if (match := _POSITION.fullmatch(word)) is not None:
            return cls(position=Position(int(match[1], 16), int(match[2], 16)))
        if word.lower().startswith("seq:"):
            number = word[4:]
            if number.isascii() and number.isdigit():
                return cls(seq=int(number))
        else:
            try:
                return cls(time_ns=time_ns(word))
            except ValueError:
                pass
        raise BadOption(f"option asOf={text!r}: write a position as `jetblock inspect` prints it "
                        f"(00000003-00000000002a), seq:N, or a time (2026-11-21T14:00:00Z)")


class Blocks(Protocol):
    """A stream's blocks, in order: a BlockTable, or a list."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[BlockEntry]: ...


@dataclass(slots=True)
class StreamSnapshot:
    """A stream at ``position`` of its shard's log; ``end_seq`` does not change the counts."""

    account: str
    name: str
    stream_id: int
    shard: int
    config: dict[str, Any]
    created_ns: int
    first_seq: int
    last_seq: int
    msgs: int
    bytes: int
    first_time_ns: int
    last_time_ns: int
    position: Position
    """The position in the shard's log."""
    end_seq: int
    """The last sequence that asOf admits; ``last_seq`` without asOf, or if this is the state at asOf."""
    blocks: Blocks
    """The live blocks in order, including blocks beyond ``end_seq``. In a large stream, each access to
    ``ref.subjects`` decodes them again."""
    consumers: dict[str, ConsumerState]
    offline: str | None = None
    """The reason why the stream cannot be read; None if it can."""

    @property
    def full_name(self) -> str:
        """ACCOUNT/NAME."""
        return f"{self.account}/{self.name}"


def snapshot_of(state: StreamState, shard: int, position: Position, blocks: Blocks | None = None) -> StreamSnapshot:
    """Return a stream as of ``position`` of its shard's log, with all its blocks or the given ones; shares them with
    ``state``."""
    return StreamSnapshot(
        state.account, state.name, state.stream_id, shard, state.config, state.created_ns, state.first_seq,
        state.last_seq, state.msgs, state.bytes, state.first_time_ns, state.last_time_ns, position, state.last_seq,
        state.blocks if blocks is None else blocks, state.consumers, state.offline)


def read_store(objects: ObjectClient, *, account: str = "$G", stream: str = "*", as_of: str | None = None,
               none_ok: bool = False, fail_on_loss: bool = True) -> list[StreamSnapshot]:
    """Return the streams of ``account`` (``*`` is a wildcard) that ``stream`` names, sorted by account and name.

    Args: stream is a name, or several separated by commas (``\\,`` for a comma in a name), with ``*`` as a wildcard.
        none_ok: ignore names that no stream has. fail_on_loss: raise DataLoss if the store no longer has the state of
        ``as_of``, and messages were removed from the stream.
    Raises: NoStore; NoStream, listing the existing ones; DataLoss; Damaged; Newer; Unreachable; BadOption for an
        ``as_of`` that is malformed or can no longer be resolved.
    """
    bound = None if as_of is None else AsOf.parse(as_of)
    check_store(objects)
    patterns = names(stream)
    wanted = wanted_by(account, stream)
    found: list[StreamSnapshot] = []
    others: list[tuple[str, str]] = []
    bounded: list[StreamSnapshot] = []
    shards = shards_of(objects)
    exact: dict[int, ShardState] = {}
    if bound is not None and bound.position is not None:
        exact = {shard: state for shard in shards
                 if (state := _state_at(objects, shard, wanted, bound.position)) is not None}
    # The only shard is not read twice; of several, the newest states tell in which one a stream is.
    states = exact if exact and len(shards) == 1 else {
        shard: replay_shard(objects, shard, wanted).state for shard in shards}
    for state in states.values():
        others += state.unwanted.values()
    placed = places(states.items(), states[0].catalogue if states else None)
    if exact and states is not exact:
        placed = _placed_at(placed, exact, lambda one: wanted(one.account, one.name), f"asOf={as_of}")
    for shard, one in placed:
        # A damaged create record leaves a stream without a name; the others are still read.
        if wanted(one.account, one.name) and not one.restoring:
            found.append(snapshot_of(one, shard, exact.get(shard, states[shard]).position))
            if shard not in exact:
                bounded.append(found[-1])
    found = _newest_of_each_name(found)
    if not none_ok:
        where = objects.url if bound is None or bound.position is None else f"{objects.url} as of {bound.position}"
        for pattern in patterns:
            if not any(matcher(pattern)(snapshot.name) for snapshot in found):
                raise no_stream(where, account, pattern, [(m.account, m.name) for m in found] + others)
    if bound is not None:
        for snapshot in bounded:
            snapshot.end_seq = last_of(objects, snapshot, bound)
            if (bound.position is not None and fail_on_loss and bound.position < snapshot.position
                    and not _is_whole(snapshot)):
                raise DataLoss(f"{objects.url}: option asOf={as_of}: the store no longer has that state, and "
                               f"messages were removed from stream {snapshot.full_name} before or after it: give a "
                               f"later position, or read the remaining messages with failOnDataLoss=false")
    return found


def _placed_at(newest: list[tuple[int, StreamState]], exact: Mapping[int, ShardState],
               wanted: Callable[[StreamState], bool], option: str) -> list[tuple[int, StreamState]]:
    """Return the streams as they were at a position, each in the log of the shard that has it now.

    Args: ``exact`` are the states at the position, of the shards that still have it.
    Raises: BadOption: a stream that is ``wanted`` came into its shard later, so the position is none of its own.
    """
    known = {one.stream_id for _, one in newest}
    found = [(shard, one) for shard, one in places(exact.items(), None) if one.stream_id not in known]
    """At first those that were deleted since."""
    for shard, one in newest:
        if shard not in exact:
            found.append((shard, one))
        elif (then := exact[shard].streams.get(one.stream_id)) is not None and then.departed is None:
            found.append((shard, then))
        elif one.moves and wanted(one):
            raise BadOption(f"option {option}: stream {one.account}/{one.name} has moved to shard {shard} after that "
                            f"position of its log: give a time or seq:N, or leave the stream out")
    return found


def _newest_of_each_name(found: list[StreamSnapshot]) -> list[StreamSnapshot]:
    """Return the streams sorted by account and name.

    Shards are read one after the other. A stream that is deleted meanwhile, and created again in another shard, is
    found twice; the newer one counts.
    """
    found.sort(key=lambda snapshot: (snapshot.account, snapshot.name, snapshot.created_ns))
    return list({snapshot.full_name: snapshot for snapshot in found}.values())


def _state_at(objects: ObjectClient, shard: int, wanted: Callable[[str, str], bool],
           position: Position) -> ShardState | None:
    """Return a shard's state at a position; None if the store no longer has it.

    Raises: as ``run_steps``, except CutOff.
    """
    try:
        with gc_paused():
            return run_steps(objects, shard, replay_to(ShardPaths(shard), position, wanted)).state
    except CutOff:
        return None


def _is_whole(snapshot: StreamSnapshot) -> bool:
    """Return whether it is certain that no message up to ``end_seq`` was ever removed."""
    begin = due = max(1, int(snapshot.config.get("first_seq") or 1))
    for entry in snapshot.blocks:
        ref = entry.ref
        if due > snapshot.end_seq:
            break
        if ref.first_seq != due or not ref.gapless or entry.dead is not None:
            return False
        due = ref.last_seq + 1
    return snapshot.end_seq < begin or (due > snapshot.end_seq and snapshot.first_seq <= begin)


def shards_of(objects: ObjectClient) -> list[int]:
    """Return the numbers of the store's shards. They are dense from 0, and each shard has a claim that is never
    deleted."""
    found = 0
    while objects.list(ShardPaths(found).epochs):
        found += 1
    return list(range(found))


def replay_shard(objects: ObjectClient, shard: int, wanted: Callable[[str, str], bool]) -> Snapshot:
    """Replay a shard's log for the streams for which wanted(account, name) is true.

    Raises: Damaged; Newer; Unreachable, also when the log was swept faster than it could be read.
    """
    for _ in range(_TRIES):
        try:
            with gc_paused():
                return run_steps(objects, shard, replay(ShardPaths(shard), wanted))
        except CutOff as error:
            reason = str(error)
    raise Unreachable(f"{objects.url}: {reason}; run the query again, closer to the store")


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector. It would repeatedly traverse hundreds of thousands of objects that all stay alive,
    which is a third of the time of planning 100 000 blocks."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def run_steps(objects: ObjectClient, shard: int, steps: Steps[T]) -> T:
    """Run ``steps`` on the store. Raises: CutOff; Damaged; Newer; Unreachable."""
    try:
        return run_answering(steps, objects.get_many, objects.list)
    except FormatError as error:
        raise from_format_error(error, f"{objects.url}: shard {shard}") from None


def names(stream: str) -> list[str]:
    """Return the patterns of a ``stream`` option, which commas separate."""
    parts = [part.replace("\\,", ",").strip() for part in re.split(r"(?<!\\),", stream)]
    return [part for part in parts if part]


def matcher(pattern: str) -> Callable[[str], bool]:
    """Return a test whether a name matches the pattern, in which ``*`` stands for any characters."""
    if "*" not in pattern:
        return pattern.__eq__
    expression = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
    return lambda name: expression.fullmatch(name) is not None


def wanted_by(account: str, stream: str) -> Callable[[str, str], bool]:
    """Return the function wanted(account, name) for the options ``account`` and ``stream``."""
    of_account, tests = matcher(account), list(map(matcher, names(stream)))
    return lambda owner, name: of_account(owner) and any(test(name) for test in tests)


def no_stream(where: str, account: str, pattern: str, there: Iterable[tuple[str, str]]) -> NoStream:
    """Return the error for a name that no stream has. ``there`` are accounts and names of the existing streams."""
    there = list(there)
    of_account = matcher(account)
    here = sorted(f"{name!r}" for owner, name in there if of_account(owner))
    elsewhere = sorted({owner for owner, name in there if matcher(pattern)(name)})
    more = f" and {len(here) - _NAMES_SHOWN} more" if len(here) > _NAMES_SHOWN else ""
    shown = ", ".join(here[:_NAMES_SHOWN]) + more
    hint = f"; account {', '.join(elsewhere)} has a stream of that name: set option account" if elsewhere else ""
    return NoStream(f"{where}: no stream {pattern!r} in account {account!r}{hint}; existing streams: {shown or 'none'}")


def key_of(shard: int, account: str, name: str, ref: BlockRef) -> str:
    """Return the key of the object that holds a block of this stream."""
    return block_key(ShardPaths(shard), account, name, ref)


def seq_at_time(objects: ObjectClient, snapshot: StreamSnapshot, at_ns: int) -> int:
    """Return the first sequence whose message, live or dead, has time ``at_ns`` or later; ``last_seq + 1`` if there is
    none.

    Reads at most one index, and another one for each retry with a newer snapshot.
    Raises: NoStream when the stream was deleted meanwhile; Damaged; Newer; Gone; Unreachable.
    """
    for _ in range(_TRIES):
        blocks: list[BlockEntry] = list(snapshot.blocks)
        at = bisect_left(blocks, at_ns, key=lambda entry: entry.ref.last_time_ns)
        if at == len(blocks):
            return snapshot.last_seq + 1
        ref = blocks[at].ref
        if ref.first_time_ns >= at_ns:
            return max(ref.first_seq, snapshot.first_seq)
        key = key_of(snapshot.shard, snapshot.account, snapshot.name, ref)
        try:
            data = objects.get(key, ref.index_offset, ref.index_offset + ref.index_bytes)
        except NotFound:
            newer = newest(objects, snapshot.shard, snapshot.account, snapshot.name, snapshot.stream_id)
            if newer is None:
                raise NoStream(f"{objects.url}: stream {snapshot.full_name} was deleted while it was read") from None
            snapshot = newer
            continue
        try:
            head = decode_index(data, ref, key)
        except FormatError as error:
            raise from_format_error(error, f"{objects.url}: stream {snapshot.full_name}", key) from None
        return max(head.seq_of(head.ordinal_at(at_ns)), snapshot.first_seq)
    raise Gone(f"{objects.url}: {key} is missing, and the newest state of stream {snapshot.full_name} names it: "
               f"restore it from a backup; `jetblock inspect --verify` shows what else is missing")


def newest(objects: ObjectClient, shard: int, account: str, name: str, stream_id: int) -> StreamSnapshot | None:
    """Return the current state of a stream, which was in ``shard``, by name and incarnation; None if it was deleted.

    Raises: as ``replay_shard``.
    """
    def wanted(of: str, one: str) -> bool:
        return (of, one) == (account, name)

    states = {shard: replay_shard(objects, shard, wanted).state}
    stream = states[shard].streams.get(stream_id)
    if stream is None or stream.departed is not None:
        states = {number: replay_shard(objects, number, wanted).state for number in shards_of(objects)}
        shard, stream = next(((number, one) for number, one in places(states.items(), states[0].catalogue)
                              if one.stream_id == stream_id), (0, None))
    return None if stream is None or stream.restoring else snapshot_of(stream, shard, states[shard].position)


def last_of(objects: ObjectClient, snapshot: StreamSnapshot, bound: AsOf) -> int:
    """Return the last sequence of the stream that ``bound`` admits.

    Raises: BadOption if it is no longer known; otherwise as ``seq_at_time``.
    """
    if bound.seq is not None:
        return min(bound.seq, snapshot.last_seq)
    if bound.time_ns is not None:
        return min(seq_at_time(objects, snapshot, bound.time_ns + 1) - 1, snapshot.last_seq)
    assert bound.position is not None
    if bound.position >= snapshot.position:
        return snapshot.last_seq
    return _last_at(objects, snapshot, bound.position)


_Commit = tuple[Position, int]
"""The position of a commit, or UNKNOWN, and the stream's last sequence after it."""


def _last_at(objects: ObjectClient, snapshot: StreamSnapshot, bound: Position) -> int:
    """Return the last sequence that the stream had at the position ``bound``.

    Commits ascend from block to block, so a binary search reads the cores of a few merged blocks.
    Raises: BadOption if nothing in the store says it; Damaged; Newer; Gone; Unreachable.
    """
    blocks: list[BlockEntry] = list(snapshot.blocks)
    commits = partial(_commits_of, objects, snapshot, bound, {})
    low, high = 0, len(blocks)
    after = high  # the first block with a commit after ``bound``
    while low < high:
        at = middle = (low + high) // 2
        while at < high and not any(map(_is_known, commits(blocks[at].ref))):
            at += 1
        if at == high:
            high = middle
        elif any(position > bound for position, _ in commits(blocks[at].ref)):
            after, high = at, middle
        else:
            low = at + 1
    last_unknown = 0
    for entry in reversed(blocks[:after + 1]):
        for position, last_seq in reversed(commits(entry.ref)):
            if position > bound:
                last_unknown = 0
            elif position == UNKNOWN:
                last_unknown = last_unknown or last_seq
            else:
                return _known_end(snapshot, bound, last_seq, last_unknown)
    return _known_end(snapshot, bound, snapshot.first_seq - 1, last_unknown)


def _is_known(commit: _Commit) -> bool:
    return commit[0] != UNKNOWN


def _known_end(snapshot: StreamSnapshot, bound: Position, end: int, last_unknown: int) -> int:
    """Return ``end``. Raises: BadOption if messages after it, up to ``last_unknown``, may be from before ``bound``."""
    if last_unknown:
        raise BadOption(f"option asOf={bound}: the position at which messages {end + 1} to {last_unknown} joined "
                        f"stream {snapshot.full_name} is not known, because they were staged, or merged by an "
                        f"earlier release; give a sequence (seq:N) or a time")
    return end


def _commits_of(objects: ObjectClient, snapshot: StreamSnapshot, bound: Position, read: dict[BlockRef, list[_Commit]],
                ref: BlockRef) -> list[_Commit]:
    """Return the commits of a block's messages; those of a merged block from its core, which is ``read`` once.

    Raises: as ``_last_at``.
    """
    if ref.place is BlockPlace.LOG or (ref.place is not BlockPlace.STAGED and ref.position <= bound):
        return [(ref.position, ref.last_seq)]
    if ref.place is BlockPlace.STAGED:
        return [(UNKNOWN, ref.last_seq)]
    if (found := read.get(ref)) is None:
        key = key_of(snapshot.shard, snapshot.account, snapshot.name, ref)
        try:
            core = decode_core(objects.get(key, ref.core_offset, ref.core_offset + ref.core_bytes), ref.position,
                               ref.stream_id, object_id=ref.object_id, name=key, offset=ref.core_offset)
            found = [(UNKNOWN, ref.last_seq)]
            for record in core.records:
                if record.kind == Commits.KIND:
                    commits = Commits.decode(record.body)
                    found = list(zip(commits.positions, commits.last_seqs, strict=True)) or found
        except NotFound:
            raise Gone(f"{objects.url}: {key} is missing, and stream {snapshot.full_name} has messages in it: if "
                       f"compaction moved them meanwhile, run the query again") from None
        except FormatError as error:
            raise from_format_error(error, f"{objects.url}: stream {snapshot.full_name}", key) from None
        read[ref] = found
    return found
