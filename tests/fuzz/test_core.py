"""The parts of the fuzzers: scenarios as text, shrinking, generators, and a planted difference that must be found."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.fuzz import servers
from tests.fuzz.accepted import ACCEPTED
from tests.fuzz.compare import differences
from tests.fuzz.fuzzer import Fuzzer
from tests.fuzz.generators.protocol import protocol_scenarios, reload_scenario
from tests.fuzz.generators.requests import request_scenario
from tests.fuzz.scenario import Config, Scenario
from tests.fuzz.shrink import shrink
from tests.harness import BrokerProcess


@pytest.mark.parametrize("make", [lambda seed: protocol_scenarios(seed, 3)[-1], reload_scenario, request_scenario],
                         ids=["protocol", "reload", "requests"])
def test_a_seed_makes_the_same_scenario_again(make: object) -> None:
    """Equal seeds give equal scenarios, other seeds others; their text loses nothing."""
    assert callable(make)
    scenarios = [make(seed) for seed in range(30)]
    assert scenarios == [make(seed) for seed in range(30)]
    assert len({scenario.to_json() for scenario in scenarios}) == 30
    assert [Scenario.from_json(scenario.to_json()) for scenario in scenarios] == scenarios


async def test_shrinking_keeps_only_what_the_failure_needs() -> None:
    """Shrinking keeps only the steps and settings that the failure needs."""
    steps: list[list[Any]] = [["a", "pub", f"s.{number}", "", "payload"] for number in range(20)]
    steps[13] = ["a", "hpub", "x.bad", "", [["A", "1"], ["B", "2"]], "payload"]
    config: Config = {"max_payload": 10, "accounts": {"A": {"users": [{"user": "a"}], "mappings": {"s": "t"}}, "B": {}}}

    async def fails(scenario: Scenario) -> bool:
        text = scenario.to_json()
        return '"bad"' in text.replace("x.bad", "bad") and '["B", "2"]' in text and '"mappings"' in text

    small = await shrink(Scenario("protocol", [config], steps), fails, 500)
    assert small.configs == [{"accounts": {"A": {"mappings": {}}}}]
    assert small.steps == [["a", "hpub", "bad", "", [["B", "2"]], "p"]]


async def test_json_in_a_line_is_shrunk_as_a_value() -> None:
    """Lines of requests end with JSON, from which single fields are removed."""
    line = 'api STREAM.CREATE.S {"name": "S", "max_msgs": 5, "sources": [{"name": "T"}, {"name": "U"}]}'

    async def fails(scenario: Scenario) -> bool:
        return any('"U"' in line for _, line in scenario.steps)

    small = await shrink(Scenario("requests", [], [["", line], ["", "state"]]), fails)
    assert small.steps == [["", 'api STREAM.CREATE.S {"sources": [{"name": "U"}]}']]


def test_differences_name_their_step() -> None:
    """Each step with other results is one difference."""
    theirs, ours = [("a", 1), ("b", {"x": 1}), ("c", 3)], [("a", 1), ("b", {"x": 2}), ("c", 3)]
    found = differences(Scenario("requests", [], []), theirs, ours)
    assert [(one.index, one.theirs, one.ours) for one in found] == [(1, {"x": 1}, {"x": 2})]


async def test_a_planted_difference_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fuzzer reports that jetblock runs without permissions of users, with a scenario of few steps."""
    original = servers.Server.start

    async def start(self: servers.Server, config: Config) -> None:
        if isinstance(self.process, BrokerProcess):
            config = copy.deepcopy(config)
            for user in config["authorization"]["users"]:
                user.pop("permissions", None)
        await original(self, config)

    monkeypatch.setattr(servers.Server, "start", start)
    users = [{"user": "u", "password": "u", "permissions": {"publish": "yes"}}, {"user": "v", "password": "v"}]
    connect = {"verbose": False, "pedantic": False, "headers": True}
    scenario = Scenario("protocol", [{"authorization": {"users": users}}], [
        ["u", "connect", {**connect, "user": "u", "pass": "u"}],
        ["v", "connect", {**connect, "user": "v", "pass": "v"}],
        ["v", "sub", "no.*", "", "1"], ["u", "pub", "yes", "", "1"], ["u", "pub", "no.a", "", "2"],
        ["v", "pub", "a", "", "3"]])
    (found, *_) = await Fuzzer("protocol").check(scenario)
    assert found.index == 4
    assert "Permissions Violation for Publish" in str(found)
    assert "Permissions Violation" in str(found.theirs)
    assert "Permissions Violation" not in str(found.ours)


def test_rules_have_reasons() -> None:
    """Names of rules are unique; each gives a reason."""
    rules = ACCEPTED
    assert len({rule.name for rule in rules}) == len(rules)
    assert all(rule.reason.endswith(".") for rule in rules)
