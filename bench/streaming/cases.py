"""The cases of NATS Streaming, each on a separate server: what a client of its protocol does most.

The client is a raw connection. All it sends is encoded before the measurement, so that only the server is measured.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from bench.core.client import flow
from bench.cost.cases import Trial
from bench.load import Connection
from broker.streaming.wire import stan_pb2 as wire

__all__ = ["CASES"]

CLUSTER_ID = "bench"
PAYLOAD = b"0123456789abcdef" * 8
BATCH = 250
ACKS = "_INBOX.acks"
IN_FLIGHT = 10_000
"""Publishes without a PubAck; stan.go's default is 16 384."""

_HEAD = re.compile(rb"MSG \S+ \d+ (\d+)\r\n")
_ANSWER = re.compile(rb"MSG _INBOX\.answer(\d+) \d+ (\d+)\r\n")
_MESSAGE = re.compile(rb"MSG _INBOX\.msgs(\d+) \d+ \d+\r\n\x08([\x80-\xff]*[\x00-\x7f])")
"""A delivered message: the number of its inbox, and its sequence, a varint. No payload looks like one."""


class StanConnection(Connection):
    """A connection with one registered client."""

    def __init__(self, port: int, client_id: str) -> None:
        super().__init__(port)
        self.id = client_id
        self.subscribed = False
        inbox = f"_INBOX.{client_id}.hb"
        self.send(f"SUB {inbox} 1\r\n".encode())
        request = wire.ConnectRequest(client_id=client_id, heartbeat_inbox=inbox, protocol=1, conn_id=inbox.encode())
        self.server = wire.ConnectResponse.FromString(self.ask(f"_STAN.discover.{CLUSTER_ID}",
                                                               request.SerializeToString()))
        assert not self.server.error, self.server.error

    def ask(self, subject: str, body: bytes) -> bytes:
        """Send a request, and return its answer; nothing else may arrive meanwhile."""
        inbox = b"_INBOX.%b.%d" % (self.id.encode(), time.monotonic_ns())
        self.send(b"SUB %b 9\r\nUNSUB 9 1\r\n" % inbox + pub(subject, inbox.decode(), body))
        got = self.until(b"MSG " + inbox)
        got += b"" if b"\r\n" in got[got.index(b"MSG "):] else self.until(b"\r\n")
        at = got.index(b"MSG ")
        if got[at - 1:at] == b"H":  # no responders: the port is open before the server serves
            time.sleep(0.05)
            return self.ask(subject, body)
        head, _, rest = got[at:].partition(b"\r\n")
        size = int(head.split()[-1])
        while len(rest) < size + 2:
            rest += self.sock.recv(1 << 20)
        return rest[:size]

    def publishes(self, channel: str, count: int) -> bytes:
        """Return publishes whose PubAcks come to ``ACKS``."""
        subject = f"{self.server.pub_prefix}.{channel}"
        return b"".join(pub(subject, ACKS, wire.PubMsg(
            client_id=self.id, conn_id=f"_INBOX.{self.id}.hb".encode(), guid=f"{number:022}", subject=channel,
            data=PAYLOAD).SerializeToString()) for number in range(count))


def pub(subject: str, reply: str, body: bytes) -> bytes:
    return b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply.encode(), len(body), body)


def _pub_acks(client: StanConnection) -> int:
    """Subscribe to PubAcks; return the bytes in which each one comes."""
    if not client.subscribed:
        client.send(f"SUB {ACKS} 2\r\nPING\r\n".encode())
        client.until(b"PONG\r\n")
        client.subscribed = True
    size = wire.PubAck(guid="0" * 22).ByteSize()
    return len(f"MSG {ACKS} 2 {size}\r\n") + size + 2


