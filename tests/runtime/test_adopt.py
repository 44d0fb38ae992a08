"""Requests in the inbox of a directory are granted by a running broker, by the next one, and by ``jetblock adopt``."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import nats
import pytest

from broker.inspect.source import Source
from broker.inspect.survey import read_survey
from broker.inspect.verify import verify
from broker.maintenance.copy import Copier
from broker.maintenance.destination import Destination
from broker.runtime.adopt_cli import main as adopt
from broker.runtime.embedded import Broker
from broker.storage.objectstore.file import FileStore
from broker.storage.read.snapshot import read_snapshot
from broker.storage.staging.answers import GRANTED, answer_in
from broker.storage.staging.writer import RunWriter, request_id_of
from tests.jetstream.inbox.staging import eventually, request, stage
from tests.runtime.test_compaction import SETTINGS as COMPACTING
from tests.runtime.test_compaction import compact

QUIET = {"storage.inbox_interval_ns": 0}
SOON = {"storage.inbox_interval_ns": 10_000_000}
ROWS = [(b"s.%d" % (i % 5), b"%d" % i) for i in range(500)]
DAY = 86_400_000_000_000


async def made(directory: Path, *names: str) -> None:
    """Create streams by a broker that is then stopped."""
    async with Broker(directory, settings=QUIET) as broker:
        client = await nats.connect(broker.url)
        for name in names:
            await client.jetstream().add_stream(name=name, subjects=[f"{name.lower()}.*"])
        await client.close()


async def asked(directory: Path, stream: str, *name: str, rows: list[tuple[bytes, bytes]] = ROWS,
                **how: int) -> RunWriter:
    store = FileStore(directory)
    writer = await stage(store, (await read_snapshot(store, 0)).state, stream, rows, **how)  # type: ignore[arg-type]
    await request(store, writer, *name)
    await store.close()
    return writer


async def held(broker: Broker, stream: str) -> list[bytes]:
    client = await nats.connect(broker.url)
    js = client.jetstream()
    count = (await js.stream_info(stream)).state.messages
    subscription = await js.subscribe(">", stream=stream, ordered_consumer=True) if count else None
    found = [(await subscription.next_msg(timeout=30)).data for _ in range(count)] if subscription is not None else []
    await client.close()
    return found


async def until(broker: Broker, stream: str, messages: int) -> None:
    client = await nats.connect(broker.url)

    async def holds() -> bool:
        return bool((await client.jetstream().stream_info(stream)).state.messages == messages)

    await eventually(holds)
    await client.close()


async def gone(directory: Path, *parts: str) -> None:
    """Wait until no key has any of these parts."""
    async def holds() -> bool:
        return not any([await keys(directory, part) for part in parts])

    await eventually(holds)


async def keys(directory: Path, part: str) -> list[str]:
    store = FileStore(directory)
    found = [info.key for info in await store.list("v1/") if part in info.key]
    await store.close()
    return found


async def sound(directory: Path) -> None:
    """Check every byte of the store."""
    store = FileStore(directory)
    survey = await read_survey(Source(store))
    done = await verify(Source(store), survey)
    assert [*survey.problems, *done.problems] == []
    await store.close()


async def test_a_running_broker_looks_by_itself(tmp_path: Path) -> None:
    """A broker finds a request without being asked, removes it, and every byte of the store is sound."""
    await made(tmp_path, "S")
    async with Broker(tmp_path, settings=SOON) as broker:
        await asked(tmp_path, "S", "1")
        await until(broker, "S", 500)
        await asked(tmp_path, "S", "2", block_messages=77)
        await until(broker, "S", 1000)
        assert await held(broker, "S") == [payload for _, payload in ROWS] * 2
        await gone(tmp_path, "/inbox/")
    await sound(tmp_path)


async def test_the_next_owner_does_it(tmp_path: Path) -> None:
    """Requests that were put while no broker ran are carried out once each, in the order of their ids."""
    await made(tmp_path, "S")
    for n in range(5):
        await asked(tmp_path, "S", str(n))
    async with Broker(tmp_path, settings=SOON) as broker:
        await until(broker, "S", 2500)
    async with Broker(tmp_path, settings=SOON) as broker:
        assert len(await held(broker, "S")) == 2500


def test_the_command_does_it_where_no_broker_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command reports granted and refused requests, or nothing to do, as text and JSON, with its exit status.

    The answers are in the store, and a broker and Spark's plan find the messages afterwards.
    """
    asyncio.run(made(tmp_path, "S", "T"))
    url = f"file://{tmp_path}"
    asyncio.run(asked(tmp_path, "S", "granted"))
    assert adopt([url]) == 0
    assert "500 messages joined as 1 to 500" in capsys.readouterr().out
    asyncio.run(asked(tmp_path, "S", "granted"))
    asyncio.run(asked(tmp_path, "T", "refused"))
    assert adopt([url, "--json"]) == 1
    said = {one["stream"]: one for one in json.loads(capsys.readouterr().out)["requests"]}
    assert (said["S"]["first_seq"], said["S"]["last_seq"]) == (1, 500)
    assert "not one of the stream's" in said["T"]["refused"]
    assert adopt([url]) == 0
    assert capsys.readouterr().out == "the inbox is empty\n"

    async def found() -> None:
        snapshot = await read_snapshot(FileStore(tmp_path), 0)
        stream = snapshot.state.stream("$G", "S")
        assert stream is not None
        answer = answer_in(stream.extra, request_id_of("granted"))
        assert answer is not None
        assert (answer.state, answer.messages) == (GRANTED, 500)
        async with Broker(tmp_path, settings=QUIET) as broker:
            assert await held(broker, "S") == [payload for _, payload in ROWS]
        await sound(tmp_path)

    asyncio.run(found())


