"""Any input on the socket, in the API and in names: the broker stays up, other clients are unaffected, its log has no
traceback, and nothing is written outside the store's folder.

The random seed is printed on failure and read from JETBLOCK_BAD_SEED.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats.errors
import pytest
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig

from tests.adversity.clients import FAILED, connect, health, read_all, unexpected
from tests.harness import BrokerProcess

VERBS = ["INFO", "STREAM.CREATE.{s}", "STREAM.UPDATE.{s}", "STREAM.INFO.{s}", "STREAM.NAMES", "STREAM.LIST",
         "STREAM.PURGE.{s}",
         "STREAM.MSG.GET.{s}", "STREAM.MSG.DELETE.{s}", "STREAM.DELETE.{s}x", "DIRECT.GET.{s}", "DIRECT.GET.{s}.a.b",
         "CONSUMER.CREATE.{s}", "CONSUMER.CREATE.{s}.c2", "CONSUMER.CREATE.{s}.c3.a.>",
         "CONSUMER.DURABLE.CREATE.{s}.c4",
         "CONSUMER.INFO.{s}.c", "CONSUMER.NAMES.{s}", "CONSUMER.LIST.{s}", "CONSUMER.MSG.NEXT.{s}.c",
         "CONSUMER.DELETE.{s}.cx",
         "STREAM.LEADER.STEPDOWN.{s}", "CONSUMER.PAUSE.{s}.c", "STREAM.SNAPSHOT.{s}", "STREAM.RESTORE.{s}x",
         "ACCOUNT.PURGE.x",
         "META.LEADER.STEPDOWN", "SERVER.REMOVE", "NO.SUCH.VERB", "", "."]

BODIES = [b"", b"{", b"}", b"null", b"[]", b'"x"', b"0", b"-1", b"1e999", b"NaN", b"{}{}", b"\x00", b"\xff\xfe",
          b"{\"a\":\"\\ud800\"}",
          b"[" * 200_000, b'{"a":' * 100_000, b"[" * 1000 + b"]" * 1000, b'{"config":' * 500 + b"{}" + b"}" * 500,
          b'{"name":null,"subjects":null}', b'{"name":{},"subjects":{}}', b'{"name":"s","subjects":["a.>",1,null,[]]}',
          b'{"seq":-1}', b'{"seq":18446744073709551616}', b'{"seq":1.5}', b'{"seq":"1"}', b'{"batch":-1}',
          b'{"batch":1e30}',
          b'{"max_msgs":99999999999999999999}', b'{"expires":-9223372036854775808}',
          b'{"expires":9223372036854775807,"batch":1}',
          b'{"stream_name":"S","config":{"durable_name":"../x","ack_policy":"explicit"}}',
          b'{"stream_name":"S","config":{"filter_subjects":["a.>","a.b"],"ack_policy":"no such"}}',
          b'{"offset":-1}', b'{"offset":1e10}', b'{"filter":"\\u0000"}', b'{"keep":-1,"seq":-1}',
          b'{"multi_last":[""],"batch":-5}',
          b'{"multi_last":["a..b",">.>"],"up_to_time":"yesterday"}', b'{"opt_start_time":"0000-00-00T00:00:00Z"}',
          b'{"start_time":"9999-99-99"}', b'{"deliver_subject":"$JS.API.>"}', b'{"no_wait":"yes","heartbeat":{}}',
          b'{"subject_transform":{"src":"a.*","dest":"{{wildcard(99999999999)}}"}}',
          b'{"backoff":[-1],"max_deliver":-5}',
          b'{"metadata":{"a":1},"num_replicas":-3,"storage":7}', json.dumps({"name": "n" * 300_000}).encode()]

NAMES = ["..", ".", "../../../../tmp/escaped", "..%2f..%2fescaped", "%2e%2e", "%2E%2E", "a/b", "a\\b", "/etc/x",
         "C:", "con", "nul.txt",
         "lock", ".hidden", "~", "~root", "a~b", "naïve", "名前", "\u202eright", "e\u0301", "\U0001f4a9", "n" * 255,
         "é" * 127,
         "n" * 5000, "A", "a", "Å", "S%00", "S\x00", "tab\tname", "sp ace", "*", ">", "a.b", "", "'; drop", "$(id)",
         "`id`",
         "%", "%%", "%zz", "-", "--", "v1", "format", "shards"]


@asynccontextmanager
async def watched(tmp_path: Path, restarts: int = 0) -> AsyncIterator[tuple[BrokerProcess, Client]]:
    """Run a broker with a stream S, a consumer c, and a good client that is active all the time; then check them."""
    room = tmp_path / "room"
    store = room / "a" / "b" / "store"
    room.mkdir()
    async with BrokerProcess("--store", f"file://{store}", environ={"TMPDIR": str(tmp_path)}, cwd=None) as broker:
        lost = 0

        async def disconnected() -> None:
            nonlocal lost
            lost += 1

        good = await connect(broker.url, disconnected_cb=disconnected)
        js = good.jetstream()
        await js.add_stream(StreamConfig(name="S", subjects=["a.>"], allow_direct=True))
        pull = await js.pull_subscribe("a.>", durable="c", stream="S",
                                       config=ConsumerConfig(ack_policy=AckPolicy.EXPLICIT))
        stop = asyncio.Event()
        sent = 0

        async def talk() -> None:
            nonlocal sent
            while not stop.is_set():
                try:
                    await js.publish("a.good", b"good %d" % sent, timeout=5 if restarts else 30,
                                     headers={"Nats-Msg-Id": str(sent)})
                except FAILED:
                    assert restarts
                    continue
                sent += 1
                await asyncio.sleep(0.01)

        talking = asyncio.create_task(talk())
        yield broker, good
        stop.set()
        await talking
        assert broker.running, broker.tail()
        assert lost == restarts, "a good client was disconnected"
        assert (await health(broker))[0] == 200
        # Every good message is there, in order, and is delivered to the consumer.
        held = await read_all(good, "S")
        assert [data for data in held.values() if data.startswith(b"good ")] == [b"good %d" % n for n in range(sent)]
        assert await pull.fetch(1, timeout=30)
        assert not unexpected(broker), broker.tail()
        # The folder contains only the path to the store, and the store only jetblock's own files.
        assert [p.name for p in room.iterdir()] == ["a"]
        assert [p.name for p in (room / "a").iterdir()] == ["b"]
        assert [p.name for p in (room / "a" / "b").iterdir()] == ["store"]
        assert {p.name for p in store.iterdir()} <= {"v1", ".tmp", ".reserve", "lock"}, list(store.iterdir())
        assert {p.name for p in (store / "v1").iterdir()} <= {"format", "shards", "streams"}
        await broker.restart()
        again = await connect(broker.url)
        assert len(await read_all(again, "S")) == len(held)
        assert not unexpected(broker), broker.tail()
        await again.close()
        await good.close()


def dice() -> random.Random:
    seed = int(os.environ.get("JETBLOCK_BAD_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"JETBLOCK_BAD_SEED={seed}")
    return random.Random(seed)


async def throw(port: int, data: bytes, *, connected: bool) -> bytes:
    """Send these bytes on a new connection; return the broker's output until it closed or sent nothing more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received = b""
    try:
        if connected:
            data = b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n' + data
        writer.write(data)
        writer.write(b"\r\nPING\r\n")
        async with asyncio.timeout(0.3):
            while part := await reader.read(65536):
                received += part
                if b"PONG" in received or b"-ERR" in received:
                    break
    except (OSError, TimeoutError):
        pass
    finally:
        writer.transport.abort()
    return received


