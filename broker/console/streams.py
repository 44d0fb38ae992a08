"""Streams and consumers of the user's account: lists, configurations, changes.

Values are the API's own JSON objects, so that a newer server's members are shown and kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from broker.console.server import Refused
from broker.jetstream.wire.error_table import ApiErrors

if TYPE_CHECKING:
    from broker.console.server import Server

__all__ = ["KV_PREFIX", "OBJECTS_PREFIX", "Streams", "subject_tree"]

KV_PREFIX = "KV_"
OBJECTS_PREFIX = "OBJ_"
_SUBJECTS_MAX = 100_000
"""Subjects of a stream that are read at most; the tree says that there are more."""

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

    async def subjects(self, name: str, subject: str = ">") -> tuple[dict[str, int], int]:
        """Return the messages of each subject, of 100 000 subjects at most, and the number of subjects."""
        found: dict[str, int] = {}
        while True:
            answer = await self._server.api(f"STREAM.INFO.{name}", {"subjects_filter": subject, "offset": len(found)})
            page = answer["state"].get("subjects") or {}
            found |= page
            total = int(answer.get("total", len(found)))
            if not page or len(found) >= min(total, _SUBJECTS_MAX):
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

    async def histogram(self, name: str, bars: int = 40) -> list[tuple[str, int]]:
        """Return the messages over time: the time at which each bar begins, and the messages from there to the next.

        Each bar is an equal share of the sequences, so one request for each is enough however large the stream is;
        where many messages were published, bars are close to each other.
        """
        state = (await self.info(name))["state"]
        first, last = int(state["first_seq"]), int(state["last_seq"])
        if not state["messages"]:
            return []
        steps = sorted({first + (last - first) * at // bars for at in range(bars)} | {last})
        found = await asyncio.gather(*(self._next_message(name, seq) for seq in steps))
        points = sorted({int(msg["seq"]): str(msg["time"]) for msg in found if msg is not None}.items())
        if len(points) < 2:
            return [(time, 1) for _, time in points]
        return [(time, points[at + 1][0] - seq) for at, (seq, time) in enumerate(points[:-1])]

    async def _next_message(self, name: str, seq: int) -> Json | None:
        """Return the first message at or after ``seq``; None if there is none."""
        try:
            answer = await self._server.api(f"STREAM.MSG.GET.{name}", {"seq": seq, "next_by_subj": ">"})
        except Refused as error:
            if error.code == ApiErrors.NO_MESSAGE_FOUND:
                return None
            raise
        return dict(answer["message"])


def subject_tree(subjects: dict[str, int]) -> list[Json]:
    """Return the nodes of a tree of subjects by their tokens: ``id`` (the subject so far), ``label``, ``children``."""
    root: Json = {"children": {}}
    for subject, messages in subjects.items():
        node = root
        for token in subject.split("."):
            node = node["children"].setdefault(token, {"children": {}, "messages": 0, "subjects": 0})
            node["messages"] += messages
            node["subjects"] += 1
    return _nodes(root, "")


def _nodes(node: Json, prefix: str) -> list[Json]:
    found = []
    for token, child in sorted(node["children"].items()):
        subject = f"{prefix}{token}"
        below = _nodes(child, f"{subject}.")
        count = f"{child['messages']:,}" + (f" in {child['subjects']:,} subjects" if child["subjects"] > 1 else "")
        found.append({"id": subject + (".>" if below else ""), "label": f"{token} ({count})", "children": below})
    return found
