"""A stream that has moved into a shard is served there, even if that fails at first."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from broker.jetstream.account.account import Account
from broker.jetstream.account.consumers import Consumers
from broker.jetstream.account.subscriptions import Subscriptions
from broker.jetstream.config.consumer import ConsumerConfig
from broker.storage.objectstore.base import Transient
from tests.runtime.brokers import TrustedClock, in_virtual_time
from tests.runtime.shared_brokers import SharedBroker, two_brokers


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 (no event says so)
            await asyncio.sleep(0.1)


def serves(one: SharedBroker, name: str) -> bool:
    return name in one.js.accounts["A"].streams


@pytest.mark.parametrize(("of", "method"), [
    (Account, "restore"), (Consumers, "attach"), (Subscriptions, "subscribe")])
def test_a_failure_after_the_arrival(of: type, method: str, monkeypatch: pytest.MonkeyPatch,
                                     caplog: pytest.LogCaptureFixture) -> None:
    """The arrival of a stream is stored, and the first attempt to serve it fails. It is tried again, and the log says
    so. Another stream comes into the shard meanwhile. In the end each consumer and subject has one subscription.
    """
    caplog.set_level(logging.INFO)

    async def main(clock: TrustedClock) -> None:
        app, a, b = await two_brokers(clock, "S", "OTHER", "T")
        account = a.js.accounts["A"]
        for name in ("one", "two"):
            await account.consumers.create(account.streams["S"], ConsumerConfig.from_json({"durable_name": name}))
        before = app.subscription_count
        real, failures = getattr(of, method), [0]

        def failing(self: Any, *args: Any, **named: Any) -> Any:
            if asyncio.current_task().get_name() == "receive a stream" and not failures[0] and (  # type: ignore[union-attr]
                    method != "attach" or self.count == 1):
                failures[0] += 1
                raise Transient("the store does not answer")
            return real(self, *args, **named)

        monkeypatch.setattr(of, method, failing)
        await a.js.shared._moves.ask("A", "S", 1)  # type: ignore[union-attr]
        await until(lambda: failures[0] == 1)
        await a.js.shared._moves.ask("A", "T", 1)  # type: ignore[union-attr]
        await until(lambda: serves(b, "S"))
        await until(lambda: serves(b, "T"))
        assert "S cannot be served yet" in caplog.text
        await asyncio.sleep(10)
        stream = b.js.accounts["A"].streams["S"]
        assert set(b.js.accounts["A"].consumers.of(stream)) == {"one", "two"}
        assert app.subscription_count == before

    in_virtual_time(main)
