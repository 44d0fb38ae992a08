"""The streams of one account that are in shards of other brokers, as the owner of shard 0 knows them.

A stream keeps its name and subjects from before its first use until after its last. Its configuration in the catalogue
is ahead of its owner, so a subject that an update gives up stays taken until the owner no longer serves it
(``given_up``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.jetstream.account.long_work import at_once
from broker.jetstream.wire.errors import ApiError
from broker.protocol.subject import collide

if TYPE_CHECKING:
    from broker.jetstream.account.subscriptions import Subscriptions
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.stream import Stream
    from broker.storage.format.records.catalogue import CatalogueEntry

__all__ = ["Elsewhere", "ElsewhereStream", "config_of"]

_GIVING_UP_SECONDS: Final = 2.0
"""The time for which a stream that wants a subject waits for another broker that is giving the subject up."""


class ElsewhereStream(NamedTuple):
    """The stream's entry, and its configuration."""

    entry: CatalogueEntry
    config: StreamConfig


class Elsewhere(dict[str, ElsewhereStream]):
    """The streams by name. ``streams`` are those of this broker; ``subscriptions`` has the claims of subjects."""

    def __init__(self, streams: Mapping[str, Stream], subscriptions: Subscriptions) -> None:
        super().__init__()
        self._streams = streams
        self._subscriptions = subscriptions
        self._given_up: dict[str, set[bytes]] = {}
        """Subjects that the streams' configurations do not have, and that are not free yet."""
        self._freed = asyncio.Event()

    def keep(self, entry: CatalogueEntry) -> None:
        """Take the name and the subjects of a stream in another broker's shard."""
        known = self.get(entry.name)
        if known is not None and known.entry.stream_id != entry.stream_id:
            if entry.deleting:
                return  # a later incarnation has the name; the deletion of this one is being finished
            self.forget(entry.name, known.entry.stream_id)
        if entry.name in self._streams:
            return
        self[entry.name] = one = ElsewhereStream(entry, config_of(entry))
        self._subscriptions.claim_anyway(entry.name, one.config.subjects_bytes)

    def keep_given_up(self, name: str, subjects: Iterable[str]) -> None:
        """Take subjects, too, that the broker of a stream may serve yet."""
        kept = [subject.encode() for subject in subjects]
        self._given_up.setdefault(name, set()).update(kept)
        self._subscriptions.claim_anyway(name, kept)

    def change(self, entry: CatalogueEntry, given_up: Collection[str]) -> None:
        """Replace the configuration of a stream that was updated.

        The caller has claimed the new subjects. Those in ``given_up``, which the update gave up, stay taken.
        """
        if entry.name in self:
            if given_up:
                self._given_up.setdefault(entry.name, set()).update(subject.encode() for subject in given_up)
            self[entry.name] = ElsewhereStream(entry, config_of(entry))

    def forget(self, name: str, stream_id: int, served: Collection[bytes] = ()) -> None:
        """Free the name and the subjects of a stream that another broker had, if it is that one.

        Args: ``served``: the subjects that this broker serves from now on; it has claimed them.
        """
        if (one := self.get(name)) is not None and one.entry.stream_id == stream_id:
            del self[name]
            subjects = {*one.config.subjects_bytes, *self._given_up.pop(name, ())} - {*served}
            at_once(self._subscriptions.give_back(name, list(subjects)))
            self._freed.set()

    def forget_all(self) -> None:
        """Forget all streams: shard 0 is lost."""
        self.clear()
        self._given_up.clear()
        self._subscriptions.claim_only(self._streams.values())

    def free_given_up(self, name: str) -> None:
        """Free the subjects that a stream gave up, and that its broker no longer serves."""
        if (one := self.get(name)) is not None:
            free = self._given_up.pop(name, set()) - set(one.config.subjects_bytes)
            at_once(self._subscriptions.give_back(name, list(free)))
            self._freed.set()

    async def until_given_up(self, subjects: Collection[bytes]) -> None:
        """Wait until other brokers serve none of ``subjects`` that updates of their streams gave up; not for long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_GIVING_UP_SECONDS):
                while any(collide(one, subject) for some in self._given_up.values() for one in some
                          for subject in subjects):
                    self._freed.clear()
                    await self._freed.wait()


def config_of(entry: CatalogueEntry) -> StreamConfig:
    """Return the configuration in an entry; of one that this version cannot read, the name and subjects only."""
    from broker.jetstream.config.stream import StreamConfig

    try:
        return StreamConfig.from_json(entry.config)
    except ApiError:
        return StreamConfig(name=entry.name, subjects=list(entry.config.get("subjects") or ()))
