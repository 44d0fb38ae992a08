"""Counters as publishers see them, as data: see player.py for the steps."""


from __future__ import annotations

__all__ = ["SCENARIOS", "SHOWS"]

_INCREMENTS = ("1", "+1", "-3", "0", "-0", "007", "123456789012345678901234567890", "x", "1.5", "", " 4", "4 ", "--1",
               "+", "1_000",
               "0x10", "1e3", "٣")
_BESIDE = ("Nats-Rollup: sub", "Nats-Expected-Stream: S", "Nats-Expected-Stream: T", "Nats-Expected-Last-Sequence: 1",
           "Nats-Expected-Last-Sequence: ", "Nats-Expected-Last-Subject-Sequence: 1", "Nats-Expected-Last-Msg-Id: a",
           "Nats-Expected-Last-Subject-Sequence-Subject: s.a", "Nats-TTL: 1s", "Nats-TTL: x", "Nats-Msg-Id: a",
           "Nats-Msg-Id: a",
           "Nats-Schedule: @every 1s", "Nats-Rollup: bogus", "Nats-Stream-Source: S 1", "Nats-Batch-Id: a")



def _batch(*increments: tuple[str, str], batch: str = "b") -> str:
    """Return an atomic batch of (subject, headers)."""
    return "\n".join(
        f"pub[Nats-Batch-Id: {batch}; Nats-Batch-Sequence: {place}; {headers}"
        f"{'; Nats-Batch-Commit: 1' if place == len(increments) else ''}] {subject}"
        for place, (subject, headers) in enumerate(increments, 1))


_BATCHES = 'stream {"allow_msg_counter": true, "allow_atomic": true%s}\n'

