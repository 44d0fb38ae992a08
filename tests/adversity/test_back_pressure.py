"""A store that is slow, then gone: publishers are slowed, then refused; memory stays bounded; nothing acknowledged is
lost.

A proxy before MinIO delays everything. The bound on messages sequenced but not stored is small here, so that it is
soon reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import Self

import nats.errors
import pytest
from nats.js.api import StreamConfig
from nats.js.errors import APIError

from tests.adversity.clients import FAILED, Writer, connect, health, read_all, resident_bytes, unexpected
from tests.harness import BrokerProcess
from tests.real.proxy import TcpProxy
from tests.real.s3 import S3Server

pytestmark = pytest.mark.shows("publish.back_pressure")

MIB = 1 << 20
TAIL = 2 * MIB
SIZE = 16 * 1024
ENVIRON = {"JETBLOCK_TAIL_BYTES_MAX": str(TAIL), "JETBLOCK_SEGMENT_BYTES": "256k", "JETBLOCK_PUT_TIMEOUT": "1s",
           "JETBLOCK_LEASE": "60s", "JETBLOCK_SERVER_NAME": "one"}


class Chatter:
    """Core traffic on its own connections, until stopped; measures each round trip.

    It runs in its own thread, since the test's loop is too busy to measure.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = False
        self.seconds: list[float] = []
        self.lost: list[str] = []
        """Round trips of more than 5 s: their times, and the state of the connections."""

    async def __aenter__(self) -> Self:
        self._thread = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(self._talk())))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop = True
        await self._thread

    async def _talk(self) -> None:
        asker, answerer = await connect(self._url), await connect(self._url)

        async def answer(message: object) -> None:
            await message.respond(b"here")  # type: ignore[attr-defined]

        await answerer.subscribe("core.ask", cb=answer)
        await answerer.flush()
        try:
            while not self._stop:
                began = time.monotonic()
                try:
                    await asker.request("core.ask", b"there?", timeout=30)
                except nats.errors.Error as error:
                    self.lost.append(f"{error!r} at {began:.1f}, until {time.monotonic():.1f}: {asker.stats}, "
                                     f"{answerer.stats}")
                self.seconds.append(time.monotonic() - began)
                await asyncio.sleep(0.01)
        finally:
            await asker.close()
            await answerer.close()


