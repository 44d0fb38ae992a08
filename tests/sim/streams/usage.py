"""Kinds of streams and consumers: configurations, subjects, headers.

    plain     ids, expected sequences                  kv       a bucket: newest by subject, roll-ups, revisions
    object    a bucket: chunks purged by subject,      limited  max_msgs with max_msgs_per_subject
              roll-ups of the head                     bytes    max_bytes
    full      discards new                             aged     max_age
    async     answers before the store has it          memory   leaves nothing in the store
    edge      sequences near 2^63                      audit    keeps the broker's own advisories
    echo      publishers wait for their PubAcks on a subject of the stream itself
    queue     a work queue                           interest  keeps what its consumers wait for

Kinds of families with their own oracles (``special``):

    origin, other, mirror, sum    see ``copies``           ttl, marked     see ``lifetimes``
    atomic, fast                  see ``batches``          counter         see ``counters``
    schedule                      see ``schedules``
"""

from __future__ import annotations

import random
from typing import Any

__all__ = ["CONSUMERS", "MOVING", "STREAMS", "UPDATES", "USUAL", "one_subject", "subject_of"]

SECOND = 1_000_000_000
HOUR = 3600 * SECOND

STREAMS: dict[str, dict[str, Any]] = {
    "plain": {"subjects": ["plain.>"], "duplicate_window": HOUR},
    "kv": {"subjects": ["$KV.kv.>"], "max_msgs_per_subject": 2, "allow_rollup_hdrs": True, "deny_delete": True,
           "allow_direct": True, "discard": "new", "duplicate_window": HOUR},
    "object": {"subjects": ["$O.object.C.>", "$O.object.M.>"], "allow_rollup_hdrs": True, "allow_direct": True,
               "discard": "new", "duplicate_window": HOUR},
    "limited": {"subjects": ["limited.>"], "max_msgs": 30, "max_msgs_per_subject": 5, "duplicate_window": HOUR},
    "bytes": {"subjects": ["bytes.>"], "max_bytes": 1500},
    "full": {"subjects": ["full.>"], "max_msgs": 25, "discard": "new"},
    "aged": {"subjects": ["aged.>"], "max_age": 20 * SECOND, "duplicate_window": 10 * SECOND},
    "async": {"subjects": ["async.>"], "persist_mode": "async", "duplicate_window": HOUR},
    "memory": {"subjects": ["memory.>"], "storage": "memory", "max_msgs": 40},
    "edge": {"subjects": ["edge.>"], "first_seq": (1 << 63) - 200},
    "audit": {"subjects": ["$JS.EVENT.ADVISORY.>"], "max_msgs": 60},
    "echo": {"subjects": ["echo.>"], "duplicate_window": HOUR},
    "queue": {"subjects": ["queue.>"], "retention": "workqueue"},
    "interest": {"subjects": ["interest.>"], "retention": "interest"},
    "origin": {"subjects": ["origin.>"], "max_msgs_per_subject": 30},
    "other": {"subjects": ["other.>"]},
    "mirror": {"mirror": {"name": "origin"}},
    "sum": {"subjects": ["sum.>"], "sources": [{"name": "origin"}, {"name": "other", "filter_subject": "other.1"}]},
    "ttl": {"subjects": ["ttl.>"], "allow_msg_ttl": True, "allow_direct": True},
    "marked": {"subjects": ["marked.>"], "allow_msg_ttl": True, "max_msgs_per_subject": 1,
               "subject_delete_marker_ttl": HOUR},
    "atomic": {"subjects": ["atomic.>"], "allow_atomic": True},
    "fast": {"subjects": ["fast.>"], "allow_batched": True},
    "counter": {"subjects": ["counter.>"], "allow_msg_counter": True},
    "schedule": {"subjects": ["schedule.>"], "allow_msg_schedules": True},
}
"""Configuration by kind; a stream has its kind's name."""

USUAL = tuple(list(STREAMS)[:12])
"""The kinds that any world may have; the others are in special worlds."""

MOVING = frozenset(("audit", "aged", "ttl", "marked", "schedule", "mirror", "sum"))
"""Kinds whose messages come and go without clients."""

UPDATES: dict[str, list[dict[str, Any]]] = {
    "plain": [{"max_msgs": 40}, {"description": "x"}, {"max_msgs_per_subject": 3}],
    "kv": [{"max_msgs_per_subject": 1}, {"max_msgs_per_subject": 4}],
    "limited": [{"max_msgs": 10}, {"max_msgs_per_subject": 1}, {"max_msgs": 50, "max_msgs_per_subject": 8}],
    "bytes": [{"max_bytes": 600}, {"max_bytes": 3000}],
    "full": [{"max_msgs": 40}, {"discard": "old", "max_msgs": 15}],
    "aged": [{"max_age": 5 * SECOND}, {"max_age": 0}],
    "async": [{"max_msgs": 60}],
    "origin": [{"max_msgs": 40}, {"max_msgs_per_subject": 2}],
    "atomic": [{"max_msgs": 40}],
}
"""Changes by an update, by kind."""

CONSUMERS: dict[str, dict[str, Any]] = {
    "explicit": {"ack_policy": "explicit", "ack_wait": 3 * SECOND},
    "few": {"ack_policy": "explicit", "ack_wait": 2 * SECOND, "max_ack_pending": 5},
    "one": {"ack_policy": "explicit", "ack_wait": 3 * SECOND, "filtered": True},
    "all": {"ack_policy": "all", "ack_wait": 3 * SECOND},
    "none": {"ack_policy": "none"},
    "backoff": {"ack_policy": "explicit", "backoff": [SECOND, 2 * SECOND], "max_deliver": 3},
    "push": {"ack_policy": "explicit", "ack_wait": 3 * SECOND, "deliver_subject": "_P.{stream}"},
    "newest": {"ack_policy": "explicit", "ack_wait": 3 * SECOND, "deliver_policy": "last_per_subject", "wild": True},
}
"""Durable consumers, by name. ``filtered``: on one subject of its stream; ``wild``: last_per_subject needs a filter."""


def subject_of(kind: str, rng: random.Random) -> str:
    """Return a subject for a stream of ``kind``, of few, so that each has many messages."""
    number = rng.randint(1, 4)
    if kind == "object" and rng.random() < 0.7:
        return f"$O.object.C.n{number}"
    return _subject(kind, number)


def one_subject(kind: str) -> str:
    """Return the same subject of ``kind`` each time."""
    return _subject(kind, 1)


def _subject(kind: str, number: int) -> str:
    if kind == "mirror":
        kind = "origin"
    if kind == "schedule":
        return f"schedule.t.{number}"
    if kind == "kv":
        return f"$KV.kv.k{number}"
    if kind == "object":
        return f"$O.object.M.o{number}"
    return f"{kind}.{number}"
