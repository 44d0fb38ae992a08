"""The load generator: raw sockets and pre-encoded bytes in a separate process, so that only the server is measured.

    python bench/load.py CASE --port N [--messages N] [--in-flight N] …      prints one JSON line

Every case counts what was received (PubAcks, messages), not what was sent, and fails on the first error reply.
All servers get the same bytes, so ratios between servers within a run are meaningful.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import select
import socket
import ssl
import sys
import time
from collections.abc import Callable
from typing import Any

__all__ = ["Connection", "main"]

BATCH = 250
PAYLOAD = b"0123456789abcdef" * 8
ACK_SUBJECT = re.compile(rb"\r\nMSG [^ ]+ \d+ (\$JS\.ACK\.[^ ]+) ")


class Connection:
    """A NATS connection without a client's overhead; single-threaded, non-blocking once set up."""

    def __init__(self, port: int, verbose: bool = False, tls: bool = False, user: str = "") -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rest = b""
        while b"\r\n" not in self.rest:
            self.rest += self.sock.recv(65536)
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self.sock = context.wrap_socket(self.sock)
        self.send(b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"lang":"bench",'
                  b'"version":"1",%b"protocol":1}\r\nPING\r\n' % (b'"user":"%b","pass":"p",' % user.encode() if user
                                                                  else b""))
        self.until(b"PONG\r\n")

    def send(self, data: bytes) -> None:
        self.sock.setblocking(True)
        self.sock.sendall(data)

    def until(self, mark: bytes, seconds: float = 60) -> bytes:
        """Read until ``mark`` arrives; return everything read."""
        self.sock.settimeout(seconds)
        got = b""
        while mark not in got:
            data = self.sock.recv(1 << 20)
            if not data:
                raise ConnectionError(f"closed by the server, after {got[-300:]!r}")
            got += data
        return got

    def request(self, subject: str, body: object = None, seconds: float = 60) -> dict[str, Any]:
        """Send a JetStream API request, and return its answer as JSON."""
        payload = json.dumps(body).encode() if body is not None else b""
        inbox = b"_INBOX.req.%d" % time.monotonic_ns()
        self.send(b"SUB %b 9\r\nUNSUB 9 1\r\nPUB %b %b %d\r\n%b\r\n" % (inbox, subject.encode(), inbox, len(payload),
                                                                        payload))
        got = self.until(b"}\r\n", seconds)
        head, _, rest = got[got.index(b"MSG "):].partition(b"\r\n")
        size = int(head.split()[-1])
        while len(rest) < size + 2:
            rest += self.sock.recv(1 << 20)
        answer = json.loads(rest[:size])
        if "error" in answer:
            raise RuntimeError(f"{subject}: {answer['error']}")
        return answer


class Count:
    """Counts a mark in a byte stream that arrives in chunks."""

    def __init__(self, mark: bytes) -> None:
        self.mark, self.tail, self.n = mark, b"", 0

    def feed(self, data: bytes) -> None:
        data = self.tail + data
        self.n += data.count(self.mark)
        self.tail = data[-(len(self.mark) - 1):]
        if self.tail.count(self.mark):  # impossible: the tail is one byte shorter than the mark
            raise AssertionError(self.mark)


def publish(args: argparse.Namespace) -> dict[str, Any]:
    """Publish to JetStream with a window of unanswered messages, round robin over --streams or --subjects."""
    payload = _payloads(args.size, args.incompressible)
    if args.streams > 1:
        names = [b"bench%d.x" % (i % args.streams) for i in range(max(args.streams, BATCH))]
    elif args.subjects > 1:
        names = [b"bench.s%07d" % i for i in range(args.subjects)]
    else:
        names = [b"bench.x"] * 16 * BATCH
    return _publish(args,
                    [b"PUB %b _INBOX.b.%d %d\r\n%b\r\n" % (s, i, args.size, payload()) for i, s in enumerate(names)])


