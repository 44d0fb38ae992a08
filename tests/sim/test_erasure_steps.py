"""A broker that erases is stopped between each two of its steps, and a second one takes over.

The first broker has two streams, a mirror and two consumers, and erases one subject. At its call number k of the store,
counted from the request, one of these happens, before or after the store has acted:

    killed      it is killed
    paused      it is paused until the second one has finished the erasure, and wakes up deposed

If the request was not answered, the second broker gets it again; otherwise it must finish by itself. Afterwards no
object of the store has the erased bytes, all other messages are there, and sequences, the counts of the streams and
``num_pending`` of the consumers are right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from broker.erasure.verify import verify_store
from broker.storage.checkpoint.checkpointer import CheckpointSettings
from broker.storage.log.settings import LogSettings
from broker.storage.shard import ShardSettings
from tests.key_ring import forget_keys
from tests.runtime.test_erasure import uncompressed
from tests.sim.settings import eager_compaction
from tests.sim.streams.process import Process
from tests.sim.streams.record import Lost
from tests.sim.streams.world import FEATURES, World
from tests.storage.objectstore.faulty import Faults

EVENTS = ("killed", "paused")
STRIDE = 20
"""The default run tries every twentieth step, each event from another one; the soak run tries every step."""

SECOND = 1_000_000_000
ROUNDS = 8
SECRET = b"alice"
KEPT = tuple(seq for seq in range(1, 3 * ROUNDS + 1) if seq % 3)
"""The sequences of bob's and carol's messages: alice has each third one."""


class ErasingWorld(World):
    """Two brokers without random faults; the first one is stopped at its call number ``step`` after the request."""

    def __init__(self, seed: int, event: str, side: str, step: int, *, encrypted: bool = False) -> None:
        super().__init__(seed, features=FEATURES | {"erasures"} | ({"keys"} if encrypted else set()))
        self.leased, self.lease_ns = True, 2 * SECOND
        self.clocks = self.storms = self.staging = self.checker.staging = None
        self.faults = Faults()
        self.event, self.side, self.step = event, side, step
        self.encrypted = encrypted
        self.stopped_at = ""
        """The operation and the key that the first broker was stopped at; empty if it had finished before."""

    def settings(self) -> ShardSettings:
        log = LogSettings(segment_bytes=400, lease_ns=self.lease_ns, put_timeout_ns=2 * SECOND)
        return ShardSettings(log=log, checkpoint=CheckpointSettings(segments=4), sweep_grace_ns=0,
                             compaction=eager_compaction(lambda choices: choices[self.seed % len(choices)]))

    def opened(self, process: Process, state: object) -> None:
        self.epochs[process.epoch] = process.name

    async def _main(self) -> None:
        first = Process(self, "first")
        self.processes = [first]
        await self._serving(first)
        await self._fill(first)
        reached = self._stop_at_step(first)
        second = Process(self, "second")
        self.processes.append(second)
        request = self.loop.create_task(self._ask(first, "JETBLOCK.ERASE.S", {"subjects": ["s.alice"]}))
        ended = self.loop.create_task(self._end_of(first, request))
        stopping = self.loop.create_task(reached.wait())
        await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
        serving = first
        if reached.is_set():
            ended.cancel()
            if self.event == "killed":
                await first.kill()
            await self._serving(second)
            serving = second
            answer = request.result() if request.done() else None
            request.cancel()
            if answer is None:
                answer = await self._ask(second, "JETBLOCK.ERASE.S", {"subjects": ["s.alice"]})
            await self._finished(second, answer)
        else:
            stopping.cancel()
            answer = request.result()
        await self._check(serving, answer)
        if reached.is_set() and self.event == "paused":
            first.resume()
            await asyncio.sleep(10)
            await self._check(second, answer)
        for process in self.processes:
            if not process.dead:
                await process.kill()

    async def _fill(self, process: Process) -> None:
        await self._ask(process, "STREAM.CREATE.S", {"name": "S", "subjects": ["s.*"]})
        await self._ask(process, "STREAM.CREATE.T", {"name": "T", "subjects": ["t"]})
        await self._ask(process, "STREAM.CREATE.M", {"name": "M", "mirror": {"name": "S"}})
        for name, filters in (("ALL", {}), ("BOB", {"filter_subject": "s.bob"})):
            await self._ask(process, f"CONSUMER.DURABLE.CREATE.S.{name}", {
                "stream_name": "S", "config": {"durable_name": name, "ack_policy": "explicit", **filters}})
        for i in range(ROUNDS):
            for who in (b"bob", b"carol", b"alice"):
                headers = b"NATS/1.0\r\nNats-Msg-Id: %b-%d\r\n\r\n" % (who, i)
                await self._publish(process, b"s." + who, headers, b"%b says %d" % (who, i))
            await self._publish(process, b"t", b"", b"thing %d" % i)
        while (await self._ask(process, "STREAM.INFO.M", None))["state"]["messages"] < 3 * ROUNDS:  # noqa: ASYNC110
            await asyncio.sleep(0.1)  # a mirror reports no event; time is virtual

    async def _check(self, process: Process, answer: dict[str, Any]) -> None:
        """Check the store, and what clients are shown."""
        shown = await self._ask(process, "JETBLOCK.ERASURE.S", {"erasure": answer["erasure"]})
        if not self.encrypted:
            left = [key for key, data in self.shared.objects.items() if SECRET in key.encode() + uncompressed(data)]
            if left:
                raise Lost(f"erased bytes are in {left}")
        found = await verify_store(self.shared, {
            "account": "$G", "streams": shown["streams"],
            "deleted": [file for one in shown["streams"] for file in one["held"]]})
        if found.holding:
            raise Lost(f"the erasure is not proved: {found.holding}")
        for name in ("S", "M"):
            state = (await self._ask(process, f"STREAM.INFO.{name}", None))["state"]
            if (state["messages"], state["first_seq"], state["last_seq"], state.get("num_deleted", 0)) != (
                    2 * ROUNDS, 1, 3 * ROUNDS, ROUNDS):
                raise Lost(f"{name}: {state}")
        for consumer, pending in (("ALL", 2 * ROUNDS), ("BOB", ROUNDS)):
            info = await self._ask(process, f"CONSUMER.INFO.S.{consumer}", None)
            if info["num_pending"] != pending:
                raise Lost(f"{consumer}: num_pending {info['num_pending']}, not {pending}")
        for seq in range(1, 3 * ROUNDS + 1):
            got = await self._ask(process, "STREAM.MSG.GET.S", {"seq": seq}, errors=True)
            if ("error" in got) == (seq in KEPT):
                raise Lost(f"message {seq}: {got}")
        if (await self._ask(process, "STREAM.INFO.T", None))["state"]["messages"] != ROUNDS:
            raise Lost("messages of a stream beside it are gone")

    async def _finished(self, process: Process, answer: dict[str, Any]) -> None:
        async with asyncio.timeout(600):
            while True:
                shown = await self._ask(process, "JETBLOCK.ERASURE.S", {"erasure": answer["erasure"]})
                if all(one["state"] == "done" for one in shown["streams"]):
                    return
                await asyncio.sleep(0.2)

    async def _end_of(self, process: Process, request: asyncio.Task[dict[str, Any]]) -> None:
        await self._finished(process, await asyncio.shield(request))

    async def _serving(self, process: Process) -> None:
        async with asyncio.timeout(120):
            while not process.serving:  # noqa: ASYNC110 (virtual time)
                await asyncio.sleep(0.05)

    async def _ask(self, process: Process, subject: str, body: Any, *, errors: bool = False) -> dict[str, Any]:
        """Return the answer to a request to the API."""
        answered: asyncio.Future[dict[str, Any]] = self.loop.create_future()
        process.client.requests.request(subject, body, lambda got: answered.done() or answered.set_result(got))
        answer = await answered
        if "error" in answer and not errors:
            raise Lost(f"{subject}: {answer}")
        return answer

    async def _publish(self, process: Process, subject: bytes, headers: bytes, payload: bytes) -> None:
        answered: asyncio.Future[object] = self.loop.create_future()
        reply = process.client.requests.reply(lambda got: answered.done() or answered.set_result(got))
        process.client.requests.route([(subject, reply, len(headers), headers + payload)])
        await answered

    def _stop_at_step(self, process: Process) -> asyncio.Event:
        """Stop ``process`` at its call number ``step`` from now on. Returns: an event that is set then."""
        hook = getattr(process.store, self.side)
        reached = asyncio.Event()
        calls = -1

        async def count(operation: str, key: str) -> None:
            nonlocal calls
            calls += 1
            if calls == self.step and not reached.is_set():
                self.stopped_at = f"{operation} {key}"
                process.pause()
                reached.set()
            await hook(operation, key)

        setattr(process.store, self.side, count)
        return reached


def play(seed: int, event: str, side: str, first: int, stride: int, *, encrypted: bool = False) -> Sequence[str]:
    """Play the steps of one seed until the first broker finishes. Returns: the calls that were stopped."""
    stopped: list[str] = []
    while True:
        world = ErasingWorld(seed, event, side, first + stride * len(stopped), encrypted=encrypted)
        world.run()
        if not world.stopped_at:
            return stopped
        stopped.append(world.stopped_at)


@pytest.mark.parametrize("event", EVENTS)
def test_an_erasing_broker_is_stopped_at_some_steps(event: str) -> None:
    assert len(play(2, event, "after", 7 * EVENTS.index(event), STRIDE)) > 2


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
@pytest.mark.parametrize("seed", range(100, 103))
@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("event", EVENTS)
def test_an_erasing_broker_is_stopped_at_each_step(event: str, side: str, seed: int, encrypted: bool,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    forget_keys(monkeypatch)
    stopped = play(seed, event, side, 0, 1, encrypted=encrypted)
    assert any(call.startswith("put") and "/checkpoint/" in call for call in stopped)
    assert any(call.startswith("delete") for call in stopped)


def test_the_checks_notice_bytes_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """An eraser that reports its end at once leaves objects, and the world sees them."""
    from broker.storage.compaction.compactor import Compactor

    async def nothing(self: Compactor, keys: object) -> list[object]:
        return []

    monkeypatch.setattr(Compactor, "empty", nothing)
    with pytest.raises((Lost, TimeoutError)):
        ErasingWorld(2, "killed", "after", 1 << 30).run()


