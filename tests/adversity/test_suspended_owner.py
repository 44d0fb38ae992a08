"""An owner on S3 whose machine was suspended, or was a virtual machine that was paused, while another broker took over.

Clocks stop meanwhile: on a suspended Linux machine CLOCK_MONOTONIC, on a paused virtual one CLOCK_BOOTTIME too,
and the wall clock until something sets it. The process is stopped by SIGSTOP, and a ``sitecustomize`` module on its
path makes its clocks show what they would have shown.
"""

from __future__ import annotations

import asyncio
import base64
import json
import mmap
import signal
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError

from tests.adversity.clients import unexpected
from tests.harness import BrokerProcess
from tests.real.s3 import S3Server

LEASE_SECONDS = 5
"""The lease. A third of it is longer than the owner needs for the requests in its sockets, so that no heartbeat comes
first."""

_CLOCKS = '''
import mmap, os, time

_page = mmap.mmap(os.open(os.environ["STOOD_STILL"], os.O_RDONLY), 16, access=mmap.ACCESS_READ)


def _lost_ns(at):
    return int.from_bytes(_page[at:at + 8], "little")


def _later_by(function, at, unit=1):
    return lambda *args: function(*args) - _lost_ns(at) / unit if unit > 1 else function(*args) - _lost_ns(at)


time.monotonic, time.monotonic_ns = _later_by(time.monotonic, 0, 10**9), _later_by(time.monotonic_ns, 0)
time.clock_gettime_ns = _later_by(time.clock_gettime_ns, 8)
'''


@pytest.mark.parametrize("paused", [False, True], ids=["suspended machine", "paused virtual machine"])
async def test_it_answers_nothing_from_before(minio: S3Server, tmp_path: Path, paused: bool) -> None:
    """Requests that wait in the owner's sockets when it wakes are not answered from memory. A message whose ack wait
    ended meanwhile is not delivered again: its consumer double-acked it at the new owner."""
    (tmp_path / "sitecustomize.py").write_text(_CLOCKS)
    clocks = tmp_path / "stood-still"
    clocks.write_bytes(bytes(16))
    store, environ = minio.new_url(), {**minio.env, "JETBLOCK_LEASE": f"{LEASE_SECONDS}s", "JETBLOCK_PUT_TIMEOUT": "1s"}
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(BrokerProcess("--store", store, "-n", "one", environ={
            **environ, "PYTHONPATH": str(tmp_path), "STOOD_STILL": str(clocks)}))
        two = BrokerProcess("--store", store, "-n", "two", environ=environ)
        stack.push_async_callback(two.close)
        await two.start(ready=False)
        await two.wait_line("standby: one owns")
        nc = await nats.connect(one.url, allow_reconnect=False, ping_interval=300)
        await _create(nc)
        await nc.request("k", b"old")
        await nc.request("w", b"job")
        delivered = await _pull(nc)
        assert (await delivered.next_msg()).data == b"job"
        await nc.request("k", b"older")
        stopped = time.monotonic_ns()
        one.send_signal(signal.SIGSTOP)
        await two.wait_ready()
        other = await nats.connect(two.url)
        await other.request("k", b"new")
        again = await (await _pull(other)).next_msg()
        await other.request(again.reply, b"+ACK")

        answers: list[dict[str, Any]] = []
        asked = [asyncio.create_task(_get(nc, answers)) for _ in range(3)]
        await asyncio.sleep(0.2)  # the client writes to its socket
        with clocks.open("r+b") as file, mmap.mmap(file.fileno(), 16) as page:
            lost = (time.monotonic_ns() - stopped).to_bytes(8, "little")
            page[:8] = lost
            if paused:
                page[8:] = lost
        one.send_signal(signal.SIGCONT)
        await one.wait_line("standby: two owns")
        await asyncio.gather(*asked)
        for answer in answers:
            assert answer.get("error", {}).get("err_code") == 10008, f"it answered {_data(answer)!r}"
        assert [msg async for msg in _rest(delivered) if "ACK" in msg.reply] == []
        assert not unexpected(one)
        with suppress(NatsError):
            await nc.close()
        await other.close()


async def _create(nc: Client) -> None:
    for subject, body in (
            ("STREAM.CREATE.K", {"name": "K", "subjects": ["k"]}),
            ("STREAM.CREATE.W", {"name": "W", "subjects": ["w"], "retention": "workqueue"}),
            ("CONSUMER.CREATE.W.c", {"stream_name": "W", "config": {
                "durable_name": "c", "name": "c", "ack_policy": "explicit", "ack_wait": 10**9}})):
        answer = json.loads((await nc.request(f"$JS.API.{subject}", json.dumps(body).encode())).data)
        assert "error" not in answer, answer


async def _pull(nc: Client) -> Any:
    inbox = nc.new_inbox()
    sub = await nc.subscribe(inbox)
    await nc.publish("$JS.API.CONSUMER.MSG.NEXT.W.c", json.dumps({"batch": 5, "expires": 100 * 10**9}).encode(),
                     reply=inbox)
    return sub


async def _get(nc: Client, answers: list[dict[str, Any]]) -> None:
    """Read the newest message of K until the connection ends, and record the answers."""
    with suppress(NatsError):
        while True:
            msg = await nc.request("$JS.API.STREAM.MSG.GET.K", b'{"last_by_subj": "k"}', timeout=10)
            answers.append(json.loads(msg.data))


async def _rest(sub: Any) -> Any:
    with suppress(NatsError):
        while True:
            yield await sub.next_msg(timeout=0.2)


def _data(answer: dict[str, Any]) -> bytes:
    return base64.b64decode(answer["message"]["data"]) if "message" in answer else b""
