"""The API of one account, $JS.API: dispatches requests to their handlers, and sends the answers.

One subscription to ``$JS.API.>`` (and ``$JS.<domain>.API.>``) receives everything:

    pull request   CONSUMER.MSG.NEXT.<stream>.<consumer>   straight to the consumer, in runs
    direct get     DIRECT.GET.<stream>[.<subject>]         to direct_get.py; raw messages, no JSON
    the rest       a row of ROUTES                         JSON, in the order of arrival for each stream
    unknown                                                no answer, as nats-server: the subscription is a responder

Pull requests and direct gets get "no responders" if no consumer or stream serves them. JSON requests of one stream wait
in its *lane*, so that a client's requests are served in order even if one of them has to read the store. An answer is
sent through the log's queue, after everything that it shows is persisted. Requests about different streams overtake
each other. nats-server 2.15 promises less: it carries out requests in parallel, so a client that does not wait for
answers sees even requests about one stream out of order (in 99 of 100 tries: CREATE, UPDATE, UPDATE, PURGE, DELETE,
CREATE, INFO).

Source: nats-server 2.15, server/jetstream_api.go apiDispatch; for the silent cases and the order, its observed traffic.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from broker.jetstream.account.held import NO_RESPONDERS
from broker.jetstream.api.first_use import first_used_loaded, load_first_used
from broker.jetstream.api.pace import HEAVY, Pace
from broker.jetstream.api.postponed import Postponed
from broker.jetstream.api.request import Request, Route, Silent, Tracked
from broker.jetstream.api.routes import (
    API_PREFIX,
    DIRECT_GET,
    MSG_NEXT,
    OF_CLUSTERS,
    TYPE_PREFIX,
    lane_of,
    led_subjects,
    name_in,
    route_of,
    subscribe_api,
    subscribe_stream,
)
from broker.jetstream.api.waiting import Waiting, is_info_request
from broker.jetstream.settings import level_refused
from broker.jetstream.wire import fields as wire
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.jetstream.wire.long_answers import dump_in_turns, is_long
from broker.storage.format.errors import FormatError
from broker.storage.objectstore.base import StoreError

if TYPE_CHECKING:
    from broker.jetstream.account.account import Account
    from broker.jetstream.api.direct_get import DirectGets
    from broker.jetstream.api.request import Show
    from broker.jetstream.backup.transfers import Transfers
    from broker.jetstream.bus import Msg, Source, Subscription

__all__ = ["Api"]

_log = logging.getLogger(__name__)

_IDLE_MAX = 4
"""The largest number of tasks that wait for requests."""

_WEIGHT_BYTES = 1024
"""The bytes of JSON that take as long as the rest of a request."""

_DIRECT_GETS = API_PREFIX + DIRECT_GET

_LEAD_SECONDS = 4.0
"""The time for which requests wait until a broker that has just taken shard 0 knows the streams of the others."""


class Reach(Protocol):
    """The other brokers of the store."""

    def is_owned(self, shard: int) -> bool:
        """Return whether some broker in reach answers for a shard."""


class Shared(Protocol):
    """The part of a shared catalogue that this module uses."""

    @property
    def peers(self) -> Reach: ...

    @property
    def leads(self) -> bool:
        """True if this broker owns shard 0 and knows the streams of all others."""

    async def until_leads(self) -> None:
        """Return once ``leads`` is true."""


class Api:
    """The API of one account. ``start`` subscribes, ``stop`` unsubscribes and cancels requests in progress.

    Args: ``show(request, source)`` is called with each JSON request; ``shared`` if other brokers have streams of the
        account, too. Then ``start`` and ``stop`` are for the owner of shard 0, and ``subscribe_stream`` for the owner
        of a stream.
    """

    def __init__(self, account: Account, rng: random.Random, waiting: Waiting, show: Show,
                 shared: Shared | None = None) -> None:
        self.account = account
        self._shared = shared
        self._show = show
        self.bus = account.bus
        self._directs: DirectGets | None = None
        self._rng = rng
        self._transfers: Transfers | None = None
        self._lanes: dict[str, deque[Request]] = {}
        self._waiting = waiting
        self._pace = Pace()
        self._tasks: set[asyncio.Task[None]] = set()
        self._serving: dict[str, asyncio.Task[Any]] = {}
        """The tasks that serve a lane, by its key."""
        self._idle: list[asyncio.Future[tuple[str, deque[Request]]]] = []
        """Futures on which tasks without a lane wait for one: starting a task costs more than a small request."""
        self._subscriptions: list[Subscription] = []
        self._early = Postponed(waiting, self._tasks, "requests before the catalogue")
        """The requests that came before this broker knew the streams of the others."""
        self._unloaded = Postponed(waiting, self._tasks, "load modules of JetStream")
        """The requests that came before the modules of the first use were loaded."""

    def start(self) -> None:
        """Subscribe to the API."""
        if self._shared is None:
            self._subscriptions += subscribe_api(self.bus, self.account.domain, self.on_requests)
        else:
            self._subscriptions += subscribe_api(self.bus, self.account.domain, self._on_led_requests, led_subjects())

    def subscribe_stream(self, name: str) -> list[Subscription]:
        """Subscribe to the requests about a stream of this broker."""
        return subscribe_stream(self.bus, self.account.domain, name, self.on_requests)

    def stop_listening(self) -> None:
        """Unsubscribe. Requests that have arrived are served."""
        for subscription in self._subscriptions:
            self.bus.unsubscribe(subscription)
        self._subscriptions.clear()

    async def stop(self) -> None:
        """Unsubscribe and ``drop``."""
        self.stop_listening()
        await self.drop()

    async def drop(self) -> None:
        """Drop all waiting and running requests unanswered."""
        for lane in self._lanes.values():
            for request in lane:
                self._waiting.done(is_info_request(request.tokens))
        self._lanes.clear()
        self._idle.clear()
        self._early.drop()
        self._unloaded.drop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._transfers is not None:
            await self._transfers.drop()
        if self._directs is not None:
            await self._directs.drop()

    def serves(self, name: str) -> bool:
        """Return whether requests about a stream are waiting or being carried out."""
        return name in self._lanes

    async def drop_streams(self, names: Collection[str]) -> None:
        """Drop the waiting and running requests about these streams unanswered."""
        tasks = []
        for name in names:
            if (lane := self._lanes.pop(name, None)) is not None:
                for request in lane:
                    self._waiting.done(is_info_request(request.tokens))
                lane.clear()
            if (task := self._serving.get(name)) is not None:
                tasks.append(task)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def transfers(self) -> Transfers:
        """Return the backups and restores. They are imported at the first call: few brokers need them at all."""
        if self._transfers is None:
            from broker.jetstream.backup.transfers import Transfers

            self._transfers = Transfers(self.account)
        return self._transfers

    def _direct_gets(self) -> DirectGets:
        if self._directs is None:
            from broker.jetstream.api.direct_get import DirectGets

            self._directs = DirectGets(self.account)
        return self._directs

    def on_requests(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> list[int]:
        """Handle a run of requests, as a handler of the bus.

        Returns: the indexes of requests to consumers and streams that do not exist here.
        """
        unserved: list[int] = []
        at = start
        while at < end:
            op = ops[at]
            subject = op[0]
            rest = subject[len(API_PREFIX):]
            if rest.startswith(MSG_NEXT):
                until = at + 1
                while until < end and ops[until][0] == subject:
                    until += 1
                consumer = self.account.pulled_from(rest[len(MSG_NEXT):])
                if consumer is not None:
                    consumer.on_next(ops, at, until, source, now_ns)
                else:
                    unserved += range(at, until)
                at = until
                continue
            if rest.startswith(DIRECT_GET):
                until = at + 1
                while until < end and ops[until][0].startswith(_DIRECT_GETS):
                    until += 1
                unserved += self._direct_gets().serve(ops, at, until)
                at = until
                continue
            at += 1
            self._admit(rest, op, source)
        return unserved

    def _on_led_requests(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> None:
        """Handle requests as the owner of shard 0: those that no owner of a stream answers."""
        assert self._shared is not None
        for op in ops[start:end]:
            rest = op[0][len(API_PREFIX):]
            if not rest.startswith(OF_CLUSTERS) and name_in(rest) in self.account.streams:
                continue  # the subscriptions of ``subscribe_stream`` have the request
            if self._shared.leads and not self._early:
                self._on_led_request(rest, op, source)
            else:
                # Whether another broker answers it is not known yet, or earlier requests still wait for that.
                self._early.add(partial(self._on_led_request, rest, op, source), self._until_leads)

    async def _until_leads(self) -> None:
        assert self._shared is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAD_SECONDS):
                await self._shared.until_leads()

    def _on_led_request(self, rest: bytes, op: Msg, source: Source | None) -> None:
        assert self._shared is not None
        name = name_in(rest)
        other = None if rest.startswith(OF_CLUSTERS) or name in self._lanes else self.account.elsewhere.get(name)
        if other is None or other.entry.deleting:
            self._admit(rest, op, source)
        elif not self._shared.peers.is_owned(other.entry.shard):
            self._admit(rest, op, source, refused=True)

    def answer_held(self, msgs: Sequence[Msg], *, refused: bool) -> None:
        """Answer requests that were held while their stream moved; ``refused``: the stream has no owner now."""
        unserved: Collection[int] = range(len(msgs))
        if not refused:
            unserved = self.on_requests(msgs, 0, len(msgs), None, self.account.clock.now_ns())
        for op in [msgs[at] for at in unserved]:
            rest = op[0][len(API_PREFIX):]
            if rest.startswith(DIRECT_GET):
                self.bus.publish(op[1], b"", len(NO_RESPONDERS), NO_RESPONDERS)
            else:
                self._admit(rest, op, None, refused=True)

    # --- JSON requests ------------------------------------------------------------------------------------------------

    def _admit(self, rest: bytes, op: Msg, source: Source | None, *, refused: bool = False) -> None:
        """Refuse a JSON request, or put it into its lane; drop it if it is unknown or too many wait.

        Args: ``refused``: the owner of the request's stream cannot be reached.
        """
        if self._unloaded or not first_used_loaded():
            self._unloaded.add(partial(self._admit, rest, op, source, refused=refused), load_first_used)
            return
        self._show(op, source)
        tokens = rest.decode("utf-8", "replace").split(".")
        route = route_of(tokens)
        if route is None:
            return
        _, reply, hlen, body = op
        account = self.account
        request = Request(account, self.transfers, tokens, reply, body[hlen:], source=source, headers=body[:hlen])
        # Without the shard there is no log whose state could be read.
        if refused or not account.serves(lane_of(tokens)) or account.stuck:
            # Answers wait for commits too: they must not pile up while the store is unavailable.
            self._refuse(request, route, ApiError(ApiErrors.CLUSTER_NOT_AVAIL))
        elif hlen and level_refused(body[:hlen]):
            self._refuse(request, route, ApiError(ApiErrors.REQUIRED_API_LEVEL))
        elif self._waiting.admit(is_info_request(tokens)):
            self._enqueue(request, route)

    def _enqueue(self, request: Request, route: Route) -> None:
        """Put a request into its stream's lane; the lane's task serves until the lane is empty."""
        request.route = route
        key = ".".join(request.tokens) if route.apart else lane_of(request.tokens)
        lane = self._lanes.get(key)
        if lane is not None:
            lane.append(request)
            return
        self._lanes[key] = lane = deque([request])
        while self._idle:
            following = self._idle.pop()
            if not following.done():  # it is done if its task was cancelled
                following.set_result((key, lane))
                return
        task = asyncio.get_running_loop().create_task(self._work(key, lane), name="api")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, key: str, lane: deque[Request]) -> None:
        """Serve one lane after another, until enough other tasks wait for one."""
        while True:
            await self._serve(key, lane)
            if len(self._idle) == _IDLE_MAX:
                return
            following: asyncio.Future[tuple[str, deque[Request]]] = asyncio.get_running_loop().create_future()
            self._idle.append(following)
            key, lane = await following

    async def _serve(self, key: str, lane: deque[Request]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving[key] = task
        try:
            while lane:
                await self._pace.begin(_weight(lane[0]))
                request = lane.popleft()
                try:
                    await self._serve_one(request)
                finally:
                    self._waiting.done(is_info_request(request.tokens))
        finally:
            if self._serving.get(key) is task:
                del self._serving[key]
            # There was no await since the lane was found empty, so no request was added meanwhile.
            if self._lanes.get(key) is lane:
                del self._lanes[key]

    async def _serve_one(self, request: Request) -> None:
        route = request.route
        assert route is not None
        try:
            members = await route.handler(request)
            if request.about is not None and (reason := request.about.offline) is not None:
                raise ApiError(ApiErrors.STREAM_OFFLINE_REASON, err=reason)
            tracked = route.tracked is Tracked.ALL
            answer = {"type": TYPE_PREFIX + route.type, **members}
            self._answer(request, answer, audited=tracked,
                         data=await dump_in_turns(answer) if is_long(answer) else None)
            self.account.api_total += tracked
        except ApiError as error:
            self._refuse(request, route, error)
        except Silent:
            pass
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # This task was not cancelled, but the operation that the request waited for, with its stream.
            gone = request.about is not None and request.about.offline
            self._refuse(request, route,
                         ApiError(ApiErrors.STREAM_OFFLINE_REASON, err=gone) if gone
                         else ApiError(ApiErrors.CLUSTER_NOT_AVAIL))
        except (StoreError, FormatError) as error:
            _log.warning("JetStream API: %s: %s", ".".join(request.tokens), error)
            self._refuse(request, route, ApiError(ApiErrors.CLUSTER_NOT_AVAIL))
        except Exception:
            # Keep serving the lane: a failed request must not affect the next, and may be retried.
            _log.exception("JetStream API: %s failed", ".".join(request.tokens))
            self._refuse(request, route, ApiError(ApiErrors.CLUSTER_NOT_AVAIL))

    def _refuse(self, request: Request, route: Route, error: ApiError) -> None:
        account = self.account
        tracked = route.tracked is not Tracked.NONE
        account.api_total += tracked
        account.api_errors += tracked
        answer = {"type": TYPE_PREFIX + route.type, "error": error.to_json(), **route.zeros}
        # CLUSTER_NOT_AVAIL shows no state, and the log itself may be unavailable.
        self._answer(request, answer, audited=tracked, at_once=error.err_code == ApiErrors.CLUSTER_NOT_AVAIL)

    def _answer(self, request: Request, answer: dict[str, Any], *, audited: bool, at_once: bool = False,
                data: bytes | None = None) -> None:
        """Send the answer, and its audit, once its state is persisted. ``data``: the answer as JSON, if it is known."""
        account = self.account
        audited = audited and account.events.audited()
        if not request.reply and not audited:
            return
        data = wire.dump(answer) if data is None else data
        block = b"" if "error" in answer else request.answer_headers
        calls: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        if request.reply and request.source is not None:
            calls.append((account.bus.respond, (request.reply, len(block), block + data)))
        elif request.reply:
            calls.append((account.bus.publish, (request.reply, b"", len(block), block + data)))
        if audited:
            subject = "$JS.API." + ".".join(request.tokens)
            calls.append((account.events.audit, (request.source, subject, request.payload, data)))
        about = request.about
        for fn, args in calls:
            if at_once:
                fn(*args)
            elif about is None or about.offline is not None:
                account.wait(fn, *args)
            else:
                about.log.wait(fn, *args, of=about)


def _weight(request: Request) -> int:
    """Return the part of a turn of the loop that a request takes: lists and long requests take more than others."""
    lists = request.tokens[1:2] in (["NAMES"], ["LIST"])
    return HEAVY if lists else 1 + min(len(request.payload) // _WEIGHT_BYTES, HEAVY)
