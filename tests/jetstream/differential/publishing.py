"""Scenarios of publishing, as data: see player.py for the steps. Each begins on a server without streams."""

from __future__ import annotations

from itertools import combinations

__all__ = ["SCENARIOS", "SHOWS"]

SCENARIOS: dict[str, str] = {
    "without a reply subject": """stream {"max_msg_size": 60}
        into - s.a one
        into[Nats-Msg-Id: 1] - s.a two
        into[Nats-Msg-Id: 1] - s.a again
        into[Nats-Expected-Last-Sequence: 9] - s.a three
        into - s.a too large by far, since this stream takes no message of more than sixty bytes
        into - elsewhere four
        pub s.b five
        state
        msgs S""",
    "message ids": """stream {"duplicate_window": 300ms}
        pub[Nats-Msg-Id: a] s.a 1
        pub[Nats-Msg-Id: a] s.b 2
        pub[Nats-Msg-Id: b] s.a 3
        pub[Nats-Msg-Id: a] s.a 4
        pub[Nats-Msg-Id: ] s.a 5
        pub[nats-msg-id: a] s.a 6
        pub[Nats-Msg-Id:a] s.a 7
        sleep 450ms
        pub[Nats-Msg-Id: a] s.a 8
        state""",
    "message ids outlive their messages": """stream {"max_msgs": 1}
        pub[Nats-Msg-Id: a] s.a 1
        pub[Nats-Msg-Id: b] s.a 2
        pub[Nats-Msg-Id: a] s.a 3
        api STREAM.PURGE.S
        pub[Nats-Msg-Id: b] s.a 4
        state""",
    "message id of what was refused": """stream {"max_msg_size": 40}
        pub[Nats-Msg-Id: a] s.a 1234567890123456789012345678901234567890
        pub[Nats-Msg-Id: a] s.a 1
        pub[Nats-Msg-Id: a] s.a 2""",
    "expected stream": """stream
        pub[Nats-Expected-Stream: S] s.a 1
        pub[Nats-Expected-Stream: T] s.a 2
        pub[Nats-Expected-Stream: ] s.a 3
        state""",
    "expected last sequence": """stream
        pub[Nats-Expected-Last-Sequence: 0] s.a 1
        pub[Nats-Expected-Last-Sequence: 0] s.a 2
        pub[Nats-Expected-Last-Sequence: 1] s.a 3
        pub[Nats-Expected-Last-Sequence: 9] s.a 4
        pub[Nats-Expected-Last-Sequence: x] s.a 5
        pub[Nats-Expected-Last-Sequence: -1] s.a 6
        pub[Nats-Expected-Last-Sequence: ] s.a 7
        api STREAM.PURGE.S
        pub[Nats-Expected-Last-Sequence: 0] s.a 8
        pub[Nats-Expected-Last-Sequence: 3] s.a 9""",
    "expected last sequence of a subject": """stream
        pub[Nats-Expected-Last-Subject-Sequence: 0] s.a 1
        pub[Nats-Expected-Last-Subject-Sequence: 0] s.a 2
        pub[Nats-Expected-Last-Subject-Sequence: 1] s.a 3
        pub[Nats-Expected-Last-Subject-Sequence: 0] s.b 4
        pub[Nats-Expected-Last-Subject-Sequence: 3] s.a 5
        pub[Nats-Expected-Last-Subject-Sequence: x] s.a 6
        pub[Nats-Expected-Last-Subject-Sequence: 3; Nats-Expected-Last-Subject-Sequence-Subject: s.*] s.c 7
        pub[Nats-Expected-Last-Subject-Sequence: 2; Nats-Expected-Last-Subject-Sequence-Subject: s.a] s.c 8
        pub[Nats-Expected-Last-Subject-Sequence: 0; Nats-Expected-Last-Subject-Sequence-Subject: s.none] s.c 9
        pub[Nats-Expected-Last-Subject-Sequence-Subject: s.a] s.c 10
        pub[Nats-Expected-Last-Subject-Sequence: 0; Nats-Expected-Last-Subject-Sequence-Subject: s..a] s.c 11
        api STREAM.MSG.DELETE.S {"seq": 2}
        pub[Nats-Expected-Last-Subject-Sequence: 1] s.a 12
        api STREAM.PURGE.S {"filter": "s.a"}
        pub[Nats-Expected-Last-Subject-Sequence: 0] s.a 13
        state""",
    "expected last message id": """stream
        pub[Nats-Expected-Last-Msg-Id: x] s.a 1
        pub[Nats-Msg-Id: a] s.a 2
        pub[Nats-Expected-Last-Msg-Id: a; Nats-Msg-Id: b] s.a 3
        pub[Nats-Expected-Last-Msg-Id: a] s.a 4
        pub[Nats-Expected-Last-Msg-Id: b] s.a 5
        pub[Nats-Expected-Last-Msg-Id: b] s.a 6
        state""",
    "what comes first": """stream
        pub[Nats-Msg-Id: a] s.a 1
        pub[Nats-Msg-Id: a; Nats-Expected-Last-Sequence: 0] s.a 2
        pub[Nats-Msg-Id: a; Nats-Expected-Last-Msg-Id: z] s.a 3
        pub[Nats-Msg-Id: a; Nats-Rollup: all] s.a 4
        pub[Nats-Expected-Stream: T; Nats-Expected-Last-Sequence: 9; Nats-Rollup: bogus] s.a 5
        pub[Nats-Expected-Last-Subject-Sequence: 7; Nats-Expected-Last-Sequence: 9] s.a 6
        pub[Nats-TTL: 1s; Nats-Expected-Last-Subject-Sequence: 7] s.a 7""",
    "roll-ups": """stream {"allow_rollup_hdrs": true}
        fill 3 s.a
        fill 3 s.b
        pub[Nats-Rollup: sub] s.a rolled
        state
        pub[Nats-Rollup: SUB] s.b rolled
        state
        pub[Nats-Rollup: bogus] s.a x
        pub[Nats-Rollup: ] s.a x
        pub[Nats-Rollup: all] s.c rolled
        state""",
    "roll-up of a wildcard": """stream {"allow_rollup_hdrs": true}
        fill 2 s.a
        fill 2 s.b
        fill 1 s.b.c
        pub[Nats-Rollup: sub] s.* rolled
        state
        api STREAM.MSG.GET.S {"last_by_subj": "s.*"}
        fill 2 s.a
        pub[Nats-Rollup: sub] s.> rolled
        state""",
    "roll-up of a wildcard, one per subject": """stream {"allow_rollup_hdrs": true, "max_msgs_per_subject": 1}
        fill 2 s.a
        fill 2 s.b
        fill 1 s.b.c
        pub[Nats-Rollup: sub] s.* rolled
        state
        fill 2 s.a
        pub[Nats-Rollup: sub] s.> rolled
        state""",
    "roll-up under a consumer": """stream {"allow_rollup_hdrs": true}
        consumer C
        consumer A {"filter_subject": "s.a"}
        consumer W {"filter_subjects": ["s.*", "s.x.>"]}
        fill 3 s.a
        fill 2 s.b
        info W
        pull C p {"batch": 2}
        get p 2
        pull A q {"batch": 1}
        get q 1
        pub[Nats-Rollup: sub] s.a rolled
        info C
        info A
        info W
        pull C p {"batch": 9, "no_wait": true}
        until p 404
        pub[Nats-Rollup: all] s.b rolled
        info C
        info A
        info W""",
    "roll-ups forbidden": """stream
        pub[Nats-Rollup: sub] s.a x
        api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"], "allow_rollup_hdrs": true}
        pub[Nats-Rollup: sub] s.a x
        api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"], "deny_purge": true}
        pub[Nats-Rollup: sub] s.a x""",
    "max_msgs": """stream {"max_msgs": 3}
        fill 5 s.#
        state
        api STREAM.MSG.DELETE.S {"seq": 4}
        fill 1 s.a
        state""",
    "max_msgs, discard new": """stream {"max_msgs": 3, "discard": "new"}
        fill 3 s.#
        pub s.a x
        api STREAM.MSG.DELETE.S {"seq": 2}
        pub s.a x
        pub s.a x
        state""",
    "max_bytes": """stream {"max_bytes": 120}
        fill 5 s.#
        state
        pub s.a 1234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890
        state
        fill 1 s.a
        state""",
    "max_bytes, discard new": """stream {"max_bytes": 120, "discard": "new"}
        fill 5 s.#
        state
        pub s.a 1
        api STREAM.PURGE.S {"keep": 1}
        pub s.a 1""",
    "max_msgs_per_subject": """stream {"max_msgs_per_subject": 2}
        fill 3 s.a
        fill 2 s.b
        fill 1 s.a
        state
        api STREAM.MSG.DELETE.S {"seq": 5}
        fill 2 s.b
        state""",
    "max_msgs_per_subject, discard new": """stream {"max_msgs_per_subject": 2, "max_msgs": 3, "discard": "new"}
        fill 3 s.a
        pub s.b 1
        pub s.b 2
        pub s.a 4
        state""",
    "discard_new_per_subject": """stream {"max_msgs_per_subject": 1, "discard_new_per_subject": true, "discard": "new"}
        pub s.a 1
        pub s.a 2
        pub s.b 1
        api STREAM.PURGE.S {"filter": "s.a"}
        pub s.a 3
        state""",
    "roll-up over discard_new_per_subject": """stream {"max_msgs_per_subject": 1, "discard_new_per_subject": true,
            "discard": "new", "allow_rollup_hdrs": true}
        pub s.a 1
        pub[Nats-Rollup: sub] s.a 2
        state""",
    "max_msg_size": """stream {"max_msg_size": 10}
        pub s.a 1234567890
        pub s.a 12345678901
        pub[A: b] s.a 1
        state""",
    "max_age": """stream {"max_age": 400ms, "duplicate_window": 100ms}
        fill 3 s.a
        state
        sleep 800ms
        state
        pub s.a 1
        state""",
    "sealed": """stream
        fill 2 s.a
        api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"], "sealed": true}
        pub s.a x
        pub[Nats-Expected-Stream: T] s.a x
        api STREAM.MSG.DELETE.S {"seq": 1}
        api STREAM.PURGE.S
        consumer C
        pull C p {"batch": 2}
        get p 2""",
    "no_ack": """stream {"no_ack": true}
        pub s.a x
        pub[Nats-Expected-Last-Sequence: 9] s.a x
        state""",
    "headers of other features": """stream
        pub s.a x
        pub[Nats-TTL: 10] s.a x
        pub[Nats-TTL: x] s.a x
        pub[Nats-TTL: never] s.a x
        pub[Nats-Incr: 1] s.a x
        pub[Nats-Incr: x] s.a x
        pub[Nats-Schedule: @at 2100-01-01T00:00:00Z] s.a x
        pub[Nats-Batch-Id: a; Nats-Batch-Sequence: 1] s.a x
        pub[Nats-Stream-Source: x] s.a x
        pub[Nats-Scheduler: x] s.a x
        state""",
    "headers are kept as they are": """stream {"allow_direct": true}
        pub[A: b; A: c; b:d;  E : f] s.a x
        pub[Nats-Stream: forged; Nats-Sequence: 9] s.a x
        api DIRECT.GET.S {"seq": 1}
        api DIRECT.GET.S {"seq": 2}
        api STREAM.MSG.GET.S {"seq": 1}
        consumer C
        pull C p {"batch": 2}
        get p 2""",
    "direct gets after removals": """stream {"allow_direct": true, "max_msgs_per_subject": 2}
        fill 3 s.a
        fill 3 s.b
        api DIRECT.GET.S.s.a
        api DIRECT.GET.S {"seq": 1}
        api DIRECT.GET.S {"next_by_subj": "s.a", "seq": 1}
        api STREAM.MSG.DELETE.S {"seq": 3}
        api DIRECT.GET.S.s.a
        api STREAM.PURGE.S {"filter": "s.a"}
        api DIRECT.GET.S.s.a
        api DIRECT.GET.S {"last_by_subj": "s.>"}""",
    "subjects that cannot be": """stream
        pub s.* x
        pub s. x
        pub s..a x
        state
        api STREAM.MSG.GET.S {"last_by_subj": "s.*"}""",
    "two streams": """stream
        api STREAM.CREATE.T {"name": "T", "subjects": ["t.>"]}
        pub t.a 1
        pub s.a 1
        pub t.a 2
        pub u.a 1
        api STREAM.UPDATE.T {"name": "T", "subjects": ["u.>"]}
        pub t.a 3
        pub u.a 1
        state""",
    "duplicate window shrinks": """stream {"duplicate_window": 10000ms}
        pub[Nats-Msg-Id: a] s.a 1
        api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"], "duplicate_window": 100000000}
        sleep 300ms
        pub[Nats-Msg-Id: a] s.a 1
        api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"], "max_age": 5000000000,
            "duplicate_window": 6000000000}""",
    "roll-ups with expectations and ids": """stream {"allow_rollup_hdrs": true, "max_msgs_per_subject": 3}
        fill 3 s.a
        fill 2 s.b
        pub[Nats-Rollup: sub; Nats-Expected-Last-Subject-Sequence: 3] s.a r
        pub[Nats-Rollup: sub; Nats-Expected-Last-Subject-Sequence: 3] s.a r
        pub[Nats-Rollup: sub; Nats-Msg-Id: x] s.b r
        pub[Nats-Rollup: sub; Nats-Msg-Id: x] s.b r
        state
        fill 4 s.a
        state""",
    "memory and its direct gets": """stream {"storage": "memory", "allow_direct": true, "max_msgs_per_subject": 1}
        fill 3 s.a
        fill 3 s.#
        api DIRECT.GET.S.s.a
        api DIRECT.GET.S {"seq": 2}
        api DIRECT.GET.S {"next_by_subj": "s.*", "seq": 1}
        consumer C {"deliver_policy": "last_per_subject", "filter_subject": "s.>"}
        pull C p {"batch": 9, "no_wait": true}
        until p 404
        info C""",
    "unusual headers": """stream
        pub[a: b] s.a
        pub[a:] s.a x
        pub[: x] s.a x
        consumer C {"headers_only": true}
        pull C p {"batch": 3}
        get p 3
        consumer D
        pull D q {"batch": 3}
        get q 3""",
    "nothing may be removed": """stream {"deny_delete": true, "deny_purge": true}
        fill 2 s.a
        api STREAM.MSG.DELETE.S {"seq": 1}
        api STREAM.PURGE.S
        api STREAM.PURGE.S {"filter": "s.a"}
        state""",
}

