"""The expiry times of messages with a TTL of their own, for one stream: packed columns in the order of sequences.

Owns the times, by sequence, and the earliest of them. Does not own the clock, nor the removal of expired messages.

    page │ seqs     5  6  9 …    ascending; pages neither overlap nor are empty
         │ times    …            when each expires, or NEVER: then not even the stream's max_age applies

The applied state has one table, which checkpoints copy page by page. A live stream has its own, which is further ahead.
Every step is a union or a removal, so applying it again changes nothing. A message costs 16 bytes. The earliest time of
a page is known without reading its rows: if 1 % of a million messages are due, a stream reads that 1 % and 250 numbers.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Final

from broker.storage.format.records.column import packed_bytes, unpack_column
from broker.storage.format.records.expiry import NEVER

__all__ = ["NEVER", "Expiries", "ExpiryPage", "expires_at"]

PAGE_ROWS: Final = 4096


class ExpiryPage:
    """Up to ``PAGE_ROWS`` successive rows. ``place`` is the page of a checkpoint that has them; None: changed since."""

    __slots__ = ("_earliest_ns", "nevers", "place", "room", "seqs", "times")

    def __init__(self) -> None:
        self.seqs = array("q")
        self.times = array("q")
        self.nevers = 0
        """The number of ``times`` that are NEVER."""
        self.room = PAGE_ROWS
        """The number of rows that may be added: removals make no room for rows that would be out of order."""
        self.place: Any = None
        self._earliest_ns: int | None = None

    @property
    def earliest_ns(self) -> int:
        """The earliest of its times; NEVER if no row has one."""
        if self._earliest_ns is None:
            self._earliest_ns = min(self.times)
        return self._earliest_ns

    def append(self, seqs: Sequence[int], times: Sequence[int]) -> None:
        """Add rows; there must be room for them."""
        self.seqs.extend(seqs)
        self.times.extend(times)
        self.room -= len(seqs)
        self.nevers += times.count(NEVER)
        if self._earliest_ns is not None:
            self._earliest_ns = min(self._earliest_ns, *times)
        self.place = None

    def remove(self, first: int, last: int) -> int:
        """Remove the rows of first..last. Returns: their number."""
        start, end = bisect_left(self.seqs, first), bisect_right(self.seqs, last)
        if start == end:
            return 0
        times = self.times[start:end]
        if self.nevers:
            self.nevers -= times.count(NEVER)
        if self._earliest_ns is not None and min(times) <= self._earliest_ns:
            self._earliest_ns = None
        del self.seqs[start:end], self.times[start:end]
        self.place = None
        return end - start

    def change(self, at: int, time_ns: int) -> int:
        """Change one time. Returns: by how much the number of NEVERs grows."""
        more = (time_ns == NEVER) - (self.times[at] == NEVER)
        self.times[at] = time_ns
        self.nevers += more
        self._earliest_ns = self.place = None
        return more

    def copy(self) -> ExpiryPage:
        """Return a page with the same rows."""
        page = ExpiryPage()
        page.seqs, page.times, page.nevers, page.room = self.seqs[:], self.times[:], self.nevers, self.room
        page._earliest_ns = self._earliest_ns
        return page

    def pack(self) -> list[Any]:
        """Return the page as a value for a checkpoint."""
        return [self.room, packed_bytes(self.seqs), packed_bytes(self.times)]

    @classmethod
    def unpack(cls, packed: Any) -> ExpiryPage:
        """Return the page that ``pack`` packed. Raises: TypeError or ValueError for any other value."""
        page = cls()
        page.room, seqs, times = packed
        page.seqs.extend(unpack_column(seqs))
        page.times.extend(unpack_column(times))
        if len(page.seqs) != len(page.times) or type(page.room) is not int:
            raise ValueError("the columns of a page of expiries are not of one length")
        page.nevers = page.times.count(NEVER)
        return page


class Expiries:
    """The expiries of one stream."""

    __slots__ = ("count", "nevers", "pages")

    def __init__(self) -> None:
        self.pages: list[ExpiryPage] = []
        self.count = 0
        self.nevers = 0
        """The number of messages that never expire."""

    def __len__(self) -> int:
        return self.count

    @property
    def last_seq(self) -> int:
        """The last message that has an expiry; 0: none."""
        return self.pages[-1].seqs[-1] if self.pages else 0

    @property
    def next_ns(self) -> int:
        """The earliest time at which a message expires; NEVER if none does."""
        return min((page.earliest_ns for page in self.pages), default=NEVER)

    def add(self, seqs: Sequence[int], times: Sequence[int]) -> None:
        """Add messages, ascending. Those up to ``last_seq`` are skipped: a page included them before a replay."""
        start = bisect_right(seqs, self.last_seq)
        self.count += len(seqs) - start
        while start < len(seqs):
            if not self.pages or self.pages[-1].room <= 0:
                self.pages.append(ExpiryPage())
            page = self.pages[-1]
            end = min(len(seqs), start + page.room)
            nevers = page.nevers
            page.append(seqs[start:end], times[start:end])
            self.nevers += page.nevers - nevers
            start = end

    def put(self, seq: int, time_ns: int) -> None:
        """Add a message, or change the time of a known one. An unknown earlier one was removed and is skipped."""
        if seq > self.last_seq:
            self.add([seq], [time_ns])
            return
        for page in self._pages(seq, seq):
            at = bisect_left(page.seqs, seq)
            if at < len(page.seqs) and page.seqs[at] == seq:
                self.nevers += page.change(at, time_ns)

    def remove(self, first: int, last: int) -> None:
        """Remove the messages first..last, which left the stream."""
        pages = self.pages
        at = max(0, bisect_right(pages, first, key=_first) - 1)
        emptied = False
        while at < len(pages) and pages[at].seqs[0] <= last:
            page = pages[at]
            nevers = page.nevers
            self.count -= page.remove(first, last)
            self.nevers += page.nevers - nevers
            emptied = emptied or not page.seqs
            at += 1
        if emptied:
            self.pages = [page for page in pages if page.seqs]

    def trim(self, first_seq: int) -> None:
        """Remove all messages below ``first_seq``."""
        if self.pages and self.pages[0].seqs[0] < first_seq:
            self.remove(0, first_seq - 1)

    def due(self, now_ns: int, most: int, first: int = 0) -> list[int]:
        """Return the messages from ``first`` on that have expired, ascending; about the first ``most`` of them."""
        due: list[int] = []
        for page in self.pages[max(0, bisect_right(self.pages, first, key=_first) - 1):]:
            if page.earliest_ns <= now_ns:
                due += [seq for seq, time_ns in zip(page.seqs, page.times, strict=True)
                        if time_ns <= now_ns and seq >= first]
                if len(due) >= most:
                    break
        return due

    def count_due(self, now_ns: int, first: int, last: int) -> int:
        """Return how many of the messages first..last have expired."""
        count = 0
        for page in self._pages(first, last):
            if page.earliest_ns <= now_ns:
                start, end = bisect_left(page.seqs, first), bisect_right(page.seqs, last)
                count += sum(map(now_ns.__ge__, page.times[start:end]))
        return count

    def rows(self, first: int, last: int) -> tuple[array[int], array[int]]:
        """Return sequences and times of the messages in first..last that have an expiry."""
        seqs, times = array("q"), array("q")
        for page in self._pages(first, last):
            start, end = bisect_left(page.seqs, first), bisect_right(page.seqs, last)
            seqs += page.seqs[start:end]
            times += page.times[start:end]
        return seqs, times

    def never(self, first: int, last: int) -> set[int]:
        """Return the messages in first..last that never expire."""
        found: set[int] = set()
        for page in self._pages(first, last):
            if page.nevers:
                found.update(seq for seq, time_ns in zip(page.seqs, page.times, strict=True)
                             if time_ns == NEVER and first <= seq <= last)
        return found

    def copy(self) -> Expiries:
        """Return a table of the same messages."""
        copy = Expiries()
        copy.pages, copy.count, copy.nevers = [page.copy() for page in self.pages], self.count, self.nevers
        return copy

    def load(self, page: ExpiryPage) -> None:
        """Add a page from a checkpoint. Raises: ValueError if it does not follow the previous page."""
        if page.seqs:
            if page.seqs[0] <= self.last_seq:
                raise ValueError("the pages of a stream's expiries overlap")
            self.pages.append(page)
            self.count += len(page.seqs)
            self.nevers += page.nevers

    def _pages(self, first: int, last: int) -> Iterator[ExpiryPage]:
        for page in self.pages[max(0, bisect_right(self.pages, first, key=_first) - 1):]:
            if page.seqs[0] > last:
                return
            yield page


def _first(page: ExpiryPage) -> int:
    return page.seqs[0]


def expires_at(time_ns: int, ttl_seconds: int) -> int:
    """Return when a message of ``time_ns`` expires.

    Returns: NEVER for a negative TTL; for a TTL of centuries, the last time before NEVER.
    """
    return NEVER if ttl_seconds < 0 else min(time_ns + ttl_seconds * 1_000_000_000, NEVER - 1)
