"""Messages with thousands of receivers are sent in several turns of the loop; clients see the same as with
nats-server."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess
from tests.server.raw_client import Wire

SUBSCRIPTIONS = 6000
CONFIG = """
accounts {
    PLAIN { users [{user: plain, password: p},
                   {user: some, password: p, permissions: {publish: {allow: ["f", "g"]}, allow_responses: {max: 2}}}] }
    MAPPED { users [{user: mapped, password: p}], mappings: {"m": "f"} }
    SERVICE { users [{user: service, password: p}], exports: [{service: "f"}] }
    CALLER { users [{user: caller, password: p}], imports: [{service: {account: SERVICE, subject: "f"}}] }
}
"""


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[list[ServerProcess]]:
    path = tmp_path / "server.conf"
    path.write_text(CONFIG)
    async with BrokerProcess("-c", str(path)) as ours, NatsServerProcess("-c", str(path)) as theirs:
        yield [ours, theirs]


@pytest.fixture
async def broker_of_accounts(tmp_path: Path) -> AsyncIterator[ServerProcess]:
    path = tmp_path / "server.conf"
    path.write_text(CONFIG)
    async with BrokerProcess("-c", str(path)) as broker:
        yield broker


def connect(user: str, options: str = "") -> bytes:
    return (f'CONNECT {{"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"protocol":1,'
            f'"user":"{user}","pass":"p"{options and "," + options}}}\r\n').encode()


def subscriptions(subject: bytes, first: int = 0) -> bytes:
    return b"".join(b"SUB %b %d\r\n" % (subject, sid) for sid in range(first, first + SUBSCRIPTIONS))


def received(data: bytes) -> tuple[dict[bytes, list[bytes]], list[bytes]]:
    """Return the messages of each sid in order, and the payloads in order, with repetitions in a row left out."""
    by_sid: dict[bytes, list[bytes]] = defaultdict(list)
    rows: list[bytes] = []
    for match in re.finditer(rb"(?:MSG|HMSG) (\S+) (\d+) (?:\S*[a-z]\S* )?([\d ]+)\r\n", data):
        size = int(match[3].split()[-1])
        payload = match[1] + b" " + re.sub(rb'"rtt":\d+', b"", data[match.end():match.end() + size])
        by_sid[match[2]].append(payload)
        if rows[-1:] != [payload]:
            rows.append(payload)
    return by_sid, rows


@pytest.mark.parametrize(("subscriber", "publisher", "options"), [
    ("plain", "plain", ""), ("plain", "plain", '"verbose":true'), ("plain", "plain", '"pedantic":true'),
    ("plain", "some", ""), ("mapped", "mapped", ""), ("service", "caller", "")])
async def test_all_receive_all_in_order(servers: list[ServerProcess], subscriber: str, publisher: str,
                                        options: str) -> None:
    """A read has messages to 6000 subscriptions of one client and to one of another, some not permitted, then PING.

    The PONG comes after everything has been sent, and each subscription receives all of its messages in order.
    """
    subject = b"m" if publisher == "mapped" else b"f"
    block = b"NATS/1.0\r\nA: b\r\n\r\n"
    batch = b"".join(b"PUB %b 1\r\n%d\r\nPUB g 1\r\n%d\r\n" % (subject, i, i) for i in range(5))
    batch += b"HPUB %b %d %d\r\n%bx\r\nPUB h 1\r\nn\r\nPUB g 3\r\nend\r\n" % (
        subject, len(block), len(block) + 1, block)
    seen = []
    for server in servers:
        async with Wire(server.port) as wide, Wire(server.port) as narrow, Wire(server.port) as source:
            wide.send(connect(subscriber) + subscriptions(b"f") + b"UNSUB 17 3\r\nSUB f group 9000\r\n")
            await wide.settled()
            narrow.send(connect(subscriber) + b"SUB * 1\r\nSUB f group 9000\r\n")
            await narrow.settled()
            source.send(connect(publisher, options))
            await source.settled()
            source.send(batch + b"PING\r\n")
            answer = Wire.plain(await source.until(b"PONG\r\n"))
            by_sid, rows = received(await wide.settled())
            also, narrow_rows = received(await narrow.settled())
            assert len(by_sid.pop(b"9000", [])) + len(also.pop(b"9000", [])) == 6
            assert len(by_sid) == SUBSCRIPTIONS
            seen.append((answer, dict(by_sid), list(dict.fromkeys(rows)), also, list(dict.fromkeys(narrow_rows))))
    ours, theirs = seen
    assert ours == theirs


async def test_a_client_without_echo_has_no_receivers(servers: list[ServerProcess]) -> None:
    """A request has no responders if all receivers, few or many, are the publisher's own and it wants no echo."""
    for server in servers:
        async with Wire(server.port) as client:
            client.send(connect("plain", '"echo":false') + subscriptions(b"f") + b"SUB r 9000\r\nPUB f r 0\r\n\r\n")
            assert b"HMSG r 9000 " in await client.settled()


