"""Erased messages of streams that move between the shards of brokers: their bytes leave the objects of every shard in
which the streams were, whoever owns it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from broker.erasure.cli import main as erase
from tests.adversity import owners
from tests.adversity.clients import until
from tests.adversity.lives import again
from tests.adversity.owners import Cluster, add_all, cluster
from tests.adversity.test_moves import check_logs, is_sound, until_moved
from tests.runtime.test_erasure import files_with
from tests.stores import make_store

pytestmark = [pytest.mark.shows("cluster.moves"), pytest.mark.shows("auth.erasure")]

SOON = "put_timeout: 1s, reader_grace: 0s, erase_delay: 10ms"


@asynccontextmanager
async def erasing(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, *, more: str = SOON,
                  **owns: str) -> AsyncIterator[tuple[Cluster, str, Path]]:
    """Start brokers that erase at once; yield them, the store's URL, and its directory."""
    plain = owners.broker_config
    monkeypatch.setattr(owners, "broker_config", lambda *args: plain(*args).replace("put_timeout: 1s", more))
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
