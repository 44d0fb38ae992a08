"""Scan tasks for a snapshot and a selection, their packing into partitions, and an estimate of their cost.

Blocks are pruned by sequence, time and subject. A block with more subjects than its summary can hold has a subject
filter instead, which excludes most blocks without a wanted subject. The task of any other block checks its index. No
part of a block is read here.

A scan task's weight is about the number of bytes it will fetch:

    index + the frames that hold a wanted message    if the payload is read
    index                                            otherwise
    and at least ``SCAN_TASK_BYTES_MIN``             since even a small get takes time

A frame has about 128 KiB. So a few messages of a block cost a few frames at most, and many messages that are spread
over the block cost all its frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from broker.pipeline.errors import Damaged
from broker.pipeline.plan.selection import Selection
from broker.pipeline.plan.snapshot import StreamSnapshot, gc_paused
from broker.storage.format.block import BlockRef, SubjectSummary
from broker.storage.format.errors import FormatError
from broker.storage.format.frame import FRAME_BYTES, FRAME_MESSAGES_MAX
from broker.storage.paths import ShardPaths, StreamPaths, object_key
from broker.storage.state.dead import DeadSet

__all__ = ["Estimate", "ScanTask", "estimate", "pack", "tasks", "weight"]

SCAN_TASK_BYTES_MIN: Final = 64 << 10
TASK_BYTES_MIN: Final = 8 << 20
"""Below this size, a Spark task costs more to start than to read."""


class ScanTask(NamedTuple):
    """The part of one block that a query reads."""

    account: str
    stream: str
    stream_id: int
    shard: int
    key: str
    """The object's key."""
    ref: BlockRef
    """The block's reference, without its subjects unless ``summaries`` requests them."""
    first_seq: int
    last_seq: int
    """The first and last wanted sequence of the block, within the bounds of stream, asOf and selection."""
    dead: DeadSet | None
    messages: int = 0
    """Upper bound of the wanted messages; 0: unknown."""
    removed: int = 0
    """Number of messages of the block that were removed one by one."""


class Estimate(NamedTuple):
    """The amount that a query will read.

        blocks, messages    upper bounds
        blocks_of           blocks before pruning
        index_bytes         read for any column that a block's reference cannot answer
        frames_bytes        as stored; read for the payload only; approximate if a task needs some frames of a block
        unsure              blocks that may hold none of the selected subjects: they have no subject summary, and no
                            subject filter excludes them; they are counted in full
    """

    blocks: int
    blocks_of: int
    messages: int
    index_bytes: int
    frames_bytes: int
    unsure: int = 0

    @property
    def bytes(self) -> int:
        """The sum of indexes and frames."""
        return self.index_bytes + self.frames_bytes


def tasks(snapshot: StreamSnapshot, selection: Selection, *, summaries: bool = False) -> list[ScanTask]:
    """Return scan tasks for the blocks that may hold wanted messages, in order of sequence.

    Args: summaries: each task's ``ref`` keeps its subjects, so that a reader may use them instead of the index.
    Raises: Damaged for an offline stream, whose blocks are unknown.
    """
    with gc_paused():
        return [task for task, _ in _tasks(snapshot, selection, summaries)]


def _tasks(snapshot: StreamSnapshot, selection: Selection, summaries: bool = False) -> Iterator[tuple[ScanTask, bool]]:
    """Yield each task, and whether its block surely has a wanted subject, or the query tests no subject."""
    if selection.nothing or not selection.matches_stream(snapshot.account, snapshot.name):
        return
    if snapshot.offline is not None:
        raise Damaged(f"stream {snapshot.full_name} is offline, and no rows are returned: {snapshot.offline}; see "
                      f"`jetblock inspect --verify`; a newer broker's record needs a newer jetblock here, too")
    first_seq = max(snapshot.first_seq, selection.first_seq)
    last_seq = snapshot.end_seq if selection.last_seq is None else min(snapshot.end_seq, selection.last_seq)
    shard = ShardPaths(snapshot.shard)
    own = StreamPaths(snapshot.account, snapshot.name, snapshot.stream_id)
    by_subject, by_time = selection.needs_subject(), selection.needs_time()
    for entry in snapshot.blocks:
        ref = entry.ref
        if ref.last_seq < first_seq:
            continue
        if ref.first_seq > last_seq:
            return
        if by_time and not selection.matches_times(ref.first_time_ns, ref.last_time_ns):
            continue
        first, last, messages, sure = ref.first_seq, ref.last_seq, ref.count, True
        summary = None
        if by_subject or summaries:
            try:
                summary = ref.subjects
            except FormatError as error:
                raise Damaged(f"stream {snapshot.full_name}: {error}") from None
        if by_subject:
            sure = summary is not None
            if summary is None:
                if ref.subject_filter is not None and not selection.may_be_in(ref.subject_filter):
                    continue
            else:
                rows = selection.rows_of(summary)
                if not rows:
                    continue
                first, last = min(row[2] for row in rows), max(row[3] for row in rows)
                messages = sum(row[1] for row in rows)
        first, last = max(first, first_seq), min(last, last_seq)
        if first > last:
            continue
        yield ScanTask(snapshot.account, snapshot.name, snapshot.stream_id, snapshot.shard,
                       object_key(shard, ref, own), _with_subjects(ref, summary if summaries else None), first, last,
                       entry.dead, min(messages, last - first + 1), entry.dead_count), sure


