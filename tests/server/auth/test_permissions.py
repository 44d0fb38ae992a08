"""Permissions and accounts: dialogues with the real nats-server and with ours, and tests of the rules alone."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest
import pytest_asyncio
from nats.aio.msg import Msg

from broker.access.accounts import AccountSettings, Permissions, ResponsePermission, SubjectPermission, User
from broker.base.clock import GuardedClock
from broker.config.settings import make_settings
from broker.protocol.subject import matches
from broker.server.accounts.account import Traffic
from broker.server.auth.permissions import PublishRules, ReplyPermissions, SubscribeRules
from broker.server.server import Server
from tests.harness import NatsServerProcess
from tests.server.auth.access import configuration, connect
from tests.server.dialogue import END, OLD, Step, play
from tests.server.in_process import running
from tests.server.raw_client import Wire


def permissions(*, pub: tuple[str, ...] | None = None, pub_deny: tuple[str, ...] = (),
                sub: tuple[str, ...] | None = None,
                sub_deny: tuple[str, ...] = (), responses: ResponsePermission | None = None) -> Permissions:
    return Permissions(SubjectPermission(pub, pub_deny), SubjectPermission(sub, sub_deny), responses)


def traced(subject: bytes, dest: bytes, *, only: bool = False) -> bytes:
    """Return a publish whose trace is sent to ``dest``."""
    block = b"NATS/1.0\r\nNats-Trace-Dest: %b\r\n%b\r\n" % (dest, b"Nats-Trace-Only: true\r\n" if only else b"")
    return b"HPUB %b %d %d\r\n%bx\r\n" % (subject, len(block), len(block) + 1, block)


ACCOUNTS = [
    AccountSettings("$G", default_permissions=permissions(pub=("default.>",), sub=("default.>", "_INBOX.>"))),
    AccountSettings("A"), AccountSettings("B", default_permissions=permissions(pub_deny=("no",), sub_deny=("no",))),
    AccountSettings("ONE", max_connections=1),
]
USERS = [
    User("free", "p", permissions=Permissions()), User("default", "p"), User("a", "p", "A"), User("a2", "p", "A"),
    User("b", "p", "B"), User("one", "p", "ONE"),
    User("web", "p", connection_types=frozenset({"WEBSOCKET"})),
    User("standard", "p", "A", connection_types=frozenset({"STANDARD", "WEBSOCKET"})),
    User("pub", "p", "A", permissions(pub=("foo", "bar.*", "baz.>"))),
    User("nopub", "p", "A", permissions(pub_deny=("foo", "bar.*"))),
    User("some", "p", "A", permissions(pub=("foo.*",), pub_deny=("foo.bad",))),
    User("sub", "p", "A", permissions(sub=("foo", "bar.*", "baz.>"))),
    User("nosub", "p", "A", permissions(sub_deny=("foo", "bar.*", "_INBOX.x.2", "$JS.ACK.S.C.9.9.9.9.9"))),
    User("queue", "p", "A", permissions(sub=("foo", "bar v1", "baz v.>", "qux", "qux v*", "two a", "two b"))),
    User("noqueue", "p", "A", permissions(sub_deny=("foo bad", "bar v.*", "all.one q"))),
    User("reply", "p", "A", permissions(sub=("foo", "in.>"), responses=ResponsePermission())),
    User("reply2", "p", "A", permissions(sub=("foo",), pub=("ok",), responses=ResponsePermission(max_msgs=2))),
    User("replies", "p", "A", permissions(sub=("foo",), pub_deny=("nope",), responses=ResponsePermission(max_msgs=-1))),
]

QUIET = {"headers": True, "no_responders": True}

DIALOGUES: dict[str, list[Step]] = {
    "no permissions": [("a", connect("free")), ("a", b"SUB > 1\r\nPUB foo 1\r\nx\r\n")],
    "default permissions": [
        ("a", connect("default")), ("a", b"SUB > 1\r\nSUB default.a 2\r\nPUB foo 1\r\nx\r\nPUB default.a 1\r\ny\r\n")],
    # Publishing
    "publish, allowed": [("a", connect("pub")), ("a", b"SUB > 1\r\n"),
                         ("a", b"PUB foo 1\r\na\r\nPUB bar.x 1\r\nb\r\nPUB baz.x.y 1\r\nc\r\nPUB foo 1\r\nd\r\n")],
    "publish, not allowed": [
        ("a", connect("pub")), ("a", b"SUB > 1\r\n"),
        ("a", b"PUB fo 1\r\na\r\nPUB bar 1\r\nb\r\nPUB bar.x.y 1\r\nc\r\nPUB baz 1\r\nd\r\nPUB foo.x 1\r\ne\r\n")],
    "publish, some allowed": [
        ("a", connect("pub")), ("b", connect("a2")), ("b", b"SUB > 1\r\n"),
        ("a",
         b"PUB foo 1\r\na\r\nPUB no 1\r\nb\r\nPUB foo 1\r\nc\r\nPUB foo 1\r\nd\r\nPUB no 1\r\ne\r\nPUB no 1\r\nf\r\n"
              b"PUB bar.x 1\r\ng\r\n")],
    "publish, denied": [("a", connect("nopub")), ("a", b"SUB > 1\r\n"),
                        ("a", b"PUB foo 1\r\na\r\nPUB bar.x 1\r\nb\r\nPUB bar 1\r\nc\r\nPUB bar.x.y 1\r\nd\r\n")],
    "publish, denied of the allowed": [("a", connect("some")), ("a", b"SUB > 1\r\n"),
                                       ("a", b"PUB foo.ok 1\r\na\r\nPUB foo.bad 1\r\nb\r\nPUB bar 1\r\nc\r\n")],
    "publish to unusual subjects": [
        ("a", connect("pub")),
        ("a", b'PUB a"b 0\r\n\r\nPUB a\xffb 0\r\n\r\nPUB foo..x 0\r\n\r\nPUB bar.* 0\r\n\r\nPUB baz.> 0\r\n\r\n')],
    "publish with a reserved reply": [
        ("a", connect("pub")), ("a", b"SUB > 1\r\n"),
        ("a", b"PUB foo _R_.a 1\r\na\r\nPUB no _R_.a 1\r\nb\r\nPUB foo ok 1\r\nc\r\nPUB no ok 1\r\nd\r\n")],
    "publish to what is reserved": [("a", connect("pub")), ("a", b"PUB $NRG.a 1\r\nx\r\nPUB _GR_.a 1\r\ny\r\n")],
    "publish verbosely": [("a", connect("pub", verbose=True)),
                          ("a", b"PUB foo 1\r\na\r\nPUB no 1\r\nb\r\nPUB foo 1\r\nc\r\n")],
    "publish pedantically": [("a", connect("pub", pedantic=True)),
                             ("a", b"PUB foo 1\r\na\r\nPUB no.* 1\r\nb\r\nPUB bar.* 1\r\nc\r\n")],
    "request without permission": [("a", connect("pub", **QUIET)),
                                   ("a", b"SUB in 1\r\nPUB no in 1\r\na\r\nPUB foo in 0\r\n\r\n")],
    "trace to what is denied": [
        ("a", connect("nopub", headers=True)), ("b", connect("a2", headers=True)), ("b", b"SUB > 1\r\n"),
        ("a", traced(b"ok", b"foo") + traced(b"ok", b"bar.x", only=True) + traced(b"ok", b"$NRG.x")
              + traced(b"ok", b"_GR_.x") + b"PUB ok 1\r\nz\r\n"),
        ("a", traced(b"ok", b"a..b", only=True) + b"PUB ok 1\r\nz\r\n")],
    "trace to where one may respond": [
        ("a", connect("reply", headers=True)), ("b", connect("a2", headers=True)), ("a", b"SUB foo 1\r\n"),
        ("b", b"SUB rep.> 1\r\nPUB foo rep.1 1\r\nx\r\nPUB foo rep.2 1\r\nx\r\n"),
        ("a", traced(b"rep.1", b"rep.2"))],
    "trace to what is denied, verbosely": [
        ("a", connect("nopub", headers=True, verbose=True)),
        ("a", traced(b"ok", b"foo") + traced(b"ok", b"foo", only=True))],
    # Subscribing
    "subscribe, allowed": [
        ("a", connect("sub")),
        ("a", b"SUB foo 1\r\nSUB bar.* 2\r\nSUB baz.> 3\r\nSUB baz.*.x 4\r\nSUB bar.x q 5\r\nUNSUB 4\r\n"),
        ("a", b"PUB foo 1\r\na\r\nPUB bar.x 1\r\nb\r\nPUB baz.y.x 1\r\nc\r\n")],
    "subscribe, not allowed": [
        ("a", connect("sub")), ("a", b"SUB > 1\r\nSUB foo.* 2\r\nSUB bar.*.x 3\r\nSUB baz 4\r\n"),
        ("a", b"SUB * 5\r\nSUB * q 6\r\nSUB foo q 7\r\n"), ("a", b"PUB foo 1\r\na\r\nPUB baz 1\r\nb\r\n")],
    "subscribe wider than a star": [("a", connect("sub")),
                                    ("a", b"SUB bar.> 1\r\nPUB bar.x 1\r\na\r\nPUB bar.x.y 1\r\nb\r\n")],
    "subscribe to what is no subject": [("a", connect("sub")),
                                        ("a", b"SUB foo..x 1\r\nSUB baz..x 2\r\nSUB baz. 3\r\n")],
    "subscribe verbosely": [("a", connect("sub", verbose=True)), ("a", b"SUB foo 1\r\nSUB no 2\r\nSUB no _sys_ 3\r\n")],
    "subscribe, denied": [("a", connect("nosub")),
                          ("a", b"SUB foo 1\r\nSUB bar.x 2\r\nSUB bar.* 3\r\nSUB foo q 4\r\nSUB bar 5\r\n"),
                          ("a", b"PUB foo 1\r\na\r\nPUB bar 1\r\nb\r\n")],
    "denied within a permitted wildcard": [
        ("a", connect("nosub")), ("b", connect("a2")), ("a", b"SUB > 1\r\nSUB bar.> 2\r\nSUB * q 3\r\n"),
        ("b", b"PUB foo 1\r\na\r\nPUB bar.x 1\r\nb\r\nPUB bar.x.y 1\r\nc\r\nPUB ok 1\r\nd\r\nPUB foo 1\r\ne\r\n"),
        ("a", b"UNSUB 1\r\n"), ("b", b"PUB foo 1\r\na\r\nPUB bar.x 1\r\nb\r\nPUB bar.x.y 1\r\nc\r\nPUB ok 1\r\nd\r\n")],
    "denied within an inbox": [
        ("a", connect("nosub")), ("b", connect("a2")), ("b", b"PUB _INBOX.x.1 1\r\na\r\nPUB _INBOX.x.2 1\r\nb\r\n"),
        ("a", b"SUB _INBOX.x.* 1\r\n"), ("b", b"SUB _INBOX.*.* 1\r\n"),
        ("b", b"PUB _INBOX.x.1 1\r\na\r\nPUB _INBOX.x.2 1\r\nb\r\nPUB _INBOX.x.3 1\r\nc\r\nPUB _INBOX.x.2 1\r\nd\r\n"),
        ("a", b"UNSUB 1\r\n"), ("b", b"PUB _INBOX.x.1 1\r\na\r\nPUB _INBOX.x.2 1\r\nb\r\n")],
    "denied within acks": [
        ("a", connect("nosub")), ("b", connect("a2")), ("a", b"SUB $JS.ACK.S.> 1\r\n"),
        ("b", b"PUB $JS.ACK.S.C.1.2.3.4.5 1\r\na\r\nPUB $JS.ACK.S.C.9.9.9.9.9 1\r\nb\r\n"
              b"PUB $JS.ACK.S.C.1.2.3.4.6 1\r\nc\r\n")],
    "denied member of a queue group": [
        ("a", connect("nosub")), ("b", connect("a2")), ("a", b"SUB bar.> q 1\r\n"), ("b", b"SUB bar.> q 1\r\n"),
        ("b", b"".join(b"PUB bar.x 2\r\n%02d\r\n" % i for i in range(20)))],
    "denied, so nobody responds": [
        ("a", connect("nosub")), ("b", connect("a2", **QUIET)), ("a", b"SUB > 1\r\n"),
        ("b", b"SUB in 1\r\nPUB foo in 0\r\n\r\n")],
    # Queue groups
    "queue groups, allowed": [
        ("a", connect("queue")),
        ("a", b"SUB foo 1\r\nSUB foo q 2\r\nSUB bar v1 3\r\nSUB baz v.1 4\r\nSUB baz v.1.2 5\r\nSUB qux 6\r\n"
              b"SUB two b 7\r\n")],
    "queue groups, not allowed": [
        ("a", connect("queue")),
        ("a", b"SUB bar 1\r\nSUB bar v2 2\r\nSUB baz v 3\r\nSUB baz 4\r\nSUB qux v1 5\r\nSUB two c 6\r\n")],
    "queue groups, denied": [
        ("a", connect("noqueue")),
        ("a", b"SUB foo 1\r\nSUB foo good 2\r\nSUB foo bad 3\r\nSUB bar v.1 4\r\nSUB bar v 5\r\n"),
        ("a", b"PUB foo 1\r\na\r\n")],
    "queue groups, denied within a wildcard": [
        ("a", connect("noqueue")), ("a", b"SUB all.* 1\r\nSUB all.* q 2\r\nSUB all.> r 3\r\n"),
        ("a", b"PUB all.one 1\r\na\r\nPUB all.two 1\r\nb\r\n")],
    # Responses
    "one response": [
        ("a", connect("reply")), ("b", connect("a2")), ("a", b"SUB foo 1\r\n"), ("b", b"SUB rep.* 1\r\n"),
        ("a", b"PUB rep.1 0\r\n\r\n"), ("b", b"PUB foo rep.1 1\r\nx\r\nPUB foo rep.2 1\r\ny\r\nPUB foo 1\r\nz\r\n"),
        ("a", b"PUB rep.1 1\r\na\r\nPUB rep.2 1\r\nb\r\nPUB rep.1 1\r\nc\r\nPUB rep.3 1\r\nd\r\n")],
    "two responses": [
        ("a", connect("reply2")), ("b", connect("a2")), ("a", b"SUB foo q 1\r\n"),
        ("b", b"SUB * 1\r\nPUB foo rep 1\r\nx\r\n"),
        ("a", b"PUB rep 1\r\na\r\nPUB ok 1\r\nb\r\nPUB rep 1\r\nc\r\nPUB rep 1\r\nd\r\nPUB ok 1\r\ne\r\n")],
    "any number of responses": [
        ("a", connect("replies")), ("b", connect("a2")), ("a", b"SUB foo 1\r\n"),
        ("b", b"SUB * 1\r\nPUB foo nope 1\r\nx\r\n"),
        ("a", b"PUB nope 1\r\na\r\n" * 5 + b"PUB other 1\r\nb\r\n")],
    "a request that comes again": [
        ("a", connect("reply")), ("b", connect("a2")), ("a", b"SUB foo 1\r\n"), ("b", b"SUB rep 1\r\n"),
        ("b", b"PUB foo rep 1\r\nx\r\nPUB foo rep 1\r\ny\r\n"), ("a", b"PUB rep 1\r\na\r\n"),
        ("b", b"PUB foo rep 1\r\nz\r\n"), ("a", b"PUB rep 1\r\na\r\nPUB rep 1\r\nb\r\n")],
    "a response to oneself": [
        ("a", connect("reply")), ("b", connect("a2")), ("b", b"SUB in.> 1\r\n"), ("a", b"SUB in.x 1\r\n"),
        ("b", b"PUB in.x in.a 1\r\nx\r\n"), ("a", b"PUB in.a in.x 1\r\ny\r\nPUB in.x 1\r\nz\r\n")],
    "responses after a second CONNECT": [
        ("a", connect("reply")), ("b", connect("a2")), ("a", b"SUB foo 1\r\n"), ("b", b"PUB foo rep 1\r\nx\r\n"),
        ("a", connect("reply")), ("a", b"PUB rep 1\r\na\r\n")],
    # Accounts
    "accounts do not hear each other": [
        ("a", connect("a")), ("b", connect("b")), ("a", b"SUB > 1\r\n"), ("b", b"SUB > 1\r\nSUB foo q 2\r\n"),
        ("a", b"PUB foo 1\r\nx\r\n"), ("b", b"PUB foo 1\r\ny\r\n")],
    "nobody responds in another account": [
        ("a", connect("a", **QUIET)), ("b", connect("b")), ("b", b"SUB foo 1\r\n"),
        ("a", b"SUB in 1\r\nPUB foo in 0\r\n\r\n")],
    "a second CONNECT for another account": [
        ("a", connect("a")), ("b", connect("b")), ("b", b"SUB foo 1\r\n"), ("a", b"SUB foo 7\r\nPUB foo 1\r\nw\r\n"),
        ("a", connect("b")),
        ("a", b"PUB foo 1\r\nx\r\nSUB foo 2\r\n"), ("b", b"PUB foo 1\r\ny\r\n"), ("a", connect("sub")),
        ("a", b"SUB no 3\r\n"), ("a", connect("a2")), ("a", b"SUB no 4\r\nPUB no 1\r\nz\r\n")],
    "a second CONNECT that fails": [("a", connect("a")), ("a", b'CONNECT {"user":"b","pass":"x"}\r\n', END)],
    "info says the account": [("a", connect("a", protocol=1)), ("a", b"PING\r\n")],
    "too many connections of an account": [
        ("a", connect("one")), ("b", connect("one"), END), ("a", b"SUB foo 1\r\n"), ("c", connect("a")),
        ("c", connect("one"), END)],
    # Refusals
    "connection type, not allowed": [("a", connect("web"), END)],
    "connection type, allowed": [("a", connect("standard"))],
    "no user": [("a", OLD, END)],
    "no CONNECT": [("a", b"PING\r\n", END)],
}

OTHERS = [AccountSettings("A"), AccountSettings("B")]
ANYBODY = [User("any", "p", "A", permissions(pub=("foo",), sub=("foo",))), User("a", "p", "A"), User("b", "p", "B")]
ANONYMOUS: dict[str, list[Step]] = {
    "without CONNECT": [("a", b"SUB foo 1\r\nSUB bar 2\r\n"), ("a", b"PUB foo 1\r\nx\r\nPUB bar 1\r\ny\r\n"),
                        ("a", OLD)],
    "without a user": [("a", OLD), ("b", connect("b")), ("c", connect("a")), ("b", b"SUB foo 1\r\n"),
                       ("c", b"SUB foo 1\r\n"),
                       ("a", b"SUB foo 1\r\nSUB bar 2\r\nPUB foo 1\r\nx\r\nPUB bar 1\r\ny\r\n")],
    "twice": [("a", OLD), ("a", OLD), ("a", connect("a")), ("a", b"SUB > 1\r\n")],
    "with a password only": [("a", b'CONNECT {"verbose":false,"pass":"p"}\r\n', END)],
    "with a token": [("a", b'CONNECT {"verbose":false,"auth_token":"p"}\r\n', END)],
    "with a wrong user": [("a", connect("nobody"), END)],
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real_port(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[int]:
    path = tmp_path_factory.mktemp("real") / "nats.conf"
    path.write_text(configuration(USERS, ACCOUNTS))
    async with NatsServerProcess("-c", str(path), monitor=False) as process:
        yield process.port


@pytest.mark.shows("auth.password", "auth.permissions")
@pytest.mark.parametrize("name", DIALOGUES)
@pytest.mark.asyncio(loop_scope="module")
async def test_dialogue(name: str, real_port: int) -> None:
    """Both servers answer a dialogue with the same bytes."""
    async with running(ACCOUNTS, users=tuple(USERS)) as server:
        assert await play(server.port, DIALOGUES[name]) == await play(real_port, DIALOGUES[name])


@pytest.mark.shows("auth.no_auth_user")
async def test_no_auth_user(tmp_path: Path) -> None:
    """Clients without credentials have that user's account and permissions; no other client does."""
    path = tmp_path / "nats.conf"
    path.write_text(configuration(ANYBODY, OTHERS, no_auth_user="any"))
    async with (running(OTHERS, users=tuple(ANYBODY), no_auth_user="any") as server,
                NatsServerProcess("-c", str(path), monitor=False) as real):
        for name, steps in ANONYMOUS.items():
            assert await play(server.port, steps) == await play(real.port, steps), name


