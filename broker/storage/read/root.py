"""A checkpoint read into a state: its root, then the pages that the root names.

Owns: the choice of the pages, the pieces in which they are read, and the conditions under which a root is unusable.
Does not own: the bytes (format), the effect of a page on the state (storage.state.pages), the choice of the root
(snapshot).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from broker.storage.format.checkpoint import Root
from broker.storage.format.errors import Corrupt, FormatError, VersionUnknown
from broker.storage.format.header import ObjectKind, Position, object_name
from broker.storage.format.page import Page, PageKind, PageRef, decode_page
from broker.storage.paths import ShardPaths
from broker.storage.read.lazy import LazyBlockRef, unpack_table_page
from broker.storage.read.steps import Gets, Steps
from broker.storage.state.applied import ShardState
from broker.storage.state.pages import Part, load_directory, load_part, note_unlisted, shard_of

__all__ = ["Unusable", "load_root", "read_pages", "read_root"]

_PIECES_AT_ONCE = 32
_PIECE_BYTES = 1 << 20
_BATCH_BYTES = 8 << 20


class Unusable(Exception):
    """A root, or a page of it, is damaged or gone."""


def load_root(paths: ShardPaths, position: Position, wanted: Callable[[str, str], bool] | None,
              until: Position | None, *, whole: bool = False,
              ) -> Steps[tuple[Root, ShardState, dict[int, frozenset[int]]]]:
    """Read the checkpoint at ``position`` into a state.

    Args: wanted(account, name) selects streams; None selects all. until: the last position that pages may have. whole:
        as for ``ShardState``.
    Returns: the root, the state, and the ids of the streams in each directory page.
    Raises: Unusable; VersionUnknown.
    """
    key = paths.checkpoint(position)
    root = yield from read_root(paths, position)
    try:
        state = shard_of(root.extra, root.replay_from, key, wanted, whole=whole)
        needed: list[Part] = []
        members: dict[int, frozenset[int]] = {}

        def in_time(page: Page) -> Page:
            if until is not None and page.position > until:
                # The log continues while a checkpoint copies the state, so a page may be newer than the root.
                raise Unusable(f"{key} has a page of {page.position}")
            return page

        def add_directory(data: bytes, at: int) -> None:
            page = in_time(decode_page(data, root.pages[at]))
            if page.kind != PageKind.DIRECTORY:
                raise Corrupt(key, "pages", 0, f"a root names a page of kind {page.kind}")
            needed.extend(load_directory(state, page, object_name(ObjectKind.PAGES, root.pages[at].position)))
            members[page.key] = frozenset(entry[0] for entry in page.body)

        def add_part(data: bytes, at: int) -> None:
            part = needed[at]
            if part.ref.kind != PageKind.BLOCKS:
                load_part(state, in_time(decode_page(data, part.ref)), part)
            elif state.whole:
                load_part(state, in_time(decode_page(data, part.ref, None)), part)
            else:
                load_part(state, in_time(decode_page(data, part.ref, unpack_table_page)), part, LazyBlockRef.unpack)

        yield from read_pages(paths, root.pages, add_directory)
        yield from read_pages(paths, [part.ref for part in needed], add_part)
        if state.whole:
            note_unlisted(state, root.extra)
    except VersionUnknown:
        raise
    except (FormatError, ValueError) as error:
        raise Unusable(f"{key}: {error}") from None
    return root, state, members


def read_root(paths: ShardPaths, position: Position) -> Steps[Root]:
    """Read the root at ``position``. Raises: Unusable; VersionUnknown."""
    key = paths.checkpoint(position)
    [data] = yield Gets([(key, 0, None)])
    if data is None:
        raise Unusable(f"{key} is gone")
    try:
        return Root.decode(data, position)
    except VersionUnknown:
        raise
    except FormatError as error:
        raise Unusable(f"{key}: {error}") from None


def read_pages(paths: ShardPaths, refs: Sequence[PageRef], add: Callable[[bytes, int], None]) -> Steps[None]:
    """Pass each page's bytes to ``add`` with its place in ``refs``, in order.

    One page at a time is decoded, since decoded pages are many times as large. Pages that are neighbours in their
    object are read in one piece.
    """
    pieces = list(_pieces(refs))
    at = 0
    while at < len(pieces):
        batch: list[range] = []
        size = 0
        while (at < len(pieces) and len(batch) < _PIECES_AT_ONCE
               and (not batch or size + _size(pieces[at], refs) <= _BATCH_BYTES)):
            batch.append(pieces[at])
            size += _size(pieces[at], refs)
            at += 1
        found = yield Gets([(paths.pages(refs[some[0]].position), refs[some[0]].offset,
                             refs[some[-1]].offset + refs[some[-1]].size)
                            for some in batch])
        for some, data in zip(batch, found, strict=True):
            start = refs[some[0]]
            if data is None:
                raise Unusable(f"{paths.pages(start.position)}, which it names, is gone")
            for i in some:
                begin = refs[i].offset - start.offset
                add(data[begin:begin + refs[i].size], i)


def _pieces(refs: Sequence[PageRef]) -> Iterator[range]:
    """Yield ranges of ``refs`` that are neighbours in their object, up to the size that one request reads."""
    start = 0
    for i in range(1, len(refs) + 1):
        if i == len(refs) or not (refs[i].position == refs[i - 1].position
                                  and refs[i].offset == refs[i - 1].offset + refs[i - 1].size
                                  and refs[i].offset + refs[i].size - refs[start].offset <= _PIECE_BYTES):
            yield range(start, i)
            start = i


def _size(piece: range, refs: Sequence[PageRef]) -> int:
    return refs[piece[-1]].offset + refs[piece[-1]].size - refs[piece[0]].offset
