"""Direct gets of several messages compared with gets of single ones: blocks, removed messages, the tail, a restart."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from nats.aio.msg import Msg

from tests.jetstream.in_process import Inside

pytestmark = pytest.mark.asyncio

COUNT = 400


@pytest_asyncio.fixture(params=["file", "memory"])
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Inside]:
    """A stream of several blocks, with removed messages in them."""
    async with Inside() as inside:
        await inside.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "allow_direct": True,
                                            "storage": request.param})
        for start in range(0, COUNT, 100):
            await asyncio.gather(*(inside.publish(f"s.{n % 7}", b"%d" % n) for n in range(start, start + 100)))
        rng = random.Random(3)
        for seq in [*range(200, 210), *rng.sample(range(300, COUNT), 40), COUNT]:
            await inside.ok("STREAM.MSG.DELETE.S", {"seq": seq})
        yield inside


async def batch(broker: Inside, **asked: object) -> list[Msg]:
    inbox = broker.client.new_inbox()
    subscription = await broker.client.subscribe(inbox)
    await broker.client.publish("$JS.API.DIRECT.GET.S", json.dumps(asked).encode(), reply=inbox)
    msgs: list[Msg] = []
    while "Status" not in (msg := await subscription.next_msg()).headers:
        msgs.append(msg)
    await subscription.unsubscribe()
    return msgs


async def singles(broker: Inside, wanted: str) -> list[tuple[int, bytes]]:
    found, seq = [], 1
    while not (msg := await broker.ask("DIRECT.GET.S", {"seq": seq, "next_by_subj": wanted})).headers.get("Status"):
        found.append((int(msg.headers["Nats-Sequence"]), msg.data))
        seq = found[-1][0] + 1
    return found


async def stored(broker: Inside) -> bool:
    return bool((await broker.ok("STREAM.INFO.S"))["config"]["storage"] == "file")


def shown(msgs: list[Msg]) -> list[tuple[int, bytes]]:
    return [(int(msg.headers["Nats-Sequence"]), msg.data) for msg in msgs]


@pytest.mark.parametrize("wanted", [">", "s.3", "s.*", "s.none"])
@pytest.mark.parametrize("cold", [False, True])
async def test_a_batch_is_what_single_gets_find(broker: Inside, wanted: str, cold: bool) -> None:
    expected = await singles(broker, wanted)
    if cold and await stored(broker):
        await broker.restart()
    assert shown(await batch(broker, batch=2 * COUNT, seq=1, next_by_subj=wanted)) == expected
    assert shown(await batch(broker, batch=9, seq=205, next_by_subj=wanted)) == [
        one for one in expected if one[0] >= 205][:9]
    if expected:
        msgs = await batch(broker, batch=2 * COUNT, seq=1, next_by_subj=wanted)
        assert [int(msg.headers["Nats-Num-Pending"]) for msg in msgs] == list(reversed(range(len(msgs))))
        assert [int(msg.headers["Nats-Last-Sequence"]) for msg in msgs] == [0, *(seq for seq, _ in expected[:-1])]


async def test_publishes_go_on_meanwhile(broker: Inside) -> None:
    """Shows that a batch over many turns of the loop is in order, without a gap."""
    async def publish() -> None:
        for n in range(50):
            await broker.publish("s.8", b"%d" % n)

    _, msgs = await asyncio.gather(publish(), batch(broker, batch=10 * COUNT, seq=1, next_by_subj=">"))
    seqs = [seq for seq, _ in shown(msgs)]
    everything = [seq for seq, _ in await singles(broker, ">")]
    assert len(seqs) >= COUNT - 51
    assert seqs == everything[:len(seqs)]


async def test_a_stream_that_is_deleted_meanwhile(broker: Inside) -> None:
    """Shows that the get ends, and others are served."""
    if await stored(broker):
        await broker.restart()
    msgs, _ = await asyncio.gather(batch(broker, batch=2 * COUNT, seq=1, next_by_subj=">"),
                                   broker.ok("STREAM.DELETE.S"))
    assert len(msgs) <= COUNT
    await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "allow_direct": True})
    await broker.publish("s.1", b"new")
    assert shown(await batch(broker, batch=5, seq=1, next_by_subj=">")) == [(1, b"new")]


@pytest.mark.parametrize("cold", [False, True])
async def test_last_values_of_many_keys_are_what_single_gets_find(broker: Inside, cold: bool) -> None:
    """Shows values with headers and without, neighbours and far apart, some replaced, some removed.

    They come in one answer, and in answers cut by its bounds.
    """
    keys = [f"s.k.{n}" for n in range(120)]
    for at in range(0, 120, 40):
        await asyncio.gather(*(broker.client.request(key, b"v of " + key.encode(), 30,
                                                     headers={"K": key} if n % 3 else None)
                               for n, key in enumerate(keys[at:at + 40])))
    await asyncio.gather(*(broker.publish(key, b"newer") for key in keys[::11]))
    state = (await broker.ok("STREAM.INFO.S"))["state"]
    for seq in range(state["last_seq"] - 60, state["last_seq"] - 40):
        await broker.ok("STREAM.MSG.DELETE.S", {"seq": seq})
    if cold and await stored(broker):
        await broker.restart()
    single = [await broker.client.request(f"$JS.API.DIRECT.GET.S.{key}", b"", 30) for key in keys]
    found = sorted((int(msg.headers["Nats-Sequence"]), msg.headers["Nats-Subject"], msg.headers.get("K"), msg.data,
                    msg.headers["Nats-Time-Stamp"]) for msg in single if "Status" not in msg.headers)
    assert 100 <= len(found) < len(keys)

    def shown_whole(msgs: list[Msg]) -> list[tuple[int, str, str | None, bytes, str]]:
        return [(int(msg.headers["Nats-Sequence"]), msg.headers["Nats-Subject"], msg.headers.get("K"), msg.data,
                 msg.headers["Nats-Time-Stamp"]) for msg in msgs]

    msgs = await batch(broker, multi_last=keys)
    assert shown_whole(msgs) == found
    assert [int(msg.headers["Nats-Num-Pending"]) for msg in msgs] == list(reversed(range(len(found))))
    assert [int(msg.headers["Nats-Last-Sequence"]) for msg in msgs] == [0, *(row[0] for row in found[:-1])]
    assert shown_whole(await batch(broker, multi_last=keys, batch=33)) == found[:33]
    assert shown_whole(await batch(broker, multi_last=keys, max_bytes=1)) == found[:1]
