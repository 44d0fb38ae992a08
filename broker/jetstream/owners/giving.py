"""Gives this broker's shards to other brokers, and takes theirs: on request, to balance them, and before a stop.

    this broker                                  the other
    write a checkpoint
    is it ready? ─────────────────────────────>  it does not stop, and has read the shard and the catalogue
    close the streams, drain, seal
    take it, sealed at … ─────────────────────>  claim, read what was added, serve
                 <─────────────────────────────  it serves

Between the third step and the fourth one, the shard's streams take no messages, so all reads that can be done before
are done before.

The seal of its own owner makes a shard free, so the other broker waits for no lease. If it does not answer, this broker
takes the shard back. Safety needs none of these messages: a hand-over is a clean stop and a take-over of one shard.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from broker.jetstream.owners.balance import heir, next_gift
from broker.jetstream.owners.roster import INTERVAL_SECONDS, Line, Roster
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.storage.format.header import Position

if TYPE_CHECKING:
    from broker.base.clock import Clock
    from broker.jetstream.bus import Subscription
    from broker.jetstream.owners.peers import Peers

__all__ = ["Giving", "NotTaken"]

_log = logging.getLogger(__name__)

GIFT: Final = "GIFT"
_READY_SECONDS: Final = 5.0
"""The time within which a broker must answer whether it takes a shard. The shard serves meanwhile, so a broker that is
busy may take long. One that has ended is known at once: nobody is subscribed to its subject."""
_PREPARE_SECONDS: Final = _READY_SECONDS - 1
_TAKE_SECONDS: Final = 10.0
"""The time within which a broker must serve a shard that it was given; then its former owner takes it back."""


class NotTaken(Exception):
    """A broker did not take a shard that was given to it; ``str()`` says why."""


class OwnedShards(Protocol):
    """The shards of a store, some of which this process owns."""

    @property
    def count(self) -> int: ...

    def committed(self) -> dict[int, int]:
        """Return the bytes that the shards which are served have committed so far, by number."""

    async def write_checkpoint(self, number: int) -> None:
        """Write a checkpoint of a shard, which serves meanwhile. Raises: NotTaken: the store takes nothing."""

    async def give(self, number: int, to: str, take: Callable[[Position | None], Any]) -> None:
        """Hand a shard over: call ``take`` with the position of the seal. Raises: NotTaken: it stays."""

    async def take(self, number: int, seconds: float, seal: Position | None = None) -> None:
        """Take a shard that is free, and sealed there, as its owner says. Raises: NotTaken."""

    def leave(self, number: int, seconds: float) -> None:
        """Leave a shard to another broker for so long."""


class Giving:
    """See the module.

    Args: ``me``: this broker's line, without shards; ``store``: what the operator is shown of the store;
        ``why_fixed(number)`` returns why a shard cannot be given away now, or ""; ``interval_ns``: the least time
        between two gifts that balance the shards; ``busy()`` returns the number of this broker's busy shards;
        ``prepare(number, seconds)`` reads what this broker needs before it takes a shard.
    """

    def __init__(self, shards: OwnedShards, peers: Peers, me: Line, clock: Clock, *, store: Mapping[str, str],
                 why_fixed: Callable[[int], str], interval_ns: int,
                 prepare: Callable[[int, float], Coroutine[Any, Any, None]],
                 busy: Callable[[], float] = lambda: 0.0) -> None:
        self._shards = shards
        self._peers = peers
        self._me = me
        self._clock = clock
        self._store = store
        self._why_fixed = why_fixed
        self._interval_ns = interval_ns
        self._prepare = prepare
        self._busy = busy
        self._leaving = False
        self._committed: dict[int, int] = {}
        self._rates: dict[int, float] = {}
        """The bytes a second that each shard committed of late."""
        self._subscriptions: list[Subscription] = []
        self._step_downs: dict[int, Subscription] = {}
        self._task: asyncio.Task[None] | None = None
        self._gifts: dict[int, str] = {}
        """The shards that are being given away, each with the id of the broker that is to take it."""
        self._locks: dict[int, asyncio.Lock] = {}
        """A lock for each shard: a request and the balance must not give one at the same time."""
        self._refused: dict[str, int] = {}
        """The brokers that did not take a shard, each with the time at which that was."""
        self.roster = Roster(peers, me.id, self._own_line, clock)

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Answer the other brokers, and keep the shards balanced."""
        self._subscriptions = [self._peers.answer(f"BROKER.{self._me.id}", self._answer),
                               self._peers.answer("SHARDS", self._show, of_all_stores=True),
                               self._peers.listen(GIFT, self._on_gift)]
        self.roster.start()
        self._task = asyncio.get_running_loop().create_task(self._keep_balanced(), name="balance the shards")

    async def stop(self) -> None:
        """Take no more shards, and give all away that other brokers take."""
        self._leaving = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.roster.publish()
        await self.roster.choose(lambda others: others or None)
        await self._give_all()
        await self.roster.stop()
        for subscription in (*self._subscriptions, *self._step_downs.values()):
            self._peers.end(subscription)

    def opened(self, number: int) -> None:
        """Answer requests to hand a shard over: this broker serves it."""
        self._step_downs[number] = self._peers.answer(f"SHARD.{number}.STEPDOWN",
                                                      lambda question: self._step_down(number, question))

    def closed(self, number: int) -> None:
        """Stop that; if the shard is being given away, the brokers that do not get it leave it alone."""
        if (subscription := self._step_downs.pop(number, None)) is not None:
            self._peers.end(subscription)
        if (to := self._gifts.get(number)) is not None:
            self._peers.hint(GIFT, shard=number, to=to)
        self.roster.publish()

    # --- this broker's line -------------------------------------------------------------------------------------------

    def _own_line(self) -> Line:
        now = self._shards.committed()
        return self._me._replace(leaving=self._leaving, busy=self._busy(), shards={
            number: self._rates.get(number, 0.0) for number in now})

    def _measure(self) -> None:
        """Note what the shards have committed in the last second."""
        now = self._shards.committed()
        self._rates = {number: max(size - self._committed.get(number, size), 0) / INTERVAL_SECONDS
                       for number, size in now.items()}
        self._committed = now

    async def _show(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"type": "io.jetblock.api.v1.shards_response", **self._store, "count": self._shards.count,
                **self._own_line().to_json()}

    # --- giving -------------------------------------------------------------------------------------------------------

    def _takers(self) -> list[Line]:
        """Return the other brokers, without those that did not take a shard of late."""
        now_ns = self._clock.monotonic_ns()
        self._refused = {name: at_ns for name, at_ns in self._refused.items() if now_ns - at_ns < self._interval_ns}
        return [line for line in self.roster.others() if line.id not in self._refused]

    async def _give(self, number: int, to: Line, instead: Callable[[Line], Line | None] = lambda _: None) -> None:
        """Give a shard away. Args: ``instead(line)``: the broker that gets the shard if that of ``line`` does not take
        it.

        Raises: NotTaken; ApiError: the shard cannot be given, or the other broker is not ready.
        """
        if why := self._why_fixed(number):
            raise ApiError.of(ApiErrors.CLUSTER_NO_PEERS, why)
        async with self._locks.setdefault(number, asyncio.Lock()):
            if number not in self._shards.committed():
                raise NotTaken(f"shard {number} is not served here")
            await self._shards.write_checkpoint(number)
            try:
                await self._peers.ask(f"BROKER.{to.id}", {"do": "prepare", "shard": number}, _READY_SECONDS)
                self._gifts[number] = to.id
                await self._shards.give(number, to.name, lambda seal: self._offer(number, to, seal, instead))
            except (NotTaken, ApiError):
                self._refused[to.id] = self._clock.monotonic_ns()
                raise
            finally:
                self._gifts.pop(number, None)

    async def _give_all(self) -> None:
        asked: set[str] = set()
        """The brokers that did not take a shard. They are not asked again, so a stop waits once for each of them."""

        def next_heir(number: int) -> Line | None:
            return heir(number, [line for line in self.roster.others() if line.id not in asked])

        def instead(number: int, to: Line) -> Line | None:
            asked.add(to.id)
            return next_heir(number)

        for number in self._shards.committed():
            to = next_heir(number)
            while to is not None and not self._why_fixed(number):
                try:
                    await self._give(number, to, partial(instead, number))
                except ApiError as error:
                    _log.info("shard %d: %s does not take it: %s", number, to.name, error)
                    to = instead(number, to)
                except NotTaken as error:
                    _log.info("shard %d: no broker has taken it: %s", number, error)
                    break
                else:
                    break

    async def _offer(self, number: int, to: Line, seal: Position | None, instead: Callable[[Line], Line | None],
                     ) -> None:
        """Let a broker take a shard, which is sealed. Raises: NotTaken."""
        while True:
            question = {"do": "take", "shard": number, "seal": None if seal is None else [*seal]}
            try:
                await self._peers.ask(f"BROKER.{to.id}", question, _TAKE_SECONDS)
                return
            except ApiError as error:
                other = instead(to)
                if other is None or self._peers.is_owned(number):  # or a third broker was faster
                    raise NotTaken(str(error)) from None
                _log.info("shard %d: %s did not take it, offering it to %s: %s", number, to.name, other.name, error)
                to = other

    async def _step_down(self, number: int, question: dict[str, Any]) -> dict[str, Any]:
        """Answer a request to hand a shard over: to the broker that it prefers, or to the one with the fewest shards.

        Raises: ApiError 10005: nobody takes it.
        """
        preferred = (question.get("placement") or {}).get("preferred") or ""
        if preferred == self._me.name:
            raise ApiError.of(ApiErrors.CLUSTER_NO_PEERS, f"{preferred} owns shard {number} already")
        to = await self.roster.choose(
            lambda others: heir(number, [line for line in others if preferred in ("", line.name)]))
        if to is None:
            raise ApiError.of(ApiErrors.CLUSTER_NO_PEERS, f"preferred server \"{preferred}\" not known" if preferred
                              else "no other broker in reach")
        own = self._me.own
        if isinstance(own, tuple):  # until this broker starts again, the shard is not to come back by itself
            self._me = self._me._replace(own=tuple(one for one in own if one != number))
            self.roster.publish()
        try:
            await self._give(number, to)
        except (NotTaken, ApiError) as error:
            self._me = self._me._replace(own=own)
            if isinstance(error, ApiError):
                raise
            raise ApiError.of(ApiErrors.CLUSTER_NO_PEERS, f"{to.name} did not take shard {number}: {error}") from None
        return {"success": True, "shard": number, "owner": to.name}

    async def _keep_balanced(self) -> None:
        given_ns = self._clock.monotonic_ns() - self._interval_ns
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            self._measure()
            if self._clock.monotonic_ns() - given_ns < self._interval_ns:
                continue
            gift = next_gift(self._own_line(), self._takers(), lambda number: bool(self._why_fixed(number)))
            if gift is None:
                continue
            given_ns = self._clock.monotonic_ns()
            try:
                await self._give(*gift)
            except (NotTaken, ApiError) as error:
                _log.info("shard %d stays: %s", gift.shard, error)
            except Exception:
                _log.exception("the shards cannot be balanced")

    # --- taking -------------------------------------------------------------------------------------------------------

    def _on_gift(self, gift: dict[str, Any]) -> None:
        """Leave a shard that another broker gets alone, but no longer than one whose owner has died."""
        number = int(gift["shard"])
        if gift["to"] != self._me.id and 0 <= number < self._shards.count:
            self._shards.leave(number, min(_TAKE_SECONDS, self._interval_ns / 1e9))

    async def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Raises: ApiError: the shard is not taken; KeyError, TypeError: the question is not understood."""
        number = int(question["shard"])
        if self._leaving or not 0 <= number < self._shards.count:
            raise ApiError.of(ApiErrors.CLUSTER_NO_PEERS, f"{self._me.name} takes no shard {number}")
        if question["do"] == "prepare":
            await self._prepare(number, _PREPARE_SECONDS)
        elif question["do"] == "take":
            seal = question.get("seal")  # earlier releases do not say it
            try:
                await self._shards.take(number, _TAKE_SECONDS - 1, None if seal is None else Position(*map(int, seal)))
            except NotTaken as error:
                raise ApiError.of(ApiErrors.CLUSTER_NO_PEERS, str(error)) from None
            self.roster.publish()
        return {}
