"""Scenarios of requests by mirrors and sources of other servers, as data: see player.py for the steps.

They have consumers whose acks come with answers to flow control requests, and consumers that only copy.
"""

from __future__ import annotations

__all__ = ["SCENARIOS", "SHOWS"]

_FLOW = '{"deliver_subject": "d", "ack_policy": "flow_control"'


def _create(config: str, name: str = "C", header: str = "") -> str:
    return f'pub{header} $JS.API.CONSUMER.CREATE.S.{name} {{"stream_name": "S", "config": {config}}}\n'


SCENARIOS: dict[str, str] = {
    "flow control acks": f"""stream
        fill 5 s.#
        consumer C {_FLOW}, "max_ack_pending": 3}}
        sub d
        get d 4
        info C
        flow d 3 3
        get d 2
        info C
        until d FlowControl
        flow d 5 5
        info C
        fill 1 s.x
        get d 1
        until d FlowControl
        flow d 6 6
        info C""",
    "flow control acks in part": f"""stream
        fill 6 s.#
        consumer C {_FLOW}, "max_ack_pending": 4}}
        sub d
        get d 5
        flow d 2 2
        get d 2
        info C
        until d FlowControl
        flow d
        info C
        until d FlowControl
        flow d 1 1
        info C
        until d FlowControl
        flow d 6 0
        info C
        until d FlowControl
        flow d 6 6
        info C
        rest d""",
    "flow control acks, and other answers": f"""stream
        fill 2 s.#
        consumer C {_FLOW}}}
        sub d
        get d 2
        ask d 1
        ask d 1 -NAK
        info C
        until d FlowControl
        flow d 2 2
        info C
        api CONSUMER.RESET.S.C
        fill 1 s.x
        get d 1
        api CONSUMER.RESET.S.C {{"seq": 1}}
        get d 3
        info C""",
    "flow control acks under a work queue's rules": "stream\n" + "\n".join(f"consumer C {config}" for config in (
        '{"ack_policy": "flow_control"}', _FLOW + ', "ack_wait": 1000ms}', _FLOW + ', "backoff": [1000ms]}',
        _FLOW + ', "max_deliver": 3}', _FLOW + ', "max_ack_pending": -1}', _FLOW + ', "idle_heartbeat": 5000ms}',
        _FLOW + "}", _FLOW + ', "max_ack_pending": 7}',
        '{"deliver_subject": "d", "ack_policy": "explicit", "flow_control": true, "idle_heartbeat": 1000ms}')),
    "direct consumers": """stream {"max_consumers": 1}
        fill 3 s.#
        sub d
        sub e
        """ + _create('{"name": "C", "deliver_subject": "d", "direct": true, "ack_policy": "none"}') + """get d 3
        """ + _create('{"name": "D", "deliver_subject": "e", "direct": true, "ack_policy": "none"}', "D") + """get e 3
        api CONSUMER.INFO.S.C
        api CONSUMER.NAMES.S
        api CONSUMER.LIST.S
        api STREAM.INFO.S
        api INFO
        consumer K
        consumer L
        api CONSUMER.NAMES.S
        api CONSUMER.DELETE.S.C
        api CONSUMER.DELETE.S.C
        api STREAM.INFO.S""",
    "direct consumers that cannot be": "stream\n" + "".join(_create(config) for config in (
        '{"name": "C", "direct": true}', '{"durable_name": "C", "deliver_subject": "d", "direct": true}',
        '{"name": "C", "deliver_subject": "d", "direct": true, "ack_policy": "explicit"}',
        '{"name": "C", "deliver_subject": "d", "ack_policy": "explicit"}')),
    "sourcing consumers": """stream
        fill 3 s.#
        sub d
        """ + _create('{"durable_name": "C", "deliver_subject": "d", "sourcing": true, "ack_policy": "flow_control"}')
        + """get d 3
        until d FlowControl
        flow d 2 2
        unsub d
        info C
        """ + _create('{"durable_name": "C", "deliver_subject": "d", "sourcing": true, "ack_policy": "flow_control", '
                      '"deliver_policy": "new"}') + """sub d
        get d 1
        info C
        """ + _create('{"durable_name": "C", "deliver_subject": "d", "ack_policy": "flow_control"}') + """
        api CONSUMER.NAMES.S
        api STREAM.INFO.S""",
    "identity of the stream": """stream
        sub d
        """ + _create('{"name": "C", "deliver_subject": "d", "direct": true}', "C", "[Nats-Stream-Identity: other]")
        + _create('{"name": "C", "deliver_subject": "d", "sourcing": true}', "C", "[Nats-Stream-Identity: other]")
        + _create('{"durable_name": "D", "ack_policy": "explicit"}', "D", "[Nats-Stream-Identity: other]")
        + """pub[Nats-Stream-Identity: other] $JS.API.CONSUMER.RESET.S.D
        pub $JS.API.CONSUMER.RESET.S.D""",
    "created paused": """stream
        sub ev $JS.EVENT.ADVISORY.CONSUMER.>
        consumer C {"pause_until": "2099-01-01T00:00:00Z"}
        get ev 2
        consumer C
        get ev 1
        consumer C {"pause_until": "2020-01-01T00:00:00Z", "max_deliver": 7}
        rest ev
        info C""",
}

SHOWS: dict[str, tuple[str, ...]] = {
    "consumer.ack_flow_control": ("flow control acks*",),
    "consumer.direct": ("direct consumers*", "sourcing consumers"),
    "consumer.pause_until": ("created paused",),
    "copy.consumer": ("flow control acks", "sourcing consumers"),
    "copy.identity": ("identity of the stream",),
}
"""The features that scenarios show, for docs/COMPATIBILITY.md, with names of scenarios (``*`` as in file names)."""
