"""The ``store_dir`` of a nats-server: no broker starts with an empty store on it, and ``jetblock migrate`` moves its
streams."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nats
import pytest

from broker.base.nats_server_store import find_store_dir
from tests.harness import ROOT, BrokerProcess, NatsServerProcess

pytestmark = pytest.mark.shows("operation.migrate")

CONFIG = """
no_auth_user: one
accounts {
  A { jetstream: enabled, users: [{user: one, password: one}] }
  B { jetstream: enabled, users: [{user: two, password: two}] }
}
"""


def run(*words: str | Path, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **({} if path is None else {"PATH": path})}
    return subprocess.run([sys.executable, "-m", "broker", *map(str, words)], capture_output=True, text=True,
                          timeout=120, cwd=ROOT, env=environ, check=False)


async def filled(server: NatsServerProcess, *names: str, **login: Any) -> None:
    """Create streams with three messages each, and a consumer that has acked one."""
    client = await nats.connect(server.url, **login)
    js = client.jetstream()
    for name in names:
        await js.add_stream(name=name, subjects=[f"{name}.>"])
        for number in range(3):
            await js.publish(f"{name}.{number}", b"%d" % number)
        reader = await js.pull_subscribe(f"{name}.>", durable="d")
        [first] = await reader.fetch(1)
        await first.ack_sync()
    await client.close()


async def seen(url: str, name: str, **login: Any) -> tuple[list[bytes], int]:
    """Return the messages of a stream, and the number that its consumer has acked."""
    client = await nats.connect(url, **login)
    js = client.jetstream()
    last = (await js.stream_info(name)).state.last_seq
    found = [(await js.get_msg(name, seq)).data or b"" for seq in range(1, last + 1)]
    floor = (await js.consumer_info(name, "d")).ack_floor
    await client.close()
    return found, 0 if floor is None else floor.stream_seq


async def stopped(folder: Path) -> Path:
    """Make the store_dir of a server with one account that has ended."""
    async with NatsServerProcess("-js", "-sd", str(folder)) as server:
        await filled(server, "ORDERS", "LOGS")
        assert await server.stop() == 0
    return folder


async def test_a_broker_does_not_begin_empty(tmp_path: Path) -> None:
    """The broker ends with the remedy and does not change the directory; nor do other commands. The streams can be
    moved."""
    theirs = await stopped(tmp_path / "nats")
    before = sorted(theirs.rglob("*"))
    for directory in (theirs, theirs / "jetstream"):
        done = await asyncio.to_thread(run, "-p", "-1", "-js", "-sd", directory)
        assert done.returncode == 1
        assert f"{theirs} is the store_dir of a nats-server, with 2 streams (LOGS, …)" in done.stderr
        assert f"jetblock migrate {directory} file://NEW_DIRECTORY" in done.stderr
    for command in ("inspect", "fsck"):
        done = await asyncio.to_thread(run, command, f"file://{theirs}")
        assert (done.returncode, "`jetblock migrate` moves its streams" in done.stderr) == (2, True)
    assert sorted(theirs.rglob("*")) == before
    done = await asyncio.to_thread(run, "migrate", theirs, f"file://{tmp_path / 'ours'}", "--verify", "--json")
    assert done.returncode == 0, done.stderr
    statuses = {one["stream"]: one["status"] for one in json.loads(done.stdout)["streams"]}
    assert statuses == {"LOGS": "moved", "ORDERS": "moved"}
    async with BrokerProcess("--store", f"file://{tmp_path / 'ours'}") as broker:
        for name in ("ORDERS", "LOGS"):
            assert await seen(broker.url, name) == ([b"0", b"1", b"2"], 1)
    # The nats-server can use the directory afterwards.
    async with NatsServerProcess("-js", "-sd", str(theirs)) as server:
        assert await seen(server.url, "ORDERS") == ([b"0", b"1", b"2"], 1)


async def test_several_accounts(tmp_path: Path) -> None:
    """In a store each account's streams are moved to the account of the same name; a server receives the streams of
    one account at a time."""
    config = tmp_path / "x.conf"
    await asyncio.to_thread(config.write_text, CONFIG)
    async with NatsServerProcess("-c", str(config), "-js", "-sd", str(tmp_path / "nats")) as server:
        await filled(server, "S", user="one", password="one")
        await filled(server, "S", "T", user="two", password="two")
        live = await asyncio.to_thread(run, "migrate", tmp_path / "nats", f"file://{tmp_path / 'ours'}")
        assert (live.returncode, f"process {server.pid} has files of it open" in live.stderr) == (2, True), live.stderr
        assert await server.stop() == 0
    done = await asyncio.to_thread(run, "migrate", tmp_path / "nats", f"file://{tmp_path / 'ours'}")
    assert done.returncode == 0, done.stderr
    async with BrokerProcess("-c", str(config), "--store", f"file://{tmp_path / 'ours'}") as broker:
        assert (await seen(broker.url, "S", user="one", password="one"))[1] == 1
        assert (await seen(broker.url, "T", user="two", password="two"))[1] == 1
    async with BrokerProcess("-js", "-sd", str(tmp_path / "another")) as broker:
        many = await asyncio.to_thread(run, "migrate", tmp_path / "nats", broker.url)
        assert (many.returncode, "choose one with --source-account" in many.stderr) == (2, True)
        one = await asyncio.to_thread(run, "migrate", tmp_path / "nats", broker.url, "--source-account", "B",
                                      "--stream", "T")
        assert one.returncode == 0, one.stderr
        assert (await seen(broker.url, "T"))[1] == 1
        none = await asyncio.to_thread(run, "migrate", tmp_path / "nats", broker.url, "--source-account", "C")
        assert (none.returncode, "there is no account C; those with streams are A, B" in none.stderr) == (2, True)


async def test_without_a_nats_server(tmp_path: Path) -> None:
    """The error has the two commands for another machine; a nats-server that is jetblock, or too old, does not
    count."""
    theirs = await stopped(tmp_path / "nats")
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    for version in ("nats-server: v2.14.9", "nats-server: v2.15.1\njetblock: v0.1.0"):
        (fake := tmp_path / "bin" / "nats-server").write_text(f"#!/bin/sh\nprintf '{version}\\n'\n")
        fake.chmod(0o755)
        code = (f"import sys, shutil; sys.executable = {str(python)!r}; from broker.migration.cli import main; "
                f"sys.exit(main([{str(theirs)!r}, 'file://{tmp_path}/ours']))")
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT,
            check=False, env={**os.environ, "PATH": str(tmp_path / "bin")})
        assert (done.returncode, done.stdout) == (2, "")
        assert (f"\n  nats-server -a 127.0.0.1 -p 4333 -js -sd {theirs}\n"
                f"  jetblock migrate nats://127.0.0.1:4333 file://{tmp_path}/ours") in done.stderr
    assert not (tmp_path / "ours").exists()


def test_directories_that_are_no_store_dir(tmp_path: Path) -> None:
    """Neither an empty directory, nor a server's without streams, nor jetblock's own is a store_dir; an encrypted
    one is recognised."""
    assert find_store_dir(tmp_path / "none") is None
    (tmp_path / "jetstream" / "$G" / "streams").mkdir(parents=True)
    assert find_store_dir(tmp_path) is None
    stream = tmp_path / "jetstream" / "A" / "streams" / "S"
    stream.mkdir(parents=True)
    (stream / "meta.inf").write_text("{}")
    assert find_store_dir(tmp_path) == find_store_dir(tmp_path / "jetstream") == (tmp_path, {"A": ["S"]}, False)
    (stream / "meta.key").write_bytes(b"")
    found = find_store_dir(tmp_path)
    assert found is not None
    assert found.encrypted
    done = run("migrate", tmp_path, f"file://{tmp_path / 'ours'}")
    assert done.returncode == 2
    assert "it is encrypted: start that nats-server with its own configuration" in done.stderr


def test_a_source_that_is_nothing(tmp_path: Path) -> None:
    """A missing folder, and an address without nats://, are refused."""
    for source in (tmp_path / "none", "localhost:4222"):
        done = run("migrate", source, "nats://127.0.0.1:1")
        assert (done.returncode, "there is no such folder; a server is nats://HOST:PORT" in done.stderr) == (2, True)
