"""A fresh reader of the store, and the comparison of its view with the answers that clients received.

The reader shares only the code of replay with the brokers. It takes no virtual time, so it reads one state of the
store.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from broker.storage.format.block import BlockRef
from broker.storage.format.errors import CutOff, FormatError
from broker.storage.format.frames import decode_frame
from broker.storage.format.index import decode_index
from broker.storage.format.message_size import message_size
from broker.storage.objectstore.base import ObjectInfo
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.paths import ShardPaths, block_key
from broker.storage.read.snapshot import replay
from broker.storage.read.steps import run_blocking
from broker.storage.state.applied import ShardState
from broker.storage.state.consumer import ConsumerState
from broker.storage.state.stream import StreamState
from tests.sim.streams.record import ConsumerRecord, Lost, StreamRecord
from tests.sim.streams.special import Special
from tests.sim.streams.staging import Staging

__all__ = ["Message", "StoreChecker"]

PATHS = ShardPaths(0)


class Message(NamedTuple):
    """A stored message."""

    subject: bytes
    hlen: int
    body: bytes
    time_ns: int

    @property
    def payload(self) -> bytes:
        return self.body[self.hlen:]

    @property
    def size(self) -> int:
        return message_size(self.subject, self.hlen, self.body)


class StoreChecker:
    """Compares the store with the records. ``records`` by incarnation."""

    def __init__(self, store: MemoryStore, records: dict[int, StreamRecord]) -> None:
        self.store = store
        self.records = records
        self.checks = 0
        self.staging: Staging | None = None
        self.specials: dict[str, Special] = {}
        """Families of special streams by kind."""
        self.state: ShardState | None = None
        """The state that the last check replayed."""
        self._read: dict[tuple[str, int], dict[int, Message]] = {}

    def check_store(self, now_ns: int) -> dict[int, dict[int, Message]]:
        """Replay the store and compare; return every live message by stream and sequence. Raises: Lost."""
        try:
            state = run_blocking(replay(PATHS), self._get, self._list).state
        except (FormatError, CutOff) as error:
            raise Lost(f"a fresh reader cannot read the store: {error}") from error
        self.state = state
        return self.compare(state, now_ns)

    def compare(self, state: ShardState, now_ns: int) -> dict[int, dict[int, Message]]:
        """Compare a replayed state with the records; return its live messages. Raises: Lost."""
        self.checks += 1
        for record in self.records.values():
            there = record.stream_id in state.streams
            if record.memory and there:
                raise Lost(f"{record} must be kept in memory, and is in the store")
            if record.status == "made" and not there and not record.memory:
                raise Lost(f"{record}, whose creation was answered, is not there at {state.position}")
            if record.status == "gone" and there:
                raise Lost(f"{record}, whose deletion was answered, is there at {state.position}")
        self.check_names(state)
        found = {}
        for stream in state.streams.values():
            if stream.offline is not None:
                raise Lost(f"{stream!r} is offline: {stream.offline}")
            found[stream.stream_id] = messages = self._messages(stream)
            if self.staging is not None:
                self.staging.check(stream, messages)
            record = self.records.get(stream.stream_id)
            if record is not None:
                self._contents(record, stream, messages, now_ns)
                if (special := self.specials.get(record.kind)) is not None:
                    special.check(record, stream, messages, now_ns)
                self._configuration(record, stream)
                for consumer in stream.consumers.values():
                    known = record.consumers.get(consumer.name)
                    _consumer(stream, consumer, known)
                for name in record.consumers:
                    if name not in stream.consumers:
                        raise Lost(f"{record}: consumer {name}, whose creation was answered, is not there")
        return found

    @staticmethod
    def check_names(state: ShardState) -> None:
        """Check that every stream is found by its name."""
        for stream in state.streams.values():
            if state.stream(stream.account, stream.name) is not stream:
                raise Lost(f"{stream!r} is not found by its name")

    def _contents(self, record: StreamRecord, stream: StreamState, messages: dict[int, Message], now_ns: int) -> None:
        for seq, message in messages.items():
            record.record_payload(seq, message.payload, "the store at")
            record.stored.add(seq)
            if message.time_ns > now_ns + record.slack_ns:
                raise Lost(f"{record}: {seq} has a time {(message.time_ns - now_ns) / 1e9:.3f} s ahead")
            if record.must_be_gone(seq, message.subject):
                raise Lost(f"{record}: {seq} is there at {stream.position}, though its removal was answered")
        for seq, publish in record.acked.items():
            message = messages.get(seq)
            if message is None:
                if record.asynchronous and seq not in record.stored:
                    continue
                if not record.may_be_gone(seq, publish.subject, now_ns):
                    raise Lost(f"{record}: {seq}, acknowledged {publish}, is lost at {stream.position}: {stream!r}")
            elif message.subject != publish.subject:
                raise Lost(f"{record}: {seq} has subject {message.subject!r}, acknowledged was {publish}")
            elif publish.msg_id and publish.msg_id not in message.body[:message.hlen]:
                raise Lost(f"{record}: {seq} lacks the id of {publish}")

    def _configuration(self, record: StreamRecord, stream: StreamState) -> None:
        if record.config is None:
            return
        for key, value in record.config.items():
            if key != "metadata" and stream.config.get(key, value) != value:
                raise Lost(f"{record}: {key} is {stream.config.get(key)}, the update to {value} was answered")

    def _messages(self, stream: StreamState) -> dict[int, Message]:
        """Return every live message, after checking the invariants of the stream's state."""
        messages: dict[int, Message] = {}
        for entry in stream.blocks:
            dead_bytes = dead_count = 0
            for seq, message in self._block(stream, entry.ref).items():
                if entry.is_dead(seq):
                    dead_bytes += message.size
                    dead_count += 1
                elif seq >= stream.first_seq:
                    messages[seq] = message
            if (dead_count, dead_bytes) != (entry.dead_count, entry.dead_bytes):
                raise Lost(f"{stream!r}: {entry.ref} counts {entry.dead_count} dead of {entry.dead_bytes} bytes, there "
                           f"are {dead_count} of {dead_bytes}")
        if len(messages) != stream.msgs:
            raise Lost(f"{stream!r} holds {len(messages)} messages")
        size = sum(message.size for message in messages.values())
        if size != stream.bytes:
            raise Lost(f"{stream!r} has {size} bytes, and counts {stream.bytes}")
        if messages and min(messages) != stream.first_seq:
            raise Lost(f"{stream!r} begins at {min(messages)}")
        times = [messages[seq].time_ns for seq in sorted(messages)]
        if times != sorted(times):
            raise Lost(f"{stream!r}: times run backwards")
        return messages

    def _block(self, stream: StreamState, ref: BlockRef) -> dict[int, Message]:
        key = block_key(PATHS, stream.account, stream.name, ref)
        data = self.store.objects.get(key)
        if data is None:
            raise Lost(f"{key}, which has a live block, is missing")
        read = self._read.get((key, ref.core_offset))
        if read is None:
            head = decode_index(data[ref.index_offset:ref.index_offset + ref.index_bytes], ref)
            read = self._read[key, ref.core_offset] = {}
            for i, frame in enumerate(head.frames):
                at = ref.frames_offset + frame.offset
                chunk = decode_frame(head, i, data[at:at + frame.stored_bytes])
                for j, body in enumerate(chunk.bodies):
                    hlen = chunk.hlens[j] if chunk.hlens else 0
                    read[chunk.seq(j)] = Message(chunk.subjects[j], hlen, body, chunk.times[j])
        return read

    def _get(self, key: str, start: int, end: int | None) -> bytes | None:
        data = self.store.objects.get(key)
        return None if data is None else data[start:end]

    def _list(self, prefix: str, after: str) -> list[ObjectInfo]:
        return [ObjectInfo(key, 0) for key in self.store._keys if key.startswith(prefix) and key > after]


def _consumer(stream: StreamState, consumer: ConsumerState, record: ConsumerRecord | None) -> None:
    floor, delivered = consumer.floor_sseq, consumer.delivered_sseq
    if floor > delivered:
        raise Lost(f"consumer {consumer.name} of {stream!r}: ack floor {floor} above delivered {delivered}")
    outside = [seq for seq in consumer.pending if not floor < seq <= delivered]
    if outside:
        raise Lost(f"consumer {consumer.name} of {stream!r}: pending {outside} outside of {floor}..{delivered}")
    if record is None:
        return
    if back := record.acked.intersection(consumer.pending):
        raise Lost(f"consumer {consumer.name} of {stream!r}: {sorted(back)} were acked, and are pending")
    if delivered < record.kept_delivered:
        raise Lost(f"consumer {consumer.name} of {stream!r} forgot deliveries: {delivered} < {record.kept_delivered}")


def as_shown(state: dict[str, Any]) -> tuple[int, int, int, int]:
    """Return messages, bytes, first and last sequence of STREAM.INFO's state."""
    return state["messages"], state["bytes"], state["first_seq"], state["last_seq"]
