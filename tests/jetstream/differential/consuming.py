"""Scenarios of consuming, as data: see player.py for the steps. Each begins on a server without streams."""

from __future__ import annotations

__all__ = ["SCENARIOS", "SHOWS"]

_FIVE = "stream\nfill 5 s.#\n"
_PULL = _FIVE + "consumer C\n"


def _push(options: str = "", messages: int = 5) -> str:
    """Return a stream with messages and a push consumer to ``d``, which is subscribed to afterwards."""
    return f'stream\nfill {messages} s.#\nconsumer C {{"deliver_subject": "d"{options}}}\n'


def _start(config: str) -> str:
    """Return two subjects and a consumer that begins somewhere, read to its end."""
    return f"""stream
        fill 3 s.a
        fill 3 s.b
        fill 2 s.a
        consumer C {config}
        info C
        pull C p {{"batch": 20, "no_wait": true}}
        until p 404
        info C
        pub s.a new
        pub s.b new
        pull C p {{"batch": 20, "no_wait": true}}
        until p 404
        info C"""


PULLING: dict[str, str] = {
    "batch": _PULL + """info C
        pull C p {"batch": 3}
        get p 3
        rest p
        info C
        pull C p {"batch": 2}
        get p 2
        info C""",
    "batch as a number, or nothing": _PULL + """pull C p 2
        get p 2
        pull C p
        get p 1
        pull C p nonsense
        get p 1
        rest p
        info C""",
    "batch of nothing and less": _PULL + """pull C p {"batch": 0}
        rest p
        pull C p {"batch": -3}
        rest p
        pull C p {"batch": 0, "no_wait": true}
        rest p
        info C""",
    "no_wait at the end": _PULL + """pull C p {"batch": 10, "no_wait": true}
        until p 404
        pull C p {"batch": 1, "no_wait": true}
        until p 404
        info C
        pub s.a late
        pull C p {"batch": 2, "no_wait": true}
        until p 404
        rest p""",
    "no_wait with expires": _PULL + """pull C p {"batch": 10, "no_wait": true, "expires": 300ms}
        until p 404
        pull C p {"batch": 2, "no_wait": true, "expires": 200ms}
        info C
        until p 408
        pull C p {"batch": 2, "no_wait": true, "expires": 2000ms}
        info C
        pub s.a late
        until p 404
        rest p
        info C""",
    "no_wait behind others": _PULL + """pull C p {"batch": 5}
        get p 5
        pull C p {"batch": 5}
        info C
        pull C q {"batch": 1, "no_wait": true}
        rest q
        ack p 1 -NAK
        get p 1
        info C""",
    "requests pending": """stream
        consumer C {"max_ack_pending": 1}
        fill 3 s.a
        info C
        pull C p {"batch": 5}
        get p 1
        pull C q {"batch": 1, "no_wait": true}
        rest q
        ack p 1
        get p 1
        info C""",
    "expires": _PULL + """pull C p {"batch": 7, "expires": 200ms}
        get p 5
        until p 408
        pull C p {"batch": 2, "expires": 150ms}
        until p 408
        info C""",
    "expires with bytes": """stream
        consumer C
        pull C p {"batch": 7, "max_bytes": 1000, "expires": 150ms}
        until p 408
        fill 1 s.a
        pull C p {"batch": 7, "max_bytes": 1000, "expires": 150ms}
        until p 408""",
    "max_bytes": """stream
        consumer C
        fill 6 s.a
        pull C p {"batch": 10, "max_bytes": 200}
        until p 409
        info C
        pull C p {"batch": 1, "max_bytes": 10}
        until p 409
        pull C p {"batch": 1, "max_bytes": 500}
        until p 409
        pull C p {"batch": 2, "max_bytes": 5000}
        get p 1
        rest p
        info C""",
    "max_bytes of the rest": """stream
        consumer C
        fill 3 s.a
        pull C p {"batch": 3, "max_bytes": 100000}
        until p 409
        pull C p {"batch": 3, "max_bytes": 100000, "no_wait": true}
        rest p""",
    "max_bytes among several": """stream
        consumer C
        pull C p {"batch": 10, "max_bytes": 130}
        pull C q {"batch": 10, "max_bytes": 1000}
        fill 6 s.a
        rest p
        rest q
        info C""",
    "heartbeats": """stream
        consumer C
        pull C p {"batch": 2, "expires": 380ms, "idle_heartbeat": 150ms}
        until p 408
        fill 3 s.a
        pull C p {"batch": 5, "expires": 480ms, "idle_heartbeat": 200ms}
        until p 408
        info C""",
    "heartbeats that cannot be": """stream
        consumer C
        pull C p {"batch": 1, "expires": 100ms, "idle_heartbeat": 51ms}
        rest p
        pull C p {"batch": 1, "idle_heartbeat": 1}
        rest p
        pull C p {"batch": 1, "expires": 100ms, "idle_heartbeat": -5}
        until p 408""",
    "bodies that cannot be": _PULL + """pull C p {"batch": "x"}
        pull C p {"batch": 1.5}
        pull C p {"expires": "1s"}
        pull C p {"no_wait": 1}
        pull C p {
        pull C p {"batch": 1}}
        pull C p {"max_bytes": "9"}
        pull C p {"bogus": 1, "batch": 2}
        rest p
        info C""",
    "priorities of others": _PULL + """pull C p {"batch": 1, "min_pending": 1}
        pull C p {"batch": 1, "min_ack_pending": 1}
        pull C p {"batch": 1, "id": "x"}
        pull C p {"batch": 1, "priority": 10}
        pull C p {"batch": 1, "priority": 3}
        pull C p {"batch": 1, "group": "g"}
        rest p""",
    "max_waiting": """stream
        consumer C {"max_waiting": 2}
        pull C p {"batch": 1}
        pull C q {"batch": 1}
        info C
        pull C r {"batch": 1}
        rest r
        pull C r {"batch": 1, "expires": 1000ms, "idle_heartbeat": 400ms}
        rest r
        fill 4 s.a
        get p 1
        get q 1
        rest r
        info C""",
    "max_waiting with some gone": """stream
        consumer C {"max_waiting": 2}
        pull C p {"batch": 1}
        pull C q {"batch": 1}
        unsub p
        sleep 1050ms
        pull C r {"batch": 1}
        rest r
        info C
        fill 2 s.a
        get q 1
        get r 1
        rest p
        info C""",
    "requests take turns": """stream
        consumer C
        pull C p {"batch": 3}
        pull C q {"batch": 2}
        pull C r {"batch": 4}
        fill 8 s.a
        rest p
        rest q
        rest r
        info C""",
    "requests take turns within one batch": _PULL + """consumer D
        pull D p {"batch": 2, "expires": 300ms}
        pull D q {"batch": 5, "expires": 300ms}
        until q 408
        rest p
        info D""",
    "inbox gone": """stream
        consumer C
        pull C p {"batch": 5}
        info C
        unsub p
        info C
        fill 2 s.a
        info C
        pull C q {"batch": 2}
        get q 2
        rest p
        info C""",
    "limits of requests": _FIVE + """consumer C {"max_batch": 2, "max_expires": 1500ms, "max_bytes": 300}
        pull C p {"batch": 3}
        pull C p {"batch": 1, "expires": 1600ms}
        pull C p {"batch": 1, "max_bytes": 301}
        pull C p {"batch": 3, "expires": 1600ms, "max_bytes": 301}
        rest p
        pull C p {"batch": 2, "expires": 1500ms, "max_bytes": 300}
        rest p
        info C""",
    "limit of expires as a duration": """stream
        consumer C {"max_expires": 90061001000001}
        pull C p {"batch": 1, "expires": 90061001000002000}
        consumer D {"max_expires": 1500000}
        pull D p {"batch": 1, "expires": 150000000}
        consumer E {"max_expires": 3600000ms}
        pull E p {"batch": 1, "expires": 3700000ms}
        rest p""",
    "pulling from a push consumer": """stream
        consumer C {"deliver_subject": "d", "ack_policy": "none"}
        pull C p 1
        rest p
        api CONSUMER.MSG.NEXT.S.NONE 1""",
    "deleted under requests": """stream
        consumer C
        pull C p {"batch": 1}
        pull C q {"batch": 1, "expires": 5000ms, "max_bytes": 10}
        api CONSUMER.DELETE.S.C
        rest p
        rest q
        consumer C
        pull C p {"batch": 1}
        api STREAM.DELETE.S
        rest p""",
    "headers only": """stream
        consumer C {"headers_only": true}
        pub s.a some payload
        pub[A: b] s.a some payload
        pub s.a
        pull C p {"batch": 3}
        get p 3""",
    "ack none": _FIVE + """consumer C {"ack_policy": "none"}
        pull C p {"batch": 3}
        get p 3
        info C
        ask p 1 +ACK
        pull C p {"batch": 3, "no_wait": true}
        until p 404
        info C""",
    "replay at the original pace": """stream
        fill 1 s.a
        sleep 120ms
        fill 2 s.a
        consumer C {"replay_policy": "original"}
        pull C p {"batch": 5, "expires": 400ms}
        until p 408
        info C""",
    "sequences under which nothing is": """stream {"allow_direct": true}
        fill 6 s.a
        api STREAM.MSG.DELETE.S {"seq": 1}
        api STREAM.MSG.DELETE.S {"seq": 3}
        api STREAM.MSG.DELETE.S {"seq": 6}
        consumer C
        info C
        pull C p {"batch": 10, "no_wait": true}
        until p 404
        info C
        ack p 1
        ack p 2
        ack p 3
        info C""",
}

