"""JetStream of another account, used through imports: beside the real nats-server, with nats-py."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import nats
import pytest
import pytest_asyncio
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.errors import NoRespondersError
from nats.js.api import ConsumerConfig
from nats.js.errors import APIError, NotFoundError

from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIG = """
jetstream {{ max_mem: 100MB, max_file: 100MB, store_dir: "{}", domain: dom }}
accounts {{
  A {{ jetstream: enabled, users: [ {{user: a, password: a}} ]
      exports: [ {{service: "$JS.API.>", response_type: stream}}, {{service: "$JS.ACK.>"}}, {{stream: "deliver.>"}}
                 {{service: "$JS.API.DIRECT.GET.>"}}, {{service: "$JS.API.CONSUMER.MSG.NEXT.>"}}
                 {{stream: "ev.>"}}, {{service: "ev.>"}}, {{service: "single.>"}}, {{service: "again.>"}} ]
      mappings: {{ "single.>": "$JS.API.>" }} }}
  B {{ users: [ {{user: b, password: b}} ], exports: [ {{service: "worker"}} ]
      imports: [ {{service: {{account: A, subject: "$JS.API.>"}}, to: "JS.acc.API.>"}}
                 {{service: {{account: A, subject: "$JS.ACK.>"}}}}, {{stream: {{account: A, subject: "deliver.>"}}}}
                 {{service: {{account: A, subject: "ev.>"}}}}, {{service: {{account: A, subject: "single.>"}}}} ] }}
  C {{ users: [ {{user: c, password: c}} ]
      imports: [ {{service: {{account: A, subject: "$JS.API.>"}}}}
                 {{service: {{account: A, subject: "$JS.ACK.>"}}}} ] }}
  D {{ jetstream: enabled, users: [ {{user: d, password: d}} ]
      imports: [ {{stream: {{account: A, subject: "ev.>"}}, prefix: "from.a"}}
                 {{service: {{account: B, subject: "worker"}}, to: "local.worker"}} ] }}
  E {{ jetstream: enabled, users: [ {{user: e, password: e}} ]
      imports: [ {{service: {{account: A, subject: "$JS.API.DIRECT.GET.>"}}}}
                 {{service: {{account: A, subject: "$JS.API.CONSUMER.MSG.NEXT.>"}}}} ] }}
}}
"""

Clients = dict[str, Client]


def _config(directory: Path) -> Path:
    path = directory / "sharing.conf"
    path.write_text(CONFIG.format(directory / "store"))
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["nats-server", "jetblock"])
async def clients(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Clients]:
    """Connect a client of each account."""
    path = _config(tmp_path_factory.mktemp("sharing"))
    kind: type[ServerProcess] = NatsServerProcess if request.param == "nats-server" else BrokerProcess
    async with kind("-c", str(path)) as server:
        found = {name: await nats.connect(f"nats://{name}:{name}@127.0.0.1:{server.port}") for name in "abcde"}
        await found["a"].jetstream().add_stream(name="S", subjects=["ev.>"])
        await found["d"].jetstream().add_stream(name="D", subjects=["from.a.>"])
        yield found
        for client in found.values():
            await client.close()


async def _request(client: Client, subject: str, body: bytes = b"") -> Any:
    msg = await client.request(subject, body, timeout=30)
    return json.loads(msg.data)


async def test_publish_and_pull_through_an_import(clients: Clients) -> None:
    """Publishes, PubAcks, pulls, acks and consumers' figures work, with a prefix for the API and without."""
    for name, prefix in (("b", "JS.acc.API"), ("c", "$JS.API")):
        js = clients[name].jetstream(prefix=prefix)
        if name == "b":
            acks = [await js.publish(f"ev.{at}", b"%d" % at) for at in range(5)]
            assert [(ack.stream, ack.domain, ack.seq) for ack in acks] == [("S", "dom", at) for at in range(1, 6)]
        pull = await js.pull_subscribe("ev.>", f"pull_{name}", stream="S")
        msgs = await pull.fetch(3, timeout=30)
        assert [(msg.subject, msg.data, msg.metadata.sequence.stream) for msg in msgs] == [
            (f"ev.{at}", b"%d" % at, at + 1) for at in range(3)]
        for msg in msgs:
            await msg.ack_sync(timeout=30)
        info = await pull.consumer_info()
        assert (info.ack_floor.stream_seq, info.num_ack_pending, info.num_pending) == (3, 0, 2)
        assert [msg.subject for msg in await pull.fetch(2, timeout=30)] == ["ev.3", "ev.4"]


