"""Verification: an undamaged store has no problems, and damage of any object is reported by that object's key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import pytest_asyncio

from broker.cluster.ownership import seal_at
from broker.inspect.objects import check_object
from broker.inspect.source import Source
from broker.inspect.survey import Survey, read_survey
from broker.inspect.verify import Verified, state_differences, verify
from broker.storage.format.checkpoint import Root
from broker.storage.format.claim import Claim
from broker.storage.format.header import ObjectKind, Position
from broker.storage.format.page import Page, PageKind, decode_page, encode_pages
from broker.storage.log.writer import encode_segment
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.paths import parse
from broker.storage.read.snapshot import read_snapshot
from tests.inspect.stores import PATHS, T0, Owner, filled

Objects = Mapping[str, bytes]


@pytest_asyncio.fixture
async def objects() -> AsyncIterator[Objects]:
    """Make the objects of a store whose last broker was killed."""
    store = MemoryStore()
    owner = await filled(store)
    await owner.kill()
    yield dict(store.objects)


async def verified_store(objects: Objects,
                         changed: Mapping[str, bytes | None] | None = None) -> tuple[Survey, Verified]:
    """Verify the store of these objects, with some of them changed; None: deleted."""
    store = MemoryStore()
    for key, data in (dict(objects) | dict(changed or {})).items():
        if data is not None:
            await store.put(key, [data])
    source = Source(store, give_up_ns=0)
    survey = await read_survey(source)
    return survey, await verify(source, survey)


async def test_progress_ends_at_its_total(objects: Objects) -> None:
    """The total counts every object that is read, claims and the format included."""
    store = MemoryStore()
    for key, data in objects.items():
        await store.put(key, [data])
    source, seen = Source(store, give_up_ns=0), list[tuple[int, int]]()
    await verify(source, await read_survey(source), lambda done, of, *_: seen.append((done, of)))
    assert seen[-1] == (len(objects), len(objects))
    assert all(done <= of for done, of in seen)


def kinds(objects: Objects) -> dict[str, ObjectKind]:
    found = {}
    for key, data in objects.items():
        parsed = parse(key)
        assert parsed is not None
        found[key] = ObjectKind.SEAL if data[8] == ObjectKind.SEAL else parsed.kind
    return found


async def test_a_sound_store_has_no_problems(objects: Objects) -> None:
    """Every object is read, all checkpoints are compared, and no problem is found. The store has all kinds of
    objects."""
    survey, verified = await verified_store(objects)
    assert (survey.problems, verified.problems, verified.orphans) == ([], [], [])
    assert verified.objects == len(objects)
    assert verified.bytes == sum(map(len, objects.values()))
    assert len(verified.roots) == 3
    assert set(kinds(objects).values()) == set(ObjectKind) - {ObjectKind.RUN, ObjectKind.INBOX, ObjectKind.KEYS,
                                                             ObjectKind.HEARTBEAT}
    [shard] = survey.shards
    assert [epoch.claim.owner for epoch in shard.epochs if epoch.claim] == ["broker-a", "broker-a", "broker-b"]
    assert [epoch.end for epoch in shard.epochs] == [8, 3, None]
    assert [(stream.name, stream.msgs, stream.first_seq, stream.last_seq) for _, stream in survey.streams] == [
        ("ORDERS", 8, 1, 10), ("logs", 750, 451, 1200)]


async def test_a_flip_or_cut_in_any_object_is_reported_by_its_key(objects: Objects) -> None:
    """Each object is damaged in several places: it is named, with a consequence and a remedy; there are few
    problems; and both streams are listed."""
    for key, data in objects.items():
        middle = len(data) // 2
        for changed in (flipped(data, 0), flipped(data, 12), flipped(data, 70), flipped(data, middle),
                        flipped(data, len(data) - 1), data[:-5], data[:40], data + b"x", b""):
            survey, verified = await verified_store(objects, {key: changed})
            problems = survey.problems + verified.problems
            assert key in {problem.object for problem in problems}, (key, problems)
            assert all(problem.means and problem.remedy for problem in problems)
            assert len(problems) <= 4, (key, problems)
            assert {stream.name for _, stream in survey.streams} == {"ORDERS", "logs"}


async def test_every_byte_of_a_segment_counts(objects: Objects) -> None:
    """A flipped byte is found in every place of a segment with messages, records and removed ranges."""
    for number in (1, 4, 7):
        key = PATHS.log(Position(1, number))
        parsed = parse(key)
        assert parsed is not None
        for at in range(len(objects[key])):
            store = MemoryStore()
            await store.put(key, [flipped(objects[key], at)])
            [info] = await store.list(key)
            checked = await check_object(Source(store), info, parsed, lambda *block: None)
            assert checked.faults, (key, at)


async def test_an_object_that_is_gone_is_reported(objects: Objects) -> None:
    """Each missing object is named, except two of which the store has no trace: the newest checkpoint, which an
    older one replaces, and the log's last entry."""
    unknown = {PATHS.checkpoint(Position(2, 2)), PATHS.log(Position(3, 1))}
    for key in objects:
        survey, verified = await verified_store(objects, {key: None})
        named = {problem.object for problem in survey.problems + verified.problems}
        assert (key in named) == (key not in unknown), (key, named)


