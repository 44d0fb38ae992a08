"""The parts of JetStream that an account uses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

from broker.jetstream.account.external import ExternalFollowers
from broker.jetstream.stream.shared.listeners import Listener
from broker.jetstream.stream.stream import Stream

if TYPE_CHECKING:
    from broker.jetstream.account.leafs import Leafs
    from broker.jetstream.bus import Bus, Subscription
    from broker.jetstream.config.consumer import ConsumerConfig
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.consumer.delivery.receiver import Receiver
    from broker.jetstream.stream.upstream.link import Remote
    from broker.jetstream.usage import ServerUsage, Usage
    from broker.storage.erasure.eraser import Eraser
    from broker.storage.format.records.catalogue import CatalogueEntry
    from broker.storage.format.records.stream_create import StreamCreate
    from broker.storage.format.request import Version
    from broker.storage.log.stream_log import StreamLog
    from broker.storage.staging.answers import Answer
    from broker.storage.state.stream import StreamState

__all__ = ["Host"]


class ShardStreams(Protocol):
    """The parts of a shard that an account uses."""

    failed_streams: dict[int, str]
    """The streams that cannot store anything until the next start, by id, with the reason."""

    eraser: Eraser | None
    """None until the shard's streams serve."""

    @property
    def log(self) -> StreamLog: ...


class Catalogue(Protocol):
    """The parts of the catalogue that an account uses. An operation returns None if it is done, otherwise a future."""

    def place(self, config: StreamConfig) -> int:
        """Return the number of the shard for a new stream. Raises: ApiError 10052."""

    def check_update(self, stream: Stream, config: StreamConfig) -> None:
        """Refuse an update that names another shard than the stream's. Raises: ApiError 10052."""

    async def move_updated(self, stream: Stream, before: StreamConfig) -> None:
        """Move a stream whose update changed the shard that its metadata names. Raises: ApiError."""

    def create(self, stream: Stream, record: StreamCreate) -> asyncio.Future[None] | None:
        """Store the first record of a new stream."""

    def update(self, stream: Stream, config: StreamConfig) -> asyncio.Future[None] | None:
        """Store an update of a stream to ``config``."""

    def deleting(self, stream: Stream) -> AbstractAsyncContextManager[None]:
        """Enter the body, which deletes the stream, once the stream may be disconnected. Raises: ApiError."""

    def is_elsewhere(self, shard: int) -> bool:
        """Return whether another broker owns a shard."""

    def create_elsewhere(self, account: str, config: StreamConfig, shard: int, now_ns: int,
                         ) -> tuple[CatalogueEntry, asyncio.Future[None]]:
        """Let another broker create a stream. Returns: its entry, and a future that is done once it is persisted."""

    async def shown(self, entry: CatalogueEntry) -> dict[str, Any]:
        """Return the info of a stream in another broker's shard, once it serves. Raises: ApiError."""

    async def infos(self, account: str, names: Iterable[tuple[str, int]]) -> dict[str, dict[str, Any]]:
        """Return the infos of streams in other brokers' shards that come in time, by name."""

    async def usages(self, account: str) -> list[dict[str, int]]:
        """Return what an account uses in the shards of other brokers."""

    def delete(self, stream_id: int, log: StreamLog, delete: Callable[[], object]) -> asyncio.Future[None] | None:
        """Call ``delete``, which adds the delete record of a stream to its ``log``."""


class Host(Protocol):
    """The parts of JetStream that an account uses."""

    server_name: str
    direct_bytes_max: int
    """The bytes after which a batched direct get ends."""

    @property
    def available(self) -> bool:
        """True if this broker owns a shard and the proof of it is fresh."""

    def serves(self, stream: Stream | None) -> bool:
        """Return whether requests about a stream may be answered, or, for None, those about the account."""

    @property
    def leads(self) -> bool:
        """True if this broker knows all streams of the store."""

    @property
    def subscribe_api(self) -> Callable[[str], Callable[[str], list[Subscription]]] | None:
        """Return, for an account's name, the function that subscribes to the requests about one stream; None: this
        broker owns all shards, and gets all requests."""

    @property
    def stuck(self) -> bool:
        """True if a shard's log stores nothing, or too many calls wait for it."""

    def wait(self, fn: Callable[..., object], *args: Any) -> None:
        """Call ``fn(*args)`` once everything sequenced so far in all shards is persisted."""

    @property
    def catalogue(self) -> Catalogue:
        """The streams of other shards than 0: each creation, update and deletion goes through it."""

    @property
    def log(self) -> StreamLog:
        """The log of the first shard, whose owner answers the requests that are about no stream."""

    def shard_of(self, account: str, name: str) -> ShardStreams:
        """Return the shard of a stored stream; for any other name, the first shard."""

    def stream_failed(self, stream: Stream, reason: str) -> None:
        """Remember until the shard's next start that ``stream`` cannot store anything, and why."""

    def server_usage(self, storage: str) -> ServerUsage:
        """Return the bytes of all streams of a storage kind."""

    def reserved(self, storage: str, *, except_stream: Stream | None = None) -> int:
        """Return the total max_bytes of all accounts' streams of a storage kind, except one stream."""

    @property
    def external(self) -> ExternalFollowers:
        """The mirrors and sources of all accounts that read streams of other accounts."""

    def stream(self, account: str, name: str) -> Stream:
        """Return the live stream of an account. Raises: ApiError, as that account's API answers."""

    def upstream(self, account: str, api: str) -> Remote | None:
        """Return the way to an upstream of the account that answers below ``api``; None if there is none.

        Raises: ConnectionError: it is not connected now.
        """

    @property
    def leafs(self) -> Leafs | None:
        """The leaf nodes of the server; None if it has none."""

    def receiver_of(self, stream: Stream, config: ConsumerConfig) -> Receiver | None:
        """Return the receiver of a consumer that serves another protocol than JetStream's; None for all others."""

    async def carry_out(self, request_id: int, stream: Stream, version: Version | None) -> Answer:
        """Answer a request in the shard's inbox now. Raises: ApiError; StoreError."""

    def make_stream(self, account: str, bus: Bus, config: StreamConfig, state: StreamState | None = None,
                    created_ns: int | None = None, *, listeners: Mapping[str, Listener], usage: Usage,
                    shard: int = 0, stream_id: int | None = None) -> Stream:
        """Make a live stream: a new one in ``shard``, created at ``created_ns`` or now, or one restored from its
        persisted state. ``stream_id`` is a new stream's incarnation; None: a random one."""
