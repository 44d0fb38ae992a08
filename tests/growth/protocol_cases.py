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
    Case("PING", _pings, 50_000),
    Case("CONNECT fields", _connect_fields, 100, most=400),
)
