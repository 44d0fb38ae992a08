"""The walk along a shard's log: its segments in order, from one epoch's opening to the next.

Owns: where an epoch and the log end, and what must be there before that. Does not own: what a segment changes
(storage.state), where the walk begins (snapshot).

    segments, 32 at a time ── end of the epoch ── the next opening ── …

    an epoch's end     is in the next opening
    the log's end      is the first missing number (or a seal) in the last epoch opened, unless a later entry proves that
                       the number had landed (``format.log_end``); the caller looks for newer checkpoints
    beyond an end      nothing ever existed
    a corrupt entry    is never taken for the end
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from broker.storage.format.errors import Corrupt, CutOff, VersionUnknown
from broker.storage.format.header import EPOCH_MAX, HEADER_BYTES, ObjectHeader, ObjectKind, Position
from broker.storage.format.log_end import SAID_BYTES, is_being_copied, proves
from broker.storage.format.opening import decode_opening
from broker.storage.format.records.opening import Opening
from broker.storage.format.segment import HEAD_BYTES, PUTS_IN_FLIGHT_MAX, SegmentHead, decode_head
from broker.storage.paths import COPYING, ShardPaths
from broker.storage.read.steps import Gets, Steps, list_positions
from broker.storage.state.applied import ShardState

__all__ = ["Chain"]

BATCH = 32
"""Entries asked for in one request."""


class Chain:
    """The walk along the log, from a state's position to the end, or to ``until``.

    ``thorough``: at the end it looks at all entries that may prove that there was another one; else at a few, which costs no
    requests where nothing is new.
    """

    def __init__(self, paths: ShardPaths, state: ShardState, until: Position | None = None, *, thorough: bool = True) -> None:
        self.paths = paths
        self.state = state
        self.until = until
        self.thorough = thorough
        self.sealed = False
        self.segments = 0
        self.objects = 0
        self.epochs = 0
        self.head_bytes = 0

    def read(self) -> Steps[None]:
        epoch, number = self.state.position
        number += 1 if epoch else 0
        while True:
            found = yield from self._next_opening(epoch)
            end = None
            if found is not None:
                later, opening = found
                ends = dict(opening.ends)
                # An epoch opened in between would have been found, except in a race with its opener. A log begins with
                # an opening before which no epoch was opened.
                opened = [e for e, n in ends.items() if n and e > epoch]
                if opened:
                    raise CutOff(f"epoch {opened[0]} was opened, and its opening is gone or came meanwhile",
                                 self.paths.log(Position(opened[0], 0)))
                end = ends.get(epoch, 0)
                if epoch and not end:
                    raise Corrupt(self.paths.log(Position(later, 0)), "opening", 0, f"it does not end epoch {epoch}")
            if epoch:
                stop = end
                if self.until is not None and epoch == self.until.epoch:
                    stop = min(self.until.number + 1, end or self.until.number + 1)
                reached = yield from self._epoch(epoch, number, stop)
                if end is not None and stop is not None and reached < stop:
                    key = self.paths.log(Position(epoch, reached))
                    raise CutOff(f"{key} is gone, and epoch {epoch} ends at {end}", key)
            if found is None:
                yield from self._expect_end()
                return
            if self.until is not None and later > self.until.epoch:
                return
            epoch, number = later, 0
            self.epochs += 1

    def _expect_end(self) -> Steps[None]:
        """Raises: CutOff if the log goes on before ``until``, as a checkpoint shows. Without one, the caller looks."""
        if self.until is not None and self.state.position < self.until:
            roots = yield from list_positions(self.paths.checkpoints)
            if any(root > self.state.position for root in roots):
                raise CutOff(f"the log after {self.state.position} is gone, and there is a checkpoint after it")

    def _next_opening(self, epoch: int) -> Steps[tuple[int, Opening] | None]:
        """The lowest later epoch whose number 0 is an opening, not a seal; None: there is none yet."""
        claims = yield from list_positions(self.paths.epochs, self.paths.epoch(epoch))
        claimed = {claim.epoch for claim in claims}
        # An epoch whose claim is lost has its log all the same; epochs have no gaps.
        epochs = sorted(claimed | {before + 1 for before in (epoch, *claimed) if before < EPOCH_MAX})
        for at in range(0, len(epochs), BATCH):
            positions = [Position(one, 0) for one in epochs[at:at + BATCH]]
            heads = yield Gets([(self.paths.log(position), 0, HEAD_BYTES) for position in positions])
            for position, data in zip(positions, heads, strict=True):
                if data is None and position.epoch in claimed:
                    data = yield from self._once_more(position, [1], {})
                if data is None:
                    continue
                head = yield from self._head(position, data)
                if head is not None:
                    return position.epoch, decode_opening(head, self.paths.log(position))
        return None

    def _epoch(self, epoch: int, number: int, end: int | None) -> Steps[int]:
        """Apply an epoch's segments from ``number`` on; returns the first number that was not applied."""
        log = self.paths.log
        size = BATCH if end is not None else 4  # at the log's end most of a batch does not exist
        while end is None or number < end:
            stop = number + size if end is None else min(end, number + size)
            size = BATCH
            positions = [Position(epoch, n) for n in range(number, stop)]
            ranges: list[tuple[str, int, int | None]] = [(log(position), 0, HEAD_BYTES) for position in positions]
            proof = Position(epoch, number + PUTS_IN_FLIGHT_MAX)
            if end is None and proof not in positions:
                ranges.append((log(proof), 0, SAID_BYTES))
            found = yield Gets(ranges)
            known = dict(zip([*positions, proof], found, strict=False))
            for position in positions:
                data = known[position]
                if data is None and end is None:
                    ahead = range(1, PUTS_IN_FLIGHT_MAX + 1) if self.thorough else (1, 2, 3, PUTS_IN_FLIGHT_MAX)
                    data = yield from self._once_more(position, [position.number + some for some in ahead], known)
                if data is None:
                    return position.number
                head = yield from self._head(position, data)
                if head is None:
                    self.sealed = end is None
                    return position.number
                self._apply(position, head)
            number = stop
        return number

    def _once_more(self, position: Position, later: Iterable[int], known: dict[Position, bytes | None]) -> Steps[bytes | None]:
        """The beginning of an entry that was missing a moment ago; None if it may never have been there.

        Args: later are numbers of its epoch to look at for proof that it was; known, what was read of entries.
        Raises: CutOff if there is proof, and the entry is gone.
        """
        asked = [one for number in later if (one := Position(position.epoch, number)) not in known]
        if asked:
            known |= zip(asked, (yield Gets([(self.paths.log(one), 0, SAID_BYTES) for one in asked])), strict=True)
        if not any(proves(data, one, position) for one, data in known.items()):
            return None
        key = self.paths.log(position)
        [data] = yield Gets([(key, 0, HEAD_BYTES)])
        if data is None:
            [mark] = yield Gets([(COPYING, 0, HEADER_BYTES)])
            if not is_being_copied(mark, position.epoch):
                raise CutOff(f"{key} is gone, and later entries of its epoch are there", key)
        return data  # type: ignore[no-any-return]

    def _head(self, position: Position, data: bytes) -> Steps[SegmentHead | None]:
        """The head of a log entry; None for a seal. Raises: Corrupt; VersionUnknown; CutOff."""
        if len(data) > 8 and data[8] == ObjectKind.SEAL:
            ObjectHeader.unpack(data, self.paths.log(position)).expect(ObjectKind.SEAL, position)
            return None
        asked = HEAD_BYTES
        while isinstance(head := decode_head(data, position, complete=len(data) < asked), int):
            asked = head
            [data] = yield Gets([(self.paths.log(position), 0, asked)])
            if data is None:
                raise CutOff(f"{self.paths.log(position)} went away while it was read")
        return head

    def _apply(self, position: Position, head: SegmentHead) -> None:
        state = self.state
        state.apply_segment(position)
        self.objects += 1
        self.segments += bool(head.rows)
        self.head_bytes += head.size
        for i, row in enumerate(head.rows):
            stream = state.streams.get(row.stream_id)
            if (stream is not None and position <= stream.position) or row.stream_id in state.unwanted:
                continue
            self._apply_row(head, i, row.stream_id)

    def _apply_row(self, head: SegmentHead, i: int, stream_id: int) -> None:
        try:
            core = head.core(i)
        except VersionUnknown as error:
            if stream_id == 0:
                raise
            self.state.set_offline(stream_id, str(error))
            return
        self.state.apply_block(core, head.ref(i, core))

    def read_held(self, stream_id: int, positions: Sequence[Position]) -> Steps[Position | None]:
        """Apply what earlier segments have of a stream that was offline when the checkpoint was cut: this broker may understand
        it. If not, the stream is offline again, with the same segments.

        Returns: a segment that is gone, since the stream was deleted later, or read by a newer broker; None: none is.
        Raises: Corrupt; VersionUnknown; CutOff.
        """
        for at in range(0, len(positions), BATCH):
            some = positions[at:at + BATCH]
            found = yield Gets([(self.paths.log(position), 0, HEAD_BYTES) for position in some])
            for position, data in zip(some, found, strict=True):
                if data is None:
                    return position
                head = yield from self._head(position, data)
                if head is not None:
                    self.state.apply_held(position, stream_id, partial(self._apply_of, head, stream_id))
        return None

    def _apply_of(self, head: SegmentHead, stream_id: int) -> None:
        for i, row in enumerate(head.rows):
            if row.stream_id in (0, stream_id):
                self._apply_row(head, i, row.stream_id)
