"""The API level of this server, and its page sizes; configurable settings are in ``config.settings``."""

from __future__ import annotations

from broker import JETSTREAM_API_LEVEL
from broker.jetstream.wire.numbers import signed_decimal
from broker.protocol import headers

__all__ = ["LIST_PAGE", "NAMES_PAGE", "SUBJECTS_PAGE", "level_refused"]

_REQUIRED_LEVEL = b"Nats-Required-Api-Level"

NAMES_PAGE = 1024
LIST_PAGE = 256
SUBJECTS_PAGE = 100_000
"""Entries in one page of names, of full infos, and of subject details."""


def level_refused(block: bytes) -> bool:
    """Return whether a request's headers require a higher API level than this server's, or one that is not a number."""
    wanted = headers.get(block, _REQUIRED_LEVEL)
    if not wanted:
        return False
    level = signed_decimal(wanted)
    return level is None or level > JETSTREAM_API_LEVEL
