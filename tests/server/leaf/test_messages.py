"""Messages over a leaf connection, between stock clients of both servers, in each combination of servers."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from tests.server.leaf.servers import connect, crossed, pair

pytestmark = pytest.mark.shows("cluster.leaf_spoke")

COMBINATIONS = [("nats-server", "nats-server"), ("nats-server", "jetblock"), ("jetblock", "nats-server"),
                ("jetblock", "jetblock")]


@pytest.mark.parametrize(("hub", "spoke"), COMBINATIONS)
async def test_messages_cross_in_both_directions(tmp_path: Path, hub: str, spoke: str) -> None:
    """Publishes, requests, headers and "no responders" cross; each message arrives once."""
    async with pair(tmp_path, hub, spoke) as servers:
        ends = await connect(servers.hub), await connect(servers.spoke)
        for here, there in (ends, ends[::-1]):
            got: list[tuple[str, bytes, dict[str, str] | None]] = []
            done = asyncio.Event()

            async def receive(msg: Msg, got: list[tuple[str, bytes, dict[str, str] | None]] = got,
                              done: asyncio.Event = done) -> None:
                if msg.reply:
                    await msg.respond(b"pong")
                got.append((msg.subject, msg.data, msg.headers))
                if msg.data == b"last":
                    done.set()

            subs = [await there.subscribe("a.*", cb=receive), await there.subscribe("a.>", cb=receive)]
            await crossed(there, here)
            await here.publish("a.1", b"one")
            await here.publish("a.2", b"", headers={"K": "v"})
            for i in range(300):
                await here.publish("b.other", b"%d" % i)
            await here.publish("a.3", b"x" * 100_000)
            assert (await here.request("a.4", b"ping", timeout=10)).data == b"pong"
            await here.publish("a.b.c", b"last")
            await asyncio.wait_for(done.wait(), 10)
            twice = [("a.1", b"one", None), ("a.2", b"", {"K": "v"}), ("a.3", b"x" * 100_000, None),
                     ("a.4", b"ping", None)]
            assert Counter(subject for subject, _, _ in got) == {
                **{subject: 2 for subject, _, _ in twice}, "a.b.c": 1}
            assert all(one in got for one in twice)
            for sub in subs:
                await sub.unsubscribe()
            await there.flush()
            await crossed(there, here)
            with pytest.raises(NoRespondersError):
                await here.request("a.1", timeout=10)
        for end in ends:
            await end.close()


@pytest.mark.parametrize(("hub", "spoke"), COMBINATIONS)
async def test_queue_groups(tmp_path: Path, hub: str, spoke: str) -> None:
    """One member of each group gets a message: of this server, if it has one; plain subscribers get all."""
    async with pair(tmp_path, hub, spoke) as servers:
        ends = await connect(servers.hub), await connect(servers.spoke)
        for here, there in (ends, ends[::-1]):
            far, near, plain = Counter[str](), Counter[str](), Counter[str]()

            def counting(counts: Counter[str], name: str):  # type: ignore[no-untyped-def]
                async def receive(msg: Msg) -> None:
                    counts[name] += 1
                    if msg.reply:
                        await msg.respond(name.encode())
                return receive

            subs = [await there.subscribe("work", queue="one", cb=counting(far, "one")),
                    await there.subscribe("work", queue="one", cb=counting(far, "one")),
                    await there.subscribe("work", queue="two", cb=counting(far, "two")),
                    await there.subscribe("work", cb=counting(plain, "plain"))]
            await crossed(there, here)
            for _ in range(20):
                await here.publish("work", b"")
            await here.request("work", timeout=10)
            await crossed(there, here)
            await there.flush()
            assert far == {"one": 21, "two": 21}
            assert plain == {"plain": 21}
            subs.append(await here.subscribe("work", queue="one", cb=counting(near, "one")))
            await here.flush()
            far.clear()
            for _ in range(20):
                await here.publish("work", b"")
            await here.flush()
            await crossed(there, here)
            assert (near, far) == ({"one": 20}, {"two": 20})
            for sub in subs:
                await sub.unsubscribe()
            await crossed(here, there)
        for end in ends:
            await end.close()


@pytest.mark.parametrize(("hub", "spoke"), COMBINATIONS)
async def test_no_echo_and_loops(tmp_path: Path, hub: str, spoke: str) -> None:
    """A message does not come back over the connection on which it went out."""
    async with pair(tmp_path, hub, spoke) as servers:
        here, there = await connect(servers.hub), await connect(servers.spoke)
        got: list[bytes] = []

        async def receive(msg: Msg) -> None:
            got.append(msg.data)

        await here.subscribe("a", cb=receive)
        await there.subscribe("a", cb=receive)
        await crossed(here, there)
        await crossed(there, here)
        await here.publish("a", b"1")
        await here.flush()
        await crossed(there, here)
        await there.publish("a", b"2")
        await there.flush()
        await crossed(here, there)
        assert sorted(got) == [b"1", b"1", b"2", b"2"]
        await here.close()
        await there.close()
