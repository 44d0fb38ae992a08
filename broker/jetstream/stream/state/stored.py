"""A message as a stream holds it."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["StoredMsg"]


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
