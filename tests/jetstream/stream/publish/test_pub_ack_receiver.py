"""Publishes of another protocol: its PubAcks come as calls, and nothing passes the bus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from broker.jetstream.stream.publish.pub_ack_receiver import PubAckReceiver
from broker.jetstream.wire.errors import ApiError
from broker.storage.log.settings import LogSettings
from tests.jetstream.stream.world import World, pub


class Receiver(PubAckReceiver):
    """Records its answers in order."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, Sequence[bytes], int]] = []

    def stored(self, replies: Sequence[bytes], first_seq: int) -> None:
        self.answers.append(("stored", tuple(replies), first_seq))

    def duplicate(self, reply: bytes, seq: int) -> None:
        self.answers.append(("duplicate", (reply,), seq))

    def refused(self, replies: Sequence[bytes], error: ApiError) -> None:
        self.answers.append(("refused", tuple(replies), error.to_json()["err_code"]))


@pytest.mark.parametrize("config", [{}, {"no_ack": True}, {"storage": "memory"}])
async def test_answers_come_in_order_once_they_are_persisted(config: dict[str, Any]) -> None:
    """A run, a single message, a duplicate, a refusal; also from a stream that sends no PubAcks to clients."""
    world, receiver = World(), Receiver()
    stream = world.stream(**config)
    stream.publish_for(receiver, [pub(b"S.a", b"1", reply=b"one"), pub(b"S.a", b"2", reply=b"two")])
    stream.publish_for(receiver, [pub(b"S.a", b"3", reply=b"three", Nats_Msg_Id="x")])
    stream.publish_for(receiver, [pub(b"S.a", b"4", reply=b"four", Nats_Msg_Id="x"),
                                  pub(b"S.a", b"5", reply=b"five", Nats_Expected_Last_Sequence="9"),
                                  pub(b"S.a", b"6", reply=b"six")])
    if stream.config.storage != "memory":
        assert receiver.answers == []
    await world.settle(stream)
    assert receiver.answers == [
        ("stored", (b"one", b"two"), 1), ("stored", (b"three",), 3), ("duplicate", (b"four",), 3),
        ("refused", (b"five",), 10071), ("stored", (b"six",), 4)]
    assert world.bus.order == []
    await world.close()


async def test_counters_are_acknowledged_by_sequence() -> None:
    world, receiver = World(), Receiver()
    stream = world.stream(allow_msg_counter=True)
    stream.publish_for(receiver, [pub(b"S.a", b"", reply=b"one", Nats_Incr="+1")])
    await world.settle(stream)
    assert receiver.answers == [("stored", (b"one",), 1)]
    assert world.bus.order == []
    await world.close()


async def test_publishes_without_room_are_refused_at_once() -> None:
    """More than the queue holds while the log is full, and those queued when the stream ends offline."""
    world, receiver = World(settings=LogSettings(tail_bytes_max=1000)), Receiver()
    stream = world.stream()
    stream.queue.bytes_max = 5000
    body = bytes(2000)
    for reply in (b"one", b"two", b"three", b"four"):
        stream.publish_for(receiver, [pub(b"S.a", body, reply=reply)])
    assert receiver.answers == [("refused", (b"four",), 10167)]
    stream.offline = "gone"
    stream.close()
    assert receiver.answers[1:] == [("refused", (b"two",), 10194), ("refused", (b"three",), 10194)]
    assert world.bus.order == []
    await world.close()
