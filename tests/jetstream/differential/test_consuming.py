"""Consumers: the same pulls, pushes, acks and redeliveries on the real nats-server and on the broker.

player.py describes the scenarios and the compared results: deliveries, statuses to the byte, and the reports of
consumers and streams after each step.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.jetstream.differential.scenarios import CONSUMING

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("name", CONSUMING)
async def test_all_is_as_on_nats_server(compare: Callable[[str], Awaitable[None]], name: str) -> None:
    await compare(name)
