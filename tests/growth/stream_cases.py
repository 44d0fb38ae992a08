"""Growth of the operations of clients on streams: publishes and their headers, batches, pull requests, acks, consumers
in thousands."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

from broker.base.gotime import format_time
from broker.jetstream.archive.contents import ArchiveWriter
from broker.jetstream.archive.values import ArchivedMsg, ArchivedStream
from tests.growth.api_cases import MANY, Play, case, consumer, consumers, create, fill, ok
from tests.growth.stage import Client, Stage

__all__ = ["CASES"]


def block(*lines: bytes) -> bytes:
    return b"NATS/1.0\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def hpub(subject: bytes, headers: bytes, payload: bytes = b"x", reply: bytes = b"") -> bytes:
    return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject, reply, len(headers), len(headers) + len(payload), headers,
                                              payload)


def answers(client: Client, sent: bytes, count: int) -> bytes:
    """Send messages whose reply subject is r, and wait for so many answers."""
    client.send(b"SUB r 1\r\n" + sent)
    data = client.sync()
    while data.count(b"MSG r 1 ") < count:
        assert not client.closed, data[-500:]
        data += client.sync()
    client.send(b"UNSUB 1\r\n")
    return data


# --- publishing -------------------------------------------------------------------------------------------------------

def publishing(message: Callable[[int, int], bytes], *, prepare: Callable[[Client, int], object] | None = None,
               **config: Any) -> Play:
    """Publish n messages; ``message(i, n)`` is the i-th as it is sent, with the reply subject r."""
    def play(stage: Stage, n: int) -> None:
        client = stage.client()
        create(client, subjects=["s.>"], **config)
        if prepare is not None:
            prepare(client, n)
        sent = b"".join(message(i, n) for i in range(n))
        with stage.measured():
            answers(client, sent, n)
    return play


def repeated(*lines: bytes, **config: Any) -> Play:
    """Publish one message that repeats header lines n times."""
    def play(stage: Stage, n: int) -> None:
        client = stage.client()
        create(client, subjects=["s.>"], **config)
        with stage.measured():
            answers(client, hpub(b"s.a", block(*lines * n), reply=b"r"), 1)
    return play


def _batch(i: int, n: int) -> bytes:
    """Return a message of batches of 500."""
    at = i % 500 + 1
    last = at == 500 or i == n - 1
    lines = [b"Nats-Batch-Id: b%d" % (i // 500), b"Nats-Batch-Sequence: %d" % at,
             *([b"Nats-Batch-Commit: 1"] if last else [])]
    return hpub(b"s.%d" % i, block(*lines), reply=b"r")


def _batches(stage: Stage, n: int) -> None:
    client = stage.client()
    create(client, subjects=["s.>"], allow_atomic=True)
    sent = b"".join(_batch(i, n) for i in range(n))
    with stage.measured():
        client.send(b"SUB r 1\r\n" + sent)
        client.sync()
        ok(client, "STREAM.INFO.S")


def _open_batches(stage: Stage, n: int) -> None:
    client = stage.client()
    create(client, subjects=["s.>"], allow_atomic=True)
    sent = b"".join(hpub(b"s.%d" % i, block(b"Nats-Batch-Id: b%d" % i, b"Nats-Batch-Sequence: 1"), reply=b"r")
                    for i in range(n))
    with stage.measured():
        client.send(sent)
        client.sync()
        ok(client, "STREAM.INFO.S")


def filled_by_subject(client: Client, n: int) -> None:
    fill(client, n)


# --- consuming --------------------------------------------------------------------------------------------------------

def _pull(inbox: bytes, **fields: Any) -> bytes:
    body = json.dumps(fields).encode()
    return b"PUB $JS.API.CONSUMER.MSG.NEXT.S.C %b %d\r\n%b\r\n" % (inbox, len(body), body)


MINUTE = 60_000_000_000


def pulling(request: Callable[[int], bytes], *, messages: Callable[[int], int] = lambda n: 0, waiting: int = 0,
            config: dict[str, Any] | None = None, served: bool = False) -> Play:
    """Send n pull requests, after ``waiting`` × n others; ``served``: then publish a message for each."""
    def play(stage: Stage, n: int) -> None:
        client = stage.client()
        create(client, subjects=["s.>"])
        if messages(n):
            fill(client, messages(n))
        consumer(client, max_waiting=4 * n + 10, **(config or {}))
        client.send(b"SUB r.> 1\r\n" + b"".join(_pull(b"r.w%d" % i, batch=1, expires=MINUTE)
                                                for i in range(waiting * n)))
        client.sync()
        sent = b"".join(request(i) for i in range(n))
        with stage.measured():
            client.send(sent)
            client.sync()
            if served:
                fill(client, n)
                ok(client, "CONSUMER.INFO.S.C")
    return play


def _abandoned_pulls(stage: Stage, n: int) -> None:
    """Send requests whose inboxes have no subscription any more when messages come."""
    client = stage.client()
    create(client, subjects=["s.>"])
    consumer(client, max_waiting=n + 10)
    client.send(b"".join(b"SUB r.%d %d\r\n" % (i, i + 10) for i in range(n)))
    client.send(b"".join(_pull(b"r.%d" % i, batch=1, expires=MINUTE) for i in range(n)))
    client.sync()
    client.send(b"".join(b"UNSUB %d\r\n" % (i + 10) for i in range(n)))
    client.sync()
    with stage.measured():
        fill(client, 100)
        ok(client, "CONSUMER.INFO.S.C")


def acking(payload: Callable[[int], bytes], *, order: Callable[[list[bytes]], list[bytes]] = lambda subjects: subjects,
           reply: bytes = b"", headers: bytes = b"", retention: str = "limits", **config: Any) -> Play:
    """Answer n deliveries with these payloads."""
    def play(stage: Stage, n: int) -> None:
        client = stage.client()
        create(client, subjects=["s.>"], retention=retention)
        fill(client, n)
        consumer(client, **{"max_ack_pending": -1, **config})
        client.send(b"SUB r 1\r\n" + _pull(b"r", batch=n, expires=MINUTE))
        data = b""
        while (subjects := re.findall(rb"MSG s\.\d+ 1 (\S+) 1\r\n", data)) == [] or len(subjects) < n:
            data += client.sync()
        sent = b"".join(b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload(i)), payload(i))
                        for i, subject in enumerate(order(subjects)))
        with stage.measured():
            client.send(sent)
            client.sync()
            ok(client, "CONSUMER.INFO.S.C")
    return play


def _foreign_acks(subjects: list[bytes]) -> list[bytes]:
    """Return ack subjects with numbers that were never assigned."""
    found = []
    for i, subject in enumerate(subjects):
        tokens = subject.split(b".")
        tokens[-4] = b"%d" % (10 ** 9 + i)
        found.append(b".".join(tokens))
    return found


def _malformed(subjects: list[bytes]) -> list[bytes]:
    return [subject.rsplit(b".", 3)[0] + b".x.y.z" for subject in subjects]


def _shuffled(subjects: list[bytes]) -> list[bytes]:
    return [subjects[i * 7919 % len(subjects)] for i in range(len(subjects))]


# --- very many consumers, messages and streams ------------------------------------------------------------------------

def with_consumers(act: Callable[[Client], object], *, retention: str = "limits", **config: Any) -> Play:
    """Do ``act``, which concerns all of n consumers of a stream."""
    def play(stage: Stage, n: int) -> None:
        client = stage.client()
        create(client, subjects=["s.>"], retention=retention, max_consumers=MANY)
        consumers(client, n, **config)
        with stage.measured():
            act(client)
    return play


def with_messages(act: Callable[[Client, int], object], *, prepare: Callable[[Client, int], object] | None = None,
                  **config: Any) -> Play:
    """Do ``act``, which concerns all of n messages of a stream, each with its own subject."""
    def play(stage: Stage, n: int) -> None:
        client = stage.client()
        create(client, subjects=["s.>"], **config)
        fill(client, n)
        if prepare is not None:
            prepare(client, n)
        with stage.measured():
            act(client, n)
    return play


def _each(request: Callable[[int], tuple[str, object]]) -> Callable[[Client, int], object]:
    def act(client: Client, n: int) -> None:
        sent = []
        for i in range(n):
            subject, body = request(i)
            payload = json.dumps(body).encode()
            sent.append(b"PUB $JS.API.%b r %d\r\n%b\r\n" % (subject.encode(), len(payload), payload))
        answers(client, b"".join(sent), n)
    return act


def _work_queue_consumers(stage: Stage, n: int) -> None:
    client = stage.client()
    create(client, subjects=["s.>"], retention="workqueue", max_consumers=MANY)
    with stage.measured():
        for at in range(0, n, 200):
            requests = []
            for i in range(at, min(at + 200, n)):
                body = json.dumps({"stream_name": "S", "config": {
                    "name": f"c{i}", "ack_policy": "explicit", "filter_subject": f"s.{i}"}}).encode()
                requests.append(b"PUB $JS.API.CONSUMER.CREATE.S.c%d r %d\r\n%b\r\n" % (i, len(body), body))
            answers(client, b"".join(requests), len(requests))


def _copy_through_transforms(stage: Stage, n: int) -> None:
    """Copy n messages by a source with n transforms."""
    client = stage.client()
    create(client, "S", subjects=["s.>"])
    fill(client, n)
    client.send(b"SUB copied.> 7\r\n")
    with stage.measured():
        create(client, "T", republish={"src": ">", "dest": "copied.>"}, sources=[{"name": "S", "subject_transforms": [
            {"src": f"s.{i}", "dest": f"t.{i}"} for i in range(n)]}])
        client.read_until(rb"MSG copied.t.%d " % (n - 1))


def _snapshot(stage: Stage, n: int) -> None:
    client = stage.client()
    create(client, subjects=["s.>"])
    fill(client, n)
    client.send(b"SUB chunks 7\r\n")
    with stage.measured():
        ok(client, "STREAM.SNAPSHOT.S", {"deliver_subject": "chunks"})
        client.read_until(rb"MSG chunks 7 (\S+ )?(\d+ )?\d*0\r\n(NATS/1.0 \d+)?")


_CHUNK_BYTES = 128 << 10


def restoring(subject: Callable[[int], bytes], headers: bytes = b"", **config: Any) -> Play:
    """Restore an archive of n messages; ``subject(i)`` is the subject of the i-th."""
    def play(stage: Stage, n: int) -> None:
        client, now_ns = stage.client(), time.time_ns()
        writer, stamp = ArchiveWriter(now_ns), format_time(now_ns)
        archive = writer.begin(ArchivedStream(n, 100 * n, 1, n, stamp, stamp, 0))
        for at in range(0, n, 1000):
            archive += writer.messages([ArchivedMsg(i + 1, now_ns, subject(i), len(headers), headers + b"x")
                                        for i in range(at, min(at + 1000, n))])
        archive += writer.end()
        restored = {"name": "S", "subjects": ["s.>"], "retention": "limits", "storage": "file", "num_replicas": 1,
                    **config}
        with stage.measured():
            to = ok(client, "STREAM.RESTORE.S", {"config": restored, "state": {}})["deliver_subject"]
            for at in range(0, len(archive), _CHUNK_BYTES):
                client.request(to, archive[at:at + _CHUNK_BYTES])
            answer = client.request(to)
            assert "error" not in answer, answer
            ok(client, "STREAM.INFO.S")
    return play


CASES = (
    case("Nats-Msg-Id", publishing(lambda i, n: hpub(b"s.a", block(b"Nats-Msg-Id: m%d" % i), reply=b"r")), 5_000),
    case("Nats-Msg-Id, duplicates", publishing(lambda i, n: hpub(b"s.a", block(b"Nats-Msg-Id: m"), reply=b"r")), 5_000),
    case("Nats-Expected-Last-Subject-Sequence", publishing(lambda i, n: hpub(
        b"s.%d" % i, block(b"Nats-Expected-Last-Subject-Sequence: 0"), reply=b"r")), 5_000),
    case("Nats-Expected-Last-Subject-Sequence-Subject", publishing(lambda i, n: hpub(
        b"s.a", block(b"Nats-Expected-Last-Subject-Sequence: 1", b"Nats-Expected-Last-Subject-Sequence-Subject: s.*"),
        reply=b"r"), prepare=filled_by_subject), 1_000),
    case("Nats-TTL", publishing(lambda i, n: hpub(b"s.%d" % i, block(b"Nats-TTL: 1h"), reply=b"r"), allow_msg_ttl=True),
         4_000),
    case("Nats-Rollup",
         publishing(lambda i, n: hpub(b"s.%d" % i, block(b"Nats-Rollup: sub"), reply=b"r"), allow_rollup_hdrs=True,
                    prepare=filled_by_subject), 2_000),
    case("Nats-Incr", publishing(lambda i, n: hpub(b"s.%d" % (i % 7), block(b"Nats-Incr: 1"), b"", reply=b"r"),
                                 allow_msg_counter=True), 2_000),
    case("schedules", publishing(lambda i, n: hpub(b"s.%d" % i, block(
        b"Nats-Schedule: @at 2090-01-01T00:00:00Z", b"Nats-Schedule-Target: s.t"), reply=b"r"),
                                 allow_msg_schedules=True,
        ), 2_000),
    case("cron schedules", publishing(lambda i, n: hpub(b"s.%d" % i, block(
        b"Nats-Schedule: 0 0 0 29 2 *", b"Nats-Schedule-Target: s.t"), reply=b"r"), allow_msg_schedules=True,
        ), 1_000),
    case("messages of a subject beyond a limit", publishing(
        lambda i, n: b"PUB s.%d r 1\r\nx\r\n" % (i % 10), max_msgs_per_subject=2), 4_000),
    case("new subjects beyond a limit", publishing(lambda i, n: b"PUB s.%d r 1\r\nx\r\n" % i, max_msgs=100), 4_000),
    case("republished", publishing(
        lambda i, n: b"PUB s.%d r 1\r\nx\r\n" % i, republish={"src": "s.*", "dest": "p.{{wildcard(1)}}"}), 4_000),
    case("atomic batches", _batches, 4_000),
    case("open atomic batches", _open_batches, 500),
    case("repeated Nats-Msg-Id", repeated(b"Nats-Msg-Id: a"), 15_000, most=60_000),
    case("repeated expectations", repeated(b"Nats-Expected-Last-Sequence: 0", b"Nats-Expected-Stream: S",
                                           b"Nats-Expected-Last-Subject-Sequence: 0"), 2_000, most=8_000),
    case("repeated Nats-TTL", repeated(b"Nats-TTL: 1h", allow_msg_ttl=True), 15_000, most=60_000),
    case("repeated Nats-Rollup", repeated(b"Nats-Rollup: sub", allow_rollup_hdrs=True), 12_000, most=48_000),
    case("repeated schedules",
         repeated(b"Nats-Schedule: @every 1h", b"Nats-Schedule-Target: s.t", b"Nats-Schedule-Source: s.u",
                  allow_msg_schedules=True), 2_000, most=8_000),
    case("repeated batch members", repeated(b"Nats-Batch-Id: b", b"Nats-Batch-Sequence: 1", b"Nats-Batch-Commit: 1",
                                            allow_atomic=True), 3_000, most=12_000),
    case("pull requests", pulling(lambda i: _pull(b"r.%d" % i, batch=1, expires=MINUTE)), 2_500),
    case("pull requests with heartbeats", pulling(lambda i: _pull(b"r.%d" % i, batch=1, expires=MINUTE,
                                                                  idle_heartbeat=10 ** 9)), 2_000),
    case("pull requests served", pulling(lambda i: _pull(b"r.%d" % i, batch=1, expires=MINUTE), served=True), 2_000),
    case("pull requests with max_bytes served",
         pulling(lambda i: _pull(b"r.%d" % i, batch=1, expires=MINUTE, max_bytes=1000),
                 served=True), 1_000),
    case("pull requests that do not wait", pulling(lambda i: _pull(b"r.%d" % i, batch=1, no_wait=True)), 2_500),
    case("pull requests that do not wait, behind others", pulling(
        lambda i: _pull(b"r.%d" % i, batch=1, no_wait=True, expires=MINUTE), messages=lambda n: 4 * n, waiting=1,
        config={"max_ack_pending": 1}), 1_000),
    case("pull requests by priority", pulling(
        lambda i: _pull(b"r.%d" % i, batch=1, expires=MINUTE, group="g", priority=9 - i % 10), served=True,
        config={"priority_policy": "prioritized", "priority_groups": ["g"]}), 1_000),
    case("pull requests with overflow", pulling(
        lambda i: _pull(b"r.%d" % i, batch=1, expires=MINUTE, group="g", min_pending=10 ** 6), served=True,
        config={"priority_policy": "overflow", "priority_groups": ["g"]}), 1_000),
    case("malformed pull requests", pulling(lambda i: b"PUB $JS.API.CONSUMER.MSG.NEXT.S.C r.1 5\r\n{\"a\":\r\n"),
         2_500),
    case("abandoned pull requests", _abandoned_pulls, 2_500),
    case("acks", acking(lambda i: b"+ACK"), 5_000),
    case("acks in any order", acking(lambda i: b"", order=_shuffled), 5_000),
    case("acks with replies", acking(lambda i: b"+ACK", reply=b"x"), 2_500),
    case("acks of a work queue", acking(lambda i: b"+ACK", retention="workqueue", order=_shuffled), 2_500),
    case("ack all, backwards", acking(lambda i: b"+ACK", ack_policy="all", order=lambda subjects: subjects[::-1]),
         5_000),
    case("ack all, forwards with replies", acking(lambda i: b"+ACK", ack_policy="all", reply=b"x"), 2_500),
    case("negative acks", acking(lambda i: b"-NAK"), 2_500),
    case("negative acks with delays", acking(lambda i: b'-NAK {"delay": %d}' % (MINUTE + i)), 2_500),
    case("terminations", acking(lambda i: b"+TERM because"), 2_500),
    case("progress", acking(lambda i: b"+WPI", order=_shuffled), 2_500),
    case("acks that ask for the next", acking(lambda i: b"+NXT 1", reply=b"x"), 2_500),
    case("acks of what was never delivered", acking(lambda i: b"+ACK", order=_foreign_acks), 5_000),
    case("malformed acks", acking(lambda i: b"?", order=_malformed, reply=b"x"), 5_000),
    case("consumers of a work queue created", _work_queue_consumers, 300),
    case("consumers: a publish", with_consumers(lambda client: fill(client, 1)), 500),
    case("consumers with interest: a publish",
         with_consumers(lambda client: client.request("s.1", b"x"), retention="interest",
                        filter_subject="s.1"), 1_000),
    case("consumers: a purge", with_consumers(lambda client: ok(client, "STREAM.PURGE.S")), 1_000),
    case("consumers: a list", with_consumers(lambda client: ok(client, "CONSUMER.LIST.S")), 1_000),
    case("consumers: an update", with_consumers(lambda client: ok(client, "STREAM.UPDATE.S", {
        "name": "S", "subjects": ["s.>"], "max_consumers": MANY, "max_msgs": 5,
        "consumer_limits": {"max_ack_pending": 2000}})), 1_000),
    case("messages deleted", with_messages(_each(lambda i: ("STREAM.MSG.DELETE.S", {"seq": i + 1}))), 1_000),
    case("messages got", with_messages(_each(lambda i: ("STREAM.MSG.GET.S", {"last_by_subj": f"s.{i}"}))), 1_000),
    case("messages got by a wildcard", with_messages(_each(lambda i: ("STREAM.MSG.GET.S", {"next_by_subj": f"*.{i}"}))),
         400),
    case("messages purged one by one", with_messages(_each(lambda i: ("STREAM.PURGE.S", {"filter": f"s.{i}"}))), 500),
    case("messages of which one of each subject is kept", with_messages(
        lambda client, n: ok(client, "STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "max_msgs_per_subject": 1}),
        prepare=lambda client, n: client.send(b"".join(b"PUB s.%d 1\r\nx\r\n" % i for i in range(n)))), 4_000),
    case("messages beyond a new limit", with_messages(
        lambda client, n: ok(client, "STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "max_msgs": 1})), 8_000),
    case("last per subject", with_messages(lambda client, n: consumer(client, deliver_policy="last_per_subject",
                                                                      filter_subject="s.>")), 5_000),
    case("direct gets", with_messages(_each(lambda i: ("DIRECT.GET.S", {"next_by_subj": f"s.{i}"})), allow_direct=True),
         1_000),
    case("ADOPT", with_messages(_each(lambda i: ("JETBLOCK.ADOPT.S", {"request": f"{i:016x}"}))), 25),
    case("copies through transforms", _copy_through_transforms, 400),
    case("snapshot", _snapshot, 4_000),
    case("restore", restoring(lambda i: b"s.%d" % i, block(b"Nats-TTL: 1h"), allow_msg_ttl=True), 10_000),
    case("restore of more than a subject may have", restoring(lambda i: b"s.%d" % (i // 2), max_msgs_per_subject=1),
         10_000),
)