def events(args: argparse.Namespace) -> dict[str, Any]:
    """Publish the data for the Spark measurements: nearly 500 subjects. ``bench.orders.eu.*`` has a quarter of the
    messages, ``bench.alarm.*`` a thousandth; a tenth of all have headers."""
    payload, rng = _payloads(args.size), random.Random(2)
    msgs = []
    for i in range(100_000):
        kind = "alarm" if i % 1000 == 0 else "orders.eu" if i % 4 == 1 else rng.choice(("orders.us", "orders.asia",
                                                                                        "metrics"))
        subject, body = b"bench.%b.%d" % (kind.encode(), rng.randrange(100)), payload()
        if i % 10 == 0:
            head = b"NATS/1.0\r\nTrace-Id: %016x\r\n\r\n" % rng.getrandbits(64)
            msgs.append(b"HPUB %b _INBOX.b.%d %d %d\r\n%b%b\r\n" % (subject, i, len(head), len(head) + len(body), head,
                                                                    body))
        else:
            msgs.append(b"PUB %b _INBOX.b.%d %d\r\n%b\r\n" % (subject, i, len(body), body))
    return _publish(args, msgs)


def _payloads(size: int, incompressible: bool = False) -> Callable[[], bytes]:
    """Return a maker of hexadecimal text, different in each message: compressible by its alphabet, not by repetition.
    Or of random bytes."""
    rng = random.Random(1)
    pool = rng.randbytes(1 << 20) if incompressible else rng.randbytes(1 << 20).hex().encode()

    def payload() -> bytes:
        at = rng.randrange(len(pool) - size)
        return pool[at:at + size]

    return payload


def _publish(args: argparse.Namespace, msgs: list[bytes]) -> dict[str, Any]:
    """Send ``msgs`` repeatedly until --messages are acknowledged, with at most --in-flight unanswered."""
    con = Connection(args.port)
    con.send(b"SUB _INBOX.b.* 1\r\n")
    step = min(BATCH, args.in_flight)
    rounds = [b"".join(msgs[i:i + step]) for i in range(0, len(msgs) - step + 1, step)]
    acks, errors, sent, k = Count(b'"seq":'), Count(b'"error"'), 0, 0
    out = memoryview(b"")
    con.sock.setblocking(False)
    began, last = time.perf_counter(), time.perf_counter()
    while acks.n < args.messages:
        want_write = bool(out) or (sent < args.messages and sent + step - acks.n <= args.in_flight)
        r, w, _ = select.select([con.sock], [con.sock] if want_write else [], [], 5)
        if r:
            data = con.sock.recv(1 << 20)
            if not data:
                raise ConnectionError("closed by the server")
            acks.feed(data)
            errors.feed(data)
            if errors.n:
                raise RuntimeError(f"the server answered {data[-400:]!r}")
            last = time.perf_counter()
        if w:
            if not out:
                out = memoryview(rounds[k % len(rounds)])
                k += 1
                sent += step
            out = out[con.sock.send(out):]
        if time.perf_counter() - last > args.silence_s:
            return {"stalled": True, "acks": acks.n, "seconds": time.perf_counter() - began}
    seconds = time.perf_counter() - began
    return {"rate": acks.n / seconds, "seconds": seconds, "messages": acks.n}


