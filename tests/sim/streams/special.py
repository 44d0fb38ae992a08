"""Streams that clients use in ways of their own, each family with an oracle of its own.

    copies       mirrors and sources of other streams             lifetimes    TTLs of messages, delete markers
    batches      atomic and fast-ingest                           counters     totals of increments
    schedules    messages that the stream publishes later

A world has some of these families, or none. What is common to all streams (messages stay, sequences name one message,
consumers deliver everything) is judged as ever; a family adds what else it promises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.sim.streams.record import Publish, StreamRecord

if TYPE_CHECKING:
    from broker.storage.state.stream import StreamState
    from tests.sim.streams.client import Client
    from tests.sim.streams.judge import Message
    from tests.sim.streams.process import Process
    from tests.sim.streams.world import World

__all__ = ["Special"]


class Special:
    """One family in one world.

    Attributes:
        kinds: its streams, all of which its worlds have. stay: those that nobody deletes.
        kept: those whose messages nobody removes by name.
    """

    kinds: tuple[str, ...] = ()
    stay: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng

    def record(self, stream_id: int, kind: str, config: dict[str, Any]) -> StreamRecord:
        """What clients know of a stream."""
        return StreamRecord(stream_id, kind, config)

    def listen(self, client: Client) -> None:
        """A process has begun: subscribe to what clients are sent."""

    def publish(self, record: StreamRecord, client: Client) -> None:
        """Publish something to the stream."""
        client.publish_run(record)

    def headers(self, record: StreamRecord, message: Publish) -> list[tuple[bytes, bytes]]:
        """Headers of a message of ``Client.publish_run``."""
        return []

    def read(self, record: StreamRecord, message: dict[str, Any]) -> None:
        """A client got a message by MSG.GET. Raises: Lost."""

    def judge(self, record: StreamRecord, stream: StreamState, messages: dict[int, Message], now_ns: int) -> None:
        """Compare a fresh reader's stream with what this family promises. Raises: Lost."""

    async def settled(self, owner: Process) -> None:
        """Wait for what must come true in the end. Raises: Lost."""
