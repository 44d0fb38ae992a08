"""The inbox of a shard: requests from programs that do not own the shard, granted or refused by its owner.

    carry_out (API) ────┐                  ┌─ granted: the answer is recorded in the stream ──┐
    carry_out_all (poll)┴─> read, check ───┼─ refused: the refusal is recorded likewise       ├─> the request is deleted
                              its runs     └─ no such stream: nothing is recorded ────────────┘

One task carries out a request, even if several callers ask for it. The answer is persisted first, and then the request
is deleted. If the broker is killed in between, the next owner finds the answer, so no request is granted twice.

The requests of one writer are carried out in the order of their versions, because a lower version is not granted after
a higher one.

Owns: which requests are carried out and when.
Does not own: what a stream accepts (stream.appending), reading runs (storage.staging.check), sweeping abandoned runs
(staged_runs).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from broker.base.shielded import shielded
from broker.jetstream.inbox.forwarding import forward
from broker.jetstream.inbox.staged_runs import StagedRuns, keys_of
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.storage.format.errors import FormatError, VersionUnknown
from broker.storage.format.records.release import Release
from broker.storage.format.request import Request
from broker.storage.objectstore.base import NotFound, StoreError
from broker.storage.paths import ShardPaths, parse
from broker.storage.staging.answers import Answer
from broker.storage.staging.check import InThread, NotAdoptable, RulesChanged, Staged, read_staged

if TYPE_CHECKING:
    from broker.base.clock import Clock
    from broker.jetstream.stream.stream import Stream
    from broker.storage.format.request import Version
    from broker.storage.log.log import Log

__all__ = ["Carried", "Inbox", "InboxSettings"]

_log = logging.getLogger(__name__)

_LISTED_AT_ONCE: Final = 1000
_SWEPT_EVERY_NS: Final = 60_000_000_000
"""Time between two calls of ``sweep`` if the inbox is not polled. Most calls return without a request to the store."""
_SOON_NS: Final = 1_000_000_000
"""Time between two polls for ``_SOON_FOR_NS`` after a request was found: its writer may put the next one soon."""
_SOON_FOR_NS: Final = 60_000_000_000
_READ_AT_ONCE: Final = 16
"""Requests read at once to learn their writers."""
_LATER: Final = frozenset((ApiErrors.CLUSTER_NOT_AVAIL, ApiErrors.STREAM_OFFLINE_REASON))
"""Errors that do not depend on the request: it stays in the inbox, and is carried out later."""


class InboxSettings:
    """The settings of an inbox.

    Attributes:
        ``poll_ns``: how often requests are read; 0: never; None: only on request, and nothing is swept.
        ``staged_grace_ns``: the age at which runs that no request names are swept.
        ``max_payload(account)``: the size limit of an account's messages, headers included; None: no limit.
        ``in_thread``: runs a function of some milliseconds outside the loop.
    """

    def __init__(self, *, poll_ns: int | None = 60_000_000_000, staged_grace_ns: int = 86_400_000_000_000,
                 max_payload: Callable[[str], int] | None = None, in_thread: InThread = asyncio.to_thread) -> None:
        self.in_thread = in_thread
        self.poll_ns = poll_ns
        self.staged_grace_ns = staged_grace_ns
        self.max_payload = max_payload


class Carried(NamedTuple):
    """The outcome of a request.

    Attributes: ``answer``: if it was granted, now or before; ``why``: otherwise the reason; ``stays``: the request
        stays in the inbox.
    """

    request_id: int
    account: str
    stream: str
    answer: Answer | None
    why: str
    stays: bool

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as members of a report."""
        shown: dict[str, Any] = {"request": f"{self.request_id:016x}", "account": self.account, "stream": self.stream}
        if self.answer is None:
            return {**shown, "stays" if self.stays else "refused": self.why}
        return shown | self.answer.to_json()


class Host(Protocol):
    """The parts of JetStream that the inbox uses."""

    @property
    def available(self) -> bool: ...

    def stream(self, account: str, name: str) -> Stream:
        """Return the live stream of an account. Raises: ApiError."""


class _Running:
    """A request that is being carried out. ``request`` and ``stream_id`` are set once it has been read."""

    __slots__ = ("request", "searches", "stream_id", "task")

    def __init__(self, searches: int) -> None:
        self.request: Request | None = None
        self.stream_id = 0
        self.searches = searches
        """The number of searches for abandoned runs that had begun before this request."""
        self.task: asyncio.Task[Answer]


_Versions = dict[int, tuple[int, "Version | None"]]
_ByWriter = dict[tuple[int, str], list[tuple[int, int]]]
"""Versions and ids of requests by stream and writer."""


