"""Very many consumers of a stream are notified of removals a part in each turn of the loop, and clients see no
difference."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from nats.aio.msg import Msg

from broker.jetstream.stream.shared import listeners
from broker.jetstream.stream.shared.listeners import Listeners
from tests.jetstream.in_process import Inside

FILTERS = [[], ["s.0"], ["s.1", "s.2"], ["s.*"], ["s.3"], ["s.1"]]


@pytest.fixture
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat any number of consumers as very many."""
    monkeypatch.setattr(listeners, "_CALLS_AT_ONCE", 1)
    monkeypatch.setattr(listeners, "_TURNS", 1 << 30)


class RecordingListener:
    """A listener that records its notifications."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.filters: list[str] = []
        self.notifications: list[Callable[[Any], None]] = []
        self.received: list[object] = []

    def deliver_notifications(self) -> None:
        notifications, self.notifications = self.notifications, []
        for notify in notifications:
            notify(self)

    def removed(self, first_seq: int, last_seq: int, msgs: int, subject: bytes | None = None, *,
                purged: bool = False) -> None:
        self.deliver_notifications()
        if (self.name, first_seq) == ("broken", 3):
            raise RuntimeError("injected")
        self.received.append((first_seq, last_seq))

    def notification_failed(self) -> None:
        self.received.append("recount")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


async def test_all_receive_all_in_order(one_at_a_time: None, caplog: pytest.LogCaptureFixture) -> None:
    """A removed listener receives nothing more, a new one nothing from before; an error in one does not affect
    others."""
    by_name = {name: RecordingListener(name) for name in ("a", "broken", "gone", "z")}
    notifying = Listeners("S", by_name)  # type: ignore[arg-type]
    notifying.removed([(1, 2, 2)], None, False)
    late = by_name["late"] = RecordingListener("late")
    notifying.removed([(3, 3, 1), (5, 6, 2)], None, False)
    gone = by_name.pop("gone")
    gone.notifications = []
    assert not any(one.received for one in by_name.values())
    by_name["z"].deliver_notifications()
    assert by_name["z"].received == [(1, 2), (3, 3), (5, 6)]
    turns = 0
    while notifying.queued:
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 3
    assert by_name["a"].received == by_name["z"].received == [(1, 2), (3, 3), (5, 6)]
    assert late.received == [(3, 3), (5, 6)]
    assert by_name["broken"].received == [(1, 2), "recount"]
    assert not gone.received
    notifying.removed([(7, 7, 1)], None, False)
    await notifying.delivered()
    assert [one.received[-1] for one in by_name.values()] == [(7, 7)] * 4


async def test_a_longer_queue_is_delivered_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn delivers more if more is queued, so constant notifications do not pile up."""
    monkeypatch.setattr(listeners, "_CALLS_AT_ONCE", 4)
    by_name = {f"{number}": RecordingListener(f"{number}") for number in range(100)}
    notifying = Listeners("S", by_name)  # type: ignore[arg-type]
    most = 0
    for seq in range(1, 500):
        notifying.removed([(seq, seq, 1)], None, False)
        await asyncio.sleep(0)
        most = max(most, *(len(one.notifications) for one in by_name.values()))
    assert most <= 2 * listeners._TURNS
    await notifying.delivered()
    assert all(one.received == [(seq, seq) for seq in range(1, 500)] for one in by_name.values())
    assert notifying._calls == 0


async def test_very_many_followers_are_woken_in_turns() -> None:
    """Each is woken once, however often the stream grows before its turn; one that has left meanwhile is not woken."""
    notifying, woken = Listeners("S", {}), list[int]()
    follow = [partial(woken.append, number) for number in range(50)]
    notifying.followers.update(dict.fromkeys(follow))
    notifying.wake()
    notifying.wake()
    assert not woken
    await asyncio.sleep(0)
    assert woken == list(range(16))
    del notifying.followers[follow[40]]
    notifying.wake()  # the first ones again, after the others
    for _ in range(10):
        await asyncio.sleep(0)
    assert woken == [*range(40), *range(41, 50), *range(16)]


async def _pull(broker: Inside, consumer: str, batch: int) -> list[Msg]:
    """Return up to ``batch`` messages that are available."""
    subscription = await broker.client.subscribe(inbox := broker.client.new_inbox())
    body = json.dumps({"batch": batch, "no_wait": True}).encode()
    await broker.client.publish(f"$JS.API.CONSUMER.MSG.NEXT.S.{consumer}", body, reply=inbox)
    found: list[Msg] = []
    while len(found) < batch and "Status" not in ((msg := await subscription.next_msg(timeout=30)).headers or {}):
        found.append(msg)
    await subscription.unsubscribe()
    return found


