"""A consumer for another protocol than JetStream's: with a receiver of its own, and acks by sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.jetstream.consumer.fakes import SECOND, World


class Watch:
    """The interest of a ``FakeReceiver``."""

    def __init__(self, interested: bool, changed: Callable[[bool], None]) -> None:
        self.interested = interested
        self.changed = changed
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeReceiver:
    """A receiver that records (sequence, payload, deliveries), up to ``room`` messages at once."""

    def __init__(self, *, interested: bool = True, room: int = 1000) -> None:
        self.interested = interested
        self.room = room
        self.unsent = 0
        self.got: list[tuple[int, bytes, int]] = []
        self.controls: list[bytes] = []
        self.watches: list[Watch] = []

    def watch(self, changed: Callable[[bool], None]) -> Watch:
        self.watches.append(Watch(self.interested, changed))
        return self.watches[-1]

    def pending_bytes(self) -> int:
        return self.unsent

    def deliver(self, batch: Any) -> int:
        count = min(len(batch), self.room)
        self.got += list(zip(batch.stream_seqs, batch.bodies, batch.delivered, strict=True))[:count]
        return count

    def control(self, reply: bytes, text: bytes) -> None:
        self.controls.append(text)


def test_a_receiver_gets_messages_in_order_and_acks_by_sequence() -> None:
    """Shows that neither deliveries nor acks pass the bus."""
    world, receiver = World(), FakeReceiver()
    world.stream.add("a", "b", "c")
    consumer = world.consumer(receiver=receiver)
    world.loop.settle()
    assert receiver.got == [(1, b"m1", 1), (2, b"m2", 1), (3, b"m3", 1)]
    consumer.ack([1, 3])
    assert list(consumer.acks.pending) == [2]
    assert consumer.acks.floor_sseq == 1
    assert world.stream.acknowledged == [1, 3]
    assert world.bus.pop_sent() == []


def test_acks_by_sequence_join_the_next_commit() -> None:
    """The journal has the acks before the calls that wait for a later commit. A commit is begun only if asked for, and
    if an ack has changed anything."""
    world, receiver = World(), FakeReceiver()
    world.stream.add("a", "b")
    consumer = world.consumer(receiver=receiver)
    world.loop.settle()
    log = world.stream.log
    consumer.ack([1])
    assert log.asked == ["block"]
    consumer.commit_acks()
    assert log.asked == ["block", "block", "urgent"]
    consumer.pop_delta()
    consumer.ack([])
    consumer.commit_acks()
    assert log.asked == ["block", "block", "urgent"]


def test_what_is_not_acked_is_delivered_again() -> None:
    """Shows a redelivery after ack_wait, with its count;
    an ack of a message that was never delivered changes nothing."""
    world, receiver = World(), FakeReceiver()
    world.stream.add("a", "b")
    consumer = world.consumer(receiver=receiver, ack_wait=5 * SECOND)
    world.loop.settle()
    consumer.ack([2, 77, 0])
    consumer.ack([])
    world.pass_time(6 * SECOND)
    assert receiver.got[2:] == [(1, b"m1", 2)]


def test_an_ack_of_all_acks_everything_below() -> None:
    """Shows that the caller names only the stream sequence, with the policy all."""
    world, receiver = World(), FakeReceiver()
    world.stream.add("a", "b", "c")
    consumer = world.consumer(receiver=receiver, ack_policy="all")
    world.loop.settle()
    consumer.ack([2])
    assert list(consumer.acks.pending) == [3]
    assert (consumer.acks.floor_sseq, consumer.acks.floor_cseq) == (2, 2)


def test_a_full_or_absent_receiver_holds_delivery_back() -> None:
    """Shows that nothing is delivered before it wants messages; messages that it does not accept come again,
    in order."""
    world, receiver = World(), FakeReceiver(interested=False, room=1)
    world.stream.add("a", "b", "c")
    consumer = world.consumer(receiver=receiver)
    world.loop.settle()
    assert receiver.got == []
    receiver.watches[-1].changed(True)
    world.pass_time(SECOND)
    assert [seq for seq, _, _ in receiver.got] == [1, 2, 3]
    receiver.unsent = 1 << 30
    world.stream.add("d")
    world.loop.settle()
    assert len(receiver.got) == 3
    receiver.unsent = 0
    world.pass_time(SECOND)
    assert receiver.got[3:] == [(4, b"m4", 1)]
    consumer.stop()
    assert receiver.watches[-1].cancelled


def test_heartbeats_go_to_the_receiver() -> None:
    """Shows heartbeats with the last sequences in their headers."""
    world, receiver = World(), FakeReceiver()
    world.consumer(receiver=receiver, idle_heartbeat=SECOND)
    world.pass_time(3 * SECOND)
    assert len(receiver.controls) >= 2
    assert all(b"Idle Heartbeat" in text for text in receiver.controls)
