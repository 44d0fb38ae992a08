"""The scenarios of player.py by their full names, in groups that take about as long as one another.

A group is a test file, because whole files are distributed among workers.
"""

from __future__ import annotations

from types import ModuleType

from tests.jetstream.differential import (
    advisories,
    batches,
    consuming,
    copying,
    counters,
    extremes,
    fast_batches,
    priorities,
    publishing,
    refusals,
    retention,
    schedules,
    ttls,
    upstream,
)

__all__ = ["ALL", "CONSUMING", "PUBLISHING", "STREAMS"]


def _named(**modules: ModuleType) -> dict[str, str]:
    return {f"{kind.replace('_', ' ')}: {name}": one
            for kind, module in modules.items() for name, one in module.SCENARIOS.items()}


CONSUMING = consuming.SCENARIOS | _named(priorities=priorities)
PUBLISHING = _named(publishing=publishing, batches=batches, fast_batches=fast_batches, TTLs=ttls, counters=counters,
                    schedules=schedules, advisories=advisories, refusals=refusals, extremes=extremes)
STREAMS = _named(retention=retention, upstream=upstream, copying=copying)
ALL = CONSUMING | PUBLISHING | STREAMS
