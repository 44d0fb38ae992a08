"""Message TTLs as publishers and consumers see them, as data: see player.py for the steps.

TTLs are whole seconds, so steps that take time are combined: several streams in one scenario.
"""


from __future__ import annotations

__all__ = ["SCENARIOS", "SHOWS"]

_TTLS = ("100s", "100", "0100", "100500ms", "never", "NEVER", "1h2m3s", "0", "0s", "0.5s", "-1s", "-1", "+100s", "x",
         "", "1x",
         "9223372036", "100.5s", "١s", "1s")
"""TTLs as publishers may spell them, valid or not. The one that expires soon is the last,
so that it is there at the end."""

SCENARIOS: dict[str, str] = {
    "a TTL's spelling": 'stream {"allow_msg_ttl": true}\n' + "\n".join(
        f"pub[Nats-TTL: {ttl}] s.{number} x" for number, ttl in enumerate(_TTLS)) + "\nstate",
    "a TTL's spelling where none is allowed": "stream\n" + "\n".join(
        f"pub[Nats-TTL: {ttl}] s.{number} x" for number, ttl in enumerate(_TTLS)) + "\nstate",
    "what comes before a TTL": """stream {"allow_msg_ttl": true}
        pub[Nats-TTL: x; Nats-Expected-Last-Sequence: 9] s.a 1
        pub[Nats-TTL: x; Nats-Msg-Id: a] s.a 2
        pub[Nats-TTL: 10s; Nats-Msg-Id: a] s.a 3
        pub[Nats-TTL: x; Nats-Msg-Id: a] s.a 4
        pub[Nats-TTL: x; Nats-Rollup: sub] s.a 5
        pub[Nats-TTL: x; Nats-Incr: 1] s.a 6
        state""",
    "TTLs may be allowed later": """stream
        pub[Nats-TTL: 1s] s.a 1
        api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"], "allow_msg_ttl": true}
        pub[Nats-TTL: 10s] s.a 2
        api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"]}
        api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"], "allow_msg_ttl": true,
            "subject_delete_marker_ttl": 1000000000}
        api STREAM.INFO.S
        state""",
    "streams with markers": """api STREAM.CREATE.A {"name": "A", "subject_delete_marker_ttl": 1000000000}
        api STREAM.CREATE.B {"name": "B", "subject_delete_marker_ttl": 999}
        api STREAM.CREATE.C {"name": "C", "subject_delete_marker_ttl": -1}
        api STREAM.CREATE.D {"name": "D", "subject_delete_marker_ttl": 1000000000, "deny_purge": true}
        api STREAM.CREATE.E {"name": "E", "subject_delete_marker_ttl": 1000000000, "pedantic": true}
        api STREAM.CREATE.F {"name": "F", "subject_delete_marker_ttl": 1000000000, "pedantic": true,
            "allow_msg_ttl": true}
        api STREAM.CREATE.G {"name": "G", "subject_delete_marker_ttl": 1000000000, "pedantic": true,
            "allow_msg_ttl": true, "allow_rollup_hdrs": true}
        api STREAM.CREATE.H {"name": "H", "mirror": {"name": "A"}, "subject_delete_marker_ttl": 1000000000}
        api STREAM.CREATE.I {"name": "I", "subject_delete_marker_ttl": 1900000000}
        api STREAM.UPDATE.I {"name": "I", "subject_delete_marker_ttl": 0}
        api STREAM.UPDATE.I {"name": "I", "allow_msg_ttl": true, "subject_delete_marker_ttl": 0}""",
    "a TTL below that of markers": """api STREAM.CREATE.A {"name": "A", "subject_delete_marker_ttl": 60000000000,
            "subjects": ["a.>"]}
        api STREAM.CREATE.B {"name": "B", "subject_delete_marker_ttl": 60000000000, "subjects": ["b.>"],
            "max_msgs_per_subject": 1}
        pub[Nats-TTL: 5s; x: y] a.1 1
        pub[x: y; Nats-TTL: 2m; a: b] a.2 1
        pub[Nats-TTL: never] a.3 1
        pub[Nats-TTL: 7] a.4 1
        pub[Nats-TTL: 5s] b.1 1
        api STREAM.MSG.GET.A {"seq": 1}
        api STREAM.MSG.GET.A {"seq": 2}
        api STREAM.MSG.GET.A {"seq": 3}
        api STREAM.MSG.GET.A {"seq": 4}
        api STREAM.MSG.GET.B {"seq": 1}
        api STREAM.INFO.A""",
    # There is one wait for all: plain expiry, under consumers, with markers, in memory.
    "expiry": """stream {"allow_msg_ttl": true, "max_msgs_per_subject": 3}
        api STREAM.CREATE.M {"name": "M", "subjects": ["m.>"], "allow_msg_ttl": true, "storage": "memory"}
        api STREAM.CREATE.D {"name": "D", "subjects": ["d.>"], "subject_delete_marker_ttl": 60000000000,
            "max_msgs_per_subject": 1}
        api STREAM.CREATE.A {"name": "A", "subjects": ["a.>"], "allow_msg_ttl": true, "max_age": 1000000000,
            "duplicate_window": 1000000000}
        api STREAM.CREATE.AD {"name": "AD", "subjects": ["ad.>"], "subject_delete_marker_ttl": 60000000000,
            "max_age": 1500000000, "duplicate_window": 1000000000}
        consumer C
        pub s.keep 1
        pub[Nats-TTL: 1s] s.a 2
        pub[Nats-TTL: 1s] s.b 3
        pub s.b 4
        pub[Nats-TTL: 10s] s.c 5
        pub[Nats-TTL: never] s.d 6
        pub[Nats-TTL: 1] s.e 7
        pull C p {"batch": 3}
        get p 3
        pub m.keep 1
        pub[Nats-TTL: 1s] m.a 2
        pub[Nats-TTL: 1s] d.a 1
        pub[Nats-TTL: 1s; KV-Operation: PURGE] d.b 2
        pub[Nats-TTL: 1s; KV-Operation: DEL] d.c 3
        pub[Nats-TTL: 1s; Nats-Marker-Reason: Remove] d.d 4
        pub[Nats-TTL: 1s] d.e 5
        pub d.e 6
        pub[Nats-TTL: never] a.1 1
        pub a.2 2
        pub[Nats-TTL: 10s] a.3 3
        pub[Nats-TTL: never] a.4 4
        pub ad.1 1
        pub ad.1 2
        pub[Nats-TTL: never] ad.2 3
        pub[KV-Operation: PURGE] ad.3 4
        sleep 2100ms
        state
        info C
        api STREAM.MSG.GET.M {"seq": 1}
        api STREAM.MSG.GET.M {"seq": 2}
        api STREAM.INFO.D {"deleted_details": true, "subjects_filter": ">"}
        api STREAM.INFO.A {"deleted_details": true}
        api STREAM.INFO.AD {"deleted_details": true, "subjects_filter": ">"}
        api STREAM.MSG.GET.D {"last_by_subj": "d.a"}
        api STREAM.MSG.GET.D {"last_by_subj": "d.b"}
        api STREAM.MSG.GET.D {"last_by_subj": "d.c"}
        api STREAM.MSG.GET.D {"last_by_subj": "d.d"}
        api STREAM.MSG.GET.D {"last_by_subj": "d.e"}
        api STREAM.MSG.GET.AD {"last_by_subj": "ad.1"}
        api STREAM.MSG.GET.AD {"last_by_subj": "ad.2"}
        pull C p {"batch": 4, "no_wait": true}
        rest p
        info C""",
}

SHOWS: dict[str, tuple[str, ...]] = {
    "publish.ttl": ("a TTL's spelling*", "what comes before a TTL", "expiry"),
    "stream.delete_markers": ("streams with markers", "a TTL below that of markers", "expiry"),
    "stream.msg_ttl": ("TTLs may be allowed later", "expiry"),
}
"""The features that scenarios show, for docs/COMPATIBILITY.md, with names of scenarios (``*`` as in file names)."""
