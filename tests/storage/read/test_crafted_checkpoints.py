"""Checkpoints with right checksums and wrong values, from a faulty or malicious writer.

Every reader of the shard falls back to an earlier checkpoint or to the log, or raises an error that names the
object. No other error is raised, and every state that is returned can be used.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

import broker.storage.state.expiries as expiries
import broker.storage.state.pages as pages
import broker.storage.state.table as table
from broker.storage.format.checkpoint import Root
from broker.storage.format.document import decode_document, encode_document
from broker.storage.format.errors import CutOff, FormatError
from broker.storage.format.header import ObjectHeader, ObjectKind, Position
from broker.storage.format.page import Page, PageKind, PageRef, decode_page, decode_pages_directory, encode_pages
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.paths import parse
from broker.storage.read.snapshot import read_snapshot
from broker.storage.state.pages import StreamCopy
from tests.manual_clock import ManualClock
from tests.storage.checkpoint.test_checkpointer import NEVER, ChangingStreams
from tests.storage.rig import PATHS, Rig, dump, in_virtual_time

MUTANTS = 40
"""The checkpoints tried for each seed, which take a second of processor time."""

_OTHERS: list[Any] = [None, -1, 0, 1, 1 << 63, (1 << 64) - 1, 1.5, "x", "", b"", b"zz" * 9, [], [1], [[1]], {},
                      {"a": 1}, True]


class Sample:
    """A store with a checkpoint of streams of every kind, and some segments after it."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects
        self.key = max(key for key in objects if "/checkpoint/" in key)
        position = parse(self.key).position  # type: ignore[union-attr]
        assert position is not None
        self.at = position
        self.root = Root.decode(objects[self.key], position)
        self.nonce = ObjectHeader.unpack(objects[self.key], self.key).nonce
        self.pages: dict[Position, list[tuple[PageRef, Page]]] = {}
        for key, data in sorted(objects.items()):
            if "/pages/" in key:
                at = parse(key).position  # type: ignore[union-attr]
                assert at is not None
                refs = decode_pages_directory(data, at)
                assert isinstance(refs, list)
                self.pages[at] = [(ref, decode_page(data[ref.offset:ref.offset + ref.size], ref)) for ref in refs]

    def with_root(self, change: Callable[[Any], Any]) -> dict[str, bytes]:
        _, body = decode_document(self.objects[self.key], ObjectKind.ROOT, self.at)
        return {**self.objects, self.key: encode_document(ObjectKind.ROOT, self.at, self.nonce, change(body))}

    def with_page(self, number: int, change: Callable[[Any], Any]) -> dict[str, bytes]:
        """Return the store with one page changed; every reference to pages names them by their new places."""
        places = [(at, i) for at, some in self.pages.items() for i in range(len(some))]
        chosen = places[number % len(places)]
        objects, moved = dict(self.objects), dict[tuple[int, ...], PageRef]()
        for at, some in self.pages.items():
            made = []
            for i, (_, page) in enumerate(some):
                body = _renamed(page.body, moved) if page.kind == PageKind.DIRECTORY else page.body
                made.append(page._replace(body=change(body) if (at, i) == chosen else body))
            data, refs = encode_pages(at, self.nonce, made)
            moved |= {tuple(old.pack()): new for (old, _), new in zip(some, refs, strict=True)}
            objects[PATHS.pages(at)] = b"".join(data)
        root = self.root._replace(pages=tuple(moved[tuple(ref.pack())] for ref in self.root.pages))
        return {**objects, self.key: root.encode(self.nonce)}


def _renamed(value: Any, moved: dict[tuple[int, ...], PageRef]) -> Any:
    if not isinstance(value, (list, tuple)):
        return value
    if len(value) == 6 and {*map(type, value)} == {int} and tuple(value) in moved:
        return moved[tuple(value)].pack()
    return [_renamed(one, moved) for one in value]


@cache
def sample() -> Sample:
    async def main(clock: ManualClock) -> dict[str, bytes]:
        shared = MemoryStore()
        rig = Rig(shared, clock, "a", 0, settings=NEVER)
        shard = await rig.open()
        streams = ChangingStreams(rig, random.Random(3))
        for steps in (300, 10):
            for _ in range(steps):
                streams.step()
                await asyncio.sleep(0.001)
            await rig.log.persisted()
            if steps == 300:
                await shard.checkpointer.cut()
        objects = dict(shared.objects)
        await shard.abandon()
        return objects

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "PAGE_ENTRIES", 4)
        patch.setattr(pages, "INLINE_BLOCKS_MAX", 3)
        patch.setattr(pages, "LISTED_BLOCKS_MAX", 1)
        patch.setattr(pages, "INLINE_CONSUMER_MAX", 20)
        patch.setattr(pages, "INLINE_EXPIRIES_MAX", 3)
        patch.setattr(expiries, "PAGE_ROWS", 4)
        return Sample(in_virtual_time(main))


