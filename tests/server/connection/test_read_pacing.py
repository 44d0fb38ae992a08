"""The pace of reading: which bytes are served in which turn of the loop, and when the transport stops reading."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from broker.protocol.parser import Parser
from broker.server.connection.read_pacing import ReadPacing

KIB = 1024


class Transport(asyncio.ReadTransport):
    """A transport that records when reading stops and goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")


class Reader:
    """A connection's reading side: a parser, and the messages that it returned, with the turn of each."""

    def __init__(self) -> None:
        self.transport = Transport()
        self.parser = Parser()
        self.turn = 0
        self.messages: list[tuple[int, int]] = []
        """The turn and the size of each message."""

        self.on_message: Callable[[], None] = lambda: None
        self.pacing = ReadPacing(asyncio.get_running_loop(), self.transport, self.serve, lambda: self.parser.missing)

    def serve(self, data: bytes) -> None:
        for _, _, _, body in self.parser.feed(data):
            self.messages.append((self.turn, len(body)))
            self.on_message()

    async def turns(self, count: int = 20) -> None:
        for _ in range(count):
            await asyncio.sleep(0)
            self.turn += 1


def pub(size: int) -> bytes:
    return b"PUB a %d\r\n%b\r\n" % (size, bytes(size))


async def test_large_messages_of_one_read_are_served_in_one_turn() -> None:
    """Shows that a read that ends with a message, or in the middle of one, serves all of it, and nothing is paused."""
    reader = Reader()
    data = pub(100 * KIB) + pub(90 * KIB) + pub(120 * KIB)
    reader.pacing.receive(data[:250 * KIB])
    assert reader.messages == [(0, 100 * KIB), (0, 90 * KIB)]
    reader.pacing.receive(data[250 * KIB:])
    assert reader.messages == [(0, 100 * KIB), (0, 90 * KIB), (0, 120 * KIB)]
    assert reader.transport.calls == []
    assert reader.parser.idle


async def test_small_messages_are_served_in_slices() -> None:
    """Shows that 200 KiB of small messages, also after a large one, take several turns, during which reading stops."""
    reader = Reader()
    reader.pacing.receive(pub(100 * KIB) + pub(100) * 2000)
    assert reader.messages[0] == (0, 100 * KIB)
    assert 1 < len(reader.messages) < 700
    assert reader.transport.calls == ["pause"]
    await reader.turns()
    assert len(reader.messages) == 2001
    assert max(turn for turn, _ in reader.messages) >= 4
    assert reader.transport.calls == ["pause", "resume"]


@pytest.mark.parametrize("size", [100 * KIB, 100])
async def test_a_hold_during_a_read_lasts(size: int) -> None:
    """Shows that a message can hold the connection: nothing more is served or read until it is released."""
    reader = Reader()
    reader.on_message = reader.pacing.hold
    reader.pacing.receive(pub(size) * (300 * KIB // size))
    assert reader.transport.calls == ["pause"]
    held = len(reader.messages)
    await reader.turns()
    assert len(reader.messages) == held
    reader.on_message = lambda: None
    for _ in range(held):
        reader.pacing.release()
    await reader.turns()
    assert len(reader.messages) == 300 * KIB // size
    assert reader.transport.calls == ["pause", "resume"]


async def test_a_hold_that_ends_within_the_read_stops_nothing() -> None:
    """Shows that reading neither stops nor goes on if a message's hold is released at once."""
    reader = Reader()

    def briefly() -> None:
        reader.pacing.hold()
        reader.pacing.release()

    reader.on_message = briefly
    reader.pacing.receive(pub(100 * KIB) * 2)
    await reader.turns()
    assert len(reader.messages) == 2
    assert reader.transport.calls == []
