"""Message schedules as publishers see them, as data: see player.py for the steps."""


from __future__ import annotations

__all__ = ["SCENARIOS", "SHOWS"]

_STREAM = 'stream {"allow_msg_schedules": true, "allow_msg_ttl": true}'
_FAR = "@at 2099-01-01T00:00:00Z"

_PATTERNS = (
    _FAR, "@at 2099-01-01T00:00:00+02:00", "@at 2099-01-01", "@at", "@at ", "@every 1h", "@every 999ms", "@every 0.5s",
    "@every -1h", "@every x", "@every", "@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually",
    "@Daily",
    "@reboot", "0 0 0 1 1 *", "0 0 0 1 1", "0 0 0 1 1 * *", "* * * * 1 *", "60 0 0 1 1 *", "0 60 0 1 1 *",
    "0 0 24 1 1 *", "0 0 0 0 1 *",
    "0 0 0 32 1 *", "0 0 0 1 13 *", "0 0 0 1 1 7", "0 0 0 30 2 *", "0 0 0 29 feb *", "0 0 0 ? JAN mon-fri",
    "0 0 0 1 1-12/11 ?", "*/0 0 0 1 1 *",
    "5-3 0 0 1 1 *", "1-2-3 0 0 1 1 *", "1/2/3 0 0 1 1 *", ",, 0 0 1 1 *", "1,2,,3 0 0 1 1 *", "+1 0 0 1 1 *",
    "-1 0 0 1 1 *", "0/70 0 0 1 1 *",
    "x", "0  0  0  1  1  *", "0 0 0 1 1 *  ", "* , * * * *", "* * , * * *", "* * * , * *", "* * * * , *", "* * * * * ,",
    "0 0 0 , * ,",
    "0 0 0 , 1 mon", "0 0 0 1 1 ,", "0 0 0 , * mon,*", "0 0 0 31 2,4,6,9,11 *", "0 0 0 31 2 mon",
    "0/9223372036854775807 0 0 1 1 *",
    "0/9223372036854775808 0 0 1 1 *", "0000000000000000000001 0 0 1 1 *", "*-3 0 0 1 1 *", "*-x-y 0 0 1 1 *",
    "*-x-y/2 0 0 1 1 *",
    "1-3/0 0 0 1 1 *", "1/ 0 0 1 1 *", "/1 0 0 1 1 *", "*/-1 0 0 1 1 *", "0/+30 0 0 1 1 *", "@every 1s")
"""The patterns. The one that fires soon is the last, so that no sequence depends on how long the others take."""

_FAR_OFF = (
    "@at 2262-04-11T23:47:16.854775807Z", "@at 2262-04-11T23:47:16.854775808Z", "@at 2300-01-01T00:00:00Z",
    "@at 9999-12-31T23:59:59Z",
    "@at 9999-12-31T23:59:59-10:00", "@at 0001-01-01T00:00:00Z", "@at 0001-01-01T00:00:01Z",
    "@at 0001-01-01T00:00:00+10:00",
    "@at 1500-01-01T00:00:00Z", "@at 1970-01-01T00:00:00Z", "@at 10000-01-01T00:00:00Z", "@every 2100000h",
    "@every 2562047h",
    "@every 2562048h", "@every 9223372036s", "@every 9223372037s")
"""Times at and beyond the ends of the range of a 64-bit number of nanoseconds."""

_ZONES = (("0 0 0 1 1 *", "Europe/Berlin"), ("0 0 0 1 1 *", "UTC"), ("0 0 0 1 1 *", "Nowhere/Town"),
          ("0 0 0 1 1 *", ""),
          ("@every 1h", "UTC"), (_FAR, "UTC"), ("@daily", "America/New_York"), ("", "Europe/Berlin"), ("", "x"),
          ("x", "x"))

