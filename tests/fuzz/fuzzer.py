"""The fuzzer: it plays scenarios to both servers and reports differences that are neither accepted nor accidental.

    seeds ──> scenarios ──> shared servers ──> differences ──> fresh servers, slower ──> the same? ──> shrink ──> report

If a server refuses a scenario's configuration, only that is compared.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz import operations, requests
from tests.fuzz.accepted import accepting_rules
from tests.fuzz.compare import CONFIGURATION, Difference, differences
from tests.fuzz.generators.protocol import protocol_scenarios, reload_scenario
from tests.fuzz.generators.requests import request_scenario
from tests.fuzz.scenario import Config, Scenario
from tests.fuzz.servers import Pair, refusals
from tests.fuzz.shrink import shrink
from tests.harness import ServerFailed

__all__ = ["KINDS", "Fuzzer", "Report"]

KINDS = ("protocol", "reload", "requests")

DIALOGUES = 25
"""Number of ``protocol`` scenarios that share a configuration."""
TOGETHER = len(requests.USERS)
"""Number of ``requests`` scenarios played at a time; they mostly wait for messages that must not come."""
RELOADS = 40
"""Number of ``reload`` scenarios that share servers."""
SHRUNK_OF_ONE = 1
"""Number of scenarios that are shrunk and reported, of those whose first differences are alike."""
_SLOWNESS = (1, 2, 4)
"""Factors of slowness with which a scenario with differences is replayed, alone."""

Results = tuple[Any, Any]


@dataclass
class Report:
    """The results of a run."""

    played: int = 0
    refused: int = 0
    repeated: int = 0
    """Scenarios with differences like those of a reported failure."""
    failures: list[tuple[Scenario, list[Difference]]] = field(default_factory=list)
    accepted: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        found = "\n\n".join("\n".join([str(scenario), *map(str, found)]) for scenario, found in self.failures)
        names = "".join(f"\n  {count} × {name}" for name, count in self.accepted.most_common())
        return (f"{self.played} scenarios, {self.refused} refused by both servers, "
                f"{len(self.failures) + self.repeated} with differences\n"
                f"accepted differences:{names or ' none'}\n{found}")


class Fuzzer:
    """Plays the scenarios of one kind."""

    def __init__(self, kind: str, *, shrink_tries: int = 250) -> None:
        self.kind = kind
        self.report = Report()
        self._shrink_tries = shrink_tries
        self.on_failure: Callable[[Scenario, list[Difference]], None] = lambda scenario, found: None
        """Called for each failure when it is found."""
        self._seen: Counter[tuple[str, ...]] = Counter()

    async def run(self, seeds: Iterable[int], seconds: float = float("inf")) -> Report:
        """Play the scenarios of these seeds; stop early after so many seconds."""
        deadline = time.monotonic() + seconds
        play = {"protocol": self._protocol, "reload": self._reloads, "requests": self._requests}[self.kind]
        batches = play(iter(seeds))
        async for scenario, results in batches:
            await self._check_played(scenario, results)
            if time.monotonic() > deadline:
                break
        await batches.aclose()
        return self.report

    async def check(self, scenario: Scenario) -> list[Difference]:
        """Return the unaccepted differences of one scenario that are found at each of several tries on fresh
        servers."""
        found: list[Difference] = []
        for slowness in _SLOWNESS:
            found = self._unaccepted(scenario, await self._alone(scenario, slowness))
            if not found:
                break
        return found

    # ---- batches

    async def _protocol(self, seeds: Any) -> AsyncGenerator[tuple[Scenario, Results | None], None]:
        for seed in seeds:
            scenarios = protocol_scenarios(seed, DIALOGUES)
            async with _accepted_pair(scenarios[0]) as pair:
                for scenario in scenarios if pair else scenarios[:1]:
                    yield scenario, await _played(pair, scenario) if pair else None

    async def _reloads(self, seeds: Any) -> AsyncGenerator[tuple[Scenario, Results | None], None]:
        ended = False
        while not ended:
            ended = True
            async with Pair({}) as pair:
                for count, seed in enumerate(seeds, 1):
                    scenario = reload_scenario(seed)
                    prepared = not any(await refusals(scenario.configs[0])) and not any(await asyncio.gather(
                        *(server.reload(scenario.configs[0]) for server in pair.servers)))
                    yield scenario, await _played(pair, scenario) if prepared else None
                    if count == RELOADS:
                        ended = False
                        break

    async def _requests(self, seeds: Any) -> AsyncGenerator[tuple[Scenario, Results | None], None]:
        async with Pair(requests.CONFIG, *requests.FLAGS) as pair:
            while batch := [request_scenario(seed) for seed, _ in zip(seeds, range(TOGETHER), strict=False)]:
                played = await asyncio.gather(*(_played(pair, scenario, user=user)
                                                for scenario, user in zip(batch, requests.USERS, strict=False)))
                for scenario, results in zip(batch, played, strict=True):
                    yield scenario, results

    # ---- one scenario

    async def _check_played(self, scenario: Scenario, results: Results | None) -> None:
        self.report.played += 1
        if results is not None:
            if not self._unaccepted(scenario, results, count=True):
                return
        elif all(await refusals(scenario.configs[0])):
            self.report.refused += 1
            return
        found = await self.check(scenario)
        if not found:
            return
        self._seen[found[0].signature] += 1
        if self._seen[found[0].signature] > SHRUNK_OF_ONE:
            self.report.repeated += 1
            return
        small = await self._shrink(scenario, found[0])
        if again := await self.check(small):
            scenario, found = small, again
        self.report.failures.append((scenario, found))
        self.on_failure(scenario, found)

    async def _shrink(self, scenario: Scenario, first: Difference) -> Scenario:
        """Return a smaller scenario whose first difference is like ``first``."""
        async with AsyncExitStack() as stack:
            pairs = _Reused(stack)

            async def fails(smaller: Scenario) -> bool:
                try:
                    found = self._unaccepted(smaller, await self._alone(smaller, pairs=pairs))
                    # The texts of requests change with their fields, so signatures are not compared.
                    return bool(found) and (scenario.kind == "requests" or found[0].signature == first.signature)
                except (ServerFailed, TimeoutError, AssertionError):
                    # A line that was cut short is no longer a step.
                    return False

            return await shrink(scenario, fails, self._shrink_tries)

    async def _alone(self, scenario: Scenario, slowness: int = 1, pairs: _Reused | None = None) -> Results:
        """Return the results on fresh servers, or on those of ``pairs``."""
        requested = scenario.kind == "requests"
        config = requests.CONFIG if requested else scenario.configs[0]
        if not requested and (pairs is None or config != pairs.config) and any(refused := await refusals(config)):
            # If both refuse it, the texts are not compared here: other tests do that.
            theirs, ours = ([(CONFIGURATION, "refused" if all(refused) else text or "accepted")] for text in refused)
            return theirs, ours
        if pairs is not None:
            pair = await pairs.get(config, requests.FLAGS if requested else ())
            return await _played(pair, scenario, slowness)
        async with Pair(config, *requests.FLAGS if requested else ()) as pair:
            return await _played(pair, scenario, slowness)

    def _unaccepted(self, scenario: Scenario, results: Results, *, count: bool = False) -> list[Difference]:
        found = []
        for difference in differences(scenario, *results):
            rules = accepting_rules(difference)
            if not rules:
                found.append(difference)
            elif count:
                self.report.accepted.update(rule.name for rule in rules)
        return found


class _Reused:
    """Servers that get another configuration by a reload, for scenarios that are tried one after the other."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.config: Config | None = None
        self._stack = stack
        self._pair: Pair

    async def get(self, config: Config, flags: tuple[str, ...]) -> Pair:
        """Return running servers with this configuration."""
        if self.config != config:
            if self.config is None or any([await server.reload(config) for server in self._pair.servers]):
                await self._stack.aclose()
                self._pair = await self._stack.enter_async_context(Pair(config, *flags))
            self.config = config
        return self._pair


async def _played(pair: Pair, scenario: Scenario, slowness: int = 1, user: str = requests.USERS[0]) -> Results:
    if scenario.kind == "requests":
        theirs, ours = await asyncio.gather(
            *(requests.play(server, scenario, slowness, user) for server in pair.servers))
    else:
        theirs, ours = await asyncio.gather(*(operations.play(server, scenario, slowness) for server in pair.servers))
    return theirs, ours


@asynccontextmanager
async def _accepted_pair(scenario: Scenario) -> AsyncIterator[Pair | None]:
    """Start servers with the scenario's configuration; None if a server refuses it."""
    if any(await refusals(scenario.configs[0])):
        yield None
    else:
        async with Pair(scenario.configs[0]) as pair:
            yield pair
