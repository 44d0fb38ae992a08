"""Follows one origin: finds it, reads new messages when it grows, begins again when it is replaced.

Owns: the task, its waiting and its errors, and its part of stream info. Does not own: the first sequence and the
storing of messages (``start`` and ``store`` of mirror and source).

If a consumer is named, or another server has the origin, a push consumer delivers the messages instead:

    find ──> open (the consumer is reset or created) ──> deliveries ──> store, answers to flow control

    find ──> start ──> read ──> store ──> read ── nothing new ──> wait until the origin grows or is deleted ──> find
      └── not there: shown as error; found again when a stream is created └── store fails: retry after a pause
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from broker.base.backoff import Backoff
from broker.jetstream.stream.state.decision import Stuck
from broker.jetstream.stream.upstream.deliveries import Deliveries, Lost, NamedDeliveries
from broker.jetstream.stream.upstream.follower_parts import FollowerParts
from broker.jetstream.stream.upstream.link import Remote
from broker.jetstream.stream.upstream.origin import Batch, Origin, OriginReader, identity_of
from broker.jetstream.stream.upstream.remote import RemoteDeliveries
from broker.jetstream.wire import fields as wire
from broker.jetstream.wire.errors import ApiError
from broker.protocol.subject_shapes import FirstMatch
from broker.protocol.subject_transform import SubjectTransform, make_transform
from broker.storage.format.errors import FormatError
from broker.storage.objectstore.base import StoreError

if TYPE_CHECKING:

    from broker.jetstream.config.stream import StreamConfig, StreamSource
    from broker.jetstream.stream.publish.copies import Copies
    from broker.jetstream.stream.upstream.positions import Positions

__all__ = ["Follower", "FollowerParts", "Target", "behind"]

_log = logging.getLogger(__name__)

_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.5, 30.0
_FIND_SECONDS = 10.0
"""Interval at which an origin that is reached through imports is found again: imports may change at any time."""

_ABSENT_SECONDS = 2.0
"""Interval at which a missing origin is looked for again: no event here says that another broker has created it."""

_TRIED_MAX = 64
"""Up to this many transforms are tried one after the other, and compiled without a thread."""

_HEARTBEAT_NS = 1_000_000_000
"""Stream info shows at most this idle time for an origin that can be read: nats-server's heartbeats have this
interval."""


class Target(Protocol):
    """The stream that copies."""

    name: str
    config: StreamConfig
    copies: Copies
    positions: Positions

    @property
    def last_seq(self) -> int: ...


class Follower(ABC):
    """A mirror or source of a stream.

    Attributes: ``error``: the reason why its origin cannot be read, or None.
    """

    MIRRORS: ClassVar[bool] = False

    def __init__(self, target: Target, given: StreamSource, parts: FollowerParts) -> None:
        self.given = given
        self.error: ApiError | None = None
        self._target = target
        self._parts = parts
        self._clock = parts.clock
        self._woken = asyncio.Event()
        self._reader: OriginReader | None = None
        self._deliveries: Deliveries | None = None
        self._received = False
        """True if any delivered message was stored since the last pause."""
        self._last_read_ns = 0
        self._logged = ""
        self._transforms: list[SubjectTransform] = []
        self._first: FirstMatch | None = None
        """Finds the transform of a subject if there are very many transforms; otherwise None."""
        self._task = self._begin()

    def _begin(self) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self._follow(), name=f"follow {self.given.name}")

    @property
    def filters(self) -> Sequence[str]:
        """The filters of the copied messages; none: all messages are copied."""
        given = self.given
        return [one.src for one in given.subject_transforms] or ([given.filter_subject] if given.filter_subject else [])

    def wake(self) -> None:
        """Wake the task, because the origin grew or may have been replaced."""
        self._woken.set()

    def stop(self) -> None:
        """Stop copying. Stored messages stay."""
        self._detach()
        self._task.cancel()

    def read_again(self) -> None:
        """Drop the messages that were read and are not stored yet, and read on from there: some may have been erased
        meanwhile."""
        self.stop()
        self._task = self._begin()

    def info(self) -> dict[str, Any]:
        """Return StreamSourceInfo. Source: nats-server, server/stream.go, sourceInfo."""
        given, reader = self.given, self._reader or self._deliveries
        shown: dict[str, Any] = {"name": given.name}
        if given.external is not None:
            shown["external"] = wire.write(given.external)
        shown["lag"] = reader.lag if reader is not None else 0
        if seq := self.position():
            shown["seq"] = seq
        idle_ns = self._clock.monotonic_ns() - self._last_read_ns
        if not self._last_read_ns:
            idle_ns = -1
        elif reader is not None:
            idle_ns = min(idle_ns, _HEARTBEAT_NS)
        shown["active"] = idle_ns
        if self.error is not None:
            shown["error"] = self.error.to_json()
        if given.filter_subject and (self._last_read_ns or not self.MIRRORS):
            shown["filter_subject"] = given.filter_subject
        if given.subject_transforms:
            shown["subject_transforms"] = wire.write(given)["subject_transforms"]
        return shown

    def subject(self, subject: bytes) -> bytes:
        """Return the subject under which a message is stored here: its own if a transform would make it too long."""
        transforms: Sequence[SubjectTransform] = self._transforms
        if self._first is not None:
            at = self._first.of(subject)
            transforms = () if at is None else transforms[at:at + 1]
        for transform in transforms:
            if (made := transform.match(subject)) is not None:
                return made or subject
        return subject

    # --- differences between mirrors and sources ----------------------------------------------------------------------

    @abstractmethod
    async def start(self, origin: Origin) -> int:
        """Return the origin's sequence to read from. Raises: StoreError, FormatError, ApiError."""

    @abstractmethod
    def begin(self, identity: str, last_seq: int) -> int:
        """Return the sequence to copy another server's stream from; 0: from where the configuration says.

        Args: the stream's identity and last sequence. Raises: ApiError: the stream is not the one copied before.
        """

    @abstractmethod
    def reached(self, deliveries: Deliveries) -> int:
        """Return the last of the origin's sequences that need not be stored when a consumer delivers them."""

    @abstractmethod
    async def store(self, identity: str, batch: Batch) -> ApiError | None:
        """Store a batch of the origin with this identity. If storing stops, return the error; earlier messages are
        stored."""

    @abstractmethod
    def next_seq(self, batch: Batch) -> int:
        """Return the sequence at which reading continues after ``store``."""

    def position(self) -> int:
        """Return the origin's sequence of the last copied message, for stream info; 0: not shown."""
        return 0

    # --- the task -----------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        if len(self.given.subject_transforms) > _TRIED_MAX:
            await asyncio.to_thread(self._compile)
        else:
            self._compile()
        backoff = Backoff(_PAUSE_SECONDS, _PAUSE_SECONDS_MAX)
        while True:
            self._woken.clear()
            try:
                if self.given.consumer is not None:
                    await self._receive(NamedDeliveries(self._parts.bus, self.given, mirror=self.MIRRORS))
                    continue
                reader = await self._attach()
                if reader is None:
                    await self._wait_for_change(_ABSENT_SECONDS)
                    continue
                if isinstance(reader, Remote):
                    await self._receive(RemoteDeliveries(reader, self.given, self.filters, self.begin,
                                                         mirror=self.MIRRORS))
                    continue
                if await self._copy(reader):
                    backoff.reset()
                    self._logged = ""
                continue
            except ApiError as error:
                # A full stream may have room again at any time.
                backoff.reset()
                self._log_once(error)
            except (StoreError, FormatError, Stuck, Lost) as error:
                if self._received:
                    backoff.reset()
                    self._received = False
                self._log_once(error)
            except Exception:
                _log.exception("stream %s does not follow %s", self._target.name, self.given.name)
            self._detach()
            await asyncio.sleep(backoff.next())

    def _compile(self) -> None:
        self._transforms = [made for one in self.given.subject_transforms if (
            made := make_transform(one.src.encode(), one.dest.encode())) is not None]
        if len(self._transforms) > _TRIED_MAX:
            self._first = FirstMatch([one.src for one in self._transforms])

    async def _attach(self) -> OriginReader | Remote | None:
        """Return a reader of the current origin, or the way to it; None while there is no origin."""
        try:
            origin = self._parts.find(self.given, self.MIRRORS)
        except ApiError as error:
            self.error = error
            self._detach()
            return None
        if isinstance(origin, Remote):
            self._detach()
            return origin
        self.error = None
        reader = self._reader
        if reader is None or reader.origin is not origin:
            self._detach()
            await origin.load_blocks()
            next_seq = await self.start(origin)
            origin.listeners.followers[self.wake] = None
            reader = self._reader = OriginReader(origin, self.filters, next_seq)
            self._last_read_ns = self._clock.monotonic_ns()
        return reader

    def _detach(self) -> None:
        if self._reader is not None:
            self._reader.origin.listeners.followers.pop(self.wake, None)
            self._reader = None

    async def _copy(self, reader: OriginReader) -> bool:
        """Copy the next messages, or wait until there are some; return whether any was stored."""
        found = reader.read()
        if found is None:
            await self._wait_for_change(_FIND_SECONDS if self.given.external is not None else None)
            return False
        self._last_read_ns = self._clock.monotonic_ns()
        if not isinstance(found, Batch):
            await found.ready
            return False
        error = await self.store(identity_of(reader.origin), found)
        if error is not None:
            raise error
        reader.next_seq = self.next_seq(found)
        await asyncio.sleep(0)  # let other work run between two batches
        return True

    async def _receive(self, consumer: Deliveries) -> None:
        """Store the deliveries of the consumer until it is lost. Raises: Lost, and errors that stop copying."""
        with consumer as deliveries:
            try:
                async with self._parts.opening:
                    await deliveries.open()
                self.error = None
            except ApiError as error:
                self.error = error
                raise
            deliveries.stream_seq = self.reached(deliveries)
            self._deliveries = deliveries
            try:
                while True:
                    self._last_read_ns = self._clock.monotonic_ns()
                    found = await deliveries.read()
                    if isinstance(found, Batch):
                        refused = await self.store(deliveries.identity, found)
                        if refused is not None:
                            raise refused
                        self._logged, self._received = "", True
                    else:
                        if deliveries.ACKS:
                            await self._target.copies.persisted()
                        deliveries.answer(found)
            finally:
                self._deliveries = None

    async def _wait_for_change(self, seconds: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()

    def _log_once(self, error: Exception) -> None:
        """Log an error that prevents copying, once until something is copied again."""
        if (text := str(error)) != self._logged:
            self._logged = text
            _log.warning("stream %s waits before it copies more of %s: %s", self._target.name, self.given.name, text)


def behind(name: str, last_seq: int, copied_seq: int) -> str:
    """Return the reason why an origin that ends before the last copied message is not copied."""
    return (f"stream {name} ends at sequence {last_seq} at the origin, but was copied up to {copied_seq}: it has been "
            f"restored from an older state; copy it under another name")