async def test_violations_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log lines are nats-server's, since people search for these."""
    path = tmp_path / "nats.conf"
    path.write_text(configuration(USERS, ACCOUNTS))
    steps = [*DIALOGUES["publish to unusual subjects"], ("b", connect("queue")),
             ("b", b"SUB bar 1\r\nSUB bar v2 2\r\n"),
             ("c", connect("pub")), ("c", b"PUB foo _R_.a 1\r\na\r\n"), ("d", connect("web"), END),
             ("e", connect("one")), ("f", connect("one"), END)]
    form = re.compile(r"cid:\d+ - (.*(?:Violation|error|exceeded).*)")
    async with running(ACCOUNTS, users=tuple(USERS)) as server, NatsServerProcess("-c", str(path),
                                                                                  monitor=False) as real:
        await play(server.port, steps)
        ours = [found[1] for record in caplog.records if (found := form.search(record.getMessage()))]
        await play(real.port, steps)
        await real.wait_line("maximum account active connections exceeded")
        theirs = [found[1] for line in real.stderr if (found := form.search(line))]
    # The real server logs twice that an account has too many connections.
    assert ours == list(dict.fromkeys(theirs))
    assert len(ours) == 8


# Settings that nats-server's configuration lacks, and what monitoring shows


@pytest.mark.shows("auth.expiry")
async def test_expiry() -> None:
    """A login expires at its time, and the client gets the reason; a login without an expiry stays."""
    clock = GuardedClock()
    for seconds in (1, 4, 16):  # on a busy machine the login that is to be replaced may expire before that
        users = [User("short", "p", expires_at_ns=clock.now_ns() + seconds * 10**9), User("past", "p", expires_at_ns=1),
                 User("long", "p", expires_at_ns=clock.now_ns() + 10**18), User("free", "p")]
        async with (running(users=tuple(users), no_auth_user="short") as server, Wire(server.port) as short,
                    Wire(server.port) as past, Wire(server.port) as long, Wire(server.port) as freed,
                    Wire(server.port) as nobody):
            long.send(connect("long"))
            freed.send(connect("short") + connect("free"))
            nobody.send(b"PING\r\n")
            short.send(connect("short"))
            past.send(connect("past"))
            if not (await freed.settled()).endswith(b"PONG\r\n"):
                continue
            for wire in (short, past, nobody):
                assert (await wire.end()).endswith(b"-ERR 'User Authentication Expired'\r\n")
            assert [row["reason"] for row in server.connections(closed=True)] == ["Authentication Expired"] * 3
            for wire in (long, freed):
                assert await wire.settled() == b"PONG\r\n"
            return
    pytest.fail("no login lasted for as long as it was valid")


