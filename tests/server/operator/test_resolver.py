"""Sources of account tokens: directories with their limits, and account servers that answer, fail or hang."""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from broker.base.nkeys import ACCOUNT
from broker.config.operator import ResolverSettings
from broker.config.settings import OperatorSettings, ResolverTlsSettings
from broker.server.operator.resolver import DirectoryResolver, ResolverError, UrlResolver, make_resolver
from tests import tokens
from tests.certificates import Authority
from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess
from tests.keys import key
from tests.server.operator.clients import BOTH, connected, write
from tests.server.raw_client import Wire

pytestmark = pytest.mark.shows("auth.resolvers")

NAMES = [key(ACCOUNT, name).public for name in "ABC"]
TOKENS = {key(ACCOUNT, name).public: tokens.account(name) for name in ("A", "SYS")}


class Accounts(BaseHTTPRequestHandler):
    """An account server."""

    gate = threading.Event()
    credentials: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.credentials.append(self.headers["Authorization"])
        name = self.path.removeprefix("/jwt/v1/accounts/")
        if name == NAMES[2]:
            self.gate.wait(20)
        self.send_response(200 if name in TOKENS or not name else 404)
        self.end_headers()
        self.wfile.write(TOKENS.get(name, "").encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


class AccountServer(ThreadingHTTPServer):
    """Runs ``Accounts``; a client that disconnects before its answer is no error."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@pytest.fixture
def account_server() -> Iterator[str]:
    Accounts.gate.clear()
    Accounts.credentials.clear()
    with AccountServer(("127.0.0.1", 0), Accounts) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/jwt/v1/accounts/"
        Accounts.gate.set()
        server.shutdown()


@BOTH
async def test_an_account_server(process: type[ServerProcess], account_server: str, tmp_path: Path) -> None:
    """Users of accounts that it knows are admitted; a slow answer refuses a user in time, and delays nobody else."""
    text = "\n".join([f"operator: {tokens.operator()}", f"system_account: {key(ACCOUNT, 'SYS').public}",
                      f"resolver: URL({account_server})", tokens.LOGIN])
    async with (process("-c", write(tmp_path, text), monitor=False) as server, Wire(server.port) as slow,
                Wire(server.port) as unknown):
        slow.send(tokens.connect(slow.info, tokens.user(of="C")))
        async with connected(server, tokens.user()) as nc:
            await nc.flush()
        unknown.send(tokens.connect(unknown.info, tokens.user(of="B")))
        assert await unknown.end() == b"-ERR 'Authorization Violation'\r\n"
        assert b"-ERR" in await slow.end()


@BOTH
async def test_an_account_server_with_a_password(process: type[ServerProcess], account_server: str,
                                                 tmp_path: Path) -> None:
    """The user and password of its URL are sent to it."""
    url = account_server.replace("//", "//user:p%40ss@")
    text = (f"operator: {tokens.operator()}\nsystem_account: {key(ACCOUNT, 'SYS').public}\nresolver: URL({url})\n"
            f"{tokens.LOGIN}")
    async with (process("-c", write(tmp_path, text), monitor=False) as server, connected(server, tokens.user()) as nc):
        await nc.flush()
    assert set(Accounts.credentials) == {"Basic " + base64.b64encode(b"user:p@ss").decode()}


async def test_an_account_server_by_tls(tmp_path: Path) -> None:
    """``resolver_tls``: the certificates that verify the server, or none, and the client's certificate."""
    authority = Authority(tmp_path)
    files, own = authority.server(), authority.client("asker")
    with AccountServer(("127.0.0.1", 0), Accounts) as server:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.ca)
        context.load_cert_chain(files.cert, files.key)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # as ``Authority.trust``
        context.verify_mode = ssl.CERT_REQUIRED
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"https://127.0.0.1:{server.server_port}/jwt/v1/accounts"

        async def asked(**tls: Any) -> str:
            settings = OperatorSettings(resolver=ResolverSettings("url", url=url),
                                        resolver_tls=ResolverTlsSettings(**tls))
            return await make_resolver(settings).fetch(key(ACCOUNT, "A").public)

        shown = {"cert_file": own.cert, "key_file": own.key}
        for right in ({"ca_file": authority.ca}, {"insecure": True}, {"ca_file": authority.ca, "min_version": "1.3"}):
            assert (await asked(**right, **shown)).startswith("eyJ")
        for wrong in ({"ca_file": authority.ca}, shown, {"ca_file": str(tmp_path / "none")},
                      {"ca_file": authority.ca, "cert_file": own.key}):
            with pytest.raises(ResolverError):
                await asked(**wrong)
        server.shutdown()


