"""The bodies of expiry and schedule records: a time for each message, as two columns."""

from __future__ import annotations

from broker.storage.format.records.body import as_map, damaged
from broker.storage.format.records.column import unpack_column
from broker.storage.format.records.kinds import RecordKind

__all__ = ["decode_timed_rows"]


def decode_timed_rows(kind: RecordKind, body: object, times: str) -> tuple[list[int], list[int]]:
    """Return the column ``seqs`` of ``body`` and the column named ``times``, of the same length. Raises: Corrupt."""
    members = as_map(kind, body)
    columns = []
    for key in ("seqs", times):
        try:
            columns.append(unpack_column(members[key]))
        except KeyError:
            raise damaged(kind, key, "missing") from None
        except (TypeError, ValueError):
            raise damaged(kind, key, "not a column") from None
    seqs, found = columns
    if len(seqs) != len(found):
        raise damaged(kind, times, "not as long as seqs")
    return seqs, found