def test_the_command_makes_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped path or prefix is an error, and nothing is created there."""
    assert adopt([f"file://{tmp_path}"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "there is no jetblock store: check the path or prefix" in said.err
    assert not list(tmp_path.iterdir())


async def test_the_command_leaves_a_store_with_a_broker_alone(tmp_path: Path,
                                                              capsys: pytest.CaptureFixture[str]) -> None:
    """The command ends with reason, remedy and status 2, without harm to the broker; so it does without a store."""
    async with Broker(tmp_path, settings=QUIET) as broker:
        assert await asyncio.to_thread(adopt, [f"file://{tmp_path}"]) == 2
        assert "a broker owns the store" in capsys.readouterr().err
        client = await nats.connect(broker.url)
        await client.jetstream().add_stream(name="S")
        await client.close()
    for url, why in ((f"file://{tmp_path}/nowhere", "no such directory"), ("memory://", "only inside its broker"),
                     (str(tmp_path), "file://DIR")):
        assert await asyncio.to_thread(adopt, [url]) == 2
        assert why in capsys.readouterr().err


async def test_abandoned_runs_are_swept_and_pending_ones_are_not(tmp_path: Path) -> None:
    """Shows runs without a request deleted after the grace, younger ones kept, old ones kept that a request names which
    cannot be carried out here, and adopted ones kept for good; and that a request that comes too late is refused by
    name."""
    await made(tmp_path, "S")
    settings = {**SOON, "storage.reader_grace_ns": 0}
    store = FileStore(tmp_path)
    state = (await read_snapshot(store, 0)).state
    old = await stage(store, state, "S", ROWS, now_ns=time.time_ns() - 2 * DAY)
    young = await stage(store, state, "S", ROWS)
    adopted = await asked(tmp_path, "S", "old but asked for", now_ns=time.time_ns() - 2 * DAY)
    async with Broker(tmp_path, settings=settings) as broker:
        await until(broker, "S", 500)
        await gone(tmp_path, f"{old.entries[0].run_id:016x}")
        assert await keys(tmp_path, f"{young.entries[0].run_id:016x}")
        assert await keys(tmp_path, f"{adopted.entries[0].run_id:016x}")
        late = await request(store, old, "too late")
        client = await nats.connect(broker.url)
        answer = json.loads((await client.request("$JS.API.JETBLOCK.ADOPT.S",
                                                  json.dumps({"request": late}).encode())).data)
        assert "is not there" in answer["error"]["description"] or "was deleted" in answer["error"]["description"]
        await client.close()
        assert len(await held(broker, "S")) == 500
    await store.close()


async def test_abandoned_runs_are_swept_where_nobody_looks_for_requests(tmp_path: Path) -> None:
    """Abandoned runs are deleted soon after the start of a broker with ``inbox_interval: 0``, and by ``jetblock
    adopt``.

    Such a broker carries out no request, and keeps the old runs that a request names.
    """
    await made(tmp_path, "S")
    store = FileStore(tmp_path)
    state = (await read_snapshot(store, 0)).state
    old = time.time_ns() - 2 * DAY
    abandoned = await stage(store, state, "S", ROWS, now_ns=old)
    pending = await asked(tmp_path, "S", "old but asked for", now_ns=old)
    async with Broker(tmp_path, settings={**QUIET, "storage.reader_grace_ns": 0}) as broker:
        await gone(tmp_path, f"{abandoned.entries[0].run_id:016x}")
        assert await held(broker, "S") == []
        assert await keys(tmp_path, f"{pending.entries[0].run_id:016x}")
        assert await keys(tmp_path, "/inbox/")
    abandoned = await stage(store, state, "S", ROWS, now_ns=old)
    assert await asyncio.to_thread(adopt, [f"file://{tmp_path}"]) == 0
    state = (await read_snapshot(store, 0)).state
    released = [key for one in state.released.values() for key in one.runs]
    assert [key for key in released if key.endswith(f"{abandoned.entries[0].run_id:016x}")]
    async with Broker(tmp_path, settings=QUIET) as broker:
        assert await held(broker, "S") == [payload for _, payload in ROWS]
    await store.close()


async def test_no_message_is_larger_than_max_payload(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A broker and the command refuse a request with too large a message, each with its limit and the remedy. The
    command grants it with a configuration that allows the size."""
    await made(tmp_path, "S")
    large = [(b"s.1", b"small"), (b"s.2", b"x" * 2_000_000)]
    await asked(tmp_path, "S", "large", rows=large)
    async with Broker(tmp_path, settings={**QUIET, "clients.max_payload": 1_999_999}) as broker:
        client = await nats.connect(broker.url)
        body = json.dumps({"request": f"{request_id_of('large'):016x}"}).encode()
        error = json.loads((await client.request("$JS.API.JETBLOCK.ADOPT.S", body, timeout=30)).data)["error"]
        assert error["description"] == ("it has a message of 2000000 bytes, and max_payload is 1999999: raise that, or "
                                        "stage smaller messages")
        await client.close()
        assert await held(broker, "S") == []
    await asked(tmp_path, "S", "large", rows=large)
    assert await asyncio.to_thread(adopt, [f"file://{tmp_path}"]) == 1
    assert "max_payload is 1048576" in capsys.readouterr().out
    config = tmp_path / "jetblock.conf"
    config.write_text("max_payload: 2MB\n")
    await asked(tmp_path, "S", "large", rows=large)
    assert await asyncio.to_thread(adopt, [f"file://{tmp_path}", "-c", str(config)]) == 0
    async with Broker(tmp_path, settings=QUIET) as broker:
        assert await held(broker, "S") == [payload for _, payload in large]


