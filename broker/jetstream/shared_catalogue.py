"""The catalogue of a store whose shards several brokers own, and how each of them follows it.

    shard 0's owner      writes the entries, one step of a stream at a time
    shard k's owner      reads the entries in the store, and carries them out in shard k
    shard 0's owner      reads shard k in the store, and takes the next step

    create    entry                   k: create record; the stream serves; the client gets its answer
    update    entry with the config   k: update record                       subjects that it gave up are free
    delete    deleting                k: delete record                       entry gone: name and subjects are free

These rules make it safe, whatever crashes, is late, or acts after it lost its shard (docs/adr/0027-owners.md):

    1  nobody acts on an entry that is not persisted
    2  who takes shard k reads the catalogue after that, and carries out what k lacks before k serves (``settle``)
    3  the next step of a stream begins only when k has, in the store, what the step before it asked for (``_stored``)

Owns: the catalogue of a broker that owns shard 0, and what this broker last read of other shards.
Does not own: the streams (accounts), the messages between brokers (peers).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from broker.jetstream.catalogue import SHARD, Catalogue, settle_stream
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError, invalid_config
from broker.storage.format.errors import CutOff, FormatError
from broker.storage.format.header import Position
from broker.storage.format.records.catalogue import Catalogue as CatalogueRecord
from broker.storage.format.records.catalogue import CatalogueEntry
from broker.storage.objectstore.base import StoreError
from broker.storage.put import Fenced

if TYPE_CHECKING:
    from broker.jetstream.account.account import Account
    from broker.jetstream.bus import Subscription
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.peers import Peers
    from broker.jetstream.shard_streams import ShardStreams
    from broker.jetstream.stream.stream import Stream
    from broker.storage.format.records.stream_create import StreamCreate
    from broker.storage.format.records.stream_update import StreamUpdate
    from broker.storage.log.log import Log
    from broker.storage.log.stream_log import StreamLog
    from broker.storage.state.applied import ShardState

__all__ = ["SharedCatalogue"]

_log = logging.getLogger(__name__)

STEP_SECONDS: Final = 4.0
"""The time for which a request waits for another broker: less than clients wait for their answer."""

GATHER_SECONDS: Final = 2.0
"""The time for which lists and account information wait for other brokers."""

_POLL_SECONDS: Final = 1.0
"""The time after which the store is read again if no hint comes, while something is awaited."""

_AT_ONCE: Final = 256
"""Entries that are compared in one turn of the loop."""

CATALOGUE: Final = "CATALOGUE"
APPLIED: Final = "APPLIED."


class Shard(Protocol):
    """A shard that another broker owns, as far as it is persisted."""

    async def read(self) -> ShardState:
        """Return the state that includes everything persisted when this call began."""


class SharedCatalogue(Catalogue):
    """See the module. ``shards`` are those that this broker owns, of ``count``; ``accounts`` are JetStream's.

    Args: ``read(number)`` returns another broker's shard, for shard 0 without its streams; ``idle_seconds`` is the time
        after which the catalogue is read again if there was no hint; ``flushed(account)`` returns once the other
        servers know what this broker subscribes to in the account; ``show`` returns the members of a StreamInfo.
    """

    def __init__(self, shards: Mapping[int, ShardStreams], accounts: Mapping[str, Account], peers: Peers, count: int,
                 read: Callable[[int], Shard], rng: random.Random, *, idle_seconds: float,
                 flushed: Callable[[str], Coroutine[Any, Any, None]],
                 show: Callable[[Account, Stream], Coroutine[Any, Any, dict[str, Any]]]) -> None:
        super().__init__(shards)
        self.peers = peers
        self.count = count
        self._accounts = accounts
        self._rng = rng
        self._idle_seconds = idle_seconds
        self._flushed = flushed
        self._show = show
        self._others = {number: read(number) for number in range(count)}
        self._read = read
        self._seen: Mapping[int, CatalogueEntry] = {}
        """The persisted entries, as this broker last read them."""
        self._read_to = Position(0, 0)
        """The position in shard 0's log up to which this broker has read the catalogue."""
        self._busy: Counter[int] = Counter()
        """The streams of this broker's shards that a request is changing."""
        self._changed = asyncio.Event()
        """Set when the catalogue, or a shard that is awaited, may have changed."""
        self._looked: asyncio.Event = asyncio.Event()
        self._finishing: dict[int, asyncio.Task[None]] = {}
        """The deletions that wait for their shards, by stream."""
        self._pending: dict[asyncio.Future[None], int] = {}
        """The steps that requests wait for, each with the shard that it needs."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._listening: dict[int | str, Subscription] = {}
        self._following: asyncio.Task[None] | None = None
        self._seeing: asyncio.Future[None] | None = None
        """Done once the catalogue was read after the call that made it."""
        self._carried_out: dict[int, CatalogueEntry] = {}
        """The entries that this broker's shards have, as they were read."""
        self._learned = False
        """True once this broker knows which streams the other brokers' shards have, while it owns shard 0."""

    # --- life ---------------------------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """True if this broker owns shard 0 and knows the streams of all others."""
        return self._learned and 0 in self._shards

    def start(self) -> None:
        """Follow the catalogue from now on."""
        self._listening[CATALOGUE] = self.peers.listen(CATALOGUE, self._changed.set)
        self._listening[APPLIED] = self.peers.listen(APPLIED + "*", self._looked.set)
        self._following = asyncio.get_running_loop().create_task(self._follow(), name="follow the catalogue")

    async def stop(self) -> None:
        """Stop following, and answer nothing more."""
        for subscription in self._listening.values():
            self.peers.end(subscription)
        self._listening.clear()
        tasks = [*self._tasks, *self._finishing.values(), *([self._following] if self._following is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.peers.stop()

    async def settle(self, log: Log, number: int) -> None:
        """Carry out in a shard, which was just taken and does not serve, what the catalogue says and it does not have.

        Rule 2: the catalogue is read after the shard was taken, so no earlier owner has acted on a newer one. It is
        read in the store, even if this broker believes that it owns shard 0: another broker may have taken that.
        Raises: Fenced, StoreError, FormatError, CutOff.
        """
        if not number:
            return
        changed = False
        for entry in (await self._read_in_store()).values():
            if entry.shard == number:
                changed |= settle_stream(entry, log)
        if changed:
            log.urgent()
            await log.persisted()

    def opened(self, number: int) -> None:
        """Serve a shard, whose streams are restored."""
        for account in self._accounts.values():
            for name in [name for name, one in account.elsewhere.items() if one.entry.shard == number]:
                account.forget_elsewhere(name)
        if not number:
            for account in self._accounts.values():
                account.forget_all_elsewhere()
            self.open(self._shards[0].log.state.catalogue)
            self._learned = False
            self._spawn(self._learn(self._shards[0]), "learn the streams of other brokers")
        elif 0 in self._shards:
            self._finish_all()
        self._listening[number] = self.peers.answer(number, partial(self._answer, number))
        self._applied(number)
        self._changed.set()

    def closed(self, number: int) -> None:
        """Forget a shard that was lost or given back, and is no longer among ``shards``."""
        if (subscription := self._listening.pop(number, None)) is not None:
            self.peers.end(subscription)
        for future, needed in list(self._pending.items()):
            if needed == number and not future.done():
                future.set_exception(ApiError(ApiErrors.CLUSTER_NOT_AVAIL))
        self._others[number] = self._read(number)
        self._carried_out.clear()
        if not number:
            self._learned = False
            for task in self._finishing.values():
                task.cancel()
            for account in self._accounts.values():
                account.forget_all_elsewhere()
            self.entries = {}
        elif 0 in self._shards:
            for entry in list(self.entries.values()):
                if entry.shard == number:
                    self._keep_elsewhere(entry)
            self._finish_all()
        self._changed.set()

    def account_added(self, account: Account) -> None:
        """Take the names and subjects that an account's streams in other shards have."""
        for entry in self.entries.values() if self._learned else ():
            if entry.account == account.name and entry.shard not in self._shards:
                account.keep_elsewhere(entry)

    # --- for accounts -------------------------------------------------------------------------------------------------

    def place(self, config: StreamConfig) -> int:
        """Return the shard for a new stream: one that has an owner. Raises: ApiError 10052; 10008 if there is none."""
        if not self.leads:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
        if config.storage == "memory":
            return 0
        wanted = config.metadata.get(SHARD)
        if wanted is not None:
            found = next((number for number in range(self.count) if str(number) == wanted), None)
            if found is None:
                raise invalid_config(f"metadata {SHARD} is {wanted!r}, and the store has the shards "
                                     f"{', '.join(map(str, range(self.count)))}")
            if found not in self._shards and not self.peers.is_owned(found):
                raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
            return found
        streams = dict.fromkeys(range(self.count), 0)
        for entry in self.entries.values():
            streams[entry.shard] += 1
        streams[0] = self._shards[0].streams
        return min((number for number in streams if number in self._shards or self.peers.is_owned(number)),
                   key=lambda number: (streams[number], number))

    def is_elsewhere(self, shard: int) -> bool:
        return shard not in self._shards

    def create(self, stream: Stream, record: StreamCreate) -> asyncio.Future[None] | None:
        shard = self._of(stream.log)
        if shard is None or not shard.number:
            return super().create(stream, record)
        entry = CatalogueEntry(stream.stream_id, shard.number, record.account, record.name, record.config,
                               record.created_ns)
        shard.streams += 1
        self.entries[entry.stream_id] = entry
        return self._step(stream.stream_id, shard.number, self._create(entry, stream, record))

    def create_elsewhere(self, account: str, config: StreamConfig, shard: int, now_ns: int,
                         ) -> tuple[CatalogueEntry, asyncio.Future[None]]:
        """Let another broker create a stream. Returns: its entry, and a future that is done once it is persisted."""
        while (stream_id := self._rng.getrandbits(63) | 1 << 62) in self.entries:
            pass
        entry = CatalogueEntry(stream_id, shard, account, config.name, config.to_json(), now_ns)
        self.entries[stream_id] = entry
        return entry, self._step(stream_id, 0, self._commit([entry]))

    async def shown(self, entry: CatalogueEntry) -> dict[str, Any]:
        """Return the info of a stream in another broker's shard, once it serves. Raises: ApiError."""
        question = {"do": "show", "account": entry.account, "name": entry.name, "id": entry.stream_id}
        answer = await self.peers.ask(entry.shard, question, STEP_SECONDS)
        info: dict[str, Any] = answer["info"]
        return info

    def update(self, stream: Stream, config: StreamConfig) -> asyncio.Future[None] | None:
        shard = self._of(stream.log)
        if shard is None or not shard.number:
            return super().update(stream, config)
        step = self._update if 0 in self._shards else self._update_by_owner_of_0
        return self._step(stream.stream_id, shard.number, step(stream, shard, config))

    @asynccontextmanager
    async def deleting(self, stream: Stream) -> AsyncIterator[None]:
        shard = self._of(stream.log)
        if shard is None or not shard.number or 0 in self._shards:
            yield
            return
        with self._changing(stream.stream_id):
            await self._announced(stream.stream_id)
            yield

    def delete(self, stream_id: int, log: StreamLog, delete: Callable[[], object]) -> asyncio.Future[None] | None:
        shard = self._of(log)
        if shard is None or not shard.number:
            return super().delete(stream_id, log, delete)
        entry = self.entries.get(stream_id)
        if entry is not None and entry.deleting:
            return self._step(stream_id, 0, self._gone(stream_id))
        shard.streams -= 1
        return self._step(stream_id, shard.number, self._delete(stream_id, shard, delete))

    # --- steps of the owner of a stream's shard -----------------------------------------------------------------------

    async def _create(self, entry: CatalogueEntry, stream: Stream, record: StreamCreate) -> None:
        await self._commit([entry])
        self._record(stream, record)

    async def _update(self, stream: Stream, shard: ShardStreams, config: StreamConfig) -> None:
        await shard.log.persisted()  # rule 3
        entry = self.entries[stream.stream_id] = replace(self._entry(stream.stream_id), config=config.to_json())
        await self._commit([entry])
        self._record(stream, stream.enforcement.update_record(config))

    async def _update_by_owner_of_0(self, stream: Stream, shard: ShardStreams, config: StreamConfig) -> None:
        wanted = config.to_json()
        await self.peers.ask(0, {"do": "update", "id": stream.stream_id, "config": wanted}, STEP_SECONDS)
        await self._until_seen(lambda: (one := self._seen.get(stream.stream_id)) is not None and one.config == wanted)
        self._record(stream, stream.enforcement.update_record(config))
        shard.log.wait(self._applied, shard.number)

    async def _announced(self, stream_id: int) -> None:
        """Let shard 0's owner announce the deletion, and see it in the store."""
        def seen() -> bool:
            return (entry := self._seen.get(stream_id)) is not None and entry.deleting

        if not seen():
            await self.peers.ask(0, {"do": "delete", "id": stream_id}, STEP_SECONDS)
            await self._until_seen(seen)

    async def _delete(self, stream_id: int, shard: ShardStreams, delete: Callable[[], object]) -> None:
        if 0 in self._shards:
            await shard.log.persisted()  # rule 3
            self._finish(await self._announce(self._entry(stream_id)))
        else:
            await self._announced(stream_id)
        if shard.log.failure is not None:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
        if delete() is False:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)  # the shard's next owner deletes it
        shard.log.barrier()
        shard.log.urgent()
        await shard.log.persisted()
        self._applied(shard.number)
        await self._gone(stream_id)

    async def _gone(self, stream_id: int) -> None:
        """Return once the stream's name and subjects are free."""
        if 0 not in self._shards:
            await self.peers.ask(0, {"do": "gone", "id": stream_id}, STEP_SECONDS)
        elif (task := self._finishing.get(stream_id)) is not None:
            await asyncio.wait((task,))
            if stream_id in self.entries:
                raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)

    def _record(self, stream: Stream, record: StreamCreate | StreamUpdate) -> None:
        """Raises: ApiError 10008 if the shard was lost meanwhile."""
        shard = self._of(stream.log)
        if shard is None or shard.log.failure is not None:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
        stream.log.block(stream).add(record)
        stream.log.barrier()
        stream.log.urgent()

    def _entry(self, stream_id: int) -> CatalogueEntry:
        entry = self.entries.get(stream_id)
        if entry is None or entry.deleting:
            raise ApiError(ApiErrors.STREAM_NOT_FOUND)
        return entry

    # --- steps of shard 0's owner -------------------------------------------------------------------------------------

    async def _commit(self, entries: Sequence[CatalogueEntry] = (), gone: Sequence[int] = ()) -> None:
        """Change the catalogue, and return once that is persisted. Raises: ApiError 10008 if shard 0 is lost."""
        first = self._shards.get(0)
        if first is None or first.log.failure is not None:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
        first.log.block(first.log.shard).add(CatalogueRecord(entries, gone))
        first.log.urgent()
        await first.log.persisted()
        self.peers.hint(CATALOGUE)

    async def _announce(self, entry: CatalogueEntry) -> CatalogueEntry:
        deleting = replace(entry, deleting=True)
        self.entries[entry.stream_id] = deleting
        await self._commit([deleting])
        return deleting

    def _finish_all(self) -> None:
        for entry in list(self.entries.values()):
            if entry.deleting:
                self._finish(entry)

    def _finish(self, entry: CatalogueEntry) -> None:
        """Remove the entry of a deleted stream once its shard has stored the deletion; the name is free then."""
        if entry.stream_id not in self._finishing:
            task = asyncio.get_running_loop().create_task(self._until_deleted(entry), name="finish a deletion")
            self._finishing[entry.stream_id] = task
            task.add_done_callback(lambda _: self._finished(entry.stream_id, task))

    def _finished(self, stream_id: int, task: asyncio.Task[None]) -> None:
        if self._finishing.get(stream_id) is task:
            del self._finishing[stream_id]
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(
                error, ApiError | Fenced):
            _log.error("a deletion could not be finished", exc_info=error)

    async def _until_deleted(self, entry: CatalogueEntry) -> None:
        await self._until_stored(entry.shard, lambda state: entry.stream_id not in state.streams)
        await self._commit(gone=[entry.stream_id])
        self.entries.pop(entry.stream_id, None)
        account = self._accounts.get(entry.account)
        if account is not None and (one := account.elsewhere.get(entry.name)) is not None \
                and one.entry.stream_id == entry.stream_id:
            account.forget_elsewhere(entry.name)

    async def _stored(self, entry: CatalogueEntry) -> None:
        """Rule 3: return once the stream's shard has, in the store, what the entry says."""
        await self._until_stored(entry.shard, lambda state: (one := state.streams.get(entry.stream_id)) is not None
                                 and (one.config == entry.config or one.offline is not None))

    async def _until_stored(self, number: int, holds: Callable[[ShardState], bool]) -> None:
        """Return once the persisted state of a shard is as awaited; the shard may have any owner, or none."""
        while True:
            self._looked.clear()
            with suppress(StoreError, FormatError, CutOff):
                if holds(await self._state(number)):
                    return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._looked.wait(), _POLL_SECONDS)

    async def _state(self, number: int) -> ShardState:
        own = self._shards.get(number)
        return own.log.state if own is not None else await self._others[number].read()

    def _keep_elsewhere(self, entry: CatalogueEntry) -> None:
        if (account := self._accounts.get(entry.account)) is not None:
            account.keep_elsewhere(entry)

    async def _learn(self, first: ShardStreams) -> None:
        """Take the names and subjects of the streams of other brokers, including subjects that a broker serves yet."""
        waiting = []
        for number in range(1, self.count):
            if number in self._shards or not any(entry.shard == number for entry in self.entries.values()):
                continue
            states: list[ShardState] = []

            def known(state: ShardState, states: list[ShardState] = states) -> bool:
                states.append(state)
                return True

            await self._until_stored(number, known)
            if self._shards.get(0) is not first:
                return
            for entry in list(self.entries.values()):
                if entry.shard != number or number in self._shards:
                    continue
                self._keep_elsewhere(entry)
                had = states[-1].streams.get(entry.stream_id)
                if had is not None and had.config != entry.config and not entry.deleting:
                    waiting.append((entry, had.config))
        for entry, config in waiting:
            if (account := self._accounts.get(entry.account)) is not None:
                account.claim_elsewhere(entry.name, config.get("subjects") or ())
                self._spawn(self._free(entry, account), "free subjects")
        self._learned = True
        self._finish_all()

    async def _free(self, entry: CatalogueEntry, account: Account) -> None:
        """Free the subjects that updates gave up, once the stream's owner no longer serves them."""
        def stored(state: ShardState) -> bool:
            newest, one = self.entries.get(entry.stream_id), state.streams.get(entry.stream_id)
            return newest is None or newest.deleting or (one is not None and one.config == newest.config)

        await self._until_stored(entry.shard, stored)
        newest = self.entries.get(entry.stream_id)
        if newest is not None and not newest.deleting:
            account.free_subjects_elsewhere(entry.name)

    # --- questions of other brokers -----------------------------------------------------------------------------------

    async def _answer(self, number: int, question: dict[str, Any]) -> dict[str, Any]:
        """Answer a question to the owner of a shard. Raises: ApiError; KeyError, TypeError: it is not understood."""
        shard = self._shards.get(number)
        if shard is None or not shard.available:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)  # another broker may own it
        match question["do"]:
            case "show":
                return await self._answer_show(number, question)
            case "infos":
                return await self._answer_infos(question)
            case "usage":
                account = self._accounts.get(question["account"])
                return {} if account is None else account.usage_of(shard.log)
        if number or not self.leads:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
        stream_id = question["id"]
        match question["do"]:
            case "gone":
                await self._gone(stream_id)
            case "delete":
                if (entry := self.entries.get(stream_id)) is None or not entry.deleting:
                    await self._delete_elsewhere(self._entry(stream_id))
            case "update":
                await self._answer_update(self._entry(stream_id), question["config"])
        return {}

    async def _delete_elsewhere(self, entry: CatalogueEntry) -> None:
        """Announce the deletion of a stream of another broker, which deletes it."""
        await self._stored(entry)
        if self._entry(entry.stream_id) is not entry:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
        deleting = await self._announce(entry)
        self._keep_elsewhere(deleting)
        self._finish(deleting)

    async def purge(self, account: str) -> None:
        """Delete all streams of an account that other brokers have. Raises: ApiError 10008 if one cannot be deleted."""
        entries = [entry for entry in self.entries.values()
                   if entry.account == account and entry.shard not in self._shards]
        try:
            async with asyncio.timeout(STEP_SECONDS):
                await asyncio.gather(*(self._delete_elsewhere(entry) for entry in entries if not entry.deleting))
                await asyncio.gather(*(self._gone(entry.stream_id) for entry in entries))
        except (TimeoutError, Fenced, StoreError, FormatError):
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL) from None

    async def _answer_update(self, entry: CatalogueEntry, config: dict[str, Any]) -> None:
        account = self._accounts.get(entry.account)
        if account is None:
            raise ApiError(ApiErrors.NOT_ENABLED_FOR_ACCOUNT)
        await self._stored(entry)
        new = replace(entry, config=config)
        async with account.updating_elsewhere(new):
            if self._entry(entry.stream_id) is not entry:
                raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)  # another update, or a deletion, came before this one
            self.entries[entry.stream_id] = new
            await self._commit([new])
        self._spawn(self._free(new, account), "free subjects")

    async def _answer_show(self, number: int, question: dict[str, Any]) -> dict[str, Any]:
        """Show a stream of one of our shards, once the other servers know that it serves."""
        account = self._accounts.get(question["account"])
        if account is None:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)

        def served() -> bool:
            stream = account.streams.get(question["name"])
            return stream is not None and stream.stream_id == question["id"]

        self._changed.set()
        await self._until_seen(served)
        stream, shard = account.stream(question["name"]), self._shards.get(number)
        if shard is None:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
        await shard.log.persisted()
        await self._flushed(account.name)
        return {"info": await self._show(account, stream)}

    async def _answer_infos(self, question: dict[str, Any]) -> dict[str, Any]:
        account = self._accounts.get(question["account"])
        infos = []
        for name in question["names"]:
            if account is not None and (stream := account.streams.get(name)) is not None:
                infos.append(await self._show(account, stream))
        return {"infos": infos}

    async def infos(self, account: str, names: Iterable[tuple[str, int]]) -> dict[str, dict[str, Any]]:
        by_shard: dict[int, list[str]] = {}
        for name, shard in names:
            by_shard.setdefault(shard, []).append(name)
        answers = await asyncio.gather(*(
            self.peers.ask(shard, {"do": "infos", "account": account, "names": some}, GATHER_SECONDS)
            for shard, some in by_shard.items()), return_exceptions=True)
        return {info["config"]["name"]: info for answer in answers if isinstance(answer, dict)
                for info in answer["infos"]}

    async def usages(self, account: str) -> list[dict[str, int]]:
        others = [number for number in range(self.count)
                  if number not in self._shards and any(
                      entry.account == account and entry.shard == number for entry in self.entries.values())]
        answers = await asyncio.gather(*(self.peers.ask(number, {"do": "usage", "account": account}, GATHER_SECONDS)
                                         for number in others), return_exceptions=True)
        return [answer for answer in answers if isinstance(answer, dict)]

    # --- following ----------------------------------------------------------------------------------------------------

    def _applied(self, number: int) -> None:
        """Let shard 0's owner read what a shard of this broker has stored."""
        self.peers.hint(f"{APPLIED}{number}")

    async def _read_catalogue(self) -> Mapping[int, CatalogueEntry]:
        """Return persisted entries, never older ones than before. Raises: StoreError, FormatError, CutOff."""
        own = self._shards.get(0)
        if own is not None and own.log.state.position >= self._read_to:
            self._read_to = own.log.state.position
            return own.log.state.catalogue
        return await self._read_in_store()

    async def _read_in_store(self) -> Mapping[int, CatalogueEntry]:
        """Return the entries that were persisted when this call began. Raises: StoreError, FormatError, CutOff."""
        state = await self._others[0].read()
        self._read_to = max(self._read_to, state.position)
        return state.catalogue

    async def _until_seen(self, holds: Callable[[], bool]) -> None:
        """Return once this broker has read that in the catalogue. Raises: ApiError 10008 after ``STEP_SECONDS``."""
        try:
            async with asyncio.timeout(STEP_SECONDS):
                while not holds():
                    self._seeing = self._seeing or asyncio.get_running_loop().create_future()
                    self._changed.set()
                    await asyncio.shield(self._seeing)
        except TimeoutError:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL) from None

    async def _follow(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), self._idle_seconds)
            self._changed.clear()
            # A shard that is taken after this read began has been settled by a newer one (rule 2).
            serving = {number: shard for number, shard in self._shards.items() if number in self._listening}
            seeing, self._seeing = self._seeing, None
            try:
                if serving:
                    self._seen = await self._read_catalogue()
                    await self._carry_out_all(dict(self._seen), serving)
            except (StoreError, FormatError, CutOff, Fenced, ApiError) as error:
                _log.warning("the catalogue cannot be followed: %s", error)
                self._changed.set()
                await asyncio.sleep(_POLL_SECONDS)
            except Exception:
                _log.exception("the catalogue cannot be followed")
                await asyncio.sleep(_POLL_SECONDS)
            if seeing is not None and not seeing.done():
                seeing.set_result(None)

    async def _carry_out_all(self, entries: Mapping[int, CatalogueEntry], serving: Mapping[int, ShardStreams]) -> None:
        """Carry out the entries of the ``serving`` shards that no request is carrying out."""
        for at, entry in enumerate(entries.values(), 1):
            if not at % _AT_ONCE:
                await asyncio.sleep(0)
            if self._carried_out.get(entry.stream_id) is entry:
                continue
            shard = serving.get(entry.shard)
            if shard is None or not entry.shard or self._shards.get(entry.shard) is not shard:
                continue
            if entry.stream_id in self._busy or not self._is_newest(entry):
                continue
            try:
                if await self._carry_out(entry, shard):
                    self._carried_out[entry.stream_id] = entry
            except ApiError as error:
                _log.warning("stream %s > %s of shard %d waits for what the catalogue says: %s", entry.account,
                             entry.name, entry.shard, error)
                asyncio.get_running_loop().call_later(_POLL_SECONDS, self._changed.set)
        if len(self._carried_out) > 2 * len(entries):
            self._carried_out = {stream_id: entry for stream_id, entry in self._carried_out.items()
                                 if stream_id in entries}

    def _is_newest(self, entry: CatalogueEntry) -> bool:
        """Return whether no later step of the stream is decided here, as far as this broker decides them."""
        if 0 not in self._shards:
            return True
        newest = self.entries.get(entry.stream_id)
        return newest is not None and newest.deleting == entry.deleting and newest.config == entry.config

    async def _carry_out(self, entry: CatalogueEntry, shard: ShardStreams) -> bool:
        """Do what an entry asks for; return whether the shard has it then."""
        account = self._accounts.get(entry.account)
        if account is None or entry.name in account.offline:
            return False
        stream = account.streams.get(entry.name)
        if stream is not None and stream.stream_id != entry.stream_id:
            return False
        if stream is None and (entry.deleting or entry.stream_id in shard.log.state.streams):
            return entry.deleting
        if stream is None:
            shard.streams += 1
            await account.create_for_catalogue(entry)
        elif entry.deleting:
            shard.streams -= 1
            await account.delete_for_catalogue(stream)
        elif stream.config.to_json() == entry.config:
            return True
        else:
            await account.update_for_catalogue(stream, entry)
        shard.log.wait(self._applied, entry.shard)
        return True

    # --- tasks --------------------------------------------------------------------------------------------------------

    def _step(self, stream_id: int, shard: int, step: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
        """Take a step, whatever becomes of the request that asked for it; the stream is busy until it is taken."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.add_done_callback(lambda _: done.cancelled() or done.exception())  # a request may have ended meanwhile
        self._pending[done] = shard

        async def take() -> None:
            try:
                with self._changing(stream_id):
                    await step
            except (Fenced, StoreError, FormatError) as error:
                _log.warning("a step of the catalogue was not taken: %s", error)
                if not done.done():
                    done.set_exception(ApiError(ApiErrors.CLUSTER_NOT_AVAIL))
            except ApiError as error:
                if not done.done():
                    done.set_exception(error)
            else:
                if not done.done():
                    done.set_result(None)
            finally:
                self._pending.pop(done, None)
                if not done.done():
                    done.cancel()

        self._spawn(take(), "a step of the catalogue")
        return done

    @contextmanager
    def _changing(self, stream_id: int) -> Iterator[None]:
        """Let the body alone carry out what the catalogue says about a stream of this broker."""
        self._busy[stream_id] += 1
        try:
            yield
        finally:
            self._busy[stream_id] -= 1
            if not self._busy[stream_id]:
                del self._busy[stream_id]
                self._changed.set()

    def _spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
