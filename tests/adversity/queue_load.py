"""A work queue and an interest stream that are filled and drained while brokers are killed, and the answers of their
clients.

    nothing unacked is lost      every message with a PubAck is delivered to each consumer that matches it
    nothing acked comes back     a message whose ack was answered is never delivered again
    nothing acked stays          once everything is acked, the streams are empty
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StreamConfig

from tests.adversity.clients import ANSWER_SECONDS, FAILED, connect, disconnect

__all__ = ["QueueLoad"]

STREAMS = {"QUEUE": ("w", RetentionPolicy.WORK_QUEUE, ("one",)),
           "INTEREST": ("i", RetentionPolicy.INTEREST, ("one", "two"))}
AHEAD = 1000
"""Messages by which publishers may be ahead of the slowest consumer, so that draining ends the run soon."""


class QueueLoad:
    """The clients and the answers they received, over brokers that are killed and take over from each other."""

    def __init__(self, *urls: str, batch: int = 20) -> None:
        self.urls, self.batch = urls, batch
        self.stop = asyncio.Event()
        self.kept: dict[str, set[bytes]] = {name: set() for name in STREAMS}
        """Payloads with a PubAck."""
        self.seen: dict[tuple[str, str], set[bytes]] = {
            (name, who): set() for name, (_, _, consumers) in STREAMS.items() for who in consumers}
        self.acked: dict[tuple[str, str], set[bytes]] = {key: set() for key in self.seen}
        """Payloads whose acks were answered."""
        self.under_way: dict[tuple[str, str], Counter[bytes]] = {key: Counter() for key in self.seen}
        """Payloads of which another delivery had arrived, unread, when their ack was answered: a kill in between made
        the broker forget the first delivery."""
        self.moved = asyncio.Event()

    async def make(self, js: JetStreamContext) -> None:
        """Make the streams and their consumers."""
        for name, (subject, retention, consumers) in STREAMS.items():
            await js.add_stream(StreamConfig(name=name, subjects=[f"{subject}.>"], retention=retention))
            for who in consumers:
                await js.add_consumer(name,
                                      ConsumerConfig(durable_name=who, ack_policy=AckPolicy.EXPLICIT, ack_wait=1.5))

    def publishers(self) -> list[Coroutine[Any, Any, None]]:
        return [self.publisher(name) for name in STREAMS]

    def consumers(self) -> list[Coroutine[Any, Any, None]]:
        """Return the consumers; they end once ``stop`` is set and nothing is pending or unacked."""
        return [self.consumer(*key) for key in self.seen]

    async def check(self, js: JetStreamContext) -> None:
        """Check the streams after all clients have ended."""
        for name in STREAMS:
            assert (await js.stream_info(name)).state.messages == 0
        for key, seen in self.seen.items():
            assert self.kept[key[0]] <= seen
        assert all(self.kept.values())

    async def publisher(self, name: str) -> None:
        nc = await connect(*self.urls)
        subject, number = STREAMS[name][0], 0
        while not self.stop.is_set():
            behind = STREAMS[name][2]
            while len(self.kept[name]) - min(len(self.seen[name, who]) for who in behind) > AHEAD:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            batch = [b"%d" % (number := number + 1) for _ in range(self.batch)]
            done = await asyncio.gather(*(nc.jetstream().publish(f"{subject}.x", payload, timeout=1)
                                          for payload in batch),
                                        return_exceptions=True)
            kept = [payload for payload, ack in zip(batch, done, strict=True) if not isinstance(ack, BaseException)]
            self.kept[name].update(kept)
            if kept:
                self.moved.set()
        await disconnect(nc)

    async def consumer(self, name: str, who: str) -> None:
        nc = await connect(*self.urls)
        seen, acked, under_way = self.seen[name, who], self.acked[name, who], self.under_way[name, who]
        sub = await nc.jetstream().pull_subscribe_bind(consumer=who, stream=name)
        left = 1
        while left:
            try:
                messages = await sub.fetch(20, timeout=0.3)
            except FAILED:
                with suppress(*FAILED):
                    if self.stop.is_set():
                        # An ack without an answer may still take effect; then its message is not delivered again.
                        info = await nc.jetstream(timeout=ANSWER_SECONDS).consumer_info(name, who)
                        left = info.num_pending + info.num_ack_pending
                continue
            for message in messages:
                if under_way[message.data]:
                    under_way[message.data] -= 1
                else:
                    assert message.data not in acked, f"{message.data!r} of {name} was acked by {who}, and repeated"
                seen.add(message.data)
            answers = await asyncio.gather(*(message.ack_sync(timeout=1) for message in messages),
                                           return_exceptions=True)
            answered = {message.data for message, answer in zip(messages, answers, strict=True)
                        if not isinstance(answer, BaseException)}
            acked |= answered
            pending = sub._sub._pending_queue._queue  # type: ignore[attr-defined]
            queued = Counter(message.data for message in pending if message.data in answered)
            under_way.update(queued)
        await disconnect(nc)
