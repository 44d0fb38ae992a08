"""One configuration on the real nats-server and on ``jetblock --workers 1``: clients notice no difference."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from tests import tokens
from tests.certificates import Authority
from tests.front.fronted import FrontedProcess
from tests.harness import NatsServerProcess, ServerProcess
from tests.server.operator.clients import ask, connected, directory

pytestmark = [pytest.mark.asyncio, pytest.mark.shows("cluster.workers_configuration")]

ACCOUNTS = """
server_name: same
authorization {{ timeout: 60 }}
tls {{ cert_file: "{cert}", key_file: "{key}", timeout: 30 }}
PASSWORD: "secret one"
no_auth_user: guest
max_payload: 100k
accounts {{
  SYS {{ users: [ {{ user: sys, password: sys }} ] }}
  APP {{
    jetstream {{ max_streams: 2, max_file: 10M }}
    mappings {{ old.*: "new.$1" }}
    users: [
      {{ user: app, password: $PASSWORD }}
      {{ user: reader, password: reader, permissions {{
         publish {{ allow: ["$JS.API.>", "$JS.ACK.>", "_INBOX.>"] }}, subscribe: "_INBOX.>" }} }}
    ]
    exports: [ {{ service: "echo" }}, {{ stream: "events.>" }}, {{ service: "$JS.API.>" }}, {{ service: "$JS.ACK.>" }},
               {{ stream: "deliver.>" }} ]
  }}
  OTHER {{
    users: [ {{ user: other, password: other }} ]
    imports: [ {{ service {{ account: APP, subject: echo }}, to: app.echo }}
               {{ stream {{ account: APP, subject: "events.>" }}, prefix: app }}
               {{ service {{ account: APP, subject: "$JS.API.>" }} }} ]
  }}
  PLAIN {{ users: [ {{ user: guest, password: guest }} ], limits {{ max_connections: 2, max_subs: 3 }} }}
}}
system_account: SYS
"""

Step = Callable[[], Awaitable[Any]]


async def outcome(step: Step) -> Any:
    """Return what a step returns, or its error."""
    try:
        return await step()
    except TimeoutError:
        return "timeout"
    except (nats.errors.Error, OSError) as error:
        return type(error).__name__, str(getattr(error, "description", "") or error)


async def subscribed(client: Client) -> None:
    """Wait until the server has the client's subscriptions. A first PING of nats-py may overtake the line that
    subscribes."""
    for _ in range(2):
        await client.flush()


async def dialogue(process: ServerProcess, authority: Authority) -> list[Any]:
    """Return what the users of ``ACCOUNTS`` see."""
    context = authority.trust()
    seen: list[Any] = []
    errors: list[str] = []

    async def on_error(error: Exception) -> None:
        errors.append(str(error))

    async def login(**fields: str) -> Client:
        return await nats.connect(process.url.replace("nats://", "tls://"), tls=context, allow_reconnect=False,
                                  error_cb=on_error, **fields)

    async def see(step: Step) -> None:
        seen.append(await outcome(step))

    await see(lambda: login(user="app", password="wrong"))
    app, reader = await login(user="app", password="secret one"), await login(user="reader", password="reader")
    other, guest = await login(user="other", password="other"), await login()
    js = app.jetstream()
    await see(lambda: stream(app, "ONE", "new.*"))
    await see(lambda: stream(app, "TWO", "two"))
    await see(lambda: stream(app, "THREE", "three"))
    await see(lambda: published(app, "old.1", b"mapped"))
    await see(lambda: published(app, "two", bytes(90_000)))
    # The limit in front of a worker is a third and 64 KiB higher.
    await see(lambda: published(app, "two", bytes(200_000)))
    await see(lambda: published(guest, "two", b""))
    await see(lambda: reader.jetstream().stream_info("ONE"))
    seen[-1] = seen[-1].state.messages if not isinstance(seen[-1], tuple) else seen[-1]
    await reader.publish("two", b"denied")
    async with asyncio.timeout(30):
        while len(errors) < 2:  # noqa: ASYNC110  # the callback of a library
            await asyncio.sleep(0.01)
    seen.append(list(errors))
    pull = await reader.jetstream().pull_subscribe("new.*", durable="reads", stream="ONE")
    message = (await pull.fetch(1, timeout=10))[0]
    seen.append((message.subject, message.data))
    await message.ack()
    seen.append((await js.account_info()).limits.max_streams)
    await see(lambda: stream(guest, "GUEST", "guest"))

    async def echo(message: Any) -> None:
        await message.respond(message.data)

    await app.subscribe("echo", cb=echo)
    await subscribed(app)
    seen.append((await other.request("app.echo", b"hello", timeout=10)).data)
    events = await other.subscribe("app.events.>")
    await subscribed(other)
    await app.publish("events.one", b"1")
    await app.flush()
    seen.append((await events.next_msg(30)).subject)
    seen.append(json.loads((await other.request("$JS.API.STREAM.NAMES", b"", timeout=10)).data)["streams"])
    assert guest._server_info["server_name"] == "same"
    second = await login()
    await see(lambda: login())
    for client in (app, reader, other, guest, second):
        await client.close()
    return seen


async def stream(client: Client, name: str, subject: str) -> Any:
    info = await client.jetstream().add_stream(name=name, subjects=[subject])
    return info.config.name, info.state.messages


async def published(client: Client, subject: str, payload: bytes) -> Any:
    ack = await client.jetstream().publish(subject, payload, timeout=20)
    return ack.stream, ack.seq, ack.domain


@pytest.mark.soak
async def test_accounts_permissions_and_sharing(tmp_path: Path) -> None:
    """TLS, users, permissions, limits, mappings, exports and imports, JetStream of another account by an import."""
    authority = Authority(tmp_path)
    files = authority.server()
    config = tmp_path / "c.conf"
    config.write_text(ACCOUNTS.format(cert=files.cert, key=files.key))
    said = []
    for kind in (NatsServerProcess, FrontedProcess):
        async with kind("-c", str(config), "-js", "-sd", str(tmp_path / kind.__name__)) as process:
            said.append(await dialogue(process, authority))
    real, fronted = said
    # An account without JetStream: nats-server's own says so, and here nobody answers; nats-py shows both as errors.
    assert fronted[12][0] == "ServiceUnavailableError"
    assert real.pop(12)
    fronted.pop(12)
    assert fronted == real


@pytest.mark.soak
async def test_operator_mode(tmp_path: Path) -> None:
    """Users log in with tokens; the limits of JetStream come from the account's token, and follow it at a reload."""
    limits = {"mem_storage": -1, "disk_storage": -1, "streams": 1, "consumer": -1}
    config = tmp_path / "c.conf"
    config.write_text(directory(tmp_path, A=tokens.account("A", limits=limits), B=tokens.account("B")))
    said: list[Any] = []
    for kind in (NatsServerProcess, FrontedProcess):
        async with kind("-c", str(config), "-js", "-sd", str(tmp_path / kind.__name__)) as process:
            seen: list[Any] = []
            async with connected(process, tokens.user("u", of="A")) as client:
                for name in ("ONE", "TWO"):
                    seen.append(await outcome(lambda name=name: stream(client, name, name)))  # type: ignore[misc]
                seen.append(await outcome(lambda: published(client, "ONE", b"1")))
                bucket = await outcome(lambda: client.jetstream().create_key_value(bucket="b"))
                seen.append(bucket[0] if isinstance(bucket, tuple) else bucket)
            said.append(seen)
    assert said[0] == said[1]


