"""Backups of nats-server restored by the broker, and the broker's by nats-server: the same stream,
answers and advisories."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
import pytest_asyncio
from nats.aio.client import Client

from tests.harness import BrokerProcess, NatsServerProcess
from tests.jetstream.archives import Backup, Failed, api, restore, take_snapshot
from tests.jetstream.schemas import broken

pytestmark = pytest.mark.asyncio(loop_scope="module")

_VARIES = {"ts", "created", "id", "timestamp", "start", "end", "client", "bytes"}
"""Members that are not compared. In advisories, ``bytes`` is the size of the archive:
the servers compress differently."""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def clients(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Client, Client]]:
    """Yield clients of nats-server and of the broker."""
    folder: Path = tmp_path_factory.mktemp("stores")
    async with (NatsServerProcess("-js", "-sd", str(folder / "real")) as real,
                BrokerProcess("-js", "-sd", str(folder / "ours")) as ours):
        theirs, our = await nats.connect(real.url), await nats.connect(ours.url)
        yield theirs, our
        await theirs.close()
        await our.close()


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def cleared(clients: tuple[Client, Client]) -> None:
    for client in clients:
        for name in (await api(client, "STREAM.NAMES"))["streams"] or ():
            await gone(client, name)


_NUMBERS = itertools.count(1)


def new_name() -> str:
    """Return an unused name: nats-server removes a deleted stream's files after its answer,
    and a new stream may find them."""
    return f"S{next(_NUMBERS)}"


async def fill(client: Client, name: str) -> Backup:
    """Make a stream with everything that an archive can hold; return its backup, and remove the stream."""
    await api(client, f"STREAM.CREATE.{name}", {"name": name, "subjects": ["s.>"], "allow_msg_ttl": True,
                                                "metadata": {"a": "b"}})
    js = client.jetstream()
    for n in range(60):
        headers = {"Nats-Msg-Id": f"id-{n}", "Key": "v" * (n % 50)} if n % 3 else None
        await js.publish(f"s.{n % 7}", b"payload %d " % n * (n % 90), headers=headers)
    await client.request("s.ttl", b"brief", headers={"Nats-TTL": "1h"})
    await client.request("s.big", bytes(900_000))
    await client.request("s.end", b"")
    for seq in (1, 2, 30, 31, 45, 63):
        await api(client, f"STREAM.MSG.DELETE.{name}", {"seq": seq})
    for consumer, given in {
        "WORK": {"durable_name": "WORK", "ack_policy": "explicit", "ack_wait": 10**9 * 3600},
        "NEW": {"durable_name": "NEW", "ack_policy": "explicit", "deliver_policy": "new"},
        "ALL": {"durable_name": "ALL", "ack_policy": "all", "filter_subject": "s.3"},
        "NONE": {"durable_name": "NONE", "ack_policy": "none"},
        "BRIEF": {"ack_policy": "explicit", "inactive_threshold": 10**9 * 300},
        "PUSH": {"durable_name": "PUSH", "ack_policy": "explicit", "deliver_subject": "to.nobody",
                 "deliver_group": "g"},
    }.items():
        await api(client, f"CONSUMER.CREATE.{name}.{consumer}",
                  {"stream_name": name, "config": {"name": consumer, **given}})
    work = await js.pull_subscribe_bind("WORK", name)
    msgs = await work.fetch(20)
    for msg in msgs[:4] + msgs[6:9]:
        await msg.ack_sync()
    naks = await client.subscribe(f"$JS.EVENT.ADVISORY.CONSUMER.MSG_NAKED.{name}.WORK")
    await msgs[5].nak()
    await naks.next_msg()
    await work.fetch(1)
    [*_, last] = await (await js.pull_subscribe_bind("ALL", name)).fetch(5)
    await last.ack_sync()
    await (await js.pull_subscribe_bind("NONE", name)).fetch(9)
    await settled(client, f"{name}.WORK", num_ack_pending=13, num_redelivered=1)
    backup = await take_snapshot(client, name, chunk_size=4096)
    await gone(client, name)
    return backup


async def settled(client: Client, consumer: str, **wanted: int) -> None:
    """Wait until a consumer has these numbers: nats-server processes acks some time later."""
    async with asyncio.timeout(30):
        while True:
            info = await api(client, f"CONSUMER.INFO.{consumer}")
            if all(info[key] == value for key, value in wanted.items()):
                return
            await asyncio.sleep(0.01)


async def gone(client: Client, stream: str) -> None:
    await api(client, f"STREAM.DELETE.{stream}")


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items() if key not in _VARIES}
    return value


async def seen(client: Client, name: str) -> dict[str, Any]:
    """Return everything that a client can see of the stream."""
    state = (await api(client, f"STREAM.INFO.{name}", {"deleted_details": True, "subjects_filter": ">"}))["state"]
    messages = {}
    for seq in range(1, state["last_seq"] + 1):
        try:
            messages[seq] = (await api(client, f"STREAM.MSG.GET.{name}", {"seq": seq}))["message"]
        except Failed as failed:
            messages[seq] = failed.error["err_code"]
    names = (await api(client, f"CONSUMER.NAMES.{name}"))["consumers"]
    return {"state": state, "messages": messages,
            "consumers": {one: plain(await api(client, f"CONSUMER.INFO.{name}.{one}")) for one in sorted(names)}}


@pytest.mark.shows("api.snapshot", "api.restore")
@pytest.mark.parametrize("source", [0, 1], ids=["from nats-server", "from jetblock"])
async def test_a_backup_is_the_same_stream_on_both(clients: tuple[Client, Client], source: int) -> None:
    backup = await fill(clients[source], new_name())
    answers, streams, more = [], [], []
    name = new_name()
    for client in clients:
        answers.append(plain(await restore(client, backup, name=name)))
        streams.append(await seen(client, name))
        js = client.jetstream()
        work = [(msg.metadata.sequence.stream, msg.metadata.sequence.consumer, msg.metadata.num_delivered, msg.data)
                for msg in await (await js.pull_subscribe_bind("WORK", name)).fetch(3)]
        more.append(work)
        await gone(client, name)
    assert answers[1] == answers[0]
    assert streams[1] == streams[0]
    assert more[1] == more[0]
    assert sum(msg != 10037 for msg in streams[0]["messages"].values()) == 57
    assert len(streams[0]["consumers"]) == 6
    assert streams[1]["consumers"]["WORK"]["num_ack_pending"] == 13


@pytest.mark.shows("api.snapshot")
async def test_ours_is_restored_there_and_comes_back(clients: tuple[Client, Client]) -> None:
    real, ours = clients
    name = new_name()
    backup = await fill(ours, name)
    await restore(ours, backup)
    before = await seen(ours, name)
    await gone(ours, name)
    await restore(real, backup)
    again = await take_snapshot(real, name)
    await gone(real, name)
    await restore(ours, again, chunk_bytes=999)
    assert await seen(ours, name) == before


@pytest.mark.shows("api.restore")
@pytest.mark.parametrize("changes", [
    {}, {"name": "T", "subjects": ["t"]}, {"max_msgs": 3}, {"max_msgs_per_subject": 2}, {"max_bytes": 1000},
    {"max_msg_size": 10},
    {"max_msgs": 3, "discard": "new"}, {"max_bytes": 1000, "discard": "new"},
    {"max_msgs_per_subject": 2, "discard": "new", "discard_new_per_subject": True},
    {"storage": "memory"}, {"num_replicas": 3}, {"sealed": True}, {"retention": "interest"}, {"retention": "workqueue"},
    {"subjects": ["other"]}, {"max_consumers": 2}, {"max_age": 1}, {"no_ack": True},
], ids=str)
async def test_changed_configurations(clients: tuple[Client, Client], changes: dict[str, Any]) -> None:
    name = new_name()
    real = clients[0]
    await api(real, f"STREAM.CREATE.{name}", {"name": name, "subjects": ["s.>"]})
    for n in range(40):
        await real.request(f"s.{n % 4}", b"%d" % n * 20)
    for consumer, subject in (("A", "s.0"), ("B", "s.1"), ("C", "s.2")):
        await api(real, f"CONSUMER.CREATE.{name}.{consumer}.{subject}", {"stream_name": name, "config": {
            "durable_name": consumer, "name": consumer, "ack_policy": "explicit", "filter_subject": subject}})
    [first, *_] = await (await real.jetstream().pull_subscribe_bind("A", name)).fetch(3)
    await first.ack_sync()
    await settled(real, f"{name}.A", num_ack_pending=2)
    backup = await take_snapshot(real, name)
    await gone(real, name)
    answers: list[Any] = []
    changed = {"name": new_name(), **changes}
    for client in clients:
        try:
            info = await restore(client, backup, **changed)
        except Failed as failed:
            # If restoring fails, nats-server leaves half of a stream.
            answers.append(failed.error)
            assert client is real or not (await api(client, "STREAM.NAMES"))["streams"]
        else:
            if info["config"]["storage"] == "memory":
                del info["state"]["bytes"]
            answers.append(plain(info))
    assert answers[1] == answers[0]


@pytest.mark.shows("advisory.snapshot", "advisory.restore")
async def test_advisories(clients: tuple[Client, Client]) -> None:
    """Compare the advisories of each server, and the rules of their schemas that they break.

    nats-server sends the advisory of a restored stream's creation from another goroutine than those of the restore,
    before or after them.
    """
    found = []
    name, other = new_name(), new_name()
    for client in clients:
        events: list[tuple[Any, ...]] = []
        arrived = asyncio.Event()

        async def note(msg: Any, events: list[tuple[Any, ...]] = events, arrived: asyncio.Event = arrived) -> None:
            event = json.loads(msg.data)
            for key in _VARIES & event.keys():
                event[key] = type(event[key]).__name__
            events.append((msg.subject, plain(event.pop("state", None)), event, broken(msg.data)))
            arrived.set()

        async def events_arrived(count: int, events: list[tuple[Any, ...]] = events,
                                 arrived: asyncio.Event = arrived) -> None:
            while len(events) < count:
                arrived.clear()
                await asyncio.wait_for(arrived.wait(), 30)

        subscription = await client.subscribe("$JS.EVENT.ADVISORY.STREAM.>", cb=note)
        await api(client, f"STREAM.CREATE.{name}", {"name": name, "subjects": ["s"]})
        backup = await take_snapshot(client, name)
        await events_arrived(3)
        await gone(client, name)
        await restore(client, backup, name=other)
        await events_arrived(7)
        with pytest.raises(Failed):
            await restore(client, Backup({"name": name, "subjects": ["t"]}, {}, b"no archive"))
        await events_arrived(9)
        await subscription.unsubscribe()
        found.append(sorted(events, key=lambda event: event[0]))
    assert found[1] == found[0]
    assert len(found[0]) == 9
