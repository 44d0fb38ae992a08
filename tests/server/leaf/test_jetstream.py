"""JetStream over a leaf connection: each server's streams are reached from the other by their domain."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from tests.harness import BrokerProcess, NatsServerProcess, free_port
from tests.server.leaf.servers import connect, crossed, pair, write

pytestmark = pytest.mark.shows("cluster.leaf_domain")

COMBINATIONS = [("nats-server", "nats-server"), ("nats-server", "jetblock"), ("jetblock", "nats-server")]


@pytest.mark.parametrize(("hub", "spoke"), COMBINATIONS)
async def test_streams_of_the_other_domain(tmp_path: Path, hub: str, spoke: str) -> None:
    """A stock client creates a stream, publishes, pulls, gets pushes, and reads in order, by the other's domain."""
    async with pair(tmp_path, hub, spoke) as servers:
        ends = await connect(servers.hub), await connect(servers.spoke)
        await crossed(*ends)
        await crossed(*ends[::-1])
        for domain, client in zip(("bucket", "hub"), ends, strict=True):
            js = client.jetstream(domain=domain, timeout=10)
            name = f"ORDERS-{domain}"
            await js.add_stream(name=name, subjects=[f"{domain}.*"])
            # The domain's server answers the publish, whatever domain the client uses.
            acks = [await client.jetstream(timeout=10).publish(f"{domain}.{i}", b"%d" % i, headers={"N": f"{i}"})
                    for i in range(50)]
            assert [ack.seq for ack in acks] == list(range(1, 51))
            assert {ack.domain for ack in acks} == {domain}

            pulling = await js.pull_subscribe(f"{domain}.*", "pull")
            msgs = await pulling.fetch(50, timeout=10)
            assert [(msg.subject, msg.data, msg.headers) for msg in msgs] == [
                (f"{domain}.{i}", b"%d" % i, {"N": f"{i}"}) for i in range(50)]
            assert all("@" not in msg.reply for msg in msgs)
            for msg in msgs:
                await msg.ack_sync(timeout=10)
            assert (await pulling.consumer_info()).num_ack_pending == 0

            pushed: asyncio.Queue[Msg] = asyncio.Queue()
            await js.subscribe(f"{domain}.*", durable="push", cb=pushed.put, manual_ack=True)
            for i in range(50):
                msg = await asyncio.wait_for(pushed.get(), 10)
                assert msg.subject == f"{domain}.{i}"
                await msg.ack_sync(timeout=10)

            shared: asyncio.Queue[Msg] = asyncio.Queue()
            for _ in range(2):
                await js.subscribe(f"{domain}.*", queue="shared", durable="shared", cb=shared.put, manual_ack=True)
            for _ in range(50):
                await (await asyncio.wait_for(shared.get(), 10)).ack_sync(timeout=10)
            assert shared.empty()

            ordered = await js.subscribe(f"{domain}.*", ordered_consumer=True)
            assert [(await ordered.next_msg(timeout=10)).subject for _ in range(50)] == [
                f"{domain}.{i}" for i in range(50)]
            raw = await js.get_msg(name, 7)
            assert (raw.subject, raw.data) == (f"{domain}.6", b"6")
            assert (await js.stream_info(name)).state.messages == 50
            await js.delete_stream(name)
            await client.close()


