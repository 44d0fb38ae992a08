"""``jetblock --workers 2``: streams of both workers look like those of one server, and kills lose nothing."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
import pytest_asyncio
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import StreamSource
from nats.js.errors import APIError, NotFoundError

from tests.adversity.lives import Life, again
from tests.front.fronted import FrontedProcess, until
from tests.harness import fetch

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.shows("cluster.several_workers")]

SHARDS = {"JETBLOCK_SHARDS": "4", "JETBLOCK_LEASE": "6s"}
"""Worker 1 has the shards 0 and 2, worker 2 has 1 and 3."""

@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fronted(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FrontedProcess]:
    """Start one process for the tests that kill nothing."""
    folder: Path = tmp_path_factory.mktemp("several")
    async with FrontedProcess("-js", "-sd", str(folder), workers=2, environ=SHARDS) as process:
        yield process


@pytest_asyncio.fixture(loop_scope="module")
async def client(fronted: FrontedProcess) -> AsyncIterator[Client]:
    """Connect a client; delete all streams at the end."""
    connected = await nats.connect(fronted.url)
    yield connected
    js = connected.jetstream(timeout=10)
    for info in await js.streams_info():
        await js.delete_stream(info.config.name)
    await connected.close()


async def add(js: JetStreamContext, name: str, shard: int, **more: Any) -> None:
    await js.add_stream(name=name, subjects=[name.lower() + ".>"], metadata={"jetblock.shard": str(shard)}, **more)


async def answers_to(client: Client, subject: str, body: object = None) -> list[dict[str, Any]]:
    """Return all answers to one request that come before those to two later requests, one to each worker."""
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox)
    await client.publish(subject, json.dumps(body).encode() if body is not None else b"", reply=inbox)
    found = [json.loads((await subscription.next_msg(10)).data)]
    js = client.jetstream(timeout=10)
    for name in ("A", "B"):
        await js.stream_info(name)
    while subscription.pending_msgs:
        found.append(json.loads((await subscription.next_msg(1)).data))
    await subscription.unsubscribe()
    return found


async def test_streams_of_both_workers(client: Client) -> None:
    """Each request about a stream of any shard works, lists have all, and names and subjects are unique."""
    js = client.jetstream(timeout=10)
    for shard, name in enumerate("ABCD"):
        await add(js, name, shard)
        for number in range(3):
            assert (await js.publish(f"{name.lower()}.{number}", b"%d" % number)).stream == name
        await add(js, name, shard)  # again, with the same configuration
        with pytest.raises(APIError, match="already in use"):
            await js.add_stream(name=name, subjects=["other"])
        with pytest.raises(APIError, match="subjects overlap"):
            await js.add_stream(name="OVER", subjects=[f"{name.lower()}.1"])
    assert [(info.config.name, info.state.messages) for info in await js.streams_info()] == [
        ("A", 3), ("B", 3), ("C", 3), ("D", 3)]
    assert await js.find_stream_name_by_subject("d.1") == "D"
    for name in "ABCD":
        subject = name.lower()
        pull = await js.pull_subscribe(f"{subject}.>", durable="pull")
        for msg in await pull.fetch(3, timeout=10):
            await msg.ack_sync()
        assert (await js.consumer_info(name, "pull")).ack_floor.stream_seq == 3
        push = await js.subscribe(f"{subject}.>", ordered_consumer=True)
        assert [(await push.next_msg(10)).data for _ in range(3)] == [b"0", b"1", b"2"]
        await push.unsubscribe()
        assert (await js.get_msg(name, 2)).data == b"1"
        with pytest.raises(APIError, match="subjects overlap"):
            await js.update_stream(name=name, subjects=[f"{subject}.>", "a.x" if name != "A" else "b.x"])
        await js.update_stream(name=name, subjects=[f"{subject}.>", f"more{subject}"])
        await js.publish(f"more{subject}", b"more")
        await js.delete_msg(name, 1)
        await js.purge_stream(name, subject=f"{subject}.1")
        assert (await js.stream_info(name)).state.messages == 2
    account = await js.account_info()
    assert (account.streams, account.storage > 0) == (4, True)
    await js.update_stream(name="B", subjects=["b.>"])
    await js.update_stream(name="A", subjects=["a.>", "moreb"])  # what B gave up
    with pytest.raises(APIError, match="the store has the shards 0, 1, 2, 3"):
        await add(js, "E", 4)
    for name in "ABCD":
        await js.delete_stream(name)
        with pytest.raises(NotFoundError):
            await js.stream_info(name)
        await add(js, name, 1)
    assert (await js.stream_info("D")).state.messages == 0


async def test_each_request_has_one_answer(client: Client) -> None:
    """Owners of shards answer for their own streams alone, and the owner of shard 0 for all that do not exist."""
    js = client.jetstream(timeout=10)
    await add(js, "A", 0)
    await add(js, "B", 1)
    consumer = {"stream_name": "B", "config": {"durable_name": "B", "ack_policy": "explicit"}}
    for subject, body, error in (
            ("STREAM.INFO.A", None, None), ("STREAM.INFO.B", None, None), ("STREAM.INFO.X", None, 10059),
            ("CONSUMER.DURABLE.CREATE.B.B", consumer, None), ("CONSUMER.INFO.B.B", None, None),
            ("CONSUMER.CREATE.B.B", consumer, None), ("CONSUMER.NAMES.B", None, None),
            ("CONSUMER.INFO.X.B", None, 10059), ("CONSUMER.LIST.X", None, 10059), ("STREAM.NAMES", None, None),
            ("STREAM.DELETE.X", None, 10059), ("STREAM.LEADER.STEPDOWN.B", None, 10010), ("INFO", None, None)):
        found = await answers_to(client, f"$JS.API.{subject}", body)
        assert [one.get("error", {}).get("err_code") for one in found] == [error], subject
    with pytest.raises(nats.errors.NoRespondersError):
        await client.request("$JS.API.CONSUMER.MSG.NEXT.X.C", b"", timeout=10)
    with pytest.raises(nats.errors.NoRespondersError):
        await client.request("$JS.API.DIRECT.GET.X", b'{"seq":1}', timeout=10)


async def test_buckets_and_mirrors(client: Client) -> None:
    """Buckets work in any shard, and a stream copies one of the other worker."""
    js = client.jetstream(timeout=10)
    bucket = await js.create_key_value(bucket="settings")
    await bucket.put("a", b"1")
    assert (await bucket.get("a")).value == b"1"
    for origin, copy in ((1, 0), (0, 1)):
        await add(js, f"O{origin}", origin)
        await js.publish(f"o{origin}.x", b"copied")
        for kind in ("mirror", "sources"):
            source = StreamSource(name=f"O{origin}")
            await js.add_stream(name=f"{kind}{origin}", metadata={"jetblock.shard": str(copy)},
                                **{kind: source if kind == "mirror" else [source]})
            await until(lambda name=f"{kind}{origin}": has_messages(js, name, 1))  # type: ignore[misc]


async def has_messages(js: JetStreamContext, name: str, count: int) -> bool:
    return (await js.stream_info(name)).state.messages == count


async def test_pages_add_up_the_workers(fronted: FrontedProcess, client: Client) -> None:
    """The pages count streams and what they reserve once, and find a stream in any worker. Other requests get the
    status of nats-server, and none is an unexpected error."""
    js = client.jetstream(timeout=10)
    for shard, name in enumerate("ABCD"):
        await add(js, name, shard, max_bytes=1000)
    jsz = await fronted.monitor("/jsz?accounts=true&streams=true")
    assert (jsz["streams"], jsz["accounts"], jsz["total"], jsz["reserved_storage"]) == (4, 1, 1, 4000)
    [account] = jsz["account_details"]
    assert sorted(stream["name"] for stream in account["stream_detail"]) == list("ABCD")
    assert account["reserved_storage"] == (1 << 64) - 1  # no limit, as nats-server shows it
    assert account["api"]["total"] == jsz["api"]["total"] >= 4
    varz = (await fronted.monitor("/varz"))["jetstream"]
    assert (varz["stats"]["accounts"], varz["stats"]["reserved_storage"]) == (1, 4000)
    memory = int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    assert 0 < varz["config"]["max_memory"] == jsz["config"]["max_memory"] <= memory  # that of one worker
    for path, expected in (
            ("/healthz", 200), ("/healthz?account=$G&stream=A", 200), ("/healthz?account=$G&stream=B", 200),
            ("/healthz?account=$G&stream=X", 404), ("/healthz?stream=B", 400), ("/jsz?limit=x", 400),
            ("/connz?sort=nope", 400), ("/jsz?callback=f", 200), ("/varz?callback=f", 200),
            ("/connz?callback=alert(1)", 400), ("/%2e%2e/varz", 404), ("/varz%3Fx", 404), ("/%0a", 404),
            ("/x%23y", 404), ("/varz?a=%ff", 200), ("/streaming/serverz", 404)):
        status, body = await fetch(fronted.monitor_url + path)
        assert status == expected, path
        assert body.startswith(b"f(") == ("callback=f" in path)
    assert "a monitoring page failed" not in fronted.tail(1000)


async def kill_while_streams_live(folder: Path, kills: int, lives: int, clients: int, seed: int) -> None:
    """Kill the workers in turn, after so many lives of streams each time; compare everything."""
    async def quiet(_: Exception) -> None:
        """Ignore the error."""

    rng = random.Random(seed)
    async with FrontedProcess("-js", "-sd", str(folder), workers=2, environ=SHARDS) as process:
        client = await nats.connect(process.url, max_reconnect_attempts=-1, reconnect_time_wait=0.05, error_cb=quiet)
        streams = [Life(client.jetstream(timeout=5), number) for number in range(clients)]
        ended = asyncio.Event()

        async def keep_living(one: Life) -> None:
            while not ended.is_set():
                await one.live()

        async def has_lived() -> bool:
            for task in tasks:
                if task.done():
                    task.result()
            return sum(one.lives for one in streams) >= enough

        tasks = [asyncio.create_task(keep_living(one)) for one in streams]
        for number in range(kills):
            enough = sum(one.lives for one in streams) + rng.randint(1, lives)
            await until(has_lived)
            await process.kill_child(f"worker {number % 2 + 1}")
        enough = sum(one.lives for one in streams) + lives
        await until(has_lived)
        ended.set()
        await asyncio.gather(*tasks)
        for one in streams:
            await again(lambda one=one: client.jetstream(timeout=5).add_stream(  # type: ignore[misc]
                name=one.name, subjects=[one.name]))
        names = [info.config.name for info in await client.jetstream(timeout=10).streams_info()]
        assert names == sorted(one.name for one in streams)
        await client.close()
        log = "\n".join(process.stderr)
        assert not re.search(r"Traceback|were dropped|has it since", log)


async def test_kills_between_steps(tmp_path: Path) -> None:
    """Workers are killed while streams are created, changed and deleted in all shards."""
    await kill_while_streams_live(tmp_path, kills=3, lives=5, clients=3, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(5))
async def test_many_kills_between_steps(tmp_path: Path, seed: int) -> None:
    """The same for longer."""
    await kill_while_streams_live(tmp_path, kills=40, lives=25, clients=6, seed=seed)


async def test_copies_of_erased_messages_in_the_other_worker(client: Client) -> None:
    """Copies lose erased messages, whichever worker has them: S is in worker 1, a source of it in worker 2, a mirror of
    that in worker 1 again, and a mirror that keeps what S has lost in worker 2. One answer says what became of all."""
    js = client.jetstream(timeout=10)
    await add(js, "S", 0, max_msgs_per_subject=1)
    for name, shard, more in (("COPY", 1, {"sources": [StreamSource(name="S")]}),
                              ("LAST", 2, {"mirror": StreamSource(name="COPY")}),
                              ("MIRROR", 3, {"mirror": StreamSource(name="S")})):
        await js.add_stream(name=name, metadata={"jetblock.shard": str(shard)}, **more)
    for number in range(9):
        await js.publish(f"s.{number % 3}", b"%d" % number)
    for name in ("COPY", "LAST", "MIRROR"):
        while (await js.stream_info(name)).state.messages < 9:  # noqa: ASYNC110 (a copy reports no event)
            await asyncio.sleep(0.05)

    async def erased(body: dict[str, Any]) -> tuple[dict[str, int], set[str]]:
        answer = json.loads((await client.request("$JS.API.JETBLOCK.ERASE.S", json.dumps(body).encode(), 60)).data)
        asked = json.dumps({"erasure": answer["erasure"]}).encode()
        shown = json.loads((await client.request("$JS.API.JETBLOCK.ERASURE.S", asked, 10)).data)
        return {one["stream"]: one["messages"] for one in answer["streams"]}, {
            one["stream"] for one in shown["streams"]}

    assert await erased({"subjects": ["s.1"]}) == ({"S": 1, "COPY": 3, "LAST": 3, "MIRROR": 3}, {
        "S", "COPY", "LAST", "MIRROR"})
    assert await erased({"seqs": "9"}) == ({"S": 1, "COPY": 1, "LAST": 1, "MIRROR": 1}, {
        "S", "COPY", "LAST", "MIRROR"})
    left = {b"0", b"3", b"6", b"2", b"5"}
    for name in ("COPY", "LAST", "MIRROR"):
        info = await js.stream_info(name)
        assert info.state.messages == len(left), name
        assert {(await js.get_msg(name, seq)).data for seq in (1, 3, 4, 6, 7)} == left
