"""Unchanged clients of NATS Streaming, for Go and for Node.js, work with jetblock."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.harness import ROOT, BrokerProcess, NatsStreamingProcess
from tests.real import parts
from tests.real.s3 import MISSING
from tests.streaming.stan_client import FIRST, StanClient

_NODE = """
const stan = require('node-nats-streaming');
const sc = stan.connect('test-cluster', 'node', process.argv[2]);
sc.on('error', (error) => { console.log('error', error.message || error); process.exit(1); });
sc.on('connect', () => sc.publish('orders', 'hello', (error, guid) => {
  console.log('published', error, guid.length > 0);
  const options = sc.subscriptionOptions().setDeliverAllAvailable().setManualAckMode(true).setDurableName('d');
  const sub = sc.subscribe('orders', options);
  sub.on('message', (msg) => {
    console.log('got', msg.getSequence(), msg.getData().toString(), msg.isRedelivered());
    msg.ack();
    sub.close();
  });
  sub.on('closed', () => sc.close());
}));
sc.on('close', () => { console.log('closed'); process.exit(0); });
"""


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    async with BrokerProcess("--store", f"file://{tmp_path / 'store'}", "-cid", "test-cluster") as process:
        yield process


async def run(*command: str, until: str = "", **environ: str) -> str:
    """Run a program to its end, or interrupt it when its output has ``until``; return the output."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=os.environ | environ)
    assert process.stdout is not None
    text = ""
    async with asyncio.timeout(60):
        while line := await process.stdout.readline():
            text += line.decode()
            if until and until in text:
                process.send_signal(signal.SIGINT)
                until = ""
        await process.wait()
    return text


@pytest.mark.shows("streaming.go")
async def test_go(server: BrokerProcess) -> None:
    """stan.go publishes, with and without waiting for each PubAck, and reads by a durable subscription."""
    try:
        publish, subscribe = (str(parts.stan_program(name)) for name in ("stan-pub", "stan-sub"))
    except parts.PartMissing as missing:
        pytest.skip(MISSING + str(missing))
    to = ("-s", server.url, "-c", "test-cluster")
    assert "Published [orders] : 'one'" in await run(publish, *to, "orders", "one")
    assert "Received ACK for guid" in await run(publish, *to, "-a", "orders", "two")
    durable = (subscribe, *to, "-id", "me", "--all", "--durable", "d")
    found = await run(*durable, "orders", until="[#2]")
    assert 'sequence:1 subject:"orders" data:"one"' in found
    assert 'sequence:2 subject:"orders" data:"two"' in found
    await run(publish, *to, "orders", "three")
    assert '[#1] Received: sequence:3 subject:"orders" data:"three"' in await run(*durable, "orders", until="[#1]")


@pytest.mark.shows("streaming.node")
async def test_node(server: BrokerProcess) -> None:
    """node-nats-streaming publishes, subscribes with manual acks, and closes."""
    try:
        program, folder = parts.node(), parts.node_streaming()
    except parts.PartMissing as missing:
        pytest.skip(MISSING + str(missing))
    found = await run(str(program), "-e", _NODE, "-", server.url, NODE_PATH=str(folder / "node_modules"))
    assert found.splitlines() == ["published undefined true", "got 1 hello false", "closed"]
    client = await StanClient.open(server.url, "other")
    sub = await client.subscribe("orders", FIRST)
    assert [one.data for one in await sub.take(1)] == [b"hello"]
    await client.nc.close()


async def test_the_way_back(server: BrokerProcess, tmp_path: Path) -> None:
    """The program of the documentation publishes the messages from a sequence on at the old server."""
    try:
        program, folder = parts.node(), parts.node_streaming()
    except parts.PartMissing as missing:
        pytest.skip(MISSING + str(missing))
    text = (ROOT / "docs" / "STREAMING.md").read_text().partition("```js\n")[2].partition("```")[0]
    (tmp_path / "back.js").write_text(text)
    async with NatsStreamingProcess("-cid", "test-cluster") as old:
        client, there = await StanClient.open(server.url, "me"), await StanClient.open(old.url, "me")
        await there.publish_all("orders", b"1", b"2")
        await client.publish_all("orders", b"1", b"2", b"3", b"4\xff", b"5")
        found = await run(str(program), str(tmp_path / "back.js"), server.url, old.url, "test-cluster", "orders", "3",
                          until="5\n", NODE_PATH=str(folder / "node_modules"))
        assert found.split() == ["3", "4", "5"]
        sub = await there.subscribe("orders", FIRST)
        assert [(one.seq, one.data) for one in await sub.take(5)] == [
            (1, b"1"), (2, b"2"), (3, b"3"), (4, b"4\xff"), (5, b"5")]
        await client.nc.close()
        await there.nc.close()
