"""The walk along a shard's log: its segments in order, from one epoch's opening to the next.

Owns: the rules where an epoch and the log end, and which entries must exist before that. Does not own: the effect of a
segment (storage.state), the position where the walk begins (snapshot).

    segments, 32 at a time ── end of the epoch ── the next opening ── …

    an epoch's end     is in the next opening
    the log's end      is the first missing number (or a seal) in the last epoch opened, unless a later entry proves
                       that an entry with this number existed (``format.log_end``); the caller checks for newer
                       checkpoints
    beyond an end      nothing belongs to the log; entries that a crash left there are not applied
    a corrupt entry    is never taken for the end
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from broker.storage.format.errors import Corrupt, CutOff, VersionUnknown
from broker.storage.format.header import EPOCH_MAX, HEADER_BYTES, ObjectHeader, ObjectKind, Position
from broker.storage.format.log_end import PROOF_BYTES, is_being_copied, proves
from broker.storage.format.opening import decode_opening
from broker.storage.format.records.opening import Opening
from broker.storage.format.segment import HEAD_BYTES, PUTS_IN_FLIGHT_MAX, SegmentHead, decode_head
from broker.storage.paths import COPYING, ShardPaths
from broker.storage.read.steps import Gets, Steps, list_positions
from broker.storage.state.applied import ShardState

__all__ = ["Chain"]

BATCH = 32
"""The number of entries that one request reads."""


class Chain:
    """The walk along the log, from a state's position to the end, or to ``until``.

    ``thorough``: at the log's end, read all later entries that may prove that the missing one existed. Otherwise read
    only a few, which costs no further requests if nothing is new. ``ends``: the end of each epoch to read, for a taker
    that has just found out; None: the openings have them.
    """

    def __init__(self, paths: ShardPaths, state: ShardState, until: Position | None = None, *,
                 thorough: bool = True, ends: Mapping[int, int] | None = None) -> None:
        self._ends = ends
        self.paths = paths
        self.state = state
        self.until = until
        self.thorough = thorough
        self.sealed = False
        self.segments = 0
        self.objects = 0
        self.epochs = 0
        self.head_bytes = 0
        self._following = False

    def read(self) -> Steps[None]:
        """Walk along the log, and apply its segments to the state. Raises: CutOff; Corrupt; VersionUnknown."""
        epoch, number = self.state.position
        number += 1 if epoch else 0
        if self._ends is not None:
            yield from self._read_ended(epoch, number, self._ends)
            return
        while True:
            found = yield from self._next_opening(epoch)
            end = None
            if found is not None:
                later, opening = found
                ends = dict(opening.ends)
                # An epoch opened in between would have been found, except in a race with its owner. Before the first
                # opening of a log, no epoch was opened.
                opened = [e for e, n in ends.items() if n and e > epoch]
                if opened:
                    raise CutOff(f"epoch {opened[0]} was opened, and its opening is gone, or was put during this read",
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
                    raise self._gone(Position(epoch, reached), end)
            if found is None:
                yield from self._expect_end()
                return
            if self.until is not None and later > self.until.epoch:
                return
            epoch, number = later, 0
            self.epochs += 1

    def _read_ended(self, epoch: int, number: int, ends: Mapping[int, int]) -> Steps[None]:
        """Do the same for the epochs in ``ends``, from ``number`` of ``epoch`` on; 0, 0: from the beginning."""
        if epoch and ends.get(epoch, 0) < number:
            raise CutOff(f"epoch {epoch} was read up to {number}, and ends at {ends.get(epoch)}")
        for one, end in sorted(ends.items()):
            if not end or one < epoch:
                continue
            reached = yield from self._epoch(one, number if one == epoch else 0, end)
            if reached < end:
                raise self._gone(Position(one, reached), end)
            self.epochs += one != epoch

    def _gone(self, position: Position, end: int) -> CutOff:
        key = self.paths.log(position)
        return CutOff(f"{key} is gone, and epoch {position.epoch} ends at {end}", key)

    def follow(self) -> Steps[None]:
        """Do the same as ``read``, with fewer requests if nothing is new: look for the next opening only if a seal ends
        the epoch, because every later owner puts one.

        Where a seal was lost, the walk ends, until a checkpoint shows that the log continues.
        Raises: as ``read``.
        """
        self._following = True
        epoch, number = self.state.position
        if epoch:
            yield from self._epoch(epoch, number + 1, None)
        if self.sealed or not epoch:
            yield from self.read()

    def _expect_end(self) -> Steps[None]:
        """Raise CutOff if a checkpoint shows that the log continues; checked only if the walk ended before ``until``.

        Without ``until``, the caller makes this check.
        """
        if self.until is not None and self.state.position < self.until:
            roots = yield from list_positions(self.paths.checkpoints)
            if any(root > self.state.position for root in roots):
                raise CutOff(f"the log after {self.state.position} is gone, and there is a checkpoint after it")

    def _next_opening(self, epoch: int) -> Steps[tuple[int, Opening] | None]:
        """Find the lowest later epoch whose number 0 is an opening, not a seal; None if there is none yet."""
        claims = yield from list_positions(self.paths.epochs, self.paths.epoch(epoch))
        claimed = {claim.epoch for claim in claims}
        # An epoch whose claim is lost may have a log. Epochs have no gaps, so the one after each claim is tried, too.
        epochs = sorted(claimed | {before + 1 for before in (epoch, *claimed) if before < EPOCH_MAX})
        for at in range(0, len(epochs), BATCH):
            positions = [Position(one, 0) for one in epochs[at:at + BATCH]]
            heads = yield Gets([(self.paths.log(position), 0, HEAD_BYTES) for position in positions])
            for position, data in zip(positions, heads, strict=True):
                if data is None and position.epoch in claimed:
                    data = yield from self._reread(position, [1], {})
                if data is None:
                    continue
                head = yield from self._head(position, data)
                if head is not None:
                    return position.epoch, decode_opening(head, self.paths.log(position))
        return None

    def _epoch(self, epoch: int, number: int, end: int | None) -> Steps[int]:
        """Apply an epoch's segments from ``number`` on.

        Args: end is the epoch's end, or None for the last epoch.
        Returns: the first number that was not applied.
        """
        log = self.paths.log
        size = BATCH if end is not None else 4  # at the log's end most of a batch does not exist
        while end is None or number < end:
            stop = number + size if end is None else min(end, number + size)
            size = BATCH
            positions = [Position(epoch, n) for n in range(number, stop)]
            ranges: list[tuple[str, int, int | None]] = [(log(position), 0, HEAD_BYTES) for position in positions]
            proof = Position(epoch, number + PUTS_IN_FLIGHT_MAX)
            if end is None and proof not in positions:
                ranges.append((log(proof), 0, PROOF_BYTES))
            found = yield Gets(ranges)
            known = dict(zip([*positions, proof], found, strict=False))
            for position in positions:
                data = known[position]
                if data is None and end is None:
                    data = yield from self._reread(position, self._proofs_of(position, known), known)
                if data is None:
                    return position.number
                head = yield from self._head(position, data)
                if head is None:
                    self.sealed = end is None
                    return position.number
                self.apply(position, head)
            number = stop
        return number

    def _proofs_of(self, missing: Position, known: dict[Position, bytes | None]) -> list[int]:
        """Return the numbers of the entries that may prove that the ``missing`` one existed."""
        if self.thorough:
            return list(range(missing.number + 1, missing.number + PUTS_IN_FLIGHT_MAX + 1))
        after = missing._replace(number=missing.number + 1)
        if self._following and self.objects and after in known and known[after] is None:
            return []  # The next walk begins here, and reads these entries then.
        return [missing.number + some for some in (1, 2, 3, PUTS_IN_FLIGHT_MAX)]

    def _reread(self, position: Position, later: Iterable[int],
                known: dict[Position, bytes | None]) -> Steps[bytes | None]:
        """Read again the beginning of an entry that was missing a moment ago.

        Args: later are numbers of the epoch whose entries may prove that the missing one existed. known has the
            beginnings of the entries that were read.
        Returns: None if the entry may never have existed.
        Raises: CutOff if a later entry proves that it existed, and it is gone.
        """
        asked = [one for number in later if (one := Position(position.epoch, number)) not in known]
        if asked:
            known |= zip(asked, (yield Gets([(self.paths.log(one), 0, PROOF_BYTES) for one in asked])), strict=True)
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
        """Decode the head of a log entry; None for a seal. Raises: Corrupt; VersionUnknown; CutOff."""
        if len(data) > 8 and data[8] == ObjectKind.SEAL:
            ObjectHeader.unpack(data, self.paths.log(position)).expect(ObjectKind.SEAL, position)
            return None
        asked = HEAD_BYTES
        while isinstance(head := decode_head(data, position, complete=len(data) < asked), int):
            asked = head
            [data] = yield Gets([(self.paths.log(position), 0, asked)])
            if data is None:
                raise CutOff(f"{self.paths.log(position)} was deleted while it was read")
        return head

    def apply(self, position: Position, head: SegmentHead) -> None:
        """Apply a segment to the state."""
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
        """Apply the held segments' records of a stream that was offline when the checkpoint was cut.

        This broker may be newer and understand them. If not, the stream is offline again, with the same segments held.

        Returns: the position of a segment that is gone, because the stream was deleted later or a newer broker applied
            the records; None if all segments exist.
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
                    self.state.apply_held(position, stream_id, partial(self._apply_rows_of, head, stream_id))
        return None

    def _apply_rows_of(self, head: SegmentHead, stream_id: int) -> None:
        for i, row in enumerate(head.rows):
            if row.stream_id in (0, stream_id):
                self._apply_row(head, i, row.stream_id)