ACKS: dict[str, str] = {
    "one by one": _PULL + """pull C p {"batch": 5}
        get p 5
        ask p 1
        info C
        ask p 3 +ACK
        info C
        ask p 2 +OK
        info C
        ask p 5
        info C
        ask p 4
        info C""",
    "twice": _PULL + """pull C p {"batch": 2}
        get p 2
        ask p 1
        ask p 1
        ask p 1 +ACK
        ask p 1 -NAK
        ask p 1 +TERM
        ask p 1 +WPI
        info C""",
    "nonsense": _PULL + """pull C p {"batch": 2}
        get p 2
        ask p 1 nonsense
        ask p 1 +NAK
        ask p 1 +ACKS
        ask p 1 +WPIX
        ask p 2 +TERMINATE
        info C""",
    "all": _FIVE + """consumer C {"ack_policy": "all"}
        pull C p {"batch": 5}
        get p 5
        ask p 3
        info C
        ask p 2
        info C
        ask p 4 -NAK
        pull C p {"batch": 1}
        get p 1
        info C
        ask p 6
        info C
        ask p 5
        info C""",
    "all with redeliveries": _FIVE + """consumer C {"ack_policy": "all", "ack_wait": 250ms}
        pull C p {"batch": 4}
        get p 4
        ack p 2
        sleep 300ms
        pull C p {"batch": 5, "no_wait": true}
        until p 404
        info C
        ask p 5
        info C
        ask p 7
        info C""",
    "nak": _PULL + """pull C p {"batch": 3}
        get p 3
        ack p 2 -NAK
        ack p 1 -NAK
        info C
        pull C p {"batch": 3}
        get p 3
        info C
        ack p 4 -NAK
        ack p 4 -NAK
        pull C p {"batch": 2}
        get p 2
        ask p 7
        info C""",
    "nak with delay": _PULL + """pull C p {"batch": 2}
        get p 2
        ack p 1 -NAK {"delay": 200ms}
        ack p 2 -NAK 100ms
        info C
        pull C p {"batch": 6, "expires": 450ms}
        until p 408
        info C""",
    "nak with delays that cannot be": _PULL + """pull C p {"batch": 5}
        get p 5
        ack p 1 -NAK {"delay": "x"}
        ack p 2 -NAK nonsense
        ack p 3 -NAK {"delay": 0}
        ack p 4 -NAK -5s
        ack p 5 -NAK {}
        sleep 50ms
        pull C p {"batch": 6, "expires": 200ms}
        until p 408
        info C""",
    "in progress": _FIVE + """consumer C {"ack_wait": 300ms}
        pull C p {"batch": 2}
        get p 2
        sleep 200ms
        ask p 1 +WPI
        sleep 180ms
        pull C q {"batch": 5, "max_bytes": 58, "no_wait": true}
        rest q
        info C
        sleep 200ms
        pull C q {"batch": 1, "no_wait": true}
        rest q
        info C""",
    "term": _PULL + """sub ev $JS.EVENT.ADVISORY.CONSUMER.>
        pull C p {"batch": 3}
        get p 3
        ask p 2 +TERM
        info C
        ask p 1 +TERM for a reason
        info C
        ask p 1 +TERM
        info C
        rest ev""",
    "next": _PULL + """pull C p {"batch": 1}
        get p 1
        nxt p 1 p
        get p 1
        nxt p 2 q 2
        get q 2
        info C
        nxt q 1 q {"batch": 5, "no_wait": true}
        rest q
        nxt q 2 p {"batch": 1, "expires": 100ms}
        until p 408
        info C""",
    "of what was never delivered": _PULL + """pull C p {"batch": 1}
        get p 1
        api CONSUMER.INFO.S.C
        pub $JS.ACK.S.C.1.3.3.1700000000000000000.0
        pub $JS.ACK.S.C.1.0.0.1700000000000000000.0
        pub $JS.ACK.S.C.x.y.z.1700000000000000000.0
        pub $JS.ACK.S.NONE.1.1.1.1700000000000000000.0
        info C
        pub $JS.ACK.S.C.1.1.1.1700000000000000000.0
        info C""",
    "in the longer form": _PULL + """pull C p {"batch": 2}
        get p 2
        pub $JS.ACK._.ACCOUNTX.S.C.1.1.1.1700000000000000000.3
        info C
        pub $JS.ACK._.ACCOUNTX.S.C.1.2.2.1700000000000000000.3.more.tokens
        info C""",
    "sampled": _FIVE + """consumer C {"sample_freq": "100%"}
        sub ev $JS.EVENT.METRIC.CONSUMER.>
        pull C p {"batch": 2}
        get p 2
        ask p 1
        ask p 2 -NAK
        ask p 2 +TERM
        get ev 1
        rest ev""",
}

