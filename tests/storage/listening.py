"""A log listener made of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.storage.log.listener import LogListener

__all__ = ["Listening"]


class Listening(LogListener):
    """``Listening(log_failed=fn)`` calls ``fn`` in place of that method."""

    def __init__(self, **calls: Callable[..., Any]) -> None:
        for name, call in calls.items():
            if not hasattr(LogListener, name):
                raise AttributeError(name)
            setattr(self, name, call)
