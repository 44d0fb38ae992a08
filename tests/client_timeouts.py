"""Longer timeouts for nats-py.

By default it gives up on an answer after 0.5 s, on a message or an ack after 1 s, on a connection after 2 s, and on an
answer of JetStream, fetched messages or a watcher's next update after 5 s. A busy machine may be slower. Tests that
expect no message set their own timeout.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.client import JetStreamContext
from nats.js.kv import KeyValue
from nats.js.object_store import ObjectStore

__all__ = ["lengthen_timeouts"]

SECONDS = 30.0
METHODS: dict[Callable[..., Any], str] = {
    Client.connect: "connect_timeout", Client.request: "timeout", Client.flush: "timeout",
    Subscription.next_msg: "timeout",
    Msg.ack_sync: "timeout", JetStreamContext.__init__: "timeout",
    JetStreamContext.PushSubscription.next_msg: "timeout",
    JetStreamContext.PullSubscription.fetch: "timeout", KeyValue.KeyWatcher.updates: "timeout",
    ObjectStore.ObjectWatcher.updates: "timeout"}
"""The methods, each with the parameter of its timeout."""


def lengthen_timeouts() -> None:
    """Change the defaults of these parameters, in this process."""
    for method, name in METHODS.items():
        with_default = [one for one in inspect.signature(method).parameters.values() if one.default is not one.empty]
        assert any(one.name == name for one in with_default), method
        method.__defaults__ = tuple(  # type: ignore[attr-defined]
            SECONDS if one.name == name else one.default for one in with_default)
