"""The probe: a store that cannot fence is refused at start, with an error that names the fault."""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from broker.base.clock import SystemClock
from broker.storage.objectstore import Listing, ObjectStore, StoreRefused, open_store
from broker.storage.objectstore.file import FileStore
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.objectstore.probe import probe
from broker.storage.objectstore.race import RACERS, ROUNDS, expect_one_winner
from broker.storage.objectstore.retrying import RetryingStore
from broker.storage.objectstore.s3 import S3Store
from broker.storage.objectstore.wrapper import Wrapper
from tests.manual_clock import ManualClock
from tests.real.s3 import S3Server
from tests.storage.objectstore.fake_s3 import FakeS3
from tests.storage.objectstore.faulty import Faults, FaultyStore

KEY = "v1/format"
OURS = b"jetblock" + bytes(range(56))


async def test_the_first_probe_writes_and_later_ones_read(tmp_path: Path) -> None:
    """An empty store gets our bytes; a used one keeps its own, whichever broker probes."""
    for store in (MemoryStore(), FileStore(tmp_path)):
        assert await probe(store, KEY, [OURS]) == OURS
        assert await probe(store, KEY, [b"somebody else's format"]) == OURS
        assert await store.get(KEY) == OURS
        await store.close()


def race(store: ObjectStore, seed: int = 1) -> Callable[[], Awaitable[None]]:
    """Make a race whose clock stands still, because a busy machine may need longer than the race allows."""
    return partial(expect_one_winner, store, "v1/probe/", random.Random(seed), ManualClock())


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize("seconds", [0.001, 0.1])
async def test_a_store_whose_conditional_puts_are_not_atomic(fake: FakeS3, seconds: float, refuses: bool) -> None:
    """The server refuses a put of an existing key, but writes several simultaneous ones: the store is refused, and
    nothing stays in it."""
    fake.looks_first, fake.refuses_and_writes = seconds, refuses
    store = S3Store("bucket")
    assert await probe(store, KEY, [OURS]) == OURS, "only the race finds it"
    fake.objects.clear()
    with pytest.raises(StoreRefused, match="overwritten it" if refuses else "of one key at the same moment") as caught:
        await probe(store, KEY, [OURS], race=race(store))
    assert "s3://bucket" in str(caught.value)
    assert "conditional puts are atomic: AWS S3" in str(caught.value)
    assert fake.objects == {}
    await store.close()


async def test_a_race_on_a_store_that_overwrites(fake: FakeS3) -> None:
    """The error is that of a store which overwrites every put, and does not mention a race."""
    fake.honours_if_none_match = False
    store = S3Store("bucket")
    with pytest.raises(StoreRefused, match="the store overwrites objects"):
        await probe(store, KEY, [OURS], race=race(store))
    assert fake.objects == {}
    await store.close()


async def test_the_race_is_run_once(fake: FakeS3) -> None:
    """The race is run before a store's first object is put, with a connection for each racer. A later start does not
    run it."""
    store = S3Store("bucket")
    assert await probe(store, KEY, [OURS], race=race(store)) == OURS
    raced = [request for request in fake.requests if request.key.startswith("v1/probe/") and request.method == "PUT"]
    assert len(raced) == RACERS * ROUNDS
    assert len({request.connection for request in raced}) >= RACERS
    assert fake.objects == {KEY: OURS}
    fake.requests.clear()
    assert await probe(store, KEY, [OURS], race=race(store)) == OURS
    assert [request.method for request in fake.requests] == ["GET", "GET", "GET", "PUT"]
    await store.close()


async def test_a_race_on_a_store_in_trouble(fake: FakeS3) -> None:
    """Conflicts, SlowDown, cut connections, unanswered puts and lost deletes prove nothing: a correct store passes."""
    rng = random.Random(4)
    verdicts: list[object] = [None, None, (409, "ConditionalRequestConflict"), (503, "SlowDown"), "cut",
                              "served, then cut"]
    fake.script = lambda request: rng.choice(verdicts) if request.method in ("PUT", "DELETE") else None
    inner = S3Store("bucket")
    for store in (inner, RetryingStore(inner, clock=SystemClock(), rng=rng, pause_ns=1_000_000, give_up_ns=20_000_000)):
        for seed in range(2):
            await race(store, seed)()
    await inner.close()


async def test_a_race_under_every_fault() -> None:
    """200 seeds of refused, lost, unanswered and late calls, with and without retries: a good store always passes."""
    for seed in range(200):
        rng = random.Random(seed)
        faults = Faults(refused=0.1, lost=0.1, unanswered=0.2, late=0.1, timeout_ns=0, late_ns_max=0)
        faulty = FaultyStore(MemoryStore(), rng=rng, faults=faults)
        await race(RetryingStore(faulty, clock=SystemClock(), rng=rng, pause_ns=1) if seed % 2 else faulty, seed)()
        await faulty.late_puts_done()


async def test_a_race_on_a_store_that_refuses_puts(fake: FakeS3) -> None:
    """A store that refuses every put gives the same error as without a race."""
    fake.script = lambda request: (403, "AccessDenied") if request.method == "PUT" else None
    store = S3Store("bucket")
    with pytest.raises(StoreRefused, match="AccessDenied"):
        await probe(store, KEY, [OURS], race=race(store))
    await store.close()


@pytest.mark.parametrize("name", ["minio", "seaweed"])
async def test_real_stores_win_the_race(name: str, request: pytest.FixtureRequest,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """MinIO and SeaweedFS let one of simultaneous puts succeed."""
    await _races(request.getfixturevalue(name), 1, monkeypatch)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["minio", "seaweed"])
