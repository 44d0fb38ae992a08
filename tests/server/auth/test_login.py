"""Login: bcrypt hashes that nats-server accepts, the log lines of a refusal, and slow checks, which delay no others."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, ClassVar

import bcrypt
import nats
import pytest

from broker.access.accounts import User
from broker.config.flags import read_flags
from broker.config.load import load
from broker.config.settings import AuthSettings
from broker.server.auth.authenticator import warnings
from broker.server.auth.login import Credentials, Decision, Login, Refusal
from broker.server.auth.passwords import BcryptCheck, PasswordCheck, PasswordChecks
from broker.server.auth.users import UserAuthenticator
from broker.server.connection.connect_options import go_quoted
from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess
from tests.server.in_process import LOGIN_SECONDS, running
from tests.server.raw_client import Wire

BOTH = pytest.mark.parametrize("process", [BrokerProcess, NatsServerProcess], ids=["jetblock", "nats-server"])


def hashed(password: bytes, cost: int = 4) -> str:
    return bcrypt.hashpw(password, bcrypt.gensalt(cost)).decode()


HASH = hashed(b"secret")
LONG = b"x" * 72

USERS = {
    **{letter: f"$2{letter}{HASH[3:]}" for letter in "abxyz"},
    "long": hashed(LONG), "nul": hashed(b"ab\0cd"), "empty": hashed(b""), "accent": hashed("é".encode()),
    "longer": HASH + "A", "shorter": HASH[:-1], "broken": "$2a$10$short", "cheap": "$2b$03" + HASH[6:],
    "dear": "$2b$99" + HASH[6:], "plain": "pp", "none": "",
}
"""Every form of hash, and strings that only resemble one."""

RIGHT = [
    ("a", "secret"), ("b", "secret"), ("x", "secret"), ("y", "secret"), ("z", USERS["z"]), ("long", "x" * 72),
    ("long", "x" * 73), ("long", "x" * 200), ("nul", "ab\0cd"), ("empty", ""), ("accent", "é"), ("longer", "secret"),
    ("plain", "pp"), ("none", ""),
]
WRONG = [
    ("a", HASH.replace("$2b", "$2a", 1)), ("b", HASH), ("b", "wrong"), ("b", ""), ("z", "secret"), ("long", "x" * 71),
    ("nul", "ab"), ("empty", "x"), ("shorter", "secret"), ("broken", "x"), ("broken", USERS["broken"]),
    ("cheap", "secret"), ("dear", "secret"), ("plain", "p"), ("none", "x"), ("nobody", "secret"),
    ('we"i\nrd\x7f é\u2028', "x"),
]


async def login(port: int, **fields: Any) -> bytes:
    """Return the server's answer to a CONNECT with these fields and a PING."""
    async with Wire(port) as wire:
        wire.send(b"CONNECT " + json.dumps({"verbose": False, **fields}).encode() + b"\r\nPING\r\n")
        return await wire.until(b"\r\n")


REFUSED = b"-ERR 'Authorization Violation'\r\n"


@pytest.mark.shows("auth.password")
@BOTH
async def test_bcrypt_users(process: type[ServerProcess], tmp_path: Path) -> None:
    """The password logs in and the hash does not; every refusal has its line, and none contains a secret."""
    config = tmp_path / "x.conf"
    rows = "\n".join(f"{{ user: {name}, password: {json.dumps(password)} }}" for name, password in USERS.items())
    config.write_text(f"authorization {{ timeout: {LOGIN_SECONDS}, users: [ {rows} ] }}")
    async with process("-c", str(config), monitor=False) as server:
        for user, password in RIGHT:
            assert await login(server.port, user=user, **{"pass": password}) == b"PONG\r\n", (user, password)
        for user, password in WRONG:
            assert await login(server.port, user=user, **{"pass": password}) == REFUSED, (user, password)
        for fields in ({"auth_token": "hush-hush"}, {}, {"nkey": "UABC", "sig": "hush-hush"}):
            assert await login(server.port, **fields) == REFUSED
        async with Wire(server.port) as wire:
            wire.send(b'CONNECT {"user":"plain","pass":"pp","name":"n","lang":"l","version":"1"}\r\nPING\r\n')
            await wire.until(b"PONG\r\n")
            wire.send(b'CONNECT {"user":"plain","pass":"hush-hush"}\r\n')
            assert await wire.end() == REFUSED
        await server.wait_line('"v1:l:n" - "[$]G/user:plain" - authentication error - User "plain"')
        lines = [line for line in server.stderr if "authentication error" in line]
        form = re.compile(r'\[\d+\] \S+ \S+ \[ERR\] 127\.0\.0\.1:\d+ - cid:\d+ - (?:"v1:l:n" - "\$G/user:plain" - )?'
                          r"authentication error(.*)\n")
        users = [f" - User {go_quoted(user)}" for user, _ in WRONG]
        assert [form.fullmatch(line)[1] for line in lines] == [  # type: ignore[index]
            *users, ' - Token "[REDACTED]"', "", ' - Nkey "UABC"', ' - User "plain"']
        assert any("[WRN] Plaintext passwords detected, use " in line for line in server.stderr)
        assert not [line for line in server.stderr if "hush-hush" in line or "$2" in line]


