"""Fixtures of every test: brokers on demand, and a loop whose exception handler may not be called."""

from __future__ import annotations

import ast
import asyncio
import gc
import inspect
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import pytest_asyncio

from tests.ast_parse import parse
from tests.botocore_files import keep_files
from tests.client_timeouts import lengthen_timeouts
from tests.harness import BrokerProcess, NatsServerProcess
from tests.real.s3 import minio, report_missing, seaweed
from tests.wait_for import wait_for

__all__ = ["broker", "loop_exceptions", "minio", "nats_server", "seaweed"]

if sys.version_info < (3, 12):
    asyncio.wait_for = wait_for  # type: ignore[assignment]
if sys.version_info < (3, 12, 2):
    ast.parse = parse
lengthen_timeouts()
keep_files()
# The time of an example depends on the machine. `make soak` loads the profile "long".
for profile, examples in (("short", 30), ("long", 1000)):
    hypothesis.settings.register_profile(profile, hypothesis.settings.default, max_examples=examples, deadline=None,
                                         suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("short")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without the garbage collector, and keep it from the collected tests afterwards.

    A worker has a million objects of them. Visiting these again and again is a sixth of the processor time of the
    collection, and part of each full collection of garbage later.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest_asyncio.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    """Start jetblock with JetStream on its own directory store."""
    async with BrokerProcess("-js", "-sd", str(tmp_path / "store")) as process:
        yield process


@pytest_asyncio.fixture
async def nats_server(tmp_path: Path) -> AsyncIterator[NatsServerProcess]:
    """Start the real nats-server with JetStream."""
    async with NatsServerProcess("-js", "-sd", str(tmp_path / "nats-server")) as process:
        yield process


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test that has an event loop the fixture ``loop_exceptions``. The others, most of all tests, would pay
    3 ms for a loop."""
    for item in items:
        names = getattr(item, "fixturenames", None)
        if names is not None and "loop_exceptions" not in names and _has_loop(item):
            names.insert(0, "loop_exceptions")


def _has_loop(item: pytest.Item) -> bool:
    fixtures = item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]
    return pytest_asyncio.is_async_test(item) or any(
        inspect.iscoroutinefunction(fixture.func) or inspect.isasyncgenfunction(fixture.func)
        for several in fixtures for fixture in several)


@pytest_asyncio.fixture
async def loop_exceptions(request: pytest.FixtureRequest) -> AsyncIterator[list[dict[str, Any]]]:
    """Fail a test whose loop's exception handler was called: a lost exception is a bug wherever it was lost.

    A test that provokes one on purpose clears the list that this yields.
    """
    seen: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: seen.append(context))
    yield seen
    if seen:
        gc.collect()
    loop.set_exception_handler(None)
    lines = [f"{context.get('message')}: {context.get('exception')!r}" for context in seen]
    assert not lines, "the loop's exception handler was called:\n" + "\n".join(lines)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return the scheduler of distribution.py for ``--dist loadfile``."""
    if config.getoption("dist") != "loadfile":
        return None
    from tests.distribution import LongestFirst

    return LongestFirst(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report at the end the tests that lacked a real part, and how to get it."""
    report_missing(terminalreporter)
