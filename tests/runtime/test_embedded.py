"""A broker inside the program that uses it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import nats
import pytest
from nats.aio.transport import TcpTransport

from broker.embedded import Broker
from broker.errors import StartError

pytestmark = pytest.mark.shows("operation.embedded")


async def test_streams_in_memory_on_a_free_port() -> None:
    """Two of them do not know of each other; after the end there is nothing at the address."""
    async with Broker() as one, Broker() as other:
        assert one.port != other.port
        client, stranger = await nats.connect(one.url), await nats.connect(other.url)
        js = client.jetstream()
        await js.add_stream(name="S", subjects=["s"])
        assert (await js.publish("s", b"kept")).seq == 1
        assert await stranger.jetstream().streams_info() == []
        await client.close()
        await stranger.close()
    with pytest.raises(RuntimeError, match="not running"):
        _ = one.url
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", one.port)


async def test_a_directory_keeps_streams_from_one_start_to_the_next(tmp_path: Path) -> None:
    """On the same port; a new broker on the directory finds them, too."""
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
    """By their paths; without a store there is no JetStream; a port in use is told and leaves nothing running."""
    async with Broker(None, settings={"auth.user": "u", "auth.password": "p"}) as broker:
        client = await nats.connect(broker.url, user="u", password="p")
        assert client._server_info.get("jetstream") is None
        await client.close()
        with pytest.raises(RuntimeError, match="is running"):
            await broker.start()
        with pytest.raises(StartError, match="address already in use"):
            await Broker(None, port=broker.port).start()


async def test_without_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only this program can connect, as often as it likes: by streams, and the stock client over such a stream."""
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
