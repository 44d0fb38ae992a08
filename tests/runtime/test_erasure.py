"""Erasure: removed messages leave every object of the store, and what lived beside them stays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nats
from nats.js.api import StreamConfig

from broker.runtime.embedded import Broker

SOON = {"storage.reader_grace_ns": 0, "storage.erase_delay_ns": 10_000_000}
JOURNAL = ".journal"


def files_with(directory: Path, texts: Iterable[bytes]) -> dict[str, list[bytes]]:
    """Return the files below ``directory`` that contain any of ``texts``, with those texts."""
    found: dict[str, list[bytes]] = {}
    for path in directory.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            if inside := [text for text in texts if text in data]:
                found[str(path.relative_to(directory))] = inside
    return found


async def api(client: Any, subject: str, body: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((await client.request(f"$JS.API.{subject}", json.dumps(body).encode(),
                                                              timeout=60)).data)
    assert "error" not in answer, answer
    return answer


async def finished(client: Any, stream: str, erasure: str) -> dict[str, Any]:
    """Wait until an erasure is done, and return what the broker says about it."""
    while True:
        shown = await api(client, f"JETBLOCK.ERASURE.{stream}", {"erasure": erasure})
        if all(one["state"] == "done" for one in shown["streams"]):
            return shown
        await asyncio.sleep(0.05)


async def test_a_subject_leaves_every_object(tmp_path: Path) -> None:
    """Shows that payload, headers, subject and message id of erased messages are in no file, and the others stay."""
    secrets = [b"alice-payload", b"people.alice", b"Alice-Value", b"alice-id"]
    async with Broker(tmp_path, settings=SOON) as broker:
        client = await nats.connect(broker.url)
        js = client.jetstream()
        await js.add_stream(StreamConfig(name="S", subjects=["people.>"], max_msgs_per_subject=2))
        await js.add_stream(StreamConfig(name="T", subjects=["other.>"]))
        for i in range(6):
            for who in ("alice", "bob"):
                await js.publish(f"people.{who}", f"{who}-payload {i}".encode(),
                                 headers={"Who": f"{who.title()}-Value", "Nats-Msg-Id": f"{who}-id-{i}"})
            await js.publish("other.things", b"thing %d" % i)
        assert files_with(tmp_path, secrets)
        answer = await api(client, "JETBLOCK.ERASE.S", {"subjects": ["people.alice"]})
        assert answer["messages"] == 2
        assert answer["streams"] == [{"stream": "S", "sequences": 6, "messages": 2}]
        shown = await finished(client, "S", answer["erasure"])
        assert files_with(tmp_path, secrets) == {}
        assert shown["streams"][0]["held"]
        assert [(await js.get_msg("S", seq)).data for seq in (10, 12)] == [b"bob-payload 4", b"bob-payload 5"]
        assert [(await js.get_msg("T", seq)).data for seq in range(1, 7)] == [b"thing %d" % i for i in range(6)]
        assert (await js.stream_info("S")).state.messages == 2
        await client.close()
    assert files_with(tmp_path, secrets) == {}
