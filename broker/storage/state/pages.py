"""Converts a shard's state to the pages of a checkpoint, and back.

    root ── DIRECTORY pages, about 64 streams each ── small state inline
                                                   ├─ BLOCKS pages of a big stream, 1024 entries each
                                                   ├─ CONSUMERS pages, one for each consumer with much pending
                                                   ├─ EXPIRY and SCHEDULE pages, 4096 messages each
                                                   └─ DEDUPE and SUBJECTS pages, which are not read with the others

    stream entry   [stream_id, account, name, config, created_ns, first_seq, last_seq, msgs, bytes, first_time_ns,
                    last_time_ns, ceiling, position, extra, table, consumers, expiries?, schedules?, subjects?, ids?]
    table          [[room, entries or None, page or None], …]    a page of the block table, inline or by reference
                   [room, [bytes, stored] or None, page or None, summary]    the same, inline as a page's body is stored
    consumers      [[packed or None, page or None], …]
    expiries, schedules    the same; both missing while there are none of either, nor anything after them
    subjects       [[first_seq, last_seq, messages, page], …]; missing while there are none, nor ids
    ids            [[first_seq, last_seq, last_time_ns, count, bytes, chunks or None, page or None], …]; missing if
                   there are none. With neither chunks nor page the ids are in the blocks only

A page of a block table that is packed in memory is written as it is (see ``packed``).

An entry is copied before its parts. The parts may include later changes, which the replay applies again without
effect.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from broker.storage.format.block import BlockRef
from broker.storage.format.codec import pack_value, unpack_value
from broker.storage.format.errors import Corrupt, VersionUnknown
from broker.storage.format.header import (
    NUMBER_MAX,
    ObjectKind,
    Position,
    key_position,
    object_name,
    position_key,
)
from broker.storage.format.id_rows import pack_body
from broker.storage.format.page import Page, PageBody, PageKind, PageRef
from broker.storage.format.records.catalogue import CatalogueEntry
from broker.storage.format.records.opening import Opening
from broker.storage.format.records.release import Release, pack_runs, unpack_runs
from broker.storage.format.section import SECTIONS, SectionCodec
from broker.storage.state.applied import ShardState
from broker.storage.state.consumer import ConsumerState
from broker.storage.state.expiries import Expiries, ExpiryPage
from broker.storage.state.ids import WINDOW, IdPart
from broker.storage.state.packed import Packed, rows_of
from broker.storage.state.released import Released
from broker.storage.state.stream import StreamState
from broker.storage.state.stream_entry import (
    DAMAGED,
    ENTRY_FIELDS,
    LISTED_BLOCKS_MAX,
    Part,
    check_entry,
    kept,
    position_of,
    unpack_entry,
)
from broker.storage.state.table import BlockEntry, TablePage

__all__ = ["DIRECTORY_STREAMS", "Part", "StreamCopy", "directory_page", "held_of", "load_directory", "load_part",
           "note_unlisted", "pack_roots_held", "roots_held_of", "shard_extra", "shard_of"]

DIRECTORY_STREAMS = 64
INLINE_BLOCKS_MAX = 64
INLINE_CONSUMER_MAX = 512
"""Numbers in a consumer's state. A larger state has a page of its own."""
INLINE_EXPIRIES_MAX = 256
INLINE_IDS_BYTES_MAX = 2048
"""Bytes of a stream's message ids that are in no page yet."""

_RUNS_AT_ONCE = 4096
_KEYS_FREED_AT_ONCE = 100_000
"""Keys of segments that are freed between two turns of the loop: about a millisecond."""

_ID_PART_WEIGHT = 4
"""The weight of a row of message ids, about in microseconds."""

_CONSUMERS_AT_ONCE = 64
"""Consumers packed between two turns of the loop: about a millisecond."""

_TABLE = 14
_SUBJECTS = 18
_IDS = 19

IDS_UNLISTED = "ids_unlisted_ns"
"""A member of the root's extra: see ``ShardState``. Releases that list no ids neither write nor keep it."""

_HELD = "held"
"""A member of the root's extra if a stream is offline: [[stream_id, [position, …]], …]. Pages with such a stream have a
flag for it."""

_ROOTS_HELD = "roots_held"
_CATALOGUE = "catalogue"
"""A member of the root's extra: [[position of an older root, runs of segments], …]; see ``pack_roots_held``."""

