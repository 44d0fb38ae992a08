"""The raw bytes of an encrypted store while its streams move between brokers: no object, cached part or journal, and no
name, has anything that a user stored. Everything else works on such a store: readers, staged messages, commands, and a
change of the master key.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from nats.js.api import AckPolicy, ConsumerConfig, ExternalStream, StreamConfig, StreamSource

import jetblock
import jetblock.staging
import jetblock.store
from broker.erasure.cli import main as erase
from broker.storage.format.keyring import KEY_VARIABLE
from tests.adversity import owners
from tests.adversity.clients import until
from tests.adversity.lives import again
from tests.adversity.owners import Cluster, add_all, cluster
from tests.adversity.test_moved_secrets import KEY, SOON
from tests.adversity.test_moves import check_logs, until_moved
from tests.key_ring import forget_keys
from tests.real.s3 import S3Server
from tests.runtime.test_erasure import uncompressed
from tests.runtime.test_raw_bucket import Raw
from tests.stores import Store

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

NEW = "another master key"
MARK = b"pl4in"
MOVED = ("S", "KV", "OBJECTS", "M", "R")
MESSAGES = 30


def _files(*folders: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}


async def _messages(one: Cluster, name: str) -> int:
    info = await again(lambda: one.js.stream_info(name))
    assert info is not None
    return info.state.messages


async def _fill(one: Cluster) -> None:
    """Store something of every kind in shard 1."""
    js, here = one.js, {"jetblock.shard": "1"}

    async def create(name: str, **config: Any) -> None:
        await again(lambda: js.add_stream(StreamConfig(name=name, metadata=here | {"k": "pl4in-metadata"},
                                                       description="pl4in-description", **config)))

    await create("S", subjects=["s.>"], allow_direct=True)
    for i in range(MESSAGES):
        await again(lambda i=i: js.publish(f"s.pl4in-subject.{i % 7}", b"pl4in-payload %d" % i + b"." * 300, headers={
            "Pl4in": "pl4in-header", "Nats-Msg-Id": f"pl4in-id-{i}"}))
    await again(lambda: js.add_consumer("S", ConsumerConfig(
        durable_name="pl4in-consumer", description="pl4in-description", filter_subject="s.pl4in-subject.3",
        ack_policy=AckPolicy.EXPLICIT)))
    pull = await js.pull_subscribe_bind("pl4in-consumer", stream="S")
    for msg in await pull.fetch(2, timeout=20):
        await msg.ack_sync(timeout=20)
    # Not of buckets themselves: a nats-server keeps the subjects of keys and objects within a domain.
    await create("KV", subjects=["kv.>"], max_msgs_per_subject=3)
    for i in range(12):
        await again(lambda i=i: js.publish(f"kv.pl4in-key.{i % 3}", b"pl4in-value %d" % i))
    await create("OBJECTS", subjects=["objects.>"])
    for _ in range(3):
        await again(lambda: js.publish("objects.pl4in-object", b"pl4in-chunk" * 10_000))
    await create("M", mirror=StreamSource(name="S", external=ExternalStream(api="$JS.jb.API")))
    await create("R", sources=[StreamSource(name="S", external=ExternalStream(api="$JS.jb.API"))])
    for name in ("M", "R"):
        async def has_all(name: str = name) -> bool:
            return await _messages(one, name) == MESSAGES

        await until(has_all, 60)


async def _stage(url: str, account: str, name: str, count: int) -> None:
    """Stage messages for a stream, and request their adoption, as any program may."""
    store = jetblock.store.open_store(url)
    found = await jetblock.store.find_stream(store, account, name)
    assert found is not None
    writer = jetblock.staging.RunWriter(account, name, found.stream_id, now_ns=time.time_ns())
    for i in range(count):
        writer.add(b"s.pl4in-staged", b"pl4in-payload staged %d" % i, msg_id=b"pl4in-id-staged-%d" % i)
    for put in (*writer.finish(), writer.request(jetblock.staging.request_id_of("raw", str(found.shard)),
                                                 shard=found.shard)):
        await store.put(put.key, put.data)
    await store.close()


async def _run(command: list[str]) -> int:
    """Run a command of jetblock's; return its status."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "jetblock", *command)
    return await process.wait()


def _bodies(url: str, name: str) -> list[bytes]:
    bodies: list[bytes] = jetblock.scan(url, name, account="APP", columns=["data"]).read_all()["data"].to_pylist()
    return bodies