_HEADERS = (
    "Nats-Schedule-Target: s.t", "Nats-Schedule-Target: ", "Nats-Schedule-Target: s.a", "Nats-Schedule-Target: s.*",
    "Nats-Schedule-Target: t.x", "Nats-Schedule-Target: s..x", "a: b",
    "Nats-Schedule-Target: s.t; Nats-Schedule-TTL: 5s", "Nats-Schedule-Target: s.t; Nats-Schedule-TTL: x",
    "Nats-Schedule-Target: s.t; Nats-Schedule-TTL: never", "Nats-Schedule-Target: s.t; Nats-Schedule-Rollup: sub",
    "Nats-Schedule-Target: s.t; Nats-Schedule-Rollup: all", "Nats-Schedule-Target: s.t; Nats-Schedule-Rollup: SUB",
    "Nats-Schedule-Target: s.t; Nats-Schedule-Source: s.s", "Nats-Schedule-Target: s.t; Nats-Schedule-Source: s.t",
    "Nats-Schedule-Target: s.t; Nats-Schedule-Source: s.a", "Nats-Schedule-Target: s.t; Nats-Schedule-Source: s.*",
    "Nats-Schedule-Target: s.t; Nats-Schedule-Source: t.x", "Nats-Schedule-Target: s.t; Nats-Rollup: sub",
    "Nats-Schedule-Target: s.t; Nats-Rollup: SUB", "Nats-Schedule-Target: s.t; Nats-Rollup: all",
    "Nats-Schedule-Target: s.t; Nats-Rollup: x", "Nats-Schedule-Target: s.t; Nats-TTL: 5s",
    "Nats-Schedule-Target: s.t; Nats-TTL: x",
    "Nats-Schedule-Target: s.t; Nats-Msg-Id: a", "Nats-Schedule-Target: s.t; Nats-Msg-Id: a",
    "Nats-Schedule-Target: s.t; Nats-Scheduler: s.b",
    "Nats-Schedule-Target: s.t; Nats-Schedule-Next: purge; Nats-Scheduler: s.b",
    "Nats-Schedule-Target: s.t; Nats-Incr: 1",
    "Nats-Schedule-Target: s.t; Nats-Expected-Last-Sequence: 99",
    "Nats-Schedule-Target: x; Nats-Schedule-TTL: x; Nats-Schedule-Rollup: x")

_ENDS = ("Nats-Schedule-Next: purge", "Nats-Schedule-Next: purge; Nats-Scheduler: s.a",
         "Nats-Schedule-Next: purge; Nats-Scheduler: s.b",
         "Nats-Schedule-Next: purge; Nats-Scheduler: s.*", "Nats-Schedule-Next: PURGE; Nats-Scheduler: s.b",
         "Nats-Schedule-Next: 2099-01-01T00:00:00Z; Nats-Scheduler: s.b", "Nats-Schedule-Next: ; Nats-Scheduler: s.b",
         "Nats-Scheduler: s.b",
         "Nats-Scheduler: ", "Nats-Schedule-Next: purge; Nats-Scheduler: t.none",
         "Nats-Schedule-Next: purge; Nats-Scheduler: s.plain",
         "Nats-Schedule-TTL: x", "Nats-Schedule-Target: x")


def _refused(stream: str) -> str:
    return "\n".join([stream, *(f"pub[Nats-Schedule: {_FAR}; {headers}] s.a x" for headers in _HEADERS),
                      *(f"pub[Nats-Schedule: {pattern}; Nats-Schedule-Time-Zone: {zone}; "
                        "Nats-Schedule-Target: s.t] s.a x"
                        for pattern, zone in _ZONES),
                      "pub s.plain x", f"pub[Nats-Schedule: {_FAR}; Nats-Schedule-Target: s.t] s.b x",
                      *(f"pub[{headers}] s.a x" for headers in _ENDS)])


def _batch(*msgs: tuple[str, str], batch: str = "b") -> str:
    """Return an atomic batch of (subject, headers)."""
    return "\n".join(
        f"pub[Nats-Batch-Id: {batch}; Nats-Batch-Sequence: {place}{headers and '; '}{headers}"
        f"{'; Nats-Batch-Commit: 1' if place == len(msgs) else ''}] {subject} x"
        for place, (subject, headers) in enumerate(msgs, 1))


def _batched(stream: str) -> str:
    """Return the same headers in batches, each after another message."""
    every = [*(f"Nats-Schedule: {_FAR}; {headers}" for headers in _HEADERS),
             *(f"Nats-Schedule: {pattern}; Nats-Schedule-Time-Zone: {zone}; Nats-Schedule-Target: s.t"
               for pattern, zone in _ZONES)]
    return "\n".join([
        stream, *(_batch(("s.c", ""), ("s.a", headers), batch=f"a{i}") for i, headers in enumerate(every)), "state",
        "pub s.plain x", f"pub[{_SET}] s.b x",
        *(_batch(("s.c", ""), ("s.a", headers), batch=f"e{i}") for i, headers in enumerate(_ENDS)), "state"])


