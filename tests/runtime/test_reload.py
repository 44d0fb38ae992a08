"""A reload by SIGHUP has the same effects on live connections as on the real server."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import bcrypt
import nats
import pytest

from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess
from tests.tokens import LOGIN

pytestmark = pytest.mark.shows("operation.reload")

BOTH = pytest.mark.parametrize("process", [BrokerProcess, NatsServerProcess], ids=["jetblock", "nats-server"])
RELOADED = r"\[INF\] Reloaded server configuration"


class Line:
    """A client that sends and reads protocol lines itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def login(cls, broker: ServerProcess, user: str = "", password: str = "p") -> Line:
        host, _, port = broker.url.removeprefix("nats://").rpartition(":")
        line = cls(*await asyncio.open_connection(host, int(port)))
        assert (await line.read()).startswith("INFO ")
        fields = {"verbose": False, "user": user, "pass": password} if user else {"verbose": False}
        await line.send(f"CONNECT {json.dumps(fields)}", "PING")
        assert await line.read() == "PONG"
        return line

    async def send(self, *lines: str) -> None:
        self._writer.write("".join(f"{line}\r\n" for line in lines).encode())
        await self._writer.drain()

    async def read(self) -> str:
        """Return the next line except PINGs; "" at the end of the connection."""
        async with asyncio.timeout(30):
            try:
                while (line := await self._reader.readline()) == b"PING\r\n":
                    pass
                return line.decode().rstrip("\r\n")
            except ConnectionResetError:
                return ""

    async def ask(self, *lines: str) -> list[str]:
        """Send lines and a PING; return the lines that come before its PONG."""
        await self.send(*lines, "PING")
        answers = []
        while (line := await self.read()) not in ("PONG", ""):
            answers.append(line)
        return answers if line else [*answers, ""]

    async def rest(self) -> list[str]:
        """Return all lines up to the end of the connection."""
        lines = []
        while line := await self.read():
            lines.append(line)
        return lines


class Reloading:
    """A broker, and its configuration file, which the test can change."""

    def __init__(self, broker: ServerProcess, path: Path) -> None:
        self.broker = broker
        self._path = path

    async def change(self, text: str, until: str = RELOADED) -> None:
        """Replace the file, let the broker reload it, and wait for a log line."""
        self._path.write_text(text)
        self.broker.stderr.clear()
        self.broker.send_signal(signal.SIGHUP)
        await self.broker.wait_line(until)


@asynccontextmanager
async def serving(process: type[ServerProcess], tmp_path: Path, text: str, *flags: str,
                  listen: bool = True) -> AsyncIterator[Reloading]:
    path = tmp_path / "x.conf"
    path.write_text(text)
    async with process("-c", str(path), *flags, listen=listen) as broker:
        yield Reloading(broker, path)


@BOTH
async def test_users(process: type[ServerProcess], tmp_path: Path) -> None:
    """A removed user is closed without an error, a user with a changed password with one; others stay; new ones log
    in."""
    hashed = {word: bcrypt.hashpw(word.encode(), bcrypt.gensalt(4)).decode() for word in ("p", "q")}
    before = (f"authorization {{ timeout: 60, users [ {{user: stays, password: p}}, {{user: goes, password: p}}, "
              f"{{user: changes, password: p}}, {{user: hashed, password: '{hashed['p']}'}}, "
              f"{{user: rehashed, password: '{hashed['p']}'}} ] }}")
    after = (f"authorization {{ timeout: 60, users [ {{user: stays, password: p}}, {{user: comes, password: p}}, "
             f"{{user: changes, password: q}}, {{user: hashed, password: '{hashed['p']}'}}, "
             f"{{user: rehashed, password: '{hashed['q']}'}} ] }}")
    async with serving(process, tmp_path, before) as server:
        names = ("stays", "goes", "changes", "hashed", "rehashed")
        clients = {name: await Line.login(server.broker, name) for name in names}
        await server.change(after)
        assert await clients["goes"].rest() == []
        for name in ("changes", "rehashed"):
            assert await clients[name].rest() == ["-ERR 'Authorization Violation'"], name
        for name in ("stays", "hashed"):
            assert await clients[name].ask() == [], name
        assert await (await Line.login(server.broker, "comes")).ask() == []
        assert await (await Line.login(server.broker, "changes", "q")).ask() == []


