"""Log lines at the start about what commits, heartbeats and standbys cost on S3 (docs/COST.md has the rules)."""

from __future__ import annotations

from typing import Final

__all__ = ["commit_cost", "heartbeat_cost", "shared_cost"]

_MONTH_SECONDS: Final = 30 * 86_400
_PUT_DOLLARS: Final = 0.005 / 1000
_GET_DOLLARS: Final = 0.0004 / 1000
_POLLS: Final = 6
"""The polls of a standby in a lease; each makes two GETs."""


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
    """Return a log line: the heartbeats of idle shards, and their cost at AWS."""
    puts = shards * 3e9 / lease_ns
    line = f"Shards: {shards}; if all are idle, their heartbeats are {puts:.1f} puts a second"
    return f"{line}, at $0.005 for a thousand ${puts * _MONTH_SECONDS * _PUT_DOLLARS:,.2f} a month" if at_aws else line


def shared_cost(shards: int, lease_ns: int, *, at_aws: bool) -> str:
    """Return a log line about a store that several brokers own: the heartbeats of idle shards, of which each has one
    owner, and what each broker adds by watching the shards of the others.
    """
    gets = shards * 2 * _POLLS * 1e9 / lease_ns
    line = (f"{heartbeat_cost(shards, lease_ns, at_aws=at_aws)}; a broker that watches all of them makes {gets:.1f} "
            "GETs a second")
    return f"{line}, ${gets * _MONTH_SECONDS * _GET_DOLLARS:,.2f} a month" if at_aws else line
