"""The pages over real sockets, by HTTP and HTTPS: framing, paths, bounds on time and size, and answers to bad peers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.monitor import listener
from broker.monitor.listener import CONNECTIONS_MAX, MonitorServer
from broker.monitor.views import Health
from tests.certificates import Authority
from tests.monitor.views import Server


class Pages:
    """The pages of a server whose figures a test can change."""

    def __init__(self, *, seconds: float = 60, base_path: str = "/", tls: ssl.SSLContext | None = None) -> None:
        self.server = Server()
        self.monitor = MonitorServer(self.server.views, "127.0.0.1", -1, base_path=base_path, tls=tls,
                                     exchange_seconds_max=seconds)

    async def __aenter__(self) -> Pages:
        await self.monitor.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.monitor.close()

    async def connect(self, trust: ssl.SSLContext | None = None,
                      limit: int = 1 << 16) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.monitor.port, ssl=trust, limit=limit)

    async def ask(self, request: bytes, trust: ssl.SSLContext | None = None) -> bytes:
        """Return everything that the server sends until it closes the connection."""
        reader, writer = await self.connect(trust)
        writer.write(request)
        try:
            async with asyncio.timeout(30):
                return await reader.read()
        finally:
            writer.close()

    async def get(self, target: str, *headers: str) -> tuple[int, dict[str, str], bytes]:
        """Return the status, headers by their names in lower case, and body."""
        lines = [f"GET {target} HTTP/1.1", "Host: x", *headers, "", ""]
        head, _, body = (await self.ask("\r\n".join(lines).encode())).partition(b"\r\n\r\n")
        first, *rest = head.decode().split("\r\n")
        return int(first.split()[1]), {name.lower(): value for name, _,
                                       value in (line.partition(": ") for line in rest)}, body


@pytest_asyncio.fixture
async def pages() -> AsyncIterator[Pages]:
    async with Pages() as found:
        yield found


@pytest_asyncio.fixture
async def hasty() -> AsyncIterator[Pages]:
    """Run pages that soon abort connections."""
    async with Pages(seconds=0.5) as found:
        yield found


async def test_get(pages: Pages) -> None:
    """There is one answer with its length and nats-server's headers; then the connection closes."""
    status, headers, body = await pages.get("/varz")
    assert status == 200
    assert json.loads(body)["http_req_stats"] == {"/varz": 1}
    assert (headers["content-type"], headers["access-control-allow-origin"]) == ("application/json", "*")
    assert headers["content-length"] == str(len(body))
    assert {"date", "connection", "x-content-type-options"} <= headers.keys()
    assert headers["server"] == "jetblock"


