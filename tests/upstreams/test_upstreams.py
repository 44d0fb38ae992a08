"""Mirrors and sources of streams that a real nats-server has, through an upstream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import nats
import pytest
from nats.aio.client import Client

from tests.harness import BrokerProcess, NatsServerProcess
from tests.jetstream.archives import api

pytestmark = pytest.mark.shows("copy.upstream")

EXTERNAL = {"api": "$JS.prod.API"}
"""The upstream's API, as the stock configuration of a mirror or source names it."""

USERS = """accounts { $SYS { users: [ { user: sys, password: sys } ] }
    PROD { jetstream: enabled, users: [ { user: publisher, password: p },
        { user: archive, password: secret, permissions {
            publish: ["$JS.API.STREAM.INFO.*", "$JS.API.CONSUMER.CREATE.*", "$JS.API.CONSUMER.CREATE.*.>", "$JS.FC.>"]
            subscribe: "_INBOX.>" } } ] } }"""
"""``docs/UPSTREAMS.md`` shows the permissions of ``archive``."""


class Message(NamedTuple):
    seq: int
    subject: str
    data: str
    headers: str
    time: str


class Systems(NamedTuple):
    """A nats-server with streams, and a broker that has it as the upstream ``prod``."""

    origin: NatsServerProcess
    broker: BrokerProcess

    async def there(self) -> Client:
        return await nats.connect(self.origin.url, user="publisher", password="p")

    async def here(self) -> Client:
        return await nats.connect(self.broker.url)


@asynccontextmanager
async def systems(tmp_path: Path, upstream: str = "user: archive, password: secret",
                  more: str = "") -> AsyncIterator[Systems]:
    origin_file, broker_file = tmp_path / "origin.conf", tmp_path / "broker.conf"
    origin_file.write_text(f'server_name: prod\njetstream {{ store_dir: "{tmp_path}/origin" }}\n{USERS}\n')
    async with NatsServerProcess("-c", str(origin_file)) as origin:
        broker_file.write_text(f"""
            server_name: archive
            jetstream {{ store_dir: "{tmp_path}/broker" }}
            jetblock {{ upstreams {{ prod {{ urls: ["{origin.url}"], {upstream} }} }} }}
            {more}""")
        async with BrokerProcess("-c", str(broker_file)) as broker:
            yield Systems(origin, broker)


async def info(client: Client, stream: str) -> dict[str, Any]:
    return await api(client, f"STREAM.INFO.{stream}")


async def make(client: Client, name: str, **config: Any) -> None:
    await api(client, f"STREAM.CREATE.{name}", {"name": name, **config})


async def until(condition: Callable[[], Awaitable[object]], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.02)


async def has(client: Client, stream: str, count: int) -> bool:
    """Return whether the stream has this number of messages."""
    return bool((await info(client, stream))["state"]["messages"] == count)


async def messages(client: Client, stream: str) -> list[Message]:
    """Return all messages of a stream, by its API."""
    state = (await info(client, stream))["state"]
    found = []
    for seq in range(state["first_seq"], state["last_seq"] + 1):
        answer = json.loads((await client.request(f"$JS.API.STREAM.MSG.GET.{stream}", b'{"seq": %d}' % seq,
                                                  timeout=30)).data)
        if (one := answer.get("message")) is not None:
            found.append(Message(one["seq"], one["subject"], one.get("data", ""), one.get("hdrs", ""), one["time"]))
    return found


async def equal(there: Client, stream: str, here: Client, copy: str) -> list[Message]:
    """Wait until the copy has the stream's last message; then all sequences, subjects, headers and times are equal."""
    wanted = await messages(there, stream)

    async def has_all() -> bool:
        return bool((await info(here, copy))["state"]["last_seq"] >= wanted[-1].seq)

    await until(has_all)
    assert await messages(here, copy) == wanted
    return wanted


async def error_of(client: Client, stream: str) -> str:
    """Return the description of the mirror's or first source's error; "" if there is none."""
    found = await info(client, stream)
    one = found.get("mirror") or found["sources"][0]
    return str(one.get("error", {}).get("description", ""))


