"""Streams and consumers of the user's account: lists, configurations, changes.

Values are the API's own JSON objects, so that a newer server's members are shown and kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from broker.base.gotime import parse_time
from broker.console.server import Refused
from broker.jetstream.wire.error_table import ApiErrors

if TYPE_CHECKING:
    from broker.console.server import Server

__all__ = ["KV_PREFIX", "OBJECTS_PREFIX", "Streams", "spread"]

KV_PREFIX = "KV_"
OBJECTS_PREFIX = "OBJ_"
_SUBJECTS_SECONDS = 60.0
"""A server with a million subjects sorts them for each answer."""
SUBJECTS_MAX = 1_000_000
"""Subjects of a stream that are read at most; the tree says that there are more."""
_SAMPLES_MIN, _SAMPLES_MAX = 8, 100
_SAMPLED_BYTES = 4 << 20

Json = dict[str, Any]


class Streams:
    """JetStream's API for streams and consumers, by one user's connection. All methods raise Refused."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def account(self) -> Json:
        """Return the account's usage and limits."""
        return await self._server.api("INFO")

    async def all(self, progress: Callable[[int, int], object] | None = None) -> list[Json]:
        """Return the information of all streams, by their names."""
        found = await self._server.pages("STREAM.LIST", "streams", progress=progress)
        return sorted(found, key=lambda stream: str(stream["config"]["name"]))

    async def info(self, name: str) -> Json:
        """Return the information of one stream."""
        return await self._server.api(f"STREAM.INFO.{name}")

    async def subjects(self, name: str, subject: str = ">", most: int = SUBJECTS_MAX,
                       progress: Callable[[int, int], bool] = lambda *_: True) -> tuple[dict[str, int], int]:
        """Return the messages of each subject, and the number of subjects, of which ``most`` are returned at most.

        Args: progress is called with the subjects so far and in total; the reading ends when it returns False.
        """
        found: dict[str, int] = {}
        while True:
            answer = await self._server.api(f"STREAM.INFO.{name}", {"subjects_filter": subject, "offset": len(found)},
                                            seconds=_SUBJECTS_SECONDS)
            page = answer["state"].get("subjects") or {}
            found |= page
            total = int(answer.get("total", len(found)))
            if not progress(len(found), total) or not page or len(found) >= min(total, most):
                return found, max(total, len(found))

    async def consumers(self, name: str) -> list[Json]:
        """Return the information of all consumers of a stream."""
        found = await self._server.pages(f"CONSUMER.LIST.{name}", "consumers")
        return sorted(found, key=lambda consumer: str(consumer["name"]))

    async def create(self, config: Json) -> Json:
        """Create a stream."""
        return await self._server.api(f"STREAM.CREATE.{config.get('name', '')}", config)

    async def update(self, config: Json) -> Json:
        """Change a stream's configuration."""
        return await self._server.api(f"STREAM.UPDATE.{config.get('name', '')}", config)

    async def purge(self, name: str, *, subject: str = "", keep: int = 0, seq: int = 0) -> int:
        """Remove messages; return their number. ``seq``: only messages before it."""
        body: Json = {"filter": subject} if subject else {}
        body |= {"keep": keep} if keep else {"seq": seq} if seq else {}
        return int((await self._server.api(f"STREAM.PURGE.{name}", body)).get("purged", 0))

    async def delete(self, name: str) -> None:
        """Delete a stream."""
        await self._server.api(f"STREAM.DELETE.{name}")

    async def delete_message(self, name: str, seq: int, *, erase: bool) -> None:
        """Delete a message; ``erase``: its bytes are overwritten, too."""
        await self._server.api(f"STREAM.MSG.DELETE.{name}", {"seq": seq, "no_erase": not erase})

    async def create_consumer(self, stream: str, config: Json) -> Json:
        """Create a consumer, or change the one with that name."""
        name = config.get("durable_name") or config.get("name") or ""
        if name:
            return await self._server.api(f"CONSUMER.CREATE.{stream}.{name}",
                                          {"stream_name": stream, "config": {**config, "name": name}})
        return await self._server.api(f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config})

    async def delete_consumer(self, stream: str, name: str) -> None:
        """Delete a consumer."""
        await self._server.api(f"CONSUMER.DELETE.{stream}.{name}")

    async def pause_consumer(self, stream: str, name: str, until: str) -> None:
        """Pause a consumer until a time (RFC 3339); "": resume it."""
        await self._server.api(f"CONSUMER.PAUSE.{stream}.{name}", {"pause_until": until} if until else {})

    async def histogram(self, name: str, bars: int = 60) -> list[tuple[float, int]]:
        """Return the messages over time: the seconds since 1970 at which each bar begins, and about how many there are.

        Some messages at equal distances are read, so the cost does not depend on the stream's length. Between two of
        them the messages count as spread evenly.
        """
        state = (await self.info(name))["state"]
        first, last, messages = int(state["first_seq"]), int(state["last_seq"]), int(state["messages"])
        if not messages:
            return []
        samples = max(_SAMPLES_MIN, min(_SAMPLES_MAX, _SAMPLED_BYTES * messages // max(int(state["bytes"]), 1)))
        steps = sorted({first + (last - first) * at // samples for at in range(samples)} | {last})
        found = await asyncio.gather(*(self._next_message(name, seq) for seq in steps))
        points = sorted({int(msg["seq"]): parse_time(str(msg["time"])) / 1e9
                         for msg in found if msg is not None}.items())
        share = messages / (points[-1][0] - points[0][0] + 1) if points else 0.0
        return [(at, round(count * share)) for at, count in spread(points, bars)]

    async def _next_message(self, name: str, seq: int) -> Json | None:
        """Return the first message at or after ``seq``; None if there is none."""
        try:
            answer = await self._server.api(f"STREAM.MSG.GET.{name}", {"seq": seq, "next_by_subj": ">"})
        except Refused as error:
            if error.code == ApiErrors.NO_MESSAGE_FOUND:
                return None
            raise
        return dict(answer["message"])


def spread(points: list[tuple[int, float]], bars: int) -> list[tuple[float, float]]:
    """Return the begin of each bar and the sequences in it. Args: points: sequences and their times, both in order."""
    if not points:
        return []
    begin, width = points[0][1], (points[-1][1] - points[0][1]) / bars
    if width <= 0:
        return [(begin, points[-1][0] - points[0][0] + 1)]
    found = [0.0] * bars
    found[-1] += 1  # the last message
    for (seq, at), (next_seq, next_at) in pairwise(points):
        low, high = (at - begin) / width, (next_at - begin) / width
        for bar in range(min(int(low), bars - 1), min(int(high), bars - 1) + 1):
            inside = min(high, bar + 1) - max(low, bar)
            found[bar] += (next_seq - seq) * (inside / (high - low) if high > low else 1.0)
    return [(begin + bar * width, value) for bar, value in enumerate(found)]
