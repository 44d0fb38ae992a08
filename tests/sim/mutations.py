"""Plausible bugs planted in the engine, to prove that the simulation detects them. Only for tests.

``broken`` removes whole rules of the protocol. These are bugs of one line, each with a text that describes its effect.
The simulation of real streams (tests.sim.streams.world) or a scripted test detects them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import pytest

import broker.cluster.ownership as ownership
import broker.jetstream.stream.adoption as adoption
import broker.jetstream.stream.dropping as dropping
import broker.jetstream.stream.retention.ttl as ttl
import broker.jetstream.stream.stream as stream_module
import broker.storage.checkpoint.writer as checkpoint_writer
import broker.storage.compaction.merge as merge
import broker.storage.put as put_module
import broker.storage.read.recovery as recovery
import broker.storage.shard as shard
import broker.storage.state.applied as applied
import broker.storage.state.pages as pages
import broker.storage.state.table as table
from broker.base.clock import GuardedClock
from broker.jetstream.api.dispatcher import Api
from broker.jetstream.bus import Msg
from broker.jetstream.consumer.consumer import Consumer
from broker.jetstream.inbox.inbox import Inbox
from broker.jetstream.stream.publish.dedupe import Dedupe
from broker.jetstream.stream.publish.replies import Replies
from broker.jetstream.stream.publish.sequencer import Sequencer
from broker.jetstream.stream.publish.totals import Total, Totals
from broker.jetstream.stream.requests import Requests
from broker.jetstream.stream.retention.interest import Interest
from broker.jetstream.stream.retention.ttl import MessageTtls
from broker.jetstream.stream.scheduler import Scheduler
from broker.jetstream.stream.shared.chunks import Chunks
from broker.jetstream.stream.stream import Stream
from broker.jetstream.stream.upstream.mirror import Mirror
from broker.jetstream.stream.upstream.positions import Positions
from broker.storage.checkpoint.checkpointer import Checkpointer
from broker.storage.checkpoint.sweeper import Sweeper
from broker.storage.format.header import Position
from broker.storage.format.records.append import Append
from broker.storage.format.records.body import RecordBody
from broker.storage.format.records.consumer_state import ConsumerDelta
from broker.storage.format.records.stream_update import StreamUpdate
from broker.storage.log.log import Log
from broker.storage.log.open_block import OpenBlock
from broker.storage.log.putter import Putter, Segment
from broker.storage.objectstore.base import ObjectStore, PreconditionFailed
from broker.storage.state.consumer import ConsumerState
from broker.storage.state.expiries import expires_at
from broker.storage.state.packed import Packed
from broker.storage.state.stream import StreamState

__all__ = ["MUTATIONS", "SPECIAL"]


def wait_for_oldest(patch: pytest.MonkeyPatch) -> None:
    """A caller that has nothing of its own to wait for waits for the oldest put in flight: a duplicate's PubAck comes
    too early."""
    wait = Log.wait

    def broken(self: Log, fn: Callable[..., object], *args: Any, of: Any = None) -> None:
        in_flight = self._segments.in_flight
        if self._open.has_content or not in_flight:
            wait(self, fn, *args, of=of)
        else:
            in_flight[0].waiters.append((fn, args, of, True))
            self._waiters.hold(args)

    patch.setattr(Log, "wait", broken)


def never_muted(patch: pytest.MonkeyPatch) -> None:
    """The owner keeps answering past its lease."""
    patch.setattr(Log, "lease_expired", property(lambda self: False))


def lease_from_end(patch: pytest.MonkeyPatch) -> None:
    """The lease counts from the end of a put, whenever the put began."""
    put = Putter.put

    async def broken(self: Putter, segment: Segment) -> int:
        await put(self, segment)
        return self._clock.outside_ns()

    patch.setattr(Putter, "put", broken)


def orphans_prove_the_lease(patch: pytest.MonkeyPatch) -> None:
    """A put that was stored behind a missing one renews the lease."""
    put = Putter.put

    async def put_all(self: Putter, segment: Segment) -> int:
        proved_ns = await put(self, segment)
        if (log := _logs.get(self)) is not None:  # None: the putter belongs to a recovery.
            lease_expired = log.lease_expired
            log._lease.proved_ns = max(log._lease.proved_ns, proved_ns)
            if lease_expired and not log.lease_expired:
                log._loop.call_soon(log._lease_renewed)
        return proved_ns

    _logs: dict[Putter, Log] = {}
    init = Log.__init__

    def remember(self: Log, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        _logs[self._putter] = self

    patch.setattr(Putter, "put", put_all)
    patch.setattr(Log, "__init__", remember)


def ours_by_nonce_alone(patch: pytest.MonkeyPatch) -> None:
    """An object with our nonce is taken for our put, whatever its kind."""
    async def broken(store: ObjectStore, key: str, data: Any, nonce: bytes) -> Any:
        try:
            await store.put(key, data)
        except PreconditionFailed:
            header = await put_module.holder_of(store, key)
            return None if header.nonce == nonce else header
        return None

    for module in (put_module, ownership, checkpoint_writer):
        patch.setattr(module, "put_ours", broken)


def sweep_to_newest_root(patch: pytest.MonkeyPatch) -> None:
    """Segments are released up to the newest kept root, so that a damaged root has nothing to fall back to."""
    after_round, unneeded = Sweeper.after_round, Sweeper._unneeded
    newest: dict[Sweeper, Position] = {}

    async def after(self: Sweeper, checkpointer: Checkpointer) -> None:
        newest[self] = checkpointer.roots[-1].position
        await after_round(self, checkpointer)

    patch.setattr(Sweeper, "after_round", after)
    patch.setattr(Sweeper, "_unneeded", lambda self, oldest: unneeded(self, newest[self] if oldest.epoch
                                                                      else oldest))  # type: ignore[call-arg]


def serve_though_sealed(patch: pytest.MonkeyPatch) -> None:
    """Recovery does not check whether our own epoch was sealed meanwhile."""
    async def broken(store: ObjectStore, paths: Any, epoch: int, retry: Any = None) -> Any:
        return await recovery.run(recovery.replay(paths), store, retry)  # type: ignore[attr-defined]

    patch.setattr(shard, "recover", broken)


def drop_by_name(patch: pytest.MonkeyPatch) -> None:
    """The end of a stream frees its name, also if a newer stream has it."""
    drop = applied.ShardState._drop

    def broken(self: applied.ShardState, stream: StreamState) -> None:
        drop(self, stream)
        self.names.pop((stream.account, stream.name), None)

    patch.setattr(applied.ShardState, "_drop", broken)


def update_lost_in_pages(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint keeps a stream's configuration as it was when first copied."""
    init = pages.StreamCopy.__init__
    first: dict[int, Any] = {}

    def broken(self: pages.StreamCopy, stream: StreamState) -> None:
        init(self, stream)
        self.entry[3] = first.setdefault(stream.stream_id, stream.config)

    patch.setattr(pages.StreamCopy, "__init__", broken)


