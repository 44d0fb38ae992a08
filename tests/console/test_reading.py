"""Reading messages: large ones, work queues, searches, following; subjects as a tree; messages over time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgpack
import nats
import pytest

from broker.console.login import Login
from broker.console.messages import Message, Messages, Search, Start
from broker.console.payload import PREVIEW_BYTES, preview, show
from broker.console.server import Refused, Server
from broker.console.streams import spread
from broker.console.subjects import Branch, SubjectTree
from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess

BACKTRACKS = "(a+)+$"
"""An expression for which Python's own module needs time that doubles with each letter."""


@asynccontextmanager
async def connection(server: ServerProcess) -> AsyncIterator[Server]:
    made = await Server.connect(Login(server.url))
    try:
        yield made
    finally:
        await made.close()


def seqs(found: list[Message]) -> list[int]:
    return [msg.seq for msg in found]


@pytest.fixture(params=["jetblock", "nats-server"])
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ServerProcess]:
    """A server whose largest payload is 16 MB."""
    file = tmp_path / "server.conf"
    file.write_text(f"max_payload: 16MB\njetstream {{ store_dir: {tmp_path / 'store'} }}\n")
    kind = BrokerProcess if request.param == "jetblock" else NatsServerProcess
    async with kind("-c", str(file)) as process:
        yield process


async def test_large_messages_are_listed_without_payloads_and_read_whole(server: ServerProcess) -> None:
    """A message of 9 MB is larger than one pull of the console: it is listed, found by a search, and read whole."""
    async with connection(server) as console:
        await console.api("STREAM.CREATE.LARGE", {"name": "LARGE", "subjects": ["large.>"]})
        payload = bytes(9_000_000) + b"needle"
        await console.publish("large.1", b"small", {"Kind": "a header"})
        await console.publish("large.2", payload)
        await console.publish("large.3", b"")
        messages = Messages(console, "LARGE")
        found = await messages.before(0, 50)
        assert seqs(found) == [1, 2, 3]
        assert [(msg.size, msg.data) for msg in found] == [(5, b"small"), (len(payload), None), (0, b"")]
        assert found[0].headers == {"Kind": "a header"}
        assert (await messages.get(2)).data == payload
        search = Search("NEEDLE")
        await messages.search(search)
        assert [(msg.seq, msg.data) for msg in search.found] == [(2, None)]
        assert (search.share, len(search.found)) == (1.0, 1)
        assert [len(msg.data or b"") async for msg in messages.whole("large.2")] == [len(payload)]


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
async def test_a_queue_is_read_without_a_consumer(server: ServerProcess, retention: str) -> None:
    """A consumer would take a work queue's messages, or make the stream keep messages that nobody else wants."""
    async with connection(server) as console:
        await console.api("STREAM.CREATE.JOBS", {"name": "JOBS", "subjects": ["jobs.>"], "retention": retention})
        await console.api("CONSUMER.CREATE.JOBS.worker", {"stream_name": "JOBS", "config": {
            "name": "worker", "durable_name": "worker", "ack_policy": "explicit"}})
        for number in range(1, 21):
            await console.publish(f"jobs.{number % 2}", b"job %d" % number)
        messages = Messages(console, "JOBS")
        assert seqs(await messages.before(0, 5)) == [16, 17, 18, 19, 20]
        assert seqs(await messages.before(16, 5, "jobs.1")) == [7, 9, 11, 13, 15]
        assert seqs(await messages.read(Start(3), 3, "jobs.0")) == [4, 6, 8]
        times = {msg.seq: msg.time for msg in await messages.read(Start(), 50)}
        assert seqs(await messages.read(Start(time=times[12]), 2)) == [12, 13]
        search = Search("job 1[05]$", is_regex=True)
        await messages.search(search)
        assert seqs(search.found) == [10, 15]
        assert len(await console.pages("CONSUMER.LIST.JOBS", "consumers")) == 1
        assert (await console.api("STREAM.INFO.JOBS"))["state"]["messages"] == 20


