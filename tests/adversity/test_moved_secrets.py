"""Erased messages of streams that move between the shards of brokers: their bytes leave the objects of every shard in
which the streams were, whoever owns it."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from broker.erasure.cli import main as erase
from broker.inspect.source import Source
from broker.inspect.survey import read_survey
from broker.maintenance.fsck_cli import main as fsck
from broker.storage.format.keyring import KEY_VARIABLE
from broker.storage.format.wrapped_keys import WrappedKeys
from broker.storage.keys.opening import decode_all
from broker.storage.keys.reading import use_keys_of_url
from broker.storage.objectstore import open_store
from broker.storage.paths import KEYS as PREFIX
from tests.adversity import owners
from tests.adversity.clients import until
from tests.adversity.lives import again
from tests.adversity.owners import Cluster, add_all, cluster
from tests.adversity.test_damaged_store import change, flip, segments_of
from tests.adversity.test_moves import check_logs, is_sound, until_moved
from tests.key_ring import forget_keys
from tests.runtime.test_erasure import files_with
from tests.stores import make_store

pytestmark = [pytest.mark.shows("cluster.moves"), pytest.mark.shows("auth.erasure")]

SOON = "put_timeout: 1s, reader_grace: 0s, erase_delay: 10ms"


KEY = "the master key of these tests"


@asynccontextmanager
async def erasing(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, *, more: str = SOON,
                  key: str = "", **owns: str) -> AsyncIterator[tuple[Cluster, str, Path]]:
    """Start brokers that erase at once, perhaps with a master key; yield them, the store's URL, and its directory."""
    plain = owners.broker_config
    monkeypatch.setattr(owners, "broker_config", lambda *args: plain(*args).replace("put_timeout: 1s", more).replace(
        "domain: jb", f'domain: jb, key: "{key}"' if key else "domain: jb"))
    if key:
        forget_keys(monkeypatch)
        monkeypatch.setenv(KEY_VARIABLE, key)  # for readers without a broker
    store = make_store("directory", tmp_path, request)
    async with cluster(tmp_path, store, shards=len(owns), **owns) as one:
        yield one, store.url, Path(store.url.removeprefix("file://"))


async def publish(one: Cluster, marks: list[str], streams: tuple[str, ...] = ("S0", "S1")) -> dict[str, list[int]]:
    """Publish messages with each of these texts to all streams, in turns, so that the streams share objects."""
    seqs: dict[str, list[int]] = {}
    for number in range(6):
        for mark in marks:
            for name in streams:
                ack = await again(lambda name=name, mark=mark, number=number: one.js.publish(
                    f"{name.lower()}", b"%s-payload" % mark.encode(), stream=name,
                    headers={"H": f"{mark}-header", "Nats-Msg-Id": f"{mark}-{name}-{number}"}))
                seqs.setdefault(f"{name} {mark}", []).append(ack.seq)  # type: ignore[union-attr]
    return seqs


async def api(one: Cluster, subject: str, body: Any) -> dict[str, Any]:
    async def ask() -> dict[str, Any]:
        answer: dict[str, Any] = json.loads((await one.client.request(
            f"$JS.jb.API.{subject}", json.dumps(body).encode(), timeout=30)).data)
        if answer.get("error", {}).get("err_code") == 10008:
            raise TimeoutError
        return answer

    found = await again(ask)
    assert isinstance(found, dict)
    assert "error" not in found, found
    return found


async def until_clean(directory: Path, texts: list[bytes], seconds: float = 60.0) -> None:
    """Return once no file has one of these texts."""
    async def is_clean() -> bool:
        with suppress(FileNotFoundError):  # an object was deleted meanwhile
            return not await asyncio.to_thread(files_with, directory, texts)
        return False

    try:
        await until(is_clean, seconds)
    except TimeoutError:
        raise AssertionError(files_with(directory, texts)) from None