async def test_a_mirror_is_equal_to_its_origin_through_kills(tmp_path: Path) -> None:
    """Gaps, headers and times are kept. After SIGKILL of either side, the copy continues and has each message once."""
    async with systems(tmp_path) as both:
        there, here = await both.there(), await both.here()
        js = there.jetstream()
        await make(there, "ORDERS", subjects=["orders.>"], allow_direct=True)
        for number in range(300):
            await js.publish(f"orders.{number % 7}", b"%d" % number, headers={"Nats-Msg-Id": str(number)})
        last = await js.publish("orders.x", b"expected", headers={"Nats-Expected-Last-Sequence": "300", "A": "1"})
        for seq in (1, 2, 100, 101, 299):
            await js.delete_msg("ORDERS", seq)
        await make(here, "ORDERS", mirror={"name": "ORDERS", "external": EXTERNAL})
        await make(here, "SOME", mirror={"name": "ORDERS", "filter_subject": "orders.3", "external": EXTERNAL})
        copied = await equal(there, "ORDERS", here, "ORDERS")
        assert len(copied) == 296
        assert copied[-1].seq == last.seq
        assert [one.subject for one in await messages(here, "SOME")] == 43 * ["orders.3"]
        shown = (await info(here, "ORDERS"))["mirror"]
        assert (shown["name"], shown["lag"], shown["external"]["api"]) == ("ORDERS", 0, EXTERNAL["api"])
        row, = (await both.broker.monitor("/varz"))["jetblock"]["upstreams"]
        assert (row["name"], row["account"], row["connected"], row["connects"]) == ("prod", "$G", True, 1)

        # The origin is killed and comes back, then this broker.
        await both.origin.restart()
        await js.publish("orders.1", b"after the origin's kill")
        await equal(there, "ORDERS", here, "ORDERS")
        await both.broker.kill()
        for number in range(200):
            await js.publish("orders.2", b"while away %d" % number)
        await both.broker.start()
        await equal(there, "ORDERS", here, "ORDERS")
        await there.close()
        await here.close()


async def test_several_sources_share_a_stream_with_its_own_subjects(tmp_path: Path) -> None:
    """Sources with filters, transforms and starts copy into a stream that clients publish to as well."""
    async with systems(tmp_path) as both:
        there, here = await both.there(), await both.here()
        for name in ("A", "B"):
            await make(there, name, subjects=[f"{name}.>"])
            for number in range(20):
                await there.jetstream().publish(f"{name}.{number % 2}", b"%d" % number)
        await make(here, "ALL", subjects=["own.>"], sources=[
            {"name": "A", "external": EXTERNAL, "opt_start_seq": 11},
            {"name": "B", "external": EXTERNAL, "subject_transforms": [{"src": "B.1", "dest": "from.b"}]}])
        await here.jetstream().publish("own.1", b"own")
        await until(lambda: has(here, "ALL", 10 + 10 + 1))
        found = await messages(here, "ALL")
        assert sorted(one.subject for one in found) == 5 * ["A.0"] + 5 * ["A.1"] + 10 * ["from.b"] + ["own.1"]
        await both.broker.restart()
        await there.jetstream().publish("A.0", b"later")
        await until(lambda: has(here, "ALL", 22))
        await there.close()
        await here.close()


async def test_origins_that_are_not_copied(tmp_path: Path) -> None:
    """A work queue, a stream that is missing or was made again, an older state: the info of the copy says why."""
    async with systems(tmp_path) as both:
        there, here = await both.there(), await both.here()
        js = there.jetstream()
        await make(there, "QUEUE", subjects=["q"], retention="workqueue")
        for _ in range(3):
            await js.publish("q", b"x")
        await make(there, "MADE", subjects=["made"])
        await js.publish("made", b"first")
        await make(here, "QUEUE", mirror={"name": "QUEUE", "external": EXTERNAL})
        await make(here, "MISSING", mirror={"name": "MISSING", "external": EXTERNAL})
        await make(here, "MADE", mirror={"name": "MADE", "external": EXTERNAL})
        await make(here, "SOURCED", sources=[{"name": "MADE", "external": EXTERNAL}])
        await make(here, "OTHER", mirror={"name": "MADE", "external": {"api": "$JS.staging.API"}})
        await until(lambda: error_of(here, "QUEUE"))
        assert "work queue" in await error_of(here, "QUEUE")
        await until(lambda: error_of(here, "MISSING"))
        assert "stream not found" in await error_of(here, "MISSING")
        assert "an upstream" in await error_of(here, "OTHER")
        await equal(there, "MADE", here, "MADE")
        await until(lambda: has(here, "SOURCED", 1))
        assert (await info(there, "QUEUE"))["state"]["messages"] == 3

        await js.delete_stream("MADE")
        await make(there, "MADE", subjects=["made"])
        for number in range(3):
            await js.publish("made", b"again %d" % number)
        await until(lambda: error_of(here, "MADE"))
        assert "made again" in await error_of(here, "MADE")
        assert (await info(here, "MADE"))["state"]["messages"] == 1
        await until(lambda: has(here, "SOURCED", 4))
        await there.close()
        await here.close()


async def test_a_login_that_is_refused(tmp_path: Path) -> None:
    """The reason is in the log, in /varz and in the info of the copies; the password is in none of them."""
    async with systems(tmp_path, "user: archive, password: wrong-secret") as both:
        await both.broker.wait_line(r'\[ERR\] Upstream "prod" of account \$G: .*Authorization Violation')
        here = await both.here()
        await make(here, "M", mirror={"name": "M", "external": EXTERNAL})
        await until(lambda: error_of(here, "M"))
        assert "Authorization Violation" in await error_of(here, "M")
        row, = (await both.broker.monitor("/varz"))["jetblock"]["upstreams"]
        assert not row["connected"]
        assert "Authorization Violation" in row["error"]
        assert "wrong-secret" not in both.broker.tail() + json.dumps(row) + await error_of(here, "M")
        await here.close()
