"""Direct gets: messages in memory are answered at once, with the same bytes as messages that must be read first."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.jetstream.bus import Bus, Msg
from tests.jetstream.in_process import Inside

BIG = bytes(100_000)

REQUESTS: list[tuple[str, Any]] = [
    ("S.k.1", b""), ("S.k.2", b""), ("S.k.gone", b""), ("S.k.deleted", b""), ("S.k.*", b""), ("S.k.>", b""), ("S", b""),
    ("S.>", b""), ("S.k.1", {"seq": 1}),
    ("S.k.headers", b""), ("S", {"seq": 1}), ("S", b'{"seq": 3}'), ("S", b'{"seq":0}'), ("S", b'{"seq":4}'),
    ("S", b'{"seq":999999999999999999}'), ("S", b'{"seq":18446744073709551615}'), ("S", b'{"seq":01}'),
    ("S", b'{"seq":-1}'),
    ("S", b'{"seq":5,"no_hdr":true}'), ("S", {"seq": 5}), ("S", {"last_by_subj": "k.2"}),
    ("S", {"last_by_subj": "k.none"}),
    ("S", {"last_by_subj": "k.*"}), ("S", {"last_by_subj": "k.headers", "no_hdr": True}),
    ("S", {"next_by_subj": "k.*", "seq": 2}),
    ("S", {"next_by_subj": "k.1", "seq": 2}), ("S", {"next_by_subj": "k.none"}),
    ("S", {"start_time": "2020-01-01T00:00:00Z"}),
    ("S", b"no JSON"), ("S", {"batch": 3}), ("S", {"seq": 1, "last_by_subj": "k.1"}),
]
BATCHES: list[dict[str, Any]] = [
    {"seq": 1, "batch": 100}, {"seq": 4, "batch": 2}, {"seq": 1, "batch": 100, "next_by_subj": "k.*"},
    {"seq": 2, "batch": 3, "next_by_subj": "k.2"}, {"seq": 1, "batch": 100, "max_bytes": 60},
    {"seq": 1, "batch": 3, "no_hdr": True},
    {"multi_last": ["k.*"]}, {"multi_last": ["k.1", "k.2", "k.none"]}, {"multi_last": ["k.1", "k.2"], "up_to_seq": 6},
    {"multi_last": ["k.>"], "batch": 2},
]


async def _filled(broker: Inside, **config: Any) -> None:
    await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["k.>"], "allow_direct": True, **config})
    for i in range(12):
        await broker.publish(f"k.{i % 3}", b"v%d" % i)
    await broker.client.jetstream().publish("k.headers", b"h", headers={"A": "b"})
    last = await broker.publish("k.deleted")
    for seq in (4, last):
        await broker.ok("STREAM.MSG.DELETE.S", {"seq": seq})


async def _answer(broker: Inside, subject: str, body: Any) -> tuple[Any, bytes]:
    msg = await broker.ask(f"DIRECT.GET.{subject}", body)
    return msg.headers, msg.data


async def _batch(broker: Inside, body: dict[str, Any]) -> list[tuple[Any, bytes]]:
    inbox = broker.client.new_inbox()
    subscription = await broker.client.subscribe(inbox)
    await broker.client.publish("$JS.API.DIRECT.GET.S", json.dumps(body).encode(), reply=inbox)
    got: list[tuple[Any, bytes]] = []
    while not got or (not (got[-1][0] or {}).get("Status") and got[-1][1]):
        msg = await subscription.next_msg(timeout=30)
        got.append((msg.headers, msg.data))
    await subscription.unsubscribe()
    return got


@pytest.mark.parametrize("config", [{}, {"max_msgs_per_subject": 5}, {"storage": "memory"}],
                         ids=["plain", "tracked", "memory"])
async def test_answers_are_the_same_from_memory_and_from_the_store(config: dict[str, Any]) -> None:
    """Shows each kind of request, before a restart, just after it with nothing in memory, and again."""
    async with Inside() as broker:
        await _filled(broker, **config)
        hot = [await _answer(broker, *request) for request in REQUESTS]
        batches = [await _batch(broker, body) for body in BATCHES]
        assert hot[0] == ({"Nats-Stream": "S", "Nats-Subject": "k.1", "Nats-Sequence": "11",
                           "Nats-Time-Stamp": hot[0][0]["Nats-Time-Stamp"]}, b"v10")
        assert len(batches[0]) == 13  # 12 of 14 messages, and the end
        if config.get("storage") == "memory":
            return
        for request, expected in zip(REQUESTS, hot, strict=True):
            await broker.restart()
            assert await _answer(broker, *request) == expected, request
            assert await _answer(broker, *request) == expected, request
        for body, expected_batch in zip(BATCHES, batches, strict=True):
            await broker.restart()
            assert await _batch(broker, body) == expected_batch, body


def _bus(bus: Bus, publish_all: Callable[[Sequence[Msg]], object]) -> Bus:
    """Return ``bus`` with another ``publish_all``. A compiled router takes no attribute of a test."""
    proxy: Any = SimpleNamespace(**{name: getattr(bus, name) for name in dir(bus) if not name.startswith("_")})
    proxy.publish_all = publish_all
    return cast("Bus", proxy)


async def test_what_is_in_memory_takes_no_task() -> None:
    """Shows that a run of gets of known messages, absent ones among them, is answered before the handler returns."""
    async with Inside() as broker:
        await _filled(broker, max_msgs_per_subject=5)
        await _answer(broker, "S.k.1", b"")
        sent: list[bytes] = []
        account = broker.js.accounts["$G"]
        account.bus = _bus(account.bus, lambda msgs: sent.extend(msg[0] for msg in msgs))
        ops = [(b"$JS.API.DIRECT.GET.S.k.%b" % key, b"_INBOX.%d" % i, 0, b"")
               for i, key in enumerate((b"1", b"2", b"none", b"1"))]
        ops.append((b"$JS.API.DIRECT.GET.S", b"_INBOX.4", 0, b'{"seq":5}'))
        broker.js.apis["$G"].on_requests(ops, 0, len(ops), None, 0)
        assert sent == [op[1] for op in ops]


async def test_many_large_answers_are_spread_over_turns() -> None:
    """Shows that about a mebibyte is answered at once, and the rest later:
    one read may ask for hundreds of megabytes."""
    async with Inside() as broker:
        await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["k.>"], "allow_direct": True})
        await broker.publish("k.big", BIG)
        await _answer(broker, "S.k.big", b"")
        inbox = broker.client.new_inbox()
        subscription = await broker.client.subscribe(inbox)
        await broker.client.flush()
        at_once: list[int] = []
        account = broker.js.accounts["$G"]
        publish_all = account.bus.publish_all

        def counted(msgs: Sequence[Msg]) -> None:
            at_once.append(len(msgs))
            publish_all(msgs)

        account.bus = _bus(account.bus, counted)
        ops = [(b"$JS.API.DIRECT.GET.S.k.big", inbox.encode(), 0, b"")] * 50
        broker.js.apis["$G"].on_requests(ops, 0, len(ops), None, 0)
        assert at_once == [11]
        for _ in ops:
            assert len((await subscription.next_msg(timeout=30)).data) == len(BIG)


async def test_gets_of_a_missing_stream_have_no_responders() -> None:
    """Shows gets of a stream that does not exist, among others: each request gets its own answer."""
    async with Inside() as broker:
        await _filled(broker)
        subjects = ["S.k.1", "T.k.1", "S.k.none", "T", "S.k.2"]
        answers = await asyncio.gather(*(broker.ask(f"DIRECT.GET.{subject}") for subject in subjects),
                                       return_exceptions=True)
        shown = [type(one).__name__ if isinstance(one, Exception)
                 else one.data or one.headers["Status"]  # type: ignore[index]
                 for one in answers]
        assert shown == [b"v10", "NoRespondersError", "404", "NoRespondersError", b"v11"]
