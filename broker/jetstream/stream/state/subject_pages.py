"""Reads the subjects of stored messages from checkpoint pages, which is cheaper than the heads of very many blocks.

Owns: the page that is in memory, and the reaction to an unreadable page: it is dropped, and the blocks are read
    instead.
Does not own: the pages (storage.checkpoint.subject_pages), and the index made of them (subject_state).

A page does not show later removals. A caller must use only the messages of blocks that are in the stream, without their
dead ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.storage.format.errors import FormatError
from broker.storage.objectstore.base import NotFound
from broker.storage.state.subjects import SubjectPage, covering

if TYPE_CHECKING:
    from broker.storage.format.subject_rows import SubjectRows
    from broker.storage.read.reader import BlockReader
    from broker.storage.state.stream import StreamState

__all__ = ["SubjectPages"]

_log = logging.getLogger(__name__)


class SubjectPages:
    """The pages of one stream. ``stored`` returns its applied state; None if the stream was deleted."""

    def __init__(self, stored: Callable[[], StreamState | None], reader: BlockReader) -> None:
        self._stored = stored
        self._reader = reader
        self._rows: SubjectRows | None = None

    def rows_at(self, seq: int) -> SubjectRows | None:
        """Return the rows of the page that contains ``seq``, if that page is in memory."""
        rows = self._rows
        return rows if rows is not None and rows.first_seq <= seq <= rows.last_seq else None

    def covering(self, seq: int) -> SubjectPage | None:
        """Return the page that contains ``seq``, if there is one."""
        state = self._stored()
        return None if state is None else covering(state.subjects, seq)

    async def load(self, page: SubjectPage) -> None:
        """Load this page into memory in place of the previous one.

        If it cannot be read, it and all later pages are dropped, and ``covering`` no longer returns them.
        Raises: StoreError.
        """
        self._rows = None
        try:
            self._rows = await self._reader.subjects(page)
        except (NotFound, FormatError) as error:
            state = self._stored()
            if state is not None and page in state.subjects:  # otherwise another page has replaced it in the meantime
                _log.warning("a page with the subjects of stream %s/%s cannot be used; its blocks are read instead: %s",
                             state.account, state.name, error)
                state.subjects = state.subjects[:state.subjects.index(page)]
                state.dirty = True

    def release(self) -> None:
        """Release the page that is in memory."""
        self._rows = None
