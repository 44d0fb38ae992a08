"""The store's streams at one moment: what a query reads, whatever a broker does meanwhile."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from typing import Any

from broker.pipeline.blobs import Blobs
from broker.pipeline.errors import NoStream
from broker.storage.applied import ConsumerState
from broker.storage.format.header import Position
from broker.storage.objectstore.base import NotFound
from broker.storage.paths import ShardPaths
from broker.storage.snapshot import replay, run_blocking
from broker.storage.table import BlockEntry

__all__ = ["StreamMoment", "read_moment", "seq_at_time"]


@dataclass(slots=True)
class StreamMoment:
    """One stream as the store has it. first_seq .. last_seq as the stream counts them; end_seq: the last sequence that
    asOf lets in, last_seq where there is none. position: of the shard's log."""

    account: str
    name: str
    stream_id: int
    shard: int
    config: dict[str, Any]
    created_ns: int
    first_seq: int
    last_seq: int
    msgs: int
    bytes: int
    first_time_ns: int
    last_time_ns: int
    position: Position
    end_seq: int
    blocks: Sequence[BlockEntry] = ()
    consumers: dict[str, ConsumerState] = field(default_factory=dict)
    offline: str | None = None
    """Why the stream cannot be read; None: it can."""


def read_moment(blobs: Blobs, *, account: str = "$G", stream: str = "*", as_of: str | None = None,
                none_ok: bool = False) -> list[StreamMoment]:
    """The streams that ``stream`` (a name, a comma list, ``*`` as a wildcard) means, by account and name.

    Raises: NoStore; NoStream, naming those that are there, unless ``none_ok``; Damaged; Newer; Unreachable; BadOption
        for an ``as_of`` that is none.
    """
    found = []

    def get(key: str, start: int, end: int | None) -> bytes | None:
        try:
            return blobs.get(key, start, end)
        except NotFound:
            return None

    snapshot = run_blocking(replay(ShardPaths(0)), get, blobs.list)
    for state in snapshot.state.streams.values():
        if state.account == account and any(re.fullmatch(translate(one), state.name) for one in stream.split(",")):
            found.append(StreamMoment(
                state.account, state.name, state.stream_id, 0, state.config, state.created_ns, state.first_seq,
                state.last_seq, state.msgs, state.bytes, state.first_time_ns, state.last_time_ns,
                snapshot.state.position, state.last_seq, list(state.blocks), state.consumers, state.offline))
    if not found and not none_ok:
        raise NoStream(f"{blobs.url}: no stream {stream!r}")
    return found


def seq_at_time(blobs: Blobs, moment: StreamMoment, time_ns: int) -> int:
    """The first sequence whose message is of ``time_ns`` or later, ``last_seq + 1`` where none is: reads one index.

    Raises: as ``read_moment``.
    """
    raise NotImplementedError