def _fill(client: StanConnection, channel: str, count: int) -> None:
    size = _pub_acks(client)
    block = client.publishes(channel, BATCH)
    flow([client.sock], [block], [client.sock], sent_max=count // BATCH, window=IN_FLIGHT * size,
         expected=count // BATCH * BATCH * size)


def publish(trial: Trial) -> None:
    """Publish with many messages in flight."""
    client, count = StanConnection(trial.server.port, "publisher"), trial.n(500_000) // BATCH * BATCH
    _fill(client, "warm", BATCH)
    block, size = client.publishes("many", BATCH), _pub_acks(client)
    with trial.measured(f"published, {IN_FLIGHT} in flight", count):
        flow([client.sock], [block], [client.sock], sent_max=count // BATCH, window=IN_FLIGHT * size,
             expected=count * size)


def publish_one_at_a_time(trial: Trial) -> None:
    """Publish, and wait for each PubAck."""
    client, count = StanConnection(trial.server.port, "publisher"), trial.n(5000)
    _fill(client, "warm", BATCH)
    message, size = client.publishes("single", 1), _pub_acks(client)
    with trial.measured("published one at a time", count):
        flow([client.sock], [message], [client.sock], sent_max=count, window=1, expected=count * size)


def subscribe(trial: Trial) -> None:
    """Read a channel from its beginning with an ack for each message."""
    _subscribe(trial, "messages of one subscription, each acked", queue="", members=1)


def queue_group(trial: Trial) -> None:
    """Read a channel by a queue group with an ack for each message."""
    _subscribe(trial, "messages of a queue group of 4, each acked", queue="q", members=4)


def _subscribe(trial: Trial, work: str, *, queue: str, members: int) -> None:
    count = trial.n(200_000) // BATCH * BATCH
    _fill(StanConnection(trial.server.port, "publisher"), "read", count)
    reader = _Reader(StanConnection(trial.server.port, "subscriber"), "read", count, members)
    with trial.measured(work, count):
        reader.subscribe(queue)
        reader.read(count)


class _Reader:
    """A client that acks each message as soon as it has come, like a stock client does."""

    def __init__(self, client: StanConnection, channel: str, count: int, members: int) -> None:
        self._client = client
        self._channel = channel
        self._members = members
        acks = (wire.Ack(subject=channel, sequence=seq).SerializeToString() for seq in range(1, count + 1))
        self._acks = {ack[len(channel) + 3:]: b"%d\r\n%b\r\n" % (len(ack), ack) for ack in acks}
        """For each sequence, as a varint, the end of the line and the payload of its ack."""
        self._heads: dict[bytes, bytes] = {}
        """For each member, the beginning of the line of an ack."""

    def subscribe(self, queue: str) -> None:
        """Subscribe; the messages may arrive before the answers of later members."""
        client, members = self._client, self._members
        client.send(b"".join(b"SUB _INBOX.%b%d %d\r\n" % (kind, member, at * 1000 + member) for member in range(members)
                             for at, kind in enumerate((b"answer", b"msgs"), 1)))
        for member in range(members):
            request = wire.SubscriptionRequest(
                client_id=client.id, subject=self._channel, q_group=queue, inbox=f"_INBOX.msgs{member}",
                max_in_flight=1024, ack_wait_in_secs=30, start_position=wire.FIRST)
            client.send(pub(client.server.sub_requests, f"_INBOX.answer{member}", request.SerializeToString()))

    def read(self, count: int) -> None:
        """Read and ack until ``count`` messages have come."""
        sock, acks, heads = self._client.sock, self._acks, self._heads
        sock.settimeout(60)
        rest, early, acked = b"", list[tuple[bytes, bytes]](), 0
        while acked < count:
            data = rest + sock.recv(1 << 18)
            end = _end(data)
            came = early + _MESSAGE.findall(data, 0, end)
            if len(heads) < self._members:
                for head in _ANSWER.finditer(data, 0, end):
                    answer = wire.SubscriptionResponse.FromString(data[head.end():head.end() + int(head[2])])
                    assert not answer.error, answer.error
                    heads[head[1]] = b"PUB %b " % answer.ack_inbox.encode()
                early = [one for one in came if one[0] not in heads]
                came = [one for one in came if one[0] in heads]
            out = [heads[member] + acks[seq] for member, seq in came]
            acked += len(out)
            rest = data[end:]
            if out:
                sock.sendall(b"".join(out))


def _end(data: bytes) -> int:
    """Return the end of the last complete message in ``data``."""
    last = data.rfind(b"MSG _INBOX.")
    head = _HEAD.match(data, max(last, 0))
    end = head.end() + int(head[1]) + 2 if head else len(data) + 1
    return end if end <= len(data) else max(last, 0)


CASES: dict[str, Callable[[Trial], None]] = {
    one.__name__: one for one in (publish, publish_one_at_a_time, subscribe, queue_group)}
