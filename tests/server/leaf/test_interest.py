"""The counts of an account's interest: they stay exact while subscriptions change, also during the first count."""

from __future__ import annotations

import asyncio
import random

from broker.base.clock import SystemClock
from broker.server.leaf.interest import AccountInterest, Key
from broker.server.routing.router import Router
from broker.server.routing.subscription import Subscription


class Other:
    """Another server, which records the interest that it is informed about."""

    hub = False
    group = "g"
    isolated = False

    def __init__(self) -> None:
        self.known: dict[Key, int] = {}

    def inform(self, key: Key, weight: int) -> None:
        if weight:
            self.known[key] = weight
        else:
            self.known.pop(key, None)


def held(subs: list[Subscription]) -> dict[Key, int]:
    counts: dict[Key, int] = {}
    for sub in subs:
        counts[sub.subject, sub.queue] = counts.get((sub.subject, sub.queue), 0) + 1
    return counts


async def test_counts_stay_exact_while_subscriptions_change() -> None:
    """Subscriptions are added, removed, and ended first, before, during and after the first count."""
    rng = random.Random(7)
    router = Router(SystemClock(), rng, asyncio.get_running_loop().call_soon)
    subs: list[Subscription] = []
    ended: list[Subscription] = []

    def change() -> None:
        for _ in range(400):
            chance = rng.random()
            if chance < 0.6 or not subs:
                sub = Subscription(b"s.%d" % rng.randrange(300), rng.choice((b"", b"", b"q")))
                router.add(sub)
                subs.append(sub)
            elif chance < 0.85:
                router.remove(subs.pop(rng.randrange(len(subs))))
            else:
                sub = subs.pop(rng.randrange(len(subs)))
                router.end([sub])
                ended.append(sub)
        for sub in ended[:len(ended) // 2]:
            router.remove(sub)
        del ended[:len(ended) // 2]

    for _ in range(60):
        change()
    interest, other = AccountInterest(router), Other()
    counting = asyncio.create_task(interest.count_existing())
    while not counting.done():
        change()
        await asyncio.sleep(0)
    informing = asyncio.create_task(interest.inform(other))
    while not informing.done():
        change()
        await asyncio.sleep(0)
    change()
    for sub in ended:
        router.remove(sub)
    assert other.known.pop((interest.loop_subject, b"")) == 1
    assert other.known == held(subs)
    for sub in subs:
        router.remove(sub)
    assert set(other.known) == set()