FAULTS = [
    "Nats-Batch-Id: b", "Nats-Incr: 1", "Nats-Incr: one", "Nats-Expected-Stream: T", "Nats-TTL: 10s", "Nats-TTL: soon",
    "Nats-Expected-Last-Subject-Sequence: 99", "Nats-Expected-Last-Subject-Sequence-Subject: s.b",
    "Nats-Expected-Last-Sequence: 99", "Nats-Schedule: @every 5s", "Nats-Schedule-Time-Zone: Moon",
    "Nats-Schedule-Next: now",
    "Nats-Scheduler: s.b", "Nats-Stream-Source: T 1", "Nats-Msg-Id: a", "Nats-Expected-Last-Msg-Id: z",
    "Nats-Rollup: sub",
    "Nats-Rollup: week"]
"""Headers that a stream refuses, at least under one of the configurations below."""

STREAMS_WITH_FAULTS = {
    "": "{}",
    "roll-ups allowed": '{"allow_rollup_hdrs": true}',
    "too large": '{"allow_rollup_hdrs": true, "max_msg_size": 20}',
    "no room": '{"allow_rollup_hdrs": true, "max_msgs": 3, "discard": "new"}',
    "subject full": '{"allow_rollup_hdrs": true, "max_msgs_per_subject": 2, "discard": "new", '
                    '"discard_new_per_subject": true}',
}