class _Waiting:
    """The requests with writers that were in the inbox when one of them was first asked for. ``read`` lists them.

    Attributes: ``begun``: those that were begun before a higher version of their writer.
    """

    __slots__ = ("_found", "_read", "begun")

    def __init__(self, read: Callable[[], Awaitable[_ByWriter]]) -> None:
        self.begun: dict[int, _Running] = {}
        self._read = read
        self._found: _ByWriter | None = None

    async def below(self, stream_id: int, version: Version) -> list[tuple[int, int]]:
        """Remove and return the requests of a writer below a version, in the order of versions. Raises: StoreError."""
        if self._found is None:
            self._found = await self._read()
        requests = self._found.get((stream_id, version.writer), [])
        below = sorted(one for one in requests if one[0] < version.number)
        requests[:] = [one for one in requests if one[0] >= version.number]
        return below


class Inbox:
    """The inbox of one shard.

    Args: ``release_runs(keys)`` deletes runs that nothing will ever name; ``open_runs`` are the keys of runs that open
        atomic batches have staged.
    """

    def __init__(self, host: Host, log: Log, paths: ShardPaths, clock: Clock, settings: InboxSettings,
                 release_runs: Callable[[Sequence[str]], object], open_runs: Container[str] = ()) -> None:
        self.settings = settings
        self._host = host
        self._log = log
        self._store = log.store
        self._clock = clock
        self._paths = paths
        self._running: dict[int, _Running] = {}
        self.staged = StagedRuns(log, paths, clock, settings.staged_grace_ns, release_runs, open_runs)
        self._kept: dict[int, str] = {}
        """Requests that cannot be carried out here now, with the reason that was logged."""
        self._versions: _Versions = {}
        """Requests that were listed and read to learn their writers: the incarnation of the stream, and the version.
        The version determines the id, so a request that was put again has the same one."""
        self._poll: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Carry out requests and sweep from now on: at once, and then every ``poll_ns``."""
        if self.settings.poll_ns is not None:
            self._poll = asyncio.get_running_loop().create_task(self._poll_inbox(), name="inbox")

    async def stop(self) -> None:
        """Cancel all work. Requests that were not answered stay in the inbox."""
        tasks: list[asyncio.Task[Any]] = [running.task for running in self._running.values()]
        if self._poll is not None:
            tasks.append(self._poll)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def carry_out(self, request_id: int, stream: Stream | None = None, version: Version | None = None) -> Answer:
        """Grant or refuse a request now. ``stream`` and ``version`` are those that the caller expects the request to
        name.

        Raises: ApiError if the request is refused: permanently, unless the error is 10008 or 10194; StoreError: the
            request stays in the inbox.
        """
        running = self._begin(request_id, stream, version)
        answer = await shielded(running.task)
        if stream is not None and running.stream_id != stream.stream_id:
            raise ApiError(ApiErrors.STREAM_GENERAL, err=f"request {request_id:016x} is for another stream")
        return answer

    def _begin(self, request_id: int, stream: Stream | None = None, version: Version | None = None,
               waiting: _Waiting | None = None) -> _Running:
        running = self._running.get(request_id)
        if running is None:
            running = self._running[request_id] = _Running(self.staged.searches)
            running.task = asyncio.get_running_loop().create_task(
                self._carry_out(running, request_id, stream, version, waiting or _Waiting(self._by_writer)),
                name=f"request {request_id:016x}")
            running.task.add_done_callback(lambda task: self._ended(request_id, task))
        return running

    def _ended(self, request_id: int, task: asyncio.Task[Answer]) -> None:
        del self._running[request_id]
        if not task.cancelled():
            task.exception()  # retrieved here in case that every caller was cancelled

    async def carry_out_all(self) -> list[Carried]:
        """Carry out all requests that are there. Raises: StoreError if they cannot be listed."""
        listed = [request_id async for request_id in self._requests()]
        # A writer puts its lower versions first, so a second listing has all that a request of the first may wait for.
        waiting = _Waiting(self._by_writer)
        return [await self._try_carry_out(request_id, waiting) for request_id in listed]

    async def sweep(self) -> None:
        """Delete old staged runs that no request names. Raises: StoreError."""
        await self.staged.sweep([running.searches for running in self._running.values()])

    async def _requests(self) -> AsyncIterator[int]:
        """Iterate over the ids of the requests that are there. Raises: StoreError."""
        listed = await self._store.list(self._paths.requests, self._paths.requests, _LISTED_AT_ONCE)
        while listed:
            for info in listed:
                if (key := parse(info.key)) is not None:
                    yield key.object_id
            if len(listed) < _LISTED_AT_ONCE:
                return
            listed = await self._store.list(self._paths.requests, listed[-1].key, _LISTED_AT_ONCE)

    async def _try_carry_out(self, request_id: int, waiting: _Waiting) -> Carried:
        from broker.jetstream.stream.state.decision import Stuck

        stays, why, answer = False, "", None
        running = waiting.begun.get(request_id) or self._begin(request_id, waiting=waiting)
        try:
            answer = await shielded(running.task)
        except ApiError as error:
            stays, why = error.err_code in _LATER, error.description
            if stays:
                why = self._kept.get(request_id, why)
        except (FormatError, Stuck) as error:
            stays, why = True, str(error)
            self._log_kept(request_id, why)
        except StoreError as error:
            if self._log.failure is not None:
                raise
            # The store may fail for this one object only, so carry out the other requests all the same.
            _log.debug("request %016x is carried out later: %s", request_id, error)
            stays, why = True, str(error)
        except Exception as error:
            if self._log.failure is not None:
                raise
            _log.error("request %016x failed", request_id, exc_info=error)
            stays, why = True, repr(error)
        asked = running.request
        return Carried(request_id, asked.account if asked else "", asked.stream if asked else "", answer, why, stays)

    async def _poll_inbox(self) -> None:
        loop = asyncio.get_running_loop()
        poll_ns = self.settings.poll_ns
        last_found = -math.inf
        while self._log.failure is None:
            try:
                if self._host.available:
                    if poll_ns and not all(one.stays for one in await self.carry_out_all()):
                        last_found = loop.time()
                    await self.sweep()
            except StoreError as error:
                _log.debug("the inbox is read later: %s", error)
            except Exception as error:
                if self._log.failure is not None:
                    return
                _log.error("reading the inbox failed; it is tried again", exc_info=error)
            wait_ns = poll_ns or _SWEPT_EVERY_NS
            if loop.time() - last_found < _SOON_FOR_NS / 1e9:
                wait_ns = min(wait_ns, _SOON_NS)
            await asyncio.sleep(wait_ns / 1e9)

    # --- one request --------------------------------------------------------------------------------------------------

    async def _carry_out(self, running: _Running, request_id: int, stream: Stream | None,
                         version: Version | None, waiting: _Waiting) -> Answer:
        key = self._paths.inbox(request_id)
        try:
            data = await self._store.get(key)
            request = running.request = await self.settings.in_thread(Request.decode, data, request_id)
            running.stream_id = request.stream_id
        except NotFound:
            answer = stream.appending.requests.granted(request_id, version) if stream is not None else None
            if stream is None or answer is None:
                await self._prove_ownership()  # an owner after us may have granted and deleted the request
                if stream is not None and (refused := stream.appending.requests.refused(request_id)) is not None:
                    running.stream_id = stream.stream_id
                    raise refused from None
                raise ApiError(ApiErrors.STREAM_GENERAL,
                               err=f"there is no request {request_id:016x} in the inbox") from None
            running.stream_id = stream.stream_id
            return answer
        except VersionUnknown as error:
            self._log_kept(request_id, str(error))
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL) from None
        except FormatError as error:
            await self._prove_ownership()
            _log.warning("a request in the inbox is damaged, and was dropped: %s", error)
            await self._delete(key)
            raise ApiError(ApiErrors.STREAM_GENERAL, err=f"the request is damaged: {error}") from None
        if stream is not None and (stream.account, stream.name) != (request.account, request.stream):
            where = f": {request.stream!r}" if stream.account == request.account else ""
            raise ApiError(ApiErrors.STREAM_GENERAL, err=f"request {request_id:016x} is for another stream{where}")
        state = self._log.state.streams.get(request.stream_id)
        if state is not None and state.departed is not None:
            await self._prove_ownership()
            await forward(self._store, self._paths, request.stream_id, state.departed)
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
        try:
            found = self._stream_of(request)
        except ApiError as error:
            if error.err_code in _LATER:
                raise
            await self._prove_ownership()
            _log.info("request %016x is dropped: stream %s > %s of that incarnation does not exist", request_id,
                      request.account, request.stream)
            await self._delete(key)
            raise
        if request.version is not None:
            await self._carry_out_earlier(found, request.version, waiting)
        answer = found.appending.requests.granted(request_id, request.version)
        if answer is not None and request.version is not None:
            await self._persisted()  # another request of the writer may have been granted only now
        if answer is None:
            refused = found.appending.requests.refused(request_id, request.nonce)
            if refused is not None:  # refused before, and perhaps answered so, but the request was not deleted then
                await self._prove_ownership()
                await self._delete(key)
                raise refused
            try:
                answer = await self._grant(found, request)
            except Exception:
                if self._log.failure is not None:
                    raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL) from None
                raise
        await self._delete(key)
        return answer

    async def _carry_out_earlier(self, stream: Stream, version: Version, waiting: _Waiting) -> None:
        """Carry out the requests of the same writer that have lower versions.

        Raises: ApiError 10008 or 10194 if one of them stays in the inbox; StoreError.
        """
        last = stream.appending.requests.last_version(version.writer)
        if version.number <= (0 if last is None else last + 1):
            return
        for number, request_id in await waiting.below(stream.stream_id, version):
            if last is not None and number <= last:
                continue
            waiting.begun[request_id] = running = self._begin(request_id, waiting=waiting)
            try:
                await shielded(running.task)
            except ApiError as error:
                if error.err_code in _LATER:
                    raise

    async def _by_writer(self) -> _ByWriter:
        """List the requests that have writers. Raises: StoreError."""
        versions: _Versions = {}
        unread: list[int] = []
        async for request_id in self._requests():
            if request_id in self._versions:
                versions[request_id] = self._versions[request_id]
            else:
                unread.append(request_id)
        for start in range(0, len(unread), _READ_AT_ONCE):
            some = unread[start:start + _READ_AT_ONCE]
            versions |= zip(some, await asyncio.gather(*map(self._version_of, some)), strict=True)
        self._versions = versions
        found: _ByWriter = {}
        for request_id, (stream_id, version) in versions.items():
            if version is not None:
                found.setdefault((stream_id, version.writer), []).append((version.number, request_id))
        return found

    async def _version_of(self, request_id: int) -> tuple[int, Version | None]:
        try:
            request = Request.decode(await self._store.get(self._paths.inbox(request_id)), request_id)
        except (NotFound, FormatError):
            return 0, None  # it is gone, or carried out for its own sake
        return request.stream_id, request.version

    def _stream_of(self, request: Request) -> Stream:
        """Return the stream that a request names. Raises: ApiError 10059 if it is deleted;
        10008 if it is not served here."""
        try:
            found = self._host.stream(request.account, request.stream)
        except ApiError as error:
            state = self._log.state.streams.get(request.stream_id)
            if state is None or (state.account, state.name) != (request.account, request.stream):
                raise ApiError(ApiErrors.STREAM_NOT_FOUND) from None
            self._log_kept(request.request_id, f"stream {request.account} > {request.stream}: {error}")
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL) from None
        if found.stream_id != request.stream_id or not found.stored:
            raise ApiError(ApiErrors.STREAM_NOT_FOUND)
        self._log.settings.codec.expect(found.stream_id)  # its first block may not be stored yet
        return found

    async def _grant(self, stream: Stream, request: Request) -> Answer:
        try:
            while True:
                staged = await self._read(stream, request)
                keys = await self.settings.in_thread(keys_of, request)
                try:
                    return await stream.appending.append(
                        request.request_id, staged, partial(self.staged.check, keys), version=request.version,
                        times=request.times)
                except RulesChanged:
                    continue
                finally:
                    await staged.free()
        except NotAdoptable as error:
            refused = ApiError(ApiErrors.STREAM_GENERAL, err=str(error))
        except ApiError as error:
            if error.err_code in _LATER:
                raise
            refused = error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # The stream was closed, perhaps because it was deleted.
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL) from None
        _log.info("request %016x for stream %s > %s is refused: %s", request.request_id, stream.account, stream.name,
                  refused)
        await stream.appending.refuse(request.request_id, request.nonce, refused)
        await self._delete(self._paths.inbox(request.request_id))
        raise refused

    async def _read(self, stream: Stream, request: Request) -> Staged:
        """Read and check the runs of a request. Raises: NotAdoptable; StoreError."""
        staged = await read_staged(self._store, request, ids_bytes_max=stream.dedupe.bytes_max,
                                   rules=stream.appending.subject_rules(), in_thread=self.settings.in_thread)
        limit = self.settings.max_payload
        if limit is not None and staged.body_bytes_max > (most := limit(request.account)):
            raise NotAdoptable(f"it has a message of {staged.body_bytes_max} bytes, and max_payload is {most}: "
                               f"raise that, or stage smaller messages")
        return staged

    async def _prove_ownership(self) -> None:
        """Return once it is certain that this broker owned the shard after this call began.

        A later owner may know a stream or a request that this broker does not know. Raises: ApiError 10008.
        """
        self._log.block(self._log.shard).add(Release())
        self._log.urgent()
        await self._persisted()

    async def _persisted(self) -> None:
        """Return once everything that was decided so far is persisted. Raises: ApiError 10008."""
        try:
            await self._log.persisted()
        except Exception:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL) from None

    async def _delete(self, key: str) -> None:
        try:
            await self._store.delete(key)
        except StoreError as error:
            _log.debug("%s is deleted later: %s", key, error)  # the next poll finds the request, and its answer

    def _log_kept(self, request_id: int, why: str) -> None:
        """Log why a request stays in the inbox, once for each reason."""
        if self._kept.get(request_id) != why:
            if len(self._kept) >= _LISTED_AT_ONCE:
                self._kept.clear()
            self._kept[request_id] = why
            _log.warning("request %016x stays in the inbox: %s", request_id, why)