_CHUNKS, _PLACE = 5, 6
"""Fields of a row of ids."""


class StreamCopy:
    """The part of one stream in a round: its entry, copied at once, and its parts, which are copied later.

    ``parts`` is iterated with turns of the loop in between. Each part is marked with this object while its page is
    being put. A change meanwhile clears the mark, so that ``placed`` does not mark a changed part as clean.
    """

    __slots__ = ("_consumers", "_ids", "_inline", "_table", "_times", "entry", "filters", "staged", "stream",
                 "summaries", "weight")

    def __init__(self, stream: StreamState, inline_max: int | None = None, codec: SectionCodec = SECTIONS) -> None:
        """Args: ``inline_max``: a table with more blocks has pages of its own; INLINE_BLOCKS_MAX by default. ``codec``
        seals inline parts of the table."""
        self.stream = stream
        stream.dirty = False
        pages = stream.blocks.pages
        inline = len(stream.blocks) <= (INLINE_BLOCKS_MAX if inline_max is None else inline_max)
        self.filters = False
        """True if the entry itself has subject filters."""
        self.summaries = not inline or len(stream.blocks) > LISTED_BLOCKS_MAX
        """True if pages of the table have summaries."""
        self.staged = False
        """True if blocks of the table are staged ones; for a large table, valid once all parts are copied."""
        self._table: list[tuple[TablePage, list[Any]]] = []
        table: list[list[Any]] = []
        for page in pages:
            row: list[Any] = [page.room, None, None]
            table.append(row)
            if not inline:
                self._table.append((page, row))
                continue
            page.place = None
            self.staged = self.staged or page.staged
            if self.summaries:
                packed = page.pack()
                body = packed.body.inline(stream.stream_id, codec)
                page.keep(packed)
                row[1:] = body, None, packed.summary
                self.filters = self.filters or packed.filters
            else:
                row[1] = rows_of(page.entries)
                self.filters = self.filters or any(type(entry[0][-1]) is bytes for entry in row[1])
        self._consumers: list[tuple[ConsumerState, list[Any]]] = []
        self._inline: list[tuple[ConsumerState, list[Any]]] = []
        """Consumers in the entry itself that are packed later, because there are many."""
        consumers: list[list[Any]] = []
        for consumer in stream.consumers.values():
            row = [None, None]
            consumers.append(row)
            if consumer.weight > INLINE_CONSUMER_MAX:
                self._consumers.append((consumer, row))
                continue
            consumer.place = None
            if len(consumers) <= _CONSUMERS_AT_ONCE:
                row[0] = consumer.pack()
            else:
                self._inline.append((consumer, row))
        self.weight = (10 + (25 + 2 * len(stream.blocks) if inline and self.summaries else 0)
                       + min(len(consumers), _CONSUMERS_AT_ONCE) * 8)
        """About how many microseconds this copy took."""
        self._times: list[tuple[PageKind, ExpiryPage, list[Any]]] = []
        expiries = self._copy_times(PageKind.EXPIRY, stream.expiries)
        schedules = self._copy_times(PageKind.SCHEDULE, stream.schedules)
        self.entry: list[Any] = [
            stream.stream_id, stream.account, stream.name, stream.config, stream.created_ns, stream.first_seq,
            stream.last_seq, stream.msgs, stream.bytes, stream.first_time_ns, stream.last_time_ns, stream.ceiling,
            list(stream.position), dict(stream.extra), table, consumers]
        ids = self._copy_ids()
        self.weight += _ID_PART_WEIGHT * len(ids)
        if expiries or schedules or stream.subjects or ids:
            self.entry += [expiries, schedules]
        if stream.subjects or ids:
            self.entry.append([page.pack() for page in stream.subjects])
        if ids:
            self.entry.append(ids)

    def _copy_times(self, kind: PageKind, table: Expiries) -> list[list[Any]]:
        rows: list[list[Any]] = []
        inline = len(table) <= INLINE_EXPIRIES_MAX
        for page in table.pages:
            row = [page.pack() if inline else None, None]
            rows.append(row)
            if inline:
                page.place = None
            else:
                self._times.append((kind, page, row))
        return rows

    def _copy_ids(self) -> list[list[Any]]:
        self._ids: list[tuple[IdPart, list[Any]]] = []
        stream = self.stream
        if not stream.ids:
            return []
        stream.ids.expire(stream.last_time_ns - stream.config.get(WINDOW, 0))
        parts = stream.ids.parts()
        inline = sum(part.size for part in parts if part.chunks) <= INLINE_IDS_BYTES_MAX
        rows: list[list[Any]] = []
        for part in parts:
            row = part.pack()
            rows.append(row)
            if part.chunks and inline:
                row[_CHUNKS] = list(part.chunks)
            elif part.chunks:
                self._ids.append((part, row))
        return rows

    def ids(self, position: Position) -> Iterator[tuple[int, Page, Callable[[PageRef], None]]]:
        """Iterate over the pages of ids to write: about how large each is, the page, and the function to call with its
        place."""
        stream = self.stream
        for part, row in self._ids:
            body = PageBody.later(partial(pack_body, part.first_seq, part.last_seq, part.count, part.chunks))
            yield part.size, Page(PageKind.DEDUPE, position, stream.stream_id, body), _ids_placer(stream, part, row)

    def objects(self) -> set[Position]:
        """Return the objects that the entry names, once all parts have their places."""
        table, *others = self.entry[_TABLE:_SUBJECTS]
        refs = [row[2] for row in table if row[2] is not None]
        refs += [row[1] for rows in others for row in rows if row[1] is not None]
        refs += [row[-1] for rows in self.entry[_SUBJECTS:] for row in rows if row[-1] is not None]
        return {Position(*ref[:2]) for ref in refs}

    def parts(self, position: Callable[[], Position], moved: Callable[[PageRef], bool],
              ) -> Iterator[tuple[Page, Callable[[PageRef], None]] | None]:
        """Iterate over the parts to write, because they changed or their page is to be rewritten (``moved``).

        Yields: the page and the function to call with its place; None after some consumers without a page of their own.
        """
        stream_id = self.stream.stream_id
        for at in range(0, len(self._inline), _CONSUMERS_AT_ONCE):
            for consumer, row in self._inline[at:at + _CONSUMERS_AT_ONCE]:
                row[0] = consumer.pack()
            yield None
        for page, row in self._table:
            packed = page.pack()
            row[0] = page.room
            row.append(packed.summary)
            self.staged = self.staged or packed.staged
            if isinstance(page.place, PageRef) and not moved(page.place):
                row[2] = page.place.pack()
                continue
            page.place = self
            yield (Page(PageKind.BLOCKS, position(), stream_id, packed.body, packed.filters, staged=packed.staged),
                   _table_placer(self, page, packed, row))
        for consumer, row in self._consumers:
            if isinstance(consumer.place, PageRef) and not moved(consumer.place):
                row[1] = consumer.place.pack()
                continue
            consumer.place = self
            body = PageBody.later(partial(_pack_value, consumer.pack_later()))
            yield Page(PageKind.CONSUMERS, position(), stream_id, body), _placer(self, consumer, row, 1)
        for kind, some, row in self._times:
            if isinstance(some.place, PageRef) and not moved(some.place):
                row[1] = some.place.pack()
                continue
            some.place = self
            yield Page(kind, position(), stream_id, some.pack()), _placer(self, some, row, 1)


