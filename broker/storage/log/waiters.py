"""The calls that wait for a commit, in log order, similar ones merged; and the bytes that they hold in memory.

Owns the calls that wait for the open segment, the calls whose segment is persisted, and the count of bytes for all of
them. The calls that wait for a segment that was closed are in its ``waiters``; when to call any of them is the log's
decision.

    open segment ──take──> closed segment ──persisted──> due ──answer_some──> called, some in each turn of the loop
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from broker.storage.log.owner import BlockOwner

__all__ = ["ITEM_BYTES", "Batch", "Waiter", "Waiters"]

_WAITER_BYTES = 400
"""What a waiting call holds in memory, beside the bytes in its arguments."""

ITEM_BYTES = 50
"""The same for an item of a batch."""

_CALLS_AT_ONCE = 400
"""Calls made in one turn of the loop: some milliseconds, since each of them publishes a message."""

Waiter = tuple[Callable[..., object], tuple[Any, ...], BlockOwner | None]
"""What to call once the segment is persisted, its arguments, and the stream that it is about (None: no single one)."""


class Batch(list[Any]):
    """The items of several calls that became one, its only argument."""


class Waiters:
    """The calls that wait for the open segment.

    Attributes: ``bytes`` is what these and those of closed segments hold. ``due``: the calls whose segment is persisted and
        that were not made yet; all other calls come after them. ``batch_fn`` is called with ``batch``, whose call
        is the last one; None: the last call is no batch.
    """

    __slots__ = ("_added", "_calls", "batch", "batch_fn", "bytes", "due")

    def __init__(self) -> None:
        self.bytes = 0
        self._added = 0
        """Calls that were added since the last ``answer_some``, or since the first of the ``due`` calls became due."""
        self._calls: list[Waiter] = []
        self.due: deque[Waiter] = deque()
        self.batch_fn: Callable[[list[Any]], object] | None = None
        self.batch: list[Any] = []

    def append(self, waiter: Waiter) -> None:
        """Add a call behind all others, which ends the batch before it."""
        self._calls.append(waiter)
        self.batch_fn = None

    def prepend(self, waiters: list[Waiter]) -> None:
        """Add calls of closed segments before all others; their bytes are counted already."""
        self._calls[:0] = waiters
        self.batch_fn = None

    def begin_batch(self, fn: Callable[[list[Any]], object], batch: Batch) -> None:
        """Let ``batch``, which ``fn`` is called with in the last call, take the items of later ones."""
        self.batch_fn, self.batch = fn, batch

    def take(self) -> list[Waiter]:
        """Hand over all calls, for the segment that closes."""
        calls, self._calls = self._calls, []
        self.batch_fn = None
        return calls

    def hold(self, args: tuple[Any, ...]) -> None:
        """Count a call with ``args``, and its bytes."""
        self._added += 1
        self.bytes += _held_by(args)

    def release(self, args: tuple[Any, ...]) -> None:
        """Undo ``hold``."""
        self.bytes -= _held_by(args)

    def persisted(self, waiters: list[Waiter]) -> None:
        """Make the calls of a segment ``due``."""
        if not self.due:
            self._added = 0
        self.due += waiters

    def answer_some(self) -> None:
        """Make the first of the ``due`` calls, in order.

        At least as many are made as were added since the last time, so that they do not pile up if very many clients add
        some in each turn.
        """
        due, left = self.due, max(_CALLS_AT_ONCE, self._added)
        self._added = 0
        while due and left:
            fn, args, _ = due.popleft()
            self.bytes -= _held_by(args)
            left -= 1
            try:
                fn(*args)
            except Exception as error:  # one reply that could not be made must not keep the others waiting
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "a reply that waited for a commit failed", "exception": error})

    def answer_all(self) -> None:
        """Make all ``due`` calls."""
        while self.due:
            self.answer_some()

    def withdraw(self, owner: BlockOwner) -> None:
        """Drop the calls about ``owner``."""
        self._calls = self.without(self._calls, owner)
        self.batch_fn = None

    def without(self, waiters: list[Waiter], owner: BlockOwner) -> list[Waiter]:
        """``waiters`` except those about ``owner``, whose bytes are released."""
        kept: list[Waiter] = []
        for fn, args, of in waiters:
            held = _held_by(args)
            if of is not owner:
                if args and type(args[0]) is Batch:
                    args = (Batch(owner.withdrawn(fn, args[0])),)
                if not args or args[0] != []:
                    kept.append((fn, args, of))
                    held -= _held_by(args)
            self.bytes -= held
        return kept


def _held_by(args: tuple[Any, ...]) -> int:
    return _WAITER_BYTES + sum([len(arg) if type(arg) is bytes else ITEM_BYTES * len(arg)
                                for arg in args if type(arg) is bytes or type(arg) is Batch])
