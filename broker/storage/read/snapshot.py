"""A shard's state read from its objects: newest checkpoint, then the log after it, along the chain of openings.

No I/O of its own: ``replay`` is a generator that yields requests for listings and ranges and is sent the results, so
recovery, ``inspect`` and readers without a broker share it, whatever client they use.

    newest root ── its pages ── segments after it, 32 at a time ── end of the epoch ── the next opening ── …

    an epoch's end     is in the next opening
    the log's end      is the first missing number (or a seal) in the last epoch opened; it is believed only if no newer
                       checkpoint appeared meanwhile, since the number may have been swept, and if no later entry proves
                       that the number had landed (``format.log_end``)
    beyond an end      nothing ever existed
    a corrupt entry    is never taken for the end

If a root or one of its pages is damaged or gone, the root before it is used.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from broker.clock import SystemClock
from broker.storage.format.checkpoint import Root
from broker.storage.format.errors import Corrupt, CutOff, FormatError, VersionUnknown
from broker.storage.format.header import EPOCH_MAX, HEADER_BYTES, ObjectHeader, ObjectKind, Position, object_name
from broker.storage.format.log_end import SAID_BYTES, is_being_copied, proves
from broker.storage.format.opening import decode_opening
from broker.storage.format.page import Page, PageKind, PageRef, decode_page
from broker.storage.format.records.opening import Opening
from broker.storage.format.segment import HEAD_BYTES, PUTS_IN_FLIGHT_MAX, SegmentHead, decode_head
from broker.storage.objectstore.base import NotFound, ObjectInfo, ObjectStore
from broker.storage.paths import COPYING, ShardPaths, parse
from broker.storage.put import Patience
from broker.storage.read.lazy import LazyBlockRef, unpack_table_page
from broker.storage.state.applied import ShardState
from broker.storage.state.pages import Part, load_directory, load_part, note_unlisted, shard_of

__all__ = ["Gets", "Listing", "Snapshot", "catch_up", "drive", "read_snapshot", "replay", "replay_from",
           "replay_to", "run", "run_answering", "run_blocking"]

BATCH = 32
_PIECE_BYTES = 1 << 20
_BATCH_BYTES = 8 << 20
RESTARTS_MAX = 20


class Listing(NamedTuple):
    """A request for the objects below ``prefix`` after ``after``; the answer is a list of ObjectInfo."""

    prefix: str
    after: str


class Gets(NamedTuple):
    """A request for ranges (key, start, end or None); the answer is a list with the bytes of each, None if there is no
    object."""

    ranges: list[tuple[str, int, int | None]]


Request = Listing | Gets
Answer = Any
T = TypeVar("T")
Steps = Generator[Request, Answer, T]


class Snapshot(NamedTuple):
    """The result of ``replay``.

    state: with its replay finished. root: the checkpoint it began with, None: the log's beginning. members: the streams in
    each of its directory pages. roots: positions of all roots seen, ascending. sealed: whether a seal ends the last epoch.
    segments, epochs, head_bytes: how much was replayed, without empty segments; objects: all segments. problems:
    checkpoints that could not be used, as text.
    """

    state: ShardState
    root: Root | None
    members: dict[int, frozenset[int]]
    roots: list[Position]
    sealed: bool
    segments: int
    objects: int
    epochs: int
    head_bytes: int
    problems: list[str]


def replay(paths: ShardPaths, wanted: Callable[[str, str], bool] | None = None, *, thorough: bool = True) -> Steps[Snapshot]:
    """Read the shard's state as it stands in the store.

    Args: wanted(account, name) says which streams a reader wants: pages and blocks of others are not read, and
        ``state.segments`` has no counts. None: all are wanted. thorough: how well to look at the log's end; its owner need not.
    Raises: Corrupt, naming the object, if the log cannot be read further; VersionUnknown if a newer broker wrote it;
        CutOff if it changed faster than it could be read, RESTARTS_MAX times.
    """
    for _ in range(RESTARTS_MAX):
        roots = yield from list_positions(paths.checkpoints)
        problems: list[str] = []
        missing = ""
        snapshot: Snapshot | None = None
        for position in [*reversed(roots), None]:
            try:
                snapshot = yield from _from_root(paths, position, roots, problems, wanted, thorough=thorough)
                break
            except CutOff as gone:
                problems.append(str(gone))
                if position is not None or not roots:  # what is before the newest usable root may be gone
                    missing = missing or gone.key
            except VersionUnknown:
                raise
            except _Unusable as damaged:
                problems.append(str(damaged))
        again = yield from list_positions(paths.checkpoints)
        end = snapshot.state.position if snapshot is not None else Position(0, 0)
        if again != roots and (snapshot is None or (again and again[-1] > end)):
            continue  # the end, or what was missing, may have been swept: start again from the newer checkpoint
        if snapshot is None:
            why = "neither a checkpoint nor the log from its beginning can be read: " + "; ".join(dict.fromkeys(problems))
            if missing:
                raise Corrupt(missing, "entry", 0, f"it is missing, and {why}")
            raise Corrupt(paths.checkpoints, "checkpoints", 0, why)
        if again and again[-1] > end:
            raise Corrupt(paths.checkpoint(again[-1]), "checkpoint", 0,
                          f"it cannot be used, and the log before it ends at {end}: " + "; ".join(problems))
        return snapshot
    raise CutOff(f"{paths.prefix}: the log moved on {RESTARTS_MAX} times while it was read")


def replay_from(paths: ShardPaths, position: Position | None) -> Steps[Snapshot]:
    """Read the shard's state from this one root, or, if None, from the log's beginning, whatever other roots there are.

    Raises: Corrupt, naming the object, also if the root or one of its pages is damaged or gone; VersionUnknown; CutOff
        if something that must be replayed does not exist, or no longer.
    """
    try:
        return (yield from _from_root(paths, position, [], []))
    except _Unusable as error:
        assert position is not None
        raise Corrupt(paths.checkpoint(position), "checkpoint", 0, str(error)) from None


def replay_to(paths: ShardPaths, position: Position, wanted: Callable[[str, str], bool]) -> Steps[Snapshot]:
    """Read the streams that are ``wanted`` as they were at ``position``; or at the log's end, if that comes first.

    Raises: CutOff when a checkpoint so old, or the log after it, is no longer there; Corrupt, VersionUnknown: as ``replay``.
    """
    roots = yield from list_positions(paths.checkpoints)
    problems: list[str] = []
    for root in [*(one for one in reversed(roots) if one <= position), None]:
        try:
            return (yield from _from_root(paths, root, roots, problems, wanted, position))
        except (CutOff, _Unusable) as error:
            problems.append(str(error))
    raise CutOff(f"{paths.prefix}: the state at {position} is no longer in the store: {'; '.join(problems)}")


def catch_up(paths: ShardPaths, state: ShardState) -> Steps[None]:
    """Advance a ``state`` whose replay is finished to the current end of the log: for a reader that follows the log.

    If nothing is new, this costs two listings and six gets. Raises: CutOff if part of what follows was swept (then use
    ``replay``); Corrupt, VersionUnknown: as ``replay``. After any of them the state must not be used.
    """
    awaited = state.position
    for _ in range(RESTARTS_MAX):
        yield from _Chain(paths, state, thorough=False).read()
        end = state.position
        if end < awaited:
            raise CutOff(f"{paths.log(end)} is followed by nothing, and there is a checkpoint at {awaited}")
        # As in ``replay``: if there is a checkpoint beyond, the end was a swept number, or the log has grown since.
        beyond = yield from list_positions(paths.checkpoints, paths.checkpoint(end) if end.epoch else "")
        if not beyond:
            break
        awaited = beyond[-1]
    else:
        raise CutOff(f"{paths.prefix}: the log moved on {RESTARTS_MAX} times while it was read")
    if state.wanted is not None:
        state.finish_replay()


class _Unusable(Exception):
    """A root, or a page of it, is damaged or gone."""


def list_positions(prefix: str, after: str = "") -> Steps[list[Position]]:
    """The positions in the keys below ``prefix``, ascending."""
    found: list[ObjectInfo] = yield Listing(prefix, after)
    return [key.position for info in found if (key := parse(info.key)) is not None and key.position is not None]


def _from_root(paths: ShardPaths, position: Position | None, roots: list[Position], problems: list[str],
               wanted: Callable[[str, str], bool] | None = None, until: Position | None = None, *,
               thorough: bool = True) -> Steps[Snapshot]:
    root: Root | None = None
    members: dict[int, frozenset[int]] = {}
    if position is None:
        state = ShardState(wanted)
        state.replaying = True
    else:
        root, state, members = yield from _load_root(paths, position, wanted, until)
    chain = _Chain(paths, state, until, thorough=thorough)
    yield from chain.read()
    if position is not None:
        try:
            state.finish_replay()
        except Corrupt as error:
            raise _Unusable(f"{paths.checkpoint(position)}: {error}") from None
    else:
        state.finish_replay()
    return Snapshot(state, root, members, roots, chain.sealed, chain.segments, chain.objects, chain.epochs,
                    chain.head_bytes, problems)


def _load_root(paths: ShardPaths, position: Position, wanted: Callable[[str, str], bool] | None,
               until: Position | None) -> Steps[tuple[Root, ShardState, dict[int, frozenset[int]]]]:
    key = paths.checkpoint(position)
    [data] = yield Gets([(key, 0, None)])
    if data is None:
        raise _Unusable(f"{key} is gone")
    try:
        root = Root.decode(data, position)
        state = shard_of(root.extra, root.replay_from, key, wanted)
        needed: list[Part] = []
        members: dict[int, frozenset[int]] = {}

        def in_time(page: Page) -> Page:
            if until is not None and page.position > until:
                # A round copies while the log goes on.
                raise _Unusable(f"{key} has a page of {page.position}")
            return page

        def take_directory(data: bytes, at: int) -> None:
            page = in_time(decode_page(data, root.pages[at]))
            if page.kind != PageKind.DIRECTORY:
                raise Corrupt(key, "pages", 0, f"a root names a page of kind {page.kind}")
            needed.extend(load_directory(state, page, object_name(ObjectKind.PAGES, root.pages[at].position)))
            members[page.key] = frozenset(entry[0] for entry in page.body)

        def take_part(data: bytes, at: int) -> None:
            part = needed[at]
            if part.ref.kind != PageKind.BLOCKS:
                load_part(state, in_time(decode_page(data, part.ref)), part)
            elif wanted is None:
                load_part(state, in_time(decode_page(data, part.ref, None)), part)
            else:
                load_part(state, in_time(decode_page(data, part.ref, unpack_table_page)), part, LazyBlockRef.unpack)

        yield from _read_pages(paths, root.pages, take_directory)
        yield from _read_pages(paths, [part.ref for part in needed], take_part)
        if wanted is None:
            note_unlisted(state, root.extra)
    except VersionUnknown:
        raise
    except (FormatError, ValueError) as error:
        raise _Unusable(f"{key}: {error}") from None
    return root, state, members


def _read_pages(paths: ShardPaths, refs: Sequence[PageRef], take: Callable[[bytes, int], None]) -> Steps[None]:
    """Pass each page's bytes to ``take`` with its place in ``refs``, in order and one at a time, since decoded they are many
    times as large. Pages that a round has written one behind the other are read in one piece."""
    pieces = list(_pieces(refs))
    at = 0
    while at < len(pieces):
        batch: list[range] = []
        size = 0
        while at < len(pieces) and len(batch) < BATCH and (not batch or size + _size(pieces[at], refs) <= _BATCH_BYTES):
            batch.append(pieces[at])
            size += _size(pieces[at], refs)
            at += 1
        found = yield Gets([(paths.pages(refs[some[0]].position), refs[some[0]].offset, refs[some[-1]].offset + refs[some[-1]].size)
                            for some in batch])
        for some, data in zip(batch, found, strict=True):
            start = refs[some[0]]
            if data is None:
                raise _Unusable(f"{paths.pages(start.position)}, which it names, is gone")
            for i in some:
                begin = refs[i].offset - start.offset
                take(data[begin:begin + refs[i].size], i)


def _pieces(refs: Sequence[PageRef]) -> Iterator[range]:
    """Neighbours in ``refs`` that are neighbours in their object, up to a size that one request reads."""
    start = 0
    for i in range(1, len(refs) + 1):
        if i == len(refs) or not (refs[i].position == refs[i - 1].position
                                  and refs[i].offset == refs[i - 1].offset + refs[i - 1].size
                                  and refs[i].offset + refs[i].size - refs[start].offset <= _PIECE_BYTES):
            yield range(start, i)
            start = i


def _size(piece: range, refs: Sequence[PageRef]) -> int:
    return refs[piece[-1]].offset + refs[piece[-1]].size - refs[piece[0]].offset


class _Chain:
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
            try:
                core = head.core(i)
            except VersionUnknown as error:
                if row.stream_id == 0:
                    raise
                state.take_offline(row.stream_id, str(error))
                continue
            state.apply_block(core, head.ref(i, core))


async def drive(steps: Steps[T], answer: Callable[[Request], Awaitable[Answer]]) -> T:
    """Run ``steps``, answering its requests by ``answer``. Raises: as both."""
    given: Answer = None
    while True:
        try:
            request = steps.send(given)
        except StopIteration as done:
            result: T = done.value
            return result
        given = await answer(request)


async def run(steps: Steps[T], store: ObjectStore, patience: Patience | None = None) -> T:
    """Drive ``steps`` with an object store, each call with ``patience``. Raises: as ``steps``; StoreError."""
    patience = patience or Patience(store, SystemClock(), random.Random())
    return await drive(steps, lambda request: _answer(request, store, patience))


async def _answer(request: Request, store: ObjectStore, patience: Patience) -> Answer:
    if isinstance(request, Listing):
        return await patience.ask(lambda: store.list(request.prefix, request.after), f"list {request.prefix}")

    async def get(key: str, start: int, end: int | None) -> bytes | None:
        try:
            return await patience.ask(lambda: store.get(key, start, end), f"get {key}")
        except NotFound:
            return None

    if len(request.ranges) == 1:
        return [await get(*request.ranges[0])]
    return await asyncio.gather(*[get(*range_) for range_ in request.ranges])


def run_blocking(steps: Steps[T], get: Callable[[str, int, int | None], bytes | None],
                 list_: Callable[[str, str], Sequence[ObjectInfo]]) -> T:
    """Drive ``steps`` with blocking calls: get(key, start, end) returns None for no object, list_(prefix, after) all."""
    return run_answering(steps, lambda ranges: [get(*range_) for range_ in ranges], list_)


def run_answering(steps: Steps[T], get_many: Callable[[list[tuple[str, int, int | None]]], Sequence[bytes | None]],
                  list_: Callable[[str, str], Sequence[ObjectInfo]]) -> T:
    """As ``run_blocking``, with one call that answers all ranges of a request, in their order."""
    answer: Answer = None
    while True:
        try:
            request = steps.send(answer)
        except StopIteration as done:
            result: T = done.value
            return result
        if isinstance(request, Listing):
            answer = list_(request.prefix, request.after)
        else:
            answer = get_many(request.ranges)


async def read_snapshot(store: ObjectStore, shard: int = 0) -> Snapshot:
    """The shard's state as it stands in the store, for a reader that does not own it. Raises: as ``replay``; StoreError."""
    return await run(replay(ShardPaths(shard)), store)
