"""The stream configurations that an account allows: checks them against its other streams, and claims subjects.

    checked ──> the rules for a configuration by itself and beside the other streams; may run in a thread
    claimed ──> no other stream gets these subjects while the change is being stored
    check_room, check_links ──> checked again with the claim, in the turn of the loop that makes the change

Does not own: the rules for one configuration (config.stream_rules), what the limits allow (quota).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from broker.base.turns import in_turns
from broker.jetstream.account.long_work import LONG, at_once, in_thread_if_long
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError

if TYPE_CHECKING:
    from broker.config.settings import JetStreamSettings
    from broker.jetstream.account.elsewhere import Elsewhere
    from broker.jetstream.account.neighbours import Neighbours
    from broker.jetstream.account.quota import Quota
    from broker.jetstream.account.served_streams import ServedStreams
    from broker.jetstream.account.subscriptions import Subscriptions
    from broker.jetstream.config.stream import StreamConfig

__all__ = ["Admission"]

_CHECKS_MAX = 3
"""The largest number of checks of one configuration, if other requests meanwhile change mirrors or sources."""


class Admission:
    """The checks of one account. ``incoming_names`` are the names of streams that are being restored."""

    def __init__(self, served: ServedStreams, elsewhere: Elsewhere, incoming_names: Collection[str],
                 neighbours: Neighbours, quota: Quota, subscriptions: Subscriptions,
                 settings: JetStreamSettings) -> None:
        self._served = served
        self._elsewhere = elsewhere
        self._incoming_names = incoming_names
        self._neighbours = neighbours
        self._quota = quota
        self._subscriptions = subscriptions
        self._settings = settings
        self._claiming = asyncio.Lock()

    async def check(self, given: StreamConfig, *, pedantic: bool) -> None:
        """Check a stream's configuration by itself. Raises: ApiError."""
        await in_thread_if_long(given.elements, self._rules(given, None, pedantic))

    async def checked(self, given: StreamConfig, *, before: StreamConfig | None = None,
                      pedantic: bool) -> tuple[StreamConfig, int]:
        """Check the configuration of a new stream, or an update from ``before``.

        Returns: the configuration with its defaults and metadata, and the links for ``check_links``. Raises: ApiError.
        """
        from broker.jetstream.config.stream_rules import required_level, with_static_metadata

        check = partial(_with_json, self._rules(given, before, pedantic))
        for _ in range(_CHECKS_MAX):
            links = self._served.links
            config = await in_thread_if_long(given.elements, check)
            if links == self._served.links or not config.follows:
                config.metadata = with_static_metadata(config.metadata, required_level(config))
                return config, links
        raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)

    def _rules(self, given: StreamConfig, before: StreamConfig | None, pedantic: bool) -> Callable[[], StreamConfig]:
        from broker.jetstream.config.stream_rules import check_stream, check_update

        rules = partial(check_stream, given) if before is None else partial(check_update, before, given)
        return partial(rules, self._neighbours, self._quota.limits, self._settings.server, pedantic=pedantic)

    def check_links(self, seen: int, config: StreamConfig) -> None:
        """Refuse a mirror or sources if links have changed since the check ``seen``: they might form a cycle.

        Raises: ApiError 10008.
        """
        if config.follows and seen != self._served.links:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)

    def check_room(self, config: StreamConfig) -> None:
        """Check that the name of a new stream is free, and that the limits allow it. Raises: ApiError."""
        if config.name in self._incoming_names or config.name in self._served.by_name or config.name in self._elsewhere:
            raise ApiError(ApiErrors.STREAM_NAME_EXIST)
        # A stream without a limit still needs room for something.
        self._quota.check_create(config, config.max_bytes if config.max_bytes >= 0 else 1)

    def check_restored(self, config: StreamConfig) -> None:
        """Check a stream that is to be restored, against the other streams. Raises: ApiError."""
        from broker.jetstream.config.stream_rules import subjects_overlap

        self.check_room(config)
        if not self._settings.overlapping_streams:
            hidden = (self._neighbours[name] for name in self._neighbours.hidden())
            if self._subscriptions.overlap(config.subjects_bytes) or subjects_overlap(config.subjects, hidden):
                raise ApiError(ApiErrors.STREAM_SUBJECT_OVERLAP)
        _check_last(config)

    @asynccontextmanager
    async def claimed(self, config: StreamConfig, subjects: Iterable[str]) -> AsyncIterator[None]:
        """Claim ``subjects`` for the stream of that configuration; give them back if a check, or the body, raises.

        One stream claims at a time. If two streams want the same subjects, the second is refused only if the first
        comes into existence. Raises: ApiError.
        """
        claimed = [one.encode() for one in subjects]
        await self._elsewhere.until_given_up(claimed)
        async with self._claiming:
            await in_turns(self._subscriptions.claim(config.name, claimed))
            try:
                self._check_hidden(config)
                _check_last(config)
                yield
            except ApiError:
                await self.give_back(config.name, claimed)
                raise
            except BaseException:
                at_once(self._subscriptions.give_back(config.name, claimed))
                raise

    async def give_back(self, name: str, subjects: Sequence[bytes]) -> None:
        """Let other streams have claimed subjects, which the stream ``name`` no longer needs."""
        await in_turns(self._subscriptions.give_back(name, subjects))

    def _check_hidden(self, config: StreamConfig) -> None:
        """Refuse claimed subjects that overlap those of streams that do not serve: offline or being restored.

        Raises: ApiError 10065.
        """
        if self._settings.overlapping_streams:
            return
        for name in self._neighbours.hidden():
            if self._subscriptions.claims_one_of(config.name, self._neighbours[name].subjects_bytes):
                raise ApiError(ApiErrors.STREAM_SUBJECT_OVERLAP)


def _check_last(config: StreamConfig) -> None:
    """Check the rules whose errors nats-server reports after all others. Raises: ApiError."""
    from broker.jetstream.config.stream_rules import check_supported
    from broker.jetstream.config.upstream_rules import check_filter_subjects

    check_filter_subjects(config)
    check_supported(config)


def _with_json(check: Callable[[], StreamConfig]) -> StreamConfig:
    """Return the result of ``check``, after building the JSON of its long lists, which later answers need."""
    config = check()
    if config.elements >= LONG:
        config.to_json()
    return config
