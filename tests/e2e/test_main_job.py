"""The main job: the standard library's files through a broker that is killed while they are published and while they
are read.

Every PubAck's message is there afterwards, byte for byte, once, at its acknowledged sequence. Two durable consumers get
all their messages, and repeated ones only as the contract allows. Last by subject finds each file, and `inspect` finds
no fault.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import nats.js.api

from tests.adversity.history import PLAIN_ACK_GRACE, worked
from tests.harness import BrokerProcess
from tests.stores import Store
from tests.tour import tour

ROOT = Path(__file__).resolve().parent.parent.parent


library = tour("library")


async def test_library_through_two_kills(store: Store) -> None:
    files = library.files()
    assert len(files) > 1000
    async with BrokerProcess("--store", store.url, environ=store.environ) as broker:
        nc = await library.connect(broker.url)
        await library.make_stream(nc.jetstream())

        # Publish; the broker is killed when a third has been acknowledged, and the publisher continues with the same
        # ids.
        first: dict[str, int] = {}
        third = asyncio.Event()

        def acked(file: library.File, seq: int, duplicate: bool) -> None:  # type: ignore[name-defined]
            assert first.setdefault(file.subject, seq) == seq
            if len(first) >= len(files) // 3:
                third.set()

        publishing = asyncio.create_task(library.publish(nc, files, acked=acked, timeout=10))
        await third.wait()
        await broker.restart()
        seqs = await publishing
        assert seqs.keys() == {f.subject for f in files}
        assert sorted(seqs.values()) == list(range(1, len(files) + 1)), "stored twice, or a gap"

        # Two durable consumers read everything back; the broker is killed while both read.
        wanted = {"all": [], "some": ["lib.asyncio.>", "lib.email.>"]}
        sizes = {"all": len(files), "some": sum(f.subject.startswith(("lib.asyncio.", "lib.email.")) for f in files)}
        half = asyncio.Event()
        readings = {name: library.Reading() for name in wanted}
        reading = [asyncio.create_task(library.read(
            nc, name, filters, sizes[name], batch=50, reading=readings[name],
            progress=lambda n, name=name: half.set() if name == "all" and n >= len(files) // 2 else None))
            for name, filters in wanted.items()]
        await half.wait()
        killed_at = time.monotonic()
        await broker.restart()
        await asyncio.gather(*reading)
        arrivals = sorted(at for got in readings.values() for at in got.acked_at.values())
        for name, got in readings.items():
            assert not got.wrong, (name, got.wrong[:3])
            assert not got.moved, (name, got.moved[:3])
            assert len(got.seqs) == sizes[name]
            assert all(seqs[subject] == seq for subject, seq in got.seqs.items())
            for seq, acked_at in got.again:
                assert acked_at is None or worked(arrivals, acked_at, killed_at) < PLAIN_ACK_GRACE, (
                    f"{name}: sequence {seq}, acked {killed_at - acked_at:.2f} s before the kill, was delivered again")

        # Last by subject gets each file by its name.
        js = nc.jetstream()
        by_subject = {f.subject: f for f in files}
        for subject in list(by_subject)[::7]:
            message = await js.get_last_msg(library.STREAM, subject, direct=True)
            assert (message.data or b"") == by_subject[subject].data
            assert message.seq == seqs[subject]
        info = await js.stream_info(library.STREAM, subjects_filter=">")
        assert info.state.messages == info.state.last_seq == len(files)
        assert info.state.subjects == dict.fromkeys(by_subject, 1)
        await nc.close()
        assert await broker.stop() in (0, 1)

    report = await inspect(store)
    assert report["problems"] == []
    streams = {s["name"]: s for s in report["streams"]}
    assert streams[library.STREAM]["messages"] == len(files)


async def inspect(store: Store) -> dict[str, Any]:
    """Run `jetblock inspect --json` over the whole store, with every checksum read."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "broker", "inspect", store.url, "--verify", "--json", cwd=ROOT,
        env={**os.environ, **store.environ}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return dict(json.loads(out))


async def test_key_value_and_object_store(store: Store) -> None:
    """nats-py's own KV, its watcher, and its object store work unchanged and have their data after a kill."""
    async with BrokerProcess("--store", store.url, environ=store.environ) as broker:
        nc = await library.connect(broker.url)
        js = nc.jetstream()
        kv = await js.create_key_value(bucket="settings", history=3)
        watcher = await kv.watchall()
        assert await watcher.updates() is None
        # The puts wait for each other: the bucket keeps three values, and a watcher that has not received a value by
        # then misses it.
        for i in range(5):
            await kv.put("color", b"shade %d" % i)
            entry = await watcher.updates()
            assert (entry.key, entry.value) == ("color", b"shade %d" % i)
        await kv.put("size", b"large")
        await kv.delete("size")
        entries = [await watcher.updates() for _ in range(2)]
        assert [(entry.key, entry.value, entry.operation) for entry in entries] == [("size", b"large", None),
                                                                                    ("size", b"", "DEL")]

        store_ = await js.create_object_store("files", nats.js.api.ObjectStoreConfig())
        data = bytes(range(256)) * 4096
        await store_.put("blob", data)

        await broker.restart()
        assert (await kv.get("color")).value == b"shade 4"
        assert len(await kv.history("color")) == 3
        assert (await store_.get("blob")).data == data
        await nc.close()