@pytest.mark.shows("auth.token")
@BOTH
async def test_bcrypt_token(process: type[ServerProcess], tmp_path: Path) -> None:
    """A token may be a hash, too, even unquoted in a file, where ``$`` begins a variable."""
    config = tmp_path / "x.conf"
    config.write_text(f"authorization {{ timeout: {LOGIN_SECONDS}, token: {HASH.replace('$2b', '$2a', 1)} }}")
    async with process("-c", str(config), monitor=False) as server:
        assert await login(server.port, auth_token="secret") == b"PONG\r\n"
        assert await login(server.port, auth_token=HASH.replace("$2b", "$2a", 1)) == REFUSED
        assert await login(server.port, user="u", **{"pass": "secret"}) == REFUSED


@pytest.mark.shows("auth.timeout")
@BOTH
async def test_authentication_timeout_is_logged(process: type[ServerProcess], tmp_path: Path) -> None:
    """A client that never identifies itself causes a debug line like nats-server's."""
    config = tmp_path / "x.conf"
    config.write_text("authorization { user: u, password: p, timeout: 0.1 }")
    async with process("-D", "-c", str(config), monitor=False) as server, Wire(server.port) as wire:
        assert await wire.end() == b"-ERR 'Authentication Timeout'\r\n"
        await server.wait_line(r"\[DBG\] 127\.0\.0\.1:\d+ - cid:\d+ - Authentication Timeout")


async def test_stock_client() -> None:
    """nats-py logs in with a password or token that is configured as a hash."""
    async with running(user="joe", password=HASH) as server:
        url = f"nats://127.0.0.1:{server.port}"
        await (await nats.connect(url, user="joe", password="secret")).close()
        with pytest.raises(nats.errors.Error, match="Authorization Violation"):
            await nats.connect(url, user="joe", password=HASH, allow_reconnect=False)
    async with running(token=HASH) as server:
        await (await nats.connect(f"nats://127.0.0.1:{server.port}", token="secret")).close()


def test_an_unknown_user_costs_what_a_known_one_does() -> None:
    """The comparison takes place, at the highest configured cost, and never succeeds."""
    dear = hashed(b"other", 5)
    asked: list[BcryptCheck] = []

    class Asked(PasswordChecks):
        def ask(self, check: BcryptCheck, waiter: Any, login: Login, address: str) -> None:
            asked.append(check)

    def decide(users: list[User], user: str, password: str) -> Decision | None:
        credentials = Credentials({"user": user, "pass": password}, Nowhere())
        return UserAuthenticator(users, Asked()).decide(credentials)

    users = [User("a", HASH), User("b", dear), User("c", "plain")]
    for user in ("nobody", "b"):
        decision = decide(users, user, "other")
        assert isinstance(decision, PasswordCheck)
        decision.begin(Never())
    assert asked == [BcryptCheck(dear, "other", known=False), BcryptCheck(dear, "other")]
    assert [check.run() for check in asked] == [False, True]
    assert decide(users, "c", "plain") == Login(user="c")
    assert decide([User("c", "plain")], "nobody", "plain") == Refusal()


def test_warnings_about_passwords() -> None:
    """Plaintext and malformed hashes cause warnings, which have the user's name and not the password."""
    found = warnings(AuthSettings(users=(User("a", HASH), User("b", HASH[:-1])), token="$2a$10$short"))
    assert found == ["Nobody can log in with the password of user 'b': it begins like a bcrypt hash and is none",
                    "Nobody can log in with the token: it begins like a bcrypt hash and is none"]
    assert warnings(AuthSettings(user="a", password="p")) == ["Plaintext passwords detected, use bcrypt"]
    assert warnings(AuthSettings(user="a", password=HASH)) == warnings(AuthSettings()) == []


