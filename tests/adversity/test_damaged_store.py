"""Damaged bytes in the store. If recovery needs them, the start fails, naming the object and the remedy. If only
readers need them, those reads fail, without wrong data or an effect on others.

Files of a directory store are damaged between two runs: one bit is flipped, or the end is cut off.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import nats.errors
import pytest
import pytest_asyncio
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig
from nats.js.errors import APIError

from broker.storage.format.header import Position
from broker.storage.format.segment import SegmentHead, decode_head
from tests.adversity.clients import connect, read_all, unexpected
from tests.harness import EACH_COMMIT_A_SEGMENT, BrokerProcess

LOG = Path("v1/shards/0/log")
COUNT = 20
UNCOMPRESSED = {**EACH_COMMIT_A_SEGMENT, "JETBLOCK_COMPRESSION": "none"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store that a kill left; tests work on copies of it."""
    return await filled(tmp_path_factory.mktemp("killed") / "store")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store that a clean stop left; tests work on copies of it."""
    return await filled(tmp_path_factory.mktemp("stopped") / "store", stop=True)


async def filled(store: Path, *, stop: bool = False) -> Path:
    """Fill streams A and B with COUNT messages each, one segment for each message, and end by a kill or a clean
    stop."""
    async with BrokerProcess("--store", f"file://{store}", environ=UNCOMPRESSED) as broker:
        nc = await connect(broker.url)
        js = nc.jetstream()
        for name in "AB":
            await js.add_stream(StreamConfig(name=name, subjects=[f"{name}.>"], allow_direct=True))
        for i in range(COUNT):
            for name in "AB":
                await js.publish(f"{name}.{i}", f"payload {i} of {name} ".encode() * 20)
        await nc.close()
        await (broker.stop() if stop else broker.kill())
    return store


def segments_of(store: Path, shard: int = 0) -> list[tuple[Path, SegmentHead]]:
    """Return the segments of a shard that have messages, in order."""
    found = []
    for path in sorted((store / f"v1/shards/{shard}/log").iterdir()):
        epoch, _, number = path.name.partition("-")
        data = path.read_bytes()
        if data[8] != 3:
            continue  # a seal
        head = decode_head(data, Position(int(epoch, 16), int(number, 16)))
        assert isinstance(head, SegmentHead)
        if any(row.messages for row in head.rows):
            found.append((path, head))
    return found


def change(path: Path, how: Callable[[bytearray], None]) -> None:
    data = bytearray(path.read_bytes())
    how(data)
    path.chmod(0o640)
    path.write_bytes(data)


def flip(at: int) -> Callable[[bytearray], None]:
    def how(data: bytearray) -> None:
        data[at] ^= 4
    return how


def cut(data: bytearray) -> None:
    del data[len(data) // 2:]


def where(part: str, head: SegmentHead) -> Callable[[bytearray], None]:
    row = next(row for row in head.rows if row.messages)
    match part:
        case "header":
            return flip(20)
        case "directory":
            return flip(row_at(head))
        case "core":
            return flip(row.core_offset + 30)
        case "records":
            return flip(row.core_offset + row.core_bytes - 1)
    return cut


def row_at(head: SegmentHead) -> int:
    """Return the offset of a byte of the directory, which ends where the first core begins."""
    return min(row.core_offset for row in head.rows) - 8


@pytest.mark.parametrize("part", ["header", "directory", "core", "records", "cut", "empty"])
async def test_a_damaged_segment_stops_the_start(killed: Path, tmp_path: Path, part: str) -> None:
    """The segment is in the replayed part of the log. It is never mistaken for the log's end: the last but one is
    damaged, and an end there would lose the last. With the object restored, the store is sound."""
    store = Path(shutil.copytree(killed, tmp_path / "store"))
    path, head = segments_of(store)[-2]
    before = path.read_bytes()
    change(path, bytearray.clear if part == "empty" else where(part, head))
    broker = BrokerProcess("--store", f"file://{store}")
    try:
        await broker.start(ready=False)
        assert await broker.wait_end() == 1, broker.tail()
        [said] = [line for line in broker.stderr if "[FTL]" in line]
        assert f"{LOG}/{path.name}" in said, said
        assert "from a copy of the store" in said, said
        assert f"jetblock inspect file://{store} --verify" in said, said
        assert not unexpected(broker), broker.tail()
        path.write_bytes(before)
        await broker.start()
        nc = await connect(broker.url)
        for name in "AB":
            assert len(await read_all(nc, name)) == COUNT
        await nc.close()
    finally:
        await broker.close()


@pytest.mark.shows("store.damage")
@pytest.mark.parametrize("part", ["index", "frame"])
async def test_a_damaged_block_costs_its_own_reads_alone(killed: Path, tmp_path: Path, part: str) -> None:
    """The broker runs. Reads of the damaged message are refused or time out, and the log names the object. Every other
    message is served, by every way to read; consumers of the other stream are unaffected."""
    store = Path(shutil.copytree(killed, tmp_path / "store"))
    lost = 11
    path, head = next((path, head) for path, head in segments_of(store)
                      if any(row.messages and row.first_seq == lost for row in head.rows)
                      and b"of A" in path.read_bytes())
    row = next(row for row in head.rows if row.messages)
    change(path, flip((row.index_offset if part == "index" else row.frames_offset) + 40))
    async with BrokerProcess("--store", f"file://{store}") as broker:
        nc = await connect(broker.url)
        js = nc.jetstream()
        assert len(await read_all(nc, "B")) == COUNT
        for seq in range(1, COUNT + 1):
            for direct in (False, True):
                if seq != lost:
                    assert (await js.get_msg("A", seq,
                                             direct=direct)).data.startswith(f"payload {seq - 1} of A".encode())
                    continue
                with pytest.raises((APIError, nats.errors.Error)) as refused:
                    await js.get_msg("A", seq, direct=direct)
                assert not isinstance(refused.value, nats.errors.TimeoutError) or direct
        line = await broker.wait_line(r"(?i)\[(WRN|ERR)\].*" + path.name)
        assert str(LOG) in line.string, line.string
        # The last message of another subject is found past the damage.
        assert (await js.get_last_msg("A", f"A.{COUNT - 1}")).seq == COUNT
        # A consumer gets all messages before the damage and waits there; one that begins after it gets the others.
        first = await js.pull_subscribe("A.>", durable="first", config=ConsumerConfig(ack_policy=AckPolicy.EXPLICIT))
        seen: list[int] = []
        while len(seen) < lost - 1:
            for message in await first.fetch(lost - 1 - len(seen), timeout=30):
                seen.append(message.metadata.sequence.stream)
                await message.ack()
        with pytest.raises(TimeoutError):  # nats-py's own, or where its time is just up the plain one
            await first.fetch(COUNT, timeout=1)
        assert seen == list(range(1, lost))
        rest = await js.pull_subscribe("A.>", durable="rest", config=ConsumerConfig(
            ack_policy=AckPolicy.EXPLICIT, deliver_policy="by_start_sequence", opt_start_seq=lost + 1))
        assert [m.metadata.sequence.stream for m in await rest.fetch(COUNT - lost,
                                                                     timeout=30)] == list(range(lost + 1, COUNT + 1))
        # The stream continues to accept messages. The unreadable ones can be purged, so that the consumer continues
        # after them.
        await js.publish("A.new", b"new")
        await js.purge_stream("A", seq=lost + 1)
        message = (await first.fetch(1, timeout=30))[0]
        assert message.metadata.sequence.stream == lost + 1
        assert not unexpected(broker), broker.tail()
        # A damaged block at which a consumer waits does not fill the disk with log lines.
        assert sum(path.name in line for line in broker.stderr) < 30, broker.tail()
        await nc.close()


@pytest.mark.parametrize("how", ["flipped", "gone"])
async def test_a_stream_with_a_damaged_block_can_be_seen(tmp_path: Path, how: str) -> None:
    """A stream has limits of each subject, and one of its blocks cannot be read: its info is there, without the number
    of its subjects, and so are its other messages."""
    store = tmp_path / "store"
    async with BrokerProcess("--store", f"file://{store}", environ=UNCOMPRESSED) as broker:
        nc = await connect(broker.url)
        js = nc.jetstream()
        await js.add_stream(StreamConfig(name="S", subjects=["S.>"], max_msgs_per_subject=2))
        for i in range(5):
            await asyncio.gather(*[js.publish(f"S.{n}", b"payload %d" % i) for n in range(3)])
        await js.publish("S.0", b"the last")
        await nc.close()
        await broker.stop()
    path, head = next((path, head) for path, head in segments_of(store)
                      if any(row.messages and row.first_seq <= 12 <= row.last_seq for row in head.rows))
    if how == "gone":
        path.unlink()
    else:
        change(path, flip(next(row.index_offset for row in head.rows if row.messages) + 40))
    async with BrokerProcess("--store", f"file://{store}") as broker:
        nc = await connect(broker.url)
        state = json.loads((await nc.request("$JS.API.STREAM.INFO.S")).data)["state"]
        assert (state["messages"], state["last_seq"], state.get("num_subjects")) == (6, 16, None)
        assert (await nc.jetstream().get_msg("S", 16)).data == b"the last"
        await broker.wait_line(r"\[WRN\] .*stream S: its subjects cannot be counted: .*" + path.name)
        assert not unexpected(broker), broker.tail()
        await nc.close()


@pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
async def test_a_damaged_checkpoint_falls_back_to_the_one_before(stopped: Path, tmp_path: Path, how: str) -> None:
    """Each clean stop cuts a checkpoint. The newest root is unusable: the one before, with the log after it, gives the
    same state."""
    store = Path(shutil.copytree(stopped, tmp_path / "store"))
    async with BrokerProcess("--store", f"file://{store}") as broker:
        nc = await connect(broker.url)
        await nc.jetstream().publish("A.more", b"more")
        await nc.close()
        await broker.stop()
    roots = sorted((store / "v1/shards/0/checkpoint").iterdir())
    assert len(roots) >= 2
    if how == "gone":
        roots[-1].unlink()
    else:
        change(roots[-1], flip(90) if how == "flipped" else cut)
    async with BrokerProcess("--store", f"file://{store}") as broker:
        if how != "gone":
            line = await broker.wait_line(r"\[WRN\] a checkpoint cannot be used, an older one was: (.*)")
            assert roots[-1].name in line[1]
        nc = await connect(broker.url)
        assert len(await read_all(nc, "A")) == COUNT + 1
        assert len(await read_all(nc, "B")) == COUNT
        await nc.jetstream().publish("A.more", b"more")
        await broker.restart()
        assert len(await read_all(nc, "A")) == COUNT + 2
        await nc.close()
        assert not unexpected(broker)


async def test_a_damaged_opening_or_claim(killed: Path, tmp_path: Path) -> None:
    """The damage is in the log's own bookkeeping: the start fails and names the object."""
    store = Path(shutil.copytree(killed, tmp_path / "store"))
    for folder, name in ((LOG, "00000001-000000000000"),):
        path = store / folder / name
        before = path.read_bytes()
        change(path, flip(20))
        broker = BrokerProcess("--store", f"file://{store}")
        await broker.start(ready=False)
        assert await broker.wait_end() == 1
        [said] = [line for line in broker.stderr if "[FTL]" in line]
        assert f"{folder}/{name}" in said, said
        await broker.close()
        path.write_bytes(before)