async def test_bytes_of_any_kind_on_the_socket(tmp_path: Path) -> None:
    """The input is random bytes, half lines, endless lines, wrong sizes, verbs with wrong arguments, and connections
    closed within a message."""
    rng = dice()
    lines = [b"PUB t.x 5\r\nhel", b"PUB t.x -1\r\n", b"PUB t.x 99999999999999999999\r\n",
             b"PUB t.x 5 5 5 5\r\nhello\r\n", b"PUB\r\n",
             b"PUB t.x 3\r\nhello\r\n", b"HPUB t.x 99 5\r\nhello\r\n", b"HPUB t.x 12 12\r\nNATS/1.0\r\n\r\n\r\n",
             b"HPUB t.x 5 5\r\nhello\r\n", b"HPUB t.x r -5 5\r\n", b"HPUB t.x 14 10\r\n", b"SUB\r\n", b"SUB t.x\r\n",
             b"SUB t..x 1\r\n",
             b"SUB > q q q 1\r\n", b"UNSUB\r\n", b"UNSUB 1 x\r\n", b"UNSUB 99\r\n", b"MSG a 1 5\r\nhello\r\n",
             b"CONNECT\r\n", b"CONNECT {\r\n",
             b"CONNECT []\r\n", b"CONNECT " + b"[" * 4000 + b"\r\n",
             b"CONNECT {\"verbose\":7,\"user\":{},\"lang\":[]}\r\n", b"INFO {}\r\n",
             b"+OK\r\n", b"-ERR 'x'\r\n", b"P" * 100_000, b"PUB " + b"a" * 100_000 + b" 1\r\nx\r\n",
             b"SUB " + b"a." * 50_000 + b"> 1\r\n",
             b"\r\n" * 1000, b"\n" * 1000, b"PING" * 100, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
             b"\x16\x03\x01\x02\x00\x01\x00",
             b"PUB \xff\xfe 1\r\nx\r\n", b"PUB t.\x00 1\r\nx\r\n", b"PUB $JS.API.INFO \xff\xff 0\r\n\r\n",
             b"PUB t.x $JS.API.INFO 0\r\n\r\n",
             b"PUB $JS.ACK.S.c 0\r\n\r\n"]
    async with watched(tmp_path) as (broker, good):
        # Valid publishes in it are stored, under subjects that not every client can read.
        await good.jetstream().add_stream(StreamConfig(name="T", subjects=["t.>"]))
        for line in lines:
            for connected in (True, False):
                await throw(broker.port, line, connected=connected)
        for _ in range(150):
            base = rng.choice(lines)[:2000]
            data = bytearray(rng.choice((rng.randbytes(rng.randrange(1, 3000)), base, base + rng.choice(lines)[:500])))
            for _ in range(rng.randrange(4)):
                if data:
                    data[rng.randrange(len(data))] = rng.randrange(256)
            await throw(broker.port, bytes(data), connected=rng.random() < 0.8)


