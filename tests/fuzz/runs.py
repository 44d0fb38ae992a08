"""Runs of the fuzzers within the test suite: fixed seeds by default, fresh ones in the long runs."""

from __future__ import annotations

import os
import secrets
from itertools import count

from tests.fuzz.fuzzer import Fuzzer

__all__ = ["SOAK_SECONDS", "play_fresh_seeds", "play_seeds"]

SOAK_SECONDS = float(os.environ.get("JETBLOCK_FUZZ_SECONDS", "7200")) / 3
"""Time for which each of the three fuzzers runs in the long runs."""


async def play_seeds(kind: str, seeds: range) -> None:
    """Play these seeds; fail with the shrunk scenarios of all differences."""
    report = await Fuzzer(kind).run(seeds)
    assert not report.failures, str(report)


async def play_fresh_seeds(kind: str) -> None:
    """Play seeds that nobody has tried, for ``SOAK_SECONDS``; the first seed is printed."""
    first = int(os.environ.get("JETBLOCK_FUZZ_SEED", 0)) or secrets.randbelow(1 << 40)
    print(f"JETBLOCK_FUZZ_SEED={first}")
    report = await Fuzzer(kind).run(count(first), SOAK_SECONDS)
    print(report)
    assert not report.failures, f"first seed: {first}\n{report}"
