"""Reading a store for the console, in a thread of its own, so that other users' pages do not wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from broker.inspect.source import open_source
from broker.inspect.survey import Survey, read_survey
from broker.inspect.verify import Verified, verify

__all__ = ["Stopped", "in_thread", "survey_store", "verify_store"]

T = TypeVar("T")


class Stopped(Exception):
    """A reading that the user stopped."""


async def in_thread(read: Callable[[], Awaitable[T]]) -> T:
    """Return the result of a coroutine that runs on a loop of its own."""
    async def run() -> T:
        return await read()

    return await asyncio.to_thread(lambda: asyncio.run(run()))


async def survey_store(url: str) -> Survey:
    """Read what is in a store. Raises: CannotInspect, StoreError."""
    source = open_source(url)
    try:
        return await read_survey(source)
    finally:
        await source.close()


async def verify_store(url: str, progress: Callable[[int, int, int, int], object]) -> tuple[Survey, Verified]:
    """Read all bytes of a store. Raises: CannotInspect, StoreError, and what ``progress`` raises."""
    source = open_source(url)
    try:
        survey = await read_survey(source)
        return survey, await verify(source, survey, progress)
    finally:
        await source.close()
