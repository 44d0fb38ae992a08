"""Erasure: removed messages leave every object of the store, and what lived beside them stays."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nats
import pytest
import zstandard
from botocore.session import Session
from nats.js.api import ExternalStream, StreamConfig, StreamSource

from broker.base.nkeys import KeyPair
from broker.cli import run
from broker.erasure.report import FORMAT, sign
from broker.erasure.request import Choice
from broker.jetstream.account.erasing import copies_elsewhere
from broker.jetstream.config.stream import ExternalStream as ExternalApi
from broker.jetstream.config.stream import StreamSource as StreamConfigSource
from broker.jetstream.stream.publish.copies import Copies
from broker.runtime.embedded import Broker
from broker.storage.erasure.eraser import Eraser
from broker.storage.keys.opening import decode_all
from broker.storage.objectstore import Transient
from tests.harness import BrokerProcess
from tests.real.s3 import S3Server

pytestmark = pytest.mark.shows("auth.erasure")

SOON = {"storage.reader_grace_ns": 0, "storage.erase_delay_ns": 10_000_000}
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def files_with(directory: Path, texts: Iterable[bytes]) -> dict[str, list[bytes]]:
    """Return the files below ``directory`` that contain any of ``texts``, compressed or not, with those texts."""
    found: dict[str, list[bytes]] = {}
    for path in directory.rglob("*"):
        if path.is_file():
            data = uncompressed(path.read_bytes())
            if inside := [text for text in texts if text in data]:
                found[str(path.relative_to(directory))] = inside
    return found


def uncompressed(data: bytes) -> bytes:
    """Return ``data``, followed by what each zstd frame in it contains."""
    parts, at = [data], data.find(ZSTD_MAGIC)
    while at >= 0:
        with contextlib.suppress(zstandard.ZstdError):
            parts.append(zstandard.ZstdDecompressor().decompressobj().decompress(data[at:]))
        at = data.find(ZSTD_MAGIC, at + 1)
    return b"".join(parts)


async def eventually(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 (a file system reports no event)
        await asyncio.sleep(0.05)


async def api(client: Any, subject: str, body: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((await client.request(f"$JS.API.{subject}", json.dumps(body).encode(),
                                                              timeout=60)).data)
    assert "error" not in answer, answer
    return answer


async def finished(client: Any, stream: str, erasure: str) -> dict[str, Any]:
    """Wait until an erasure is done, and return what the broker says about it."""
    while True:
        shown = await api(client, f"JETBLOCK.ERASURE.{stream}", {"erasure": erasure})
        if all(one["state"] == "done" for one in shown["streams"]):
            return shown
        await asyncio.sleep(0.05)


async def test_a_subject_leaves_every_object(tmp_path: Path) -> None:
    """Shows that payload, headers, subject and message id of erased messages are in no file, and the others stay."""
    secrets = [b"alice-payload", b"people.alice", b"Alice-Value", b"alice-id"]
    async with Broker(tmp_path, settings=SOON) as broker:
        client = await nats.connect(broker.url)
        js = client.jetstream()
        await js.add_stream(StreamConfig(name="S", subjects=["people.>"], max_msgs_per_subject=2))
        await js.add_stream(StreamConfig(name="T", subjects=["other.>"]))
        for i in range(6):
            for who in ("alice", "bob"):
                await js.publish(f"people.{who}", f"{who}-payload {i}".encode(),
                                 headers={"Who": f"{who.title()}-Value", "Nats-Msg-Id": f"{who}-id-{i}"})
            await js.publish("other.things", b"thing %d" % i)
        assert files_with(tmp_path, secrets)
        answer = await api(client, "JETBLOCK.ERASE.S", {"subjects": ["people.alice"]})
        assert answer["messages"] == 2
        assert answer["streams"] == [{"stream": "S", "sequences": 6, "messages": 2}]
        shown = await finished(client, "S", answer["erasure"])
        assert files_with(tmp_path, secrets) == {}
        assert shown["streams"][0]["held"]
        assert [(await js.get_msg("S", seq)).data for seq in (10, 12)] == [b"bob-payload 4", b"bob-payload 5"]
        assert [(await js.get_msg("T", seq)).data for seq in range(1, 7)] == [b"thing %d" % i for i in range(6)]
        assert (await js.stream_info("S")).state.messages == 2
        await client.close()
    assert files_with(tmp_path, secrets) == {}


async def test_secure_delete_and_purge(tmp_path: Path) -> None:
    """Shows that STREAM.MSG.DELETE erases unless no_erase is set, and that STREAM.PURGE does if no_erase is false."""
    async with Broker(tmp_path, settings=SOON) as broker:
        client = await nats.connect(broker.url)
        js = client.jetstream()
        await js.add_stream(StreamConfig(name="S", subjects=["s.>"]))
        for i in range(1, 9):
            await js.publish(f"s.{i}", b"payload-number-%d" % i, headers={"Nats-Msg-Id": f"id-number-{i}"})
        await api(client, "STREAM.MSG.DELETE.S", {"seq": 1, "no_erase": True})
        await api(client, "STREAM.MSG.DELETE.S", {"seq": 3})
        await api(client, "STREAM.MSG.DELETE.S", {"seq": 8})  # the last one, which compaction keeps for its id
        await eventually(lambda: not files_with(tmp_path, [b"number-3", b"number-8"]))
        answer = await api(client, "STREAM.PURGE.S", {"seq": 6, "no_erase": False})
        assert answer["purged"] == 3
        await finished(client, "S", answer["erasure"])
        assert files_with(tmp_path, [b"number-%d" % i for i in (1, 2, 3, 4, 5, 8)]) == {}
        assert [(await js.get_msg("S", seq)).data for seq in (6, 7)] == [b"payload-number-6", b"payload-number-7"]
        await client.close()


async def test_kills_and_take_overs(tmp_path: Path) -> None:
    """Shows that an erasure that was answered is carried out, whenever the broker is killed."""
    environ = {"JETBLOCK_READER_GRACE": "0s", "JETBLOCK_ERASE_DELAY": "10ms"}
    async with BrokerProcess("--store", f"file://{tmp_path / 'store'}", environ=environ) as broker:
        client = await nats.connect(broker.url)
        js = client.jetstream()
        await js.add_stream(StreamConfig(name="S", subjects=["s.*"]))
        for i in range(60):
            await js.publish(f"s.{i % 6}", b"person-%d said %d" % (i % 6, i),
                             headers={"Nats-Msg-Id": f"person-{i % 6} {i}"})
        consumer = await js.pull_subscribe("s.*", "C", stream="S")
        erasures = []
        for person, seconds in enumerate((0.0, 0.02, 0.05, 0.1, 0.2)):
            answer = await api(client, "JETBLOCK.ERASE.S", {"subjects": [f"s.{person}"]})
            erasures.append(answer["erasure"])
            await client.close()
            await asyncio.sleep(seconds)
            await broker.kill()
            await broker.start()
            client = await nats.connect(broker.url)
        for erasure in erasures:
            await finished(client, "S", erasure)
        assert files_with(tmp_path, [b"person-%d" % person for person in range(5)]) == {}
        js = client.jetstream()
        info = await js.consumer_info("S", "C")
        assert info.num_pending == 10
        consumer = await js.pull_subscribe_bind("C", "S")
        assert [msg.data for msg in await consumer.fetch(10)] == [b"person-5 said %d" % i for i in range(5, 60, 6)]
        await client.close()


async def test_copies_in_other_shards(tmp_path: Path) -> None:
    """Shows that streams that copy from the stream lose the messages in whichever shards they are."""
    async with Broker(tmp_path, settings=SOON | {"storage.shards": 3}) as broker:
        client = await nats.connect(broker.url)
        js = client.jetstream()
        await js.add_stream(StreamConfig(name="S", subjects=["people.>"], metadata={"jetblock.shard": "2"}))
        for shard in ("0", "1"):
            await js.add_stream(StreamConfig(name=f"COPY{shard}", sources=[StreamSource(name="S")],
                                             metadata={"jetblock.shard": shard}))
        for who in ("alice", "bob", "alice"):
            await js.publish(f"people.{who}", f"{who}-said".encode(), headers={"Who": f"{who}-header"})
        for name in ("COPY0", "COPY1"):
            while (await js.stream_info(name)).state.messages < 3:  # noqa: ASYNC110 (a copy reports no event)
                await asyncio.sleep(0.05)
        answer = await api(client, "JETBLOCK.ERASE.S", {"subjects": ["people.alice"]})
        assert {one["stream"]: one["messages"] for one in answer["streams"]} == {"S": 2, "COPY0": 2, "COPY1": 2}
        await finished(client, "S", answer["erasure"])
        assert files_with(tmp_path, SECRETS) == {}
        await client.close()


async def test_copies_keep_messages_for_longer(tmp_path: Path) -> None:
    """Shows that conditions also find the copies of messages that the stream itself has no more; a stream with several
    sources keeps the messages of the others."""
    async with Broker(tmp_path, settings=SOON) as broker:
        client = await nats.connect(broker.url)
        js = client.jetstream()
        await js.add_stream(StreamConfig(name="S", subjects=["people.>"]))
        await js.add_stream(StreamConfig(name="OTHER", subjects=["other"]))
        await js.add_stream(StreamConfig(name="MIRROR", mirror=StreamSource(name="S")))
        await js.add_stream(StreamConfig(name="LAST", mirror=StreamSource(name="MIRROR")))
        await js.add_stream(StreamConfig(name="COPY", subjects=["people2.>"], sources=[
            StreamSource(name="S"), StreamSource(name="OTHER")]))
        for who in ("alice", "bob", "alice"):
            await js.publish(f"people.{who}", f"{who}-said".encode(), headers={"Who": f"{who}-header"})
        await js.publish("other", b"other-said", headers={"Who": "alice-header"})
        for name, messages in (("MIRROR", 3), ("LAST", 3), ("COPY", 4)):
            while (await js.stream_info(name)).state.messages < messages:  # noqa: ASYNC110 (a copy reports no event)
                await asyncio.sleep(0.05)
        first = await api(client, "STREAM.PURGE.S", {"seq": 3, "no_erase": False})
        assert first["purged"] == 2
        await eventually(lambda: (js_of(broker).stream("$G", "S").erasures.unfinished == []))
        answer = await api(client, "JETBLOCK.ERASE.S", {"headers": ["Who: alice-header"]})
        assert {one["stream"]: one["messages"] for one in answer["streams"]} == {
            "S": 1, "MIRROR": 2, "LAST": 2, "COPY": 2}
        await finished(client, "S", answer["erasure"])
        assert files_with(tmp_path, [b"alice-said", b"people.alice"]) == {}
        assert (await js.get_msg("COPY", 4)).data == b"other-said"
        await client.close()


def js_of(broker: Broker) -> Any:
    """Return the JetStream of a broker in this process."""
    assert broker._app is not None
    return broker._app.jetstream


async def test_a_stream_is_deleted_while_its_messages_are_to_be_erased(tmp_path: Path) -> None:
    """Shows that the bytes leave the store although their marks end with the stream."""
    async with Broker(tmp_path, settings=SOON | {"storage.erase_delay_ns": 3_600_000_000_000}) as broker:
        client = await nats.connect(broker.url)
        js = client.jetstream()
        await js.add_stream(StreamConfig(name="S", subjects=["people.>"]))
        await js.add_stream(StreamConfig(name="T", subjects=["other"]))
        for _ in range(5):
            await asyncio.gather(js.publish("people.alice", b"alice-said"), js.publish("other", b"other"))
        await api(client, "STREAM.MSG.DELETE.S", {"seq": 1})
        await api(client, "JETBLOCK.ERASE.S", {"seqs": "2-5"})
        await js.delete_stream("S")
        await eventually(lambda: not files_with(tmp_path, SECRETS))
        assert (await js.stream_info("T")).state.messages == 5
        await client.close()


async def test_a_delete_joins_a_mark_whose_objects_are_being_deleted(tmp_path: Path) -> None:
    """Shows that a message is erased although its mark began with another one, which has been rewritten already."""
    async with Broker(tmp_path, settings=SOON | {"storage.reader_grace_ns": 3_600_000_000_000}) as broker:
        client = await nats.connect(broker.url)
        js = client.jetstream()
        await js.add_stream(StreamConfig(name="S", subjects=["s"]))
        for i in range(4):
            await js.publish("s", b"number-%d" % i)
        passes: list[Any] = []
        assert broker._app is not None
        assert broker._app.jetstream is not None
        eraser = broker._app.jetstream.shards[0].eraser
        assert eraser is not None
        find = eraser._find

        async def counted(erased: Any) -> Any:
            passes.append(erased)
            return await find(erased)

        eraser._find = counted  # type: ignore[method-assign]
        for seq in (1, 3):
            await api(client, "STREAM.MSG.DELETE.S", {"seq": seq})
            await eventually(lambda seq=seq: any(seq in seqs for one in passes for seqs in one.values()))  # type: ignore[misc]
            await eventually(lambda: not eraser._working.locked())
        await client.close()


async def test_many_erasures_and_ranges(tmp_path: Path) -> None:
    """Shows that each of many erasures can be followed to its end, and that too many ranges are refused with advice."""
    async with Broker(tmp_path, settings=SOON | {"storage.erase_delay_ns": 300_000_000}) as broker:
        client = await nats.connect(broker.url)
        await client.jetstream().add_stream(StreamConfig(name="S", subjects=["s"]))
        for _ in range(40):
            await client.jetstream().publish("s", b"payload")
        erasures = [(await api(client, "JETBLOCK.ERASE.S", {"seqs": f"{seq}"}))["erasure"] for seq in range(1, 41)]
        for erasure in erasures:
            await finished(client, "S", erasure)
        many = json.dumps({"seqs": ",".join(map(str, range(1, 20_003, 2)))}).encode()
        refused = json.loads((await client.request("$JS.API.JETBLOCK.ERASE.S", many)).data)
        assert "at most 10000 ranges of sequences: erase in parts" in refused["error"]["description"]
        for request, body, why in (("ERASURE", b'{"erasure": "none"}', "no erasure 'none' is known"),
                                   ("ERASE", b'{"seqs": "1", "ids": ["x"]}', "name seqs, or any of subjects")):
            refused = json.loads((await client.request(f"$JS.API.JETBLOCK.{request}.S", body)).data)
            assert why in refused["error"]["description"]
        await client.close()


def test_requests_stay_below_the_maximum_payload() -> None:
    """Shows that long message ids are sent in several requests, each once and in order."""
    ids = [f"{i:0200}" for i in range(20_000)]
    bodies = list(Choice(ids=ids, headers=["Name"]).bodies())
    assert max(len(json.dumps(body)) for body in bodies) < 1 << 20
    assert [one for body in bodies for one in body["ids"]] == ids
    assert all(body["headers"] == ["Name"] for body in bodies)


def erase(*arguments: str) -> tuple[int, str]:
    """Run the command; return its status and output."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        status = run(["erase", *arguments])
    return status, out.getvalue()


