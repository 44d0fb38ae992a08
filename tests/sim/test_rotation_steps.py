"""A broker that changes the master key is stopped between each two of its steps, and others start with one key or both.

The first broker fills two streams under the old key. The second one has the new key and, as the previous one, the old
key; it is killed at its call number k of the store, counted from its start until it has made a stream. Then come two
starts: one with the keys of the case, and one with both. A start with one key serves, or ends with the line that names
the other key; it must serve if the second broker had not begun (old key) or was through (new key). A start with both
serves. Whoever serves has all messages, and no process knows a key that it was not given.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from broker.storage.format.errors import KeyMissing
from broker.storage.format.wrapped_keys import WrappedKeys
from broker.storage.keys.master import LocalKey, Masters
from broker.storage.keys.opening import decode_all
from tests.key_ring import forget_keys
from tests.sim.streams.process import PATHS, Process
from tests.sim.streams.record import Lost
from tests.sim.test_erasure_steps import ErasingWorld

OLD, NEW = LocalKey(b"the old key"), LocalKey(b"the new key")
CASES = {"old": Masters(OLD), "new": Masters(NEW), "both": Masters(NEW, OLD), "back": Masters(OLD, NEW)}
MESSAGES = 6
STRIDE = 9
"""The default run kills a broker at every ninth step; the soak run at every step."""


class RotatingWorld(ErasingWorld):
    """Brokers one after the other; the second one is killed at its call number ``step``."""

    def __init__(self, case: str, side: str, step: int, forget: pytest.MonkeyPatch) -> None:
        super().__init__(2, "killed", side, step, encrypted=True)
        self.case = case
        self.ended = ""
        """How the start with the keys of the case ended."""
        self._forget = forget
        self._refusal: KeyMissing | None = None

    def process_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and isinstance(error := task.exception(), KeyMissing):
            self._refusal = error
        else:
            super().process_ended(task)

    async def _main(self) -> None:
        first = await self._started(Masters(OLD))
        for name in ("S", "T"):
            await self._ask(first, f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.*"]})
        for i in range(MESSAGES):
            await self._publish(first, (b"S.x", b"", b"S %d" % i), (b"T.x", b"", b"T %d" % i))
        await first.kill()
        second = self._start(CASES["both"])
        reached = self._stop_at_step(second)
        used = asyncio.ensure_future(self._use(second))
        stopping = asyncio.ensure_future(reached.wait())
        await asyncio.wait((used, stopping), return_when=asyncio.FIRST_COMPLETED)
        rotated, made = used.done(), [name for name in ("S", "T", "N") if name != "N" or used.done()]
        for task in (used, stopping):
            task.cancel()
        await second.kill()
        masters = {one.master for one in self._wrapped()}
        third = await self._started(CASES[self.case])
        self.ended = "serves" if self._refusal is None else "refused"
        if self._refusal is None:
            await self._check_messages(third, made)
        else:
            unknown = {NEW.name, OLD.name} - {key.name for key in CASES[self.case] if key is not None}
            if not any(name in str(self._refusal) for name in unknown):
                raise Lost(f"the line names no missing key: {self._refusal}")
            must_serve = {"both", "back"} | ({"new"} if rotated else {"old"} if masters == {OLD.name} else set())
            if self.case in must_serve:
                raise Lost(f"a start with the keys of {self.case}: {self._refusal}; objects are wrapped by {masters}")
        await third.kill()
        self._refusal = None
        last = await self._started(CASES["both"])
        if self._refusal is not None:
            raise Lost(f"a start with both keys: {self._refusal}")
        await self._check_messages(last, made)
        if {one.master for one in self._wrapped()} != {NEW.name}:
            raise Lost("keys are wrapped by the old key still")
        await last.kill()

    def _start(self, masters: Masters) -> Process:
        forget_keys(self._forget)
        self.masters = masters
        self.processes = [Process(self, f"b{len(self.epochs)}")]
        return self.processes[0]

    async def _started(self, masters: Masters) -> Process:
        """Start a process, and wait until it serves or is refused."""
        process = self._start(masters)
        async with asyncio.timeout(120):
            while not process.serving and self._refusal is None:  # noqa: ASYNC110 (virtual time)
                await asyncio.sleep(0.05)
        return process

    async def _use(self, process: Process) -> None:
        await self._serving(process)
        await self._ask(process, "STREAM.CREATE.N", {"name": "N", "subjects": ["N.*"]})
        await self._publish(process, *[(b"N.x", b"", b"N %d" % i) for i in range(MESSAGES)])

    async def _check_messages(self, process: Process, names: list[str]) -> None:
        for name in names:
            found = (await self._ask(process, f"STREAM.INFO.{name}", None))["state"]["messages"]
            if found != MESSAGES:
                raise Lost(f"{name} has {found} messages")
            for seq in range(1, MESSAGES + 1):
                await self._ask(process, f"STREAM.MSG.GET.{name}", {"seq": seq})

    def _wrapped(self) -> list[WrappedKeys]:
        return decode_all([(key, data) for key, data in self.shared.objects.items() if key.startswith(PATHS.keys)])


def play(case: str, side: str, first: int, stride: int, forget: pytest.MonkeyPatch) -> tuple[list[str], Counter[str]]:
    """Play steps until the second broker is through. Returns: the calls it was killed at, and how starts ended."""
    stopped: list[str] = []
    ended: Counter[str] = Counter()
    while True:
        world = RotatingWorld(case, side, first + stride * len(stopped), forget)
        world.run()
        ended[world.ended] += 1
        if not world.stopped_at:
            return stopped, ended
        stopped.append(world.stopped_at)


@pytest.mark.parametrize("case", CASES)
def test_a_rotation_is_killed_at_some_steps(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped, ended = play(case, "after", 3, STRIDE, monkeypatch)
    assert len(stopped) > 2
    assert ended["serves"]


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("case", CASES)
def test_a_rotation_is_killed_at_each_step(case: str, side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped, ended = play(case, side, 0, 1, monkeypatch)
    assert sum(call.startswith("delete v1/keys/") for call in stopped) > 1
    assert any(call.startswith("put v1/keys/") for call in stopped)
    assert ended["serves"] > 5
    assert bool(ended["refused"]) == (case in ("old", "new"))