@pytest.mark.parametrize(("hub", "spoke"), COMBINATIONS)
async def test_key_value_and_objects(tmp_path: Path, hub: str, spoke: str) -> None:
    """A bucket of the other domain is written by ``$JS.<domain>.API.$KV``, and an object store by its own subjects."""
    async with pair(tmp_path, hub, spoke) as servers:
        there, here = await connect(servers.spoke), await connect(servers.hub)
        await crossed(there, here)
        own = await there.jetstream().create_key_value(bucket="settings")
        await own.put("a", b"1")
        ack = json.loads((await here.request("$JS.bucket.API.$KV.settings.b", b"2", timeout=10)).data)
        assert (ack["stream"], ack["seq"], ack["domain"]) == ("KV_settings", 2, "bucket")
        far = await here.jetstream(domain="bucket", timeout=10).key_value("settings")
        assert [(await far.get(key)).value for key in ("a", "b")] == [b"1", b"2"]
        # Not ``keys``: nats-py takes the bucket for empty if nats-server says that nothing is pending before the
        # messages have arrived.
        watcher = await far.watchall()
        keys: list[str] = []
        async with asyncio.timeout(30):
            while len(keys) < 2:
                if (entry := await watcher.updates()) is not None:
                    keys.append(entry.key)
        await watcher.stop()
        assert sorted(keys) == ["a", "b"]
        with pytest.raises(NoRespondersError):
            await here.request("$KV.settings.c", b"3", timeout=10)

        await there.jetstream().create_object_store("files")
        far_files = await here.jetstream(domain="bucket", timeout=10).object_store("files")
        await crossed(there, here)
        await far_files.put("one", b"x" * 300_000)
        assert (await far_files.get("one")).data == b"x" * 300_000
        await here.close()
        await there.close()


@pytest.mark.parametrize(("hub", "spoke"), COMBINATIONS)
async def test_the_plain_api_stays_at_home(tmp_path: Path, hub: str, spoke: str) -> None:
    """Requests to ``$JS.API`` are answered by the client's own server only."""
    async with pair(tmp_path, hub, spoke) as servers:
        for domain, server in (("hub", servers.hub), ("bucket", servers.spoke)):
            client = await connect(server)
            await client.jetstream(timeout=10).add_stream(name=domain, subjects=[domain])
            inbox = client.new_inbox()
            sub = await client.subscribe(inbox)
            await client.publish("$JS.API.STREAM.NAMES", b"", reply=inbox)
            assert json.loads((await sub.next_msg(timeout=10)).data)["streams"] == [domain]
            await client.flush()
            assert sub.pending_msgs == 0
            await client.close()


@pytest.mark.shows("copy.external")
@pytest.mark.parametrize("copying_side", ["hub", "spoke"])
@pytest.mark.parametrize(("hub", "spoke"), COMBINATIONS)
async def test_one_side_mirrors_a_stream_of_the_other(tmp_path: Path, hub: str, spoke: str, copying_side: str) -> None:
    """A mirror names the other's domain in ``external``, and gets all messages, earlier and later ones."""
    async with pair(tmp_path, hub, spoke) as servers:
        origin, copying = await connect(servers.spoke), await connect(servers.hub)
        domain = "bucket"
        if copying_side == "spoke":
            origin, copying, domain = copying, origin, "hub"
        await origin.jetstream().add_stream(name="ORIGIN", subjects=["from.*"])
        for i in range(20):
            await origin.jetstream().publish(f"from.{i}", b"%d" % i)
        await crossed(origin, copying)
        config = {"name": "COPY", "mirror": {
            "name": "ORIGIN", "external": {"api": f"$JS.{domain}.API", "deliver": "deliver.copy"}}}
        answer = await copying.request("$JS.API.STREAM.CREATE.COPY", json.dumps(config).encode(), timeout=10)
        assert "error" not in json.loads(answer.data), answer.data
        for i in range(20, 40):
            await origin.jetstream().publish(f"from.{i}", b"%d" % i)
        js = copying.jetstream()
        for _ in range(1000):
            if (await js.stream_info("COPY")).state.messages == 40:
                break
            await asyncio.sleep(0.01)
        copies = [await js.get_msg("COPY", seq) for seq in range(1, 41)]
        assert [(msg.subject, msg.data) for msg in copies] == [(f"from.{i}", b"%d" % i) for i in range(40)]
        await origin.close()
        await copying.close()


