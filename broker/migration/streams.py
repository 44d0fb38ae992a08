"""What is moved: streams with their configurations and numbers, and the archives that they come as."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["Numbers", "Origin", "StreamToMove", "in_order", "origins_of"]


@dataclass(frozen=True, slots=True)
class Numbers:
    """How much a stream has. An empty stream's first sequence is the one after its last, as in archives."""

    messages: int = 0
    bytes: int = 0
    first_seq: int = 1
    last_seq: int = 0

    @classmethod
    def of(cls, state: dict[str, Any]) -> Numbers:
        """From the ``state`` of the API."""
        messages, last_seq = int(state.get("messages", 0)), int(state.get("last_seq", 0))
        first_seq = int(state.get("first_seq", 0)) if messages else last_seq + 1
        return cls(messages, int(state.get("bytes", 0)), first_seq, last_seq)

    def to_json(self) -> dict[str, int]:
        return {"messages": self.messages, "bytes": self.bytes, "first_seq": self.first_seq, "last_seq": self.last_seq}


@dataclass(slots=True)
class StreamToMove:
    """``created``, and ``first_ts`` of its first message: as the API shows them; "": not known. ``archive_bytes``: how large its
    archive is; 0: not known. ``unreadable``: why nothing but its name is known; "" as a rule."""

    name: str
    config: dict[str, Any]
    numbers: Numbers
    created: str = ""
    first_ts: str = ""
    archive_bytes: int = 0
    consumers: int = 0
    notes: list[str] = field(default_factory=list)
    unreadable: str = ""


class Origin(Protocol):
    """Where streams come from."""

    shown: str

    async def streams(self) -> list[StreamToMove]:
        """All that there are. Raises: CannotMigrate."""
        ...

    def archive(self, stream: StreamToMove, *, consumers: bool) -> AsyncGenerator[bytes, None]:
        """Raises, when it is read: StreamFailed; CannotMigrate."""
        ...

    async def numbers(self, stream: StreamToMove) -> Numbers:
        """As they are now. Raises: StreamFailed; CannotMigrate."""
        ...

    async def consumers(self, stream: StreamToMove) -> dict[str, dict[str, Any]] | None:
        """What the API says of its consumers now, by name; None: not known. Raises: StreamFailed; CannotMigrate."""
        ...

    async def close(self) -> None: ...


def origins_of(config: dict[str, Any]) -> set[str]:
    """The streams of the same account that a stream mirrors or sources from."""
    upstreams = [config.get("mirror"), *(config.get("sources") or ())]
    return {str(one["name"]) for one in upstreams if isinstance(one, dict) and one.get("name") and not one.get("external")}


def in_order(streams: Sequence[StreamToMove]) -> list[StreamToMove]:
    """Streams before those that they mirror or source from.

    A copy that is older than its origin catches up at the target. One that is newer would take the next messages of its
    origin for messages that it has.
    """
    waiting = {stream.name: stream for stream in sorted(streams, key=lambda stream: stream.name)}
    placed: list[StreamToMove] = []
    while waiting:
        named = set[str]().union(*(origins_of(stream.config) - {name} for name, stream in waiting.items()))
        free = [name for name in waiting if name not in named] or [next(iter(waiting))]
        placed += [waiting.pop(name) for name in free]
    return placed
