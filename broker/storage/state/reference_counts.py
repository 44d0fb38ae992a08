"""The reference counts of a shard's segments and runs: how many live blocks are in each of them.

Owns the counts, and the queue of removed blocks that have not been subtracted from them yet. Does not own block tables:
the applied state (``ShardState``) reports the blocks that it adds and removes. Does not release objects either: the
sweeper does, and it reads here which objects nothing refers to.

Millions of blocks leave when a stream is deleted or purged. They leave their tables at once, and the counts a slice at
a time, by ``update``. Until then a count is too high, so a segment is kept for longer but never lost.

Objects that an offline stream needs for its repair (``held``) count like blocks.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence

from broker.storage.format.errors import Corrupt
from broker.storage.format.header import Position, key_position, position_key
from broker.storage.state.held import HeldPart, held_parts
from broker.storage.state.stream import START, StreamState
from broker.storage.state.table import RunKey, TablePage

__all__ = ["ReferenceCounts"]

_RECORDS_MAX = 16
_AT_ONCE = 1024
"""Removed blocks that are subtracted in one step: less than a millisecond."""


class ReferenceCounts:
    """The number of live blocks in each segment and run of a shard.

    Blocks are not counted during a replay, at whose end ``rebuild`` counts those of all streams, nor in a reader's
    state. Until then ``segments`` has a count of 0 for each segment.
    """

    __slots__ = ("_observer", "_position", "_removed", "_uncounted", "freed", "freed_runs", "runs", "segments",
                 "unreferenced")

    def __init__(self) -> None:
        self.segments: dict[int, int] = {}
        """Maps the ``position_key`` of each segment that is not released to the number of its live blocks."""
        self.unreferenced: set[int] = set()
        """The keys in ``segments`` without live blocks."""
        self.freed = START
        """The newest segment when an object last lost its last live block. Later roots do not need that object."""
        self.runs: dict[RunKey, int] = {}
        """Maps a run to the number of its live blocks, which is at least 1."""
        self.freed_runs: dict[RunKey, tuple[str, str]] = {}
        """Runs that lost their last live block in this process, with account and name of the stream that had it."""
        self._position = START
        """The newest segment."""
        self._removed: deque[tuple[StreamState, TablePage | HeldPart]] = deque()
        """Removed blocks that the counts include until ``update``."""
        self._observer: Callable[[], object] | None = None
        self._uncounted: dict[int, int] = {}
        """Offline streams with a damaged table, whose blocks are not counted. Maps the stream_id to a ``position_key``:
        all of its blocks are in segments and runs up to there, or in runs below the stream's own prefix."""

    @property
    def uncounted_to(self) -> int:
        """The last ``position_key`` of segments and runs that may have uncounted live blocks; -1: there are none."""
        return max(self._uncounted.values(), default=-1)

    def has_counted(self, run: RunKey) -> bool:
        """Return whether a run has live blocks, or had some in this process."""
        return run in self.runs or run in self.freed_runs

    # --- segments and blocks that are added ---------------------------------------------------------------------------

    def add_segment(self, position: Position) -> None:
        """Add a segment, to which no block refers yet."""
        key = position_key(position)
        self._position = position
        self.segments.setdefault(key, 0)
        self.unreferenced.add(key)

    def release_segments(self, positions: Iterable[Position]) -> None:
        """Remove segments that a record releases."""
        for position in positions:
            key = position_key(position)
            self.segments.pop(key, None)
            self.unreferenced.discard(key)

    def add_to_segment(self, position: Position) -> None:
        """Count another live block in a segment."""
        key = position_key(position)
        self.segments[key] += 1
        self.unreferenced.discard(key)

    def add_to_run(self, run: RunKey, blocks: int = 1) -> None:
        """Count more live blocks in a run."""
        self.runs[run] = self.runs.get(run, 0) + blocks
        self.freed_runs.pop(run, None)  # earlier blocks of this run may have left

    def add_arrived(self, stream: StreamState) -> None:
        """Count the blocks of a stream that arrives from another shard: all of them are in runs."""
        for page in stream.blocks.pages:
            for run, blocks in page.run_counts(stream.stream_id):
                self.add_to_run(run, blocks)

    # --- blocks that are removed --------------------------------------------------------------------------------------

    def remove(self, stream: StreamState, pages: Sequence[TablePage | HeldPart]) -> None:
        """Let ``update`` subtract removed blocks of a stream; without an observer, subtract them now."""
        self._removed += [(stream, page) for page in pages]
        if self._observer is not None:
            self._observer()
        else:
            self._update_all()

    def remove_deleted(self, stream: StreamState) -> None:
        """Subtract everything that a deleted stream still refers to, as ``remove`` does.

        The blocks of a stream that has moved to another shard are that shard's.
        """
        pages: list[TablePage | HeldPart] = [*held_parts(stream.held, stream.held_runs)]
        if self._uncounted.pop(stream.stream_id, None) is not None:
            self.freed = self._position  # objects that were kept for it may be free now
        elif stream.departed is None:
            pages += stream.blocks.pages
        if pages:
            self.remove(stream, pages)

    def remove_departed(self, stream: StreamState) -> None:
        """Subtract the blocks of a stream that moves to another shard. The runs of this stream alone move with it."""
        self._update_all()  # the last block of a run may have left it: that run is ours to delete
        for page in stream.blocks.pages:
            self._subtract(stream, page, moved=True)

    def observe_removals(self, observer: Callable[[], object]) -> None:
        """Call ``observer`` after blocks were removed from their streams. The observer updates the counts: it calls
        ``update`` until that returns False. Without an observer, the counts are updated at once."""
        assert self._observer is None, "two observers would update the counts twice"
        self._observer = observer

    def stop_observing_removals(self) -> None:
        """Update the counts at once from now on."""
        self._observer = None

    def update(self, blocks: int) -> bool:
        """Subtract up to ``blocks`` of the removed blocks, or one page of them. Returns: True if more are left."""
        removed, taken = self._removed, 0
        while removed and (not taken or taken + len(removed[-1][1]) <= blocks):
            stream, page = removed.pop()
            taken += len(page)
            self._subtract(stream, page)
        return bool(removed)

    def _update_all(self) -> None:
        while self.update(_AT_ONCE):
            pass

    def _subtract(self, stream: StreamState, page: TablePage | HeldPart, *, moved: bool = False) -> None:
        """Subtract blocks from the counts, and free the objects that are not needed any more.

        Args: ``moved``: the runs of the stream alone are another shard's now.
        """
        segments = self.segments
        for key in page.log_keys():
            live = segments.get(key)
            if live is None:
                continue  # a newer broker released the segment after records that could not be applied here
            segments[key] = live - 1
            if live == 1:
                self.unreferenced.add(key)
                self.freed = self._position
        for run, blocks in page.run_counts(stream.stream_id):
            live = self.runs.get(run, 0)
            if moved and run[3]:
                self.runs.pop(run, None)
            elif live > blocks:
                self.runs[run] = live - blocks
            elif live:
                del self.runs[run]
                self.freed_runs[run] = (stream.account, stream.name)
                self.freed = self._position

    # --- the end of a replay ------------------------------------------------------------------------------------------

    def rebuild(self, streams: Collection[StreamState], position: Position) -> None:
        """Count the blocks of all streams, after a replay up to ``position``.

        Raises: Corrupt for a block in a released segment, or a damaged table of a stream that is not offline.
        """
        self._position = position
        segments: Counter[int] = Counter()
        runs: dict[RunKey, int] = {}
        for stream in streams:
            if stream.offline is not None:
                self._count_offline(stream, segments, runs)
                continue
            if stream.departed is not None:
                continue
            try:
                for page in stream.blocks.pages:
                    segments.update(page.log_keys())
                    for run, blocks in page.run_counts(stream.stream_id):
                        runs[run] = runs.get(run, 0) + blocks
            except (ValueError, TypeError, OverflowError) as error:
                raise Corrupt(f"stream {stream.name}", "block table", 0,
                              f"a page's summary is damaged: {error}") from None
        if not segments.keys() <= self.segments.keys():
            self._refuse_released(streams)
        self.segments = dict.fromkeys(self.segments, 0)
        self.segments.update(segments)
        self.runs = runs
        self.unreferenced = {key for key, count in self.segments.items() if not count}
        # It is not known which segments had blocks once and lost them. A few segments never had any: those with the
        # shard's own records. If there are more, begin rounds that free them.
        self.freed = position if len(self.unreferenced) > _RECORDS_MAX else START

    def _count_offline(self, stream: StreamState, segments: Counter[int], runs: dict[RunKey, int]) -> None:
        """Count the objects that an offline stream needs for its repair: its blocks as of the last segment applied to
        it, and ``held``. All of these leave the counts when the stream is deleted."""
        parts: list[TablePage | HeldPart] = [*held_parts(stream.held, stream.held_runs)]
        try:
            for page in stream.blocks.pages:
                deque(page.log_keys(), 0)
                deque(page.run_counts(stream.stream_id), 0)
            parts += stream.blocks.pages
        except (ValueError, TypeError, OverflowError):
            self._uncounted[stream.stream_id] = position_key(stream.held[0] if stream.held else self._position)
        for part in parts:
            # A newer broker may have released some segments after records that could not be applied here.
            segments.update(key for key in part.log_keys() if key in self.segments)
            for run, blocks in part.run_counts(stream.stream_id):
                runs[run] = runs.get(run, 0) + blocks

    def _refuse_released(self, streams: Iterable[StreamState]) -> None:
        """Raise Corrupt for the stream that has a block in a released segment."""
        for stream in streams:
            for page in stream.blocks.pages if stream.offline is None else ():
                for key in page.log_keys():
                    if key not in self.segments:
                        raise Corrupt(f"stream {stream.name}", "block table", 0,
                                      f"it names segment {key_position(key)}, which was released")
