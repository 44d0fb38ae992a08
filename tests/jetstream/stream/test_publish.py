"""Publishing into a stream: PubAcks, headers, refusals, in nats-server's order of checks."""

from __future__ import annotations

from tests.jetstream.stream.world import World, everything, pub, publish, read_all


async def test_a_run_is_acknowledged_in_order_and_read_back() -> None:
    """A run of publishes without headers gets one PubAck each, and comes back by gets and by chunks."""
    world = World()
    stream = world.stream()
    replies = publish(world, stream, *(pub(b"S.a", b"%d" % i) for i in range(1, 301)))
    assert stream.last_seq == 300
    assert world.bus.order == []
    await world.settle()
    assert world.bus.order == replies
    assert world.bus.replies[replies[6]] == [b'{"stream":"S","seq":7}']
    expected = [(i, b"S.a", b"%d" % i) for i in range(1, 301)]
    assert await everything(stream) == expected
    assert await read_all(stream) == expected
    assert (stream.first_seq, stream.last_seq, stream.msgs, stream.persisted_seq) == (1, 300, 300, 300)
    await world.close()
