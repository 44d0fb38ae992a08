"""A message as a stream holds it."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["StoredMsg", "user_size"]


class StoredMsg(NamedTuple):
    """One stored message; ``body`` is headers (its first ``hlen`` bytes) and payload as published."""

    seq: int
    subject: bytes
    hlen: int
    body: bytes
    time_ns: int

    @property
    def headers(self) -> bytes:
        return self.body[:self.hlen]

    @property
    def payload(self) -> bytes:
        return self.body[self.hlen:]


def user_size(subject: bytes, hlen: int, body: bytes) -> int:
    """What one message adds to its stream's ``bytes``.

    Source: nats-server, server/filestore.go, fileStoreMsgSizeRaw.
    """
    return 30 + len(subject) + len(body) + (4 if hlen else 0)