async def test_stock_clients() -> None:
    """nats-py in two accounts: requests stay within one, and a violation reaches the client's error callback."""
    errors: asyncio.Queue[Exception] = asyncio.Queue()
    async with running(ACCOUNTS, users=tuple(USERS)) as server:
        clients = [await nats.connect(f"nats://127.0.0.1:{server.port}", user=user, password="p", error_cb=errors.put)
                   for user in ("a", "reply", "b")]
        a, reply, b = clients

        async def answer(msg: Msg) -> None:
            await msg.respond(b"yes")

        await reply.subscribe("foo", cb=answer)
        await reply.flush()
        assert (await a.request("foo", b"?")).data == b"yes"
        with pytest.raises(nats.errors.NoRespondersError):
            await b.request("foo", b"?")
        await reply.publish("anything")
        async with asyncio.timeout(30):
            assert 'permissions violation for publish to "anything"' in str(await errors.get()).lower()
        for client in clients:
            await client.close()


@pytest.mark.shows("accounts.limits")
async def test_accounts_count_apart() -> None:
    """Connections, messages, bytes and subscriptions are counted by account, also those of a connection that moves."""
    async with running(ACCOUNTS, users=tuple(USERS)) as server, Wire(server.port) as moving, Wire(server.port) as b:
        accounts = {account.name: account for account in server.accounts}
        own, each = server.subscription_count, accounts["A"].subscriptions

        def figures(name: str) -> tuple[Traffic, int, int]:
            account = accounts[name]
            return account.traffic(), account.connections, account.subscriptions

        assert list(accounts) == ["$G", "$SYS", "A", "B", "ONE"]
        assert accounts["$G"].connections == 2
        b.send(connect("b") + b"SUB > 1\r\nPUB foo 3\r\nabc\r\n")
        await b.settled()
        moving.send(connect("a") + b"SUB > 1\r\nPUB foo 2\r\nab\r\n")
        await moving.settled()
        assert figures("A") == ((1, 2, 1, 2), 1, each + 1)
        moving.send(connect("b") + b"PUB foo 4\r\nabcd\r\n")
        await moving.settled()
        assert figures("A") == ((1, 2, 1, 2), 0, each)
        assert figures("B") == ((2, 7, 2, 7), 2, each + 1)
        rows = [(row["account"], row["authorized_user"]) for row in server.connections()]
        assert rows == [("B", "b"), ("B", "b")]
        moving.writer.close()
        await moving.end()
        assert accounts["$G"].traffic() == (0, 0, 0, 0)
        assert (accounts["B"].traffic(), accounts["B"].total_connections) == ((2, 7, 2, 7), 2)
        page = server.varz()
        assert (page["in_msgs"], page["in_bytes"], page["out_msgs"], page["out_bytes"]) == (3, 9, 3, 9)
        assert page["subscriptions"] == own + 1


