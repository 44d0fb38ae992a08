"""A master key of AWS KMS, against a server that speaks its protocol, with its faults."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from broker.storage.format.errors import KeyMissing
from broker.storage.keys.kms import KmsKey
from broker.storage.keys.master import Masters
from broker.storage.objectstore.base import StoreRefused, Transient

KEY = "alias/jetblock"


class FakeKms:
    """Wraps by prefixing the key's name. ``fail`` are the codes of the next answers."""

    def __init__(self) -> None:
        self.fail: list[str] = []
        self.calls: list[str] = []
        self.delay_s = 0.0

    async def answer(self, request: web.Request) -> web.Response:
        self.calls.append(request.headers["X-Amz-Target"].rpartition(".")[2])
        asked = json.loads(await request.read())
        await asyncio.sleep(self.delay_s)
        if self.fail:
            return self._error(self.fail.pop(0))
        assert asked["EncryptionContext"] == {"jetblock": "keys"}
        prefix = asked["KeyId"].encode() + b":"
        if self.calls[-1] == "Encrypt":
            return self._ok(CiphertextBlob=prefix + base64.b64decode(asked["Plaintext"]))
        blob = base64.b64decode(asked["CiphertextBlob"])
        return self._ok(Plaintext=blob.removeprefix(prefix)) if blob.startswith(prefix) else self._error(
            "IncorrectKeyException")

    def _ok(self, **values: bytes) -> web.Response:
        return web.json_response({name: base64.b64encode(value).decode() for name, value in values.items()})

    def _error(self, code: str) -> web.Response:
        return web.json_response({"__type": code, "message": "no"}, status=500 if "Internal" in code else 400)


@pytest.fixture
async def kms(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeKms]:
    fake = FakeKms()
    app = web.Application()
    app.router.add_post("/", fake.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", f"http://127.0.0.1:{runner.addresses[0][1]}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    yield fake
    await runner.cleanup()


async def test_kms_wraps_and_unwraps(kms: FakeKms) -> None:
    """Shows the round trip, from a thread as the broker calls it, through throttling and latency."""
    masters = Masters.of(f"aws-kms:{KEY}", "")
    assert masters is not None
    master = masters.current
    assert (master.name, master.local) == (f"aws-kms:{KEY}", False)
    kms.delay_s = 0.05
    kms.fail = ["ThrottlingException", "KMSInternalException"]
    wrapped = await asyncio.to_thread(master.wrap, b"a secret")
    assert await asyncio.to_thread(master.unwrap, wrapped) == b"a secret"
    assert kms.calls == ["Encrypt"] * 3 + ["Decrypt"]


@pytest.mark.parametrize(("code", "error", "remedy"), [
    ("AccessDeniedException", StoreRefused, "allow kms:Encrypt and kms:Decrypt"),
    ("DisabledException", StoreRefused, "enable the key"),
    ("NotFoundException", StoreRefused, "correct the key's id"),
    ("InvalidCiphertextException", KeyMissing, "does not open it"),
    ("KeyUnavailableException", Transient, "KeyUnavailableException")])
async def test_refusals_name_the_remedy(kms: FakeKms, code: str, error: type[Exception], remedy: str) -> None:
    """Shows how each answer is sorted: the broker ends, or tries again later."""
    kms.fail = [code] * 10
    with pytest.raises(error, match=remedy):
        await asyncio.to_thread(KmsKey(KEY).unwrap, b"x")


async def test_another_key_does_not_open_it(kms: FakeKms) -> None:
    """Shows the line for a wrong key of KMS."""
    wrapped = await asyncio.to_thread(KmsKey("alias/other").wrap, b"a secret")
    with pytest.raises(KeyMissing, match=f"aws-kms:{KEY} does not open it"):
        await asyncio.to_thread(KmsKey(KEY).unwrap, wrapped)


async def test_a_service_that_does_not_answer(kms: FakeKms, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that a start is tried again while the service cannot be reached."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", "http://127.0.0.1:1")
    monkeypatch.setattr("broker.storage.keys.kms._ATTEMPTS", 1)
    with pytest.raises(Transient, match="connect"):
        await asyncio.to_thread(KmsKey(KEY).wrap, b"a secret")
