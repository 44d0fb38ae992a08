"""A broker inside the program that uses it."""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.transport import TcpTransport

from broker.base.errors import StartError, StoreInUse
from broker.config.settings import ConfigError
from broker.runtime.embedded import Broker
from tests.real.s3 import S3Server, own_minio
from tests.storage.objectstore.fake_s3 import fake_s3

pytestmark = pytest.mark.shows("operation.embedded")


async def test_streams_in_memory_on_a_free_port() -> None:
    """Two brokers have separate streams; after a stop nothing listens at the address."""
    async with Broker() as one, Broker() as other:
        assert one.port != other.port
        client, stranger = await nats.connect(one.url), await nats.connect(other.url)
        js = client.jetstream()
        await js.add_stream(name="S", subjects=["s"])
        assert (await js.publish("s", b"kept")).seq == 1
        assert await stranger.jetstream().streams_info() == []
        name = client._server_info["server_id"].encode()
        await client.close()
        await stranger.close()
    with pytest.raises(RuntimeError, match="not running"):
        _ = one.url
    with suppress(ConnectionRefusedError, TimeoutError):
        async with asyncio.timeout(5):  # another process may have got the port meanwhile
            reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
            assert name not in await reader.read(65536)
            writer.close()


async def test_a_directory_keeps_streams_from_one_start_to_the_next(tmp_path: Path) -> None:
    """A restarted broker has the same port and streams; a new broker on the directory finds the streams, too."""
    broker = Broker(tmp_path / "streams")
    async with broker:
        client = await nats.connect(broker.url)
        await client.jetstream().add_stream(name="S", subjects=["s"])
        await client.jetstream().publish("s", b"kept")
        await client.close()
        url = broker.url
    for again in (broker, Broker(str(tmp_path / "streams"))):
        async with again:
            assert (again.url == url) is (again is broker)
            client = await nats.connect(again.url)
            assert (await client.jetstream().get_msg("S", 1)).data == b"kept"
            await client.close()


async def test_settings_and_what_is_wrong_with_them() -> None:
    """Settings are given by path; without a store there is no JetStream; a port in use is an error without
    leftovers."""
    async with Broker(None, settings={"auth.user": "u", "auth.password": "p"}) as broker:
        client = await nats.connect(broker.url, user="u", password="p")
        assert client._server_info.get("jetstream") is None
        await client.close()
        with pytest.raises(RuntimeError, match="is running"):
            await broker.start()
        with pytest.raises(StartError, match="address already in use"):
            await Broker(None, port=broker.port).start()


@pytest.mark.parametrize(("settings", "why"), [
    ({"auth.usr": "x"}, "there is no setting 'auth.usr'; did you mean auth.user?"),
    ({"nothing": 1}, "there is no setting 'nothing'"),
    ({5: 1}, "a setting's name must be of type str, not 5"),
    ({"auth.user.name": "x"}, "there is no setting 'auth.user.name'"),
    ({"auth": {"user": "x"}}, "auth is a section: set one of its settings, such as auth.user"),
    ({"auth.user": 5}, "auth.user must be of type str"),
    ({"auth.password": "x"}, "authorization has a password and no user"),
    ({"clients.port": 70_000}, "clients.port must be a port between 1 and 65535"),
    ({"clients.max_payload": "2 MBs"}, "clients.max_payload must be a size such as"),
    ({"clients.no_header_support": 1}, "clients.no_header_support must be true or false"),
    ({"storage.lease_ns": 2.5}, "storage.lease_ns must be of type int"),
])
def test_wrong_settings(settings: dict[str, Any], why: str) -> None:
    """Each error has the path and a valid value; a secret is not repeated."""
    with pytest.raises(ConfigError, match=re.escape(why)):
        Broker(settings=settings)
    with pytest.raises(ConfigError) as refused:
        Broker(settings={"auth.user": "u", "auth.password": 12345})
    assert "12345" not in str(refused.value)


def test_text_as_in_a_configuration_file() -> None:
    """Durations and sizes may be written with units."""
    broker = Broker(settings={"storage.lease_ns": "10s", "clients.max_payload": "2MB",
                              "clients.no_header_support": "yes"})
    assert (broker.settings.storage.lease_ns, broker.settings.clients.max_payload) == (10_000_000_000, 2 << 20)
    assert broker.settings.clients.no_header_support is True


