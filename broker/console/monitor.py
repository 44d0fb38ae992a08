"""The monitoring pages of a server, read every two seconds while somebody looks at them.

    /varz, /jsz, /healthz    any nats-server
    /metrics                 jetblock: commits, the store's requests, lease
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from urllib.parse import unquote, urlsplit

import aiohttp

__all__ = ["Monitor", "Sample"]

_EVERY_SECONDS = 2.0
_KEPT = 300
"""Samples that are kept: ten minutes."""
_UNWATCHED_SECONDS = 30.0
"""How long after the last look the pages are no longer read."""
_PAGE_SECONDS = 5.0
_MONTH_SECONDS = 30 * 86_400.0


@dataclass(frozen=True, slots=True)
class Sample:
    """The pages' figures at one moment.

    Attributes:
        ``at``: seconds since 1970.
        ``varz``, ``jsz``: these pages; ``healthz``: its ``status`` and ``error``.
        ``metrics``: the values of ``/metrics`` without labels, added up; empty if the server has no such page.
        ``requests``: the store's requests so far, by operation.
    """

    at: float
    varz: dict[str, Any]
    jsz: dict[str, Any]
    healthz: dict[str, Any]
    metrics: dict[str, float] = field(default_factory=dict)
    requests: dict[str, float] = field(default_factory=dict)


class Monitor:
    """Samples of one server. Args: ``url``: the address of its monitoring port, which may have a user and password.

    Attributes: ``url``: the address without them; ``samples``: oldest first; ``problem``: why the last reading failed,
        or "".
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        self._auth = None
        if parts.username is not None:
            self._auth = aiohttp.BasicAuth(unquote(parts.username), unquote(parts.password or ""))
        self.samples: deque[Sample] = deque(maxlen=_KEPT)
        self.problem = ""
        self._task: asyncio.Task[None] | None = None
        self._looked = 0.0

    def look(self) -> None:
        """Read the pages for the next half a minute."""
        self._looked = time.monotonic()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="read monitoring pages")

    async def close(self) -> None:
        """Read no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def last(self) -> Sample | None:
        return self.samples[-1] if self.samples else None

    def rates(self, name: str) -> list[tuple[float, float]]:
        """Return times and changes a second of a number of ``/varz`` or ``/metrics`` (which begins with jetblock_)."""
        found = []
        for one, two in pairwise(self.samples):
            before, after = _value(one, name), _value(two, name)
            if two.at > one.at and after >= before:  # else the server was restarted
                found.append((two.at, (after - before) / (two.at - one.at)))
        return found

    def commit_ms(self) -> list[tuple[float, float]]:
        """Return times and the mean duration of commits in milliseconds; nothing for times without commits."""
        found = []
        for one, two in pairwise(self.samples):
            commits = two.metrics.get("jetblock_commit_duration_seconds_count", 0) \
                - one.metrics.get("jetblock_commit_duration_seconds_count", 0)
            seconds = two.metrics.get("jetblock_commit_duration_seconds_sum", 0) \
                - one.metrics.get("jetblock_commit_duration_seconds_sum", 0)
            if commits > 0:
                found.append((two.at, seconds / commits * 1000))
        return found

    @property
    def seconds(self) -> float:
        """The time that the samples cover."""
        return self.samples[-1].at - self.samples[0].at if self.samples else 0.0

    def request_rates(self, operation: str) -> list[tuple[float, float]]:
        """Return times and the store's requests a second of one operation."""
        return [(two.at, max(two.requests.get(operation, 0) - one.requests.get(operation, 0), 0) / (two.at - one.at))
                for one, two in pairwise(self.samples) if two.at > one.at]

    def requests_a_month(self) -> dict[str, float]:
        """Return how many requests the store would get in a month at the rate of the kept samples, by operation."""
        if len(self.samples) < 2 or self.samples[-1].at <= self.samples[0].at:
            return {}
        first, last = self.samples[0], self.samples[-1]
        return {name: max(value - first.requests.get(name, 0), 0) / (last.at - first.at) * _MONTH_SECONDS
                for name, value in last.requests.items()}

    async def _run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=_PAGE_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout, auth=self._auth) as http:
            while time.monotonic() - self._looked < _UNWATCHED_SECONDS:
                try:
                    self.samples.append(await self._sample(http))
                    self.problem = ""
                except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                    reason = "it does not answer" if isinstance(error, TimeoutError) else str(error)
                    self.problem = f"{self.url} cannot be read: {reason}."
                await asyncio.sleep(_EVERY_SECONDS)

    async def _sample(self, http: aiohttp.ClientSession) -> Sample:
        varz, jsz, healthz = await asyncio.gather(*(self._json(http, page) for page in ("varz", "jsz", "healthz")))
        metrics: dict[str, float] = {}
        requests: dict[str, float] = {}
        if "jetblock" in varz:
            async with http.get(f"{self.url}/metrics") as answer:
                metrics, requests = await asyncio.get_running_loop().run_in_executor(
                    None, _parse, await answer.text())
        return Sample(time.time(), varz, jsz, healthz, metrics, requests)

    async def _json(self, http: aiohttp.ClientSession, page: str) -> dict[str, Any]:
        async with http.get(f"{self.url}/{page}") as answer:
            if answer.status in (401, 403):
                raise ValueError("the monitoring port wants a login: --monitor http://USER:PASSWORD@HOST:8222")
            value = await answer.json(content_type=None)
            if not isinstance(value, dict):
                raise ValueError(f"/{page} is not a page of a NATS server")
            return value


def _value(sample: Sample, name: str) -> float:
    return float(sample.metrics.get(name, 0) if name.startswith("jetblock_") else sample.varz.get(name, 0))


def _parse(text: str) -> tuple[dict[str, float], dict[str, float]]:
    from prometheus_client.parser import text_string_to_metric_families

    values: dict[str, float] = {}
    requests: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.endswith("_bucket"):
                continue
            values[sample.name] = values.get(sample.name, 0.0) + sample.value
            if sample.name == "jetblock_store_operation_duration_seconds_count":
                requests[sample.labels.get("operation", "")] = sample.value
    return values, requests
