"""Staged messages that join a stream while brokers are killed, beside a client that publishes to it.

    granted once      the messages of a grant are at its sequences, whole, in order, and there once
    whole or none     all messages of a request without an answer are there, or none
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Coroutine
from typing import Any

from broker.storage.objectstore import ObjectStore
from broker.storage.read.snapshot import read_snapshot
from broker.storage.state.applied import ShardState
from tests.adversity.clients import FAILED, connect, disconnect
from tests.jetstream.inbox.staging import eventually, request, stage

__all__ = ["STREAM", "StagingLoad"]

STREAM = "STAGED"
SUBJECT = "staged"


class StagingLoad:
    """The clients that stage messages and send requests, over ``store`` and brokers that are killed and take over from
    each other."""

    def __init__(self, rng: random.Random, store: ObjectStore, *urls: str) -> None:
        self.urls, self.rng, self.store = urls, rng, store
        self.stop = asyncio.Event()
        self.asked: dict[str, list[bytes]] = {}
        self.granted: dict[str, tuple[int, int]] = {}
        """First and last sequence, by name of the request."""
        self.published: dict[bytes, int] = {}
        """Sequence by payload, from PubAcks."""

    def clients(self) -> list[Coroutine[Any, Any, None]]:
        return [self.asker(), self.publisher()]

    async def asker(self) -> None:
        """Stage messages and repeat the request until it is granted, always under the same id."""
        nc = await connect(*self.urls)
        state: ShardState | None = None
        while not self.stop.is_set():
            if state is None:
                # The request needs the stream's id, which does not change.
                state = (await read_snapshot(self.store, 0)).state
            name = f"r{len(self.asked)}"
            rows = [b"%b/%d" % (name.encode(), at) for at in range(self.rng.choice((1, 40, 300)))]
            writer = await stage(self.store, state, STREAM, [(SUBJECT.encode(), row) for row in rows],
                                 block_messages=self.rng.choice((7, 1000)), run_bytes=self.rng.choice((500, 1 << 20)))
            self.asked[name] = rows
            body = json.dumps({"request": await request(self.store, writer, name)}).encode()
            while not self.stop.is_set():
                try:
                    answer = json.loads((await nc.request(f"$JS.API.JETBLOCK.ADOPT.{STREAM}", body, timeout=2)).data)
                except FAILED:
                    await asyncio.sleep(0.05)
                    continue
                if "error" not in answer:
                    self.granted[name] = answer["first_seq"], answer["last_seq"]
                    break
                assert answer["error"]["code"] == 503, answer
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.1)
        await disconnect(nc)

    async def publisher(self) -> None:
        nc, number = await connect(*self.urls), 0
        while not self.stop.is_set():
            payload = b"p%d" % (number := number + 1)
            try:
                self.published[payload] = (await nc.jetstream().publish(SUBJECT, payload, timeout=1)).seq
            except FAILED:
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.02)
        await disconnect(nc)

    async def wait_for_answers(self) -> None:
        """Wait until each request has its answer."""
        async def answered() -> bool:
            return not await self.store.list("v1/shards/0/inbox/")

        await eventually(answered, 60)

    def check(self, held: dict[int, bytes]) -> None:
        """Check ``held``: all payloads that the stream has after ``wait_for_answers``, by sequence."""
        assert len(set(held.values())) == len(held), "a message is stored twice"
        for payload, seq in self.published.items():
            assert held.get(seq) == payload, (payload, seq, held.get(seq))
        for name, (first, last) in self.granted.items():
            assert [held.get(seq) for seq in range(first, last + 1)] == self.asked[name], (name, first, last)
        for name, rows in self.asked.items():
            mine = [held[seq] for seq in sorted(held) if held[seq].startswith(name.encode() + b"/")]
            assert mine == rows, (name, len(mine), len(rows))
        assert self.granted
        assert self.published

    def __str__(self) -> str:
        return (f"{len(self.asked)} requests with {sum(map(len, self.asked.values()))} messages, {len(self.granted)} "
                f"seen granted, {len(self.published)} published in between")
