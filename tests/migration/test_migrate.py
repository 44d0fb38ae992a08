"""``jetblock migrate`` from the real nats-server: clients see the same at the target as at the source."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import nats
import pytest
import pytest_asyncio
from nats.aio.client import Client

from broker.migration.cli import main
from tests.harness import ROOT, BrokerProcess, NatsServerProcess
from tests.jetstream.archives import api, take_snapshot
from tests.migration.kinds import FILLED, fill, seen, until
from tests.real.proxy import TcpProxy

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.shows("operation.migrate")]

STORED = tuple(name for name in FILLED if name != "MEMORY")


class Run:
    """A run of the command. ``lines`` has its lines on standard error so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    @classmethod
    async def begin(cls, *arguments: str) -> Run:
        return cls(await asyncio.create_subprocess_exec(
            sys.executable, "-m", "broker", "migrate", *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE))

    async def line(self, part: str) -> str:
        """Return the next line that contains ``part``."""
        assert self.process.stderr is not None
        while text := (await self.process.stderr.readline()).decode():
            self.lines.append(text)
            if part in text:
                return text
        raise AssertionError(f"{part!r} never came: {self.lines}")

    async def end(self, status: int = 0) -> str:
        out, error = await asyncio.wait_for(self.process.communicate(), 60)
        assert self.process.returncode == status, (out.decode(), error.decode())
        self.lines += error.decode().splitlines()
        return out.decode()

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


async def migrate(*arguments: str, status: int = 0) -> dict[str, Any]:
    """Return the report of a whole run, with the streams by name. It runs in this process, which is quicker."""
    out, error = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(error):
        ended = await asyncio.to_thread(main, [*arguments, "--json"])
    assert ended == status, (out.getvalue(), error.getvalue())
    report: dict[str, Any] = json.loads(out.getvalue())
    report["streams"] = {one["stream"]: one for one in report["streams"]}
    return report


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def source(
        tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[NatsServerProcess, Client, dict[str, Any]]]:
    """Run a nats-server; yield it with its client, and the client's view of each stream."""
    async with NatsServerProcess("-js", "-sd", str(tmp_path_factory.mktemp("real"))) as server:
        client = await nats.connect(server.url)
        await fill(client)
        yield server, client, {name: await seen(client, name) for name in FILLED}
        await client.close()


async def test_into_a_running_broker(source: tuple[NatsServerProcess, Client, dict[str, Any]], tmp_path: Path) -> None:
    """Every kind of stream is moved, with its consumers in the middle of their work; a second run finds all of them
    there. Mirrors and sources continue, and copy nothing twice."""
    server, _, wanted = source
    async with BrokerProcess("-js", "-sd", str(tmp_path)) as ours:
        report = await migrate(server.url, ours.url, "--verify")
        there = await nats.connect(ours.url)
        for name in FILLED:
            assert await seen(there, name) == wanted[name]
        assert {one["status"] for one in report["streams"].values()} == {"moved"}
        assert [one for one in report["streams"].values() if one["notes"] or one["problems"]] == []
        assert report["streams"]["HOLES"]["verified"] == 114
        again = await migrate(server.url, ours.url)
        assert {one["status"] for one in again["streams"].values()} == {"there before"}
        js = there.jetstream()
        # Open messages and given-back ones are not delivered again.
        [next_task] = await (await js.pull_subscribe_bind("even", "WORK")).fetch(1)
        assert next_task.data == b"task 12"
        assert (await js.publish("limits.0", b"", headers={"Nats-Msg-Id": "limits-119"})).duplicate
        await js.publish("origin.a", b"after")
        await until(there, "MIRROR", "last_seq", 21)
        await until(there, "ALL", "messages", 131)
        assert (await seen(there, "ALL"))["state"]["messages"] == 131
        await there.close()


async def test_into_a_store_killed_and_run_again(source: tuple[NatsServerProcess, Client, dict[str, Any]],
                                                 tmp_path: Path) -> None:
    """The command is killed after some streams: the next run skips those and moves the rest. A broker then serves
    the store."""
    server, _, wanted = source
    store = f"file://{tmp_path}"
    # The proxy is in this loop, so the run does not get far ahead of the lines that are read.
    async with TcpProxy.to(server.url) as proxy:
        killed = await Run.begin(f"nats://127.0.0.1:{proxy.port}", store, "--memory-to-file")
        await killed.line("BIG: moved")
        proxy.stall()
        await killed.kill()
    report = await migrate(server.url, store, "--memory-to-file", "--verify")
    statuses = {name: one["status"] for name, one in report["streams"].items()}
    assert statuses["ALL"] == statuses["BIG"] == "there before"
    assert statuses["WORK"] == "moved"
    assert [one for one in report["streams"].values() if one["problems"]] == []
    refused = await migrate(server.url, store, status=1)
    assert "its messages are in memory" in refused["streams"]["MEMORY"]["problems"][0]
    async with BrokerProcess("--store", store) as ours:
        there = await nats.connect(ours.url)
        for name in STORED:
            assert await seen(there, name) == wanted[name]
        owned = await migrate(server.url, store, status=2)
        assert "a broker runs on this store" in owned["error"]
        await there.close()