@pytest.mark.usefixtures("merges_on_request")
async def test_compaction_rewrites_them_and_copies_have_them(tmp_path: Path) -> None:
    """Small staged blocks are merged with published ones, and the runs leave the store. Copies of the store from before
    and after are whole and serve the same messages."""
    source = tmp_path / "source"
    await made(source, "S")
    async with Broker(source, settings={**COMPACTING, **SOON}) as broker:
        client = await nats.connect(broker.url)
        js = client.jetstream()
        for n in range(30):
            await js.publish("s.p", b"p%d" % n)
        writers = []
        for n in range(10):  # objects are merged, and one more of many blocks is left alone
            writers.append(await asked(source, "S", str(n), rows=ROWS[n * 50:n * 50 + 50], block_messages=20))
            await until(broker, "S", 80 + 50 * n)
        await js.delete_msg("S", 77)
        for n in range(30):
            await js.publish("s.p", b"q%d" % n)
        expected = [b"p%d" % n for n in range(30)] + [payload for _, payload in ROWS] + [b"q%d" % n for n in range(30)]
        del expected[76]
        assert await held(broker, "S") == expected
        destination = Destination(FileStore(tmp_path / "before"))
        done = await Copier(Source(FileStore(source)), destination).run(verifying=True)
        await destination.close()
        assert (done.whole, done.problems) == (True, [])
        await compact(broker)
        await gone(source, *[f"{one.entries[0].run_id:016x}" for one in writers])
        assert await held(broker, "S") == expected
        assert (await js.publish("s.p", b"x", headers={"Nats-Msg-Id": "new"})).seq == 561
        await client.close()
    expected.append(b"x")
    await sound(source)
    for directory, there in ((tmp_path / "before", expected[:-1]), (source, expected)):
        async with Broker(directory, settings=QUIET) as broker:
            assert await held(broker, "S") == there