def test_what_cannot_be_configured() -> None:
    """An invalid pattern or a user of a missing account is an error that names it."""
    for bad in ("", "foo..bar", ".", "foo.", "a b c", "foo b..c"):
        with pytest.raises(ValueError, match=f"invalid subject {bad!r} in permissions"):
            permissions(sub=(bad,))
        with pytest.raises(ValueError, match=f"invalid subject {bad!r} in permissions"):
            permissions(pub=(bad,))
    with pytest.raises(ValueError, match="'foo q' in permissions to publish: it names a queue group"):
        permissions(pub_deny=("foo q",))
    with pytest.raises(ValueError, match="user 'x' is in the account 'NO', which does not exist"):
        Server(make_settings({"auth.users": (User("x", account="NO"),)})).load()


# The rules alone

TOKENS = ("a", "b", "c")
PATTERNS = ["a", "b", "*", ">", "a.a", "a.*", "*.b", "a.>", "b.>", "a.b.c", "a.*.c", "*.*.*", "b.*.>"]


@pytest.mark.parametrize("seed", range(20))
def test_publish_rules_agree_with_their_patterns(seed: int) -> None:
    """A subject is permitted if a pattern allows it and none denies it, whatever is in the cache."""
    rng = random.Random(seed)
    allow = rng.sample(PATTERNS, rng.randrange(4)) if seed % 4 else None
    deny = rng.sample(PATTERNS, rng.randrange(3))
    rules = PublishRules(allow, deny)
    for i in range(9000):
        subject = ".".join(rng.choice(TOKENS) for _ in range(rng.randint(1, 4))) + (f".{i}" if i % 2 else "")
        encoded = subject.encode()
        wanted = ((allow is None or any(matches(one.encode(), encoded) for one in allow))
                  and not any(matches(one.encode(), encoded) for one in deny))
        assert rules.permits(encoded) is wanted, (subject, allow, deny)


