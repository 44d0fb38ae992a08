"""The streams to move, with their configurations and numbers, and the interface of their sources."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["ORIGIN_KEY", "Numbers", "Origin", "StreamToMove", "in_order", "origins_of"]

ORIGIN_KEY = "jetblock.migrated_from"
"""The key in a stream's metadata with the identity of its source, if the source keeps no time of creation."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The figures of a stream.

    An empty stream's first sequence is the one after its last, as in archives. If a stream has messages and ``bytes``
    is 0, its bytes are not known.
    """

    messages: int = 0
    bytes: int = 0
    first_seq: int = 1
    last_seq: int = 0

    @classmethod
    def of(cls, state: dict[str, Any]) -> Numbers:
        """Read the figures from the ``state`` of the API."""
        messages, last_seq = int(state.get("messages", 0)), int(state.get("last_seq", 0))
        first_seq = int(state.get("first_seq", 0)) if messages else last_seq + 1
        return cls(messages, int(state.get("bytes", 0)), first_seq, last_seq)

    def to_json(self) -> dict[str, int]:
        return {"messages": self.messages, "bytes": self.bytes, "first_seq": self.first_seq, "last_seq": self.last_seq}


@dataclass(slots=True)
class StreamToMove:
    """A stream at the source."""

    name: str
    config: dict[str, Any]
    numbers: Numbers
    created: str = ""
    """Its time of creation, as the API shows it; "" if it is not known."""
    first_ts: str = ""
    """The time of its first message, as the API shows it; "" if it is not known."""
    archive_bytes: int = 0
    """The size of its archive; 0 if it is not known."""
    consumers: int = 0
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Texts about what cannot be moved as it is now."""
    unreadable: str = ""
    """The reason why only its name is known; "" if the other fields are known, too."""


class Origin(Protocol):
    """A source of streams."""

    shown: str
    """The source's name in texts, without secrets."""

    async def streams(self) -> list[StreamToMove]:
        """List all streams. Raises: CannotMigrate."""
        ...

    def archive(self, stream: StreamToMove, *, consumers: bool) -> AsyncGenerator[bytes, None]:
        """Yield a stream's archive. Raises: StreamFailed; CannotMigrate."""
        ...

    async def numbers(self, stream: StreamToMove) -> Numbers:
        """Return the stream's figures as they are now. Raises: StreamFailed; CannotMigrate."""
        ...

    async def consumers(self, stream: StreamToMove) -> dict[str, dict[str, Any]] | None:
        """Return the API's infos of the stream's consumers by name; None if the source has no API.

        Raises: StreamFailed; CannotMigrate.
        """
        ...

    async def close(self) -> None: ...


def origins_of(config: dict[str, Any]) -> set[str]:
    """Return the names of the streams of the same account that a stream mirrors or sources from."""
    upstreams = [config.get("mirror"), *(config.get("sources") or ())]
    return {str(one["name"]) for one in upstreams
            if isinstance(one, dict) and one.get("name") and not one.get("external")}


def in_order(streams: Sequence[StreamToMove]) -> list[StreamToMove]:
    """Sort streams so that each is moved before the streams that it mirrors or sources from.

    So a mirror or sourcing stream at the target is never newer than its origin there. An older one catches up. A newer
    one would skip the next messages of its origin, as if it had them.
    """
    waiting = {stream.name: stream for stream in sorted(streams, key=lambda stream: stream.name)}
    placed: list[StreamToMove] = []
    while waiting:
        named = set[str]().union(*(origins_of(stream.config) - {name} for name, stream in waiting.items()))
        free = [name for name in waiting if name not in named] or [next(iter(waiting))]
        placed += [waiting.pop(name) for name in free]
    return placed