def directory_page(position: Position, number: int, copies: Sequence[StreamCopy]) -> Page:
    """Return the directory page ``number``, once all parts of its streams have their places."""
    return Page(PageKind.DIRECTORY, position, number, [copy.entry for copy in copies],
                any(copy.filters for copy in copies),
                any(len(copy.entry) > ENTRY_FIELDS for copy in copies), any(copy.summaries for copy in copies),
                any(copy.staged for copy in copies), any(len(copy.entry) > _SUBJECTS for copy in copies),
                any(len(copy.entry) > _IDS for copy in copies),
                any(copy.stream.held for copy in copies))


def _pack_value(pack: Callable[[], list[Any]]) -> bytes:
    return pack_value(pack())


def _table_placer(copy: StreamCopy, page: TablePage, packed: Packed, row: list[Any]) -> Callable[[PageRef], None]:
    def placed(ref: PageRef) -> None:
        row[2] = ref.pack()
        if page.place is copy:
            page.place = ref
            page.keep(packed)
    return placed


def _placer(copy: StreamCopy, part: ConsumerState | ExpiryPage, row: list[Any], at: int) -> Callable[[PageRef], None]:
    def placed(ref: PageRef) -> None:
        row[at] = ref.pack()
        if part.place is copy:
            part.place = ref
    return placed


