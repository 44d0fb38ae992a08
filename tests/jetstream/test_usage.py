"""The bounds of all streams of one storage (max_memory_store, max_file_store), compared with the real nats-server's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from broker.config.settings import JetStreamSettings, ServerLimits
from tests.harness import NatsServerProcess
from tests.jetstream.in_process import Inside

BOUND = 1 << 20
LIMITED = JetStreamSettings(server=ServerLimits(max_memory=BOUND, max_storage=BOUND))
STORAGES = ("memory", "file")
FULL = {"code": 503, "err_code": 10023, "description": "insufficient resources"}


class Peer:
    """A server as this test sees it: only errors and sequences, because the stores count headers differently."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def api(self, subject: str, body: dict[str, Any] | None = None) -> Any:
        answer = await self._client.request(f"$JS.API.{subject}", json.dumps(body).encode() if body else b"",
                                            timeout=30)
        return json.loads(answer.data).get("error", "ok")

    async def publish(self, subject: str, size: int, headers: dict[str, str] | None = None) -> Any:
        answer = json.loads((await self._client.request(subject, bytes(size), headers=headers, timeout=30)).data)
        return answer.get("error") or (answer["seq"], answer.get("duplicate", False))


async def fill(peer: Peer, storage: str) -> list[Any]:
    """Play a server that fills up and is emptied; return its answers."""
    def stream(name: str, **config: Any) -> tuple[str, dict[str, Any]]:
        return name, {"name": name, "subjects": [f"{name}.>"], "storage": storage, **config}

    answers: list[Any] = []

    async def create(name: str, config: dict[str, Any], verb: str = "CREATE") -> None:
        answers.append((f"{verb} {name}", await peer.api(f"STREAM.{verb}.{name}", config)))

    async def publish(subject: str, size: int, times: int = 1, **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()} or None
        for _ in range(times):
            answers.append((subject, size, headers, await peer.publish(subject, size, named)))

    # Reservations count against the bound, and nothing else does.
    await create(*stream("BIG", max_bytes=2 * BOUND))
    await create(*stream("R", max_bytes=600_000))
    await create(*stream("R2", max_bytes=600_000))
    await create(*stream("R", max_bytes=2 * BOUND), verb="UPDATE")
    # The message that passes the bound is the last one accepted, by any stream.
    await create(*stream("L", max_msg_size=200_000, discard="new", max_msgs=1))
    await publish("L.a", 10, Nats_Msg_Id="one")
    await create(*stream("M"))
    await publish("M.a", 100_000, 13)
    await publish("R.a", 10)
    await create(*stream("EMPTY"))
    await publish("EMPTY.a", 1)
    # These show which error comes first if there are several reasons.
    await publish("L.a", 10)
    await publish("L.a", 10, Nats_Msg_Id="one")
    await publish("L.a", 200_001)
    await publish("L.a", 10, Nats_Expected_Last_Sequence="7")
    await publish("M.a", 10, Nats_TTL="1s")
    await publish("M.a", 10, Nats_Rollup="sub")
    await publish("M.a", 10, Padding="x" * 66_000)
    # Removals free room: by request, by limits, with the stream.
    answers.append(await peer.api("STREAM.PURGE.M", {"keep": 4}))
    await publish("M.a", 100_000, 8)
    await create(*stream("M", max_msgs=3), verb="UPDATE")
    await publish("M.a", 100_000, 20)
    answers.append(await peer.api("STREAM.DELETE.M"))
    await create(*stream("O", max_msgs_per_subject=1))
    await publish("O.a", 400_000, 5)
    for n in range(5):
        await publish(f"O.{n}", 400_000)
    answers.append(await peer.api("STREAM.MSG.DELETE.O", {"seq": 5}))
    await publish("O.a", 10, 2)
    return answers


@pytest.mark.shows("operation.store_limits")
@pytest.mark.parametrize("storage", STORAGES)
async def test_a_full_server_answers_as_nats_server_does(tmp_path: Path, storage: str) -> None:
    conf = tmp_path / "bounds.conf"
    conf.write_text(f"jetstream {{ store_dir: '{tmp_path}', max_memory_store: {BOUND}, max_file_store: {BOUND} }}")
    async with NatsServerProcess("-c", str(conf)) as real, Inside(LIMITED) as ours:
        theirs = await nats.connect(real.url)
        try:
            expected = await fill(Peer(theirs), storage)
        finally:
            await theirs.close()
        for answer, wanted in zip(await fill(Peer(ours.client), storage), expected, strict=True):
            assert answer == wanted
    assert any(FULL in step for step in expected)


async def burst(client: Client, subjects: Sequence[str], size: int) -> list[Any]:
    """Return the answers to publishes that reach the server together, in their order."""
    inbox = client.new_inbox()
    answers = await client.subscribe(f"{inbox}.*")
    for n, subject in enumerate(subjects):
        await client.publish(subject, bytes(size), reply=f"{inbox}.{n}")
    got = {}
    for _ in subjects:
        msg = await answers.next_msg(timeout=30)
        got[int(msg.subject.rpartition(".")[2])] = json.loads(msg.data)
    await answers.unsubscribe()
    return [got[n].get("error") or got[n]["seq"] for n in range(len(subjects))]


@pytest.mark.parametrize("storage", STORAGES)
async def test_a_burst_ends_at_the_bound_to_the_message(storage: str) -> None:
    """A burst is accepted exactly up to the bound, also if a stream's own limits make room meanwhile."""
    async with Inside(LIMITED) as broker:
        await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "storage": storage})
        await broker.ok("STREAM.CREATE.K", {"name": "K", "subjects": ["k"], "storage": storage, "max_msgs": 2})
        await broker.ok("STREAM.CREATE.P", {"name": "P", "subjects": ["p.*"], "storage": storage,
                                            "max_msgs_per_subject": 1})
        size = 1000 - 30 - 1
        taken = BOUND // 1000 + 1
        assert await burst(broker.client, ["s"] * (taken + 20), size) == [*range(1, taken + 1), *[FULL] * 20]
        await broker.ok("STREAM.PURGE.S", {"keep": taken - 10})
        assert await burst(broker.client, ["k"] * 50, size) == list(range(1, 51))
        assert await burst(broker.client, ["p.1"] * 50, size) == list(range(1, 51))
        assert await burst(broker.client, ["s"] * 20, size) == [*range(taken + 1, taken + 8), *[FULL] * 13]


async def test_stored_bytes_count_after_a_restart_too(caplog: pytest.LogCaptureFixture) -> None:
    async with Inside(LIMITED) as broker:
        for storage in STORAGES:
            await broker.ok(f"STREAM.CREATE.{storage}", {"name": storage, "storage": storage})
            for _ in range(2):
                await broker.client.request(storage, bytes(600_000))
        assert await broker.refusal("memory") == await broker.refusal("file") == FULL
        await broker.restart()
        # Memory streams are gone, and with them what they held.
        await broker.ok("STREAM.CREATE.memory", {"name": "memory", "storage": "memory"})
        assert await broker.publish("memory") == 1
        assert await broker.refusal("file") == FULL
        await broker.ok("STREAM.DELETE.file")
        await broker.ok("STREAM.CREATE.file", {"name": "file"})
        assert await broker.publish("file") == 1
    answers = [record.message for record in caplog.records if "limits exceeded" in record.message]
    # The limit is logged once for each kind, not once for each message.
    assert answers == ["JetStream memory resource limits exceeded for server",
                    "JetStream file resource limits exceeded for server"]
