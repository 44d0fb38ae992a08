"""Encrypted stores: nothing that users stored is readable without the key, and everything is with it."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import nats
import pytest
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig

import jetblock.store
from broker.base.errors import StartError
from broker.cli import run
from broker.inspect.plain import plain_objects, plain_parts
from broker.inspect.source import open_source
from broker.runtime.embedded import Broker
from broker.storage.format.errors import KeyMissing
from broker.storage.paths import parse
from jetblock.staging import PLAIN, RunWriter, Version
from tests.harness import BrokerProcess
from tests.key_ring import forget_keys

pytestmark = pytest.mark.shows("auth.encryption")

KEY = {"storage.key": "the master key of these tests"}
SECRETS = [b"pl4in-payload", b"pl4in.subject", b"Pl4in-Header", b"pl4in-value", b"pl4in-id", b"pl4in-consumer",
           b"pl4in-description", b"pl4in-key", b"pl4in-kv", b"pl4in-object", b"pl4in-meta"]
MESSAGES = 120


@pytest.fixture
def other_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function after which this process knows no keys."""
    forget_keys(monkeypatch)
    return lambda: forget_keys(monkeypatch)


async def fill(broker: Broker | BrokerProcess) -> None:
    """Store something of every kind: messages, headers, ids, consumers with state, a KV bucket and an object store."""
    client = await nats.connect(broker.url)
    js = client.jetstream()
    await js.add_stream(StreamConfig(name="S", subjects=["pl4in.subject.>"], description="pl4in-description",
                                     metadata={"pl4in-meta": "pl4in-value"}))
    for i in range(MESSAGES):
        await js.publish(f"pl4in.subject.{i % 30}", b"pl4in-payload %d" % i,
                         headers={"Pl4in-Header": "pl4in-value", "Nats-Msg-Id": f"pl4in-id-{i}"})
    await js.add_consumer("S", ConsumerConfig(durable_name="pl4in-consumer", filter_subject="pl4in.subject.3",
                                              description="pl4in-description", ack_policy=AckPolicy.EXPLICIT))
    pulled = await js.pull_subscribe_bind("pl4in-consumer", "S")
    [first, *_] = await pulled.fetch(2)
    await first.ack_sync()
    await js.delete_msg("S", 5)
    kv = await js.create_key_value(bucket="B")
    for i in range(20):
        await kv.put(f"pl4in-key.{i % 7}", b"pl4in-kv %d" % i)
    objects = await js.create_object_store("O")
    await objects.put("pl4in-object", b"pl4in-payload" * 20_000)
    await client.close()


async def expect_all(broker: Broker | BrokerProcess) -> None:
    """Check that everything that ``fill`` stored is there."""
    client = await nats.connect(broker.url)
    js = client.jetstream()
    assert (await js.stream_info("S")).state.messages == MESSAGES - 1
    message = await js.get_msg("S", 7)
    assert (message.subject, message.data) == ("pl4in.subject.6", b"pl4in-payload 6")
    assert message.headers == {"Pl4in-Header": "pl4in-value", "Nats-Msg-Id": "pl4in-id-6"}
    info = await js.consumer_info("S", "pl4in-consumer")
    assert info.ack_floor is not None
    assert info.ack_floor.consumer_seq == 1
    assert (await js.publish("pl4in.subject.0", b"", headers={"Nats-Msg-Id": "pl4in-id-119"})).duplicate
    assert (await (await js.key_value("B")).get("pl4in-key.5")).value == b"pl4in-kv 19"
    assert (await (await js.object_store("O")).get("pl4in-object")).data == b"pl4in-payload" * 20_000
    await client.close()


def files(store: Path) -> dict[str, bytes]:
    """All files below a store, whatever their names, by their paths in it."""
    return {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}


