"""A store with several shards, which one broker owns: where streams are placed, restarts, crashes between two steps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.errors import APIError

from broker.base.errors import StartError
from broker.jetstream.catalogue import Catalogue
from broker.runtime.embedded import Broker
from broker.storage.format.errors import VersionUnknown
from broker.storage.format.records import opening
from broker.storage.format.records.catalogue import Catalogue as CatalogueRecord
from broker.storage.format.records.stream_create import StreamCreate
from broker.storage.format.records.stream_delete import StreamDelete
from broker.storage.format.records.stream_update import StreamUpdate
from broker.storage.log.journaling import Journaling
from broker.storage.log.open_segment import OpenSegment
from tests.harness import BrokerProcess

pytestmark = pytest.mark.shows("operation.shards")


@asynccontextmanager
async def serving(store: Path, shards: int = 0, **settings: Any) -> AsyncIterator[tuple[Broker, JetStreamContext]]:
    async with Broker(store, settings={"storage.shards": shards, **settings}) as broker:
        client = await nats.connect(broker.url)
        try:
            yield broker, client.jetstream(timeout=30)
        finally:
            await client.close()


def placed(broker: Broker) -> dict[str, int]:
    """Return the shard of each stored stream, by name."""
    js = broker._app.jetstream
    assert js is not None
    return {state.name: shard.number for shard in js.shards.values() for state in shard.log.state.streams.values()}


def catalogue(broker: Broker) -> dict[str, int]:
    """Return the shard of each stream in the catalogue, by name."""
    js = broker._app.jetstream
    assert js is not None
    return {entry.name: entry.shard for entry in js.shards[0].log.state.catalogue.values()}


async def test_streams_are_placed_and_survive_restarts_with_more_shards(tmp_path: Path) -> None:
    """Streams go to the shard with the fewest streams, or to the named one; their messages stay where they are."""
    async with serving(tmp_path, 3) as (broker, js):
        for number in range(5):
            await js.add_stream(name=f"S{number}", subjects=[f"s{number}"])
            await js.publish(f"s{number}", b"one")
        await js.add_stream(name="NAMED", subjects=["named"], metadata={"jetblock.shard": "2"})
        assert placed(broker) == {"S0": 0, "S1": 1, "S2": 2, "S3": 0, "S4": 1, "NAMED": 2}
        for wrong in ("3", "-1", "x", "", "01", "\u0662", "9" * 5000):
            with pytest.raises(APIError, match=r"the store has the shards 0, 1, 2"):
                await js.add_stream(name="WRONG", subjects=["wrong"], metadata={"jetblock.shard": wrong})
        with pytest.raises(APIError, match="streams move only between shards that brokers share"):
            await js.update_stream(name="S0", subjects=["s0"], metadata={"jetblock.shard": "1"})
        await js.update_stream(name="S0", subjects=["s0"], metadata={"jetblock.shard": "0"})
        state = broker._app.jetstream.accounts["$G"].streams["S0"]
        state.config.metadata = {"jetblock.shard": "7"}  # as a stream has that was restored from a backup
        await js.update_stream(name="S0", subjects=["s0"], metadata={"jetblock.shard": "7"})
        with pytest.raises(APIError, match="subjects overlap"):
            await js.add_stream(name="OVER", subjects=["s1"])
        await js.delete_stream("S1")
        await js.add_stream(name="OVER", subjects=["s1"])
        await js.update_stream(name="S2", subjects=["s2", "more"])
        await js.publish("more", b"two")
    for shards in (0, 5):
        async with serving(tmp_path, shards) as (broker, js):
            assert placed(broker) == {"S0": 0, "S2": 2, "S3": 0, "S4": 1, "NAMED": 2, "OVER": 1}
            assert catalogue(broker) == {"S2": 2, "S4": 1, "NAMED": 2, "OVER": 1}
            infos = await js.streams_info()
            assert {info.config.name: info.state.messages for info in infos} == {
                "S0": 1, "S2": 2, "S3": 1, "S4": 1, "NAMED": 0, "OVER": 0}
            subscriber = await js.pull_subscribe("", durable=f"d{shards}", stream="S2")
            assert [msg.data for msg in await subscriber.fetch(2)] == [b"one", b"two"]
            assert (await js.account_info()).streams == 6
            shown = broker._app.views.varz()["jetblock"]["shards"]
            assert [(one["shard"], one["streams"]) for one in shown[:3]] == [(0, 2), (1, 2), (2, 2)]
            samples = {sample.name: sample.value for sample in broker._app.views.samples()}
            assert samples["jetblock_commits_total"] == sum(
                owner.shard.log.commit_count for owner in broker._app.shards)
            assert samples["jetblock_lease_valid"]


async def test_only_empty_shards_retire(tmp_path: Path) -> None:
    """Fewer shards are refused while the others have streams; an empty shard gets no more streams."""
    async with serving(tmp_path, 3) as (_, js):
        for name in "ABC":
            await js.add_stream(name=name, subjects=[name])
    with pytest.raises(StartError, match=r"shard 2 has streams: \$G/C; only empty shards can retire"):
        await Broker(tmp_path, settings={"storage.shards": 2}).start()
    async with serving(tmp_path) as (_, js):
        await js.delete_stream("C")
    async with serving(tmp_path, 2) as (broker, js):
        for name in "DEF":
            await js.add_stream(name=name, subjects=[name])
        assert placed(broker) == {"A": 0, "B": 1, "D": 0, "E": 1, "F": 0}


async def test_earlier_releases_refuse_several_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that knows no shards would drop the catalogue, so it must not read shard 0."""
    async with serving(tmp_path, 2) as (_, js):
        await js.add_stream(name="A", subjects=["a"])
    monkeypatch.setattr(opening, "SHARDS_VERSION", 5)
    with pytest.raises((StartError, VersionUnknown), match="format version 6"):
        await Broker(tmp_path).start()