async def filled(directory: Path | str, settings: dict[str, Any] | None = None) -> None:
    """Make a store with a stream, a mirror of it, and one that has it as a source."""
    async with Broker(directory, settings=settings or {}) as broker:
        client = await nats.connect(broker.url)
        js = client.jetstream()
        await js.add_stream(StreamConfig(name="S", subjects=["people.>"]))
        await js.add_stream(StreamConfig(name="MIRROR", mirror=StreamSource(name="S")))
        await js.add_stream(StreamConfig(name="COPY", sources=[StreamSource(name="S")]))
        for i in range(20):
            who = "alice" if i % 4 else "bob"
            await js.publish(f"people.{who}", f"{who}-said-{i}".encode(),
                             headers={"Who": f"{who}-header", "Nats-Msg-Id": f"{i}-id"})
        for name in ("MIRROR", "COPY"):
            while (await js.stream_info(name)).state.messages < 20:  # noqa: ASYNC110 (the broker reports no event)
                await asyncio.sleep(0.02)
        await client.close()


SECRETS = [b"alice-said", b"people.alice", b"alice-header"]


def test_the_command_with_report_and_proof(tmp_path: Path) -> None:
    """Shows the command on a store: mirrors and sources lose the messages too, and its report can be verified."""
    store, report, page = tmp_path / "store", tmp_path / "report.json", tmp_path / "report.html"
    asyncio.run(filled(store))
    backup = tmp_path / "backup"
    assert run(["backup", f"file://{store}", f"file://{backup}"]) == 0
    assert files_with(store, SECRETS)
    status, text = erase(f"file://{store}", "S", "--header", "Who: alice-header", "--report", str(report), "--html",
                         str(page), "--backup", f"file://{backup}")
    assert status == 1  # the backup has the messages
    assert "this backup has erased messages" in text
    assert "45 messages were removed" in text
    assert files_with(store, SECRETS) == {}
    assert files_with(tmp_path / "report.json", SECRETS) == {}
    written = json.loads(report.read_text())
    assert {one["stream"] for one in written["streams"]} == {"S", "MIRROR", "COPY"}
    assert written["deleted"]
    assert all(len(one["sha256"]) == 64 or "before its checksum was read" in one["note"] for one in written["deleted"])
    assert all(len(one["sha256"]) == 64 for one in written["made"])
    assert not any(secret.decode() in report.read_text() + page.read_text() for secret in SECRETS)
    assert erase(f"file://{store}", "--verify", str(report))[0] == 0
    status, text = erase(f"file://{backup}", "--verify", str(report))
    assert status == 1
    assert "has messages among" in text
    report.write_text(report.read_text().replace('"messages": 45', '"messages": 44'))
    status, text = erase(f"file://{store}", "--verify", str(report))
    assert (status, "the report was changed" in text) == (2, True)


