"""The driver's part of a write: finding the stream, and the request to adopt the staged runs.

    plan     options ──> the stream's incarnation and shard (created first, if ``createStream`` asks for it)
    commit   results of the tasks ──> entries ──> a request, put into the inbox ──> its answer
                                                    ├── asked for with ``nats``
                                                    └── otherwise, or if the broker is not reached, found in the store

One request is all or nothing. With ``splitCommits`` there may be several, which are requested one after the other.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple, TypeVar

from broker.base.gotime import format_duration, format_time, parse_time
from broker.client.connection import ApiRefusal, Connection, ConnectionFailed, Login, connect
from broker.pipeline.errors import NoStream, PipelineError, Unreachable
from broker.pipeline.plan.follow import Follower
from broker.pipeline.plan.snapshot import read_store, run_steps, shards_of
from broker.pipeline.store.objects import ObjectClient
from broker.pipeline.write.columns import Columns
from broker.pipeline.write.options import WriteOptions
from broker.pipeline.write.stage import Result, Target, codec_for, stage_results
from broker.storage.format.errors import CutOff
from broker.storage.format.request import BLOCKS_MAX, BYTES_MAX, RUNS_MAX, Request, StagedRun, Version
from broker.storage.objectstore.base import NotFound
from broker.storage.paths import ShardPaths
from broker.storage.read.lookup import look_up
from broker.storage.staging.answers import ALREADY, GRANTED, REFUSED, WRITER, Answer, answer_to
from broker.storage.staging.writer import request_object

__all__ = ["Outcome", "commit", "plan"]

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

_POLL_SECONDS: Final = 0.25
_POLL_SECONDS_MAX: Final = 5.0
_PUTS_MAX: Final = 5
_CLOCK_STEP_NS: Final = 10 * 10**9
"""The step that the broker's clock may make during a write."""


class Outcome(NamedTuple):
    """The result of a write.

    Fields: ``messages`` joined the stream, and ``duplicates`` were dropped, because their message ids were known;
        ``raised`` got a later time; ``first_seq`` and ``last_seq`` are 0 if nothing joined. ``adopted`` is False if
        the write did not wait for a broker.
    """

    messages: int = 0
    duplicates: int = 0
    raised: int = 0
    first_seq: int = 0
    last_seq: int = 0
    adopted: bool = True

    def plus(self, other: Outcome) -> Outcome:
        """Return the result of this write and a later one together."""
        return Outcome(self.messages + other.messages, self.duplicates + other.duplicates, self.raised + other.raised,
                       self.first_seq or other.first_seq, other.last_seq or self.last_seq,
                       self.adopted and other.adopted)


def plan(objects: ObjectClient, options: WriteOptions, *, brief: bool = False) -> Target:
    """Find the stream.

    Args: ``brief``: a stream may be found as the newest checkpoint has it, with three requests to the store. If it was
        deleted and made anew since, a minute ago at most, ``commit`` raises NoStream.
    Raises: NoStore; NoStream, listing the existing ones; Damaged; Newer; Unreachable.
    """
    if options.nats:
        asyncio.run(_with_connection(options, _no_request))
    if brief and (target := _brief_target(objects, options)) is not None:
        return target
    try:
        return _target(objects, options)
    except NoStream:
        if options.createstream is None:
            raise
    refusal = asyncio.run(_with_connection(options, lambda connection: _create(connection, options)))
    try:
        return _target(objects, options)
    except NoStream:
        if refusal is None:
            raise
        raise PipelineError(f"option createStream: the broker refused to create the stream {options.stream!r}: "
                            f"{refusal}") from None


def _brief_target(objects: ObjectClient, options: WriteOptions) -> Target | None:
    for shard in _likely_shards(objects):
        try:
            found = run_steps(objects, shard, look_up(ShardPaths(shard), options.account, options.stream))
        except CutOff:
            return None
        if found is not None:
            return _as_target(options, found.stream_id, found.shard)
    return None


def _likely_shards(objects: ObjectClient) -> Iterator[int]:
    """Yield 0, then the other shards, which are listed only then: most streams are in shard 0."""
    yield 0
    yield from shards_of(objects)[1:]


def _as_target(options: WriteOptions, stream_id: int, shard: int) -> Target:
    return Target(options.account, options.stream, stream_id, shard, options.times, options.actingheaders)


def _target(objects: ObjectClient, options: WriteOptions) -> Target:
    [found] = read_store(objects, account=options.account, stream=options.stream.replace(",", "\\,"))
    if found.offline is not None:
        raise PipelineError(f"{objects.url}: stream {found.full_name} is offline: {found.offline}; see `jetblock "
                            f"inspect --verify`")
    return _as_target(options, found.stream_id, found.shard)


async def _no_request(connection: Connection) -> None:
    """Make no request: the login has succeeded."""


async def _create(connection: Connection, options: WriteOptions) -> str | None:
    """Create the stream; return the reason if the broker refuses: it may have been created meanwhile."""
    config = {**(options.createstream or {}), "name": options.stream}
    try:
        await connection.api(f"STREAM.CREATE.{options.stream}", config)
    except ApiRefusal as error:
        return str(error)
    return None


