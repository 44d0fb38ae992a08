"""Who a broker is to the others: a name that its restarts share, and a nonce that only this process run has."""

from __future__ import annotations

import random
import socket
from typing import NamedTuple

from broker.storage.format.header import NONCE_BYTES

__all__ = ["Identity"]


class Identity(NamedTuple):
    """name: a restart under the same one takes over at once. nonce: what says in the store that an object is ours."""

    name: str
    nonce: bytes

    @classmethod
    def make(cls, server_name: str | None, rng: random.Random) -> Identity:
        """The configured server name, else the host's and a part of the nonce: only a name that somebody chose can say
        that two process runs are one broker. ``rng`` must differ between process runs."""
        nonce = rng.randbytes(NONCE_BYTES)
        return cls(server_name or f"{socket.gethostname()} {nonce.hex()[:8]}", nonce)
