"""Growth of the client protocol's operations."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.growth.meter import Case
from tests.growth.stage import Client, Stage

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
    """Send 100 publishes in one read, to n subscriptions of one connection."""
    subscriber, publisher = stage.client(), stage.client()
    subscriber.send(b"".join(b"SUB f %d\r\n" % i for i in range(n)))
    subscriber.sync()
    with stage.measured():
        publisher.send(b"PUB f 0\r\n\r\n" * 100)
        subscriber.sync()
        publisher.sync()


def _repeated_header(stage: Stage, n: int) -> None:
    """Publish a message that repeats a header which the server removes."""
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


def _subscribed(stage: Stage, subjects: Callable[[int], bytes], n: int) -> Client:
    client = stage.client()
    client.send(b"".join(b"SUB %b %d\r\n" % (subjects(i), i) for i in range(n)))
    client.sync()
    return client


def _send(prepare: Callable[[int], bytes], data: Callable[[int], bytes]) -> Callable[[Stage, int], None]:
    """Send ``data`` from one client to the subscriptions that another has prepared."""
    def play(stage: Stage, n: int) -> None:
        other, client = stage.client(), stage.client()
        other.send(prepare(n))
        other.sync()
        sent = data(n)
        with stage.measured():
            client.send(sent)
            client.sync()
    return play


def _nothing(n: int) -> bytes:
    return b""


def _each(line: bytes) -> Callable[[int], bytes]:
    """Return ``line`` for each number below n."""
    return lambda n: b"".join(line.replace(b"%d", b"%d" % i) for i in range(n))


def _headers(n: int) -> bytes:
    block = b"NATS/1.0\r\n" + b"".join(b"H%d: v\r\n" % i for i in range(n)) + b"\r\n"
    return b"HPUB f %d %d\r\n%b\r\n" % (len(block), len(block), block)


def _overlapping(n: int) -> bytes:
    """Return patterns of 16 tokens, each of them a literal or a wildcard, that all fail at the last."""
    lines = []
    for i in range(n):
        tokens = [b"*" if i >> bit & 1 else b"a" for bit in range(15)]
        lines.append(b"SUB %b.z %d\r\n" % (b".".join(tokens), i))
    return b"".join(lines)


def _errors(stage: Stage, n: int) -> None:
    """Send publishes that are not permitted; each gets an error, and a line in the log."""
    client = stage.client()
    with stage.measured():
        client.send(b"PUB denied 0\r\n\r\n" * n)
        client.sync()


def _permissions(n: int) -> str:
    subjects = ", ".join(f'"a.{i}.>"' for i in range(n))
    denied = ", ".join(f'"d.*.{i}"' for i in range(n))
    permissions = (f"{{publish: {{allow: [{subjects}], deny: [{denied}]}}, "
                   f"subscribe: {{allow: [{subjects}, \"d.>\"], deny: [{denied}]}}}}")
    return f"authorization {{ users [{{user: a, password: p, permissions: {permissions}}}] }}\nno_auth_user: a\n"


def _with_permissions(line: bytes) -> Callable[[Stage, int], None]:
    """Send 1000 operations of a client with n subjects in each of its permissions."""
    def play(stage: Stage, n: int) -> None:
        client = stage.client(user="a", password="p")
        with stage.measured():
            client.send(_each(line)(1000))
            client.sync()
    return play


def _unsubscribe_after(stage: Stage, n: int) -> None:
    """Send UNSUB with a maximum, of wildcards, while many routes are cached."""
    client, publisher = _subscribed(stage, lambda i: b"s.%d.*" % i, n), stage.client()
    publisher.send(_each(b"PUB s.%d.x 0\r\n\r\n")(2000))
    publisher.sync()
    with stage.measured():
        client.send(_each(b"UNSUB %d 9\r\n")(n))
        client.sync()


def _connects(stage: Stage, n: int) -> None:
    client = stage.raw()
    with stage.measured():
        client.send(b'CONNECT {"verbose":false,"headers":true}\r\n' * n)
        client.sync()


def _all_hang_up(stage: Stage, n: int) -> None:
    clients = [stage.client() for _ in range(n)]
    for client in clients:
        client.send(b"SUB a 1\r\n")
        client.sync()
    with stage.measured():
        for client in clients:
            client.close()


def _to_clients(stage: Stage, n: int) -> None:
    """Send 100 messages to n connections."""
    clients = [stage.client() for _ in range(n)]
    for client in clients:
        client.send(b"SUB f 1\r\n")
        client.sync()
    publisher = stage.client()
    with stage.measured():
        publisher.send(b"PUB f 10\r\n0123456789\r\n" * 100)
        publisher.sync()


def _acknowledged(stage: Stage, n: int) -> None:
    """Publish into a stream whose answers go to an inbox with n subscriptions."""
    client = _subscribed(stage, lambda i: b"r", n)
    client.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    with stage.measured():
        client.send(b"PUB s r 0\r\n\r\n" * 50)
        client.sync()


def _transformed(stage: Stage, n: int) -> None:
    """Publish through a transform with n tokens, which make a subject of up to 64 KB."""
    client = stage.client()
    client.request("$JS.API.STREAM.CREATE.T", {"name": "T", "subjects": ["t.*"], "subject_transform": {
        "src": "t.*", "dest": "x." + ".".join(["$1"] * n)}})
    with stage.measured():
        for i in range(10):
            client.request(f"t.{i:040}")


def _service(n: int) -> str:
    return """accounts {
        A { users [{user: a, password: p}], exports [{service: "q.>"}, {stream: "e.>"}] }
        B { users [{user: b, password: p}], imports [{service: {account: A, subject: "q.>"}},
                                                     {stream: {account: A, subject: "e.>"}, prefix: p}] }
    }
    """


def _requests_to_service(stage: Stage, n: int) -> None:
    """Send requests to another account's service that n subscriptions of one client receive."""
    service, client = stage.client(user="a", password="p"), stage.client(user="b", password="p")
    service.send(b"".join(b"SUB q.x %d\r\n" % i for i in range(n)))
    service.sync()
    with stage.measured():
        client.send(b"PUB q.x r 0\r\n\r\n" * 50)
        client.sync()