def _two_faults(config: str) -> str:
    """Return publishes with one fault and with each pair: the reported one shows the order of the checks."""
    publishes = [f"pub[{one}] s.a x" for one in FAULTS] + [
        f"pub[{one}; {other}] s.a x" for one, other in combinations(FAULTS, 2)
        if one.partition(":")[0] != other.partition(":")[0]]
    return "\n".join([f"stream {config}", "pub s.a 1", "pub s.b 1", "pub s.a 2", "pub[Nats-Msg-Id: a] s.a", *publishes,
                      "state"])


def _sealed(*publishes: str) -> str:
    return "\n".join(["stream", "pub s.a 1", 'api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"], "sealed": true}',
                      *publishes, "state"])


_TOO_LARGE = f"X: {'y' * 66_000}"

SCENARIOS |= {f"two faults, {name}": _two_faults(config) for name, config in STREAMS_WITH_FAULTS.items()}
SCENARIOS |= {
    "headers too large, and another fault": "\n".join([
        "stream", "pub[Nats-Msg-Id: a] s.a 1", *(f"pub[{_TOO_LARGE}; {one}] s.a x" for one in FAULTS), "state"]),
    "sealed, and another fault": _sealed(*(f"pub[{one}] s.a x" for one in [*FAULTS, _TOO_LARGE])),
}