@pytest.mark.parametrize(("hub", "spoke"), COMBINATIONS[1:])
async def test_a_subject_stored_on_both_sides_is_reported(tmp_path: Path, hub: str, spoke: str) -> None:
    """A stream that is created with, or gets, subjects of another domain's stream is warned about, and no other."""
    async with pair(tmp_path, hub, spoke) as servers:
        broker, other, domain = ((servers.hub, servers.spoke, "bucket") if hub == "jetblock"
                                 else (servers.spoke, servers.hub, "hub"))
        here, there = await connect(broker), await connect(other)
        await crossed(here, there)
        await crossed(there, here)
        far, near = there.jetstream(timeout=10), here.jetstream(timeout=10)
        await far.add_stream(name="FAR", subjects=["orders.*", "more.>"])
        await far.create_key_value(bucket="one")
        await near.create_key_value(bucket="one")
        await near.add_stream(name="QUIET", subjects=["quiet.>"])
        await near.add_stream(name="NEAR", subjects=["orders.eu"])
        await broker.wait_line(f'stream NEAR stores "orders.eu" in account .*, and so does stream FAR of domain '
                               f'"{domain}": publishers will get two PubAcks')
        await near.update_stream(name="NEAR", subjects=["orders.eu", "more.x"])
        await broker.wait_line(r'stream NEAR stores "more.x" ')
        assert sum("two PubAcks" in line for line in broker.stderr) == 2
        await here.close()
        await there.close()


@pytest.mark.shows("copy.external")
async def test_a_hub_without_a_domain_is_mirrored(tmp_path: Path) -> None:
    """A mirror names the hub in place of a domain; it waits while the hub is away, and then gets the rest."""
    port = free_port()
    hub_file = write(tmp_path / "hub.conf", f"""
        server_name: hub
        jetstream {{ store_dir: "{tmp_path}/hub" }}
        leafnodes {{ listen: "127.0.0.1:{port}" }}""")
    spoke_file = write(tmp_path / "spoke.conf", f"""
        server_name: spoke
        jetstream {{ store_dir: "{tmp_path}/spoke", domain: bucket }}
        leafnodes {{ reconnect: 100ms, remotes [ {{ url: "nats-leaf://127.0.0.1:{port}" }} ] }}""")
    async with NatsServerProcess("-c", hub_file, "-D") as hub, BrokerProcess("-c", spoke_file, "-D") as spoke:
        origin, copying = await connect(hub), await connect(spoke)
        await origin.jetstream().add_stream(name="ORDERS", subjects=["orders.*"])
        for i in range(20):
            await origin.jetstream().publish(f"orders.{i}", b"%d" % i)
        config = {"name": "ORDERS", "mirror": {"name": "ORDERS", "external": {"api": "$JS.hub.API"}}}
        answer = await copying.request("$JS.API.STREAM.CREATE.ORDERS", json.dumps(config).encode(), timeout=10)
        assert "error" not in json.loads(answer.data)

        async def copied(number: int) -> None:
            async with asyncio.timeout(60):
                while True:
                    if (await copying.jetstream(timeout=10).stream_info("ORDERS")).state.messages >= number:
                        return
                    await asyncio.sleep(0.02)

        await copied(20)
        await origin.close()
        await hub.restart()
        origin = await connect(hub)
        for i in range(20, 30):
            await origin.jetstream(timeout=10).publish(f"orders.{i}", b"%d" % i)
        await copied(30)
        got = [await copying.jetstream(timeout=10).get_msg("ORDERS", seq) for seq in range(1, 31)]
        assert [(msg.subject, msg.data) for msg in got] == [(f"orders.{i}", b"%d" % i) for i in range(30)]
        await hub.kill()
        await spoke.wait_line("Leafnode connection closed.*Remote: hub")
        info = json.loads((await copying.request("$JS.API.STREAM.INFO.ORDERS", b"", timeout=10)).data)
        assert info["state"]["messages"] == 30
        await origin.close()
        await copying.close()
