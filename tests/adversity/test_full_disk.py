"""A full disk: acknowledged messages stay, publishers get errors, the log names the disk, and the broker recovers as
soon as there is room. Clients can make room: purges and deletes are carried out with a reserve.

The directory store is on a small tmpfs, which root may mount; if it cannot be mounted, the tests are skipped with that
reason (``tests/storage/objectstore/test_reserving.py`` tests the reserve without one). test_full_bucket does the same
with quotas of buckets.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig
from nats.js.errors import APIError

from broker.inspect.source import Source
from broker.inspect.survey import read_survey
from broker.inspect.verify import verify
from broker.storage.objectstore.file import FileStore
from tests.adversity.clients import Writer, connect, health, read_all, unexpected, until
from tests.adversity.full_store import CONFIG, check_full_store, request
from tests.eager_broker import EagerBrokerProcess, compaction
from tests.harness import BrokerProcess
from tests.real.s3 import MISSING

pytestmark = pytest.mark.shows("store.full_disk")

SIZE_MIB = 12
ENVIRON = {"JETBLOCK_TAIL_BYTES_MAX": "1mb", "JETBLOCK_SEGMENT_BYTES": "64kb", "JETBLOCK_COMPRESSION": "none",
           "JETBLOCK_RESERVE": "768kb"}
"""Settings for a small disk; the largest reserve is a sixteenth of it."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 12 MiB, 8 of them taken by a file ``ballast``."""
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "jetblock-test", str(disk)],
                              capture_output=True, text=True, check=False)
        why = done.stderr.strip()
    except OSError as error:
        done, why = None, str(error)
    if done is None or done.returncode:
        pytest.skip(f"{MISSING}the right to mount a small tmpfs ({why})")
    (disk / "ballast").write_bytes(bytes(8 << 20))
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


async def test_a_full_disk_loses_nothing_and_needs_only_room(small_disk: Path) -> None:
    """Publishes on a full disk are refused at once, as by nats-server, and the log and /healthz name the disk and the
    remedy. Once a file is deleted, the broker continues by itself. All acknowledged messages are there, after a kill,
    too."""
    async with BrokerProcess("--store", f"file://{small_disk / 'store'}", environ=ENVIRON) as broker:
        nc = await connect(broker.url)
        js = nc.jetstream()
        await js.add_stream(StreamConfig(name="S", subjects=["s.>"], allow_direct=True))
        pull = await js.pull_subscribe("s.>", durable="pull", config=ConsumerConfig(ack_policy=AckPolicy.NONE))
        async with Writer("s.x", broker.url, window=100, size=16 * 1024, timeout=60) as writer:
            await writer.refused(1)
            error = writer.errors[0]
            assert (error.code, error.err_code) == (503, 10023), error
            assert error.description == "insufficient resources"
            line = await broker.wait_line(r"\[WRN\] (.* publishes .* are refused .*)")
            for text in (line[1], (await health(broker))[1]):
                assert str(small_disk / "store") in text, text
                assert re.search("the disk is (almost )?full", text), text
                assert "free some" in text, text
            # Stored messages are read and delivered meanwhile.
            assert (await js.get_msg("S", max(writer.acked.values()), direct=True)).data
            assert len(await pull.fetch(50, timeout=30)) == 50
            assert (await health(broker))[0] == 503
            (small_disk / "ballast").unlink()
            await broker.wait_line("has room again")
            assert (await health(broker))[0] == 200
            await writer.acks(20)
            await writer.abort()
        writer.check(await read_all(nc, "S"))
        await broker.restart()
        writer.check(await read_all(nc, "S"))
        await nc.close()
        assert not unexpected(broker)


