"""Pages of a block table that are packed in memory: the same blocks, counts and searches as without packing."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from broker.storage.format.block import BlockPlace, BlockRef, PackedRef
from broker.storage.format.codec import pack_value, unpack_value
from broker.storage.format.errors import Corrupt
from broker.storage.format.header import Position
from broker.storage.format.page import PageBody, PageKind, PageRef
from broker.storage.format.subject_filter import encode_filter
from broker.storage.state import packed as packed_module
from broker.storage.state import table as table_module
from broker.storage.state.packed import Packed
from broker.storage.state.table import BlockEntry, BlockTable, Kept, TablePage, log_keys, run_keys


class Source:
    """Makes blocks of one stream: in segments and runs, of several epochs, with and without gaps and subjects."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.epoch, self.number, self.seq = 1, 0, 0

    def block(self) -> PackedRef:
        rng = self.rng
        if rng.random() < 0.05:
            self.epoch, self.number = self.epoch + rng.randrange(1, 4), 0
        self.number += rng.choice((1, 1, 1, 2, 300, 70_000))
        first = self.seq + rng.choice((1, 1, 1, 5))
        count = rng.randrange(1, 20)
        last = first + count - 1 + rng.choice((0, 0, 0, 3, 20_000))
        self.seq = last
        place = rng.choice((BlockPlace.LOG, BlockPlace.LOG, BlockPlace.RUN, BlockPlace.STREAM_RUN))
        names = [b"s.%d" % i for i in range(rng.choice((1, 3, 16, 40)))]
        position = Position(self.epoch, self.number) if place is BlockPlace.LOG else Position(1, rng.randrange(4))
        return BlockRef(place, position, 0 if place is BlockPlace.LOG else 9, 7, 0, 200, 200, 50, 250, 100, first, last,
                        count,
                        40 * count, 1, 2, None if len(names) > 16 else tuple((name, 1, first, last) for name in names),
                        encode_filter(names) if len(names) > 16 else None).pack()

    def entry(self) -> Kept:
        """Return a block, perhaps with a dead message."""
        ref = self.block()
        entry = BlockEntry(BlockRef.of(ref))
        if self.rng.random() < 0.3 and entry.ref.count > 1:
            entry.remove(entry.first_seq, entry.first_seq, 1, 40)
        return entry if entry.dead is not None else ref


def plain(entries: Any) -> list[Any]:
    """Return blocks as msgpack decodes them."""
    return [unpack_value(pack_value((kept,) if type(kept) is tuple else kept.pack())) for kept in entries]


def packed_of(entries: list[Kept]) -> Packed:
    page = TablePage.of(entries)
    packed = page.pack()
    packed.body.pack()
    return packed


@pytest.mark.parametrize("seed", range(10))
def test_packed_blocks_equal_the_blocks(seed: int) -> None:
    """Shows that a packed page has the same blocks, and that its summary from a checkpoint has the same objects."""
    source = Source(seed)
    entries = [source.entry() for _ in range(source.rng.choice((1, 2, 60, 1024)))]
    packed = packed_of(entries)
    summary = unpack_value(pack_value(packed.summary))
    again = Packed.summarized(PageBody.unpack(packed.body.inline(7), 7), summary, filters=packed.filters)
    for one in (packed, again):
        assert plain(one.entries()) == plain(entries)
        assert list(one.log_keys()) == sorted(log_keys(entries))
        assert dict(one.run_counts(7)) == Counter(run_keys(7, entries))
        assert one.filters == any(type(row[0][-1]) is bytes for row in plain(entries))


def test_a_page_that_does_not_match_its_summary_is_refused() -> None:
    """Shows an error with the object's name, for a page of other blocks and for an inconsistent summary."""
    source = Source(1)
    one, other = packed_of([source.block() for _ in range(5)]), packed_of([source.block() for _ in range(5)])
    swapped = Packed.summarized(other.body, one.summary, filters=False)
    swapped.source = PageRef(Position(2, 3), 4096, 100, PageKind.BLOCKS, 7)
    with pytest.raises(Corrupt, match=r"4096.*not match its summary") as found:
        swapped.entries()
    assert "00000002-000000000003" in found.value.name
    first, front, last, count, *facts = one.summary
    for wrong in ((first, front, last, count + 1, *facts), (0, front, last, count, *facts),
                  (first, front, first - 1, count, *facts), (first, front, last, count, *facts[1:]),
                  (first, front, last, 1 << 40, *facts[:-2], [(1, 1, 1 << 40, 0, 0, b"")], [])):
        with pytest.raises(ValueError):
            Packed.summarized(one.body, wrong, filters=False)
    body = PageBody.later(lambda: pack_value([1, [[[1, 2, 3]]]]))
    with pytest.raises(Corrupt, match="other fields"):
        Packed(body, (1, 1, 1, 1, 1, 1, 1, 1, (), ()), filters=False).entries()