async def test_push_into_another_account(clients: Clients) -> None:
    """A consumer delivers to a stream export: messages keep the stream's subjects."""
    js = clients["b"].jetstream(prefix="JS.acc.API")
    await js.publish("ev.push", b"1")
    sub = await clients["b"].subscribe("deliver.x")
    await js.add_consumer("S", ConsumerConfig(durable_name="push", deliver_subject="deliver.x", ack_policy="explicit",
                                              filter_subject="ev.push"))
    msg = await sub.next_msg(timeout=30)
    assert (msg.subject, msg.data) == ("ev.push", b"1")
    await msg.ack_sync(timeout=30)
    assert (await js.consumer_info("S", "push")).ack_floor.consumer_seq == 1


async def test_push_to_another_accounts_service(clients: Clients) -> None:
    """A consumer delivers to a service import: the service also gets messages stored before it subscribed."""
    js = clients["d"].jetstream()
    await js.add_stream(name="W", subjects=["w.>"])
    info = await js.add_consumer("W",
                                 ConsumerConfig(name="pushed", deliver_subject="local.worker", ack_policy="explicit",
                                                     ack_wait=1))
    assert info.push_bound
    await js.publish("w.1", b"before")
    service = await clients["b"].subscribe("worker")
    await clients["b"].flush()
    await js.publish("w.2", b"after")
    got: dict[bytes, str] = {}
    while len(got) < 2:
        msg = await service.next_msg(timeout=30)
        got[msg.data] = msg.subject
    assert got == {b"before": "w.1", b"after": "w.2"}
    await service.unsubscribe()
    await js.delete_stream("W")


async def test_stream_over_an_import(clients: Clients) -> None:
    """A stream stores messages that its account imports, but none that arrived in the exporting account through a
    service."""
    await clients["a"].jetstream().publish("ev.stored", b"kept")
    await clients["b"].jetstream(prefix="JS.acc.API").publish("ev.unstored", b"")
    js = clients["d"].jetstream()
    async with asyncio.timeout(30):
        while True:  # its messages come from a subscription, so no PubAck shows that they are stored
            with suppress(NotFoundError):
                assert (await js.get_last_msg("D", "from.a.ev.stored")).data == b"kept"
                break
            await asyncio.sleep(0.01)
    with pytest.raises(APIError):
        await js.get_last_msg("D", "from.a.ev.unstored")


async def test_one_response_where_the_export_says_so(clients: Clients) -> None:
    """An import with single responses passes on the first of several messages for a pull; the others are
    redelivered."""
    await clients["b"].jetstream(prefix="JS.acc.API").add_consumer("S", ConsumerConfig(
        durable_name="one", ack_policy="explicit", ack_wait=0.3))
    inbox = await clients["b"].subscribe(clients["b"].new_inbox())
    await clients["b"].publish("single.CONSUMER.MSG.NEXT.S.one", b'{"batch": 2, "expires": 1000000000}',
                               reply=inbox.subject)
    assert (await inbox.next_msg(timeout=30)).subject == "ev.0"
    await clients["b"].publish("single.CONSUMER.MSG.NEXT.S.one", b"1", reply=inbox.subject)
    assert (await inbox.next_msg(timeout=30)).subject.startswith("ev.")


async def _unanswered(client: Client, subject: str, body: bytes = b"") -> bool:
    try:
        await client.request(subject, body, timeout=30)
    except NoRespondersError:
        return True
    return False


async def test_no_responders_of_the_api(clients: Clients) -> None:
    """Pull requests and direct gets that nobody serves have no responders, also in an importing account."""
    assert await _unanswered(clients["a"], "$JS.API.CONSUMER.MSG.NEXT.S.no")
    assert await _unanswered(clients["b"], "JS.acc.API.CONSUMER.MSG.NEXT.S.no")
    assert await _unanswered(clients["b"], "JS.acc.API.DIRECT.GET.S", b'{"seq": 1}')
    assert (await _request(clients["c"], "$JS.API.STREAM.INFO.NO"))["error"]["err_code"] == 10059


