"""Changes of what accounts share while clients are connected: by a reload, beside the real nats-server, and by
calls."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from broker.access.accounts import AccountSettings, User
from broker.access.sharing import Destination, Export, Import, Latency, SubjectMapping
from broker.server.server import Server
from tests import tokens
from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess
from tests.server.in_process import running
from tests.server.raw_client import Wire
from tests.server.sharing.dialogue import BETWEEN, Frame, Step, play

USERS = "users: [ {{user: {0}, password: {0}}} ]"

NONE = f"{tokens.LOGIN}\naccounts {{ A {{ {USERS.format('a')} }}, B {{ {USERS.format('b')} }} }}"
SHARED = f"""{tokens.LOGIN}
accounts {{
  A {{ {USERS.format('a')}, exports: [ {{service: "req.*"}}, {{stream: "ev.>"}} ] }}
  B {{ {USERS.format('b')}, imports: [ {{service: {{account: A, subject: "req.*"}}}}
                                       {{stream: {{account: A, subject: "ev.>"}}, prefix: a}} ],
       mappings: {{ m: m.one }} }}
}}"""
OTHERWISE = f"""{tokens.LOGIN}
accounts {{
  A {{ {USERS.format('a')}, exports: [ {{service: "req.*", response_type: stream}}, {{stream: "ev.x"}} ] }}
  B {{ {USERS.format('b')}, imports: [ {{service: {{account: A, subject: "req.u"}}, to: ask}}
                                       {{stream: {{account: A, subject: "ev.x"}}, prefix: b}} ],
       mappings: {{ m: m.two }} }}
}}"""
TURNED = f"""{tokens.LOGIN}
accounts {{
  B {{ {USERS.format('b')}, exports: [ {{service: "req.*"}}, {{stream: "ev.>"}} ] }}
  A {{ {USERS.format('a')}, imports: [ {{service: {{account: B, subject: "req.*"}}}}
                                       {{stream: {{account: B, subject: "ev.>"}}, prefix: a}} ],
       mappings: {{ m: m.one }} }}
}}"""

CHANGES = {"begin": (NONE, SHARED), "end": (SHARED, NONE), "differ": (SHARED, OTHERWISE), "turn": (SHARED, TURNED)}

_BUSY: list[Step] = [
    ("a", b"PUB ev.x 1\r\nx\r\nPUB ev.y 1\r\ny\r\n"), ("b", b"PUB ev.x 1\r\nx\r\nPUB m 1\r\nm\r\n"),
    ("b", b"PUB req.u _INBOX.1 1\r\n1\r\nPUB ask _INBOX.1 1\r\n2\r\n"),
    ("a", b"PUB {R} 3\r\nyes\r\nPUB {R} 3\r\nyes\r\n"),
    ("a", b"PUB req.u _INBOX.1 1\r\n1\r\n"), ("b", b"PUB {R} 3\r\nyes\r\n")]
STEPS: list[Step] = [
    ("a", b"SUB req.* 1\r\nSUB a.ev.> 2\r\nSUB _INBOX.> 3\r\n"),
    ("b", b"SUB req.* 1\r\nSUB a.ev.> 2\r\nSUB _INBOX.> 3\r\nSUB b.> 4\r\nSUB m.* 5\r\nSUB > 6\r\n"), *_BUSY, BETWEEN,
    *_BUSY,
    ("b", b"UNSUB 2\r\nUNSUB 6\r\n"), *_BUSY]


async def _reload(kind: type[ServerProcess], path: Path, before: str, after: str) -> list[tuple[str, list[Frame]]]:
    write = path.write_text
    write(before)
    async with kind("-c", str(path)) as server:
        async def reload() -> None:
            write(after)
            server.send_signal(signal.SIGHUP)
            await server.wait_line("Reloaded server configuration")

        return await play(server.port, STEPS, reload)


@pytest.mark.shows("accounts.stream_sharing")
@pytest.mark.parametrize("name", CHANGES)
async def test_reload(name: str, tmp_path: Path) -> None:
    """Live connections and their subscriptions are affected as on nats-server."""
    real, ours = await asyncio.gather(_reload(NatsServerProcess, tmp_path / "real.conf", *CHANGES[name]),
                                      _reload(BrokerProcess, tmp_path / "ours.conf", *CHANGES[name]))
    assert ours == real


# Changes by calls: the interface for accounts that are not in a file.

REQ, ASK = Export("service", "req"), Import("service", "A", "req", to="ask")
ACCOUNTS = (AccountSettings("A", exports=(REQ,)), AccountSettings("B", imports=(ASK,)))
LOGINS = {"users": (User("a", "a", "A"), User("b", "b", "B"))}
CONNECT = 'CONNECT {"verbose":false,"headers":true,"no_responders":true,"user":"%s","pass":"%s"}\r\n'


async def _ask(server: Server) -> str:
    """Return the answer to a request from B."""
    async with Wire(server.port) as service, Wire(server.port) as client:
        service.send(b"%bSUB req 1\r\n" % (CONNECT % ("a", "a")).encode())
        await service.settled()
        client.send(b"%bSUB _INBOX.> 1\r\nPUB ask _INBOX.1 0\r\n\r\n" % (CONNECT % ("b", "b")).encode())
        refused = await client.settled()
        if b"503" in refused:
            return "no responders"
        received = await service.settled()
        service.send(b"PUB %b 3\r\nyes\r\n" % received.split()[3])
        await service.settled()
        return (await client.settled()).decode().split("\r\n")[1]


@pytest.mark.shows("accounts.stream_sharing")
async def test_an_import_waits_for_its_export() -> None:
    """The accounts may come in any order; an import begins with its export, and ends with it."""
    async with running(ACCOUNTS[1:], users=LOGINS["users"][1:]) as server:
        server.accounts.put(AccountSettings("A"))
        assert server.accounts.exchange.imports_service("B", b"ask") is False
        server.accounts.put(ACCOUNTS[0])
        assert server.accounts.exchange.imports_service("B", b"ask") is True
        server.accounts.put(AccountSettings("A", exports=(Export("service", "req", ()),)))
        assert server.accounts.exchange.imports_service("B", b"ask") is False
        server.accounts.put(AccountSettings("A", exports=(Export("service", "req", ("B",)),)))
        assert server.accounts.exchange.imports_service("B", b"ask") is True


async def test_an_activated_import() -> None:
    """A private export is open to an import with a checked token."""
    private = AccountSettings("A", exports=(Export("service", "req", ()),))
    async with running((private, ACCOUNTS[1]), **LOGINS) as server:
        assert await _ask(server) == "no responders"
        server.accounts.put(AccountSettings("B", imports=(Import("service", "A", "req", to="ask", activated=True),)))
        assert await _ask(server) == "yes"


async def test_changes_at_run_time() -> None:
    """A change takes effect at once; an unchanged setting does not affect pending responses."""
    async with running(ACCOUNTS, **LOGINS) as server:
        assert await _ask(server) == "yes"
        server.accounts.put(AccountSettings("B"))
        assert await _ask(server) == "no responders"
        server.accounts.put(AccountSettings("B", imports=(ASK,),
                                            mappings=(SubjectMapping("x", (Destination("ask"),)),)))
        assert await _ask(server) == "yes"
        async with Wire(server.port) as service, Wire(server.port) as client:
            service.send(b"%bSUB req 1\r\n" % (CONNECT % ("a", "a")).encode())
            await service.settled()
            client.send(b"%bSUB _INBOX.> 1\r\nPUB x _INBOX.1 0\r\n\r\n" % (CONNECT % ("b", "b")).encode())
            await client.settled()
            reply = (await service.settled()).split()[3]
            server.accounts.put(AccountSettings("A", exports=(REQ,), max_payload=100))
            service.send(b"PUB %b 4\r\nlate\r\n" % reply)
            await service.settled()
            assert b"late" in await client.settled()


async def test_removed_accounts_leave_nothing_behind() -> None:
    """An account's imports, exports and mappings can end while responses are awaited, also measured ones."""
    measured = AccountSettings("A", exports=(Export("service", "req", latency=Latency("lat")),))
    async with running((measured, ACCOUNTS[1]), **LOGINS) as server:
        router_a, router_b = (server.accounts.exchange._members[name].router for name in "AB")
        before = router_a.subscription_count, router_b.subscription_count - 1
        async with Wire(server.port) as client, Wire(server.port) as service:
            service.send(b"%bSUB req 1\r\n" % (CONNECT % ("a", "a")).encode())
            await service.settled()
            client.send(b"%bSUB _INBOX.> 1\r\nPUB ask _INBOX.1 0\r\n\r\n" % (CONNECT % ("b", "b")).encode())
            await client.settled()
            assert router_b._removal_observers
            server.accounts.put(AccountSettings("A"))
            assert not router_b._removal_observers
            assert (router_a.subscription_count, router_b.subscription_count) == (before[0] + 1, before[1] + 1)