async def _create(js: JetStreamContext) -> None:
    await js.add_stream(name="NEW", subjects=["new"], metadata={"jetblock.shard": "1"})


async def _update(js: JetStreamContext) -> None:
    await js.update_stream(name="OLD", subjects=["old", "new"])


async def _delete(js: JetStreamContext) -> None:
    await js.delete_stream("OLD")


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("operation", [_create, _update, _delete])
async def test_a_kill_between_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                        operation: Callable[[JetStreamContext], Any], steps: int) -> None:
    """After a kill, the next owner carries out the steps that follow the catalogue's record."""
    change, changes = Catalogue._change, 0
    reached = asyncio.Event()

    def stops(self: Catalogue, *args: Any, then: Callable[[], object], **kwargs: Any) -> None:
        """Record the change; after the last step, end as a kill does: nothing follows."""
        nonlocal changes
        changes += 1
        if changes == steps:
            then = reached.set
        if changes <= steps:
            change(self, *args, then=then, **kwargs)

    async with serving(tmp_path, 2) as (broker, js):
        await js.add_stream(name="OLD", subjects=["old"], metadata={"jetblock.shard": "1"})
        await js.publish("old", b"kept")
        monkeypatch.setattr(Catalogue, "_change", stops)
        request = asyncio.create_task(operation(js))
        if operation is _delete or steps == 1:
            await reached.wait()
            request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        monkeypatch.undo()
        assert ("OLD" in placed(broker)) is not (operation is _delete and steps == 2)
    async with serving(tmp_path) as (broker, js):
        assert placed(broker) == catalogue(broker) == {
            _create: {"OLD": 1, "NEW": 1}, _update: {"OLD": 1}, _delete: {}}[operation]
        if operation is _delete:
            with pytest.raises(APIError, match="stream not found"):
                await js.stream_info("OLD")
            await js.add_stream(name="OLD", subjects=["old"], metadata={"jetblock.shard": "0"})
        else:
            assert (await js.publish("new", b"new")).stream == ("NEW" if operation is _create else "OLD")
            assert (await js.get_msg("OLD", 1)).data == b"kept"


