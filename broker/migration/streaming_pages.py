"""The monitoring pages of a nats-streaming-server: its channels, their limits, and the positions of subscriptions.

Source: nats-streaming-server, server/monitor.go.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from typing import Any, TypeVar
from urllib.parse import quote

from broker.config.streaming import ChannelLimits, StreamingSettings
from broker.migration.errors import CannotMigrate

__all__ = ["Channel", "Position", "StreamingPages"]

_T = TypeVar("_T")

_SECONDS = 30.0
_BYTES_MAX = 256 << 20
_CHANNELS_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Position:
    """The position of one durable subscription, or of a member of a durable queue group.

    Attributes: ``offline``: no client uses it. ``pending``: the number of messages that were delivered and not acked.
    """

    client_id: str
    durable: str
    queue: str
    offline: bool
    max_in_flight: int
    ack_wait_seconds: int
    last_sent: int
    pending: int


@dataclass(frozen=True, slots=True)
class Channel:
    """The figures of a channel, and its durable positions. A channel without messages has ``first_seq`` 0 or more."""

    msgs: int
    bytes: int
    first_seq: int
    last_seq: int
    positions: tuple[Position, ...]


class StreamingPages:
    """The pages below ``url``, the address of the monitoring port. Args: ``tls``: for an address with ``https``."""

    def __init__(self, url: str, tls: ssl.SSLContext | None = None) -> None:
        self.url = url.rstrip("/")
        self._tls = tls

    async def names(self) -> list[str]:
        """Return the names of all channels. Raises: CannotMigrate."""
        found: list[str] = []
        while True:
            page = await self._get(f"channelsz?offset={len(found)}&limit={_CHANNELS_AT_ONCE}")
            names, total = self._read(partial(_names, page))
            found += names
            if not names or len(found) >= total:
                return found

    async def channel(self, name: str) -> Channel | None:
        """Return a channel; None if there is none of that name. Raises: CannotMigrate."""
        page = await self._get(f"channelsz?channel={quote(name, safe='')}&subs=1", missing={})
        if not page:
            return None
        return self._read(lambda: Channel(
            int(page["msgs"]), int(page["bytes"]), int(page["first_seq"]), int(page["last_seq"]),
            tuple(_position(one) for one in page.get("subscriptions") or () if one["is_durable"])))

    async def limits(self) -> StreamingSettings:
        """Return the limits of channels, as settings of a gateway that has the same. Raises: CannotMigrate."""
        page = await self._get("storez")

        def read() -> StreamingSettings:
            general = _limits(page["limits"])
            channels = (page["limits"].get("channels") or {}).items()
            return StreamingSettings(
                max_msgs=general.max_msgs, max_bytes=general.max_bytes, max_age_ns=general.max_age_ns,
                channels=tuple((str(pattern), _limits(limits)) for pattern, limits in channels))

        return self._read(read)

    async def _get(self, page: str, missing: Any = None) -> dict[str, Any]:
        """Return a page; ``missing``, if that is given and the page does not exist. Raises: CannotMigrate."""
        url = f"{self.url}/streaming/{page}"
        try:
            data = await asyncio.to_thread(self._load, url)
            value = json.loads(data)
        except urllib.error.HTTPError as error:
            if error.code == 404 and missing is not None:
                return dict(missing)
            raise CannotMigrate(f"{url}: status {error.code}: is it the monitoring port of a nats-streaming-server?"
                                ) from None
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or type(error).__name__
            raise CannotMigrate(f"{url}: cannot be read: {reason}; --monitoring needs the address of its monitoring "
                                f"port, such as http://HOST:8222") from None
        if not isinstance(value, dict):
            raise CannotMigrate(f"{url}: no JSON object")
        return value

    def _load(self, url: str) -> bytes:
        with urllib.request.urlopen(url, timeout=_SECONDS, context=self._tls) as answer:
            return bytes(answer.read(_BYTES_MAX))

    def _read(self, read: Callable[[], _T]) -> _T:
        """Return what ``read`` finds on a page. Raises: CannotMigrate, if the page lacks it."""
        try:
            return read()
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CannotMigrate(f"{self.url}/streaming: the pages lack what those of nats-streaming-server 0.25 have "
                                f"({error!r})") from None


def _names(page: dict[str, Any]) -> tuple[list[str], int]:
    return [str(name) for name in page.get("names") or ()], int(page["total"])


def _limits(given: dict[str, Any]) -> ChannelLimits:
    """Return the limits of messages. The page shows those that apply, also for a pattern."""
    return ChannelLimits(max_msgs=int(given["max_msgs"]), max_bytes=int(given["max_bytes"]),
                         max_age_ns=int(given["max_age"]))


def _position(given: dict[str, Any]) -> Position:
    durable, queue = str(given.get("durable_name", "")), str(given.get("queue_name", ""))
    if queue:
        durable, _, queue = queue.partition(":")
    return Position(str(given["client_id"]), durable, queue, bool(given["is_offline"]), int(given["max_inflight"]),
                    int(given["ack_wait"]), int(given["last_sent"]), int(given["pending_count"]))
