"""Two brokers on one store: one serves, the other waits, the standby takes over in time, and no acknowledged message is
lost.

On a directory the lock decides (a process that ends releases it, a paused one keeps it); on S3 the log is the lease.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from nats.errors import NoRespondersError
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig
from nats.js.errors import ServiceUnavailableError

from tests.adversity.clients import FAILED, Writer, connect, health, read_all, standby_health, unexpected, until
from tests.harness import BrokerProcess, free_port
from tests.real.proxy import TcpProxy
from tests.real.s3 import S3Server

pytestmark = pytest.mark.shows("store.two_brokers")

T = 4.0
"""The lease in these tests, in seconds: on a busy machine an owner that is not stopped may send nothing for three."""
TAKING = 1.0
"""Time that a take-over may take beyond T, on a machine with nothing else to do. The exact times are tested in
tests/runtime/test_shard_owner.py, on a virtual clock."""
if "PYTEST_XDIST_WORKER" in os.environ or os.getloadavg()[0] > (os.cpu_count() or 1):
    TAKING = 20.0

STREAM = StreamConfig(name="S", subjects=["s.>"])


def broker_on(store: str, name: str, environ: dict[str, str] | None = None) -> BrokerProcess:
    return BrokerProcess("--store", store, "-n", name, environ={
        "JETBLOCK_LEASE": f"{T}s", "JETBLOCK_PUT_TIMEOUT": "1s", **(environ or {})})


@asynccontextmanager
async def owner_and_standby(store: str, environ: dict[str, str] | None = None) -> AsyncIterator[tuple[
        BrokerProcess, BrokerProcess]]:
    """Start two brokers: "one" serves, "two" has logged that it waits."""
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(broker_on(store, "one", environ))
        two = broker_on(store, "two", environ)
        stack.push_async_callback(two.close)
        await two.start(ready=False)
        await two.wait_line("standby: one owns" if environ else "standby: another broker holds the lock")
        yield one, two


async def health_is(broker: BrokerProcess, status: int) -> bool:
    return (await health(broker))[0] == status


def url_of(broker: BrokerProcess) -> str:
    return f"nats://127.0.0.1:{broker.port}"


@pytest.mark.shows("cluster.standby")
async def test_a_second_broker_on_a_directory_waits_and_takes_over(tmp_path: Path) -> None:
    """The standby serves no client meanwhile. It takes over within a second after a SIGKILL, and after a clean stop;
    clients that know both brokers continue by themselves."""
    async with owner_and_standby(f"file://{tmp_path / 'store'}") as (one, two):
        assert await standby_health(two) == (503, '{"status":"standby","error":"another broker owns the store"}')
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", two.port)

        nc = await connect(url_of(one), url_of(two))
        await nc.jetstream().add_stream(STREAM)
        async with Writer("s.x", url_of(one), url_of(two)) as writer:
            await writer.acks(200)
            killed = time.monotonic()
            await one.kill()
            await two.wait_ready()
            took = time.monotonic() - killed
            print(f"took over from a killed broker in {took:.2f} s")
            assert took < TAKING
            assert (await health(two))[0] == 200
            await writer.acks(200)

            await one.start(ready=False)
            await one.wait_line("standby:")
            stopped = time.monotonic()
            assert await two.stop() == 0
            await one.wait_ready()
            print(f"took over from a stopped broker in {time.monotonic() - stopped:.2f} s")
            assert time.monotonic() - stopped < 2 * TAKING  # includes its stop
            await writer.acks(200)
        writer.check(await read_all(nc, "S"))
        await nc.close()
        assert not unexpected(one)
        assert not unexpected(two)


async def test_a_paused_owner_of_a_directory_keeps_it(tmp_path: Path) -> None:
    """SIGSTOP keeps the lock: no standby takes over, and the owner continues as if nothing had happened."""
    async with owner_and_standby(f"file://{tmp_path / 'store'}") as (one, two):
        nc = await connect(url_of(one))
        await nc.jetstream().add_stream(STREAM)
        async with Writer("s.x", url_of(one)) as writer:
            await writer.acks(50)
            one.send_signal(signal.SIGSTOP)
            await asyncio.sleep(1)  # ten times a standby's wait between two tries
            assert not any("Server is ready" in line for line in two.stderr)
            one.send_signal(signal.SIGCONT)
            await writer.acks(50)
        writer.check(await read_all(nc, "S"))
        await nc.close()


@pytest.mark.shows("cluster.standby")
async def test_take_over_on_s3_after_a_kill(minio: S3Server) -> None:
    """The standby sees no growth of the log for T, and serves within T and a second; the killed broker, started again,
    becomes the standby; a clean stop hands over without waiting for T."""
    async with owner_and_standby(minio.new_url(), minio.env) as (one, two):
        assert (await standby_health(two))[0] == 503
        nc = await connect(url_of(one), url_of(two))
        await nc.jetstream().add_stream(STREAM)
        async with Writer("s.x", url_of(one), url_of(two)) as writer:
            await writer.acks(100)
            killed = time.monotonic()
            await one.kill()
            await two.wait_ready()
            took = time.monotonic() - killed
            print(f"took over from a killed broker in {took:.2f} s, T is {T} s")
            assert T * 0.5 < took < T + TAKING
            await writer.acks(100)

            await one.start(ready=False)
            await one.wait_line("standby: two owns")
            stopped = time.monotonic()
            assert await two.stop() == 0
            await one.wait_ready()
            print(f"took over from a stopped broker in {time.monotonic() - stopped:.2f} s")
            await writer.acks(100)
        writer.check(await read_all(nc, "S"))
        await nc.close()


async def test_a_paused_owner_on_s3_is_fenced(minio: S3Server) -> None:
    """An owner that was paused for more than T and wakes amid publishes acknowledges none of them: it meets the seal,
    logs that, closes its clients and becomes a standby, which can take over again later."""
    async with owner_and_standby(minio.new_url(), minio.env) as (one, two):
        nc = await connect(url_of(one))
        await nc.jetstream().add_stream(STREAM)
        faithful = Writer("s.x", url_of(one), window=50)  # knows no other broker
        async with faithful:
            await faithful.acks(200)
            one.send_signal(signal.SIGSTOP)
            await two.wait_ready()
            async with Writer("s.y", url_of(two)) as writer:
                await writer.acks(100)
                before = len(faithful.answers)
                one.send_signal(signal.SIGCONT)
                await one.wait_line("(two|another broker) has taken the shard: .* is a seal; closing all clients")
                await one.wait_line("standby: two owns")
                await writer.acks(100)
                assert len(faithful.answers) == before, "the fenced owner acknowledged"
                # One is a client's broker again only once two is gone.
                await two.kill()
                one.stderr.clear()
                await one.wait_ready()
                await faithful.acks(100)
                await writer.abort()
        await nc.flush(10)
        stored = await read_all(nc, "S")
        for record in (faithful, writer):
            for number, seq in record.acked.items():
                assert stored.get(seq) == record.payload(number)
        await nc.close()
        assert not unexpected(one)


async def test_two_copies_of_one_configuration_do_not_take_turns(minio: S3Server) -> None:
    """The second broker of the same name takes over at once, as a restart must; the first one detects this and ends
    with an error."""
    store = minio.new_url()
    one, two = broker_on(store, "same", minio.env), broker_on(store, "same", minio.env)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(one.close)
        await one.start()
        nc = await connect(url_of(one), url_of(two))
        await nc.jetstream().add_stream(STREAM)
        async with Writer("s.x", url_of(one), url_of(two)) as writer:
            await writer.acks(50)
            began = time.monotonic()
            await stack.enter_async_context(two)
            print(f"took over from a living, busy double in {time.monotonic() - began:.2f} s, the start included")
            assert await one.wait_end() == 1
            assert any("same has taken the shard" in line and "give them different server_names" in line
                       for line in one.stderr), one.tail()
            await writer.acks(50)
        writer.check(await read_all(nc, "S"))
        await nc.close()


async def epoch_of(broker: BrokerProcess) -> int:
    return int((await broker.monitor("/varz"))["jetblock"]["log"]["epoch"])


@pytest.mark.parametrize(("kind", "name"), [("s3", ("-n", "same")), ("file", ())])
async def test_one_command_twice(kind: str, name: tuple[str, ...], minio: S3Server, tmp_path: Path) -> None:
    """The second broker finds its port taken and ends with nats-server's text before it accesses the store. The first
    continues to serve, and no epoch was claimed. A taken monitoring port has the same effect."""
    environ = {"JETBLOCK_LEASE": f"{T}s", "JETBLOCK_PUT_TIMEOUT": "1s", **(minio.env if kind == "s3" else {})}
    store = minio.new_url() if kind == "s3" else f"file://{tmp_path / 'store'}"
    async with BrokerProcess("--store", store, *name, environ=environ) as one:
        nc = await connect(one.url)
        await nc.jetstream().add_stream(STREAM)
        epoch = await epoch_of(one)
        monitor_port = int(one.monitor_url.rpartition(":")[2])
        for flags, port, words in (
                (("-m", "-1"), one.port, "Error listening on port: "),
                (("-m", str(monitor_port)), free_port(), "Can't start monitoring: ")):
            two = BrokerProcess("--store", store, *name, *flags, environ=environ, port=port, monitor=False)
            try:
                await two.start(ready=False)
                assert await two.wait_end() == 1
                [line] = [line for line in two.stderr if "[FTL]" in line]
                taken = port if port == one.port else monitor_port
                assert f'{words}127.0.0.1:{taken}, "listen tcp 127.0.0.1:{taken}: bind: address already in use"' in line
            finally:
                await two.close()
        await nc.jetstream().publish("s.x", b"still here")
        assert await one.stop() == 0
        await one.start()
        assert await epoch_of(one) == epoch + 1
        await nc.close()
        assert not unexpected(one)


async def test_a_second_broker_without_a_name_is_a_standby(minio: S3Server) -> None:
    """A second command with another port starts a standby: no configured name makes them one broker."""
    environ = {"JETBLOCK_LEASE": f"{T}s", "JETBLOCK_PUT_TIMEOUT": "1s", **minio.env}
    store = minio.new_url()
    async with BrokerProcess("--store", store, environ=environ) as one:
        two = BrokerProcess("--store", store, environ=environ)
        try:
            await two.start(ready=False)
            await two.wait_line("standby: .* owns")
            assert (await standby_health(two))[0] == 503
            await asyncio.sleep(2 * T)
            assert one.running
            assert (await health(one))[0] == 200
            await one.kill()
            await two.wait_ready()
            assert await epoch_of(two) == 2
        finally:
            await two.close()
        assert not unexpected(two)


async def test_a_standby_whose_port_was_taken_meanwhile_leaves_the_shard_alone(minio: S3Server) -> None:
    """The standby bound no port while it waited. If its port is taken at the take-over, it ends without claiming
    anything."""
    async with owner_and_standby(minio.new_url(), minio.env) as (one, two):
        epoch = await epoch_of(one)
        taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", two.port)
        await one.kill()
        assert await two.wait_end() == 1
        assert any("[FTL]" in line and "address already in use" in line for line in two.stderr)
        taken.close()
        await one.start()
        assert await epoch_of(one) == epoch + 1


async def test_a_stopped_owner_answers_nothing_from_before(minio: S3Server) -> None:
    """An idle owner is paused for T while another takes the shard. Requests that wait in its sockets when it wakes, a
    duplicate and a failed expectation, are not answered from memory."""
    async with owner_and_standby(minio.new_url(), minio.env) as (one, two):
        nc = await connect(url_of(one))
        js = nc.jetstream()
        await js.add_stream(STREAM)
        await js.publish("s.x", b"x", headers={"Nats-Msg-Id": "X"})
        inbox = nc.new_inbox()
        answers = await nc.subscribe(inbox)
        await nc.flush()
        one.send_signal(signal.SIGSTOP)
        await two.wait_ready()
        await nc.publish("s.x", b"x", reply=inbox, headers={"Nats-Msg-Id": "X"})
        await nc.publish("s.x", b"y", reply=inbox, headers={"Nats-Expected-Last-Sequence": "7"})
        await asyncio.sleep(0.2)  # the client writes to its socket
        one.send_signal(signal.SIGCONT)
        await one.wait_line("(two|another broker) has taken the shard: .* is a seal; closing all clients")
        await one.wait_line("standby: two owns")
        assert answers.pending_msgs == 0
        await nc.close()
        assert not unexpected(one)


async def test_an_owner_cut_off_from_its_store_falls_silent(minio: S3Server) -> None:
    """The owner cannot know after T without a put whether it owns the shard: it answers no reads, delivers nothing and
    acknowledges nothing. When the store is back it continues in the same epoch, since no other broker took over."""
    async with TcpProxy.to(minio.endpoint) as proxy:
        environ = {**minio.env, "AWS_ENDPOINT_URL": proxy.endpoint}
        async with broker_on(minio.new_url(), "one", environ) as broker:
            nc = await connect(broker.url)
            js = nc.jetstream()
            await js.add_stream(StreamConfig(name="S", subjects=["s.>"], allow_direct=True))
            for i in range(10):
                await js.publish("s.x", b"%d" % i)
            pull = await js.pull_subscribe("s.>", durable="pull")
            await js.add_consumer("S", ConsumerConfig(durable_name="push", ack_policy=AckPolicy.NONE,
                                                      deliver_subject="to.me", filter_subject="s.x"))
            [first] = await pull.fetch(1, timeout=30)
            epoch = (await broker.monitor("/varz"))["jetblock"]["log"]["epoch"]
            proxy.stall()
            await until(lambda: health_is(broker, 503))
            assert "the store does not answer" in (await health(broker))[1]
            for ask in (lambda: js.stream_info("S"), lambda: js.account_info(), lambda: js.get_msg("S", 1),
                        lambda: js.get_last_msg("S", "s.x"), lambda: js.consumer_info("S", "pull")):
                with pytest.raises(ServiceUnavailableError) as refused:
                    await ask()
                assert refused.value.err_code == 10008
            with pytest.raises(NoRespondersError):
                await nc.request("$JS.API.DIRECT.GET.S", b'{"seq":1}', timeout=10)
            pushed = await nc.subscribe("to.me")
            with pytest.raises(FAILED):
                await pull.fetch(1, timeout=0.5)
            with pytest.raises(FAILED):
                await js.publish("s.x", b"late", timeout=0.5)
            with pytest.raises(FAILED):
                await first.ack_sync(timeout=0.5)
            assert not pushed._pending_queue.qsize()

            proxy.resume()
            await until(lambda: health_is(broker, 200))
            await js.publish("s.x", b"after")
            assert [message.data for message in await pull.fetch(3, timeout=30)]
            assert (await pushed.next_msg(timeout=30)).data == b"0"
            assert (await js.stream_info("S")).state.messages >= 11
            assert (await broker.monitor("/varz"))["jetblock"]["log"]["epoch"] == epoch
            await nc.close()
            assert not unexpected(broker)