@pytest.mark.shows("api.strict_json")
async def test_any_json_on_every_api_subject(tmp_path: Path) -> None:
    """Each request has an answer or none, never a traceback; in any case the next one is served."""
    rng = dice()
    async with watched(tmp_path) as (broker, _):
        nc = await connect(broker.url)
        # The target is a separate stream T: even an empty request purges it.
        await nc.jetstream().add_stream(StreamConfig(name="T", subjects=["t.>"], allow_direct=True))
        await nc.jetstream().add_consumer("T", ConsumerConfig(durable_name="c", ack_policy=AckPolicy.EXPLICIT))
        for i in range(10):
            await nc.jetstream().publish(f"t.{i}", b"%d" % i)
        asked = 0
        inbox = nc.new_inbox()
        answers = await nc.subscribe(inbox, pending_msgs_limit=1 << 20, pending_bytes_limit=1 << 30)
        for verb in VERBS:
            for body in BODIES:
                if len(body) > 1000 and rng.random() < 0.7:
                    continue
                subject = "$JS.API." + verb.format(s="T")
                if subject.endswith(".") or ".." in subject:
                    nc._pending.append(b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), inbox.encode(), len(body), body))
                    continue
                await nc.publish(subject, body, reply=inbox)
                asked += 1
                if asked % 20 == 0:
                    await nc.flush(30)
        await nc.flush(30)
        info = await nc.request("$JS.API.INFO", timeout=30)
        assert b'"streams"' in info.data
        assert answers.pending_msgs > asked // 2, (answers.pending_msgs, asked)
        names = json.loads((await nc.request("$JS.API.STREAM.NAMES", timeout=30)).data)["streams"]
        assert set(names) <= {"S", "T"}, names
        await nc.close()


