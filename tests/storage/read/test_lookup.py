"""A stream looked up in a store: what is found, and in how many requests."""

from __future__ import annotations

import random

from broker.storage.checkpoint.settings import CheckpointSettings
from broker.storage.format.checkpoint import Root
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.paths import parse
from broker.storage.read.lookup import find_stream
from broker.storage.shard import ShardSettings
from broker.storage.state.names import NAMES, pack_names, pages_of_name
from tests.manual_clock import ManualClock
from tests.storage.rig import Counting, Rig, Stream, in_virtual_time

NEVER = ShardSettings(checkpoint=CheckpointSettings(segments=1 << 30, replayed_segments=1 << 30,
                                                    replayed_epochs=1 << 30))
MANY = 1000


def test_one_of_many_streams_is_found_in_three_requests() -> None:
    """Shows each stream found after the rounds of two owners, in a listing and two gets; also the streams of pages that
    the second owner has not written. A stream that does not exist, or was created since, is looked up in the log."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        made: dict[str, Stream] = {}
        for owner in "ab":
            rig = Rig(shared, clock, owner, settings=NEVER)
            shard = await rig.open()
            for n in range(MANY if owner == "a" else 5):
                stream = made[f"{owner}{n}"] = Stream(rig.log, 1000 + len(made), f"{owner}{n}")
                stream.create()
                stream.publish()
            await rig.log.persisted()
            assert await shard.checkpointer.cut()
            assert await shard.checkpointer.cut() is False
            Stream(rig.log, ord(owner), f"since {owner}").create()
            await rig.log.persisted()
            for name, stream in [*made.items()][::9]:
                store = Counting(shared)
                found = await find_stream(store, "$G", name)
                assert found is not None
                assert (found.name, found.stream_id) == (name, stream.stream_id)
                assert len(store.calls) == 3, store.calls
            since = await find_stream(shared, "$G", f"since {owner}")
            assert since is not None
            assert since.stream_id == ord(owner)
            assert await find_stream(shared, "$G", "none") is None
            assert await find_stream(shared, "A", "a1") is None
            await shard.close()
    in_virtual_time(main)


def test_a_checkpoint_without_hashes_or_with_damage_is_no_obstacle() -> None:
    """Shows a root of an earlier release, of which all pages are read, and a damaged one: the root before it is
    used."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = Rig(shared, clock, settings=NEVER)
        shard = await rig.open()
        streams = [Stream(rig.log, 7 + n, f"s{n}") for n in range(100)]
        for stream in streams:
            stream.create()
            await rig.log.persisted()
            if stream.stream_id in (50, 106):
                assert await shard.checkpointer.cut()
        key = max(key for key in shared.objects if "/checkpoint/" in key)
        parsed = parse(key)
        assert parsed is not None
        assert parsed.position is not None
        root = Root.decode(shared.objects[key], parsed.position)
        del root.extra[NAMES]
        shared.objects[key] = root.encode(bytes(16))
        for stream in streams:
            found = await find_stream(shared, "$G", stream.name)
            assert found is not None
            assert found.stream_id == stream.stream_id
        shared.objects[key] = shared.objects[key][:-1] + b"?"
        found = await find_stream(shared, "$G", "s60")
        assert found is not None
        assert found.stream_id == 67
    in_virtual_time(main)


def test_hashes_name_the_page() -> None:
    """Shows that the page of a name is always among those found, and few others are."""
    rng = random.Random(1)
    names = [("A" * rng.randrange(3), f"s{rng.random()}") for _ in range(2000)]
    pages = [names[at:at + 64] for at in range(0, len(names), 64)]
    extra = {NAMES: [[number, pack_names(page)] for number, page in enumerate(pages)]}
    found = 0
    for number, page in enumerate(pages):
        for account, name in page:
            indexed, may_have = pages_of_name(extra, account, name)
            assert (len(indexed), number in may_have) == (len(pages), True)
            found += len(may_have)
    assert found < len(names) + 20
    assert pages_of_name({}, "A", "s") == (frozenset(), frozenset())
