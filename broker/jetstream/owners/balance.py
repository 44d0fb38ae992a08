"""Decisions from the lines of a roster, without I/O: the shard that a broker gives away next, and its new owner.

    home      a shard goes to a broker whose configuration names it, from one whose configuration does not
    share     among the brokers with ``own: auto``: one that has two shards more than another gives one away, which is
              the one that makes their loads most equal
    leaving   a broker that stops gives each shard to its home, else to the broker with the fewest shards
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from broker.jetstream.owners.roster import Line

__all__ = ["Gift", "heir", "next_gift"]


class Gift(NamedTuple):
    """A shard that is to be given to a broker."""

    shard: int
    to: Line


def next_gift(me: Line, others: Collection[Line], is_fixed: Callable[[int], bool] = lambda _: False) -> Gift | None:
    """Return the next shard that ``me`` should give away, if any; one that ``is_fixed`` cannot be given."""
    for number in me.shards:
        if (home := _home(number, others)) is not None and not _is_home(number, me) and not is_fixed(number):
            return Gift(number, home)
    if me.own != "auto":
        return None
    fewest = min((line for line in others if line.own == "auto"), key=lambda line: (len(line.shards), line.id),
                 default=None)
    if fewest is None or len(me.shards) < len(fewest.shards) + 2:
        return None
    apart = me.bytes_per_second - fewest.bytes_per_second
    # Shard 0 last: no stream is created or changed while it is handed over.
    best = sorted(me.shards, key=lambda number: (abs(apart - 2 * me.shards[number]), not number, number))
    return next((Gift(number, fewest) for number in best if not is_fixed(number)), None)


def heir(shard: int, others: Iterable[Line]) -> Line | None:
    """Return the broker that gets a shard from one that stops; None if there is none."""
    others = list(others)
    return _home(shard, others) or min(others, key=lambda line: (len(line.shards), line.id), default=None)


def _home(shard: int, lines: Iterable[Line]) -> Line | None:
    return min((line for line in lines if _is_home(shard, line)), key=lambda line: line.id, default=None)


def _is_home(shard: int, line: Line) -> bool:
    return line.own != "auto" and shard in line.own
