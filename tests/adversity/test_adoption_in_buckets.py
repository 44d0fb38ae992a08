"""Adoption on real S3 servers, with a broker that is killed after each step: after putting the runs, the
request, asking for the answer, or storing the record."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

import nats
import pytest

from broker.inspect.source import Source
from broker.inspect.survey import read_survey
from broker.inspect.verify import verify
from broker.runtime.adopt_cli import main as adopt
from broker.storage.objectstore import open_store
from broker.storage.read.snapshot import read_snapshot
from broker.storage.staging.answers import Answer, answer_in
from broker.storage.staging.writer import request_id_of
from tests.harness import BrokerProcess
from tests.jetstream.inbox.staging import Row, eventually, stage
from tests.jetstream.inbox.staging import request as ask
from tests.real.s3 import S3Server

KILLS = [("minio", ("request", "question", "command")), ("seaweed", ("record", "command"))]
"""Real server, and the steps after which the broker is killed on it. Most of the time goes into starting brokers."""

ROWS = 400


def rows_of(name: str) -> list[Row]:
    return [(b"S", b"%b %d" % (name.encode(), i)) for i in range(ROWS)]


@pytest.mark.parametrize(("kind", "steps"), KILLS)
def test_killed_after_each_step(kind: str, steps: Sequence[str], tmp_path: Path, request: pytest.FixtureRequest,
                                monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each request is granted once, by the client's question, the next broker or the command. A repeated question gets
    the first answer. The store is sound and its inbox empty at the end."""
    server: S3Server = request.getfixturevalue(kind)
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    url = server.new_url()
    asyncio.run(_killed(server, url, steps))
    # The broker is dead, and the command has its name.
    config = tmp_path / "jetblock.conf"
    config.write_text("server_name: one\n")
    assert adopt([url, "-c", str(config), "--json"]) == 0
    [done] = json.loads(capsys.readouterr().out)["requests"]
    assert (done["messages"], done["last_seq"] - done["first_seq"]) == (ROWS, ROWS - 1)
    asyncio.run(_whole(server, url, steps))


async def _killed(server: S3Server, url: str, steps: Sequence[str]) -> None:
    store = open_store(url)

    async def put(name: str) -> None:
        state = (await read_snapshot(store, 0)).state
        await stage(store, state, "S", rows_of("runs that nobody asks for"))
        await ask(store, await stage(store, state, "S", rows_of(name), block_messages=70, run_bytes=4000), name)

    async def answer(name: str) -> Answer | None:
        stream = (await read_snapshot(store, 0)).state.stream("$G", "S")
        assert stream is not None
        return answer_in(stream.extra, request_id_of(name))

    async with BrokerProcess("--store", url, environ={**server.env, "JETBLOCK_SERVER_NAME": "one",
                                                      "JETBLOCK_INBOX_INTERVAL": "0"}) as broker:
        client = await nats.connect(broker.url)
        await client.jetstream().add_stream(name="S")
        await client.jetstream().publish("S", b"published")
        await client.close()
        for name in steps:
            await put(name)
            if name == "command":
                break
            client = await nats.connect(broker.url, allow_reconnect=False)
            question = json.dumps({"request": f"{request_id_of(name):016x}"}).encode()
            if name in ("question", "record"):
                await client.publish("$JS.API.JETBLOCK.ADOPT.S", question)
                await client.flush()
            if name == "record":
                await eventually(lambda: answer("record"))
            await broker.kill()
            with contextlib.suppress(Exception):
                await client.close()
            await broker.start()
            client = await nats.connect(broker.url)
            found = json.loads((await client.request("$JS.API.JETBLOCK.ADOPT.S", question, timeout=30)).data)
            await client.close()
            stored = await answer(name)
            assert stored is not None
            assert (found["messages"], found["first_seq"]) == (ROWS, stored.first_seq)
        await broker.kill()
    await store.close()


async def _whole(server: S3Server, url: str, steps: Sequence[str]) -> None:
    store = open_store(url)
    survey = await read_survey(Source(store))
    checked = await verify(Source(store), survey)
    assert [*survey.problems, *checked.problems] == []
    assert not await store.list("v1/shards/0/inbox/")
    await store.close()
    async with BrokerProcess("--store", url, environ={**server.env, "JETBLOCK_SERVER_NAME": "one"}) as broker:
        client = await nats.connect(broker.url)
        js = client.jetstream()
        messages = (await js.stream_info("S")).state.messages
        subscription = await js.subscribe("S", ordered_consumer=True)
        found = [(await subscription.next_msg(timeout=30)).data for _ in range(messages)]
        await client.close()
    assert found == [b"published", *(payload for name in steps for _, payload, *_ in rows_of(name))]