REDELIVERY: dict[str, str] = {
    "ack_wait": _FIVE + """consumer C {"ack_wait": 250ms}
        pull C p {"batch": 3}
        get p 3
        ack p 2
        pull C p {"batch": 10, "expires": 400ms}
        until p 408
        info C""",
    "several times": """stream
        fill 1 s.a
        consumer C {"ack_wait": 100ms}
        pull C p {"batch": 4, "expires": 3000ms}
        get p 4
        info C
        ack p 3
        info C""",
    "order": _FIVE + """consumer C {"ack_wait": 300ms}
        pull C p {"batch": 2}
        get p 2
        sleep 120ms
        pull C p {"batch": 2}
        get p 2
        ack p 4 -NAK
        sleep 500ms
        pull C p {"batch": 6, "no_wait": true}
        rest p
        info C""",
    "max_deliver": """stream
        fill 2 s.a
        consumer C {"ack_wait": 150ms, "max_deliver": 2}
        sub ev $JS.EVENT.ADVISORY.CONSUMER.>
        pull C p {"batch": 4}
        get p 4
        info C
        pull C p {"batch": 1, "expires": 400ms}
        until p 408
        get ev 2
        info C
        ask p 1
        info C
        fill 1 s.a
        pull C p {"batch": 1}
        get p 1
        ask p 5
        info C""",
    "max_deliver of one": _FIVE + """consumer C {"ack_wait": 150ms, "max_deliver": 1}
        sub ev $JS.EVENT.ADVISORY.CONSUMER.>
        pull C p {"batch": 1}
        get p 1
        info C
        get ev 1
        info C
        ask p 1
        info C
        pull C p {"batch": 5, "expires": 100ms}
        until p 408
        sleep 250ms
        info C""",
    "max_deliver by nak": """stream
        fill 2 s.a
        consumer C {"max_deliver": 2}
        sub ev $JS.EVENT.ADVISORY.CONSUMER.>
        pull C p {"batch": 1}
        get p 1
        ack p 1 -NAK
        pull C p {"batch": 1}
        get p 1
        ack p 2 -NAK
        pull C p {"batch": 5, "expires": 150ms}
        until p 408
        rest ev
        info C""",
    "backoff": """stream
        fill 1 s.a
        consumer C {"max_deliver": 4, "backoff": [100ms, 250ms]}
        pull C p {"batch": 5, "expires": 900ms}
        until p 408
        info C""",
    "backoff and nak": """stream
        fill 1 s.a
        consumer C {"max_deliver": 4, "backoff": [1000ms, 2000ms]}
        pull C p {"batch": 3}
        get p 1
        ack p 1 -NAK
        get p 1
        ack p 2 -NAK
        get p 1
        info C""",
    "max_ack_pending": """stream
        consumer C {"max_ack_pending": 2}
        fill 5 s.a
        pull C p {"batch": 5}
        rest p
        info C
        ack p 1
        get p 1
        ack p 2
        ack p 3
        get p 2
        info C""",
    "max_ack_pending and redeliveries": """stream
        consumer C {"max_ack_pending": 2, "ack_wait": 150ms}
        fill 5 s.a
        pull C p {"batch": 4, "expires": 1000ms}
        get p 4
        info C
        ack p 3
        ack p 4
        pull C p {"batch": 1}
        get p 1
        info C""",
    "no_wait under max_ack_pending": """stream
        consumer C {"max_ack_pending": 1}
        fill 3 s.a
        pull C p {"batch": 3, "no_wait": true}
        rest p
        info C
        ack p 1
        get p 1
        ack p 2
        get p 1
        rest p
        info C""",
    "no_wait under max_ack_pending with heartbeats": """stream
        consumer C {"max_ack_pending": 2}
        fill 3 s.a
        info C
        pull C p {"batch": 3, "no_wait": true, "expires": 2000ms, "idle_heartbeat": 150ms}
        until p 404
        rest p
        info C
        pull C p {"batch": 3, "no_wait": true, "expires": 450ms, "idle_heartbeat": 200ms}
        until p 408
        pull C q {"batch": 1, "no_wait": true}
        pull C p {"batch": 1, "expires": 200ms}
        until p 408
        rest q
        info C""",
    "nobody to take it": """stream
        fill 3 s.a
        consumer C {"ack_wait": 150ms}
        pull C p {"batch": 3}
        get p 3
        unsub p
        sleep 250ms
        info C
        pull C q {"batch": 3}
        get q 3
        info C""",
    "ack after expiry": """stream
        fill 2 s.a
        consumer C {"ack_wait": 100ms}
        pull C p {"batch": 2}
        get p 2
        sleep 200ms
        info C
        ask p 1
        info C
        pull C p {"batch": 2, "no_wait": true}
        rest p
        info C""",
    "redelivery count rises for each": """stream
        fill 3 s.a
        consumer C
        pull C p {"batch": 3}
        get p 3
        ack p 3 -NAK
        ack p 1 -NAK
        pull C p {"batch": 2}
        get p 2
        ack p 4 -NAK
        pull C p {"batch": 1}
        get p 1
        info C
        ack p 6
        ack p 2
        info C
        ack p 5
        info C""",
}