@BOTH
async def test_permissions(process: type[ServerProcess], tmp_path: Path) -> None:
    """Subscriptions that are no longer permitted end with an -ERR each; the others continue under the new rules."""
    def text(permissions: str) -> str:
        return (f"authorization {{ timeout: 60, users [ {{user: a, password: p, permissions {permissions}}}, "
                f"{{user: b, password: p}} ] }}")

    async with serving(process, tmp_path, text("{ publish: '>', subscribe: '>' }")) as server:
        a, b = await Line.login(server.broker, "a"), await Line.login(server.broker, "b")
        assert await a.ask("SUB gone 1", "SUB kept.> 2", "SUB gone q 3", "SUB kept.limited 4", "UNSUB 4 2") == []
        assert await b.ask("PUB kept.limited 1", "1") == []
        assert sorted([await a.read(), await a.read(), await a.read(), await a.read()]) == [
            "1", "1", "MSG kept.limited 2 1", "MSG kept.limited 4 1"]
        await server.change(text("{ publish { deny: never }, subscribe { allow: 'kept.>', deny: 'kept.no' } }"))
        assert sorted([await a.read(), await a.read()]) == [
            """-ERR 'Permissions Violation for Subscription to "gone" (sid "1")'""",
            """-ERR 'Permissions Violation for Subscription to "gone" using queue "q" (sid "3")'"""]
        assert await b.ask("PUB gone 1", "x", "PUB kept.no 1", "x", "PUB kept.yes 1", "x", "PUB kept.limited 1",
                           "2") == []
        assert sorted([line for line in await a.ask() if line.startswith("MSG")]) == [
            "MSG kept.limited 2 1", "MSG kept.limited 4 1", "MSG kept.yes 2 1"]
        assert await b.ask("PUB kept.limited 1", "3") == []
        assert await a.ask() == ["MSG kept.limited 2 1", "3"]
        assert await a.ask("PUB never 1", "x") == ["""-ERR 'Permissions Violation for Publish to "never"'"""]
        await server.change(text("{ publish: '>', subscribe: '>' }"))
        assert await a.ask("SUB gone 5", "PUB never 1", "x") == []
        assert await b.ask("PUB kept.no 1", "x") == []
        assert await a.ask() == ["MSG kept.no 2 1", "x"]


@BOTH
async def test_accounts(process: type[ServerProcess], tmp_path: Path) -> None:
    """A user who has moved to another account is closed and reconnects there; JetStream follows all changes of
    accounts."""
    def user(name: str) -> str:
        return f"users [ {{user: {name}, password: p}} ]"

    async with serving(process, tmp_path,
                       f"{LOGIN}\naccounts {{ A {{ users [ {{user: a, password: p}}, {{user: moves, password: p}} ], "
                       f"jetstream {{ max_streams: 1 }} }}, B {{ {user('b')} }}, C {{ {user('c')} }} }}",
                       "-js", "-sd", str(tmp_path / "store")) as server:
        broker = server.broker
        clients = {name: await Line.login(broker, name) for name in ("a", "moves", "b", "c")}
        at_a = await nats.connect(broker.url, user="a", password="p")
        js = at_a.jetstream()
        await js.add_stream(name="ONE", subjects=["one"])
        assert await clients["b"].ask("SUB x 1") == []
        await server.change(f"{LOGIN}\naccounts {{ A {{ {user('a')}, jetstream {{ max_streams: 2 }} }}, "
                            f"B {{ users [ {{user: b, password: p}}, {{user: moves, password: p}} ], jetstream: "
                            f"enabled }}, "
                            f"D {{ {user('d')}, jetstream: enabled }} }}")
        assert await clients["moves"].rest() == []
        assert await clients["c"].rest() == []
        assert await clients["a"].ask() == []
        moved = await Line.login(broker, "moves")
        assert await moved.ask("PUB x 1", "1") == []
        assert await clients["b"].ask() == ["MSG x 1 1", "1"]
        await js.add_stream(name="TWO", subjects=["two"])
        assert (await js.stream_info("ONE")).config.subjects == ["one"]
        for name in ("b", "d"):
            other = await nats.connect(broker.url, user=name, password="p")
            await other.jetstream().add_stream(name="ONE", subjects=["one"])
            assert (await other.jetstream().account_info()).streams == 1
            await other.close()
        await at_a.close()