async def test_old_http_head_and_other_methods(pages: Pages) -> None:
    """HTTP/1.0 without a Host works, HEAD gets no body, and any other method equals GET, as with nats-server."""
    assert b"NID" in await pages.ask(b"GET /leafz HTTP/1.0\r\n\r\n")
    head = await pages.ask(b"HEAD /varz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert head.endswith(b"\r\n\r\n")
    assert b"200 OK" in head
    post = await pages.ask(b"POST /leafz HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc")
    assert b"200 OK" in post
    assert b"NID" in post


async def test_errors(pages: Pages) -> None:
    """An unknown path and a bad parameter get their status and text; health has its own status and compact JSON."""
    assert (await pages.get("/nope"))[::2] == (404, b"404 page not found\n")
    assert (await pages.get("/raftz"))[::2] == (404, b"No Raft nodes registered")
    status, headers, body = await pages.get("/connz?limit=x")
    assert (status, headers["content-type"]) == (400, "text/plain; charset=utf-8")
    assert body == b"Error decoding int for 'limit': strconv.Atoi: parsing \"x\": invalid syntax"
    pages.server.health = Health("standby", "another broker owns the store", serving=False)
    assert (await pages.get("/healthz"))[::2] == (503, b'{"status":"standby","error":"another broker owns the store"}')
    assert (await pages.get("/healthz?live=1"))[::2] == (200, b'{"status":"ok"}')


@pytest.mark.shows("monitoring.callback")
async def test_callback(pages: Pages) -> None:
    """A page may be JSONP, and an error keeps its status; a callback that is no name could run any script."""
    status, headers, body = await pages.get("/varz?callback=my.call")
    assert (status, headers["content-type"]) == (200, "application/javascript")
    assert body.startswith(b"my.call({")
    assert body.endswith(b"})")
    assert (await pages.get("/healthz?account=NO&callback=f"))[0] == 404
    assert (await pages.get("/varz?callback=alert(1)//"))[::2] == (400, b"callback must be a JavaScript name")


@pytest.mark.shows("monitoring.stacksz")
async def test_links_and_stacks(pages: Pages) -> None:
    """Every page to which the first page links exists; /stacksz shows this test."""
    body = (await pages.get("/"))[2].decode()
    targets = [part.split('"')[0] for part in body.split('<a href="')[1:]]
    assert "/metrics" in targets
    for target in targets:
        assert (await pages.get(target))[0] == 200, target
    assert b"test_links_and_stacks" in (await pages.get("/stacksz"))[2]


@pytest.mark.shows("monitoring.base_path")
async def test_base_path() -> None:
    """All pages and links are below it."""
    async with Pages(base_path="/nats/") as below:
        assert (await below.get("/nats/varz"))[0] == 200
        assert b'"/nats/varz"' in (await below.get("/nats/"))[2]
        assert (await below.get("/nats"))[0] == 200
        for path in ("/varz", "/", "/natsvarz", "/nats/nats/varz"):
            assert (await below.get(path))[0] == 404, path


@pytest.mark.parametrize(("request_bytes", "status"), [
    (b"INFO {}\r\nCONNECT {}\r\n\r\n", b"400"),
    (b"\x16\x03\x01\x00\xa5\x01\x00\r\n\r\n", b"400"),
    (b"GET /" + b"a" * 100_000, b"400"),
    (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 20_000, b"400"),
    (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 100_000, b"400"),
    (b"GET /%ff%00%zz?%ff=%zz&&&= HTTP/1.1\r\nHost: x\r\n\r\n", b"404"),
])
async def test_bad_requests(pages: Pages, request_bytes: bytes, status: bytes,
                            caplog: pytest.LogCaptureFixture) -> None:
    """Each is answered with its status and closed; none is read without end, or fills the log."""
    assert (await pages.ask(request_bytes)).split()[1] == status
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "WARNING")]
    assert (await pages.get("/varz"))[0] == 200


async def test_answer_to_a_request_that_goes_on(pages: Pages) -> None:
    """Bytes after the answer are dropped: closing with unread bytes would reset the connection and lose the answer."""
    reader, writer = await pages.connect()
    async with asyncio.timeout(30):
        writer.write(b"GET /" + b"a" * 100_000)
        status = await reader.readline()
        writer.write(b"a" * 1_000_000)
        await writer.drain()
        assert b" 400 " in status
        assert b"Content-Type: text/plain" in await reader.read()
        writer.write(b"a" * 100_000)
        await writer.drain()
    writer.close()
    await writer.wait_closed()


async def test_answer_to_a_request_without_end(pages: Pages) -> None:
    """The connection of a peer that sends for ever is aborted."""
    _, writer = await pages.connect()
    with pytest.raises(ConnectionError):  # noqa: PT012 (until it is aborted)
        async with asyncio.timeout(30):
            while True:
                writer.write(b"a" * 100_000)
                await writer.drain()
    writer.close()


async def test_time_begins_when_pages_can_be_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading the pages takes longer than an exchange may; a client that connects meanwhile gets an answer."""
    for seconds in (0.3, 1.2, 3.6):  # a busy machine may take longer for the answer
        def slow(name: str, package: str, seconds: float = 2 * seconds) -> ModuleType:
            time.sleep(seconds)
            return import_module(name, package)

        monkeypatch.setattr(listener, "import_module", slow)
        async with Pages(seconds=seconds) as found:
            if answer := await found.ask(b"GET /leafz HTTP/1.0\r\n\r\n"):
                break
    assert b" 200 OK" in answer


async def test_pages_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The log has the cause, and clients do not wait."""
    def broken(name: str, package: str) -> ModuleType:
        raise ImportError(name)

    monkeypatch.setattr(listener, "import_module", broken)
    async with Pages() as found:
        with pytest.raises(ConnectionError):  # noqa: PT012 (closed without an answer)
            if await found.ask(b"GET /leafz HTTP/1.1\r\nHost: x\r\n\r\n") == b"":
                raise ConnectionError
    assert "the monitoring pages cannot be served" in caplog.text


