"""Accounts that are added, changed and removed while JetStream runs, each with its own router, streams and limits."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any, Protocol

import nats
import pytest
from nats.aio.client import Client
from nats.errors import NoRespondersError

from broker.access.accounts import AccountLimits
from broker.config.settings import JetStreamSettings, ServerLimits
from broker.jetstream.wire.errors import ApiError
from broker.server.routing.router import Router
from tests.harness import NatsServerProcess
from tests.jetstream.caller import Caller, NoResponders
from tests.jetstream.in_process import Inside

pytestmark = pytest.mark.asyncio

SERVER = ServerLimits(max_memory=1000, max_storage=5000)
LIMITS: dict[str, AccountLimits | None] = {
    "A": AccountLimits(max_memory=500, max_storage=600, max_streams=2, max_consumers=2, max_ack_pending=50),
    "B": None,
    "C": AccountLimits(max_memory=0, max_storage=0),
    "D": AccountLimits(),
    "E": AccountLimits(max_storage=200),
    "F": AccountLimits(memory_max_stream_bytes=100, storage_max_stream_bytes=200, max_bytes_required=True),
}
CONFIG = """
jetstream {{ store_dir: '{}', max_mem: 1000, max_file: 5000 }}
accounts {{
  A {{ jetstream: {{max_mem: 500, max_file: 600, max_streams: 2, max_consumers: 2, max_ack_pending: 50}},
       users: [{{user: A, password: x}}] }}
  B {{ users: [{{user: B, password: x}}] }}
  C {{ jetstream: {{max_mem: 0, max_file: 0}}, users: [{{user: C, password: x}}] }}
  D {{ jetstream: enabled, users: [{{user: D, password: x}}] }}
  E {{ jetstream: {{max_file: 200}}, users: [{{user: E, password: x}}] }}
  F {{ jetstream: {{mem_max_stream_bytes: 100, disk_max_stream_bytes: 200, max_bytes: true}},
       users: [{{user: F, password: x}}] }}
}}
"""


class Peer(Protocol):
    """An account of a server, as the scenario below uses it."""

    async def api(self, subject: str, body: Any = None) -> dict[str, Any]: ...
    async def request(self, subject: str, body: bytes = b"") -> Any: ...


class RealPeer:
    """An account of the real nats-server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def request(self, subject: str, body: bytes = b"") -> Any:
        try:
            return json.loads((await self._client.request(subject, body, timeout=30)).data)
        except NoRespondersError:
            raise NoResponders(subject) from None

    async def api(self, subject: str, body: Any = None) -> dict[str, Any]:
        answer: dict[str, Any] = await self.request(f"$JS.API.{subject}",
                                                    b"" if body is None else json.dumps(body).encode())
        return answer


def a_router(broker: Inside) -> Router:
    return Router(broker.clock, random.Random(1), asyncio.get_running_loop().call_soon)


async def add(broker: Inside, name: str, limits: AccountLimits | None = None) -> Caller:
    """Add an account with JetStream; return a client of it. Its stored streams are restored if possible."""
    router = a_router(broker)
    await broker.js.add_account(name, router, limits or AccountLimits())
    return Caller(router)


def stream(name: str, **config: Any) -> tuple[str, dict[str, Any]]:
    return f"STREAM.CREATE.{name}", {"name": name, "subjects": [name.lower()], **config}


async def limited(peer: Peer) -> list[Any]:
    """Play requests at an account's limits; return only errors and numbers, in which accounts differ."""
    answers: list[Any] = []

    async def api(subject: str, body: Any = None) -> None:
        answer = await peer.api(subject, body)
        answers.append((subject, body, answer.get("error", "ok")))

    async def publish(subject: str, size: int, times: int = 1) -> None:
        for _ in range(times):
            try:
                answers.append((subject, size, await peer.request(subject, bytes(size))))
            except NoResponders:
                answers.append((subject, size, "no responders"))

    async def info() -> None:
        answer = await peer.api("INFO")
        answers.append(answer)

    await info()
    await api(*stream("X", max_bytes=700))
    await api(*stream("X", max_consumers=3))
    await api(*stream("X"))
    await api(*stream("M", storage="memory", max_bytes=400))
    await api(*stream("Z", storage="memory", max_bytes=201))
    await api(*stream("Y", max_msgs=1))
    await api(*stream("X"))
    await publish("x", 100, 8)
    await publish("y", 100, 3)
    await publish("y", 10)
    for _ in range(3):
        await api("CONSUMER.CREATE.X", {"stream_name": "X", "config": {"ack_policy": "explicit",
                                                                       "inactive_threshold": 60 * 10**9}})
    await api("CONSUMER.CREATE.M.c", {"stream_name": "M", "config": {"ack_policy": "explicit", "max_ack_pending": 51,
                                                                   "durable_name": "c"}})
    await api("STREAM.UPDATE.M", {"name": "M", "subjects": ["m"], "storage": "memory", "max_bytes": 501})
    await api("STREAM.UPDATE.M", {"name": "M", "subjects": ["m"], "storage": "memory", "max_bytes": 300})
    await api("STREAM.PURGE.X")
    await publish("x", 100, 2)
    await info()
    await api("STREAM.DELETE.X")
    await publish("x", 10)
    return answers