async def test_real_stores_win_every_race(name: str, request: pytest.FixtureRequest,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """MinIO and SeaweedFS let one of simultaneous puts succeed, a hundred times."""
    await _races(request.getfixturevalue(name), 100, monkeypatch)


async def _races(server: S3Server, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    store = open_store(server.new_url())
    for seed in range(times):
        await race(store, seed)()
    await store.close()


async def test_minio_passes(minio: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real S3 server that honours If-None-Match passes, on an empty prefix and on a used one."""
    for name, value in minio.env.items():
        monkeypatch.setenv(name, value)
    store = open_store(minio.new_url())
    for _ in range(2):
        assert await probe(store, KEY, [OURS]) == OURS
    await store.close()


async def test_wrong_credentials_and_no_bucket_on_minio(minio: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real server's error for a wrong key, a wrong secret and a missing bucket is passed on with the remedy."""
    for name, value in minio.env.items():
        monkeypatch.setenv(name, value)
    for variable, value, url, words in [
        ("AWS_ACCESS_KEY_ID", "nobody", minio.new_url(), "InvalidAccessKeyId"),
        ("AWS_SECRET_ACCESS_KEY", "wrong-secret", minio.new_url(), "SignatureDoesNotMatch"),
        ("AWS_REGION", "us-east-1", "s3://no-such-bucket/x", "create the bucket"),
    ]:
        with monkeypatch.context() as changed:
            changed.setenv(variable, value)
            store = open_store(url)
            with pytest.raises(StoreRefused, match=words) as caught:
                await probe(store, KEY, [OURS])
            assert url in str(caught.value)
            assert "wrong-secret" not in str(caught.value)
            await store.close()


@pytest.mark.parametrize("used", [False, True])
async def test_a_store_that_overwrites_is_refused(fake: FakeS3, used: bool) -> None:
    """A server that ignores If-None-Match is refused, and existing objects are unchanged."""
    fake.honours_if_none_match = False
    if used:
        fake.objects[KEY] = b"theirs" * 10
    store = S3Store("bucket")
    with pytest.raises(StoreRefused, match="If-None-Match") as caught:
        await probe(store, KEY, [OURS])
    assert "s3://bucket" in str(caught.value)
    assert fake.objects[KEY] == (b"theirs" * 10 if used else OURS)
    await store.close()


async def test_the_probe_waits_for_a_failing_store(fake: FakeS3) -> None:
    """SlowDown, a conflict and cut connections are retried by the wrapper, and the probe passes. An unanswered put
    that took effect only makes the key exist, as the second put expects."""
    verdicts: list[object] = [(503, "SlowDown"), None, (409, "ConditionalRequestConflict"), "served, then cut", "cut",
                              None, (500, "InternalError"), None, "cut", None, (503, "SlowDown"), "served, then cut"]
    fake.script = lambda request: verdicts.pop(0) if verdicts else None
    store = RetryingStore(S3Store("bucket"), clock=SystemClock(), rng=random.Random(1), pause_ns=1_000_000)
    assert await probe(store, KEY, [OURS]) == OURS
    assert not verdicts
    await store.close()


@pytest.mark.parametrize("verdict", ["cut", "hang", (503, "SlowDown")])
async def test_a_store_that_stays_down_is_named(fake: FakeS3, verdict: object) -> None:
    """A store that is unreachable or overloaded for longer than the bound is refused, with its address and the
    remedy."""
    fake.script = lambda request: verdict
    inner = S3Store("bucket", put_timeout_ns=100_000_000, get_timeout_ns=100_000_000)
    store = RetryingStore(inner, clock=SystemClock(), rng=random.Random(1), give_up_ns=200_000_000)
    with pytest.raises(StoreRefused, match="AWS_ENDPOINT_URL") as caught:
        await probe(store, KEY, [OURS])
    assert fake.endpoint in str(caught.value)
    await store.close()


async def test_under_every_fault_the_probe_is_right() -> None:
    """200 seeds of refused, lost, unanswered and late calls: a good store passes, or is reported as down."""
    passed = 0
    for seed in range(200):
        rng = random.Random(seed)
        faults = Faults(refused=0.1, lost=0.1, unanswered=0.2, late=0.1, timeout_ns=0, late_ns_max=0)
        faulty = FaultyStore(MemoryStore(), rng=rng, faults=faults)
        store = RetryingStore(faulty, clock=SystemClock(), rng=rng, pause_ns=1)
        try:
            assert await probe(store, KEY, [OURS]) == OURS, f"seed {seed}"
            passed += 1
        except StoreRefused as e:
            assert "cannot be reached" in str(e), f"seed {seed}"  # noqa: PT017
        await faulty.late_puts_done()
    assert passed == 200


async def test_a_store_with_stale_listings_or_reads_is_refused() -> None:
    """The probe also checks listing, reading back and ranges."""

    class StaleListing(Wrapper):
        async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
            return []

    class WrongRange(Wrapper):
        async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
            return await self.inner.get(key)

    for make, words in ((StaleListing, "listing"), (WrongRange, "ranged read")):
        store: ObjectStore = make(MemoryStore())
        with pytest.raises(StoreRefused, match=words):
            await probe(store, KEY, [OURS])


async def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    """A directory that is opened for reading only is not changed, and the probe gives the reason of its refusal."""
    store = FileStore(tmp_path, read_only=True)
    with pytest.raises(StoreRefused, match="reading only"):
        await probe(store, KEY, [OURS])
    assert os.listdir(tmp_path) == []
    await store.close()
