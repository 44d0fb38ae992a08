"""Reading of scan tasks: threads fetch their bytes ahead, and their rows are returned in order.

    tasks ──> loads (a large block, or some small ones) ──> threads, ``prefetch`` of them ──> parts ──> batches
                 │  1  indexes, together with the frames if all are wanted
                 │  2  the frames that hold a wanted row, adjacent ones in one get
                 └─ 3  for a large block, one group of frames after another

Threads fetch bytes, and decode an index only to choose the frames to fetch. The consumer of the batches decodes
everything else, the blocks of a load into one batch. Decoding in threads took 50 % more CPU time, since memory freed by
another thread is not reused soon, and threads wait for the GIL; a Spark task has one core anyway.

Memory is bounded: loads in progress or waiting cost at most ``_AHEAD_BYTES`` (one load is always admitted), and a load
at most two groups of ``_GROUP_BYTES``, or one larger message. A caller that stops early closes the generator, which
leaves no thread behind.

The format's decoder checks the bytes, so a read returns correct rows or fails. A missing object was released after the
query was planned (``missing``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain, groupby
from typing import Any, Final, Literal, Protocol

import numpy as np
import pyarrow as pa

from broker.pipeline.errors import from_format_error
from broker.pipeline.plan.plan import ScanTask
from broker.pipeline.plan.selection import Selection
from broker.pipeline.read.bodies import Slice
from broker.pipeline.read.decode import Block
from broker.pipeline.read.messages import SEQ_MAX, Messages
from broker.pipeline.read.missing import STRICT, LossRule, MissingObjects
from broker.pipeline.read.sections import Rows
from broker.pipeline.read.small import SMALL_COUNT, StoredBlock, batch_of
from broker.pipeline.read.subjects import SubjectTest
from broker.pipeline.store.objects import ObjectClient, Range
from broker.storage.format.errors import FormatError

__all__ = ["Maker", "read_blocks", "read_tasks"]

_AHEAD_BYTES: Final = 64 << 20
_GROUP_BYTES: Final = 32 << 20
"""Upper bound of the bodies that are decoded together, hence the maximum size of a batch."""
_GROUP_ROWS: Final = 64 << 10
_GET_BYTES_MAX: Final = 16 << 20
_GAP_BYTES: Final = 64 << 10
"""Ranges with at most this gap are read together. On S3 a request costs as much as 1 MB, in money and time; bytes of
the gap cost memory."""
_TOGETHER_BYTES: Final = 256 << 10
"""Up to this size, all frames are fetched with the index, before it is known which frames are wanted."""
_LOAD_BYTES: Final = 2 << 20
_LOAD_TASKS: Final = 64
"""Bounds of small blocks that are loaded together, to share a round trip to the store, and a batch."""
_SMALL_BYTES: Final = 64 << 10
_BATCH_ROWS: Final = 16 << 10
_BATCH_BYTES: Final = 2 << 20
"""Minimum size of a batch. Smaller ones are joined, since each costs Spark as much as about a thousand rows."""


class Maker(Protocol):
    """Makes rows from slices of blocks.

    bodies: flag; it needs message bodies. by_row: flag; each message makes one row, so the rows of a block can be made
    in parts, and the rows of many blocks together.
    """

    bodies: bool
    by_row: bool
    schema: pa.Schema

    def from_ref(self, task: ScanTask) -> Block | Callable[[], pa.RecordBatch] | None:
        """Return a source of the rows of ``task`` that needs its reference alone: a block without its index, or a
        function; None if the block must be read."""

    def make(self, slices: Sequence[Slice]) -> pa.RecordBatch:
        """Return the rows of ``slices``, in order; a single slice unless ``by_row``. Raises: FormatError;
        PipelineError."""


def read_tasks(objects: ObjectClient, tasks: Sequence[ScanTask], selection: Selection, schema: pa.Schema, *,
               prefetch: int = 3, rule: LossRule = STRICT) -> Iterator[pa.RecordBatch]:
    """Yield the wanted messages of ``tasks``, in order, as the columns of ``schema``.

    Args: schema is from ``schema.requested`` for the view messages, with any columns in any order. prefetch: loads in
        progress beside the current one; 0: none, and no thread. rule: the reaction to messages removed meanwhile.
    Raises: Damaged; Newer; Gone; DataLoss; Unreachable.
    """
    return read_blocks(objects, tasks, selection, Messages(schema, selection), prefetch=prefetch, rule=rule)


def read_blocks(objects: ObjectClient, tasks: Sequence[ScanTask], selection: Selection, maker: Maker, *,
                prefetch: int = 3, rule: LossRule = STRICT) -> Iterator[pa.RecordBatch]:
    """Read blocks as ``read_tasks`` does, with rows made by ``maker``."""
    return _joined(_Reading(objects, selection, maker, rule).read(tasks, prefetch))


_Part = Slice | StoredBlock | ScanTask | Callable[[], pa.RecordBatch]
"""A result of loading; a scan task means that its object was missing."""
_Loaded = tuple[list[_Part], Callable[[], "_Loaded"] | None]
"""Parts in order, and a function that loads the rest, if any."""


class _Reading:
    """One call of ``read_blocks``."""

    def __init__(self, objects: ObjectClient, selection: Selection, maker: Maker, rule: LossRule) -> None:
        self._objects = objects
        self._selection = selection
        self._maker = maker
        self._subjects = SubjectTest(selection) if selection.needs_subject() else None
        self._missing = MissingObjects(objects, selection, rule)

    def read(self, tasks: Sequence[ScanTask], prefetch: int) -> Iterator[pa.RecordBatch]:
        loads = self._loads(tasks)
        if prefetch <= 0:
            for some, _ in loads:
                yield from self._run(partial(self._load, some))
            return
        running: deque[tuple[Future[_Loaded], int]] = deque()
        pool = ThreadPoolExecutor(prefetch, thread_name_prefix="jetblock-read")
        held = 0
        width = 1  # It grows with demand, because LIMIT reads a few rows.
        waiting = next(loads, None)
        try:
            while running or waiting is not None:
                while waiting is not None and len(running) < width and (
                        not running or held + waiting[1] <= _AHEAD_BYTES):
                    some, cost = waiting
                    running.append((pool.submit(self._load, some), cost))
                    held += cost
                    waiting = next(loads, None)
                future, cost = running.popleft()
                if width == 1 or not future.done():
                    width = min(2 * width, prefetch)
                found, rest = future.result()
                if rest is not None:
                    running.appendleft((pool.submit(rest), cost))
                else:
                    held -= cost
                yield from self._batches(found)
        finally:
            pool.shutdown(cancel_futures=True)

    def _run(self, load: Callable[[], _Loaded], moves: int = 0) -> Iterator[pa.RecordBatch]:
        """Load in this thread."""
        rest: Callable[[], _Loaded] | None = load
        while rest is not None:
            found, rest = rest()
            yield from self._batches(found, moves)

    def _loads(self, tasks: Iterable[ScanTask]) -> Iterator[tuple[list[ScanTask], int]]:
        """Yield groups of scan tasks to load together, each with the memory that its load needs."""
        some: list[ScanTask] = []
        cost = count = 0
        tasks_max = 1  # It grows with demand, because LIMIT reads a few rows.
        for task in tasks:
            own = self._cost(task)
            if some and (cost + own > _LOAD_BYTES or count + task.ref.count > _GROUP_ROWS or len(some) >= tasks_max):
                yield some, cost
                some, cost, count = [], 0, 0
                tasks_max = min(4 * tasks_max, _LOAD_TASKS)
            some.append(task)
            cost += own
            count += task.ref.count
        if some:
            yield some, cost

    def _cost(self, task: ScanTask) -> int:
        ref = task.ref
        index = 2 * ref.index_bytes + 16 * ref.count
        if not self._maker.bodies:
            return index
        return index + min(ref.bytes, _GROUP_BYTES) + min(ref.frames_bytes, _GROUP_BYTES)

    # ---- in a thread

    def _load(self, tasks: Sequence[ScanTask]) -> _Loaded:
        """Load the rows of ``tasks``, or the first group of a single large task. Raises: PipelineError."""
        made: list[list[_Part]] = [[] for _ in tasks]
        read: list[int] = []
        for i, task in enumerate(tasks):
            if (from_ref := self._maker.from_ref(task)) is None:
                read.append(i)
            elif isinstance(from_ref, Block):
                made[i] += self._slices(task, from_ref, self._rows(task, from_ref))
            else:
                made[i].append(from_ref)
        wholes = [self._fetches_frames_too(tasks[i]) for i in read]
        ranges = [(tasks[i].key, tasks[i].ref.index_offset, tasks[i].ref.index_offset + tasks[i].ref.index_bytes)
                  for i in read]
        ranges += [(tasks[i].key, tasks[i].ref.frames_offset, tasks[i].ref.frames_offset + tasks[i].ref.frames_bytes)
                   for i, whole in zip(read, wholes, strict=True) if whole]
        fetched = iter(_fetch(self._objects, ranges))
        indexes = [next(fetched) for _ in read]
        later: list[tuple[int, Block, list[tuple[list[int], Rows]]]] = []
        for i, whole, index in zip(read, wholes, indexes, strict=True):
            task, frames = tasks[i], next(fetched) if whole else None
            if index is None or (whole and frames is None):
                made[i].append(task)
                continue
            if whole == self._maker.bodies:
                made[i].append(StoredBlock(task, index, frames))
                continue
            block = self._block(task, index)
            if len(rows := self._rows(task, block)):
                later.append((i, block, _groups(block, rows)))
        if len(tasks) == 1 and later and len(later[0][2]) > 1:
            _, block, groups = later[0]
            return self._load_group(tasks[0], block, groups, 0)
        wanted = [(i, block, *group) for i, block, groups in later for group in groups]
        stored = iter(_fetch(self._objects, [range_ for i, block, numbers, _ in wanted
                                           for range_ in _ranges(tasks[i].key, block, numbers)]))
        for i, block, numbers, rows in wanted:
            some = [next(stored) for _ in numbers]
            if made[i] and isinstance(made[i][-1], ScanTask):
                continue
            made[i].append(self._slice_of(tasks[i], block, rows, numbers, some))
        return list(chain.from_iterable(made)), None

    def _load_group(self, task: ScanTask, block: Block, groups: list[tuple[list[int], Rows]], at: int) -> _Loaded:
        """Load one group of a large block's frames, and return a function that loads the next."""
        numbers, rows = groups[at]
        part = self._slice_of(task, block, rows, numbers, _fetch(self._objects, _ranges(task.key, block, numbers)))
        if isinstance(part, ScanTask) or at + 1 == len(groups):
            return [part], None
        return [part], partial(self._load_group, task, block, groups, at + 1)

    def _slice_of(self, task: ScanTask, block: Block, rows: Rows, numbers: list[int],
                   stored: Sequence[memoryview | None]) -> _Part:
        """Return a slice with its frames; the rest of the scan task if the object is missing."""
        found_frames = [one for one in stored if one is not None]
        if len(found_frames) < len(stored):
            return task._replace(first_seq=block.seq_of(int(rows[0])))
        return Slice(task, block, rows, numbers, found_frames)

    def _block(self, task: ScanTask, index: memoryview) -> Block:
        try:
            return Block.decode(bytes(index), task.ref, task.key)
        except FormatError as error:
            raise from_format_error(error, self._where(task), task.key) from None

    def _rows(self, task: ScanTask, block: Block) -> Rows:
        return block.rows(task.first_seq, task.last_seq, task.dead, self._selection, self._subjects)

    def _fetches_frames_too(self, task: ScanTask) -> bool:
        """Return whether to fetch the frames with the index, before the needed ones are known."""
        ref = task.ref
        if not self._maker.bodies or not ref.frames_bytes:
            return False
        if ref.index_bytes + ref.frames_bytes <= _TOGETHER_BYTES:
            return True
        return (ref.frames_bytes <= _GROUP_BYTES and ref.bytes <= _GROUP_BYTES and self._subjects is None
                and not self._selection.needs_time()
                and task.first_seq <= ref.first_seq and task.last_seq >= ref.last_seq)

    def _where(self, task: ScanTask) -> str:
        return f"{self._objects.url}: stream {task.account}/{task.stream}"

    # ---- in the consumer's thread

    def _batches(self, parts: Iterable[_Part], moves: int = 0) -> Iterator[pa.RecordBatch]:
        """Make the rows of ``parts``, those of neighbouring blocks together.

        Args: moves: the number of times that an object of these parts was missing and was found elsewhere.
        """
        for kind, some in groupby(parts, self._kind):
            own: Any = some  # all of one kind
            if kind == "missing":
                for task in own:
                    yield from self._read_moved(task, moves)
            elif kind == "small":
                yield batch_of(list(own), self._maker.schema, self._selection, self._subjects, self._objects.url)
            elif kind == "made":
                yield from (make() for make in own)
            else:
                yield from self._make_batches(chain.from_iterable(map(self._decode, own)))

    def _kind(self, part: _Part) -> Literal["missing", "small", "slices", "made"]:
        """Return how the rows of ``part`` are made."""
        if isinstance(part, ScanTask):
            return "missing"
        if isinstance(part, StoredBlock):
            ref = part.task.ref
            small = (self._maker.by_row and ref.count <= SMALL_COUNT and ref.bytes <= _SMALL_BYTES
                     and ref.last_seq <= SEQ_MAX)
            return "small" if small else "slices"
        return "slices" if isinstance(part, Slice) else "made"

    def _decode(self, part: Slice | StoredBlock) -> Iterable[Slice]:
        """Decode a block into slices."""
        if isinstance(part, Slice):
            return [part]
        task, index, frames = part
        block = self._block(task, index)
        return self._slices(task, block, self._rows(task, block), frames)

    def _slices(self, task: ScanTask, block: Block, rows: Rows, frames: memoryview | None = None) -> list[Slice]:
        """Return the wanted rows of a block, each group with the frames that it needs."""
        if not len(rows):
            return []
        if frames is not None:
            return [Slice(task, block, some, numbers, _cut(block, numbers, frames))
                    for numbers, some in _groups(block, rows)]
        return [Slice(task, block, some) for some in (_parts(rows) if self._maker.by_row else [rows])]

    def _make_batches(self, slices: Iterable[Slice]) -> Iterator[pa.RecordBatch]:
        """Make the rows of ``slices``, as many together as fit into a batch."""
        for some in self._grouped(slices):
            try:
                batch = self._maker.make(some)
            except FormatError:
                yield from map(self._make_one, some)  # Making them one by one finds the damaged one.
            else:
                yield batch

    def _grouped(self, slices: Iterable[Slice]) -> Iterator[list[Slice]]:
        some: list[Slice] = []
        rows = size = 0
        for one in slices:
            own = sum(frame.raw_bytes for frame in one.table) if one.frames else 0
            if some and (not self._maker.by_row or rows + len(one.rows) > _GROUP_ROWS or size + own > _GROUP_BYTES):
                yield some
                some, rows, size = [], 0, 0
            some.append(one)
            rows += len(one.rows)
            size += own
        if some:
            yield some

    def _make_one(self, one: Slice) -> pa.RecordBatch:
        try:
            return self._maker.make([one])
        except FormatError as error:
            raise from_format_error(error, self._where(one.task), one.task.key) from None

    # ---- missing objects

    def _read_moved(self, missing: ScanTask, moves: int = 0) -> Iterator[pa.RecordBatch]:
        """Read the rows of a task whose object is missing from other objects. Raises: as ``read_tasks``."""
        for task in self._missing.find_moved(missing, moves, self._count_live):
            yield from self._run(partial(self._load, [task]), moves + 1)

    def _count_live(self, task: ScanTask) -> int | None:
        """Return the number of a task's live messages, whatever is selected; None if its object is missing."""
        ref = task.ref
        [index] = _fetch(self._objects, [(task.key, ref.index_offset, ref.index_offset + ref.index_bytes)])
        if index is None:
            return None
        return len(self._block(task, index).rows(task.first_seq, task.last_seq, task.dead, Selection(), None))


