"""``jetblock --workers 1`` as a member of a NATS cluster, and with MQTT clients."""

from __future__ import annotations

from pathlib import Path

import nats
import pytest

from tests.front.fronted import FrontedProcess, until
from tests.front.mqtt import MqttClient
from tests.harness import NatsServerProcess, free_port

pytestmark = pytest.mark.asyncio


def member(name: str, route: int, routes: list[int]) -> str:
    """Return a member's blocks."""
    urls = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes if port != route)
    return (f'server_name: {name}\n'
            f'cluster {{ name: prod, listen: "127.0.0.1:{route}", routes: [ {urls} ] }}\n')


@pytest.mark.shows("cluster.routes", "cluster.workers_clients")
@pytest.mark.soak
async def test_members_of_a_cluster(tmp_path: Path) -> None:
    """Clients of two real servers use the streams of the third member, which is jetblock, by stock calls."""
    routes = [free_port() for _ in range(3)]
    for number, route in enumerate(routes):
        (tmp_path / f"{number}.conf").write_text(member(f"n{number}", route, routes))
    async with (NatsServerProcess("-c", str(tmp_path / "1.conf")) as one,
                NatsServerProcess("-c", str(tmp_path / "2.conf")) as two,
                FrontedProcess("-c", str(tmp_path / "0.conf"), "-js", "-sd", str(tmp_path / "js")) as process):

        async def is_whole() -> bool:
            return len((await process.monitor("/routez"))["routes"] or ()) >= 2 and "n1" in str(
                await process.monitor("/routez")) and "n2" in str(await process.monitor("/routez"))

        await until(is_whole)
        first, second = await nats.connect(one.url), await nats.connect(two.url)

        async def has_streams() -> bool:
            try:
                await first.jetstream(timeout=1).account_info()
                await second.jetstream(timeout=1).account_info()
            except (nats.errors.Error, TimeoutError):
                return False
            return True

        await until(has_streams)
        js = first.jetstream()
        await js.add_stream(name="ORDERS", subjects=["orders.>"])
        for number in range(20):
            await js.publish(f"orders.{number}", b"%d" % number)
        pull = await second.jetstream().pull_subscribe("orders.>", durable="pull")
        got = []
        while len(got) < 20:
            for message in await pull.fetch(20 - len(got), timeout=10):
                await message.ack_sync()
                got.append(message.subject)
        assert got == [f"orders.{number}" for number in range(20)]
        bucket = await js.create_key_value(bucket="settings")
        await bucket.put("color", b"red")
        assert (await (await second.jetstream().key_value("settings")).get("color")).value == b"red"
        await first.close()
        await second.close()


@pytest.mark.shows("core.mqtt")
@pytest.mark.soak
async def test_mqtt_clients(tmp_path: Path) -> None:
    """MQTT clients exchange messages of QoS 0 and 1, retained ones too, with each other and NATS clients; a session
    and its messages survive the death of both processes."""
    config = tmp_path / "c.conf"
    port = free_port()
    config.write_text(f'server_name: mqtt\nmqtt {{ listen: "127.0.0.1:{port}" }}\n')
    async with FrontedProcess("-c", str(config), "-js", "-sd", str(tmp_path / "js")) as process:
        client = await nats.connect(process.url)
        core = await client.subscribe("rooms.>")
        async with MqttClient("writer", port) as writer, MqttClient("reader", port, clean=False) as reader:
            await reader.subscribe("rooms/+/temperature", qos=1)
            await writer.publish("rooms/kitchen/temperature", b"21", qos=1)
            assert await reader.receive() == ("rooms/kitchen/temperature", b"21", 1, False)
            assert (await core.next_msg(10)).subject == "rooms.kitchen.temperature"
            await client.publish("rooms.bath.temperature", b"24")
            assert (await reader.receive())[:2] == ("rooms/bath/temperature", b"24")
            await writer.publish("rooms/hall/temperature", b"19", qos=1, retain=True)
            assert await reader.receive() == ("rooms/hall/temperature", b"19", 1, False)
        async with MqttClient("late", port) as late:
            await late.subscribe("rooms/hall/#", qos=1)
            assert await late.receive() == ("rooms/hall/temperature", b"19", 1, True)
        async with MqttClient("writer", port) as writer:
            await writer.publish("rooms/attic/temperature", b"12", qos=1)
        await client.close()
        streams = (await process.monitor("/jsz?streams=true"))["account_details"][0]["stream_detail"]
        assert {"$MQTT_msgs", "$MQTT_rmsgs", "$MQTT_sess"} <= {stream["name"] for stream in streams}
        await process.stop()
        await process.start()
        async with MqttClient("reader", port, clean=False) as reader:
            assert reader.session_present
            assert await reader.receive() == ("rooms/attic/temperature", b"12", 1, False)
