"""Growth of requests to JetStream's API: long lists in configurations and requests, and accounts with very many streams
or consumers."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.growth.meter import Case
from tests.growth.stage import Client, Stage

__all__ = ["CASES", "MANY", "Play", "case", "consumer", "consumers", "create", "fill", "ok"]

MANY = 1_000_000
"""More consumers than any case has."""

Play = Callable[[Stage, int], None]
case = partial(Case, jetstream=True)
"""A case on a broker with JetStream."""


def ok(client: Client, subject: str, body: object = b"") -> Any:
    """Return the answer of an API request that must succeed."""
    answer = client.request(f"$JS.API.{subject}", body)
    assert "error" not in answer, (subject, answer["error"])
    return answer


def refused(client: Client, subject: str, body: object, err_code: int) -> None:
    answer = client.request(f"$JS.API.{subject}", body)
    assert answer["error"]["err_code"] == err_code, answer


def create(client: Client, name: str = "S", **config: Any) -> Any:
    return ok(client, f"STREAM.CREATE.{name}", {"name": name, **config})


def consumer(client: Client, name: str = "C", stream: str = "S", **config: Any) -> Any:
    return ok(client, f"CONSUMER.CREATE.{stream}.{name}",
              {"stream_name": stream, "config": {"name": name, "ack_policy": "explicit", **config}})


def fill(client: Client, count: int, subject: str = "s.%d") -> None:
    """Publish so many messages to stream S, each to its own subject."""
    for at in range(0, count, 1000):
        client.send(b"".join(b"PUB %b 1\r\nx\r\n" % (subject % i).encode() for i in range(at, min(at + 1000, count))))
        client.sync()
    assert ok(client, "STREAM.INFO.S")["state"]["messages"] == count


def consumers(client: Client, count: int, **config: Any) -> None:
    for at in range(0, count, 500):
        requests = []
        for i in range(at, min(at + 500, count)):
            body = json.dumps({"stream_name": "S", "config": {
                "durable_name": f"c{i}", "ack_policy": "explicit", **config}}).encode()
            requests.append(b"PUB $JS.API.CONSUMER.CREATE.S.c%d %d\r\n%b\r\n" % (i, len(body), body))
        client.send(b"".join(requests))
        client.sync()
        consumer(client, "last", **config)  # one lane: it is answered after the others
        ok(client, "CONSUMER.DELETE.S.last")
    assert ok(client, "CONSUMER.NAMES.S")["total"] == count


def streams(client: Client, count: int, subjects: Callable[[int], list[str]]) -> None:
    for i in range(count):
        create(client, f"N{i}", subjects=subjects(i))


def _numbered(prefix: str, n: int) -> list[str]:
    return [f"{prefix}{i}" for i in range(n)]


# --- configurations of streams ----------------------------------------------------------------------------------------

def creating(config: Callable[[int], dict[str, Any]], err_code: int = 0,
             prepare: Callable[[Client, int], object] | None = None, ) -> Play:
    """Create a stream with this configuration."""
    def play(stage: Stage, n: int) -> None:
        client, body = stage.client(), json.dumps({"name": "S", **config(n)}).encode()
        if prepare is not None:
            prepare(client, n)
        with stage.measured():
            if err_code:
                refused(client, "STREAM.CREATE.S", body, err_code)
            else:
                ok(client, "STREAM.CREATE.S", body)
    return play


def _transforms(n: int) -> list[dict[str, str]]:
    return [{"src": f"a.{i}", "dest": f"b.{i}"} for i in range(n)]


def _update(stage: Stage, n: int) -> None:
    client = stage.client()
    create(client, subjects=_numbered("a.", n))
    with stage.measured():
        ok(client, "STREAM.UPDATE.S", {"name": "S", "subjects": _numbered("b.", n)})


def _update_sources(stage: Stage, n: int) -> None:
    client = stage.client()
    create(client, sources=[{"name": f"A{i}"} for i in range(n)])
    with stage.measured():
        ok(client, "STREAM.UPDATE.S", {"name": "S", "sources": [{"name": f"B{i}"} for i in range(n)]})


def _delete(stage: Stage, n: int) -> None:
    client = stage.client()
    create(client, subjects=_numbered("a.", n))
    with stage.measured():
        ok(client, "STREAM.DELETE.S")


def _create_again(stage: Stage, n: int) -> None:
    client = stage.client()
    create(client, subjects=_numbered("a.", n))
    with stage.measured():
        create(client, subjects=_numbered("a.", n))


def _sources_in_info(stage: Stage, n: int) -> None:
    client = stage.client()
    create(client, sources=[{"name": f"A{i}"} for i in range(n)])
    with stage.measured():
        ok(client, "STREAM.INFO.S")


def _overlap(stage: Stage, n: int) -> None:
    """The last subject of a stream belongs to another stream."""
    client = stage.client()
    create(client, "T", subjects=_numbered("b.", n))
    with stage.measured():
        refused(client, "STREAM.CREATE.S", {"name": "S", "subjects": [*_numbered("a.", n), f"b.{n - 1}"]}, 10065)


# --- configurations of consumers --------------------------------------------------------------------------------------

def consuming(config: Callable[[int], dict[str, Any]], err_code: int = 0) -> Play:
    """Create a consumer with this configuration."""
    def play(stage: Stage, n: int) -> None:
        client = stage.client()
        create(client, subjects=["a.>"])
        body = {"stream_name": "S", "config": {"name": "C", "ack_policy": "explicit", **config(n)}}
        with stage.measured():
            if err_code:
                refused(client, "CONSUMER.CREATE.S.C", body, err_code)
            else:
                ok(client, "CONSUMER.CREATE.S.C", body)
    return play


def _work_queue(stage: Stage, n: int) -> None:
    client = stage.client()
    create(client, subjects=["a.>"], retention="workqueue")
    consumer(client, "C1", filter_subjects=_numbered("a.b.", n))
    with stage.measured():
        consumer(client, "C2", filter_subjects=_numbered("a.c.", n))


def _refilter(stage: Stage, n: int) -> None:
    client = stage.client()
    create(client, subjects=["a.>"], retention="interest")
    consumer(client, filter_subjects=_numbered("a.b.", n))
    with stage.measured():
        consumer(client, filter_subjects=_numbered("a.c.", n))


def _push_to_many_subjects(stage: Stage, n: int) -> None:
    client = stage.client()
    create(client, subjects=_numbered("a.", n))
    with stage.measured():
        consumer(client, deliver_subject="d")


# --- requests ---------------------------------------------------------------------------------------------------------

def _list_with_filter(verb: str) -> Play:
    def play(stage: Stage, n: int) -> None:
        client = stage.client()
        streams(client, 5, lambda at: _numbered(f"{at}.", n // 5))
        with stage.measured():
            for _ in range(8):
                assert ok(client, f"STREAM.{verb}", {"subject": "z.>"})["total"] == 0
    return play


def _many_lists(stage: Stage, n: int) -> None:
    client = stage.client()
    streams(client, 250, lambda at: [f"{at}.>"])
    with stage.measured():
        client.send(b"PUB $JS.API.STREAM.LIST r 0\r\n\r\n" * n)
        ok(client, "STREAM.NAMES")


def _subjects_in_info(stage: Stage, n: int) -> None:
    client = stage.client()
    create(client, subjects=["s.>"])
    fill(client, n)
    with stage.measured():
        assert ok(client, "STREAM.INFO.S", {"subjects_filter": ">"})["total"] == n


def _deleted_in_info(stage: Stage, n: int) -> None:
    client = stage.client()
    create(client, subjects=["s.>"], max_msgs_per_subject=1)
    fill(client, n)
    client.send(b"".join(b"PUB s.%d 1\r\nx\r\n" % i for i in range(1, n, 2)))
    client.sync()
    with stage.measured():
        answer = ok(client, "STREAM.INFO.S", {"deleted_details": True})
    assert answer["state"]["num_deleted"] >= n // 2 - 1


def _multi_last(filters: Callable[[int], list[str]]) -> Play:
    def play(stage: Stage, n: int) -> None:
        client = stage.client()
        create(client, subjects=["s.>"], allow_direct=True)
        fill(client, 1000)
        body = json.dumps({"multi_last": filters(n)}).encode()
        client.send(b"SUB r 1\r\n")
        with stage.measured():
            client.send(b"PUB $JS.API.DIRECT.GET.S r %d\r\n%b\r\n" % (len(body), body))
            client.read_until(rb"NATS/1.0 (204|4\d\d)")
    return play


def _purge(stage: Stage, n: int) -> None:
    client = stage.client()
    create(client, subjects=["s.>"])
    fill(client, n)
    with stage.measured():
        assert ok(client, "STREAM.PURGE.S", {"filter": "s.*"})["purged"] == n


def _deleted_with_consumers(stage: Stage, n: int) -> None:
    client = stage.client()
    create(client, subjects=["s.>"], max_consumers=MANY)
    consumers(client, n)
    with stage.measured():
        ok(client, "STREAM.DELETE.S")


def body(subject: str, text: Callable[[int], bytes], err_code: int = 0) -> Play:
    """Send a request with this text."""
    def play(stage: Stage, n: int) -> None:
        client = stage.client()
        create(client, subjects=["s.>"], allow_direct=True)
        payload = text(n)
        with stage.measured():
            answer = client.request(f"$JS.API.{subject}", payload)
        assert answer.get("error", {}).get("err_code", 0) == err_code, answer
    return play


CASES = (
    case("subjects", creating(lambda n: {"subjects": _numbered("a.", n)}), 10_000),
    case("subjects with wildcards", creating(lambda n: {"subjects": [f"a.*.{i}.>" for i in range(n)]}), 5_000),
    case("subjects of a stream updated", _update, 5_000),
    case("subjects of a stream deleted", _delete, 10_000),
    case("subjects of a stream created again", _create_again, 10_000),
    case("subjects of which the last overlaps", _overlap, 10_000),
    case("mirror transforms", creating(lambda n: {"mirror": {"name": "O", "subject_transforms": _transforms(n)}}),
         2_000),
    case("source transforms", creating(lambda n: {"sources": [{"name": "O", "subject_transforms": _transforms(n)}]}),
         2_000),
    case("sources", creating(lambda n: {"sources": [{"name": f"O{i}"} for i in range(n)]}),
         800),  # all of them are missing, and looked for again and again
    case("sources with filters", creating(
        lambda n: {"sources": [{"name": "O", "filter_subject": f"x.{i}"} for i in range(n)]},
        prepare=lambda client, n: create(client, "O", subjects=_numbered("o.", n))), 1_500),
    case("sources with prefixes", creating(
        lambda n: {"sources": [{"name": "O"}, *({"name": f"P{i}", "external": {"api": f"a.{i}", "deliver": f"d.{i}"}}
                                                for i in range(n))]},
        prepare=lambda client, n: create(client, "O", subjects=[f"o.{i}.>" for i in range(n)])), 1_500),
    case("sources updated", _update_sources, 1_500),
    case("sources in info", _sources_in_info, 800),
    case("metadata", creating(lambda n: {"metadata": {f"k{i}": "v" for i in range(n)}}), 4_000),
    case("placement tags", creating(lambda n: {"placement": {"tags": _numbered("t", n)}}), 15_000),
    case("backoff", consuming(lambda n: {"backoff": [1_000_000_000 + i for i in range(n)]}), 15_000),
    case("priority groups", consuming(lambda n: {"priority_policy": "overflow", "priority_groups": _numbered("g", n)}),
         10_000),
    case("filters", consuming(lambda n: {"filter_subjects": _numbered("a.", n)}), 10_000),
    case("filters with wildcards", consuming(lambda n: {"filter_subjects": [f"a.*.{i}" for i in range(n)]}), 5_000),
    case("filters of consumers of a work queue", _work_queue, 5_000),
    case("filters updated", _refilter, 5_000),
    case("push consumer of a stream with many subjects", _push_to_many_subjects, 10_000),
    case("STREAM.NAMES with a filter", _list_with_filter("NAMES"), 25_000),
    case("STREAM.LIST with a filter", _list_with_filter("LIST"), 10_000),
    case("STREAM.LIST at once", _many_lists, 10),
    case("subjects in info", _subjects_in_info, 5_000),
    case("deleted in info", _deleted_in_info, 5_000),
    case("multi_last", _multi_last(lambda n: _numbered("s.", n)), 15_000),
    case("multi_last with wildcards", _multi_last(lambda n: [f"s.*.{i}" for i in range(n)]), 10_000),
    case("purge by filter", _purge, 5_000),
    case("stream deleted with consumers", _deleted_with_consumers, 400),
    case("JSON that ends too soon", body("STREAM.CREATE.X", lambda n: b'{"name":"X","subjects":[' + b"1," * n, 10025),
         100_000),
    case("JSON with an unknown field",
         body("STREAM.CREATE.X", lambda n: json.dumps({f"u{i}": 1 for i in range(n)}).encode(),
              10025), 15_000),
    case("JSON with one field again and again", body("STREAM.CREATE.X", lambda n: (
        b'{"name":"X"' + b',"description":"x"' * n + b"}")), 12_000),
    case("JSON objects after each other",
         body("STREAM.CREATE.X", lambda n: b"".join(b'{"a%d":1}' % i for i in range(n)), 10025), 15_000),
    case("JSON nested deep", body("STREAM.CREATE.X", lambda n: b"[" * n + b"]" * n, 10025), 100_000),
    case("JSON with white space", body("STREAM.CREATE.X", lambda n: b" " * n + b'{"name":"X"}' + b"\n" * n), 100_000),
    case("JSON where none is expected", body("STREAM.DELETE.S", lambda n: b'{"a":[' + b"1," * n + b"1]}", 10038),
         100_000),
)
