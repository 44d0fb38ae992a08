"""Parsing source while garbage has finalizers that raise: see ast_parse.py."""

from __future__ import annotations

import ast
import gc
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ast_parse import parse


class Fails:
    """Cyclic garbage with a finalizer whose traceback has carets: formatting it parses source."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        [print("not reached") for _ in range(1 // len([]))]


@pytest.fixture
def formatted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Format tracebacks of finalizers at once, as pytest does; the collector runs after few allocations."""
    seen: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook",
                        lambda it: seen.append("".join(traceback.format_exception(it.exc_value))))
    before = gc.get_threshold()
    gc.collect()
    gc.set_threshold(100)
    yield seen
    gc.set_threshold(*before)


def test_finalizers_do_not_parse_meanwhile(formatted: list[str]) -> None:
    """The tree is whole, although there is garbage, and its finalizers run soon after."""
    source = Path(__file__).read_text()
    for _ in range(10):
        Fails()
        assert isinstance(parse(source), ast.Module)
    gc.collect()
    assert len(formatted) == 10
    assert "ZeroDivisionError" in formatted[0]
