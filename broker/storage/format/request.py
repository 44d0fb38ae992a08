"""A request in the inbox of a shard's owner: append these runs to a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from broker.storage.format.document import decode_document, encode_document, field
from broker.storage.format.errors import Corrupt, VersionUnknown
from broker.storage.format.header import NUMBER_MAX, ObjectKind, Position, object_name
from broker.storage.format.staged import STAGED_EPOCH

__all__ = ["BLOCKS_MAX", "BLOCK_MESSAGES_MAX", "MESSAGES_MAX", "RUNS_MAX", "Request", "StagedRun"]

RUNS_MAX = 256
BLOCKS_MAX = 1024
"""Blocks of one request: they become one record, which is applied in one turn of the loop."""
MESSAGES_MAX = 1 << 25
BLOCK_MESSAGES_MAX = 1 << 17
"""Messages of one block: some steps handle a whole block at once."""

_VERSION = 1


class StagedRun(NamedTuple):
    """A run to append: the number and the id in its key, the size of the object, its numbers of blocks and messages."""

    number: int
    run_id: int
    size: int
    blocks: int
    messages: int

    @property
    def position(self) -> Position:
        return Position(STAGED_EPOCH, self.number)


class Request(NamedTuple):
    """A request to append ``runs``, in their order, to the stream of this incarnation: all of them or none.

    ``request_id`` is that of the key; a stream grants a request with the same id once. ``nonce`` is the object's: each
    attempt at the same request has another one.
    """

    request_id: int
    account: str
    stream: str
    stream_id: int
    runs: Sequence[StagedRun]
    nonce: bytes = b""

    def encode(self) -> bytes:
        """Return the whole object."""
        return encode_document(ObjectKind.INBOX, Position(0, 0), self.nonce, {
            "version": _VERSION, "account": self.account, "stream": self.stream, "incarnation": self.stream_id,
            "runs": [list(run) for run in self.runs]}, self.request_id)

    @classmethod
    def decode(cls, data: bytes, request_id: int) -> Request:
        """Decode the request with this id. Raises: Corrupt; VersionUnknown."""
        header, body = decode_document(data, ObjectKind.INBOX, None, request_id)
        name = object_name(ObjectKind.INBOX, Position(0, 0), request_id)
        version = field(body, "version", int, name)
        if version != _VERSION:
            raise (VersionUnknown if version > _VERSION else Corrupt)(
                name, "version", 72, f"it is of version {version}; this reader knows {_VERSION}")
        rows = field(body, "runs", list, name)
        if not all(_is_run(row) for row in rows):
            raise Corrupt(name, "runs", 72, "not a list of runs")
        account, stream, stream_id = (field(body, key, kind, name) for key, kind in (
            ("account", str), ("stream", str), ("incarnation", int)))
        if not account or not stream or not 0 < stream_id < 1 << 64:
            raise Corrupt(name, "incarnation", 72, "no stream has these names and this incarnation")
        return cls(request_id, account, stream, stream_id, [StagedRun(*row) for row in rows], header.nonce)


def _is_run(row: Any) -> bool:
    return (type(row) is list and [*map(type, row)] == [int] * 5 and min(row) >= 0 and row[0] <= NUMBER_MAX
            and row[1] < 1 << 64)