def expect_secret(store: Path) -> None:
    """Check that no file has any of ``SECRETS``, and that no part of an object is plain."""
    found = files(store)
    assert found
    for name, data in found.items():
        assert [secret for secret in SECRETS if secret in data or secret.decode() in name] == [], name
        if (key := parse(name)) is not None:
            assert plain_parts(data, key)[0] == 0, name


@pytest.mark.parametrize("settings", [{"storage.cipher": "aes"}, {"storage.journal": True},
                                      {"storage.compression": "none", "storage.sync_interval_ns": "2m"}])
async def test_nothing_is_readable_without_the_key(tmp_path: Path, settings: dict[str, Any],
                                                  other_process: Any) -> None:
    """Greps the raw directory while the broker runs, after its end, and after another start; and reads all again."""
    store = tmp_path / "store"
    async with Broker(store, settings={**KEY, **settings}) as broker:
        await fill(broker)
        expect_secret(store)
    expect_secret(store)
    other_process()
    async with Broker(store, settings={**KEY, **settings}) as broker:
        await expect_all(broker)
    expect_secret(store)


async def test_nothing_is_readable_after_a_kill(tmp_path: Path) -> None:
    """Greps the directory, with its journal, after kill -9; the next start replays the journal under the key."""
    store = tmp_path / "store"
    environ = {"JETBLOCK_KEY": "the master key of these tests", "JETBLOCK_JOURNAL": "true"}
    async with BrokerProcess("-js", "--store", f"file://{store}", environ=environ) as broker:
        await fill(broker)
        await broker.kill()
        assert any(name.endswith(".journal") for name in files(store))
        expect_secret(store)
        await broker.restart()
        await expect_all(broker)
        expect_secret(store)


async def test_a_store_gets_a_key_after_a_kill(tmp_path: Path) -> None:
    """The broker of a plain store is killed, and the next one has a key: it seals what only the journal has, and reads
    the plain objects of the same epoch, also after another kill."""
    store = tmp_path / "store"
    environ = {"JETBLOCK_JOURNAL": "true"}
    async with BrokerProcess("-js", "--store", f"file://{store}", environ=environ) as broker:
        await fill(broker)
        await broker.kill()
    environ["JETBLOCK_KEY"] = "the master key of these tests"
    async with BrokerProcess("-js", "--store", f"file://{store}", environ=environ) as broker:
        await expect_all(broker)
        await broker.kill()
        await broker.restart()
        await expect_all(broker)


async def test_a_store_is_encrypted_by_switching_the_option_on(tmp_path: Path, other_process: Any) -> None:
    """Shows a store with plain and sealed objects, which works; that compaction and checkpoints leave nothing plain
    behind; and the command that reports what is plain."""
    store = tmp_path / "store"
    async with Broker(store) as broker:
        await fill(broker)
    assert any(SECRETS[0] in data for data in files(store).values())
    settings = {**KEY, "storage.reader_grace_ns": 0, "storage.compaction_cpu": 100}
    source = open_source(f"file://{store}")
    assert [one async for one in plain_objects(source)]
    async with Broker(store, settings=settings) as broker:
        await expect_all(broker)
        assert broker._app is not None
        assert broker._app.shard_owner is not None
        shard = broker._app.shard_owner.shard
        assert shard is not None
        assert shard.compactor is not None
        await shard.compactor.work(quiet=True)
        client = await nats.connect(broker.url)
        for _ in range(2 * shard.checkpointer.settings.roots_kept):
            # A round releases what its roots do not need; a checkpoint needs something new in the log.
            await client.jetstream().publish("pl4in.subject.29", b"pl4in-payload")
            await shard.log.persisted()
            await shard.checkpointer.cut()
            await shard.sweeper.after_round(shard.checkpointer)
        await client.close()
        async with asyncio.timeout(90):
            while [one.key async for one in plain_objects(source)]:  # noqa: ASYNC110 (the store notifies nobody)
                await asyncio.sleep(0.1)
    assert [one async for one in plain_objects(source)] == []
    await source.close()
    expect_secret(store)


