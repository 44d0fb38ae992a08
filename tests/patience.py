"""nats-py's own patience, longer: by default it gives up on an answer after 0.5 s, on a message or an ack after 1 s.

A busy machine is that late now and then. Tests that expect silence name their own time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.client import JetStreamContext

__all__ = ["lengthen_patience"]

SECONDS = 10.0
METHODS: tuple[Callable[..., Any], ...] = (
    Client.request, Subscription.next_msg, JetStreamContext.PushSubscription.next_msg, Msg.ack_sync)


def lengthen_patience() -> None:
    """Change the default of ``timeout`` of these methods, in this process."""
    for method in METHODS:
        with_default = [one for one in inspect.signature(method).parameters.values() if one.default is not one.empty]
        assert any(one.name == "timeout" for one in with_default), method
        method.__defaults__ = tuple(  # type: ignore[attr-defined]
            SECONDS if one.name == "timeout" else one.default for one in with_default)