async def test_a_hole_in_the_last_epoch_is_no_end() -> None:
    """A missing segment is not taken for the log's end if there is a seal beyond it."""
    store = MemoryStore()
    owner = Owner(store)
    await owner.start()
    stream = await owner.stream("s")
    for i in range(4):
        stream.publish(("s.a", b"", b"%d" % i))
        await owner.log.persisted()
    end = await owner.shard.close(checkpoint=False)
    await seal_at(store, PATHS, end, owner.epoch, owner.me, owner.clock, owner.rng)
    assert (await verified_store(store.objects))[1].problems == []
    survey, _ = await verified_store(store.objects, {PATHS.log(Position(1, 3)): None})
    [problem] = survey.problems
    assert problem.object == PATHS.log(Position(1, 3))
    assert "the log cannot be read past this" in problem.means


async def test_damage_names_the_lost_messages(objects: Objects) -> None:
    """A damaged frame costs only its own messages, and dead messages do not count as lost."""
    fourth = PATHS.log(Position(1, 4))
    _, verified = await verified_store(objects, {fourth: flipped(objects[fourth], len(objects[fourth]) - 1)})
    [problem] = verified.problems
    assert problem.section == "frame 3"
    assert problem.means == "messages 561 to 600 of stream $G/logs cannot be read"
    third = PATHS.log(Position(1, 3))
    _, verified = await verified_store(objects, {third: flipped(objects[third], len(objects[third]) - 1)})
    [problem] = verified.problems
    assert "no live message" in problem.means


async def test_a_damaged_segment_hides_no_earlier_state(objects: Objects) -> None:
    """The state is that of the entry before the damage, and is marked as incomplete."""
    key = PATHS.log(Position(3, 1))
    survey, verified = await verified_store(objects, {key: flipped(objects[key], 170)})
    [problem] = survey.problems
    assert problem.object == key
    assert "will not start" in problem.means
    [shard] = survey.shards
    assert not shard.view.whole
    assert shard.view.state.position == Position(3, 0)
    assert [(stream.name, stream.last_seq) for _, stream in survey.streams] == [("ORDERS", 9), ("logs", 1200)]
    assert verified.objects == len(objects)


async def test_a_moved_object_is_noticed(objects: Objects) -> None:
    """Undamaged bytes under another key are a problem of that key."""
    here, there = PATHS.log(Position(1, 4)), PATHS.log(Position(1, 5))
    _, verified = await verified_store(objects, {here: objects[there]})
    assert [(problem.object, problem.what) for problem in verified.problems] == [
        (here, "it holds the bytes of segment 00000001-000000000005")]


async def test_two_writers_under_one_epoch_are_noticed(objects: Objects) -> None:
    """An epoch's objects must carry the nonce of its claim."""
    key = PATHS.epoch(3)
    _, verified = await verified_store(objects, {key: Claim(3, "broker-c", bytes(16), T0).encode()})
    assert {problem.object for problem in verified.problems} == {PATHS.log(Position(3, 0)), PATHS.log(Position(3, 1))}
    assert all("two brokers" in problem.means for problem in verified.problems)


async def test_orphans_are_listed_and_no_fault(objects: Objects) -> None:
    """A dead broker leaves entries beyond its end and pages without a root: they are listed, as are foreign objects."""
    note = "v1/shards/0/log/README"
    nonce = objects[PATHS.epoch(2)][24:40]
    pages = b"".join(encode_pages(Position(2, 9), nonce, [Page(PageKind.DIRECTORY, Position(2, 2), 0, [])])[0])
    beyond = encode_segment(Position(2, 5), nonce, [])
    changed = {PATHS.pages(Position(2, 9)): pages, PATHS.log(Position(2, 5)): b"".join(beyond), note: b"hands off"}
    survey, verified = await verified_store(objects, changed)
    assert survey.problems + verified.problems == []
    assert {orphan.object for orphan in verified.orphans} == set(changed)


async def test_checkpoint_and_log_are_compared(objects: Objects) -> None:
    """A checkpoint whose content differs from the log is found, although every checksum is right."""
    root_key = PATHS.checkpoint(Position(1, 6))
    root = Root.decode(objects[root_key], Position(1, 6))
    [ref] = root.pages
    page_key = PATHS.pages(ref.position)
    page = decode_page(objects[page_key][ref.offset:ref.offset + ref.size], ref)
    body = [[*entry] for entry in page.body]
    body[0][3] = {"name": "ORDERS", "subjects": ["somebody.else"]}
    nonce = objects[page_key][24:40]
    data, [placed] = encode_pages(ref.position, nonce, [Page(page.kind, page.position, page.key, body)])
    changed = Root(root.position, root.replay_from, (placed,), root.extra).encode(nonce)
    _, verified = await verified_store(objects, {page_key: b"".join(data), root_key: changed})
    assert root_key in {problem.object for problem in verified.problems}
    [problem] = [problem for problem in verified.problems if problem.object == root_key]
    assert "config" in problem.what


async def test_state_differences_are_found(objects: Objects) -> None:
    """Equal states have no differences, and each changed part of a state gives one."""
    store = MemoryStore()
    for key, data in objects.items():
        await store.put(key, [data])
    one, other = (await read_snapshot(store, 0)).state, (await read_snapshot(store, 0)).state
    assert state_differences(one, other) == []
    orders = next(stream for stream in other.streams.values() if stream.name == "ORDERS")
    orders.msgs += 1
    orders.consumers["c"].pending.clear()
    next(iter(orders.blocks)).remove(1, 1, 1, 10)
    text = "; ".join(state_differences(one, other))
    assert "msgs" in text
    assert "consumer c" in text
    assert "dead" in text


def flipped(data: bytes, at: int) -> bytes:
    at = min(at, len(data) - 1)
    return data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1:]
