"""Keeps a mirror of each stream of another NATS system whose name matches, and watches how far they are.

    names at the origin ──> a mirror here for each that has none ──> state: lag, errors, what was copied

Owns: which streams are archived, and whether their mirrors have caught up. Does not own: the copying (the mirrors of
the broker), and what is shown (cli).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from broker.client.connection import ApiRefusal, Connection, ConnectionFailed, Login, connect

__all__ = ["Archived", "Archiver"]

_FAILED_SECONDS: Final = 20.0
"""Time after which an error of a mirror is not expected to end by itself. A lost connection takes less."""

_QUIET_SECONDS: Final = 3.0
"""Time without a message after which the last messages of the origin, which did not come, count as deleted there."""

_WILDCARDS: Final = "*?["


@dataclass
class Archived:
    """One stream of the archive.

    Attributes: ``wanted_seq``, ``began_msgs``: the origin's last sequence, and the messages here, when the stream was
        first seen. ``began``: the mirror has reached its origin. ``changed_at``, ``error_at``: monotonic seconds of the
        last message or state, and of the error. ``refused``: the stream cannot be archived, because this broker has
        another stream of that name or refused to make a mirror.
    """

    name: str
    wanted_seq: int
    began_msgs: int = 0
    messages: int = 0
    bytes: int = 0
    last_seq: int = 0
    lag: int = 0
    began: bool = False
    error: str = ""
    error_at: float = 0.0
    changed_at: float = 0.0
    refused: bool = False

    def update(self, info: dict[str, Any], now: float) -> None:
        """Take over the state of the mirror."""
        mirror, state = info["mirror"], info["state"]
        seen = state["last_seq"], mirror["lag"], mirror["active"] >= 0
        if seen != (self.last_seq, self.lag, self.began):
            self.changed_at = now
        self.messages, self.bytes, self.last_seq = state["messages"], state["bytes"], state["last_seq"]
        self.lag, self.began = mirror["lag"], mirror["active"] >= 0
        error = str(mirror.get("error", {}).get("description", ""))
        if error != self.error:
            self.error, self.error_at = error, now

    def caught_up(self, now: float) -> bool:
        """Return whether the archive has all messages that the origin had when it was first seen."""
        quiet = self.began and not self.lag and now - self.changed_at > _QUIET_SECONDS
        return not self.error and (self.last_seq >= self.wanted_seq or quiet)

    def failed(self, now: float) -> bool:
        """Return whether waiting does not help."""
        return self.refused or (bool(self.error) and now - self.error_at > _FAILED_SECONDS)

    def to_json(self) -> dict[str, Any]:
        return {"stream": self.name, "messages": self.messages, "bytes": self.bytes, "last_seq": self.last_seq,
                "lag": self.lag, "error": self.error}


class Archiver:
    """Mirrors streams of the origin in the broker ``here``.

    Args: ``login`` is for the origin. ``patterns`` are names, or patterns with the wildcards of a shell. ``api`` is the
        prefix by which the broker reaches the origin. ``now`` returns monotonic seconds.
    """

    def __init__(self, login: Login, here: Connection, patterns: Sequence[str], api: str,
                 now: Callable[[], float] = time.monotonic) -> None:
        self._login, self._here, self._patterns, self._api, self._now = login, here, patterns, api, now
        self._origin: Connection | None = None
        self.streams: dict[str, Archived] = {}

    async def close(self) -> None:
        """Close the connection to the origin."""
        if self._origin is not None:
            await self._origin.close()

    async def add_new(self) -> None:
        """Make a mirror of each stream at the origin that matches and has none here.

        Raises: ConnectionFailed; the next call connects again.
        """
        if self._origin is None or self._origin.lost.is_set():
            await self.close()
            self._origin = await connect(self._login, name="jetblock archive")
        for name in await self._names(self._origin):
            if name not in self.streams:
                await self._add(self._origin, name)

    async def update(self) -> None:
        """Update the states of all streams. Raises: ConnectionFailed."""
        for name, one in self.streams.items():
            if not one.refused:
                try:
                    one.update(await self._here.api(f"STREAM.INFO.{name}"), self._now())
                except ApiRefusal as error:
                    one.error, one.refused = str(error), True

    async def _names(self, origin: Connection) -> list[str]:
        """Return the names of the origin's streams that match."""
        found = [pattern for pattern in self._patterns if not set(pattern) & set(_WILDCARDS)]
        patterns = [pattern for pattern in self._patterns if pattern not in found]
        offset = 0
        while patterns:
            try:
                page = await origin.api("STREAM.NAMES", {"offset": offset})
            except ApiRefusal as error:
                raise ConnectionFailed(f"{origin.shown}: the streams cannot be listed: {error}") from None
            names = page.get("streams") or []
            found += [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
            offset += len(names)
            if not names or offset >= int(page.get("total", 0)):
                break
        return sorted({*found})

    async def _add(self, origin: Connection, name: str) -> None:
        mirror = {"name": name, "external": {"api": self._api}}
        one = Archived(name, 0)
        try:
            one.wanted_seq = int((await origin.api(f"STREAM.INFO.{name}"))["state"]["last_seq"])
            try:
                info = await self._here.api(f"STREAM.INFO.{name}")
            except ApiRefusal:
                info = await self._here.api(f"STREAM.CREATE.{name}", {
                    "name": name, "mirror": mirror, "storage": "file", "allow_direct": True, "mirror_direct": False})
        except ApiRefusal as error:
            self.streams[name] = one
            one.error, one.refused = str(error), True
            return
        self.streams[name] = one
        given = info["config"].get("mirror") or {}
        if (given.get("name"), (given.get("external") or {}).get("api")) != (name, self._api):
            one.error, one.refused = "the store has a stream of this name that is no archive of it", True
            return
        one.began_msgs = info["state"]["messages"]
        one.update(info, self._now())
