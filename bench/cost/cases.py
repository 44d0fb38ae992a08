"""The cases of JetStream operations, each on one server with a fresh store.

A case gets a ``Trial`` and measures with ``trial.measured(work, operations)``; everything else is preparation.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from bench.cost.client import STREAM, Client, grouped, pub
from bench.servers import Server

__all__ = ["BUCKET", "CASES", "COMMITS", "Figure", "Trial"]

_DAY_NS = 86_400_000_000_000
_ACK_SUBJECT = re.compile(rb"(\$JS\.ACK\.[^ ]+) \d")
_FLOW_ACK = re.compile(rb'"type":"ack","seq":(\d+)')
_CHUNK = 128 << 10


@dataclass
class Figure:
    """A measurement: ``operations`` in ``seconds``; ``cpu_s`` is the server's processor time in them."""

    operations: float
    seconds: float
    cpu_s: float
    unit: str = "/s"


@dataclass
class Trial:
    """A case on one server. ``figures`` are rates; ``values`` are plain numbers with their unit, of jetblock alone if
    the real server does not have them."""

    server: Server
    scale: float
    figures: dict[str, Figure] = field(default_factory=dict)
    values: dict[str, tuple[float, str]] = field(default_factory=dict)

    @cached_property
    def client(self) -> Client:
        return Client(self.server.port)

    def n(self, count: int, least: int = 1000) -> int:
        return max(int(count * self.scale), min(least, count))

    @contextmanager
    def measured(self, work: str, operations: float, unit: str = "/s") -> Iterator[None]:
        cpu, began = self.server.cpu_s(), time.perf_counter()
        yield
        self.figures[work] = Figure(operations, time.perf_counter() - began, self.server.cpu_s() - cpu, unit)

    @contextmanager
    def lagging(self, work: str) -> Iterator[None]:
        """Count the late samples of jetblock's loop during the block, from the histogram of the loop's lag."""
        before = self._late()
        yield
        for over, count in self._late().items():
            self.values[f"loop lag during {work}: samples over {over} ms"] = count - before[over], ""

    def memory(self, work: str) -> None:
        self.values[f"memory after {work}"] = self.server.rss_mib(), "MiB"

    def fill(self, count: int, subjects: list[str], size: int = 128, headers: bytes = b"") -> None:
        """Publish ``count`` messages on the subjects in turn."""
        text = random.Random(1).randbytes(1 << 19).hex().encode()
        at = range(0, len(text) - size, 61)
        messages = [pub(s, text[at[i % len(at)]:][:size], headers=headers) for i, s in enumerate(subjects)]
        group = min(250, len(messages))
        rounds = grouped(messages, group)[:len(messages) // group]
        self.client.exchange((rounds[i % len(rounds)] for i in range(count // group)), group, 10_000)

    def _late(self) -> dict[str, int]:
        if self.server.name != "jetblock":
            return {}
        return dict(self.server.varz()["jetblock"]["loop_lag_ms"]["over"])


def sparse_filter(trial: Trial) -> None:
    """Use a filter that matches one message in 10 000."""
    client, count = trial.client, trial.n(5_000_000) // 10_000 * 10_000
    client.create()
    trial.fill(count, [f"bench.s{i}" for i in range(10_000)])
    wanted = count // 10_000
    with trial.measured(f"messages passed by a filter of 1 in 10 000, of {count:,}", count):
        client.consumer("F", filter_subject="bench.s42")
        client.receive(wanted, client.next("F", wanted))
    with trial.measured("the same by a push consumer (ordered)", count):
        client.ordered("O", filter_subject="bench.s4711")
        client.receive(wanted)


def thousand_consumers(trial: Trial) -> None:
    """Use a thousand pull consumers on a stream, each with its own filter."""
    client, consumers, count = trial.client, 1000, trial.n(200_000)
    client.create()
    bodies = [pub(f"$JS.API.CONSUMER.CREATE.{STREAM}.C{i}",
                  b'{"stream_name":"%b","config":{"durable_name":"C%d","ack_policy":'
                  b'"explicit","filter_subject":"bench.s%d"}}' % (STREAM.encode(), i, i)) for i in range(consumers)]
    with trial.measured("consumers created on one stream", consumers):
        client.exchange(bodies, 1, 50, b'"ts":')
    other = Client(trial.server.port)
    other.send(b"".join(client.next(f"C{i}", count) for i in range(consumers)) + b"PING\r\n")
    other.until(b"PONG\r\n")
    with trial.measured("published to a stream of 1000 consumers, delivered to the one each is for", count):
        reading = threading.Thread(target=other.receive, args=(count,))
        reading.start()
        trial.fill(count, [f"bench.s{i}" for i in range(consumers)])
        reading.join()


def pending_acks(trial: Trial) -> None:
    """Deliver messages without acknowledging them, then acknowledge them in random order."""
    client, count = trial.client, trial.n(100_000)
    client.create()
    trial.fill(count, [f"bench.s{i}" for i in range(1000)])
    client.consumer("C", ack_policy="explicit", max_ack_pending=count, ack_wait=600_000_000_000)
    acks: list[bytes] = []
    with trial.measured(f"delivered, until {count:,} are pending ack", count):
        client.receive(count, client.next("C", count), lambda data: acks.extend(_ACK_SUBJECT.findall(data)))

    def pending() -> int:
        return int(client.request(f"$JS.API.CONSUMER.INFO.{STREAM}.C")["num_ack_pending"])

    assert pending() == len(acks) == count
    random.Random(1).shuffle(acks)
    half = count // 2
    with trial.measured("  negative acks of half of them, and the redelivery", half):
        naks = b"".join(b"PUB %b 4\r\n-NAK\r\n" % ack for ack in acks[:half])
        again: list[bytes] = []
        client.receive(half, naks + client.next("C", half), lambda data: again.extend(_ACK_SUBJECT.findall(data)))
    acks = acks[half:] + again
    random.Random(2).shuffle(acks)
    with trial.measured("  acks of all in random order", count):
        client.send(b"".join(b"PUB %b 0\r\n\r\n" % ack for ack in acks))
        client.wait(lambda: pending() == 0)


def work_queue(trial: Trial) -> None:
    """Drain a work queue to the last message."""
    client, count, at_once = trial.client, trial.n(1_000_000), 5000
    client.create(retention="workqueue")
    trial.fill(count, [f"bench.s{i}" for i in range(1000)])
    client.consumer("C", ack_policy="explicit", max_ack_pending=100_000)
    acks: list[bytes] = []
    with trial.measured("work queue drained", count):
        for _ in range(count // at_once):
            requests = b"".join(b"PUB %b 0\r\n\r\n" % ack for ack in acks) + client.next("C", at_once)
            acks.clear()
            client.receive(at_once, requests, lambda data: acks.extend(_ACK_SUBJECT.findall(data)))
        client.send(b"".join(b"PUB %b 0\r\n\r\n" % ack for ack in acks))
        client.wait(lambda: client.state()["messages"] == count % at_once)


def keys(trial: Trial) -> None:
    """Use a key-value bucket: its stream and requests, as clients make them."""
    client, count = trial.client, trial.n(1_000_000)
    groups = 100
    names = [f"bench.{i % groups}.k{i}" for i in range(count)]
    client.create(max_msgs_per_subject=5, allow_rollup_hdrs=True, deny_delete=True, allow_direct=True, discard="new")
    with trial.measured(f"KV: put of {count:,} keys", count):
        trial.fill(count, names)
    trial.memory(f"{count:,} keys")
    rng = random.Random(3)
    for work, window, gets in (("KV: get, 100 in flight", 100, trial.n(100_000)),
                               ("KV: get, one at a time", 1, trial.n(5000))):
        asks = [pub(f"$JS.API.DIRECT.GET.{STREAM}.{rng.choice(names)}", b"") for _ in range(gets)]
        with trial.measured(work, gets):
            client.exchange(asks, 1, window, b"\nNats-Sequence:")
    with trial.measured("KV: watch of all keys", count):
        client.ordered("W", deliver_policy="last_per_subject", filter_subject="bench.>")
        client.receive(count)
    with trial.measured("KV: list of all keys (headers only)", count):
        client.ordered("K", deliver_policy="last_per_subject", filter_subject="bench.>", headers_only=True)
        client.receive(count)
    with trial.measured("KV: watch of one hundredth by a wildcard", count // groups):
        client.ordered("G", deliver_policy="last_per_subject", filter_subject="bench.7.>")
        client.receive(count // groups)
    for name in "WKG":
        client.request(f"$JS.API.CONSUMER.DELETE.{STREAM}.{name}")
    with trial.measured("num_pending of a new consumer, subjects", count):
        info = client.consumer("N", deliver_policy="last_per_subject", filter_subject="bench.*.>")
        assert info["num_pending"] == count, info
    with trial.measured("subjects_filter, all pages, subjects", count):
        seen = 0
        while seen < count:
            ask = {"subjects_filter": "bench.>", "offset": seen}
            seen += len(client.request(f"$JS.API.STREAM.INFO.{STREAM}", ask)["state"]["subjects"])
    some = names[:trial.n(1000, 200)]
    trial.fill(4 * len(some), some)
    with trial.measured("KV: history of a key with 5 values", len(some)):
        for i, name in enumerate(some):
            client.ordered(f"H{i}", filter_subject=name)
            client.receive(5)
            client.send(pub(f"$JS.API.CONSUMER.DELETE.{STREAM}.H{i}", b"", ""))
    marker = b"KV-Operation: PURGE\r\nNats-Rollup: sub\r\n"
    with trial.measured("KV: purge of a key with 5 values, 100 in flight", len(some)):
        client.exchange([pub(name, b"", headers=marker) for name in some], 1, 100)
    with trial.measured("purge by wildcard, of one key in 100", count // groups):
        purged = client.request(f"$JS.API.STREAM.PURGE.{STREAM}", {"filter": "bench.13.>"})["purged"]
        assert purged >= count // groups, purged


def gets(trial: Trial) -> None:
    """Get a bucket's values in other ways: by sequence, as JSON, and many with one request."""
    client, count, asked, each = trial.client, trial.n(200_000), trial.n(50_000), 100
    names = [f"bench.{i % 100}.k{i}" for i in range(count)]
    client.create(max_msgs_per_subject=5, allow_direct=True)
    trial.fill(count, names)
    rng = random.Random(3)

    def ask(work: str, answers: int, requests: list[bytes], mark: bytes, in_flight: int) -> None:
        with trial.measured(work, answers):
            client.exchange(requests, 1, in_flight, mark)

    direct, end = f"$JS.API.DIRECT.GET.{STREAM}", b" 204 EOB"
    seqs = [rng.randint(1, count - each) for _ in range(asked)]
    ask("get by sequence, 100 in flight", asked, [pub(direct, b'{"seq":%d}' % seq) for seq in seqs],
        b"\nNats-Sequence:", 100)
    ask("get as JSON, 100 in flight", asked,
        [pub(f"$JS.API.STREAM.MSG.GET.{STREAM}", b'{"seq":%d}' % seq) for seq in seqs], b'"seq":', 100)
    ask("values of a batch of 100, four in flight", 10 * asked,
        [pub(direct, b'{"seq":%d,"batch":%d}' % (seq, each)) for seq in seqs[:asked // 10]], end, 4)
    some = [pub(direct, b'{"seq":%d,"batch":%d,"next_by_subj":"bench.7.>"}' % (seq // 2, each))
            for seq in seqs[:asked // each]]
    ask("values of a batch of 100 by a wildcard, four in flight", asked, some, end, 4)
    keys = [b",".join(b'"%b"' % name.encode() for name in rng.sample(names, each)) for _ in range(asked // 10)]
    ask("last values of 100 keys (multi_last), four in flight", 10 * asked,
        [pub(direct, b'{"multi_last":[%b]}' % listed) for listed in keys], end, 4)


def expiry(trial: Trial) -> None:
    """Let all messages of a stream expire at once."""
    client, count = trial.client, trial.n(5_000_000)
    client.create(max_age=_DAY_NS)
    trial.fill(count, [f"bench.s{i}" for i in range(10_000)])
    time.sleep(1.1)
    with trial.measured(f"expiry of {count:,} by max_age", count), trial.lagging("expiry"):
        client.request(f"$JS.API.STREAM.UPDATE.{STREAM}",
                       {"name": STREAM, "subjects": ["bench.>"], "max_age": 1_000_000_000})
        client.wait(lambda: client.state()["messages"] == 0)
    client.request(f"$JS.API.STREAM.DELETE.{STREAM}")
    client.create(allow_msg_ttl=True)
    count = trial.n(500_000)
    began = time.perf_counter()
    trial.fill(count, [f"bench.s{i}" for i in range(10_000)], headers=b"Nats-TTL: 6s\r\n")
    published = time.perf_counter() - began
    time.sleep(max(0.0, 5 - published))  # few are due yet, or the messages were published more slowly than they expire
    with trial.measured(f"expiry of {count:,} by Nats-TTL, after 5 s", count), trial.lagging("expiry by Nats-TTL"):
        client.wait(lambda: client.state()["messages"] == 0)


def objects(trial: Trial) -> None:
    """Store an object of 1 GiB in chunks of 128 KiB: awaiting each PubAck, as nats-py does, and with 32 in flight."""
    client = trial.client
    client.create(allow_direct=True, allow_rollup_hdrs=True)
    body = random.Random(1).randbytes(_CHUNK)
    chunks = [pub("bench.C.x", body[i * 997:] + body[:i * 997]) for i in range(64)]
    total = trial.n(8192)
    for work, window, count in (("object put, a chunk at a time (as nats-py)", 1, min(total, 512)),
                                ("object put, 32 chunks in flight", 32, total)):
        with trial.measured(work, count / 8, "MiB/s"):
            client.exchange((chunks[i % 64] for i in range(count)), 1, window)
    trial.memory(f"put of {total // 8:,} MiB")
    with trial.measured("object get", total / 8, "MiB/s"):
        client.ordered("G", filter_subject="bench.C.x")
        got = client.receive(total)
    assert got > total * _CHUNK * 0.99, got
    trial.memory(f"get of {total // 8:,} MiB")


def atomic_batches(trial: Trial) -> None:
    """Publish atomic batches, a few at once."""
    client = trial.client
    client.create(allow_atomic=True)
    body = b"0123456789abcdef" * 8
    for size, count in ((10, trial.n(100_000)), (1000, trial.n(300_000))):
        rounds = []
        for k in range(count // size):
            batch = []
            for i in range(1, size + 1):
                end = b"Nats-Batch-Commit: 1\r\n" if i == size else b""
                head = b"Nats-Batch-Id: b%d-%d\r\nNats-Batch-Sequence: %d\r\n%b" % (size, k, i, end)
                batch.append(pub(f"bench.s{i}", body, "_INBOX.b.x" if end else "", head))
            rounds.append(b"".join(batch))
        with trial.measured(f"messages in atomic batches of {size}", len(rounds) * size):
            client.exchange(rounds, 1, 10)
    rounds = []
    for k in range(trial.n(20_000) // 10):
        for i in range(1, 11):
            end = b"Nats-Batch-Commit: 1\r\n" if i == 10 else b""
            head = b"Nats-Batch-Id: s-%d\r\nNats-Batch-Sequence: %d\r\n%b" % (k, i, end)
            rounds.append(pub(f"bench.s{i}", body, "_INBOX.b.x" if end else "", head))
    rounds = grouped(rounds, 10)
    with trial.measured("messages in atomic batches of 10, one batch at a time", 10 * len(rounds)):
        client.exchange(rounds, 1, 1)


def fast_ingest(trial: Trial) -> None:
    """Publish a fast-ingest batch, acked every 100 or 500 messages, two acks outstanding."""
    client, count = trial.client, trial.n(300_000)
    client.create(allow_batched=True)
    body = b"0123456789abcdef" * 8
    for flow in (100, 500):
        _ingest(trial, flow, count, [pub("bench.x", body, f"_INBOX.b.q{flow}.{flow}.ok.{i}.{0 if i == 1 else 1}.$FI")
                                     for i in range(1, count + 1)])


def _ingest(trial: Trial, flow: int, count: int, messages: list[bytes]) -> None:
    client = trial.client
    client.send(b"SUB _INBOX.b.q%d.> %d\r\n" % (flow, flow))
    rounds = grouped(messages, flow)
    with trial.measured(f"messages of a fast-ingest batch, acked every {flow}", count):
        acked, data = 0, b""
        for at, some in enumerate(rounds):
            while at * flow - acked > flow:
                data = data[-200:] + client.sock.recv(1 << 20)
                acked = max([acked, *map(int, _FLOW_ACK.findall(data))])
            client.send(some)
        client.send(pub("bench.x", b"", f"_INBOX.b.q{flow}.{flow}.ok.{count + 1}.3.$FI"))
        if b'"batch":' not in data:
            client.until(b'"batch":')
    assert client.state()["messages"] % count == 0


def copies(trial: Trial) -> None:
    """Let a mirror and a source catch up, and then follow."""
    client, count = trial.client, trial.n(1_000_000)
    client.create()
    trial.fill(count, [f"bench.s{i}" for i in range(1000)])
    for name, config in (("MIRROR", {"mirror": {"name": STREAM}}), ("SOURCED", {"sources": [{"name": STREAM}]})):
        with trial.measured(f"messages copied by a {name.removesuffix('D').lower()}, catching up", count):
            client.create(name, **config)
            client.wait(lambda of=name: client.state(of)["messages"] == count)  # type: ignore[misc]
    more = trial.n(200_000)
    with trial.measured("messages published, mirrored and sourced", more):
        trial.fill(more, [f"bench.s{i}" for i in range(1000)])
        client.wait(lambda: all(client.state(name)["messages"] == count + more for name in ("MIRROR", "SOURCED")))


CASES: dict[str, Callable[[Trial], None]] = {
    case.__name__: case for case in (
        sparse_filter, thousand_consumers, pending_acks, work_queue, keys, gets, expiry, objects, atomic_batches,
        fast_ingest, copies)}

COMMITS = (objects.__name__, fast_ingest.__name__)
"""Cases that wait for one acknowledgement after another. jetblock's means that the message is on the disk, unless
``sync_interval`` is set; that of nats-server only with ``sync_interval: always``. So these are measured with both
settings on both servers."""

BUCKET = (atomic_batches.__name__, fast_ingest.__name__)
"""Cases that jetblock also runs on MinIO."""