async def test_acknowledgements_to_many_subscriptions(tmp_path: Path) -> None:
    """A stream's answers go to an inbox with 6000 subscriptions; each receives all of them in order."""
    async with BrokerProcess("-js", "-sd", str(tmp_path)) as server, Wire(server.port) as client:
        stream = b'{"name":"S","subjects":["s"]}'
        client.send(connect("x") + b"SUB made 1\r\n")
        client.send(b"PUB $JS.API.STREAM.CREATE.S made %d\r\n%b\r\n" % (len(stream), stream))
        await client.until(b'"did_create":true}\r\n')
        client.send(subscriptions(b"r", 10) + b"".join(b"PUB s r 1\r\n%d\r\n" % i for i in range(9)))
        parts: list[bytes] = []
        while len(parts) < SUBSCRIPTIONS and not client.closed:
            parts.append(await client.until(b'"seq":9}\r\n'))
        by_sid, _ = received(b"".join(parts))
        assert set(map(tuple, by_sid.values())) == {tuple(b'r {"stream":"S","seq":%d}' % seq for seq in range(1, 10))}


async def test_a_client_that_hangs_up_leaves_in_slices(broker: BrokerProcess) -> None:
    """A request to 10 000 subscriptions of a client that has left soon has no responders, and none is
    counted."""
    async with Wire(broker.port) as other:
        other.send(connect("x") + b"SUB r 1\r\n")
        await other.settled()
        async with Wire(broker.port) as client:
            client.send(connect("x") + b"".join(b"SUB s.%d %d\r\n" % (i, i) for i in range(10_000)))
            await client.settled()
        answer = b""
        while b"503" not in answer:
            other.send(b"PUB s.0 r 0\r\n\r\nPUB s.9999 r 0\r\n\r\n")
            answer = await other.settled()
    while (await broker.monitor("/subsz"))["num_subscriptions"] > 1000:
        pass


LEAVING = 60_000


async def test_a_member_that_leaves_is_not_chosen(servers: list[ServerProcess]) -> None:
    """The connection of a queue group's member with 60 000 more subscriptions is closed.

    Messages then reach the other member, and requests to its own subscriptions have no responders.
    """
    for server in servers:
        async with Wire(server.port) as stays, Wire(server.port) as source, Wire(server.port) as leaves:
            stays.send(connect("plain") + b"SUB q group 1\r\n")
            await stays.settled()
            source.send(connect("plain") + b"SUB r 1\r\n")
            await source.settled()
            leaves.send(connect("plain") + b"SUB q group 1\r\nSUB left 2\r\n")
            leaves.send(b"".join(b"SUB s.%d %d\r\n" % (i, i) for i in range(9, LEAVING)))
            await leaves.settled()
            leaves.send(b"WRONG\r\n")
            await leaves.end()
            source.send(b"PUB left r 0\r\n\r\n" + b"".join(b"PUB q 1\r\n%d\r\n" % (i % 10) for i in range(1000)))
            assert b"503" in await source.settled()
            _, rows = received(await stays.settled())
            assert len(rows) == 1000


async def test_a_client_that_changes_its_account_leaves_the_old_one(broker_of_accounts: ServerProcess) -> None:
    """A client with 60 000 subscriptions that moves to another account receives nothing of the first one afterwards."""
    async with Wire(broker_of_accounts.port) as source, Wire(broker_of_accounts.port) as changes:
        source.send(connect("plain"))
        await source.settled()
        changes.send(connect("plain") + b"SUB q 1\r\n")
        changes.send(b"".join(b"SUB s.%d %d\r\n" % (i, i) for i in range(9, LEAVING)))
        await changes.settled()
        changes.send(connect("service"))
        await changes.settled()
        source.send(b"PUB q 1\r\nx\r\n" * 1000)
        await source.settled()
        assert b"MSG q" not in await changes.settled()


async def test_deliveries_keep_their_order_when_receivers_leave(tmp_path: Path) -> None:
    """A consumer delivers to 6000 subscriptions of one client, and to one of another, in order.

    While its messages are on their way, the first client disconnects, and more messages are stored.
    """
    async with (BrokerProcess("-js", "-sd", str(tmp_path)) as server, Wire(server.port) as client,
                Wire(server.port) as many):
        stream = b'{"name":"S","subjects":["s"]}'
        consumer = b'{"stream_name":"S","config":{"durable_name":"C","deliver_subject":"d","ack_policy":"none"}}'
        client.send(connect("x") + b"SUB made 1\r\n")
        client.send(b"PUB $JS.API.STREAM.CREATE.S made %d\r\n%b\r\n" % (len(stream), stream))
        await client.until(b'"did_create":true}\r\n')
        client.send(b"PUB s 2\r\nxx\r\n" * 80 + b"SUB d 10\r\n")
        await client.settled()
        many.send(connect("x") + subscriptions(b"d"))
        await many.settled()
        client.send(b"PUB $JS.API.CONSUMER.DURABLE.CREATE.S.C made %d\r\n%b\r\n" % (len(consumer), consumer))
        parts = [await client.until(b"MSG s 10 ")]
        many.writer.close()
        for _ in range(20):
            client.send(b"PUB s 2\r\nxx\r\n")
            parts.append(await client.settled())
        client.send(b"PUB s 3\r\nend\r\n")
        parts.append(await client.until(b"end\r\n"))
        parts.append(await client.settled())
        seqs = [int(one) for one in re.findall(rb"MSG s 10 \$JS\.ACK\.S\.C\.1\.(\d+)\.", b"".join(parts))]
        assert seqs == list(range(1, 102))
