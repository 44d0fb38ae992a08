"""Credentials that change while S3Store is in use: others are searched when a request is refused, but not too often."""

from __future__ import annotations

import asyncio
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.storage.objectstore import StoreError, StoreRefused, Transient
from broker.storage.objectstore.credentials import Credentials
from broker.storage.objectstore.s3 import S3Store
from tests.manual_clock import ManualClock
from tests.storage.objectstore.fake_s3 import FakeS3, Request

SECOND = 1_000_000_000


class Keys:
    """A file of credentials, and a server that accepts one of its keys."""

    def __init__(self, fake: FakeS3, path: Path) -> None:
        self.path = path
        self.valid = "KEY1"
        self.refusal: tuple[int, str] = (403, "InvalidAccessKeyId")
        self.write("KEY1")
        fake.script = self.answer

    def write(self, key: str) -> None:
        self.path.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = secret of {key}\n")

    def answer(self, request: Request) -> object:
        return None if f"Credential={self.valid}/" in request.headers["authorization"] else self.refusal


@pytest.fixture
def keys(fake: FakeS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Keys:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return Keys(fake, tmp_path / "credentials")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def s3(keys: Keys, clock: ManualClock) -> AsyncIterator[S3Store]:
    store = S3Store("bucket", clock=clock)
    yield store
    await store.close()


@pytest.mark.parametrize("refusal", [(403, "InvalidAccessKeyId"), (403, "SignatureDoesNotMatch"), (403, "AccessDenied"),
                                     (400, "ExpiredToken"), (401, "Unauthorized")])
async def test_a_new_key_in_the_file_is_found(s3: S3Store, keys: Keys, refusal: tuple[int, str]) -> None:
    """The old key is withdrawn: the request that finds out raises Transient, so that it is retried, and the next one
    is served."""
    keys.refusal = refusal
    await s3.put("a", [b"1"])
    keys.write("KEY2")
    await s3.put("b", [b"2"])  # the old key still works
    keys.valid = "KEY2"
    with pytest.raises(Transient, match="other credentials") as caught:
        await s3.put("c", [b"3"])
    assert "secret" not in str(caught.value)
    await s3.put("c", [b"3"])
    assert await s3.get("a") == b"1"


async def test_without_another_key_the_refusal_is_raised(s3: S3Store, keys: Keys, clock: ManualClock) -> None:
    """The refusal has its remedy as always. The chain is searched again only after a pause, and then the new key is
    found."""
    await s3.put("a", [b"1"])
    keys.valid = "KEY2"
    with pytest.raises(StoreRefused, match=r"InvalidAccessKeyId.*AWS_ACCESS_KEY_ID"):
        await s3.put("b", [b"2"])
    keys.write("KEY2")
    with pytest.raises(StoreRefused, match="InvalidAccessKeyId"):
        await s3.put("b", [b"2"])
    clock.advance(3 * SECOND)
    with pytest.raises(Transient):
        await s3.put("b", [b"2"])
    await s3.put("b", [b"2"])


async def test_many_requests_are_refused_at_once(s3: S3Store, keys: Keys) -> None:
    """A single search serves all requests: each raises Transient, also one whose refusal arrives after the new
    credentials were found."""
    await s3.put("a", [b"1"])
    keys.write("KEY2")
    keys.valid = "KEY2"
    outcomes = await asyncio.gather(*(s3.get("a") for _ in range(20)), return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} <= {Transient, bytes}
    assert Transient in {type(outcome) for outcome in outcomes}
    assert await s3.get("a") == b"1"


async def test_credentials_that_come_late(s3: S3Store, keys: Keys, clock: ManualClock) -> None:
    """Credentials are missing at the start, or half a file exists: the refusal says so, and the store works once
    they exist."""
    text = keys.path.read_text()
    for written in ("", "[default]\naws_access_key_id = KEY1\n", "nonsense"):
        keys.path.write_text(written)
        with pytest.raises(StoreError):
            await s3.put("a", [b"1"])
        clock.advance(3 * SECOND)
    keys.path.write_text(text)
    async with asyncio.timeout(30):
        while True:
            try:
                await s3.put("a", [b"1"])
                break
            except StoreError:
                clock.advance(3 * SECOND)
    assert await s3.get("a") == b"1"


async def test_a_process_that_provides_credentials(s3: S3Store, keys: Keys, tmp_path: Path) -> None:
    """``credential_process`` is run again when its credentials are refused before they expire."""
    keys.path.unlink()
    script = tmp_path / "provide"
    script.write_text(f"#!{sys.executable}\nprint(open({str(tmp_path / 'given')!r}).read())\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "config").write_text(f"[default]\ncredential_process = {script}\n")

    def give(key: str) -> None:
        (tmp_path / "given").write_text(f'{{"Version": 1, "AccessKeyId": "{key}", "SecretAccessKey": "s", '
                                        '"SessionToken": "t", "Expiration": "2100-01-01T00:00:00Z"}')

    give("KEY1")
    await s3.put("a", [b"1"])
    give("KEY2")
    keys.valid = "KEY2"
    with pytest.raises(Transient, match="other credentials"):
        await s3.get("a")
    assert await s3.get("a") == b"1"


class Key:
    def __init__(self, name: str) -> None:
        self.name = name

    async def get_frozen_credentials(self) -> str:
        return self.name


async def test_a_cancelled_request_does_not_end_the_search(clock: ManualClock) -> None:
    """A request is cancelled before the chain answers: the next one has the credentials."""
    answer: asyncio.Future[Key] = asyncio.get_running_loop().create_future()
    chain = [Key("1")]

    async def find() -> Key:
        return chain.pop() if chain else await answer

    credentials = Credentials("s3://b", clock, timeout_s=30, find=find)
    await credentials.load_credentials()
    asking = asyncio.create_task(credentials.find_others(0))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    second = asyncio.create_task(credentials.find_others(0))
    await asyncio.sleep(0)
    answer.set_result(Key("2"))
    assert await second
    assert await credentials.get_frozen_credentials() == "2"
    assert await credentials.find_others(0), "refused with the first, after the second were found"
    assert not await credentials.find_others(1), "and again at once: the pause is not over"


async def test_closed_during_a_search(clock: ManualClock) -> None:
    """Nothing waits for the chain after ``close``; a caller gets False, and is not cancelled."""
    async def find() -> Key:
        await asyncio.Event().wait()
        raise AssertionError

    credentials = Credentials("s3://b", clock, timeout_s=30, find=find)
    asking = asyncio.create_task(credentials.find_others(0))
    await asyncio.sleep(0)
    await credentials.close()
    assert not await asking


async def test_a_failing_search_is_logged_once(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    """A search that fails repeatedly for one reason is logged once; another reason, or a failure after a success, is
    logged again."""
    chain: list[Key | Exception] = [Key("1"), *(OSError("unreadable") for _ in range(5)), OSError("gone"), Key("2"),
                                    OSError("gone")]

    async def find() -> Key:
        found = chain.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    credentials = Credentials("s3://b", clock, timeout_s=30, find=find)
    await credentials.load_credentials()
    while chain:
        await credentials.find_others(credentials.version)
        clock.advance(3 * SECOND)
    reasons = [line.rpartition(": ")[2] for line in caplog.messages if "no others" in line]
    assert reasons == ["unreadable", "gone", "gone"]
