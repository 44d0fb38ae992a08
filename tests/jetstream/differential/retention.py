"""Scenarios of work queues and interest streams, as data: see player.py. Each begins on a server without streams."""

from __future__ import annotations

__all__ = ["SCENARIOS", "SHOWS"]

_QUEUE = 'stream {"retention": "workqueue"}\n'
_INTEREST = 'stream {"retention": "interest"}\n'


def _update(config: str) -> str:
    return 'api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"], ' + config + "}\n"


def _refused(*consumers: str) -> str:
    """Return consumers of a work queue, one after the other, by names of their own."""
    return _QUEUE + "\n".join(f"consumer {name} {config}" for name, _,
                              config in (one.partition(" ") for one in consumers))


WORK_QUEUES: dict[str, str] = {
    "acks remove": _QUEUE + """fill 5 s.#
        consumer C
        pull C p {"batch": 5}
        get p 5
        ack p 1
        state
        ack p 3
        ack p 2
        state
        info C
        ask p 5
        ask p 4
        state
        info C
        pub s.a next
        state""",
    "each kind of answer": _QUEUE + """fill 6 s.#
        consumer C
        pull C p {"batch": 6}
        get p 6
        ack p 1 +TERM
        state
        ack p 2 +TERM no use
        ack p 3 -NAK
        ack p 4 +WPI
        ack p 5 nonsense
        state
        nxt p 6 q 1
        get q 1
        state
        info C""",
    "acks again and acks of nothing": _QUEUE + """fill 3 s.#
        consumer C
        pull C p {"batch": 2}
        get p 2
        ask p 1
        ask p 1
        ask p 1 +TERM
        ack p 1 -NAK
        rest p
        state
        info C""",
    "redelivered, then acked": _QUEUE + """fill 2 s.#
        consumer C {"ack_wait": 200ms}
        pull C p {"batch": 4}
        get p 4
        ask p 1
        ask p 2
        state
        rest p
        info C""",
    "what hit max_deliver stays": _QUEUE + """fill 2 s.#
        consumer C {"ack_wait": 100ms, "max_deliver": 1}
        pull C p {"batch": 2}
        get p 2
        sleep 250ms
        state
        info C
        ask p 1
        state
        info C""",
    "what hit max_deliver of two stays": _QUEUE + """fill 2 s.#
        consumer C {"ack_wait": 100ms, "max_deliver": 2}
        pull C p {"batch": 4, "expires": 700ms}
        get p 4
        until p 408
        state
        info C
        ask p 1
        state""",
    "another consumer gets what hit max_deliver": _QUEUE + """fill 2 s.#
        consumer C {"ack_wait": 100ms, "max_deliver": 1}
        pull C p {"batch": 2}
        get p 2
        sleep 250ms
        api CONSUMER.DELETE.S.C
        consumer D
        pull D q {"batch": 2}
        get q 2
        ask q 1
        state
        info D""",
    "consumers come and go": _QUEUE + """fill 4 s.#
        consumer C
        pull C p {"batch": 3}
        get p 3
        ask p 2
        api CONSUMER.DELETE.S.C
        state
        ask p 1
        state
        consumer C
        info C
        pull C p {"batch": 5, "no_wait": true}
        until p 404
        state""",
    "parts by subject": _QUEUE + """fill 3 s.a
        fill 3 s.b
        fill 2 s.c
        consumer A {"filter_subject": "s.a"}
        consumer B {"filter_subject": "s.b"}
        info B
        pull A p {"batch": 3}
        get p 3
        ask p 2
        ask p 3
        state
        info B
        pull B q {"batch": 3}
        get q 3
        ask q 1
        state
        info A
        info B
        ask p 1
        state""",
    "several filters": _QUEUE + """fill 2 s.a
        fill 2 s.b
        fill 2 s.c
        consumer A {"filter_subjects": ["s.a", "s.c"]}
        consumer B {"filter_subject": "s.b"}
        pull A p {"batch": 4}
        get p 4
        ask p 4
        ask p 1
        state
        info A
        info B""",
    "pushed": _QUEUE + """fill 3 s.#
        sub d
        consumer C {"deliver_subject": "d"}
        get d 3
        ack d 1
        ask d 3
        state
        info C""",
    "pushed to a group": _QUEUE + """sub d1 d q
        sub d2 d q
        consumer C {"deliver_subject": "d", "deliver_group": "q"}
        pub s.a 1
        info C
        state""",
    "other consumers' filters change": _QUEUE + """fill 2 s.a
        fill 2 s.b
        consumer A {"filter_subject": "s.a"}
        pull A p {"batch": 2}
        get p 2
        consumer A {"filter_subject": "s.b"}
        consumer B {"filter_subject": "s.a"}
        info A
        info B
        ask p 1
        state
        pull B q {"batch": 2}
        get q 2
        ask q 1
        state""",
    "purged under a consumer": _QUEUE + """fill 6 s.#
        consumer C
        pull C p {"batch": 3}
        get p 3
        ask p 2
        api STREAM.PURGE.S {"seq": 5}
        state
        info C
        ask p 1
        pull C p {"batch": 1}
        get p 1
        ask p 4
        state
        info C""",
    "purged by subject": _QUEUE + """fill 3 s.a
        fill 3 s.b
        consumer A {"filter_subject": "s.a"}
        consumer B {"filter_subject": "s.b"}
        pull A p {"batch": 2}
        get p 2
        api STREAM.PURGE.S {"filter": "s.a"}
        state
        info A
        info B""",
    "deleted under a consumer": _QUEUE + """fill 4 s.#
        consumer C
        pull C p {"batch": 2}
        get p 2
        api STREAM.MSG.DELETE.S {"seq": 1}
        api STREAM.MSG.DELETE.S {"seq": 3}
        info C
        ask p 1
        ask p 2
        state
        info C""",
    "limits discard old": 'stream {"retention": "workqueue", "max_msgs": 3}\n' + """fill 3 s.#
        consumer C
        pull C p {"batch": 3}
        get p 3
        ask p 2
        state
        pub s.a 4
        state
        pub s.b 5
        state
        info C""",
    "limits discard new": 'stream {"retention": "workqueue", "max_msgs": 2, "discard": "new"}\n' + """fill 2 s.#
        pub s.a refused
        consumer C
        pull C p {"batch": 2}
        get p 2
        ask p 2
        pub s.a taken
        pub s.a refused
        state
        info C""",
    "one per subject": 'stream {"retention": "workqueue", "max_msgs_per_subject": 1}\n' + """fill 3 s.#
        fill 2 s.#
        consumer C
        pull C p {"batch": 3}
        get p 3
        ask p 1
        pub s.1 again
        pub s.3 again
        state
        info C
        ask p 3
        ask p 2
        state""",
    "one per subject, new discarded": (
        'stream {"retention": "workqueue", "max_msgs_per_subject": 1, "discard": "new", '
        '"discard_new_per_subject": true}\n'
        """fill 2 s.#
        pub s.1 refused
        consumer C
        pull C p {"batch": 2}
        get p 2
        ask p 1
        pub s.1 taken
        pub s.2 refused
        state"""),
    "memory": 'stream {"retention": "workqueue", "storage": "memory"}\n' + """fill 4 s.#
        consumer C
        pull C p {"batch": 4}
        get p 4
        ask p 2
        ask p 4
        ask p 1
        info C
        ask p 3
        info C""",
    "no acks to publishers": 'stream {"retention": "workqueue", "no_ack": true}\n' + """consumer C
        pub s.a 1
        pull C p 1
        get p 1
        ask p 1
        state""",
    "paused": _QUEUE + """fill 3 s.#
        consumer C
        pull C p {"batch": 2}
        get p 2
        api CONSUMER.PAUSE.S.C {"pause_until": "2099-01-01T00:00:00Z"}
        ask p 1
        state
        info C
        api CONSUMER.PAUSE.S.C
        ask p 2
        state""",
    "reset": _QUEUE + """fill 4 s.#
        consumer C
        pull C p {"batch": 3}
        get p 3
        ask p 1
        api CONSUMER.RESET.S.C {"seq": 2}
        info C
        state
        pull C p {"batch": 3}
        get p 3
        ask p 4
        state
        info C""",
    "held back by max_ack_pending": _QUEUE + """fill 5 s.#
        consumer C {"max_ack_pending": 2}
        pull C p {"batch": 5}
        get p 2
        ack p 2
        get p 1
        ack p 1
        ack p 3
        get p 2
        ack p 4
        ack p 5
        state
        info C""",
    "message ids": _QUEUE + """pub[Nats-Msg-Id: a] s.a 1
        consumer C
        pull C p 1
        get p 1
        ask p 1
        pub[Nats-Msg-Id: a] s.a 1
        pub[Nats-Expected-Last-Msg-Id: a] s.a 2
        pub[Nats-Expected-Last-Sequence: 2] s.a 3
        pub[Nats-Expected-Last-Subject-Sequence: 0] s.x 4
        pull C p {"batch": 3}
        get p 3
        ask p 4
        pub[Nats-Expected-Last-Subject-Sequence: 0] s.x 5
        state""",
    "roll-up": 'stream {"retention": "workqueue", "allow_rollup_hdrs": true}\n' + """fill 2 s.a
        fill 2 s.b
        consumer C
        pull C p {"batch": 3}
        get p 3
        ask p 3
        pub[Nats-Rollup: sub] s.a rolled
        state
        info C
        pub[Nats-Rollup: all] s.a rolled
        state
        info C""",
    "expired": 'stream {"retention": "workqueue", "max_age": 500ms, "duplicate_window": 200ms}\n' + """fill 3 s.#
        consumer C
        pull C p {"batch": 2}
        get p 2
        ask p 2
        state
        sleep 900ms
        state
        info C""",
    "gets by sequence and subject": 'stream {"retention": "workqueue", "allow_direct": true}\n' + """fill 3 s.a
        fill 2 s.b
        consumer C
        pull C p {"batch": 5}
        get p 5
        ask p 3
        ask p 4
        api STREAM.MSG.GET.S {"seq": 3}
        api STREAM.MSG.GET.S {"last_by_subj": "s.a"}
        api STREAM.MSG.GET.S {"last_by_subj": "s.b"}
        api STREAM.MSG.GET.S {"seq": 3, "next_by_subj": "s.>"}
        ask p 5
        ask p 2
        api STREAM.MSG.GET.S {"last_by_subj": "s.b"}
        api STREAM.MSG.GET.S {"last_by_subj": "s.a"}
        api STREAM.INFO.S {"subjects_filter": ">"}
        state""",
}