def test_sequences_ids_and_mistakes(tmp_path: Path) -> None:
    """Shows the other ways to choose messages, and the answers to wrong command lines."""
    store, ids = tmp_path / "store", tmp_path / "ids"
    asyncio.run(filled(store))
    ids.write_text("3-id\n5-id\n")
    assert erase(f"file://{store}", "S", "--ids", str(ids))[0] == 0
    assert erase(f"file://{store}", "S", "--seq", "1,9-10")[0] == 0
    assert files_with(store, [b"alice-said-3", b"alice-said-5", b"bob-said-0", b"bob-said-8", b"alice-said-9"]) == {}
    assert files_with(store, [b"bob-said-4"])
    for arguments, expected in (((f"file://{store}", "S"), "say which messages"),
                                ((f"file://{store}", "S", "--seq", "x"), "is no sequence"),
                                ((f"file://{store}", "NONE", "--seq", "1"), "stream not found"),
                                ((f"file://{tmp_path}/none", "S", "--seq", "1"), "no such directory"),
                                (("--server", "nats://x", "S", "--seq", "1", "--account", "A"), "need STORE")):
        status, text = erase(*arguments)
        assert (status, expected in text) == (2, True), text


async def test_what_may_be_erased(tmp_path: Path) -> None:
    """Shows that keys of a bucket can be erased, from copies of copies too, and that a stream which denies deletes and
    purges keeps all, as do the streams that it copies from.
    """
    async with Broker(tmp_path, settings=SOON) as broker:
        client = await nats.connect(broker.url)
        js = client.jetstream()
        bucket = await js.create_key_value(bucket="people")
        await js.add_stream(StreamConfig(name="MIRROR", mirror=StreamSource(name="KV_people")))
        await js.add_stream(StreamConfig(name="COPY", sources=[StreamSource(name="KV_people")]))
        await js.add_stream(StreamConfig(name="LAST", mirror=StreamSource(name="COPY")))
        await bucket.put("alice", b"alice-payload")
        await bucket.put("bob", b"bob-payload")
        for name, count in (("MIRROR", 2), ("COPY", 2), ("LAST", 2)):
            while (await js.stream_info(name)).state.messages < count:  # noqa: ASYNC110 (a copy reports no event)
                await asyncio.sleep(0.05)
        answer = await api(client, "JETBLOCK.ERASE.KV_people", {"subjects": ["$KV.people.alice"]})
        assert {one["stream"]: one["messages"] for one in answer["streams"]} == {
            "KV_people": 1, "MIRROR": 1, "COPY": 1, "LAST": 1}
        await finished(client, "KV_people", answer["erasure"])
        assert files_with(tmp_path, [b"alice"]) == {}
        assert (await bucket.get("bob")).value == b"bob-payload"
        await js.add_stream(StreamConfig(name="KEPT", deny_delete=True, deny_purge=True,
                                         mirror=StreamSource(name="LAST")))
        refused = json.loads((await client.request("$JS.API.JETBLOCK.ERASE.KV_people", b'{"seqs": "2"}')).data)
        assert refused["error"]["description"] == "stream KEPT permits neither delete nor purge"
        assert (await bucket.get("bob")).value == b"bob-payload"
        await client.close()


