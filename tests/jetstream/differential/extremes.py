"""Numbers at the ends of their ranges: durations, windows, TTLs, sequences, as data: see player.py for the steps.

Two kinds are left out: times after the year 2262, where nats-server's numbers wrap around, and sequences above 2^63 -
1.
"""

from __future__ import annotations

import json

__all__ = ["SCENARIOS", "SHOWS"]

_MAX = (1 << 63) - 1
_NUMBERS = (0, -1, 1, 10**8, 10**9, 10**18, 1_900_000_000 * 10**9, _MAX - 10**9, _MAX, _MAX + 1, -_MAX - 1, -_MAX - 2,
            2 * _MAX + 1,
            2 * _MAX + 2)
"""The durations; one of them is longer than Unix time."""

_TTLS = ("0", "-1", "1", "999ms", "1s", "9223372036", "9223372037", "9223372036854775807", "9223372036854775808",
         "9223372036s", "9223372037s", "2562047h", "2562048h", "1e9", "+5", "+5s")

_STREAM_FIELDS = ("max_age", "duplicate_window", "subject_delete_marker_ttl", "max_msgs", "max_msgs_per_subject")

_CONSUMER_FIELDS: dict[str, dict[str, object]] = {
    "ack_wait": {}, "max_deliver": {}, "max_waiting": {}, "max_ack_pending": {}, "max_batch": {}, "max_expires": {},
    "max_bytes": {},
    "inactive_threshold": {}, "idle_heartbeat": {"deliver_subject": "d"}, "rate_limit_bps": {"deliver_subject": "d"},
    "opt_start_seq": {"deliver_policy": "by_start_sequence"},
    "priority_timeout": {"priority_policy": "pinned_client", "priority_groups": ["a"]}}


def _stream(field: str) -> str:
    """Return a stream for each number, with a publish, and two of one id."""
    steps = []
    for i, number in enumerate(_NUMBERS):
        config = {"subjects": [f"x{i}.>"], field: number} | ({"allow_msg_ttl": True} if "ttl" in field else {})
        steps += [f"make X{i} {json.dumps(config)}"]
        if 0 <= number <= _MAX:
            steps += [f"pub x{i}.a 1", f"pub[Nats-Msg-Id: a] x{i}.a 2", f"pub[Nats-Msg-Id: a] x{i}.a 3"]
    return "\n".join(steps)


def _consumer(field: str, more: dict[str, object]) -> str:
    return "\n".join(["stream", "pub s.a 1", "pub s.a 2", *(
        f"consumer C{i} {json.dumps({field: number, **more})}" for i, number in enumerate(_NUMBERS))])


SCENARIOS: dict[str, str] = {
    **{f"streams, {field}": _stream(field) for field in _STREAM_FIELDS},
    **{f"consumers, {field}": _consumer(field, more) for field, more in _CONSUMER_FIELDS.items()},
    "consumers, backoff": "\n".join(["stream", *(
        f'consumer C{i} {{"max_deliver": 3, "backoff": [{number}, {number}]}}' for i, number in enumerate(_NUMBERS))]),
    "TTLs": "\n".join(['stream {"allow_msg_ttl": true}',
                       *(f"pub[Nats-TTL: {ttl}] s.{i} x" for i, ttl in enumerate(_TTLS))]),
    "expected sequences": "\n".join(["stream", *(
        f"pub[{name}: {number}] s.a x" for name in ("Nats-Expected-Last-Sequence",
                                                    "Nats-Expected-Last-Subject-Sequence")
        for number in _NUMBERS)]),
}

SHOWS: dict[str, tuple[str, ...]] = {
    "stream.duplicate_window": ("streams, duplicate_window",),
    "publish.ttl": ("TTLs",),
}
"""The features that scenarios show, for docs/COMPATIBILITY.md, with names of scenarios (``*`` as in file names)."""
