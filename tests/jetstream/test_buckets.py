"""Key-value buckets and object stores as stock nats-py uses them, the same tests on nats-server and on the broker.

Tests that run on both verify their expectations against nats-server. The process is restarted where the stored state
matters.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
import pytest_asyncio
from nats.js import JetStreamContext, api, errors
from nats.js.kv import KeyValue

from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess

CHUNK = 128 * 1024
SECONDS = 30


@pytest_asyncio.fixture(params=[NatsServerProcess, BrokerProcess], ids=["nats-server", "jetblock"])
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ServerProcess]:
    async with request.param("-js", "-sd", str(tmp_path)) as process:
        yield process


@pytest_asyncio.fixture
async def js(server: ServerProcess) -> AsyncIterator[JetStreamContext]:
    nc = await nats.connect(server.url, reconnect_time_wait=0.05, max_reconnect_attempts=-1)
    yield nc.jetstream()
    await nc.close()


async def _initial(watcher: KeyValue.KeyWatcher) -> list[tuple[str, bytes | None, str | None]]:
    """Return a watcher's entries up to its marker for the end of the initial values."""
    seen = []
    while (entry := await watcher.updates(timeout=SECONDS)) is not None:
        seen.append((entry.key, entry.value, entry.operation))
    return seen


@pytest.mark.shows("kv.watch")
async def test_watchers_of_a_bucket(js: JetStreamContext) -> None:
    """Shows last values, history, without deletes, headers only, one key, wildcards: each in full, then later puts."""
    kv = await js.create_key_value(bucket="B", history=5)
    for key, value in (("a.x", b"1"), ("a.y", b"2"), ("a.x", b"3"), ("b.x", b"4")):
        await kv.put(key, value)
    await kv.delete("a.y")
    await kv.put("c", b"5")
    await kv.purge("c")

    assert await _initial(await kv.watchall()) == [("a.x", b"3", None), ("b.x", b"4", None), ("a.y", b"", "DEL"),
                                                   ("c", b"", "PURGE")]
    assert await _initial(await kv.watchall(include_history=True)) == [
        ("a.x", b"1", None), ("a.y", b"2", None), ("a.x", b"3", None), ("b.x", b"4", None), ("a.y", b"", "DEL"),
        ("c", b"", "PURGE")]
    assert await _initial(await kv.watchall(ignore_deletes=True)) == [("a.x", b"3", None), ("b.x", b"4", None)]
    assert await _initial(await kv.watchall(meta_only=True)) == [("a.x", b"", None), ("b.x", b"", None),
                                                                ("a.y", b"", "DEL"), ("c", b"", "PURGE")]
    one = await kv.watch("*.x")
    assert await _initial(one) == [("a.x", b"3", None), ("b.x", b"4", None)]
    none = await kv.watch("nothing.>")
    assert await _initial(none) == []
    await kv.put("nothing.yet", b"6")
    await kv.put("b.x", b"7")
    entry = await none.updates(timeout=SECONDS)
    assert (entry.key, entry.value) == ("nothing.yet", b"6")
    entry = await one.updates(timeout=SECONDS)
    assert (entry.key, entry.value) == ("b.x", b"7")


