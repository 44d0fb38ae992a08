"""Lets staged messages join the end of a stream: all messages of a request or of an atomic batch, or none, and once.

    turn of the publish queue ──> checks ──> all sequenced messages persisted ──> one record, in the stream's block
         └── publishes wait                                                           │ persisted: ``joined``
                                              the messages are in the stream, as if published; limits are applied

The sequences of the messages follow the stream's last one. Until the record is persisted, the messages are invisible:
the outcome of the stream's blocks includes them (``Live.joining``), and the live state does not. Messages of the stream
that are removed meanwhile are in neither.

Owns: the refusal of requests, the detection of duplicates, and the order of the steps. Does not own: reading the runs
(storage.staging.check), the origin of requests (jetstream.inbox), the enforcement of limits (retention).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from broker.base.gotime import format_time
from broker.jetstream.filters import Filters
from broker.jetstream.stream.acting import ActingMessages
from broker.jetstream.stream.publish.limits import HEADERS_BYTES_MAX, RECORD_BYTES_MAX
from broker.jetstream.stream.requests import Requests, refusal
from broker.jetstream.stream.staged_ids import Dropped, StagedIds
from broker.jetstream.stream.state.block import LiveBlock
from broker.jetstream.stream.state.decision import WAIT_SECONDS, Stuck, decide
from broker.jetstream.stream.state.joining import Joining
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.jetstream.wire.numbers import SEQ_MAX
from broker.storage.format.errors import FormatError
from broker.storage.format.record import Record
from broker.storage.format.records.append import Append
from broker.storage.format.records.expiry import Expiry
from broker.storage.format.records.stream_update import StreamUpdate
from broker.storage.format.request import Times
from broker.storage.format.staged import placed
from broker.storage.objectstore.base import StoreError
from broker.storage.staging.answers import GRANTED, Answer
from broker.storage.staging.check import Ids, RulesChanged, Staged, SubjectRules
from broker.storage.state.expiries import expires_at
from broker.storage.state.table import BlockEntry

if TYPE_CHECKING:
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.publish.context import CheckContext
    from broker.jetstream.stream.publish.dedupe import Dedupe
    from broker.jetstream.stream.publish.spilled import Arrival
    from broker.jetstream.stream.shared.stream_parts import StreamParts
    from broker.storage.format.block import BlockRef
    from broker.storage.format.request import Version
    from broker.storage.log.writer import SealedBlock
    from broker.storage.state.dead import DeadSet

__all__ = ["Appending"]

_AT_ONCE: Final = 2048
"""Ids or subjects compared in one turn of the loop: about 2 ms."""

_BLOCKS_AT_ONCE: Final = 256
"""Blocks that get their sequences, and a record, in one turn of the loop: 2 ms."""

_ONE_TIME_NS: Final = 100_000_000
"""Ids whose messages are at most this far apart get one time in the duplicate window: that of the last message."""


class _Plan(NamedTuple):
    """The messages that join, and records with their blocks."""

    joining: Joining
    records: list[Record]


class Appending:
    """The staged messages of one stream."""

    def __init__(self, parts: StreamParts, context: CheckContext, stored: Mapping[str, Any]) -> None:
        """Args: ``stored``: the stream's extra members."""
        self.requests = Requests(stored)
        self._parts, self._context = parts, context
        self._interest_sweep: asyncio.Task[None] | None = None
        """The task that removes unneeded messages, which no consumer waits for, from the messages that joined last."""

    def subject_rules(self) -> SubjectRules:
        """Return the rules for the subjects of staged messages. Raises: ApiError if no message can be published."""
        config = self._parts.stream.config
        if not config.subjects:
            raise ApiError(ApiErrors.STREAM_GENERAL,
                           err="the stream has no subjects of its own: nothing can be published to it")
        filters = Filters(config.subjects_bytes)
        counted = config.discard == "new" and config.discard_new_per_subject and config.max_msgs_per_subject > 0
        return SubjectRules(filters.subjects, filters.decide, counted)

    def append(self, request_id: int, staged: Staged, check_allowed: Callable[[], object] = lambda: None, *,
               version: Version | None = None, times: Times = Times.RAISE) -> asyncio.Task[Answer]:
        """Start a task of the stream in which the messages join; its result is that of ``_append``.

        Args: ``check_allowed`` raises ApiError if they may not join; called at the moment when that is decided.
        """
        return self._parts.tasks.start(self._append(request_id, staged, check_allowed, version, times),
                                       "staged messages", awaited=True)

    async def _append(self, request_id: int, staged: Staged, check_allowed: Callable[[], object],
                      version: Version | None, times: Times) -> Answer:
        """Let the messages join; return the answer once that is persisted, or the answer that was given before.

        Raises: ApiError if they are refused, RulesChanged if they must be read again; then nothing has changed.
            StoreError, FormatError, Stuck if data for a decision cannot be read; the error that stopped the log.
        """
        parts, context = self._parts, self._context
        self._check_rules(staged)
        ids = StagedIds(staged, context.dedupe, parts.clock)
        if staged.ids_bytes:
            await self._load_ids()
            await ids.compare()
        async with parts.queue.turn():
            while True:
                if (answer := self.requests.granted(request_id, version)) is not None:
                    return answer
                self.requests.check_room(version, parts.clock.now_ns())
                config = parts.stream.config
                self._check_rules(staged)
                await parts.live.load_blocks()
                await self._find_duplicates(staged, ids)
                await self._check(config, staged, ids)
                acting = ActingMessages(staged, parts.live.ahead)
                await acting.resolve(config, ids)
                raised = await self._count_raised(staged, ids, times)
                now_ns = parts.clock.now_ns()
                plan = await self._plan(staged, ids, acting, now_ns)
                await acting.set_expiries(plan.joining, ids, now_ns)
                roll_ups = [await context.rollups.find(subjects) for subjects in acting.roll_ups]
                # No block of the stream has unpersisted messages then, so the joining messages come after all others.
                await parts.log.persisted()
                if (parts.stream.config is config and parts.live.open is None
                        and plan.joining.first_seq == parts.live.last_seq + 1):
                    break
            check_allowed()
            self._check_usage(staged, ids)
            joining = plan.joining
            answer = Answer(request_id, GRANTED, now_ns, joining.first_seq, joining.last_seq,
                            staged.messages - ids.msgs, ids.msgs, raised=raised)
            extra = self.requests.answer(answer, version)
            if joining.msgs:
                extra |= self._joining_extra(joining)
            self._announce(plan.records, Append([], [], extra), joining)
            for roll_up in roll_ups:
                roll_up()
            await self._wait_until_joined()
            if joining.msgs:
                try:
                    await self._add_ids(joining, staged, ids.dropped)
                except asyncio.CancelledError:
                    parts.queue.shut()
                    raise
                await self._enforce()
        return answer

    async def join(self, blocks: Sequence[BlockRef], check: Callable[[], Arrival],
                   recorded: Callable[[], object]) -> None:
        """Let the messages of an atomic batch join: ``blocks``, in their order. The stream's queue is busy meanwhile.

        Returns once that is persisted.

        Args: ``check`` raises ApiError if they may not join, NotLoaded if it must be called again; ``recorded`` is
            called when the record is being written.
        Raises: as ``_append``.
        """
        parts, context = self._parts, self._context
        await parts.live.load_blocks()
        while True:
            # No block of the stream has unpersisted messages then, so the joining messages come after all others.
            await parts.log.persisted()
            arrival = await decide(parts.live, parts.heads, check)
            if parts.live.open is None:
                break
        live, first_seq, time_ns = parts.live, parts.live.last_seq + 1, arrival.time_ns
        joining = Joining(first_seq)
        for number, block in enumerate(blocks):
            joining.add(number, LiveBlock.of_entry(BlockEntry(placed(block, joining.last_seq + 1, time_ns, time_ns))))
        at_ns = live.ahead.decision_ns(time_ns)
        joining.expiring = [seq for seq, _ in arrival.ttls]
        joining.expiry_times = [expires_at(at_ns, ttl) for _, ttl in arrival.ttls]
        record = Append([one.ref.pack() for one in joining.blocks if one.ref is not None], [],
                        self._joining_extra(joining))
        recorded()
        self._announce((), record, joining)
        for after in arrival.afters:
            after()
        await self._wait_until_joined()
        context.dedupe.add(arrival.ids, arrival.last_id, at_ns, stored=False)
        context.msg_ids.expire_later()
        # Enforce the limits before replying: a caller that waited for the commit must not see the stream exceed them.
        await self._enforce()

    async def refuse(self, request_id: int, nonce: bytes, error: ApiError) -> None:
        """Record a refusal; return once it is persisted."""
        parts = self._parts
        changes = self.requests.answer(refusal(request_id, nonce, error, parts.clock.now_ns()))
        parts.log.block(parts.stream).add(StreamUpdate(parts.stream.config.to_json(), changes))
        parts.log.urgent()
        await parts.log.persisted()

    def _announce(self, records: Iterable[Record], last: Append, joining: Joining) -> None:
        """Put the records, and the expiries of their messages, into the stream's block."""
        block = self._parts.log.block(self._parts.stream)
        for record in records:
            block.add_record(record)
        block.add(last)
        if joining.expiring:
            block.add(Expiry(joining.expiring, joining.expiry_times))
        self._parts.live.expect(joining)

    async def _wait_until_joined(self) -> None:
        """Wait until the record is persisted and the messages have joined.

        Raises: ApiError; the error that stopped the log.
        """
        parts = self._parts
        parts.log.urgent()
        try:
            await parts.log.persisted()
        except asyncio.CancelledError:
            # The broker stops, or the stream is closed. A waiting publish would get the sequences of joining messages.
            parts.queue.shut()
            raise
        if parts.live.joining is not None:
            reason = parts.stream.offline or "its record could not be stored"
            raise ApiError(ApiErrors.STREAM_OFFLINE_REASON, err=reason)

    async def _enforce(self) -> None:
        """Bring the stream within its limits after messages have joined.

        As after a publish, messages that no consumer waits for, and those beyond the limits of subjects, are removed
        before max_msgs and max_bytes remove others.
        """
        context = self._context
        interest_sweep, self._interest_sweep = self._interest_sweep, None
        if context.retention.over:
            first = [task for task in (interest_sweep, context.enforcement.sweep()) if task is not None]
            if first:
                await asyncio.wait(first, timeout=WAIT_SECONDS)  # publishes wait
        try:
            await context.enforcement.trim()
        except (StoreError, FormatError, Stuck, TimeoutError):
            context.enforcement.schedule_trim()

    # --- checks -------------------------------------------------------------------------------------------------------

    def _check_rules(self, staged: Staged) -> None:
        """Check that the subjects were checked by the present configuration. Raises: RulesChanged; ApiError."""
        if not staged.rules.agree(self.subject_rules()):
            raise RulesChanged

    async def _check(self, config: StreamConfig, staged: Staged, ids: StagedIds) -> None:
        """Check the messages as publishes are checked, by the present limits. Raises: ApiError."""
        live = self._parts.live
        if config.sealed:
            raise ApiError(ApiErrors.STREAM_SEALED)
        for refused, what in ((config.mirror, "a mirror"),
                              (config.subject_transform, "a stream with a subject transform"),
                              (config.republish, "a stream that republishes"),
                              (config.allow_msg_counter, "a stream of counters")):
            if refused:
                raise ApiError(ApiErrors.STREAM_GENERAL, err=f"staged messages cannot join {what}: publish them")
        if 0 <= config.max_msg_size < staged.body_bytes_max:
            raise ApiError(ApiErrors.STREAM_MESSAGE_EXCEEDS_MAXIMUM)
        if staged.header_bytes_max > HEADERS_BYTES_MAX:
            raise ApiError(ApiErrors.STREAM_HEADER_EXCEEDS_MAXIMUM)
        if staged.size_max > RECORD_BYTES_MAX:
            raise ApiError(ApiErrors.STREAM_STORE_FAILED, err="message too large")
        if live.last_seq + staged.messages > SEQ_MAX:
            raise ApiError(ApiErrors.STREAM_STORE_FAILED, err="the stream has used its last sequence")
        self._check_usage(staged, ids)
        if config.discard == "new":
            await self._check_room(config, staged, ids)

    def _check_usage(self, staged: Staged, ids: StagedIds) -> None:
        """Check the limits that are shared with other streams. Raises: ApiError."""
        usage, size = self._parts.live.usage, staged.size_bytes - ids.size_bytes
        if usage.size_bytes + size > usage.bytes_max and (code := usage.refusal(size, self._parts.clock.now_ns())):
            raise ApiError(code)

    async def _check_room(self, config: StreamConfig, staged: Staged, ids: StagedIds) -> None:
        live, subjects = self._parts.live, self._parts.subjects
        msgs, size = staged.messages - ids.msgs, staged.size_bytes - ids.size_bytes
        if 0 < config.max_msgs < live.msgs + msgs:
            raise ApiError(ApiErrors.STREAM_STORE_FAILED, err="maximum messages exceeded")
        if 0 < config.max_bytes < live.size_bytes + size:
            raise ApiError(ApiErrors.STREAM_STORE_FAILED, err="maximum bytes exceeded")
        if not config.discard_new_per_subject or config.max_msgs_per_subject <= 0:
            return
        index = await subjects.build()
        lost: Counter[bytes] = Counter()
        for number, dropped in ids.dropped.items():
            of = staged.blocks[number].ids
            for start in range(0, len(dropped), _AT_ONCE):
                lost.update(map(of.subject, dropped.places[start:start + _AT_ONCE]))
                await asyncio.sleep(0)
        for at, (subject, staged_count) in enumerate(staged.subjects.items(), 1):
            count = staged_count - lost[subject]
            if count and index.count(subject, live.first_seq) + count > config.max_msgs_per_subject:
                raise ApiError(ApiErrors.STREAM_STORE_FAILED, err="maximum messages per subject exceeded")
            if at % _AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _load_ids(self) -> None:
        """Load the ids of the duplicate window, while publishes wait."""
        if self._context.dedupe.window_ns > 0 and not self._context.dedupe.known:
            async with self._parts.queue.turn():
                if not self._context.dedupe.known:
                    await self._context.msg_ids.load()

    async def _find_duplicates(self, staged: Staged, ids: StagedIds) -> None:
        """Update ``ids`` with the messages published by now. Raises: ApiError 10167."""
        context = self._context
        dedupe = context.dedupe
        if not staged.ids_bytes or dedupe.window_ns <= 0:
            ids.dropped = {}
            return
        if not dedupe.known:
            await context.msg_ids.load()
        if dedupe.full or dedupe.bytes + staged.ids_bytes > dedupe.bytes_max:
            raise ApiError(ApiErrors.STREAM_TOO_MANY_REQUESTS)
        await ids.catch_up()

    async def _count_raised(self, staged: Staged, ids: StagedIds, times: Times) -> int:
        """Return the number of joining messages whose times are raised. Raises: ApiError; StoreError; FormatError."""
        low_ns = self._parts.live.last_time_ns
        raised = await staged.times.raised(low_ns)
        for number, dropped in ids.dropped.items() if raised else ():
            of, floor_ns = staged.blocks[number].ids.times, staged.times.floor_ns(number, low_ns)
            for start in range(0, len(dropped), _AT_ONCE):
                raised -= sum(0 < of[at] < floor_ns for at in dropped.places[start:start + _AT_ONCE])
                await asyncio.sleep(0)
        if raised and times == Times.REFUSE:
            raise ApiError(ApiErrors.STREAM_GENERAL, err=(
                f"{raised} of its messages have times below an earlier message's (the stream's last time is "
                f"{format_time(low_ns) if low_ns else 'none'}), and it asks to be refused then: order the messages by "
                f"time, or request with times that may be raised"))
        return raised

    # --- joining ------------------------------------------------------------------------------------------------------

    async def _plan(self, staged: Staged, ids: StagedIds, acting: ActingMessages, now_ns: int) -> _Plan:
        """Give the messages their sequences and times, while publishes wait."""
        live = self._parts.live
        seq, low_ns = live.last_seq + 1, live.last_time_ns
        plan = _Plan(Joining(seq), [])
        packed: list[Sequence[Any]] = []
        dead: list[Sequence[Any]] = []
        for number, block in enumerate(staged.blocks):
            dropped = acting.left_out.get(number) or ids.dropped.get(number)
            if dropped is not None and len(dropped) == block.ref.count:
                continue
            # Messages without times of their own (0) get the present time.
            low_ns = max(low_ns, now_ns) if not block.ref.last_time_ns else low_ns
            ref = placed(block.ref, seq, low_ns, max(low_ns, now_ns))
            low_ns = ref.last_time_ns
            entry = BlockEntry(ref)
            if dropped is not None:
                entry.dead = dropped.dead.moved(seq)
                entry.dead_count, entry.dead_bytes = len(dropped), dropped.size_bytes
                dead.append(_dead_row(entry, entry.dead))
            plan.joining.add(number, LiveBlock.of_entry(entry))
            packed.append(ref.pack())
            seq += ref.count
            if len(packed) == _BLOCKS_AT_ONCE:
                plan.records.append(_read_record(packed, dead))
                packed, dead = [], []
                await asyncio.sleep(0)
        if packed:
            plan.records.append(_read_record(packed, dead))
        return plan

    def _joining_extra(self, joining: Joining) -> dict[str, Any]:
        """Return the members of the record for the work that is left when the messages have joined."""
        return self._context.enforcement.suspend_record() | self._context.interest.joining_record(joining.first_seq)

    def persisted(self, block: SealedBlock[Any]) -> None:
        """Handle a persisted block of the stream: if it has the record, the messages join the live state.

        Consumers are notified after this.
        """
        context = self._context
        live = self._parts.live
        joining = live.joining
        if joining is None or not any(record.kind == Append.KIND for record in block.core.records):
            return
        live.join()
        if not joining.msgs:
            return
        context.rollups.forget()
        if joining.expiring:
            context.ttls.add(joining.expiring, joining.expiry_times)
        if context.enforcement.sweep_due:
            context.enforcement.begin()
        context.retention.arm()
        self._interest_sweep = context.interest.joined(joining.first_seq)

    async def _add_ids(self, joining: Joining, staged: Staged, dropped: Mapping[int, Dropped]) -> None:
        """Add the ids to the duplicate window. Publishes wait until all are added."""
        parts, context = self._parts, self._context
        dedupe = context.dedupe
        for number, block in zip(joining.numbers, joining.blocks, strict=True):
            ids = staged.blocks[number].ids
            lost = set(dropped[number].places) if number in dropped else ()
            for start in range(0, len(ids.ids), _AT_ONCE):
                end = min(start + _AT_ONCE, len(ids.ids))
                places: Sequence[int] = range(start, end)
                if lost:
                    places = [at for at in places if at not in lost]
                _add_to_window(dedupe, block, ids, places, parts.clock.now_ns() - dedupe.window_ns)
                await asyncio.sleep(0)
        number, block = joining.numbers[-1], joining.blocks[-1]
        dedupe.last_id = _last_id(block, staged.blocks[number].ids)
        context.msg_ids.expire_later()