STARTS: dict[str, str] = {
    "deliver all": _start("{}"),
    "deliver last": _start('{"deliver_policy": "last"}'),
    "deliver last of a subject": _start('{"deliver_policy": "last", "filter_subject": "s.b"}'),
    "deliver new": _start('{"deliver_policy": "new"}'),
    "deliver last per subject": _start('{"deliver_policy": "last_per_subject", "filter_subject": "s.*"}'),
    "deliver last per subject of several": _start(
        '{"deliver_policy": "last_per_subject", "filter_subjects": ["s.b", "s.none"]}'),
    "deliver from a sequence": _start('{"deliver_policy": "by_start_sequence", "opt_start_seq": 4}'),
    "deliver from a sequence to come": """stream
        fill 3 s.a
        consumer C {"deliver_policy": "by_start_sequence", "opt_start_seq": 10}
        info C
        pull C p {"batch": 20, "no_wait": true}
        until p 404
        fill 5 s.a
        info C
        fill 4 s.a
        info C
        pull C p {"batch": 20, "no_wait": true}
        until p 404
        info C""",
    "deliver from a time": _start('{"deliver_policy": "by_start_time", "opt_start_time": "2020-01-01T00:00:00Z"}'),
    "deliver from a time to come": _start(
        '{"deliver_policy": "by_start_time", "opt_start_time": "2100-01-01T00:00:00Z"}'),
    "filter": _start('{"filter_subject": "s.a"}'),
    "several filters": _start('{"filter_subjects": ["s.a", "s.c"]}'),
    "filter that matches all": _start('{"filter_subject": "s.>"}'),
    "filter that matches nothing": _start('{"filter_subject": "t"}'),
    "several filters from a sequence": _start(
        '{"filter_subjects": ["s.b", "s.c"], "deliver_policy": "by_start_sequence", "opt_start_seq": 5}'),
}