RULES: dict[str, str] = {
    "one without a filter": _refused("A {}", "B {}", 'C {"filter_subject": "s.a"}', "A {}", 'A {"description": "x"}'),
    "filters apart": _refused(
        'A {"filter_subject": "s.a"}', 'B {"filter_subject": "s.b"}', 'C {"filter_subject": "s.a"}',
        'D {"filter_subject": "s.*"}', 'E {"filter_subject": "s.>"}', 'F {"filter_subjects": ["s.c", "s.d.>"]}',
        'G {"filter_subjects": ["s.e", "s.d.x"]}', 'H {"filter_subject": "s.*.x"}', "I {}",
        'J {"filter_subject": ">"}'),
    "updates": _refused(
        'A {"filter_subject": "s.a"}', 'B {"filter_subject": "s.b"}', 'A {"filter_subject": "s.b"}',
        'A {"filter_subject": "s.*"}',
        'A {"filter_subject": "s.c"}', "A {}", "B {}", 'B {"filter_subject": "s.b", "ack_policy": "none"}'),
    "ack policies": _refused(
        'A {"ack_policy": "none"}', 'A {"ack_policy": "all"}', 'A {"ack_policy": "none", "deliver_subject": "d"}',
        'A {"ack_policy": "all", "deliver_subject": "d"}', 'A {"ack_policy": "all", "deliver_policy": "new"}'),
    "deliver policies": _refused(
        'A {"deliver_policy": "new"}', 'A {"deliver_policy": "last"}',
        'A {"deliver_policy": "by_start_sequence", "opt_start_seq": 2}',
        'A {"deliver_policy": "last_per_subject", "filter_subject": "s.a"}',
        'A {"deliver_policy": "by_start_time", "opt_start_time": "2020-01-01T00:00:00Z"}', "B {}",
        'A {"deliver_policy": "new"}'),
    "max_consumers first": 'stream {"retention": "workqueue", "max_consumers": 1}\n' + """consumer A
        consumer B {"ack_policy": "none", "deliver_subject": "d"}
        consumer B {"filter_subject": "s.a"}
        consumer A""",
    "ephemeral": _QUEUE + """consumer A
        api CONSUMER.CREATE.S {"stream_name": "S", "config": {"ack_policy": "explicit"}}
        api CONSUMER.CREATE.S {"stream_name": "S", "config": {"ack_policy": "explicit", "filter_subject": "s.a"}}
        api CONSUMER.DELETE.S.A
        api CONSUMER.CREATE.S {"stream_name": "S", "config": {"ack_policy": "explicit", "filter_subject": "s.a"}}
        api CONSUMER.CREATE.S {"stream_name": "S", "config": {"ack_policy": "explicit", "filter_subject": "s.a"}}""",
    "replicas": _QUEUE + """consumer A {"num_replicas": 1}
        consumer B {"num_replicas": 3}""",
    "actions": _QUEUE + """consumer A {"filter_subject": "s.a"}
        api CONSUMER.CREATE.S.A {"stream_name": "S", "action": "create", "config": {"durable_name": "A",
            "ack_policy": "explicit"}}
        api CONSUMER.CREATE.S.B {"stream_name": "S", "action": "update", "config": {"durable_name": "B",
            "ack_policy": "none"}}
        api CONSUMER.CREATE.S.B {"stream_name": "S", "action": "create", "config": {"name": "B",
            "ack_policy": "explicit"}}""",
    "streams": _QUEUE + _update('"retention": "limits"') + _update('"retention": "interest"')
    + _update('"retention": "workqueue", "max_msgs": 5') + _update('"retention": "workqueue", "discard": "new"')
    + "api STREAM.DELETE.S\n" + _INTEREST + _update('"retention": "workqueue"') + _update('"retention": "limits"')
    + _update('"retention": "workqueue"') + _update('"retention": "interest"') + _update(
        '"retention": "interest", "sealed": true')
    + _update('"retention": "interest", "allow_msg_counter": true'),
}

