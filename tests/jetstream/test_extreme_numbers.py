"""Numbers and times at the ends of their ranges, sent by a client: everything stored can be read back.

The answers themselves are compared with nats-server's in differential/extremes.py and differential/schedules.py.
"""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from broker.base.clock import SystemClock
from broker.maintenance.fsck import fsck
from broker.storage.objectstore.file import FileStore
from tests.harness import BrokerProcess

MAX = (1 << 63) - 1

SCHEDULES = ("@at 2262-04-11T23:47:16.854775807Z", "@at 2300-01-01T00:00:00Z", "@at 2554-07-21T23:34:33Z",
             "@at 9999-12-31T23:59:59Z", "@at 9999-12-31T23:59:59-10:00", "@at 0001-01-01T00:00:00Z",
             "@at 0001-01-01T00:00:01Z", "@at 1500-01-01T00:00:00Z", "@at 1969-12-31T23:59:59Z",
             "@at 1970-01-01T00:00:00Z", "@every 2100000h", "@every 2562047h")

LASTING = (0, 1, 2, 3, 4, 10, 11)
"""The schedules that are not due for a long time. The first message to leave is a schedule that has fired."""

DELAYS = (0, -1, MAX, MAX - 10**9, -MAX, -MAX - 1, MAX + 1, 10**18)


async def api(client: Client, subject: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the answer to an API request."""
    msg = await client.request(f"$JS.API.{subject}", json.dumps(body or {}).encode())
    answer: dict[str, Any] = json.loads(msg.data)
    return answer


async def reopened(broker: BrokerProcess, store: Path, *, kill: bool) -> Client:
    """Restart the broker, after a check of its store."""
    await (broker.kill() if kill else broker.stop())
    assert (await fsck(FileStore(store), SystemClock(), random.Random(1))).problems == []
    await broker.start()
    return await nats.connect(broker.url)


@pytest.mark.parametrize("storage", ["file", "memory"])
async def test_schedules(storage: str, tmp_path: Path) -> None:
    """Each publish is answered, and so is the next; after a kill, and after a stop with a checkpoint,
    all messages are there."""
    async with BrokerProcess("--store", f"file://{tmp_path}") as broker:
        client = await nats.connect(broker.url)
        await api(client, "STREAM.CREATE.S",
                  {"name": "S", "subjects": ["s.>"], "allow_msg_schedules": True, "storage": storage})
        js = client.jetstream()
        for i, pattern in enumerate(SCHEDULES):
            ack = await js.publish(f"s.{i}", b"x", headers={"Nats-Schedule": pattern,
                                                            "Nats-Schedule-Target": "s.fired"})
            assert (await js.publish("s.data", b"x")).seq > ack.seq
        assert (await js.stream_info("S")).state.messages >= len(SCHEDULES) + len(LASTING)
        for kill in (True, False) if storage == "file" else ():
            before = (await js.stream_info("S")).state.last_seq
            await client.close()
            client = await reopened(broker, tmp_path, kill=kill)
            js = client.jetstream()
            assert (await js.stream_info("S")).state.last_seq >= before
            for i in LASTING:
                assert (await js.get_last_msg("S", f"s.{i}")).data == b"x"
        await client.close()


@pytest.mark.parametrize("storage", ["file", "memory"])
async def test_delays_of_negative_acks(storage: str, tmp_path: Path) -> None:
    """A delay is stored as the time of a delivery.

    The stream stays in use after delays of centuries, one by one and sixteen in a commit, and a checkpoint can be cut.
    """
    async with BrokerProcess("--store", f"file://{tmp_path}") as broker:
        client = await nats.connect(broker.url)
        js = client.jetstream()
        await api(client, "STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "storage": storage})
        for wait in (30 * 10**9, MAX):
            for count in (1, 16):
                for number, delay in enumerate(DELAYS):
                    name = f"C{wait}-{count}-{number}"
                    await api(client, f"CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": {
                        "durable_name": name, "ack_policy": "explicit", "ack_wait": wait, "deliver_policy": "new"}})
                    for _ in range(count):
                        await js.publish("s", b"x")
                    sub = await js.pull_subscribe_bind(name, stream="S")
                    msgs = await sub.fetch(count)
                    await asyncio.gather(*[client.publish(msg.reply, b'-NAK {"delay": %d}' % delay) for msg in msgs])
                    await client.flush()
                    assert (await api(client, f"CONSUMER.INFO.S.{name}"))["num_ack_pending"] == count
                    await sub.unsubscribe()
        for kill in (True, False) if storage == "file" else ():
            await client.close()
            client = await reopened(broker, tmp_path, kill=kill)
            names = (await api(client, "CONSUMER.NAMES.S"))["consumers"]
            assert len(names) == 4 * len(DELAYS)
            for name in names:
                assert (await api(client, f"CONSUMER.INFO.S.{name}"))["num_ack_pending"] == int(name.split("-")[1])
        assert (await client.jetstream().publish("s", b"x")).seq == 2 * 17 * len(DELAYS) + 1
        await client.close()


@pytest.mark.parametrize("purge_to, listed", [(100_000, True), (30_000_000, False), (MAX - 1, False)])
async def test_a_gap_in_a_mirror(purge_to: int, *, listed: bool, tmp_path: Path) -> None:
    """Shows a mirror whose origin was purged up to a sequence of the client's choice.

    The deleted sequences are listed, or refused if they are too many; deletes and consumers step over the gap.
    """
    async with BrokerProcess("--store", f"file://{tmp_path}") as broker:
        client = await nats.connect(broker.url)
        js = client.jetstream()
        await api(client, "STREAM.CREATE.O", {"name": "O", "subjects": ["o"]})
        await js.publish("o", b"first")
        await api(client, "STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"}})
        await _grown(client, 1)
        await api(client, "STREAM.PURGE.O", {"seq": purge_to})
        assert (await js.publish("o", b"last")).seq == purge_to
        await _grown(client, purge_to)
        info = await api(client, "STREAM.INFO.M", {"deleted_details": True})
        if listed:
            assert info["state"]["deleted"] == list(range(2, purge_to))
        else:
            assert info["error"]["err_code"] == 10023
        assert (await api(client, "STREAM.INFO.M"))["state"]["num_deleted"] == purge_to - 2
        sub = await js.subscribe("o", stream="M", ordered_consumer=True)
        assert [(await sub.next_msg()).data for _ in range(2)] == [b"first", b"last"]
        assert (await api(client, "STREAM.MSG.DELETE.M", {"seq": 1}))["success"]
        assert (await api(client, "STREAM.INFO.M"))["state"]["first_seq"] == purge_to
        await client.close()


async def _grown(client: Client, last_seq: int) -> None:
    async with asyncio.timeout(30):
        while (await api(client, "STREAM.INFO.M"))["state"]["last_seq"] != last_seq:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
