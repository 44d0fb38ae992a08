"""Trace lines: the log of a dialogue with ``-V``, compared with the real server; secrets and control characters are
left out."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess

DIALOGUE = (b'CONNECT {"verbose":false,"pass":"hunter2","lang":"py","version":"1","name":"me",'
            b'"headers":true}\r\nPING\r\nSUB foo 1\r\nSUB foo q 2\r\nPUB foo r 5\r\nhello\r\n'
            b"HPUB foo 12 14\r\nNATS/1.0\r\n\r\nab\r\nUNSUB 1\r\nUNSUB 2 5\r\nPUB nope 0\r\n\r\n"
            b"SUB bad..x 3\r\nPING\r\n")


async def traced(process: type[ServerProcess], *flags: str, say: bytes = DIALOGUE) -> list[str]:
    """Return what both sides sent, as the trace shows it, up to the PONG for the last PING."""
    async with process("-V", *flags) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(say)
        async with asyncio.timeout(30):
            for _ in range(say.count(b"PING\r\n")):
                await reader.readuntil(b"PONG\r\n")
        writer.close()
        await server.stop()
        lines = [found[1] for line in server.stderr if (found := re.search(r"\[TRC\] .* - ([-<>]{3} .*)\n", line))]
        assert "hunter2" not in server.tail()
        # A server's own PING comes two seconds after CONNECT, which is before the end on a busy machine.
        return [line for line in lines if not line.startswith("->> [PING")]


@pytest.mark.shows("operation.trace_log")
async def test_same_lines_as_the_real_server() -> None:
    """Both servers log the same lines; ours log all operations of a read before their results."""
    ours, theirs = await traced(BrokerProcess), await traced(NatsServerProcess)
    def kept(lines: list[str], way: str) -> list[str]:
        return sorted(line for line in lines if line.startswith(way))
    assert kept(ours, "<<-") == kept(theirs, "<<-")
    assert kept(ours, "->>") == [line.replace("-ERR Invalid Subject", "-ERR 'Invalid Subject'")
                                 for line in kept(theirs, "->>")]
    assert "<<- [SUB foo 1]" in ours
    assert any("CONNECT" in line and "[REDACTED]" in line for line in ours)


@pytest.mark.shows("operation.trace_log")
async def test_payloads_are_cut_and_one_line_each() -> None:
    """``--max_traced_msg_len`` cuts payloads; line ends and escapes in a payload make no lines of their own."""
    payload = b"[INF] a\r\n\x1b[31mfaked line"
    say = b'CONNECT {"pass":"hunter\\"2","auth_token":"hunter2"}\r\nPUB foo %d\r\n%s\r\nPING\r\n' % (
        len(payload), payload)
    lines = await traced(BrokerProcess, "--max_traced_msg_len", "12", say=say)
    assert r'<<- MSG_PAYLOAD: ["[INF] a\r\n\x1b[3..."]' in lines
    assert '<<- [CONNECT {"pass":"[REDACTED]","auth_token":"[REDACTED]"}]' in lines


@pytest.mark.shows("operation.trace_log")
async def test_headers_in_place_of_payloads(tmp_path: Path) -> None:
    """The lines with ``trace_headers``, also with a bound, are those of the real server."""
    for more in ("", "max_traced_msg_len: 20"):
        config = tmp_path / "trace.conf"
        config.write_text(f"trace_headers: true\n{more}")
        header = b"NATS/1.0\r\nA: b\r\nLonger-Name: value\r\n\r\n"
        say = (b'CONNECT {"verbose":false,"headers":true}\r\nSUB foo 1\r\nPUB foo 5\r\nhello\r\n'
               b"HPUB foo 12 14\r\nNATS/1.0\r\n\r\nab\r\n"
               b"HPUB foo %d %d\r\n%bbody\r\nPING\r\n" % (len(header), len(header) + 4, header))
        ours, theirs = [[line for line in await traced(server, "-c", str(config), say=say) if "PAYLOAD" in line]
                        for server in (BrokerProcess, NatsServerProcess)]
        assert sorted(ours) == sorted(theirs)
        assert len(ours) == 4


@pytest.mark.shows("auth.redaction")
async def test_secrets_are_found_however_they_are_spelled() -> None:
    """Names may have any case and escapes, which the server accepts; undecodable input is not shown at all."""
    for connect in (b'{"PASS":"hunter2","Auth_Token":"hunter2"}', b'{"p\\u0061ss":"hunter2"}', b'{"pass":["hunter2"]}',
                    b'{"pass":"a","pass":"hunter2","Sig":"hunter2"}', b'{"pass":"hunter2', b'"hunter2"'):
        async with BrokerProcess("-V") as server:
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"CONNECT " + connect + b"\r\n\r\n")
            await server.wait_line(r"<<- \[CONNECT ")
            writer.close()
            await server.stop()
            assert "hunter2" not in server.tail(1000), connect


@pytest.mark.parametrize("flags", [(), ("-D",)])
async def test_no_trace_by_default(flags: tuple[str, ...]) -> None:
    """There is no trace by default, and none with ``-D``."""
    async with BrokerProcess(*flags) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"CONNECT {}\r\nSUB foo 1\r\nPING\r\n")
        await reader.readuntil(b"PONG\r\n")
        writer.close()
        await server.stop()
        assert "[TRC]" not in server.tail(1000)
