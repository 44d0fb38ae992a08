"""The catalogue of a store whose shards several brokers own.

    shard 0's owner      writes the entries, one step of a stream at a time                  (writer)
    shard k's owner      reads the entries in the store, and carries them out in shard k     (follower)
    shard 0's owner      reads shard k in the store, and takes the next step                 (writer)

    create    entry                   k: create record; the stream serves; the client gets its answer
    update    entry with the config   k: update record                       subjects that it gave up are free
    delete    deleting                k: delete record                       entry gone: name and subjects are free
    move      to k                    j: departure; k: arrival; k serves     entry with shard k   (departures, arrivals)

These rules make it safe, whatever crashes, is late, or acts after it lost its shard (docs/adr/0027-owners.md):

    1  nobody acts on an entry that is not persisted
    2  who takes shard k reads the catalogue once no earlier owner of k can store anything more, and carries out what k
       lacks before k serves (``settle``)
    3  the next step of a stream begins only when k has, in the store, what the step before it asked for

Owns: the parts of that, and the steps of requests about streams in this broker's shards. Does not own: the streams
(accounts), the messages between brokers (peers), what is persisted elsewhere (persisted).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from broker.jetstream.catalogue import SHARD, Catalogue, settle_stream
from broker.jetstream.owners.answers import Answers
from broker.jetstream.owners.follower import STEP_SECONDS, Follower
from broker.jetstream.owners.moves import Moves
from broker.jetstream.owners.persisted import PersistedShards, Shard
from broker.jetstream.owners.requests import Requests
from broker.jetstream.owners.writer import Writer, check_stays
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError, invalid_config
from broker.storage.format.errors import CutOff, FormatError
from broker.storage.format.records.catalogue import CatalogueEntry
from broker.storage.objectstore.base import StoreError
from broker.storage.put import Fenced

if TYPE_CHECKING:
    from broker.base.clock import Clock
    from broker.jetstream.account.account import Account
    from broker.jetstream.bus import Subscription
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.owners.arrivals import StoredStream
    from broker.jetstream.owners.peers import Peers
    from broker.jetstream.shard_streams import ShardStreams
    from broker.jetstream.stream.stream import Stream
    from broker.storage.format.records.stream_create import StreamCreate
    from broker.storage.format.records.stream_update import StreamUpdate
    from broker.storage.log.log import Log
    from broker.storage.log.stream_log import StreamLog
    from broker.storage.state.erasures import LeftBehind
    from broker.storage.state.stream import StreamState

__all__ = ["SharedCatalogue"]

_log = logging.getLogger(__name__)

GATHER_SECONDS: Final = 2.0
"""The time for which lists and account information wait for other brokers."""

_TRY_SECONDS, _PAUSE_SECONDS = 1.0, 0.05
"""The time for one question to the owner of a shard, and the pause before the next one."""

CATALOGUE: Final = "CATALOGUE"
APPLIED: Final = "APPLIED."


class SharedCatalogue(Catalogue):
    """See the module. ``shards`` are those that this broker owns, of ``count``; ``accounts`` are JetStream's.

    Args: ``read(number)``: see ``PersistedShards``; ``idle_seconds``: see ``Follower``; ``flushed``, ``show``: see
        ``Answers``; for the others, see ``Moves``.
    """

    def __init__(self, shards: Mapping[int, ShardStreams], accounts: Mapping[str, Account], peers: Peers,
                 requests: Requests, count: int, read: Callable[[int], Shard], rng: random.Random, *,
                 idle_seconds: float, flushed: Callable[[str], Coroutine[Any, Any, None]],
                 show: Callable[[Account, Stream], Coroutine[Any, Any, dict[str, Any]]],
                 read_stream: Callable[[int, str, str, int], StoredStream], clock: Clock, keep_seconds: float,
                 ) -> None:
        super().__init__(shards, clock)
        self.peers = peers
        self.count = count
        self._accounts = accounts
        self._rng = rng
        self._serving: dict[int, Subscription] = {}
        """The shards about which this broker answers questions."""
        self._hints: list[Subscription] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._settling: dict[int, asyncio.Task[Mapping[int, CatalogueEntry] | None]] = {}
        """The reads of the catalogue for shards that are being taken, by shard."""
        self._pending: dict[asyncio.Future[None], int] = {}
        """The steps that requests wait for, each with the shard that it needs."""
        self._persisted = PersistedShards(shards, count, read)
        self._writer = Writer(shards, accounts, self.entries, self._persisted, partial(peers.hint, CATALOGUE),
                              self._spawn)
        self._follower = Follower(shards, self._serving, accounts, self._persisted, idle_seconds=idle_seconds,
                                  is_newest=self._writer.is_newest, applied=self._applied,
                                  move=lambda entries, serving: self._moves.follow(entries, serving))
        self._moves = Moves(shards, self._serving, accounts, peers, requests, self._persisted, self._follower,
                            self._writer, flushed=flushed, read=read_stream, applied=self._applied,
                            clock=clock, keep_seconds=keep_seconds)
        self._answers = Answers(shards, accounts, self._follower, self._writer, self._moves, flushed=flushed,
                                show=show)

    # --- life ---------------------------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """True if this broker owns shard 0 and knows the streams of all others."""
        return self._writer.ready

    async def until_leads(self) -> None:
        """Return once ``leads`` is true, however long that takes."""
        await self._writer.until_ready()

    def start(self) -> None:
        """Follow the catalogue from now on."""
        self._hints = [self.peers.listen(CATALOGUE, lambda _: self._follower.wake()),
                       self.peers.listen(APPLIED + "*", lambda _: self._persisted.changed.set())]
        self._follower.start()

    async def stop(self) -> None:
        """Stop following, and answer nothing more."""
        for subscription in (*self._hints, *self._serving.values()):
            self.peers.end(subscription)
        self._hints.clear()
        self._serving.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._moves.stop()
        await self._writer.stop()
        await self._follower.stop()
        await self.peers.stop()

    def begin_to_settle(self, number: int) -> None:
        """Begin to read the catalogue for ``settle``: earlier owners of the shard cannot store anything more."""
        if number:
            self._settling[number] = self._spawn(self._try_to_read(), "read the catalogue for a shard")

    async def _try_to_read(self) -> Mapping[int, CatalogueEntry] | None:
        with suppress(StoreError, FormatError, CutOff):  # then ``settle`` reads it
            return await self._persisted.catalogue_in_store()
        return None

    async def settle(self, log: Log, number: int) -> None:
        """Carry out in a shard, which was just taken and does not serve, what the catalogue says and it does not have.

        Rule 2: the read of the catalogue begins once no earlier owner of the shard can store anything more, so none has
        acted on a newer one. It is read in the store, even if this broker believes that it owns shard 0: another broker
        may have taken that.
        Raises: Fenced, StoreError, FormatError, CutOff.
        """
        changed = False
        entries: Mapping[int, CatalogueEntry] | None = log.state.catalogue if not number else None
        if (begun := self._settling.pop(number, None)) is not None:
            entries = await begun
        if entries is None:
            entries = await self._persisted.catalogue_in_store()
        for entry in entries.values():
            if entry.shard == number:
                changed |= settle_stream(entry, log)
        if changed:
            log.urgent()
            await log.persisted()

    async def prepare(self, number: int, seconds: float) -> None:
        """Begin to read what this broker needs to know of other shards before it serves a shard; return at the end, or
        after so many seconds. It serves sooner then, since the next read continues where this one ends.
        """
        await asyncio.wait((self._spawn(self._read_for(number), "prepare to take a shard"),), timeout=seconds)

    async def _read_for(self, number: int) -> None:
        with suppress(StoreError, FormatError, CutOff):
            # ``settle`` reads in the store, too, even if this broker has shard 0.
            entries = await (self._persisted.catalogue_in_store() if number else self._persisted.catalogue())
            for other in () if number else sorted({entry.shard for entry in entries.values()} - self._shards.keys()):
                await self._persisted.state(other)

    def opened(self, number: int) -> None:
        """Serve a shard, whose streams are restored."""
        if not number:
            self.open(self._shards[0].log.state.catalogue)
        self._writer.opened(number)
        if not number:
            self._moves.lead()
        self._serving[number] = self.peers.answer(f"SHARD.{number}", partial(self._answers.answer, number))
        self._applied(number)
        self._follower.wake()

    def closing(self, number: int) -> None:
        """Answer no questions about a shard, and carry out nothing more in it: its streams are about to be released."""
        if (subscription := self._serving.pop(number, None)) is not None:
            self.peers.end(subscription)
        if not number:
            self._moves.stop_leading()

    def closed(self, number: int) -> None:
        """Forget a shard that was lost or given away, and is no longer among ``shards``."""
        for future, needed in list(self._pending.items()):
            if needed == number and not future.done():
                future.set_exception(ApiError(ApiErrors.CLUSTER_NOT_AVAIL))
        self._persisted.forget(number)
        self._writer.closed(number)
        self._follower.forget()

    def released(self, account: Account, number: int) -> None:
        """Keep the names and subjects of the streams of an account in a shard, which it has just released."""
        self._writer.released(account, number)

    def account_added(self, account: Account) -> None:
        """Take the names and subjects that an account's streams in other shards have."""
        self._writer.account_added(account)

    async def purge(self, account: str) -> None:
        """Delete all streams of an account that other brokers have. Raises: ApiError 10008 if one cannot be deleted."""
        await self._writer.purge(account)

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
        return entry, self._step(stream_id, 0, self._writer.commit([entry]))

    async def shown(self, entry: CatalogueEntry) -> dict[str, Any]:
        """Return the info of a stream in another broker's shard, once it serves. Raises: ApiError."""
        question = {"do": "show", "account": entry.account, "name": entry.name, "id": entry.stream_id}
        try:
            async with asyncio.timeout(STEP_SECONDS):
                attempt = 0
                while True:
                    now = self.entries.get(entry.stream_id, entry)
                    number = now.shard
                    if now.to is not None and (number in self._shards or attempt % 2):
                        number = now.to
                    try:
                        answer = await self.peers.ask_owner(number, question, _TRY_SECONDS)
                        info: dict[str, Any] = answer["info"]
                        return info
                    except ApiError as error:  # the shard may be on its way to another broker
                        if error.err_code != ApiErrors.CLUSTER_NOT_AVAIL:
                            raise
                    attempt += 1
                    await asyncio.sleep(_PAUSE_SECONDS)
        except TimeoutError:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL) from None

    async def infos(self, account: str, names: Iterable[tuple[str, int]]) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        wanted = dict(names)
        loop = asyncio.get_running_loop()
        ends = loop.time() + GATHER_SECONDS
        while True:
            answers = await asyncio.gather(*(
                self.peers.ask_owner(shard, {"do": "infos", "account": account, "names": some}, ends - loop.time())
                for shard, some in _by_shard(wanted).items()), return_exceptions=True)
            found |= {info["config"]["name"]: info for answer in answers if isinstance(answer, dict)
                      for info in answer["infos"]}
            # A stream that moves is in the one shard now, or in the other, or on its way.
            wanted = {entry.name: entry.shard if entry.to is None or wanted[entry.name] != entry.shard else entry.to
                      for entry in self.entries.values()
                      if entry.account == account and entry.name in wanted and entry.name not in found
                      and (entry.to is not None or entry.shard != wanted[entry.name])}
            if not wanted or loop.time() + _PAUSE_SECONDS >= ends:
                return found
            await asyncio.sleep(_PAUSE_SECONDS)

    async def usages(self, account: str) -> list[dict[str, int]]:
        others = [number for number in range(self.count)
                  if number not in self._shards and any(
                      entry.account == account and entry.shard == number for entry in self.entries.values())]
        question = {"do": "usage", "account": account}
        answers = await asyncio.gather(*(self.peers.ask_owner(number, question, GATHER_SECONDS) for number in others),
                                       return_exceptions=True)
        return [answer for answer in answers if isinstance(answer, dict)]

    def update(self, stream: Stream, config: StreamConfig) -> asyncio.Future[None] | None:
        shard = self._of(stream.log)
        check_stays(self.entries.get(stream.stream_id))
        if shard is None or not shard.number:
            return super().update(stream, config)
        step = self._update if 0 in self._shards else self._update_by_owner_of_0
        return self._step(stream.stream_id, shard.number, step(stream, shard, config))

    @asynccontextmanager
    async def deleting(self, stream: Stream) -> AsyncIterator[None]:
        shard = self._of(stream.log)
        with self._follower.changing(stream.stream_id):
            check_stays(self.entries.get(stream.stream_id))
            if shard is not None and shard.number and 0 not in self._shards:
                await self._announced(stream.stream_id)
            yield

    def delete(self, stream_id: int, log: StreamLog, delete: Callable[[], object]) -> asyncio.Future[None] | None:
        shard = self._of(log)
        if shard is None or not shard.number:
            return super().delete(stream_id, log, delete)
        entry = self.entries.get(stream_id)
        if entry is not None and entry.deleting:
            return self._step(stream_id, 0, self._gone(stream_id))
        check_stays(entry)
        shard.streams -= 1
        return self._step(stream_id, shard.number, self._delete(stream_id, shard, delete))

    def is_coming(self, shard: int, stream_id: int) -> bool:
        return self._moves.is_coming(shard, stream_id)

    def remains_removed(self, stream_id: int) -> None:
        self._follower.wake()

    async def left_behind(self, stream: StreamState, shard: int) -> list[LeftBehind]:
        return await self._moves.left_behind(stream, shard)

    def _check_move(self, wanted: str, shard: int) -> None:
        self._moves.check(wanted)

    async def move_updated(self, stream: Stream, before: StreamConfig) -> None:
        shard, wanted = self._of(stream.log), stream.config.metadata.get(SHARD)
        if shard is not None and wanted not in (None, str(shard.number), before.metadata.get(SHARD)):
            await self._moves.ask(stream.account, stream.name, int(wanted))

    # --- steps of the owner of a stream's shard -----------------------------------------------------------------------

    async def _create(self, entry: CatalogueEntry, stream: Stream, record: StreamCreate) -> None:
        await self._writer.commit([entry])
        self._record(stream, record)

    async def _update(self, stream: Stream, shard: ShardStreams, config: StreamConfig) -> None:
        await shard.log.persisted()  # rule 3
        entry = replace(self._writer.entry(stream.stream_id), config=config.to_json())
        self.entries[stream.stream_id] = entry
        await self._writer.commit([entry])
        self._record(stream, stream.enforcement.update_record(config))

    async def _update_by_owner_of_0(self, stream: Stream, shard: ShardStreams, config: StreamConfig) -> None:
        wanted = config.to_json()
        await self.peers.ask_owner(0, {"do": "update", "id": stream.stream_id, "config": wanted}, STEP_SECONDS)
        await self._follower.until(lambda: (one := self._follower.seen.get(stream.stream_id)) is not None
                                   and one.config == wanted)
        self._record(stream, stream.enforcement.update_record(config))
        shard.log.wait(self._applied, shard.number)

    async def _announced(self, stream_id: int) -> None:
        """Let shard 0's owner announce the deletion, and see it in the store."""
        def seen() -> bool:
            return (entry := self._follower.seen.get(stream_id)) is not None and entry.deleting

        if not seen():
            await self.peers.ask_owner(0, {"do": "delete", "id": stream_id}, STEP_SECONDS)
            await self._follower.until(seen)

    async def _delete(self, stream_id: int, shard: ShardStreams, delete: Callable[[], object]) -> None:
        if 0 in self._shards:
            await shard.log.persisted()  # rule 3
            await self._writer.announce_deletion(self._writer.entry(stream_id))
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
        if 0 in self._shards:
            await self._writer.until_gone(stream_id)
        else:
            await self.peers.ask_owner(0, {"do": "gone", "id": stream_id}, STEP_SECONDS)

    def _record(self, stream: Stream, record: StreamCreate | StreamUpdate) -> None:
        """Raises: ApiError 10008 if the shard was lost meanwhile."""
        shard = self._of(stream.log)
        if shard is None or shard.log.failure is not None:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
        stream.log.block(stream).add(record)
        stream.log.barrier()
        stream.log.urgent()

    def _applied(self, number: int) -> None:
        """Let shard 0's owner read what a shard of this broker has stored."""
        self.peers.hint(f"{APPLIED}{number}")

    # --- tasks --------------------------------------------------------------------------------------------------------

    def _step(self, stream_id: int, shard: int, step: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
        """Take a step, whatever becomes of the request that asked for it; the stream is busy until it is taken."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.add_done_callback(lambda _: done.cancelled() or done.exception())  # a request may have ended meanwhile
        self._pending[done] = shard

        async def take() -> None:
            try:
                with self._follower.changing(stream_id):
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

    def _spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _by_shard(streams: Mapping[str, int]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for name, shard in streams.items():
        found.setdefault(shard, []).append(name)
    return found
