"""Every monitoring page beside the real nats-server: both get one configuration, the same clients, streams and
consumers.

The tests compare statuses, error texts, the keys and types of JSON, and all values that can be the same. Exceptions
are ``VARIES`` (ids, times, the machine), ``OURS`` and ``THEIRS`` (members of one server only).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
import pytest
import pytest_asyncio
from nats.aio.client import Client

from tests.certificates import Authority, Files
from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess, fetch

pytestmark = pytest.mark.asyncio(loop_scope="module")

VARIES = frozenset({
    "server_id", "go", "now", "start", "stop", "uptime", "idle", "last_activity", "rtt", "mem", "cpu",
    "cores", "gomaxprocs", "config_load_time", "update_time", "port", "cid", "http_port", "http_host", "store_dir",
    "max_memory", "max_storage", "created", "ts", "active", "first_ts", "last_ts", "last_active", "bytes", "storage",
    "in_bytes", "out_bytes", "in_client_bytes", "out_client_bytes",
    "pending_bytes",  # a closed connection may have a PONG for which its client did not wait
    # Both serve their own subscriptions, and count lookups in their own ways.
    "num_subscriptions", "num_cache", "num_inserts", "num_removes", "num_matches", "cache_hit_rate", "max_fanout",
    "avg_fanout", "config_digest", "tls_cipher_suite"})
VARIES_AT = (
    ".http_req_stats",
    # Both have their own subscriptions, and nats-server's mirrors send requests.
    "varz.subscriptions", ".account_detail.subscriptions", ".api.total", ".api_total")
OURS = frozenset({"jetblock"})
THEIRS = frozenset({
    "git_commit", "gomemlimit",
    "cluster_info",  # describes a cluster of one server
    "imports"})

CONFIG = """
server_name: NAME
server_tags: ["a", "b"]
listen: "127.0.0.1:-1"
http: "127.0.0.1:-1"
max_subscriptions: 5000
max_traced_msg_len: 64
tls {{ cert_file: "{tls.cert}", key_file: "{tls.key}", ca_file: "{ca}", timeout: 3 }}
allow_non_tls: true
websocket {{ listen: "127.0.0.1:-1", tls {{ cert_file: "{tls.cert}", key_file: "{tls.key}" }}
             compression: true, same_origin: true, allowed_origins: ["http://a.example"],
             handshake_timeout: "3s" }}
jetstream {{ store_dir: "{store}", max_mem: 64MB, max_file: 1GB, sync_interval: "90s",
             limits {{ max_ack_pending: 500, duplicate_window: "1m" }} }}
