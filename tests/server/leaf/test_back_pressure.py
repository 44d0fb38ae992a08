"""A stream that can store nothing, and publishes to it over a leaf connection."""

from __future__ import annotations

from pathlib import Path

import pytest
from nats.js.api import StreamConfig

from tests.harness import BrokerProcess, free_port
from tests.real.proxy import TcpProxy
from tests.real.s3 import S3Server
from tests.server.leaf.raw import Raw, login
from tests.server.leaf.servers import connect, write

pytestmark = pytest.mark.shows("publish.back_pressure")

BODY = b"x" * 16_384
COUNT = 200
ROUNDS = 5
"""Attempts to send everything within the second for which publishes wait, on a machine that is busy with other work."""


async def test_a_leaf_connection_is_never_held(tmp_path: Path, minio: S3Server) -> None:
    """At the bound of the log, publishes over a leaf connection are refused (429), and the connection is read on: the
    answer to a later PING comes before the refusals. Publishes are stored again afterwards."""
    port = free_port()
    path = write(tmp_path / "hub.conf", f"""
        leafnodes {{ listen: "127.0.0.1:{port}" }}
        jetblock {{ tail_bytes_max: 1mb, segment_bytes: 256kb, put_timeout: 1s, lease: 60s }}""")
    async with TcpProxy.to(minio.endpoint) as proxy:
        environ = {**minio.env, "AWS_ENDPOINT_URL": proxy.endpoint}
        async with BrokerProcess("-c", path, "--store", minio.new_url(), environ=environ) as hub:
            client = await connect(hub)
            await client.jetstream(timeout=30).add_stream(StreamConfig(name="S", subjects=["s"]))
            spoke, _ = await Raw.open(port)
            spoke.send(login(remote_account="R") + b"LS+ _INBOX.x.*\r\n")
            pong_first = False
            for _ in range(ROUNDS):
                proxy.stall()
                for number in range(COUNT):
                    spoke.send(b"LMSG s _INBOX.x.%d %d\r\n%b\r\n" % (number, len(BODY), BODY))
                spoke.send(b"PING\r\n")
                answers = [await answer(spoke)]
                while b'"err_code":10167' not in answers[-1]:
                    answers.append(await answer(spoke))
                assert b'"code":429,' in answers[-1]
                pong_first = b"PONG" in answers
                proxy.resume()
                answers += [await answer(spoke) for _ in range(COUNT + 1 - len(answers))]
                if pong_first:
                    break
            assert pong_first
            spoke.send(b"LMSG s _INBOX.x.end 1\r\ny\r\n")
            assert b'"stream":"S"' in await answer(spoke)
            assert hub.running
            spoke.close()
            await client.close()


async def answer(spoke: Raw) -> bytes:
    """Return the next answer: the body of a message, or PONG."""
    while True:
        line = await spoke.line()
        if line.startswith((b"LMSG", b"HMSG")):
            while not (line := await spoke.line()).startswith(b"{"):
                pass  # headers
            return line
        if line.startswith(b"PONG"):
            return b"PONG"
        assert line, "the connection ended"