REQUEST_LINES = st.one_of(
    st.binary(max_size=60),
    st.builds(lambda method, target, version: b"%b %b HTTP/%b\r\n" % (method, target, version),
              st.sampled_from([b"GET", b"HEAD", b"POST", b"CONNECT", b"OPTIONS", b"get", b"", b"G\x00T"]),
              st.one_of(st.binary(max_size=40),
                        st.builds(b"/%b?%b=%b".__mod__, st.tuples(
                            st.sampled_from([b"varz", b"connz", b"subsz", b"jsz", b"accountz", b"healthz", b"metrics",
                                             b"%2e"]),
                            st.sampled_from([b"sort", b"limit", b"offset", b"subs", b"callback", b"cid", b"state",
                                             b"acc", b"%"]),
                            st.binary(max_size=12) | st.sampled_from([b"-1", b"99999999999999999999", b"true", b"%zz",
                                                                      b"1e9"])))),
              st.sampled_from([b"1.1", b"1.0", b"2", b"9.9", b""])))
FIELDS = st.lists(st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"Host: x", b"Content-Length: -1", b"Content-Length: 5", b"Content-Length: 9" * 9,
                     b"Expect: 100-continue",
                     b"Transfer-Encoding: chunked", b"Transfer-Encoding: x", b"Upgrade: websocket",
                     b"Connection: upgrade",
                     b"Content-Encoding: gzip", b"Accept: \xff", b": x", b" folded"])), max_size=5)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(REQUEST_LINES, FIELDS, st.binary(max_size=60))
async def test_any_request(caplog: pytest.LogCaptureFixture, line: bytes, fields: list[bytes], body: bytes) -> None:
    """Any request gets an answer with one of few statuses, or the connection ends; then the next request is served."""
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    async with Pages(seconds=0.3) as found:
        answer = b""
        with contextlib.suppress(ConnectionError):
            answer = await found.ask(line + b"\r\n".join([*fields, b"", b""]) + body)
        if answer.startswith(b"HTTP/1.1 100 "):
            answer = answer.partition(b"\r\n\r\n")[2]
        assert not answer or answer.split()[1] in (b"200", b"400", b"404", b"417", b"503"), answer
        async with asyncio.timeout(30):
            # A busy machine may take longer than these pages wait, so ask again.
            while not (answer := await found.ask(b"GET /leafz HTTP/1.0\r\n\r\n")):
                pass
        assert b" 200 OK" in answer
    assert failures == []
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "WARNING")]


async def test_silent_and_slow_clients_are_cut_off(hasty: Pages) -> None:
    """A client that sends nothing, or never finishes its request, is closed when its time is over."""
    assert await hasty.ask(b"") == b""
    assert await hasty.ask(b"GET / HTTP/1.1\r\nHos") == b""