def _fetch(objects: ObjectClient, ranges: Sequence[Range]) -> list[memoryview | None]:
    """Return the bytes of each range, fewer if the object ends first; None if it is missing. Close ranges share a
    get."""
    if not ranges:
        return []
    gets: list[tuple[str, int, int]] = []
    get_of = [0] * len(ranges)
    for i in sorted(range(len(ranges)), key=ranges.__getitem__):
        key, start, end = ranges[i]
        assert end is not None
        if gets and gets[-1][0] == key and start <= gets[-1][2] + _GAP_BYTES and end <= gets[-1][1] + _GET_BYTES_MAX:
            gets[-1] = (key, gets[-1][1], max(end, gets[-1][2]))
        else:
            gets.append((key, start, end))
        get_of[i] = len(gets) - 1
    data = objects.get_many(gets)
    views = [None if one is None else memoryview(one) for one in data]
    found = []
    for (_, start, end), number in zip(ranges, get_of, strict=True):
        view, base = views[number], gets[number][1]
        found.append(None if view is None or end is None else view[start - base:end - base])
    return found


def _parts(rows: Rows) -> list[Rows]:
    """Split ``rows`` at the maximum size of a batch."""
    return [rows[at:at + _GROUP_ROWS] for at in range(0, len(rows), _GROUP_ROWS)]


