"""Warns about subjects that two servers store: their publishers get two PubAcks.

    a stream gets subjects ──> each server that is connected as a leaf node: which of your streams store them?
                          <── names ──> a warning in the log

A stream is created without waiting for the answers, and without a warning if there are none.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from broker.jetstream.stream.upstream.link import NoAnswer, ask

if TYPE_CHECKING:
    from broker.jetstream.account.leafs import Leafs
    from broker.jetstream.bus import Bus

__all__ = ["DoubleStorage"]

_log = logging.getLogger(__name__)

_SUBJECTS_MAX: Final = 100
"""Subjects of one stream that are asked about."""

_STREAMS_MAX: Final = 1000
"""Streams that wait to be asked about; others get no warning."""

_NOT_CROSSING: Final = ("$JS.", "$KV.", "$SYS.")


class DoubleStorage:
    """The subjects of one account's new streams, as far as other servers have not been asked about them."""

    def __init__(self, account: str, bus: Bus, leafs: Callable[[], Leafs | None]) -> None:
        self._account = account
        self._bus = bus
        self._leafs = leafs
        self._waiting: dict[str, list[str]] = {}
        self._task: asyncio.Task[None] | None = None

    def check(self, stream: str, subjects: Sequence[str]) -> None:
        """Ask about the new ``subjects`` of a stream, in the background."""
        leafs = self._leafs()
        if leafs is None or not leafs.domains(self._account) or len(self._waiting) >= _STREAMS_MAX:
            return
        crossing = (subject for subject in subjects if not subject.startswith(_NOT_CROSSING))
        if chosen := list(islice(crossing, _SUBJECTS_MAX)):
            self._waiting[stream] = chosen
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._ask(leafs), name=f"double storage of {self._account}")

    def stop(self) -> None:
        """Ask about nothing more."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()

    async def _ask(self, leafs: Leafs) -> None:
        while self._waiting:
            stream = next(iter(self._waiting))
            subjects = self._waiting.pop(stream)
            for domain in sorted(leafs.domains(self._account)):
                try:
                    await self._ask_domain(domain, stream, subjects)
                except NoAnswer as error:
                    _log.debug("subjects of stream %s were not compared with domain %s: %s", stream, domain, error)

    async def _ask_domain(self, domain: str, stream: str, subjects: list[str]) -> None:
        """Log a warning for each of ``subjects`` that the domain stores. Raises: NoAnswer."""
        for subject in subjects:
            answer, _ = await ask(self._bus, f"$JS.{domain}.API.STREAM.NAMES".encode(),
                                  json.dumps({"subject": subject}).encode())
            if isinstance(names := answer.get("streams"), list) and names:
                _log.warning('stream %s stores "%s" in account %s, and so does stream %s of domain "%s": publishers '
                             "will get two PubAcks; let one stream mirror the other instead", stream, subject,
                             self._account, ", ".join(map(str, names[:10])), domain)
