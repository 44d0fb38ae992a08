"""Values in records that a replay does not interpret: kept by key, for the layer that wrote them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["update_extra"]


def update_extra(extra: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Replace the values of these keys; None removes a key."""
    for key, value in changes.items():
        if value is None:
            extra.pop(key, None)
        else:
            extra[key] = value
