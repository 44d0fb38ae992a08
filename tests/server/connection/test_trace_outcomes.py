"""Outcomes of traced messages in their events, beside the real nats-server: the decision of a stream, and the reasons
why a message does not reach a subscription or leave its account. A message for the trace alone is checked like any
other, and not stored.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import cramjam
import nats
import pytest
from nats.aio.client import Client

from tests.harness import BrokerProcess, NatsServerProcess
from tests.server.sharing.dialogue import masked

pytestmark = [pytest.mark.asyncio, pytest.mark.shows("core.trace_messages")]

CONFIG = """
server_name: s
max_payload: 64KB
jetstream {{ store_dir: "{}" }}
mappings: {{ "mapped.denied": "denied.x", "mapped.s": "s.mapped" }}
authorization {{ timeout: 60, users: [
  {{user: a, password: a,
    permissions: {{publish: {{deny: ["denied.>", "hidden.>"]}}, subscribe: {{deny: "shut.x"}} }} }}
  {{user: b, password: b}} ] }}
"""

DEST = {"Nats-Trace-Dest": "trace.x"}
STREAMS: list[dict[str, Any]] = [
    {"name": "S", "subjects": ["s.>"]},
    {"name": "FULL", "subjects": ["full.>"], "max_msgs": 1, "discard": "new"},
    {"name": "SMALL", "subjects": ["small"], "max_msg_size": 200},
    {"name": "BYTES", "subjects": ["bytes"], "max_bytes": 300, "discard": "new"},
    {"name": "ONE", "subjects": ["one.*"], "max_msgs_per_subject": 1, "discard": "new",
     "discard_new_per_subject": True},
    {"name": "SEALED", "subjects": ["sealed"]},
    {"name": "MAPPED", "subjects": ["in.*"], "subject_transform": {"src": "in.*", "dest": "out.{{wildcard(1)}}"}},
    {"name": "INTEREST", "subjects": ["interest.*"], "retention": "interest"},
    {"name": "COUNT", "subjects": ["count"], "allow_msg_counter": True},
    {"name": "QUIET", "subjects": ["quiet"], "no_ack": True},
    {"name": "TTL", "subjects": ["ttl"], "allow_msg_ttl": True},
    {"name": "LATER", "subjects": ["later.>"], "allow_msg_schedules": True},
    {"name": "LAST", "subjects": ["last"]},
]

PUBLISHES: list[tuple[str, dict[str, str], int]] = [
    ("s.plain", {}, 1), ("s.id", {"Nats-Msg-Id": "one"}, 1), ("s.id", {"Nats-Msg-Id": "one"}, 1),
    ("s.x", {"Nats-Expected-Stream": "OTHER"}, 1), ("s.x", {"Nats-Expected-Last-Sequence": "77"}, 1),
    ("s.x", {"Nats-Expected-Last-Subject-Sequence": "77"}, 1),
    ("s.none", {"Nats-Expected-Last-Subject-Sequence": "77"}, 1),
    ("s.x", {"Nats-Expected-Last-Subject-Sequence-Subject": "s.y"}, 1),
    ("s.x", {"Nats-Expected-Last-Msg-Id": "two"}, 1), ("s.x", {"Nats-TTL": "5s"}, 1),
    ("s.x", {"Nats-Rollup": "sub"}, 1),
    ("s.x", {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1"}, 1), ("s.x", {"Nats-Incr": "1"}, 1),
    ("s.x", {"Nats-Schedule": "@every 1s"}, 1), ("s.x", {"Nats-Stream-Source": "X 1 > > s.x"}, 1),
    ("full.a", {}, 1), ("full.a", {}, 1), ("small", {}, 1), ("small", {}, 300), ("bytes", {}, 1), ("bytes", {}, 300),
    ("one.a", {}, 1), ("one.a", {}, 1), ("sealed", {}, 1), ("in.a", {}, 1), ("interest.a", {}, 1),
    ("interest.wanted", {}, 1),
    ("count", {}, 1), ("count", {"Nats-Incr": "x"}, 0), ("count", {"Nats-Incr": "+1"}, 0), ("quiet", {}, 1),
    ("ttl", {"Nats-TTL": "x"}, 1), ("ttl", {"Nats-TTL": "1h"}, 1), ("ttl", {"Nats-Rollup": "other"}, 1),
    ("later.a", {"Nats-Schedule": "x"}, 1),
    ("later.a", {"Nats-Schedule": "@every 1h", "Nats-Schedule-Target": "later.b"}, 1),
    ("denied.a", {}, 1), ("mapped.denied", {}, 1), ("mapped.s", {}, 1), ("$NRG.a", {}, 1), ("_GR_.a", {}, 1),
    ("own", {}, 1), ("shut.x", {}, 1), ("shut.y", {}, 1), ("s.x", {"Nats-Trace-Origin-Account": "A"}, 1),
    ("s.x", {"Empty": ""}, 1), ("own", {"Accept-Encoding": "s2"}, 1), ("own", {"Accept-Encoding": "gzip, br"}, 1),
    ("own", {"Accept-Encoding": "br"}, 1), ("shut.x", {"publisher": "other"}, 1), ("shut.y", {"publisher": "other"}, 1),
    ("s.x", {"Nats-Trace-Dest": "hidden.x"}, 1), ("s.x", {"Nats-Trace-Dest": "_GR_.x"}, 1),
]


def _asking(headers: dict[str, str], only: bool) -> dict[str, str]:
    return {**DEST, **({"Nats-Trace-Only": "true"} if only else {}), **headers}


async def _set_up(client: Client) -> None:
    for config in STREAMS:
        made = json.loads((await client.request(f"$JS.API.STREAM.CREATE.{config['name']}",
                                                json.dumps(config).encode())).data)
        assert "error" not in made, made
    sealed = {**next(config for config in STREAMS if config["name"] == "SEALED"), "sealed": True}
    await client.request("$JS.API.STREAM.UPDATE.SEALED", json.dumps(sealed).encode())
    durable = {"durable_name": "D", "ack_policy": "explicit", "filter_subject": "interest.wanted"}
    await client.request("$JS.API.CONSUMER.CREATE.INTEREST.D.interest.wanted",
                         json.dumps({"stream_name": "INTEREST", "config": durable}).encode())


async def _play(port: int, wait: float) -> list[Any]:
    """Return, for each publish, its event, the replies, and the stored message's headers.

    Args: ``wait``: seconds after which an event that may not come is no longer expected.
    """
    errors: list[str] = []

    async def on_error(error: Exception) -> None:
        errors.append(str(error))

    client = await nats.connect(f"nats://a:a@127.0.0.1:{port}", name="tracer", no_echo=True, error_cb=on_error)
    other = await nats.connect(f"nats://b:b@127.0.0.1:{port}", name="other")
    await _set_up(other)
    for subject, queue in (("own", ""), ("own", "q"), ("shut.*", ""), ("shut.*", "q")):
        await client.subscribe(subject, queue=queue)
    await client.flush()
    traces, inbox = await other.subscribe("trace.>"), await other.subscribe("replies.*")
    await other.flush()
    played: list[Any] = []
    for only in (True, False):
        for subject, headers, size in PUBLISHES:
            publisher = other if "publisher" in headers else client
            await publisher.publish(subject, b"x" * size, headers=_asking(headers, only), reply="replies.x")
            await publisher.flush()
            event = await _event(traces,
                                 wait=wait if headers.keys() & {"Nats-Trace-Origin-Account", "Nats-Trace-Dest"} else 30)
            replies = [await _reply(inbox)] if _is_answered(event, only) else []
            # After a later message of another stream is acknowledged, no more replies come.
            await other.request("last", timeout=30)
            replies += [await _reply(inbox) for _ in range(inbox.pending_msgs)]
            played.append(((subject, headers, only), event, replies, sorted(errors)))
            errors.clear()
    for config in STREAMS:
        info = json.loads((await other.request(f"$JS.API.STREAM.INFO.{config['name']}")).data)
        played.append((config["name"], info["state"]["messages"], info["state"]["last_seq"]))
    stored = json.loads((await other.request("$JS.API.STREAM.MSG.GET.S", b'{"last_by_subj": "s.plain"}')).data)
    played += [stored["message"]["hdrs"], await _too_large(port)]
    await client.close()
    await other.close()
    return played


async def _event(traces: Any, wait: float) -> Any:
    try:
        msg = await traces.next_msg(timeout=wait)
    except nats.errors.TimeoutError:
        return None
    encoding = (msg.headers or {}).get("Content-Encoding")
    data = bytes(cramjam.snappy.decompress(msg.data)) if encoding == "snappy" else gzip.decompress(
        msg.data) if encoding == "gzip" else msg.data
    event = masked(json.loads(data))
    hops = [one for one in event["events"] if one.get("acc") != "$SYS"]
    hops.sort(key=lambda hop: json.dumps(hop, sort_keys=True))
    return {"encoding": encoding, "request": event["request"], "events": hops}


def _is_answered(event: Any, only: bool) -> bool:
    """Return whether the stream that received the message answers its publisher."""
    return any(hop["type"] == "js" and hop["stream"] != "QUIET" and (not only or "error" in hop)
               for hop in (event or {"events": []})["events"])


async def _reply(inbox: Any) -> Any:
    msg = await inbox.next_msg(timeout=30)
    return (msg.headers or {}).get("Status") or json.loads(msg.data or b"0")


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], list[Any]]:
    async def both() -> tuple[list[Any], list[Any]]:
        for wait in (0.3, 3.0):  # a busy machine may need longer than the first
            config = tmp_path_factory.mktemp("real") / "c.conf"
            config.write_text(CONFIG.format(config.parent / "store"))
            async with NatsServerProcess("-c", str(config)) as real:
                theirs = await _play(real.port, wait)
            config = tmp_path_factory.mktemp("ours") / "c.conf"
            config.write_text(CONFIG.format(config.parent / "store"))
            async with BrokerProcess("-c", str(config)) as mine:
                ours = await _play(mine.port, wait)
            if ours == theirs:
                break
        return theirs, ours
    return asyncio.run(both())


async def _too_large(port: int) -> Any:
    """Return the event of a message that is larger than allowed."""
    other = await nats.connect(f"nats://b:b@127.0.0.1:{port}")
    traces = await other.subscribe("trace.>")
    await other.flush()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    block = b"NATS/1.0\r\nNats-Trace-Dest: trace.x\r\n\r\n"
    writer.write(b'CONNECT {"user":"b","pass":"b","headers":true,"verbose":false}\r\nPING\r\n')
    while await reader.readline() != b"PONG\r\n":
        pass
    writer.write(b"HPUB a %d 100000\r\n%bbeginning" % (len(block), block))
    answer = (await reader.read()).removeprefix(b"PING\r\n")  # a busy machine takes two seconds after CONNECT
    writer.close()
    event = await _event(traces, wait=30)
    await other.close()
    return answer, event


async def test_outcomes(played: tuple[list[Any], list[Any]]) -> None:
    """Both servers have the same events, replies and errors; afterwards their streams have the same messages."""
    real, ours = played
    assert len(real) == len(ours)
    assert [pair for pair in zip(real, ours, strict=True) if pair[0] != pair[1]] == []


async def test_all_kinds_of_outcomes_occur(played: tuple[list[Any], list[Any]]) -> None:
    """The publishes cause each kind of outcome."""
    events = [one for played in played[0] if len(played) == 4 and played[1] for one in played[1]["events"]]
    errors = {(one["type"], one.get("error", "").partition(":")[0].partition(" \"")[0]) for one in events}
    assert {kind for kind, _ in errors} == {"in", "js", "eg", "sm"}
    assert len(errors) > 25
    assert any(one.get("nointerest") for one in events)
