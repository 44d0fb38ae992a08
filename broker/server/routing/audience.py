"""The receivers and non-receivers of a message on this server, with reasons, for message traces.

Source: nats-server, server/client.go (deliverMsg, processMsgResults).
"""

from __future__ import annotations

import random

from broker.server.routing.sublist import Match
from broker.server.routing.subscription import Source, Subscription

__all__ = ["audience"]

_NO_ECHO = "Not delivered because of no echo"
_DENIED = "Not delivered because subscription denies this subject"
_LEAF_DENIED = "Not delivered because publish denied for this subject"


def audience(match: Match[Subscription], subject: bytes, source: Source,
             rng: random.Random) -> list[tuple[Subscription, str]]:
    """Return the subscriptions that match the literal ``subject``, each with the reason why it does not receive it.

    The reason is "" for a receiver. Members of a queue group are tried in turn from a random one; those after the first
    receiver are left out. A leaf is left out unless it may not get the message: it records by itself what it gets.
    """
    found = [(sub, obstacle) for sub in match.plain
             if (obstacle := _obstacle(sub, subject, source)) == _LEAF_DENIED or not _is_leaf(sub)]
    for members in match.groups.values():
        group = [sub for sub in members if not _is_leaf(sub)]
        first = rng.randrange(len(group)) if group else 0
        for sub in (*group[first:], *group[:first]):
            obstacle = _obstacle(sub, subject, source)
            found.append((sub, obstacle))
            if not obstacle:
                break
    return found


def _is_leaf(sub: Subscription) -> bool:
    """Return whether a leaf receives through ``sub`` in this account; not through a stream import."""
    return sub.leaf is not None and sub.original is None


def _obstacle(sub: Subscription, subject: bytes, source: Source) -> str:
    if source.no_echo and sub.peer is source.peer:
        return _NO_ECHO
    if sub.denies is None or not sub.denies(subject):
        return ""
    return _LEAF_DENIED if _is_leaf(sub) else _DENIED
