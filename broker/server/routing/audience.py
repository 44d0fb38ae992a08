"""The receivers and non-receivers of a message, with reasons, for message traces.

Source: nats-server, server/client.go (deliverMsg, processMsgResults).
"""

from __future__ import annotations

import random

from broker.server.routing.sublist import Match
from broker.server.routing.subscription import Source, Subscription

__all__ = ["audience"]

_NO_ECHO = "Not delivered because of no echo"
_DENIED = "Not delivered because subscription denies this subject"


def audience(match: Match[Subscription], subject: bytes, source: Source,
             rng: random.Random) -> list[tuple[Subscription, str]]:
    """Return the subscriptions that match the literal ``subject``, each with the reason why it does not receive it.

    The reason is "" for a receiver. Members of a queue group are tried in turn from a random one; those after the first
    receiver are left out.
    """
    found = [(sub, _obstacle(sub, subject, source)) for sub in match.plain]
    for group in match.groups.values():
        first = rng.randrange(len(group))
        for sub in (*group[first:], *group[:first]):
            obstacle = _obstacle(sub, subject, source)
            found.append((sub, obstacle))
            if not obstacle:
                break
    return found


def _obstacle(sub: Subscription, subject: bytes, source: Source) -> str:
    if source.no_echo and sub.peer is source.peer:
        return _NO_ECHO
    return _DENIED if sub.denies is not None and sub.denies(subject) else ""
