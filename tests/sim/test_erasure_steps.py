"""A broker that erases is stopped between each two of its steps, and a second one takes over.

The first broker has two streams, a mirror and two consumers, and erases one subject. At its call number k of the store,
counted from the request, one of these happens, before or after the store has acted:

    killed      it is killed
    paused      it is paused until the second one has finished the erasure, and wakes up deposed; the second one's
                clock leaps while it searches for what the first one put then
    ahead       its clock leaps forward by a day for a minute and a half; there is no second broker
    behind      the same, backward by an hour

If the request was not answered, the second broker gets it again; otherwise it must finish by itself. Afterwards no
object of the store has the erased bytes, all other messages are there, and sequences, the counts of the streams and
``num_pending`` of the consumers are right.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from broker.erasure.verify import verify_store
from broker.storage.checkpoint.settings import CheckpointSettings
from broker.storage.compaction.settings import CompactionSettings
from broker.storage.erasure.eraser import Eraser
from broker.storage.log.settings import LogSettings
from broker.storage.shard import ShardSettings
from tests.key_ring import forget_keys
from tests.runtime.test_erasure import uncompressed
from tests.sim.clocks import Clocks
from tests.sim.settings import eager_compaction
from tests.sim.streams.process import Process
from tests.sim.streams.record import Lost
from tests.sim.streams.requests import NOT_AVAILABLE
from tests.sim.streams.world import FEATURES, World
from tests.storage.objectstore.faulty import Faults

EVENTS = ("killed", "paused", "ahead", "behind")
STRIDE = 90
"""The default run stops a broker at every ninetieth step; the soak run at every step."""

SECOND = 1_000_000_000
LEAPS_NS = {"ahead": 86_400 * SECOND, "behind": -3600 * SECOND}
ROUNDS = 8
SECRET = b"alice"
KEPT = tuple(seq for seq in range(1, 3 * ROUNDS + 1) if seq % 3)
"""The sequences of bob's and carol's messages: alice has each third one."""


class ErasingWorld(World):
    """Two brokers without random faults; the first one is stopped at its call number ``step`` after the request."""

    def __init__(self, seed: int, event: str, side: str, step: int, *, encrypted: bool = False) -> None:
        super().__init__(seed, features=FEATURES | {"erasures"} | ({"keys"} if encrypted else set()))
        self.leased, self.lease_ns = True, 2 * SECOND
        self.clocks = Clocks(self.clock, self.loop, random.Random(seed), self.counts, dated=True)
        self.storms = self.staging = self.checker.staging = None
        self.faults = Faults()
        self.event, self.side, self.step = event, side, step
        self.encrypted = encrypted
        self.stopped_at = ""
        """The operation and the key that the first broker was stopped at; empty if it had finished before."""

    def settings(self) -> ShardSettings:
        log = LogSettings(segment_bytes=4000, lease_ns=self.lease_ns, put_timeout_ns=2 * SECOND)
        compaction = CompactionSettings(segments=1 << 30, quiet_ns=1 << 60)
        if self.seed % 2:
            compaction = eager_compaction(lambda choices: choices[self.seed % len(choices)])
        return ShardSettings(log=log, checkpoint=CheckpointSettings(segments=4), sweep_grace_ns=0,
                             compaction=compaction)

    def opened(self, process: Process, state: object) -> None:
        self.epochs[process.epoch] = process.name
        assert process.shard is not None
        process.shard.sweeper.search_ns = SECOND  # instead of a day

    async def _main(self) -> None:
        first = Process(self, "first")
        self.processes = [first]
        await self._serving(first)
        await self._fill(first)
        reached = self._stop_at_step(first)
        second = first if self.event in LEAPS_NS else Process(self, "second")
        self.processes.append(second)
        request = self.loop.create_task(self._ask(first, "JETBLOCK.ERASE.S", {"subjects": ["s.alice"]}))
        ended = self.loop.create_task(self._end_of(first, request))
        stopping = self.loop.create_task(reached.wait())
        await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
        serving = first
        if reached.is_set() and self.event in LEAPS_NS:
            assert self.clocks is not None
            self.clocks.leap(first.name, LEAPS_NS[self.event], 90)
            first.resume()
            await ended
            answer = request.result()
        elif reached.is_set():
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
            self.step = -1  # the checks call the store, too
            answer = request.result()
        await self._check(serving, answer)
        if reached.is_set() and self.event == "paused":
            # It may put a segment again that was erased meanwhile; the owner finds that by its search for orphans.
            first.resume()
            await asyncio.sleep(0.09)
            await first.kill()  # before it tries to take over again
            assert self.clocks is not None
            self.clocks.leap(second.name, LEAPS_NS["ahead" if self.seed % 2 else "behind"], 10)
            for i in range(60):
                await asyncio.sleep(0.5)
                await self._publish(second, (b"t", b"", b"more %d" % i))
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
            await self._publish(process, *[
                (b"s." + who, b"NATS/1.0\r\nNats-Msg-Id: %b-%d\r\n\r\n" % (who, i), b"%b says %d" % (who, i))
                for who in (b"bob", b"carol", b"alice")], (b"t", b"", b"thing %d" % i))
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
            "account": "$G", "streams": shown["streams"], "done": max(one["done"] for one in shown["streams"]),
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
        if (await self._ask(process, "STREAM.INFO.T", None))["state"]["messages"] < ROUNDS:
            raise Lost("messages of a stream beside it are gone")

    async def _finished(self, process: Process, answer: dict[str, Any]) -> None:
        async with asyncio.timeout(600):
            while True:
                shown = await self._ask(process, "JETBLOCK.ERASURE.S", {"erasure": answer["erasure"]}, errors=True)
                if "error" in shown and shown["error"]["err_code"] not in NOT_AVAILABLE:
                    raise Lost(f"the erasure is not known: {shown}")
                if all(one["state"] == "done" for one in shown.get("streams", [{"state": "not known"}])):
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

    async def _publish(self, process: Process, *messages: tuple[bytes, bytes, bytes]) -> None:
        """Publish messages, subject, headers and payload, into one segment."""
        answers: list[object] = []
        requests = process.client.requests
        requests.route([(subject, requests.reply(answers.append), len(headers), headers + payload)
                        for subject, headers, payload in messages])
        while len(answers) < len(messages):  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(0.01)

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
    assert len(play(2, event, "after", 45, STRIDE)) > 2


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
    """An eraser that finds no objects leaves them, and the world sees that."""
    async def nothing(self: Eraser, erased: object) -> dict[str, object]:
        return {}

    monkeypatch.setattr(Eraser, "_find", nothing)
    with pytest.raises((Lost, TimeoutError)):
        ErasingWorld(2, "killed", "after", 1 << 30).run()


