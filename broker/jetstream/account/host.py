"""What an account asks of the JetStream that it belongs to, and of a log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from broker.jetstream.stream.listeners import Listener
from broker.jetstream.stream.stream import Stream

if TYPE_CHECKING:
    from broker.jetstream.bus import Bus
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.usage import ServerUsage, Usage
    from broker.storage.log.owner import BlockOwner
    from broker.storage.log.writer import OpenBlock
    from broker.storage.state.applied import ShardState
    from broker.storage.state.stream import StreamState

__all__ = ["Host", "StreamLog"]


class StreamLog(Protocol):
    """What is asked of a log here: storage.log.Log or storage.memory_log.MemoryLog."""

    @property
    def state(self) -> ShardState: ...
    @property
    def waiting_bytes(self) -> int: ...
    @property
    def tail_bytes_max(self) -> int: ...
    def block(self, owner: BlockOwner) -> OpenBlock[Any]: ...
    def urgent(self) -> None: ...
    def barrier(self, owner: BlockOwner | None = None) -> None: ...
    def wait(self, fn: Callable[..., object], *args: Any, of: BlockOwner | None = None) -> None: ...


class Host(Protocol):
    """What an account asks of the JetStream that it belongs to."""

    server_name: str
    direct_bytes_max: int
    """Bytes after which a batched direct get ends."""

    @property
    def available(self) -> bool:
        """Whether the shard is ours and our proof of it is fresh."""

    @property
    def log(self) -> StreamLog: ...

    @property
    def failed_streams(self) -> dict[int, str]:
        """Streams of which nothing more can be stored until the next start, by id, and why: accounts add to them."""

    def server_usage(self, storage: str) -> ServerUsage:
        """The bytes of all streams of a storage kind."""

    def reserved(self, storage: str, *, except_stream: Stream | None = None) -> int:
        """The max_bytes of all streams of a storage kind, of all accounts, but one."""

    def make_stream(self, account: str, bus: Bus, config: StreamConfig, state: StreamState | None = None, *,
                    listeners: Mapping[str, Listener], usage: Usage) -> Stream:
        """A live stream: a new one, or one as its persisted blocks left it."""