def _ids_placer(stream: StreamState, part: IdPart, row: list[Any]) -> Callable[[PageRef], None]:
    def placed(ref: PageRef) -> None:
        row[_PLACE] = ref.pack()
        stream.ids.replace([part], part.moved(ref))  # without effect if it was dropped with the window meanwhile
    return placed


def load_directory(state: ShardState, page: Page, name: str | None = None) -> list[Part]:
    """Add a directory page's streams that ``state`` wants to it.

    Args: ``name`` is the object's, for errors. Returns: the pages of these streams that ``load_part`` needs, in order.
    Raises: Corrupt.
    """
    needed: list[Part] = []
    in_object, name = name or f"directory page {page.key}", ""
    try:
        for entry in page.body:
            check_entry(entry)
            stream_id, account, name, _, created_ns = entry[:5]
            # A stream of which only the existence is known may be a wanted one: the root's segments have its name.
            if state.wanted is not None and (account or created_ns) and not state.wanted(account, name):
                state.unwanted[stream_id] = (account, name)
                continue
            stream, parts = unpack_entry(entry, filters=page.filters, whole=state.whole)
            stream.page = page.key
            needed += parts
            state.streams[stream_id] = stream
    except VersionUnknown:
        raise
    except DAMAGED as error:
        raise Corrupt(in_object, f"directory page {page.key}", 0, f"stream {name!r}: {error!r}") from None
    return needed


def load_part(state: ShardState, page: Page, part: Part, unpack_ref: Callable[[Any], BlockRef] | None = None) -> None:
    """Add a BLOCKS, CONSUMERS, EXPIRY or SCHEDULE page to its stream. Call this in the order of ``load_directory``'s
    result.

    Args: unpack_ref makes a reference from an entry of a BLOCKS page; None: the body of such a page is a PageBody, and
        stays packed.
    Raises: Corrupt.
    """
    ref = part.ref
    stream = state.streams.get(page.key)
    if stream is None:
        raise Corrupt(object_name(ObjectKind.PAGES, ref.position), "page", ref.offset,
                      f"no directory page has stream {page.key:016x}")
    try:
        if page.kind == PageKind.BLOCKS:
            if unpack_ref is not None:
                room, entries = page.body
                blocks = TablePage.of([BlockEntry.unpack(packed, unpack_ref) for packed in entries])
            elif part.summary is None:
                room, entries = unpack_value(page.body.raw())
                packed = Packed.of(page.body, [kept(packed) for packed in entries])
                stream.dirty = True  # an earlier version wrote the page: the next round adds the summary
                blocks = TablePage(packed)
            else:
                room, packed = part.room, Packed.summarized(page.body, part.summary, filters=page.filters)
                blocks = TablePage(packed)
                packed.source = ref
            blocks.room, blocks.place = room, ref
            stream.blocks.load(blocks)
        elif page.kind == PageKind.CONSUMERS:
            consumer = ConsumerState.unpack(page.body)
            consumer.place = ref
            stream.consumers[consumer.name] = consumer
        elif page.kind in (PageKind.EXPIRY, PageKind.SCHEDULE):
            some = ExpiryPage.unpack(page.body)
            some.place = ref
            (stream.expiries if page.kind == PageKind.EXPIRY else stream.schedules).load(some)
        else:
            raise ValueError(f"a page of kind {page.kind} among a stream's")
    except DAMAGED as error:
        raise Corrupt(object_name(ObjectKind.PAGES, ref.position), f"page of stream {stream.name}", ref.offset,
                      repr(error)) from None


def shard_extra(state: ShardState) -> Generator[None, None, dict[str, Any]]:
    """Return the shard's own state for the root, as of the first step; the loop may turn after each step.

    There may be a million segments. Their keys, which were added in ascending order, are copied at once, and packed a
    slice at a time.
    """
    keys, opening, releases = list(state.counts.segments), state.opening, list(state.released.values())
    unlisted_ns = state.ids_unlisted_ns
    catalogue = [entry.encode() for entry in state.catalogue.values()]
    held = [[stream.stream_id, [list(at) for at in stream.held]] for stream in state.streams.values() if stream.held]
    runs: list[list[int]] = []
    for run in _key_runs(keys):
        runs.append(run)
        if len(runs) % _RUNS_AT_ONCE == 0:
            yield
    while keys:  # freed in slices, too
        del keys[-_KEYS_FREED_AT_ONCE:]
        yield
    released = []
    for one in releases:
        yield
        released.append([list(one.position), one.to_record().encode()])
    extra = {"segments": runs, "opening": opening.encode() if opening is not None else {}, "letgo": released,
             IDS_UNLISTED: unlisted_ns}
    if catalogue:
        extra[_CATALOGUE] = catalogue
    return {**extra, _HELD: held} if held else extra