accounts {{
  A {{ users: [{{user: a, password: a}}], jetstream: {{ max_mem: 1MB, max_file: 2MB }} }}
  B {{ users: [{{user: b, password: b}}] }}
  SYS {{ users: [{{user: s, password: s}}] }}
}}
system_account: SYS
"""


@dataclass
class Pair:
    ours: ServerProcess
    theirs: ServerProcess


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    """Run both servers, with the same clients, streams and consumers."""
    directory = tmp_path_factory.mktemp("pages")
    tls = Authority(directory)
    files = tls.server()
    async with AsyncExitStack() as stack:
        servers: list[ServerProcess] = []
        for kind in (BrokerProcess, NatsServerProcess):
            path = directory / f"{kind.__name__}.conf"
            path.write_text(_config(files, tls.ca, directory / kind.__name__))
            server = await stack.enter_async_context(kind("-c", str(path), listen=False, monitor=False))
            servers.append(server)
            await _use(stack, server)
        yield Pair(*servers)


def _config(tls: Files, ca: str, store: Path) -> str:
    return CONFIG.format(tls=tls, ca=ca, store=store)


async def _use(stack: AsyncExitStack, server: ServerProcess) -> None:
    """Connect clients that stay and one that leaves; make a stream of a few messages with consumers, and a mirror."""
    async def connect(name: str, account: str) -> Client:
        client = await nats.connect(server.url.replace("tls://", "nats://"), user=account, password=account, name=name)
        stack.push_async_callback(client.close)
        return client

    first, second = await connect("first", "a"), await connect("second", "b")
    gone = await connect("gone", "a")
    await gone.subscribe("gone.*")
    await gone.flush()
    await gone.close()
    await first.subscribe("foo.>", queue="q")
    await first.subscribe("bar")
    limited = await first.subscribe("limited")
    await limited.unsubscribe(limit=9)
    await second.subscribe("baz.*")
    js = first.jetstream()
    await js.add_stream(name="S", subjects=["s.*"])
    await js.add_stream(name="M", storage="memory", subjects=["m"], max_bytes=1000)
    for n in range(5):
        await js.publish(f"s.{n % 2}", b"x" * 10)
    await js.delete_msg("S", 3)
    await js.add_stream(name="COPY", mirror=nats.js.api.StreamSource(name="S"))
    await js.add_consumer("S", durable_name="pull", ack_policy=nats.js.api.AckPolicy.EXPLICIT, ack_wait=3600)
    await js.add_consumer("S", durable_name="push", deliver_subject="deliver", ack_policy=nats.js.api.AckPolicy.NONE,
                          deliver_policy=nats.js.api.DeliverPolicy.NEW)
    direct = {"name": "D", "direct": True, "ack_policy": "none", "deliver_subject": "copies",
              "inactive_threshold": 3600 * 10**9}
    await first.request("$JS.API.CONSUMER.CREATE.S.D", json.dumps({"stream_name": "S", "config": direct}).encode())
    subscription = await js.pull_subscribe_bind("pull", "S")
    for message in await subscription.fetch(2, timeout=30):
        await message.ack_sync()
    await subscription.fetch(1, timeout=30)
    await subscription.unsubscribe()
    while _copied(await server.monitor("/jsz?acc=A&streams=1")) < 4:  # noqa: ASYNC110 (the server notifies nobody)
        await asyncio.sleep(0.02)
    await first.flush()
    await second.flush()


def _copied(page: Any) -> int:
    streams = page["account_details"][0]["stream_detail"]
    return next(int(stream["state"]["messages"]) for stream in streams if stream["name"] == "COPY")


PAGES = [
    "/varz", "/connz", "/connz?subs=1", "/connz?subs=detail", "/connz?auth=1", "/connz?auth=1&user=a&subs=1",
    "/connz?auth=1&acc=A", "/connz?acc=B&subs=detail", "/connz?acc=NOPE", "/connz?cid=99999", "/connz?state=closed",
    "/connz?state=closed&subs=detail&auth=1", "/connz?state=any&sort=start", "/connz?state=closed&sort=stop",
    "/connz?state=closed&sort=reason", "/connz?state=ALL&limit=2&offset=1", "/connz?limit=1&sort=subs",
    "/connz?offset=9",
    "/connz?offset=-3&limit=-4", "/connz?sort=subs", "/connz?sort=uptime", "/connz?sort=start", "/connz?sort=idle",
    "/connz?sort=last", "/connz?sort=msgs_from", "/connz?sort=msgs_to", "/connz?sort=bytes_from", "/connz?sort=pending",
    "/connz?mqtt_client=x", "/connz?user=nobody", "/connz?subs=DETAIL&cid=0", "/connz?acc=A&state=closed&auth=true",
    "/routez", "/routez?subs=1", "/routez?subs=detail", "/gatewayz", "/gatewayz?accs=1&subs=1", "/gatewayz?gw_name=x",
    "/leafz", "/leafz?subs=1&acc=A", "/subsz", "/subscriptionsz", "/subsz?acc=B", "/subsz?acc=NOPE",
    "/subsz?subs=1&acc=B&test=baz.x", "/subsz?subs=1&test=foo.bar", "/subsz?subs=1&test=foo.bar&offset=1",
    "/subsz?subs=1&acc=NOPE", "/subsz?offset=3&limit=7",
    "/accountz", "/accountz?acc=A", "/accstatz", "/accstatz?unused=1", "/accstatz?unused=0",
    "/jsz", "/jsz?accounts=1", "/jsz?acc=A", "/jsz?acc=NOPE", "/jsz?streams=1", "/jsz?acc=A&streams=1&config=1",
    "/jsz?consumers=1", "/jsz?acc=A&consumers=1&config=1", "/jsz?raft=1", "/jsz?accounts=1&offset=1",
    "/jsz?streams=1&limit=1",
    "/jsz?accounts=1&limit=-1", "/jsz?accounts=1&offset=-1", "/jsz?leader-only=1", "/jsz?acc=NOPE&streams=1",
    "/jsz?accounts=1&acc=NOPE", "/jsz?direct-consumers=1&streams=1&stream-leader-only=1",
    "/jsz?acc=A&consumers=1&direct-consumers=1", "/jsz?acc=A&consumers=1&direct-consumers=1&config=1",
    "/healthz", "/healthz?details=1", "/healthz?js-enabled-only=1", "/healthz?js-enabled=true",
    "/healthz?js-server-only=1",
    "/healthz?js-meta-only=1", "/healthz?account=A&stream=S", "/healthz?account=A&stream=S&consumer=pull",
    "/healthz?account=A", "/healthz?account=NOPE", "/healthz?account=NOPE&details=1", "/healthz?account=A&stream=NO",
    "/healthz?account=A&stream=NO&details=1", "/healthz?account=A&stream=S&consumer=NO",
    "/healthz?account=A&stream=S&consumer=NO&details=1", "/healthz?stream=S", "/healthz?stream=S&details=1",
    "/healthz?consumer=pull", "/healthz?consumer=pull&details=1", "/healthz?account=A&consumer=pull",
    "/ipqueuesz", "/ipqueuesz?queues=x",
]

REFUSED = [
    "/nope", "/varz/", "/varz/x", "/raftz", "/raftz?acc=A", "/Varz", "/debug",
    "/connz?sort=foo", "/connz?sort=stop", "/connz?sort=reason", "/connz?sort=stop&state=any", "/connz?limit=x",
    "/connz?offset=1.5", "/connz?limit=99999999999999999999", "/connz?offset=9223372036854775808", "/connz?cid=-1",
    "/connz?cid=99999999999999999999", "/connz?cid=x", "/connz?auth=maybe", "/connz?subs=maybe", "/connz?subs=details",
    "/connz?state=gone", "/connz?auth=maybe&limit=x", "/connz?limit=%22", "/connz?limit=%C3%A9", "/connz?limit=1_000",
    "/connz?limit=+5x", "/routez?subs=2", "/gatewayz?accs=q", "/gatewayz?subs=q", "/leafz?subs=q", "/leafz?subs=detail",
    "/subsz?subs=q", "/subsz?offset=q", "/subsz?limit=q", "/subsz?test=foo.*", "/subsz?test=foo..bar",
    "/subsz?test=%3E",
    "/accountz?acc=NOPE", "/accstatz?unused=q", "/jsz?accounts=q", "/jsz?streams=q", "/jsz?consumers=q",
    "/jsz?config=q", "/jsz?offset=q", "/jsz?limit=q", "/jsz?leader-only=q", "/jsz?raft=q", "/jsz?stream-leader-only=q",
    "/jsz?direct-consumers=q", "/healthz?js-enabled=q", "/healthz?js-enabled-only=q", "/healthz?js-server-only=q",
    "/healthz?js-meta-only=q", "/healthz?details=q", "/ipqueuesz?all=q",
]


@pytest.mark.shows("monitoring.varz", "monitoring.connz", "monitoring.close_reasons", "monitoring.subsz",
                   "monitoring.jsz",
                   "monitoring.healthz", "monitoring.accountz", "monitoring.routez", "monitoring.stacksz")
@pytest.mark.parametrize("path", PAGES)
async def test_page(pair: Pair, path: str) -> None:
    """A page of both servers has the same content."""
    status, body = await fetch(pair.ours.monitor_url + path)
    expected_status, expected = await fetch(pair.theirs.monitor_url + path)
    assert status == expected_status, body
    found = list(differences(json.loads(body), json.loads(expected), path.partition("?")[0]))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", REFUSED)
async def test_refused(pair: Pair, path: str) -> None:
    """Both servers refuse with the same status and text."""
    assert await fetch(pair.ours.monitor_url + path) == await fetch(pair.theirs.monitor_url + path)


def differences(ours: Any, theirs: Any, at: str = "", key: str = "") -> Any:
    """Yield each difference as a line."""
    if at.endswith(VARIES_AT):
        return
    if _kind(ours) != _kind(theirs):
        yield f"{at}: {ours!r}, theirs {theirs!r}"
    elif isinstance(ours, dict):
        extra, missing = ours.keys() - theirs.keys() - OURS, theirs.keys() - ours.keys() - THEIRS
        if extra or missing:
            yield f"{at}: ours alone {sorted(extra)}, theirs alone {sorted(missing)}"
        for name in sorted(ours.keys() & theirs.keys()):
            if name not in VARIES or isinstance(ours[name], dict | list):
                yield from differences(ours[name], theirs[name], f"{at}.{name}", name)
            elif _kind(ours[name]) != _kind(theirs[name]):
                yield f"{at}.{name}: {ours[name]!r}, theirs {theirs[name]!r}"
    elif isinstance(ours, list):
        ours, theirs = _own(ours), _own(theirs)
        if len(ours) != len(theirs):
            yield f"{at}: {len(ours)} items, theirs {len(theirs)}: {ours!r}, {theirs!r}"
        for n, (one, other) in enumerate(zip(ours, theirs, strict=False)):
            yield from differences(one, other, f"{at}[{n}]", key)
    elif ours != theirs and not (isinstance(ours, str) and ours.startswith("_INBOX.")):
        yield f"{at}: {ours!r}, theirs {theirs!r}"


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(type(value))
    return "number" if isinstance(value, int | float) else type(value).__name__


def _own(rows: list[Any]) -> list[Any]:
    """Return rows without those of the servers' own imports and mirrors, in an order that both have."""
    if rows and isinstance(rows[0], str):
        return sorted(row for row in rows if not row.startswith(("$SYS", "$G")))
    if rows and isinstance(rows[0], dict):
        named = [row for row in rows if row.get("account") != "SYS"
                 and not str(row.get("name")).startswith("JS_MIRROR_")]
        for name in ("acc", "subject", "name"):
            if named and name in named[0]:
                return sorted(named, key=lambda row: str(row[name]))
        return named
    return rows
