"""The configurations of an account's streams, against which a new one is checked.

They are read by name instead of copied, because there may be very many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.jetstream.account.elsewhere import ElsewhereStream
    from broker.jetstream.account.restore import OfflineStream
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.stream import Stream

__all__ = ["Neighbours"]


class Neighbours(Mapping[str, "StreamConfig"]):
    """The configurations by name: of live ``streams``, of ``incoming`` streams, of ``offline`` ones as far as known,
    and of streams ``elsewhere``."""

    def __init__(self, streams: Mapping[str, Stream], incoming: Mapping[str, Stream],
                 offline: Mapping[str, OfflineStream], elsewhere: Mapping[str, ElsewhereStream]) -> None:
        self._streams, self._incoming, self._offline = streams, incoming, offline
        self._elsewhere = elsewhere

    def __getitem__(self, name: str) -> StreamConfig:
        if (gone := self._offline.get(name)) is not None:
            # An offline stream keeps its subjects; the rest of its configuration does not matter.
            from broker.jetstream.config.stream import StreamConfig

            return StreamConfig(name=name, subjects=gone.subjects)
        if (other := self._elsewhere.get(name)) is not None:
            return other.config
        return (self._incoming.get(name) or self._streams[name]).config

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(chain(self._streams, self.hidden(), self._elsewhere)))

    def __len__(self) -> int:
        return len(dict.fromkeys(self))

    def hidden(self) -> Iterator[str]:
        """Yield the names of streams that keep their subjects though nobody can publish to them:
        incoming and offline ones."""
        return chain(self._incoming, self._offline)
