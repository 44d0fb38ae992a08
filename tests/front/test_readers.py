"""Every command that works on a store, or on a broker, while two workers own the shards: reading ones see all streams,
those that need a store without an owner refuse it, and those that ask a broker reach the stream's owner.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import nats
import pytest
import pytest_asyncio
from nats.js.api import StreamConfig

from broker.erasure.cli import main as erase
from broker.inspect.cli import main as inspect
from broker.maintenance import copy_cli, cost_cli, fsck_cli, report_cli
from broker.migration.cli import main as migrate
from broker.runtime.adopt_cli import main as adopt
from jetblock import scan
from tests.front.fronted import FrontedProcess, until
from tests.harness import NatsServerProcess

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.shows("cluster.several_workers")]

NAMES = ["A", "B", "C"]
MESSAGES = 10
SETTINGS = {"JETBLOCK_SHARDS": "3", "JETBLOCK_READER_GRACE": "100ms", "JETBLOCK_ERASE_DELAY": "0s"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def owned(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[FrontedProcess, str]]:
    """Start two workers with a stream in each of three shards; yield the process and its store."""
    folder: Path = tmp_path_factory.mktemp("owned")
    async with FrontedProcess("-js", "-sd", str(folder), workers=2, environ=SETTINGS) as process:
        client = await nats.connect(process.url)
        js = client.jetstream(timeout=10)
        for shard, name in enumerate(NAMES):
            await js.add_stream(name=name, subjects=[name.lower()], metadata={"jetblock.shard": str(shard)})
            for number in range(MESSAGES):
                await js.publish(name.lower(), b"%d" % number)
        await client.close()
        store = f"file://{folder}"

        async def are_stored() -> bool:
            """Return whether the messages have left the journals, which only the owners read."""
            return all([len(await asyncio.to_thread(scanned, store, name)) == MESSAGES for name in NAMES])

        await until(are_stored)
        yield process, store


async def run(main: Callable[..., int], *arguments: Any) -> int:
    return await asyncio.to_thread(main, *arguments)


def scanned(store: str, name: str) -> list[bytes]:
    return list(scan(store, name).read_all()["data"].to_pylist())


def streams(text: str) -> list[tuple[str, int]]:
    return sorted((one["name"], one["messages"]) for one in json.loads(text)["streams"])


async def test_commands_that_read(
        owned: tuple[FrontedProcess, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """inspect, report, cost, copy, backup and restore, fsck and scan see the streams of both workers."""
    _, store = owned
    wanted = [(name, MESSAGES) for name in NAMES]
    assert await run(inspect, [store, "--verify", "--json"]) == 0
    assert streams(capsys.readouterr().out) == wanted
    assert await run(report_cli.main, [store, "--output", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert all(f"$G/{name}<" in page for name in NAMES)
    assert await run(cost_cli.main, [store, "--messages", "100"]) == 0
    for verb, of, to in (("copy", store, "copy"), ("backup", store, "backup"), ("restore", "backup", "restored")):
        source = of if of.startswith("file:") else f"file://{tmp_path}/{of}"
        assert await run(copy_cli.main, verb, [source, f"file://{tmp_path}/{to}"]) == 0
    for made in ("copy", "restored"):
        assert await run(fsck_cli.main, [f"file://{tmp_path}/{made}"]) == 0
        capsys.readouterr()
        assert await run(inspect, [f"file://{tmp_path}/{made}", "--json"]) == 0
        assert streams(capsys.readouterr().out) == wanted
    for name in NAMES:
        assert await asyncio.to_thread(scanned, store, name) == [b"%d" % number for number in range(MESSAGES)]


@pytest.mark.parametrize(("main", "arguments"), [
    (adopt, []), (erase, ["B", "--seq", "1"]), (fsck_cli.main, ["--repair"])])
async def test_commands_that_need_a_store_without_owners(
        main: Callable[[Sequence[str]], int], arguments: list[str], owned: tuple[FrontedProcess, str],
        capsys: pytest.CaptureFixture[str]) -> None:
    """They change nothing, and say that a broker runs."""
    assert await run(main, [owned[1], *arguments]) == 2
    assert re.search("broker (owns|runs on|holds)", capsys.readouterr().err)


async def test_commands_that_ask_a_broker(
        owned: tuple[FrontedProcess, str], capsys: pytest.CaptureFixture[str]) -> None:
    """erase reaches the owner of the stream, in either worker; migrate brings a stream in."""
    process, store = owned
    for name in ("A", "B"):
        assert await run(erase, ["--server", process.url, name, "--seq", "1", "--json"]) == 0
        assert not json.loads(capsys.readouterr().out)["not_erased"]
        assert len(await asyncio.to_thread(scanned, store, name)) == MESSAGES - 1
    async with NatsServerProcess("-js", "-sd", store.removeprefix("file://") + "-other") as other:
        client = await nats.connect(other.url)
        js = client.jetstream(timeout=10)
        await js.add_stream(StreamConfig(name="MOVED", subjects=["moved"]))
        await js.publish("moved", b"moved")
        await client.close()
        assert await run(migrate, [other.url, process.url]) == 0, capsys.readouterr()
    client = await nats.connect(process.url)
    js = client.jetstream(timeout=10)
    assert (await js.get_msg("MOVED", 1)).data == b"moved"
    await js.delete_stream("MOVED")
    await client.close()