async def test_client_that_does_not_read_is_cut_off(hasty: Pages) -> None:
    """An answer that the peer does not read is dropped after a time, and the server continues."""
    hasty.server.views.server_name = "x" * (64 << 20)
    reader, writer = await hasty.connect(limit=1024)
    writer.write(b"GET /routez HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(30):
        requests = hasty.server.views.requests
        while not requests["/routez"] or hasty.monitor.connections:  # noqa: ASYNC110 (an abort notifies nobody)
            await asyncio.sleep(0.02)
    received = 0
    with pytest.raises(ConnectionError):  # noqa: PT012 (until it is aborted)
        while chunk := await reader.read(1 << 20):
            received += len(chunk)
        raise ConnectionError("closed early")
    assert received < 64 << 20
    writer.close()
    while not (answer := await hasty.ask(b"GET /varz HTTP/1.0\r\n\r\n")):  # a slow machine may lose this one, too
        pass
    assert b" 200 OK" in answer


async def test_many_silent_clients_keep_nobody_out(pages: Pages) -> None:
    """More connections than the bound: the oldest are closed, and requests are answered."""
    silent = [await pages.connect() for _ in range(CONNECTIONS_MAX + 8)]
    assert (await pages.get("/varz"))[0] == 200
    with pytest.raises(ConnectionError):  # noqa: PT012 (aborted)
        if await silent[0][0].read() == b"":
            raise ConnectionError
    for _, writer in silent:
        writer.close()


async def test_many_requests_at_once_are_all_answered(pages: Pages) -> None:
    """Connections whose answers are being made are not aborted for others."""
    paths = ["/connz", "/subsz?subs=1", "/varz", "/healthz", "/jsz?consumers=1"]
    answers = await asyncio.gather(*(pages.get(paths[at % len(paths)]) for at in range(400)))
    assert {status for status, _, _ in answers} == {200}


class Endless:
    """Rows of /subsz without end."""

    def __init__(self) -> None:
        self.made = 0
        self.begun, self.ended = asyncio.Event(), asyncio.Event()

    def subscriptions(self, _account: str = "", _subject: str = "") -> tuple[int, Iterator[dict[str, Any]]]:
        return 1, self.rows()

    def rows(self) -> Iterator[dict[str, Any]]:
        try:
            while True:
                self.begun.set()
                self.made += 1
                yield {"subject": "s"}
        finally:
            self.ended.set()


async def test_a_page_whose_peer_has_gone_is_not_made(pages: Pages) -> None:
    """A peer that requests a long page and disconnects costs nothing afterwards; other pages are made meanwhile."""
    endless = Endless()
    pages.server.views.subscriptions = endless.subscriptions
    async with asyncio.timeout(30):
        _, writer = await pages.connect()
        writer.write(b"GET /subsz?subs=1&limit=1000000000 HTTP/1.1\r\nHost: x\r\n\r\n")
        await endless.begun.wait()
        for path in ("/healthz", "/varz", "/connz"):
            assert (await pages.get(path))[0] == 200
        assert not endless.ended.is_set()
        writer.transport.abort()
        await endless.ended.wait()


async def test_long_pages_share_the_turns_of_the_loop(pages: Pages) -> None:
    """In each turn of the loop, one of the pages that are being made makes a step."""
    endless = Endless()
    pages.server.views.subscriptions = endless.subscriptions
    async with asyncio.timeout(30):
        clients = [await pages.connect() for _ in range(20)]
        for _, writer in clients:
            writer.write(b"GET /subsz?subs=1&limit=1000000000 HTTP/1.1\r\nHost: x\r\n\r\n")
        await endless.begun.wait()
        for _ in range(100):  # until all have begun
            await asyncio.sleep(0)
        most = 0
        for _ in range(100):
            before = endless.made
            await asyncio.sleep(0)
            most = max(most, endless.made - before)
        assert 0 < most <= 256
        for _, writer in clients:
            writer.transport.abort()
        await endless.ended.wait()


async def test_a_page_that_fails_ends_its_own_exchange_only(pages: Pages, caplog: pytest.LogCaptureFixture) -> None:
    """The client gets 500, the log has the cause, and the next request is served."""
    def broken() -> str:
        raise RuntimeError("a bug in a page")

    now, pages.server.views.now = pages.server.views.now, broken
    assert (await pages.get("/leafz"))[0] == 500
    assert "a bug in a page" in caplog.text
    pages.server.views.now = now
    assert (await pages.get("/leafz"))[0] == 200


async def test_close_ends_exchanges_in_progress(pages: Pages) -> None:
    """Closing does not wait for silent clients."""
    reader, writer = await pages.connect()
    assert (await pages.get("/leafz"))[0] == 200
    async with asyncio.timeout(30):
        await pages.monitor.close()
        with pytest.raises(ConnectionError):  # noqa: PT012 (aborted)
            if await reader.read() == b"":
                raise ConnectionError
    writer.close()


async def test_https(tmp_path: Path) -> None:
    """Pages are served by TLS; new certificates apply to later connections; plain HTTP gets no page."""
    first, second = (Authority(path) for name in ("first", "second") if (path := tmp_path / name).mkdir() is None)
    request = b"GET /leafz HTTP/1.1\r\nHost: x\r\n\r\n"
    async with Pages(tls=_context(first)) as pages:
        assert pages.monitor.scheme == "https"
        assert b"200 OK" in await pages.ask(request, first.trust())
        pages.monitor.use(_context(second))
        with pytest.raises(ssl.SSLCertVerificationError):
            await pages.ask(request, first.trust())
        assert b"200 OK" in await pages.ask(request, second.trust())
        with pytest.raises(ConnectionError):  # noqa: PT012 (closed without an answer)
            if await pages.ask(request) == b"":
                raise ConnectionError


def _context(authority: Authority) -> ssl.SSLContext:
    files = authority.server()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    return context
