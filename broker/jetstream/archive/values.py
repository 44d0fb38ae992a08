"""The contents of an archive: the stream's numbers, its consumers, its messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["END", "ArchivedConsumer", "ArchivedMsg", "ArchivedStream", "End"]


@dataclass(slots=True)
class ArchivedStream:
    """The stream when the snapshot was taken.

    ``first_seq`` is ``last_seq + 1`` if there are no messages. The times are as the API shows them. ``consumers``: the
    number of consumers that follow.
    """

    msgs: int
    bytes: int
    first_seq: int
    last_seq: int
    first_ts: str
    last_ts: str
    consumers: int


@dataclass(slots=True)
class ArchivedConsumer:
    """A consumer: its configuration as the API's JSON, and its state.

    ``delivered`` and ``ack_floor``: consumer sequence, stream sequence.
    ``pending``: stream sequence → consumer sequence and time of the delivery.
    ``redelivered``: stream sequence → deliveries after the first.
    """

    name: str
    config: dict[str, Any]
    delivered: tuple[int, int] = (0, 0)
    ack_floor: tuple[int, int] = (0, 0)
    pending: dict[int, tuple[int, int]] = field(default_factory=dict)
    redelivered: dict[int, int] = field(default_factory=dict)


class ArchivedMsg(NamedTuple):
    """A message; ``body`` begins with ``hlen`` bytes of headers."""

    seq: int
    time_ns: int
    subject: bytes
    hlen: int
    body: bytes


class End:
    """The archive's last entry, which shows that the archive is complete."""

    __slots__ = ()


END = End()