def _read_record(packed: Sequence[Sequence[Any]], dead: Sequence[Sequence[Any]]) -> Record:
    """Return the record of some blocks, with its body decoded: the turn in which it is applied is long enough."""
    record = Record.pack(Append(packed, dead), 0)
    _ = record.body
    return record


def _dead_row(entry: BlockEntry, dead: DeadSet) -> Sequence[Any]:
    """Return the row of ``dead`` for the record; a single range is written like a removed range."""
    ranges = dead.seqs()
    first, last = next(ranges)
    if next(ranges, None) is None:
        return first, last, entry.dead_count, entry.dead_bytes
    return entry.first_seq, entry.last_seq, entry.dead_count, entry.dead_bytes, dead.pack()


def _add_to_window(dedupe: Dedupe, block: LiveBlock, ids: Ids, places: Sequence[int], since_ns: int) -> None:
    """Add the ids of ``block`` at ``places`` whose messages, with their new times, are in the window."""
    low, high, first_seq = block.first_time_ns, block.last_time_ns, block.first_seq
    if high <= since_ns:
        return
    for some in _grouped(ids.times, places, low, high):
        time_ns = min(max(ids.times[some[-1]], low), high)
        if time_ns > since_ns:
            dedupe.add({ids.ids[at]: first_seq + ids.ordinals[at] for at in some}, b"", time_ns, stored=False)


def _grouped(times: Sequence[int], places: Sequence[int], low: int, high: int) -> Iterator[Sequence[int]]:
    """Yield ``places`` in groups of nearly equal times; times are limited to low..high."""
    start = 0
    while start < len(places):
        until = max(times[places[start]], low) + _ONE_TIME_NS
        end = len(places)
        if until < high:
            end = max(start + 1, bisect_right(places, until, start, key=times.__getitem__))
        yield places[start:end]
        start = end


def _last_id(block: LiveBlock, ids: Ids) -> bytes:
    """Return the id of the last message of ``block`` that joined; b"" if it has none."""
    last = block.last_seq if block.dead is None else block.dead.ends[1]
    ordinal = last - block.first_seq
    at = bisect_left(ids.ordinals, ordinal)
    return ids.ids[at] if at < len(ids.ordinals) and ids.ordinals[at] == ordinal else b""
