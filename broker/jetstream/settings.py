"""What an account and the server allow: values from the configuration, and the levels this server speaks."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.jetstream.wire.numbers import signed_decimal
from broker.protocol import headers

__all__ = ["API_LEVEL", "LIST_PAGE", "NAMES_PAGE", "SUBJECTS_PAGE", "AccountLimits", "JetStreamSettings", "ServerLimits",
           "level_refused"]

API_LEVEL = 5
"""JetStream API level of nats-server 2.15: what clients may ask for by ``Nats-Required-Api-Level``."""

_REQUIRED_LEVEL = b"Nats-Required-Api-Level"

NAMES_PAGE = 1024
LIST_PAGE = 256
SUBJECTS_PAGE = 100_000
"""Entries in one page of names, of full infos, and of subject details."""


@dataclass(frozen=True, slots=True)
class AccountLimits:
    """One account's limits, in wire names; bytes and counts, -1 = none (0 for the per-stream bytes and ack pending)."""

    max_memory: int = -1
    max_storage: int = -1
    max_streams: int = -1
    max_consumers: int = -1
    max_ack_pending: int = -1
    memory_max_stream_bytes: int = -1
    storage_max_stream_bytes: int = -1
    max_bytes_required: bool = False

    def to_json(self) -> dict[str, object]:
        """The ``limits`` member of account info."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The whole server's limits: bytes (-1 = none), and a jetstream block's ``limits`` (0 = none)."""

    max_memory: int = -1
    max_storage: int = -1
    max_ack_pending: int = 0
    max_request_batch: int = 0
    duplicate_window_ns: int = 0


@dataclass(frozen=True, slots=True)
class JetStreamSettings:
    """What the configuration says of JetStream, in wire units."""

    server_name: str = "jetblock"
    version: str = "2.15.1"
    domain: str = ""
    strict: bool = True
    account: AccountLimits = field(default_factory=AccountLimits)
    server: ServerLimits = field(default_factory=ServerLimits)
    max_payload: int = 1 << 20
    direct_bytes_max: int = 64 << 20
    """Bytes after which a batched direct get ends (nats-server: max_pending)."""


def level_refused(block: bytes) -> bool:
    """Whether a request's headers ask for a higher API level than this server's, or for what is no number."""
    wanted = headers.get(block, _REQUIRED_LEVEL)
    if not wanted:
        return False
    level = signed_decimal(wanted)
    return level is None or level > API_LEVEL