def _stream_to_importers(stage: Stage, n: int) -> None:
    """Send messages of another account's stream to n subscriptions of one client."""
    source, client = stage.client(user="a", password="p"), stage.client(user="b", password="p")
    client.send(b"".join(b"SUB p.e.x %d\r\n" % i for i in range(n)))
    client.sync()
    with stage.measured():
        source.send(b"PUB e.x 0\r\n\r\n" * 50)
        source.sync()
        client.sync()


CASES = (
    Case("SUB", _subscribe, 10_000),
    Case("UNSUB", _unsubscribe, 10_000),
    Case("disconnect", _hang_up, 25_000),
    Case("fan-out", _fan_out, 5_000),
    Case("repeated header", _repeated_header, 13_000, jetstream=True, most=52_000),
    Case("PING", _pings, 20_000),
    Case("CONNECT fields", _connect_fields, 100, most=400),
    Case("SUB of wildcards beside cached routes", _send(_nothing, _each(b"SUB w.%d.* %d\r\nPUB w.%d.x 0\r\n\r\n")),
         2_000),
    Case("PUB to a queue group", _send(_each(b"SUB q g %d\r\n"), lambda n: b"PUB q 0\r\n\r\n" * 1000), 5_000),
    Case("PUB to queue groups", _send(_each(b"SUB q g%d 1%d\r\n"), lambda n: b"PUB q 0\r\n\r\n" * 50), 1_000),
    Case("PUB past overlapping wildcards",
         _send(_overlapping, lambda n: _each(b"PUB a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.y%d 0\r\n\r\n")(100)), 1_500),
    Case("PUB of deep subjects",
         _send(_each(b"SUB a.%d.> %d\r\n"), lambda n: b"PUB %b 0\r\n\r\n" % b".".join([b"a"] * n) * 100),
         500, most=2_000),
    Case("PUB of different subjects", _send(_each(b"SUB > %d\r\n"), lambda n: _each(b"PUB s.%d 0\r\n\r\n")(20)), 5_000),
    Case("PUB without responders", _send(_each(b"SUB r.* %d\r\n"), lambda n: _each(b"PUB none r.%d 0\r\n\r\n")(50)),
         5_000),
    Case("HPUB headers", _send(lambda n: b"SUB f 1\r\n", _headers), 13_000, most=52_000),
    Case("-ERR", _errors, 2_000, config=_permissions),
    Case("PUB with permissions", _with_permissions(b"PUB a.%d.x 0\r\n\r\n"), 500, config=_permissions),
    Case("SUB with permissions", _with_permissions(b"SUB a.%d.x %d\r\n"), 500, config=_permissions),
    Case("SUB of wildcards with permissions", _with_permissions(b"SUB d.%d.* %d\r\n"), 500, config=_permissions),
    Case("UNSUB with a maximum", _unsubscribe_after, 2_000),
    Case("CONNECT again", _connects, 500),
    Case("disconnect of all", _all_hang_up, 50),
    Case("PUB to connections", _to_clients, 50),
    Case("PubAcks to many subscriptions", _acknowledged, 1_000, jetstream=True),
    Case("PUB through a transform", _transformed, 300, jetstream=True, most=1_200),
    Case("requests to a service", _requests_to_service, 2_500, config=_service),
    Case("stream to importers", _stream_to_importers, 1_000, config=_service),
)