@BOTH
async def test_limits(process: type[ServerProcess], tmp_path: Path) -> None:
    """A smaller max_payload applies to connected clients; a smaller max_connections closes some of them."""
    async with serving(process, tmp_path, "max_payload: 1000\nmax_connections: 10") as server:
        clients = [await Line.login(server.broker) for _ in range(3)]
        assert await clients[0].ask("PUB x 11", "12345678901") == []
        await server.change("max_payload: 10\nmax_connections: 10")
        await clients[0].send("PUB x 11", "12345678901")
        assert await clients[0].rest() == ["-ERR 'Maximum Payload Violation'"]
        await server.change("max_payload: 10\nmax_connections: 1")
        answers = sorted([await client.ask() for client in clients[1:]])
        assert answers == [[], ["-ERR 'maximum connections exceeded'", ""]]


@BOTH
async def test_subscriptions_of_an_account(process: type[ServerProcess], tmp_path: Path) -> None:
    """A client that could not add one under the new limit is closed, also one that has exactly as many, or none."""
    def text(most: int) -> str:
        return f"accounts {{ A {{ users: [ {{user: a, password: p}} ], limits: {{ max_subscriptions: {most} }} }} }}"

    async with serving(process, tmp_path, text(10)) as server:
        clients = [await Line.login(server.broker, "a") for _ in range(5)]
        for count, client in enumerate(clients):
            assert await client.ask(*(f"SUB x {sid}" for sid in range(count))) == []
        exceeded = "-ERR 'maximum subscriptions exceeded'"
        await server.change(text(3))
        for client in clients[3:]:
            assert await client.rest() == [exceeded]
        assert await clients[2].ask("SUB x 2", "SUB x 3") == [exceeded]
        await server.change(text(0))
        for client in clients[:3]:
            assert await client.rest() == [exceeded]


@BOTH
async def test_clients_without_credentials(process: type[ServerProcess], tmp_path: Path) -> None:
    """Clients without credentials keep their user: a new password of that user closes them, another user's does not."""
    def text(a: str, b: str) -> str:
        return (f"accounts {{ A {{ users: [ {{user: a, password: {a}}} ] }}, B {{ users: [ {{user: b, password: {b}}} "
                f"] }} }}\n"
                "no_auth_user: a")

    async with serving(process, tmp_path, text("p", "p")) as server:
        client = await Line.login(server.broker)
        await server.change(text("p", "q"))
        assert await client.ask() == []
        await server.change(text("q", "q"))
        assert await client.rest() == ["-ERR 'Authorization Violation'"]
        assert await (await Line.login(server.broker)).ask() == []


@BOTH
async def test_connections_of_an_account(process: type[ServerProcess], tmp_path: Path) -> None:
    """If an account has more connections than its new limit, the surplus is closed; other accounts keep theirs."""
    def text(most: int) -> str:
        return (f"{LOGIN}\naccounts {{ A {{ users [ {{user: a, password: p}} ], limits {{ max_conn: {most} }} }}, "
                f"B {{ users [ {{user: b, password: p}} ], limits {{ max_conn: 1 }} }} }}")

    async with serving(process, tmp_path, text(5)) as server:
        clients = [await Line.login(server.broker, "a") for _ in range(4)]
        other = await Line.login(server.broker, "b")
        await server.change(text(2))
        refused = ["-ERR 'maximum account active connections exceeded'", ""]
        assert sorted([await client.ask() for client in clients]) == [[], [], refused, refused]
        assert await other.ask() == []
        await server.change(text(3))
        assert await (await Line.login(server.broker, "a")).ask() == []


