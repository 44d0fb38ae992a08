"""All upstreams of the broker, by account and name."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

from broker.config.upstreams import UpstreamSettings
from broker.jetstream.stream.upstream.link import Remote
from broker.upstreams.upstream import Upstream

__all__ = ["Upstreams"]


class Upstreams:
    """The upstreams. ``start`` and ``stop`` may be repeated: a standby is connected to none.

    Args: ``changed`` is called when one has connected or lost its connection.
    """

    def __init__(self, settings: Sequence[UpstreamSettings], rng: random.Random, changed: Callable[[], object]) -> None:
        self._upstreams = [Upstream(one, rng, changed) for one in settings]
        self._by_api = {(one.account, f"$JS.{one.name}.API"): upstream
                        for one, upstream in zip(settings, self._upstreams, strict=True)}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to connect."""
        self._tasks = [asyncio.create_task(upstream.run(), name=f"upstream {upstream.settings.name}")
                       for upstream in self._upstreams]

    async def stop(self) -> None:
        """Close the connections."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def remote(self, account: str, api: str) -> Remote | None:
        """Return the way to the account's upstream that answers below ``api``; None if there is none.

        Raises: ConnectionError: it is not connected.
        """
        found = self._by_api.get((account, api))
        return None if found is None else found.remote()

    def rows(self) -> list[dict[str, Any]]:
        """Return the upstreams as /varz shows them."""
        return [upstream.row() for upstream in self._upstreams]
