"""A queue of messages with very many receivers; each turn of the loop sends to some of the receivers.

    publish ──> Route: width × messages ──┬── few  ──> all receivers, at once
                                          └── many ──> steps, here ──(later turns)──> some receivers in each turn

A client whose message is sent this way is held until all receivers have got the message. So its messages stay in
order, and the answer to its PING comes after them. Clients take turns. The broker's own messages keep their order,
too; if too many of them wait, publishing clients are held until they have been sent (``hold_back``).

Does not own: the receivers of a message, and how it is sent to them (``Route.steps``).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, Protocol

__all__ = ["AT_ONCE", "Outward"]

AT_ONCE: Final = 5000
"""Bound on the work of one turn of the loop, in deliveries to one receiver each; it takes a few milliseconds."""

_OWN_MAX: Final = 256
"""Bound on queued fan-outs of the broker's own messages; beyond it publishing clients are held."""


class _Publisher(Protocol):
    """The connection that published a message."""

    def fan_out_began(self) -> None: ...

    def fan_out_ended(self) -> None: ...


class Outward:
    """The queue of one account. ``call_soon`` runs a function on a later turn of the loop."""

    __slots__ = ("_call_soon", "_clients", "_held", "_own", "_scheduled", "_subjects", "work")

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._clients: deque[tuple[Iterator[int], _Publisher]] = deque()
        self._own: deque[tuple[Iterator[int], Collection[bytes]]] = deque()
        self._subjects: Counter[bytes] = Counter()
        """The subjects of the messages in ``_own``."""
        self._held: list[_Publisher] = []
        self._scheduled = False
        self.work = 0
        """Work of the current turn, in deliveries: sending messages and finding receivers. Each turn's first caller
        resets it to 0."""

    @property
    def busy(self) -> bool:
        """Flag: messages of the broker itself are queued; later ones to the same receivers must wait, too."""
        return bool(self._own)

    def waits_for(self, subjects: Iterable[bytes]) -> bool:
        """Return whether a queued message of the broker itself is routed by one of ``subjects``."""
        return bool(self._own) and not self._subjects.keys().isdisjoint(subjects)

    def put(self, steps: Iterator[int], source: _Publisher | None, subjects: Collection[bytes]) -> None:
        """Queue ``steps``, each of which yields its work; ``subjects`` route the messages."""
        if source is None:
            self._own.append((steps, subjects))
            self._subjects.update(subjects)
        else:
            source.fan_out_began()
            self._clients.append((steps, source))
        self._schedule()

    def hold_back(self, client: _Publisher) -> None:
        """Hold the publishing ``client`` if too many messages of the broker wait; its publishes may have caused
        them."""
        if len(self._own) > _OWN_MAX:
            client.fan_out_began()
            self._held.append(client)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        self.work = 0
        try:
            while (self._own or self._clients) and self.work < AT_ONCE:
                if self._own:
                    self._step_own()
                if self._clients and self.work < AT_ONCE:
                    self._step_client()
        finally:
            if not self._own:
                held, self._held = self._held, []
                for client in held:
                    client.fan_out_ended()
            if self._own or self._clients:
                self._schedule()

    def _step_own(self) -> None:
        step: int | None = None
        try:
            step = next(self._own[0][0], None)
        finally:
            if step is None:
                _, subjects = self._own.popleft()
                for subject in subjects:
                    self._subjects[subject] -= 1
                    if not self._subjects[subject]:
                        del self._subjects[subject]
        if step is not None:
            self.work += step

    def _step_client(self) -> None:
        steps, source = self._clients.popleft()
        step: int | None = None
        try:
            step = next(steps, None)
        finally:
            if step is None:
                source.fan_out_ended()
        if step is not None:
            self.work += step
            self._clients.append((steps, source))