def commit(objects: ObjectClient, options: WriteOptions, target: Target, columns: Columns, version: Version | None,
           results: Iterable[Result]) -> Outcome:
    """Let the rows of all tasks join the stream, in the order of partitions. Without rows, do nothing.

    Args: ``columns`` are those of the rows that tasks returned. ``version`` identifies the write, so that repeating it
        stores nothing; None: each call stores its rows.
    Raises: PipelineError; nothing is stored, or the text says what may be.
    """
    entries = stage_results(objects, target, columns, results)
    pieces = list(_pieces(entries))
    if len(pieces) > 1 and not options.splitcommits:
        messages, blocks = sum(run.messages for run in entries), sum(run.blocks for run in entries)
        raise PipelineError(
            f"stream {target.stream}: {messages} rows in {blocks} blocks and {len(entries)} runs are too many for one "
            f"request (at most {BLOCKS_MAX} blocks, {RUNS_MAX} runs and {BYTES_MAX >> 30} GiB), and nothing was "
            f"stored: use fewer partitions, or set option splitCommits to true to store them by several requests")
    total = Outcome()
    for number, piece in enumerate(pieces):
        own = version if version is None or not number else Version(f"{version.writer}#{number}", version.number)
        try:
            total = total.plus(_Request(objects, options, target, own, piece).carry_out())
        except PipelineError as error:
            if not number:
                raise
            raise type(error)(f"{error}; the {number} earlier of {len(pieces)} requests of this write were "
                              f"stored") from None
    return total


def _pieces(entries: Sequence[StagedRun]) -> Iterator[list[StagedRun]]:
    """Divide runs into those of one request each. A replay with the same runs divides them alike."""
    piece: list[StagedRun] = []
    blocks = size = 0
    for run in entries:
        blocks, size = blocks + run.blocks, size + run.size
        if piece and (len(piece) == RUNS_MAX or blocks > BLOCKS_MAX or size > BYTES_MAX):
            yield piece
            piece, blocks, size = [], run.blocks, run.size
        piece.append(run)
    if piece:
        yield piece


