"""A broker that cannot read one of its streams serves the others for long: the store does not grow, and the stream
comes back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from nats.js import JetStreamContext
from nats.js.errors import APIError

from broker.runtime.embedded import Broker
from broker.storage.checkpoint.checkpointer import Checkpointer
from broker.storage.format.records.body import RecordBody
from broker.storage.format.records.table import BODIES
from tests.plain_records import add_record
from tests.runtime.test_compaction import SETTINGS, compact, connected, shard_of

pytestmark = pytest.mark.usefixtures("merges_on_request")


@dataclass
class FromTheFuture(RecordBody):
    """A record that only a newer release knows."""

    KIND: ClassVar[Any] = 200

    def encode(self) -> object:
        return {}

    @classmethod
    def decode(cls, body: Any) -> FromTheFuture:
        return cls()


def stored(path: Path) -> int:
    """Return the number of segments and runs."""
    return sum(1 for file in path.rglob("*") if file.is_file() and file.parent.name in ("log", "runs"))


async def no_checkpoint(_: Checkpointer) -> bool:
    """Replace ``Checkpointer.cut`` as if the process were killed before it."""
    return False


async def read(js: JetStreamContext, stream: str) -> dict[int, bytes]:
    """Return every message of a stream, by sequence."""
    state = (await js.stream_info(stream)).state
    found = {}
    for seq in range(state.first_seq, state.last_seq + 1):
        found[seq] = (await js.get_msg(stream, seq)).data or b""
    assert len(found) == state.messages
    return found


async def test_the_store_does_not_grow_and_the_stream_comes_back(tmp_path: Path,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer release writes what this one does not know and is killed. Under two runs of this release the other stream
    gets hundreds of messages, is merged and swept. Then the newer release has every message of both."""
    monkeypatch.setitem(BODIES, 200, FromTheFuture)
    async with Broker(tmp_path, settings=SETTINGS) as broker:
        client, js = await connected(broker)
        for name in ("KEEP", "BUSY"):
            await js.add_stream(name=name, subjects=[f"{name}.>"], max_msgs=50 if name == "BUSY" else -1)
        for i in range(1, 31):
            await js.publish("KEEP.a", b"%d" % i)
            await js.publish("BUSY.a", b"%d" % i)
        assert broker._app is not None
        keep = broker._app.jetstream.accounts["$G"].streams["KEEP"]
        add_record(shard_of(broker).log.block(keep), 200, {})
        for i in range(31, 61):
            await js.publish("KEEP.a", b"%d" % i)
        await client.close()
        with monkeypatch.context() as killed:
            killed.setattr(Checkpointer, "cut", no_checkpoint)
            await broker.stop()
    before = stored(tmp_path)
    monkeypatch.delitem(BODIES, 200)
    sent = 30
    for _ in range(2):
        async with Broker(tmp_path, settings=SETTINGS) as broker:
            client, js = await connected(broker)
            with pytest.raises(APIError) as refused:
                await js.stream_info("KEEP")
            assert refused.value.err_code == 10194
            for _ in range(200):
                sent += 1
                await js.publish("BUSY.a", b"%d" % sent)
            await compact(broker)
            assert stored(tmp_path) <= before + 20
            assert list((await read(js, "BUSY")).values()) == [b"%d" % i for i in range(sent - 49, sent + 1)]
            await client.close()
    monkeypatch.setitem(BODIES, 200, FromTheFuture)
    async with Broker(tmp_path, settings=SETTINGS) as broker:
        client, js = await connected(broker)
        assert await read(js, "KEEP") == {i: b"%d" % i for i in range(1, 61)}
        assert list((await read(js, "BUSY")).values()) == [b"%d" % i for i in range(sent - 49, sent + 1)]
        await js.publish("KEEP.a", b"61")
        await compact(broker)
        assert stored(tmp_path) < 30
        assert await read(js, "KEEP") == {i: b"%d" % i for i in range(1, 62)}
        await client.close()


async def test_deleting_the_stream_frees_its_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy without a newer release: the API deletes a stream that is offline, and its objects leave the store."""
    async with Broker(tmp_path, settings=SETTINGS) as broker:
        client, js = await connected(broker)
        for name in ("KEEP", "BUSY"):
            await js.add_stream(name=name, subjects=[f"{name}.>"])
        for i in range(30):
            await js.publish("KEEP.a", b"%d" % i)
        await js.publish("BUSY.a", b"1")
        assert broker._app is not None
        with monkeypatch.context() as newer:
            newer.setitem(BODIES, 200, FromTheFuture)
            await js.publish("KEEP.a", b"30")
            add_record(shard_of(broker).log.block(broker._app.jetstream.accounts["$G"].streams["KEEP"]), 200, {})
            await js.publish("KEEP.a", b"31")
            await client.close()
            newer.setattr(Checkpointer, "cut", no_checkpoint)
            await broker.stop()
    async with Broker(tmp_path, settings=SETTINGS) as broker:
        client, js = await connected(broker)
        for i in range(30):
            await js.publish("BUSY.a", b"%d" % i)
        await compact(broker)
        assert stored(tmp_path) > 30
        assert await js.delete_stream("KEEP")
        for i in range(30):
            await js.publish("BUSY.a", b"%d" % i)
        await compact(broker)
        assert stored(tmp_path) < 30
        await client.close()
