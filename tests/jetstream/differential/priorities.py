"""Scenarios of priority groups, as data: see player.py for the steps. Each begins on a server without streams."""

from __future__ import annotations

import json

__all__ = ["SCENARIOS", "SHOWS"]


def _consumer(policy: str, messages: int = 6, options: str = "") -> str:
    """Return a stream with messages and a consumer of the group ``g``."""
    return (f'stream\nfill {messages} s.#\n'
            f'consumer C {{"priority_policy": "{policy}", "priority_groups": ["g"]{options}}}\n')


def _pull(box: str, batch: int = 1, **more: object) -> str:
    """Return a pull request; arguments whose names end in ``_ms`` are durations."""
    shown = {name.removesuffix("_ms"): f"{value}ms" if name.endswith("_ms") else json.dumps(value)
             for name, value in more.items()}
    fields = "".join(f', "{name}": {value}' for name, value in shown.items())
    return f'pull C {box} {{"batch": {batch}, "group": "g"{fields}}}\n'


_OVERFLOW = _consumer("overflow")
_PINNED = "sub ev $JS.EVENT.ADVISORY.CONSUMER.*.S.C\n" + _consumer("pinned_client") + "drop ev\n"
_PRIORITIZED = _consumer("prioritized", 0)

SCENARIOS: dict[str, str] = {
    # ---- requests
    "requests of no group": "\n".join(_consumer(policy) + """
        pull C p {"batch": 1}
        pull C p {"batch": 1, "group": "h"}
        pull C p {"batch": 1, "group": "G"}
        pull C p {"batch": 1, "group": "g", "min_pending": 1}
        pull C p {"batch": 1, "group": "g", "min_ack_pending": 1}
        pull C p {"batch": 1, "group": "g", "id": "x"}
        pull C p {"batch": 1, "group": "g", "priority": 10}
        pull C p {"batch": 1, "group": "g", "priority": -1}
        get p 1
        rest p
        info C
        api CONSUMER.DELETE.S.C
        api STREAM.DELETE.S
        drop p""" for policy in ("overflow", "prioritized")),
    "requests of no group to a pinned consumer": _PINNED + """
        pull C p {"batch": 1}
        pull C p {"batch": 1, "group": "h"}
        pull C p {"batch": 1, "group": "g", "min_pending": 1}
        pull C p {"batch": 1, "group": "g", "priority": 10}
        rest p""",
    "only a number": "\n".join(_consumer(policy) + """
        pull C p 2
        get p 2
        pull C p
        get p 1
        info C
        api STREAM.DELETE.S
        drop p""" for policy in ("overflow", "prioritized", "pinned_client")),
    "several groups": """stream
        fill 4 s.#
        consumer C {"priority_policy": "prioritized", "priority_groups": ["a", "b"]}
        pull C p {"batch": 1, "group": "a"}
        get p 1
        pull C p {"batch": 1, "group": "b"}
        get p 1
        pull C p {"batch": 1, "group": "c"}
        get p 1
        info C""",
    "configurations that cannot be": "stream\n" + "\n".join(f"consumer C {config}" for config in (
        '{"priority_groups": ["g"]}', '{"priority_timeout": 5000ms}', '{"priority_policy": "overflow"}',
        '{"priority_policy": "overflow", "priority_groups": []}',
        '{"priority_policy": "overflow", "priority_groups": [""]}',
        '{"priority_policy": "overflow", "priority_groups": ["a.b"]}',
        '{"priority_policy": "overflow", "priority_groups": ["aaaaaaaaaaaaaaaaa"]}',
        '{"priority_policy": "overflow", "priority_groups": ["g"], "deliver_subject": "d"}',
        '{"priority_policy": "sometimes", "priority_groups": ["g"]}',
        '{"priority_policy": "overflow", "priority_groups": ["g"], "priority_timeout": 1000ms}',
        '{"priority_policy": "pinned_client", "priority_groups": ["g"], "priority_timeout": -1}',
        '{"priority_policy": "pinned_client", "priority_groups": ["g", "g"]}',
        '{"priority_policy": "prioritized", "priority_groups": ["a/b_c=d-9"]}',
        '{"priority_policy": "none"}')) + "\ninfo C",
    "unpin": _consumer("overflow") + """sub ev $JS.EVENT.ADVISORY.CONSUMER.UNPINNED.>
        api CONSUMER.UNPIN.S.C
        api CONSUMER.UNPIN.S.C {"group": ""}
        api CONSUMER.UNPIN.S.C {"group": "h"}
        api CONSUMER.UNPIN.S.C {"group": "a b"}
        api CONSUMER.UNPIN.S.C {"group": "g"}
        api CONSUMER.UNPIN.S.NONE {"group": "g"}
        api CONSUMER.UNPIN.NONE.C {"group": "g"}
        rest ev""",
    # ---- overflow
    "overflow: min_pending": _OVERFLOW + _pull("a", 10, min_pending=4) + """get a 3
        rest a
        info C
        fill 1 s.more
        get a 1
        rest a
        """ + _pull("b", 1) + """get b 1
        fill 2 s.more
        get a 2
        rest a
        rest b
        info C""",
    "overflow: min_pending not reached": _OVERFLOW + _pull("a", 10, min_pending=7) + """rest a
        info C
        fill 1 s.more
        get a 1
        rest a""",
    "overflow: min_ack_pending": _OVERFLOW + _pull("a", 10, min_ack_pending=2) + "rest a\n" + _pull("b", 1) + """get b 1
        rest a
        """ + _pull("b", 1) + """get b 1
        get a 4
        info C
        ack b 1
        ack b 2
        fill 1 s.more
        get a 1
        rest a""",
    "overflow: acks below min_ack_pending again": _OVERFLOW + _pull("b", 2) + """get b 2
        """ + _pull("a", 10, min_ack_pending=2) + """get a 4
        ack a 1
        ack a 2
        ack a 3
        ack a 4
        ack b 1
        info C
        fill 2 s.more
        rest a""",
    "overflow: either limit": _OVERFLOW + _pull("a", 10, min_pending=100, min_ack_pending=1) + "rest a\n"
        + _pull("b", 1) + "get b 1\nget a 5\ninfo C",
    "overflow: limits of zero and less": _OVERFLOW + _pull("a", 1, min_pending=0) + "get a 1\n"
        + _pull("a", 1, min_pending=-5) + "get a 1\n" + _pull("a", 1, min_ack_pending=-1) + "get a 1",
    "overflow: taking turns": _consumer("overflow", 0) + _pull("a", 10, min_pending=3) + _pull("b", 10)
        + _pull("c", 10) + """fill 5 s.#
        get b 3
        get c 2
        rest a
        info C""",
    "overflow: redelivery": _OVERFLOW + _pull("b", 6) + """get b 6
        """ + _pull("a", 3, min_pending=2) + """rest a
        ack b 1 -NAK
        rest a
        """ + _pull("c", 1, min_pending=1) + """get c 1
        info C""",
    "overflow: without acks": _consumer("overflow", 4, ', "ack_policy": "none"')
        + _pull("a", 10, min_ack_pending=1) + "rest a\n" + _pull("b", 2, min_pending=2) + """get b 2
        rest a
        info C""",
    "overflow: one-shots": _OVERFLOW + _pull("a", 2, min_pending=10, no_wait=True) + """get a 1
        """ + _pull("a", 10, min_pending=3, no_wait=True) + """until a 404
        """ + _pull("a", 2, min_pending=10, expires_ms=200) + """until a 408
        info C""",
    "overflow: bytes": _OVERFLOW + _pull("a", 10, min_pending=3, max_bytes=100) + """until a 409
        """ + _pull("b", 10, max_bytes=1) + """until b 409
        info C""",
    "overflow: heartbeats": _OVERFLOW + _pull("a", 2, min_pending=10, expires_ms=500, idle_heartbeat_ms=200)
        + "until a 408",
    "overflow: max_ack_pending": _consumer("overflow", 6, ', "max_ack_pending": 2')
        + _pull("a", 10, min_pending=1) + """get a 2
        rest a
        ack a 1
        get a 1
        rest a
        info C""",
    # ---- pinned client
    "pinned: the first one is": _PINNED + _pull("a", 2) + """get a 2
        get ev 1
        info C
        """ + _pull("b", 1) + """rest b
        """ + _pull("a", 1) + """rest a
        """ + _pull("c", 1, id="@pin1") + """get c 1
        rest ev
        info C""",
    "pinned: of several that wait": _consumer("pinned_client", 0) + "sub ev $JS.EVENT.ADVISORY.CONSUMER.*.S.C\n"
        + _pull("a", 2) + _pull("b", 2) + """fill 5 s.#
        get a 2
        rest b
        get ev 1
        info C""",
    "pinned: wrong id": _PINNED + _pull("a", 1) + """get a 1
        """ + _pull("b", 1, id="somebody") + """get b 1
        rest b
        info C""",
    "pinned: an id while nobody is": _consumer("pinned_client",
                                               0) + _pull("a", 3, id="somebody", max_bytes=50) + """rest a
        info C
        fill 1 s.a
        get a 1
        rest a
        """ + _pull("b", 1) + """get b 1
        info C""",
    "pinned: unpinned": _PINNED + _pull("a", 1) + """get a 1
        get ev 1
        """ + _pull("b", 2) + """rest b
        api CONSUMER.UNPIN.S.C {"group": "g"}
        get b 2
        get ev 2
        """ + _pull("a", 1, id="@pin1") + """get a 1
        """ + _pull("b", 1, id="@pin2") + """get b 1
        info C
        api CONSUMER.UNPIN.S.C {"group": "g"}
        info C
        get ev 1
        rest ev""",
    "pinned: waiting when unpinned": _PINNED + _pull("a", 6) + """get a 6
        """ + _pull("a", 3, id="@pin1", max_bytes=70) + """api CONSUMER.UNPIN.S.C {"group": "g"}
        info C
        """ + _pull("b", 2) + """fill 2 s.x
        get a 1
        get b 2
        info C""",
    "pinned: timeout": "sub ev $JS.EVENT.ADVISORY.CONSUMER.*.S.C\n"
        + _consumer("pinned_client", 6, ', "priority_timeout": 300ms') + "drop ev\n" + _pull("a", 1) + """get a 1
        get ev 1
        """ + _pull("b", 1) + """get b 1
        get ev 2
        get ev 1
        info C
        """ + _pull("a", 1, id="@pin1") + "rest a",
    "pinned: requests keep it": "sub ev $JS.EVENT.ADVISORY.CONSUMER.*.S.C\n"
        + _consumer("pinned_client", 6, ', "priority_timeout": 600ms') + "drop ev\n" + _pull("a", 1) + "get a 1\n"
        + ("sleep 350ms\n" + _pull("a", 1, id="@pin1") + "get a 1\n") * 3 + """get ev 1
        rest ev
        info C""",
    "pinned: bytes": _PINNED + _pull("a", 3, max_bytes=1) + """get a 1
        """ + _pull("b", 2, max_bytes=120) + """until b 409
        info C""",
    "pinned: redelivery": _PINNED + _pull("a", 2) + """get a 2
        ack a 1 -NAK
        """ + _pull("b", 1) + "rest b\n" + _pull("a", 1, id="@pin1") + """get a 1
        info C""",
    "pinned: with headers": "stream\npub[A: b] s.a one\npub s.a two\n"
        'consumer C {"priority_policy": "pinned_client", "priority_groups": ["g"], "headers_only": true}\n'
        + _pull("a", 2) + """get a 2
        consumer C {"priority_policy": "pinned_client", "priority_groups": ["g"], "headers_only": false}
        pub[A: b; C: d] s.a three
        """ + _pull("a", 1, id="@pin1") + "get a 1",
    "pinned: one-shots and expiry": _PINNED + _pull("a", 1) + "get a 1\n" + _pull("b", 1, no_wait=True) + """get b 1
        """ + _pull("b", 1, no_wait=True, expires_ms=200) + "get b 1\n" + _pull("b", 1, expires_ms=150) + """get b 1
        """ + _pull("a", 20, id="@pin1", no_wait=True) + """until a 404
        info C""",
    "pinned: deleted under it": _PINNED + _pull("a", 1) + "get a 1\n" + _pull("b", 2) + """api CONSUMER.DELETE.S.C
        get b 1""",
    # ---- prioritized
    "prioritized: lowest first": _PRIORITIZED + _pull("a", 2, priority=5) + _pull("b", 2, priority=1) + _pull("c", 2)
        + _pull("d", 2, priority=9) + """fill 7 s.#
        get c 2
        get b 2
        get a 2
        get d 1
        rest d
        info C""",
    "prioritized: equals take turns": _PRIORITIZED + _pull("a", 2, priority=2) + _pull("b", 2, priority=2)
        + _pull("c", 2, priority=2) + _pull("d", 1, priority=3) + """fill 6 s.#
        get a 2
        get b 2
        get c 2
        rest d
        fill 1 s.x
        get d 1""",
    "prioritized: one comes before": _PRIORITIZED + _pull("a", 5, priority=2) + "fill 2 s.#\nget a 2\n"
        + _pull("b", 2, priority=1) + """fill 3 s.#
        get b 2
        get a 1
        rest a""",
    "prioritized: only a number comes last": _PRIORITIZED + "pull C a 2\n" + _pull("b", 2, priority=9) + """fill 3 s.#
        get b 2
        get a 1
        rest a""",
    "prioritized: bytes": _PRIORITIZED + _pull("a", 5, priority=1, max_bytes=100) + _pull("b", 5, priority=1)
        + _pull("c", 5, priority=2) + """fill 6 s.#
        until a 409
        get b 5
        rest c""",
    "prioritized: expiry and inboxes gone": _PRIORITIZED + _pull("a", 5, priority=1, expires_ms=200)
        + _pull("b", 5, priority=2) + _pull("c", 5, priority=3) + """unsub b
        until a 408
        fill 2 s.#
        get c 2
        info C""",
    "prioritized: max_waiting": _consumer("prioritized", 0, ', "max_waiting": 2') + _pull("a", 1, priority=5)
        + _pull("b", 1, priority=6) + _pull("c", 1, priority=0) + """get c 1
        fill 2 s.#
        get a 1
        get b 1""",
    # ---- updates
    "policies change": _consumer(
        "overflow") + """consumer C {"priority_policy": "prioritized", "priority_groups": ["g"]}
        consumer C {"priority_policy": "prioritized", "priority_groups": ["g", "h"]}
        pull C p {"batch": 1, "group": "h", "priority": 1}
        get p 1
        consumer C {"priority_policy": "pinned_client", "priority_groups": ["h"]}
        pull C p {"batch": 1, "group": "h"}
        get p 1
        consumer C {"priority_policy": "pinned_client", "priority_groups": ["h"], "priority_timeout": 7000ms}
        pull C p {"batch": 1, "group": "g"}
        get p 1
        info C""",
}

SHOWS: dict[str, tuple[str, ...]] = {
    "advisory.pinned": ("pinned: unpinned", "pinned: timeout"),
    "api.consumer_unpin": ("unpin", "pinned: unpinned"),
    "consumer.priority_groups": ("several groups", "configurations that cannot be", "requests of no group*",
                                 "policies change"),
    "deliver.overflow": ("overflow: *",),
    "deliver.pinned": ("pinned: *",),
    "deliver.prioritized": ("prioritized: *",),
    "deliver.status_423": ("pinned: wrong id", "pinned: waiting when unpinned"),
}
"""The features that scenarios show, for docs/COMPATIBILITY.md, with names of scenarios (``*`` as in file names)."""