@pytest.mark.soak
async def test_a_new_account_of_an_operator(tmp_path: Path) -> None:
    """Tokens that are pushed to nats-server's resolver let users in at once. After a reload all workers serve a new
    account, and have the new limits of one that they knew."""
    limits = {"mem_storage": -1, "disk_storage": -1, "streams": 1, "consumer": -1}
    config = tmp_path / "c.conf"
    config.write_text(directory(tmp_path, A=tokens.account("A", limits=limits, iat=1)))

    async def add(name: str, of: str, shard: int) -> Any:
        async with connected(process, tokens.user("u", of=of)) as client:
            info = await client.jetstream(timeout=10).add_stream(
                name=name, subjects=[name], metadata={"jetblock.shard": str(shard)})
            return info.config.name

    async with FrontedProcess("-c", str(config), "-js", "-sd", str(tmp_path / "js"), workers=2) as process:
        assert await add("ONE", "A", 0) == "ONE"
        with pytest.raises(nats.js.errors.Error, match="maximum number of streams"):
            await add("TWO", "A", 1)
        async with connected(process, tokens.user("admin", "SYS"), "admin") as admin:
            for token in (tokens.account("A", limits={**limits, "streams": 2}), tokens.account("B", limits=limits)):
                assert (await ask(admin, "$SYS.REQ.CLAIMS.UPDATE", token))["data"]["code"] == 200
        async with connected(process, tokens.user("u", of="B")) as client:
            await client.flush()
        process.stderr.clear()
        process.send_signal(signal.SIGHUP)
        await process.wait_line(r"^\[\d+\] \S+ \S+ \[INF\] Reloaded server configuration")
        assert await add("TWO", "A", 1) == "TWO"
        with pytest.raises(nats.js.errors.Error, match="maximum number of streams"):
            await add("THREE", "A", 0)
        assert await add("B", "B", 1) == "B"