async def _stored(store: Path) -> None:
    async with Broker(store, settings=KEY) as broker:
        await fill(broker)


def _files(store: Path) -> Iterator[bytes]:
    for path in store.rglob("*"):
        try:
            yield path.read_bytes() if path.is_file() else b""
        except FileNotFoundError:  # deleted meanwhile
            continue


async def test_a_broker_without_the_key_does_not_start(tmp_path: Path, other_process: Any) -> None:
    """Shows the line for no key, for another key, and for a rotation; and that nothing is written without the key."""
    store = tmp_path / "store"
    async with Broker(store, settings=KEY) as broker:
        await fill(broker)
    for settings, line in (({}, "no key is configured: set jetstream { key }"),
                           ({"storage.key": "another"}, "and the configured key is [0-9a-f]{16}: set jetstream"),
                           ({"storage.key": "file:/nowhere"}, "no key can be read from /nowhere")):
        other_process()
        with pytest.raises(StartError, match=line):
            await Broker(store, settings=settings).start()
    expect_secret(store)
    data = {name: data for name, data in files(store).items() if not name.startswith("v1/keys/")}
    other_process()
    async with Broker(store, settings={"storage.key": "another", "storage.prev_key": KEY["storage.key"]}) as broker:
        await expect_all(broker)
    assert all(data[name] == now for name, now in files(store).items() if name in data), "only keys were rewrapped"
    other_process()
    async with Broker(store, settings={"storage.key": "another"}) as broker:
        await expect_all(broker)


async def test_a_standby_with_another_key_ends_at_once(tmp_path: Path, other_process: Any) -> None:
    """Shows that a standby that could not take over says so when it starts, and not when it is needed."""
    async with Broker(tmp_path, settings=KEY) as broker:
        client = await nats.connect(broker.url)
        await client.jetstream().add_stream(StreamConfig(name="S", subjects=["s"]))
        await client.close()
        for settings, line in (({}, "no key is configured"), ({"storage.key": "another"}, "the configured key is")):
            with pytest.raises(StartError, match=line):
                await Broker(tmp_path, settings=settings, standby=True).start()