def one_by_one(args: argparse.Namespace) -> dict[str, Any]:
    """Publish to JetStream, waiting for each PubAck."""
    con = Connection(args.port)
    con.send(b"SUB _INBOX.b.* 1\r\n")
    times = []
    began = time.perf_counter()
    for i in range(args.messages):
        at = time.perf_counter()
        con.sock.sendall(b"PUB bench.x _INBOX.b.%d %d\r\n%b\r\n" % (i, len(PAYLOAD), PAYLOAD))
        got = b""
        while b"}\r\n" not in got:  # a PING may follow
            got += con.sock.recv(65536)
        times.append(time.perf_counter() - at)
    seconds = time.perf_counter() - began
    times.sort()
    return {"rate": args.messages / seconds, "seconds": seconds, "p50_ms": times[len(times) // 2] * 1e3,
            "p99_ms": times[len(times) * 99 // 100] * 1e3}


def pull(args: argparse.Namespace) -> dict[str, Any]:
    """Consume --messages by pulls of --batch, two outstanding, with or without explicit acks."""
    con = Connection(args.port)
    name = args.consumer.encode()
    con.send(b"SUB _INBOX.p.%b.* 1\r\n" % name)
    ask = b"PUB $JS.API.CONSUMER.MSG.NEXT.BENCH.%b _INBOX.p.%b.%%d %%d\r\n%%b\r\n" % (name, name)
    body = json.dumps({"batch": args.batch}).encode()
    got, pulls, asked, tail = 0, 0, 0, b""
    deliveries = Count(b" $JS.ACK.")
    con.sock.setblocking(False)
    out = bytearray()
    began, cpu = time.perf_counter(), time.process_time()
    last = began
    while got < args.messages:
        while asked - got <= args.batch and asked < args.messages + args.batch:
            pulls += 1
            asked += args.batch
            out += ask % (pulls, len(body), body)
        r, w, _ = select.select([con.sock], [con.sock] if out else [], [], 5)
        if r:
            data = con.sock.recv(1 << 20)
            if not data:
                raise ConnectionError("closed by the server")
            last = time.perf_counter()
            if args.ack:
                data = tail + data
                cut = data.rfind(b"\r\n")
                # The last line may be the head of an incomplete message; the kept tail begins with its CRLF.
                found = ACK_SUBJECT.findall(b"\r\n" + data[:cut] if not tail else data[:cut])
                tail = data[cut:]
                got += len(found)
                if found:
                    out += b"PUB " + b" 0\r\n\r\nPUB ".join(found) + b" 0\r\n\r\n"
            else:
                # Messages are only counted: parsing them on two processors would cost the server its rate.
                deliveries.feed(data)
                got = deliveries.n
        if w and out:
            n = con.sock.send(out)
            del out[:n]
        if time.perf_counter() - last > args.silence_s:
            rest = repr((tail or deliveries.tail)[-300:])
            return {"stalled": True, "got": got, "tail": rest, "seconds": time.perf_counter() - began}
    seconds = time.perf_counter() - began
    con.sock.setblocking(True)
    con.send(bytes(out) + b"PING\r\n")
    con.until(b"PONG\r\n")
    return {"rate": got / seconds, "seconds": seconds, "messages": got, "cpu_s": time.process_time() - cpu}


def drain(args: argparse.Namespace) -> dict[str, Any]:
    """Run ``pull`` with acks, until the stream is empty."""
    began = time.perf_counter()
    pulled = pull(args)
    if "rate" not in pulled:
        return pulled
    con = Connection(args.port)
    while left := con.request("$JS.API.STREAM.INFO.BENCH")["state"]["messages"]:
        if time.perf_counter() - began > pulled["seconds"] + args.silence_s:
            return {"stalled": True, "left": left}
        time.sleep(0.005)
    seconds = time.perf_counter() - began
    return {"rate": args.messages / seconds, "seconds": seconds, "messages": args.messages}


def core(args: argparse.Namespace) -> dict[str, Any]:
    """Publish core messages to --subscribers subscriptions, each on its own connection, all read here."""
    subs = [Connection(args.port, tls=args.tls) for _ in range(args.subscribers)]
    for c in subs:
        c.send(b"SUB core.x 1\r\nPING\r\n")
        c.until(b"PONG\r\n")
        c.sock.setblocking(False)
    con = Connection(args.port, tls=args.tls)
    con.sock.setblocking(False)
    block = b"PUB core.x %d\r\n%b\r\n" % (len(PAYLOAD), PAYLOAD) * BATCH
    per_message = len(b"MSG core.x 1 128\r\n") + 130
    expected = args.messages * per_message
    counts = {c.sock: 0 for c in subs}
    sent, out = 0, memoryview(b"")
    # A publisher faster than its subscribers would make them slow consumers, so at most 4 MB are in between.
    window = (4 << 20) // per_message if args.subscribers else args.messages
    buffer = bytearray(1 << 20)
    began = last = time.perf_counter()
    socks = [c.sock for c in subs]
    done = 0
    while done < len(subs) or sent < args.messages or out:
        slowest = min(counts.values()) // per_message if counts else sent
        want = bool(out) or (sent < args.messages and sent - slowest < window)
        r, w, _ = select.select(socks, [con.sock] if want else [], [], 5)
        for s in r:
            counts[s] += receive(s, buffer)
            if counts[s] >= expected:
                done += 1
                socks.remove(s)
            last = time.perf_counter()
        if w:
            if not out:
                out = memoryview(block)
                sent += BATCH
            with contextlib.suppress(ssl.SSLWantWriteError, ssl.SSLWantReadError):
                out = out[con.sock.send(out):]
            if not subs:
                last = time.perf_counter()
        if time.perf_counter() - last > args.silence_s:
            return {"stalled": True, "counts": list(counts.values()), "seconds": time.perf_counter() - began}
    if not subs:
        con.sock.setblocking(True)
        con.send(b"PING\r\n")
        con.until(b"PONG\r\n")
    seconds = time.perf_counter() - began
    return {"rate": args.messages / seconds, "seconds": seconds, "messages": args.messages}


def receive(sock: socket.socket, buffer: bytearray) -> int:
    """Read what is available, including what TLS has already decrypted; return its size in bytes."""
    size = 0
    try:
        while True:
            n = sock.recv_into(buffer)
            if not n:
                raise ConnectionError("a subscriber was closed by the server")
            size += n
            if not isinstance(sock, ssl.SSLSocket):
                return size
    except ssl.SSLWantReadError:
        return size


def setup(args: argparse.Namespace) -> dict[str, Any]:
    """Create the streams that the other cases use."""
    con = Connection(args.port)
    extra = json.loads(args.config)
    for i in range(args.streams):
        name, subjects = ("BENCH", ["bench.>"]) if args.streams == 1 else (f"BENCH{i}", [f"bench{i}.>"])
        con.request(f"$JS.API.STREAM.CREATE.{name}", {"name": name, "subjects": subjects, "storage": "file", **extra})
    return {}


def consumer(args: argparse.Namespace) -> dict[str, Any]:
    """Create the consumer for ``pull``."""
    con = Connection(args.port)
    config = {"durable_name": args.consumer, "ack_policy": "explicit" if args.ack else "none", "deliver_policy": "all",
              "max_ack_pending": 100_000 if args.ack else 0}
    con.request(f"$JS.API.CONSUMER.CREATE.BENCH.{args.consumer}", {"stream_name": "BENCH", "config": config})
    return {}


def info(args: argparse.Namespace) -> dict[str, Any]:
    """Return STREAM.INFO of BENCH."""
    return Connection(args.port).request("$JS.API.STREAM.INFO.BENCH")["state"]


CASES: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "setup": setup, "consumer": consumer, "publish": publish, "events": events, "one": one_by_one, "pull": pull,
    "drain": drain, "core": core,
    "info": info,
}


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("case", choices=CASES)
    p.add_argument("--port", type=int, required=True)
    p.add_argument("--messages", type=int, default=1_000_000)
    p.add_argument("--in-flight", type=int, default=10_000)
    p.add_argument("--size", type=int, default=128)
    p.add_argument("--incompressible", action="store_true", help="publish only: payloads of random bytes")
    p.add_argument("--streams", type=int, default=1)
    p.add_argument("--subjects", type=int, default=1)
    p.add_argument("--subscribers", type=int, default=1)
    p.add_argument("--batch", type=int, default=500)
    p.add_argument("--consumer", default="C")
    p.add_argument("--ack", action="store_true")
    p.add_argument("--tls", action="store_true", help="core only")
    p.add_argument("--config", default="{}")
    p.add_argument("--silence-s", type=float, default=20, help="seconds without an answer that end a case")
    print(json.dumps(CASES[(args := p.parse_args()).case](args)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
