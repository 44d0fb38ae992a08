"""Which subjects staged messages may have: those that a message can be published to."""

from __future__ import annotations

from typing import Final

from broker.protocol.subject import is_literal, is_valid

__all__ = ["is_stageable"]

_BYTES_MAX: Final = 1 << 16


def is_stageable(subject: bytes) -> bool:
    """Whether a message can have it. One with a space or a line break would end the protocol's line wherever it is delivered."""
    return len(subject) <= _BYTES_MAX and b"\0" not in subject and is_valid(subject) and is_literal(subject)
