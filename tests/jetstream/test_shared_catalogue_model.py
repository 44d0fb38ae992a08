"""The protocol of a shared catalogue as a model: all interleavings of one name's steps, with deposed owners.

The logs of three shards are what is persisted. Shard 0's has ("create", i, k), ("deleting", i) and ("gone", i) for the
incarnation i in shard k; those of shards 1 and 2 have ("+", i) and ("-", i). An owner acts on its own log as far as it
knows it, and on a prefix of shard 0's log that it has read; only the append of a shard's newest owner is stored.

The rules are those of ``broker/jetstream/owners/shared_catalogue.py``. Each is left out once, and then the model fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import pytest

from tests.jetstream import exploring

CREATES = 2
Log = tuple[tuple[object, ...], ...]


class Owner(NamedTuple):
    """A process that owns a shard, or believes so."""

    shard: int
    epoch: int
    known: int
    """The length of the shard's log, as the owner knows it."""
    read: int | None
    """The prefix of the catalogue that it has read last; None: nothing since it took the shard."""


class World(NamedTuple):
    logs: tuple[Log, Log, Log]
    epochs: tuple[int, int, int]
    owners: frozenset[Owner]
    takes: tuple[int, int, int]


@cache
def entry(log: Log) -> tuple[tuple[int, int, bool] | None, int]:
    """Return the incarnation, shard and state of the name, and the number of incarnations so far."""
    found: tuple[int, int, bool] | None = None
    count = 0
    for kind, incarnation, *shard in log:
        if kind == "create":
            count += 1
            found = (count, int(str(shard[0])), False)
        elif kind == "deleting":
            assert found is not None
            assert incarnation == found[0]
            found = (found[0], found[1], True)
        else:
            found = None
    return found, count


@cache
def streams(log: Log) -> frozenset[object]:
    """Return the incarnations that a shard has."""
    found: set[object] = set()
    for kind, incarnation in log:
        (found.add if kind == "+" else found.discard)(incarnation)
    return frozenset(found)


def added(values: tuple[int, int, int], at: int) -> tuple[int, int, int]:
    one, two, three = (value + (number == at) for number, value in enumerate(values))
    return one, two, three


def steps(world: World, without: str, takes_max: int) -> Iterator[World]:
    """Yield the worlds after one step; ``without`` names the rule that is left out.

    Args: ``takes_max``: the number of take-overs in all, at most one of each shard.
    """
    logs, epochs, owners, takes = world
    for shard in range(3):
        if not takes[shard] and sum(takes) < takes_max:
            now = added(epochs, shard)
            owner = Owner(shard, now[shard], len(logs[shard]), None if shard else 0)
            yield World(logs, now, owners | {owner}, added(takes, shard))
    for owner in owners:
        rest = owners - {owner}

        def put(*record: object, owner: Owner = owner, rest: frozenset[Owner] = rest) -> World:
            if owner.epoch != epochs[owner.shard]:
                return World(logs, epochs, rest, takes)  # fenced
            one, two, three = ((*log, record) if number == owner.shard else log for number, log in enumerate(logs))
            return World((one, two, three), epochs, rest | {owner._replace(known=owner.known + 1)}, takes)

        if not owner.shard:
            found, count = entry(logs[0][:owner.known])
            if found is None:
                if count < CREATES:
                    for shard in (1, 2) if count else (1,):  # the two shards are alike
                        yield put("create", count + 1, shard)
                continue
            incarnation, shard, deleting = found
            has = incarnation in streams(logs[shard])  # read in the store
            if not deleting and (has or without == "the next step waits for the one before"):
                yield put("deleting", incarnation)
            if deleting and (not has or without == "names are free once the shard has the deletion"):
                yield put("gone", incarnation)
            continue
        # Rule 2: the first read is of all that is persisted after the shard was taken. Later ones may be late.
        first = 0 if without == "a new owner reads the catalogue anew" else len(logs[0])
        for read in range(first if owner.read is None else owner.read + 1, len(logs[0]) + 1):
            yield World(logs, epochs, rest | {owner._replace(read=read)}, takes)
        if owner.read is None:
            continue
        found, _ = entry(logs[0][:owner.read])
        if found is not None and found[1] == owner.shard:
            has = found[0] in streams(logs[owner.shard][:owner.known])
            if not found[2] and not has:
                yield put("+", found[0])
            if found[2] and has:
                yield put("-", found[0])


def fault(world: World) -> str:
    """Return what is wrong in a world; "" if nothing is."""
    places = [(shard, one) for shard in (1, 2) for one in streams(world.logs[shard])]
    if len(places) > 1:
        return f"the name is in two places: {places}"
    found, _ = entry(world.logs[0])
    if places and (found is None or found[:2] != (places[0][1], places[0][0])):
        return f"{places} and the catalogue says {found}"
    for log in world.logs[1:]:
        made = [record for record in log if record[0] == "+"]
        if len(made) != len(set(made)):
            return f"an incarnation is made twice: {log}"
    return ""


def explore(without: str, takes_max: int) -> tuple[int, str]:
    """Return the number of worlds, and the first fault."""
    first = World(((), (), ()), (1, 1, 1),
                  frozenset({Owner(0, 1, 0, 0), Owner(1, 1, 0, 0), Owner(2, 1, 0, 0)}), (0, 0, 0))
    return exploring.explore(first, lambda world: steps(world, without, takes_max), fault)


@pytest.mark.parametrize(("takes_max", "worlds_min"), [
    pytest.param(1, 3_000, id="one take-over"),
    pytest.param(3, 100_000, id="a take-over of each shard", marks=pytest.mark.soak)])
def test_the_protocol_holds(takes_max: int, worlds_min: int) -> None:
    """No interleaving puts a name in two places, loses its entry, or makes an incarnation twice."""
    worlds, found = explore("", takes_max)
    assert not found
    assert worlds > worlds_min


@pytest.mark.parametrize("rule", [
    "the next step waits for the one before", "names are free once the shard has the deletion",
    "a new owner reads the catalogue anew"])
def test_each_rule_is_needed(rule: str) -> None:
    """Without one of the rules the model finds a fault."""
    _, found = explore(rule, 1)
    assert found