def pack_roots_held(roots: Iterable[tuple[Position, frozenset[Position]]]) -> dict[str, Any]:
    """Return, for a new root's ``extra``, the segments that older roots name in ``held`` and the new one does not."""
    rows = [[list(root), list(pack_runs(held))] for root, held in roots if held]
    return {_ROOTS_HELD: rows} if rows else {}


def roots_held_of(extra: dict[str, Any], position: Position) -> dict[Position, frozenset[Position]]:
    """Return the segments that the root at ``position`` and older ones name in ``held``, by root.

    Raises: ValueError or TypeError.
    """
    found = {position_of(root): frozenset(unpack_runs(runs)) for root, runs in extra.get(_ROOTS_HELD, ())}
    found[position] = frozenset(at for _, positions in held_of(extra, position) for at in positions)
    return found


def held_of(extra: dict[str, Any], position: Position) -> list[tuple[int, list[Position]]]:
    """Return the offline streams of a root, each with the segments up to ``position`` that could not be applied to it.

    Raises: ValueError or TypeError.
    """
    return [(stream_id, [at for at in map(position_of, positions) if at <= position])
            for stream_id, positions in extra.get(_HELD, ())]


def note_unlisted(state: ShardState, extra: dict[str, Any]) -> None:
    """Set the time of unlisted ids in all streams of a root, once they are loaded. Raises: ValueError."""
    unlisted_ns = extra.get(IDS_UNLISTED)
    if unlisted_ns is None:
        unlisted_ns = max((stream.last_time_ns for stream in state.streams.values()), default=0)
    if type(unlisted_ns) is not int:
        raise ValueError(f"{unlisted_ns!r} is no time")
    state.ids_unlisted_ns = unlisted_ns
    for stream in state.streams.values():
        stream.ids.unlisted_ns = unlisted_ns


def shard_of(extra: dict[str, Any], position: Position, name: str,
             wanted: Callable[[str, str], bool] | None = None, *, whole: bool = False) -> ShardState:
    """Return a state without streams that is ready to replay from ``position``. Raises: Corrupt."""
    state = ShardState(wanted, whole=whole)
    state.replaying = True
    state.position = position
    try:
        # Roots of earlier releases may have segments and release records after their position. Replay adds them.
        last = position_key(position)
        state.counts.segments = {key: 0 for key in map(position_key, unpack_runs(extra["segments"])) if key <= last}
        opening = extra["opening"]
        state.opening = Opening.decode(opening, name) if opening else None
        for at, body in extra["letgo"]:
            released = Released.of(position_of(at), Release.decode(body))
            if released.position <= position:
                state.released[released.position] = released
        for at, objects in extra.get("roots", ()):
            position_of(at)
            for one in objects:
                position_of(one)
        for entry in map(CatalogueEntry.decode, extra.get(_CATALOGUE, ())):
            state.catalogue[entry.stream_id] = entry
        roots_held_of(extra, position)
    except DAMAGED as error:
        raise Corrupt(name, "extra", 72, repr(error)) from None
    return state


def _key_runs(keys: Sequence[int]) -> Iterator[list[int]]:
    """Convert ascending position keys to runs, as ``pack_runs`` does for positions; reads only a few keys of a long
    run.

    The keys in a run differ by one within an epoch, and never span two epochs: no log has 2^48 segments.
    """
    at, count = 0, len(keys)
    while at < count:
        last, step = at, 1
        while last + step < count and keys[last + step] == keys[last] + step:
            last += step
            step *= 2
        while step := step // 2:
            if last + step < count and keys[last + step] == keys[last] + step:
                last += step
        yield [*key_position(keys[at]), keys[last] & NUMBER_MAX]
        at = last + 1
