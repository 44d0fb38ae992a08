"""Republishing waits for the commit, and no republished message enters a stream during a decision.

Differential scenarios compare the messages.
"""

from __future__ import annotations

import asyncio

from tests.jetstream.in_process import Inside
from tests.jetstream.stream.world import World, pub, publish


async def test_nothing_is_republished_before_it_is_stored() -> None:
    """The bus gets a message only once its segment is in the store, also with asynchronous PubAcks."""
    world = World()
    for mode in ("default", "async"):
        stream = world.stream(f"S{mode}", republish={"src": ">", "dest": f"{mode}.>"}, persist_mode=mode)
        await world.settle(stream)
        publish(world, stream, pub(b"S.a", b"one"), pub(b"S.a", b"two"))
        assert not any(subject.startswith(mode.encode()) for subject in world.bus.order)
        await world.settle(stream)
        assert world.bus.replies[f"{mode}.S.a".encode()] == [b"one", b"two"]
    await world.close()


async def test_sequences_stay_in_order_where_streams_feed_each_other() -> None:
    """A stream's messages return under another subject to a second stream, which stores each in a turn of its own."""
    async with Inside() as broker:
        await broker.ok("STREAM.CREATE.A",
                        {"name": "A", "subjects": ["a.*"], "republish": {"src": "a.*", "dest": "b.$1"}})
        await broker.ok("STREAM.CREATE.B", {"name": "B", "subjects": ["b.*"]})
        subscription = await broker.client.subscribe("b.*")
        assert await asyncio.gather(*(broker.publish(f"a.{n}", b"%d" % n) for n in range(20))) == [*range(1, 21)]
        received = [await subscription.next_msg() for _ in range(20)]
        assert [int(msg.data) for msg in received] == [*range(20)]
        state = (await broker.ok("STREAM.INFO.B"))["state"]
        assert (state["messages"], state["last_seq"]) == (20, 20)
