"""Advisories on streams, consumers and requests, as data: see player.py for the steps.

In nats-server the audit of a request and the advisory of its effect race, so each has a box of its own.
"""

from __future__ import annotations

__all__ = ["SCENARIOS", "SHOWS"]

_AUDIT = "sub audit $JS.EVENT.ADVISORY.API\n"


def _audited(*steps: str) -> str:
    """Return the steps, each followed by its audit advisory."""
    return "\n".join(f"{step}\nrest audit" for step in steps)


SCENARIOS: dict[str, str] = {
    "streams": """sub ev $JS.EVENT.ADVISORY.STREAM.>
        stream
        get ev 1
        stream
        stream {"max_msgs": 7}
        rest ev
        api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"]}
        get ev 1
        api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"], "max_msgs": 7}
        get ev 1
        api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"], "storage": "memory"}
        api STREAM.UPDATE.NONE {"name": "NONE"}
        fill 3 s.a
        api STREAM.PURGE.S
        rest ev
        api STREAM.DELETE.S
        api STREAM.DELETE.S
        rest ev
        stream {"storage": "memory"}
        api STREAM.DELETE.S
        rest ev""",
    "consumers": """sub ev $JS.EVENT.ADVISORY.CONSUMER.>
        stream
        consumer C
        get ev 1
        consumer C
        consumer C {"max_deliver": 4}
        consumer C {"deliver_policy": "new"}
        rest ev
        consumer D {"mem_storage": true, "ack_policy": "none"}
        get ev 1
        api CONSUMER.DELETE.S.C
        api CONSUMER.DELETE.S.C
        get ev 1
        rest ev
        api STREAM.DELETE.S
        get ev 1
        rest ev""",
    "a consumer that nobody uses": """sub made $JS.EVENT.ADVISORY.CONSUMER.CREATED.S.*
        sub gone $JS.EVENT.ADVISORY.CONSUMER.DELETED.S.*
        stream
        consumer C {"durable_name": null, "name": "C", "inactive_threshold": 100ms}
        get made 1
        get gone 1
        rest gone""",
    "paused": """sub ev $JS.EVENT.ADVISORY.CONSUMER.PAUSE.>
        stream
        consumer C
        api CONSUMER.PAUSE.S.C {"pause_until": "2099-01-01T00:00:00Z"}
        get ev 1
        api CONSUMER.PAUSE.S.C
        get ev 1
        rest ev""",
    "audit of streams": _AUDIT + _audited(
        "api INFO", "stream", "stream", 'stream {"max_msgs": 7}', "api STREAM.INFO.S", "api STREAM.INFO.NONE",
        'api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"], "max_msgs": 7}', "api STREAM.NAMES", "api STREAM.LIST",
        "api STREAM.NAMES not JSON", "api STREAM.CREATE.S {bad", "api STREAM.SNAPSHOT.S {}",
        "api STREAM.LEADER.STEPDOWN.S", "api STREAM.PURGE.S", "api STREAM.DELETE.S"),
    "audit of messages": _AUDIT + "stream {\"allow_direct\": true}\nfill 3 s.a\ndrop audit\n" + _audited(
        'api STREAM.MSG.GET.S {"seq": 1}', 'api STREAM.MSG.GET.S {"seq": 9}', 'api DIRECT.GET.S {"seq": 1}',
        'api STREAM.MSG.DELETE.S {"seq": 1}', 'api STREAM.MSG.DELETE.S {"seq": 1}', "pub s.a more"),
    "audit of consumers": _AUDIT + "stream\nfill 1 s.a\ndrop audit\n" + _audited(
        "consumer C", "consumer C", "api CONSUMER.INFO.S.C", "api CONSUMER.INFO.S.NONE", "api CONSUMER.NAMES.S",
        "api CONSUMER.LIST.S", 'api CONSUMER.PAUSE.S.C {"pause_until": "2099-01-01T00:00:00Z"}',
        "api CONSUMER.PAUSE.S.C", 'pull C p {"batch": 1}', "api CONSUMER.RESET.S.C", 'api CONSUMER.RESET.S.C {"seq": x',
        'api CONSUMER.UNPIN.S.C {"group": "g"}', "api CONSUMER.DELETE.S.C", "api CONSUMER.DELETE.S.C"),
    "audit of what has no answer": _AUDIT + """stream
        drop audit
        tell STREAM.INFO.S
        get audit 1
        tell STREAM.INFO.NONE
        get audit 1
        tell STREAM.NO.SUCH
        rest audit
        tell STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"], "max_msgs": 7}
        get audit 1
        rest audit""",
}

SHOWS: dict[str, tuple[str, ...]] = {
    "advisory.api_audit": ("audit of *",),
    "advisory.consumer_action": ("consumers", "a consumer that nobody uses"),
    "advisory.consumer_pause": ("paused",),
    "advisory.stream_action": ("streams",),
}
"""The features that scenarios show, for docs/COMPATIBILITY.md, with names of scenarios (``*`` as in file names)."""
