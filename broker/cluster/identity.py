"""The identity of a broker: a name that its restarts share, and a nonce that only this process run has."""

from __future__ import annotations

import random
import socket
from typing import NamedTuple

from broker.storage.format.header import NONCE_BYTES

__all__ = ["Identity"]


class Identity(NamedTuple):
    """name: a restart under the same name takes over at once. nonce: marks objects in the store as ours."""

    name: str
    nonce: bytes

    @classmethod
    def make(cls, server_name: str | None, rng: random.Random) -> Identity:
        """Make the identity of this process run. ``rng`` must differ between process runs.

        The name is the configured one, or else the host's name and a part of the nonce: only a configured name says
        that two process runs are one broker.
        """
        nonce = rng.randbytes(NONCE_BYTES)
        return cls(server_name or f"{socket.gethostname()} {nonce.hex()[:8]}", nonce)
