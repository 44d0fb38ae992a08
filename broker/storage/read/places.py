"""Finds each stream of a store once, although streams move while a reader reads one shard after the other.

A shard keeps the state of a stream that has left, until a while after the stream has arrived in another shard. So a
reader finds the stream itself, or the state that it left behind:

    shard 0, with the catalogue     read first
    shards 1, 2, …                  a stream is in one of them, or has left the shard that the catalogue names

The state that a stream left behind in any other shard is out of date.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broker.storage.format.records.catalogue import CatalogueEntry
from broker.storage.state.applied import ShardState
from broker.storage.state.stream import StreamState

__all__ = ["places"]


def places(states: Iterable[tuple[int, ShardState]], catalogue: Mapping[int, CatalogueEntry] | None,
           ) -> list[tuple[int, StreamState]]:
    """Return the streams, each with its shard.

    Args: ``states``: of shards, by number. ``catalogue``: that of shard 0, which was read before the others; None: it
        is not known, and the state that a stream left behind is returned if no shard has the stream.
    """
    found: dict[tuple[int, str, str], tuple[tuple[bool, int], int, StreamState]] = {}
    for shard, state in states:
        for stream in state.streams.values():
            if stream.departed is not None and catalogue is not None:
                entry = catalogue.get(stream.stream_id)
                if entry is None or entry.shard != shard:
                    continue
            rank = stream.departed is None, stream.moves
            which = stream.stream_id, stream.account, stream.name
            known = found.get(which)
            if known is None or known[0] < rank:
                found[which] = rank, shard, stream
    return [(shard, stream) for _, shard, stream in found.values()]