def test_subscriptions_that_need_a_filter() -> None:
    """Only subscriptions with wildcards, or in a queue group, that overlap a denied pattern need a filter."""
    rules = SubscribeRules((), ("foo", "bar.* q"))
    for subject, queue in ((b"bar", b""), (b"bar.x", b""), (b"baz.*", b""), (b"foo.*", b""), (b"baz", b"q")):
        assert rules.permits(subject, queue)
        assert rules.filter(subject, queue) is None
    everything = rules.filter(b">", b"")
    assert everything is not None
    assert [everything(subject) for subject in (b"foo", b"bar.x", b"baz")] == [True, False, False]
    grouped = rules.filter(b"bar.>", b"q")
    assert grouped is not None
    assert [grouped(subject) for subject in (b"foo", b"bar.x", b"bar.x.y")] == [True, True, False]


@pytest.mark.shows("auth.allow_responses")
def test_reply_permissions_end() -> None:
    """A permission ends after its number of responses or its time, and no earlier; a negative number is no limit."""
    now_ns = 0
    nothing = PublishRules((), ())

    def tracked(max_msgs: int, expires_ns: int) -> ReplyPermissions:
        replies = ReplyPermissions(ResponsePermission(max_msgs, expires_ns), nothing, lambda: now_ns)
        replies.received([b"r", b"", b"s"])
        return replies

    replies = tracked(2, 100)
    assert [replies.use(b"r") for _ in range(3)] == [True, True, False]
    now_ns = 100
    assert replies.permits(b"s")
    assert replies.use(b"s")
    now_ns = 101
    assert not replies.permits(b"s")
    assert not replies.use(b"s")
    assert not replies.use(b"")
    now_ns = 0
    forever = tracked(-1, -1)
    now_ns = 10**18
    assert all(forever.use(b"r") for _ in range(100))


@pytest.mark.shows("auth.allow_responses")
def test_reply_permissions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expired permissions are removed; if there are very many, also the oldest."""
    monkeypatch.setattr("broker.server.auth.permissions._REPLIES_MAX", 3)
    now_ns = 0
    replies = ReplyPermissions(ResponsePermission(1, 100), PublishRules((), ()), lambda: now_ns)
    replies.received([b"%d" % i for i in range(5)])
    assert [replies.permits(b"%d" % i) for i in range(5)] == [False, False, True, True, True]
    now_ns = 200
    replies.received([b"new"])
    assert list(replies._left) == [b"new"]