async def test_a_copy_that_has_a_stream_without_an_entry(tmp_path: Path) -> None:
    """A stream that was deleted while its store was copied gets an entry again, unless its name is taken meanwhile."""
    async with serving(tmp_path, 2) as (broker, js):
        for name in ("GONE", "AGAIN"):
            await js.add_stream(name=name, subjects=[name], metadata={"jetblock.shard": "1"})
        app = broker._app
        assert app is not None
        assert app.jetstream is not None
        first = app.jetstream.shards[0].log
        first.block(first.shard).add(CatalogueRecord(gone=list(app.jetstream.catalogue.entries)))
        first.urgent()
        await first.persisted()
        del app.jetstream.accounts["$G"].streams["AGAIN"]
        await js.add_stream(name="AGAIN", subjects=["again"], metadata={"jetblock.shard": "0"})
    async with serving(tmp_path) as (broker, js):
        assert placed(broker) == {"AGAIN": 0, "GONE": 1}
        assert catalogue(broker) == {"GONE": 1}
        assert (await js.publish("again", b"")).stream == "AGAIN"


async def _request(client: Client, what: str, **body: Any) -> str:
    """Return the description of the error that an API request is answered with; "" for success."""
    answer = await client.request(f"$JS.API.{what}", json.dumps(body).encode() if body else b"", timeout=30)
    description: str = json.loads(answer.data).get("error", {}).get("description", "")
    return description


async def test_requests_meet_a_deletion_between_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream is deleted once, and a new one of its name keeps the subjects that both claim."""
    change = Catalogue._change
    began = asyncio.Event()
    steps = 0

    def slow(self: Catalogue, *args: Any, then: Callable[[], object], **kwargs: Any) -> None:
        """Go on after the last of ``steps`` changes only when the test says so."""
        nonlocal steps
        steps -= 1
        if steps == 0:
            followed, then = then, lambda: followers.append(followed) or began.set()
        change(self, *args, then=then, **kwargs)

    followers: list[Callable[[], object]] = []
    async with serving(tmp_path, 2) as (broker, js):
        client, shard = js._nc, broker._app.jetstream.shards[1]
        config = {"name": "A", "subjects": ["a"], "metadata": {"jetblock.shard": "1"}}
        for what, count, expected in (("STREAM.DELETE.A", 1, "stream not found"),
                                      ("STREAM.UPDATE.A", 1, "stream not found"), ("STREAM.CREATE.A", 2, "")):
            with monkeypatch.context() as patch:
                assert await _request(client, "STREAM.CREATE.A", **config) == ""
                began.clear()
                steps = count
                patch.setattr(Catalogue, "_change", slow)
                # Its lane is not that of requests about streams.
                shredding = asyncio.create_task(_request(client, "JETBLOCK.SHRED.A"))
                await began.wait()
                later = asyncio.create_task(_request(
                    client, what, **({} if "DELETE" in what else config | {"max_msgs": 5})))
                await client.flush()
                followers.pop()()
                assert await asyncio.gather(shredding, later) == ["", expected]
            assert shard.streams == (what == "STREAM.CREATE.A")
        assert await _request(client, "STREAM.CREATE.B", name="B", subjects=["a"]) == (
            "subjects overlap with an existing stream")
    async with serving(tmp_path) as (broker, js):
        assert placed(broker) == catalogue(broker) == {"A": 1}


async def test_creations_wait_for_the_catalogue_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams that are created at the same time are stored at the same time; none gets a subject of another."""
    change, followers, all_wait = Catalogue._change, [], asyncio.Event()

    def slow(self: Catalogue, *args: Any, then: Callable[[], object], **kwargs: Any) -> None:
        change(self, *args, then=lambda: followers.append(then) or (len(followers) == 3 and all_wait.set()), **kwargs)

    async with serving(tmp_path, 2) as (broker, js):
        monkeypatch.setattr(Catalogue, "_change", slow)
        metadata = {"jetblock.shard": "1"}
        creating = [asyncio.create_task(js.add_stream(name=name, subjects=[name], metadata=metadata)) for name in "ABC"]
        async with asyncio.timeout(60):
            await all_wait.wait()
        with pytest.raises(APIError, match="subjects overlap"):
            await js.add_stream(name="D", subjects=["A"])
        for follow in followers:
            follow()
        await asyncio.gather(*creating)
        assert placed(broker) == {"A": 1, "B": 1, "C": 1}


