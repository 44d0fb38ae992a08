"""Programs that read a store with several shards see the streams of all of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nats
import pytest

from broker.inspect.source import Source
from broker.inspect.survey import read_survey
from broker.inspect.verify import verify
from broker.maintenance import copy_cli, fsck_cli, report_cli
from broker.pipeline.plan.follow import Follower
from broker.pipeline.plan.snapshot import read_store
from broker.pipeline.store.objects import open_object_client
from broker.pipeline.write.commit import Outcome, plan
from broker.pipeline.write.options import WriteOptions
from broker.runtime.adopt import adopt
from broker.runtime.embedded import Broker
from broker.storage.objectstore import open_store
from broker.storage.read.lookup import find_stream
from tests.pipeline.write.test_commit import World, numbered

pytestmark = pytest.mark.shows("operation.shards")

SHARDS = {"A": 0, "B": 1, "C": 2}
MESSAGES = 20


async def fill(broker: Broker) -> None:
    """Make a stream in each shard, with messages, deleted ones and a consumer."""
    client = await nats.connect(broker.url)
    js = client.jetstream(timeout=30)
    for name, shard in SHARDS.items():
        await js.add_stream(name=name, subjects=[f"{name}.>"], metadata={"jetblock.shard": str(shard)})
        for number in range(MESSAGES):
            await js.publish(f"{name}.{number}", b"%d" % number)
        await js.delete_msg(name, 3)
        await js.add_consumer(name, durable_name="d", ack_policy="explicit")
    await client.close()


def command(main: Any, *arguments: str) -> None:
    assert main(*arguments) == 0


async def test_readers_see_all_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """inspect, copy, fsck, report, scan and Spark's plans; a broker serves the copy as the original."""
    url, other = f"file://{tmp_path}/store", f"file://{tmp_path}/copy"
    async with Broker(tmp_path / "store", settings={"storage.shards": 3}) as broker:
        await fill(broker)
    await asyncio.to_thread(command, copy_cli.main, "copy", [url, other])
    for store in (url, other):
        source = Source(open_store(store))
        survey = await read_survey(source)
        assert survey.problems == []
        assert {stream.name: shard.paths.shard for shard, stream in survey.streams} == SHARDS
        checked = await verify(source, survey)
        assert checked.problems == checked.orphans == []
        objects = open_object_client(store)
        assert {one.name: (one.shard, one.msgs) for one in read_store(objects)} == {
            name: (shard, MESSAGES - 1) for name, shard in SHARDS.items()}
        assert [one.shard for one in Follower(objects, "$G", "*").refresh().values()] == [0, 1, 2]
        for name, shard in SHARDS.items():
            found = await find_stream(open_store(store), "$G", name)
            assert found is not None
            assert (found.name, found.shard) == (name, shard)
            for brief in (False, True):
                options = WriteOptions.parse({"store": store, "stream": name})
                assert plan(objects, options, brief=brief).shard == shard
        assert await find_stream(open_store(store), "$G", "NONE") is None
        await asyncio.to_thread(command, fsck_cli.main, [store])
    await asyncio.to_thread(command, report_cli.main, [url, "--output", str(tmp_path / "page.html")])
    page = (tmp_path / "page.html").read_text()
    assert all(f"$G/{name}<" in page for name in SHARDS)
    async with Broker(tmp_path / "copy") as broker:
        client = await nats.connect(broker.url)
        for name in SHARDS:
            assert (await client.jetstream().get_msg(name, MESSAGES)).data == b"%d" % (MESSAGES - 1)
        await client.close()


async def test_a_sink_writes_to_a_stream_of_any_shard(tmp_path: Path) -> None:
    """Rows join by the inbox of the stream's shard, with a broker and without one; no sweep takes their runs."""
    store = tmp_path / "store"
    async with Broker(store, settings={"storage.shards": 3}) as broker:
        await fill(broker)
        world = World(SimpleNamespace(url=broker.url), f"file://{store}")  # type: ignore[arg-type]
        for name in SHARDS:
            wrote = await world.write(name, numbered(name, range(5)), hand_over_bytes=1)
            assert wrote == Outcome(5, 0, 0, MESSAGES + 1, MESSAGES + 5)
        settings = broker._app.settings
        for _ in range(2):
            for shard in broker._app.jetstream.shards.values():
                await shard.inbox.sweep()
    for name in SHARDS:
        waiting = {"txnAppId": "job", "txnVersion": "1", "nats": "", "waitForAdoption": "0"}
        assert not (await world.write(name, numbered(name, range(5)), hand_over_bytes=1, **waiting)).adopted
    assert len(await adopt(settings)) == 3
    assert world.runs() == 6
    async with Broker(store) as broker:  # the sweep of a new owner leaves the runs of other shards
        app = broker._app
        for owner in app.shards:
            assert owner.shard.checkpointer is not None
            await owner.shard.checkpointer.cut()
            await owner.shard.sweeper.after_round(owner.shard.checkpointer)
    assert world.runs() == 6
    for name in SHARDS:
        assert len(await world.rows(name)) == MESSAGES - 1 + 10