@pytest.mark.shows("kv.bucket", "kv.put_get", "kv.create_update", "kv.delete", "kv.keys")
async def test_revisions_history_and_deletes_of_a_bucket(server: ServerProcess, js: JetStreamContext) -> None:
    """Create and update succeed only at the current revision; history is bounded; deletes are purged by age.

    A restart changes nothing.
    """
    kv = await js.create_key_value(bucket="B", history=3)
    assert await kv.create("k", b"1") == 1
    with pytest.raises(errors.KeyWrongLastSequenceError):
        await kv.create("k", b"2")
    with pytest.raises(errors.KeyWrongLastSequenceError):
        await kv.update("k", b"2", last=7)
    revision = await kv.update("k", b"2", last=1)
    for i in range(3, 6):
        await kv.put("k", b"%d" % i)
    assert (await kv.get("k", revision=4)).value == b"4"
    with pytest.raises(errors.KeyNotFoundError):
        await kv.get("k", revision=revision)
    await kv.put("other", b"x")
    await kv.delete("other")
    await kv.create("other", b"again")
    await kv.put("gone", b"x")
    await kv.delete("gone")

    await server.restart()
    assert [entry.value for entry in await kv.history("k")] == [b"3", b"4", b"5"]
    assert sorted(await kv.keys()) == ["k", "other"]
    with pytest.raises(errors.KeyNotFoundError):
        await kv.get("gone")
    await kv.purge_deletes(olderthan=3600)
    assert [entry.operation for entry in await kv.history("gone")] == ["DEL"]
    await kv.purge_deletes(olderthan=-1)
    with pytest.raises(errors.NoKeysError):
        await kv.history("gone")
    status = await kv.status()
    assert (status.values, status.history) == (6, 3)
    assert await js.delete_key_value("B")
    with pytest.raises(errors.BucketNotFoundError):
        await js.key_value("B")


@pytest.mark.shows("objects.put_get", "objects.delete")
async def test_objects_of_many_chunks(server: ServerProcess, js: JetStreamContext, tmp_path: Path) -> None:
    """Shows put, replace, read into a file, list, delete: chunks of replaced or deleted objects are gone,
    also on restart."""
    store = await js.create_object_store("F")
    first, second = os.urandom(3 * CHUNK + 1), os.urandom(2 * CHUNK)
    await store.put("o", first)
    info = await store.put("o", io.BytesIO(second),
                           meta=api.ObjectMeta(name="o", description="two", headers={"a": "b"}))
    assert (info.size, info.chunks) == (2 * CHUNK, 2)
    await store.put("empty", b"")
    await store.put("small", "text", meta=api.ObjectMeta(options=api.ObjectMetaOptions(max_chunk_size=2)))
    await store.put("deleted", b"x")
    await store.delete("deleted")
    assert (await js.stream_info("OBJ_F")).state.messages == 2 + 2 + 4  # chunks, and one description of each object

    await server.restart()
    found = await store.get("o")
    assert found.data == second
    assert (found.info.description, found.info.headers) == ("two", {"a": "b"})
    with (tmp_path / "file").open("wb") as file:
        await store.get("o", writeinto=file)
    assert (tmp_path / "file").read_bytes() == second
    assert (await store.get("small")).data == b"text"
    assert not (await store.get("empty")).data
    with pytest.raises(errors.ObjectNotFoundError):
        await store.get("deleted")
    assert (await store.get_info("deleted", show_deleted=True)).deleted
    assert [one.name for one in await store.list(ignore_deletes=True)] == ["o", "empty", "small"]
    await store.update_meta("small", api.ObjectMeta(name="small", description="later"))
    assert (await store.get_info("small")).description == "later"


@pytest.mark.shows("objects.links", "objects.watch", "objects.seal", "objects.damage")
async def test_objects_that_are_watched_linked_damaged_and_sealed(js: JetStreamContext) -> None:
    """Watchers see each change; links lead to objects and buckets; a wrong digest is detected;
    a seal ends all writing."""
    store, other = await js.create_object_store("F"), await js.create_object_store("G")
    await store.put("o", b"data" * CHUNK)
    watcher = await store.watch()
    assert (await watcher.updates(timeout=SECONDS)).name == "o"
    assert await watcher.updates(timeout=SECONDS) is None
    new = await store.watch(updates_only=True)
    await store.put("p", b"more")
    for one in (watcher, new):
        assert ((info := await one.updates(timeout=SECONDS)).name, info.deleted) == ("p", False)
    await store.delete("p")  # a roll-up: a watcher that has not seen the put by now does not see it
    for one in (watcher, new):
        assert ((info := await one.updates(timeout=SECONDS)).name, info.deleted) == ("p", True)

    await _describe(js, "G", "link", {"options": {"link": {"bucket": "F", "name": "o"}}})
    await _describe(js, "G", "bucket", {"options": {"link": {"bucket": "F"}}})
    assert (await other.get("link")).data == b"data" * CHUNK
    with pytest.raises(errors.LinkIsABucketError):
        await other.get("bucket")

    info = await store.get_info("o")
    await _describe(js, "F", "o", {"nuid": info.nuid, "size": info.size, "chunks": info.chunks,
                                   "digest": "SHA-256=" + "A" * 43 + "="})
    with pytest.raises(errors.DigestMismatchError):
        await asyncio.wait_for(store.get("o"), SECONDS)

    await other.seal()
    assert (await other.status()).sealed
    with pytest.raises(errors.APIError):
        await other.put("late", b"x")
    with pytest.raises(errors.APIError):
        await other.delete("link")
    assert (await other.get_info("link")).is_link()


