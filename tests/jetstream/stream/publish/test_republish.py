"""Republishing waits for the commit, and takes no publish into a decision. Differential scenarios compare the
messages."""

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
    """A stream's own messages return under another subject, from a second stream: each is stored in its own turn."""
    async with Inside() as broker:
        await broker.ok("STREAM.CREATE.A",
                        {"name": "A", "subjects": ["a.*"], "republish": {"src": "a.*", "dest": "b.$1"}})
        await broker.ok("STREAM.CREATE.B", {"name": "B", "subjects": ["b.*"]})
        heard = await broker.client.subscribe("b.*")
        assert await asyncio.gather(*(broker.publish(f"a.{n}", b"%d" % n) for n in range(20))) == [*range(1, 21)]
        came = [await heard.next_msg() for _ in range(20)]
        assert [int(msg.data) for msg in came] == [*range(20)]
        state = (await broker.ok("STREAM.INFO.B"))["state"]
        assert (state["messages"], state["last_seq"]) == (20, 20)
