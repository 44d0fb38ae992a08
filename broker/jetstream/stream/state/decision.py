"""Loads what a decision finds missing, and holds it until the decision is taken.

    decide ──> NotLoaded ──> bring ──> decide ──> NotLoaded ──> bring ──> decide ──> taken: release all
                          └ heads: held here, so that they stay in memory
                          └ work:  leaves its result in the stream's own state

Each turn must load something new. Asking again for what is held, or for work that was done while nothing changed since,
would never end: that is ``Stuck``, a bug, which is logged and answered like a store that cannot be read.

Does not own: what waits meanwhile, and for how long (publish.blocked, or the operation's own caller).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from broker.jetstream.stream.state.heads import HEADS_AT_ONCE
from broker.jetstream.stream.state.rows import NotLoaded

if TYPE_CHECKING:
    from broker.jetstream.stream.state.block import LiveBlock
    from broker.jetstream.stream.state.heads import Heads
    from broker.jetstream.stream.state.live import Live
    from broker.jetstream.stream.state.rows import Rows

__all__ = ["WAIT_SECONDS", "Decision", "Stuck", "decide"]

WAIT_SECONDS = 4.0
"""A decision may wait this long for the store: clients give a publish 5 seconds."""

T = TypeVar("T")


class Stuck(Exception):
    """A decision cannot be taken: what it asks for was loaded already, or is more than it may hold at once."""


class Decision:
    """What one decision has loaded."""

    def __init__(self, live: Live, heads: Heads) -> None:
        self._live = live
        self._heads = heads
        self._held: dict[LiveBlock, Rows | None] = {}
        self._done: tuple[object, ...] | None = None

    async def load_missing(self, not_loaded: NotLoaded) -> None:
        """Load what the decision lacks. Raises: Stuck; StoreError; FormatError."""
        if not_loaded.work is not None:
            if (not_loaded.what, not_loaded.mark, *self._state()) == self._done:
                raise Stuck(f"{not_loaded.what} was brought in, and is missing again")
            await not_loaded.work()
            # The state after the work: what changed during the work is for the work itself to handle.
            self._done = not_loaded.what, not_loaded.mark, *self._state()
            return
        missing = [block for block in not_loaded.blocks if block not in self._held]
        if not missing:
            raise Stuck(f"{not_loaded.what} was brought in, and is missing again")
        if len(self._held) + len(missing) > HEADS_AT_ONCE:
            # Not those that left the stream, or gave way to a larger block.
            self._held = {block: rows for block, rows in self._held.items() if self._live.holds(block)}
        if len(self._held) + len(missing) > HEADS_AT_ONCE:
            raise Stuck(f"more than {HEADS_AT_ONCE} heads are needed at once for {not_loaded.what}")
        self._held.update(zip(missing, await self._heads.all_of(missing), strict=True))

    def _state(self) -> tuple[int, ...]:
        live = self._live
        return live.first_seq, live.last_seq, live.msgs, live.size_bytes


async def decide(live: Live, heads: Heads, ask: Callable[[], T]) -> T:
    """``ask()``, with all that it needs loaded. Raises: as ``ask`` and ``Decision.load_missing``."""
    decision = Decision(live, heads)
    while True:
        try:
            return ask()
        except NotLoaded as not_loaded:
            await decision.load_missing(not_loaded)