def test_shredding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that the key of a shredded stream leaves an encrypted store, with everything of the stream."""
    monkeypatch.setenv("JETBLOCK_KEY", "the master key of these tests")
    store, report = tmp_path / "store", tmp_path / "report.json"
    asyncio.run(filled(store, {"storage.key": "the master key of these tests"}))
    status, text = erase(f"file://{store}", "COPY", "--shred", "--report", str(report))
    assert status == 0, text
    key = bytes.fromhex(json.loads(report.read_text())["key"])
    assert len(key) == 8
    objects = decode_all([(str(path.relative_to(store)), path.read_bytes()) for path in (store / "v1/keys").iterdir()])
    assert key in {one.key_id for kept in objects for one in kept.destroyed}
    assert key not in {one.key_id for kept in objects for one in kept.keys}
    found = files_with(store, [key])
    assert all("v1/keys/" in name for name in found), found
    assert erase(f"file://{store}", "--verify", str(report))[0] == 0


async def test_a_key_is_destroyed_by_the_next_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that a broker that ends between the deletion of a stream and of its key leaves that to the next one."""
    settings = SOON | {"storage.key": "the master key of these tests"}

    def keys() -> tuple[int, int]:
        found = decode_all([(str(path.relative_to(tmp_path)), path.read_bytes())
                            for path in (tmp_path / "v1/keys").iterdir()])
        return len({key.key_id for one in found for key in one.keys}), sum(len(one.destroyed) for one in found)

    async def never(_: Eraser) -> None:
        raise Transient("the broker ends here")

    with monkeypatch.context() as patched:
        patched.setattr(Eraser, "forget_deleted", never)
        async with Broker(tmp_path, settings=settings) as broker:
            client = await nats.connect(broker.url)
            await client.jetstream().add_stream(StreamConfig(name="S", subjects=["s"]))
            await client.jetstream().publish("s", b"payload")
            assert "error" in json.loads((await client.request("$JS.API.JETBLOCK.SHRED.S", timeout=30)).data)
            await client.close()
    assert keys() == (2, 0)
    async with Broker(tmp_path, settings=settings):
        await eventually(lambda: keys() == (1, 1))