async def test_names_cannot_leave_the_store(tmp_path: Path) -> None:
    """Streams, consumers and subjects have names that are special to a file system. Each is refused or works under its
    own name, after a restart, too, and none affects another."""
    async with watched(tmp_path, restarts=1) as (broker, _):
        nc = await connect(broker.url)
        made = {}
        for i, name in enumerate(NAMES):
            if len(name) > 4000:
                continue  # a line longer than max_control_line ends the connection; it is tried in the body below
            try:
                reply = await nc.request(f"$JS.API.STREAM.CREATE.{name}", json.dumps(
                    {"name": name, "subjects": [f"n{i}.>"]}).encode(), timeout=30 if name.isalnum() else 0.5)
            except (nats.errors.Error, ValueError):
                continue
            if "error" not in json.loads(reply.data):
                made[name] = i
        # This subject has no tokens of the name: only the body has the name.
        for name in NAMES:
            config = json.dumps({"name": name, "subjects": ["p"]}).encode()
            reply = await nc.request("$JS.API.STREAM.CREATE.plain", config, timeout=30)
            assert "error" in json.loads(reply.data), name
            reply = await nc.request("$JS.API.CONSUMER.CREATE.S", json.dumps(
                {"stream_name": "S", "config": {"durable_name": name, "ack_policy": "explicit"}}).encode(), timeout=30)
            assert reply.data
        assert "A" in made
        assert "a" in made
        assert not any("/" in name or "\\" in name or "." in name or " " in name for name in made), made
        js = nc.jetstream()
        for i in made.values():
            await js.publish(f"n{i}.x", b"of %d" % i)
        for subject in ("a.%2e%2e", "a.\U0001f4a9", "a./etc/passwd", "a." + "t" * 3000):
            await js.publish(subject, b"odd subject")
        await nc.close()
        await broker.stop()
        await broker.start()
        nc = await connect(broker.url)
        for name, i in made.items():
            reply = await nc.request(f"$JS.API.STREAM.MSG.GET.{name}", b'{"seq":1}', timeout=30)
            assert json.loads(reply.data)["message"]["subject"] == f"n{i}.x", name
        await nc.close()


async def test_acks_of_any_form(tmp_path: Path) -> None:
    """Malformed, foreign and absurd acks are ignored; the delivery can be acknowledged afterwards."""
    async with watched(tmp_path) as (broker, _):
        nc = await connect(broker.url)
        js = nc.jetstream()
        await js.publish("a.one", b"one")
        pull = await js.pull_subscribe("a.>", durable="mine", stream="S",
                                       config=ConsumerConfig(ack_policy=AckPolicy.EXPLICIT))
        [message] = await pull.fetch(1, timeout=30)
        reply = message.reply
        tokens = reply.split(".")
        forms = ["$JS.ACK", "$JS.ACK.", "$JS.ACK.S", "$JS.ACK.S.mine", "$JS.ACK.S.mine.1.1.1.1", reply + ".x",
                 reply + ".x.y.z",
                 ".".join([*tokens[:4], "x", "x", "x", "x", "x"]), ".".join([*tokens[:4], "1", "-1", "-1", "1", "1"]),
                 ".".join([*tokens[:4], "1", "9" * 40, "9" * 40, "1", "1"]), ".".join([*tokens[:4], "1", "0", "0",
                 "0", "0"]),
                 ".".join([*tokens[:4], "1", "99999", "99999", "1", "1"]), reply.replace("mine", "nobody"),
                 reply.replace(".S.", ".T."),
                 ".".join([*tokens[:4], "1", "٣", "٣", "1", "1"]), "$JS.ACK._.hash.S.mine.1.x.1.1.1",
                 "$JS.ACK._.h.S.mine.1.1.1.1.1.r"]
        payloads = [b"", b"+ACK", b"-NAK {", b'-NAK {"delay":"x"}', b'-NAK {"delay":-1}', b'-NAK {"delay":1e400}',
                    b"-NAK " + b"[" * 50_000,
                    b"+NXT {", b"+NXT -5", b'+NXT {"batch":-1}', b"+NXT " + b"9" * 100, b"+WPI", b"+TERM \xff\xfe",
                    b"+term", b"\x00", b"ACK",
                    b"x" * 100_000, b'-NAK {"delay":99999999999999999999999}']
        inbox = nc.new_inbox()
        for form in forms:
            for payload in payloads:
                nc._pending.append(b"PUB %s %s %d\r\n%s\r\n" % (form.encode(), inbox.encode(), len(payload), payload))
                nc._pending_data_size += 1
            await nc.flush(30)
        # The same payloads go to the delivery itself, except those that end it.
        for payload in payloads:
            if payload[:4] not in (b"", b"+ACK", b"+TER", b"+NXT", b"-NAK"):
                await nc.publish(reply, payload)
        await nc.flush(30)
        info = await js.consumer_info("S", "mine")
        assert info.delivered.stream_seq >= 1
        await nc.close()