async def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    """The error comes at once and alone: no report of a source without streams, and nothing at the target."""
    begun = time.monotonic()
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        run = await Run.begin(f"nats://127.0.0.1:{nobody.getsockname()[1]}", f"file://{tmp_path / 'store'}")
        assert await run.end(2) == ""
    [line] = run.lines
    assert "cannot connect: connection refused" in line
    assert time.monotonic() - begun < 30  # the command gives up then; a refused connection is not retried until then
    assert not (tmp_path / "store").exists()


async def test_killed_within_a_stream(source: tuple[NatsServerProcess, Client, dict[str, Any]], tmp_path: Path) -> None:
    """No part of the stream is left at the target; the next run, started at once, waits until the name is free."""
    server, _, wanted = source
    async with BrokerProcess("-js", "-sd", str(tmp_path)) as ours:
        there = await nats.connect(ours.url)
        begun = await there.subscribe("$JS.EVENT.ADVISORY.STREAM.RESTORE_CREATE.BIG")
        await there.flush()
        killed = await Run.begin(server.url, ours.url, "--stream", "BIG")
        await begun.next_msg()
        await killed.kill()
        assert (await api(there, "STREAM.NAMES"))["streams"] in (None, [], ["BIG"])
        report = await migrate(server.url, ours.url, "--stream", "BIG", "--verify")
        assert report["streams"]["BIG"]["verified"] == 20
        assert await seen(there, "BIG") == wanted["BIG"]
        await there.close()


async def test_from_folders(source: tuple[NatsServerProcess, Client, dict[str, Any]], tmp_path: Path) -> None:
    """Backups by `nats stream backup` are moved with all that an archive has. Streams with sources that are moved,
    too, copy nothing twice."""
    _, client, wanted = source
    folder = tmp_path / "backups"
    for name in FILLED:
        backup = await take_snapshot(client, name)
        (folder / name).mkdir(parents=True)
        (folder / name / "backup.json").write_text(json.dumps({"config": backup.config, "state": backup.state}))
        (folder / name / "stream.tar.s2").write_bytes(backup.archive)
    async with BrokerProcess("-js", "-sd", str(tmp_path / "store")) as ours:
        one = await migrate(str(folder / "WORK"), ours.url)
        assert one["streams"]["WORK"]["consumers"] == 2
        report = await migrate(str(folder), ours.url, "--verify")
        assert {one["status"] for name, one in report["streams"].items() if name != "WORK"} == {"moved"}
        assert [one for one in report["streams"].values() if one["problems"]] == []
        there = await nats.connect(ours.url)
        for name in FILLED:
            found = await seen(there, name)
            assert found | {"created": None} == wanted[name] | {"created": None}
        await there.jetstream().publish("origin.a", b"after")
        await until(there, "ALL", "messages", 131)
        assert (await seen(there, "ALL"))["state"]["messages"] == 131
        archive = folder / "HOLES" / "stream.tar.s2"
        archive.write_bytes(archive.read_bytes()[:-40])
        await api(there, "STREAM.DELETE.HOLES")
        report = await migrate(str(folder), ours.url, "--stream", "HOLES", status=1)
        assert "its archive cannot be used" in report["streams"]["HOLES"]["problems"][0]
        assert "HOLES" not in (await api(there, "STREAM.NAMES"))["streams"]
        # `nats account backup` leaves such a file for a stream in memory.
        (folder / "HOLES" / "backup.json").write_text("")
        report = await migrate(str(folder), ours.url, status=1)
        assert "the backup is not whole" in report["streams"]["HOLES"]["problems"][0]
        assert (len(report["streams"]), report["streams"]["BIG"]["status"]) == (len(FILLED), "there before")
        await there.close()
    assert "the backup is not whole" in (await migrate(str(folder / "HOLES"), "nats://127.0.0.1:1", status=2))["error"]


