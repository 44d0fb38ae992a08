"""Streams in the store that no account here serves: their account is gone, or this version cannot read them.

Does not own: finding them (the engine).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from broker.storage.format.block import Outcome
from broker.storage.format.records.stream_delete import StreamDelete
from broker.storage.log.owner import OutcomeOwner

if TYPE_CHECKING:
    from broker.storage.log.open_block import OpenBlock
    from broker.storage.log.stream_log import StreamLog
    from broker.storage.state.stream import StreamState

__all__ = ["UnusedStream"]

_log = logging.getLogger(__name__)


class UnusedStream(OutcomeOwner):
    """The owner of a stored stream's last block, which deletes the stream.
    No other object may write the stream's blocks."""

    def __init__(self, state: StreamState) -> None:
        super().__init__(state.stream_id, Outcome())
        self._state = state

    def delete(self, log: StreamLog) -> None:
        """Record the deletion. Once it is persisted, the stream leaves the applied state and its objects are freed."""
        log.block(self).add(StreamDelete())

    def sealing(self, block: OpenBlock[Any]) -> None:
        state = self._state
        block.outcome = Outcome(state.first_seq, state.last_seq, state.msgs, state.bytes, state.first_time_ns)

    def failed(self, error: Exception) -> None:
        _log.error("stream %s > %s could not be deleted: %s", self._state.account, self._state.name, error)
