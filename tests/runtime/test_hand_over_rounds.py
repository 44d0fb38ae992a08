"""The rounds of requests in a hand-over: requests that wait for each other, however many are made at once.

Two brokers share a store like S3 in virtual time, in which each request takes a tenth of a second and nothing else
takes time. So the time shows the rounds.
"""

from __future__ import annotations

import asyncio

from tests.runtime.brokers import TrustedClock, in_virtual_time
from tests.runtime.shared_brokers import ROUND_NS, two_brokers

ROUNDS_MAX = 7


def test_publishers_wait_for_few_rounds() -> None:
    """From the moment at which the first broker closes a shard until the second one serves it, requests are made in
    seven rounds at most: the last segment, the seal, the check of the seal, what must be known before a claim, the
    claim, the opening, and the last reads of the catalogue. The rest is read before, or beside these.

    Both shards have streams that are written meanwhile.
    """
    async def main(clock: TrustedClock) -> None:
        app, a, b = await two_brokers(clock, "S0", "S1")

        async def publish() -> None:
            while True:
                for shard in range(2):
                    app.publish(b"s%d" % shard, b"", 0, b"hello")
                await asyncio.sleep(0.05)

        publishing = asyncio.create_task(publish())
        for shard, giver, taker in ((1, b, a), (1, a, b), (0, a, b), (0, b, a)):
            await asyncio.sleep(15)
            a.store.requests.clear()
            b.store.requests.clear()
            await giver.shared._giving._step_down(shard, {})
            rounds = (taker.opened_ns - giver.closed_ns) / ROUND_NS
            made = sorted((at_ns, name, what) for name, one in zip("ab", (a, b), strict=True)
                          for at_ns, what in one.store.requests
                          if giver.closed_ns <= at_ns <= taker.opened_ns)
            assert rounds <= ROUNDS_MAX, "\n".join(
                f"{(at_ns - giver.closed_ns) / ROUND_NS:4.1f} {name} {what}" for at_ns, name, what in made)
        publishing.cancel()

    in_virtual_time(main)
