"""Growth of the client protocol's operations."""

from __future__ import annotations

import json

from tests.growth.meter import Case
from tests.growth.stage import Stage

__all__ = ["CASES"]


def _subscribe(stage: Stage, n: int) -> None:
    client = stage.client()
    with stage.measured():
        client.send(b"".join(b"SUB s.%d %d\r\n" % (i, i) for i in range(n)))
        client.sync()


def _unsubscribe(stage: Stage, n: int) -> None:
    client = stage.client()
    client.send(b"".join(b"SUB s.%d %d\r\n" % (i, i) for i in range(n)))
    client.sync()
    with stage.measured():
        client.send(b"".join(b"UNSUB %d\r\n" % i for i in range(n)))
        client.sync()


def _hang_up(stage: Stage, n: int) -> None:
    client = stage.client()
    client.send(b"".join(b"SUB s.%d %d\r\n" % (i, i) for i in range(n)))
    client.sync()
    with stage.measured():
        client.close()


def _fan_out(stage: Stage, n: int) -> None:
    """One read with 100 publishes, to n subscriptions of one connection."""
    subscriber, publisher = stage.client(), stage.client()
    subscriber.send(b"".join(b"SUB f %d\r\n" % i for i in range(n)))
    subscriber.sync()
    with stage.measured():
        publisher.send(b"PUB f 0\r\n\r\n" * 100)
        subscriber.sync()
        publisher.sync()


def _repeated_header(stage: Stage, n: int) -> None:
    """One message that repeats a header which the server removes."""
    client = stage.client()
    client.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    block = b"NATS/1.0\r\n" + b"Nats-Request-Info:\r\n" * n + b"\r\n"
    with stage.measured():
        client.request("s", headers=block)


def _pings(stage: Stage, n: int) -> None:
    client = stage.client()
    with stage.measured():
        client.send(b"PING\r\n" * n)
        client.sync()


def _connect_fields(stage: Stage, n: int) -> None:
    client = stage.raw()
    with stage.measured():
        client.send(b"CONNECT " + json.dumps({f"f{i}": [] for i in range(n)}).encode() + b"\r\n")
        client.sync()


CASES = (
    Case("SUB", _subscribe, 20_000),
    Case("UNSUB", _unsubscribe, 20_000),
    Case("disconnect", _hang_up, 50_000),
    Case("fan-out", _fan_out, 5_000),
    Case("repeated header", _repeated_header, 13_000, jetstream=True, most=52_000),
    Case("PING", _pings, 50_000),
    Case("CONNECT fields", _connect_fields, 100, most=400),
)
