"""The protocol of a move as a model: all interleavings of publishes, the steps of the move, crashes and take-overs.

A log is what is persisted of a shard; only its newest owner's append is stored. An owner knows a replay of its log at
its take-over and what it has appended since, and goes on when it is deposed. Shard a has ("msg", m) and ("out",); shard
b ("in", messages) and ("msg", m). The catalogue says "move", then "done". Instead of "out", a may have ("stays",): then
the catalogue says "none" again, and the next move has a higher number. An owner of a acts on any entry that it may have
read, however old.

The rules are those of docs/adr/0028-moves.md. Each is left out once, and then the model fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import pytest

from tests.jetstream import exploring

Log = tuple[tuple[Any, ...], ...]

MOVES = 2
"""The largest number of moves."""


class Owner(NamedTuple):
    """A process that owns shard a (0) or b (1), or believes so: what it knows of the stream."""

    shard: int
    epoch: int
    has: bool
    msgs: tuple[int, ...]
    number: int
    """The number of moves that a has given up."""


class World(NamedTuple):
    logs: tuple[Log, Log]
    catalogue: str
    number: int
    """The number of the move in the catalogue."""
    epochs: tuple[int, int]
    owners: frozenset[Owner]
    told: frozenset[tuple[int, ...]]
    """The messages with which owners of a, deposed or not, say to b that the stream left."""
    acked: tuple[tuple[int, int], ...]
    published: int
    takes: tuple[int, int]


@cache
def replay(log: Log) -> tuple[bool, tuple[int, ...], int]:
    """Return whether the shard has the stream, its messages, and how many moves were given up; after it has left, the
    messages that it left with."""
    has, msgs, number = False, (), 0
    for kind, *rest in log:
        if kind == "create":
            has = True
        elif kind == "msg":
            msgs += (rest[0],)
        elif kind == "in":
            has, msgs = True, rest[0]
        elif kind == "stays":
            number += 1
        else:
            has = kind == "back"
    return has, msgs, number


def steps(world: World, without: str, publishes: int, takes_max: int) -> Iterator[World]:
    """Yield the worlds after one step; ``without`` names the rule that is left out."""
    logs, catalogue, number, epochs, owners, told, acked, published, takes = world
    announced = number + (catalogue != "none")
    """The number of moves that the catalogue has announced."""
    if catalogue == "none" and number < MOVES:
        yield world._replace(catalogue="move")
    if catalogue == "move" and (number < replay(logs[0])[2] or without == "only a gives up"):
        yield world._replace(catalogue="none", number=number + 1)
    if catalogue == "move" and (any(one[0] == "in" for one in logs[1]) or without == "done once b has it"):
        yield world._replace(catalogue="done")
    if catalogue == "move" and without == "nobody cancels":
        yield world._replace(catalogue="cancelled")
    for shard in (0, 1):
        if takes[shard] < takes_max:
            now = (epochs[0] + (not shard), epochs[1] + shard)
            taken = world._replace(epochs=now, owners=owners | {Owner(shard, now[shard], *replay(logs[shard]))},
                                   takes=(takes[0] + (not shard), takes[1] + shard))
            yield taken
            for owner in owners:
                if (owner.shard, owner.epoch) == (shard, epochs[shard]):
                    yield taken._replace(owners=taken.owners - {owner})
    for owner in owners:
        rest = owners - {owner}

        def put(*record: Any, after: Owner, owner: Owner = owner, rest: frozenset[Owner] = rest) -> World:
            if owner.epoch != epochs[owner.shard]:
                return world._replace(owners=rest)  # fenced
            now = (*logs[owner.shard], record)
            return world._replace(logs=(now, logs[1]) if not owner.shard else (logs[0], now), owners=rest | {after})

        if owner.has and published < publishes:
            msg = published + 1
            after = put("msg", msg, after=owner._replace(msgs=(*owner.msgs, msg)))._replace(published=msg)
            if after.logs != logs:
                after = after._replace(acked=(*acked, (len(owner.msgs) + 1, msg)))
            yield after
        given_up = 0 if without == "a given-up move is over" else owner.number
        if not owner.shard and owner.has and given_up < announced:
            yield put("stays", after=owner._replace(number=owner.number + 1))
            yield put("out", after=owner._replace(has=False))
            if without == "b reads a's log" and owner.msgs not in told:
                yield world._replace(told=told | {owner.msgs})
        if not owner.shard and not owner.has and catalogue == "cancelled" and owner.epoch == epochs[0]:
            yield put("back", after=owner._replace(has=True))
        if owner.shard and not owner.has and announced:
            left = [replay(logs[0][:at + 1])[1] for at, one in enumerate(logs[0]) if one[0] == "out"]
            if without == "b waits for the departure":
                left.append(replay(logs[0])[1])
            for msgs in (*left[:1], *left[1:] * bool(without), *told):
                yield put("in", msgs, after=owner._replace(has=True, msgs=msgs))


def fault(world: World) -> str:
    """Return what is wrong in a world; "" if nothing is."""
    (in_a, msgs_a, _), (in_b, msgs_b, _) = map(replay, world.logs)
    if in_a and in_b:
        return "two shards have the stream"
    if sum(one[0] == "in" for one in world.logs[1]) > 1:
        return "it arrives twice"
    if world.catalogue == "done" and not in_b:
        return "the catalogue says that it is in b"
    if world.catalogue == "none" and not in_a:
        return "the catalogue says that it is in a"
    msgs = msgs_b if in_b else msgs_a
    for seq, number in world.acked:
        if msgs[seq - 1:seq] != (number,):
            return f"message {number} was acknowledged as {seq}: {msgs}"
    return ""


def explore(without: str, publishes: int, takes_max: int) -> tuple[int, str]:
    """Return the number of worlds, and the first fault."""
    owners = frozenset({Owner(0, 1, True, (), 0), Owner(1, 1, False, (), 0)})
    first = World(((("create",),), ()), "none", 0, (1, 1), owners, frozenset(), (), 0, (0, 0))
    return exploring.explore(first, lambda world: steps(world, without, publishes, takes_max), fault)


@pytest.mark.parametrize(("publishes", "takes_max", "worlds_min"), [
    pytest.param(2, 1, 400, id="a take-over of each"),
    pytest.param(3, 2, 10_000, id="two take-overs of each")])
def test_the_protocol_holds(publishes: int, takes_max: int, worlds_min: int) -> None:
    """No interleaving puts the stream in two places, or loses or doubles an acknowledged message."""
    worlds, found = explore("", publishes, takes_max)
    assert not found
    assert worlds > worlds_min


@pytest.mark.parametrize("rule", [
    "done once b has it", "nobody cancels", "b reads a's log", "b waits for the departure", "only a gives up",
    "a given-up move is over"])
def test_each_rule_is_needed(rule: str) -> None:
    """Without one of the rules the model finds a fault."""
    _, found = explore(rule, 2, 1)
    assert found