@pytest.mark.parametrize("more", [{"deny_delete": True, "deny_purge": True}, {"sealed": True}])
def test_shredding_what_denies_deletes(tmp_path: Path, more: dict[str, bool]) -> None:
    """Shows that a stream that permits no deletes can be shredded, and leaves nothing in a store without encryption."""
    async def fill() -> None:
        async with Broker(tmp_path) as broker:
            client = await nats.connect(broker.url)
            js = client.jetstream()
            config = StreamConfig(name="S", subjects=["people.*"])
            await js.add_stream(config)
            await js.publish("people.alice", b"alice-said")
            await js.update_stream(config.evolve(**more))
            await client.close()

    asyncio.run(fill())
    assert erase(f"file://{tmp_path}", "S", "--seq", "1")[0] == 2
    status, text = erase(f"file://{tmp_path}", "S", "--shred")
    assert status == 0, text
    assert files_with(tmp_path, SECRETS) == {}


def test_a_stream_that_is_restored_after_the_erasure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Shows that the verification names a later stream of the same name: no report can say whether a backup that was
    restored over the API had the messages."""
    store, report = tmp_path / "store", tmp_path / "report.json"

    async def restore() -> None:
        async with Broker(store) as broker:
            client = await nats.connect(broker.url)
            await client.jetstream().delete_stream("S")
            await client.jetstream().add_stream(StreamConfig(name="S", subjects=["people.>"]))
            await client.jetstream().publish("people.alice", b"alice-said-1")
            await client.close()

    asyncio.run(filled(store))
    assert run(["erase", f"file://{store}", "S", "--seq", "1", "--report", str(report)]) == 0
    asyncio.run(restore())
    capsys.readouterr()
    assert run(["erase", f"file://{store}", "--verify", str(report)]) == 0
    assert "not checked: stream S, which is not the one that the report is about" in capsys.readouterr().out


def test_a_report_that_says_nothing(tmp_path: Path) -> None:
    """Shows that a signed report with other values than the command writes is refused in one line."""
    report = tmp_path / "report.json"
    signed = sign({"format": FORMAT, "account": "$G", "erasure": "", "deleted": [], "streams": [
        {"stream": "S", "incarnation": "1", "sequences": 5}]}, KeyPair("U", bytes(32)))
    report.write_text(json.dumps(signed))
    status, text = erase(f"file://{tmp_path}", "--verify", str(report))
    assert (status, "the report is damaged" in text) == (2, True), text


@pytest.mark.soak  # take-overs of a bucket wait for a lease
@pytest.mark.timeout(300)
def test_old_versions_in_a_bucket(tmp_path: Path, minio: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that a bucket with versioning keeps the bytes, that the report says so, and that they are deleted when
    asked."""
    for name, value in minio.env.items():
        monkeypatch.setenv(name, value)
    bucket, report = f"versions-{secrets.token_hex(4)}", tmp_path / "report.json"
    minio.make_bucket(bucket)
    s3: Any = Session().create_client("s3", endpoint_url=minio.env["AWS_ENDPOINT_URL"], region_name="us-east-1")
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    url = f"s3://{bucket}/store"
    asyncio.run(filled(url))
    asyncio.run(_compacted(url))
    status, text = erase(url, "S", "--subject", "people.alice", "--report", str(report))
    assert (status, "old versions of deleted objects are in the bucket" in text) == (1, True), text
    assert erase(url, "--verify", str(report))[0] == 1
    status, text = erase(url, "--verify", str(report), "--delete-versions")
    assert status == 0, text
    left = s3.list_object_versions(Bucket=bucket)
    assert [row["Key"] for row in left.get("DeleteMarkers", ())] == []
    for row in left["Versions"]:
        body = s3.get_object(Bucket=bucket, Key=row["Key"], VersionId=row["VersionId"])["Body"].read()
        assert not any(secret in uncompressed(body) for secret in SECRETS), row["Key"]


