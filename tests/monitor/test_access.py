"""Restricted monitoring pages: a login, addresses, what probes may still ask, and what browsers may not read."""

from __future__ import annotations

import asyncio
import base64
import signal
import statistics
import time
from collections.abc import AsyncIterator
from ipaddress import ip_network
from pathlib import Path

import bcrypt
import pytest
import pytest_asyncio

from broker.config.flags import read_flags
from broker.config.load import load
from broker.config.settings import ConfigError, MonitoringSettings
from broker.monitor.access import Access
from broker.monitor.views import Health
from broker.runtime.pages_access import access_of
from tests.harness import BrokerProcess
from tests.monitor.test_web import Pages

HASH = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()


def basic(user: str, password: str) -> str:
    return f"Authorization: Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


@pytest_asyncio.fixture(params=["right", HASH], ids=["plain", "bcrypt"])
async def pages(request: pytest.FixtureRequest) -> AsyncIterator[Pages]:
    async with Pages() as found:
        found.monitor.access = access_of(MonitoringSettings(user="prom", password=request.param))
        yield found


async def test_a_login(pages: Pages) -> None:
    """The right login reads every page; without it, or with a wrong one, each page but a probe's health is refused."""
    for path in ("/", "/varz", "/metrics", "/jsz", "/stacksz", "/raftz", "/none", "/healthz?details=1",
                 "/healthz?account=A", "/healthz?callback=f"):
        status, headers, body = await pages.get(path)
        assert (status, body) == (401, b"401 the monitoring pages need a login\n"), path
        assert headers["www-authenticate"].startswith("Basic realm=")
    for wrong in (basic("prom", "wrong"), basic("other", "right"), basic("", ""), basic("prom", ""),
                  "Authorization: Bearer right", "Authorization: Basic", "Authorization: Basic %%%",
                  "Authorization: Basic //8=", "Authorization: Basic " + base64.b64encode(b"prom").decode(),
                  basic("prom", "x" * 5000)):
        assert (await pages.get("/varz", wrong))[0] == 401, wrong
    for _ in range(2):
        status, headers, _ = await pages.get("/varz", basic("prom", "right"))
        assert status == 200
        assert "access-control-allow-origin" not in headers
    assert (await pages.get("/none", basic("prom", "right")))[0] == 404
    assert (await pages.get("/varz?callback=f", basic("prom", "right")))[0] == 400


async def test_probes_need_no_login(pages: Pages) -> None:
    """A probe gets the status, and no more: the error could name a stream."""
    assert (await pages.get("/healthz"))[::2] == (200, b'{"status":"ok"}')
    pages.server.health = Health("unavailable", "the stream SECRET", serving=False)
    assert (await pages.get("/healthz"))[::2] == (503, b'{"status":"unavailable"}')
    assert (await pages.get("/healthz?live=1"))[::2] == (200, b'{"status":"ok"}')
    assert b"SECRET" in (await pages.get("/healthz?details=1", basic("prom", "right")))[2]
    pages.monitor.access = access_of(MonitoringSettings(user="prom", password="right", protect_health=True))
    assert (await pages.get("/healthz?live=1"))[0] == 401


async def test_addresses() -> None:
    """Only listed addresses may read the pages; an IPv4 address that arrives as IPv6 counts as itself."""
    async with Pages() as pages:
        pages.monitor.access = access_of(MonitoringSettings(allow=("10.0.0.0/8", "::1")))
        assert (await pages.get("/varz"))[::2] == (403, b"403 this address may not read the monitoring pages\n")
        assert (await pages.get("/healthz"))[0] == 200
        pages.monitor.access = access_of(MonitoringSettings(allow=("127.0.0.0/8",)))
        assert (await pages.get("/varz"))[0] == 200
    access = Access([ip_network("10.0.0.0/8"), ip_network("fe80::/10")])
    for inside in ("10.1.2.3", "::ffff:10.1.2.3", "fe80::1%eth0"):
        assert await access.refusal(inside, "") is None, inside
    for outside in ("11.1.2.3", "::ffff:11.1.2.3", "::10.1.2.3", "fd00::1", "", "unix", "10.1.2.3.4"):
        assert await access.refusal(outside, "") is not None, outside


async def test_wrong_passwords_do_not_delay_a_right_one() -> None:
    """While many peers send wrong passwords, comparisons run one at a time, and a login that was right before waits for
    none of them. Peers that disconnect leave nothing behind."""
    running = most = 0
    access = access_of(MonitoringSettings(user="prom", password=HASH))
    login = access._login
    assert login is not None
    assert await login("prom", "right")
    real = asyncio.to_thread

    async def counted(function: object, /, *args: object) -> object:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return await real(function, *args)  # type: ignore[arg-type]
        finally:
            running -= 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("broker.runtime.pages_access.asyncio.to_thread", counted)
        wrong = [asyncio.create_task(login("prom", str(number))) for number in range(50)]
        await asyncio.sleep(0)
        assert await login("prom", "right")
        assert sum(task.done() for task in wrong) < 50
        for task in wrong[:25]:
            task.cancel()
        assert not any(await asyncio.gather(*wrong[25:]))
    assert most == 1


async def test_the_time_does_not_tell_users() -> None:
    """A wrong user takes as long as a wrong password: with a hash, a comparison is far longer than all else."""
    hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(8)).decode()
    login = access_of(MonitoringSettings(user="prom", password=hashed))._login
    assert login is not None

    async def seconds(user: str) -> float:
        times = []
        for _ in range(5):
            began = time.perf_counter()
            assert not await login(user, "wrong")
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    assert await seconds("nobody") > 0.2 * await seconds("prom")


@pytest.mark.parametrize("words, reason", [
    ("user: a", "needs a user and a password"),
    ("password: a", "needs a user and a password"),
    ('allow: ["10.0.0.0/33"]', "must be IP addresses or networks such as 10.0.0.0/8"),
    ('allow: ["example.com"]', "must be IP addresses or networks"),
    ("protect: true", "protect"),
])
def test_wrong_settings(words: str, reason: str) -> None:
    """A mistake is an error that names the setting."""
    with pytest.raises(ConfigError) as error:
        load(read_flags(["-c", "x"]), {}, lambda _path: f"http: 8222\njetblock {{ monitor {{ {words} }} }}")
    assert reason in str(error.value)


async def test_a_broker_and_its_reload(tmp_path: Path) -> None:
    """The settings of a file restrict the pages; a reload replaces the password; the log never has one."""
    conf = tmp_path / "jetblock.conf"

    def write(password: str) -> None:
        conf.write_text(f'jetblock {{ monitor {{ user: prom, password: "{password}", allow: "127.0.0.1" }} }}')

    write("first-secret")
    async with BrokerProcess("-c", str(conf)) as broker:

        async def status(password: str) -> int:
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.http_port)
            writer.write(f"GET /varz HTTP/1.1\r\nHost: x\r\n{basic('prom', password)}\r\n\r\n".encode())
            answer = await reader.read()
            writer.close()
            return int(answer.split()[1])

        assert [await status("first-secret"), await status("second-secret")] == [200, 401]
        write("second-secret")
        broker.send_signal(signal.SIGHUP)
        await broker.wait_line("Reloaded: monitor password")
        assert [await status("first-secret"), await status("second-secret")] == [401, 200]
        assert not [line for line in broker.stderr if "secret" in line]