def fill(disk: Path) -> None:
    """Take the remaining room of the disk, as another program would."""
    try:
        with (disk / "filler").open("ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    except OSError:
        pass


async def _healthy(broker: BrokerProcess) -> bool:
    return (await health(broker))[0] == 200


async def test_another_program_fills_the_disk(small_disk: Path, tmp_path: Path) -> None:
    """The broker behaves as in ``full_store``: every byte of the disk is taken, and an operator's requests use the
    reserve."""
    config = tmp_path / "conf"
    config.write_text(CONFIG)
    environ = {**ENVIRON, "JETBLOCK_RESERVE": "1mb"}
    async with BrokerProcess("--store", f"file://{small_disk / 'store'}", "-c", str(config), environ=environ) as broker:
        await check_full_store(broker, lambda: fill(small_disk), (small_disk / "filler").unlink)


@pytest.mark.parametrize("size", [100_000, 1_000_000])
async def test_a_purge_makes_room_on_a_full_disk(small_disk: Path, size: int) -> None:
    """Messages fill the disk until publishes are refused. A purge is carried out, and publishes are accepted again
    without help from outside and without the grace for readers (10 minutes). Deleting the stream does the same.

    The larger messages are larger than the reserve, and several of them arrive at once."""
    (small_disk / "ballast").unlink()
    environ = {**ENVIRON, "JETBLOCK_RESERVE": "512kb"}
    async with BrokerProcess("--store", f"file://{small_disk / 'store'}", environ=environ) as broker:
        nc = await connect(broker.url)
        for subject in ("$JS.API.STREAM.PURGE.S", "$JS.API.STREAM.DELETE.S"):
            await nc.jetstream().add_stream(StreamConfig(name="S", subjects=["s.>"]))
            async with Writer("s.x", broker.url, window=10, size=size, timeout=60) as writer:
                await writer.refused(1, seconds=60)
                await writer.abort()
            assert {(error.code, error.err_code) for error in writer.errors} == {(503, 10023)}
            assert (await request(nc, subject))["success"]
            await until(lambda: _healthy(broker), 60)
            if subject.endswith("PURGE.S"):
                await nc.jetstream().publish("s.x", b"again")
        await nc.close()
        assert not unexpected(broker)


async def test_killed_and_started_on_a_full_disk(small_disk: Path) -> None:
    """A kill while the disk is full loses nothing that was acknowledged. The next start uses the reserve. Without a
    reserve, a start that has no room for its claim ends with status 1 and the reason; with room it starts."""
    async with BrokerProcess("--store", f"file://{small_disk / 'store'}", environ=ENVIRON) as broker:
        nc = await connect(broker.url)
        await nc.jetstream().add_stream(StreamConfig(name="S", subjects=["s.>"]))
        async with Writer("s.x", broker.url, window=100, size=16 * 1024, timeout=60) as writer:
            await writer.refused(1)
            await broker.kill()
            await writer.abort()
        fill(small_disk)
        await broker.start()
        with pytest.raises(APIError, match="insufficient resources"):
            await nc.jetstream().publish("s.x", b"no room")
        await broker.kill()
        (small_disk / "store" / ".reserve").unlink()
        fill(small_disk)
        await broker.start(ready=False)
        assert await broker.wait_end() == 1
        assert any("disk is full" in line and "[FTL]" in line for line in broker.stderr), broker.tail()
        (small_disk / "ballast").unlink()
        await broker.start()
        await until(lambda: _healthy(broker))
        writer.check(await read_all(nc, "S"))
        ack = await nc.jetstream().publish("s.x", b"again")
        assert ack.seq > max(writer.acked.values())
        await nc.close()
        assert not unexpected(broker)


async def test_a_clean_stop_on_a_full_disk_ends(small_disk: Path) -> None:
    """SIGTERM comes while there is no room for segments, nor a reserve: the broker does not wait forever, and logs what
    it drops, which was not acknowledged."""
    environ = {**ENVIRON, "JETBLOCK_PUT_TIMEOUT": "500ms", "JETBLOCK_RESERVE": "0"}
    async with BrokerProcess("--store", f"file://{small_disk / 'store'}", environ=environ) as broker:
        nc = await connect(broker.url)
        await nc.jetstream().add_stream(StreamConfig(name="S", subjects=["s.>"]))
        async with Writer("s.x", broker.url, window=100, size=16 * 1024, timeout=60) as writer:
            await writer.refused(1)
            status = await asyncio.wait_for(broker.stop(), 30)
            await writer.abort()
        assert status == 0, broker.tail()
        assert any("the log was not closed cleanly" in line and "disk is full" in line for line in broker.stderr)
        (small_disk / "ballast").unlink()
        await broker.start()
        writer.check(await read_all(nc, "S"))
        await nc.close()


async def test_a_disk_that_is_full_when_blocks_are_merged(small_disk: Path) -> None:
    """There is room for small segments and none for the run into which compaction merges them: compaction waits and
    logs the reason, and nothing else waits. With room it continues by itself, and every byte of the store is sound."""
    store = small_disk / "store"
    environ = {**ENVIRON, "JETBLOCK_RESERVE": "64kb", "JETBLOCK_MAX_PAYLOAD": "16kb"}
    async with BrokerProcess("--store", f"file://{store}",
                             environ={**environ, "JETBLOCK_COMPACTION": "false"}) as broker:
        nc = await connect(broker.url)
        await nc.jetstream().add_stream(StreamConfig(name="S", subjects=["s.>"]))
        async with Writer("s.x", broker.url, window=2, size=8 * 1024) as writer:
            await writer.acks(200)
        await nc.close()
    disk = os.statvfs(small_disk)
    (small_disk / "filler").write_bytes(bytes(disk.f_bavail * disk.f_frsize - (600 << 10)))
    environ |= {**compaction(segments=100, quiet_ns=200_000_000), "JETBLOCK_COMPACTION_CPU": "100",
                "JETBLOCK_READER_GRACE": "1s"}
    async with EagerBrokerProcess("--store", f"file://{store}", environ=environ) as broker:
        async def merged() -> bool:
            return bool((await broker.monitor("/varz"))["jetblock"]["log"]["compaction"]["merges"])

        line = await broker.wait_line(r"compaction waits for the store: cannot (.*)")
        assert "disk is full" in line[1], line[1]
        assert "free some" in line[1], line[1]
        nc = await connect(broker.url)
        async with Writer("s.y", broker.url, window=1) as small:
            await small.acks(5)
        stored = await read_all(nc, "S")
        writer.check({seq: data for seq, data in stored.items() if len(data) > 1000})
        # The store counts as full for a moment after each try.
        await until(lambda: _healthy(broker))
        assert not await merged()
        (small_disk / "filler").unlink()
        await until(merged)
        assert await read_all(nc, "S") == stored
        await broker.restart()
        assert await read_all(nc, "S") == stored
        await nc.close()
        assert not unexpected(broker)
    source = Source(FileStore(store))
    survey = await read_survey(source)
    assert (survey.problems, (await verify(source, survey)).problems) == ([], [])


async def test_a_disk_that_is_full_during_an_erasure(small_disk: Path) -> None:
    """An erasure is accepted while there is no room for what lived beside the messages. It waits, says so, and disturbs
    nobody; also after a kill. With room it ends by itself, and no file has the messages."""
    store = small_disk / "store"
    (small_disk / "ballast").unlink()
    environ = {**ENVIRON, "JETBLOCK_RESERVE": "128kb", "JETBLOCK_READER_GRACE": "0s", "JETBLOCK_ERASE_DELAY": "100ms"}
    async with BrokerProcess("--store", f"file://{store}", environ=environ) as broker:
        nc = await connect(broker.url)
        await nc.jetstream().add_stream(StreamConfig(name="S", subjects=["s.>"]))
        for number in range(400):
            who = "alice" if number % 2 else "bob"
            await nc.jetstream().publish(f"s.{who}", b"%b-said %d " % (who.encode(), number) + bytes(4000))
        disk = os.statvfs(small_disk)
        (small_disk / "filler").write_bytes(bytes(disk.f_bavail * disk.f_frsize - (300 << 10)))
        answer = await request(nc, "$JS.API.JETBLOCK.ERASE.S", b'{"subjects": ["s.alice"]}')
        assert answer["messages"] == 200, answer
        asked = json.dumps({"erasure": answer["erasure"]}).encode()
        await broker.wait_line(r"compaction waits for the store: cannot .*disk is full")
        fill(small_disk)
        for killed in (False, True):
            if killed:
                await broker.kill()
                await broker.start()
            shown = await request(nc, "$JS.API.JETBLOCK.ERASURE.S", asked)
            assert shown["streams"][0]["state"] == "marked", shown
            assert (await nc.jetstream().get_msg("S", 1)).data.startswith(b"bob-said 0")
            assert (await request(nc, "$JS.API.STREAM.INFO.S"))["state"]["messages"] == 200
        (small_disk / "filler").unlink()

        async def done() -> bool:
            return (await request(nc, "$JS.API.JETBLOCK.ERASURE.S", asked))["streams"][0]["state"] == "done"

        await until(done, 120)
        assert [path for path in store.rglob("*") if path.is_file() and b"alice-said" in path.read_bytes()] == []
        assert sorted(seq for seq in await read_all(nc, "S")) == list(range(1, 401, 2))
        await nc.close()
        assert not unexpected(broker)
