"""A broker of a shared store gives its shards away: on two requests at once, and while the store takes nothing."""

from __future__ import annotations

import asyncio

import pytest

from broker.storage.objectstore.base import StoreError, StoreRefused, Transient
from tests.runtime.brokers import TrustedClock, in_virtual_time
from tests.runtime.shared_brokers import two_brokers


@pytest.mark.parametrize("error", [StoreRefused, Transient])
def test_the_stop_ends(error: type[StoreError]) -> None:
    """Another broker is in reach, but no shard can be given to it: each needs a checkpoint, and a seal."""
    async def main(clock: TrustedClock) -> None:
        app, a, _ = await two_brokers(clock, "S0", "S1")
        for _ in range(20):
            app.publish(b"s0", b"", 0, b"x")
            await asyncio.sleep(0.1)

        async def refuse(operation: str, key: str) -> None:
            if operation == "put":
                raise error("507 Insufficient Storage")

        a.store.before = refuse
        app.publish(b"s0", b"", 0, b"x")
        async with asyncio.timeout(60):
            await a.shared.hand_over_all()
            await a.shared.shards.give_back()

    in_virtual_time(main)


def test_two_hand_overs_of_one_shard() -> None:
    """Two requests at the same time: the second one finds that the shard is not here any more."""
    async def main(clock: TrustedClock) -> None:
        _, a, b = await two_brokers(clock, "S0", "S1")
        giving = a.shared._giving
        answers = await asyncio.gather(giving._step_down(0, {}), giving._step_down(0, {}), return_exceptions=True)
        assert answers[0] == {"success": True, "shard": 0, "owner": "b"}
        assert "shard 0 is not served here" in str(answers[1])
        assert list(b.shared.shards.committed()) == [0, 1]

    in_virtual_time(main)
