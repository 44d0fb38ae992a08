"""An ack of very many messages takes several turns of the loop, with the same effect."""

from __future__ import annotations

import random
from typing import Any

import pytest

from broker.jetstream.consumer.acks import large
from tests.jetstream.consumer.fakes import MS, SECOND, Delivered, World, fresh_state, seqs
from tests.jetstream.in_process import Inside

FEW = 4
CONFIG: dict[str, Any] = {"ack_policy": "all", "max_ack_pending": -1, "ack_wait": SECOND}


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the bounds, so that some messages are very many."""
    monkeypatch.setattr(large, "_AT_ONCE", FEW)


class Side:
    """A consumer, one of two that get the same messages, answers and calls."""

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self.world = World()
        self.consumer = self.world.consumer(**CONFIG)
        self.state = fresh_state(self.consumer)
        self.deliveries: list[Delivered] = []

    def step(self, what: str, number: int, monkeypatch: pytest.MonkeyPatch) -> object:
        monkeypatch.setattr(large, "_AT_ONCE", self.at_once)
        world, consumer, sent = self.world, self.consumer, list[Delivered]()
        one = self.deliveries[number % len(self.deliveries)] if self.deliveries else None
        if what == "publish":
            world.stream.add(*["s"] * (number % 40))
        elif what == "pull":
            sent = world.pull(consumer, {"batch": number % 40 + 1, "no_wait": True}, inbox=b"_INBOX.%d" % number)
        elif what == "pass":
            sent = world.pass_time(number % 3 * 400 * MS)
        elif what == "remove":
            live = world.stream.live()
            world.stream.remove(*live[number % 7:number % 7 + 2])
            world.loop.settle()
        elif what == "purge":
            world.stream.first_seq = max(world.stream.first_seq, number % (world.stream.last_seq + 1) + 1)
            consumer.purged(world.stream.first_seq)
            world.loop.settle()
        elif what == "reset":
            consumer.rewind()
            world.loop.settle()
        elif what == "store":
            world.stored(consumer, self.state)
        elif one is not None and what == "two":
            sent = world.ack(consumer, one, self.deliveries[number // 3 % len(self.deliveries)])
        elif one is not None:
            sent = world.ack(consumer, one, body=what.encode(), reply=b"_INBOX.r%d" % number if number % 3 else b"")
        self.deliveries += [one for one in sent if one.is_message]
        shown = {key: value for key, value in consumer.info().items() if key not in ("ts", "created")}
        held = {key: getattr(self.state, key) for key in ("pending", "redelivered", "floor_cseq", "floor_sseq",
                                                          "delivered_cseq")}
        return seqs(sent), [(one.to, one.status) for one in sent
                            if not one.is_message], shown, held, world.stream.acknowledged


@pytest.mark.parametrize("seed", range(6))
def test_large_acks_have_the_same_effect_as_small_ones(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows two consumers with the same history, one of which takes many turns: they send, show and store the same."""
    rng = random.Random(seed)
    sides = Side(1 << 30), Side(FEW)
    slices = 0
    ack_first = sides[1].consumer._answers.ack_first

    def counted(*args: Any) -> bool:
        nonlocal slices
        found = ack_first(*args)
        slices += found
        return found

    monkeypatch.setattr(sides[1].consumer._answers, "ack_first", counted)
    for _ in range(150):
        what = rng.choice(["publish", "pull", "pull", "pass", "+ACK", "+ACK", "+TERM", "+NXT 5", "-NAK", "two", "store",
                           "remove",
                           *rng.sample(["purge", "reset"], rng.random() < 0.1)])
        number = rng.randrange(1 << 20)
        one, other = (side.step(what, number, monkeypatch) for side in sides)
        assert one == other, what
    assert slices


def deliver(count: int) -> tuple[World, Any, list[Delivered]]:
    world = World()
    consumer = world.consumer(**CONFIG)
    world.stream.add(*["s"] * count)
    return world, consumer, world.pull(consumer, {"batch": count}, inbox=b"_INBOX.all")


def ack(world: World, consumer: Any, one: Delivered, body: bytes = b"+ACK", reply: bytes = b"") -> None:
    """Send one answer, without running the loop."""
    consumer.on_ack([(one.reply, reply, 0, body)], 0, 1, None, world.clock.now_ns())


