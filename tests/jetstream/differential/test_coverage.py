"""Each error code and each type of message has a scenario, another test, or a reason why there is none."""

from __future__ import annotations

import runpy
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from broker.jetstream.wire.error_table import ERROR_TABLE
from tests.jetstream.differential import api, coverage, scenarios, test_other_accounts

TESTS = Path(__file__).parent.parent.parent
PLAYED = api.SCENARIOS | scenarios.ALL


def test_each_scenario_is_played() -> None:
    """Shows that no module of scenarios is forgotten."""
    made = runpy.run_path(str(TESTS.parent / "docs" / "generators" / "compatibility.py"))
    assert len(PLAYED) + len(test_other_accounts.SCENARIOS) == made["scenarios"]() >= 400


def test_each_code_is_dealt_with_once() -> None:
    never = [code for codes in coverage.CODES_NEVER_GIVEN.values() for code in codes]
    counts = Counter([*coverage.CODES, *coverage.CODES_ELSEWHERE, *never])
    assert counts == Counter(ERROR_TABLE.keys())


def test_each_type_is_dealt_with_once() -> None:
    never = [one for types in coverage.TYPES_NEVER_SENT.values() for one in types]
    counts = Counter([*coverage.TYPES, *coverage.TYPES_ELSEWHERE, *never])
    assert set(counts.values()) == {1}
    assert len(counts) == 55, "nats-server 2.15 has so many"


@pytest.mark.parametrize("named", [coverage.CODES, coverage.TYPES], ids=["codes", "types"])
def test_named_scenarios_exist(named: Mapping[int | str, str]) -> None:
    assert set(named.values()) <= PLAYED.keys()


@pytest.mark.parametrize("test", sorted({*coverage.CODES_ELSEWHERE.values(), *coverage.TYPES_ELSEWHERE.values()}))
def test_named_tests_exist(test: str) -> None:
    path, _, name = test.partition("::")
    assert f"def test_{name}(" in (TESTS / path).read_text()


def test_missing_codes_of_a_scenario_are_reported() -> None:
    assert coverage.unkept("no such scenario", []) == set()
    name = coverage.CODES[10059]
    assert 10059 in coverage.unkept(name, [{"error": {"err_code": 10058}}])
    assert 10059 not in coverage.unkept(name, [{"error": {"err_code": 10059}}])
    assert 10059 not in coverage.unkept(name, ['{"error": {"err_code": 10059}}'])
