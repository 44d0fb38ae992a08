"""How a client speaks to whichever broker serves: requests through the bus, as a connection's would come, and their
answers.

Each request carries a reply subject of its own. One that is not answered stays open for ever, since the broker may have
died before or after it did what was asked.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tests.sim.streams.record import Lost, error_of

if TYPE_CHECKING:
    from broker.jetstream.bus import Msg
    from tests.sim.streams.process import Process
    from tests.sim.streams.world import World

__all__ = ["NOT_AVAILABLE", "SECOND", "Answered", "Requests"]

SECOND = 1_000_000_000
NOT_AVAILABLE = frozenset((10008, 10167))
"""Errors that say nothing about the state: not now."""

Answered = Callable[[dict[str, Any]], None]


class Requests:
    """What clients ask of one process run of a broker, while it serves; also the ``Source`` of what they publish."""

    headers = True
    no_echo = False
    closed = False
    fan_outs = 0
    wants_no_responders = False
    pending_bytes = 0

    def __init__(self, world: World, process: Process) -> None:
        self.world = world
        self.process = process
        self.rng: random.Random = world.rng
        self.open: dict[bytes, tuple[Answered, int, int]] = {}
        """By reply subject: who takes the answer; when it was asked, the newest epoch that rightfully had answered
        anybody, and the newest that had at all."""
        process.router.subscribe(b"_R.>", self._on_answer)

    def identity(self) -> dict[str, Any]:
        return {"name": "client"}

    def no_responders(self, subject: bytes, reply: bytes) -> None: ...
    def refuse_publish(self, subject: bytes) -> None: ...
    def hold(self) -> None: ...
    def release(self) -> None: ...

    def strike(self, probability: float) -> None:
        """What was just said depends on the store: now is the moment to see whether it is there."""
        if self.rng.random() < probability and not self.world.calm:
            self.world.loop.call_soon(self.process.strike)

    def request(self, subject: str, body: Any, answered: Answered, inbox: bytes = b"_R") -> None:
        """Ask the API."""
        reply = self.reply(answered, inbox)
        data = json.dumps(body).encode() if body is not None else b""
        self.route([(f"$JS.API.{subject}".encode(), reply, 0, data)])

    def reply(self, answered: Answered, inbox: bytes = b"_R", fresh: bool = True) -> bytes:
        """A new reply subject, whose answer ``answered`` gets."""
        reply = b"%b.%d" % (inbox, self.world.number())
        # Memory's streams belong to a process run, whoever owns the shard.
        self.open[reply] = answered, self.world.answered_epoch if fresh else 0, self.world.newest_epoch
        return reply

    def route(self, ops: list[Msg]) -> None:
        self.process.router.route(ops, 0, len(ops), self, self.process.clock.now_ns())

    def _on_answer(self, ops: Sequence[Msg], start: int, end: int, source: object, now_ns: int) -> None:
        if self.process.dead:
            return
        for subject, _, hlen, body in ops[start:end]:
            waiting = self.open.pop(subject, None)
            if waiting is None:
                self.world.judged(_twice, subject, body)
                continue
            answered, since, newest = waiting
            answer = error_of(body[hlen:])
            if answer.get("error", {}).get("err_code") not in NOT_AVAILABLE:
                self.world.judged(self.fresh, since, body)
            self.world.note("answer", subject, body)
            self.world.counts["refused" if "error" in answer else "answered"] += 1
            if newest <= self.process.epoch:
                self.world.judged(answered, answer)

    def fresh(self, since: int, what: bytes) -> None:
        """It was asked when the epoch ``since`` had answered somebody: an earlier one must not answer any more."""
        epoch = self.process.epoch
        if since > epoch:
            raise Lost(f"at {self.world.clock.monotonic_ns() / 1e9:.3f} {self.process.name} answers from epoch {epoch} "
                       f"what was asked after epoch {since} had answered: {what!r}")
        self.world.newest_epoch = max(self.world.newest_epoch, epoch)
        if self.world.clock.monotonic_ns() >= self.process.rightful_ns:
            self.world.answered_epoch = max(self.world.answered_epoch, epoch)


def _twice(subject: bytes, body: bytes) -> None:
    raise Lost(f"a second answer: {subject!r} {body!r}")
