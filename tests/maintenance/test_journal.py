"""Tools on a directory whose broker was killed while only its journal had acknowledged messages."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from nats.js.api import ConsumerConfig, StreamConfig

from broker.inspect.cli import main as inspect
from broker.maintenance.copy_cli import main as copy
from broker.maintenance.fsck_cli import main as fsck
from tests.adversity.clients import connect, read_all
from tests.harness import BrokerProcess


@pytest.mark.shows("store.kill")
async def test_tools_read_the_journal_of_a_killed_broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``inspect``, ``fsck``, ``copy`` and ``backup`` see every acknowledged message, write nothing into the store, and
    say where the messages came from; a broker serves the copy."""
    store = tmp_path / "store"
    url, copied, backup = f"file://{store}", f"file://{tmp_path / 'copied'}", f"file://{tmp_path / 'backup'}"
    async with BrokerProcess("--store", url) as broker:
        nc = await connect(broker.url)
        js = nc.jetstream()
        await js.add_stream(StreamConfig(name="A", subjects=["A.>"], allow_msg_ttl=True))
        await js.publish("A.first", b"makes the journal")
        for at in range(100):
            ack = await js.publish(f"A.{at}", b"message %d" % at, headers={"Nats-Msg-Id": f"{at}", "Nats-TTL": "1h"})
        assert ack.seq == 101
        await broker.kill()
        await nc.close()
        journal = store / "v1/shards/0/log/.journal"
        assert journal.exists()

        def told(*arguments: str) -> tuple[str, str]:
            assert inspect([url, *arguments]) == 0
            return capsys.readouterr()

        out, err = await asyncio.to_thread(told, "stream", "A", "--json")
        assert json.loads(out)["last_seq"] == json.loads(out)["messages"] == 101
        assert "are only in its journal" in err
        out, _ = await asyncio.to_thread(told, "messages", "A", "--from", "101", "--json")
        assert "A.99" in out
        assert await asyncio.to_thread(fsck, [url]) == 0
        assert "are only in its journal" in capsys.readouterr().out
        assert await asyncio.to_thread(copy, "copy", [url, copied, "--verify"]) == 0
        assert "are only in its journal" in capsys.readouterr().out
        assert await asyncio.to_thread(copy, "backup", [url, backup]) == 0
        assert journal.exists()
        await broker.start()
        assert any("came from its journal" in line for line in broker.stderr)
        nc = await connect(broker.url)
        original = await read_all(nc, "A")
        assert (await nc.jetstream().publish("A.9", b"again", headers={"Nats-Msg-Id": "99"})).duplicate
        await nc.close()
    assert len(original) == 101
    async with BrokerProcess("--store", copied) as broker:
        nc = await connect(broker.url)
        assert await read_all(nc, "A") == original
        await nc.close()
    assert await asyncio.to_thread(fsck, [backup]) == 0


async def test_a_repair_stores_what_the_journal_has(tmp_path: Path) -> None:
    """``fsck --repair`` replays the journal like a broker. A work queue's acks are replayed with the removals that they
    caused."""
    url = f"file://{tmp_path}"
    async with BrokerProcess("--store", url) as broker:
        nc = await connect(broker.url)
        js = nc.jetstream()
        await js.add_stream(StreamConfig(name="Q", subjects=["Q"], retention="workqueue"))
        sub = await js.pull_subscribe("Q", durable="C", config=ConsumerConfig(ack_wait=3600))
        await js.publish("Q", b"makes the journal")
        for _ in range(20):
            await js.publish("Q", b"work")
        for msg in await sub.fetch(11):
            await msg.ack()
        await js.publish("Q", b"after the acks")  # the acks came first on this connection
        await broker.kill()
        await nc.close()
        assert await asyncio.to_thread(fsck, [url, "--repair"]) == 0
        assert not (tmp_path / "v1/shards/0/log/.journal").exists()
        await broker.start()
        nc = await connect(broker.url)
        info = await nc.jetstream().consumer_info("Q", "C")
        state = (await nc.jetstream().stream_info("Q")).state
        assert (state.messages, state.first_seq, state.last_seq) == (11, 12, 22)
        assert (info.num_ack_pending, info.num_pending, info.ack_floor.stream_seq) == (0, 11, 11)
        await nc.close()
