"""Streams move between the shards of brokers that share a store, while they are used."""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import ConsumerConfig, StorageType
from nats.js.errors import APIError, NotFoundError

from broker.inspect.source import Source
from broker.inspect.survey import read_survey
from broker.inspect.verify import verify
from broker.runtime.shards_cli import main as shards
from broker.storage.objectstore import open_store
from tests.adversity import owners
from tests.adversity.clients import until
from tests.adversity.lives import again
from tests.adversity.owners import QUIET, Cluster, Publisher, T, add_all, cluster, messages
from tests.adversity.test_damaged_store import change, flip, segments_of
from tests.stores import make_store

pytestmark = pytest.mark.shows("cluster.moves")

KINDS = ["directory", pytest.param("minio", marks=pytest.mark.soak)]


async def until_moved(one: Cluster, name: str, shard: int) -> None:
    """Ask for a move until it is done."""
    async def is_done() -> bool:
        try:
            return bool((await move(one, name, shard)).get("done"))
        except (nats.errors.Error, TimeoutError):
            return False  # shard 0 has no owner now

    await until(is_done, 120)


async def move(one: Cluster, name: str, shard: int, **more: Any) -> dict[str, Any]:
    """Ask for a move until shard 0's owner answers; return the answer."""
    line = json.loads((await one.system.request("$JETBLOCK.SHARDS", b"", timeout=10)).data)
    body = json.dumps({"account": "APP", "stream": name, "shard": shard, **more}).encode()
    answer: dict[str, Any] = json.loads((await one.system.request(
        f"$JETBLOCK.{line['store']}.STREAM.MOVE", body, timeout=20)).data)
    return answer


async def move_at_once(one: Cluster, name: str, shard: int) -> None:
    """Let a stream move. On a quiet machine the first answer, which comes after ten seconds at most, says that it
    has."""
    answer = await move(one, name, shard)
    assert answer.get("done" if QUIET else "success"), answer
    await until_moved(one, name, shard)


