"""One stream looked up in a store, without a replay of the shard's state: for programs that stage messages.

    newest checkpoint ── the directory page that may have the name ── the stream
                    └─ not there: it was created since, or does not exist ── the log after the checkpoint

The result may be older than the log by the time since the checkpoint, a minute while a broker runs. The identity of a
stream does not change; a request for a stream that was deleted since is refused.
"""

from __future__ import annotations

from itertools import count
from typing import Any, NamedTuple

from broker.storage.format.errors import FormatError
from broker.storage.format.header import Position
from broker.storage.format.page import decode_page
from broker.storage.objectstore.base import ObjectStore
from broker.storage.paths import ShardPaths
from broker.storage.read.root import Unusable, read_pages, read_root
from broker.storage.read.snapshot import replay
from broker.storage.read.steps import Steps, list_positions, run
from broker.storage.state.applied import ShardState
from broker.storage.state.names import pages_of_name
from broker.storage.state.pages import load_directory
from broker.storage.state.stream import StreamState

__all__ = ["FoundStream", "find_stream", "look_up"]


class FoundStream(NamedTuple):
    """A stream as a checkpoint or the log has it: ``position`` is the last segment with something of it."""

    account: str
    name: str
    stream_id: int
    config: dict[str, Any]
    created_ns: int
    extra: dict[str, Any]
    position: Position
    shard: int = 0


def look_up(paths: ShardPaths, account: str, name: str) -> Steps[FoundStream | None]:
    """Return the stream of this name, or None. If it has left the shard, ``shard`` is the one to which it has moved.

    This takes a listing and two gets if a checkpoint has the stream; otherwise as many as a replay.
    Raises: as ``replay``.
    """
    for position in (yield from list_positions(paths.checkpoints))[-1:]:
        try:
            stream = yield from _in_root(paths, position, account, name)
        except (Unusable, FormatError):
            break  # a replay uses the checkpoint before it, or has the error
        if stream is not None:
            return _found(stream, paths)
    snapshot = yield from replay(paths, lambda *names: names == (account, name), thorough=False)
    found = snapshot.state.stream(account, name) or next(iter(snapshot.state.streams.values()), None)
    return None if found is None or found.restoring else _found(found, paths)


async def find_stream(store: ObjectStore, account: str, name: str, shard: int | None = None) -> FoundStream | None:
    """Do the same as ``look_up`` in a shard, or in all shards of a store. Raises: as ``replay``; StoreError."""
    if shard is not None:
        return await run(look_up(ShardPaths(shard), account, name), store)
    on_its_way: FoundStream | None = None
    for number in count():
        if number and not await store.list(ShardPaths(number).epochs, limit=1):
            return on_its_way
        found = await run(look_up(ShardPaths(number), account, name), store)
        if found is not None and found.shard == number:
            return found
        on_its_way = found or on_its_way
    return on_its_way


def _in_root(paths: ShardPaths, position: Position, account: str, name: str) -> Steps[StreamState | None]:
    """Return the stream from this checkpoint, or None. Raises: Unusable; FormatError."""
    root = yield from read_root(paths, position)
    try:
        indexed, may_have = pages_of_name(root.extra, account, name)
    except (TypeError, ValueError) as error:
        raise Unusable(str(error)) from None
    refs = [ref for ref in root.pages if ref.key in may_have or ref.key not in indexed]
    state = ShardState(lambda *names: names == (account, name))

    def add(data: bytes, at: int) -> None:
        load_directory(state, decode_page(data, refs[at]))

    yield from read_pages(paths, refs, add)
    found = [stream for stream in state.streams.values()
             if (stream.account, stream.name) == (account, name) and not stream.restoring]
    # A stream of that name may have been created since another one moved to another shard.
    return min(found, key=lambda stream: stream.departed is not None, default=None)


def _found(stream: StreamState, paths: ShardPaths) -> FoundStream:
    return FoundStream(stream.account, stream.name, stream.stream_id, stream.config, stream.created_ns, stream.extra,
                       stream.position, paths.shard if stream.departed is None else stream.departed)