async def _compacted(url: str) -> None:
    """Let objects with the messages be replaced before anybody wants to erase them."""
    async with Broker(url, settings=SOON | {"storage.compaction_cpu": 100}) as broker:
        shard = js_of(broker).shards[0]
        await shard.eraser._compactor.work(quiet=True)
        await shard.eraser.forget_deleted()


async def _numbers(store: Path) -> None:
    async with Broker(store, settings={"storage.compaction": False, "storage.journal": False}) as broker:
        client = await nats.connect(broker.url)
        js = client.jetstream()
        await js.add_stream(StreamConfig(name="S", subjects=["s.>"]))
        await asyncio.gather(*[js.publish(f"s.{i}", b"payload-number-%02d" % i) for i in range(20)])
        await client.close()


def damage(store: Path, at: int) -> Path:
    """Overwrite the end of the object that has message 8, from ``at`` on; return its path."""
    hit = next(path for path in store.rglob("*")
               if path.is_file() and b"number-07" in uncompressed(path.read_bytes()))
    data = bytearray(hit.read_bytes())
    data[at:] = bytes(len(data[at:]))
    hit.chmod(0o600)
    hit.write_bytes(data)
    return hit


@pytest.mark.parametrize("part", ["index", "frame"])
def test_a_damaged_object_is_named_and_repaired(tmp_path: Path, capsys: pytest.CaptureFixture[str], part: str) -> None:
    """Shows that a damaged object is named: without its index nothing is erased, and if messages beside the erased ones
    cannot be moved, the report says so; that `fsck --repair` lets the erasure end; and that --verify then names what
    fsck set aside."""
    store, url, report = tmp_path / "store", f"file://{tmp_path / 'store'}", tmp_path / "report.json"
    asyncio.run(_numbers(store))
    hit = damage(store, 150 if part == "index" else -4)
    erase = ["erase", url, "S", "--seq", "8,15", "--report", str(report)]
    status, shown = run(erase), capsys.readouterr()
    if part == "index":
        assert status == 2
        assert f"{hit.relative_to(store)}: index" in shown.err
    else:
        assert status == 1
        assert f"not erased: {hit.relative_to(store)}: it may have the messages, and is damaged" in shown.out
        assert json.loads(report.read_text())["done"] == ""
    run(["fsck", url, "--repair"])
    capsys.readouterr()
    assert run(erase) == 0, capsys.readouterr().out
    capsys.readouterr()
    assert run(["erase", url, "--verify", str(report)]) == 1
    out = capsys.readouterr().out
    assert "fsck has set this damaged object aside" in out
    assert "not checked: journals and cache directories" in out


