"""Lets staged messages join the end of a stream: all of a request or none, once.

    turn of the publish queue ──> checks ──> what was sequenced before is persisted ──> one record, in the stream's block
         └── publishes wait                                                                   │ persisted: ``joined``
                                                     the messages are the stream's, as if published; limits follow

Their sequences follow the stream's last one, and until the record is persisted nobody sees them: the live state does not have
them, only the outcome of the stream's blocks (``Live.joining``) does. Whatever leaves the stream meanwhile is in neither.

Owns: which requests are refused, which messages are duplicates, and the order of the steps. Does not own: reading the runs
(storage.staging.check), where requests come from (jetstream.inbox), how limits are enforced (retention).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from broker.jetstream.filters import Filters
from broker.jetstream.stream.publish.limits import HEADERS_BYTES_MAX, RECORD_BYTES_MAX
from broker.jetstream.stream.requests import Requests, refusal
from broker.jetstream.stream.state.block import LiveBlock
from broker.jetstream.stream.state.joining import Joining
from broker.jetstream.wire.errors import STREAM_OFFLINE, ApiError
from broker.jetstream.wire.numbers import SEQ_MAX
from broker.storage.format.block import BlockRef
from broker.storage.format.records.append import Append
from broker.storage.format.records.stream_update import StreamUpdate
from broker.storage.format.staged import placed
from broker.storage.log.owner import BlockOwner
from broker.storage.staging.answers import GRANTED, Answer
from broker.storage.staging.check import Ids, Staged
from broker.storage.state.table import BlockEntry

if TYPE_CHECKING:
    from broker.clock import Clock
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.publish.dedupe import Dedupe
    from broker.jetstream.stream.publish.msg_ids import MsgIds
    from broker.jetstream.stream.queue import PublishQueue
    from broker.jetstream.stream.retention.enforcement import Enforcement
    from broker.jetstream.stream.retention.interest import Interest
    from broker.jetstream.stream.retention.retention import Retention
    from broker.jetstream.stream.retention.rollup import Rollups
    from broker.jetstream.stream.state.live import Live
    from broker.jetstream.stream.state.subject_state import SubjectState
    from broker.jetstream.stream.state.tasks import Tasks
    from broker.storage.log.log import Log
    from broker.storage.log.memory_log import MemoryLog
    from broker.storage.log.writer import SealedBlock

__all__ = ["Appending"]

_AT_ONCE: Final = 2048
"""Ids or subjects looked at in one turn of the loop: about 2 ms."""

_TOO_MANY = 10167
_GENERAL = 10051

Dropped = Mapping[int, Sequence[int]]
"""Number of a staged block to the places among its ids of those messages that do not join."""


class Owner(BlockOwner, Protocol):
    """What this module needs of the stream: the parts that a publish goes through."""

    @property
    def config(self) -> StreamConfig: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def log(self) -> Log | MemoryLog: ...
    @property
    def live(self) -> Live: ...
    @property
    def queue(self) -> PublishQueue: ...
    @property
    def dedupe(self) -> Dedupe: ...
    @property
    def msg_ids(self) -> MsgIds: ...
    @property
    def subjects(self) -> SubjectState: ...
    @property
    def rollups(self) -> Rollups: ...
    @property
    def retention(self) -> Retention: ...
    @property
    def enforcement(self) -> Enforcement: ...
    @property
    def interest(self) -> Interest: ...
    @property
    def offline(self) -> str | None: ...


class Appending:
    """The staged messages of one stream."""

    def __init__(self, stream: Owner, tasks: Tasks, stored: Mapping[str, Any]) -> None:
        """Args: ``stored`` are the stream's extra members."""
        self.requests = Requests(stored)
        self._stream = stream
        self._tasks = tasks

    def append(self, request_id: int, staged: Staged, may: Callable[[], object] = lambda: None) -> asyncio.Task[Answer]:
        """Let them join, as a task of the stream; its result is what ``_append`` returns. ``may`` raises ApiError if they may
        not, as of the moment when that is decided."""
        return self._tasks.start(self._append(request_id, staged, may), "staged messages", awaited=True)

    async def _append(self, request_id: int, staged: Staged, may: Callable[[], object]) -> Answer:
        """Returns once that is persisted, or the answer that the request got before.

        Raises: ApiError when they are refused, and nothing has changed; StoreError, FormatError, Stuck: what a decision needs
            cannot be read; whatever stopped the log.
        """
        stream = self._stream
        await self._check_subjects(stream.config, staged)
        async with stream.queue.turn():
            while True:
                if (answer := self.requests.of(request_id)) is not None:
                    return answer
                config = stream.config
                await self._check_subjects(config, staged)
                await stream.live.look()
                dropped = await self._duplicates(staged)
                await self._check(config, staged, dropped)
                # No block of the stream has messages that are not persisted, so those that join come after all of them.
                await self._log.persisted()
                if stream.config is config and stream.live.open is None:
                    break
            may()
            answer = self._record(request_id, staged, dropped)
            joining = stream.live.joining
            assert joining is not None
            self._log.urgent()
            try:
                await self._log.persisted()
                if stream.live.joining is not None:
                    raise ApiError(STREAM_OFFLINE, err=stream.offline or "its record could not be stored")
                if joining.msgs:
                    await self._remember(joining, staged, dropped)
            except asyncio.CancelledError:
                # The broker stops, or the stream is closed. A publish that waits would get the sequences of those that join.
                stream.queue.shut()
                raise
        return answer

    async def refuse(self, request_id: int, error: ApiError) -> None:
        """Record the refusal, and return once that is persisted."""
        stream = self._stream
        changes = self.requests.answer(refusal(request_id, error, stream.clock.now_ns()))
        self._log.block(stream).add(StreamUpdate(stream.config.to_json(), changes))
        self._log.urgent()
        await self._log.persisted()

    @property
    def _log(self) -> Log:
        """Of streams in the store: no others are in a shard's state, and so found by an inbox."""
        return cast("Log", self._stream.log)

    # --- checks -------------------------------------------------------------------------------------------------------

    async def _check_subjects(self, config: StreamConfig, staged: Staged) -> None:
        filters = Filters(config.subjects_bytes)
        if not config.subjects or filters.all:
            if not config.subjects:
                raise ApiError(_GENERAL, err="the stream has no subjects of its own: nothing can be published to it")
            return
        names = list(staged.subjects)
        for at in range(0, len(names), _AT_ONCE):
            for subject in names[at:at + _AT_ONCE]:
                if not filters.decide(subject):
                    raise ApiError(_GENERAL, err=f"subject {subject.decode('utf-8', 'replace')!r} is not one of the stream's")
            await asyncio.sleep(0)

    async def _check(self, config: StreamConfig, staged: Staged, dropped: Dropped) -> None:
        """What a publish would be refused for, by the limits as they are now. Raises: ApiError."""
        live = self._stream.live
        msgs = staged.messages - sum(map(len, dropped.values()))
        size = staged.size_bytes - sum(staged.blocks[number].ids.sizes[at] for number, some in dropped.items() for at in some)
        if config.sealed:
            raise ApiError(10109)
        for refused, what in ((config.mirror, "a mirror"), (config.subject_transform, "a stream with a subject transform"),
                              (config.republish, "a stream that republishes"),
                              (config.allow_msg_counter, "a stream of counters")):
            if refused:
                raise ApiError(_GENERAL, err=f"staged messages cannot join {what}: publish them")
        if 0 <= config.max_msg_size < staged.body_bytes_max:
            raise ApiError(10054)
        if staged.header_bytes_max > HEADERS_BYTES_MAX:
            raise ApiError(10097)
        if staged.size_max > RECORD_BYTES_MAX:
            raise ApiError(10077, err="message too large")
        if live.last_seq + staged.messages > SEQ_MAX:
            raise ApiError(10077, err="the stream has used its last sequence")
        if live.usage.size_bytes + size > live.usage.bytes_max and (
                code := live.usage.refusal(size, self._stream.clock.now_ns())):
            raise ApiError(code)
        if config.discard == "new":
            await self._check_room(config, staged, dropped, msgs, size)

    async def _check_room(self, config: StreamConfig, staged: Staged, dropped: Dropped, msgs: int,
                          size: int) -> None:
        live, subjects = self._stream.live, self._stream.subjects
        if 0 < config.max_msgs < live.msgs + msgs:
            raise ApiError(10077, err="maximum messages exceeded")
        if 0 < config.max_bytes < live.size_bytes + size:
            raise ApiError(10077, err="maximum bytes exceeded")
        if not config.discard_new_per_subject or config.max_msgs_per_subject <= 0:
            return
        index = await subjects.build()
        counts = Counter(staged.subjects)
        counts.subtract(Counter(staged.blocks[number].ids.subject(at) for number, some in dropped.items() for at in some))
        for at, (subject, count) in enumerate(counts.items(), 1):
            if count and index.count(subject, live.first_seq) + count > config.max_msgs_per_subject:
                raise ApiError(10077, err="maximum messages per subject exceeded")
            if at % _AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _duplicates(self, staged: Staged) -> Dropped:
        """The messages whose ids were seen before. Raises: ApiError 10167."""
        stream = self._stream
        dedupe = stream.dedupe
        if dedupe.window_ns <= 0 or not staged.ids_bytes:
            return {}
        if not dedupe.known:
            await stream.msg_ids.load()
        if dedupe.full or dedupe.bytes + staged.ids_bytes > dedupe.bytes_max:
            raise ApiError(_TOO_MANY)
        dropped: dict[int, list[int]] = {}
        seen: set[bytes] = set()
        dedupe.expire(stream.clock.now_ns())
        for number, block in enumerate(staged.blocks):
            ids = block.ids.ids
            for start in range(0, len(ids), _AT_ONCE):
                for at, msg_id in enumerate(ids[start:start + _AT_ONCE], start):
                    if msg_id in seen or dedupe.seen(msg_id):
                        dropped.setdefault(number, []).append(at)
                    seen.add(msg_id)
                await asyncio.sleep(0)
        return dropped

    # --- joining ------------------------------------------------------------------------------------------------------

    def _record(self, request_id: int, staged: Staged, dropped: Dropped) -> Answer:
        """Give the messages their sequences and times, and record that they join."""
        stream, live = self._stream, self._stream.live
        now_ns = stream.clock.now_ns()
        seq, low_ns = live.last_seq + 1, live.last_time_ns
        joining = Joining(seq)
        packed: list[Sequence[Any]] = []
        dead: list[tuple[int, int, int, int]] = []
        for number, block in enumerate(staged.blocks):
            lost = dropped.get(number, ())
            if len(lost) == block.ref.count:
                continue
            # Without times of their own they are as old as the moment: 0 stands for that.
            low_ns = max(low_ns, now_ns) if not block.ref.last_time_ns else low_ns
            ref = placed(block.ref, seq, low_ns, max(low_ns, now_ns))
            low_ns = ref.last_time_ns
            gone = [(seq + block.ids.ordinals[at], block.ids.sizes[at]) for at in lost]
            joining.add(number, _live_block(ref, gone))
            packed.append(ref.pack())
            dead += [(one, one, 1, size) for one, size in gone]
            seq += ref.count
        duplicates = sum(map(len, dropped.values()))
        answer = Answer(request_id, GRANTED, now_ns, joining.first_seq, joining.last_seq, staged.messages - duplicates, duplicates)
        extra = self.requests.answer(answer)
        if joining.msgs:
            extra |= stream.enforcement.doubt_record()
            extra |= stream.interest.joining_record(joining.first_seq)
        self._log.block(stream).add(Append(packed, dead, extra))
        live.joining = joining
        return answer

    def persisted(self, block: SealedBlock[Any]) -> None:
        """A block of the stream is persisted: if it has the record, the messages are the stream's. The consumers are told
        after this."""
        stream, live = self._stream, self._stream.live
        joining = live.joining
        if joining is None or not any(record.kind == Append.KIND for record in block.core.records):
            return
        live.joining = None
        if not joining.msgs:
            return
        live.join(joining)
        stream.rollups.forget()
        if stream.enforcement.doubted:
            stream.enforcement.begin()
        else:
            stream.retention.enforce()
        stream.retention.arm()
        stream.interest.joined(joining.first_seq)

    async def _remember(self, joining: Joining, staged: Staged, dropped: Dropped) -> None:
        """Take the ids into the duplicate window. Publishes wait until all are there."""
        stream = self._stream
        dedupe = stream.dedupe
        for number, block in zip(joining.numbers, joining.blocks, strict=True):
            ids, lost = staged.blocks[number].ids, set(dropped.get(number, ()))
            for start in range(0, len(ids.ids), _AT_ONCE):
                _add(dedupe, block, ids, [at for at in range(start, min(start + _AT_ONCE, len(ids.ids))) if at not in lost],
                     stream.clock.now_ns() - dedupe.window_ns)
                await asyncio.sleep(0)
        number, block = joining.numbers[-1], joining.blocks[-1]
        dedupe.last_id = _last_id(block, staged.blocks[number].ids)
        stream.msg_ids.expire_later()


