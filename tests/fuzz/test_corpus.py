"""Scenarios that once showed a difference, kept for ever: both servers give equal answers today."""

from __future__ import annotations

import pytest

from tests.fuzz.fuzzer import KINDS, Fuzzer
from tests.fuzz.scenario import corpus

FOUND = [(kind, name) for kind in KINDS for name in corpus(kind)]


@pytest.mark.parametrize("kind, name", FOUND, ids=[name for _, name in FOUND])
async def test_found_before(kind: str, name: str) -> None:
    """Only accepted differences remain."""
    found = await Fuzzer(kind).check(corpus(kind)[name])
    assert not found, "\n".join(map(str, found))
