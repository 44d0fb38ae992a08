"""``jetblock --workers 1`` while its processes die: acknowledged messages stay, and clients only wait."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import sys
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client

from tests.certificates import Authority
from tests.front.fronted import FrontedProcess, until
from tests.harness import ROOT, BrokerProcess, ServerFailed, fetch

pytestmark = [pytest.mark.asyncio, pytest.mark.shows("cluster.workers_restarts")]


async def connect(url: str) -> Client:
    """Connect a client that reconnects without an end, and expects lost connections."""
    async def quiet(_: Exception) -> None:
        """Ignore the error."""

    return await nats.connect(url, max_reconnect_attempts=-1, reconnect_time_wait=0.05, error_cb=quiet)


async def test_kills_under_load(tmp_path: Path) -> None:
    """Worker and nats-server are killed while a client publishes; each acknowledged message is stored once."""
    async with FrontedProcess("-js", "-sd", str(tmp_path)) as process:
        client = await connect(process.url)
        js = client.jetstream(timeout=2)
        await js.add_stream(name="LOAD", subjects=["load"])
        acked: list[bytes] = []
        enough = asyncio.Event()

        async def publish() -> None:
            number = 0
            while not enough.is_set() or len(acked) < 100:
                payload = b"%d" % number
                while True:
                    try:
                        await js.publish("load", payload, headers={"Nats-Msg-Id": payload.decode()})
                        break
                    except (nats.errors.Error, TimeoutError):
                        await asyncio.sleep(0.02)
                acked.append(payload)
                number += 1

        async def is_publishing() -> bool:
            return len(acked) > before

        publisher = asyncio.create_task(publish())
        for name in ("worker 1", "nats-server", "worker 1"):
            before = len(acked) + 20
            await until(is_publishing)
            await process.kill_child(name)
        before = len(acked) + 20
        await until(is_publishing)
        enough.set()
        await publisher
        info = await js.stream_info("LOAD")
        assert info.state.messages == len(acked)
        stored = await js.subscribe("load", ordered_consumer=True)
        assert [(await stored.next_msg(30)).data for _ in acked] == acked
        await client.close()


async def test_nothing_else_may_join(tmp_path: Path) -> None:
    """The configurations are readable by this user alone; the worker's ports want the secret."""
    async with FrontedProcess("-js", "-sd", str(tmp_path), environ={"TMPDIR": str(tmp_path)}) as process:
        [folder] = folders(tmp_path)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
        lines = "".join(process.stderr)
        [port] = {line.rpartition(":")[2].strip() for line in process.stderr
                  if "Listening for leafnode connections" in line}
        reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
        await reader.readline()
        writer.write(b'CONNECT {"name":"x","user":"0","pass":"guess","version":"2.15.1"}\r\nPING\r\n')
        assert b"Authorization Violation" in await reader.read()
        writer.close()
        [pages] = {line.rpartition(":")[2].strip() for line in process.stderr if "[worker 1] Starting http" in line}
        assert (await fetch(f"http://127.0.0.1:{pages}/varz"))[0] == 401
        [pages] = {line.rpartition(":")[2].strip() for line in process.stderr
                   if "[nats-server] Starting http" in line}
        assert (await fetch(f"http://127.0.0.1:{pages}/varz"))[0] == 404
        assert "nats-leaf://" not in lines
    assert not folders(tmp_path)


def folders(tmp_path: Path) -> list[Path]:
    """Return the temporary folders of supervisors."""
    return list(tmp_path.glob("jetblock-*"))


@pytest.mark.soak
async def test_children_end_with_their_supervisor(tmp_path: Path) -> None:
    """SIGKILL of the supervisor leaves no process. The same command starts again on the store and the port, also while
    the processes before it are still ending."""
    async with FrontedProcess("-js", "-sd", str(tmp_path), workers=2) as process:
        client = await connect(process.url)
        for shard in range(2):
            await client.jetstream(timeout=10).add_stream(name=f"S{shard}", subjects=[f"s{shard}"],
                                                          metadata={"jetblock.shard": str(shard)})
            await client.jetstream(timeout=10).publish(f"s{shard}", b"1")
        await client.close()
        children = [process.child(name) for name in ("nats-server", "worker 1", "worker 2")]
        await process.restart()

        async def are_gone() -> bool:
            return not any(_runs(pid) for pid in children)

        await until(are_gone)
        client = await connect(process.url)
        for shard in range(2):
            assert (await client.jetstream(timeout=10).stream_info(f"S{shard}")).state.messages == 1
        await client.close()


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.soak
async def test_a_standby_serves_no_clients(tmp_path: Path) -> None:
    """A second server on the store has no client port until the first has ended; then it serves the streams."""
    flags = ("-js", "-sd", str(tmp_path))
    async with FrontedProcess(*flags, "-n", "one") as one:
        client = await connect(one.url)
        await client.jetstream().add_stream(name="S", subjects=["s"])
        await client.jetstream().publish("s", b"1")
        await client.close()
        two = FrontedProcess(*flags, "-n", "two")
        try:
            await two.start(ready=False)
            await two.wait_line("standby: another")
            with pytest.raises(OSError):
                await asyncio.open_connection("127.0.0.1", two.port)
            await one.stop()
            await two.wait_ready()
            client = await connect(two.url)
            assert (await client.jetstream().stream_info("S")).state.messages == 1
            await client.close()
        finally:
            await two.close()


@pytest.mark.soak
async def test_lame_duck(tmp_path: Path) -> None:
    """SIGUSR2 lets nats-server end when it has no clients left, and then the others, with status 0."""
    async with FrontedProcess("-js", "-sd", str(tmp_path)) as process:
        process.send_signal(signal.SIGUSR2)
        assert await process.wait_end() == 0
        assert "Entering lame duck mode" in process.tail()


