"""Bodies that give messages a time each, as two columns: expiries and schedules."""

from __future__ import annotations

from broker.storage.format.records.body import as_map, damaged
from broker.storage.format.records.column import unpack_column
from broker.storage.format.records.kinds import RecordKind

__all__ = ["decode_timed_rows"]


def decode_timed_rows(kind: RecordKind, body: object, times: str) -> tuple[list[int], list[int]]:
    """The column ``seqs`` of ``body`` and the one called ``times``, which is as long. Raises: Corrupt."""
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
