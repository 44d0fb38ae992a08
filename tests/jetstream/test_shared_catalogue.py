"""A shared catalogue, by itself: an owner of a shard acts on nothing older than what owners before it have acted on."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from broker.jetstream.api.stream_requests import StreamRequests
from broker.jetstream.engine import JetStream
from broker.jetstream.owners import shared_catalogue
from broker.jetstream.owners.peers import Peers
from broker.jetstream.owners.shared_catalogue import SharedCatalogue
from broker.jetstream.wire.errors import ApiError
from broker.storage.format.header import Position
from broker.storage.format.records.catalogue import CatalogueEntry
from broker.storage.put import Fenced
from tests.manual_clock import ManualClock

ENTRY = CatalogueEntry(7, 1, "A", "S", {"name": "S"}, 1)


class Chain:
    """The persisted part of a shard, which other brokers write."""

    def __init__(self, position: Position, *entries: CatalogueEntry) -> None:
        self.state = state(position, *entries)

    async def read(self) -> Any:
        return self.state


def state(position: Position, *entries: CatalogueEntry) -> Any:
    return SimpleNamespace(position=position, catalogue={entry.stream_id: entry for entry in entries}, streams={})


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 (no event says so)
        await asyncio.sleep(0)


async def nothing(*_: object) -> Any:
    return None


def shared(own: Any, chain: Chain, peers: Any = None) -> SharedCatalogue:
    """Return the catalogue of a broker whose shards are ``own``; the store has ``chain`` as shard 0."""
    peers = peers or SimpleNamespace(hint=print)
    return SharedCatalogue(own, {}, peers, StreamRequests({}), 2, lambda number: chain, random.Random(1),  # type: ignore[arg-type, return-value]
                           idle_seconds=1.0, flushed=nothing, show=nothing, read_stream=nothing, clock=ManualClock(),
                           keep_seconds=1.0)


async def test_a_deposed_owner_of_shard_0_does_not_settle_by_its_own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that lost shard 0 and has not noticed takes shard 1: a stream that was deleted meanwhile stays deleted.

    Its own state has the stream's entry; in the store, a later owner of shard 0 has removed it.
    """
    settled: list[CatalogueEntry] = []
    monkeypatch.setattr(shared_catalogue, "settle_stream", lambda entry, log: settled.append(entry) or False)
    own = {0: SimpleNamespace(number=0, log=SimpleNamespace(state=state(Position(1, 9), ENTRY)), available=True)}
    catalogue = shared(own, Chain(Position(2, 3)))
    await catalogue.settle(SimpleNamespace(), 1)  # type: ignore[arg-type]
    assert not settled
    assert not await catalogue._persisted.catalogue()  # nor does it follow its own, older state from now on
    own[0].log.state = state(Position(3, 1), ENTRY)
    assert await catalogue._persisted.catalogue()


async def test_a_stream_that_has_moved_to_shard_0_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entry stays in the catalogue, and may be ahead of its records if the broker was killed between the two."""
    settled: list[CatalogueEntry] = []
    monkeypatch.setattr(shared_catalogue, "settle_stream", lambda entry, log: settled.append(entry) or False)
    moved = replace(ENTRY, stream_id=8, shard=0, moves=1, deleting=True)
    log = SimpleNamespace(state=state(Position(2, 1), ENTRY, moved))
    await shared({}, Chain(Position(1, 1))).settle(log, 0)  # type: ignore[arg-type]
    assert settled == [moved]


async def test_an_owner_whose_lease_has_expired_answers_nothing() -> None:
    """Another broker may own the shard by now."""
    own = {1: SimpleNamespace(number=1, log=SimpleNamespace(), available=False)}
    catalogue = shared(own, Chain(Position(1, 1)))
    with pytest.raises(ApiError, match="temporarily unavailable"):
        await catalogue._answers.answer(1, {"do": "infos", "account": "A", "names": ["S"]})


async def test_only_the_owner_of_shard_0_says_that_a_stream_does_not_exist() -> None:
    """A request may wait in a broker whose shard, with the request's stream, is lost meanwhile."""
    js = JetStream(ManualClock(), random.Random(1))
    js.share(SimpleNamespace(hint=print), 2, lambda number: Chain(Position(1, 1)), idle_seconds=1.0,  # type: ignore[arg-type, return-value]
             read_stream=nothing, keep_seconds=1.0)  # type: ignore[arg-type]
    await js.add_account("A", SimpleNamespace())  # type: ignore[arg-type]
    with pytest.raises(ApiError, match="temporarily unavailable"):
        js.accounts["A"].stream("S")