@pytest.mark.parametrize("url", ["s3:/bucket", "ftp://host/x", "s3://b"])
def test_what_is_no_store(url: str) -> None:
    """A wrong URL does not become a folder of that name."""
    with pytest.raises(ConfigError, match=r"s3://"):
        Broker(url)


async def test_a_directory_in_use(tmp_path: Path) -> None:
    """A second broker fails at once without harm to the first; a standby takes over when the first ends."""
    async with Broker(tmp_path / "streams") as first:
        client = await nats.connect(first.url)
        await client.jetstream().add_stream(name="S", subjects=["s"])
        with pytest.raises(StoreInUse, match=r"streams: another broker owns the store: stop it, or .*standby=True"):
            await Broker(tmp_path / "streams").start()
        assert (await client.jetstream().publish("s", b"kept")).seq == 1
        await client.close()
        waiting = asyncio.create_task((second := Broker(tmp_path / "streams", standby=True)).start())
        await asyncio.sleep(0)
        assert not waiting.done()
    await asyncio.wait_for(waiting, 30)
    client = await nats.connect(second.url)
    assert (await client.jetstream().get_msg("S", 1)).data == b"kept"
    await client.close()
    await second.stop()


async def test_a_bucket_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second broker on a bucket fails after the time in which a dead owner would have been replaced."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    async with fake_s3() as fake:
        monkeypatch.setattr("broker.runtime.shard_owner._UNOWNED_SECONDS", 1.0)
        settings = {"storage.s3_endpoint": fake.endpoint, "storage.lease_ns": "2s", "storage.put_timeout_ns": "1s"}
        async with Broker("s3://bucket/x", settings=settings):
            with pytest.raises(StoreInUse, match="another broker owns the store"):
                await Broker("s3://bucket/x", settings=settings).start()


async def test_without_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only this program can connect, any number of times: by streams, and with the stock client over such a stream."""
    async with Broker(port=None) as broker:
        assert broker.port == 0
        with pytest.raises(RuntimeError, match="no port"):
            _ = broker.url
        reader, writer = await broker.connect()
        assert (await reader.readline()).startswith(b"INFO {")
        writer.write(b'CONNECT {"verbose":false}\r\nSUB s 1\r\nPING\r\n')
        assert await reader.readline() == b"PONG\r\n"

        async def connect(transport: TcpTransport, *_: object, **__: object) -> None:
            transport._bare_io_reader, transport._bare_io_writer = await broker.connect()
            transport._io_reader, transport._io_writer = transport._bare_io_reader, transport._bare_io_writer

        monkeypatch.setattr(TcpTransport, "connect", connect)
        client = await nats.connect("nats://nowhere")
        await client.jetstream().add_stream(name="S", subjects=["s"])
        assert (await client.jetstream().publish("s", b"kept")).seq == 1
        assert (await reader.readline()).startswith(b"MSG s 1 ")
        await client.close()
        writer.close()
    assert await reader.read() == b"kept\r\n"


async def test_two_brokers_with_different_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each broker uses the keys of its own settings, also after the other has started; the environment is unchanged."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a token of nobody")
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with own_minio(tmp_path / "one") as one, own_minio(tmp_path / "two") as two:
        two.end()
        two.start_again("another-user", "another-secret")
        async with (Broker(one.new_url(), settings=_keys_of(one)) as first,
                    Broker(two.new_url(), settings=_keys_of(two)) as second):
            for broker in (first, second, first):
                client = await nats.connect(broker.url)
                await client.jetstream().add_stream(name="S", subjects=["s"])
                await client.jetstream().publish("s", b"stored")
                await client.close()
        with pytest.raises(StartError, match=r"InvalidAccessKeyId|SignatureDoesNotMatch"):
            await Broker(two.new_url(), settings=_keys_of(one) | {"storage.s3_endpoint": two.endpoint}).start()
    assert os.environ["AWS_ACCESS_KEY_ID"] == "nobody"
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == "nothing"


def _keys_of(server: S3Server) -> dict[str, str]:
    return {"storage.s3_endpoint": server.endpoint, "storage.s3_region": server.env["AWS_REGION"],
            "storage.s3_access_key_id": server.env["AWS_ACCESS_KEY_ID"],
            "storage.s3_secret_access_key": server.env["AWS_SECRET_ACCESS_KEY"]}