async def test_a_limit_counts_messages_of_both_accounts() -> None:
    """UNSUB with a maximum ends a subscription after that many messages, wherever they were published."""
    streams = (AccountSettings("A", exports=(Export("stream", "ev"),)),
               AccountSettings("B", imports=(Import("stream", "A", "ev"),)))
    async with running(streams, **LOGINS) as server, Wire(server.port) as theirs, Wire(server.port) as own:
        theirs.send((CONNECT % ("a", "a")).encode())
        own.send(b"%bSUB ev 1\r\nUNSUB 1 3\r\n" % (CONNECT % ("b", "b")).encode())
        await own.settled()
        theirs.send(b"PUB ev 1\r\n1\r\n")
        await theirs.settled()
        own.send(b"PUB ev 1\r\n2\r\n")
        await own.settled()
        theirs.send(b"PUB ev 1\r\n3\r\nPUB ev 1\r\n4\r\n")
        await theirs.settled()
        assert (await own.settled()).count(b"MSG ev 1 1\r\n3") == 1
        router = server.accounts.exchange._members["A"].router
        assert not router.interest(b"ev")


@pytest.mark.shows("core.mappings")
async def test_mappings_of_the_default_account() -> None:
    """Mappings at the top of a configuration apply; JetStream's domain adds its own, which the account's precede."""
    mappings = (SubjectMapping("x.*", (Destination("y.$1"),)), SubjectMapping("$JS.dom.API.INFO", (Destination("z"),)))
    async with running((AccountSettings("$G", mappings=mappings),)) as server, Wire(server.port) as client:
        client.send(b'CONNECT {"verbose":false}\r\nSUB > 1\r\nPUB x.1 1\r\na\r\nPUB $JS.dom.API.INFO 1\r\nb\r\n')
        assert (await client.settled()).startswith(b"MSG y.1 1 1\r\na\r\nMSG z 1 1\r\nb\r\n")


async def test_many_importers() -> None:
    """Very many subscriptions to one import, some with limits, get their messages in order."""
    streams = (AccountSettings("A", exports=(Export("stream", "ev.>"),)),
               AccountSettings("B", imports=(Import("stream", "A", "ev.>", prefix="a"),)))
    async with running(streams, **LOGINS) as server, AsyncExitStack() as stack:
        theirs = await stack.enter_async_context(Wire(server.port))
        theirs.send((CONNECT % ("a", "a")).encode())
        wires = [await stack.enter_async_context(Wire(server.port)) for _ in range(20)]
        for at, wire in enumerate(wires):
            wire.send(b"%bSUB a.ev.* 1\r\n" % (CONNECT % ("b", "b")).encode() + (b"UNSUB 1 2\r\n" if at % 2 else b""))
            await wire.settled()
        theirs.send(b"".join(b"PUB ev.%d 1\r\n%d\r\n" % (at, at) for at in range(3)))
        await theirs.settled()
        for at, wire in enumerate(wires):
            wanted = b"".join(b"MSG a.ev.%d 1 1\r\n%d\r\n" % (one, one) for one in range(2 if at % 2 else 3))
            assert (await wire.settled()).startswith(wanted + b"PONG")