async def test_steps_are_not_in_the_journal_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a sync interval, the journal could survive a power cut that shard 0's entry does not survive."""
    commit, journaled = Journaling.commit, []

    def watched(self: Journaling, opened: OpenSegment, *args: Any) -> Any:
        journaled.extend(record.kind for block in opened.blocks.values() for record in block.records)
        return commit(self, opened, *args)

    async with serving(tmp_path, 2, **{"storage.sync_interval_ns": 3_600_000_000_000}) as (_, js):
        metadata = {"jetblock.shard": "1"}
        await js.add_stream(name="BUSY", subjects=["busy"], metadata=metadata)
        monkeypatch.setattr(Journaling, "commit", watched)

        async def publish() -> None:
            while True:
                await js.publish("busy", b"x")

        publishing = [asyncio.create_task(publish()) for _ in range(8)]
        for number in range(10):
            await js.add_stream(name=f"S{number}", subjects=[f"s{number}"], metadata=metadata)
            await js.update_stream(name=f"S{number}", subjects=[f"t{number}"], metadata=metadata)
            await js.delete_stream(f"S{number}")
        for task in publishing:
            task.cancel()
        await asyncio.gather(*publishing, return_exceptions=True)
        assert (await js.stream_info("BUSY")).state.messages
    assert not {StreamCreate.KIND, StreamUpdate.KIND, StreamDelete.KIND}.intersection(journaled)


async def test_changes_of_the_catalogue_start_few_checkpoints(tmp_path: Path) -> None:
    """Each checkpoint of shard 0 has the whole catalogue, so a change counts as a segment, not as an empty one."""
    async with serving(tmp_path, 2) as (broker, js):
        for number in range(30):
            await js.add_stream(name=f"S{number}", subjects=[f"s{number}"], metadata={"jetblock.shard": "1"})
        assert broker._app.shards.first.shard.checkpointer.rounds == 0


async def test_reservations_count_while_they_are_stored(tmp_path: Path) -> None:
    """Accounts that create streams at the same time reserve no more than the server has."""
    config = tmp_path / "broker.conf"
    users = ", ".join(f"A{one} {{jetstream: enabled, users: [{{user: u{one}, password: p}}]}}" for one in range(6))
    config.write_text(f'jetstream {{store_dir: "{tmp_path}/store", max_file_store: 1000000}}\n'
                      f"jetblock {{shards: 2}}\naccounts {{{users}}}\n")
    async with BrokerProcess("-c", str(config)) as broker:
        clients = [await nats.connect(broker.url, user=f"u{one}", password="p") for one in range(6)]
        try:
            body = {"name": "S", "subjects": ["s"], "max_bytes": 300_000, "metadata": {"jetblock.shard": "1"}}
            answers = await asyncio.gather(*(_request(client, "STREAM.CREATE.S", **body) for client in clients))
            assert sorted(answers) == ["", "", "", *["insufficient storage resources available"] * 3]
            assert len([await client.jetstream().stream_info("S") for client, answer
                        in zip(clients, answers, strict=True) if not answer]) == 3
        finally:
            for client in clients:
                await client.close()