@pytest.mark.parametrize("kind", ["directory", "minio"])
async def test_nothing_is_readable(kind: str, tmp_path: Path, request: pytest.FixtureRequest,
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows the store after each step; in a directory, the brokers keep journals."""
    caches, folder = tmp_path / "caches", tmp_path / "bucket"
    if kind == "minio":
        server: S3Server = request.getfixturevalue("minio")
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        bucket = f"moved-{time.time_ns():x}"
        server.make_bucket(bucket)
        root, raw = f"s3://{bucket}", Raw(server, bucket, caches)._all
        store = Store(f"{root}/store", server.env)
    else:
        root = f"file://{folder}"
        store = Store(f"{root}/store")

        def raw() -> dict[str, bytes]:
            return _files(folder, caches)

    monkeypatch.setenv(KEY_VARIABLE, KEY)
    forget_keys(monkeypatch)
    plain = owners.broker_config

    def config(name: str, *rest: Any) -> str:
        kept = "journal: true" if kind == "directory" else f'cache_directory: "{caches / name}"'
        settings = f"{SOON}, compaction_cpu: 100, inbox_interval: 1s, {kept}"
        return plain(name, *rest).replace("put_timeout: 1s", settings).replace(
            "domain: jb", f'domain: jb, key: "{KEY}"')

    monkeypatch.setattr(owners, "broker_config", config)

    async def look(what: str) -> None:
        objects: dict[str, bytes] = {}
        while not objects:
            with suppress(FileNotFoundError, ClientError):  # an object was deleted meanwhile
                objects = await asyncio.to_thread(raw)
        found = [key for key, data in objects.items() if MARK in key.encode() + uncompressed(data)]
        assert not found, (what, found)

    login: tuple[str, ...] = ()
    async with cluster(tmp_path, store, shards=2, a="0", b="1") as one:
        login = ("--server", one.hub.url.replace("nats://", "nats://app:a@"), "--domain", "jb")
        await add_all(one, 2)
        await _fill(one)
        await look("filled")
        for to in (0, 1, 0):
            for name in MOVED:
                await until_moved(one, name, to)
                await look(f"{name} moved to {to}")
            await again(lambda to=to: one.js.publish("s.pl4in-subject.1", b"pl4in-payload moved %d" % to))
        for name, seq, data in (("KV", 12, b"pl4in-value 11"), ("OBJECTS", 3, b"pl4in-chunk" * 10_000)):
            msg = await again(lambda name=name, seq=seq: one.js.get_msg(name, seq))
            assert msg is not None
            assert msg.data == data
        await _stage(store.url, "APP", "S", 20)
        await look("staged")

        async def is_adopted() -> bool:
            return await _messages(one, "S") == MESSAGES + 3 + 20

        await until(is_adopted, 60)
        await look("adopted")
        await until_moved(one, "S", 1)
        report = tmp_path / "erased.json"
        assert await asyncio.to_thread(erase, [*login, "S", "--subject", "s.pl4in-subject.1",
                                               "--report", str(report)]) == 0
        assert MARK not in report.read_bytes()
        await look("erased")
        for broker in one.brokers.values():
            await broker.kill()
        await look("killed")
        for name, broker in one.brokers.items():
            path = tmp_path / f"{name}.conf"
            path.write_text(path.read_text().replace(f'key: "{KEY}"', f'key: "{NEW}", prev_key: "{KEY}"'))
            await broker.restart()
        left = MESSAGES + 20 - sum(i % 7 == 1 for i in range(MESSAGES))
        for name, count in (("S", left), ("M", left), ("R", left)):
            async def has_count(name: str = name, count: int = count) -> bool:
                return await _messages(one, name) == count

            await until(has_count, 60)
        await until_moved(one, "R", 1)
        info = await again(lambda: one.js.consumer_info("S", "pl4in-consumer"))
        assert info is not None
        assert info.num_pending == sum(i % 7 == 3 for i in range(MESSAGES)) - 2 - info.num_ack_pending
        await look("given another master key")
        for broker in one.brokers.values():
            await broker.stop()
        check_logs(one)
    forget_keys(monkeypatch)
    monkeypatch.setenv(KEY_VARIABLE, NEW)
    assert len(_bodies(store.url, "S")) == left
    assert await asyncio.to_thread(erase, [store.url, "--verify", str(report)]) == 0
    for command in (["inspect", store.url], ["inspect", store.url, "--verify"], ["inspect", store.url, "plain"],
                    ["fsck", store.url], ["copy", store.url, f"{root}/copied"],
                    ["backup", store.url, f"{root}/backups"], ["restore", f"{root}/backups", f"{root}/restored"],
                    ["fsck", f"{root}/restored", "--repair"], ["fsck", f"{root}/copied"],
                    ["inspect", f"{root}/restored", "--verify"], ["inspect", f"{root}/copied", "plain"]):
        assert await _run(command) == 0, command
        await look(" ".join(command[::2]))
    for url in (f"{root}/copied", f"{root}/restored"):
        forget_keys(monkeypatch)
        assert sorted(_bodies(url, "S")) == sorted(_bodies(store.url, "S"))
        assert len(_bodies(url, "R")) == left
    # One broker has all shards of this store, also those that the streams have left.
    report = tmp_path / "shredded.json"
    assert await asyncio.to_thread(erase, [f"{root}/copied", "S", "--account", "APP", "--shred",
                                           "--report", str(report)]) == 0
    assert json.loads(report.read_text())["key"]
    await look("shredded")