async def test_a_damaged_object_does_not_hold_other_erasures_up(tmp_path: Path) -> None:
    """Shows that of two erasures in one pass, the one that has nothing in a damaged object ends."""
    settings = {"storage.compaction": False, "storage.journal": False}
    async with Broker(tmp_path, settings=settings) as broker:
        client = await nats.connect(broker.url)
        js = client.jetstream()
        await js.add_stream(StreamConfig(name="S", subjects=["s.>"]))
        await asyncio.gather(*[js.publish(f"s.{i}", b"payload-number-%02d" % i) for i in range(20)])
        await js.publish("s.20", b"payload-number-20")
        await client.close()
    hit = damage(tmp_path, -4)
    async with Broker(tmp_path, settings=SOON | {"storage.erase_delay_ns": 500_000_000}) as broker:
        client = await nats.connect(broker.url)
        stuck, other = [(await api(client, "JETBLOCK.ERASE.S", {"seqs": seqs}))["erasure"] for seqs in ("8", "21")]
        await finished(client, "S", other)
        shown = await api(client, "JETBLOCK.ERASURE.S", {"erasure": stuck})
        assert [one["key"] for one in shown["streams"][0]["damaged"]] == [str(hit.relative_to(tmp_path))]
        await client.close()


@pytest.mark.parametrize("choice", [["--subject", "s.7"], ["--header", "Number:7"], ["--ids", "ids"]])
def test_a_damaged_object_that_a_condition_cannot_be_looked_for_in(
        tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, choice: list[str]) -> None:
    """Shows that the report names a damaged object: nobody can say whether its messages fulfil the condition."""
    store, url, report = tmp_path / "store", f"file://{tmp_path / 'store'}", tmp_path / "report.json"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ids").write_text("number-7")
    asyncio.run(_numbers(store))
    hit = damage(store, 150)
    assert run(["erase", url, "S", *choice, "--report", str(report)]) == 1
    assert f"not erased: {hit.relative_to(store)}: it may have the messages, and is damaged" in capsys.readouterr().out