async def disabled(peer: Peer) -> list[Any]:
    """Play every request that an account without JetStream may make."""
    answers: list[Any] = []
    for subject, body in (
        ("INFO", None), ("STREAM.NAMES", None), ("STREAM.LIST", None), stream("X"), ("STREAM.UPDATE.X", {"name": "X"}),
        ("STREAM.INFO.X", None), ("STREAM.DELETE.X", None), ("STREAM.PURGE.X", None), ("STREAM.MSG.GET.X", {"seq": 1}),
        ("STREAM.MSG.DELETE.X", {"seq": 1}), ("STREAM.SNAPSHOT.X", {"deliver_subject": "a"}),
        ("STREAM.RESTORE.X", {"config": {"name": "X"}}), ("STREAM.LEADER.STEPDOWN.X", None),
        ("STREAM.PEER.REMOVE.X", {"peer": "a"}), ("CONSUMER.CREATE.X", {"stream_name": "X", "config": {}}),
        ("CONSUMER.DURABLE.CREATE.X.d", {"stream_name": "X", "config": {"durable_name": "d"}}),
        ("CONSUMER.INFO.X.c", None), ("CONSUMER.NAMES.X", None), ("CONSUMER.LIST.X", None),
        ("CONSUMER.DELETE.X.c", None),
        ("CONSUMER.PAUSE.X.c", {}), ("CONSUMER.UNPIN.X.c", {"group": "a"}), ("CONSUMER.MSG.NEXT.X.c", None),
        ("CONSUMER.LEADER.STEPDOWN.X.c", None), ("DIRECT.GET.X", {"seq": 1}), ("DIRECT.GET.X.foo", None),
    ):
        try:
            answers.append((subject, await peer.api(subject, body)))
        except NoResponders:
            answers.append((subject, "no responders"))
    return answers


@pytest.mark.shows("accounts.jetstream_limits")
async def test_limits_are_each_account_s_own_as_on_nats_server(tmp_path: Path) -> None:
    """Shows the same scenario for each of several accounts, one after the other, on one server."""
    conf = tmp_path / "accounts.conf"
    conf.write_text(CONFIG.format(tmp_path))
    async with NatsServerProcess("-c", str(conf)) as real, Inside(JetStreamSettings(server=SERVER)) as broker:
        for name, limits in LIMITS.items():
            router = a_router(broker)
            await broker.js.add_account(name, router, limits)
            theirs = await nats.connect(real.url, user=name, password="x")
            story = disabled if limits is None else limited
            try:
                expected = await story(RealPeer(theirs))
            finally:
                await theirs.close()
            for answer, wanted in zip(await story(Caller(router)), expected, strict=True):
                assert answer == wanted, name


async def test_an_account_comes_and_finds_what_the_store_has_of_it() -> None:
    """The streams of an account that is not added yet are unused but not lost, whatever else happens in the store."""
    async with Inside() as broker:
        first = await add(broker, "A")
        await first.api(*stream("S"))
        await first.api("CONSUMER.CREATE.S.c", {"stream_name": "S",
                                                "config": {"durable_name": "c", "ack_policy": "none"}})
        assert [await first.request("s") for _ in range(2)] == [{"stream": "S", "seq": 1}, {"stream": "S", "seq": 2}]
        await broker.js.remove_account("A")
        with pytest.raises(NoResponders):
            await first.api("INFO")
        with pytest.raises(NoResponders):
            await first.request("s")
        await broker.restart()
        second = await add(broker, "A")
        assert await second.request("s") == {"stream": "S", "seq": 3}
        assert (await second.api("CONSUMER.INFO.S.c"))["num_pending"] == 3
        # Another account's streams do not affect it.
        assert (await broker.ok("STREAM.NAMES"))["streams"] is None