def _groups(block: Block, rows: Rows) -> list[tuple[list[int], Rows]]:
    """Split ``rows``, at least one, into groups for decoding. Returns: the frame numbers and the rows of each group."""
    numbers = block.sections.holding(rows)
    if block.sections.order is not None:
        return [(numbers, rows)]  # Its writer keeps such a block small, and its rows are in any of the sections.
    table = block.sections.table
    groups: list[list[int]] = []
    size = count = 0
    for number in numbers:
        frame = table[number]
        if not groups or size + frame.raw_bytes > _GROUP_BYTES or count + frame.messages > _GROUP_ROWS:
            groups.append([])
            size = count = 0
        groups[-1].append(number)
        size += frame.raw_bytes
        count += frame.messages
    if len(groups) == 1:
        return [(groups[0], rows)]
    found: list[tuple[list[int], Rows]] = []
    for numbers in groups:
        start, last = table[numbers[0]].start, table[numbers[-1]]
        end = last.start + last.messages
        if isinstance(rows, range):
            found.append((numbers, range(max(rows.start, start), min(rows.stop, end))))
        else:
            first, stop = np.searchsorted(rows, [start, end])
            found.append((numbers, rows[first:stop]))
    return found


def _ranges(key: str, block: Block, numbers: Sequence[int]) -> list[Range]:
    """Return the ranges of some frames in the object."""
    base, table = block.ref.frames_offset, block.sections.table
    return [(key, base + frame.offset, base + frame.offset + frame.stored_bytes)
            for frame in (table[number] for number in numbers)]