async def test_staged_messages_are_encrypted_by_default(tmp_path: Path, other_process: Callable[[], None],
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows a program that stages messages: it encrypts what it puts, and is refused if it cannot know the keys."""
    store = tmp_path / "store"
    await _stored(store)
    other_process()
    objects = jetblock.store.open_store(f"file://{store}")
    with pytest.raises(KeyMissing, match="no key is configured"):
        await jetblock.store.find_stream(objects, "$G", "S")
    monkeypatch.setenv("JETBLOCK_KEY", KEY["storage.key"])
    stream = await jetblock.store.find_stream(objects, "$G", "S")
    assert stream is not None
    writer = RunWriter("$G", "S", stream.stream_id, now_ns=time.time_ns())
    writer.add(b"pl4in.subject.staged", b"pl4in-payload staged", msg_id=b"pl4in-id-staged")
    for made in writer.finish():
        await objects.put(made.key, made.data)
    asked = writer.request(Version("pl4in-id", 1), 0)
    await objects.put(asked.key, asked.data)
    expect_secret(store)
    other_process()  # such as an executor that got the incarnation from its driver
    with pytest.raises(KeyMissing, match="open the store in this process"):
        RunWriter("$G", "S", stream.stream_id, now_ns=time.time_ns())
    RunWriter("$G", "S", stream.stream_id, now_ns=time.time_ns(), codec=PLAIN)
    await jetblock.store.open_store(f"file://{store}").close()
    again = RunWriter("$G", "S", stream.stream_id, now_ns=time.time_ns())
    again.add(b"pl4in.subject.staged", b"pl4in-payload")
    assert all(SECRETS[0] not in b"".join(made.data) for made in again.finish())
    await objects.close()
    async with Broker(store, settings=KEY) as broker:
        client = await nats.connect(broker.url)
        while (await client.jetstream().stream_info("S")).state.messages < MESSAGES:  # noqa: ASYNC110 (no event)
            await asyncio.sleep(0.02)
        await client.close()
    expect_secret(store)


def test_commands_read_an_encrypted_store_with_the_key(tmp_path: Path, other_process: Any,
                                                       monkeypatch: pytest.MonkeyPatch,
                                                       capsys: pytest.CaptureFixture[str]) -> None:
    """Shows the commands that read a store, or take it, with the key in the environment, and one line without it."""
    store, url = tmp_path / "store", f"file://{tmp_path / 'store'}"
    asyncio.run(_stored(store))
    copied, restored = (f"file://{tmp_path / name}" for name in ("copy", "restored"))
    commands = [["inspect", url, "streams"], ["inspect", url, "messages", "S"], ["inspect", url, "--verify"],
                ["inspect", url, "plain"], ["fsck", url], ["copy", url, copied], ["inspect", copied, "--verify"],
                ["restore", copied, restored], ["adopt", restored], ["inspect", restored, "--verify"]]
    monkeypatch.delenv("JETBLOCK_KEY", raising=False)
    other_process()
    assert run(commands[0]) == 2
    assert "no key is configured" in capsys.readouterr().err
    monkeypatch.setenv("JETBLOCK_KEY", KEY["storage.key"])
    for command in commands:
        other_process()
        assert run(command) == 0, (command, capsys.readouterr().err)
    assert "pl4in-payload" in capsys.readouterr().out
    expect_secret(tmp_path / "copy")
    expect_secret(tmp_path / "restored")


def test_the_scan_reads_an_encrypted_store(tmp_path: Path, other_process: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows the reader that Spark's tasks use: the key comes from the environment, never from the query."""
    from jetblock import scan

    store = tmp_path / "store"
    asyncio.run(_stored(store))
    other_process()
    monkeypatch.setenv("JETBLOCK_KEY", KEY["storage.key"])
    rows = [row for batch in scan(f"file://{store}", "S") for row in batch.to_pylist()]
    assert len(rows) == MESSAGES - 1
    assert rows[0]["data"] == b"pl4in-payload 0"


async def test_a_tampered_store_gives_an_error_and_never_a_wrong_message(tmp_path: Path, other_process: Any) -> None:
    """Swaps and changes parts of segments, with right checksums, and reads each message: it is right, or refused."""
    store = tmp_path / "store"
    # Without a journal there are many segments.
    async with Broker(store, settings={**KEY, "storage.compaction": False, "storage.journal": False}) as broker:
        await fill(broker)
    log = store / "v1/shards/0/log"
    segments = sorted(path for path in log.iterdir() if path.name[9:] != "0" * 12)
    rng = random.Random(1)
    for path in rng.sample(segments, 20):
        data = bytearray(path.read_bytes())
        at = rng.randrange(104, len(data))
        data[at] ^= 1 << rng.randrange(8)
        data[60:64] = crc32(data[:60]).to_bytes(4, "little")
        os.chmod(path, 0o600)
        path.write_bytes(data)
    one, other = rng.sample(segments, 2)
    one.write_bytes(other.read_bytes())
    other_process()
    source = open_source(f"file://{store}")
    from broker.inspect.messages import read_messages

    os.environ["JETBLOCK_KEY"] = KEY["storage.key"]
    try:
        faults: list[Any] = []
        found = [message async for message in read_messages(source, "S", faults=faults.append)]
    finally:
        del os.environ["JETBLOCK_KEY"]
        await source.close()
    assert found
    assert faults
    for message in found:
        assert (message.subject, message.data) == (b"pl4in.subject.%d" % ((message.seq - 1) % 30),
                                                   b"pl4in-payload %d" % (message.seq - 1))