async def _answers(client: Client, subject: str, body: bytes) -> list[tuple[str, bytes]]:
    """Return the status and the body of each answer to a request."""
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox)
    await client.publish(subject, body, reply=inbox)
    await client.flush()
    found = [await answers.next_msg(timeout=30)]
    # All other answers to the request come before its true answer, or with it.
    for _ in range(2):
        await client.flush()
    found += [await answers.next_msg() for _ in range(answers.pending_msgs)]
    await answers.unsubscribe()
    return [((msg.headers or {}).get("Status", ""), msg.data) for msg in found]


async def test_an_import_under_the_same_name_has_responders(clients: Clients) -> None:
    """Both the account's own API and the other account's get such a request.

    There is one "no responders" reply, and only if neither account has a responder.
    """
    bucket = await clients["a"].jetstream().create_key_value(bucket="SHARED", direct=True)
    await bucket.put("k", b"v")
    await clients["a"].jetstream().add_consumer("KV_SHARED", ConsumerConfig(durable_name="P"))
    for name in "ce":
        assert await _answers(clients[name], "$JS.API.DIRECT.GET.KV_SHARED.$KV.SHARED.k", b"") == [("", b"v")]
        assert await _answers(clients[name], "$JS.API.DIRECT.GET.KV_SHARED", b'{"seq":1}') == [("", b"v")]
        for missing in ("DIRECT.GET.NO.x", "DIRECT.GET.NO", "CONSUMER.MSG.NEXT.KV_SHARED.NO", "CONSUMER.MSG.NEXT.NO.P"):
            assert await _answers(clients[name], f"$JS.API.{missing}", b"") == [("503", b"")]
    assert await _answers(clients["e"], "$JS.API.CONSUMER.MSG.NEXT.KV_SHARED.P", b"") == [("", b"v")]
    imported = await clients["c"].jetstream().key_value("SHARED")
    assert (await imported.get("k")).value == b"v"


async def _advisory_of(client: Client, subject: str, audit: Subscription) -> dict[str, Any]:
    """Return the API advisory of a request.

    nats-server has been seen, once in some hundred runs, to answer a request and to send no advisory of it. Then the
    request is sent again. Raises: TimeoutError.
    """
    async with asyncio.timeout(30):
        while True:
            await _request(client, subject)
            with suppress(TimeoutError):
                return dict(json.loads((await audit.next_msg(timeout=3)).data))


async def test_advisories_name_the_requester(clients: Clients) -> None:
    """Advisories have the part of the identity that the import shares: account, round-trip time, server, service
    account."""
    audit = await clients["a"].subscribe("$JS.EVENT.ADVISORY.API")
    await clients["a"].flush()
    event = await _advisory_of(clients["b"], "JS.acc.API.STREAM.NAMES", audit)
    await audit.unsubscribe()
    assert event["subject"] == "$JS.API.STREAM.NAMES"
    assert sorted(event["client"]) == ["acc", "rtt", "server", "svc"]
    assert (event["client"]["acc"], event["client"]["svc"]) == ("B", "A")


@pytest.mark.shows("accounts.domains")
async def test_domain(clients: Clients) -> None:
    """The domain's name precedes the subjects of the API and of buckets."""
    js = clients["a"].jetstream(domain="dom")
    bucket = await js.create_key_value(bucket="KB")
    await bucket.put("k", b"v")
    assert (await bucket.get("k")).value == b"v"
    assert await _request(clients["a"], "$JS.dom.API.$KV.KB.k", b"w") == {"stream": "KV_KB", "domain": "dom", "seq": 2}
    assert (await bucket.get("k")).value == b"w"
    assert (await _request(clients["a"], "$JS.dom.API.INFO"))["domain"] == "dom"
    assert await _unanswered(clients["a"], "$JS.other.API.INFO")


@pytest.mark.shows("accounts.user_info")
async def test_user_info(clients: Clients) -> None:
    """Users of every account learn their own user and account."""
    for name in "abcd":
        info = await _request(clients[name], "$SYS.REQ.USER.INFO")
        assert info["data"] == {"user": name, "account": name.upper(), "account_name": name.upper()}
        assert info["server"]["ver"]