async def test_a_question_about_a_stream_that_this_broker_has_by_now() -> None:
    """The owner that asks does not know yet that it lost its shard to the owner of shard 0: it gets 10008."""
    js = JetStream(ManualClock(), random.Random(1))
    await js.add_account("A", SimpleNamespace())  # type: ignore[arg-type]
    with pytest.raises(ApiError, match="temporarily unavailable"):
        async with js.accounts["A"].changes.updating_elsewhere(ENTRY):
            pass


async def test_an_owner_that_loses_its_shard_while_it_answers_a_question(caplog: pytest.LogCaptureFixture) -> None:
    """The broker that asks gets 10008, and the log has no traceback."""
    answers: list[bytes] = []

    async def lose(_: dict[str, Any]) -> dict[str, Any]:
        raise Fenced("b has taken the shard")

    peers = Peers(SimpleNamespace(publish=lambda *args: answers.append(args[3])), "store")  # type: ignore[arg-type]
    await peers._answer(lose, b"reply", b"{}")
    assert json.loads(answers[0])["error"]["err_code"] == 10008
    assert [(one.levelname, one.exc_info) for one in caplog.records] == [("WARNING", None)]


async def test_a_move_from_a_shard_that_was_lost_while_the_catalogue_was_read() -> None:
    """Nothing is begun for it: the shard's next owner lets the stream leave."""
    lost = SimpleNamespace(number=1, log=SimpleNamespace(state=state(Position(1, 1)), failure=None), available=True)
    catalogue = shared({}, Chain(Position(1, 1)))
    moving = replace(ENTRY, to=0)
    catalogue._moves.follow({ENTRY.stream_id: moving}, {0: lost, 1: lost})  # type: ignore[dict-item]
    catalogue._moves.departures.begin(moving)
    assert not catalogue._moves.departures._tasks._tasks


async def test_a_broker_that_has_lost_shard_0_does_not_say_that_a_stream_does_not_exist() -> None:
    """An update of a stream in another of its shards waits for a commit, and shard 0 goes away meanwhile."""
    catalogue = shared({}, Chain(Position(1, 1)))
    with pytest.raises(ApiError, match="temporarily unavailable"):
        catalogue._writer.entry(ENTRY.stream_id)


PEERS = SimpleNamespace(**dict.fromkeys(("hint", "answer", "end"), lambda *_, **__: None), stop=nothing)
"""Other brokers that are not there."""


class OwnLog:
    """The log of a shard of this broker; its commits wait for ``stored``."""

    failure = None
    shard = None

    def __init__(self, read: Any) -> None:
        self.state = read
        self.stored = asyncio.Event()

    def block(self, _: object) -> Any:
        return SimpleNamespace(add=lambda _: None)

    def urgent(self) -> None:
        pass

    async def persisted(self) -> None:
        await self.stored.wait()


def own_shard(number: int, *entries: CatalogueEntry, **streams: Any) -> Any:
    """Return a shard of this broker, with its catalogue, and the states of its streams."""
    read = state(Position(1, 1), *entries)
    read.streams.update({one.stream_id: one for one in streams.values()})
    return SimpleNamespace(number=number, available=True, log=OwnLog(read))


async def leading(chain: Chain, *entries: CatalogueEntry) -> tuple[JetStream, SharedCatalogue]:
    """Return a broker that has just taken shard 0, which has the entries; it does not know the other shards yet."""
    js = JetStream(ManualClock(), random.Random(1))
    catalogue = js.share(PEERS, 3,  # type: ignore[arg-type]
                         lambda number: chain, idle_seconds=1.0, read_stream=nothing, keep_seconds=1.0)  # type: ignore[arg-type, return-value]
    await js.add_account("A", SimpleNamespace())  # type: ignore[arg-type]
    js.shards[0] = own_shard(0, *entries)
    catalogue.opened(0)
    return js, catalogue


async def test_a_stream_that_has_arrived_and_does_not_serve_yet_exists() -> None:
    """Its arrival is stored, and this broker waits for what the other owner holds. Meanwhile it takes another shard, or
    shard 0 itself."""
    moving = replace(ENTRY, shard=2, to=1)
    arrived = SimpleNamespace(stream_id=ENTRY.stream_id, departed=None, moves=1)
    for before in (True, False):
        js, catalogue = await leading(Chain(Position(1, 1)), moving)
        if before:
            js.shards[1] = own_shard(1, S=arrived)
        await catalogue.until_leads()
        js.shards[1] = own_shard(1, S=arrived)
        catalogue.opened(1)
        with pytest.raises(ApiError, match="temporarily unavailable"):
            js.accounts["A"].stream("S")
        await catalogue.stop()