def check_logs(one: Cluster) -> None:
    log = "\n".join(line for broker in one.brokers.values() for line in broker.stderr)
    assert not re.search(r"Traceback|cannot be kept|cannot leave|cannot come|has it since", log), log


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stream_moves_while_it_is_used(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Each message is there once, consumers go on where they were, and no publish or request waits for long."""
    async with cluster(tmp_path, make_store(kind, tmp_path, request), a="0", b="1", c="2") as one:
        await add_all(one)
        pull = await one.js.pull_subscribe("s1", durable="pull", stream="S1")
        publishers = [Publisher(one, f"S{shard}") for shard in range(3)]
        await asyncio.sleep(0.5)
        [first] = await pull.fetch(1, timeout=10)
        ended = asyncio.Event()
        asking = [asyncio.create_task(keep_asking(one, subject, ended)) for subject in REQUESTS]
        for to in (2, 0, 1, 2):
            await move_at_once(one, "S1", to)
            assert (await move(one, "S1", to))["from"] == to
            info = await one.js.stream_info("S1")
            assert info.state.messages > 1
        ended.set()
        assert min(await asyncio.gather(*asking)) > 10
        await first.ack()
        acked = [await publisher.stop() for publisher in publishers]
        assert [count - 1 for count in await messages(one)] == acked
        longest = [round(publisher.longest, 2) for publisher in publishers]
        assert max(longest) < (2 if QUIET else 20), longest
        # A new stream of that name does not meet what the old one has left behind.
        await again(lambda: one.js.delete_stream("S1"), NotFoundError)
        await again(lambda: one.js.add_stream(name="S1", subjects=["s1"], metadata={"jetblock.shard": "1"}))
        await move_at_once(one, "S1", 2)
        check_logs(one)


REQUESTS = {
    "STREAM.INFO.S1": b"", "STREAM.MSG.GET.S1": b'{"seq":1}', "DIRECT.GET.S1": b'{"seq":1}', "CONSUMER.LIST.S1": b"",
    "CONSUMER.INFO.S1.pull": b"", "STREAM.LIST": b"", "STREAM.NAMES": b""}
"""Requests to the API while S1 moves, with their bodies."""


async def keep_asking(one: Cluster, subject: str, ended: asyncio.Event) -> int:
    """Send a request to the API again and again: each is answered as if no stream moved. Return their number."""
    asked = 0
    while not ended.is_set():
        msg = await one.client.request(f"$JS.jb.API.{subject}", REQUESTS[subject], timeout=2 if QUIET else 20)
        if subject.startswith("DIRECT"):
            assert (msg.headers or {}).get("Nats-Sequence") == "1", msg.headers
        else:
            answer = json.loads(msg.data)
            assert "error" not in answer, (subject, answer)
            assert "missing" not in answer, (subject, answer)
            assert len(answer.get("streams", (1, 2, 3))) == 3, (subject, answer)
        asked += 1
        await asyncio.sleep(0.005)
    return asked


async def test_a_stream_comes_back_while_it_is_forgotten(
        tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state that a stream left behind is forgotten at the moment at which the stream comes back. Meanwhile no
    answer to a request says that there is no such stream, or another one."""
    plain = owners.broker_config
    monkeypatch.setattr(owners, "broker_config", lambda *args: plain(*args).replace(
        "put_timeout: 1s", "put_timeout: 1s, reader_grace: 0s"))
    store = make_store("directory", tmp_path, request)
    async with cluster(tmp_path, store, a="0", b="1", shards=2) as one:
        await add_all(one, 2)
        codes: set[int] = set()
        config = {"name": "S0", "subjects": ["s0"], "allow_direct": True, "metadata": {"jetblock.shard": "0"}}

        async def keep_asking(name: str, body: bytes) -> None:
            while True:
                with suppress(TimeoutError, nats.errors.Error):
                    answer = await one.client.request(f"$JS.jb.API.STREAM.{name}.S0", body, timeout=1)
                    codes.add(json.loads(answer.data).get("error", {}).get("err_code", 0))
                await asyncio.sleep(0.002)

        asking = [asyncio.create_task(keep_asking(name, body)) for name, body in (
            ("INFO", b""), ("CREATE", json.dumps(config).encode()))]
        for number in range(1, 5):
            for to in (1, 0):
                await until_moved(one, "S0", to)
            assert (await again(lambda: one.js.publish("s0", b"x"))).seq == number + 1  # type: ignore[union-attr]
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        assert 0 in codes
        assert codes <= {0, 10008}
        check_logs(one)
    await is_sound(store.url, "S0", 0, 5)


async def test_what_cannot_move(tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str],
                                ) -> None:
    """Each refusal says why; the command and an update of the metadata move a stream."""
    async with cluster(tmp_path, make_store("directory", tmp_path, request), a="0", b="1", c="2") as one:
        await add_all(one)
        await one.js.add_stream(name="MEMORY", subjects=["memory"], storage=StorageType.MEMORY)
        for name, shard, code, why in (
                ("S1", 9, 10052, "there is no shard 9: the store has the shards 0, 1, 2"),
                ("NONE", 1, 10059, "stream not found"), ("MEMORY", 1, 10052, "stream MEMORY is in memory")):
            error = (await move(one, name, shard))["error"]
            assert (error["err_code"], why in error["description"]) == (code, True), error
        store = json.loads((await one.system.request("$JETBLOCK.SHARDS", b"", timeout=10)).data)["store"]
        for body in (b"", b"{}", b"[]", b"null", b"x", b'{"account":"APP","stream":"S1","shard":"x"}'):
            found = json.loads((await one.system.request(f"$JETBLOCK.{store}.STREAM.MOVE", body, timeout=10)).data)
            assert found["error"]["err_code"] == 10003, body
        await one.js.update_stream(name="S0", subjects=["s0"], metadata={"jetblock.shard": "1"})
        with pytest.raises(APIError, match="there is no shard 7"):
            await one.js.update_stream(name="S2", subjects=["s2"], metadata={"jetblock.shard": "7"})
        await until_moved(one, "S0", 1)
        login = ("--server", one.hub.url, "--user", "sys", "--password", "s")
        assert await asyncio.to_thread(shards, ["move", "APP", "S2", "0", *login]) == 0
        assert "stream S2 of account APP is in shard 0" in capsys.readouterr().out
        assert await asyncio.to_thread(shards, ["move", "APP", "S2", "5", *login]) == 2
        assert "there is no shard 5" in capsys.readouterr().err
        assert await messages(one) == [0, 1, 1, 1]
        await one.brokers["c"].kill()

        async def has_no_owner() -> bool:
            error = (await move(one, "S1", 2)).get("error", {})
            return error.get("description") == "shard 2 has no owner now"

        await until(has_no_owner, 2 * T)
        check_logs(one)


