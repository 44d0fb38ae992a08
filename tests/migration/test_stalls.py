"""A source or target that stops for longer than servers wait for each other, or that is gone."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import nats
import pytest

from tests.harness import BrokerProcess, NatsServerProcess
from tests.jetstream.archives import api
from tests.migration.test_migrate import Run

pytestmark = pytest.mark.soak

_MESSAGES = 60


@pytest.mark.parametrize("which", ["source", "target", "source is gone"])
async def test_one_side_stands_still(tmp_path: Path, which: str) -> None:
    """Both sides end a transfer after five seconds: the stream is moved again. If the source ends, nothing is left
    at the target."""
    async with (NatsServerProcess("-js", "-sd", str(tmp_path / "real")) as real,
                BrokerProcess("-js", "-sd", str(tmp_path / "ours")) as ours):
        here, there = await nats.connect(real.url), await nats.connect(ours.url)
        await api(here, "STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        for _ in range(_MESSAGES):
            await here.jetstream().publish("s", os.urandom(1 << 19))
        begun = await there.subscribe("$JS.EVENT.ADVISORY.STREAM.RESTORE_CREATE.S")
        await there.flush()
        run = await Run.begin(real.url, ours.url, "--json", "--verify")
        await begun.next_msg()
        if which == "source is gone":
            await real.kill()
            assert "the connection was lost" in json.loads(await run.end(2))["error"]
            async with asyncio.timeout(30):
                while (await api(there, "STREAM.NAMES"))["streams"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        else:
            pid = (real if which == "source" else ours).pid
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(9)
            os.kill(pid, signal.SIGCONT)
            [stream] = json.loads(await run.end())["streams"]
            assert (stream["status"], stream["verified"]) == ("moved", _MESSAGES)
            await here.close()
        await there.close()
