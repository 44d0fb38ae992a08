"""Random JetStream requests: valid ones, with fields changed to edge values, wrong types and unknown names.

All names and subjects come from small pools. A scenario begins by creating a stream, so that later requests concern it.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

from tests.fuzz.scenario import Scenario

__all__ = ["request_scenario"]

STREAMS = ("S", "S", "S", "T", "U")
CONSUMERS = ("C", "C", "D", "E")
SUBJECTS = ("s.a", "s.a", "s.b", "s.a.b", "t.a", "u.a")
PATTERNS = ("s.>", "s.*", "s.a", "t.>", "u.*", "*.a", ">", "s.a.>", "x")

_EDGES: tuple[Any, ...] = (0, 1, -1, 2, 3, -2, 10, 1000, 2**31, 2**63 - 1, 2**63, 2**64, -2**63, 1.5, True, False, None,
                           "", "a", "1", "s.>", [], {}, [1], ["a"], [""], {"a": 1}, "2030-01-01T00:00:00Z", "a b",
                           "a.b", "*", "1s", "é", "a\u0000b", "$JS.API.x", ">.a", "a..b", ".", "x" * 300, [[]], [{}],
                           [None], {"name": None}, -0.0, 1e3, 1e30, "0001-01-01T00:00:00Z", "2030-01-01T00:00:00+25:00")
SECOND = 1_000_000_000


def request_scenario(seed: int) -> Scenario:
    """Return a scenario: some streams and consumers, then requests, publishes and deliveries."""
    return Scenario("requests", [], [["", line] for line in _Requests(Random(f"requests {seed}")).lines()], str(seed))


def _json(value: Any) -> str:
    return json.dumps(value)


class _Requests:
    def __init__(self, random: Random) -> None:
        self.random = random
        self._boxes = 0

    def lines(self) -> list[str]:
        """Return the whole scenario."""
        random = self.random
        lines = [f"stream {_json(self._stream_fields(random.choice((0, 0, 1, 2)), 0.0))}"]
        # The boxes receive republished messages, and deliveries of push consumers.
        boxes = [box for box in ("sub d", "sub e d.a", "sub f r.>") if random.random() < 0.12]
        lines += boxes
        if random.random() < 0.3:
            lines.append(f"make T {_json({'subjects': ['t.>'], **self._stream_fields(1, 0.0)})}")
        for _ in range(random.randint(0, 5)):
            lines.append(self._publish(0.3))
        if random.random() < 0.6:
            lines.append(f"consumer C {_json(self._consumer_fields(random.choice((0, 0, 1, 2)), 0.0))}")
        for _ in range(random.randint(2, 10)):
            lines += self._request()
        lines += [f"rest {box.split()[1]}" for box in boxes]
        lines.append("state")
        if random.random() < 0.4:
            lines.append("msgs S")
        return lines

    # ---- requests

    def _request(self) -> list[str]:
        random = self.random
        kinds = {
            self._create_stream: 12, self._update_stream: 10, self._create_consumer: 20, self._simple: 8, self._get: 10,
            self._direct: 8, self._purge: 6, self._delete_message: 5, self._pull: 8, self._listing: 5,
            self._consumer_action: 8, self._publishes: 16, self._rare: 4, self._batch: 3, self._with_headers: 3}
        return random.choices(list(kinds), list(kinds.values()))[0]()

    def _create_stream(self) -> list[str]:
        random = self.random
        name = random.choice(STREAMS)
        config: dict[str, Any] = {"name": name if random.random() < 0.93 else random.choice(("X", "", "a.b", "a b", 1))}
        if random.random() < 0.8:
            config["subjects"] = [random.choice(PATTERNS)]
        config |= self._stream_fields(random.choice((0, 1, 1, 2, 3)), 0.25)
        if random.random() < 0.05:
            config["pedantic"] = True
        return [f"api STREAM.CREATE.{name} {self._body(config)}"]

    def _update_stream(self) -> list[str]:
        random = self.random
        name = random.choice(STREAMS)
        subject = f"{name.lower()}.>" if random.random() < 0.7 else random.choice(PATTERNS)
        config: dict[str, Any] = {"name": name, "subjects": [subject]}
        config |= self._stream_fields(random.choice((0, 1, 1, 2, 3)), 0.2)
        return [f"api STREAM.UPDATE.{name} {self._body(config)}"]

    def _create_consumer(self) -> list[str]:
        random = self.random
        name, stream = random.choice(CONSUMERS), random.choice(STREAMS)
        config: dict[str, Any] = {}
        if random.random() < 0.85:
            config[random.choice(("durable_name", "durable_name", "name"))] = name
        if random.random() < 0.8:
            config["ack_policy"] = random.choice(("explicit", "explicit", "none", "all"))
        config |= self._consumer_fields(random.choice((0, 1, 1, 2, 3)), 0.25)
        named = stream if random.random() < 0.95 else random.choice(("X", "", 1))
        request: dict[str, Any] = {"stream_name": named, "config": config}
        if random.random() < 0.25:
            request["action"] = random.choice(("create", "update", "", "delete", 1))
        if random.random() < 0.06:
            request["pedantic"] = True
        subject = random.choice((
            f"CONSUMER.CREATE.{stream}.{name}", f"CONSUMER.CREATE.{stream}.{name}",
            f"CONSUMER.DURABLE.CREATE.{stream}.{name}",
            f"CONSUMER.CREATE.{stream}", f"CONSUMER.CREATE.{stream}.{name}.{random.choice(SUBJECTS)}"))
        return [f"api {subject} {self._body(request)}"]

    def _simple(self) -> list[str]:
        random = self.random
        stream, consumer = random.choice(STREAMS), random.choice(CONSUMERS)
        subject = random.choice((
            f"STREAM.INFO.{stream}", f"STREAM.DELETE.{stream}", f"CONSUMER.INFO.{stream}.{consumer}",
            f"CONSUMER.DELETE.{stream}.{consumer}", f"CONSUMER.NAMES.{stream}", f"CONSUMER.LIST.{stream}",
            "STREAM.NAMES", "STREAM.LIST", "INFO", f"STREAM.PEER.REMOVE.{stream}", f"STREAM.LEADER.STEPDOWN.{stream}",
            f"CONSUMER.LEADER.STEPDOWN.{stream}.{consumer}", "STREAM.INFO.*", "NO.SUCH", f"STREAM.SNAPSHOT.{stream}",
            f"STREAM.RESTORE.{stream}", "STREAM.INFO", "ACCOUNT.PURGE.F0", "STREAM.TEMPLATE.NAMES"))
        bodies = ("", "", "", "{}", "[]", "x", '{"a": 1}', "null", '{"no_config": true}')
        return [f"api {subject} {random.choice(bodies)}".rstrip()]

    def _rare(self) -> list[str]:
        """Return requests of clusters, backups and moves, and subjects with too few or too many tokens."""
        random = self.random
        stream, consumer = random.choice(STREAMS), random.choice(CONSUMERS)
        subject, fields = random.choice((
            (f"STREAM.SNAPSHOT.{stream}",
             {"deliver_subject": ("", "a b", "x.*"), "chunk_size": (1, -1), "window_size": (1,),
              "no_consumers": (True,), "jsck": (True,)}),
            (f"STREAM.RESTORE.{stream}",
             {"config": ({"name": "S"}, {"name": "X"}, {}), "state": ({}, {"messages": 1})}),
            ("META.LEADER.STEPDOWN", {"placement": ({"cluster": "c"}, {"preferred": "n"}, {"tags": ["a"]})}),
            (f"STREAM.LEADER.STEPDOWN.{stream}", {"placement": ({"cluster": "c"}, {"preferred": "n"})}),
            (f"CONSUMER.LEADER.STEPDOWN.{stream}.{consumer}", {"placement": ({"preferred": "n"},)}),
            ("SERVER.REMOVE", {"peer": ("n",), "peer_id": ("i",)}),
            (f"STREAM.PEER.REMOVE.{stream}", {"peer": ("n",)}),
            (f"ACCOUNT.STREAM.MOVE.F0.{stream}", {"server": ("n",), "cluster": ("c",), "tags": (["a"],)}),
            ("INFO", {"a": (1,)})))
        if random.random() < 0.2:
            tokens = subject.split(".")
            subject = random.choice((".".join(tokens[:-1]), f"{subject}.x", f"{subject}.x.y", subject.lower(),
                                     f"{subject}.", f"{subject}.*"))
        return [f"api {subject} {self._body(self._some(fields, 0.3)) if random.random() < 0.8 else ''}".rstrip()]

    def _batch(self) -> list[str]:
        """Return the messages of an atomic batch, at random with a gap or without an end."""
        random = self.random
        name, lines = random.choice(("b1", "b2", "x" * 65)), []
        numbers = [1, 2, 3][:random.randint(1, 3)] if random.random() < 0.8 else random.sample((0, 1, 2, 3, 4), 2)
        for number in numbers:
            headers = [f"Nats-Batch-Id: {name}", f"Nats-Batch-Sequence: {number}"]
            if number == numbers[-1] and random.random() < 0.8:
                headers.append(f"Nats-Batch-Commit: {random.choice(('1', '1', 'eob', 'x'))}")
            if random.random() < 0.4:
                extra = random.choice(list(_HEADERS))
                headers.append(f"{extra}: {random.choice(_HEADERS[extra])}")
            lines.append(f"pub[{'; '.join(headers)}] {random.choice(SUBJECTS)} {number}")
        return lines

    def _with_headers(self) -> list[str]:
        """Return an API request with headers."""
        random = self.random
        subject = random.choice((f"STREAM.INFO.{random.choice(STREAMS)}", "INFO", "STREAM.NAMES", "NO.SUCH",
                                 f"CONSUMER.LIST.{random.choice(STREAMS)}", f"DIRECT.GET.{random.choice(STREAMS)}.s.a",
                                 f"STREAM.PURGE.{random.choice(STREAMS)}", "CONSUMER.MSG.NEXT.S.C"))
        name = random.choice(("Nats-Required-Api-Level", "Nats-Required-Api-Level", "nats-required-api-level", "X"))
        value = random.choice(("0", "1", "99", "-1", "x", "", "9" * 30, " 1 ", "1.0"))
        box = self._box()
        return [f"sub {box}", f"into[{name}: {value}] {box} $JS.API.{subject}", f"rest {box}"]

    def _get(self) -> list[str]:
        body = self._some(_GET, 0.15)
        return [f"api STREAM.MSG.GET.{self.random.choice(STREAMS)} {self._body(body)}"]

    def _direct(self) -> list[str]:
        random = self.random
        stream = random.choice(STREAMS)
        if random.random() < 0.25:
            return [f"api DIRECT.GET.{stream}.{random.choice(SUBJECTS)}"]
        body = self._some(_GET, 0.1)
        box = self._box()
        return [f"sub {box}", f"into[] {box} $JS.API.DIRECT.GET.{stream} {self._body(body)}", f"rest {box}"]

    def _purge(self) -> list[str]:
        body = self._some({"filter": PATTERNS, "seq": (1, 2, 3, 0, 100), "keep": (0, 1, 2)}, 0.2)
        return [f"api STREAM.PURGE.{self.random.choice(STREAMS)} {self._body(body)}"]

    def _delete_message(self) -> list[str]:
        body = self._some({"seq": (1, 2, 3, 0, 100), "no_erase": (True, False)}, 0.2)
        return [f"api STREAM.MSG.DELETE.{self.random.choice(STREAMS)} {self._body(body)}"]

    def _listing(self) -> list[str]:
        random = self.random
        kind = random.choice(("STREAM.NAMES", "STREAM.LIST", f"CONSUMER.NAMES.{random.choice(STREAMS)}",
                              f"CONSUMER.LIST.{random.choice(STREAMS)}", f"STREAM.INFO.{random.choice(STREAMS)}"))
        fields: dict[str, Any] = {"offset": (0, 1, 5)}
        if kind.startswith("STREAM.INFO"):
            fields |= {"subjects_filter": PATTERNS, "deleted_details": (True,)}
        elif kind.startswith("STREAM"):
            fields |= {"subject": PATTERNS}
        return [f"api {kind} {self._body(self._some(fields, 0.25))}"]

    def _consumer_action(self) -> list[str]:
        random = self.random
        stream, consumer = random.choice(STREAMS), random.choice(CONSUMERS)
        kind = random.random()
        if kind < 0.4:
            body = self._some({"pause_until": ("2030-01-01T00:00:00Z", "2000-01-01T00:00:00Z")}, 0.4)
            return [f"api CONSUMER.PAUSE.{stream}.{consumer} {self._body(body)}"]
        if kind < 0.7:
            body = self._some({"group": ("a", "b", "")}, 0.3)
            return [f"api CONSUMER.UNPIN.{stream}.{consumer} {self._body(body)}"]
        return [f"api CONSUMER.RESET.{stream}.{consumer} {self._body(self._some({'seq': (0, 1, 2, 100)}, 0.3))}"]

    def _pull(self) -> list[str]:
        random = self.random
        consumer, box = random.choice(("C", "C", "C", "D")), self._box()
        body = self._some({"batch": (1, 2, 5, 0), "no_wait": (True, True, False),
                           "expires": (SECOND // 20, SECOND, 1, 0),
                           "max_bytes": (1, 1000), "idle_heartbeat": (SECOND // 100, SECOND), "group": ("a", "b"),
                           "min_pending": (1, 100), "min_ack_pending": (1,), "priority": (0, 1, 9, 10), "id": ("x",)},
                          0.15)
        if random.random() < 0.6:
            body.setdefault("no_wait", True)
        text = self._body(body) if random.random() < 0.85 else random.choice(("", "1", "5", "x", "-1", "[]", "{}"))
        lines = [f"pull {consumer} {box} {text}".rstrip(), f"rest {box}"]
        if random.random() < 0.5:
            answer = random.choice(("+ACK", "", "-NAK", "+TERM", "+WPI", "+NXT", "-NAK {\"delay\": 1}", "+TERM why",
                                    "what", "-NAK {\"delay\": \"x\"}", "-NAK x", "+ACK x"))
            lines += [f"{random.choice(('ask', 'ask', 'ack'))} {box} 1 {answer}".rstrip(), f"info {consumer}"]
        return lines

    # ---- publishes

    def _publishes(self) -> list[str]:
        return [self._publish(0.8) for _ in range(self.random.choice((1, 1, 2, 3)))]

    def _publish(self, headers: float) -> str:
        random = self.random
        subject = random.choice(SUBJECTS)
        chosen = []
        if random.random() < headers:
            names = random.sample(list(_HEADERS), random.choice((1, 1, 1, 2, 3)))
            for name in names:
                value = random.choice(_HEADERS[name] if random.random() < 0.8 else
                                      ("", "0", "-1", "x", "1", "1s", "18446744073709551616", "a b", "true"))
                chosen.append(f"{name}: {value}")
        body = random.choice(("", "x", "hello", "{}", "1" * 20, "x" * 200))
        return f"pub{'[' + '; '.join(chosen) + ']' if chosen else ''} {subject} {body}".rstrip()

    # ---- fields

    def _box(self) -> str:
        self._boxes += 1
        return f"b{self._boxes}"

    def _stream_fields(self, count: int, wrong: float) -> dict[str, Any]:
        return self._fields(_STREAM, count, wrong)

    def _consumer_fields(self, count: int, wrong: float) -> dict[str, Any]:
        return self._fields(_CONSUMER, count, wrong)

    def _some(self, fields: dict[str, Any], wrong: float) -> dict[str, Any]:
        return self._fields(fields, self.random.choice((0, 1, 1, 1, 2, 2, 3)), wrong)

    def _fields(self, fields: dict[str, Any], count: int, wrong: float) -> dict[str, Any]:
        random = self.random
        found = {}
        for name in random.sample(list(fields), min(count, len(fields))):
            found[name] = random.choice(fields[name])
            if random.random() < wrong:
                found[name] = self._wrong(found[name])
        if random.random() < wrong / 5:
            found[random.choice(("unknown", "Name", "MAX_MSGS", "Seq", "Config"))] = random.choice(_EDGES)
        return found

    def _wrong(self, value: Any) -> Any:
        """Return an edge value, or ``value`` with one inside of it."""
        random = self.random
        if isinstance(value, dict) and value and random.random() < 0.6:
            name = random.choice(list(value))
            return {**value, name: self._wrong(value[name])}
        if isinstance(value, list) and value and random.random() < 0.6:
            return [*value[:-1], self._wrong(value[-1])]
        if isinstance(value, int) and not isinstance(value, bool) and random.random() < 0.5:
            return random.choice((-value, value + 1, str(value), value * 1000, float(value) + 0.5))
        return random.choice(_EDGES)

    def _body(self, value: dict[str, Any]) -> str:
        random = self.random
        kind = random.random()
        if kind > 0.03:
            return _json(value)
        if kind > 0.02:
            return _json([value])
        text = _json(value)
        return text[:random.randrange(len(text))] if kind > 0.01 else text + random.choice(("}", "x", "{}"))


_STREAM: dict[str, tuple[Any, ...]] = {
    "description": ("d", "d" * 4097),
    "retention": ("limits", "interest", "workqueue", "x"),
    "max_consumers": (-1, 1, 2),
    "max_msgs": (-1, 1, 3),
    "max_bytes": (-1, 100, 300, 10000),
    "max_age": (0, 100_000_000, 3600 * SECOND),
    "max_msgs_per_subject": (-1, 1, 2),
    "max_msg_size": (-1, 10, 100),
    "discard": ("old", "new"),
    "storage": ("file", "memory"),
    "num_replicas": (0, 1, 3),
    "no_ack": (True, False),
    "duplicate_window": (0, 100_000_000, 60 * SECOND, 3600 * SECOND),
    "placement": ({"cluster": "c"}, {"tags": ["a"]}, {}, {"preferred": "n"}),
    "mirror": ({"name": "T"}, {"name": "T", "opt_start_seq": 1}, {"name": "T", "filter_subject": "t.a"},
               {"name": "X"}, {"name": "T", "opt_start_time": "2030-01-01T00:00:00Z"},
               {"name": "T", "subject_transforms": [{"src": "t.*", "dest": "s.$1"}]},
               {"name": "T", "filter_subject": "t.a", "subject_transforms": [{"src": "t.>", "dest": "s.>"}]},
               {"name": "T", "external": {"api": "$JS.X.API", "deliver": "x"}}, {"name": "a b"}),
    "sources": ([{"name": "T"}], [{"name": "T"}, {"name": "U"}], [{"name": "T", "filter_subject": "t.a"}],
                [{"name": "T", "subject_transforms": [{"src": "t.>", "dest": "s.x.>"}]}], [{"name": "X"}],
                [{"name": "T"}, {"name": "T"}], [{"name": "T", "external": {"api": "a", "deliver": "s"}}],
                [{"name": "T", "subject_transforms": [{"src": "t.a", "dest": "x"}, {"src": "t.>", "dest": "y"}]}],
                [{"name": "T", "filter_subject": "t.a", "subject_transforms": [{"src": "t.a", "dest": "s.a"}]}], [{}]),
    "sealed": (True, False),
    "deny_delete": (True, False),
    "deny_purge": (True, False),
    "allow_rollup_hdrs": (True, False),
    "compression": ("none", "s2", "zip"),
    "first_seq": (0, 1, 5, 100),
    "allow_direct": (True, False),
    "mirror_direct": (True, False),
    "subject_transform": ({"src": "s.*", "dest": "s.x.$1"}, {"src": "", "dest": "s.y.>"},
                          {"src": "s.>", "dest": "s.z.>"}, {"src": "s.*", "dest": "s.{{partition(2,1)}}"},
                          {"src": "s.*", "dest": "s.$2"}),
    "republish": ({"src": "s.>", "dest": "r.>"}, {"dest": "r.>"}, {"src": "s.>", "dest": "s.>"},
                  {"src": "s.a", "dest": "r.a", "headers_only": True}, {"src": "x.>", "dest": "r.>"}),
    "discard_new_per_subject": (True, False),
    "consumer_limits": ({"inactive_threshold": SECOND}, {"max_ack_pending": 10}, {}),
    "metadata": ({"a": "b"}, {"_nats.x": "y"}, {}),
    "allow_msg_ttl": (True, False),
    "subject_delete_marker_ttl": (SECOND, 10 * SECOND, 1),
    "persist_mode": ("default", "async"),
    "allow_msg_counter": (True, False),
    "allow_atomic": (True, False),
    "allow_batched": (True, False),
    "allow_msg_schedules": (True, False),
    "subjects": (["s.>"], ["s.a", "s.b"], ["s.*", "s.a"], ["s.a", "s.a"], [], ["x"], ["$JS.API.>"], ["s..a"], [">"],
                 ["s.>", "t.>"]),
    "template_owner": ("x",),
}
"""Values of each field that a client might send; others are made of _EDGES."""

_CONSUMER: dict[str, tuple[Any, ...]] = {
    "description": ("d", "d" * 4097),
    "deliver_policy": ("all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject", "x"),
    "opt_start_seq": (1, 2, 100),
    "opt_start_time": ("2030-01-01T00:00:00Z", "2000-01-01T00:00:00Z", "x"),
    "ack_policy": ("none", "all", "explicit", "x"),
    "ack_wait": (SECOND, 30 * SECOND, 0),
    "max_deliver": (-1, 1, 2, 5),
    "backoff": ([SECOND], [SECOND, 2 * SECOND], []),
    "filter_subject": PATTERNS,
    "filter_subjects": (["s.a"], ["s.a", "s.b"], ["s.a", "s.>"], [""], ["s.a", "s.a"], []),
    "replay_policy": ("instant", "original", "x"),
    "rate_limit_bps": (1000000, 0),
    "sample_freq": ("100", "50%", "100%", "x", "101"),
    "max_waiting": (1, 512, 0),
    "max_ack_pending": (1, -1, 1000, 0),
    "flow_control": (True, False),
    "idle_heartbeat": (SECOND, 100_000_000, 5 * SECOND),
    "headers_only": (True, False),
    "max_batch": (1, 10, 0),
    "max_expires": (SECOND, 1_000_000, 0),
    "max_bytes": (1000, 0),
    "inactive_threshold": (60 * SECOND, 0, SECOND),
    "deliver_subject": ("d", "d.a", "s.a", "d.>", "d *"),
    "deliver_group": ("q", ""),
    "num_replicas": (0, 1, 3),
    "mem_storage": (True, False),
    "metadata": ({"a": "b"}, {"_nats.x": "y"}, {}),
    "pause_until": ("2030-01-01T00:00:00Z", "2000-01-01T00:00:00Z", "x"),
    "priority_policy": ("none", "overflow", "pinned_client", "prioritized", "x"),
    "priority_groups": (["a"], ["a", "b"], [], [""]),
    "priority_timeout": (SECOND, 120 * SECOND),
    "durable_name": ("C", "D", "a.b", ""),
    "name": ("C", "D", "a b"),
    "direct": (True,),
}

_GET: dict[str, tuple[Any, ...]] = {
    "seq": (1, 2, 3, 0, 9), "last_by_subj": SUBJECTS, "next_by_subj": PATTERNS, "batch": (1, 2, 10, 0),
    "max_bytes": (1, 100), "multi_last": (["s.>"], ["s.a", "s.b"], []), "up_to_seq": (1, 2, 100), "no_hdr": (True,),
    "up_to_time": ("2030-01-01T00:00:00Z", "2000-01-01T00:00:00Z"),
    "start_time": ("2030-01-01T00:00:00Z", "2000-01-01T00:00:00Z"),
}

_HEADERS: dict[str, tuple[str, ...]] = {
    "Nats-Msg-Id": ("m1", "m2", "m1"),
    "Nats-Expected-Stream": ("S", "T"),
    "Nats-Expected-Last-Sequence": ("0", "1", "2", "5"),
    "Nats-Expected-Last-Subject-Sequence": ("0", "1", "2", "5"),
    "Nats-Expected-Last-Subject-Sequence-Subject": ("s.a", "s.>", "t.a"),
    "Nats-Expected-Last-Msg-Id": ("m1", "m2"),
    "Nats-Rollup": ("sub", "all", "x"),
    "Nats-TTL": ("1s", "1h", "never", "0", "100", "1ms"),
    "Nats-Incr": ("1", "+1", "-5", "x", "0"),
    "Nats-Batch-Id": ("b1", "b2"),
    "Nats-Batch-Sequence": ("1", "2", "3", "0"),
    "Nats-Batch-Commit": ("1", "eob", "0"),
    "Nats-Schedule": ("@at 2099-01-01T00:00:00Z", "@every 1h", "@hourly", "x"),
    "Nats-Schedule-Target": ("s.b", "s.a", "t.a", "s.*"),
    "Nats-Schedule-TTL": ("1s", "x"),
    "Nats-Schedule-Rollup": ("sub", "all", "x"),
    "Nats-Stream-Identity": ("x",),
    "Nats-Expected-Last-Subject": ("s.a",),
    "nats-msg-id": ("m1",),
    "Status": ("100", "503"),
    "Nats-Required-Api-Level": ("0", "1", "99"),
    "Nats-Schedule-Source": ("s.b", "s.*"),
    "Nats-Schedule-Next": ("purge",),
    "Nats-Marker-Reason": ("MaxAge",),
    "X": ("y",),
    "Nats-Schedule-Time-Zone": ("Europe/Berlin", "x"),
    "Nats-Scheduler": ("s.a",),
    "Nats-Stream-Source": ("T 1 > >",),
}