class _Request:
    """One request: its object, and the wait for its answer."""

    def __init__(self, objects: ObjectClient, options: WriteOptions, target: Target, version: Version | None,
                 entries: Sequence[StagedRun]) -> None:
        self._objects, self._options, self._target, self._version = objects, options, target, version
        self._entries = entries
        identity = version or int.from_bytes(os.urandom(8), "little") or 1
        self._id = identity if isinstance(identity, int) else identity.request_id(target.stream_id)
        self._identity = identity
        self._began_ns = time.monotonic_ns()
        self._known_before = False
        """True if the stream had a version of the writer before this write."""
        self._follower = Follower(objects, target.account, target.stream.replace(",", "\\,"))
        self._where = f"{objects.url}: stream {target.account}/{target.stream}"

    def carry_out(self) -> Outcome:
        """Put the request, and wait until a broker has answered it. Raises: PipelineError."""
        wait_s = self._options.waitforadoption / 1e9
        if not self._options.nats and self._begins_query:
            self._known_before = f"{WRITER}{self._options.txnappid}" in (self._extra() or ())
        request = self._put()
        deadline = time.monotonic() + wait_s
        unreached = ""
        if self._options.nats:
            try:
                answer = asyncio.run(_with_connection(self._options, lambda connection: self._ask(connection, wait_s)))
                if answer is not None:
                    self._known_before = self._is_earlier(answer)
                    return self._outcome(answer)
            except Unreachable as error:
                unreached = f" ({error})"
        if not wait_s:
            return Outcome(sum(run.messages for run in self._entries), adopted=False)
        return self._find_answer(request, deadline, unreached)

    @property
    def _begins_query(self) -> bool:
        """True for the first batch of a streaming query whose writer's name may be another query's, too."""
        return (self._version is not None and not self._version.number and self._options.txnversion is None
                and bool(self._options.txnappid))

    def _is_earlier(self, answer: Mapping[str, Any]) -> bool:
        """Return whether the broker gave this answer before the write began, by its own clock: the clock of this
        machine may be wrong. Earlier releases do not say; then the result is False."""
        age_ns = parse_time(answer.get("ts", answer["adopted"])) - parse_time(answer["adopted"])
        return age_ns > time.monotonic_ns() - self._began_ns + _CLOCK_STEP_NS

    def _extra(self) -> Mapping[str, Any] | None:
        """Return the extra members of the stream as they are now; None: it is gone."""
        found = {one.state.stream_id: one.state.extra for one in self._follower.refresh().values()}
        return found.get(self._target.stream_id)

    def _put(self) -> Request:
        """Put the request's object; return the request that is in the inbox."""
        try:
            made = request_object(self._target.account, self._target.stream, self._target.stream_id, self._identity,
                                  self._entries, shard=self._target.shard,
                                  times="refuse" if self._target.times == "refuse" else "raise",
                                  acting=self._target.acting_request,
                                  codec=codec_for(self._objects, self._target))
        except ValueError as error:
            raise PipelineError(f"{self._where}: {error}") from None
        self._key = made.key
        for _ in range(_PUTS_MAX):
            if self._objects.put(made.key, made.data):
                return Request.decode(b"".join(made.data), self._id)
            try:
                # An earlier attempt at the same version is waiting: its answer is also this one's.
                return Request.decode(self._objects.get(made.key), self._id)
            except NotFound:
                pass  # It was answered just now. If it was refused, the next put is another attempt.
        raise Unreachable(f"{self._where}: another program makes the same request, and it is refused each time")

    async def _ask(self, connection: Connection, wait_s: float) -> Mapping[str, Any] | None:
        """Ask the broker to carry out the request. Returns: its answer; None if it is to be found in the store."""
        body = ({"request": f"{self._id:016x}"} if self._version is None
                else {"writer": self._version.writer, "version": self._version.number})
        subject = f"JETBLOCK.ADOPT.{self._target.stream}"
        try:
            if not wait_s:
                client = connection.client
                await client.publish(f"$JS.API.{subject}", json.dumps(body).encode(), reply=client.new_inbox())
                await client.flush()
                return None
            return await connection.api(subject, body, seconds=wait_s)
        except ApiRefusal as error:
            if error.code == HTTPStatus.NOT_FOUND:
                raise self._gone() from None
            if self._is_waiting():
                return None  # the error does not depend on the request
            raise self._refused(str(error)) from None

    def _is_waiting(self) -> bool:
        """Return whether the request is in the inbox, to be carried out later."""
        return bool(self._objects.get_many([(self._key, 0, 1)])[0])

    def _find_answer(self, request: Request, deadline: float, unreached: str) -> Outcome:
        pause_s = _POLL_SECONDS
        while True:
            if (extra := self._extra()) is None:
                raise self._gone()
            if (answer := answer_to(extra, request)) is not None:
                return self._outcome_of(answer)
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._not_adopted(unreached)
            time.sleep(min(pause_s, left))
            pause_s = min(1.5 * pause_s, _POLL_SECONDS_MAX)

    def _outcome_of(self, answer: Answer) -> Outcome:
        if answer.state == REFUSED:
            raise self._refused(answer.why)
        assert answer.state in (GRANTED, ALREADY)
        return self._outcome(answer.to_json() | {"adopted": format_time(answer.at_ns)})

    def _outcome(self, answer: Mapping[str, Any]) -> Outcome:
        """Return the outcome that an answer reports; log a warning if the rows of this write seem to be lost."""
        messages, duplicates = answer["messages"], answer["duplicates"]
        if self._version is not None and (why := self._why_lost(self._version, answer, messages + duplicates)):
            _log.warning("%s: %s: a repeated write stores nothing; but if another program or query has the same "
                         "txnAppId, these rows are lost: give each its own", self._where, why)
        return Outcome(messages, duplicates, answer.get("raised", 0), answer["first_seq"] if messages else 0,
                       answer["last_seq"] if messages else 0)

    def _why_lost(self, version: Version, answer: Mapping[str, Any], stored: int) -> str | None:
        """Return a reason to suspect that the answer is to another program's write; None: there is none."""
        rows, writer = sum(run.messages for run in self._entries), f"the writer {version.writer!r}"
        if "already" in answer:
            return f"{writer} has stored version {answer['already']}, so version {version.number} was not stored"
        if stored != rows:
            return f"{writer} has stored version {version.number} with {stored} rows, and not the {rows} of this write"
        if self._known_before and self._begins_query:
            return f"{writer} has stored its first batch at {answer['adopted']}, and this query begins with it again"
        return None

    def _refused(self, why: str) -> PipelineError:
        return PipelineError(f"{self._where}: the write was refused, and nothing was stored: {why}")

    def _gone(self) -> PipelineError:
        return NoStream(f"{self._where} was deleted, or deleted and made anew, during the write, and nothing was "
                        f"stored: write again, if it exists")

    def _not_adopted(self, unreached: str) -> PipelineError:
        again = ("repeating the write is safe, and stores nothing twice" if self._version is not None else
                 "do not repeat the write, because its rows would be stored twice: a broker still adopts them; options "
                 "txnAppId and txnVersion make repeating safe")
        wait = format_duration(self._options.waitforadoption)
        return Unreachable(f"{self._where}: request {self._id:016x} is stored, and no broker adopted it within "
                           f"{wait}{unreached}: start a broker, or run `jetblock adopt {self._objects.url}`; {again}")


async def _with_connection(options: WriteOptions, work: Callable[[Connection], Awaitable[_T]]) -> _T:
    """Connect to the broker for the time of ``work``. Raises: Unreachable."""
    try:
        connection = await connect(Login(options.nats, creds=options.natscreds))
        try:
            return await work(connection)
        finally:
            await connection.close()
    except ConnectionFailed as error:
        raise Unreachable(f"option nats: {error}") from None
