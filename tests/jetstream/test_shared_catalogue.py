"""A shared catalogue, by itself: an owner of a shard acts on nothing older than what owners before it have acted on."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from broker.jetstream.api.stream_requests import StreamRequests
from broker.jetstream.engine import JetStream
from broker.jetstream.owners import shared_catalogue
from broker.jetstream.owners.shared_catalogue import SharedCatalogue
from broker.jetstream.wire.errors import ApiError
from broker.storage.format.header import Position
from broker.storage.format.records.catalogue import CatalogueEntry
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
