"""The numbers of the kinds of records."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["RecordKind"]


class RecordKind(IntEnum):
    """The kind of a record. Numbers are permanent and never reused."""

    STREAM_CREATE = 1
    STREAM_UPDATE = 2
    STREAM_DELETE = 3
    CONSUMER_CREATE = 4
    CONSUMER_UPDATE = 5
    CONSUMER_DELETE = 6
    CONSUMER_STATE = 7
    MESSAGE_IDS = 8
    CEILING = 9
    RELEASE = 10
    OPENING = 11
    EXPIRY = 12
    SCHEDULE = 13
    ADOPTION = 14
    APPEND = 15
    COMMITS = 16
    CATALOGUE = 17
    DEPARTURE = 18
    ARRIVAL = 19
    REMAINS = 20