@pytest.mark.soak
@pytest.mark.parametrize(("flags", "error"), [
    (("--workers", "1", "--nats_server_path", "/nowhere/nats-server"), "cannot run /nowhere/nats-server"),
    (("--workers", "1", "--nats_server_path", "/bin/true"), "/bin/true is no nats-server"),
])
async def test_starts_that_fail(tmp_path: Path, flags: tuple[str, ...], error: str) -> None:
    """A start that cannot succeed ends with status 1 and says what to do."""
    process = BrokerProcess(*flags, "-js", "-sd", str(tmp_path))
    with pytest.raises(ServerFailed):
        await process.start()
    assert process.returncode == 1
    assert error in process.tail()
    await process.close()


@pytest.mark.soak
async def test_a_port_in_use(tmp_path: Path) -> None:
    """A port that another process has ends the start with one line of the log that names it."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        process = FrontedProcess("-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(tmp_path), listen=False)
        with pytest.raises(ServerFailed):
            await process.start()
        assert process.returncode == 1
        [line] = [line for line in process.stderr if "address already in use" in line]
        assert f"[FTL] Error listening on port: 127.0.0.1:{port}" in line
        await process.close()


@pytest.mark.soak
async def test_the_check_of_a_configuration(tmp_path: Path) -> None:
    """``-t`` lets nats-server check the blocks that are its own."""
    config = tmp_path / "c.conf"
    for text, error in (("mqtt { port: 1883 }\nserver_name: m", ""), ("mqtt { prot: 1883 }", 'unknown field "prot"'),
                        ("cluster { port: -1 }\njetblock { stor: x }", 'unknown field "stor"')):
        config.write_text(text)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "broker", "-t", "--workers", "1", "-c", str(config), cwd=ROOT,
            stderr=asyncio.subprocess.PIPE)
        _, said = await process.communicate()
        assert (error or "is valid") in said.decode()
        assert process.returncode == bool(error)


@pytest.mark.soak
async def test_reloads(tmp_path: Path) -> None:
    """SIGHUP, and ``--signal reload``, change users, permissions and certificates at nats-server, and limits at all
    workers; a file that nats-server refuses has no effect; accounts with JetStream may be added."""
    authority = Authority(tmp_path)
    files = authority.server()
    config = tmp_path / "c.conf"
    text = ('accounts {{ A {{ jetstream {{ max_streams: {streams} }}, users: [ {{ user: a, password: {password} }}, '
            '{{ user: p, password: p, permissions {{ publish: "{allowed}" }} }} ] }}\n{more} }}\n'
            'tls {{ cert_file: "{cert}", key_file: "{key}" }}\n{end}')

    def write(streams: int = 2, password: str = "new", allowed: str = "new", more: str = "", end: str = "") -> None:
        config.write_text(text.format(streams=streams, password=password, allowed=allowed, more=more, end=end,
                                      cert=files.cert, key=files.key))

    async def reload(pattern: str) -> None:
        process.stderr.clear()
        process.send_signal(signal.SIGHUP)
        await process.wait_line(pattern)

    async def login(user: str, password: str) -> Client:
        return await nats.connect(process.url.replace("nats://", "tls://"), user=user, password=password,
                                  tls=authority.trust(), allow_reconnect=False, max_reconnect_attempts=1)

    async def add(client: Client, name: str, shard: int) -> None:
        await client.jetstream(timeout=10).add_stream(name=name, subjects=[name],
                                                      metadata={"jetblock.shard": str(shard)})

    async def certificate() -> bytes | None:
        reader, writer = await asyncio.open_connection("127.0.0.1", process.port)
        await reader.readline()
        await writer.start_tls(authority.trust(), server_hostname="127.0.0.1")
        shown: bytes | None = writer.get_extra_info("ssl_object").getpeercert(True)
        writer.close()
        return shown

    done = r"^\[\d+\] \S+ \S+ \[INF\] Reloaded server configuration"
    write(streams=1, password="old", allowed="old")
    async with FrontedProcess("-c", str(config), "-js", "-sd", str(tmp_path / "js"), workers=2) as process:
        client = await login("a", "old")
        await add(client, "ONE", 0)
        with pytest.raises(nats.js.errors.Error, match="maximum number of streams"):
            await add(client, "TWO", 1)
        await client.close()
        assert await certificate() == files.der
        write()
        files = authority.server()
        process.stderr.clear()
        signaller = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "broker", "--signal", f"reload={process.pid}", cwd=ROOT)
        assert await signaller.wait() == 0
        await process.wait_line(done)
        assert await certificate() == files.der
        client, limited = await login("a", "new"), await login("p", "p")
        await add(client, "TWO", 1)
        for name in ("THREE", "FOUR"):
            with pytest.raises(nats.js.errors.Error, match="maximum number of streams"):
                await add(client, name, 1)
        got = await client.subscribe("new")
        for _ in range(2):  # nats-py's first PING may overtake the line that subscribes
            await client.flush()
        await limited.publish("new")
        assert (await got.next_msg(10)).subject == "new"
        await client.close()
        await limited.close()
        write(password="newer", end="max_control_line: nonsense")
        await reload("Failed to reload server configuration: .*max_control_line")
        write(password="newer", end='cluster { port: "x" }')
        await reload("Failed to reload server configuration: ")
        await (await login("a", "new")).close()
        write(more="B { jetstream: enabled, users: [ { user: b, password: b } ] }")
        await reload(done)
        client = await login("b", "b")
        await add(client, "B", 1)
        await client.close()
