"""Families of streams that clients use in special ways, each with its own oracle.

    copies       mirrors and sources of other streams             lifetimes    TTLs of messages, delete markers
    batches      atomic and fast-ingest                           counters     totals of increments
    schedules    messages that the stream publishes later

A world has some of these families, or none. The common promises of all streams (messages stay, sequences name one
message, consumers deliver everything) are checked as usual; a family adds its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.sim.streams.record import Publish, StreamRecord

if TYPE_CHECKING:
    from broker.storage.state.stream import StreamState
    from tests.sim.streams.checker import Message
    from tests.sim.streams.client import Client
    from tests.sim.streams.process import Process
    from tests.sim.streams.world import World

__all__ = ["Special"]


class Special:
    """A family in one world.

    Attributes:
        kinds: its streams, all of which its worlds have. stay: streams that nobody deletes.
        kept: streams whose messages nobody removes by name.
    """

    kinds: tuple[str, ...] = ()
    stay: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng

    def record(self, stream_id: int, kind: str, config: dict[str, Any]) -> StreamRecord:
        """Return an empty record of a stream."""
        return StreamRecord(stream_id, kind, config)

    def listen(self, client: Client) -> None:
        """Subscribe to the messages for clients, when a process has begun."""

    def publish(self, record: StreamRecord, client: Client) -> None:
        """Publish to the stream in the family's way."""
        client.publish_run(record)

    def headers(self, record: StreamRecord, message: Publish) -> list[tuple[bytes, bytes]]:
        """Return additional headers for a message of ``Client.publish_run``."""
        return []

    def read(self, record: StreamRecord, message: dict[str, Any]) -> None:
        """Check a message that a client got by MSG.GET. Raises: Lost."""

    def check(self, record: StreamRecord, stream: StreamState, messages: dict[int, Message], now_ns: int) -> None:
        """Compare a fresh reader's stream with the promises of this family. Raises: Lost."""

    async def check_end(self, owner: Process) -> None:
        """Wait for the promised state after the faults. Raises: Lost."""
