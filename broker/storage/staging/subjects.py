"""The subjects that staged messages may have: those that a message can be published to."""

from __future__ import annotations

from typing import Final

from broker.protocol.subject import is_literal, is_valid

__all__ = ["is_stageable"]

_BYTES_MAX: Final = 1 << 16


def is_stageable(subject: bytes) -> bool:
    """Return whether a message can have this subject.

    A subject with a space or a line break would end the protocol's line wherever it is delivered. One that is not UTF-8
    can be published, but a subscriber that uses nats-py receives nothing more after it.
    """
    if (len(subject) > _BYTES_MAX or b"\0" in subject or b"\v" in subject
            or not (is_valid(subject) and is_literal(subject))):
        return False
    return subject.isascii() or _is_text(subject)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
