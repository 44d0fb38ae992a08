"""Keys: parsed as they were built, never the same for two objects, never outside their folder."""

from __future__ import annotations

import random
import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.storage import paths
from broker.storage.format.block import BlockPlace
from broker.storage.format.header import EPOCH_MAX, NUMBER_MAX, ObjectKind, Position
from broker.storage.log.writer import encode_segment, seal_block
from broker.storage.paths import NAME_BYTES_MAX, Key, ShardPaths, StreamPaths, escape, parse, unescape
from tests.storage.format.whole import AT, Row, open_block

names = (st.text(min_size=1, max_size=300) | st.text(alphabet="./\\~%:*?ABCabc\x00-_ ", min_size=1, max_size=60)
         | st.text(alphabet=string.ascii_letters, min_size=100, max_size=140)
         | st.text(alphabet=[chr(c) for c in (0xD800, 0xDFFF, 0x10FFFF, 0xE9, 0x65, 0x301)], min_size=1, max_size=50))
positions = st.builds(Position, st.integers(0, EPOCH_MAX), st.integers(0, NUMBER_MAX))
ids = st.integers(0, (1 << 64) - 1)


@given(names)
@example("..")
@example(".")
@example("CON")
@example("a/../../b")
@example("~" * 130)
def test_an_escaped_name_stays_in_its_place(name: str) -> None:
    """Shows the alphabet and length of every part: no slash, no dot, nothing that a file system folds."""
    part = escape(name)
    assert set(part) <= set(string.ascii_lowercase + string.digits + "_-%~")
    assert 1 <= len(part) <= NAME_BYTES_MAX
    assert part.casefold() == part
    back = unescape(part)
    assert back == name or (back is None and "~" in part)


@given(names, names)
def test_two_names_never_have_one_key(one: str, other: str) -> None:
    """Shows that escaping is injective on a file system that folds case, also for names that differ by case or end."""
    for first, second in ((one, other), (one, one.swapcase()), (one, one + other), (one + other, one + one)):
        assert (escape(first).casefold() == escape(second).casefold()) == (first == second)


def test_long_names_are_cut_at_escapes_and_distinguished_by_their_hash() -> None:
    """Shows the cut: 120 bytes at most, and names that differ only beyond it stay distinct."""
    for lead in range(6):
        one, other = (escape("a" * lead + "É" * 100 + end) for end in "xy")
        assert one != other
        assert one[:-32] == other[:-32]
        assert NAME_BYTES_MAX - 3 < len(one) <= NAME_BYTES_MAX
        assert unescape(one) is None
    assert escape("a" * 120) == "a" * 120
    assert escape("a" * 121).startswith("a" * 87 + "~")


@given(st.integers(0, (1 << 32) - 1), positions, ids, names, names)
def test_every_key_reads_back(shard: int, position: Position, one_id: int, account: str, stream: str) -> None:
    """Shows the round trip of each kind of key, and that each key has only one kind."""
    here = ShardPaths(shard)
    of_stream = StreamPaths(account, stream, one_id)
    expected = {
        paths.FORMAT: Key(ObjectKind.FORMAT),
        here.epoch(position.epoch): Key(ObjectKind.CLAIM, shard, Position(position.epoch, 0)),
        here.log(position): Key(ObjectKind.SEGMENT, shard, position),
        here.checkpoint(position): Key(ObjectKind.ROOT, shard, position),
        here.pages(position): Key(ObjectKind.PAGES, shard, position),
        here.run(position, one_id): Key(ObjectKind.RUN, shard, position, one_id),
        here.inbox(one_id): Key(ObjectKind.INBOX, shard, None, one_id),
        of_stream.run(position, one_id): Key(ObjectKind.RUN, None, position, one_id, unescape(escape(account)),
                                             unescape(escape(stream)), one_id),
    }
    assert len(expected) == 8
    for key, parts in expected.items():
        assert parse(key) == parts
        assert key.startswith(paths.ROOT)
        assert ".." not in key
        assert "//" not in key
    assert here.log(position).startswith(here.logs)
    assert here.run(position, one_id).startswith(here.runs)


@given(positions, positions)
def test_key_order_is_log_order(one: Position, other: Position) -> None:
    """Shows why numbers have a fixed width: listing gives the log in order."""
    shard = ShardPaths(0)
    assert (shard.log(one) < shard.log(other)) == (one < other)
    assert (shard.run(one, 1) < shard.run(other, 1)) == (one < other)


@given(st.text(max_size=80) | st.text(alphabet="v1/shardslog0-abcdef~%", max_size=80))
@example("v1/shards/00/log/00000001-000000000001")
@example("v1/shards/0/log/00000001-00000000000A")
@example("v1/shards/0/log/00000001-000000000001\n")
@example("v1/shards/0/log/.00000001-000000000001.aside")
@example("v1/shards/0/lock")
@example("v1/shards/9999999999/inbox/0000000000000001")
@example("v1/streams/a/%41/0000000000000001/runs/00000001-000000000001-0000000000000001/")
@example("v1/streams/a/%61/0000000000000001/runs/00000001-000000000001-0000000000000001")
def test_what_no_builder_builds_is_no_key(text: str) -> None:
    """Shows that parsing accepts canonical keys only: two spellings never name one object."""
    assert parse(text) is None or text == paths.FORMAT


def test_random_keys_of_the_alphabet_are_parsed_only_when_canonical() -> None:
    """Shows the same by mutation: a key with one character changed is either no key or another one."""
    rng = random.Random(11)
    key = StreamPaths("$G", "ORDERS", 7).run(Position(1, 2), 3)
    assert key == "v1/streams/%24%47/%4f%52%44%45%52%53/0000000000000007/runs/00000001-000000000002-0000000000000003"
    good = parse(key)
    for _ in range(3000):
        i = rng.randrange(len(key))
        other = key[:i] + rng.choice(string.printable) + key[i + 1:]
        assert other == key or parse(other) != good


@pytest.mark.parametrize("call", [
    lambda: escape(""), lambda: ShardPaths(-1), lambda: ShardPaths(0).epoch(EPOCH_MAX + 1),
    lambda: ShardPaths(0).log(Position(0, NUMBER_MAX + 1)), lambda: ShardPaths(0).inbox(-1),
    lambda: StreamPaths("a", "b", 1 << 64), lambda: StreamPaths("a", "", 1)])
def test_what_fits_no_key_is_refused(call: object) -> None:
    """Shows the bounds: a number too large is an error, not a longer key."""
    with pytest.raises(ValueError):
        call()  # type: ignore[operator]


def test_a_block_reference_names_its_object() -> None:
    """Shows the three places where a block may be stored."""
    stream = StreamPaths("$G", "s", 9)
    for place, key in ((BlockPlace.LOG, ShardPaths(2).log(AT)), (BlockPlace.RUN, ShardPaths(2).run(AT, 5)),
                       (BlockPlace.STREAM_RUN, stream.run(AT, 5))):
        sealed = seal_block(open_block(9, [[Row(1, 0, b"s", 0, b"")]]), AT, object_id=5)
        encode_segment(AT, bytes(16), [sealed], object_id=5, place=place)
        assert sealed.ref is not None
        assert paths.object_key(ShardPaths(2), sealed.ref, stream) == key
        if place is BlockPlace.STREAM_RUN:
            with pytest.raises(ValueError, match="needs its stream"):
                paths.object_key(ShardPaths(2), sealed.ref)
