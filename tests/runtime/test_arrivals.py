"""A stream that was stopped for a move is served again, even if that fails at first."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Any

import pytest

from broker.jetstream.account.account import Account
from broker.jetstream.account.consumers import Consumers
from broker.jetstream.account.held import HeldMessages
from broker.jetstream.account.subscriptions import Subscriptions
from broker.jetstream.config.consumer import ConsumerConfig
from broker.jetstream.owners.departures import HOLD_SECONDS, Departures
from broker.jetstream.stream.stream import Stream
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
        assert "A > S, which was stopped for a move, cannot be served again yet" in caplog.text
        await asyncio.sleep(10)
        stream = b.js.accounts["A"].streams["S"]
        assert set(b.js.accounts["A"].consumers.of(stream)) == {"one", "two"}
        assert app.subscription_count == before

    in_virtual_time(main)


def test_a_failure_after_a_departure_that_took_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream cannot leave its shard in time, and the first attempt to serve it there again fails. It is tried again,
    what was published meanwhile is stored, and later the stream leaves.
    """
    async def main(clock: TrustedClock) -> None:
        app, a, b = await two_brokers(clock, "S", "OTHER")
        hold, may_depart, restore = Account.hold, Departures._may_depart, Account.restore
        failures = [0]

        async def holding(self: Account, stream: Stream) -> HeldMessages:
            held = await hold(self, stream)
            app.publish(b"s", b"", 0, b"held")
            await asyncio.sleep(0)
            return held

        def too_late(self: Departures, *args: Any) -> bool:
            return failures[0] > 0 and may_depart(self, *args)

        def failing(self: Any, *args: Any) -> Any:
            if failures[0]:
                return restore(self, *args)
            failures[0] += 1
            raise Transient("the store does not answer")

        monkeypatch.setattr(Account, "hold", holding)
        monkeypatch.setattr(Departures, "_may_depart", too_late)
        monkeypatch.setattr(Account, "restore", failing)
        await a.js.shared._moves.ask("A", "S", 1)  # type: ignore[union-attr]
        await until(lambda: failures[0] == 1)
        assert not serves(a, "S")
        await until(lambda: serves(a, "S"))
        assert a.js.accounts["A"].streams["S"].live.last_seq == 1
        await until(lambda: serves(b, "S"))
        await until(lambda: b.js.accounts["A"].streams["S"].live.last_seq == 2)

    in_virtual_time(main)


def test_a_message_whose_segment_is_stored_too_late() -> None:
    """A message is on its way to the store when its stream is stopped, and not there when the time for that is over.
    The stream stays then: otherwise it would leave without the message, which is acknowledged later.
    """
    async def main(clock: TrustedClock) -> None:
        app, a, b = await two_brokers(clock, "S", "OTHER")
        hold, stop_and_leave = Account.hold, Departures._stop_and_leave
        publishes, acks = [1], list[Any]()
        app.subscribe(b"acks", lambda ops, start, end, *_: acks.extend(ops[start:end]))

        async def holding(self: Account, stream: Stream) -> HeldMessages:
            if publishes:
                publishes.pop()
                app.publish(b"s", b"acks", 0, b"late")
                while not stream.live.last_seq:  # noqa: ASYNC110 (no event says so)
                    await asyncio.sleep(0)
                a.store.before = late
            return await hold(self, stream)

        async def leaving(self: Departures, *args: Any) -> bool:
            # The hold begins at a whole second, so that its end, half a second later, is an exact number.
            time = asyncio.get_running_loop().time()
            await asyncio.sleep(math.ceil(time) - time)
            return await stop_and_leave(self, *args)

        async def late(operation: str, key: str) -> None:
            if operation == "put" and "/log/" in key:
                a.store.before = None
                await asyncio.sleep(2 * HOLD_SECONDS)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Account, "hold", holding)
            patch.setattr(Departures, "_stop_and_leave", leaving)
            await a.js.shared._moves.ask("A", "S", 1)  # type: ignore[union-attr]
            await until(lambda: serves(b, "S"))
        assert len(acks) == 1
        assert b.js.accounts["A"].streams["S"].live.last_seq == 1

    in_virtual_time(main)