async def test_an_account_may_come_back_before_its_last_messages_are_stored() -> None:
    """It is restored from the store, so it waits for pending puts; no sequence is used twice."""
    async with Inside() as broker:
        first = await add(broker, "A")
        await first.api(*stream("S"))
        await first.api(*stream("L", persist_mode="async"))
        answers = [first.send(subject) for subject in ["s", "l"] * 50]
        removed = broker.js.remove_account("A")
        router = a_router(broker)
        restored = broker.js.add_account("A", router)
        second = Caller(router)
        assert (await second.api("INFO"))["error"]["err_code"] == 10008
        assert not removed.done()
        assert json.loads(await answers[-2])["seq"] == 50
        await restored
        assert removed.done()
        assert await second.request("s") == {"stream": "S", "seq": 51}
        assert await second.request("l") == {"stream": "L", "seq": 51}


async def test_accounts_before_open_and_while_the_shard_is_another_s() -> None:
    async with Inside(opened=False) as broker:
        caller = await add(broker, "A")
        assert (await caller.api("INFO"))["error"]["err_code"] == 10008
        await broker.open()
        await caller.api(*stream("S"))
        assert await caller.request("s") == {"stream": "S", "seq": 1}
        await broker.log.drain()
        await broker.js.close()
        other = await add(broker, "B")
        await broker.js.change_limits("A", AccountLimits(max_streams=1))
        await broker.js.remove_account("$G")
        assert (await other.api("INFO"))["error"]["err_code"] == 10008
        await broker.log.close()
        await broker.open()
        assert (await caller.api(*stream("T")))["error"]["err_code"] == 10027
        assert await caller.request("s") == {"stream": "S", "seq": 2}
        assert (await other.api("STREAM.NAMES"))["streams"] is None


async def test_limits_change_while_streams_are_full() -> None:
    """Existing messages stay; new ones are checked against the current limits,
    and the server's bound counts all of them."""
    async with Inside(JetStreamSettings(server=ServerLimits(max_storage=1000))) as broker:
        caller = await add(broker, "A", AccountLimits(max_storage=300))
        await caller.api(*stream("S"))
        size = 100 - 31
        seqs = [(await caller.request("s", bytes(size))).get("seq") for _ in range(4)]
        assert seqs == [1, 2, 3, 0]
        await broker.js.change_limits("A", AccountLimits(max_storage=-1))
        assert (await caller.request("s", bytes(size)))["seq"] == 4
        await broker.js.change_limits("A", AccountLimits(max_storage=200))
        assert (await caller.request("s", bytes(size)))["error"]["err_code"] == 10002
        assert (await caller.api("INFO"))["storage"] == 400
        # The server's bound counts what every account holds, and counts it once.
        await broker.ok("STREAM.CREATE.G", {"name": "G"})
        taken = 0
        while "error" not in json.loads((await broker.client.request("G", bytes(size))).data):
            taken += 1
        assert taken == 7
        await caller.api("STREAM.DELETE.S")
        assert "error" not in json.loads((await broker.client.request("G", bytes(size))).data)


@pytest.mark.shows("accounts.jetstream_on_off")
async def test_jetstream_is_disabled_and_enabled_again() -> None:
    async with Inside() as broker:
        caller = await add(broker, "A")
        await caller.api(*stream("S"))
        await caller.request("s")
        removed = broker.js.change_limits("A", None)
        assert (await caller.api("STREAM.INFO.S"))["error"]["err_code"] == 10039
        await removed
        with pytest.raises(NoResponders):
            await caller.request("s")
        await broker.js.change_limits("A", AccountLimits())
        assert await caller.request("s") == {"stream": "S", "seq": 2}


async def test_limits_that_the_server_cannot_keep_are_refused() -> None:
    """Shows a refusal by the sum of all accounts' limits, as on nats-server; nothing is changed."""
    async with Inside(JetStreamSettings(server=SERVER)) as broker:
        caller = await add(broker, "A", AccountLimits(max_storage=3000))
        with pytest.raises(ApiError) as refused:
            await add(broker, "B", AccountLimits(max_storage=2001))
        assert refused.value.err_code == 10047
        with pytest.raises(ApiError) as refused:
            await broker.js.change_limits("A", AccountLimits(max_memory=1001))
        assert refused.value.err_code == 10028
        assert (await caller.api("INFO"))["limits"]["max_storage"] == 3000
        await add(broker, "B", AccountLimits(max_storage=2000))
        with pytest.raises(ValueError, match="account B has been added already"):
            await add(broker, "B")


async def test_memory_streams_of_an_account_go_with_it() -> None:
    async with Inside(JetStreamSettings(server=ServerLimits(max_memory=100))) as broker:
        caller = await add(broker, "A")
        await caller.api(*stream("M", storage="memory"))
        await caller.request("m", bytes(200))
        assert (await caller.request("m"))["error"]["err_code"] == 10023
        await broker.js.remove_account("A")
        again = await add(broker, "A")
        assert (await again.api("STREAM.NAMES"))["streams"] is None
        await again.api(*stream("M", storage="memory"))
        assert (await again.request("m"))["seq"] == 1
