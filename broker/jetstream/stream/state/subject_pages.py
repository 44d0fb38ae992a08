"""The subjects of a stream's stored messages as checkpoints have them, instead of the heads of very many blocks.

Owns: which page is in memory, and what happens when one cannot be read: it is let go, and the blocks are read instead.
Does not own: the pages (storage.checkpoint.subject_pages), the index made of them (subject_state).

A page says nothing of what was removed since: whoever asks takes from it the messages of the blocks that are there, and leaves
out their dead.
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
    """The pages of one stream. ``stored`` gives its applied state; None: it is gone."""

    def __init__(self, stored: Callable[[], StreamState | None], reader: BlockReader) -> None:
        self._stored = stored
        self._reader = reader
        self._rows: SubjectRows | None = None

    def rows_at(self, seq: int) -> SubjectRows | None:
        """The rows of the page with ``seq``, if it is the one in memory."""
        rows = self._rows
        return rows if rows is not None and rows.first_seq <= seq <= rows.last_seq else None

    def covering(self, seq: int) -> SubjectPage | None:
        """The page with ``seq``."""
        state = self._stored()
        return None if state is None else covering(state.subjects, seq)

    async def load(self, page: SubjectPage) -> None:
        """Have this page in memory, and no other; if it cannot be read, ``covering`` gives neither it nor later ones any more.

        Raises: StoreError.
        """
        self._rows = None
        try:
            self._rows = await self._reader.subjects(page)
        except (NotFound, FormatError) as error:
            state = self._stored()
            if state is not None and page in state.subjects:  # otherwise another took its place meanwhile
                _log.warning("a page with the subjects of stream %s/%s cannot be used; its blocks are read instead: %s",
                             state.account, state.name, error)
                state.subjects = state.subjects[:state.subjects.index(page)]
                state.dirty = True

    def release(self) -> None:
        """Have none in memory."""
        self._rows = None