_SET = f"Nats-Schedule: {_FAR}; Nats-Schedule-Target: s.t"
_END = "Nats-Schedule-Next: purge; Nats-Scheduler: s.b"
_ATOMIC = 'stream {"allow_msg_schedules": true, "allow_msg_ttl": true, "allow_atomic": true}'

SCENARIOS: dict[str, str] = {
    "headers in batches": _batched(_ATOMIC),
    "headers in batches, without TTLs": _batched('stream {"allow_msg_schedules": true, "allow_atomic": true}'),
    "headers in batches, where there are no schedules": _batched('stream {"allow_atomic": true}'),
    "begun and ended in a batch": "\n".join((
        _ATOMIC, "pub s.b x",
        _batch(("s.b", _SET), ("s.c", ""), ("s.x", _END)), "state",
        _batch(("s.b", _SET), ("s.x", _END), ("s.b", ""), batch="c"), "state",
        _batch(("s.b", ""), ("s.x", _END), batch="d"), "state",
        _batch(("s.b", ""), ("s.b", _SET), batch="e"), "state",
        f"pub[{_SET}] s.b x", _batch(("s.x", _END), ("s.b", _SET), batch="f"), "state",
        _batch(("s.x", _END), ("s.y", _END), batch="g"), "state")),
    "patterns": "\n".join([_STREAM, *(f"pub[Nats-Schedule: {pattern}; Nats-Schedule-Target: s.t] s.{number} x"
                                      for number, pattern in enumerate(_PATTERNS))]) + "\nstate",
    # A stream for each: on nats-server a time after 2262 has passed, so the message follows; here it is due in 2262.
    "far-off times": "\n".join(
        f'make F{number} {{"subjects": ["f{number}.>"], "allow_msg_schedules": true}}\n'
        f"pub[Nats-Schedule: {pattern}; Nats-Schedule-Target: f{number}.t] f{number}.a x"
        for number, pattern in enumerate(_FAR_OFF)),
    "patterns, where there are no schedules": "\n".join(["stream", *(
        f"pub[Nats-Schedule: {pattern}; Nats-Schedule-Target: s.t] s.a x"
        for pattern in (*_PATTERNS, *_FAR_OFF))]) + "\nstate",
    "headers": _refused(_STREAM) + "\nstate",
    "headers, without TTLs": _refused('stream {"allow_msg_schedules": true}') + "\nstate",
    "headers, where there are no schedules": _refused("stream"),
    "what is stored": _STREAM + f"""
        pub[Nats-Schedule: {_FAR}; Nats-Schedule-Target: s.t; a: b] s.a one
        api STREAM.MSG.GET.S {{"seq": 1}}
        pub[Nats-Schedule: {_FAR}; Nats-Schedule-Target: s.t] s.a two
        pub[Nats-Schedule: {_FAR}; Nats-Rollup: sub; Nats-Schedule-Target: s.t] s.a three
        api STREAM.MSG.GET.S {{"last_by_subj": "s.a"}}
        state
        pub[Nats-Schedule-Next: purge; Nats-Scheduler: s.a] s.done x
        state
        api STREAM.INFO.S""",
    "configurations": """api STREAM.CREATE.A {"name": "A", "allow_msg_schedules": true, "discard": "new"}
        api STREAM.CREATE.A {"name": "A", "allow_msg_schedules": true, "mirror": {"name": "B"}}
        api STREAM.CREATE.A {"name": "A", "allow_msg_schedules": true, "sources": [{"name": "B"}]}
        api STREAM.CREATE.A {"name": "A", "allow_msg_schedules": true, "pedantic": true}
        api STREAM.CREATE.A {"name": "A", "allow_msg_schedules": true, "deny_purge": true}
        api STREAM.UPDATE.A {"name": "A"}
        api STREAM.UPDATE.A {"name": "A", "allow_msg_schedules": true}
        api STREAM.CREATE.B {"name": "B"}
        api STREAM.UPDATE.B {"name": "B", "allow_msg_schedules": true}""",
    # There is one wait for all, and a stream for each, because their order is not defined.
    "firing": "\n".join([_STREAM, *(
        f'api STREAM.CREATE.{name} {{"name": "{name}", "subjects": ["{name}.>"], "allow_msg_schedules": true, '
        f'"allow_msg_ttl": true, "storage": "{storage}"}}'
        for name, storage in (("COPY", "file"), ("OWN", "file"), ("VOID", "file"), ("TICK", "file"),
                              ("MEM", "memory"))), *(
        f'api STREAM.CREATE.{name} {{"name": "{name}", "subjects": ["{name}.>"], "allow_msg_schedules": true, '
        '"allow_atomic": true}'
        for name in ("BATCHED", "FROM")),
        # A schedule that fires from a batch is published without one, though it keeps the headers.
        _batch(("BATCHED.b", ""),
               ("BATCHED.a", "Nats-Schedule: @at 2020-01-01T00:00:00Z; Nats-Schedule-Target: BATCHED.t")),
        _batch(("FROM.b", ""), ("FROM.latest", "c: d"), batch="f"),
        "pub[Nats-Schedule: @at 2020-01-01T00:00:00Z; Nats-Schedule-Target: FROM.t; "
        "Nats-Schedule-Source: FROM.latest] FROM.a own"]) + """
        consumer C {"filter_subject": "s.t"}
        pub[x: y; Nats-TTL: 1h; Nats-Expected-Stream: COPY] COPY.latest content
        pub[Nats-Schedule: @at 2020-01-01T00:00:00Z; Nats-Schedule-Target: COPY.t; Nats-Schedule-Source: COPY.latest;
            Nats-Schedule-TTL: 1m; Nats-Schedule-Rollup: sub] COPY.a own
        pub[Nats-Schedule: @at 2020-01-01T00:00:00Z; Nats-Schedule-Target: OWN.t;
            Nats-Schedule-Source: OWN.none] OWN.a own
        pub[Nats-Schedule: @at 2020-01-01T00:00:00Z; Nats-Schedule-Target: MEM.t] MEM.a payload
        pub[Nats-Schedule: @every 1s; Nats-Schedule-Target: TICK.t.every; Nats-Schedule-Rollup: sub] TICK.every tick
        pub[Nats-Schedule: * * * * * *; Nats-Schedule-Target: TICK.t.cron; Nats-Schedule-Rollup: sub;
            Nats-Schedule-Time-Zone: Asia/Tokyo] TICK.cron tick
        pub[Nats-Schedule: @every 1s; Nats-Schedule-Target: VOID.t] VOID.a x
        pub VOID.a plain
        pub[Nats-Schedule: @at 2020-01-01T00:00:00Z; Nats-Schedule-Target: s.t; a: b; Nats-Msg-Id: x;
            Nats-Expected-Last-Sequence: 0] s.a payload
        sleep 2600ms
        api STREAM.MSG.GET.S {"last_by_subj": "s.t"}
        api STREAM.MSG.GET.S {"last_by_subj": "s.a"}
        api STREAM.MSG.GET.COPY {"last_by_subj": "COPY.t"}
        api STREAM.MSG.GET.COPY {"last_by_subj": "COPY.a"}
        api STREAM.MSG.GET.OWN {"last_by_subj": "OWN.t"}
        api STREAM.MSG.GET.MEM {"last_by_subj": "MEM.t"}
        api STREAM.MSG.GET.MEM {"last_by_subj": "MEM.a"}
        api STREAM.MSG.GET.BATCHED {"last_by_subj": "BATCHED.t"}
        api STREAM.MSG.GET.BATCHED {"last_by_subj": "BATCHED.a"}
        api STREAM.MSG.GET.FROM {"last_by_subj": "FROM.t"}
        api STREAM.MSG.GET.FROM {"last_by_subj": "FROM.a"}
        api STREAM.MSG.GET.TICK {"seq": 1}
        api STREAM.MSG.GET.TICK {"last_by_subj": "TICK.cron"}
        api STREAM.MSG.GET.VOID {"last_by_subj": "VOID.t"}
        api STREAM.INFO.VOID
        pull C p {"batch": 1, "no_wait": true}
        get p 1
        api STREAM.PURGE.TICK {"filter": "TICK.every"}
        api STREAM.PURGE.TICK {"filter": "TICK.t.>"}
        sleep 1300ms
        api STREAM.PURGE.TICK {"filter": "TICK.t.>"}
        state""",
}

SHOWS: dict[str, tuple[str, ...]] = {
    "publish.schedule_at": ("firing", "patterns"),
    "publish.schedule_options": ("headers*", "what is stored", "begun and ended in a batch"),
    "publish.schedule_repeated": ("patterns",),
    "stream.schedules": ("configurations",),
}
"""The features that scenarios show, for docs/COMPATIBILITY.md, with names of scenarios (``*`` as in file names)."""
