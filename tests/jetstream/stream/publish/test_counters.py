"""Counters: totals are those of a plain dictionary, over runs, refusals, limits, deletes and restarts."""

from __future__ import annotations

import json
import random

import pytest

from broker.jetstream.stream.publish import totals
from broker.jetstream.stream.publish.totals import Total
from broker.storage.log.settings import LogSettings
from tests.jetstream.stream.world import World, ask, everything, pub, publish

SUBJECTS = [b"S.a", b"S.b", b"S.c"]


@pytest.mark.parametrize("seed", range(6))
async def test_against_a_dictionary(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each PubAck and the store have the right total. Totals leave the cache now and then, so they are read back."""
    monkeypatch.setattr(totals, "_TOTALS_MAX", 2)
    rng = random.Random(seed)
    world = World(settings=LogSettings(segment_count=5))
    config = rng.choice([{}, {"max_msgs_per_subject": 1}, {"max_msgs": 4}, {"storage": "memory"}])
    stream = world.stream(allow_msg_counter=True, **config)
    kept: list[tuple[int, bytes, int]] = []
    last_seq = 0
    for _ in range(40):
        draw = rng.random()
        if draw < 0.7:
            sent = []
            for _ in range(rng.randint(1, 6)):
                subject, increment = rng.choice(SUBJECTS), rng.choice(["1", "-5", "+7", str(10 ** 30), "x"])
                msg = pub(subject, Nats_Incr=increment)
                total = None
                if increment != "x":
                    total = next((value for _, one, value in reversed(kept) if one == subject), 0) + int(increment)
                    last_seq += 1
                    kept.append((last_seq, subject, total))
                    if "max_msgs_per_subject" in config:
                        kept = [one for one in kept if one[1] != subject or one[0] == last_seq]
                    kept = kept[-4:] if "max_msgs" in config else kept
                sent.append((msg, total))
            publish(world, stream, *[msg for msg, _ in sent])
            await world.settle(stream)
            for msg, total in sent:
                answer = world.bus.answer(msg[1])
                if total is None:
                    assert answer["error"]["err_code"] == 10171
                else:
                    assert answer["val"] == str(total)
        elif draw < 0.85 and kept:
            seq, _, _ = kept.pop(rng.randrange(len(kept)))
            assert await stream.delete_msg(seq, True)
        elif draw < 0.92:
            world.reader._cache.clear()
        elif "storage" not in config:
            await world.settle(stream)
            stream = await world.restart(stream)
    assert await everything(stream) == [(seq, subject, b'{"val":"%d"}' % total) for seq, subject, total in kept]
    await world.close()


async def test_a_message_that_is_no_counter_stops_its_subject() -> None:
    """Such a message may come from a restored stream, or from sources that a client made up."""
    world = World()
    stream = world.stream(allow_msg_counter=True)
    await ask(world, stream, pub(b"S.a", Nats_Incr="1", Nats_Counter_Sources="{"))
    assert (await ask(world, stream, pub(b"S.a", Nats_Incr="1")))["error"]["err_code"] == 10172
    assert (await ask(world, stream, pub(b"S.b", Nats_Incr="1")))["val"] == "1"
    await world.close()


@pytest.mark.parametrize("payload, expected", [
    (b'{"val":"12"}', Total(12, {})), (b'{"val":"-1"}', Total(-1, {})), (b'{"val":"x"}', Total(0, {})),
    (b"{}", Total(0, {})),
    (b"null", Total(0, {})), (b"12", Total(0, {}, True)), (b'{"val":12}', Total(0, {}, True)),
    (b"", Total(0, {}, True)),
    (b"[]", Total(0, {}, True)), (b"[" * 20_000, Total(0, {}, True)),
    (b'{"val":"%s"}' % (b"1" * 4202), Total(0, {}, True)), (b"\xff", Total(0, {}, True))])
def test_parsing_of_a_stored_message(payload: bytes, expected: Total) -> None:
    assert Total.of(b"", payload) == expected


@pytest.mark.shows("stream.counter")
async def test_increments_have_a_bound() -> None:
    """A number beyond the limit is refused; one within the limit can be added any number of times."""
    world = World()
    stream = world.stream(allow_msg_counter=True)
    assert (await ask(world, stream, pub(b"S.a", Nats_Incr="9" * 4001)))["error"]["err_code"] == 10171
    for _ in range(3):
        answer = await ask(world, stream, pub(b"S.a", Nats_Incr="9" * 4000))
    assert answer["val"] == str(3 * (10 ** 4000 - 1))
    await world.close()


async def test_sources_of_totals_limit_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Totals of many sources evict others; the remaining totals are right, and evicted ones are read back."""
    monkeypatch.setattr(totals, "_SOURCES_MAX", 10)
    monkeypatch.setattr(totals, "_TOTALS_MIN", 1)
    world = World()
    stream = world.stream(allow_msg_counter=True)
    sources = json.dumps({"T": {str(n): "1" for n in range(6)}})
    for name in "abca":
        answer = await ask(world, stream, pub(b"S.%b" % name.encode(), Nats_Incr="1", Nats_Counter_Sources=sources))
    assert answer["val"] == "2"
    assert len(stream.sequencer.context.totals._latest) == 1
    await world.close()


async def test_a_message_that_its_sources_make_too_large_is_refused() -> None:
    """Stored headers have a limit, and max_msg_size includes the total."""
    world = World()
    stream = world.stream(allow_msg_counter=True, max_msg_size=40)
    assert (await ask(world, stream, pub(b"S.a", Nats_Incr="1")))["val"] == "1"
    assert (await ask(world, stream, pub(b"S.a", Nats_Incr="10000000")))["error"]["err_code"] == 10054
    await world.close()
