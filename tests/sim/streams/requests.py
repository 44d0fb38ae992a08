"""A client's requests to the broker that serves: through the bus, as a connection's would come, and their answers.

Each request has its own reply subject. One that is not answered stays open for ever, since the broker may have died
before or after it carried the request out.
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
"""Errors of unavailability, which do not depend on the state."""

Answered = Callable[[dict[str, Any]], None]


class Requests:
    """The requests of clients to one process run of a broker, while it serves; also the ``Source`` of their
    publishes."""

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
        """Open requests by reply subject: the callback for the answer, and two epochs at the time of the request: the
        newest that had rightfully answered anybody, and the newest that had answered at all."""
        process.router.subscribe(b"_R.>", self._on_answer)

    def identity(self) -> dict[str, Any]:
        return {"name": "client"}

    def no_responders(self, subject: bytes, reply: bytes) -> None: ...
    def refuse_publish(self, subject: bytes) -> None: ...
    def hold(self) -> None: ...
    def release(self) -> None: ...

    def maybe_kill(self, probability: float) -> None:
        """Kill the process at random, because the last answer depends on the store, which must have it."""
        if self.rng.random() < probability and not self.world.calm:
            self.world.loop.call_soon(self.process.kill_now)

    def request(self, subject: str, body: Any, answered: Answered, inbox: bytes = b"_R") -> None:
        """Send a request to the API."""
        reply = self.reply(answered, inbox)
        data = json.dumps(body).encode() if body is not None else b""
        self.route([(f"$JS.API.{subject}".encode(), reply, 0, data)])

    def reply(self, answered: Answered, inbox: bytes = b"_R", fresh: bool = True) -> bytes:
        """Return a new reply subject, whose answer goes to ``answered``."""
        reply = b"%b.%d" % (inbox, self.world.next_number())
        # A memory stream belongs to a process run, whoever owns the shard.
        self.open[reply] = answered, self.world.answered_epoch if fresh else 0, self.world.newest_epoch
        return reply

    def route(self, ops: list[Msg]) -> None:
        """Publish messages, as a connection does over as many turns of the loop as their work takes."""
        router, done = self.process.router, 0
        while done < len(ops):
            router.outward.work = 0
            done = router.route(ops, done, len(ops), self, self.process.clock.now_ns())

    def _on_answer(self, ops: Sequence[Msg], start: int, end: int, source: object, now_ns: int) -> None:
        if self.process.dead:
            return
        for subject, _, hlen, body in ops[start:end]:
            waiting = self.open.pop(subject, None)
            if waiting is None:
                self.world.run_check(_twice, subject, body)
                continue
            answered, since, newest = waiting
            answer = error_of(body[hlen:])
            if answer.get("error", {}).get("err_code") not in NOT_AVAILABLE:
                self.world.run_check(self.check_fresh, since, body)
            self.world.note("answer", subject, body)
            self.world.counts["refused" if "error" in answer else "answered"] += 1
            if newest <= self.process.epoch:
                self.world.run_check(answered, answer)

    def check_fresh(self, since: int, what: bytes) -> None:
        """Check that the epoch ``since``, which had answered somebody before the request, is not newer than the one
        that answers."""
        epoch = self.process.epoch
        if since > epoch:
            raise Lost(f"at {self.world.clock.monotonic_ns() / 1e9:.3f} {self.process.name} answers from epoch {epoch} "
                       f"what was asked after epoch {since} had answered: {what!r}")
        self.world.newest_epoch = max(self.world.newest_epoch, epoch)
        if self.world.clock.monotonic_ns() >= self.process.rightful_ns:
            self.world.answered_epoch = max(self.world.answered_epoch, epoch)


def _twice(subject: bytes, body: bytes) -> None:
    raise Lost(f"a second answer: {subject!r} {body!r}")
