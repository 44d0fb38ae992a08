"""Log lines at the start about what commits, heartbeats and standbys cost on S3 (docs/COST.md has the rules)."""

from __future__ import annotations

from typing import Final

__all__ = ["commit_cost", "heartbeat_cost", "shared_cost"]

_MONTH_SECONDS: Final = 30 * 86_400
_PUT_DOLLARS: Final = 0.005 / 1000
_GET_DOLLARS: Final = 0.0004 / 1000
_BEATS: Final = 3
"""The heartbeats of a process in a lease, and the questions about each of its idle shards."""
_QUESTIONS: Final = 7.5
"""The questions of a standby for the heartbeats of a process in a lease."""
_POLLS: Final = 1.15
"""The polls of a standby in a lease, for each shard; each makes two GETs."""


def commit_cost(interval_ns: int, *, at_aws: bool) -> str:
    """Return a log line: how often commits are put, and their cost at AWS (see docs/STORES.md, "What commits cost")."""
    if not interval_ns:
        return "Commits: at once, as often as the store takes them" + (
            "; each put is paid for, see commit_interval" if at_aws else "")
    puts = 1e9 / interval_ns
    rate = f"Commits: at most one put every {interval_ns / 1e6:g} ms, {puts:.0f} a second"
    if not at_aws:
        return rate
    dollars = puts * _MONTH_SECONDS * _PUT_DOLLARS
    return f"{rate}; at $0.005 for a thousand puts that is at most ${dollars:,.0f} a month under constant load"


def heartbeat_cost(shards: int, lease_ns: int, *, at_aws: bool) -> str:
    """Return a log line: the heartbeats of a process with so many idle shards, and their cost at AWS."""
    return f"Shards: {shards}; if all are idle, {_requests(_BEATS, _BEATS * shards, lease_ns, at_aws=at_aws)}"


def shared_cost(shards: int, lease_ns: int, *, at_aws: bool) -> str:
    """Return a log line about a store that several brokers own: what each broker adds by its heartbeats, what each
    shard adds, and what a broker adds by watching all shards of another one.
    """
    brokers = _requests(_BEATS, 0, lease_ns, at_aws=at_aws)
    shard = _requests(0, _BEATS, lease_ns, at_aws=at_aws)
    watched = _requests(0, _QUESTIONS + 2 * _POLLS * shards, lease_ns, at_aws=at_aws)
    return f"Shards: {shards}; each broker makes {brokers}; each idle shard adds {shard}; each standby adds {watched}"


def _requests(puts: float, gets: float, lease_ns: int, *, at_aws: bool) -> str:
    """Return so many requests in a lease as text: a second, and their cost at AWS."""
    seconds = lease_ns / 1e9
    parts = [f"{count / seconds:.1f} {name}s a second" for count, name in ((puts, "PUT"), (gets, "GET")) if count]
    dollars = (puts * _PUT_DOLLARS + gets * _GET_DOLLARS) / seconds * _MONTH_SECONDS
    return " and ".join(parts) + (f" (${dollars:,.2f} a month)" if at_aws else "")
