"""Everything that reads a store, while streams move between its shards: no stream twice, none missing, no error."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.inspect.cli import main as inspect
from broker.maintenance import copy_cli, cost_cli, fsck_cli, report_cli
from broker.pipeline.errors import BadOption
from broker.pipeline.plan.follow import Follower
from broker.pipeline.plan.snapshot import read_store
from broker.pipeline.store.objects import open_object_client
from jetblock import scan
from tests.adversity.clients import until
from tests.adversity.lives import again
from tests.adversity.owners import Cluster, cluster
from tests.adversity.test_moves import check_logs, move
from tests.stores import make_store

pytestmark = pytest.mark.shows("cluster.moves")

SHARDS = 4
NAMES = ["A", "B", "C"]
MESSAGES = 20
BODIES = [b"%d" % number for number in range(MESSAGES)]


async def run(main: Callable[..., int], *arguments: Any) -> None:
    assert await asyncio.to_thread(main, *arguments) == 0


def rows(url: str, **options: Any) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    table = scan(url, "*", account="APP", columns=["stream", "data"], **options).read_all()
    for name, body in zip(table["stream"].to_pylist(), table["data"].to_pylist(), strict=True):
        found.setdefault(name, []).append(body)
    return found


async def add_streams(one: Cluster) -> None:
    for at, name in enumerate(NAMES):
        await again(lambda name=name, at=at: one.js.add_stream(  # type: ignore[misc]
            name=name, subjects=[name.lower()], metadata={"jetblock.shard": str(at)}))
        for body in BODIES:
            await one.js.publish(name.lower(), body)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("passes", [1, pytest.param(40, marks=[pytest.mark.soak, pytest.mark.timeout(1200)])])
async def test_reads_while_streams_move(passes: int, tmp_path: Path, request: pytest.FixtureRequest,
                                        capsys: pytest.CaptureFixture[str]) -> None:
    """Queries, plans of streaming queries, inspect, report, cost, copy, backup, restore and fsck find each stream once,
    with all its messages."""
    store = make_store("directory", tmp_path, request)
    async with cluster(tmp_path, store, a="0, 2", b="1, 3", shards=SHARDS) as one:
        await add_streams(one)
        rng, ended, moves = random.Random(passes), asyncio.Event(), 0

        async def keep_moving(name: str) -> None:
            nonlocal moves
            while not ended.is_set():
                moves += bool((await move(one, name, rng.randrange(SHARDS))).get("done"))

        async def are_stored() -> bool:
            return await asyncio.to_thread(rows, store.url) == dict.fromkeys(NAMES, BODIES)

        await until(are_stored)
        follower = Follower(open_object_client(store.url), "APP", "*")
        moving = [asyncio.create_task(keep_moving(name)) for name in NAMES]
        for number in range(passes):
            folder = tmp_path / str(number)
            for _ in range(5):
                assert await asyncio.to_thread(rows, store.url) == dict.fromkeys(NAMES, BODIES)
                plan = await asyncio.to_thread(follower.refresh)
                assert {name: found.state.msgs for name, found in plan.items()} == {
                    f"APP/{name}": MESSAGES for name in NAMES}
            await run(report_cli.main, [store.url, "--output", str(tmp_path / "page.html")])
            page = (tmp_path / "page.html").read_text()
            assert len({page.count(f"APP/{name}<") for name in NAMES} - {0}) == 1
            await run(cost_cli.main, [store.url, "--messages", "100"])
            await run(fsck_cli.main, [store.url])
            for verb, of, to in (("copy", store.url, "copy"), ("backup", store.url, "backup"),
                                 ("restore", f"file://{folder}/backup", "restored")):
                await run(copy_cli.main, verb, [of, f"file://{folder}/{to}"])
            for url in (store.url, f"file://{folder}/copy", f"file://{folder}/restored"):
                capsys.readouterr()
                await run(inspect, [url, "--verify", "--json"])
                shown = json.loads(capsys.readouterr().out)["streams"]
                assert sorted((found["name"], found["messages"]) for found in shown) == [
                    (name, MESSAGES) for name in NAMES]
                assert await asyncio.to_thread(rows, url) == dict.fromkeys(NAMES, BODIES)
        ended.set()
        await asyncio.gather(*moving)
        assert moves > passes
        check_logs(one)


@pytest.mark.soak
async def test_as_of_a_moved_stream(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A sequence means the same after a move. A position is one of the log of the stream's shard, and one from before
    the stream came there is refused."""
    store = make_store("directory", tmp_path, request)
    async with cluster(tmp_path, store, a="0, 1", shards=2) as one:
        await add_streams(one)
        assert (await move(one, "B", 0)).get("done")
        await one.js.publish("a", b"more")
        await one.js.publish("b", b"more")
        objects = open_object_client(store.url)

        async def are_stored() -> bool:
            found = await asyncio.to_thread(read_store, objects, account="APP")
            return [snapshot.msgs for snapshot in found] == [MESSAGES + 1, MESSAGES + 1, MESSAGES]

        await until(are_stored)
        assert {name: len(found) for name, found in rows(store.url, asOf="seq:5").items()} == dict.fromkeys(NAMES, 5)
        [now] = read_store(objects, account="APP", stream="B")
        assert now.shard == 0
        [same] = read_store(objects, account="APP", stream="B", as_of=str(now.position))
        assert (same.shard, same.msgs) == (0, MESSAGES + 1)
        early = f"{now.position.epoch:08x}-{3:012x}"
        with pytest.raises(BadOption, match="stream APP/B has moved to shard 0 after that position"):
            read_store(objects, account="APP", stream="B", as_of=early)
        [other] = read_store(objects, account="APP", stream="A", as_of=early)
        assert other.shard == 0
