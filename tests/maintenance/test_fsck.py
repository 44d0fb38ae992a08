"""fsck: the problems and losses that it reports, its repairs, and that no repair makes a store worse."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from zlib import crc32

import pytest

from broker.inspect.messages import read_messages
from broker.inspect.report import overview_text
from broker.inspect.source import CannotInspect, Source
from broker.inspect.survey import read_survey
from broker.inspect.verify import verify
from broker.maintenance.copy_cli import main as copy
from broker.maintenance.fsck import Checked, Owned, fsck
from broker.maintenance.fsck_cli import main
from broker.storage.format.header import ObjectHeader, ObjectKind, Position
from broker.storage.format.segment import SegmentHead, decode_head
from broker.storage.objectstore.base import Buffers, ObjectStore
from broker.storage.objectstore.file import FileStore
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.objectstore.wrapper import Wrapper
from broker.storage.paths import FORMAT, parse
from broker.storage.read.snapshot import read_snapshot
from broker.storage.staging.writer import RunWriter
from tests.inspect.stores import PATHS, STORE_ID, T0, Owner, filled
from tests.manual_clock import ManualClock
from tests.real.s3 import S3Server

HOUR = 3_600_000_000_000


async def no_sleep(seconds: float) -> None:
    """Return at once, as if the time had passed."""


async def checked(store: ObjectStore, *, repair: bool = False, seed: int = 3) -> Checked:
    clock = ManualClock(T0)
    clock.advance(HOUR)
    return await fsck(store, clock, random.Random(seed), repair=repair, sleep=no_sleep)


async def contents(store: ObjectStore) -> dict[str, bytes]:
    return {info.key: await store.get(info.key) for info in await store.list("")}


async def copy_of(objects: dict[str, bytes]) -> MemoryStore:
    store = MemoryStore()
    for key, data in objects.items():
        await store.put(key, [data])
    return store


async def rows(store: ObjectStore, stream: str) -> dict[int, bytes]:
    return {m.seq: m.data async for m in read_messages(store, stream)}


async def change(store: ObjectStore, key: str, how: Callable[[bytearray], object]) -> None:
    data = bytearray(await store.get(key))
    how(data)
    await store.delete(key)
    await store.put(key, [bytes(data)])


def flip(at: int) -> Callable[[bytearray], object]:
    return lambda data: data.__setitem__(at, data[at] ^ 4)


def cut(data: bytearray) -> None:
    del data[len(data) // 2:]


@pytest.fixture
async def sound() -> dict[str, bytes]:
    """A store of three process runs. The last one left segments after its only checkpoint, and was killed."""
    store = MemoryStore()
    owner = await filled(store)
    for i in range(4):
        owner.streams["ORDERS"].publish((f"ORDERS.new.{i}", b"", b"new %d" % i * 30))
        owner.streams["logs"].publish(("logs.x", b"", b"line %d" % i))
        await owner.log.persisted()
    await owner.kill()
    return await contents(store)


async def opens(store: ObjectStore) -> None:
    """Check that a broker takes the store, and stops cleanly."""
    owner = Owner(store, seed=77)
    await owner.start("broker-later")
    await owner.stop()


async def test_a_sound_store(sound: dict[str, bytes]) -> None:
    """fsck finds nothing, and writes nothing, also with --repair."""
    store = await copy_of(sound)
    for repair in (False, True):
        done = await checked(store, repair=repair)
        assert (done.problems, done.repairable, done.repaired) == ([], None, False)
    assert await contents(store) == sound


async def test_a_dry_run_writes_nothing_and_predicts_the_repair(sound: dict[str, bytes]) -> None:
    """A core in the replayed log is damaged: the dry run predicts the loss, and the repair causes exactly that loss."""
    store = await copy_of(sound)
    key, row = await damaged_block(store, "core")
    before = await contents(store)
    dry = await checked(store)
    assert await contents(store) == before
    assert dry.repairable
    assert dry.remaining == []
    [lost] = dry.lost
    assert (lost.first_seq, lost.last_seq, lost.messages) == (row, row, 1)
    done = await checked(store, repair=True)
    assert done.repaired
    assert done.lost == dry.lost
    assert done.remaining == []
    assert await store.get(f"{done.quarantine}{key}") == before[key]
    record = json.loads(await store.get(f"{done.quarantine}record.json"))
    assert record["replaced"] == [key]
    assert record["lost"][0]["first_seq"] == row


async def last_segments(store: ObjectStore) -> list[tuple[str, SegmentHead]]:
    """Return the segments with messages of ORDERS after the newest checkpoint, in order."""
    found = []
    newest = max(key.position for info in await store.list(PATHS.checkpoints) if (key := parse(info.key))
                 and key.position)
    for info in await store.list(PATHS.logs):
        key, data = parse(info.key), await store.get(info.key)
        assert key is not None
        assert key.position is not None
        if data[8] != ObjectKind.SEGMENT or key.position <= newest:
            continue
        head = decode_head(data, key.position)
        assert isinstance(head, SegmentHead)
        if sum(row.messages for row in head.rows):
            found.append((info.key, head))
    return found


async def damaged_block(store: ObjectStore, part: str, which: int = -2) -> tuple[str, int]:
    """Damage a part of the first block with messages in one of the last segments; return its key, and the block's
    first sequence."""
    key, head = (await last_segments(store))[which]
    row = next(row for row in head.rows if row.messages)
    at = {"core": row.core_offset + 30, "index": row.index_offset + 40, "frame": row.frames_offset + 5, "header": 20,
          "directory": 110}[part]
    await change(store, key, flip(at))
    return key, row.first_seq


@pytest.mark.parametrize("part", ["header", "directory"])
async def test_a_log_entry_that_can_be_rebuilt(sound: dict[str, bytes], part: str) -> None:
    """A damaged header or directory costs nothing: the blocks are found, and the segment is the same afterwards."""
    store = await copy_of(sound)
    key, _ = await damaged_block(store, part)
    done = await checked(store, repair=True)
    assert (done.repaired, done.lost, done.remaining) == (True, [], [])
    assert await store.get(key) == sound[key]
    await opens(store)
    original = await copy_of(sound)
    for stream in ("ORDERS", "logs"):
        assert await rows(store, stream) == await rows(original, stream)


@pytest.mark.parametrize("part", ["core", "index", "frame"])
@pytest.mark.parametrize("which", [0, -2, -1])
async def test_one_damaged_block(sound: dict[str, bytes], part: str, which: int) -> None:
    """A damaged block costs only its own messages, and a broker starts. Of the last block of a stream, only the
    directory shows that it existed."""
    store = await copy_of(sound)
    _, seq = await damaged_block(store, part, which)
    done = await checked(store, repair=True)
    assert done.repaired, done.refused
    original = await copy_of(sound)
    missing = {name: sorted((await rows(original, name)).keys() - (await rows(store, name)).keys())
               for name in ("ORDERS", "logs")}
    assert sorted(missing.values()) == [[], [seq]] or sorted(map(len, missing.values())) == [0, 1]
    [lost] = done.lost
    assert (lost.first_seq, lost.last_seq, lost.messages) == (seq, seq, 1)
    state, before = (await read_snapshot(store, 0)).state, (await read_snapshot(await copy_of(sound), 0)).state
    for stream in before.streams.values():  # no sequence is given twice
        assert state.streams[stream.stream_id].last_seq == stream.last_seq
    kept = await rows(store, "ORDERS")
    assert kept.items() <= (await rows(original, "ORDERS")).items()
    await opens(store)
    again = await checked(store)
    assert [problem for problem in again.problems if "cannot be read" in problem.means
            or "not start" in problem.means] == []
    # The problems listed now are the damage that nothing needs any more; a second repair finds nothing to do.
    before = await contents(store)
    await checked(store, repair=True)
    assert await contents(store) == before


@pytest.mark.parametrize("how", ["empty", "cut"])
async def test_a_log_entry_that_is_gone(sound: dict[str, bytes], how: str) -> None:
    """A hole in the log is closed, and the number of its messages is reported."""
    store = await copy_of(sound)
    key, head = (await last_segments(store))[1]
    await change(store, key, bytearray.clear if how == "empty" else cut)
    done = await checked(store, repair=True)
    assert done.repaired, done.refused
    assert done.remaining == []
    assert sum(lost.messages for lost in done.lost) == sum(row.messages for row in head.rows)
    await opens(store)


async def test_damaged_checkpoints(sound: dict[str, bytes]) -> None:
    """Damaged roots and pages move to quarantine once new checkpoints exist."""
    for info in await (await copy_of(sound)).list("v1/shards/0/"):
        key = parse(info.key)
        assert key is not None
        if key.kind not in (ObjectKind.ROOT, ObjectKind.PAGES):
            continue
        store = await copy_of(sound)
        await change(store, info.key, flip(100))
        done = await checked(store, repair=True)
        assert done.repaired, (info.key, done.refused)
        assert done.remaining == []
        assert done.lost == []
        assert f"{done.quarantine}{info.key}" in await contents(store)
        original = await copy_of(sound)
        assert await rows(store, "ORDERS") == await rows(original, "ORDERS")
        await opens(store)


async def test_every_object_damaged_in_turn(sound: dict[str, bytes]) -> None:
    """Each object in turn is cut, flipped or deleted. fsck ends, and a repair serves all messages of the undamaged
    objects. A refusal changes nothing, and a second repair does not change a repaired store."""
    original = await copy_of(sound)
    all_rows = {name: await rows(original, name) for name in ("ORDERS", "logs")}
    repaired = refused = 0
    for number, key in enumerate(sound):
        for how in ((None, cut, flip(30), flip(70))[number % 4],):
            store = await copy_of(sound)
            if how is None:
                await store.delete(key)
            else:
                await change(store, key, how)
            before = await contents(store)
            done = await checked(store, repair=True)
            after = await contents(store)
            if not done.problems:
                continue
            if not done.repaired:
                refused += 1
                assert after == before, key
                continue
            repaired += 1
            for kept in before:
                if before[kept] != after.get(kept):
                    assert after[f"{done.quarantine}{kept}"] == before[kept]
            lost = sum(one.messages for one in done.lost)
            for name, expected in all_rows.items():
                there = await rows(store, name)
                assert there.items() <= expected.items()
                assert len(there) >= len(expected) - lost or any("give" in note for note in done.notes), (key, name)
            await opens(store)
    assert repaired > 10
    assert refused < repaired


async def test_claims_and_format(sound: dict[str, bytes]) -> None:
    """A damaged or missing claim, and a damaged format, are replaced; the format keeps its store id."""
    for key in (FORMAT, PATHS.epoch(1), PATHS.epoch(2)):
        store = await copy_of(sound)
        await change(store, key, flip(75))
        done = await checked(store, repair=True)
        assert (done.repaired, done.remaining) == (True, []), done.refused
        await opens(store)
    store = await copy_of(sound)
    await change(store, FORMAT, flip(75))
    await checked(store, repair=True)
    assert STORE_ID in await store.get(FORMAT)


@pytest.fixture
async def swept() -> dict[str, bytes]:
    """A store whose first epoch has lost its opening to the sweeper, but has entries with live messages."""
    store = MemoryStore()
    owner = await filled(store)
    for _ in range(5):
        owner.streams["ORDERS"].publish(("ORDERS.eu.1", b"", b"more"))
        await owner.log.persisted()
        await owner.round()
        await asyncio.sleep(0.01)
    await owner.stop()
    objects = await contents(store)
    assert PATHS.log(Position(1, 0)) not in objects
    assert any(key.startswith(f"{PATHS.logs}00000001-") for key in objects)
    return objects


@pytest.mark.parametrize("also", ["", "format", "checkpoint"])
@pytest.mark.parametrize("how", ["lost", "another claim's bytes", "damaged"])
async def test_a_claim_after_its_opening_was_swept(swept: dict[str, bytes], how: str, also: str) -> None:
    """A new claim names the process run that wrote the rest of its epoch, and the lost claim does not prevent other
    repairs."""
    store, key = await copy_of(swept), PATHS.epoch(1)
    if how == "damaged":
        await change(store, key, flip(20))
    else:
        await store.delete(key)
        if how != "lost":
            await store.put(key, [swept[PATHS.epoch(2)]])
    if also == "format":
        await change(store, FORMAT, flip(20))
    elif also:
        await change(store, max(key for key in swept if key.startswith(PATHS.checkpoints)), flip(100))
    done = await checked(store, repair=True)
    assert (done.repaired, done.remaining, done.lost) == (True, [], []), done.refused
    nonces = [ObjectHeader.unpack(data[:64], key).nonce for data in (swept[key], await store.get(key))]
    assert nonces[0] == nonces[1]
    await opens(store)
    assert (await checked(store)).problems == []


async def test_a_part_that_cannot_be_repaired_prevents_no_other_repair(sound: dict[str, bytes]) -> None:
    """A claim cannot be replaced if two process runs wrote under it; this does not prevent saving the messages."""
    store = await copy_of(sound)
    key, seq = await damaged_block(store, "index", 0)
    other = next(name for name in sound if name.startswith(PATHS.log(Position(2, 1))))
    header = ObjectHeader.unpack(sound[other])._replace(nonce=b"x" * 16)
    await change(store, other, lambda data: data.__setitem__(slice(0, 64), header.pack()))
    await store.delete(PATHS.epoch(2))
    done = await checked(store, repair=True)
    assert done.repaired, done.refused
    assert [(lost.first_seq, lost.object) for lost in done.lost] == [(seq, key)]
    assert any("not everything can be repaired" in note and "two" not in note for note in done.notes), done.notes
    assert [problem.object for problem in done.remaining] == [PATHS.epoch(2)]
    await opens(store)


@pytest.mark.parametrize("part", ["core", "index", "frame"])
async def test_losses_of_a_repair_are_no_new_problem(sound: dict[str, bytes], part: str) -> None:
    """The store is undamaged after a repair, and fsck and inspect list the messages that were lost then. Other
    damage is found as before."""
    store = await copy_of(sound)
    key, _ = await damaged_block(store, part)
    done = await checked(store, repair=True)
    assert (done.repaired, done.remaining) == (True, [])
    again = await checked(store)
    assert (again.problems, again.lost, again.repairable) == ([], [], None)
    [past] = again.repairs
    assert [(row["stream"], row["first_seq"], row["last_seq"]) for row in past.lost] == [
        (lost.stream, lost.first_seq, lost.last_seq) for lost in done.lost]
    assert past.folder == done.quarantine
    source = Source(store)
    survey = await read_survey(source)
    text = "\n".join(overview_text(survey, await verify(source, survey)))
    assert "no problems found" in text
    assert "these messages were lost then" in text
    assert "cannot be read" not in text
    await opens(store)
    before = await contents(store)
    await checked(store, repair=True)
    assert await contents(store) == before
    others = [name for name in before if name.startswith(PATHS.logs) and name != key]
    await store.delete(others[-1])
    await store.delete(others[-2])
    assert (await checked(store)).problems


async def test_another_writer_is_left_as_evidence(sound: dict[str, bytes]) -> None:
    """A segment that another process wrote under an epoch is reported, and not rewritten."""
    store = await copy_of(sound)
    key, _ = (await last_segments(store))[0]
    header = ObjectHeader.unpack(sound[key])._replace(nonce=b"x" * 16)
    await store.delete(key)
    await store.put(key, [header.pack() + sound[key][64:]])
    done = await checked(store, repair=True)
    assert "two brokers wrote under one epoch" in done.problems[0].means
    assert (done.repaired, done.lost) == (False, [])
    assert await store.get(key) == header.pack() + sound[key][64:]


async def test_a_staged_run_of_a_newer_version_that_nobody_adopted(sound: dict[str, bytes]) -> None:
    """An object that any program may have put beside a stream is listed, and does not prevent a repair."""
    store = await copy_of(sound)
    await damaged_block(store, "frame", -1)
    stream = (await read_snapshot(store, 0)).state.stream("$G", "ORDERS")
    assert stream is not None
    writer = RunWriter("$G", "ORDERS", stream.stream_id, now_ns=T0)
    writer.add(b"orders.x", b"staged")
    for run in writer.finish():
        header = bytearray(run.data[0])
        header[10] = 9
        header[60:64] = crc32(header[:60]).to_bytes(4, "little")
        await store.put(run.key, [bytes(header), *run.data[1:]])
        key = run.key
    done = await checked(store, repair=True)
    assert key in {problem.object for problem in done.problems}
    assert done.repaired, done.refused


async def test_a_lost_seal(sound: dict[str, bytes]) -> None:
    """A lost or damaged seal is put again."""
    seals = [key for key, data in sound.items() if "/log/" in key and data[8] == ObjectKind.SEAL]
    assert len(seals) == 2
    for key in seals:
        for missing in (True, False):
            store = await copy_of(sound)
            if missing:
                await store.delete(key)
            else:
                await change(store, key, flip(80))
            done = await checked(store, repair=True)
            assert (done.repaired, done.lost, done.remaining) == (True, [], []), done.refused
            assert key in await contents(store)


class Killed(Exception):
    """The process ends here."""


class Dying(Wrapper):
    """A store that fails every put and delete after the first ``left``."""

    def __init__(self, inner: ObjectStore, left: int) -> None:
        super().__init__(inner)
        self.left = left

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    async def put(self, key: str, data: Buffers) -> None:
        self._count()
        await self.inner.put(key, data)

    async def replace(self, key: str, data: Buffers) -> None:
        self._count()
        await self.inner.replace(key, data)

    async def delete(self, key: str) -> None:
        self._count()
        await self.inner.delete(key)


async def test_a_repair_killed_at_each_step(sound: dict[str, bytes]) -> None:
    """The next repair has the same result as an undisturbed one: the same messages, and the damaged bytes in
    quarantine."""
    damaged = await copy_of(sound)
    key, _ = await damaged_block(damaged, "core")
    objects = await contents(damaged)
    undisturbed = await copy_of(objects)
    assert (await checked(undisturbed, repair=True)).repaired
    expected = {name: await rows(undisturbed, name) for name in ("ORDERS", "logs")}
    steps = 0
    while True:
        store = await copy_of(objects)
        dying = Dying(store, steps)
        with suppress(Killed):
            await checked(dying, repair=True)
        if dying.left >= 0:
            break
        done = await checked(store, repair=True, seed=4)
        assert done.remaining == [], (steps, done.refused, done.remaining)
        for name, its_rows in expected.items():
            assert await rows(store, name) == its_rows
        copies = [data for name, data in (await contents(store)).items() if name.startswith("quarantine/")
                  and name.endswith(key)]
        assert objects[key] in copies
        steps += 1
    assert steps > 8


async def test_an_owned_store_is_refused(tmp_path: Path) -> None:
    """A repair refuses a locked directory, and a bucket whose log grows; a dry run does not."""
    store = FileStore(tmp_path / "store")
    owner = await filled(store)
    lock = store._try_lock("v1/shards/0")
    assert lock is not None
    with pytest.raises(Owned, match="lock of shard 0"):
        await checked(store, repair=True)
    await checked(store)
    lock.release()
    await owner.kill()
    assert (await checked(store, repair=True)).problems == []
    await store.close()
    bucket = MemoryStore()
    busy = await filled(bucket)

    async def publish(seconds: float) -> None:
        busy.streams["ORDERS"].publish(("ORDERS.x", b"", b"more"))
        await busy.log.persisted()

    with pytest.raises(Owned, match="writes to shard 0"):
        await fsck(bucket, ManualClock(T0), random.Random(1), repair=True, sleep=publish)
    await busy.kill()


async def test_no_store() -> None:
    """A place without a store is refused."""
    with pytest.raises(CannotInspect):
        await checked(MemoryStore(), repair=True)


async def test_the_owner_before_is_fenced(sound: dict[str, bytes]) -> None:
    """An owner that was paused during the repair cannot write any more."""
    store = MemoryStore()
    owner = await filled(store)
    for i in range(3):
        owner.streams["ORDERS"].publish((f"ORDERS.new.{i}", b"", b"new"))
        await owner.log.persisted()
    await damaged_block(store, "core", -1)
    assert (await checked(store, repair=True)).repaired
    end = (await read_snapshot(store, 0)).state.position
    owner.streams["ORDERS"].publish(("ORDERS.late", b"", b"late"))
    with pytest.raises(Exception, match="fsck"):
        await owner.log.persisted()
    assert (await read_snapshot(store, 0)).state.position == end
    assert end > Position(owner.epoch, 99)
    await owner.kill()


def test_a_bucket_is_repaired(tmp_path: Path, minio: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged store is copied to a bucket, repaired there, and restored to a directory, which has no problem."""
    for name, value in minio.env.items():
        monkeypatch.setenv(name, value)

    async def fill() -> None:
        store = FileStore(tmp_path / "store")
        owner = await filled(store)
        for i in range(3):
            owner.streams["ORDERS"].publish((f"ORDERS.new.{i}", b"", b"new"))
            await owner.log.persisted()
        await owner.kill()
        await damaged_block(store, "core")
        await store.close()

    asyncio.run(fill())
    bucket = minio.new_url()
    assert copy("copy", [f"file://{tmp_path / 'store'}", bucket]) == 1
    assert main([bucket]) == 1
    assert main([bucket, "--repair", "--lease", "0.2"]) == 0
    assert copy("restore", [bucket, f"file://{tmp_path / 'back'}"]) == 0
    assert main([f"file://{tmp_path / 'back'}"]) == 0


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command gives the right exit statuses and reports."""
    async def fill() -> str:
        store = FileStore(tmp_path / "store")
        owner = await filled(store)
        await owner.kill()
        key, _ = await damaged_block(store, "frame", -1)
        await store.close()
        return key

    url = f"file://{tmp_path / 'store'}"
    asyncio.run(fill())
    assert main([url]) == 1
    printed = capsys.readouterr().out
    assert "lost: these messages" in printed
    assert "--repair would repair this" in printed
    assert main([url, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["repairable"], report["repaired"], len(report["lost"])) == (True, False, 1)
    main([url, "--repair"])
    assert "repaired; what was replaced is kept below quarantine/" in capsys.readouterr().out
    assert main([f"file://{tmp_path / 'none'}", "--repair"]) == 2
    assert not (tmp_path / "none").exists()
    assert main(["memory://"]) == 2
    assert main([url, "--lease", "0"]) == 2
    assert main(["--help"]) == 0
