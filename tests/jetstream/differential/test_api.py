"""Requests to the real nats-server and to the broker: every answer must be the same, field by field.

Times, ids and machine-dependent values are normalized first (``normal``); everything else is compared, above all which
fields are present and the texts of errors.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import nats
import pytest
import pytest_asyncio
from nats.aio.client import Client
from nats.errors import NoRespondersError

from tests.harness import BrokerProcess, NatsServerProcess
from tests.jetstream.differential import coverage
from tests.jetstream.differential.api import SCENARIOS
from tests.jetstream.differential.player import steps_of
from tests.jetstream.in_process import Inside
from tests.jetstream.schemas import broken

pytestmark = pytest.mark.asyncio(loop_scope="module")

SILENCE_SECONDS = (0.4, 1.0, 2.0, 2.0)
"""The times after which a request gets no answer any more; a try after a difference waits longer, for busy machines.

It is far below the five seconds after which an unused consumer is deleted.
"""
NOT_GONE_YET = 10049
"""The code of nats-server's "error creating store": it removes the directory of a deleted stream after answering."""

_STEP = re.compile(r"(\w+)(?:\[([^:]+): ([^\]]*)\])? (\S+) ?(.*)")
_TIME = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_AUTO_NAME = re.compile(r"[0-9A-Za-z]{8}")


class Server:
    """A server, as a client sees it. Answers are plain values."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.silence_seconds = SILENCE_SECONDS[0]
        self.broken: set[str] = set()
        """The rules of schemas that messages of the scenario broke."""

    async def play(self, scenario: str) -> list[tuple[str, Any]]:
        """Play the steps; return each with its answer."""
        self.broken.clear()
        played = []
        for line in scenario.strip().splitlines():
            step = _STEP.fullmatch(line.strip())
            assert step is not None, f"no step: {line}"
            verb, name, value, subject, body = step.groups()
            headers = {name: value} if name else None
            if verb == "many":
                answer = await self._many("$JS.API." + subject, body.encode(), headers)
            else:
                prefix = "" if verb == "pub" else "$JS.API."
                answer = await self._request(prefix + subject, body.encode(), headers)
                while isinstance(answer, dict) and answer.get("error", {}).get("err_code") == NOT_GONE_YET:
                    await asyncio.sleep(0.05)
                    answer = await self._request(prefix + subject, body.encode(), headers)
            played.append((line.strip(), normal(answer)))
        return played

    async def clear(self) -> None:
        """Remove all streams."""
        names = json.loads((await self.client.request("$JS.API.STREAM.NAMES")).data)["streams"]
        for name in names or ():
            await self.client.request(f"$JS.API.STREAM.DELETE.{name}")

    async def _request(self, subject: str, body: bytes, headers: dict[str, str] | None) -> Any:
        try:
            msg = await self.client.request(subject, body, timeout=self.silence_seconds, headers=headers)
        except NoRespondersError:
            return "no responders"
        except TimeoutError:
            return "silence"
        self.broken |= broken(msg.data)
        return shown(msg)

    async def _many(self, subject: str, body: bytes, headers: dict[str, str] | None) -> list[Any]:
        inbox = self.client.new_inbox()
        answers = []
        subscription = await self.client.subscribe(inbox)
        await self.client.publish(subject, body, reply=inbox, headers=headers)
        try:
            while True:
                msg = await subscription.next_msg(timeout=self.silence_seconds)
                answers.append(shown(msg))
                if msg.headers and "Status" in msg.headers:
                    break
        except TimeoutError:
            pass
        await subscription.unsubscribe()
        return answers


def shown(msg: Any) -> Any:
    """Return a message as a value: JSON decoded, headers beside it if there are any;
    a pull delivery's ack subject, too."""
    text = msg.data.decode()
    value = json.loads(text) if text[:1] == "{" else text
    reply = [re.sub(r"\d{19}", "TIME", msg.reply)] if msg.reply else []
    return [dict(msg.headers or {}), value, *reply] if msg.headers or reply else value


def normal(value: Any, key: str = "") -> Any:
    """Return ``value`` with everything normalized in which two servers must differ."""
    if isinstance(value, dict):
        value = {name: normal(inner, name) for name, inner in value.items()}
        if key == "api":
            # It does not count every error that it answers; and see NOT_GONE_YET.
            return value | {"total": "total", "errors": "errors"}
        if value.get("type", "").endswith("consumer_create_response") and _AUTO_NAME.fullmatch(value.get("name", "")):
            value["name"] = "AUTO"
        config, state = value.get("config"), value.get("state")
        if isinstance(state, dict) and isinstance(config, dict) and config.get("storage") == "memory":
            # nats-server counts differently in memory; here both stores count as its file store does.
            state["bytes"] = "BYTES"
        return value
    if isinstance(value, list):
        names = ["AUTO" if isinstance(v, str) and _AUTO_NAME.fullmatch(v) else v for v in value]
        return [normal(inner) for inner in (sorted(names) if key == "consumers" and all_text(names) else value)]
    if isinstance(value, str):
        if key in ("leader", "_nats.ver"):
            return key
        return _TIME.sub("TIME", value)
    if key in ("pause_remaining", "memory"):
        return key
    return value


def all_text(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Server, ...]]:
    """Yield nats-server, the broker, and the broker with a cache that holds almost nothing, each with one client.

    With JETBLOCK_TEST_INSIDE set, the broker runs in this process, for debugging.
    """
    base: Path = tmp_path_factory.mktemp("differential")
    async with AsyncExitStack() as stack:
        real = await stack.enter_async_context(NatsServerProcess("-js", "-sd", str(base / "real")))
        if os.environ.get("JETBLOCK_TEST_INSIDE"):
            clients = [(await stack.enter_async_context(Inside())).client]
        else:
            clients = []
            for name, environ in (("ours", {}), ("tiny", {"JETBLOCK_CACHE_BYTES": "4KiB"})):
                process = BrokerProcess("-js", "-sd", str(base / name), environ=environ)
                clients.append(await nats.connect((await stack.enter_async_context(process)).url))
                stack.push_async_callback(clients[-1].close)
        theirs = await nats.connect(real.url)
        stack.push_async_callback(theirs.close)
        yield Server(theirs), *map(Server, clients)


@pytest.mark.parametrize("name", SCENARIOS)
async def test_answers_are_those_of_nats_server(servers: tuple[Server, ...], name: str) -> None:
    for seconds in SILENCE_SECONDS:
        for server in servers:
            server.silence_seconds = seconds
        await asyncio.gather(*(server.clear() for server in servers))
        expected, *got = await asyncio.gather(*(server.play(steps_of(SCENARIOS[name])) for server in servers))
        if all(one == expected for one in got):
            break
    for one in got:
        for (step, theirs), (_, ours) in zip(expected, one, strict=True):
            assert ours == theirs, step
    real, *others = servers
    for server in others:
        assert server.broken <= real.broken, "answers that are not as their schemas say"
    assert not coverage.unkept(name, expected), "coverage.py says that nats-server sends this"
