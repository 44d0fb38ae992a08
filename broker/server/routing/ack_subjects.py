"""Subjects of consumers' acks. The acks of one consumer differ in their numbers only, and share a route."""

from __future__ import annotations

from typing import Final

__all__ = ["ACK", "ACK_TOKENS", "reads_acks"]

ACK: Final = b"$JS.ACK."
ACK_TOKENS: Final = 9


def reads_acks(subject: bytes) -> bool:
    """Return whether a subscription distinguishes acks of one consumer, so that they cannot share a route.

    ``$JS.ACK.<stream>.<consumer>.>`` and wider subjects do not distinguish acks. A subject with a word in the place of
    a number matches none.
    """
    if not subject.startswith((b"$JS.", b"*.")):
        return False
    tokens = subject.split(b".")
    if tokens[-1] == b">":
        if len(tokens) <= 5:
            return False
        tokens = tokens[:-1]
    elif len(tokens) != ACK_TOKENS:
        return False
    if len(tokens) > ACK_TOKENS or tokens[0] not in (b"$JS", b"*") or tokens[1] not in (b"ACK", b"*"):
        return False
    return all(token == b"*" or token.isdigit() for token in tokens[4:])