PUSHING: dict[str, str] = {
    "to a subject": _push() + """info C
        sub d
        get d 5
        info C
        pub s.a more
        get d 1
        ask d 1
        ask d 6
        info C""",
    "without acks": _push(', "ack_policy": "none"') + """sub d
        get d 5
        info C
        ask d 1""",
    "interest goes and comes": _push() + """sub d
        get d 5
        unsub d
        pub s.a more
        info C
        sub d
        get d 1
        info C""",
    "with wildcard subscribers": _push(', "ack_policy": "none"') + """sub all >
        sub others d w
        drop all
        api CONSUMER.INFO.S.C
        get all 3
        sub d
        get d 5
        get all 5
        rest others
        info C""",
    "a group with wildcard subscribers": _push(', "deliver_group": "g"') + """sub all > g
        drop all
        info C
        sub d d g
        info C""",
    "to a group": _push(', "deliver_group": "g"') + """sub d
        rest d
        info C
        sub e d g
        get e 5
        rest d
        info C""",
    "to a group of two": _push(', "deliver_group": "g", "ack_policy": "none"', messages=0) + """sub a d g
        info C
        unsub a
        info C
        sub b d other
        info C""",
    "heartbeats": _push(', "idle_heartbeat": 150ms', messages=2) + """sub d
        get d 4
        pub s.a more
        get d 2
        info C""",
    "heartbeats before anything": _push(', "idle_heartbeat": 150ms', messages=0) + """sub d
        get d 2
        info C""",
    "redelivery": _push(', "ack_wait": 150ms', messages=2) + """sub d
        get d 2
        ack d 1
        get d 1
        info C
        ack d 3
        info C""",
    "nak": _push(messages=3) + """sub d
        get d 3
        ack d 2 -NAK
        get d 1
        ack d 4 -NAK {"delay": 100ms}
        get d 1
        info C""",
    "max_ack_pending": _push(', "max_ack_pending": 2') + """sub d
        rest d
        info C
        ack d 1
        get d 1
        ack d 2
        ack d 3
        get d 2
        info C""",
    "next from a push consumer": _push(messages=2) + """sub d
        get d 2
        nxt d 1 q 1
        rest q
        info C""",
    "flow control": _push(', "flow_control": true, "idle_heartbeat": 5000ms, "ack_policy": "none"', messages=0)
        + "sub d\n" + f"pub s.a {'x' * 600_000}\n" * 4 + """rest d
        info C
        flow d
        sleep 50ms
        info C
        """ + f"pub s.a {'x' * 600_000}\n" * 3 + "rest d",
    "heartbeats under flow control": _push(
        ', "flow_control": true, "idle_heartbeat": 500ms, "ack_policy": "none"', messages=0)
        + "sub d\n" + f"pub s.a {'x' * 600_000}\n" * 4 + "until d Stalled\nuntil d Stalled\ninfo C",
    "ordered": _FIVE + """api CONSUMER.CREATE.S {"stream_name": "S", "config": {"deliver_subject": "d",
            "ack_policy": "none", "max_deliver": 1, "flow_control": true, "idle_heartbeat": 5000ms,
            "ack_wait": 79200000ms, "num_replicas": 1, "mem_storage": true, "inactive_threshold": 300000ms}}
        sub d
        get d 5
        pub s.a more
        get d 1""",
    "headers only": _push(', "headers_only": true') + "sub d\nget d 5",
    "last per subject": """stream
        fill 3 s.a
        fill 2 s.b
        fill 1 s.a
        consumer C {"deliver_subject": "d", "deliver_policy": "last_per_subject", "filter_subject": "s.>"}
        sub d
        get d 2
        info C
        fill 2 s.b
        get d 2
        info C""",
    "rate limit": _push(', "rate_limit_bps": 8000', messages=2) + "sub d\nget d 2\ninfo C",
    "moved to another subject": _push(messages=3) + """sub d
        get d 3
        sub e
        consumer C {"deliver_subject": "e"}
        unsub d
        consumer C {"deliver_subject": "e"}
        rest e
        info C""",
    "max_deliver": _push(', "ack_wait": 100ms, "max_deliver": 2', messages=1) + """sub ev $JS.EVENT.ADVISORY.CONSUMER.>
        sub d
        get d 2
        get ev 1
        rest d
        info C""",
    "ack all": """stream
        fill 3 s.a
        consumer C {"deliver_subject": "d", "ack_policy": "all"}
        sub d
        get d 3
        ask d 2
        info C
        ack d 3 -NAK
        get d 1
        ask d 4
        info C""",
    "replay at the original pace": """stream
        fill 1 s.a
        sleep 120ms
        fill 2 s.a
        consumer C {"deliver_subject": "d", "replay_policy": "original"}
        sub d
        get d 3
        info C
        pub s.b 1
        get d 1""",
    "a durable that nobody hears goes": """stream
        consumer C {"deliver_subject": "d", "inactive_threshold": 200ms}
        info C
        sleep 500ms
        api CONSUMER.INFO.S.C""",
}