def test_hash_from_every_source() -> None:
    """Flag, environment and file pass the hash unchanged."""
    assert load(read_flags(["--user", "u", "--pass", HASH]), {}).auth.password == HASH
    assert load(read_flags([]), {"JETBLOCK_USER": "u", "JETBLOCK_PASSWORD": HASH}).auth.password == HASH
    for text in (f'"{HASH}"', f"'{HASH}'"):
        found = load(read_flags(["-c", "x"]), {}, lambda _path, text=text: f"authorization {{ token: {text} }}")
        assert found.auth.token == HASH


async def test_text_that_is_no_utf8() -> None:
    """Half a surrogate pair, which JSON can escape, causes a refusal or U+FFFD as in Go; no connection hangs."""
    async with running(user="joe", password="p") as server:
        async with Wire(server.port) as wire:
            wire.send(b'CONNECT {"user":"joe","pass":"\\ud800"}\r\n')
            assert await wire.end() == REFUSED
        async with Wire(server.port) as wire:
            wire.send(b'CONNECT {"user":"joe","pass":"p","name":"a\\udfffb","verbose":false}\r\nPING\r\n')
            await wire.until(b"PONG\r\n")
            assert [row["name"] for row in server.connections()] == ["a\ufffdb"]


class Nowhere:
    """A connection without any properties."""

    ip = ""
    connection_type = "STANDARD"
    nonce = b""
    certificate = None


class Never:
    """A login that must not be called back."""

    def check_begun(self) -> None:
        raise AssertionError

    def check_done(self, decision: Login | Refusal) -> None:
        raise AssertionError


class Gated(BcryptCheck):
    """A check that lasts until ``gate`` opens."""

    gate: ClassVar[threading.Event]
    begun: ClassVar[list[str]]
    lock: ClassVar[threading.Lock] = threading.Lock()

    def run(self) -> bool:
        with self.lock:
            self.begun.append(self.given)
        self.gate.wait(20)
        return self.given.startswith("right")


@pytest.fixture(autouse=True)
def gate() -> Iterator[threading.Event]:
    Gated.gate, Gated.begun = threading.Event(), []
    yield Gated.gate
    Gated.gate.set()


class GatedLogin:
    """Admits clients that name no user; others must pass the gate."""

    wants_nonce = False

    def __init__(self, at_once: int | None = None) -> None:
        self.checks = PasswordChecks(at_once)

    def decide(self, credentials: Credentials) -> Decision:
        if not credentials.text("user"):
            return Login()
        return PasswordCheck(self.checks, Gated("", credentials.text("pass")), Login(user="u"),
                             credentials.connection.ip)


def say(password: str, more: bytes = b"PING\r\n") -> bytes:
    return b'CONNECT {"verbose":false,"user":"u","pass":"%s"}\r\n' % password.encode() + more


