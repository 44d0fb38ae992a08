"""Partitioning: servers with channels and stores of their own serve one cluster ID as leaf nodes of one NATS system."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import nats
import pytest
from nats.aio.msg import Msg

from broker.streaming.partitions import decoded, encoded
from broker.streaming.wire.stan_pb2 import CtrlMsg
from tests.harness import BrokerProcess, NatsServerProcess, NatsStreamingProcess, ServerProcess, fetch, free_port
from tests.streaming.stan_client import FIRST, StanClient

pytestmark = pytest.mark.shows("streaming.partitioning")

_DISCOVER = b'"_STAN.discover.test-cluster"'


class System:
    """A hub, and brokers that are its leaf nodes. The hub is a nats-server, with or without NATS Streaming."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._leaf_port = free_port()

    async def hub(self, channels: Sequence[str] = ()) -> ServerProcess:
        config = self._folder / "hub.conf"
        listen = f'leafnodes {{ listen: "127.0.0.1:{self._leaf_port}" }}\n'
        config.write_text(listen + (_partition(channels) if channels else ""))
        kind = NatsStreamingProcess if channels else NatsServerProcess
        return await self._stack.enter_async_context(kind("-c", str(config)))

    async def broker(self, name: str, *channels: str, ready: bool = True) -> BrokerProcess:
        config = self._folder / f"{name}.conf"
        config.write_text(f"""
            server_name: {name}, jetstream {{ store_dir: "{self._folder / name}", domain: {name} }}
            leafnodes {{ reconnect: 50ms, remotes [ {{ url: "nats-leaf://127.0.0.1:{self._leaf_port}" }} ] }}
            {_partition(channels)}""")
        broker = BrokerProcess("-c", str(config))
        self._stack.push_async_callback(broker.close)
        await broker.start(ready=ready)
        return broker


def _partition(channels: Sequence[str]) -> str:
    listed = ", ".join(f'"{channel}": {{}}' for channel in channels)
    return f"streaming {{ partitioning: true, limits {{ channels {{ {listed} }} }} }}"


async def connected(hub: ServerProcess, count: int) -> None:
    """Wait until the hub knows what ``count`` brokers subscribe to."""
    async with asyncio.timeout(60):
        while (await fetch(hub.monitor_url + "/leafz?subs=1"))[1].count(_DISCOVER) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_two_brokers(tmp_path: Path) -> None:
    """A client of the hub uses the channels of both brokers; each stores its own, and a restarted one continues."""
    async with AsyncExitStack() as stack:
        system = System(tmp_path, stack)
        hub = await system.hub()
        one = await system.broker("one", "a", "b.*")
        two = await system.broker("two", "c", "d.>")
        await connected(hub, 2)
        client = await StanClient.open(hub.url, "me")
        subs = {}
        for channel in ("a", "b.x", "c", "d.y.z"):
            await client.publish_all(channel, channel.encode())
            subs[channel] = await client.subscribe(channel, FIRST, durable="d")
            assert [(found.seq, found.data) for found in await subs[channel].take(1)] == [(1, channel.encode())]
        assert [(await fetch(broker.monitor_url + "/streaming/channelsz"))[1].count(name) for broker in (one, two)
                for name in (b'"a"', b'"b.x"', b'"c"', b'"d.y.z"')] == [1, 1, 0, 0, 0, 0, 1, 1]
        await two.restart()
        await connected(hub, 2)
        await client.publish_all("c", b"again")
        assert [found.data for found in await subs["c"].take(1)] == [b"again"]
        await client.publish_all("a", b"again")
        assert [found.data for found in await subs["a"].take(1)] == [b"again"]
        assert [await sub.unsubscribe() for sub in subs.values()] == [""] * 4
        assert await client.close() == ""
        await client.nc.close()


async def test_an_overlap(tmp_path: Path) -> None:
    """A broker with a channel of another server does not start: the other one is a broker, or nats-streaming-server.

    Beside nats-streaming-server with other channels, a broker shares its cluster ID.
    """
    async with AsyncExitStack() as stack:
        system = System(tmp_path, stack)
        hub = await system.hub(["old.*"])
        good = await system.broker("good", "new.>", "x.y")
        for name, channels, conflict in (("literal", ["x.y"], "x.y"), ("inside", ["old.one"], "old.one"),
                                         ("pattern", ["other", "new.*"], "new.*"), ("wide", ["*.y"], "*.y")):
            broker = await system.broker(name, *channels, ready=False)
            assert await broker.wait_end(60) == 1
            assert f'channel "{conflict}" causes conflict with channels on server "' in broker.tail()
        await connected(hub, 1)
        client = await StanClient.open(hub.url, "me")
        for channel in ("old.one", "new.one"):
            await client.publish_all(channel, b"1")
            sub = await client.subscribe(channel, FIRST)
            assert [found.data for found in await sub.take(1)] == [b"1"]
        assert b'"new.one"' in (await fetch(good.monitor_url + "/streaming/channelsz"))[1]
        await client.nc.close()


def test_lists_of_channels() -> None:
    """A long list is sent in parts; one that ends within a name is refused."""
    channels = [b"channel.%d" % number for number in range(60_000)]
    parts = list(encoded(channels))
    assert len(parts) == 2
    assert [name for part in parts for name in decoded(part)] == channels
    assert list(decoded(b"\x01\x00a")) == [b"a"]
    for damaged in (b"\x01", b"\x02\x00a"):
        with pytest.raises(ValueError, match="ends within the name"):
            list(decoded(damaged))


async def test_forged_lists_are_answered_in_slices(tmp_path: Path) -> None:
    """Lists of 300 000 names, damaged ones and floods of them: the broker answers pings between, and true lists after.

    A flood of empty answers does not hold up the check of another broker.
    """
    async with AsyncExitStack() as stack:
        system = System(tmp_path, stack)
        hub = await system.hub()
        good = await system.broker("good", "new.>", "x.y")
        await connected(hub, 1)
        attacker = await nats.connect(good.url)

        def request(names: Iterable[bytes]) -> bytes:
            listed = b"".join(len(name).to_bytes(2, "little") + name for name in names)
            return CtrlMsg(MsgType=4, ServerID="other", Data=listed).SerializeToString()

        async def ask(data: bytes) -> bytes:
            answer = await attacker.request("_STAN.part.test-cluster", data, timeout=60)
            return bytes(CtrlMsg.FromString(answer.data).Data)

        large = request(300_000 * [b"a"])
        for _ in range(3):
            await attacker.publish("_STAN.part.test-cluster", large, reply="nobody")
        await attacker.publish("_STAN.part.test-cluster", CtrlMsg(ServerID="other", Data=b"\x05\x00a")
                               .SerializeToString(), reply="nobody")
        assert await ask(request([b"z", b"x.*"])) == b"x.y"
        assert await ask(large) == b""
        assert await ask(request(1000 * [b"a.*"] + [b">"])) in (b">", b"x.y")

        flooding = True

        async def flood(msg: Msg) -> None:
            while flooding:
                for _ in range(20):
                    await attacker.publish(msg.reply, CtrlMsg(MsgType=4, ServerID="forged").SerializeToString())
                await asyncio.sleep(0.05)

        await attacker.subscribe("_STAN.part.test-cluster", cb=flood)
        await attacker.flush()
        late = await system.broker("late", "other")
        assert late.running
        flooding = False
        await attacker.close()