def _shown(info: dict[str, Any]) -> dict[str, Any]:
    numbers = {key: info[key] for key in ("num_pending", "num_ack_pending", "num_redelivered", "num_waiting")}
    return numbers | {key: (info[key]["consumer_seq"], info[key]["stream_seq"]) for key in ("delivered", "ack_floor")}


async def _script(seed: int, retention: str) -> list[Any]:
    """Return what clients saw of a stream whose messages are published, consumed, deleted and purged."""
    rng, seen = random.Random(seed), list[Any]()
    async with Inside() as broker:
        await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s.*"], "retention": retention, "max_msgs": 60,
                                            "discard": "old", "allow_rollup_hdrs": True})
        names = []
        for number, filters in enumerate(FILTERS if retention != "workqueue" else [["s.0"], ["s.1", "s.2"], ["s.3"]]):
            names.append(f"c{number}")
            await broker.ok(f"CONSUMER.CREATE.S.{names[-1]}", {"stream_name": "S", "config": {
                "durable_name": names[-1], "ack_policy": "explicit", "filter_subjects": filters,
                "ack_wait": 3600 * 10**9}})
        for _ in range(40):
            what = rng.choice(["publish", "publish", "publish", "pull", "pull", "delete", "purge", "rollup"])
            if what == "publish":
                for _ in range(rng.randrange(1, 12)):
                    await broker.publish(f"s.{rng.randrange(4)}")
            elif what == "rollup":
                headers = {"Nats-Rollup": "sub"}
                await broker.client.request(f"s.{rng.randrange(4)}", b"r", headers=headers, timeout=30)
            elif what == "pull":
                for msg in await _pull(broker, rng.choice(names), rng.randrange(1, 9)):
                    seen.append((msg.subject, msg.metadata.sequence))  # num_pending may be behind
                    if rng.random() < 0.6:
                        await broker.client.request(msg.reply, b"", timeout=30)
            elif what == "delete":
                state = (await broker.ok("STREAM.INFO.S"))["state"]
                if state["messages"]:
                    seen.append((await broker.api("STREAM.MSG.DELETE.S", {"seq": rng.randrange(
                        state["first_seq"], state["last_seq"] + 1)})).get("success"))
            else:
                asked: dict[str, Any] = rng.choice([{}, {"filter": "s.1"}, {"keep": 10}, {"filter": "s.0", "keep": 2}])
                seen.append((await broker.ok("STREAM.PURGE.S", asked))["purged"])
            for name in rng.sample(names, 2):
                seen.append(_shown(await broker.ok(f"CONSUMER.INFO.S.{name}")))
        await broker.restart()
        seen += [_shown(await broker.ok(f"CONSUMER.INFO.S.{name}")) for name in names]
    return seen


@pytest.mark.parametrize(("seed", "retention"), [(1, "limits"), (2, "interest"), (3, "workqueue")])
async def test_clients_see_the_same(seed: int, retention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliveries, acks and infos are the same, also after a restart, if consumers are notified at once or one at a
    time."""
    at_once = await _script(seed, retention)
    monkeypatch.setattr(listeners, "_CALLS_AT_ONCE", 1)
    monkeypatch.setattr(listeners, "_TURNS", 1 << 30)
    queued: list[int] = []
    deliver_some = Listeners._deliver_some
    monkeypatch.setattr(Listeners, "_deliver_some",
                        lambda self: (queued.append(len(self._queued)), deliver_some(self)))
    assert await _script(seed, retention) == at_once
    assert queued


async def test_a_purge_is_answered_once_all_are_notified(one_at_a_time: None) -> None:
    """The records that consumers write because of the purge are therefore stored with it."""
    async with Inside() as broker:
        await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        for number in range(20):
            await broker.ok(f"CONSUMER.CREATE.S.c{number}",
                            {"stream_name": "S", "config": {"durable_name": f"c{number}"}})
        for _ in range(5):
            await broker.publish("s")
        await broker.ok("STREAM.PURGE.S")
        stream = broker.js.accounts["$G"].streams["S"]
        assert not stream.listeners.queued
        [state] = broker.state.streams.values()
        assert {one.floor_sseq for one in state.consumers.values()} == {5}
