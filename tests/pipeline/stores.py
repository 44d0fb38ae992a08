"""Stores for the pipeline's tests, with a record of the messages that must be read from them.

    await varied(store, seed)        varied streams by the storage engine: thousands of messages in seconds
    await of_a_broker(directory)     the same by a broker process and a NATS client
    MemoryObjectClient(store)        a MemoryStore's objects for blocking readers, with a record of its reads

An ``Owner`` is one process run after another on a store. ``stream.live`` of its streams has the expected messages.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from broker.storage.format.block import BlockPlace, Outcome
from broker.storage.format.header import ObjectKind
from broker.storage.format.message_size import message_size
from broker.storage.format.records.append import Append
from broker.storage.format.records.kinds import RecordKind
from broker.storage.format.section import SECTIONS, UNCOMPRESSED, SectionCodec
from broker.storage.format.segment import SegmentHead, decode_head
from broker.storage.format.staged import placed
from broker.storage.log.open_block import OpenBlock
from broker.storage.objectstore.base import NotFound, ObjectInfo, ObjectStore
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.staging.writer import RunWriter
from tests import harness
from tests.inspect import stores as engine
from tests.inspect.stores import PATHS, STORE_ID, T0, Row
from tests.plain_records import add_record

__all__ = ["HEADERS", "PATHS", "STORE_ID", "T0", "MemoryObjectClient", "Owner", "Row", "Stream", "of_a_broker",
           "varied"]

HEADERS = b"NATS/1.0\r\nNats-Msg-Id: 1\r\nX-Kind: a: b\r\nX-Kind:  twice\r\n\r\n"


class Stream(engine.Stream):
    """A stream that remembers its expected content: ``live``, by sequence."""

    live: dict[int, Row]
    owner: Owner

    def create(self, config: dict[str, Any] | None = None, **more: Any) -> None:
        body = {"account": self.account, "name": self.name, "created_ns": T0,
                "config": {"name": self.name, "subjects": [f"{self.name}.>"], **(config or {})}, **more}
        block = self.owner.log.block(self)
        add_record(block, RecordKind.STREAM_CREATE, body)
        add_record(block, RecordKind.CONSUMER_CREATE, {"name": "c", "config": {"durable_name": "c"}, "created_ns": T0})
        self.owner.log.urgent()

    def append(self, rows: Sequence[tuple[bytes, bytes, bytes]], *, gap: int = 0, after_ns: int = 1_000_003) -> None:
        """Append messages (subject, headers, data) at one time, ``after_ns`` later than the last.

        ``gap`` sequences are left out before them, as in a mirror. ``await owner.log.persisted()`` ends the block.
        """
        self.owner.clock.advance(after_ns)
        now_ns = self.owner.clock.now_ns()
        first = self.last_seq + gap + 1
        hlens = [len(headers) for _, headers, _ in rows]
        self.owner.log.block(self).append_run(first, [row[0] for row in rows], hlens if any(hlens) else None,
                                              [headers + data for _, headers, data in rows], now_ns)
        for seq, (subject, headers, data) in enumerate(rows, first):
            self.live[seq] = (seq, subject, headers, data, now_ns)
        self.last_seq = first + len(rows) - 1
        self.owner.log.urgent()

    async def adopt(self, rows: Sequence[tuple[bytes, bytes, bytes]], *, block_messages: int = 100,
                    drop: Sequence[int] = ()) -> None:
        """Let staged messages join, in blocks of ``block_messages``; those with the ordinals ``drop`` are duplicates
        and are dropped."""
        owner = self.owner
        owner.clock.advance(1_000_003)
        now_ns = owner.clock.now_ns()
        writer = RunWriter(self.account, self.name, self.stream_id, now_ns=now_ns, block_messages=block_messages,
                           randbytes=owner.rng.randbytes)
        for at, (subject, headers, data) in enumerate(rows):
            writer.add(subject, data, headers, time_ns=now_ns - len(rows) + at)
        refs, seq = [], self.last_seq + 1
        low_ns = max((row[4] for row in self.live.values()), default=0)
        for run in writer.finish():
            await owner.store.put(run.key, run.data)
            assert run.entry is not None
            head = decode_head(b"".join(run.data), run.entry.position, kind=ObjectKind.RUN, object_id=run.entry.run_id)
            assert isinstance(head, SegmentHead)
            for i, row in enumerate(head.rows):
                refs.append(placed(row.ref(BlockPlace.STAGED, head.core(i)), seq, low_ns, now_ns - 3))
                seq += row.messages
        dead = []
        for at, (subject, headers, data) in enumerate(rows):
            seq = self.last_seq + 1 + at
            if at in drop:
                dead.append((seq, seq, 1, message_size(subject, len(headers), headers + data)))
            else:
                self.live[seq] = (seq, subject, headers, data, min(max(now_ns - len(rows) + at, low_ns), now_ns - 3))
        await owner.log.persisted()
        owner.log.block(self).add(Append([ref.pack() for ref in refs], dead))
        self.last_seq += len(rows)
        owner.log.urgent()
        await owner.log.persisted()

    def purge(self, upto: int) -> None:
        """Remove all messages up to ``upto``, as a limit or a purge does."""
        if self.live and (first := next(iter(self.live))) <= upto:
            self.remove(first, min(upto, self.last_seq))

    def delete(self) -> None:
        """Delete the stream; its name may be reused."""
        add_record(self.owner.log.block(self), RecordKind.STREAM_DELETE, {})
        self.owner.log.urgent()
        self.live.clear()
        del self.owner.streams[self.name]

    def sealing(self, block: OpenBlock[Any]) -> None:
        if self.owner.streams.get(self.name) is self:
            super().sealing(block)
        else:
            block.outcome = Outcome(self.last_seq + 1, self.last_seq)

    def rows(self, wanted: Callable[[Row], bool] = lambda row: True) -> list[Row]:
        """The live messages that are ``wanted``, in order."""
        return [row for row in self.live.values() if wanted(row)]


class Owner(engine.Owner):
    """Process runs, one after another, on a store (or on one shard of it). ``streams`` has the streams by name."""

    streams: dict[str, Stream]  # type: ignore[assignment]

    async def make(self, name: str, account: str = "$G", config: dict[str, Any] | None = None, **more: Any) -> Stream:
        """Make a new, empty stream, persisted; its record also has the keys of ``more``."""
        stream = self.streams[name] = Stream(self, self.rng.getrandbits(64) | 1, name, account)
        stream.create(config, **more)
        await self.log.persisted()
        return stream

    async def again(self, name: str = "broker-b", *, clean: bool = False) -> None:
        """End this process run, killed or clean, and begin the next one: a new epoch."""
        await (self.stop() if clean else self.kill())
        await self.start(name)


class MemoryObjectClient:
    """Blocking reads of the objects of a MemoryStore, as ``pipeline.store.objects`` does for real stores.

    ``asked`` lists every range that was read, ``bytes_read`` is their sum. ``before`` is called with each key before it
    is read, in the thread that reads it; it may change the store or raise.
    """

    def __init__(self, store: MemoryStore) -> None:
        self.url = store.url
        self.objects = store.objects
        self.asked: list[tuple[str, int, int | None]] = []
        self.bytes_read = 0
        self.before: Callable[[str], object] = lambda key: None

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self.asked.append((key, start, end))
        self.before(key)
        data = self.objects.get(key)
        if data is None:
            raise NotFound(f"{self.url}: {key} does not exist")
        self.bytes_read += len(data[start:end])
        return data[start:end]

    def get_many(self, ranges: Sequence[tuple[str, int, int | None]]) -> list[bytes | None]:
        found: list[bytes | None] = []
        for key, start, end in ranges:
            try:
                found.append(self.get(key, start, end))
            except NotFound:
                found.append(None)
        return found

    def put(self, key: str, data: Sequence[bytes]) -> bool:
        joined = b"".join(data)
        return self.objects.setdefault(key, joined) is joined

    def list(self, prefix: str, after: str = "") -> list[ObjectInfo]:
        return [ObjectInfo(key, len(data)) for key, data in sorted(self.objects.items())
                if key.startswith(prefix) and key > after]


async def varied(store: ObjectStore, seed: int = 1, *, steps: int = 40, shard: int = 0, large: bool = True,
                 codec: SectionCodec | None = None) -> Owner:
    """A store with random content of all kinds, the same for a seed.

    Streams: ``one`` (one subject, few sizes), ``few`` and ``many`` (subjects; sequences with gaps in ``few``),
    ``mixed`` of account ``ACME/é`` (invalid UTF-8 among its subjects, headers here and there, empty bodies, large
    ones), ``again`` (deleted and recreated) and ``empty``. Single messages and ranges are deleted, beginnings purged,
    epochs begin and checkpoints are cut on the way, so that some of it is in pages and some in the log's tail.
    Args: large: messages of more than 1 MB are among them. codec: of the frames; None: each run's own.
    Returns: the owner, whose last process run is still there: ``stop`` or ``kill`` it.
    """
    rng = random.Random(seed)
    owner = Owner(store, seed=seed, shard=shard, codec=codec or rng.choice([SECTIONS, UNCOMPRESSED]))
    await owner.start()
    for name in ("one", "few", "many", "again", "empty"):
        await owner.make(name)
    await owner.make("mixed", "ACME/é", {"description": "of another account"})
    for _ in range(steps):
        name = rng.choice(["one", "few", "many", "mixed", "again"])
        stream = owner.streams[name]
        for _ in range(rng.choice([1, 1, 2, 5])):  # These runs are in one block.
            gap = rng.choice([0, 0, 1, 7, 100_000]) if name == "few" else 0
            stream.append(list(_rows(rng, name, large)), gap=gap,
                          after_ns=rng.choice([0, 1, 999, 1_000_003, 60 * 10**9]))
        if rng.random() < 0.3:
            await owner.log.persisted()
        if stream.live and rng.random() < 0.6:
            _remove(rng, stream)
        await owner.log.persisted()
        if rng.random() < 0.1:
            await owner.round()
        if rng.random() < 0.05:
            await owner.again(clean=rng.random() < 0.5)
        if name == "again" and rng.random() < 0.2:
            stream.delete()
            await owner.make("again")
    return owner


def _rows(rng: random.Random, name: str, large: bool) -> Iterable[tuple[bytes, bytes, bytes]]:
    count = rng.choice([1, 2, 17, 60, 300])
    for i in range(count):
        headers = b""
        if name == "one":
            subject, data = b"one.only", b"%08d" % i if count > 17 else rng.randbytes(rng.randrange(40))
        elif name == "few":
            subject, data = b"few.%d.x" % rng.randrange(5), b"line %d of a log that repeats itself " % i * 20
        elif name == "many":
            subject = rng.choice([b"many.orders.%d.created", b"many.alarm.%d"]) % rng.randrange(400)
            data = rng.randbytes(rng.randrange(700))
        else:
            subject = rng.choice([b"mixed.a", b"mixed.b.c", b"mixed.\xff.bad", "mixed.ü".encode(), b"mixed.b"])
            headers = rng.choice([b"", b"", HEADERS, b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nX: \xff\xfe\r\n\r\n"])
            data = rng.randbytes(rng.choice([0, 0, 1, 100, 3000]))
            if large and rng.random() < 0.002:
                data = rng.randbytes(1_300_000)
        yield subject, headers, data


def _remove(rng: random.Random, stream: Stream) -> None:
    first, last = next(iter(stream.live)), stream.last_seq
    at = rng.choice(list(stream.live))
    kind = rng.random()
    if kind < 0.4:
        stream.remove(at, at)
    elif kind < 0.7:
        stream.remove(at, min(last, at + rng.randrange(200)))
    elif kind < 0.9:
        for seq in rng.sample(list(stream.live), min(len(stream.live), 20)):
            stream.remove(seq, seq)
    else:
        stream.purge(first + (last - first) // 3)


async def of_a_broker(directory: Path, *, messages: int = 300) -> dict[str, list[tuple[int, bytes, bytes, bytes]]]:
    """Make a store at ``directory`` by two runs of a broker process, the first one killed.

    Streams ORDERS (``orders.*.*``; headers on each third message, some deleted, a subject purged, a consumer that acked
    ten) and LOGS (``logs.>``; limited to its last 100 messages).
    Returns: by stream the live messages: sequence, subject, headers' values of ``X-No`` (b"" where none), data.
    """
    import nats  # Only tests that call this need it.
    from nats.js.api import ConsumerConfig, StreamConfig

    live: dict[str, dict[int, tuple[int, bytes, bytes, bytes]]] = {"ORDERS": {}, "LOGS": {}}
    async with harness.BrokerProcess("-js", "-sd", str(directory)) as broker:
        for run in range(2):
            nc = await nats.connect(broker.url)
            js = nc.jetstream()
            if not run:
                await js.add_stream(StreamConfig(name="ORDERS", subjects=["orders.*.*"]))
                await js.add_stream(StreamConfig(name="LOGS", subjects=["logs.>"], max_msgs=100))
            for i in range(messages):
                number = run * messages + i
                subject, data = f"orders.{('eu', 'us', 'asia')[i % 3]}.{i % 10}", b"order %d" % number
                value = str(number) if i % 3 == 0 else ""
                ack = await js.publish(subject, data, headers={"X-No": value} if value else None)
                live["ORDERS"][ack.seq] = (ack.seq, subject.encode(), value.encode(), data)
                if i % 2 == 0:
                    ack = await js.publish(f"logs.{i % 7}", b"line %d" % number)
                    live["LOGS"][ack.seq] = (ack.seq, b"logs.%d" % (i % 7), b"", b"line %d" % number)
            for seq in (3 + run * messages, 7 + run * messages):
                await js.delete_msg("ORDERS", seq)
                del live["ORDERS"][seq]
            if not run:
                await js.purge_stream("ORDERS", subject="orders.eu.6")
                live["ORDERS"] = {seq: row for seq, row in live["ORDERS"].items() if row[1] != b"orders.eu.6"}
                puller = await js.pull_subscribe("orders.us.*", "worker", config=ConsumerConfig(ack_wait=30))
                for message in await puller.fetch(10):
                    await message.ack_sync()
            await nc.close()
            if not run:
                await broker.restart()
        await broker.stop()
    return {"ORDERS": list(live["ORDERS"].values()), "LOGS": list(live["LOGS"].values())[-100:]}