async def test_a_stream_that_skips_sequences_after_a_kill(tmp_path: Path) -> None:
    """A stream that acknowledges before it stores has the same messages after a kill: it has not changed, and is
    skipped."""
    async with NatsServerProcess("-js", "-sd", str(tmp_path / "real")) as server:
        client = await nats.connect(server.url)
        for name in ("FULL", "EMPTY"):
            await api(client, f"STREAM.CREATE.{name}", {"name": name, "subjects": [name], "persist_mode": "async"})
        for n in range(5):
            await client.jetstream().publish("FULL", b"%d" % n)
        async with BrokerProcess("-js", "-sd", str(tmp_path / "ours")) as ours:
            await migrate(server.url, ours.url)
            await ours.kill()
            await ours.start()
            report = await migrate(server.url, ours.url, "--verify")
            assert [one["status"] for one in report["streams"].values()] == ["there before"] * 2
            there = await nats.connect(ours.url)
            assert (await there.jetstream().publish("FULL", b"more")).seq > 6
            report = await migrate(server.url, ours.url, status=1)
            assert "the target has newer messages in it" in report["streams"]["FULL"]["problems"][0]
            await there.close()
        await client.close()


async def test_streams_at_the_target_are_never_mixed(tmp_path: Path) -> None:
    """Another stream of the same name is left alone. An older copy is replaced only with --replace, and one with
    newer messages never."""
    async with (NatsServerProcess("-js", "-sd", str(tmp_path / "real")) as real,
                BrokerProcess("-js", "-sd", str(tmp_path / "ours")) as ours):
        here, there = await nats.connect(real.url), await nats.connect(ours.url)
        for client, name in ((here, "OTHER"), (there, "OTHER"), (here, "OLDER"), (here, "USED")):
            await api(client, f"STREAM.CREATE.{name}", {"name": name, "subjects": [name]})
            await client.jetstream().publish(name, b"first")
        await api(there, "STREAM.PURGE.OTHER")
        for client, subject in ((here, "empty.here"), (there, "empty.there")):
            await api(client, "STREAM.CREATE.EMPTY", {"name": "EMPTY", "subjects": [subject]})
            await api(client, "STREAM.CREATE.ALIKE", {"name": "ALIKE", "subjects": ["alike"]})
        report = await migrate(real.url, ours.url, status=1)
        for name in ("OTHER", "EMPTY"):
            assert "another stream of this name" in report["streams"][name]["problems"][0]
        assert report["streams"]["ALIKE"]["status"] == "there before"
        await here.jetstream().publish("OLDER", b"second")
        await there.jetstream().publish("USED", b"second")
        report = await migrate(real.url, ours.url, status=1)
        assert "last_seq 1 instead of 2" in report["streams"]["OLDER"]["problems"][0]
        report = await migrate(real.url, ours.url, "--replace", status=1)
        assert report["streams"]["OLDER"]["status"] == "moved"
        assert "has newer messages in it" in report["streams"]["USED"]["problems"][0]
        assert (await there.jetstream().get_msg("USED", 2)).data == b"second"
        assert (await there.jetstream().get_msg("OLDER", 2)).data == b"second"
        report = await migrate(real.url, ours.url, "--stream", "NONE", status=2)
        assert "has no stream NONE; it has ALIKE, EMPTY, OLDER, OTHER, USED" in report["error"]
        await here.close()
        await there.close()


_ACCOUNTS = """
jetstream: enabled
accounts {
  A { jetstream: enabled, users: [ { user: a, password: pa } ] }
  B { jetstream: enabled, users: [ { user: b, password: pb } ] }
}
"""


async def test_consumers_that_advanced_since(tmp_path: Path) -> None:
    """The first run is made while clients of the source work. A later run moves a stream without new messages again
    if one of its consumers has advanced, or is new. It leaves the stream alone once the target's consumer has
    advanced."""
    async with (NatsServerProcess("-js", "-sd", str(tmp_path / "real")) as server,
                BrokerProcess("-js", "-sd", str(tmp_path / "ours")) as ours):
        here, there = await nats.connect(server.url), await nats.connect(ours.url)
        js = here.jetstream()
        await js.add_stream(name="S", subjects=["s"])
        for n in range(10):
            await js.publish("s", b"%d" % n)
        at_source = await js.pull_subscribe("s", durable="D")
        for msg in await at_source.fetch(3):
            await msg.ack_sync()
        await migrate(server.url, ours.url)
        for msg in await at_source.fetch(4):
            await msg.ack_sync()
        stream = (await migrate(server.url, ours.url))["streams"]["S"]
        assert stream["status"] == "there before"
        assert "consumer D has advanced at the source" in stream["notes"][0]
        assert (await migrate(server.url, ours.url, "--replace"))["streams"]["S"]["status"] == "moved"
        assert (await there.jetstream().consumer_info("S", "D")).ack_floor.stream_seq == 7
        await js.pull_subscribe("s", durable="E")
        assert (await migrate(server.url, ours.url, "--replace"))["streams"]["S"]["status"] == "moved"
        assert (await migrate(server.url, ours.url, "--replace"))["streams"]["S"]["status"] == "there before"
        [msg] = await (await there.jetstream().pull_subscribe_bind("D", "S")).fetch(1)
        assert msg.data == b"7"
        await msg.ack_sync()
        await js.pull_subscribe("s", durable="F")
        stream = (await migrate(server.url, ours.url, "--replace"))["streams"]["S"]
        assert stream["status"] == "there before"
        assert "is in use at the target" in stream["notes"][0]
        await here.close()
        await there.close()