def _live_block(ref: BlockRef, gone: Sequence[tuple[int, int]]) -> LiveBlock:
    entry = BlockEntry(ref)
    for seq, size in gone:
        entry.remove(seq, seq, 1, size)
    return LiveBlock.of_entry(entry)


def _add(dedupe: Dedupe, block: LiveBlock, ids: Ids, places: Sequence[int], since_ns: int) -> None:
    """Remember those ids of ``block`` whose messages, with the times that they have now, are in the window."""
    low, high, first_seq = block.first_time_ns, block.last_time_ns, block.first_seq
    if high <= since_ns:
        return
    for time_ns, some in groupby(places, key=lambda at: min(max(ids.times[at], low), high)):
        if time_ns > since_ns:
            dedupe.add({ids.ids[at]: first_seq + ids.ordinals[at] for at in some}, b"", time_ns, stored=False)


def _last_id(block: LiveBlock, ids: Ids) -> bytes:
    """The id of the last message of ``block`` that joined; b"": it has none."""
    last = block.last_seq
    while block.dead is not None and last in block.dead:
        last -= 1
    ordinal = last - block.first_seq
    at = bisect_left(ids.ordinals, ordinal)
    return ids.ids[at] if at < len(ids.ordinals) and ids.ordinals[at] == ordinal else b""