async def test_an_account_server_that_hides_its_password() -> None:
    """Errors show no password of a URL; the server is asked only about account keys."""
    resolver = UrlResolver("http://user:hush-hush@127.0.0.1:1/accounts", 1_000_000_000)
    for url in ("http://user:hush-hush@127.0.0.1:1/accounts", "http://user:hush-hush@localhost/accounts",
                "nothing://user:hush-hush@localhost:x/"):
        with pytest.raises(ResolverError) as caught:
            await UrlResolver(url, 1_000_000_000).fetch(NAMES[0])
        assert "hush-hush" not in str(caught.value)
    with pytest.raises(ResolverError, match="valid account keys"):
        await resolver.fetch("../x")
    with pytest.raises(ResolverError, match="only available for writeable"):
        resolver.preload({})


async def test_a_directory(tmp_path: Path) -> None:
    """Tokens are written whole, read from the disk each time, counted, and renamed or deleted."""
    path = tmp_path / "jwts" / "deep"
    store = DirectoryResolver(ResolverSettings("full", str(path), allow_delete=True, limit=2))
    for name in NAMES[:2]:
        await store.write(name, f"token of {name}")
    assert store.accounts() == sorted(NAMES[:2])
    with pytest.raises(ResolverError, match="jwt store is full"):
        await store.write(NAMES[2], "x")
    await store.write(NAMES[0], "another")
    assert await store.fetch(NAMES[0]) == "another"
    (path / f"{NAMES[1]}.jwt").write_text("copied here\n")
    assert store.read(NAMES[1]) == "copied here"
    digest = store.digest()
    await store.delete(NAMES[0])
    await store.delete(NAMES[0])
    assert store.digest() != digest
    assert sorted(file.name for file in path.iterdir()) == sorted([f"{NAMES[0]}.jwt.deleted", f"{NAMES[1]}.jwt"])
    with pytest.raises(ResolverError, match="not found"):
        await store.fetch(NAMES[0])
    with pytest.raises(ResolverError, match="valid account keys"):
        store.read("../../etc/passwd")
    hard = DirectoryResolver(ResolverSettings("full", str(path), allow_delete=True, hard_delete=True))
    await hard.delete(NAMES[1])
    assert sorted(file.name for file in path.iterdir()) == [f"{NAMES[0]}.jwt.deleted"]


async def test_preloaded_tokens_do_not_replace_newer_ones(tmp_path: Path) -> None:
    """A pushed token stays, whatever an old configuration file preloads."""
    store = DirectoryResolver(ResolverSettings("full", str(tmp_path)))
    old, new = tokens.account(iat=1000), tokens.account(iat=2000)
    for token in (old, new, old):
        store.preload({NAMES[0]: token})
    assert store.read(NAMES[0]) == new


async def test_a_cache(tmp_path: Path) -> None:
    """The cache has a bound, drops the least recently used token, and drops tokens that were not used for its time."""
    store = DirectoryResolver(ResolverSettings("cache", str(tmp_path), limit=2, ttl_ns=3_600_000_000_000))
    for at, name in enumerate(NAMES[:2]):
        await store.write(name, name)
        os.utime(tmp_path / f"{name}.jwt", (time.time() - 60 + at,) * 2)
    assert store.read(NAMES[0]) == NAMES[0]
    await store.write(NAMES[2], "third")
    assert store.accounts() == sorted([NAMES[0], NAMES[2]])
    os.utime(tmp_path / f"{NAMES[0]}.jwt", (time.time() - 3700,) * 2)
    assert store.read(NAMES[0]) == ""
    assert store.accounts() == [NAMES[2]]


