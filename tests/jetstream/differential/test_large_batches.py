"""Large atomic batches beside the real nats-server: the same answers and messages, in a fraction of the memory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import nats
import pytest

from tests.harness import BrokerProcess, NatsServerProcess

pytestmark = [pytest.mark.asyncio, pytest.mark.shows("publish.atomic", "publish.atomic_limits")]

COUNT, SIZE = 130, 1_000_000
BODY = os.urandom(SIZE + COUNT)
"""Bodies that do not compress; each begins one byte after the one before."""


async def outcome(url: str) -> tuple[list[Any], list[Any]]:
    """Return the answers to two batches, of which the second is refused at its last message,
    and the stream's content then."""
    client = await nats.connect(url)
    config = {"name": "S", "subjects": ["s.*"], "allow_atomic": True}
    created = await client.request("$JS.API.STREAM.CREATE.S", json.dumps(config).encode(), timeout=30)
    assert b"error" not in created.data
    answers = []
    for batch, expected in (("a", ""), ("b", str(COUNT + 1))):
        for place in range(1, COUNT):
            headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(place)}
            await client.publish(f"s.{place % 3}", BODY[place:place + SIZE], headers=headers)
            if place % 10 == 0:
                await client.flush(timeout=30)
        headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(COUNT), "Nats-Batch-Commit": "1"}
        if expected:
            headers["Nats-Expected-Last-Subject-Sequence"] = expected
        answers.append(json.loads((await client.request("s.9", BODY[COUNT:], headers=headers, timeout=30)).data))
    js = client.jetstream()
    state = (await js.stream_info("S")).state
    found = [state.messages, state.bytes, state.first_seq, state.last_seq]
    for seq in (1, COUNT // 2, COUNT):
        msg = await js.get_msg("S", seq)
        assert msg.data == BODY[seq:seq + SIZE]
        found.append((msg.subject, msg.headers))
    await client.close()
    return answers, found


async def test_a_large_batch(tmp_path: Path) -> None:
    """Shows it with 130 MB; the broker takes hardly more than the bytes on their way to the store."""
    async with NatsServerProcess("-js", "-sd", str(tmp_path / "real")) as real:
        expected = await outcome(real.url)
    async with BrokerProcess("-js", "-sd", str(tmp_path / "ours")) as ours:
        before = peak(ours.pid)
        assert await outcome(ours.url) == expected
        assert peak(ours.pid) - before < 160_000
    assert [("error" in answer) for answer in expected[0]] == [False, True]


def peak(pid: int) -> int:
    """Return the most memory that the process ever had, in KiB."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1])
