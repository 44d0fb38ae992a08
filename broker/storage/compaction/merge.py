"""Merging: one run is made of neighbouring blocks of streams. Bytes in, bytes out, no I/O; called in a thread.

    inputs    the blocks of a piece: neighbours of one stream, as they were read, and the dead messages of each
    outputs   the live messages in as few blocks as the bounds allow, grouped by subject; no input is cut in two

Message ids are replayed from blocks after a restart. So a block whose ids may still be needed (``keep_ids``) keeps
their record, and also the dead messages that have an id; these stay dead. Each block has a record of the commits that
it was made of, so that a reader can still stop at the position of one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

from broker.storage.compaction.settings import CompactionSettings
from broker.storage.format.block import BlockCore, BlockPlace, BlockRef, decode_core
from broker.storage.format.errors import Corrupt, FormatError
from broker.storage.format.frame import Chunk
from broker.storage.format.frames import decode_frame
from broker.storage.format.header import ObjectKind, Position
from broker.storage.format.index import Head, decode_index
from broker.storage.format.records.adoption import Adopted
from broker.storage.format.records.commits import UNKNOWN, Commits
from broker.storage.format.records.message_ids import MessageIds
from broker.storage.format.section import SectionCodec
from broker.storage.format.segment import SegmentHead, decode_head
from broker.storage.log.open_block import OpenBlock
from broker.storage.log.writer import SealedBlock, encode_segment, seal_block
from broker.storage.state.dead import DeadSet

__all__ = ["Damaged", "Input", "Piece", "Run", "merge"]

_MANY: Final = 256
"""A pause follows each frame of at least this many messages; smaller frames take less than a millisecond."""


class Input(NamedTuple):
    """A block: its bytes, its dead messages when it was found, and the key of its object, for errors.

    ``erased`` are dead messages that must leave the store, even if their ids may still be needed.
    """

    ref: BlockRef
    dead: DeadSet | None
    core_data: bytes
    index_data: bytes
    frames_data: bytes
    key: str
    erased: DeadSet | None = None


class Piece(NamedTuple):
    """Neighbouring blocks of one stream, with ``live_bytes`` in them.

    Messages below the stream's first sequence count as live, because a block's count of dead messages leaves them out,
    too.
    """

    stream_id: int
    keep_ids: bool
    live_bytes: int
    inputs: Sequence[Input]


class Damaged(Exception):
    """A block cannot be read: ``block`` is its stream and first sequence, ``why`` the reason."""

    def __init__(self, block: tuple[int, int], why: FormatError) -> None:
        super().__init__(str(why))
        self.block = block
        self.why = why


class Run(NamedTuple):
    """An encoded run, and the records that adopt its blocks."""

    data: list[bytes]
    blocks: list[Adopted]
    inputs: list[int]
    """The number of old blocks that each new block replaces."""
    size: int


class _Joined(NamedTuple):
    """A new block, the range of sequences of the old blocks that it replaces, and their number."""

    block: SealedBlock[None]
    first_seq: int
    last_seq: int
    inputs: int

    def adopted(self) -> Adopted:
        assert self.block.packed is not None
        return Adopted(self.first_seq, self.last_seq, self.block.packed)


class _Output:
    """A block that is being joined."""

    def __init__(self, stream_id: int) -> None:
        self.block: OpenBlock[None] = OpenBlock(stream_id, None)
        self.inputs: list[Input] = []
        self.ids: list[tuple[int, bytes]] = []
        self.positions: list[Position] = []
        self.last_seqs: list[int] = []

    def add_commit(self, position: Position, last_seq: int) -> None:
        """Add an entry to the record of commits. Neighbours that are unknown become one."""
        if position == UNKNOWN and self.positions and self.positions[-1] == UNKNOWN:
            self.last_seqs[-1] = last_seq
            return
        self.positions.append(position)
        self.last_seqs.append(last_seq)

    def seal(self, position: Position, run_id: int, codec: SectionCodec) -> _Joined:
        """Return the compressed block for the run at ``position``. Nothing may be added to it afterwards."""
        if self.positions != [UNKNOWN]:
            self.block.add(Commits(self.positions, self.last_seqs))
        if self.ids:
            self.block.add(MessageIds([at for at, _ in self.ids], [msg_id for _, msg_id in self.ids]))
        sealed = seal_block(self.block, position, object_id=run_id, grouped=True)
        sealed.compress(codec)
        return _Joined(sealed, self.inputs[0].ref.first_seq, self.inputs[-1].ref.last_seq, len(self.inputs))


def merge(pieces: Sequence[Piece], position: Position, run_id: int, nonce: bytes, codec: SectionCodec,
          settings: CompactionSettings, place: BlockPlace, pause: Callable[[], object] = lambda: None) -> Run | None:
    """Make a run of the live messages of ``pieces``; None if there are none.

    Args: ``pause`` is called between frames, so that the thread can release the GIL.
    Raises: Damaged.
    """
    joined: list[_Joined] = []
    for piece in pieces:
        for output in _outputs(piece, settings, pause):
            if output.block.count:
                # Compressed at once: all messages of a merge as objects would take three times their bytes.
                joined.append(output.seal(position, run_id, codec))
                pause()
    if not joined:
        return None
    data = encode_segment(position, nonce, [one.block for one in joined], codec, kind=ObjectKind.RUN, object_id=run_id,
                          place=place)
    blocks = [one.adopted() for one in joined]
    size = sum(map(len, data))
    _check(data, position, run_id, blocks)
    return Run(data, blocks, [one.inputs for one in joined], size)


def _outputs(piece: Piece, settings: CompactionSettings, pause: Callable[[], object]) -> Iterator[_Output]:
    output = _Output(piece.stream_id)
    for one in piece.inputs:
        joined = output.block
        if joined.count and (joined.raw_bytes + one.ref.bytes > settings.block_bytes
                             or joined.count + one.ref.count > settings.block_messages):
            yield output
            output = _Output(piece.stream_id)
        try:
            _add(output, piece, one, pause)
        except FormatError as error:
            raise Damaged((piece.stream_id, one.ref.first_seq), error) from error
    yield output


def _add(output: _Output, piece: Piece, one: Input, pause: Callable[[], object]) -> None:
    ref, joined = one.ref, output.block
    head = decode_index(one.index_data, ref, one.key)
    core = decode_core(one.core_data, ref.position, ref.stream_id, object_id=ref.object_id, name=one.key,
                       offset=ref.core_offset)
    ids = _ids(core, head) if piece.keep_ids else {}
    if one.erased is not None:
        ids = {seq: msg_id for seq, msg_id in ids.items() if seq not in one.erased}
    left_out = 0
    before = joined.count
    for number, frame in enumerate(head.frames):
        chunk = decode_frame(head, number, one.frames_data[frame.offset:frame.offset + frame.stored_bytes], one.key)
        left_out += _copy(chunk, one.dead, ids, joined)
        if len(chunk) >= _MANY:
            pause()
    if joined.count - before + left_out != ref.count:
        raise Corrupt(one.key, "index", ref.index_offset,
                      f"{ref.count} messages were to be copied, and some were not found")
    if ids:
        at = before
        for seq in _seqs_of(joined, before):
            if (msg_id := ids.get(seq)) is not None:
                output.ids.append((at, msg_id))
            at += 1
    output.inputs.append(one)
    for position, last_seq in _commits(one, core):
        output.add_commit(position, last_seq)


def _copy(chunk: Chunk, dead: DeadSet | None, keep: Collection[int], joined: OpenBlock[None]) -> int:
    """Append the messages of ``chunk`` that are not dead or are in ``keep``; return the number left out."""
    count, times, seq_of = len(chunk), chunk.times, chunk.seq
    left_out = start = 0
    while start < count:
        seq, time_ns = seq_of(start), times[start]
        if dead is not None and seq in dead and seq not in keep:
            left_out += 1
            start += 1
            continue
        end = start + 1
        if dead is None and chunk.seqs is None and times[count - 1] == time_ns:
            end = count  # all have the same time, because times never decrease
        while end < count and times[end] == time_ns and (next_seq := seq_of(end)) == seq + end - start and (
                dead is None or next_seq not in dead or next_seq in keep):
            end += 1
        hlens = None if chunk.hlens is None else chunk.hlens[start:end]
        joined.append_run(seq, chunk.subjects[start:end], hlens, chunk.bodies[start:end], time_ns)
        start = end
    return left_out


def _seqs_of(joined: OpenBlock[Any], start: int) -> Iterator[int]:
    at = 0
    for first_seq, messages, _ in joined.runs:
        if at + messages > start:
            yield from range(first_seq + max(0, start - at), first_seq + messages)
        at += messages


def _ids(core: BlockCore, head: Head) -> dict[int, bytes]:
    """Return the message ids that a block records, by sequence."""
    found: dict[int, bytes] = {}
    for record in core.records:
        if record.kind == MessageIds.KIND:
            recorded = MessageIds.decode(record.body)
            found.update((head.seq_of(at), msg_id) for at, msg_id in zip(recorded.ordinals, recorded.ids, strict=True))
    return found


def _commits(one: Input, core: BlockCore) -> list[tuple[Position, int]]:
    """Return the positions of a block's commits, each with the last sequence after it."""
    ref = one.ref
    if ref.place is BlockPlace.LOG:
        return [(ref.position, ref.last_seq)]
    for record in core.records:
        if record.kind == Commits.KIND:
            commits = Commits.decode(record.body)
            return list(zip(commits.positions, commits.last_seqs, strict=True))
    return [(UNKNOWN, ref.last_seq)]


def _check(data: Sequence[bytes], position: Position, run_id: int, blocks: Sequence[Adopted]) -> None:
    """Decode the whole run by its references before anything relies on it. Raises: Corrupt."""
    whole = b"".join(data)
    head = decode_head(whole, position, kind=ObjectKind.RUN, object_id=run_id, complete=True)
    assert isinstance(head, SegmentHead)
    for i, adopted in enumerate(blocks):
        ref = BlockRef.unpack(adopted.ref)
        row, core = head.rows[i], head.core(i)
        if row.ref(ref.place, core) != ref:
            raise Corrupt(head.header.name, "directory", 0, "a block is not where its reference says")
        index = decode_index(whole[ref.index_offset:ref.index_offset + ref.index_bytes], ref, head.header.name)
        for number, frame in enumerate(index.frames):
            at = ref.frames_offset + frame.offset
            decode_frame(index, number, whole[at:at + frame.stored_bytes], head.header.name)
