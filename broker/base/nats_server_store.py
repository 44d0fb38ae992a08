"""Recognises the ``store_dir`` of a nats-server, which jetblock cannot read as a store.

    DIR/jetstream/ACCOUNT/streams/STREAM/meta.inf      DIR is the server's store_dir
    DIR/ACCOUNT/streams/STREAM/meta.inf                DIR is the folder jetstream in it

Source: nats-server, server/jetstream.go (the layout of its directories).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

__all__ = ["NatsServerStore", "find_store_dir"]

_FOLDER = "jetstream"
_STREAM = "meta.inf"
_KEY = "meta.key"


class NatsServerStore(NamedTuple):
    """A nats-server's streams. streams: their names by account. encrypted: whether reading them takes a key."""

    store_dir: Path
    streams: dict[str, list[str]]
    encrypted: bool

    def __str__(self) -> str:
        number = sum(map(len, self.streams.values()))
        first = next(iter(self.streams.values()))[0]
        return (f"{self.store_dir} is the store_dir of a nats-server, with {number} stream{'s' * (number != 1)} "
                f"({first}"
                + (", …)" if number > 1 else ")"))


def find_store_dir(directory: str | os.PathLike[str]) -> NatsServerStore | None:
    """Return the nats-server's store in ``directory``; None if there is none, or one without streams."""
    path = Path(directory).absolute()
    outer = path.parent if path.name == _FOLDER and not (path / _FOLDER).is_dir() else path
    streams: dict[str, list[str]] = {}
    encrypted = False
    for meta in sorted((outer / _FOLDER).glob(f"*/streams/*/{_STREAM}")):
        streams.setdefault(meta.parents[2].name, []).append(meta.parent.name)
        encrypted = encrypted or (meta.parent / _KEY).exists()
    return NatsServerStore(outer, streams, encrypted) if streams else None
