"""A machine's clock that is years ahead, or behind, for one start of a broker whose store is a directory.

Such a broker has no other clock. Times of messages never decrease, so they stay ahead; decisions about messages follow
the clock again. The broker's clocks are shifted by a module on its path.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import nats
import pytest
from nats.js import JetStreamContext
from nats.js.api import RePublish, StreamConfig

from tests.harness import BrokerProcess

YEARS = 365 * 86_400

SHIFT = """
import os, time

real_ns = time.time_ns
time.time_ns = lambda: real_ns() + int(os.environ["SHIFT_SECONDS"]) * 10**9
time.time = lambda: time.time_ns() / 1e9
"""


@asynccontextmanager
async def broker_at(folder: Path, shift: int) -> AsyncIterator[JetStreamContext]:
    """Yield a client of a broker on the store in ``folder`` whose wall clock is off by ``shift`` seconds;
    kill it at the end."""
    (folder / "sitecustomize.py").write_text(SHIFT)
    async with BrokerProcess("--store", f"file://{folder / 'store'}",
                             environ={"PYTHONPATH": str(folder), "SHIFT_SECONDS": str(shift)}) as broker:
        client = await nats.connect(broker.url)
        yield client.jetstream()
        await client.close()
        await broker.kill()


async def becomes(ask: Callable[[], Awaitable[object]], wanted: object) -> None:
    """Ask until the answer is ``wanted``."""
    async with asyncio.timeout(30):
        while await ask() != wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def messages(js: JetStreamContext, stream: str) -> int:
    return (await js.stream_info(stream)).state.messages


async def time_of(js: JetStreamContext, stream: str, seq: int) -> str:
    msg = await js._nc.request(f"$JS.API.STREAM.MSG.GET.{stream}", b'{"seq":%d}' % seq)
    return str(json.loads(msg.data)["message"]["time"])


async def stored_again(js: JetStreamContext, subject: str, msg_id: str) -> bool:
    """Return whether a message with a known id is stored, because the id has left the window."""
    return not (await js.publish(subject, b"again", headers={"Nats-Msg-Id": msg_id})).duplicate


@pytest.mark.parametrize("others", [False, True])
async def test_one_start_with_the_clock_ahead(others: bool, tmp_path: Path) -> None:
    """Each stream gets a message under the wrong clock; ``others``: it had got others under the right one before.

    With the clock right, messages expire by age and TTL, ids leave their window and schedules fire; the same after
    another restart.
    """
    configs = [StreamConfig("AGED", subjects=["aged"], max_age=0.5, duplicate_window=0.2),
               StreamConfig("MARKED", subjects=["marked"], max_age=0.5, duplicate_window=0.2,
                            allow_msg_ttl=True, subject_delete_marker_ttl=3600),
               StreamConfig("IDS", subjects=["ids.*"], duplicate_window=0.3),
               StreamConfig("LONG", subjects=["long"], duplicate_window=3600),
               StreamConfig("TTL", subjects=["ttl"], allow_msg_ttl=True),
               StreamConfig("TIMED", subjects=["timed.>"], allow_msg_schedules=True,
                            republish=RePublish(src="timed.each.out", dest="fired.each"))]
    subjects = ["aged", "marked", "ids.a", "long", "ttl", "timed.a"]
    for shift in (0, 10 * YEARS) if others else (10 * YEARS,):
        async with broker_at(tmp_path, shift) as js:
            for config, subject in zip(configs, subjects, strict=True):
                if shift == 0 or not others:
                    await js.add_stream(config)
                assert (await js.publish(subject, b"x", headers={"Nats-Msg-Id": f"{shift}"})).seq > 0
            # A schedule stored under the right clock fires under the wrong one, and is next due in ten years.
            await repeats(js, "timed.each", new=shift == 0 or not others)
    for again in range(1 + others):
        async with broker_at(tmp_path, 0) as js:
            await becomes(lambda: messages(js, "AGED"), 0)
            await becomes(lambda: messages(js, "MARKED"), 0)  # the marker of the message is gone, too
            assert (await js.stream_info("MARKED")).state.last_seq >= 2
            first = (await js.publish("aged", b"x", headers={"Nats-Msg-Id": "a"})).seq
            assert await time_of(js, "AGED", first) > "2035", "times never decrease"
            await becomes(lambda: messages(js, "AGED"), 0)
            await becomes(lambda: stored_again(js, "ids.a", f"{10 * YEARS}"), True)
            await becomes(lambda: stored_again(js, "ids.a", "of now"), True)
            await becomes(lambda: stored_again(js, "ids.a", "of now"), True)
            assert bool((await js.publish("long", b"x", headers={"Nats-Msg-Id": "kept"})).duplicate) == bool(again)
            kept = await messages(js, "TTL")
            await js.publish("ttl", b"x", headers={"Nats-TTL": "1s"})
            await becomes(lambda: messages(js, "TTL"), kept)
            await repeats(js, "timed.each", new=False)
            last = (await js.stream_info("TIMED")).state.last_seq
            await js.publish("timed.b", b"x", headers={"Nats-Schedule": "@every 1s",
                                                       "Nats-Schedule-Target": "timed.out"})
            await becomes(partial(_grown, js, last + 2), True)


async def repeats(js: JetStreamContext, subject: str, *, new: bool) -> None:
    """Return when a schedule at ``subject`` has fired twice from now on; ``new``: it is published before."""
    if new:
        await js.publish(subject, b"x", headers={"Nats-Schedule": "@every 1s",
                                                 "Nats-Schedule-Target": f"{subject}.out"})
    out = await js._nc.subscribe("fired.each")
    for _ in range(2):
        await out.next_msg(30)
    await out.unsubscribe()


async def _grown(js: JetStreamContext, last_seq: int) -> bool:
    return (await js.stream_info("TIMED")).state.last_seq >= last_seq


async def test_one_start_with_the_clock_behind(tmp_path: Path) -> None:
    """Shows a machine that started without its time: its clock cannot be right, so no message is stored as if it were
    old.

    With the clock right again, messages with a TTL or in a stream with ``max_age`` are there.
    """
    async with broker_at(tmp_path, 0) as js:
        await js.add_stream(StreamConfig("TTL", subjects=["ttl"], allow_msg_ttl=True))
        await js.add_stream(StreamConfig("AGED", subjects=["aged"], max_age=3600))
        for subject in ("ttl", "aged"):
            await js.publish(subject, b"x")
    async with broker_at(tmp_path, -25 * YEARS) as js:
        await js.publish("ttl", b"x", headers={"Nats-TTL": "1h"})
        await js.publish("aged", b"x", headers={"Nats-Msg-Id": "a"})
    async with broker_at(tmp_path, 0) as js:
        await js.publish("ttl", b"x", headers={"Nats-TTL": "1s"})
        await becomes(lambda: messages(js, "TTL"), 2)
        assert await messages(js, "AGED") == 2
