"""Scenarios of refusals, as data: see player.py for the steps. They are here for the codes of coverage.py."""

from __future__ import annotations

__all__ = ["SCENARIOS", "SHOWS"]

_FLOW = '{"durable_name": "C", "ack_policy": "flow_control", "deliver_subject": "d"'

SCENARIOS: dict[str, str] = {
    "consumers that cannot be": f"""stream
        api CONSUMER.DURABLE.CREATE.S.{256 * "n"} {{"stream_name": "S", "config": {{"durable_name": "{256 * "n"}"}}}}
        consumer C {{"description": "{5000 * "d"}"}}
        consumer C {{"metadata": {{"a": "{130 * 1024 * "m"}"}}}}
        consumer C {{"num_replicas": -1}}
        consumer C {{"num_replicas": 2}}
        consumer C {{"ack_policy": "flow_control"}}
        api CONSUMER.CREATE.S.C {{"stream_name": "S", "pedantic": true, "config": {_FLOW}}}}}
        api CONSUMER.CREATE.S.C {{"stream_name": "S", "pedantic": true, "config": {{"max_batch": -1}}}}
        api CONSUMER.CREATE.S.C {{"stream_name": "S", "pedantic": true, "config": {{"max_waiting": -1}}}}""",
    "origins that cannot be": """make O {"subjects": ["o.>"], "max_msg_size": 100}
        make M {"mirror": {"name": "O"}, "max_msg_size": 10}
        make X {"subjects": ["s.>"], "sources": [{"name": "O"}, {"name": "P", "external": {"api": "x",
            "deliver": "o"}}]}
        make X {"sources": [{"name": "O", "consumer": {"name": "C"}}]}
        make X {"mirror": {"name": "O", "consumer": {"name": "C"}}}""",
    "two sources of one consumer": """make O {"subjects": ["o.>"]}
        make X {"sources": [CONSUMER, "subject_transforms": [{"src": "o.a", "dest": "x"}]}, CONSUMER}]}""".replace(
            "CONSUMER", '{"name": "O", "consumer": {"name": "C", "deliver_subject": "d"}'),
    "restores that cannot be": """stream
        api STREAM.RESTORE.S {"config": {"name": "S"}, "state": {}}
        api STREAM.RESTORE.T {"config": {"name": "S"}, "state": {}}
        api STREAM.RESTORE.T {"config": {"name": "T", "retention": "x"}, "state": {}}""",
}

SHOWS: dict[str, tuple[str, ...]] = {
    "api.errors": ("*",),
    "api.restore": ("restores that cannot be",),
    "consumer.defaults": ("consumers that cannot be",),
    "consumer.num_replicas": ("consumers that cannot be",),
    "copy.own_consumer": ("origins that cannot be", "two sources of one consumer"),
}
"""The features that scenarios show, for docs/COMPATIBILITY.md, with names of scenarios (``*`` as in file names)."""