LIFE: dict[str, str] = {
    "update of filters": """stream
        fill 3 s.a
        fill 3 s.b
        consumer C {"filter_subject": "s.a"}
        pull C p {"batch": 2}
        get p 2
        consumer C {"filter_subject": "s.b"}
        info C
        pull C p {"batch": 10, "no_wait": true}
        until p 404
        consumer C {}
        info C
        ack p 1
        ack p 2
        info C""",
    "update of ack_wait and max_deliver": _FIVE + """consumer C {"ack_wait": 10000ms}
        pull C p {"batch": 2}
        get p 2
        consumer C {"ack_wait": 100ms, "max_deliver": 3}
        sleep 150ms
        info C
        pull C p {"batch": 1}
        get p 1
        info C""",
    "update of max_ack_pending": """stream
        fill 5 s.a
        consumer C {"max_ack_pending": 1}
        pull C p {"batch": 5}
        rest p
        consumer C {"max_ack_pending": 3}
        rest p
        info C""",
    "updates that cannot be": _PULL + """consumer C {"ack_policy": "all"}
        consumer C {"deliver_policy": "new"}
        consumer C {"deliver_subject": "d"}
        consumer C {"max_waiting": 10}
        consumer C {"replay_policy": "original"}
        consumer C {"max_deliver": 5, "backoff": [100ms, 200ms]}
        consumer C {"max_deliver": 1, "backoff": [100ms, 200ms]}
        info C""",
    "paused": """stream
        fill 3 s.a
        consumer C
        api CONSUMER.PAUSE.S.C {"pause_until": "2100-01-01T00:00:00Z"}
        pull C p {"batch": 3, "expires": 300ms, "idle_heartbeat": 120ms}
        until p 408
        api CONSUMER.PAUSE.S.C
        pull C p {"batch": 3}
        get p 3
        info C""",
    "reset": _PULL + """pull C p {"batch": 4}
        get p 4
        ack p 2
        api CONSUMER.RESET.S.C {"seq": 2}
        info C
        pull C p {"batch": 2}
        get p 2
        ask p 5
        info C""",
    "ephemeral goes": """stream
        consumer C {"durable_name": null, "name": "C", "inactive_threshold": 100ms}
        sleep 1300ms
        api CONSUMER.INFO.S.C""",
    "push ephemeral goes": """stream
        sub d
        consumer C {"durable_name": null, "name": "C", "inactive_threshold": 150ms, "deliver_subject": "d"}
        info C
        unsub d
        sleep 400ms
        api CONSUMER.INFO.S.C""",
    "messages deleted under it": _PULL + """pull C p {"batch": 3}
        get p 3
        api STREAM.MSG.DELETE.S {"seq": 2}
        api STREAM.MSG.DELETE.S {"seq": 4}
        info C
        ask p 2
        ask p 1
        info C
        pull C p {"batch": 5, "no_wait": true}
        until p 404
        info C""",
    "purged under it": _PULL + """pull C p {"batch": 3}
        get p 3
        ack p 1
        info C
        api STREAM.PURGE.S
        info C
        ask p 2
        pub s.a more
        info C
        pull C p {"batch": 5, "no_wait": true}
        until p 404
        info C""",
    "purged in part": _PULL + """pull C p {"batch": 2}
        get p 2
        api STREAM.PURGE.S {"seq": 2}
        info C
        api STREAM.PURGE.S {"keep": 1}
        info C
        pull C p {"batch": 5, "no_wait": true}
        until p 404
        info C""",
    "purged by subject": """stream
        fill 3 s.a
        fill 3 s.b
        consumer C
        consumer A {"filter_subject": "s.a"}
        consumer B {"filter_subject": "s.b"}
        pull A p {"batch": 2}
        get p 2
        pull C q {"batch": 4}
        get q 4
        api STREAM.PURGE.S {"filter": "s.a"}
        info A
        info B
        info C
        ask q 4
        ask q 1
        info C
        pull C q {"batch": 9, "no_wait": true}
        until q 404
        info C""",
    "purged waiting for redelivery": """stream
        fill 3 s.a
        consumer C
        pull C p {"batch": 2}
        get p 2
        ack p 1 -NAK
        info C
        api STREAM.PURGE.S {"seq": 2}
        info C
        pull C p {"batch": 5, "no_wait": true}
        until p 404
        info C""",
    "limits remove under it": """stream {"max_msgs": 4}
        fill 4 s.a
        consumer C
        sub ev $JS.EVENT.ADVISORY.CONSUMER.>
        pull C p {"batch": 2}
        get p 2
        fill 3 s.a
        info C
        ask p 1
        info C
        pull C p {"batch": 9, "no_wait": true}
        until p 404
        info C
        rest ev""",
    "one message per subject": """stream {"max_msgs_per_subject": 1}
        fill 3 s.#
        consumer C
        info C
        fill 2 s.1
        info C
        pull C p {"batch": 9, "no_wait": true}
        until p 404
        info C
        fill 1 s.3
        info C""",
    "stream purged while a push consumer waits": _push(', "max_ack_pending": 1', messages=3) + """sub d
        get d 1
        api STREAM.PURGE.S
        info C
        pub s.a more
        rest d
        info C""",
    "first_seq": """stream {"first_seq": 100}
        consumer C
        info C
        fill 2 s.a
        info C
        pull C p {"batch": 2}
        get p 2
        info C""",
    "memory": """stream {"storage": "memory"}
        fill 3 s.a
        consumer C {"mem_storage": true}
        pull C p {"batch": 2}
        get p 2
        ask p 1
        info C""",
    "limits shrink under it": """stream {"max_msgs": 10}
        fill 6 s.a
        consumer C
        pull C p {"batch": 4}
        get p 4
        ack p 2
        api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"], "max_msgs": 2}
        info C
        ask p 1
        ask p 4
        info C
        pull C p {"batch": 9, "no_wait": true}
        until p 404
        info C""",
    "deleted and made again": """stream
        fill 4 s.a
        consumer C
        pull C p {"batch": 2}
        get p 2
        api CONSUMER.DELETE.S.C
        ask p 1
        consumer C
        info C
        pull C p {"batch": 2}
        get p 2
        ask p 1
        ask p 2
        info C""",
    "pulled in time it stays, then goes": """stream
        fill 3 s.a
        consumer C {"inactive_threshold": 300ms}
        pull C p {"batch": 5, "expires": 700ms}
        until p 408
        api CONSUMER.INFO.S.C
        sleep 1300ms
        api CONSUMER.INFO.S.C""",
    "max_ack_pending, redelivery first": """stream
        fill 5 s.a
        consumer C {"max_ack_pending": 3}
        pull C p {"batch": 5, "expires": 300ms}
        until p 408
        info C
        ack p 1 -NAK
        pull C p {"batch": 5, "expires": 300ms}
        until p 408
        ack p 2 +TERM
        pull C p {"batch": 5, "expires": 300ms}
        until p 408
        info C""",
    "paused while ack waits end": """stream
        fill 5 s.a
        consumer C {"ack_wait": 200ms, "max_deliver": 3}
        pull C p {"batch": 2}
        get p 2
        api CONSUMER.PAUSE.S.C {"pause_until": "2100-01-01T00:00:00Z"}
        sleep 400ms
        info C
        ask p 1
        pull C p {"batch": 2, "no_wait": true}
        rest p
        api CONSUMER.PAUSE.S.C {}
        rest p
        info C""",
    "one name on two streams": """stream
        api STREAM.CREATE.T {"name": "T", "subjects": ["t.>"], "num_replicas": 1}
        consumer C
        fill 2 s.a
        info C
        api CONSUMER.CREATE.T.C {"stream_name": "T", "config": {"durable_name": "C", "ack_policy": "explicit"}}
        pull C p {"batch": 1}
        get p 1
        pub $JS.ACK.T.C.1.1.1.1700000000000000000.0
        info C
        api CONSUMER.INFO.T.C""",
    "deleted at the floor": """stream
        fill 4 s.a
        consumer C
        consumer D {"ack_policy": "none"}
        pull C p {"batch": 4}
        get p 4
        ack p 4
        ack p 2
        info C
        api STREAM.MSG.DELETE.S {"seq": 1}
        info C
        api STREAM.MSG.DELETE.S {"seq": 3}
        info C
        info D
        pull D q {"batch": 4, "no_wait": true}
        until q 404
        info D""",
    "messages age under it": """stream {"max_age": 500ms, "duplicate_window": 100ms}
        fill 3 s.a
        consumer C {"ack_wait": 5000ms}
        pull C p {"batch": 2}
        get p 2
        ack p 2
        info C
        sleep 1000ms
        info C
        ask p 1
        fill 1 s.a
        info C
        pull C p {"batch": 2, "no_wait": true}
        until p 404
        info C""",
    "one-shots with one place to wait": """stream
        consumer C {"max_waiting": 1}
        pull C p {"batch": 1, "no_wait": true, "expires": 150ms}
        pull C q {"batch": 1, "no_wait": true}
        pull C r {"batch": 1, "no_wait": true, "expires": 100ms}
        rest q
        rest r
        rest p""",
    "limits of requests change": """stream
        fill 5 s.a
        consumer C {"max_batch": 3}
        pull C p 5
        pull C p -1
        pull C p {"batch": 5, "no_wait": true}
        rest p
        consumer C {"max_batch": 5}
        pull C p 5
        rest p""",
    "max_consumers": """stream {"max_consumers": 1}
        consumer C
        consumer D
        consumer C {"description": "x"}
        api CONSUMER.DELETE.S.C
        consumer D""",
    "filters of both kinds": """stream
        consumer C {"filter_subject": "s.a", "metadata": {"k": "v"}}
        consumer C {"filter_subjects": ["s.a", "s.b"]}
        consumer C {"filter_subjects": ["s.a", "s.*"]}
        consumer C {"filter_subject": "s.a"}
        fill 2 s.a
        fill 2 s.b
        info C
        consumer C {"filter_subjects": ["s.b", "s.c"]}
        info C
        pull C p {"batch": 5, "no_wait": true}
        until p 404""",
}