async def test_a_name_that_is_not_free_yet(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """While the owner of a stream that is being deleted is away, its name is neither free nor another stream's."""
    async with cluster(tmp_path, make_store("directory", tmp_path, request), a="0", b="1", shards=2) as one:
        await add_all(one, 2)
        questions = await one.system.subscribe("$JETBLOCK.*.SHARD.0")
        one.brokers["a"].send_signal(signal.SIGSTOP)
        await one.client.publish("$JS.jb.API.STREAM.DELETE.S1")
        while json.loads((await questions.next_msg(10)).data)["do"] != "delete":
            pass
        await one.brokers["b"].kill()
        one.brokers["a"].send_signal(signal.SIGCONT)
        codes: set[int] = set()

        async def is_free() -> bool:
            config = json.dumps({"name": "S1", "subjects": ["other"]}).encode()
            with suppress(TimeoutError, nats.errors.Error):
                answer = json.loads((await one.client.request("$JS.jb.API.STREAM.CREATE.S1", config, timeout=1)).data)
                codes.add(answer.get("error", {}).get("err_code", 0))
                return "error" not in answer
            return False

        await until(is_free, 60)
        assert codes <= {0, 10008}


async def test_moves_are_given_up(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A stream with a block that cannot be read stays, and the answer says why. A move that waits for the other shard
    is given up on request. Both streams can be used, changed and moved again."""
    async with cluster(tmp_path, make_store("directory", tmp_path, request), a="0", b="1", shards=2) as one:
        await add_all(one, 2)
        await one.brokers["b"].kill()  # it has the segments in memory
        [(path, head)] = segments_of(tmp_path / "store", 1)
        change(path, flip(next(row.index_offset for row in head.rows if row.messages) + 40))
        await one.brokers["b"].start()
        await one.until_published("S1")
        error = (await move(one, "S1", 0))["error"]
        assert error["err_code"] == 10052
        assert re.search("stream S1 stays in shard 1: a block cannot be read: .*log/", error["description"])
        await one.js.update_stream(name="S1", subjects=["s1", "more"])
        assert (await one.js.publish("more", b"x")).seq == 3

        one.brokers["b"].send_signal(signal.SIGSTOP)
        waiting = asyncio.create_task(move(one, "S0", 1))

        with pytest.raises(APIError, match="is being moved to shard 1"):
            await until(lambda: _updated(one), 20)
        assert (await move(one, "S0", 0)).get("done")
        assert "stream S0 stays in shard 0: its move was given up on request" in (await waiting)["error"]["description"]
        await one.js.update_stream(name="S0", subjects=["s0", "other"])
        one.brokers["b"].send_signal(signal.SIGCONT)
        await until_moved(one, "S0", 1)
        assert (await again(lambda: one.js.publish("other", b"x"))).seq == 2  # type: ignore[union-attr]
        check_logs(one)


async def _updated(one: Cluster) -> bool:
    """Update S0 to itself; return False."""
    await one.js.update_stream(name="S0", subjects=["s0"])
    return False


async def test_everything_of_a_stream_moves(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Message ids, unacknowledged messages, counts of deliveries, work queues, checks of a subject's last message."""
    async with cluster(tmp_path, make_store("directory", tmp_path, request), a="0", b="1") as one:
        await add_all(one, 2)
        js = one.js
        await again(lambda: js.add_stream(name="WORK", subjects=["work.>"], retention="workqueue",
                                          metadata={"jetblock.shard": "1"}))
        for number in range(5):
            await js.publish(f"work.{number}", b"%d" % number, headers={"Nats-Msg-Id": f"id-{number}"})
        pull = await js.pull_subscribe("work.>", durable="w", stream="WORK", config=ConsumerConfig(ack_wait=2))
        first, second, third = await pull.fetch(3, timeout=5)
        await first.ack_sync()
        await again(lambda: js.add_stream(name="LAST", subjects=["last.>"], max_msgs_per_subject=1,
                                          metadata={"jetblock.shard": "0"}))
        assert [(await js.publish("last.k", one)).seq for one in (b"1", b"2")] == [1, 2]  # as a bucket's keys are
        pushed: list[int] = []
        await js.subscribe("s1", stream="S1", durable="push", manual_ack=False,
                           cb=lambda msg: _append(pushed, msg.metadata.sequence.stream))
        for name, to in (("WORK", 0), ("LAST", 1), ("S1", 0), ("WORK", 1), ("LAST", 0)):
            await until_moved(one, name, to)
        ack = await js.publish("work.0", b"again", headers={"Nats-Msg-Id": "id-0"})
        assert (ack.duplicate, ack.seq) == (True, 1)
        assert (await js.stream_info("WORK")).state.messages == 4
        await second.ack_sync(timeout=5)  # the acks of messages from before the moves
        info = await js.consumer_info("WORK", "w")
        assert (info.num_ack_pending, info.num_pending, info.delivered.consumer_seq) == (1, 2, 3)
        found = {}
        while len(found) < 3:
            for msg in await pull.fetch(3, timeout=10):
                found[msg.metadata.sequence.stream] = msg.metadata.num_delivered
                await msg.ack_sync(timeout=5)
        assert found == {third.metadata.sequence.stream: 2, 4: 1, 5: 1}
        assert (await js.stream_info("WORK")).state.messages == 0
        assert [msg.data for msg in [await js.get_last_msg("LAST", "last.k")]] == [b"2"]
        with pytest.raises(APIError, match="wrong last sequence: 2"):
            await js.publish("last.k", b"3", headers={"Nats-Expected-Last-Subject-Sequence": "1"})
        assert (await js.publish("last.k", b"3", headers={"Nats-Expected-Last-Subject-Sequence": "2"})).seq == 3
        last = (await js.publish("s1", b"last")).seq
        await until(lambda: _has(pushed, last), 20)
        assert pushed == list(range(1, last + 1))
        check_logs(one)


async def _append(found: list[int], seq: int) -> None:
    found.append(seq)


async def _has(found: list[int], seq: int) -> bool:
    return seq in found


async def is_sound(one_store: str, name: str, shard: int, msgs: int) -> None:
    """A reader without a broker finds the stream in one place, and nothing wrong in the store."""
    source = Source(open_store(one_store))
    survey = await read_survey(source)
    assert [(found.paths.shard, stream.msgs) for found, stream in survey.streams if stream.name == name] == [
        (shard, msgs)]
    assert survey.problems == []
    assert (await verify(source, survey)).problems == []


EVENTS = {"asked": "", "left": "has left shard 1", "come": "has come into shard 2"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("who", "when"), [
    pytest.param(who, when, marks=() if (who, when) == ("b", "left") else pytest.mark.soak)
    for who in ("a", "b", "c") for when in EVENTS])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_broker_is_killed_in_between(
        kind: str, who: str, when: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The owner of shard 0, of the stream, or of the other shard is killed at a step: the move goes on, and each
    acknowledged message is there once."""
    store = make_store(kind, tmp_path, request)
    async with cluster(tmp_path, store, a="0", b="1", c="2") as one:
        await add_all(one)
        publisher = Publisher(one, "S1")
        await asyncio.sleep(0.3)
        asking = asyncio.create_task(move(one, "S1", 2, wait=False))
        asking.add_done_callback(lambda task: task.cancelled() or task.exception())

        async def has_happened() -> bool:
            return any(EVENTS[when] in line for broker in one.brokers.values() for line in broker.stderr)

        if when == "asked":
            await asyncio.wait([asking])
        await until(has_happened, 60)
        await one.brokers[who].kill()
        await one.brokers[who].restart()
        await until_moved(one, "S1", 2)
        await again(lambda: one.js.publish("s1", b"end", headers={"Nats-Msg-Id": "end"}, stream="S1"))
        acked = await publisher.stop()
        assert (await again(lambda: one.js.stream_info("S1"))).state.messages == acked + 2  # type: ignore[union-attr]
        check_logs(one)
    if kind == "directory":
        await is_sound(store.url, "S1", 2, acked + 2)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["directory", "minio"])
@pytest.mark.parametrize("seed", range(2))
async def test_moves_and_kills_while_streams_are_used(
        kind: str, seed: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Streams move at random while brokers are killed, and clients publish: each acknowledged message is there once."""
    rng = random.Random(seed)
    async with cluster(tmp_path, make_store(kind, tmp_path, request), a="0", b="1", c="2") as one:
        await add_all(one)
        publishers = [Publisher(one, f"S{shard}") for shard in range(3)]
        ended = asyncio.Event()

        async def keep_moving(name: str) -> None:
            while not ended.is_set():
                try:
                    await move(one, name, rng.randrange(3))
                except (nats.errors.Error, TimeoutError):
                    await asyncio.sleep(0.2)
                await asyncio.sleep(rng.uniform(0, 1))

        tasks = [asyncio.create_task(keep_moving(f"S{shard}")) for shard in range(3)]
        for _ in range(10):
            await asyncio.sleep(rng.uniform(1, 2 * T))
            broker = rng.choice(list(one.brokers.values()))
            await broker.kill()
            await asyncio.sleep(rng.choice((0, 1.5 * T)))
            await broker.restart()
        ended.set()
        await asyncio.gather(*tasks)
        for shard in range(3):
            await until_moved(one, f"S{shard}", shard)
        acked = [await publisher.stop() for publisher in publishers]
        infos = [await again(lambda name=name: one.js.stream_info(name)) for name in ("S0", "S1", "S2")]  # type: ignore[misc]
        assert [info.state.messages - 1 for info in infos if info is not None] == acked
        assert min(acked) > 10
        check_logs(one)