def _cut(block: Block, numbers: Sequence[int], frames: memoryview) -> list[memoryview]:
    """Return the bytes of the frames ``numbers`` from those of all frames."""
    table = block.sections.table
    return [frames[frame.offset:frame.offset + frame.stored_bytes] for frame in (table[number] for number in numbers)]


def _joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join adjacent small ``batches``, and split large ones; the first ones are passed on at once."""
    small: list[pa.RecordBatch] = []
    rows = size = 0
    rows_min = 1
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            own = batch.nbytes
            if batch.num_rows >= _BATCH_ROWS or own >= _BATCH_BYTES:
                yield from _as_batches(small)  # Copying the large batch too would be expensive.
                yield from _as_batches([batch])
                small, rows, size = [], 0, 0
                continue
            small.append(batch)
            rows += batch.num_rows
            size += own
            if rows >= rows_min or size >= _BATCH_BYTES:
                yield from _as_batches(small)
                small, rows, size = [], 0, 0
                rows_min = min(4 * rows_min, _BATCH_ROWS)
        yield from _as_batches(small)
    finally:
        batches.close()  # type: ignore[attr-defined]  # a generator


def _as_batches(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if not batches:
        return
    one = batches[0] if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    for at in range(0, one.num_rows, _GROUP_ROWS):
        yield one.slice(at, _GROUP_ROWS)
