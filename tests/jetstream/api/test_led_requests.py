"""Requests to a broker that has just taken shard 0."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from broker.config.settings import JetStreamSettings
from broker.jetstream.api.dispatcher import Api
from broker.jetstream.api.waiting import Waiting
from broker.protocol.run import Msg


class Catalogue:
    """A catalogue that knows the streams of the other brokers once ``known`` is set."""

    peers = SimpleNamespace(is_owned=lambda shard: True)

    def __init__(self) -> None:
        self.known = asyncio.Event()

    @property
    def leads(self) -> bool:
        return self.known.is_set()

    async def until_leads(self) -> None:
        await self.known.wait()


async def test_later_requests_do_not_overtake_those_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that arrives in the turn in which the broker begins to lead is served after the earlier ones."""
    served: list[bytes] = []
    monkeypatch.setattr(Api, "_admit", lambda api, rest, op, source: served.append(rest))
    account: Any = SimpleNamespace(bus=None, streams={}, elsewhere={})
    catalogue = Catalogue()
    api = Api(account, random.Random(1), Waiting(JetStreamSettings(), print), lambda request, source: None, catalogue)

    def ask(subject: bytes) -> None:
        requests: list[Msg] = [(b"$JS.API." + subject, b"_R", 0, b"")]
        api._on_led_requests(requests, 0, 1, None, 0)

    ask(b"STREAM.CREATE.S")
    await asyncio.sleep(0)
    catalogue.known.set()
    ask(b"STREAM.INFO.S")
    async with asyncio.timeout(10):
        while len(served) < 2:  # noqa: ASYNC110 (no event says so)
            await asyncio.sleep(0)
    assert served == [b"STREAM.CREATE.S", b"STREAM.INFO.S"]
    ask(b"STREAM.NAMES")
    assert served[2:] == [b"STREAM.NAMES"]
    await api.drop()
