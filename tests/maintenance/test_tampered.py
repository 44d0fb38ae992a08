"""Tampered stores: every object of a store is cut, flipped, swapped, replaced by an older one, or deleted.

No message is ever read that was not published. Unreadable parts are named, and every other stream continues.
``fsck`` names the object, and finds no problem only if nothing is lost. A repair never removes readable messages. By
default some tamperings of each object are tried, in the long runs all of them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import aclosing
from typing import NamedTuple

import pytest

from broker.inspect.messages import Missing, read_messages
from broker.inspect.objects import check_object
from broker.inspect.problems import Problem
from broker.inspect.shardview import NoStream
from broker.inspect.source import CannotInspect, Source
from broker.storage.checkpoint.settings import CheckpointSettings
from broker.storage.compaction.settings import CompactionSettings
from broker.storage.format.block import BlockCore, BlockRef
from broker.storage.format.document import encode_document
from broker.storage.format.errors import CutOff, FormatError
from broker.storage.format.frames import decode_frame
from broker.storage.format.header import HEADER_BYTES, ObjectHeader, ObjectKind, Position
from broker.storage.format.index import Head
from broker.storage.log.settings import LogSettings
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.paths import FORMAT, parse
from broker.storage.shard import ShardSettings
from tests.inspect.stores import PATHS, Owner, Stream
from tests.maintenance.test_fsck import checked, contents, copy_of, opens
from tests.manual_clock import ManualClock
from tests.storage.rig import SECOND, in_virtual_time

Objects = dict[str, bytes]
Message = tuple[int, bytes, bytes, bytes]
"""A message: seq, subject, headers, data."""

STREAMS = ("ORDERS", "logs", "quiet")
_UNREADABLE = (NoStream, FormatError, CutOff, Missing, CannotInspect)


async def _filled(clock: ManualClock) -> Objects:
    """Make a store of three process runs, with checkpoints, runs, seals, a request in the inbox, and segments after
    the last checkpoint."""
    store = MemoryStore()
    owner = Owner(store)
    owner.clock = clock
    owner.settings = ShardSettings(
        log=LogSettings(), checkpoint=CheckpointSettings(segments=1 << 30), sweep_grace_ns=SECOND,
        compaction=CompactionSettings(segments=8, quiet_ns=5 * SECOND, few=4))
    await owner.start()
    streams = [await owner.stream(name) for name in STREAMS]
    for round_ in range(2):
        for i in range(10):
            _publish(streams, f"{round_}.{i}", i)
            await owner.log.persisted()
        await asyncio.sleep(60)
        await owner.shard.checkpointer.cut()
        await owner.stop()
        await owner.start(f"broker-{round_}")
        for stream in streams:
            stream.owner = owner
    streams[0].remove(3, 4)
    streams[0].deliver(6, 2)
    await owner.log.persisted()
    for i in range(3):
        _publish(streams, f"late.{i}", i)
        await owner.log.persisted()
    await owner.kill()
    request = encode_document(ObjectKind.INBOX, Position(0, 0), bytes(16), {"what": "nothing"}, 7)
    await store.put(PATHS.inbox(7), [request])
    return await contents(store)


def _publish(streams: list[Stream], label: str, i: int) -> None:
    orders, logs, quiet = streams
    orders.publish((f"ORDERS.{i}", b"NATS/1.0\r\nN: 1\r\n\r\n", f"order {label} ".encode() * 20),
                   ("ORDERS.us", b"", label.encode()))
    logs.publish(*[(f"logs.{n}", b"", f"line {label} {n} ".encode() * 30) for n in range(5)])
    if i == 1:
        quiet.publish(("quiet.x", b"", label.encode()))


@pytest.fixture(scope="module")
def whole() -> Objects:
    return in_virtual_time(_filled)


class Tampering(NamedTuple):
    """A change of the object ``key``: its new bytes, or None: it is deleted."""

    key: str
    how: str
    data: bytes | None


def tamperings(objects: Objects) -> Iterator[Tampering]:
    """Return all tamperings to try on a store."""
    by_kind: dict[ObjectKind, list[str]] = {}
    for key in objects:
        parsed = parse(key)
        assert parsed is not None, key
        by_kind.setdefault(parsed.kind, []).append(key)
    for keys in by_kind.values():
        for at, key in enumerate(keys):
            data = objects[key]
            yield Tampering(key, "deleted", None)
            for size in sorted({0, 1, HEADER_BYTES - 1, HEADER_BYTES, len(data) // 2, len(data) - 1}):
                if size < len(data):
                    yield Tampering(key, f"cut to {size}", data[:size])
            yield Tampering(key, "longer", data + b"\0")
            for place in sorted({*range(0, len(data), max(1, len(data) // 24)), len(data) - 1}):
                yield Tampering(key, f"flipped at {place}", data[:place] + bytes((data[place] ^ 4,)) + data[place + 1:])
            yield Tampering(key, "zeros", bytes(len(data)))
            others = [other for other in keys if other != key]
            if others:
                yield Tampering(key, "swapped", objects[others[at % len(others)]])
            if at:
                yield Tampering(key, "older", objects[keys[at - 1]])
            other_kind = next(other for other in objects if other not in keys)
            yield Tampering(key, "another kind", objects[other_kind])


async def readable(objects: MemoryStore, stream: str, ever: set[Message]) -> tuple[dict[int, Message], list[Problem],
                                                                                   bool]:
    """Read a stream; return its readable messages, the reported damage, and True if reading came to the end."""
    found: dict[int, Message] = {}
    reports: list[Problem] = []
    try:
        async with aclosing(read_messages(objects, stream, faults=reports.append)) as reading:
            async for msg in reading:
                found[msg.seq] = (msg.seq, msg.subject, msg.headers, msg.data)
    except _UNREADABLE:
        return found, reports, False
    assert set(found.values()) <= ever, f"{stream}: messages that nobody published"
    return found, reports, True


async def published(store: MemoryStore) -> dict[str, set[Message]]:
    """Return all messages in any block of the store, also removed ones."""
    blocks: list[tuple[str, BlockRef, Head]] = []
    source = Source(store)
    for info in await store.list(""):
        key = parse(info.key)
        assert key is not None

        def note(ref: BlockRef, core: BlockCore, head: Head, name: str = info.key) -> None:
            blocks.append((name, ref, head))

        assert not (await check_object(source, info, key, note)).faults
    found: dict[str, set[Message]] = {name: set() for name in STREAMS}
    for name, ref, head in blocks:
        for number, frame in enumerate(head.frames):
            start = ref.frames_offset + frame.offset
            chunk = decode_frame(head, number, await store.get(name, start, start + frame.stored_bytes), name)
            for at in range(len(chunk)):
                hlen = chunk.hlens[at] if chunk.hlens is not None else 0
                subject, body = chunk.subjects[at], chunk.bodies[at]
                found[subject.split(b".")[0].decode()].add((chunk.seq(at), subject, body[:hlen], body[hlen:]))
    return found


async def tampered(objects: Objects, ever: dict[str, set[Message]], wanted: dict[str, dict[int, Message]],
                   case: Tampering) -> str:
    """Try one case; return its outcome, for counting."""
    store = await copy_of({key: data for key, data in objects.items() if key != case.key})
    if case.data is not None:
        await store.put(case.key, [case.data])
    before = {name: await readable(store, name, ever[name]) for name in STREAMS}
    untouched = await contents(store)
    await _started(await copy_of(untouched), before, wanted, ever)
    lost = any(wanted[name].keys() - before[name][0].keys() for name in STREAMS)
    try:
        dry = await checked(store)
    except CannotInspect:
        return "no store" if case.key == FORMAT else "not checked"
    assert await contents(store) == untouched
    named = {problem.object for problem in dry.problems}
    for _, reports, _ in before.values():
        assert {problem.object for problem in reports} <= named
    if lost or not all(ended for _, _, ended in before.values()):
        assert named or _the_end(case.key, objects), "messages cannot be read, and fsck finds nothing wrong"
    if named and case.data is not None:
        assert case.key in named, (case.key, named)
    done = await checked(store, repair=True)
    if not done.repaired:
        assert {key: data for key, data in (await contents(store)).items() if key in untouched} == untouched
        if not named:
            return "harmless"
        # Problems that remain must prevent nobody from reading the rest.
        assert not lost, f"messages are lost, and not repaired: {done.refused}"
        await opens(store)
        return "left"
    for name in STREAMS:
        found, reports, ended = await readable(store, name, ever[name])
        assert ended
        assert not reports
        assert found.keys() >= before[name][0].keys() & wanted[name].keys(), f"{name}: the repair took messages away"
    await opens(store)
    return "repaired"


async def _started(store: MemoryStore, before: dict[str, tuple[dict[int, Message], list[Problem], bool]],
                   wanted: dict[str, dict[int, Message]], ever: dict[str, set[Message]]) -> None:
    """Start a broker on the tampered store: it gives the reason why it does not start, or serves all messages that
    could be read before."""
    try:
        await opens(store)
    except (FormatError, CutOff):
        return
    for name in STREAMS:
        found, _, _ = await readable(store, name, ever[name])
        assert found.keys() >= before[name][0].keys() & wanted[name].keys(), f"{name}: a start took messages away"


def _the_end(key: str, objects: Objects) -> bool:
    """Return True if the object is the last entry of the log, whose loss looks like a crash before it was written."""
    parsed = parse(key)
    if parsed is None or parsed.kind != ObjectKind.SEGMENT:
        return False
    return key == max(one for one in objects if one.startswith(PATHS.logs))


async def _try(objects: Objects, cases: list[Tampering]) -> dict[str, int]:
    store = await copy_of(objects)
    ever = await published(store)
    wanted = {}
    for name in STREAMS:
        wanted[name], reports, ended = await readable(store, name, ever[name])
        assert ended
        assert not reports
    outcomes: dict[str, int] = {}
    for case in cases:
        try:
            outcome = await tampered(objects, ever, wanted, case)
        except Exception as error:
            raise AssertionError(f"{case.key}, {case.how}") from error
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    return outcomes


def test_the_store_has_objects_of_every_kind(whole: Objects) -> None:
    """Otherwise these tests would show less than they claim."""
    kinds = {ObjectHeader.unpack(data, key).kind for key, data in whole.items()}
    # Keys are of encrypted stores, heartbeats of several shards on S3; both have tests of their own.
    assert kinds == set(ObjectKind) - {ObjectKind.KEYS, ObjectKind.HEARTBEAT}


async def test_some_tamperings_of_each_object(whole: Objects) -> None:
    """One tampering of each object is tried. Each tampering that was once mishandled has a test of its own."""
    rng = random.Random(11)
    by_key: dict[str, list[Tampering]] = {}
    for case in tamperings(whole):
        by_key.setdefault(case.key, []).append(case)
    cases = [case for all_ in by_key.values() for case in rng.sample(all_, 1)]
    outcomes = await _try(whole, cases)
    assert outcomes["repaired"] > 5
    assert "not checked" not in outcomes


async def test_the_newest_opening_is_gone(whole: Objects) -> None:
    """Everything that the epoch acknowledged would be invisible without its opening: a repair replaces the opening."""
    newest = max(key for key in whole if key.endswith("-000000000000") and key.startswith(PATHS.logs))
    assert await _try(whole, [Tampering(newest, "deleted", None)]) == {"repaired": 1}


@pytest.mark.soak
async def test_all_tamperings(whole: Objects) -> None:
    """Each tampering of each object is tried."""
    assert "not checked" not in await _try(whole, list(tamperings(whole)))