def _with_subjects(ref: BlockRef, summary: SubjectSummary | None) -> BlockRef:
    return BlockRef(ref.place, ref.position, ref.object_id, ref.stream_id, ref.core_offset, ref.core_bytes,
                    ref.index_offset, ref.index_bytes, ref.frames_offset, ref.frames_bytes, ref.first_seq, ref.last_seq,
                    ref.count, ref.bytes, ref.first_time_ns, ref.last_time_ns, summary)


def weight(task: ScanTask, *, payload: bool = True) -> int:
    """Return about how many bytes the task will fetch."""
    return max(SCAN_TASK_BYTES_MIN, task.ref.index_bytes + (_frames_bytes(task) if payload else 0))


def _frames_bytes(task: ScanTask) -> int:
    """Return the stored bytes of the frames with wanted messages, assuming that a block's frames are alike."""
    ref = task.ref
    total = ref.frames_bytes
    frames = max(1, ref.bytes // FRAME_BYTES, ref.count // FRAME_MESSAGES_MAX)
    # The share of the block between the first and last wanted sequence; the frames at both ends count in full.
    between = -(-frames * (task.last_seq - task.first_seq + 1) // (ref.last_seq - ref.first_seq + 1)) + 1
    return total * min(frames, between, task.messages or frames) // frames


def pack(found: Iterable[ScanTask], target_bytes: int, *, payload: bool = True, cores: int = 1) -> list[list[ScanTask]]:
    """Pack scan tasks, in order, into partitions of about the same size, and of about ``target_bytes`` at most.

    Args: payload: whether frames will be read, or indexes alone. cores: the number of partitions is a multiple of this
        if there is enough to read, so that no core waits for the last partition. A block larger than a partition is
        split by sequence.
    """
    weighed = [(task, weight(task, payload=payload)) for task in found]
    total = sum(size for _, size in weighed)
    wanted = -(-total // max(SCAN_TASK_BYTES_MIN, target_bytes))
    # Partitions are never so small that starting a Spark task takes most of the time, unless target_bytes asks for it.
    count = max(1, wanted, min(-(-wanted // cores) * cores, total // TASK_BYTES_MIN))
    packed: list[list[ScanTask]] = [[] for _ in range(count)]
    before = 0
    for task, size in weighed:
        for part, part_size in _split_task(task, size, -(-total // count)):
            packed[(2 * before + part_size) * count // (2 * total)].append(part)
            before += part_size
    return [parts for parts in packed if parts]


def _split_task(task: ScanTask, size: int, target: int) -> Iterator[tuple[ScanTask, int]]:
    """Yield the task itself, or tasks about as large as a partition into which it is split, each with its size."""
    span = task.last_seq - task.first_seq + 1
    count = min(-(-size // target), span)
    if count < 2:
        yield task, size
        return
    for n in range(count):
        first, last = task.first_seq + span * n // count, task.first_seq + span * (n + 1) // count - 1
        yield task._replace(first_seq=first, last_seq=last,
                            messages=min(task.messages, last - first + 1)), size // count


def estimate(snapshots: Sequence[StreamSnapshot], selection: Selection) -> Estimate:
    """Estimate how much a query will read. Raises: Damaged for an offline stream."""
    blocks = messages = index_bytes = frames_bytes = unsure = 0
    for snapshot in snapshots:
        for task, sure in _tasks(snapshot, selection):
            blocks += 1
            messages += task.messages
            index_bytes += task.ref.index_bytes
            frames_bytes += _frames_bytes(task)
            unsure += not sure
    return Estimate(blocks, sum(len(snapshot.blocks) for snapshot in snapshots), messages, index_bytes, frames_bytes,
                    unsure)
