"""The faster ways of a publish, for single messages and for whole runs, decide as the checks of each message do."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.jetstream.stream.world import World, everything, pub, publish

SUBJECTS = 4
STEPS = 25


def limits(rng: random.Random) -> dict[str, Any]:
    """Return a configuration with some limits, small enough that publishes reach them."""
    chosen: dict[str, Any] = {}
    for name, values, share in (("max_msgs", (3, 5, 12), 0.5), ("max_bytes", (100, 400), 0.4),
                                ("max_msgs_per_subject", (1, 2, 3), 0.6), ("discard", ("new",), 0.6),
                                ("max_msg_size", (20,), 0.2), ("max_age", (10**9,), 0.2)):
        if rng.random() < share:
            chosen[name] = rng.choice(values)
    if chosen.keys() >= {"discard", "max_msgs_per_subject"} and rng.random() < 0.3:
        chosen["discard_new_per_subject"] = True
    return chosen


def headers(rng: random.Random) -> dict[str, str]:
    """Return the headers of a message, which usually has none."""
    kind = rng.random()
    return ({"X": "y"} if kind < 0.1 else {"Nats_Msg_Id": str(rng.randrange(4))} if kind < 0.2
            else {"Nats_Expected_Last_Sequence": str(rng.randrange(10))} if kind < 0.25 else {})


async def played(seed: int, storage: str, *, one_by_one: bool) -> tuple[Any, ...]:
    """Publish at random; return all replies, and the stream's state."""
    rng, world = random.Random(seed), World()
    stream = world.stream(storage=storage, **limits(rng))
    for step in range(STEPS):
        if one_by_one:
            stream.sequencer._bulky = stream.sequencer._plain = False
        publish(world, stream, *[
            pub(b"S.%d" % rng.randrange(SUBJECTS), bytes(rng.randrange(40)),
                reply=b"r.%d.%d" % (step, at) if rng.random() < 0.9 else b"", **headers(rng))
            for at in range(rng.choice((1, 1, 1, 2, 5)))])
        if rng.random() < 0.5:
            await world.settle(stream)
    await world.settle(stream)
    state = stream.msgs, stream.size_bytes, stream.first_seq, stream.last_seq
    result = world.bus.replies, await everything(stream), state
    await world.close()
    return result


@pytest.mark.parametrize("storage", ["file", "memory"])
@pytest.mark.parametrize("seed", range(8))
async def test_the_faster_ways_decide_as_the_checks(seed: int, storage: str) -> None:
    """The same publishes get the same answers and leave the same messages if each is decided by itself."""
    assert await played(seed, storage, one_by_one=False) == await played(seed, storage, one_by_one=True)
