"""Which subjects staged messages may have: those that a message can be published to."""

from __future__ import annotations

from typing import Final

from broker.protocol.subject import is_literal, is_valid

__all__ = ["is_stageable"]

_BYTES_MAX: Final = 1 << 16


def is_stageable(subject: bytes) -> bool:
    """Whether a message can have it. One with a space or a line break would end the protocol's line wherever it is delivered; one
    that is not UTF-8 can be published, and whoever gets it with nats-py gets nothing any more."""
    if len(subject) > _BYTES_MAX or b"\0" in subject or b"\v" in subject or not (is_valid(subject) and is_literal(subject)):
        return False
    return subject.isascii() or _is_text(subject)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