async def outage(minio: S3Server, seconds: float, *, consume: bool = False) -> None:
    """Publish through an outage. ``consume``: acks that were answered before it hold after it, and everything is
    delivered at the end, too."""
    async with TcpProxy.to(minio.endpoint) as proxy:
        environ = {**minio.env, **ENVIRON, "AWS_ENDPOINT_URL": proxy.endpoint}
        async with BrokerProcess("--store", minio.new_url(), environ=environ) as broker:
            nc = await connect(broker.url)
            js = nc.jetstream()
            await js.add_stream(StreamConfig(name="S", subjects=["s.>"]))
            chatter = Chatter(broker.url)
            pull = await js.pull_subscribe("s.>", durable="pull")
            # Four times the bound is in flight, and each refused message is sent again.
            writer = Writer("s.x", broker.url, window=4 * TAIL // SIZE, size=SIZE, timeout=seconds + 60)
            async with chatter, writer:
                await writer.acks(1000, 60)
                acked = set()
                for message in await pull.fetch(100, timeout=30) if consume else ():
                    await message.ack_sync(timeout=30)
                    acked.add(message.metadata.sequence.stream)
                before = resident_bytes(broker)
                chatter.seconds.clear()
                proxy.stall()
                stalled = time.monotonic()
                await writer.refused(1)
                first = time.monotonic() - stalled
                # A publish is slowed for at most a second once the bound is reached, then refused, and does not time
                # out.
                assert first < 15, f"the first refusal took {first:.1f} s"
                error = writer.errors[0]
                assert (error.code, error.err_code) == (429, 10167), error
                grown = 0
                while time.monotonic() < stalled + seconds:
                    await asyncio.sleep(min(1, seconds))
                    grown = max(grown, resident_bytes(broker) - before)
                known = writer.refusals
                await writer.refused(known + 1)  # refusals continue
                trips = sorted(chatter.seconds)
                # The slowest few of a hundred depend only on the machine's scheduling.
                p90 = trips[len(trips) * 9 // 10]
                lag = (await broker.monitor("/varz"))["jetblock"]["loop_lag_ms"]
                print(f"first refusal {first:.2f} s after the store went, {writer.refusals} refusals in {seconds} s, "
                      f"{grown / MIB:.1f} MiB more memory, core round trips {p90 * 1e3:.0f} ms (p90), loop lag {lag}")
                print(f"stalled at {stalled:.1f}, now {time.monotonic():.1f}: {chatter.lost}")
                assert grown < 64 * MIB
                assert p90 < 0.5
                assert (await broker.monitor("/varz"))["jetblock"]["log"]["store_error"]
                proxy.resume()
                await writer.acks(500, 60)
                assert (await health(broker))[0] == 200
            assert not chatter.lost
            delivered: set[int] = set()
            while consume and not delivered >= set(writer.acked.values()) - acked:
                for message in await pull.fetch(100, timeout=30):
                    delivered.add(message.metadata.sequence.stream)
                    await message.ack()
            assert delivered.isdisjoint(acked)
            writer.check(await read_all(nc, "S"))
            await broker.restart()
            writer.check(await read_all(nc, "S"))
            await nc.close()
            assert not unexpected(broker)


@pytest.mark.shows("store.lost_store")
# The test's own waits add up to more than the usual bound: a minute each for acks and for unanswered messages.
@pytest.mark.timeout(300)
async def test_a_store_that_goes_and_comes_back(minio: S3Server) -> None:
    """Publishes are refused with 429 and 10167 after at most a second of slowing down, repeatedly, with core traffic
    and memory unaffected. When the store is back, publishing continues and everything acknowledged is there, after a
    kill, too."""
    await outage(minio, 2)


@pytest.mark.soak
@pytest.mark.timeout(1200)
async def test_a_store_gone_for_ten_minutes(minio: S3Server) -> None:
    """Memory does not grow with the length of an outage, past any lease. JETBLOCK_OUTAGE_SECONDS sets the length."""
    await outage(minio, float(os.environ.get("JETBLOCK_OUTAGE_SECONDS", "600")), consume=True)


async def test_answers_do_not_pile_up_while_a_store_is_gone(minio: S3Server) -> None:
    """Duplicates and API requests add nothing to the tail, but their answers wait for it. Past a bound they are
    refused, too (429; 10008), so memory does not grow with their number."""
    async with TcpProxy.to(minio.endpoint) as proxy:
        environ = {**minio.env, **ENVIRON, "AWS_ENDPOINT_URL": proxy.endpoint}
        async with BrokerProcess("--store", minio.new_url(), environ=environ) as broker:
            nc = await connect(broker.url, pending_size=64 << 20)
            js = nc.jetstream()
            await js.add_stream(StreamConfig(name="S", subjects=["s.>"]))
            await js.publish("s.x", b"once", headers={"Nats-Msg-Id": "same"})
            inbox = nc.new_inbox()
            answers = await nc.subscribe(inbox, pending_msgs_limit=1 << 20, pending_bytes_limit=1 << 30)
            before = resident_bytes(broker)
            proxy.stall()
            await nc.publish("s.x", b"new", reply=inbox, headers={"Nats-Msg-Id": "other"})
            for _ in range(40):
                for _ in range(500):
                    await nc.publish("s.x", b"once", reply=inbox, headers={"Nats-Msg-Id": "same"})
                    await nc.publish("$JS.API.STREAM.INFO.S", reply=inbox)
                await nc.flush(30)
            grown = max(resident_bytes(broker) - before, 0)
            print(f"{grown / MIB:.1f} MiB more memory after 40 000 requests, {answers.pending_msgs} of them answered")
            assert grown < 32 * MIB
            assert answers.pending_msgs > 10_000
            refusal = await nc.request("$JS.API.STREAM.INFO.S", timeout=30)
            assert b"10008" in refusal.data
            proxy.resume()
            async with asyncio.timeout(30):
                while True:
                    with contextlib.suppress(*FAILED):
                        if (await js.stream_info("S")).state.messages == 2:
                            break
                    await asyncio.sleep(0.05)
            assert (await js.publish("s.x", b"once", headers={"Nats-Msg-Id": "same"})).duplicate
            await nc.close()
            assert not unexpected(broker)


@pytest.mark.timeout(300)  # as above
async def test_a_slow_store_slows_publishers_and_refuses_nobody(minio: S3Server) -> None:
    """Stalls shorter than a second come one after another: publishers wait in between, none is refused, all messages
    are acknowledged."""
    for _ in range(3):  # a stall may last longer than planned on a busy machine
        if not (errors := await refusals_of_a_slow_store(minio)):
            break
    assert not errors, errors[0]


async def refusals_of_a_slow_store(minio: S3Server) -> list[APIError]:
    """Return the refusals of publishers, after checking everything else."""
    async with TcpProxy.to(minio.endpoint) as proxy:
        environ = {**minio.env, **ENVIRON, "AWS_ENDPOINT_URL": proxy.endpoint}
        async with BrokerProcess("--store", minio.new_url(), environ=environ) as broker:
            nc = await connect(broker.url)
            await nc.jetstream().add_stream(StreamConfig(name="S", subjects=["s.>"]))

            async def slow() -> None:
                while True:
                    proxy.stall()
                    await asyncio.sleep(0.3)
                    proxy.resume()
                    await asyncio.sleep(0.1)

            task = asyncio.create_task(slow())
            # Three times the bound is in flight, so that the bound is reached in each stall.
            async with Writer("s.x", broker.url, window=3 * TAIL // SIZE, size=SIZE, timeout=30) as writer:
                for _ in range(4):  # a busy machine gets little done between two stalls
                    await writer.acks(500, 60)
                errors = list(writer.errors)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            proxy.resume()
            writer.check(await read_all(nc, "S"))
            await nc.close()
            assert not unexpected(broker)
            return errors
