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
    def make(cls, server_name: str | None, store_url: str, rng: random.Random) -> Identity:
        """The configured server name, else host name and store. ``rng`` must differ between process runs."""
        return cls(server_name or f"{socket.gethostname()} {store_url}", rng.randbytes(NONCE_BYTES))