@pytest.mark.timeout(240)
async def test_erased_messages_leave_all_shards(
        tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages from before several moves are erased by a secure delete and by the command, whose report lists objects
    of the shards that the stream has left; everything else of the streams stays."""
    async with erasing(tmp_path, request, monkeypatch, a="0", b="1", c="2") as (one, url, directory):
        await add_all(one)
        seqs = await publish(one, ["alice", "bob", "carol"])
        await until_moved(one, "S1", 0)
        await publish(one, ["dave"])
        await until_moved(one, "S1", 2)
        for seq in seqs["S1 alice"]:
            await api(one, "STREAM.MSG.DELETE.S1", {"seq": seq})
        await until_moved(one, "S1", 1)  # although messages of it are being erased
        for seq in seqs["S0 alice"]:
            await api(one, "STREAM.MSG.DELETE.S0", {"seq": seq})
        await until_clean(directory, [b"alice"])
        await until_moved(one, "S1", 2)
        report = tmp_path / "erased.json"
        login = ("--server", one.hub.url.replace("nats://", "nats://app:a@"), "--domain", "jb")
        chosen = ",".join(map(str, seqs["S1 bob"]))
        assert await asyncio.to_thread(erase, [*login, "S1", "--seq", chosen, "--report", str(report)]) == 0
        found = await asyncio.to_thread(files_with, directory, [b"bob-S1"])
        assert not found
        info = await one.js.stream_info("S1")
        assert info.state.messages == 1 + 6 + 6
        check_logs(one)
    await is_sound(url, "S1", 2, 13)
    assert await asyncio.to_thread(erase, [url, "--verify", str(report)]) == 0


@pytest.mark.timeout(240)
async def test_an_earlier_shard_loses_its_owner(
        tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker of the earlier shard is killed before it has removed the bytes: the erasure waits for the broker that
    takes the shard, and lists the objects that this one deletes."""
    more = SOON.replace("reader_grace: 0s", "reader_grace: 2s")
    async with erasing(tmp_path, request, monkeypatch, more=more, a="0", b="1") as (one, url, directory):
        await add_all(one, 2)
        seqs = await publish(one, ["alice", "bob"])
        await until_moved(one, "S1", 0)
        await one.brokers["b"].kill()
        report = tmp_path / "erased.json"
        login = ("--server", one.hub.url.replace("nats://", "nats://app:a@"), "--domain", "jb")
        chosen = ",".join(map(str, seqs["S1 alice"]))
        assert await asyncio.to_thread(erase, [*login, "S1", "--seq", chosen, "--report", str(report)]) == 0
        deleted = json.loads(report.read_text())["deleted"]
        assert [one["key"] for one in deleted if one.get("note", "").startswith("of shard 1")]
        assert not files_with(directory, [b"alice-S1"])
        assert await asyncio.to_thread(erase, [url, "--verify", str(report)]) == 0
        check_logs(one)


@pytest.mark.soak
@pytest.mark.timeout(240)
async def test_an_object_of_an_earlier_shard_is_damaged(
        tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """An erasure waits for an object in which the messages of another stream are damaged: the answer, the command and
    the logs of both brokers name it. After a repair the erasure is done."""
    more = SOON.replace("reader_grace: 0s", "reader_grace: 2s")
    async with erasing(tmp_path, request, monkeypatch, more=more, a="0", b="1") as (one, url, directory):
        await add_all(one, 2)
        await again(lambda: one.js.add_stream(name="BESIDE", subjects=["beside"], metadata={"jetblock.shard": "1"}))
        seqs = []
        for number in range(40):
            acks = await asyncio.gather(one.js.publish("s1", b"alice %d" % number), one.js.publish("beside", b"beside"))
            seqs.append(acks[0].seq)
        await until_moved(one, "S1", 0)
        await one.brokers["b"].kill()
        survey = await read_survey(Source(open_store(url)))
        beside = next(stream.stream_id for _, stream in survey.streams if stream.name == "BESIDE")
        path, row = next((path, row) for path, head in segments_of(directory, 1) for row in head.rows
                         if row.messages and row.stream_id == beside and len(head.rows) > 1)
        change(path, flip(row.index_offset + 40))
        await one.brokers["b"].restart()
        report = tmp_path / "erased.json"
        login = ("--server", one.hub.url.replace("nats://", "nats://app:a@"), "--domain", "jb")
        key = str(path.relative_to(directory))
        command = [*login, "S1", "--seq", ",".join(map(str, seqs)), "--report", str(report)]
        assert await asyncio.to_thread(erase, command) == 1
        [line] = json.loads(report.read_text())["not_erased"]
        assert line.startswith(f"{key}: it may have the messages, and is damaged: ")
        for name in ("a", "b"):
            assert [line for line in one.brokers[name].stderr if key in line and "erasure" in line]
            await one.brokers[name].stop()
        assert await asyncio.to_thread(fsck, [url, "--repair"]) == 0
        for name in ("a", "b"):
            await one.brokers[name].restart()
        await one.until_published("S1")
        assert await asyncio.to_thread(erase, command) == 0
        shutil.rmtree(directory / "quarantine")
        assert not files_with(directory, [b"alice"])
        assert await asyncio.to_thread(erase, [url, "--verify", str(report)]) == 0


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_brokers_are_killed_while_an_earlier_shard_is_emptied(
        tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both brokers are killed again and again while a stream moves and messages of it are erased."""
    async with erasing(tmp_path, request, monkeypatch, a="0", b="1") as (one, url, directory):
        await add_all(one, 2)
        left = 1 + 1
        for turn, to in enumerate((0, 1, 0, 1, 0, 1)):
            seqs = await publish(one, [f"alice{turn}", f"bob{turn}"])
            left += 6
            await until_moved(one, "S1", to)
            for name in ("S0", "S1"):
                for seq in seqs[f"{name} alice{turn}"]:
                    await api(one, f"STREAM.MSG.DELETE.{name}", {"seq": seq})
            for number in range(3):
                await asyncio.sleep(0.1 + 0.2 * (turn + number) % 0.9)
                broker = one.brokers["ba"[number % 2]]
                await broker.kill()
                await broker.restart()
            await until_clean(directory, [b"alice"], 180)
        info = await again(lambda: one.js.stream_info("S1"))
        assert info.state.messages == left - 1  # type: ignore[union-attr]
        check_logs(one)
    await is_sound(url, "S1", 1, left - 1)


@pytest.mark.timeout(300)
async def test_streams_of_an_encrypted_store_move(
        tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file has a user's text, before and after moves; messages from before are read, erased, and shredded with the
    stream's key, which no shard has then. A stream keeps its key, and the shards that it has left drop it."""
    async with erasing(tmp_path, request, monkeypatch, key=KEY, a="0", b="1") as (one, url, directory):
        await add_all(one, 2)
        seqs = await publish(one, ["alice", "bob"])
        before = keys_of(directory)
        for to in (0, 1, 0):
            await until_moved(one, "S1", to)
            ack = await again(lambda: one.js.publish("s1", b"alice-more", stream="S1"))
        for seq in (1, *seqs["S1 bob"], ack.seq):  # type: ignore[union-attr]
            assert (await again(lambda seq=seq: one.js.get_msg("S1", seq))).seq == seq  # type: ignore[union-attr]
        assert not files_with(directory, [b"alice", b"bob", b"payload"])
        stream_id, ids = next((owner, ids) for owner, ids in keys_of(directory).items() if owner in before and len(
            shards_with(directory, owner)) > 1)
        assert ids == before[stream_id]
        login = ("--server", one.hub.url.replace("nats://", "nats://app:a@"), "--domain", "jb")
        report = tmp_path / "erased.json"
        chosen = ",".join(map(str, seqs["S1 bob"]))
        assert await asyncio.to_thread(erase, [*login, "S1", "--seq", chosen, "--report", str(report)]) == 0
        assert await asyncio.to_thread(erase, [url, "--verify", str(report)]) == 0
        for name in ("a", "b"):
            await one.brokers[name].kill()
            await one.brokers[name].restart()
        info = await again(lambda: one.js.stream_info("S1"))
        assert info.state.messages == 1 + 6 + 3  # type: ignore[union-attr]
        use_keys_of_url(url)
        await is_sound(url, "S1", 0, 10)
        assert await asyncio.to_thread(erase, [*login, "S1", "--shred", "--report", str(report)]) == 0
        assert json.loads(report.read_text())["key"] in {key.hex() for key in ids}
        assert not shards_with(directory, stream_id)
        assert not files_with(directory, [b"alice", b"bob", b"payload"])
        check_logs(one)


@pytest.mark.soak
@pytest.mark.timeout(240)
@pytest.mark.parametrize("moves", [(0, 1), (0,)], ids=["comes back", "stays"])
@pytest.mark.parametrize("more", [SOON, SOON + ", journal: true"], ids=["segments", "journal"])
async def test_a_stream_that_has_moved_is_encrypted_afterwards(
        tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, more: str,
        moves: tuple[int, ...]) -> None:
    """A stream moves, and perhaps comes back, in a plain store that then gets a master key: all of its messages are
    read, it moves again, and no file has a user's text in the end. The first shard has had more owners, so blocks of
    later epochs than those of the second shard are plain; and the last messages may be in a journal."""
    async with erasing(tmp_path, request, monkeypatch, more=more, a="0", b="1") as (one, _, directory):
        await add_all(one, 2)
        for _ in range(3):
            await one.brokers["b"].kill()
            await one.brokers["b"].restart()
        seqs = await publish(one, ["alice"])
        for to in moves:
            await until_moved(one, "S1", to)
            ack = await again(lambda: one.js.publish("s1", b"alice-more"))
            seqs["S1 alice"].append(ack.seq)  # type: ignore[union-attr]
        for name, broker in one.brokers.items():
            await broker.kill()
            path = tmp_path / f"{name}.conf"
            path.write_text(path.read_text().replace("domain: jb", f'domain: jb, key: "{KEY}"', 1))
        for broker in one.brokers.values():
            await broker.restart()
        for to in (1 - moves[-1], moves[-1]):
            for seq in seqs["S1 alice"]:
                found = await again(lambda seq=seq: one.js.get_msg("S1", seq))
                assert b"alice" in found.data  # type: ignore[union-attr]
            await until_moved(one, "S1", to)

        async def is_clean() -> bool:
            await again(lambda: one.js.publish("s0", b"more"))
            await again(lambda: one.js.publish("s1", b"more"))
            with suppress(FileNotFoundError):  # an object was deleted meanwhile
                return not files_with(directory, [b"alice"])
            return False

        await until(is_clean, 120)
        check_logs(one)


def keys_of(directory: Path) -> dict[int, set[bytes]]:
    """Return the ids of the data keys in the store, by stream."""
    found: dict[int, set[bytes]] = {}
    for one in _wrapped(directory):
        for key in one.keys:
            if key.owner:
                found.setdefault(key.owner, set()).add(key.key_id)
    return found


def shards_with(directory: Path, stream_id: int) -> set[int]:
    """Return the shards that have a key of a stream."""
    return {one.shard for one in _wrapped(directory) for key in one.keys if key.owner == stream_id}


def _wrapped(directory: Path) -> list[WrappedKeys]:
    paths = [path for path in (directory / PREFIX).iterdir() if path.is_file()]
    return decode_all([(f"{PREFIX}{path.name}", path.read_bytes()) for path in paths])