INTEREST: dict[str, str] = {
    "nobody there": _INTEREST + """pub s.a 1
        pub s.b 2
        state
        pub[Nats-Msg-Id: x] s.a 3
        pub[Nats-Msg-Id: x] s.a 3
        pub[Nats-Expected-Last-Msg-Id: x] s.a 4
        pub[Nats-Expected-Last-Sequence: 4] s.a 5
        pub[Nats-Expected-Last-Sequence: 4] s.a 5
        state
        consumer C
        info C
        pub s.a 6
        state
        info C
        pull C p {"batch": 1}
        get p 1
        ask p 1
        state
        info C""",
    "gaps": _INTEREST + """consumer C {"filter_subject": "s.a"}
        pub s.a 1
        pub s.b 2
        pub s.b 3
        pub s.a 4
        pub s.c 5
        state
        info C
        pull C p {"batch": 2}
        get p 2
        ask p 2
        state
        ask p 1
        state
        info C
        pub s.b 6
        state
        info C""",
    "all must ack": _INTEREST + """consumer A
        consumer B
        fill 4 s.#
        pull A p {"batch": 4}
        get p 4
        ask p 1
        ask p 2
        state
        pull B q {"batch": 2}
        get q 2
        ask q 2
        state
        ask q 1
        state
        ask p 4
        ask p 3
        state
        info A
        info B""",
    "those whose filters match must ack": _INTEREST + """consumer A {"filter_subject": "s.a"}
        consumer B {"filter_subjects": ["s.a", "s.b"]}
        consumer C {"filter_subject": "s.*"}
        fill 2 s.a
        fill 2 s.b
        fill 2 s.c
        pull C p {"batch": 6}
        get p 6
        ask p 1
        ask p 3
        ask p 5
        state
        pull A q {"batch": 2}
        get q 2
        ask q 1
        state
        pull B r {"batch": 4}
        get r 4
        ask r 1
        ask r 3
        ask r 4
        state
        info A
        info B
        info C""",
    "ack all": _INTEREST + """consumer A {"ack_policy": "all"}
        consumer B {"ack_policy": "all"}
        fill 6 s.#
        pull A p {"batch": 5}
        get p 5
        ask p 4
        state
        pull B q {"batch": 6}
        get q 6
        ask q 2
        state
        ask q 6
        state
        ask p 5
        state
        info A
        info B""",
    "ack none": _INTEREST + """consumer A {"ack_policy": "none"}
        fill 3 s.#
        state
        pull A p {"batch": 2}
        get p 2
        state
        info A
        consumer B
        fill 2 s.#
        pull A p {"batch": 3}
        get p 3
        state
        pull B q {"batch": 5, "no_wait": true}
        until q 404
        info B
        ask q 2
        state""",
    "ack none, pushed": _INTEREST + """sub d
        consumer A {"ack_policy": "none", "deliver_subject": "d"}
        fill 3 s.#
        get d 3
        state
        info A
        unsub d
        pub s.a 4
        state
        info A""",
    "each kind of answer": _INTEREST + """consumer A
        consumer B {"ack_policy": "none"}
        fill 5 s.#
        pull B q {"batch": 5}
        get q 5
        pull A p {"batch": 5}
        get p 5
        ack p 1 +TERM
        ack p 2 -NAK
        ack p 3 +WPI
        state
        nxt p 4 r 1
        get r 1
        state
        info A""",
    "the last consumer goes": _INTEREST + """consumer A
        fill 3 s.#
        pull A p 1
        get p 1
        api CONSUMER.DELETE.S.A
        state
        pub s.a next
        state""",
    "a consumer goes": _INTEREST + """consumer A
        consumer B {"filter_subject": "s.b"}
        consumer C
        fill 3 s.a
        fill 3 s.b
        pull B q {"batch": 3}
        get q 3
        ask q 1
        pull C r {"batch": 5}
        get r 5
        ask r 1
        ask r 3
        ask r 4
        state
        api CONSUMER.DELETE.S.A
        state
        api CONSUMER.DELETE.S.C
        state
        info B""",
    "a consumer that has acked goes": _INTEREST + """consumer A
        consumer B
        fill 3 s.#
        pull A p {"batch": 3}
        get p 3
        ask p 1
        ask p 2
        ask p 3
        api CONSUMER.DELETE.S.A
        state
        api CONSUMER.DELETE.S.B
        state""",
    "filters narrow": _INTEREST + """consumer A
        consumer B {"filter_subject": "s.c"}
        fill 2 s.a
        fill 2 s.b
        fill 2 s.c
        pull A p {"batch": 3}
        get p 3
        ask p 1
        state
        consumer A {"filter_subject": "s.b"}
        state
        info A
        pub s.a 7
        state
        pull A p {"batch": 5, "no_wait": true}
        until p 404
        info A""",
    "filters widen": _INTEREST + """consumer A {"filter_subject": "s.a"}
        pub s.a 1
        pub s.b 2
        consumer A {"filter_subjects": ["s.a", "s.b"]}
        pub s.b 3
        state
        pull A p {"batch": 5, "no_wait": true}
        until p 404
        info A""",
    "a consumer comes late": _INTEREST + """consumer A
        fill 4 s.#
        pull A p {"batch": 3}
        get p 3
        ask p 2
        consumer B
        consumer N {"deliver_policy": "new"}
        consumer L {"deliver_policy": "last"}
        consumer Q {"deliver_policy": "by_start_sequence", "opt_start_seq": 3}
        ask p 1
        ask p 3
        state
        pull B q {"batch": 2}
        get q 2
        ask q 1
        ask q 2
        state
        pull Q r {"batch": 1}
        get r 1
        ask r 1
        state
        info B
        info N""",
    "max_deliver": _INTEREST + """consumer A {"ack_wait": 100ms, "max_deliver": 1}
        consumer B
        fill 2 s.#
        pull A p {"batch": 2}
        get p 2
        sleep 250ms
        pull B q {"batch": 2}
        get q 2
        ask q 1
        ask q 2
        state
        ask p 1
        state
        api CONSUMER.DELETE.S.A
        state""",
    "ephemeral consumer forgotten": _INTEREST + """consumer E {"durable_name": null, "name": "E",
            "inactive_threshold": 300ms}
        pub s.a 1
        state
        sleep 2000ms
        state
        pub s.a 2
        state""",
    "a push consumer nobody listens to": _INTEREST + """consumer A {"deliver_subject": "d"}
        pub s.a 1
        state
        info A""",
    "paused": _INTEREST + """consumer A
        api CONSUMER.PAUSE.S.A {"pause_until": "2099-01-01T00:00:00Z"}
        pub s.a 1
        state
        api CONSUMER.PAUSE.S.A
        pull A p 1
        get p 1
        ask p 1
        state""",
    "purged": _INTEREST + """consumer A
        consumer B
        fill 5 s.#
        pull A p {"batch": 3}
        get p 3
        ask p 1
        api STREAM.PURGE.S {"seq": 4}
        state
        info A
        info B
        pull B q {"batch": 5, "no_wait": true}
        until q 404
        ask q 1
        ask p 3
        state""",
    "deleted": _INTEREST + """consumer A
        consumer B
        fill 3 s.#
        pull A p {"batch": 3}
        get p 3
        api STREAM.MSG.DELETE.S {"seq": 2}
        ask p 1
        ask p 2
        ask p 3
        info A
        pull B q {"batch": 3, "no_wait": true}
        until q 404
        ask q 1
        ask q 2
        state
        info B""",
    "limits": 'stream {"retention": "interest", "max_msgs": 2}\n' + """consumer A
        fill 3 s.#
        state
        pull A p {"batch": 2}
        get p 2
        ask p 2
        pub s.a 4
        pub s.b 5
        state
        info A""",
    "full, and nobody there": 'stream {"retention": "interest", "max_msgs": 1, "discard": "new"}\n' + """
        consumer A {"filter_subject": "s.a"}
        pub s.a 1
        pub s.a 2
        pub s.b 3
        pub s.a 4
        state""".lstrip(),
    "too large, and nobody there": 'stream {"retention": "interest", "max_msg_size": 4}\n' + """pub s.a 12345
        pub s.a 1234
        pub[Nats-Expected-Stream: T] s.a 1
        pub[Nats-Expected-Last-Sequence: 7] s.a 1
        pub[Nats-Expected-Last-Subject-Sequence: 7] s.a 1
        pub[Nats-Rollup: sub] s.a 1
        state""",
    "roll-up, and nobody there": 'stream {"retention": "interest", "allow_rollup_hdrs": true}\n' + """
        consumer A {"filter_subject": "s.a"}
        fill 2 s.a
        pub[Nats-Rollup: sub] s.b 1
        state
        pub[Nats-Rollup: all] s.b 1
        state
        info A""".lstrip(),
    "memory": 'stream {"retention": "interest", "storage": "memory"}\n' + """pub s.a 0
        consumer A
        consumer B {"filter_subject": "s.1"}
        fill 4 s.#
        pull A p {"batch": 4}
        get p 4
        ask p 2
        ask p 1
        ask p 4
        info A
        pull B q 1
        get q 1
        ask q 1
        info B
        api CONSUMER.DELETE.S.A
        api CONSUMER.INFO.S.B""",
    "reset forwards": _INTEREST + """consumer A
        fill 5 s.#
        pull A p {"batch": 2}
        get p 2
        ask p 1
        api CONSUMER.RESET.S.A {"seq": 4}
        state
        info A""",
    "reset back": _INTEREST + """consumer A
        consumer B
        fill 4 s.#
        pull A p {"batch": 3}
        get p 3
        ask p 1
        ask p 2
        ask p 3
        api CONSUMER.RESET.S.A {"seq": 2}
        pull B q {"batch": 4}
        get q 4
        ask q 1
        ask q 2
        state
        info A""",
    "limits to interest": "stream\n" + """fill 2 s.#
        consumer A
        consumer B
        fill 3 s.a
        pull A p {"batch": 4}
        get p 4
        ask p 1
        ask p 2
        ask p 3
        pull B q {"batch": 3}
        get q 3
        ask q 1
        ask q 3
        """ + _update('"retention": "interest"') + """state
        ask q 2
        ask p 4
        state
        pub s.x 1
        state
        """ + _update('"retention": "limits"') + """ask p 4
        state
        api CONSUMER.DELETE.S.A
        api CONSUMER.DELETE.S.B
        pub s.y 2
        state""",
    "limits to interest, nobody there": "stream\nfill 3 s.#\n" + _update('"retention": "interest"') + """state
        pub s.a 4
        state
        consumer A
        info A""",
    "limits to interest, one there": "stream\nfill 4 s.#\n" + """consumer A {"filter_subject": "s.2"}
        pull A p 1
        get p 1
        ask p 1
        """ + _update('"retention": "interest"') + """state
        consumer B {"filter_subjects": ["s.1", "s.4"]}
        pull B q 2
        get q 2
        ask q 2
        state
        api CONSUMER.DELETE.S.B
        state""",
    "ack all, filtered": _INTEREST + """consumer A {"ack_policy": "all", "filter_subject": "s.a"}
        consumer B {"filter_subject": "s.b"}
        pub s.a 1
        pub s.b 2
        pub s.a 3
        pub s.b 4
        pub s.a 5
        pull A p {"batch": 3}
        get p 3
        ask p 2
        state
        pull B q {"batch": 2}
        get q 2
        ask q 2
        state
        ask p 3
        state""",
    "an atomic batch": """stream {"retention": "interest", "allow_atomic": true}
        consumer A {"filter_subject": "s.a"}
        pub[Nats-Batch-Id: b; Nats-Batch-Sequence: 1] s.a 1
        pub[Nats-Batch-Id: b; Nats-Batch-Sequence: 2] s.b 2
        pub[Nats-Batch-Id: b; Nats-Batch-Sequence: 3; Nats-Batch-Commit: 1] s.a 3
        state
        info A
        pull A p 2
        get p 2
        ask p 2
        ask p 1
        state""",
    "a filter that is all of the stream": 'stream {"retention": "interest", "subjects": ["s.a", "s.b"]}\n' + """
        consumer A {"filter_subjects": ["s.b", "s.a"]}
        consumer B {"filter_subject": "s.a"}
        pub s.a 1
        pub s.b 2
        pull A p {"batch": 2}
        get p 2
        ask p 2
        state
        ask p 1
        state
        pull B q 1
        get q 1
        ask q 1
        state""".lstrip(),
}

SCENARIOS: dict[str, str] = {
    f"{kind}: {name}": one
    for kind, found in (("work queue", WORK_QUEUES), ("rules", RULES), ("interest", INTEREST))
    for name, one in found.items()}

SHOWS: dict[str, tuple[str, ...]] = {
    "deliver.interest": ("interest: all must ack", "interest: ack all", "interest: ack none*",
                         "interest: each kind of answer", "interest: those whose filters match must ack"),
    "deliver.workqueue": ("work queue: acks remove", "work queue: each kind of answer",
                          "work queue: acks again and acks of nothing", "work queue: redelivered, then acked"),
    "stream.interest_retention": ("interest: *",),
    "stream.retention_updates": ("rules: updates", "interest: limits to interest*"),
    "stream.workqueue_retention": ("work queue: *", "rules: *"),
}
"""The features that scenarios show, for docs/COMPATIBILITY.md, with names of scenarios (``*`` as in file names)."""
