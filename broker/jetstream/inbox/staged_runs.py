"""The staged runs of a shard's streams: which of them may join, and the deletion of those that no request names.

A run that is going to be deleted may not join any more, even if a request for it was read before.

Does not own: deleting the objects (the sweeper).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.storage.format.errors import FormatError, VersionUnknown
from broker.storage.format.request import Request
from broker.storage.format.staged import STAGED_EPOCH
from broker.storage.objectstore.base import NotFound
from broker.storage.paths import STREAMS, ShardPaths, StreamPaths, parse

if TYPE_CHECKING:
    from broker.base.clock import Clock
    from broker.storage.log.log import Log

__all__ = ["RunKey", "StagedRuns", "keys_of"]

_log = logging.getLogger(__name__)

RunKey = tuple[int, int, int, int]
"""Epoch, number and id of a run, and its stream's incarnation."""

_LISTED_AT_ONCE: Final = 1000
_SWEPT_AT_ONCE: Final = 4096
"""Runs swept at once: one record names them all."""


class StagedRuns:
    """The staged runs of one shard.

    Args: ``release_runs(keys)`` deletes runs that nothing will ever name; ``open_runs`` are the keys of runs that open
        atomic batches have staged.
    """

    def __init__(self, log: Log, paths: ShardPaths, clock: Clock, grace_ns: int,
                 release_runs: Callable[[Sequence[str]], object], open_runs: Container[str]) -> None:
        self.searches = 0
        """The number of searches for abandoned runs that have begun."""
        self._log = log
        self._store = log.store
        self._paths = paths
        self._clock = clock
        self._grace_ns = grace_ns
        self._release_runs = release_runs
        self._open_runs = open_runs
        self._gone = {key: 0 for released in log.state.released.values()
                      for key in released.runs if key.startswith(STREAMS)}
        """Runs that are deleted or will be, so that nothing may name them any more, by key.

        The value is the number of the search that first did not find the run in the store; 0: all have found it. Only
        requests that were being carried out at that search can have read the run.
        """
        self._search_after = STREAMS
        """The key after which the next search continues."""
        self._swept_at_ns: int | None = None

    def check(self, keys: Mapping[RunKey, str]) -> None:
        """Check that the runs of a request may join the stream. Raises: ApiError for a deleted run,
        or one that has joined."""
        asked = set(keys.values())
        gone = asked & self._gone.keys()
        for released in self._log.state.released.values():
            gone |= asked.intersection(released.runs)
        for run, key in keys.items():
            if key in gone:
                raise ApiError(ApiErrors.STREAM_GENERAL, err=f"{key} was deleted: stage its messages again")
            if self._named(run):
                raise ApiError(ApiErrors.STREAM_GENERAL, err=f"{key} has joined the stream already, by another request")

    async def sweep(self, running: Iterable[int]) -> None:
        """Delete staged runs that are older than the grace and that no request names.

        It does so at most once in a quarter of the grace.

        Args: ``running``: for each request that is being carried out, the value of ``searches`` when that began.
        Raises: StoreError.
        """
        now_ns, grace_ns = self._clock.now_ns(), self._grace_ns
        if not self._log.clock_trusted() or (
                self._swept_at_ns is not None and 0 <= now_ns - self._swept_at_ns < grace_ns // 4):
            return
        self._swept_at_ns = now_ns
        self._forget_gone(running)
        old = await self._abandoned(now_ns - grace_ns)
        if self._search_after != STREAMS:
            self._swept_at_ns = None  # there may be more: the next call continues
        if not old:
            return
        # Requests are listed after the runs: a request that comes later than this is refused because of ``_gone``.
        after = self._paths.requests
        while listed := await self._store.list(self._paths.requests, after, _LISTED_AT_ONCE):
            after = listed[-1].key
            for info in listed:
                try:
                    old -= await self._named_by(info.key)
                except VersionUnknown:
                    return  # a newer version's request: it stays, and so do all runs, because it may name any of them
        found = [text for text in sorted(old) if not self._may_be_named(_run_of(text))]
        self._gone.update(dict.fromkeys(found, 0))
        if found:
            _log.info("%d staged runs that no request names are swept", len(found))
            self._release_runs(found)

    async def _abandoned(self, before_ns: int) -> set[str]:
        """Return staged runs that were made before this time and that no stream names.

        If there are very many, return the next part of them; ``_search_after`` is then the last key that was listed.
        """
        self.searches += 1
        old: set[str] = set()
        there: set[str] = set()
        begun = after = self._search_after
        self._search_after = STREAMS
        while listed := await self._store.list(STREAMS, after, _LISTED_AT_ONCE):
            after = listed[-1].key
            for info in listed:
                if info.key in self._gone:
                    there.add(info.key)
                    continue
                epoch, number, _, stream_id = run = _run_of(info.key)
                if (stream_id and epoch == STAGED_EPOCH and number * 1_000_000 < before_ns
                        and not self._log.state.is_elsewhere(self._paths.shard, stream_id)
                        and not self._may_be_named(run) and info.key not in self._open_runs):
                    old.add(info.key)
            if len(old) >= _SWEPT_AT_ONCE:
                self._search_after = after
                break
            await asyncio.sleep(0)
        complete = self._search_after == STREAMS
        for key, missed in self._gone.items():
            if not missed and key not in there and begun < key and (complete or key <= after):
                self._gone[key] = self.searches
        return old

    def _forget_gone(self, running: Iterable[int]) -> None:
        """Forget runs that are deleted and that no running request can have read before."""
        oldest = min(running, default=self.searches + 1)
        self._gone = {key: missed for key, missed in self._gone.items() if not missed or missed >= oldest}

    def _named(self, run: RunKey) -> bool:
        return self._log.state.counts.has_counted(run)

    def _may_be_named(self, run: RunKey) -> bool:
        """Return whether a stream names the run, or may name it in a record that was not applied because it is
        offline."""
        return self._named(run) or self._log.state.is_offline(run[3])

    async def _named_by(self, key: str) -> set[str]:
        """Return the runs that a request names. Raises: VersionUnknown; StoreError."""
        parsed = parse(key)
        try:
            request = Request.decode(await self._store.get(key), parsed.object_id if parsed is not None else 0)
        except VersionUnknown:
            raise
        except (NotFound, FormatError):
            return set()
        return set(keys_of(request).values())


def keys_of(request: Request) -> dict[RunKey, str]:
    """Return the runs that a request names, with their keys."""
    paths = StreamPaths(request.account, request.stream, request.stream_id)
    return {(*run.position, run.run_id, request.stream_id): paths.run(run.position, run.run_id)
            for run in request.runs}


def _run_of(text: str) -> RunKey:
    """Return the epoch, number and id of the run with this key, and its stream's id; zeros for any other key."""
    key = parse(text)
    if key is None or key.position is None or key.incarnation is None:
        return 0, 0, 0, 0
    return (*key.position, key.object_id, key.incarnation)
