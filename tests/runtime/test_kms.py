"""A broker whose master key is in AWS KMS, as moto implements it, behind a proxy that delays and refuses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import nats
import pytest
from aiobotocore.session import get_session
from aiohttp import web

from broker.base.errors import StartError
from broker.runtime.embedded import Broker
from tests.key_ring import forget_keys
from tests.real import parts
from tests.real.s3 import MISSING, free_port
from tests.runtime.test_erasure import files_with

pytestmark = pytest.mark.shows("auth.encryption")

START_SECONDS = 120
ACCESS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1",
          "AWS_DEFAULT_REGION": "us-east-1"}


class Kms:
    """The proxy. ``fail`` are the codes of the next answers, ``delay_s`` is the time before each of them."""

    def __init__(self, behind: str) -> None:
        self.behind = behind
        self.url = ""
        self.fail: list[str] = []
        self.delay_s = 0.0
        self.calls: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.calls.append(request.headers["X-Amz-Target"].rpartition(".")[2])
        body = await request.read()
        await asyncio.sleep(self.delay_s)
        if self.fail:
            return web.json_response({"__type": self.fail.pop(0), "message": "injected"}, status=400)
        async with aiohttp.ClientSession() as session, session.post(self.behind, data=body,
                                                                    headers=request.headers) as answer:
            return web.Response(status=answer.status, body=await answer.read(),
                                content_type="application/x-amz-json-1.1")

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Any]:
        """Yield a client of moto itself."""
        async with get_session().create_client("kms", endpoint_url=self.behind) as client:
            yield client


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        folder = parts.moto()
    except parts.PartMissing as error:
        pytest.skip(f"{MISSING}moto: {error}")
    port = free_port()
    log = tmp_path_factory.mktemp("moto") / "log"
    with log.open("wb") as out:
        server = subprocess.Popen([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
                                  stdout=out, stderr=out, env={**os.environ, "PYTHONPATH": str(folder)})
    try:
        began = time.monotonic()
        while b"Running on http" not in log.read_bytes():
            assert server.poll() is None, log.read_text()
            assert time.monotonic() - began < START_SECONDS, log.read_text()
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


@pytest.fixture
async def kms(moto: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kms]:
    for name, value in ACCESS.items():
        monkeypatch.setenv(name, value)
    found = Kms(moto)
    app = web.Application()
    app.router.add_post("/", found.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", found.url)
    yield found
    await runner.cleanup()


@pytest.fixture
def other_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function after which this process knows no keys."""
    return lambda: forget_keys(monkeypatch)


async def new_key(kms: Kms) -> str:
    async with kms.client() as client:
        return str((await client.create_key())["KeyMetadata"]["KeyId"])


async def publish(broker: Broker, name: str, count: int) -> None:
    client = await nats.connect(broker.url)
    js = client.jetstream()
    await js.add_stream(name=name, subjects=[name])
    for i in range(count):
        await js.publish(name, b"pl4in-payload %d" % i)
    await client.close()


async def expect(broker: Broker, name: str, count: int) -> None:
    client = await nats.connect(broker.url)
    found = [(await client.jetstream().get_msg(name, seq)).data for seq in range(1, count + 1)]
    assert found == [b"pl4in-payload %d" % i for i in range(count)]
    await client.close()


async def test_a_broker_through_latency_and_throttling(kms: Kms, tmp_path: Path, other_process: Any) -> None:
    """Shows that a store is made, read again and given another master key although KMS is slow and throttles; that a
    running broker does not need KMS; and that the store has nothing plain."""
    settings = {"storage.key": f"aws-kms:{await new_key(kms)}"}
    kms.fail, kms.delay_s = ["ThrottlingException"] * 2, 0.5
    async with Broker(tmp_path, settings=settings) as broker:
        assert kms.calls == ["Encrypt"] * 3
        kms.fail = ["ThrottlingException"] * 1000
        await publish(broker, "S", 5)
        await expect(broker, "S", 5)
        assert len(kms.calls) == 3
    kms.fail, kms.delay_s = [], 3.0
    other_process()
    kms.calls.clear()
    async with Broker(tmp_path, settings=settings) as broker:
        await expect(broker, "S", 5)
    assert "Decrypt" in kms.calls
    kms.delay_s = 0.0
    other_process()
    rotated = {"storage.key": f"aws-kms:{await new_key(kms)}", "storage.prev_key": settings["storage.key"]}
    async with Broker(tmp_path, settings=rotated) as broker:
        await expect(broker, "S", 5)
    other_process()
    async with Broker(tmp_path, settings={"storage.key": rotated["storage.key"]}) as broker:
        await expect(broker, "S", 5)
    assert files_with(tmp_path, [b"pl4in"]) == {}


@pytest.mark.parametrize(("code", "remedy"), [
    ("AccessDeniedException", "allow kms:Encrypt and kms:Decrypt on this key"),
    ("DisabledException", "enable the key")])
async def test_a_refused_start(kms: Kms, tmp_path: Path, other_process: Any, code: str, remedy: str) -> None:
    """Shows one line with the remedy, for a new store and for an existing one, which is not changed."""
    settings = {"storage.key": f"aws-kms:{await new_key(kms)}"}
    kms.fail = [code]
    with pytest.raises(StartError, match=remedy):
        await Broker(tmp_path / "new", settings=settings).start()
    async with Broker(tmp_path / "store", settings=settings) as broker:
        await publish(broker, "S", 3)
    other_process()
    kms.fail = [code] * 3
    with pytest.raises(StartError, match=f"KMS answers {code}: {remedy}"):
        await Broker(tmp_path / "store", settings=settings).start()
    kms.fail = []
    other_process()
    async with Broker(tmp_path / "store", settings=settings) as broker:
        await expect(broker, "S", 3)


async def test_a_user_without_rights(kms: Kms, tmp_path: Path) -> None:
    """Shows the line for credentials that moto itself refuses."""
    settings = {"storage.key": f"aws-kms:{await new_key(kms)}"}
    async with aiohttp.ClientSession() as session:
        async def checked_after(actions: str) -> None:
            headers = {"Content-Type": "text/plain"}
            async with session.post(f"{kms.behind}/moto-api/reset-auth", data=actions, headers=headers) as answer:
                assert answer.status == 200, json.dumps(await answer.text())

        await checked_after("0")
        try:
            with pytest.raises(StartError, match=r"aws-kms:.*KMS answers .*: renew the credentials"):
                await Broker(tmp_path, settings=settings).start()
        finally:
            await checked_after("inf")
