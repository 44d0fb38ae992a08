"""Numbers at the edges of their types, in every place where a client may send one, to a separate broker process.

Each request is answered, with an API error or the requested result; no failure is logged, and the broker continues.
Then it is killed, and stopped cleanly, and each time the next start finds everything acknowledged: every request's
records in the log could be encoded, and can be read.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from tests.harness import BrokerProcess

pytestmark = pytest.mark.asyncio

SEQ_MAX = 2**63 - 1
NUMBERS = [
    "0", "1", "-1", "7", str(2**31 - 1), str(2**31), str(-2**31 - 1), str(2**53 + 1), str(SEQ_MAX - 1), str(SEQ_MAX),
    str(SEQ_MAX + 1), str(2**64 - 2), str(2**64 - 1), str(2**64), "9" * 30, "9" * 5000, str(-2**63), str(-2**63 - 1),
    "-0", "1e3", "1.5", "1e400", "-1e400", "0" * 40 + "5",
]
TIMES = [f'"{time}"' for time in (
    "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "0000-01-01T00:00:00Z", "1677-09-21T00:12:43Z",
    "1969-12-31T23:59:59.999999999Z", "2262-04-11T23:47:16.854775808Z", "9999-12-31T23:59:59.999999999Z",
    "9999-12-31T23:59:59-23:59", "2024-01-01T00:00:00+99:99", "2024-02-30T00:00:00Z", "20२४-01-01T00:00:00Z")]

STREAM = '{"name": "E", "subjects": ["e.>"], %s}'
CONSUMER = '{"stream_name": "S", "config": {"name": "E", "durable_name": "E", "ack_policy": "explicit", %s}}'
PUSH = '{"stream_name": "S", "config": {"name": "E", "ack_policy": "explicit", "deliver_subject": "deliver.e", %s}}'

REQUESTS: list[tuple[str, str]] = [
    *[("STREAM.CREATE.E", STREAM % f'"{field}": %N') for field in (
        "max_consumers", "max_msgs", "max_bytes", "max_age", "max_msgs_per_subject", "max_msg_size", "num_replicas",
        "duplicate_window", "first_seq", "subject_delete_marker_ttl")],
    ("STREAM.CREATE.E", STREAM % '"persist_mode": "async", "first_seq": %N'),
    ("STREAM.CREATE.E", STREAM % '"storage": "memory", "first_seq": %N'),
    ("STREAM.CREATE.E", STREAM % '"consumer_limits": {"inactive_threshold": %N, "max_ack_pending": %N}'),
    *[("CONSUMER.CREATE.S.E", CONSUMER % f'"{field}": %N') for field in (
        "ack_wait", "max_deliver", "max_waiting", "max_ack_pending", "max_batch", "max_expires", "max_bytes",
        "inactive_threshold", "num_replicas", "priority_timeout")],
    ("CONSUMER.CREATE.S.E", CONSUMER % '"max_deliver": 3, "backoff": [%N, %N]'),
    ("CONSUMER.CREATE.S.E", CONSUMER % '"sample_freq": "%N"'),
    ("CONSUMER.CREATE.S.E", CONSUMER % '"deliver_policy": "by_start_sequence", "opt_start_seq": %N'),
    ("CONSUMER.CREATE.S.E", CONSUMER % '"deliver_policy": "by_start_time", "opt_start_time": %T'),
    ("CONSUMER.CREATE.S.E", CONSUMER % '"pause_until": %T'),
    ("CONSUMER.CREATE.S.E", PUSH % '"rate_limit_bps": %N'),
    ("CONSUMER.CREATE.S.E", PUSH % '"idle_heartbeat": %N, "flow_control": true'),
    ("CONSUMER.PAUSE.S.C", '{"pause_until": %T}'),
    ("CONSUMER.PAUSE.S.C", ""),
    ("CONSUMER.RESET.S.R", '{"seq": %N}'),
    ("STREAM.MSG.GET.S", '{"seq": %N}'),
    ("STREAM.MSG.GET.S", '{"seq": %N, "next_by_subj": "s.>"}'),
    ("STREAM.MSG.GET.S", '{"start_time": %T}'),
    ("STREAM.MSG.DELETE.S", '{"seq": %N}'),
    ("DIRECT.GET.S", '{"seq": %N}'),
    ("DIRECT.GET.S", '{"seq": %N, "batch": 2}'),
    ("DIRECT.GET.S", '{"seq": 1, "batch": %N, "max_bytes": 1}'),
    ("DIRECT.GET.S", '{"seq": 1, "batch": 2, "max_bytes": %N}'),
    ("DIRECT.GET.S", '{"multi_last": ["s.>"], "up_to_seq": %N}'),
    ("DIRECT.GET.S", '{"multi_last": ["s.>"], "up_to_time": %T}'),
    ("DIRECT.GET.S", '{"start_time": %T, "batch": 2}'),
    ("STREAM.NAMES", '{"offset": %N}'),
    ("STREAM.LIST", '{"offset": %N}'),
    ("STREAM.INFO.S", '{"offset": %N, "subjects_filter": ">"}'),
    ("CONSUMER.NAMES.S", '{"offset": %N}'),
    ("CONSUMER.LIST.S", '{"offset": %N}'),
    ("STREAM.PURGE.P", '{"keep": %N}'),
    ("STREAM.PURGE.P", '{"filter": "p.>", "keep": %N}'),
    ("STREAM.PURGE.P", '{"filter": "p.>", "seq": %N}'),
    ("STREAM.PURGE.P", '{"seq": %N}'),
]
HEADERS = ["Nats-Expected-Last-Sequence", "Nats-Expected-Last-Subject-Sequence", "Nats-TTL", "Nats-Incr",
           "Nats-Batch-Sequence", "Nats-Msg-Id"]
PULLS = ["%N", *[f'{{"expires": 1000000, "{field}": %N}}' for field in (
    "batch", "max_bytes", "idle_heartbeat", "min_pending", "min_ack_pending", "priority")],
    '{"expires": %N, "no_wait": true}', '{"batch": %N, "no_wait": true}']
ANSWERS = [b"", b"+ACK", b"-NAK", b"+WPI", b"+TERM %N", b"+NXT %N", b'+NXT {"batch": %N, "no_wait": true}', b"-NAK %N",
           b'-NAK {"delay": %N}', b"-NAK %Nns", b"-NAK %Nh", b"-NAK 1.%Nh"]


def filled(template: str) -> list[str]:
    """Fill the template with each of its numbers or times."""
    if "%N" in template:
        return [template.replace("%N", number) for number in NUMBERS]
    return [template.replace("%T", time) for time in TIMES] if "%T" in template else [template]


class Asking:
    """A client that expects an answer to each request, and records acknowledged messages."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.acked: dict[str, int] = {}

    async def api(self, subject: str, body: str = "", headers: dict[str, str] | None = None) -> dict[str, Any]:
        msg = await self._request("$JS.API." + subject, body, headers)
        if msg.headers and not msg.data:
            assert re.fullmatch("204|40[48]|413|503", msg.headers["Status"]), (subject, body[:80], msg.headers)
            return {}
        if subject.startswith("DIRECT"):
            return {}
        answer: dict[str, Any] = json.loads(msg.data)
        # An exception in a handler leads to 10008.
        assert answer.get("error", {}).get("err_code") != 10008, (subject, body[:80], answer)
        for code in _numbers_in(answer):
            assert -2**63 <= code < 2**64, (subject, body[:80], code)
        return answer

    async def _request(self, subject: str, body: str, headers: dict[str, str] | None) -> Msg:
        try:
            return await self.client.request(subject, body.encode(), timeout=30, headers=headers)
        except NatsError as error:
            raise AssertionError(f"no answer to {subject} {headers} {body[:100]}: {error!r}") from None

    async def publish(self, subject: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads((await self._request(subject, "x", headers)).data)
        if "error" not in answer and not answer.get("duplicate"):
            stream = answer["stream"]
            # Sequences only rise, for any requests in between.
            assert answer["seq"] > self.acked.get(stream, 0), (subject, headers, answer)
            assert answer["seq"] <= SEQ_MAX
            self.acked[stream] = answer["seq"]
        return answer


def _numbers_in(value: Any) -> list[int]:
    if isinstance(value, dict):
        return [number for one in value.values() for number in _numbers_in(one)]
    if isinstance(value, list):
        return [number for one in value for number in _numbers_in(one)]
    return [value] if isinstance(value, int) else []


async def _ask_all(asking: Asking) -> None:
    rng = random.Random(2)
    for subject, template in REQUESTS:
        for body in filled(template):
            if subject == "STREAM.PURGE.P":
                await asking.api("STREAM.CREATE.P", '{"name": "P", "subjects": ["p.>"]}')
                asking.acked.pop("P", None)
                await asking.publish("p.a")
            answer = await asking.api(subject, body)
            if subject.startswith("STREAM.CREATE") and "error" not in answer:
                asking.acked.pop("E", None)
                for _ in range(3):
                    await asking.publish("e.a")
                await asking.api("STREAM.INFO.E")
                await asking.api("STREAM.PURGE.E")
                await asking.publish("e.a")
                await asking.api("STREAM.DELETE.E")
            elif subject == "CONSUMER.CREATE.S.E" and "error" not in answer:
                await asking.api("CONSUMER.INFO.S.E")
                await asking.client.publish("$JS.API.CONSUMER.MSG.NEXT.S.E", b"3", reply=asking.client.new_inbox())
                if rng.random() < 0.8:  # the others are changed below
                    await asking.api("CONSUMER.DELETE.S.E")
            elif subject == "STREAM.PURGE.P":
                await asking.publish("p.a")
                await asking.publish("p.a")
                await asking.api("STREAM.INFO.P")
                await asking.api("STREAM.DELETE.P")
    for number in NUMBERS:
        await asking.api("STREAM.NAMES", headers={"Nats-Required-Api-Level": number})
        for name in HEADERS:
            await asking.publish("s.h", {name: number})
            await asking.publish("s.h", {name: number + "s"})


async def _pull_and_ack(asking: Asking) -> None:
    client = asking.client
    for policy in ("explicit", "all", "none"):
        name = policy.upper()
        await asking.api(f"CONSUMER.CREATE.S.{name}",
                         CONSUMER.replace('"E"', f'"{name}"').replace("explicit", policy) % '"max_ack_pending": 5000')
        inbox = await client.subscribe(client.new_inbox())
        for template in PULLS:
            for body in filled(template):
                await client.publish(f"$JS.API.CONSUMER.MSG.NEXT.S.{name}", body.encode(), reply=inbox.subject)
        await client.publish(f"$JS.API.CONSUMER.MSG.NEXT.S.{name}", b'{"batch": 9, "no_wait": true}',
                             reply=inbox.subject)
        for number in NUMBERS:
            for place in range(5):
                numbers = ["1", "3", "3", "1700000000000000000", "0"]
                numbers[place] = number
                if "." not in number and len(number) < 1000:  # a subject must fit into a control line
                    await client.publish(f"$JS.ACK.S.{name}." + ".".join(numbers), b"", reply=client.new_inbox())
                    await client.publish(f"$JS.ACK.S.{name}." + ".".join(numbers))
            for answer in ANSWERS:
                await client.publish(f"$JS.ACK.S.{name}.1.2.2.1700000000000000000.0",
                                     answer.replace(b"%N", number.encode()))
        await asking.api(f"CONSUMER.INFO.S.{name}")
        await inbox.unsubscribe()


async def _connected(broker: BrokerProcess) -> Client:
    async def quiet(_: Exception) -> None:
        pass

    return await nats.connect(broker.url, allow_reconnect=False, error_cb=quiet)


async def _all_there(broker: BrokerProcess, acked: int) -> None:
    """Check that everything acknowledged is read back, and that the broker accepts more."""
    client = await _connected(broker)
    asking = Asking(client)
    names = (await asking.api("CONSUMER.NAMES.S"))["consumers"]
    assert {"ALL", "C", "EXPLICIT", "NONE", "R"} <= set(names)
    for name in names:
        assert "error" not in await asking.api(f"CONSUMER.INFO.S.{name}")
    assert (await asking.api("STREAM.INFO.S"))["state"]["last_seq"] == acked
    assert (await asking.api("STREAM.MSG.GET.S", f'{{"seq": {acked}}}'))["message"]["seq"] == acked
    asking.acked["S"] = acked
    assert (await asking.publish("s.a"))["seq"] == acked + 1
    await client.close()


def _unexpected(broker: BrokerProcess) -> list[str]:
    return [line for line in broker.stderr if "[ERR]" in line or "Traceback" in line or "[FTL]" in line]


async def test_numbers_at_the_edges(tmp_path: Path) -> None:
    async with BrokerProcess("-js", "-sd", str(tmp_path)) as broker:
        client = await _connected(broker)
        asking = Asking(client)
        await asking.api("STREAM.CREATE.S", '{"name": "S", "subjects": ["s.>"], "allow_direct": true}')
        for i in range(12):
            await asking.publish(f"s.{i}")
        for name in "C", "R":
            await asking.api(f"CONSUMER.CREATE.S.{name}", CONSUMER.replace('"E"', f'"{name}"') % '"max_deliver": 5')
        await _ask_all(asking)
        await _pull_and_ack(asking)
        await client.close()
        await asyncio.sleep(1.2)  # consumers' state is stored within a second
        assert _unexpected(broker) == []

        await broker.kill()
        await broker.start()
        await _all_there(broker, asking.acked["S"])
        await broker.stop()
        await broker.start()
        await _all_there(broker, asking.acked["S"] + 1)
        assert _unexpected(broker) == []


@pytest.mark.shows("stream.last_seq")
async def test_a_stream_ends_at_its_last_sequence(tmp_path: Path) -> None:
    """The stream's last two sequences are assigned, then publishes are refused; also after a restart, and for async
    streams."""
    async with BrokerProcess("-js", "-sd", str(tmp_path)) as broker:
        client = await _connected(broker)
        asking = Asking(client)
        for name, more in (("D", ""), ("A", ', "persist_mode": "async"'), ("M", ', "storage": "memory"')):
            created = await asking.api(f"STREAM.CREATE.{name}", f'{{"name": "{name}", "subjects": ["{name.lower()}"], '
                                                                f'"first_seq": {SEQ_MAX - 1}{more}}}')
            assert created["config"]["first_seq"] == SEQ_MAX - 1
            assert (await asking.publish(name.lower()))["seq"] == SEQ_MAX - 1
            assert (await asking.publish(name.lower()))["seq"] == SEQ_MAX
            assert (await asking.publish(name.lower()))["error"]["err_code"] == 10077
            assert (await asking.publish(name.lower(), {"Nats-Msg-Id": "1"}))["error"]["err_code"] == 10077
        await asking.api("STREAM.CREATE.P", '{"name": "P", "subjects": ["p"]}')
        assert (await asking.api("STREAM.PURGE.P", f'{{"seq": {SEQ_MAX}}}'))["success"]
        assert (await asking.publish("p"))["seq"] == SEQ_MAX
        assert (await asking.api("STREAM.PURGE.P", f'{{"seq": {SEQ_MAX + 1}}}'))["error"]["err_code"] == 10110
        assert (await asking.api("STREAM.PURGE.P"))["purged"] == 1

        for first_seq in (SEQ_MAX + 1, 2**64 - 1):
            refused = await asking.api("STREAM.CREATE.X", f'{{"name": "X", "first_seq": {first_seq}}}')
            assert refused["error"]["err_code"] == 10052

        await asking.api("CONSUMER.CREATE.D.C", '{"stream_name": "D", "config": {"durable_name": "C", '
                                                '"ack_policy": "explicit"}}')
        inbox = await client.subscribe(client.new_inbox())
        await client.publish("$JS.API.CONSUMER.MSG.NEXT.D.C", b"2", reply=inbox.subject)
        delivered = [await inbox.next_msg(timeout=30) for _ in range(2)]
        assert [msg.metadata.sequence.stream for msg in delivered] == [SEQ_MAX - 1, SEQ_MAX]
        await client.request(delivered[1].reply, b"", timeout=30)
        await client.close()

        await broker.kill()
        await broker.start()
        client = await _connected(broker)
        asking = Asking(client)
        for subject in "d", "a", "p":
            assert (await asking.publish(subject))["error"]["err_code"] == 10077
        assert (await asking.api("CONSUMER.INFO.D.C"))["num_ack_pending"] == 1
        assert _unexpected(broker) == []
        await client.close()