async def test_no_expression_stops_the_console(broker: BrokerProcess) -> None:
    """An expression that makes a backtracking matcher run for ever takes RE2 a moment; a bad one is one sentence."""
    async with connection(broker) as console:
        await console.api("STREAM.CREATE.RE", {"name": "RE", "subjects": ["re"]})
        await console.publish("re", b"a" * 500_000 + b"!")
        search = Search(BACKTRACKS, is_regex=True)
        async with asyncio.timeout(30):
            await Messages(console, "RE").search(search)
        assert (search.found, search.at) == ([], 1)
        for text in ("(", "a{2,1}", r"(?<=a)b", "a{100000}"):
            with pytest.raises(Refused, match="The regular expression cannot be used"):
                Search(text, is_regex=True).matcher()
        literal = Search("Straße (").matcher()
        assert literal("x STRAßE (".encode())
        assert not literal(b"x")
        assert literal(b"\xff\xfe" + "straße (".encode())
        await console.api("STREAM.DELETE.RE")


async def test_following_passes_over_what_is_too_much(broker: BrokerProcess) -> None:
    """A page gets the latest messages of a burst, and the number of the others; it goes on afterwards."""
    async with connection(broker) as console:
        await console.api("STREAM.CREATE.LIVE", {"name": "LIVE", "subjects": ["live.>"]})
        client = await nats.connect(broker.url)
        following = Messages(console, "LIVE").follow()
        first = asyncio.ensure_future(anext(following))
        await asyncio.sleep(0.1)
        futures = [await client.jetstream().publish_async("live.1", b"%d" % number) for number in range(1000)]
        await asyncio.gather(*futures)
        seen, passed = 0, 0
        found, skipped = await first
        while True:
            seen, passed = seen + len(found), passed + skipped
            if found[-1].seq == 1000:
                break
            found, skipped = await anext(following)
        assert seen + passed == 1000
        await client.jetstream().publish("live.2", b"later")
        found, skipped = await anext(following)
        assert ([msg.data for msg in found], skipped) == ([b"later"], 0)
        await following.aclose()
        await client.close()
        await console.api("STREAM.DELETE.LIVE")


def test_a_tree_of_a_million_subjects_is_made_by_its_levels() -> None:
    tree = SubjectTree({f"orders.{at % 3}.{at}": 1 for at in range(1_000_000)} | {"orders": 5, "a-b": 2, "a.b": 3})
    assert len(tree) == 1_000_003
    assert tree.level("", 10) == ([
        Branch("a-b", "a-b", 2, 1, False), Branch("a", "a", 3, 1, True),
        Branch("orders", "orders", 1_000_005, 1_000_001, True)], 0)
    assert [branch.subjects for branch in tree.level("orders.", 10)[0]] == [333_334, 333_333, 333_333]
    branches, left = tree.level("orders.1.", 200)
    assert (len(branches), left) == (200, 333_133)
    assert tree.level("nothing.", 10) == ([], 0)


def test_messages_are_spread_over_bars() -> None:
    assert spread([], 4) == []
    assert spread([(7, 100.0)], 4) == [(100.0, 1)]
    assert spread([(1, 5.0), (3, 5.0)], 4) == [(5.0, 3)]
    assert spread([(1, 0.0), (101, 1.0), (102, 4.0)], 4) == [(0.0, 100), (1.0, 1 / 3), (2.0, 1 / 3), (3.0, 4 / 3)]


@pytest.mark.parametrize(("data", "view", "text"), [
    (b'{"a": 1}', "json", '{\n  "a": 1\n}'),
    (b'{"a": 1', "hex", "00000000  7b 22 61 22 3a 20 31"),
    (b"plain", "text", "plain"),
    (msgpack.packb({"a": [1, b"x"]}), "msgpack", '{\n  "a": [\n    1,\n    "78"\n  ]\n}'),
    (b"\x93\x01", "hex", "00000000  93 01"),
    (b"", "text", ""),
    (b"[" * 100_000, "hex", "00000000  5b"),
    (b"\x91" * 100_000 + b"\x01", "hex", "00000000  91"),
])
def test_a_payload_is_shown_as_what_it_is(data: bytes, view: str, text: str) -> None:
    used, shown, _ = show(data)
    assert used == view
    assert shown.startswith(text)


def test_a_preview_is_one_short_line() -> None:
    assert preview(b"") == ""
    assert preview(b" a\n b\x00" + b"c" * PREVIEW_BYTES)[:6] == "a b\x00cc"
    assert len(preview(b"c" * PREVIEW_BYTES)) == 120
    assert preview(b"\xff\x00") == "ff 00"