SHOWS: dict[str, tuple[str, ...]] = {
    "publish.no_reply": ("without a reply subject",),
    "api.direct_get": ("direct gets after removals",),
    "publish.expected_last_msg_id": ("expected last message id",),
    "publish.expected_last_seq": ("expected last sequence",),
    "publish.expected_last_subject_seq": ("expected last sequence of a subject",),
    "publish.expected_stream": ("expected stream",),
    "publish.full": ("max_msgs, discard new", "max_bytes, discard new", "discard_new_per_subject"),
    "publish.header_limit": ("headers too large, and another fault",),
    "publish.headers_kept": ("headers are kept as they are", "unusual headers"),
    "publish.max_size": ("max_msg_size",),
    "publish.msg_id": ("message ids*", "message id of what was refused"),
    "publish.order": ("what comes first", "two faults*", "headers too large, and another fault",
                      "sealed, and another fault"),
    "publish.rollup": ("roll-up*",),
    "stream.deny": ("nothing may be removed",),
    "stream.discard_new": ("max_msgs, discard new", "max_bytes, discard new", "max_msgs_per_subject, discard new"),
    "stream.discard_new_per_subject": ("discard_new_per_subject", "roll-up over discard_new_per_subject"),
    "stream.discard_old": ("max_msgs", "max_bytes", "max_msgs_per_subject"),
    "stream.duplicate_window": ("message ids outlive their messages", "duplicate window shrinks"),
    "stream.limits_retention": ("max_msgs", "max_bytes", "max_age"),
    "stream.max_age": ("max_age",),
    "stream.max_bytes": ("max_bytes*",),
    "stream.max_msg_size": ("max_msg_size",),
    "stream.max_msgs": ("max_msgs*",),
    "stream.max_msgs_per_subject": ("max_msgs_per_subject*",),
    "stream.no_ack": ("no_ack",),
    "stream.rollup": ("roll-ups forbidden", "roll-ups"),
    "stream.sealed": ("sealed", "sealed, and another fault"),
    "stream.storage": ("memory and its direct gets",),
}
"""The features that scenarios show, for docs/COMPATIBILITY.md, with names of scenarios (``*`` as in file names)."""