@pytest.mark.shows("kv.mirror", "kv.republish", "copy.mirror_filter", "copy.source_options")
async def test_buckets_fed_by_another_one(server: ServerProcess, js: JetStreamContext) -> None:
    """A mirror, and a bucket with sources, have another bucket's keys under their own names and republish its
    changes."""
    def of_b(name: str) -> api.StreamSource:
        return api.StreamSource(name="KV_B",
                                subject_transforms=[api.SubjectTransform(src="$KV.B.>", dest=f"$KV.{name}.>")])

    listener = await nats.connect(server.url)
    republished = await listener.subscribe("again.>")
    await listener.flush()
    origin = await js.create_key_value(bucket="B", republish=api.RePublish(src="$KV.B.>", dest="again.>"))
    await origin.put("a", b"1")
    message = await republished.next_msg(SECONDS)
    assert (message.subject, message.data, message.headers["Nats-Sequence"]) == ("again.a", b"1", "1")
    await listener.close()

    await js.add_stream(api.StreamConfig(name="KV_M", mirror=of_b("M"), max_msgs_per_subject=1, allow_direct=True))
    await js.add_stream(api.StreamConfig(name="KV_S", subjects=["$KV.S.>"], sources=[of_b("S")], max_msgs_per_subject=1,
                                         allow_rollup_hdrs=True, allow_direct=True))
    watchers = [await (await js.key_value(name)).watchall() for name in "MS"]
    await origin.put("b", b"2")
    for watcher in watchers:
        seen = []
        while len(seen) < 2:
            entry = await watcher.updates(timeout=SECONDS)
            seen += [(entry.key, entry.value)] if entry else []
        assert seen == [("a", b"1"), ("b", b"2")]
    copy = await js.key_value("S")
    await copy.put("b", b"its own")
    assert (await copy.get("b")).value == b"its own"
    assert (await (await js.key_value("M")).get("b")).value == b"2"


@pytest.mark.shows("objects.bucket")
async def test_object_buckets_come_and_go(js: JetStreamContext) -> None:
    """Shows a bucket's status and its limits, and that nothing of it is left once it is deleted."""
    store = await js.create_object_store("F", api.ObjectStoreConfig(description="files", max_bytes=CHUNK))
    assert ((status := await store.status()).bucket, status.description, status.sealed) == ("F", "files", False)
    await store.put("o", b"x" * 1000)
    assert (await (await js.object_store("F")).get("o")).data == b"x" * 1000
    with pytest.raises(errors.APIError, match="maximum bytes exceeded"):
        await store.put("too large", b"x" * CHUNK)
    assert await js.delete_object_store("F")
    with pytest.raises(errors.NotFoundError):
        await js.object_store("F")


async def _describe(js: JetStreamContext, bucket: str, name: str, more: dict[str, Any]) -> None:
    """Write an object's description as other clients do; nats-py has no call that makes links."""
    subject = f"$O.{bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"
    body = {"name": name, "bucket": bucket, "nuid": "N", "size": 0, "chunks": 0} | more
    await js.publish(subject, json.dumps(body).encode(), headers={"Nats-Rollup": "sub"})