class Twins:
    """A table that is partly packed now and then, and an equal one that never is."""

    def __init__(self, seed: int) -> None:
        self.source = Source(seed)
        self.rng = self.source.rng
        self.plain = BlockTable()
        self.packed = BlockTable()

    def same(self) -> None:
        assert plain(self.packed) == plain(self.plain)
        assert plain(self.packed.steady()) == plain(self.plain)
        assert len(self.packed) == len(self.plain)
        assert self.packed.last_seq == self.plain.last_seq
        assert [page.room for page in self.packed.pages] == [page.room for page in self.plain.pages]
        assert _counts(self.packed.pages) == _counts(self.plain.pages)
        for _ in range(3):
            seq = self.rng.randrange(self.source.seq + 2)
            found = [table.find(seq) for table in (self.packed, self.plain)]
            assert len({None if one is None else one.first_seq for one in found}) == 1
            since = [[one.first_seq for one in table.since(seq)] for table in (self.packed, self.plain)]
            assert since[0] == since[1]

    def step(self) -> None:
        rng, tables = self.rng, (self.packed, self.plain)
        what = rng.random()
        if what < 0.5:
            for _ in range(rng.randrange(1, 12)):
                ref = self.source.block()
                assert [table.append(ref) for table in tables] == [True, True]
                assert [table.append(ref) for table in tables] == [False, False]
        elif what < 0.7:
            first = rng.randrange(1, self.source.seq + 2)
            last = first + rng.choice((0, 3, 30, 400))
            left = [table.remove(first, last, last - first + 1, 40) for table in tables]
            assert _counts(table_module.pages_of(left[0])) == _counts(table_module.pages_of(left[1]))
        elif what < 0.75:
            first = rng.randrange(1, self.source.seq + 2)
            ranges = [(seq, seq + rng.choice((0, 0, 0, 2, 30)), 1, 40)
                      for seq in range(first, first + rng.choice((5, 200)), rng.choice((1, 2, 7)))]
            one_by_one = [kept for removed in ranges for kept in self.plain.remove(*removed)]
            together = self.packed.remove_all(ranges)
            assert _counts(table_module.pages_of(together)) == _counts(table_module.pages_of(one_by_one))
        elif what < 0.8:
            entries = list(self.plain)
            if entries:
                at = rng.randrange(len(entries))
                some = entries[at:at + rng.randrange(1, 8)]
                first, last = some[0].first_seq, some[-1].last_seq
                ref = BlockRef(BlockPlace.RUN, Position(9, 1), 5, 7, 0, 1, 1, 1, 2, 1, first, last, sum(
                    one.ref.count for one in some), 40, 1, 2, None)
                stays = rng.random() < 0.8
                for table in tables:
                    assert table.follows(entries[at].first_seq, some[1].first_seq) if len(some) > 1 else True
                    table.swap(table.within(first, last), BlockEntry(ref) if stays else None)
        elif what < 0.9:
            first = rng.choice((0, self.source.seq // 4, self.source.seq // 2))
            trimmed = [_counts(table.trim(first)) for table in tables]
            assert trimmed[0] == trimmed[1]
        elif what < 0.92:
            left_pages = [table.clear() for table in tables]
            assert _counts(left_pages[0]) == _counts(left_pages[1])
        for page in self.packed.pages:
            if rng.random() < 0.3:
                kept = page.pack()
                kept.body.pack()
                page.keep(kept)


def _counts(pages: list[TablePage]) -> tuple[Counter[int], Counter[Any]]:
    """Return the number of live blocks in each segment and run."""
    segments: Counter[int] = Counter()
    runs: Counter[Any] = Counter()
    for page in pages:
        segments.update(page.log_keys())
        for run, count in page.run_counts(7):
            runs[run] += count
    return segments, runs


@pytest.mark.parametrize("seed", range(8))
def test_a_table_is_the_same_packed_or_not(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows appends, removals, merges by compaction and trims, with small pages and almost nothing kept unpacked."""
    monkeypatch.setattr(table_module, "PAGE_ENTRIES", 16)
    monkeypatch.setattr(packed_module, "_recent", packed_module._Recent(8))
    twins = Twins(seed)
    for _ in range(60):
        twins.step()
        twins.same()


def test_few_blocks_stay_unpacked() -> None:
    """Shows a bound on unpacked blocks, for any number of pages used."""
    recent = packed_module._Recent(100)
    source = Source(3)
    pages = [packed_of([source.block() for _ in range(30)]) for _ in range(20)]
    for page in pages:
        recent.put(page, page.entries())
    assert sum(len(entries) for entries in recent._entries.values()) == recent._count <= 100
    assert recent.get(pages[-1]) is not None
    assert recent.get(pages[0]) is None
