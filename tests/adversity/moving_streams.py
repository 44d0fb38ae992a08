"""Streams that are created, published to, consumed, updated, moved and deleted by stock clients while parts fail, and
readers of their store; each checks what it gets against what was acknowledged.

    Mover      one stream name; a *life* is one stream from its creation to its deletion
    Reader     reads the store without a broker at any moment
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import nats
import pyarrow as pa
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, StreamInfo
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError, ServiceUnavailableError

from broker.inspect.source import Source
from broker.inspect.survey import read_survey
from broker.inspect.verify import verify
from broker.pipeline.errors import NoStream
from broker.pipeline.plan.follow import Follower
from broker.pipeline.store.objects import open_object_client
from broker.storage.objectstore import open_store
from jetblock import scan
from tests.adversity.history import History, Violation

__all__ = ["Mover", "Reader"]

T = TypeVar("T")

ANSWER_SECONDS = 300.0
"""The longest time until a request that is repeated is answered, while parts fail one after the other."""
CERTAIN_SECONDS = 30.0
"""A delivery that is on its way while a connection is stalled arrives within this time."""
NOT_AVAILABLE = 10008


class Mover:
    """The lives of one stream. ``client`` is in the account of the streams, ``system`` in the system account."""

    def __init__(self, client: Client, system: Client, number: int, shards: int, rng: random.Random) -> None:
        self.name = f"S{number}"
        self.life = 0
        self.history = History(strict=False)
        """The messages of the stream that lives."""
        self.steady = False
        """True from the answer to its creation until the request for its deletion."""
        self.longest = 0.0
        self.counts = dict.fromkeys(("lives", "messages", "moves", "deliveries"), 0)
        self._js: JetStreamContext = client.jetstream(domain="jb", timeout=2)
        self._system = system
        self._shards = shards
        self._rng = rng
        self._created = ""
        self._acked: dict[int, float] = {}
        """The time of the answered double ack of each sequence."""

    async def live(self) -> None:
        """Let the stream live once."""
        js, rng = self._js, self._rng
        self.life += 1
        self.history, self._acked, self._created = History(strict=False), {}, ""
        subject = f"{self.name}.{self.life}"
        metadata = {"jetblock.shard": str(rng.randrange(self._shards))} if rng.random() < 0.7 else {}
        await self.again(lambda: js.add_stream(name=self.name, subjects=[subject], metadata=metadata))
        await self._check_info()
        self.steady = True
        await self.again(lambda: js.add_consumer(self.name, ConsumerConfig(durable_name="c", ack_wait=5)))
        pull = await js.pull_subscribe_bind("c", stream=self.name)
        steps = [self._publish, self._publish, self._consume, self._move, self._update, self._check_info]
        for _ in range(rng.randint(15, 40)):
            step = rng.choice(steps)
            await (self._consume(pull) if step == self._consume else step())  # type: ignore[call-arg]
        await self.check()
        await self._drain(pull)
        await pull.unsubscribe()
        self.steady = False
        await self.again(lambda: js.delete_stream(self.name), NotFoundError)
        self.counts["lives"] += 1

    async def again(self, ask: Callable[[], Awaitable[T]], *done: type[Exception]) -> T | None:
        """Return the answer to a request that is repeated until it has one; an error in ``done`` of a repeated request
        is one, too. Raises: Violation: an answer that says something that is not so."""
        began, first = time.monotonic(), True
        while True:
            try:
                answer = await ask()
                self.longest = max(self.longest, time.monotonic() - began)
                return answer
            except APIError as error:
                if not first and isinstance(error, done):
                    return None
                if error.err_code != NOT_AVAILABLE and not isinstance(error, ServiceUnavailableError):
                    raise Violation(f"{self.name}, life {self.life}: {error!r}") from error
                why: Exception = error
            except (nats.errors.Error, NoStreamResponseError, TimeoutError) as error:
                why = error
            first = False
            if time.monotonic() - began > ANSWER_SECONDS:
                raise Violation(f"{self.name}, life {self.life}: no answer for {ANSWER_SECONDS:g} s: {why!r}")
            await asyncio.sleep(0.05)

    # --- steps --------------------------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        for _ in range(self._rng.randint(1, 8)):
            number = len(self.history.begun)
            msg_id = f"{self.name}.{self.life}-{number}"
            body = msg_id.encode().ljust(self._rng.choice((30, 300, 3000)), b".")
            self.history.begin(msg_id.encode(), body)
            ack = await self.again(lambda msg_id=msg_id, body=body: self._js.publish(  # type: ignore[misc]
                f"{self.name}.{self.life}", body, headers={"Nats-Msg-Id": msg_id}, stream=self.name, timeout=1))
            assert ack is not None
            self.history.ack(msg_id.encode(), ack.seq)
            self.counts["messages"] += 1

    async def _consume(self, pull: JetStreamContext.PullSubscription) -> int:
        """Receive some messages and acknowledge them; return their number."""
        try:
            msgs = await pull.fetch(5, timeout=1)
        except (nats.errors.Error, APIError, TimeoutError):
            return 0
        for msg in msgs:
            seq, msg_id = msg.metadata.sequence.stream, (msg.headers or {})["Nats-Msg-Id"].encode()
            if self.history.begun.get(msg_id) != msg.data:
                raise Violation(f"{self.name}: sequence {seq} was delivered with bytes that nobody published")
            if self.history.delivered.setdefault(seq, msg_id) != msg_id:
                raise Violation(f"{self.name}: sequence {seq} named {self.history.delivered[seq]!r}, then {msg_id!r}")
            if (at := self._acked.get(seq)) is not None and time.monotonic() - at > CERTAIN_SECONDS:
                raise Violation(f"{self.name}: sequence {seq} was delivered {time.monotonic() - at:.1f} s after its "
                                f"double ack had been answered")
            try:
                await msg.ack_sync(timeout=1)
                self._acked.setdefault(seq, time.monotonic())
            except (nats.errors.Error, TimeoutError):
                pass  # it is delivered again, or the ack was stored
            self.counts["deliveries"] += 1
        return len(msgs)

    async def _move(self) -> None:
        """Ask for a move, and wait for its end in some cases."""
        shard, wait = self._rng.randrange(self._shards), self._rng.random() < 0.5
        body = {"account": "APP", "stream": self.name, "shard": shard, "wait": wait}
        try:
            line = json.loads((await self._system.request("$JETBLOCK.SHARDS", b"", timeout=2)).data)
            answer = json.loads((await self._system.request(
                f"$JETBLOCK.{line['store']}.STREAM.MOVE", json.dumps(body).encode(), timeout=12)).data)
        except (nats.errors.Error, TimeoutError):
            return
        if "error" in answer and answer["error"]["err_code"] != NOT_AVAILABLE:
            raise Violation(f"{self.name}, life {self.life}: {answer}")
        self.counts["moves"] += bool(answer.get("done"))

    async def _update(self) -> None:
        subjects = [f"{self.name}.{self.life}", f"more.{self.name}.{self.life}.{self._rng.randrange(3)}"]
        await self.again(lambda: self._js.update_stream(name=self.name, subjects=subjects))

    # --- checks -------------------------------------------------------------------------------------------------------

    async def _check_info(self) -> None:
        """The stream is the one that was created, and has as many messages as were acknowledged."""
        acked = len(self.history.acked)
        info = await self._info()
        created = str(info.created)
        self._created = self._created or created
        if created != self._created:
            raise Violation(f"{self.name}, life {self.life}: created at {self._created}, now at {created}")
        if not acked <= info.state.messages <= len(self.history.begun):
            raise Violation(f"{self.name}, life {self.life}: {info.state.messages} messages, {acked} acknowledged of "
                            f"{len(self.history.begun)}")

    async def check(self) -> None:
        """Each acknowledged message is there once, under the sequence in its PubAck."""
        info = await self._info()
        stored = {}
        for seq in range(1, info.state.last_seq + 1):
            msg = await self.again(lambda seq=seq: self._js.get_msg(self.name, seq))  # type: ignore[misc]
            assert msg is not None
            assert msg.data is not None
            stored[seq] = (msg.headers or {})["Nats-Msg-Id"].encode(), msg.data
        self.history.check(stored, info.state.last_seq)

    async def _info(self) -> StreamInfo:
        info = await self.again(lambda: self._js.stream_info(self.name))
        assert info is not None
        return info

    async def _drain(self, pull: JetStreamContext.PullSubscription) -> None:
        """Consume until no message is left."""
        began = time.monotonic()
        while True:
            await self._consume(pull)
            info = await self.again(lambda: self._js.consumer_info(self.name, "c"))
            assert info is not None
            if not info.num_pending and not info.num_ack_pending:
                break
            if time.monotonic() - began > ANSWER_SECONDS:
                raise Violation(f"{self.name}, life {self.life}: the consumer does not end: {info}")
        if self.history.delivered.keys() != set(range(1, len(self.history.begun) + 1)):
            raise Violation(f"{self.name}, life {self.life}: not all messages were delivered: "
                            f"{sorted(self.history.delivered)}")


class Reader:
    """Reads the store at ``url`` without a broker. ``complete``: the store has all that was acknowledged; otherwise a
    part may be in a journal."""

    def __init__(self, url: str, movers: list[Mover], *, complete: bool) -> None:
        self.counts = dict.fromkeys(("scans", "plans", "surveys", "checks"), 0)
        self._url = url
        self._movers = movers
        self._complete = complete
        self._follower = Follower(open_object_client(url), "APP", "*")
        self._last: dict[int, int] = {}
        """The last sequence of each stream that a plan has had."""

    async def read(self, rng: random.Random) -> None:
        """Read the store in one way."""
        read = rng.choices((self._scan, self._plan, self._survey, self._verify), (6, 6, 3, 1))[0]
        await read(rng.choice(self._movers))

    async def _scan(self, mover: Mover) -> None:
        """The rows of a stream are a prefix of it, with all that was acknowledged when the scan began."""
        life, steady, acked = mover.life, mover.steady, dict(mover.history.acked)
        try:
            rows = await asyncio.to_thread(_rows, self._url, mover.name)
        except NoStream:
            if steady and self._complete and mover.life == life and mover.steady:
                raise Violation(f"{mover.name}, life {life}: no reader finds it") from None
            return
        self.counts["scans"] += 1
        if [seq for seq, _ in rows] != list(range(1, len(rows) + 1)):
            raise Violation(f"{mover.name}: rows with the sequences {[seq for seq, _ in rows]}")
        lives = {body.partition(b"-")[0] for _, body in rows}
        if len(lives) > 1:
            raise Violation(f"{mover.name}: rows of several streams: {sorted(lives)}")
        if mover.life == life and steady and mover.steady and (
                self._complete or lives == {f"{mover.name}.{life}".encode()}):
            by_seq = dict(rows)
            for msg_id, seq in mover.history.acked.items():
                if by_seq.get(seq, mover.history.begun[msg_id]) != mover.history.begun[msg_id]:
                    raise Violation(f"{mover.name}: sequence {seq} is {by_seq[seq]!r}, not {msg_id!r}")
            if self._complete and (missing := [seq for seq in acked.values() if seq not in by_seq]):
                raise Violation(f"{mover.name}, life {life}: acknowledged before the scan and missing: {missing}")

    async def _plan(self, _: Mover) -> None:
        """The plan of a streaming query has each stream once, and never fewer messages than before."""
        before = {mover.name: mover.life for mover in self._movers if mover.steady}
        found = await asyncio.to_thread(self._follower.refresh)
        self.counts["plans"] += 1
        for mover in self._movers:
            if self._complete and mover.steady and before.get(mover.name) == mover.life and (
                    f"APP/{mover.name}" not in found):
                raise Violation(f"{mover.name}, life {mover.life}: the plan does not have it: {sorted(found)}")
        for name, one in found.items():
            last = self._last.setdefault(one.state.stream_id, one.state.last_seq)
            if one.state.last_seq < last:
                raise Violation(f"{name}: the plan had sequence {last}, and ends at {one.state.last_seq} now")
            self._last[one.state.stream_id] = one.state.last_seq

    async def _survey(self, _: Mover) -> None:
        """`jetblock inspect` finds each stream once, and nothing wrong."""
        before = {mover.name: mover.life for mover in self._movers if mover.steady}
        source = Source(open_store(self._url))
        survey = await read_survey(source)
        await source.close()
        self.counts["surveys"] += 1
        if survey.problems:
            raise Violation(f"inspect: {survey.problems}")
        names = [stream.name for _, stream in survey.streams]
        for mover in self._movers:
            if self._complete and mover.steady and before.get(mover.name) == mover.life and (
                    names.count(mover.name) != 1):
                raise Violation(f"inspect: {mover.name} is there {names.count(mover.name)} times: {survey.streams}")

    async def _verify(self, _: Mover) -> None:
        """`jetblock inspect --verify` finds nothing wrong in any object."""
        source = Source(open_store(self._url))
        found = await verify(source, await read_survey(source))
        await source.close()
        self.counts["checks"] += 1
        if found.problems:
            raise Violation(f"inspect --verify: {found.problems}")


def _rows(url: str, name: str) -> list[tuple[int, bytes]]:
    table: pa.Table = scan(url, name, account="APP", columns=["seq", "data"]).read_all()
    return list(zip(table["seq"].to_pylist(), table["data"].to_pylist(), strict=True))