SCENARIOS: dict[str, str] = {
    f"{kind}: {name}": scenario
    for kind, scenarios in (("pulling", PULLING), ("acks", ACKS), ("redelivery", REDELIVERY), ("starts", STARTS),
                            ("pushing", PUSHING), ("life", LIFE))
    for name, scenario in scenarios.items()
}

SHOWS: dict[str, tuple[str, ...]] = {
    "advisory.ack_metric": ("acks: sampled",),
    "api.ack_subjects": ("acks: in the longer form",),
    "consumer.ack_policy": ("pulling: ack none", "acks: all", "acks: one by one"),
    "consumer.ack_wait": ("redelivery: ack_wait", "life: update of ack_wait and max_deliver"),
    "consumer.backoff": ("redelivery: backoff*",),
    "consumer.deliver_group": ("pushing: to a group*",),
    "consumer.deliver_policy": ("starts: deliver *",),
    "consumer.deliver_subject": ("pushing: to a subject", "pushing: moved to another subject"),
    "consumer.ephemeral": ("life: ephemeral goes", "life: push ephemeral goes"),
    "consumer.filter_subject": ("starts: filter*",),
    "consumer.filter_subjects": ("starts: several filters*", "life: filters of both kinds"),
    "consumer.flow_control": ("pushing: flow control", "pushing: heartbeats under flow control"),
    "consumer.headers_only": ("pulling: headers only", "pushing: headers only"),
    "consumer.idle_heartbeat": ("pushing: heartbeats*",),
    "consumer.inactive_threshold": ("life: ephemeral goes", "life: pulled in time it stays, then goes",
                                    "pushing: a durable that nobody hears goes"),
    "consumer.max_ack_pending": ("redelivery: max_ack_pending*", "life: update of max_ack_pending"),
    "consumer.max_deliver": ("redelivery: max_deliver*", "pushing: max_deliver"),
    "consumer.max_waiting": ("pulling: max_waiting*", "life: one-shots with one place to wait"),
    "consumer.mem_storage": ("life: memory",),
    "consumer.ordered": ("pushing: ordered",),
    "consumer.rate_limit": ("pushing: rate limit",),
    "consumer.replay_policy": ("pulling: replay at the original pace", "pushing: replay at the original pace"),
    "consumer.request_limits": ("pulling: limits of requests", "pulling: limit of expires as a duration",
                                "life: limits of requests change"),
    "consumer.sample_freq": ("acks: sampled",),
    "consumer.state": ("life: deleted at the floor", "life: first_seq", "life: purged in part",
                       "acks: all with redeliveries"),
    "consumer.updates": ("life: update of *", "life: updates that cannot be", "life: limits of requests change"),
    "deliver.ack": ("acks: one by one", "acks: twice", "acks: nonsense", "acks: of what was never delivered"),
    "deliver.ack_all": ("acks: all*", "pushing: ack all"),
    "deliver.count": ("redelivery: redelivery count rises for each",),
    "deliver.double_ack": ("acks: one by one", "acks: next"),
    "deliver.flow_control": ("pushing: flow control",),
    "deliver.heartbeats": ("pulling: heartbeats", "pushing: heartbeats*"),
    "deliver.nak": ("acks: nak*",),
    "deliver.next": ("acks: next", "pushing: next from a push consumer"),
    "deliver.pause": ("life: paused*",),
    "deliver.progress": ("acks: in progress",),
    "deliver.pull": ("pulling: batch*", "pulling: no_wait*", "pulling: expires", "pulling: bodies that cannot be",
                     "pulling: requests pending"),
    "deliver.pull_bytes": ("pulling: max_bytes*", "pulling: expires with bytes"),
    "deliver.pull_heartbeat": ("pulling: heartbeats*",),
    "deliver.push": ("pushing: to a subject", "pushing: without acks", "pushing: interest goes and comes",
                     "pushing: with wildcard subscribers", "pushing: redelivery"),
    "deliver.push_group": ("pushing: to a group*", "pushing: a group with wildcard subscribers"),
    "deliver.redelivery": ("redelivery: several times", "redelivery: order", "redelivery: nobody to take it",
                           "redelivery: ack after expiry"),
    "deliver.removed": ("life: messages deleted under it", "life: purged*", "life: limits * under it",
                        "life: messages age under it", "life: stream purged while a push consumer waits"),
    "deliver.reset": ("life: reset",),
    "deliver.stalled": ("redelivery: max_ack_pending*", "pushing: max_ack_pending"),
    "deliver.status_400": ("pulling: bodies that cannot be", "pulling: heartbeats that cannot be"),
    "deliver.status_404": ("pulling: no_wait at the end",),
    "deliver.status_408": ("pulling: expires", "pulling: requests pending", "pulling: inbox gone"),
    "deliver.status_409": ("pulling: max_waiting", "pulling: limits of requests", "pulling: max_bytes",
                           "pulling: pulling from a push consumer", "pulling: deleted under requests"),
    "deliver.term": ("acks: term",),
    "deliver.turns": ("pulling: requests take turns*",),
    "stream.max_consumers": ("life: max_consumers",),
    "stream.max_msgs_per_subject": ("life: one message per subject",),
}
"""The features that scenarios show, for docs/COMPATIBILITY.md, with names of scenarios (``*`` as in file names)."""
