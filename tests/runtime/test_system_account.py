"""Requests to the system account get the same answers as from the real nats-server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from nats.errors import NoRespondersError

from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess
from tests.server.raw_client import Wire
from tests.server.system.listening import Listener

FILE = """
server_name: one
server_tags: ["zone:a", ssd]
server_metadata: { zone: a, "rack row": "7" }
jetstream { domain: hub, max_mem: 64MB, max_file: 1GB, sync_interval: "2m" }
authorization { timeout: 60 }
accounts {
  A { users [ {user: a, password: p} ], jetstream: enabled }
  B { users [ {user: b, password: p} ] }
  D { users [ {user: d, password: p} ], jetstream: enabled }
  $SYS { users [ {user: sys, password: p} ] }
}
"""

DEPENDS_ON_PROCESS = {
    "id", "server_id", "now", "start", "time", "seq", "timestamp", "config_load_time", "update_time", "created", "ts",
    "config_digest", "mem", "cpu", "uptime", "idle", "rtt", "last_activity", "port", "http_port", "store_dir",
    "git_commit",
    "go", "gomaxprocs", "in_bytes", "out_bytes", "in_msgs", "out_msgs", "sent", "received", "sent_to_clients",
    "received_from_clients", "subscriptions", "num_subscriptions", "in_client_msgs", "in_client_bytes",
    "out_client_msgs",
    "out_client_bytes", "pending_bytes", "http_req_stats", "flags", "cid", "start_time", "num_cache", "num_inserts",
    "num_removes", "num_matches", "cache_hit_rate", "max_fanout", "avg_fanout", "total_connections", "stop",
    "subscriptions_list", "first_ts", "last_ts", "tls_timeout", "auth_timeout", "cores", "storage", "bytes", "api",
    "http_host", "msgs"}
"""Values that may differ between two processes; their types must agree."""

ONLY_REAL = {
    "git_commit": "there is none", "imports": "built in, not imports",
    "compress_ok": "blocks are always compressed",
    "mappings": "the domain's own prefix is no mapping"}
ONLY_OURS = {"jetblock": "figures of our own"}

SERVER_PAGES = ("VARZ", "SUBSZ", "CONNZ", "ROUTEZ", "GATEWAYZ", "LEAFZ", "ACCOUNTZ", "JSZ", "HEALTHZ", "RAFTZ")
REQUESTS: list[tuple[str, object]] = [
    *((f"$SYS.REQ.SERVER.PING.{page}", None) for page in SERVER_PAGES),
    *((f"$SYS.REQ.SERVER.<id>.{page}", {}) for page in SERVER_PAGES),
    ("$SYS.REQ.SERVER.PING.IDZ", None), ("$SYS.REQ.SERVER.<id>.IDZ", None),
    ("$SYS.REQ.SERVER.PING", None), ("$SYS.REQ.SERVER.PING.STATSZ", None), ("$SYS.REQ.SERVER.<id>.STATSZ", {}),
    ("$SYS.REQ.SERVER.PING.HEALTHZ", {"server_name": "on", "host": "127.0.0", "tags": ["ssd"], "domain": "hub"}),
    ("$SYS.REQ.SERVER.PING.CONNZ", {"auth": True, "subscriptions": True, "sort": "cid"}),
    ("$SYS.REQ.SERVER.PING.CONNZ", {"auth": True, "acc": "A", "subscriptions_detail": True}),
    ("$SYS.REQ.SERVER.PING.CONNZ", {"auth": True, "user": "nobody"}), ("$SYS.REQ.SERVER.PING.CONNZ", {"limit": 1}),
    ("$SYS.REQ.SERVER.PING.CONNZ", {"state": 1}), ("$SYS.REQ.SERVER.PING.CONNZ", {"offset": 99, "acc": "A"}),
    ("$SYS.REQ.SERVER.PING.SUBSZ", {"test": "x.y"}), ("$SYS.REQ.SERVER.PING.ACCOUNTZ", {"account": "A"}),
    ("$SYS.REQ.SERVER.PING.JSZ", {"account": "A", "streams": True, "consumer": True, "config": True}),
    ("$SYS.REQ.SERVER.PING.JSZ", {"accounts": True, "streams": True, "consumer": True, "config": True, "raft": True,
                                  "leader_only": True, "limit": 10}),
    ("$SYS.REQ.SERVER.PING.JSZ", {"accounts": True}), ("$SYS.REQ.SERVER.PING.JSZ", {"account": "B"}),
    ("$SYS.REQ.SERVER.PING.HEALTHZ", {"js-enabled-only": True}),
    ("$SYS.REQ.SERVER.PING.HEALTHZ", {"account": "A", "stream": "S", "consumer": "C"}),
    ("$SYS.REQ.SERVER.PING.HEALTHZ", {"account": "A", "stream": "NONE"}),
    *((f"$SYS.REQ.ACCOUNT.{account}.{page}", None) for account in ("A", "B", "NONE")
      for page in ("CONNZ", "LEAFZ", "INFO")),
    ("$SYS.REQ.ACCOUNT.A.STATZ", None), ("$SYS.REQ.ACCOUNT.A.JSZ", None), ("$SYS.REQ.ACCOUNT.A.JSZ", {"streams": True}),
    ("$SYS.REQ.ACCOUNT.B.JSZ", None), ("$SYS.REQ.ACCOUNT.NONE.JSZ", None), ("$SYS.REQ.ACCOUNT.A.CONNS", None),
    ("$SYS.REQ.ACCOUNT.$SYS.CONNZ", {"auth": True}), ("$SYS.REQ.ACCOUNT.NONE.STATZ", {"include_unused": True}),
    # Errors
    ("$SYS.REQ.SERVER.PING.CONNZ", {"limit": 1.5}), ("$SYS.REQ.SERVER.PING.CONNZ", {"cid": -1}),
    ("$SYS.REQ.SERVER.PING.CONNZ", {"user": {}}), ("$SYS.REQ.ACCOUNT.A.STATZ", {"include_unused": "yes"}),
    ("$SYS.REQ.SERVER.PING.HEALTHZ", {"details": 0}), ("$SYS.REQ.SERVER.PING.JSZ", {"tags": "ssd"}),
    ("$SYS.REQ.SERVER.PING.CONNZ", {"limit": "many"}), ("$SYS.REQ.SERVER.PING.CONNZ", {"sort": "size"}),
    ("$SYS.REQ.SERVER.PING.CONNZ", {"sort": "stop"}), ("$SYS.REQ.SERVER.PING.SUBSZ", {"subscriptions": 1}),
    ("$SYS.REQ.SERVER.PING.SUBSZ", {"subscriptions": True, "test": "a.*"}), ("$SYS.REQ.SERVER.PING.VARZ", []),
    ("$SYS.REQ.SERVER.PING.STATSZ", 7), ("$SYS.REQ.SERVER.PING.ACCOUNTZ", {"account": "NONE"}),
    ("$SYS.REQ.SERVER.PING.VARZ", b"{x"), ("$SYS.REQ.SERVER.PING.STATSZ", b"{"), ("$SYS.REQ.ACCOUNT.A.CONNZ", b"{}{}"),
    ("$SYS.REQ.SERVER.<id>.KICK", {"cid": 999}), ("$SYS.REQ.SERVER.<id>.LDM", {"cid": 999}),
    ("$SYS.REQ.SERVER.<id>.RELOAD", None),
    # JetStream, which the system account has not
    *((f"$JS.{api}.{request}", None) for api in ("API", "hub.API") for request in (
        "INFO", "STREAM.NAMES", "STREAM.INFO.S", "STREAM.PEER.REMOVE.S", "CONSUMER.MSG.NEXT.S.C", "DIRECT.GET.S",
        "SERVER.X",
        "X", "ACCOUNT.PURGE.B", "ACCOUNT.PURGE.NONE", "ACCOUNT.PURGE.a/b", "ACCOUNT.PURGE.a\\b")),
]
UNANSWERED: list[tuple[str, object]] = [
    *((f"$SYS.REQ.SERVER.PING.{page}", {"server_name": "two"}) for page in ("VARZ", "STATSZ", "HEALTHZ")),
    ("$SYS.REQ.SERVER.PING.VARZ", {"server_name": "on", "exact_match": True}),
    ("$SYS.REQ.SERVER.PING.VARZ", {"cluster": "x"}),
    ("$SYS.REQ.SERVER.PING.VARZ", {"tags": ["ssd", "hdd"]}), ("$SYS.REQ.SERVER.PING.VARZ", {"domain": "hu"}),
    *((f"$JS.{api}.{request}", None) for api in ("API", "hub.API") for request in (
        "META.LEADER.STEPDOWN", "META.RESCUE", "SERVER.REMOVE", "SERVER.EVACUATE", "ACCOUNT.PURGE", "ACCOUNT.PURGE.A.B",
        "ACCOUNT.STREAM.MOVE.A.S", "ACCOUNT.X")),
    ("$SYS.REQ.SERVER.PING", {"host": "10."}), ("$SYS.REQ.ACCOUNT.B.STATZ", {}), ("$SYS.REQ.ACCOUNT.NONE.CONNS", {}),
]


def _name(value: object) -> str:
    return str(value).replace("'", "")[:60]


class Broker:
    """A server with clients in two accounts, and a stream with a consumer."""

    def __init__(self, process: ServerProcess, system: Listener, user: Listener) -> None:
        self.process = process
        self.system = system
        self.user = user
        self.id = ""

    async def prepare(self) -> None:
        js = self.user.client.jetstream(domain="hub")
        await js.add_stream(name="S", subjects=["s.>"])
        await js.publish("s.1", b"hello")
        await js.pull_subscribe("s.>", durable="C")
        async with Listener(self.process.url, user="d") as gone:
            await gone.client.jetstream(domain="hub").add_stream(name="LEFT", subjects=["left"])
        await self.user.client.subscribe("x.*")
        await self.user.client.flush()
        async with asyncio.timeout(30):
            # Gone, for those who are asked about connections.
            while (await self.system.ask("$SYS.REQ.ACCOUNT.D.CONNZ"))["data"]["num_connections"]:
                pass
            while not (await self.system.ask("$SYS.REQ.SERVER.PING.CONNZ", {"state": 1}))["data"]["num_connections"]:
                pass
        self.id = (await self.system.ask("$SYS.REQ.SERVER.PING.IDZ"))["id"]

    async def ask(self, subject: str, request: object) -> Any:
        return await self.system.ask(subject.replace("<id>", self.id), request)


@asynccontextmanager
async def prepared(kind: type[ServerProcess], directory: Path) -> AsyncIterator[Broker]:
    path = directory / f"{kind.__name__}.conf"
    path.write_text(FILE)
    async with (kind("-c", str(path), "-sd", str(directory / kind.__name__)) as process,
                Listener(process.url) as system, Listener(process.url, user="a") as user):
        broker = Broker(process, system, user)
        await broker.prepare()
        yield broker


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def brokers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Broker, Broker]]:
    """Start jetblock and the real server."""
    directory = tmp_path_factory.mktemp("system")
    async with AsyncExitStack() as stack:
        yield (await stack.enter_async_context(prepared(BrokerProcess, directory)),
               await stack.enter_async_context(prepared(NatsServerProcess, directory)))


def differences(ours: Any, real: Any, path: str = "") -> Iterator[str]:
    """Return the places at which two answers differ, except for the allowed ones above."""
    name = path.rpartition(".")[2]
    if isinstance(ours, dict) and isinstance(real, dict):
        for only, here, allowed in ((ours.keys() - real.keys(), "ours", ONLY_OURS),
                                    (real.keys() - ours.keys(), "real", ONLY_REAL)):
            yield from (f"{path}.{one} only in {here}" for one in sorted(only - allowed.keys()))
        for one in sorted(ours.keys() & real.keys()):
            yield from differences(ours[one], real[one], f"{path}.{one}")
    elif isinstance(ours, list) and isinstance(real, list):
        if name in DEPENDS_ON_PROCESS:
            return
        if len(ours) != len(real):
            yield f"{path}: {len(ours)} and {len(real)} entries"
        ours, real = sorted(ours, key=_place), sorted(real, key=_place)  # nats-server shows most lists in any order
        for one, other in zip(ours, real, strict=False):
            yield from differences(one, other, path)
    elif _is_inbox(ours) and _is_inbox(real):
        return
    elif _kind(ours) != _kind(real) or (name not in DEPENDS_ON_PROCESS and ours != real):
        yield f"{path}: {ours!r} and {real!r}"


def _kind(value: object) -> str:
    return "number" if type(value) in (int, float) else type(value).__name__


def _place(entry: Any) -> tuple[str, str]:
    """Return the name of an entry of a list, by which entries are compared."""
    if isinstance(entry, dict):
        return str(entry.get("sid", "")), str(entry.get("acc", entry.get("name", "")))
    return "", str(entry)


def _is_inbox(value: object) -> bool:
    return isinstance(value, str) and value.startswith("_INBOX.")


def _without_null(answer: dict[str, Any]) -> dict[str, Any]:
    """Remove the null that nats-server puts beside some errors."""
    return {name: value for name, value in answer.items() if name != "data" or value is not None}


@pytest.mark.shows("monitoring.requests", "monitoring.account_requests", "monitoring.statsz", "accounts.system",
                   "operation.metadata")
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("subject", "request_body"), REQUESTS, ids=_name)
async def test_same_answers(brokers: tuple[Broker, Broker], subject: str, request_body: object) -> None:
    """Answers have the same members, types and values."""
    ours, real = [_without_null(await broker.ask(subject, request_body)) for broker in brokers]
    assert list(differences(ours, real)) == []


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("subject", "request_body"), UNANSWERED, ids=_name)
async def test_same_silence(brokers: tuple[Broker, Broker], subject: str, request_body: object) -> None:
    """Requests for other servers, or about nothing, get no answer."""
    for broker in brokers:
        assert await broker.system.is_unanswered(subject, request_body)


@pytest.mark.shows("core.info", "accounts.system")
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("user", ["a", "sys"])
async def test_info_of_a_connection(brokers: tuple[Broker, Broker], user: str) -> None:
    """After the first PING, INFO has a member for the system account."""
    infos = []
    for broker in brokers:
        async with Wire(broker.process.port) as wire:
            connect = {"user": user, "pass": "p", "verbose": False, "protocol": 1}
            wire.send(b"CONNECT %b\r\nPING\r\n" % json.dumps(connect).encode())
            await wire.until(b"PONG\r\n")
            info = json.loads((await wire.until(b"\r\n"))[len(b"INFO "):])
            infos.append({name: info.get(name) for name in ("remote_account", "acc_is_sys", "connect_info")})
    ours, real = infos
    assert ours == real
    assert ours["acc_is_sys"] is (True if user == "sys" else None)


@pytest.mark.shows("monitoring.api_requests")
@pytest.mark.asyncio(loop_scope="module")
async def test_requests_of_all_accounts_are_seen(brokers: tuple[Broker, Broker]) -> None:
    """API requests are reported with their client, also failed ones, but not pull requests and direct gets."""
    seen = []
    for broker in brokers:
        async with (Listener(broker.process.url, "$JS.API.>") as watcher,
                    Listener(broker.process.url, user="b") as other):
            client = broker.user.client
            for subject, body in (("STREAM.INFO.S", b""), ("STREAM.NAMES", b"{"), ("CONSUMER.INFO.S.NONE", b""),
                                  ("DIRECT.GET.S", b'{"seq": 1}')):
                with suppress(NoRespondersError):
                    await client.request(f"$JS.hub.API.{subject}", body, timeout=30)
            await client.publish("$JS.hub.API.CONSUMER.MSG.NEXT.S.C", b'{"no_wait": true}', reply="anybody")
            await client.request("$JS.API.INFO", b"", headers={"X": "y", "Nats-Request-Info": "forged"}, timeout=30)
            await client.publish("$JS.API.NOBODY", b"knows")
            await client.flush()
            await other.client.request("$JS.API.STREAM.DELETE.S", b"", timeout=30)
            shown = []
            for _ in range(6):
                msg = await asyncio.wait_for(watcher.events.get(), 30)
                info = json.loads(msg.header.pop("Nats-Request-Info"))
                who = {name: info[name] for name in ("acc", "user", "lang", "ver", "server", "kind", "client_type")}
                shown.append((msg.subject, msg.data, dict(msg.header), who, sorted(info)))
            seen.append(sorted(shown, key=lambda one: one[0]))
            assert watcher.events.empty()
    ours, real = seen
    assert ours == real
    assert [subject.removeprefix("$JS.API.") for subject, *_ in ours] == [
        "CONSUMER.INFO.S.NONE", "INFO", "NOBODY", "STREAM.DELETE.S", "STREAM.INFO.S", "STREAM.NAMES"]


@pytest.mark.shows("accounts.purge")
@pytest.mark.asyncio(loop_scope="module")
async def test_purge_of_an_account(brokers: tuple[Broker, Broker]) -> None:
    """Only the system account may purge an account."""
    left = []
    for broker in brokers:
        js = broker.user.client.jetstream(domain="hub")
        await js.add_stream(name="T", subjects=["t"])
        assert await broker.user.is_unanswered("$JS.API.ACCOUNT.PURGE.A", None)
        names = [info.config.name for info in await js.streams_info()]
        answer = await broker.system.ask("$JS.API.ACCOUNT.PURGE.A")
        left.append((sorted(map(str, names)), answer, len(await js.streams_info())))
        await broker.prepare()
    assert left[0] == left[1] == (["S", "T"], {"type": "io.nats.jetstream.api.v1.account_purge_response",
                                               "initiated": True}, 0)


FROM_ACCOUNT: list[tuple[str, object]] = [
    ("$SYS.REQ.ACCOUNT.PING.CONNZ", None), ("$SYS.REQ.SERVER.PING.CONNZ", None), ("$SYS.REQ.ACCOUNT.PING.STATZ", None),
    ("$SYS.REQ.ACCOUNT.PING.CONNZ", {"auth": True, "acc": "$SYS"}), ("$SYS.REQ.ACCOUNT.PING.CONNZ", {"sort": "wrong"}),
    ("$SYS.REQ.ACCOUNT.PING.STATZ", {"accounts": ["$SYS"]}),
]


@pytest.mark.shows("monitoring.account_requests")
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("subject", "request_body"), FROM_ACCOUNT, ids=_name)
async def test_an_account_asks_about_itself(brokers: tuple[Broker, Broker], subject: str, request_body: object) -> None:
    """An account gets data about itself only, for any request."""
    ours, real = [_without_null(await broker.user.ask(subject, request_body)) for broker in brokers]
    assert list(differences(ours, real)) == []
    assert "$SYS" not in json.dumps(ours)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("subject", [
    "$SYS.REQ.SERVER.PING", "$SYS.REQ.SERVER.PING.IDZ", "$SYS.REQ.SERVER.PING.VARZ", "$SYS.REQ.SERVER.PING.STATSZ",
    "$SYS.REQ.SERVER.<id>.KICK", "$SYS.REQ.SERVER.<id>.RELOAD", "$SYS.REQ.ACCOUNT.A.CONNZ",
    "$SYS.REQ.ACCOUNT.PING.SUBSZ",
    "$SYS.REQ.ACCOUNT.PING.JSZ", "$SYS.REQ.ACCOUNT.A.CONNS"])
async def test_an_account_asks_nothing_else(brokers: tuple[Broker, Broker], subject: str) -> None:
    """Other requests of an account get no answer."""
    for broker in brokers:
        with pytest.raises(NoRespondersError):
            await broker.user.ask(subject.replace("<id>", broker.id))


@pytest.mark.shows("monitoring.connect_events")
@pytest.mark.asyncio(loop_scope="module")
async def test_same_events(brokers: tuple[Broker, Broker]) -> None:
    """A client that connects, publishes and leaves, and one that is refused, cause the same events."""
    seen = []
    for broker in brokers:
        url, events = broker.process.url, []
        async with Listener(url, "$SYS.>") as listener:
            async with Listener(url, user="b") as b:
                await b.client.publish("x", b"123")
                await b.client.flush()
            for subject in ("$SYS.SERVER.ACCOUNT.B.CONNS", "$SYS.ACCOUNT.B.SERVER.CONNS", "$SYS.ACCOUNT.B.CONNECT",
                            "$SYS.SERVER.ACCOUNT.B.CONNS", "$SYS.ACCOUNT.B.SERVER.CONNS", "$SYS.ACCOUNT.B.DISCONNECT"):
                events.append(await listener.next(subject))
            async with Wire(broker.process.port) as wire:
                wire.send(b'CONNECT {"user":"b","pass":"wrong","name":"guess","lang":"none","version":"1"}\r\n')
                await wire.end()
            events.append(await listener.next(f"$SYS.SERVER.{broker.id}.CLIENT.AUTH.ERR"))
            await listener.client.publish("$SYS.REQ.SERVER.PING", b"")
            events.append(await listener.next(f"$SYS.SERVER.{broker.id}.STATSZ"))
        seen.append(events)
    ours, real = seen
    assert list(differences(ours, real)) == []
    assert [event["sent"] for event in ours if "reason" in event] == [event["sent"] for event in real
                                                                      if "reason" in event]


@pytest.mark.shows("monitoring.kick")
@pytest.mark.asyncio(loop_scope="module")
async def test_kick(brokers: tuple[Broker, Broker]) -> None:
    """A kicked client is closed, and the answers are the same."""
    answers = []
    for broker in brokers:
        async with Listener(broker.process.url,
                            "$SYS.ACCOUNT.B.DISCONNECT") as listener, Wire(broker.process.port) as wire:
            wire.send(b'CONNECT {"user":"b","pass":"p","verbose":false}\r\n')
            await wire.settled()
            cid = json.loads(wire.info[5:])["client_id"]
            answer = await broker.ask("$SYS.REQ.SERVER.<id>.KICK", {"cid": cid})
            await wire.end()
            gone = await listener.next("$SYS.ACCOUNT.B.DISCONNECT")
            assert (gone["client"]["id"], gone["reason"]) == (cid, "Kicked")
            answers.append(answer)
    assert list(differences(*answers)) == []


@pytest.mark.shows("monitoring.reload_request", "monitoring.server_events")
@pytest.mark.parametrize("kind", [BrokerProcess, NatsServerProcess], ids=["jetblock", "nats-server"])
async def test_reload_and_shutdown(kind: type[ServerProcess], tmp_path: Path) -> None:
    """After a reload a new user can log in; a wrong file changes nothing, and its errors are the answer; a shutdown is
    announced. The system account may have another name."""
    path = tmp_path / "x.conf"
    text = ("authorization { timeout: 60 }\nsystem_account: ADMIN\n"
            "accounts { ADMIN { users [ {user: sys, password: p} ] }, A { users [ %s ] } }\n")
    path.write_text(text % "{user: a, password: p}")
    async with kind("-c", str(path)) as process, Listener(process.url, "$SYS.SERVER.>") as system:
        server_id = (await system.ask("$SYS.REQ.SERVER.PING.IDZ"))["id"]
        assert (await system.ask("$SYS.REQ.SERVER.PING.ACCOUNTZ"))["data"]["system_account"] == "ADMIN"
        path.write_text(text % "{user: a, password: p}, {user: new, password: p}")
        assert (await system.ask(f"$SYS.REQ.SERVER.{server_id}.RELOAD")).keys() == {"server"}
        async with Listener(process.url, user="new"):
            pass
        path.write_text("accounts { nonsense")
        assert (await system.ask(f"$SYS.REQ.SERVER.{server_id}.RELOAD"))["error"]["code"] == 500
        async with Listener(process.url, user="new"):
            pass
        await process.stop()
        assert (await system.next(f"$SYS.SERVER.{server_id}.SHUTDOWN"))["id"] == server_id


async def test_an_account_that_appears(tmp_path: Path) -> None:
    """An account that a reload adds may request data about itself, and causes events."""
    path = tmp_path / "x.conf"
    text = "accounts { $SYS { users [ {user: sys, password: p} ] } %s }\n"
    path.write_text(text % "")
    async with BrokerProcess("-c", str(path)) as process, Listener(process.url, "$SYS.ACCOUNT.>") as system:
        server_id = (await system.ask("$SYS.REQ.SERVER.PING.IDZ"))["id"]
        path.write_text(text % ", NEW { users [ {user: new, password: p} ] }")
        assert "error" not in await system.ask(f"$SYS.REQ.SERVER.{server_id}.RELOAD")
        async with Listener(process.url, user="new") as new:
            assert (await new.ask("$SYS.REQ.ACCOUNT.PING.STATZ"))["data"]["account_statz"][0]["acc"] == "NEW"
            assert (await system.next("$SYS.ACCOUNT.NEW.SERVER.CONNS"))["conns"] == 1
