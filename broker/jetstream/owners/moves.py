"""Moves of streams from one shard to another: requests for them, and this broker's part in each.

    shard 0's owner    answers requests: the catalogue says to which shard the stream goes, and at last where it is
    its shard's owner  lets it leave, and forgets it once no reader needs what it kept              (departures)
    the other's owner  takes what has left                                                          (arrivals)

Owns: which streams begin to move, and when the state that a stream leaves behind is emptied and forgotten.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from broker.jetstream.catalogue import clear_moved
from broker.jetstream.moves import left_behind
from broker.jetstream.owners.arrivals import Arrivals, StoredStream
from broker.jetstream.owners.departures import Departures
from broker.jetstream.owners.follower import STEP_SECONDS, Follower
from broker.jetstream.owners.persisted import PersistedShards
from broker.jetstream.owners.requests import Requests
from broker.jetstream.owners.writer import Writer, check_stays
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError, invalid_config
from broker.storage.format.errors import FormatError
from broker.storage.format.records.catalogue import CatalogueEntry
from broker.storage.objectstore.base import StoreError
from broker.storage.put import Fenced
from broker.storage.state.erasures import REMAINS
from broker.storage.state.stream import SOURCES

if TYPE_CHECKING:
    from broker.base.clock import Clock
    from broker.jetstream.account.account import Account
    from broker.jetstream.bus import Subscription
    from broker.jetstream.owners.peers import Peers
    from broker.jetstream.shard_streams import ShardStreams
    from broker.storage.state.erasures import LeftBehind
    from broker.storage.state.stream import StreamState

__all__ = ["MOVE", "Moves"]

_log = logging.getLogger(__name__)

MOVE: Final = "STREAM.MOVE"
"""The name of the questions that ask for a move."""
_ANSWER_SECONDS: Final = 10.0
"""The time for which an answer waits for the end of a move."""


class Moves:
    """Moves streams between ``shards``, this broker's, and other shards.

    Args: ``keep_seconds``: how long a shard keeps the state of a stream that has moved, for readers that read the
        shards one after the other; ``read``, ``applied``: see
        ``Arrivals``; the others: see ``Departures``.
    """

    def __init__(self, shards: Mapping[int, ShardStreams], serving: Container[int], accounts: Mapping[str, Account],
                 peers: Peers, requests: Requests, persisted: PersistedShards, follower: Follower, writer: Writer, *,
                 flushed: Callable[[str], Coroutine[Any, Any, None]],
                 read: Callable[[int, str, str, int], StoredStream],
                 applied: Callable[[int], object], clock: Clock, keep_seconds: float) -> None:
        self._shards = shards
        self._accounts = accounts
        self._peers = peers
        self._persisted = persisted
        self._follower = follower
        self._writer = writer
        self._applied = applied
        self._clock = clock
        self._keep_ns = int(keep_seconds * 1e9)
        self._moved_ns: dict[tuple[int, int], int] = {}
        """When this broker saw that a stream has moved, by shard and stream."""
        self._entries: Mapping[int, CatalogueEntry] = {}
        """The entries that ``follow`` has seen last."""
        self._read = read
        self._earlier: dict[tuple[int, int], StoredStream] = {}
        """Readers of the streams that are being erased in the shards that they have left, by shard and stream."""
        self._asked: Subscription | None = None
        self.departures = Departures(shards, serving, accounts, peers, requests, follower.changing, flushed=flushed,
                                     keep=self._stopped, left=self._left)
        self.arrivals = Arrivals(shards, serving, accounts, peers, requests, persisted, self.departures,
                                 follower.changing, flushed=flushed, moves=self._moves, read=read,
                                 applied=applied)

    def lead(self) -> None:
        """Answer requests for moves: this broker owns shard 0."""
        self._asked = self._asked or self._peers.answer(MOVE, self._answer)

    def stop_leading(self) -> None:
        """Stop that."""
        if self._asked is not None:
            self._peers.end(self._asked)
            self._asked = None

    async def stop(self) -> None:
        """Stop all of it."""
        self.stop_leading()
        await self.arrivals.stop()
        await self.departures.stop()

    # --- this broker's part -------------------------------------------------------------------------------------------

    def follow(self, entries: Mapping[int, CatalogueEntry], serving: Mapping[int, ShardStreams]) -> None:
        """Begin what the entries ask of the shards that this broker serves, and empty what no reader needs any more."""
        self._entries = entries
        serving = {number: shard for number, shard in serving.items() if self._shards.get(number) is shard}
        for entry in entries.values():
            if entry.to is None:
                continue
            if (shard := serving.get(entry.to)) is not None:
                state = shard.log.state.streams.get(entry.stream_id)
                if state is None or state.departed is not None:
                    self.arrivals.begin(entry, shard)
            if (shard := serving.get(entry.shard)) is not None:
                self.departures.begin(entry)
        for number, shard in serving.items():
            self._clear_moved(number, shard, entries)

    def is_coming(self, number: int, stream_id: int) -> bool:
        """Return whether a stream that has left a shard of this broker may be about to come back: then its arrival may
        be on its way to the log, and no other record may follow."""
        entry = self._entries.get(stream_id)
        return entry is not None and not entry.deleting and number in (entry.shard, entry.to)

    async def left_behind(self, stream: StreamState, number: int) -> list[LeftBehind]:
        """Return what the earlier shards of a stream have of it; it is in shard ``number``.

        Raises: StoreError, FormatError, CutOff.
        """
        found: list[LeftBehind] = []
        for source in stream.extra.get(SOURCES) or range(self._persisted.count):
            if source == number:
                continue
            if (own := self._shards.get(source)) is not None:
                state, owned = own.log.state.streams.get(stream.stream_id), True
            else:
                reader = self._earlier.get((source, stream.stream_id))
                if reader is None:
                    reader = self._earlier[source, stream.stream_id] = self._read(source, stream.account, stream.name,
                                                                                     stream.stream_id)
                state, owned = await reader.read(), self._peers.is_owned(source)
            if (one := left_behind(source, state, owned=owned)) is not None:
                found.append(one)
        if all(one.done for one in found):
            self._earlier = {which: reader for which, reader in self._earlier.items() if which[1] != stream.stream_id}
        return found

    def _clear_moved(self, number: int, shard: ShardStreams, entries: Mapping[int, CatalogueEntry]) -> None:
        now_ns = self._clock.monotonic_ns()
        for state in [one for one in shard.log.state.streams.values() if one.departed is not None]:
            entry, which = entries.get(state.stream_id), (number, state.stream_id)
            if self.is_coming(number, state.stream_id):
                continue  # it has not arrived yet, or comes back
            if entry is not None and not entry.deleting and REMAINS not in state.extra:
                left_ns = self._moved_ns.setdefault(which, now_ns) + self._keep_ns - now_ns
                if left_ns > 0:
                    asyncio.get_running_loop().call_later(left_ns / 1e9, self._follower.wake)
                    continue
            self._moved_ns.pop(which, None)
            clear_moved(shard, state, self._clock.now_ns(), deleted=entry is None or entry.deleting)

    def _moves(self, entry: CatalogueEntry) -> bool:
        """Return whether the catalogue, as last read, has the entry of a move unchanged."""
        seen = self._follower.seen.get(entry.stream_id)
        return seen is not None and (seen.shard, seen.to, seen.moves) == (entry.shard, entry.to, entry.moves)

    def _stopped(self, entry: CatalogueEntry) -> None:
        if 0 in self._shards:
            self._writer.keep_elsewhere(entry)

    def _left(self, entry: CatalogueEntry) -> None:
        self._persisted.changed.set()  # the other shard may be ours, too
        self._applied(entry.shard)

    # --- requests -----------------------------------------------------------------------------------------------------

    def check(self, wanted: str) -> int:
        """Return the number of the shard to which a stream may move. Raises: ApiError 10052; 10008: it has no owner."""
        found = next((number for number in range(self._persisted.count) if str(number) == wanted), None)
        if found is None:
            raise invalid_config(f"there is no shard {wanted}: the store has the shards "
                                 f"{', '.join(map(str, range(self._persisted.count)))}")
        if found not in self._shards and not self._peers.is_owned(found):
            raise ApiError.of(ApiErrors.CLUSTER_NOT_AVAIL, f"shard {found} has no owner now")
        return found

    async def ask(self, account: str, name: str, shard: int) -> None:
        """Let shard 0's owner begin a move. Raises: ApiError."""
        question = {"account": account, "stream": name, "shard": shard, "wait": False}
        if self._writer.ready:
            await self._answer(question)
        else:
            await self._peers.ask(MOVE, question, STEP_SECONDS)

    async def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Begin a move, and wait for its end for a while, unless ``wait`` is false; asked again, wait again. If the
        stream is to move to the shard where it is, an earlier move is given up.

        Raises: ApiError; KeyError, TypeError: the question is not understood.
        """
        account, name = str(question["account"]), str(question["stream"])
        if not self._writer.ready:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
        to = self.check(str(int(question["shard"])))
        entry = self._writer.find(account, name) or self._entry_of_first(account, name)
        answer = {"success": True, "account": account, "stream": name, "from": entry.shard, "shard": to}
        if entry.to is None and entry.shard == to:
            return answer | {"done": True}
        if entry.shard == to:
            await self._give_up(entry)
        elif entry.to != to:
            check_stays(entry)
            if self._follower.is_busy(entry.stream_id):
                raise ApiError.of(ApiErrors.CLUSTER_NOT_AVAIL, f"stream {name} is being changed: try again")
            try:
                await self._writer.announce_move(entry, to)
            except (StoreError, FormatError, Fenced):
                raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL) from None
            self._follower.wake()
        if not question.get("wait", True):
            return answer | {"done": False}
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._writer.until_moved(entry.stream_id)
        except TimeoutError:
            return answer | {"done": False}
        found = self._writer.find(account, name)
        if found is not None and found.to is None and found.shard == entry.shard != to:
            raise invalid_config(f"stream {name} stays in shard {found.shard}: {await self._why_stays(found)}")
        return answer | {"done": found is not None and found.to is None and found.shard == to}

    async def _give_up(self, entry: CatalogueEntry) -> None:
        """Let the owner of a stream's shard give the move up. Raises: ApiError 10008: it has left, or has no owner."""
        if entry.shard in self._shards:
            await self.departures.give_up(entry)
        else:
            await self._peers.ask_owner(entry.shard, {"do": "stay", "id": entry.stream_id}, STEP_SECONDS)

    async def _why_stays(self, entry: CatalogueEntry) -> str:
        """Return why the owner of a stream's shard has given its move up."""
        why = self.departures.why_stays.get(entry.stream_id)
        with suppress(ApiError):
            if why is None:
                answer = await self._peers.ask_owner(entry.shard, {"do": "why", "id": entry.stream_id}, STEP_SECONDS)
                why = answer.get("why")
        return why or "the log of its broker says why"

    def _entry_of_first(self, account: str, name: str) -> CatalogueEntry:
        """Return an entry for a stream of shard 0, which has none. Raises: ApiError 10059, 10194; 10052: in memory."""
        served = self._accounts.get(account)
        if served is None:
            raise ApiError(ApiErrors.NOT_ENABLED_FOR_ACCOUNT)
        stream = served.stream(name)
        if not stream.stored:
            raise invalid_config(f"stream {name} is in memory: only the broker that has it knows its messages, and so "
                                 f"it cannot move")
        return CatalogueEntry(stream.stream_id, 0, account, name, stream.config.to_json(), stream.created_ns)