async def test_copies_by_an_external_api(tmp_path: Path) -> None:
    """Shows that a mirror and a source that name this server's own domain lose the messages, and so does a source with
    a named consumer."""
    async with Broker(tmp_path, settings=SOON | {"jetstream.domain": "here"}) as broker:
        client = await nats.connect(broker.url)
        js = client.jetstream()
        await js.add_stream(StreamConfig(name="S", subjects=["s"]))
        own = StreamSource(name="S", external=ExternalStream(api="$JS.here.API"))
        await js.add_stream(StreamConfig(name="M", mirror=own))
        await js.add_stream(StreamConfig(name="R", sources=[own]))
        await api(client, "CONSUMER.CREATE.S.C", {"stream_name": "S", "config": {
            "name": "C", "durable_name": "C", "ack_policy": "flow_control", "deliver_subject": "to.c",
            "flow_control": True, "idle_heartbeat": 1_000_000_000}})
        await api(client, "STREAM.CREATE.N", {"name": "N", "sources": [
            {"name": "S", "consumer": {"name": "C", "deliver_subject": "to.c"}}]})
        await js.publish("s", b"number-1")
        for name in ("M", "R", "N"):
            while (await js.stream_info(name)).state.messages < 1:  # noqa: ASYNC110 (a copy reports no event)
                await asyncio.sleep(0.02)
        answer = await api(client, "JETBLOCK.ERASE.S", {"seqs": "1"})
        assert {one["stream"]: one["messages"] for one in answer["streams"]} == {"S": 1, "M": 1, "R": 1, "N": 1}
        await finished(client, "S", answer["erasure"])
        assert files_with(tmp_path, [b"number-1"]) == {}
        await client.close()


async def test_messages_on_their_way_to_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that a copy that has read messages, and waits for room to store them, does not store those that are erased
    meanwhile."""
    has_room, waits, room = asyncio.Event(), asyncio.Event(), Copies.room

    async def held(copies: Copies) -> None:
        waits.set()
        await has_room.wait()
        await room(copies)

    monkeypatch.setattr(Copies, "room", held)
    async with Broker(tmp_path, settings=SOON) as broker:
        client = await nats.connect(broker.url)
        js = client.jetstream()
        await js.add_stream(StreamConfig(name="S", subjects=["people.*"]))
        await js.add_stream(StreamConfig(name="MIRROR", mirror=StreamSource(name="S")))
        await js.add_stream(StreamConfig(name="COPY", sources=[StreamSource(name="S")]))
        for who in ("alice", "bob"):
            await js.publish(f"people.{who}", f"{who}-said".encode(), headers={"Who": f"{who}-header"})
        await waits.wait()
        answer = await api(client, "JETBLOCK.ERASE.S", {"subjects": ["people.alice"]})
        has_room.set()
        await finished(client, "S", answer["erasure"])
        for name in ("MIRROR", "COPY"):
            while (await js.stream_info(name)).state.messages < 1:  # noqa: ASYNC110 (a copy reports no event)
                await asyncio.sleep(0.02)
            assert (await js.get_last_msg(name, "people.bob")).data == b"bob-said"
        assert files_with(tmp_path, SECRETS) == {}
        await client.close()


def test_origins_elsewhere() -> None:
    """Shows which copies are named: those by the API of another domain or account."""
    def stream(name: str, *sources: StreamConfigSource) -> Any:
        return SimpleNamespace(name=name, stored=True, config=SimpleNamespace(mirror=None, sources=sources))

    other = ExternalApi(api="$JS.prod.API")
    streams = {one.name: one for one in (
        stream("S"), stream("HERE", StreamConfigSource(name="S")), stream("LOOP", StreamConfigSource(
            name="S", external=other)), stream("OWN", StreamConfigSource(name="S", external=ExternalApi(
                api="$JS.here.API"))), stream("T", StreamConfigSource(name="X", external=other)))}
    assert copies_elsewhere(streams, ["S", "HERE", "OWN"], "here") == ["LOOP"]
