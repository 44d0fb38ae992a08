"""The limits of single channels in a file's ``streaming { store_limits { channels { … } } }``.

Source: nats-streaming-server, server/conf.go (parsePerChannelLimits).
"""

from __future__ import annotations

from typing import Any

from broker.config import kinds
from broker.config.reading.findings import Findings, aliases, shown
from broker.config.streaming import LIMIT_KEYS, ChannelLimits
from broker.config.syntax import Value
from broker.protocol.subject import is_valid

__all__ = ["read_channels"]

_KEYS = aliases(*(" ".join((field, *names)) for field, names in LIMIT_KEYS.items()))
_KINDS = {"max_subs": kinds.integer(0), "max_msgs": kinds.integer(0), "max_bytes": kinds.size(0),
          "max_age_ns": kinds.duration_ns(0), "max_inactivity_ns": kinds.duration_ns(0)}


def read_channels(value: Value, found: Findings) -> tuple[tuple[str, ChannelLimits], ...]:
    """Return the limits by channel or pattern, in the order of the file."""
    if not isinstance(value.value, dict):
        found.wrong(value, f"channels must be a block of channels and their limits, not {shown(value)}")
        return ()
    channels = []
    for pattern, block in value.value.items():
        if not is_valid(pattern.encode()):
            found.wrong(block, f'invalid channel name "{pattern}"')
        elif not isinstance(block.value, dict):
            found.wrong(block, f"the limits of channel {pattern} must be a block, not {shown(block)}")
        else:
            limits: dict[str, Any] = {}
            for field, written, inner in found.fields(block, _KEYS):
                limits[field] = found.convert(_KINDS[field], written, inner)
            channels.append((pattern, ChannelLimits(**limits)))
    return tuple(channels)