def mutated(value: Any, rng: random.Random) -> Any:
    """Return ``value`` with one part of it, at any depth, replaced."""
    paths: list[tuple[Any, ...]] = []

    def walk(one: Any, path: tuple[Any, ...]) -> None:
        paths.append(path)
        inner = one.items() if isinstance(one, dict) else enumerate(one) if isinstance(one, (list, tuple)) else ()
        for key, part in inner:
            walk(part, (*path, key))

    def replaced(one: Any, path: tuple[Any, ...]) -> Any:
        if not path:
            return _other(one, rng)
        inner = one.items() if isinstance(one, dict) else enumerate(one)
        parts = {key: replaced(part, path[1:]) if key == path[0] else part for key, part in inner}
        return parts if isinstance(one, dict) else list(parts.values())

    walk(value, ())
    return replaced(value, rng.choice(paths))


def _other(one: Any, rng: random.Random) -> Any:
    if isinstance(one, (list, tuple)) and one and rng.random() < 0.4:
        at = rng.randrange(len(one))
        return [*one[:at], *one[at + 1:]] if rng.random() < 0.5 else [*one, one[at]]
    if type(one) is int and rng.random() < 0.6:
        return one + rng.choice((-1, 1, 1000, -one, -2 * one - 1, 1 << 40))
    if type(one) is bytes and one and rng.random() < 0.6:
        at = rng.randrange(len(one))
        return one[:at] + bytes([rng.randrange(256)]) + one[at + 1:]
    return rng.choice(_OTHERS)


async def use(objects: dict[str, bytes], *, swept: bool) -> None:
    """Read the shard and use all of its state. ``swept``: the log before the checkpoint is gone, so it must be used."""
    store = MemoryStore()
    for key, data in objects.items():
        position = parse(key).position if "/log/" in key else None  # type: ignore[union-attr]
        if not (swept and position is not None and position.number and position <= sample().at):
            await store.put(key, [data])
    state = (await read_snapshot(store, 0)).state
    dump(state)
    for stream in state.streams.values():
        if stream.offline is None:
            for entry in stream.blocks:
                assert entry.live_msgs >= 0
                assert entry.ref.pack()
            assert StreamCopy(stream).weight


@pytest.mark.parametrize("swept", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_values_that_cannot_be(seed: int, swept: bool) -> None:
    """A value of a root or of a page of each kind is replaced. Either the checkpoint is refused, or all of its
    state can be used."""
    rng, read, refusals = random.Random(seed), 0, list[str]()
    for number in range(MUTANTS):
        try:
            if number % 8:
                objects = sample().with_page(rng.randrange(1000), lambda body: mutated(body, rng))
            else:
                objects = sample().with_root(lambda body: mutated(body, rng))
        except (TypeError, OverflowError):
            continue  # even a faulty writer could not encode that value
        try:
            asyncio.run(use(objects, swept=swept))
            read += 1
        except (FormatError, CutOff) as error:
            refusals.append(str(error))
    assert read
    assert all("v1/" in refusal or "00000001-" in refusal for refusal in refusals), refusals


@pytest.mark.parametrize(("change", "why"), [
    (lambda body: {**body, "pages": [[1 << 40, *ref[1:]] for ref in body["pages"]]}, "no object can have epoch"),
    (lambda body: {**body, "extra": {**body["extra"], "segments": [[1, 0, 1 << 47]]}}, "no log has segments"),
    (lambda body: {**body, "extra": {**body["extra"], "roots": [[[1, "2"], []]]}}, "is no position"),
])
def test_a_root_that_would_take_all_memory_or_cannot_be_followed(change: Callable[[Any], Any], why: str) -> None:
    """Each such root is refused with an error that names its fault."""
    with pytest.raises(FormatError, match=why) as caught:
        asyncio.run(use(sample().with_root(change), swept=True))
    assert sample().key.rsplit("/", 1)[1] in str(caught.value)