@pytest.mark.parametrize("more", [0, 100, 300_000], ids=["alone", "with the rest", "a large read"])
async def test_input_during_a_check_is_served_afterwards(gate: threading.Event, more: int) -> None:
    """Such input is served in order and after the decision, whether sent with CONNECT, after it, or in slices."""
    async with running(authenticators=[GatedLogin()]) as server, Wire(server.port) as wire, Wire(server.port) as other:
        other.send(b'CONNECT {"verbose":false}\r\nSUB > 1\r\n')
        await other.settled()
        publishes = b"".join(b"PUB a.%d 0\r\n\r\n" % i for i in range(more // 12))
        wire.send(say("right", publishes))
        await asyncio.sleep(0)
        wire.send(b"PUB last 0\r\n\r\nPING\r\n")
        for _ in range(20):
            assert b"MSG" not in await other.settled()
        gate.set()
        assert (await wire.until(b"PONG\r\n")).endswith(b"PONG\r\n")
        got = await other.until(b"MSG last 1 0\r\n\r\n")
        assert re.findall(rb"MSG a\.(\d+) ", got) == [b"%d" % i for i in range(more // 12)]


async def test_a_storm_of_logins_is_bounded(gate: threading.Event) -> None:
    """A few checks run at a time, in order of arrival; others are served meanwhile; equal logins share one check."""
    async with running(authenticators=[GatedLogin(at_once=2)]) as server:
        wires = []
        passwords = ["right0", *(f"right{i % 10}" for i in range(40)), "wrong"]
        for password in passwords:
            wire = await Wire(server.port).__aenter__()
            wires.append(wire)
            wire.send(say(password))
        async with Wire(server.port) as other:
            other.send(b'CONNECT {"verbose":false}\r\n')
            await other.settled()
            assert len(Gated.begun) <= 2
            gate.set()
            answers = [await wire.until(b"\r\n") for wire in wires]
        assert answers == [b"PONG\r\n"] * 41 + [REFUSED]
        assert sorted(set(Gated.begun)) == sorted(set(passwords))
        assert len(Gated.begun) == 11, "each password once"
        for wire in wires:
            wire.writer.close()


async def test_addresses_take_turns(gate: threading.Event) -> None:
    """Many wrong passwords from one address delay a login from another by one check; disconnected clients by none."""
    async with running(authenticators=[login := GatedLogin(at_once=1)]) as server, AsyncExitStack() as stack:
        def waiting() -> int:
            return len(login.checks._waiting)

        attackers = [await stack.enter_async_context(Wire(server.port, source="127.0.0.2")) for _ in range(30)]
        for i, wire in enumerate(attackers):
            wire.send(say(f"wrong{i}"))
        await until(lambda: waiting() == 29)
        leaver = await stack.enter_async_context(Wire(server.port, source="127.0.0.3"))
        leaver.send(say("wrong of a leaver"))
        await until(lambda: waiting() == 30)
        others = [await stack.enter_async_context(Wire(server.port)) for _ in range(2)]
        for i, wire in enumerate(others):
            wire.send(say(f"right{i}"))
            await until(lambda i=i: waiting() == 31 + i)
        joining = await stack.enter_async_context(Wire(server.port, source="127.0.0.2"))
        joining.send(say("right1"))
        leaver.writer.close()
        await until(lambda: waiting() == 31)
        begun = next(name for name in Gated.begun)
        gate.set()
        assert [await wire.until(b"\r\n") for wire in (*others, joining)] == [b"PONG\r\n"] * 3
        assert [await wire.until(b"\r\n") for wire in attackers] == [REFUSED] * 30
        order = ["right" if name.startswith("right") else "wrong" for name in Gated.begun]
        assert begun.startswith("wrong")
        assert order == ["wrong", "wrong", "right", "wrong", "right", *["wrong"] * 27]


async def test_checks_of_disconnected_clients_are_dropped(gate: threading.Event) -> None:
    """A client that disconnects while queued costs nothing; one that disconnects during its check affects no other."""
    login = GatedLogin(at_once=1)
    async with running(authenticators=[login]) as server:
        async with Wire(server.port) as first, Wire(server.port) as last:
            first.send(say("right1"))
            await until(lambda: Gated.begun == ["right1"])
            async with Wire(server.port) as leaver:
                leaver.send(say("right2"))
                await until(lambda: BcryptCheck("", "right2") in login.checks._waiting)
            await until(lambda: len(server.clients) == 2)
            last.send(say("right3"))
            first.writer.close()
            await until(lambda: len(server.clients) == 1)
            gate.set()
            assert await last.until(b"\r\n") == b"PONG\r\n"
        assert Gated.begun == ["right1", "right3"]


async def test_the_timeout_includes_the_wait_for_a_check(gate: threading.Event) -> None:
    """The timeout counts while a check waits, but not while it runs, however long that takes."""
    for seconds in (0.05, 0.5, 5.0):  # a busy machine may need longer than that until the first one's check begins
        async with (running(authenticators=[GatedLogin(at_once=1)], timeout_ns=int(seconds * 1e9)) as server,
                    Wire(server.port) as first, Wire(server.port) as second):
            first.send(say("right1"))
            await until(lambda server=server: Gated.begun or len(server.clients) < 2)  # type: ignore[misc]
            if not Gated.begun:
                continue
            second.send(say("right2"))
            assert await second.end() == b"-ERR 'Authentication Timeout'\r\n"
            gate.set()
            assert await first.until(b"\r\n") == b"PONG\r\n"
            break
    assert Gated.begun == ["right1"]


async def until(condition: Any) -> None:
    """Wait for a condition that this loop or one of its threads makes true."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 (threads change it, too)
            await asyncio.sleep(0.001)
