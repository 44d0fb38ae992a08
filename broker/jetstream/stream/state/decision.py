"""Loads the data that a decision needs, and keeps it in memory until the decision has been taken.

    decide ──> NotLoaded ──> load ──> decide ──> NotLoaded ──> load ──> decide ──> taken: release all
                           └ heads: kept in this object, so that they stay in memory
                           └ work:  leaves its result in the stream's own state

Each round must load something new. A decision that asks again for heads that are kept would never end. Nor would one
that asks again for work that is done, if the stream has not changed since. That is a bug and raises ``Stuck``; the
caller logs it, and answers as it does when the store cannot be read.

Does not own: the requests that wait for a decision, and their time limit (publish.blocked, or the operation's own
caller).
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
    """Raised for a decision that asks for data that is loaded already, or for more heads than it may hold at once."""


class Decision:
    """The data that has been loaded for one decision."""

    def __init__(self, live: Live, heads: Heads) -> None:
        self._live = live
        self._heads = heads
        self._held: dict[LiveBlock, Rows | None] = {}
        self._done: tuple[object, ...] | None = None
        """The last work that was done, and the stream's numbers after it."""

    async def load_missing(self, not_loaded: NotLoaded) -> None:
        """Load the data that the decision lacks. Raises: Stuck; StoreError; FormatError."""
        if not_loaded.work is not None:
            if (not_loaded.what, not_loaded.mark, *self._state()) == self._done:
                raise Stuck(f"{not_loaded.what} was loaded, and is missing again")
            await not_loaded.work()
            # Compare with the state after the work: the work itself handles changes that happen while it runs.
            self._done = not_loaded.what, not_loaded.mark, *self._state()
            return
        missing = [block for block in not_loaded.blocks if block not in self._held]
        if not missing:
            raise Stuck(f"{not_loaded.what} was loaded, and is missing again")
        if len(self._held) + len(missing) > HEADS_AT_ONCE:
            # Release the heads of blocks that have left the stream or were replaced by a larger block.
            self._held = {block: rows for block, rows in self._held.items() if self._live.holds(block)}
        if len(self._held) + len(missing) > HEADS_AT_ONCE:
            raise Stuck(f"more than {HEADS_AT_ONCE} heads are needed at once for {not_loaded.what}")
        self._held.update(zip(missing, await self._heads.load_all(missing), strict=True))

    def _state(self) -> tuple[int, ...]:
        live = self._live
        return live.first_seq, live.last_seq, live.msgs, live.size_bytes


async def decide(live: Live, heads: Heads, ask: Callable[[], T]) -> T:
    """Call ``ask()``, loading data until it no longer raises NotLoaded.

    Raises: as ``ask`` and ``Decision.load_missing``.
    """
    decision = Decision(live, heads)
    while True:
        try:
            return ask()
        except NotLoaded as not_loaded:
            await decision.load_missing(not_loaded)