async def test_a_move_that_ends_while_an_owner_of_shard_0_learns_what_others_have() -> None:
    """The stream is in a shard then that had no streams when the broker began."""
    chain, read = Chain(Position(1, 1)), asyncio.Event()
    moving = replace(ENTRY, to=2)
    chain.state.streams[ENTRY.stream_id] = SimpleNamespace(departed=2, moves=0, config={})

    async def read_slowly() -> Any:
        await read.wait()
        return chain.state

    chain.read = read_slowly  # type: ignore[method-assign]
    js, catalogue = await leading(chain, moving)
    await asyncio.sleep(0)
    catalogue.entries[ENTRY.stream_id] = replace(moving, shard=2, to=None, moves=1)
    read.set()
    await catalogue.until_leads()
    with pytest.raises(ApiError, match="temporarily unavailable"):
        js.accounts["A"].stream("S")
    await catalogue.stop()


async def test_a_name_whose_last_stream_is_still_being_deleted() -> None:
    """The catalogue has both streams, the old one first: the name is the new one's."""
    js, catalogue = await leading(Chain(Position(1, 1)), replace(ENTRY, deleting=True), replace(ENTRY, stream_id=8))
    await catalogue.until_leads()
    with pytest.raises(ApiError, match="temporarily unavailable"):
        js.accounts["A"].stream("S")
    await catalogue.stop()


async def test_a_deletion_that_begins_while_the_end_of_a_move_is_stored() -> None:
    """Both commits are in one segment. The deletion is finished, too: the name is free once the shard has deleted the
    stream."""
    chain = Chain(Position(1, 1))
    chain.state.streams[ENTRY.stream_id] = SimpleNamespace(departed=None, moves=1, config=ENTRY.config)
    js, catalogue = await leading(chain, replace(ENTRY, to=2))
    await catalogue.until_leads()
    await until(lambda: catalogue.entries[ENTRY.stream_id].to is None)
    deleting = asyncio.create_task(catalogue._writer.delete_elsewhere(ENTRY.stream_id))
    await until(lambda: catalogue.entries[ENTRY.stream_id].deleting)
    js.shards[0].log.stored.set()  # type: ignore[attr-defined]
    await deleting
    chain.state.streams.clear()
    async with asyncio.timeout(5):
        await catalogue._writer.until_gone(ENTRY.stream_id)
    assert "S" not in js.accounts["A"].elsewhere
    await catalogue.stop()


async def test_a_move_of_a_stream_that_is_deleted_while_its_last_step_is_awaited() -> None:
    """The request ends, instead of reading the store for ever."""
    _, catalogue = await leading(Chain(Position(1, 1)), ENTRY)
    await catalogue.until_leads()
    asked = asyncio.create_task(catalogue._writer.announce_move(ENTRY, 2))
    await asyncio.sleep(0)
    catalogue.entries[ENTRY.stream_id] = replace(ENTRY, deleting=True)
    with pytest.raises(ApiError, match="temporarily unavailable"):
        async with asyncio.timeout(5):
            await asked
    await catalogue.stop()


async def test_a_refusal_waits_until_the_decision_that_it_shows_is_stored() -> None:
    """The deletion of a stream is decided. If this broker is killed before that is stored, the stream lives on."""
    js, catalogue = await leading(Chain(Position(1, 1)), replace(ENTRY, deleting=True))
    await catalogue.until_leads()
    question = {"do": "update", "id": ENTRY.stream_id, "config": {}}
    asked = asyncio.create_task(catalogue._answers.answer(0, question))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not asked.done()
    js.shards[0].log.stored.set()  # type: ignore[attr-defined]
    with pytest.raises(ApiError, match="stream not found"):
        await asked
    await catalogue.stop()


async def test_a_stream_that_comes_into_a_shard_whose_lease_has_expired(caplog: pytest.LogCaptureFixture) -> None:
    """It waits until the lease is renewed, or another broker has taken the shard; that is no failure."""
    moving = replace(ENTRY, to=2)
    js, catalogue = await leading(Chain(Position(1, 1)), moving)
    await catalogue.until_leads()
    js.shards[2] = shard = own_shard(2)
    shard.available = False  # type: ignore[misc]
    catalogue._serving[2], catalogue._follower.seen = shard, {ENTRY.stream_id: moving}  # type: ignore[assignment]
    left = Chain(Position(1, 1))
    left.state = SimpleNamespace(departed=2, extra={})
    arrivals = catalogue._moves.arrivals
    arrivals._read = lambda *_: left  # type: ignore[assignment]
    arrivals.begin(moving, shard)
    await asyncio.sleep(0)
    await arrivals.read_once(ENTRY.stream_id)
    await asyncio.sleep(0)
    assert not caplog.records
    assert arrivals.expects(ENTRY.stream_id)
    await catalogue.stop()