@BOTH
async def test_logging(process: type[ServerProcess], tmp_path: Path) -> None:
    """A reload turns debug and trace lines on, and moves the log to a file."""
    async with serving(process, tmp_path, "debug: false") as server:
        client = await Line.login(server.broker)
        await server.change("debug: true\ntrace: true")
        assert await client.ask("SUB traced 1") == []
        await server.broker.wait_line(r"\[TRC\] .*<<- \[SUB traced 1\]")
        path = tmp_path / "x.log"
        server.broker.stderr.clear()
        (tmp_path / "x.conf").write_text(f"log_file: '{path}'")
        server.broker.send_signal(signal.SIGHUP)
        async with asyncio.timeout(30):
            loaded = "Reloaded server configuration"
            while not path.exists() or loaded not in path.read_text():  # noqa: ASYNC110 (a file)
                await asyncio.sleep(0.01)


CANNOT = [
    ("port: 1", "config reload not supported for port"),
    ("host: 127.0.0.2", "config reload not supported for host"),
    ("server_name: other", "config reload not supported for server_name"),
    ("max_pending: 32MB", "config reload not supported for max_pending"),
    ("http_base_path: /x", "config reload not supported for http_base_path"),
    ("system_account: A", "config reload not supported for system_account"),
    ("jetblock { cache_bytes: 1MB }", "config reload not supported for jetblock.cache_bytes"),
    ("nonsense: 1", "unknown field \"nonsense\""),
    ("port: [", "Parse error on line 2"),
]


async def test_what_cannot_change(tmp_path: Path) -> None:
    """A setting that needs a restart is an error with its key, and no other setting changes."""
    def text(user: str) -> str:
        return f"{LOGIN}, listen: '127.0.0.1:-1', accounts {{ A {{ users [ {{user: {user}, password: p}} ] }} }}\n"

    async with serving(BrokerProcess, tmp_path, text("a"), listen=False) as server:
        client = await Line.login(server.broker, "a")
        for more, why in CANNOT:
            await server.change(text("b") + more, r"\[ERR\] Failed to reload server configuration: .*")
            assert any(why in line for line in server.broker.stderr), list(server.broker.stderr)
            assert not any("Reloaded" in line for line in server.broker.stderr)
            assert await client.ask() == []
        await server.change(text("a") + "max_payload: 10")
        assert any("Reloaded: max_payload = 10" in line for line in server.broker.stderr)


@pytest.mark.shows("operation.flags_win")
@BOTH
async def test_flags_stay(process: type[ServerProcess], tmp_path: Path) -> None:
    """Flags override the reloaded file."""
    async with serving(process, tmp_path, "max_payload: 100", "--user", "u", "--pass", "p") as server:
        await server.change("max_payload: 10\nauthorization { user: other, password: other }")
        client = await Line.login(server.broker, "u")
        await client.send("PUB x 11", "12345678901")
        assert await client.rest() == ["-ERR 'Maximum Payload Violation'"]


@BOTH
async def test_signal_by_the_command(process: type[ServerProcess], tmp_path: Path) -> None:
    """``--signal reload=PID`` is SIGHUP."""
    async with serving(process, tmp_path, "max_payload: 100") as server:
        (tmp_path / "x.conf").write_text("max_payload: 10")
        done = await asyncio.create_subprocess_exec(*process.command, "--signal", f"reload={server.broker.pid}")
        assert await done.wait() == 0
        await server.broker.wait_line("Reloaded: max_payload = 10")