def ceiling_lost_in_pages(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint forgets an async stream's ceiling."""
    init = pages.StreamCopy.__init__

    def broken(self: pages.StreamCopy, stream: StreamState) -> None:
        init(self, stream)
        self.entry[11] = 0

    patch.setattr(pages.StreamCopy, "__init__", broken)


def redelivered_lost_in_pages(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint forgets the numbers of deliveries."""
    pack_later = ConsumerState.pack_later

    def broken(self: ConsumerState) -> Callable[[], list[Any]]:
        packed = pack_later(self)()
        packed[12] = packed[13] = b""
        return lambda: packed

    patch.setattr(ConsumerState, "pack_later", broken)


def dead_bytes_wrong(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint forgets the dead bytes of a block."""
    pack = table.BlockEntry.pack

    def broken(self: table.BlockEntry) -> list[Any]:
        packed = pack(self)
        if len(packed) > 2:
            packed[3] = 0
        return packed

    patch.setattr(table.BlockEntry, "pack", broken)


def api_answers_at_once(patch: pytest.MonkeyPatch) -> None:
    """Answers of the API are sent before the state that they show is stored."""
    answer = Api._answer

    def broken(self: Api, request: Any, members: dict[str, Any], *, audited: bool, at_once: bool = False) -> None:
        answer(self, request, members, audited=audited, at_once=True)

    patch.setattr(Api, "_answer", broken)


def ids_forgotten(patch: pytest.MonkeyPatch) -> None:
    """No message id is known after a restart."""
    restore = Dedupe.restore
    patch.setattr(Dedupe, "restore", lambda self, ids, now_ns: restore(self, [], now_ns))


def removals_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Ranges of removed messages are not written: a purge is undone by a restart."""
    remove = OpenBlock.remove

    def broken(self: OpenBlock[Any], first: int, last: int, *args: Any, **kwargs: Any) -> None:
        if last - first < 1:
            remove(self, first, last, *args, **kwargs)

    patch.setattr(OpenBlock, "remove", broken)


def double_ack_at_once(patch: pytest.MonkeyPatch) -> None:
    """Deferred changes count as stored: an ack is confirmed before it is."""
    patch.setattr(Log, "barrier", lambda self, owner=None: None)


def update_not_recorded(patch: pytest.MonkeyPatch) -> None:
    """An update is accepted and never stored."""
    add = OpenBlock.add

    def broken(self: OpenBlock[Any], body: RecordBody) -> None:
        if not isinstance(body, StreamUpdate):
            add(self, body)

    patch.setattr(OpenBlock, "add", broken)


def late_applied_pages(patch: pytest.MonkeyPatch) -> None:
    """A consumer's pending list is kept by its checkpoint without the newest delivery."""
    pack_later = ConsumerState.pack_later

    def broken(self: ConsumerState) -> Callable[[], list[Any]]:
        packed = pack_later(self)()
        if len(self.pending) > 1:
            for column in (9, 10, 11):
                packed[column] = packed[column][:-8]
        return lambda: packed

    patch.setattr(ConsumerState, "pack_later", broken)


def removals_come_back(patch: pytest.MonkeyPatch) -> None:
    """A live stream uses a run's block as it was made, with messages removed since."""
    patch.setattr(adoption, "dead_in", lambda ref, parts: None)


def streams_not_notified(patch: pytest.MonkeyPatch) -> None:
    """Live streams continue to read blocks that compaction has replaced, and that are deleted. They keep their blocks,
    which they drop soon with the small bounds of these tests."""
    patch.setattr(dropping, "_IDLE_NS", 1 << 60)
    patch.setattr(Log, "notify_adopted", lambda self, adopted: [])


def walks_interrupted(patch: pytest.MonkeyPatch) -> None:
    """Blocks are replaced during an operation that walks through them."""
    apply = adoption.apply_compaction

    def broken(stream: Any, adopted: Any) -> bool:
        walks, stream.heads.walks = stream.heads.walks, 0
        try:
            return apply(stream, adopted)
        finally:
            stream.heads.walks = walks

    patch.setattr(adoption, "apply_compaction", broken)


def ids_left_behind(patch: pytest.MonkeyPatch) -> None:
    """Compaction drops the ids of messages."""
    patch.setattr(merge, "_ids", lambda one, head: {})


def rounds_across_adoptions(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint copies one part of a table before blocks of it are replaced, and another part after that."""
    async def broken(self: Checkpointer, change: Callable[[], object]) -> None:
        change()

    patch.setattr(Checkpointer, "between_rounds", broken)


def half_adopted(patch: pytest.MonkeyPatch) -> None:
    """The record of staged messages leaves out their last block."""
    encode = Append.encode

    def broken(self: Append) -> dict[str, Any]:
        body = encode(self)
        return {**body, "blocks": body["blocks"][:-1] or body["blocks"]}

    patch.setattr(Append, "encode", broken)


def request_gone_early(patch: pytest.MonkeyPatch) -> None:
    """A request leaves the inbox before its answer is stored."""
    grant = Inbox._grant

    async def broken(self: Inbox, stream: Any, request: Any) -> Any:
        await self._delete(self._paths.inbox(request.request_id))
        return await grant(self, stream, request)

    patch.setattr(Inbox, "_grant", broken)


def granted_again(patch: pytest.MonkeyPatch) -> None:
    """A request that is found in the inbox again, because its owner died before deleting it, is granted twice."""
    patch.setattr(Requests, "granted", lambda self, request_id, version=None: None)


def delivered_before_stored(patch: pytest.MonkeyPatch) -> None:
    """Consumers see messages that are not in the store yet."""
    patch.setattr(Stream, "safe_seq", property(lambda self: self.live.last_seq))
    patch.setattr(Chunks, "_safe_end", lambda self, opened: opened.count)


def summaries_forget_a_segment(patch: pytest.MonkeyPatch) -> None:
    """A start counts one segment too few of each page of a block table that it does not unpack."""
    log_keys = Packed.log_keys
    patch.setattr(Packed, "log_keys", lambda self: islice(log_keys(self), 1, None))


def acks_held_back(patch: pytest.MonkeyPatch) -> None:
    """A consumer stores nothing while one of its acked messages must be read, but answers other acks."""
    pop_delta = Consumer.pop_delta

    def broken(self: Consumer) -> ConsumerDelta | None:
        removal = self._double_acks._removal
        if removal is not None and not removal.done():
            self._dirty = False
            return None
        return pop_delta(self)

    patch.setattr(Consumer, "pop_delta", broken)


def leavings_not_recorded(patch: pytest.MonkeyPatch) -> None:
    """A restart does not know of acked messages that were not removed yet."""
    patch.setattr(Interest, "pop_changes", lambda self: {})


def positions_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The positions in sources are not stored: after a restart their messages come again."""
    patch.setattr(Positions, "pop_changes", lambda self: self.moved.clear() or {})


def mirrors_miss_one(patch: pytest.MonkeyPatch) -> None:
    """A mirror skips the message after each batch."""
    next_seq = Mirror.next_seq
    patch.setattr(Mirror, "next_seq", lambda self, batch: next_seq(self, batch) + 1)


def expiries_not_stored(patch: pytest.MonkeyPatch) -> None:
    """Messages with a TTL stay for ever after a restart."""
    patch.setattr(MessageTtls, "record", lambda self, block: None)


def expires_early(patch: pytest.MonkeyPatch) -> None:
    """Messages expire a second before their time."""
    patch.setattr(ttl, "expires_at",
                  lambda time_ns, seconds: expires_at(time_ns, seconds - 1 if seconds > 0 else seconds))


def markers_left_out(patch: pytest.MonkeyPatch) -> None:
    """The last message of a subject expires without a marker."""
    patch.setattr(stream_module, "delete_marker", lambda config: b"")


def batches_in_two_segments(patch: pytest.MonkeyPatch) -> None:
    """An atomic batch may be cut in the middle."""
    def broken(self: Sequencer, msgs: Sequence[Msg], source: Any, time_ns: int) -> bool:
        half = len(msgs) // 2
        if half and not self._bulk(msgs[:half], source, time_ns, batched=True):
            return False
        if half:
            self._log._cut(False)  # type: ignore[attr-defined]
        return self._bulk(msgs[half:], source, time_ns, batched=True)

    patch.setattr(Sequencer, "append_batch", broken)


def fast_acks_at_once(patch: pytest.MonkeyPatch) -> None:
    """Messages of a fast-ingest batch are acked before they are stored."""
    patch.setattr(Replies, "batch_answered", lambda self, reply, answer: self._bus.publish(reply, b"", 0, answer))


def totals_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A counter starts again if its last message is not in memory."""
    get = Totals.get

    def broken(self: Totals, subject: bytes) -> Total:
        return get(self, subject) if subject in self._latest else Total(0, {})

    patch.setattr(Totals, "get", broken)


def schedules_not_stored(patch: pytest.MonkeyPatch) -> None:
    """A restart forgets the schedules."""
    patch.setattr(Scheduler, "record", lambda self: None)


def schedules_twice(patch: pytest.MonkeyPatch) -> None:
    """The message of a schedule is stored though the schedule is gone meanwhile, or has published already."""
    next_of = Scheduler.next_of
    patch.setattr(Scheduler, "next_of", lambda self, subject: next_of(self, subject) or (0, 0))


def served_too_early(patch: pytest.MonkeyPatch) -> None:
    """A new owner does not wait until its predecessor can no longer answer."""
    async def broken(*_: object) -> bool:
        return True

    patch.setattr(ownership, "_leases_over", broken)


def pages_swept_to_newest_root(patch: pytest.MonkeyPatch) -> None:
    """Pages that only older roots name are deleted, so that a damaged newest root has nothing to fall back to."""
    after_round = Sweeper.after_round

    async def broken(self: Sweeper, checkpointer: Checkpointer) -> None:
        newest = checkpointer.roots[-1].objects
        checkpointer.roots[:] = [root._replace(objects=root.objects & newest) for root in checkpointer.roots]
        await after_round(self, checkpointer)

    patch.setattr(Sweeper, "after_round", broken)


def clocks_believed(patch: pytest.MonkeyPatch) -> None:
    """The wall clock is trusted, however it leaps."""
    patch.setattr(GuardedClock, "now_ns", lambda self: self._wall_ns())
    patch.setattr(GuardedClock, "trusted", True)


def leaps_stamped(patch: pytest.MonkeyPatch) -> None:
    """Nothing expires while the wall clock is wrong, but messages get its time."""
    patch.setattr(GuardedClock, "now_ns", lambda self: self._wall_ns())


def swept_by_wrong_clocks(patch: pytest.MonkeyPatch) -> None:
    """Virtual time stays right while the wall clock is wrong, but deleting continues."""
    trusted = GuardedClock.trusted
    patch.setattr(GuardedClock, "trusted",
                  property(lambda self: trusted.fget(self) or True))  # type: ignore[attr-defined]


def never_right_again(patch: pytest.MonkeyPatch) -> None:
    """A clock that was wrong once is never trusted again."""
    trusted = GuardedClock.trusted
    wrong: set[int] = set()

    def broken(self: GuardedClock) -> bool:
        if not trusted.fget(self):  # type: ignore[attr-defined]
            wrong.add(id(self))
            kept.append(self)
        return id(self) not in wrong

    kept: list[GuardedClock] = []
    patch.setattr(GuardedClock, "trusted", property(broken))


def suspended_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A leap that the store's clock confirms is trusted as little as any other."""
    trust = GuardedClock._trust

    def broken(self: GuardedClock, wall_ns: int, elapsed_ns: int) -> bool:
        if self._confirmed and abs(wall_ns - elapsed_ns - self._base_ns) > self.APART_NS:
            return False
        return trust(self, wall_ns, elapsed_ns)

    patch.setattr(GuardedClock, "_trust", broken)


MUTATIONS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    mutation.__name__.replace("_", "-"): mutation
    for mutation in (wait_for_oldest, never_muted, lease_from_end, orphans_prove_the_lease, ours_by_nonce_alone,
                     sweep_to_newest_root, serve_though_sealed, drop_by_name, update_lost_in_pages,
                     ceiling_lost_in_pages,
                     redelivered_lost_in_pages, dead_bytes_wrong, api_answers_at_once, ids_forgotten,
                     removals_forgotten,
                     double_ack_at_once, update_not_recorded, late_applied_pages, removals_come_back,
                     streams_not_notified,
                     walks_interrupted, ids_left_behind, rounds_across_adoptions, half_adopted, request_gone_early,
                     granted_again, delivered_before_stored,
                     summaries_forget_a_segment, served_too_early, pages_swept_to_newest_root, acks_held_back,
                     leavings_not_recorded, positions_forgotten, mirrors_miss_one,
                     expiries_not_stored, expires_early, markers_left_out, batches_in_two_segments, fast_acks_at_once,
                     totals_forgotten, schedules_not_stored, schedules_twice,
                     clocks_believed, leaps_stamped, swept_by_wrong_clocks, never_right_again, suspended_for_ever)}

SPECIAL = frozenset(("positions-forgotten", "mirrors-miss-one", "expiries-not-stored", "expires-early",
                     "markers-left-out",
                     "batches-in-two-segments", "fast-acks-at-once", "totals-forgotten", "schedules-not-stored",
                     "never-right-again", "suspended-for-ever"))
"""Mutations that only worlds of special streams detect."""