async def test_several_accounts(tmp_path: Path) -> None:
    """Each account is moved with its own credentials, into the accounts of a store, and from there into a broker's."""
    conf = tmp_path / "nats.conf"
    conf.write_text(_ACCOUNTS + f'store_dir: "{tmp_path / "real"}"\n')
    async with NatsServerProcess("-c", str(conf)) as real:
        for user in "ab":
            client = await nats.connect(real.url, user=user, password=f"p{user}")
            await api(client, "STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
            await client.jetstream().publish("s", user.encode())
            await client.close()
        accounts = tmp_path / "accounts.json"
        accounts.write_text(json.dumps([
            {"source": {"user": user, "password": f"p{user}"}, "target": {"account": user.upper()}} for user in "ab"]))
        store = f"file://{tmp_path / 'ours'}"
        run = await Run.begin(real.url, store, "--accounts", str(accounts))
        out = await run.end()
        assert [line.split()[:3] for line in out.splitlines()[1:]] == [["A", "S", "1"], ["B", "S", "1"]]
        accounts.write_text(json.dumps([{"source": {"user": "a", "password": "wrong"}}]))
        wrong = await migrate(real.url, f"file://{tmp_path / 'none'}", "--accounts", str(accounts), status=2)
        assert "Authorization Violation" in wrong["error"]
        assert not (tmp_path / "none").exists()
        accounts.write_text(json.dumps([{"sauce": {}}]))
        assert "did you mean source?" in (await migrate(real.url, store, "--accounts", str(accounts),
                                                        status=2))["error"]
    conf.write_text(_ACCOUNTS)
    async with BrokerProcess("-c", str(conf), "--store", store) as ours:
        for user in "ab":
            client = await nats.connect(ours.url, user=user, password=f"p{user}")
            assert (await client.jetstream().get_msg("S", 1)).data == user.encode()
            await client.close()


async def test_the_way_back(tmp_path: Path) -> None:
    """This command also moves from jetblock into a nats-server: every stream with its messages, and each consumer at
    its position."""
    async with (BrokerProcess("-js", "-sd", str(tmp_path / "ours")) as ours,
                NatsServerProcess("-js", "-sd", str(tmp_path / "real")) as real):
        client, there = await nats.connect(ours.url), await nats.connect(real.url)
        await fill(client)
        wanted = {name: await seen(client, name) for name in FILLED}
        report = await migrate(ours.url, real.url, "--verify")
        for name, one in report["streams"].items():
            assert (one["status"], one["problems"], one["verified"]) == ("moved", [], one["messages"])
            created, *floors = one["notes"]
            assert created.startswith("the target does not keep its time of creation")
            assert floors == (["consumer odd has ack floor 1 instead of 0"] if name == "WORK" else [])
            before, after = _movable(wanted[name]), _movable(await seen(there, name))
            if name == "ALL":  # nats-server takes its origin for another stream, and may copy it again
                assert after["messages"] == before["messages"]
            else:
                assert after == before
        assert report["streams"].keys() == set(FILLED)
        [next_task] = await (await there.jetstream().pull_subscribe_bind("even", "WORK")).fetch(1)
        assert next_task.data == b"task 12"
        await client.close()
        await there.close()


def _movable(stream: dict[str, Any]) -> dict[str, Any]:
    """Return the view without the time of creation, and without positions of filtered consumers, which nats-server
    counts in its own way."""
    consumers = {name: {key: value for key, value in one.items() if key not in ("delivered", "ack_floor")}
                 | {key: one[key] for key in ("delivered", "ack_floor") if "filter_subject" not in one["config"]}
                 for name, one in stream["consumers"].items()}
    return {key: value for key, value in stream.items() if key != "created"} | {"consumers": consumers}