@pytest.mark.parametrize("kind", ["full", "cache"])
async def test_files_that_are_no_tokens(kind: str, tmp_path: Path) -> None:
    """A pipe, a directory, a broken link and a huge file are no tokens: reading them ends, and tokens can be
    written."""
    names = [key(ACCOUNT, f"hostile {at}").public for at in range(4)]
    pipe, folder, link, huge = (tmp_path / f"{name}.jwt" for name in names)
    os.mkfifo(pipe)
    folder.mkdir()
    link.symlink_to(tmp_path / "nothing")
    with huge.open("wb") as file:
        file.truncate(1 << 40)
    for name in (".jwt", f"{NAMES[0]}.jwt.deleted", f"x{NAMES[0]}.jwt", "..jwt", f"{NAMES[0]}.JWT"):
        (tmp_path / name).write_text("x")
    store = DirectoryResolver(ResolverSettings(kind, str(tmp_path), limit=4 if kind == "cache" else 0))
    assert [store.read(name) for name in names] == [""] * 4
    for name in NAMES:
        await store.write(name, f"token of {name}")
    assert [store.read(name) for name in NAMES] == [f"token of {name}" for name in NAMES]
    assert len(store.digest()) == 32
    assert len(list(store.packed(0))) == 3


async def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails raises an error, and leaves the old token and no other file."""
    store = DirectoryResolver(ResolverSettings("full", str(tmp_path)))
    await store.write(NAMES[0], "before")

    def fail(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("broker.server.operator.resolver.os.fsync", fail)
    with pytest.raises(ResolverError, match="No space left on device"):
        await store.write(NAMES[0], "after")
    assert store.read(NAMES[0]) == "before"
    assert os.listdir(tmp_path) == [f"{NAMES[0]}.jwt"]


@BOTH
async def test_an_account_server_that_is_not_there(process: type[ServerProcess], account_server: str,
                                                   tmp_path: Path) -> None:
    """The server does not start."""
    for url, why in ((f"{account_server}nowhere/", "404 Not Found"), ("http://127.0.0.1:1/", "refused")):
        text = f"operator: {tokens.operator()}\nresolver: URL({url})"
        server = process("-c", write(tmp_path, text), monitor=False)
        await server.start(ready=False)
        assert await server.wait_end() == 1
        assert 'could not fetch <"' in server.tail()
        assert why in server.tail()
        await server.close()


@pytest.mark.parametrize(("system", "why"), [
    ("", "error resolving system account: account missing"),
    (tokens.account("SYS", exp=5), "account validation failed")])
async def test_a_system_account_without_a_token(system: str, why: str, tmp_path: Path) -> None:
    """The broker does not start."""
    text = tokens.configuration({"SYS": system} if system else {})
    if not system:
        text = text.replace(f"  {key(ACCOUNT, 'SYS').public}:", f"  {NAMES[0]}:")
    for process in (BrokerProcess, NatsServerProcess):
        server = process("-c", write(tmp_path, text), monitor=False)
        await server.start(ready=False)
        assert await server.wait_end() == 1
        assert why in server.tail() or process is NatsServerProcess
        await server.close()


async def test_many_clients_of_one_account_ask_once(account_server: str, tmp_path: Path) -> None:
    """Many clients of one account that connect at once cost one lookup."""
    text = (f"operator: {tokens.operator()}\nsystem_account: {key(ACCOUNT, 'SYS').public}\n"
            f"resolver: URL({account_server})")
    asked: list[str] = []
    original = Accounts.do_GET

    def count(self: Accounts) -> None:
        asked.append(self.path)
        time.sleep(0.2)
        original(self)

    Accounts.do_GET = count  # type: ignore[method-assign]
    try:
        async with BrokerProcess("-c", write(tmp_path, text), monitor=False) as server:
            async def come() -> None:
                async with connected(server, tokens.user()) as nc:
                    await nc.flush()

            await asyncio.gather(*(come() for _ in range(20)))
    finally:
        Accounts.do_GET = original  # type: ignore[method-assign]
    assert len([path for path in asked if path.endswith(NAMES[0])]) == 1
