"""The errors of NATS Streaming, with the texts of nats-streaming-server: clients compare them.

Source: nats-streaming-server, server/server.go (the ``Err`` variables) and stores/store.go.
"""

from __future__ import annotations

__all__ = ["StanError", "StanErrors"]


class StanError(Exception):
    """An error that a client gets as text; ``str()`` is the text."""


class StanErrors:
    """The texts."""

    ACK_WAIT = "stan: invalid ack wait time, should be >= 1s"
    CHANNEL_BEING_DELETED = "stan: channel is being deleted"
    CHANNEL_UNKNOWN = "stan: unknown channel"
    CLIENT_ID = "stan: invalid clientID: only alphanumeric and `-` or `_` characters allowed"
    CLIENT_IN_USE = "stan: clientID already registered"
    CLIENT_MISSING = "stan: clientID missing"
    CLIENT_REPLACED = "client has been replaced or is no longer registered"
    CLIENT_UNKNOWN = "stan: unknown clientID"
    CLOSE_REQUEST = "stan: invalid close request"
    CONNECT_REQUEST = "stan: invalid connection request"
    DUPLICATE_DURABLE = "stan: duplicate durable registration"
    DURABLE_NAME = "stan: durable name of a durable queue subscriber can't contain the character ':'"
    MAX_IN_FLIGHT = "stan: invalid MaxInflight, should be >= 1"
    PUBLISH_REQUEST = "stan: invalid publish request"
    START_POSITION = "stan: invalid start position"
    SUBJECT = "stan: invalid subject"
    SUBSCRIBE_REQUEST = "stan: invalid subscription request"
    SUBSCRIPTION = "stan: invalid subscription"
    TOO_MANY_CHANNELS = "too many channels"
    TOO_MANY_SUBSCRIPTIONS = "too many subscriptions per channel"
    UNSUBSCRIBE_REQUEST = "stan: invalid unsubscribe request"
