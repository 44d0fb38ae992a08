"""The acknowledgements that clients received, and the check that a fresh reader of the store finds them.

The reader shares only the code of replay with the brokers. It takes no virtual time, so it reads one state of the
store.
"""

from __future__ import annotations

from broker.storage.format.block import BlockRef
from broker.storage.format.claim import Claim
from broker.storage.format.errors import CutOff, FormatError
from broker.storage.format.frame import Chunk
from broker.storage.format.frames import decode_frame
from broker.storage.format.header import HEADER_BYTES, ObjectHeader, ObjectKind
from broker.storage.format.index import decode_index
from broker.storage.objectstore.base import ObjectInfo
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.paths import ShardPaths, block_key, parse
from broker.storage.read.places import places
from broker.storage.read.snapshot import replay
from broker.storage.read.steps import run_blocking
from broker.storage.state.applied import ShardState
from broker.storage.state.stream import StreamState

__all__ = ["Lost", "Oracle"]

PATHS = ShardPaths(0)


class Lost(AssertionError):
    """A promise was broken."""


class Oracle:
    """The requests of clients and their acknowledgements."""

    def __init__(self, store: MemoryStore, shards: int = 1) -> None:
        self.store = store
        self._shards = shards
        self.offered: dict[tuple[int, int], set[bytes]] = {}
        """(stream, seq) → payloads that some owner gave that sequence, acknowledged or not."""
        self.acked: dict[tuple[int, int], bytes] = {}
        self.removing: set[tuple[int, int]] = set()
        """Messages whose removal was requested: they may be there or not."""
        self.removed: set[tuple[int, int]] = set()
        """Messages whose removal was acknowledged: they must be gone."""
        self.streams: dict[int, str] = {}
        """stream → "made", "going" or "gone"; as acknowledged, but "going" as requested."""
        self.delivered: dict[int, int] = {}
        """stream → highest delivered sequence of its consumer that was acknowledged."""
        self.checks = 0
        self._read: dict[tuple[str, int], dict[int, bytes]] = {}

    def ack(self, stream_id: int, first_seq: int, payloads: list[bytes]) -> None:
        for seq, payload in enumerate(payloads, first_seq):
            other = self.acked.setdefault((stream_id, seq), payload)
            if other != payload:
                raise Lost(f"sequence {seq} of stream {stream_id} names two messages: {other!r} and {payload!r}")

    def check(self) -> None:
        """Read the store as a fresh reader, and compare."""
        try:
            states = [run_blocking(replay(ShardPaths(shard)), self._get, self._list).state
                      for shard in range(self._shards)]
        except (FormatError, CutOff) as error:
            raise Lost(f"a fresh reader cannot read the store: {error}") from error
        self.compare(*states)

    def compare(self, *states: ShardState) -> None:
        """Compare the replayed states of all shards with what was acknowledged."""
        self.checks += 1
        placed = places(enumerate(states), states[0].catalogue)
        streams = {stream.stream_id: stream for _, stream in placed}
        if len(placed) != len(streams):
            raise Lost(f"a stream is in two shards: {placed}")
        end = max(state.position for state in states)
        for stream_id, status in self.streams.items():
            there = stream_id in streams
            if status == "made" and not there:
                raise Lost(f"stream {stream_id}, whose creation was acknowledged, is not there at {end}")
            if status == "gone" and there:
                raise Lost(f"stream {stream_id}, whose deletion was acknowledged, is there at {end}")
        live: dict[int, dict[int, bytes]] = {}
        for shard, stream in placed:
            if stream.offline is not None:
                raise Lost(f"{stream!r} is offline: {stream.offline}")
            live[stream.stream_id] = self._checked(stream, ShardPaths(shard))
        for key, payload in self.acked.items():
            stream_id, seq = key
            if stream_id not in live:
                continue
            found = live[stream_id].get(seq)
            if found is None:
                if key not in self.removing:
                    raise Lost(f"message {seq} of stream {stream_id}, acknowledged, is lost at {end}: "
                               f"{streams[stream_id]!r}")
            elif found != payload:
                raise Lost(f"message {seq} of stream {stream_id} reads {found!r}, acknowledged was {payload!r}")
            elif key in self.removed:
                raise Lost(f"message {seq} of stream {stream_id} is back, though its removal was acknowledged")
        for stream_id, seq in self.delivered.items():
            if stream_id in streams:
                consumer = streams[stream_id].consumers["c"]
                if consumer.delivered_sseq < seq:
                    raise Lost(f"the consumer of {stream_id} forgot that {seq} was delivered: "
                               f"{consumer.delivered_sseq}")

    def live(self, stream: StreamState, paths: ShardPaths = PATHS) -> dict[int, bytes]:
        """Read all of the stream's messages. ``paths`` are those of its shard."""
        return {seq: payload for entry in stream.blocks
                for seq, payload in self._payloads(stream, entry.ref, paths).items()
                if seq >= stream.first_seq and not entry.is_dead(seq)}

    def _checked(self, stream: StreamState, paths: ShardPaths) -> dict[int, bytes]:
        """Return the stream's messages, after checking the invariants of its state."""
        messages = self.live(stream, paths)
        if len(messages) != stream.msgs:
            raise Lost(f"{stream!r} holds {len(messages)} messages")
        for consumer in stream.consumers.values():
            wanted = set(range(consumer.floor_sseq + 1, consumer.delivered_sseq + 1))
            if set(consumer.pending) != wanted:
                raise Lost(f"consumer of {stream!r}: pending {sorted(consumer.pending)}, not {sorted(wanted)}")
        return messages

    def _payloads(self, stream: StreamState, ref: BlockRef, paths: ShardPaths) -> dict[int, bytes]:
        key = block_key(paths, stream.account, stream.name, ref)
        if key not in self.store.objects:
            raise Lost(f"{key}, which has a live block, is missing")
        read = self._read.get((key, ref.core_offset))
        if read is None:
            data = self.store.objects[key]
            head = decode_index(data[ref.index_offset:ref.index_offset + ref.index_bytes], ref)
            read = {}
            for i, frame in enumerate(head.frames):
                at = ref.frames_offset + frame.offset
                chunk: Chunk = decode_frame(head, i, data[at:at + frame.stored_bytes])
                for j, body in enumerate(chunk.bodies):
                    seq = chunk.seq(j)
                    if body not in self.offered.get((ref.stream_id, seq), ()):
                        raise Lost(f"message {seq} of stream {ref.stream_id} reads {body!r}, which nobody published")
                    read[seq] = body
            self._read[key, ref.core_offset] = read
        return read

    def one_writer_each(self) -> None:
        """Check that every object of an epoch's log, its pages and its roots have the nonce of its claim."""
        claims: dict[tuple[int, int], bytes] = {}
        for key, data in self.store.objects.items():
            parsed = parse(key)
            assert parsed is not None
            if parsed.kind == ObjectKind.CLAIM:
                assert parsed.position is not None
                assert parsed.shard is not None
                claims[parsed.shard, parsed.position.epoch] = Claim.decode(data, parsed.position.epoch).run_id
        for key, data in self.store.objects.items():
            header = ObjectHeader.unpack(data[:HEADER_BYTES], key)
            epoch, parsed = header.position.epoch, parse(key)
            if (header.kind in (ObjectKind.SEGMENT, ObjectKind.ROOT, ObjectKind.PAGES)
                    and parsed is not None and parsed.shard is not None
                    and header.nonce != claims[parsed.shard, epoch]):
                raise Lost(f"{key} was written by another than epoch {epoch}'s owner")
        for shard in range(self._shards):
            epochs = sorted(epoch for of, epoch in claims if of == shard)
            if epochs != list(range(1, len(epochs) + 1)):
                raise Lost(f"claims of shard {shard} are missing: {epochs}")

    def _get(self, key: str, start: int, end: int | None) -> bytes | None:
        data = self.store.objects.get(key)
        return None if data is None else data[start:end]

    def _list(self, prefix: str, after: str) -> list[ObjectInfo]:
        return [ObjectInfo(key, 0) for key in self.store._keys if key.startswith(prefix) and key > after]