def test_answers_behind_a_large_ack_wait() -> None:
    """Shows that the answer, other answers and deliveries come after the last turn,
    and that the numbers always agree."""
    world, consumer, sent = deliver(30)
    world.stream.add(*["s"] * 5)
    ack(world, consumer, sent[25], reply=b"_INBOX.done")
    ack(world, consumer, sent[28], b"-NAK")
    consumer.on_next([(b"$JS.API.CONSUMER.MSG.NEXT.S.C", b"_INBOX.more", 0, b'{"batch":2}')], 0, 1, None, 0)
    left = []
    while consumer._large_acks.under_way:
        info = consumer.info()
        left.append(info["num_ack_pending"])
        assert info["ack_floor"]["stream_seq"] == 30 - info["num_ack_pending"]
        assert not world.bus.sent or info["num_ack_pending"] == 4
        assert not seqs(world.bus.sent)
        callback, args = world.loop.ready.pop(0)
        callback(*args)
    assert list(dict.fromkeys(left)) == [26, 22, 18, 14, 10, 6, 4]
    world.loop.settle()
    after = world.bus.pop_sent()
    assert [one.to for one in after if not one.is_message] == [b"_INBOX.done"]
    assert seqs(after) == [29, 31]
    assert world.stream.acknowledged == list(range(1, 27))


def test_the_record_of_the_acks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that the next acks wait until a record of the state is sealed, once there are many."""
    monkeypatch.setattr(large, "_UNSTORED_MAX", 8)
    world, consumer, sent = deliver(40)
    state = fresh_state(consumer)
    world.stored(consumer, state)
    assert len(state.pending) == 40
    ack(world, consumer, sent[-1], reply=b"_INBOX.done")
    left = []
    for _ in range(20):
        world.loop.settle()
        if consumer._large_acks.under_way:
            assert world.stream.log.barriers
        delta = consumer.pop_delta()
        if delta is None:
            break
        assert len(delta.dropped) <= 8 + FEW
        state.apply_delta(delta)
        left.append(len(state.pending))
    assert left == [32, 24, 16, 8, 0]
    assert [one.to for one in world.bus.pop_sent()] == [b"_INBOX.done"]


def test_a_store_that_does_not_answer_holds_up_no_deliveries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that after a second without a record the rest is acked all the same, and the consumer continues."""
    monkeypatch.setattr(large, "_UNSTORED_MAX", 8)
    world, consumer, sent = deliver(40)
    world.stored(consumer, fresh_state(consumer))
    world.stream.log.held = True
    world.stream.add("s")
    ack(world, consumer, sent[-1])
    assert not world.pull(consumer, inbox=b"_INBOX.more")
    assert len(consumer.acks.pending) == 32
    assert seqs(world.pass_time(SECOND)) == [41]
    assert list(consumer.acks.pending) == [41]
    delta = consumer.pop_delta()
    assert delta is not None
    assert delta.dropped == list(range(1, 41))


@pytest.mark.parametrize("ends", ["reset", "stop", "delete", "very many answers"])
def test_calls_that_cannot_wait_for_a_large_ack(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reset begins where the ack ends, a stop leaves it to be stored, and a delete leaves nothing to be done."""
    monkeypatch.setattr(large, "_RUNS_MAX", 3)
    world, consumer, sent = deliver(30)
    ack(world, consumer, sent[19])
    assert consumer._large_acks.under_way
    if ends == "reset":
        assert consumer.rewind() == 21
    elif ends == "stop":
        consumer.shutdown()
        assert len(consumer.acks.pending) == 10
    elif ends == "delete":
        consumer.delete()
    else:
        for one in sent[20:23]:
            ack(world, consumer, one)
        assert len(consumer.acks.pending) == 7
    assert not consumer._large_acks.under_way
    world.loop.settle()


async def test_info_waits_for_a_large_ack() -> None:
    """Shows it through a socket: the numbers are those after the ack; and what a restart finds."""
    async with Inside() as broker:
        await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        for number in range(50):
            await broker.publish("s", b"%d" % number)
        await broker.ok("CONSUMER.CREATE.S.C", {"stream_name": "S",
                                                "config": {"durable_name": "C", "ack_policy": "all"}})
        subscription = await broker.client.subscribe(inbox := broker.client.new_inbox())
        await broker.client.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", b"50", reply=inbox)
        sent = [await subscription.next_msg(timeout=30) for _ in range(50)]
        await broker.client.publish(sent[44].reply, b"+ACK")
        for _ in range(2):
            info = await broker.ok("CONSUMER.INFO.S.C")
            assert (info["num_ack_pending"], info["ack_floor"]["stream_seq"]) == (5, 45)
            await broker.restart()
