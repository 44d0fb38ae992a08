"""fsck of runs: damaged, cut, swapped with another one, replaced by an older one, deleted.

Each run of a compacted store is tried, shared ones and those of one stream. The report names the object, the streams
and the sequences, and a dry run changes nothing. All other messages are served before and after. A repair keeps the
bytes in quarantine, and afterwards nothing waits for the lost messages.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from typing import NamedTuple

import pytest

from broker.inspect.messages import read_messages
from broker.inspect.problems import Problem
from broker.inspect.shardview import key_of
from broker.inspect.source import Source
from broker.inspect.survey import entries, read_survey
from broker.maintenance.plan import Lost
from broker.storage.checkpoint.settings import CheckpointSettings
from broker.storage.compaction.settings import CompactionSettings
from broker.storage.format.header import HEADER_BYTES
from broker.storage.log.settings import LogSettings
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.shard import ShardSettings
from tests.inspect.stores import Owner
from tests.maintenance.test_fsck import checked, contents, copy_of, opens
from tests.manual_clock import ManualClock
from tests.storage.rig import SECOND, in_virtual_time

STREAMS = ("ORDERS", "logs", "quiet")

Objects = dict[str, bytes]
Seqs = dict[str, set[int]]
"""Sequences by stream."""


class Store(NamedTuple):
    """A store's objects.

    objects: all of them. wanted: the messages by stream and sequence. held: the live sequences in each run.
    """

    objects: Objects
    wanted: dict[str, dict[int, bytes]]
    held: dict[str, Seqs]


async def served(store: MemoryStore) -> tuple[dict[str, dict[int, bytes]], list[Problem]]:
    """Read all messages; return those that can be read, and the problems reported."""
    reports: list[Problem] = []
    return {name: {msg.seq: msg.data async for msg in read_messages(store, name, faults=reports.append)}
            for name in STREAMS}, reports


@pytest.fixture(scope="module")
def whole() -> Store:
    async def examine(objects: Objects) -> Store:
        store = await copy_of(objects)
        wanted, reports = await served(store)
        assert not reports
        held: dict[str, Seqs] = {}
        for shard in (await read_survey(Source(store))).shards:
            for stream, entry in entries(shard.view):
                key, ref = key_of(shard.paths, stream, entry.ref), entry.ref
                if "/runs/" in key:
                    live = {seq for seq in range(ref.first_seq, ref.last_seq + 1) if seq in wanted[stream.name]}
                    held.setdefault(key, {}).setdefault(stream.name, set()).update(live)
        return Store(objects, wanted, held)

    async def main(clock: ManualClock) -> Store:
        return await examine(await filled(clock))

    return in_virtual_time(main)


async def filled(clock: ManualClock) -> Objects:
    """Make a store with three streams, compacted into several runs, whose broker was killed."""
    store = MemoryStore()
    owner = Owner(store)
    owner.clock = clock
    owner.settings = ShardSettings(
        log=LogSettings(), checkpoint=CheckpointSettings(segments=1 << 30), sweep_grace_ns=SECOND,
        compaction=CompactionSettings(segments=8, quiet_ns=5 * SECOND, few=4, object_bytes=3000, large_bytes=5000))
    await owner.start()
    streams = [await owner.stream(name) for name in STREAMS]
    for i in range(24):
        for stream in streams[:2] if i % 5 else streams:
            stream.publish(*[(f"{stream.name}.{n}", b"", b"%d of %d " % (n, i) + random.Random(i).randbytes(90))
                             for n in range(2)])
        await owner.log.persisted()
    streams[0].remove(3, 4)
    await owner.log.persisted()
    await asyncio.sleep(120)
    await owner.shard.checkpointer.cut()
    for stream in streams:
        stream.publish((f"{stream.name}.late", b"", b"late"))
    await owner.log.persisted()
    await owner.kill()
    return await contents(store)


def test_there_are_runs(whole: Store) -> None:
    """Several streams share some runs, so the cases below are not empty."""
    assert len(whole.held) >= 2
    assert max(map(len, whole.held.values())) >= 2


def named(problems: list[Problem], key: str, perhaps: str = "(?:perhaps )?") -> Seqs:
    """Return the sequences that the report lists as unreadable."""
    found: Seqs = {}
    reports = rf"messages? (\d+)(?: to (\d+))? of stream \$G/(\w+) {perhaps}cannot be read"
    for problem in problems:
        assert problem.object == key, problem
        for first, last, stream in re.findall(reports, problem.means):
            found.setdefault(stream, set()).update(range(int(first), int(last or first) + 1))
    return found


HOW = ["damaged", "header", "cut", "cut short", "empty", "longer", "zeros", "swapped", "older", "gone"]


def changed(whole: Store, key: str, how: str) -> bytes | None:
    """Return the bytes that replace the run; None: it is deleted."""
    data = whole.objects[key]
    keys = sorted(one for one in whole.objects if "/runs/" in one)
    others = [one for one in keys if one != key]
    match how:
        case "damaged":
            return data[:-3] + bytes((data[-3] ^ 1,)) + data[-2:]
        case "header":
            return data[:20] + bytes((data[20] ^ 1,)) + data[21:]
        case "cut":
            return data[:len(data) // 2]
        case "cut short":
            return data[:-1]
        case "empty":
            return b""
        case "longer":
            return data + b"\0"
        case "zeros":
            return bytes(len(data))
        case "swapped":
            return whole.objects[others[0]]
        case "older":
            return whole.objects[max((one for one in others if one < key), default=others[-1])]
        case _:
            return None


@pytest.mark.parametrize("how", HOW)
async def test_a_run_is_lost(whole: Store, how: str) -> None:
    """Each run of the store is lost in this way."""
    for key, held in whole.held.items():
        data = changed(whole, key, how)
        tampered = {name: there for name, there in whole.objects.items() if name != key}
        if data is not None:
            tampered[key] = data
        store = await copy_of(tampered)

        found, reports = await served(store)
        missing = {name: whole.wanted[name].keys() - found[name].keys() for name in STREAMS}
        missing = {name: seqs for name, seqs in missing.items() if seqs}
        for name in STREAMS:
            assert found[name].items() <= whole.wanted[name].items()
            assert missing.get(name, set()) <= held.get(name, set())
        assert {problem.object for problem in reports} <= {key}

        dry = await checked(store)
        assert await contents(store) == tampered
        assert dry.problems
        report = named(dry.problems, key)
        assert all(report[name] >= seqs for name, seqs in missing.items())
        certain = named(dry.problems, key, "")
        assert all(seqs & whole.wanted[name].keys() <= missing.get(name, set()) for name, seqs in certain.items())
        assert all(report[name] & whole.wanted[name].keys() <= held[name] for name in report)
        lost = _lost(dry.lost)
        assert {name: seqs & whole.wanted[name].keys() for name, seqs in lost.items()} == missing
        if how in ("cut", "empty", "zeros", "swapped", "older", "gone"):
            assert missing
        if not missing:
            assert how in ("header", "longer", "cut short")  # every block of the run can be read by its place

        done = await checked(store, repair=True)
        assert _lost(done.lost) == lost
        after = await contents(store)
        if missing:
            assert done.repaired, done.refused
            if data is not None:
                assert after[f"{done.quarantine}{key}"] == data
            record = json.loads(after[f"{done.quarantine}record.json"])
            assert {problem["object"] for problem in record["problems"]} == {key}
        assert (await served(store)) == (found, [])
        await opens(store)
        assert (await served(store)) == (found, [])
        again = await checked(store)
        if missing:
            assert named(again.problems, key, "") == {}


def _lost(rows: list[Lost]) -> Seqs:
    found: Seqs = {}
    for row in rows:
        found.setdefault(row.stream, set()).update(range(row.first_seq, row.last_seq + 1))
    return found


async def test_two_runs_change_places(whole: Store) -> None:
    """Both runs are named, each with its sequences; no message is read in place of another."""
    first, second = sorted(whole.held)[:2]
    store = await copy_of(whole.objects | {first: whole.objects[second], second: whole.objects[first]})
    found, _ = await served(store)
    for name in STREAMS:
        gone = whole.held[first].get(name, set()) | whole.held[second].get(name, set())
        assert found[name] == {seq: data for seq, data in whole.wanted[name].items() if seq not in gone}
    dry = await checked(store)
    assert {problem.object for problem in dry.problems} == {first, second}
    assert dry.repairable, dry.refused
    done = await checked(store, repair=True)
    assert done.repaired
    after = await contents(store)
    assert after[f"{done.quarantine}{first}"] == whole.objects[second]
    assert after[f"{done.quarantine}{second}"] == whole.objects[first]
    assert (await served(store)) == (found, [])


async def test_a_run_with_the_header_of_another(whole: Store) -> None:
    """The blocks name their run, so a header and directory of another run are noticed."""
    first, second = sorted(whole.held)[:2]
    data = whole.objects[first][:HEADER_BYTES] + whole.objects[second][HEADER_BYTES:]
    store = await copy_of(whole.objects | {first: data})
    found, _ = await served(store)
    for name in STREAMS:
        assert found[name].items() <= whole.wanted[name].items()
    dry = await checked(store)
    assert {problem.object for problem in dry.problems} == {first}
    assert (await checked(store, repair=True)).repaired
    assert (await served(store)) == (found, [])
