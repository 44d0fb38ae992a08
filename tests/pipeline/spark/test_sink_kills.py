"""Exactly once from stream to stream by Spark, through SIGKILL of the JVM and of the broker at each step of a batch."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import nats
import pyarrow as pa
import pytest

import jetblock
from broker.pipeline.store.objects import open_object_client
from broker.pipeline.write.columns import Columns
from broker.pipeline.write.commit import commit, plan
from broker.pipeline.write.options import WriteOptions
from broker.pipeline.write.stage import stage_batches
from tests.harness import BrokerProcess

ROOT = Path(__file__).resolve().parents[3]
STEPS = ("planned", "staged", "requested", "adopted")
ONCE = [("staged", "jvm"), ("adopted", "broker")]
"""The kills of the default run. Each start of a driver costs 15 s of processor time; the soak run has all kills."""
EACH = [(step, victim) for victim in ("jvm", "broker", "both") for step in STEPS]
ROUNDS = int(os.environ.get("JETBLOCK_KILL_ROUNDS", "12"))
STARTS = 4
"""Starts of the driver to reach a step, at most: one fails if it needs the broker that has just been killed."""
BATCHES = 4
"""Batches that a round of kills has, on average: a step is found in a later batch, if it is missed in one."""


class Copy:
    """The copying driver, and what its batches leave in the store and in its checkpoint."""

    def __init__(self, broker: BrokerProcess, folder: Path, environ: dict[str, str], per_trigger: int) -> None:
        self._command = [sys.executable, "-m", "tests.pipeline.copying", f"file://{folder}/store", broker.url,
                         str(folder), str(per_trigger)]
        self._folder, self._environ = folder, {**os.environ, **environ}
        self._runs = 0
        self._driver: subprocess.Popen[bytes] | None = None
        self._jvm = 0

    def start(self) -> None:
        """Start the driver unless it runs."""
        if self._driver is not None and self._driver.poll() is None:
            return
        self._runs += 1
        with open(self._folder / f"driver-{self._runs}.log", "wb") as log:
            self._driver = subprocess.Popen(self._command, cwd=ROOT, env=self._environ, stdout=subprocess.PIPE,
                                            stderr=log, start_new_session=True)
        assert self._driver.stdout is not None
        pid = self._driver.stdout.readline()
        assert pid, self.log()
        self._jvm = int(pid)

    def run_to(self, step: str) -> None:
        """Run the driver until a batch has just reached this step. A driver that failed is started again."""
        found: set[str] = set()
        before, last = self._found(step), self._runs + STARTS
        while not (found := self._found(step) - before):
            self._run_on(last)
        while step == "adopted" and found & self._found(step):
            self._run_on(last)

    def _run_on(self, last: int) -> None:
        """Let the driver run for a moment; start it if it failed, ``last`` is the number of its last run."""
        time.sleep(0.004)
        code = None if self._driver is None else self._driver.poll()
        assert code != 0, "the copy ended before it was killed"
        if self._driver is None or code is not None:
            assert self._runs < last, self.log()
            self.start()

    def _found(self, step: str) -> set[str]:
        """Return the names of the files that show which batches have reached a step, or are past it. A request, the
        file of the last two steps, leaves the inbox when it is adopted."""
        folder, pattern = {
            "planned": ("checkpoint", "offsets/[0-9]*"), "staged": ("store", "v1/streams/*/*/*/runs/*"),
            "requested": ("store", "v1/shards/*/inbox/*"), "adopted": ("store", "v1/shards/*/inbox/*")}[step]
        return {path.name for path in (self._folder / folder).glob(pattern)}

    def kill(self) -> None:
        assert self._driver is not None
        os.kill(self._jvm, signal.SIGKILL)
        self._driver.kill()
        self._driver.communicate()
        self._driver = None

    def finish(self) -> None:
        """Let the driver copy the rest; one that failed while the broker was away is started again."""
        for _ in range(3):
            self.start()
            assert self._driver is not None
            if b"done" in self._driver.communicate(timeout=300)[0]:
                return
            self._driver = None
        raise AssertionError(self.log())

    def log(self) -> str:
        return (self._folder / f"driver-{self._runs}.log").read_text()[-3000:]


def fill(url: str, broker: str, messages: int) -> None:
    """Write messages to the stream IN, without Spark."""
    options = WriteOptions.parse({"store": url, "stream": "IN", "nats": broker})
    objects = open_object_client(url)
    target = plan(objects, options)
    batches = (pa.record_batch([pa.array([f"IN.{n % 7}" for n in range(first, first + 1000)]),
                                pa.array([b"%08d" % n + b"." * 192 for n in range(first, first + 1000)])],
                               names=["subject", "data"]) for first in range(0, messages, 1000))
    columns = Columns(0, 1, None, None, None, None)
    commit(objects, options, target, columns, None, [stage_batches(objects, target, columns, 0, batches)])


def digest(url: str, stream: str) -> tuple[int, str]:
    """Return the number of messages, and a hash of their sequences, subjects and payloads."""
    found, count = hashlib.sha256(), 0
    for batch in jetblock.scan(url, stream, columns=["seq", "subject", "data"]):
        seqs, subjects, data = (column.to_pylist() for column in batch.columns)
        found.update(b"".join(_lines(seqs, subjects, data)))
        count += batch.num_rows
    return count, found.hexdigest()


def _lines(seqs: Iterable[int], subjects: Iterable[str], data: Iterable[bytes]) -> Iterable[bytes]:
    return (b"%d %b %b\n" % (seq, subject.partition(".")[2].encode(), body)
            for seq, subject, body in zip(seqs, subjects, data, strict=True))


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("kills", "per_trigger"), [
    (ONCE, 2000),
    pytest.param([EACH[number % len(EACH)] for number in range(ROUNDS)], 25_000, marks=pytest.mark.soak)],
    ids=["once", "each"])
async def test_each_message_once_through_kills(kills: list[tuple[str, str]], per_trigger: int,
                                               spark_environ: dict[str, str], tmp_path: Path) -> None:
    """Each round waits for a step of a batch, and then kills the JVM, the broker, or both, a random moment later. At
    the end, the copy has the messages of the original in their order."""
    rng = random.Random(seed := int(os.environ.get("JETBLOCK_SEED", time.time_ns() % 10**6)))
    print("seed", seed)
    url = f"file://{tmp_path}/store"
    messages = BATCHES * per_trigger * len(kills)
    async with BrokerProcess("-js", "--store", url) as broker:
        client = await nats.connect(broker.url)
        for name in ("IN", "OUT"):
            await client.jetstream().add_stream(name=name, subjects=[f"{name}.>"])
        await client.close()
        await asyncio.to_thread(fill, url, broker.url, messages)
        copy = Copy(broker, tmp_path, spark_environ, per_trigger)
        for step, victim in kills:
            await asyncio.to_thread(copy.run_to, step)
            await asyncio.sleep(rng.choice((0, 0, 0.01, 0.1)) * rng.random())
            print("kill", victim, "when a batch is", step)
            if victim != "broker":
                await asyncio.to_thread(copy.kill)
            if victim != "jvm":
                await broker.kill()
                await asyncio.sleep(rng.random())
                await broker.start()
        await asyncio.to_thread(copy.finish)
        assert await asyncio.to_thread(digest, url, "OUT") == await asyncio.to_thread(digest, url, "IN")
        assert (await asyncio.to_thread(digest, url, "OUT"))[0] == messages
        await broker.stop()