SCENARIOS: dict[str, str] = {
    "batches": _BATCHES % "" + "\n".join((
        "pub[Nats-Incr: 5] s.a",
        _batch(("s.a", "Nats-Incr: 1"), ("s.b", "Nats-Incr: -2"), ("s.a", "Nats-Incr: 3")),
        "pub[Nats-Incr: 1] s.a", "pub[Nats-Incr: 1] s.b",
        _batch(("s.a", "Nats-Incr: 1"), ("s.b", "X: y")), "pub[Nats-Incr: 1] s.a",
        _batch(("s.a", "Nats-Incr: 1"), ("s.b", "Nats-Incr: x")), "pub[Nats-Incr: 1] s.b",
        _batch(("s.c", "Nats-Incr: 1; Nats-Msg-Id: i"), ("s.c", "Nats-Incr: 1; Nats-Msg-Id: i")),
        _batch(("s.c", "Nats-Incr: 1; Nats-Counter-Sources: {\"b\":{\"x\":\"2\"}}"), ("s.c", "Nats-Incr: 1"),
               ("s.c", "Nats-Incr: 2; a: b")),
        "pub[Nats-Incr: 1] s.c",
        _batch(("s.d", "Nats-Incr: 1"), batch="one"),
        *(f"api STREAM.MSG.GET.S {{\"seq\": {seq}}}" for seq in range(1, 16)), "state")),
    "batches and headers": _BATCHES % ', "allow_rollup_hdrs": true' + "\n".join(
        _batch(("s.a", "Nats-Incr: 1"), ("s.a", f"Nats-Incr: 1; {header}"), batch=f"b{i}")
        for i, header in enumerate(_BESIDE[:-1])) + "\npub[Nats-Incr: 1] s.a\nstate",
    "batches and limits": _BATCHES % ', "max_msgs": 3' + "\n".join((
        "pub[Nats-Incr: 1] s.a",
        _batch(*(("s.a" if i % 4 == 3 else "s.b", "Nats-Incr: 1") for i in range(8))),
        "pub[Nats-Incr: 1] s.a", "pub[Nats-Incr: 1] s.b", "state")),
    "a broken counter in a batch": _BATCHES % "" + "\n".join((
        "pub[Nats-Incr: 1; Nats-Counter-Sources: x] s.a", _batch(("s.b", "Nats-Incr: 1"), ("s.a", "Nats-Incr: 1")),
        "pub[Nats-Incr: 1] s.b", "state")),
    "increments": 'stream {"allow_msg_counter": true}\n' + "\n".join(
        f"pub[Nats-Incr: {text}] s.a" for text in _INCREMENTS) + "\nstate",
    "totals": """stream {"allow_msg_counter": true, "allow_direct": true}
        pub[Nats-Incr: 5] s.a
        pub[Nats-Incr: -7] s.b
        pub[Nats-Incr: 10; x: y] s.a
        pub s.a
        pub s.a 5
        pub[x: y] s.a
        pub[Nats-Incr: 1] s.a 5
        api STREAM.MSG.GET.S {"last_by_subj": "s.a"}
        api STREAM.MSG.GET.S {"seq": 2}
        api STREAM.MSG.DELETE.S {"seq": 3}
        pub[Nats-Incr: 1] s.a
        api STREAM.PURGE.S {"filter": "s.a"}
        pub[Nats-Incr: 1] s.a
        pub[Nats-Incr: 99999999999999999999999999] s.a
        pub[Nats-Incr: -99999999999999999999999999] s.a
        state
        api STREAM.INFO.S""",
    "beside other headers": 'stream {"allow_msg_counter": true, "allow_rollup_hdrs": true}\n' + "\n".join(
        f"pub[Nats-Incr: 1; {header}] s.a" for header in _BESIDE) + "\nstate",
    "beside other headers, where there are none": "stream\n" + "\n".join(
        f"pub[Nats-Incr: 1; {header}] s.a" for header in _BESIDE),
    "limits": """stream {"allow_msg_counter": true, "max_msgs": 3}
        fill 1 s.x
        pub[Nats-Incr: 1] s.a
        pub[Nats-Incr: 1] s.b
        pub[Nats-Incr: 1] s.a
        pub[Nats-Incr: 1] s.c
        pub[Nats-Incr: 1] s.c
        pub[Nats-Incr: 1] s.b
        api STREAM.CREATE.T {"name": "T", "subjects": ["t.>"], "allow_msg_counter": true, "max_msgs_per_subject": 1,
            "storage": "memory"}
        pub[Nats-Incr: 2] t.a
        pub[Nats-Incr: 2] t.a
        api STREAM.MSG.GET.T {"last_by_subj": "t.a"}
        state""",
    "sources that a client made up": """stream {"allow_msg_counter": true}
        pub[Nats-Incr: 1; Nats-Counter-Sources: {"b":{"y":"2","x":"1"},"a<":{"z":"3"}}] s.a
        pub[Nats-Incr: 1; a: b] s.a
        api STREAM.MSG.GET.S {"seq": 2}
        pub[Nats-Incr: 1; Nats-Counter-Sources: {}; a: b] s.a
        api STREAM.MSG.GET.S {"seq": 3}
        pub[Nats-Incr: 1; Nats-Counter-Sources: x] s.b
        pub[Nats-Incr: 1] s.b
        pub[Nats-Incr: 1; Nats-Counter-Sources: {"a": 1}] s.c
        pub[Nats-Incr: 1] s.c
        pub[Nats-Incr: 1; Nats-Counter-Sources: {"a": {"b": 1}}] s.d
        pub[Nats-Incr: 1] s.d
        pub[Nats-Incr: 1; Nats-Counter-Sources: null] s.e
        pub[Nats-Incr: 1] s.e
        state""",
    "the sum of a source": """stream {"allow_msg_counter": true}
        pub[Nats-Incr: 5] s.a
        pub[Nats-Incr: 7; a: b] s.a
        pub[Nats-Incr: -2] s.b
        make D {"sources": [{"name": "S"}], "subjects": ["d.>"], "allow_msg_counter": true, "allow_direct": true}
        grown D 3
        msgs D
        pub[Nats-Incr: 1] s.a
        grown D 4
        api STREAM.PURGE.S {"filter": "s.a"}
        pub[Nats-Incr: 1] s.a
        grown D 5
        msgs D
        pub[Nats-Incr: 3] d.x
        api STREAM.MSG.DELETE.D {"seq": 5}
        pub[Nats-Incr: 1] s.a
        grown D 7
        msgs D""",
    "sums of several sources": """stream {"allow_msg_counter": true}
        make T {"subjects": ["t.>"], "allow_msg_counter": true}
        make D {"sources": [{"name": "S", "subject_transforms": [{"src": "s.*", "dest": "sum.$1"}]}, {"name": "T",
            "subject_transforms": [{"src": "t.*.*", "dest": "sum.$1"}]}], "subjects": ["sum.>"],
            "allow_msg_counter": true}
        pub[Nats-Incr: 5] s.a
        grown D 1
        pub[Nats-Incr: 100] t.a.x
        grown D 2
        pub[Nats-Incr: 1000] t.a.y
        grown D 3
        pub[Nats-Incr: -1; Nats-Msg-Id: 1] sum.a
        pub[Nats-Incr: 1] s.a
        grown D 5
        pub[Nats-Incr: 10000000000000000000000000000000] t.a.x
        grown D 6
        msgs D
        make E {"sources": [{"name": "D"}], "allow_msg_counter": true}
        grown E 6
        msgs E
        pub[Nats-Incr: 1] s.c
        grown E 7
        msgs E""",
    "counters that are not summed": """stream {"allow_msg_counter": true}
        pub[Nats-Incr: 5] s.a
        pub[Nats-Incr: 6] s.a
        make D {"sources": [{"name": "S"}]}
        grown D 2
        msgs D
        make M {"mirror": {"name": "S"}}
        grown M 2
        msgs M
        make E {"sources": [{"name": "D"}], "allow_msg_counter": true}
        grown E 2
        msgs E""",
    "a source of other messages": """stream
        make D {"sources": [{"name": "S"}], "subjects": ["d.>"], "allow_msg_counter": true}
        pub s.a 1
        pub s.a 2
        pub[Nats-Incr: 1] d.a
        sleep 300ms
        msgs D""",
    "a sum with limits": """stream {"allow_msg_counter": true}
        make D {"sources": [{"name": "S"}], "allow_msg_counter": true, "max_msgs_per_subject": 1, "max_msgs": 2}
        pub[Nats-Incr: 5] s.a
        pub[Nats-Incr: 6] s.a
        pub[Nats-Incr: 6] s.b
        pub[Nats-Incr: 6] s.c
        pub[Nats-Incr: 6] s.a
        grown D 5
        msgs D
        api STREAM.PURGE.D
        pub[Nats-Incr: 6] s.a
        grown D 6
        msgs D""",
    "configurations": """api STREAM.CREATE.A {"name": "A", "allow_msg_counter": true, "discard": "new"}
        api STREAM.CREATE.A {"name": "A", "allow_msg_counter": true, "allow_msg_ttl": true}
        api STREAM.CREATE.A {"name": "A", "allow_msg_counter": true, "allow_msg_schedules": true}
        api STREAM.CREATE.A {"name": "A", "allow_msg_counter": true, "retention": "interest"}
        api STREAM.CREATE.A {"name": "A", "allow_msg_counter": true, "mirror": {"name": "B"}}
        api STREAM.CREATE.A {"name": "A", "allow_msg_counter": true, "subject_delete_marker_ttl": 1000000000}
        api STREAM.CREATE.A {"name": "A", "allow_msg_counter": true}
        api STREAM.UPDATE.A {"name": "A"}
        api STREAM.CREATE.B {"name": "B"}
        api STREAM.UPDATE.B {"name": "B", "allow_msg_counter": true}""",
}

SHOWS: dict[str, tuple[str, ...]] = {
    "publish.counter_sources": ("sources that a client made up", "the sum of a source", "sums of several sources",
                                "counters that are not summed"),
    "publish.incr": ("increments", "totals", "beside other headers*", "limits", "batches*",
                     "a broken counter in a batch"),
    "stream.counter": ("configurations",),
}
"""The features that scenarios show, for docs/COMPATIBILITY.md, with names of scenarios (``*`` as in file names)."""
