"""Dialogues with the real nats-server and with ours: both must answer with the same bytes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.harness import NatsServerProcess
from tests.server.dialogue import Step, Transcript, play
from tests.server.in_process import LOGIN_SECONDS, running
from tests.server.protocol_dialogues import ANY_ORDER, CONFIGURED, DIALOGUES, GUARDED
from tests.server.raw_client import Wire


async def play_ours(steps: list[Step], *, pings: bool = False, **fields: Any) -> Transcript:
    async with running(**fields) as server:
        return await play(server.port, steps, pings=pings)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real_port(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[int]:
    async with NatsServerProcess(monitor=False) as process:
        yield process.port


@pytest.mark.parametrize("name", DIALOGUES)
@pytest.mark.asyncio(loop_scope="module")
async def test_dialogue(name: str, real_port: int) -> None:
    """Both servers answer a dialogue with the same bytes."""
    ours, theirs = await play_ours(DIALOGUES[name]), await play(real_port, DIALOGUES[name])
    if name in ANY_ORDER:
        ours, theirs = ([(wire, b"\n".join(sorted(data.splitlines()))) for wire, data in one] for one in (ours, theirs))
    assert ours == theirs


@pytest.mark.parametrize("name", GUARDED)
async def test_guarded_dialogue(name: str, tmp_path: Path) -> None:
    """Both servers answer alike behind a password or a token."""
    flags, fields, steps = GUARDED[name]
    ours = await play_ours(steps, **fields)
    path = tmp_path / "nats.conf"
    path.write_text(f"authorization {{ timeout: {LOGIN_SECONDS} }}\n")
    async with NatsServerProcess(*flags, "-c", str(path), monitor=False) as process:
        assert ours == await play(process.port, steps)


@pytest.mark.parametrize("name", CONFIGURED)
async def test_configured_dialogue(name: str, tmp_path: Path) -> None:
    """Both servers answer alike with configured limits and time-outs."""
    config, fields, steps = CONFIGURED[name]
    pings = "ping_interval" in config
    ours = await play_ours(steps, pings=pings, **fields)
    path = tmp_path / "nats.conf"
    path.write_text(config + "\n")
    async with NatsServerProcess("-c", str(path), monitor=False) as process:
        assert ours == await play(process.port, steps, pings=pings)


@pytest.mark.shows("core.info")
async def test_info_fields(tmp_path: Path) -> None:
    """The first INFO has nats-server's fields and types; the fields on which clients rely have equal values."""
    async with (running() as server, NatsServerProcess(monitor=False) as process, Wire(process.port) as real,
                Wire(server.port) as ours):
        theirs = json.loads(real.info[5:])
        fields = json.loads(ours.info[5:])
    optional = {"git_commit", "xkey"}
    assert set(theirs) - optional == set(fields)
    assert {name: type(value) for name, value in theirs.items() if name not in optional} == {
        name: type(value) for name, value in fields.items()}
    for name in ("version", "proto", "host", "headers", "max_payload", "client_ip", "api_lvl"):
        assert fields[name] == theirs[name]
    assert len(fields["server_id"]) == 56
    assert fields["port"] == server.port
