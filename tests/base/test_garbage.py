"""Python's garbage collector in small steps: ``broker.base.garbage``."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections.abc import Iterator

import nats
import pytest

from broker.base.garbage import Collector, discarded
from broker.runtime.embedded import Broker


class Node:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Keep objects of other tests out of these collections, and unfreeze all objects at the end."""
    gc.collect()
    yield
    gc.unfreeze()


async def all_collected(collector: Collector) -> None:
    async with asyncio.timeout(60):
        while not collector.full:  # noqa: ASYNC110 (a collector has no event)
            await asyncio.sleep(0.005)


async def test_what_stays_is_examined_once() -> None:
    """No collection visits more than a part of a heap of 400 000 objects that stay."""
    collector = Collector(every_s=0.001)
    collector.start()
    visited: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            visited.append(len(gc.get_objects(2)))

    gc.callbacks.append(note)
    try:
        kept: list[list[object]] = []
        while len(kept) < 400_000:
            kept += [[number] for number in range(2000)]
            await asyncio.sleep(0)
        steps = collector.steps
        assert steps >= 4
        assert collector.full == 0
        assert max(visited) < 200_000
        assert gc.get_freeze_count() > 200_000
    finally:
        gc.callbacks.remove(note)
        collector.stop()
    assert gc.get_freeze_count() == 0


async def test_young_cycles_are_freed_by_steps() -> None:
    collector = Collector(every_s=0.001)
    collector.start()
    try:
        node = Node()
        gone = weakref.ref(node)
        del node
        kept: list[list[object]] = []
        while gone() is not None:
            kept += [[number] for number in range(2000)]
            await asyncio.sleep(0.001)
        assert collector.full == 0
    finally:
        collector.stop()


async def test_discarded_cycles_that_were_set_aside_are_freed_in_the_end() -> None:
    nodes = [Node() for _ in range(600)]
    gone = [weakref.ref(node) for node in nodes]
    collector = Collector(every_s=0.001, idle_every=5)
    collector.start()  # sets them aside
    try:
        for node in nodes:
            discarded(node)
        del node
        nodes.clear()
        await all_collected(collector)
        assert not any(ref() for ref in gone)
    finally:
        collector.stop()


async def test_few_discarded_things_are_not_worth_a_full_collection() -> None:
    nodes = [Node() for _ in range(50)]
    collector = Collector(every_s=0.001, idle_every=1)
    collector.start()
    try:
        for node in nodes:
            discarded(node)
        del node
        nodes.clear()
        await asyncio.sleep(0.05)
        assert collector.full == 0
    finally:
        collector.stop()


async def test_streams_and_consumers_are_reported() -> None:
    """Streams and consumers that were frozen are freed by a full collection, and connections are freed without one."""
    async with Broker() as broker:
        collector = Collector(every_s=0.001, idle_every=5)
        clients = [await nats.connect(broker.url) for _ in range(100)]
        js = clients[0].jetstream()
        for number in range(300):
            await js.add_stream(name=f"S{number}", subjects=[f"s.{number}"])
            await js.pull_subscribe(f"s.{number}", durable="worker")
        here = _broker_objects()
        collector.start()
        try:
            for number in range(300):
                await js.delete_stream(f"S{number}")
            for client in clients:
                await client.close()
            await all_collected(collector)
            gc.unfreeze()
            gc.collect()
            left = _broker_objects()
            assert here - left >= 700, (here, left)
        finally:
            collector.stop()


def _broker_objects() -> int:
    """Count the connections, streams and consumers of brokers in this process."""
    kinds = tuple(getattr(sys.modules[module], name) for module, name in (
        ("broker.server.connection.client", "Client"), ("broker.jetstream.stream.stream", "Stream"),
        ("broker.jetstream.consumer.consumer", "Consumer")))
    return sum(isinstance(thing, kinds) for thing in gc.get_objects())


async def test_what_a_start_made_is_not_examined() -> None:
    """A collector starts while very many objects are created, and starts again when all exist."""
    examined: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            examined.append(sum(len(gc.get_objects(generation)) for generation in range(info["generation"] + 1)))

    collector = Collector(every_s=3600)
    gc.disable()
    made = [[number] for number in range(100_000)]
    gc.callbacks.append(note)
    try:
        collector.start()
        made += [[number] for number in range(20_000)]
        thresholds, before = gc.get_threshold(), gc.get_freeze_count()
        collector.start()
        assert gc.get_freeze_count() >= before + 20_000
        assert gc.get_threshold() == thresholds
        assert examined
        assert max(examined) < 60_000
    finally:
        gc.callbacks.remove(note)
        collector.stop()
        gc.enable()
    assert gc.get_threshold() != thresholds
    del made
