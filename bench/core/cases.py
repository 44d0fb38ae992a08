"""The cases of core NATS, each on a separate server without JetStream.

A case gets a ``Trial``. It measures a rate, or a plain number: a latency, or memory.
"""

from __future__ import annotations

import argparse
import random
import resource
from collections.abc import Callable
from dataclasses import dataclass

from bench.core.client import WebSocket, connect_all, exchange, flow
from bench.cost.cases import Figure, Trial
from bench.load import Connection, core

__all__ = ["CASES", "Case"]

PAYLOAD = b"0123456789abcdef" * 8
BATCH = 250
WINDOW = 4 << 20
"""Bytes that may be in flight: more would make slow consumers of subscribers."""

ALLOWED = """
no_auth_user: u
authorization { users: [ { user: u, password: p, permissions: {
  publish: { allow: [ "a.>", "b.*.c", "core.>" ], deny: [ "core.secret.>", "x" ] }
  subscribe: { allow: [ "a.>", "core.>", "_INBOX.>" ], deny: [ "core.secret.>" ] }
} } ] }
"""
SHARED = """
accounts {
  A { users: [ { user: a, password: p } ], exports: [ { service: "svc.>" } ] }
  B { users: [ { user: b, password: p } ], imports: [ { service: { account: A, subject: "svc.>" }, to: "their.>" } ] }
  C { users: [ { user: c, password: p } ] }
}
no_auth_user: c
"""
OPEN_FILES = 1000
"""Number of descriptors that are not connections."""


@dataclass(frozen=True)
class Case:
    """A case: ``run`` on a server with ``config``, in which ``{ws}`` is a free port."""

    run: Callable[[Trial], None]
    config: str = ""
    tls: bool = False


def _subscribed(port: int, subscriptions: bytes, count: int, *, tls: bool = False) -> list[Connection]:
    cons = [Connection(port, tls=tls) for _ in range(count)]
    for con in cons:
        con.send(subscriptions + b"PING\r\n")
        con.until(b"PONG\r\n")
    return cons


