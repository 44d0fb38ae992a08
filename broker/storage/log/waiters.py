"""The calls that wait for a commit, in log order, similar ones merged; and the bytes that they hold in memory.

Owns the calls that wait for the open segment, the calls whose segment is persisted, and the count of bytes for all of
them. The calls that wait for a closed segment are in that segment's ``waiters``. The log decides when any call is made.

    open segment ──pop_calls──> closed segment ──make_due──> due ──answer_some──> called, some in each turn of the loop
                 └─pop_safe───> the journal ─────make_due──┘
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from broker.storage.log.owner import BlockOwner

__all__ = ["ITEM_BYTES", "Batch", "Waiter", "Waiters", "resolve"]

_WAITER_BYTES = 400
"""Memory of a pending call, apart from the bytes in its arguments."""

ITEM_BYTES = 50
"""Memory of one item of a batch."""

_CALLS_AT_ONCE = 400
"""Calls made in one turn of the loop: this takes some milliseconds, since each of them publishes a message."""

Waiter = tuple[Callable[..., object], tuple[Any, ...], BlockOwner | None, bool]
"""A function to call, its arguments, the stream that it concerns, or None; True: call it once the segment is persisted,
False: once it is safe, in the journal or persisted."""


class Batch(list[Any]):
    """The only argument of a batched call: the items of several calls that became one."""


class Waiters:
    """The calls that wait for the open segment.

    Attributes: ``bytes`` is the memory of all pending calls, including those of closed segments. ``due`` are the calls
        whose segment is persisted and which were not made yet; all other calls come after them. If the last call is a
        batch, ``batch`` are its items and ``batch_fn`` its function; otherwise ``batch_fn`` is None. ``persisted`` is
        the number of calls for the open segment that the journal does not make: they need the applied state.
    """

    __slots__ = ("_added", "_calls", "batch", "batch_fn", "bytes", "due", "persisted")

    def __init__(self) -> None:
        self.bytes = 0
        self._added = 0
        """Calls added since the last ``answer_some``, or since the first of the ``due`` calls became due."""
        self._calls: list[Waiter] = []
        self.persisted = 0
        self.due: deque[Waiter] = deque()
        self.batch_fn: Callable[[list[Any]], object] | None = None
        self.batch: list[Any] = []

    def append(self, waiter: Waiter) -> None:
        """Add a call after all others. A later batched call does not join an earlier batch."""
        self._calls.append(waiter)
        self.persisted += waiter[3]
        self.batch_fn = None

    def prepend(self, waiters: list[Waiter]) -> None:
        """Add calls of closed segments before all others. Their bytes are counted already."""
        self._calls[:0] = waiters
        self.persisted += sum(waiter[3] for waiter in waiters)
        self.batch_fn = None

    def begin_batch(self, fn: Callable[[list[Any]], object], batch: Batch) -> None:
        """Let items of later calls join ``batch``, the argument of ``fn`` in the last call."""
        self.batch_fn, self.batch = fn, batch

    def pop_calls(self) -> list[Waiter]:
        """Remove and return all calls, for the segment that closes."""
        calls, self._calls = self._calls, []
        self.persisted = 0
        self.batch_fn = None
        return calls

    def pop_safe(self) -> list[Waiter]:
        """Remove and return the calls that may be made once the open segment is safe."""
        if not self.persisted:
            return self.pop_calls()
        calls, self._calls = self._calls, [call for call in self._calls if call[3]]
        self.batch_fn = None
        return [call for call in calls if not call[3]]

    @property
    def any_safe(self) -> bool:
        """True if a call waits for the open segment to be safe."""
        return len(self._calls) > self.persisted

    def hold(self, args: tuple[Any, ...]) -> None:
        """Count a pending call and the bytes of ``args``."""
        self._added += 1
        self.bytes += _held_by(args)

    def release(self, args: tuple[Any, ...]) -> None:
        """Undo ``hold``."""
        self.bytes -= _held_by(args)

    def make_due(self, waiters: list[Waiter]) -> None:
        """Make the calls of a segment ``due``."""
        if not self.due:
            self._added = 0
        self.due += waiters

    def answer_some(self) -> None:
        """Make the first of the ``due`` calls, in order.

        At least as many calls are made as were added since the last time. Otherwise they would pile up if very many
        clients add some in each turn.
        """
        due, left = self.due, max(_CALLS_AT_ONCE, self._added)
        self._added = 0
        while due and left:
            fn, args, _, _ = due.popleft()
            self.bytes -= _held_by(args)
            left -= 1
            try:
                fn(*args)
            except Exception as error:  # the other replies are made although this one failed
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "a reply that waited for a commit failed", "exception": error})

    def answer_all(self) -> None:
        """Make all ``due`` calls."""
        while self.due:
            self.answer_some()

    def withdraw(self, owner: BlockOwner) -> None:
        """Drop the calls that concern ``owner``."""
        self._calls = self.without(self._calls, owner)
        self.persisted = sum(call[3] for call in self._calls)
        self.batch_fn = None

    def without(self, waiters: list[Waiter], owner: BlockOwner) -> list[Waiter]:
        """Return ``waiters`` without the calls that concern ``owner``, and release the bytes of those."""
        kept: list[Waiter] = []
        for fn, args, of, persisted in waiters:
            held = _held_by(args)
            if of is not owner:
                if args and type(args[0]) is Batch:
                    args = (Batch(owner.withdrawn(fn, args[0])),)
                if not args or args[0] != []:
                    kept.append((fn, args, of, persisted))
                    held -= _held_by(args)
            self.bytes -= held
        return kept


def resolve(future: asyncio.Future[None]) -> None:
    """Let a coroutine continue that waits for ``future``, unless it was cancelled."""
    if not future.done():
        future.set_result(None)


def _held_by(args: tuple[Any, ...]) -> int:
    return _WAITER_BYTES + sum([len(arg) if type(arg) is bytes else ITEM_BYTES * len(arg)
                                for arg in args if type(arg) is bytes or type(arg) is Batch])
