"""The arithmetic of `jetblock cost`, compared with the requests of the real engine in virtual time; the command; its
page."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import nats
import pytest

from bench.months.broker import VirtualBroker
from broker.inspect.survey import Survey
from broker.maintenance.cost import MONTH_SECONDS, Load, Prices, bill
from broker.maintenance.cost_cli import TooYoung, main, measure_load
from broker.runtime.embedded import Broker
from broker.storage.compaction.settings import CompactionSettings
from broker.storage.format.header import Position
from broker.storage.log.settings import LogSettings
from broker.storage.objectstore.file import FileStore
from broker.storage.objectstore.instrumented import InstrumentedStore
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.shard import ShardSettings
from broker.storage.state.stream import StreamState
from tests.inspect.stores import filled
from tests.manual_clock import ManualClock
from tests.sim.loop import SimLoop
from tests.storage.objectstore.faulty import Faults
from tests.storage.rig import MS, SECOND, Rig, Stream, in_virtual_time

ROOT = Path(__file__).parents[2]


def counted(load: Load, seconds: int) -> dict[str, float]:
    """Count requests and bytes of the engine in a second under this load, after it has run long enough to delete as
    well."""
    found: dict[str, float] = {}

    async def engine(clock: ManualClock) -> None:
        store = InstrumentedStore(MemoryStore(), clock=clock)
        settings = ShardSettings(
            log=LogSettings(commit_interval_ns=int(load.commit_interval_s * SECOND),
                            lease_ns=int(load.lease_s * SECOND), put_timeout_ns=5 * SECOND),
            sweep_grace_ns=60 * SECOND, compaction=CompactionSettings() if load.compaction else None)
        rig = Rig(store, clock, faults=Faults(latency_ns=30 * MS), settings=settings)
        await rig.open()
        streams = [Stream(rig.log, 7 + i, f"s{i}") for i in range(load.streams)]
        for stream in streams:
            stream.create()
        rng, sent = random.Random(1), 0

        async def run(for_seconds: int) -> None:
            nonlocal sent
            until = clock.monotonic_ns() + for_seconds * SECOND
            while clock.monotonic_ns() < until:
                if load.messages:
                    streams[sent % len(streams)].publish(1, rng.randbytes(int(load.size) - 3))
                    sent += 1
                await asyncio.sleep(1 / load.messages if load.messages else 60)

        await run(400)
        before = {name: (stats.count, stats.bytes) for name, stats in store.operations.items()}
        await run(seconds)
        for name, stats in store.operations.items():
            found[name] = (stats.count - before[name][0]) / seconds
            found[f"{name} bytes"] = (stats.bytes - before[name][1]) / seconds
        assert rig.shard is not None
        await rig.shard.abandon()

    in_virtual_time(engine)
    return found


@pytest.mark.parametrize(("load", "seconds"), [
    (Load(messages=0), 7200),
    (Load(messages=1 / 40, size=300), 7200),
    (Load(messages=1, size=300, streams=2), 1800),
    (Load(messages=6, size=600, streams=3, commit_interval_s=0.5), 700),
    (Load(messages=1, size=300, compaction=False), 900),
], ids=["idle", "a trickle", "one a second", "several in a commit", "without compaction"])
def test_the_engine_makes_as_many_requests(load: Load, seconds: int) -> None:
    """PUTs are within a tenth, GETs within an eighth or one in 25 seconds (these runs are too short for compaction's
    second tier), and written bytes within a third."""
    found = counted(load, seconds)
    # Polling the inbox and expiry belong to JetStream, which does not run here.
    expected = bill(replace(load, stored=1.0, inbox_interval_s=0, days=1e6))
    assert found["put"] == pytest.approx(expected.puts / MONTH_SECONDS, rel=0.1)
    assert found["get"] == pytest.approx(expected.gets / MONTH_SECONDS, rel=0.12, abs=1 / 25)
    assert found["list"] == pytest.approx(expected.lists / MONTH_SECONDS, rel=0.35, abs=0.002)
    if load.messages >= 1:
        assert found["put bytes"] == pytest.approx(expected.written / MONTH_SECONDS, rel=0.34)


def served(load: Load, warm_s: int, seconds: int) -> dict[str, float]:
    """Do the same as ``counted`` for JetStream as a whole: its streams have a ``max_age``, so messages expire all
    the time."""
    found: dict[str, float] = {}
    clock = ManualClock()
    loop = SimLoop(clock)

    async def run() -> None:
        broker = VirtualBroker(clock, loop, commit_interval_s=load.commit_interval_s, compaction=load.compaction,
                               grace_s=30)
        await broker.start()
        for number in range(load.streams):
            await broker.ask(f"STREAM.CREATE.S{number}", {"name": f"S{number}", "subjects": [f"s.{number}.>"],
                                                          "max_age": int(load.days * 86_400 * SECOND)})
        rng, sent, began_ns = random.Random(1), 0, clock.monotonic_ns()
        header = b"NATS/1.0\r\nNats-Msg-Id: %020d\r\n\r\n" if load.ids else b""
        size = int(load.size) - len(header)

        async def publish(until_s: int) -> None:
            nonlocal sent
            while (elapsed_s := (clock.monotonic_ns() - began_ns) / SECOND) < until_s:
                due = int(elapsed_s * load.messages)
                broker.publish([b"s.%d.%d" % (at % load.streams, rng.randrange(load.subjects))
                                for at in range(sent, due)],
                               [rng.randbytes(size) for _ in range(sent, due)], header)
                sent = due
                await asyncio.sleep(max(1 / load.messages, load.commit_interval_s / 2))

        await publish(warm_s)
        before = {name: (stats.count, stats.bytes) for name, stats in broker.store.operations.items()}
        await publish(warm_s + seconds)
        for name, stats in broker.store.operations.items():
            found[name] = (stats.count - before[name][0]) / seconds
            found[f"{name} bytes"] = (stats.bytes - before[name][1]) / seconds
        await broker.stop()

    try:
        loop.run_until_complete(run())
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        assert not loop.errors, loop.errors
    finally:
        loop.close()
    return found


MINUTES = 1 / 1440


@pytest.mark.parametrize(("load", "warm_s", "seconds"), [
    (Load(messages=20, size=200, streams=120, days=MINUTES, stored=1, commit_interval_s=0.5), 150, 160),
    (Load(messages=30, size=200, streams=100, days=MINUTES / 2, stored=1, commit_interval_s=0.25), 100, 96),
    (Load(messages=20, size=200, streams=2, days=5 * MINUTES, stored=0.75, commit_interval_s=0.5, ids=True), 300, 240),
    (Load(messages=800, size=200, subjects=5000, days=5 * MINUTES, stored=1, commit_interval_s=0.05), 40, 39),
    (Load(messages=10, size=200, streams=5, days=MINUTES, stored=1, commit_interval_s=1, compaction=False), 150, 180),
], ids=["120 streams, a minute", "100 streams, half a minute", "message ids", "many subjects", "without compaction"])
def test_a_broker_makes_as_many_requests(load: Load, warm_s: int, seconds: int) -> None:
    """Many streams have expiring messages, message ids and many subjects. PUTs are within a tenth, GETs within a
    third or one in fifteen seconds, bytes within a third."""
    found = served(load, warm_s, seconds)
    expected = bill(replace(load, inbox_interval_s=0))
    assert found["put"] == pytest.approx(expected.puts / MONTH_SECONDS, rel=0.1)
    assert found["get"] == pytest.approx(expected.gets / MONTH_SECONDS, rel=0.34, abs=1 / 15)
    assert found["put bytes"] == pytest.approx(expected.written / MONTH_SECONDS, rel=0.34)


def test_prices_and_proportions() -> None:
    """The bill has the dollars of given requests, and changes with the settings."""
    load = Load(messages=1000, commit_interval_s=1.0, standbys=2, cold_gets=3)
    found = bill(load, Prices(puts=1.0, gets=2.0, storage=3.0, egress=4.0))
    assert found.puts_dollars == pytest.approx((found.puts + found.lists) / 1000)
    assert found.gets_dollars == pytest.approx(found.gets / 1000 * 2)
    assert found.storage_dollars == pytest.approx(found.stored / 1e9 * 3)
    assert found.egress_dollars == pytest.approx(found.read / 1e9 * 4)
    assert found.dollars == pytest.approx(sum((found.puts_dollars, found.gets_dollars, found.storage_dollars,
                                               found.egress_dollars)))
    assert found.parts["commits"] == MONTH_SECONDS
    without = bill(replace(load, standbys=0, cold_gets=0))
    assert found.gets - without.gets == pytest.approx((2 * (2 * 6 / 15 + 2) + 6) * MONTH_SECONDS)
    assert bill(Load(messages=0, standbys=1)).gets == pytest.approx(12 / 15 * MONTH_SECONDS)
    assert bill(load).lists - bill(replace(load, inbox_interval_s=0)).lists == pytest.approx(MONTH_SECONDS / 60)
    # Segments are full before the interval is over: 100 MB in a second are 24 segments of 4 MiB.
    assert bill(Load(messages=100_000, size=1000, commit_interval_s=1)).parts["commits"] == pytest.approx(
        1e8 / (4 << 20) * MONTH_SECONDS)
    assert bill(Load(messages=0)).stored == 0


def test_the_page_has_the_table() -> None:
    """docs/COST.md is the output of its generator."""
    path = ROOT / "docs/generators/cost.py"
    spec = importlib.util.spec_from_file_location("cost_page", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.page(module.PAGE.read_text()) == module.PAGE.read_text(), f"run python {path.relative_to(ROOT)}"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints the report of a given load and of a store's load, and refuses wrong arguments."""
    assert main(["--messages", "1", "--commit-interval", "0.25", "--price-puts", "0.01", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["load"]["commit_interval_s"] == 0.25
    assert report["prices"]["puts"] == 0.01
    assert report["month"] == bill(Load(messages=1, commit_interval_s=0.25), Prices(puts=0.01)).to_json()
    assert main(["--messages", "1000"]) == 0
    assert "DELETE" in capsys.readouterr().out

    async def fill() -> None:
        store = FileStore(tmp_path / "store")
        owner = await filled(store)
        await owner.kill()
        await store.close()

    asyncio.run(fill())
    url = f"file://{tmp_path / 'store'}"
    assert main(["--store", url, "--days", "7", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["load"]["streams"] == 2
    assert report["load"]["days"] == 7
    assert report["load"]["messages"] > 0
    assert 0 < report["load"]["stored"] <= 1
    for arguments in ([], ["--messages", "-1"], ["--messages", "nan"], ["--messages", "1", "--lease", "0"],
                      ["--messages", "1", "--streams", "0"], ["--store", f"file://{tmp_path / 'none'}"],
                      [url, "--store", url],
                      ["--messages", "1", "--lease", "15x"], ["--messages", "1", "--stored", "40"]):
        assert main(arguments) == 2, arguments
    # The URL of the store may be in the same place as in other commands.
    capsys.readouterr()
    assert main(["--days", "7", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["load"]["streams"] == 2


def test_durations_and_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    """The options accept the same values as the settings of the same names, and the defaults are shown in that form."""
    assert main(["--messages", "1", "--lease", "15s", "--commit-interval", "250ms", "--inbox-interval", "1m",
                 "--segment-bytes", "2MiB", "--size", "1k", "--json"]) == 0
    load = json.loads(capsys.readouterr().out)["load"]
    assert (load["lease_s"], load["commit_interval_s"], load["inbox_interval_s"]) == (15, 0.25, 60)
    assert (load["segment_bytes"], load["size"]) == (2 << 20, 1000)
    assert main(["--messages", "1", "--lease", "15x"]) == 2
    assert "argument --lease: invalid value '15x': it must be a duration such as" in capsys.readouterr().err
    assert main(["--help"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for default in ("(default 20ms)", "(default 4.00 MiB)", "(default 15s)", "(default 1m)", "(default 500 B)"):
        assert default in printed
    assert "e+" not in printed


def shown(streams: list[StreamState], opening_at_ns: int, commits: int) -> Survey:
    """Make a survey of a store with these streams, whose owner made ``commits`` commits since its start."""
    state = SimpleNamespace(opening=SimpleNamespace(at_ns=opening_at_ns), position=Position(1, commits))
    shard = SimpleNamespace(view=SimpleNamespace(state=state))
    return cast(Survey, SimpleNamespace(url="file:///store", shards=[shard],
                                        streams=[(shard, stream) for stream in streams]))


def a_stream(created_s: int, first_seq: int, last_seq: int, first_s: int) -> StreamState:
    stream = StreamState(1, "$G", "S", {}, created_s * SECOND)
    stream.first_seq, stream.last_seq, stream.msgs = first_seq, last_seq, last_seq - first_seq + 1
    stream.bytes, stream.first_time_ns = 100 * stream.msgs, first_s * SECOND
    return stream


def test_a_burst_is_not_a_months_load() -> None:
    """A store that is some seconds old gives no rate. A burst within hours counts over all of them. Removed messages
    count, too."""
    hour = 3600
    with pytest.raises(TooYoung, match=r"1\.6 s old.*--messages N"):
        measure_load(shown([a_stream(0, 1, 23_000, 0)], 0, 80), 16 * SECOND // 10)
    given = measure_load(shown([a_stream(0, 1, 23_000, 0)], 0, 80), 16 * SECOND // 10, any_age=True)
    assert (given.streams, given.size, given.days, given.commit_interval_s) == (1, 100, 30, 0.02)
    old = a_stream(0, 1, 36_000, 0)
    assert measure_load(shown([old], 0, 100), 10 * hour * SECOND).messages == pytest.approx(1)
    # The second stream was created and filled in the last second, and counts as an hour's load.
    young = a_stream(10 * hour - 1, 1, 7200, 10 * hour - 1)
    assert measure_load(shown([old, young], 0, 100), 10 * hour * SECOND).messages == pytest.approx(3)
    # Messages are kept for a minute: 60 of 36 000 messages are there.
    brief = a_stream(0, 35_941, 36_000, 10 * hour - 60)
    load = measure_load(shown([brief], 0, 100), 10 * hour * SECOND)
    assert (load.messages, load.days) == (pytest.approx(1), pytest.approx(1 / 1440))


async def test_a_store_just_filled(tmp_path: Path) -> None:
    """The command gives the same result for a store that a broker has just made."""
    async with Broker(tmp_path / "store") as broker:
        client = await nats.connect(broker.url)
        await client.jetstream().add_stream(name="S", subjects=["s"])
        await client.jetstream().publish("s", b"x")
        await client.close()
    url = f"file://{tmp_path / 'store'}"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "broker", "cost", url, *words], capture_output=True, text=True,
                              timeout=60, cwd=ROOT, check=False)

    refused, given = await asyncio.to_thread(run), await asyncio.to_thread(run, "--messages", "10")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "give the number of messages in a second by --messages N" in refused.stderr
    assert (given.returncode, "10 messages/s" in given.stdout) == (0, True)


def test_idle_shards_cost_their_heartbeats() -> None:
    """Further shards add heartbeats once, and each adds a question with each heartbeat, an inbox, and polls."""
    one, three = (bill(Load(messages=10, standbys=1, shards=shards)) for shards in (1, 3))
    month = MONTH_SECONDS
    assert three.parts["heartbeats"] - one.parts["heartbeats"] == pytest.approx(3 / 15 * month)
    assert three.parts["commits"] == one.parts["commits"]
    assert three.lists - one.lists == pytest.approx(2 / 60 * month)
    more = [bill(Load(messages=10, standbys=standbys, shards=5)).gets for standbys in (0, 1)]
    assert more[0] - bill(Load(messages=10, shards=3)).gets == pytest.approx(2 * 3 / 15 * month)
    watched = three.gets - bill(Load(messages=10, shards=3)).gets
    assert more[1] - more[0] - watched == pytest.approx(2 * 2.3 / 15 * month)