def _publish(trial: Trial, work: str, messages: int, *, publishers: int = 1, subscribers: int = 1,
             queue: str = "") -> None:
    """Publish ``messages`` in all from so many connections to so many others; the published ones are counted."""
    receivers = _subscribed(trial.server.port, f"SUB core.x {queue} 1\r\n".replace("  ", " ").encode(), subscribers)
    senders = [Connection(trial.server.port) for _ in range(publishers)]
    batch = max(BATCH // publishers, 10)
    times = max(messages // (publishers * batch), 1)
    total = times * publishers * batch
    size = len(b"MSG core.x 1 128\r\n") + 130
    with trial.measured(work, total):
        flow([con.sock for con in senders], [b"PUB core.x 128\r\n%b\r\n" % PAYLOAD * batch] * publishers,
             [con.sock for con in receivers], sent_max=times, window=WINDOW * (1 if queue else subscribers),
             expected=total * size * (1 if queue else subscribers))


def fan_out(trial: Trial) -> None:
    """Publish from one connection to a hundred subscribers."""
    _publish(trial, "published to 100 subscribers", trial.n(30_000), subscribers=100)


def fan_in(trial: Trial) -> None:
    """Publish from a hundred connections to one subscriber."""
    _publish(trial, "published by 100 connections to 1 subscriber", trial.n(500_000), publishers=100)


def queue_group(trial: Trial) -> None:
    """Publish from one connection to a queue group."""
    _publish(trial, "published to a queue group of 10", trial.n(500_000), subscribers=10, queue="q")


def plain(trial: Trial) -> None:
    """Publish and subscribe plainly, for comparison with TLS, WebSocket and permissions."""
    _publish(trial, "published to 1 subscriber", trial.n(1_000_000))


def permissions(trial: Trial) -> None:
    """Publish as a user with allowed and denied subjects."""
    _publish(trial, "published to 1 subscriber, both with permissions", trial.n(1_000_000))


def tls(trial: Trial) -> None:
    """Publish and subscribe by TLS."""
    count = trial.n(500_000)
    cpu = trial.server.cpu_s()
    got = core(argparse.Namespace(port=trial.server.port, tls=True, subscribers=1, messages=count, silence_s=20))
    trial.figures["published to 1 subscriber, both by TLS"] = Figure(count, got["seconds"], trial.server.cpu_s() - cpu)


def websocket(trial: Trial) -> None:
    """Publish and subscribe by WebSocket, 250 messages in a frame."""
    port = int(trial.server.config.split("port:")[1].split()[0])
    subscriber, publisher = WebSocket(port), WebSocket(port)
    subscriber.sock.sendall(subscriber.frame(b"SUB core.x 1\r\nPING\r\n"))
    subscriber.until(b"PONG\r\n")
    times = trial.n(500_000) // BATCH
    block = publisher.frame(b"PUB core.x 128\r\n%b\r\n" % PAYLOAD * BATCH)
    with trial.measured("published to 1 subscriber, both by WebSocket", times * BATCH):
        subscriber.count(b"MSG core.x", times * BATCH, (block for _ in range(times)), publisher.sock)


def _requests(trial: Trial, what: str, requester: str, responder: str, subject: str) -> None:
    ask, answer = (Connection(trial.server.port, user=user) for user in (requester, responder))
    answer.send(b"SUB svc.> 1\r\nPING\r\n")
    answer.until(b"PONG\r\n")
    for in_flight, count in ((1, trial.n(10_000)), (50, trial.n(100_000))):
        with trial.measured(f"requests{what}, {in_flight} in flight", count):
            times = exchange(ask, answer, subject, count, in_flight)
        trial.values[f"  p50 of them{what}, {in_flight} in flight"] = 1e3 * times[len(times) // 2], "ms"
        trial.values[f"  p99 of them{what}, {in_flight} in flight"] = 1e3 * times[len(times) * 99 // 100], "ms"


def requests(trial: Trial) -> None:
    """Send requests that another connection answers."""
    _requests(trial, "", "", "", "svc.x")


def service_import(trial: Trial) -> None:
    """Send requests that another account answers."""
    _requests(trial, " through a service import", "b", "a", "their.x")


def ten_thousand_subscriptions(trial: Trial) -> None:
    """Measure subscriptions with wildcards, on one connection."""
    _subscriptions(trial, 10_000)


def million_subscriptions(trial: Trial) -> None:
    """Measure subscriptions with wildcards, on one connection."""
    _subscriptions(trial, trial.n(1_000_000))


def _subscriptions(trial: Trial, count: int) -> None:
    con, other = Connection(trial.server.port), Connection(trial.server.port)
    before = trial.server.rss_mib()
    what = f"{count:,} subscriptions with wildcards"
    with trial.measured(f"{what}, made", count):
        for i in range(0, count, 1000):
            con.send(b"".join(b"SUB s.%d.*.t.> %d\r\n" % (j, j) for j in range(i, i + 1000)))
        con.send(b"PING\r\n")
        con.until(b"PONG\r\n")
    trial.values[f"memory of each of {what}"] = (trial.server.rss_mib() - before) * (1 << 20) / count, "B"
    rng = random.Random(1)
    for name, subjects in (("1000 subjects in turn", 1000),
                           ("subjects that are all new", min(trial.n(200_000), count))):
        numbers = [rng.randrange(count) for _ in range(subjects)]
        messages = [b"PUB s.%d.a.t.%d 1\r\nx\r\n" % (j, j if subjects == 1000 else i) for i, j in enumerate(numbers)]
        messages *= max(trial.n(200_000) // subjects, 1)
        expected = sum(len(b"MSG %b %d 1\r\nx\r\n" % (msg.split()[1], int(msg.split(b".")[1]))) for msg in messages)
        with trial.measured(f"  published to them: {name}, {count:,}", len(messages)):
            flow([other.sock], [b"".join(messages)], [con.sock], sent_max=1, window=WINDOW, expected=expected)
    with trial.measured(f"  removed, {count:,}", count):
        for i in range(0, count, 1000):
            con.send(b"".join(b"UNSUB %d\r\n" % j for j in range(i, i + 1000)))
        con.send(b"PING\r\n")
        con.until(b"PONG\r\n")


def idle_connections(trial: Trial) -> None:
    """Open idle connections, in groups that come at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        before = trial.server.rss_mib()
        count = min(trial.n(10_000), hard - OPEN_FILES)
        socks = []
        while len(socks) < count:
            socks += connect_all(trial.server.port, 500)
        trial.values[f"memory of each of {len(socks):,} idle connections"] = (
            (trial.server.rss_mib() - before) * 1024 / len(socks), "KiB")
        for sock in socks:
            sock.close()
        storm = min(2000, hard - OPEN_FILES)
        with trial.measured(f"{storm} connections that come at once, until each has its PONG", storm):
            socks = connect_all(trial.server.port, storm)
        for sock in socks:
            sock.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


CASES: dict[str, Case] = {
    "fan_out": Case(fan_out), "fan_in": Case(fan_in), "queue_group": Case(queue_group), "plain": Case(plain),
    "permissions": Case(permissions, ALLOWED), "tls": Case(tls, tls=True),
    "websocket": Case(websocket, "websocket { port: {ws} \n no_tls: true }"),
    "requests": Case(requests), "service_import": Case(service_import, SHARED),
    "ten_thousand_subscriptions": Case(ten_thousand_subscriptions),
    "million_subscriptions": Case(million_subscriptions), "idle_connections": Case(idle_connections),
}
