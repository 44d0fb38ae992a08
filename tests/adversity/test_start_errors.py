"""Failed starts: each ends with status 1 and one fatal line that names the cause and the remedy."""

from __future__ import annotations

import os
import socket
import struct
import zlib
from pathlib import Path

import pytest

from tests.adversity.clients import unexpected
from tests.harness import BrokerProcess
from tests.real.proxy import TcpProxy
from tests.real.s3 import S3Server
from tests.storage.objectstore.fake_s3 import fake_s3

KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}


async def refusal(store: str, environ: dict[str, str] | None = None, seconds: float = 60) -> str:
    """Return the error of a broker that cannot start on ``store``, after checking how it ended."""
    broker = BrokerProcess("--store", store, environ=environ or {})
    try:
        await broker.start(ready=False)
        assert await broker.wait_end(seconds) == 1, broker.tail()
        # The fatal line is in the log, or is printed by the command line before there is a log.
        fatal = [line for line in broker.stderr if "[FTL]" in line or line.startswith("jetblock: ")]
        assert len(fatal) == 1, broker.tail()
        assert not any("Server is ready" in line for line in broker.stderr)
        assert not unexpected(broker), broker.tail()
        return fatal[0]
    finally:
        await broker.close()


async def test_a_missing_bucket(minio: S3Server) -> None:
    error = await refusal("s3://no-such-bucket-here/x", minio.env)
    assert "no-such-bucket-here" in error
    assert "create the bucket" in error


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
async def test_wrong_credentials(minio: S3Server, name: str) -> None:
    """The error shows neither key nor secret."""
    error = await refusal(minio.new_url(), {**minio.env, name: "wrong-and-secret"})
    assert f"check {name}" in error or name in error
    assert "wrong-and-secret" not in error
    assert minio.env["AWS_SECRET_ACCESS_KEY"] not in error


@pytest.mark.parametrize("put_timeout", ["500ms", "50ms"])
async def test_an_endpoint_that_does_not_answer(minio: S3Server, put_timeout: str) -> None:
    """The port is closed, or nothing answers: the start retries for a while (a store may start after its broker), logs
    that, for any length of the while, and then names the endpoint."""
    async with TcpProxy.to(minio.endpoint) as silent:
        silent.stall()
        nobody = socket.socket()  # the port belongs to this socket
        nobody.bind(("127.0.0.1", 0))
        for endpoint in (f"http://127.0.0.1:{nobody.getsockname()[1]}", silent.endpoint):
            broker = BrokerProcess("--store", "s3://bucket/x", environ={
                **KEYS, "AWS_ENDPOINT_URL": endpoint, "JETBLOCK_PUT_TIMEOUT": put_timeout})
            try:
                await broker.start(ready=False)
                assert await broker.wait_end(90) == 1
                [error] = [line for line in broker.stderr if "[FTL]" in line]
                assert endpoint in error or "s3://bucket/x" in error
                assert "check that it is up, its address (AWS_ENDPOINT_URL)" in error
                assert sum("has not answered yet" in line for line in broker.stderr) == 1
                assert not unexpected(broker)
            finally:
                await broker.close()


async def test_a_file_where_the_directory_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    error = await refusal(f"file://{tmp_path / 'file'}")
    assert f"storage directory is not a directory: {tmp_path / 'file'}" in error


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no /proc")
async def test_a_directory_that_cannot_be_written() -> None:
    """/proc cannot be written, not even by root."""
    error = await refusal("file:///proc/jetblock/store")
    assert "/proc/jetblock" in error
    assert "could not create storage directory" in error


def sealed(data: bytearray) -> bytes:
    """Return the 64-byte header with its CRC corrected."""
    data[60:64] = struct.pack("<I", zlib.crc32(data[:60]))
    return bytes(data)


def everything_below(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


async def started_once(store: Path) -> Path:
    """Create a store by a broker that has stopped; return its format object."""
    async with BrokerProcess("--store", f"file://{store}") as broker:
        assert await broker.stop() == 0
    return store / "v1" / "format"


async def test_a_store_of_a_newer_version(tmp_path: Path) -> None:
    """The store is left unchanged: the remedy is a newer broker."""
    path = await started_once(tmp_path / "store")
    data = bytearray(path.read_bytes())
    data[10] += 1  # the header's version
    path.chmod(0o640)
    path.write_bytes(sealed(data))
    error = await refusal(f"file://{tmp_path / 'store'}")
    assert "v1/format" in error
    assert "newer" in error


@pytest.mark.parametrize("garbage", [b"", b"garbage", b"\0" * 64, os.urandom(200)],
                         ids=["empty", "text", "zeros", "random"])
async def test_garbage_where_the_format_should_be(tmp_path: Path, garbage: bytes) -> None:
    """The error names the object; nothing in the store is changed."""
    path = await started_once(tmp_path / "store")
    path.chmod(0o640)
    path.write_bytes(garbage)
    before = everything_below(tmp_path)
    error = await refusal(f"file://{tmp_path / 'store'}")
    assert "v1/format" in error
    assert path.read_bytes() == garbage
    assert everything_below(tmp_path) == before


async def test_a_store_that_ignores_if_none_match() -> None:
    """Such a store would not keep two brokers apart."""
    async with fake_s3() as fake:
        fake.honours_if_none_match = False
        error = await refusal("s3://bucket/x", {**KEYS, "AWS_ENDPOINT_URL": fake.endpoint})
    assert "overwrites objects" in error
    assert "Use one that honours conditional puts" in error


@pytest.mark.parametrize("url", ["s3://", "s3://b", "ftp://x/y", "nonsense", "s3://key:secret@bucket/x", "memory://x",
                                 "s3://bucket/../up"])
async def test_a_url_that_names_no_store(url: str) -> None:
    error = await refusal(url, KEYS)
    assert "secret" not in error or "AWS_SECRET" in error
    assert any(word in error for word in ("write ", "set AWS", "takes nothing", "may not have", "try ")), error
