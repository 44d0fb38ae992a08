"""The console's pages in a real Chromium, with a real broker."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.console.browsers import SECONDS, browser, fill, heading, log_in
from tests.console.consoles import console
from tests.harness import BrokerProcess, NatsServerProcess

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("width", [1366, 480])
async def test_the_pages_of_a_broker(tmp_path: Path, width: int) -> None:
    store = tmp_path / "store"
    async with BrokerProcess("-js", "-sd", str(store)) as broker:
        await fill(broker)
        async with console("--server", broker.url, "--monitor", broker.monitor_url,
                           "--store", f"file://{store}") as url, browser(width) as page:
            await log_in(page, url)
            await expect(page.get_by_text("owner, epoch 1, lease valid")).to_be_visible(timeout=SECONDS)
            for path, title, text in (
                    ("streams", "Streams", "orders.>"), ("streams/ORDERS", "ORDERS", "worker"),
                    ("kv", "Key-value buckets", "config"), ("kv/config", "config", "color"),
                    ("objects", "Object stores", "files"), ("objects/files", "files", "report"),
                    ("store", "Store", "No problems were found")):
                await page.goto(f"{url}/{path}")
                await heading(page, title)
                await expect(page.get_by_text(text).first).to_be_visible(timeout=SECONDS)
            await page.goto(f"{url}/streams/NOPE")
            await expect(page.get_by_role("alert")).to_have_text("Stream not found.", timeout=SECONDS)


async def test_payloads_are_text_and_a_lost_server_is_shown(tmp_path: Path) -> None:
    async with BrokerProcess("-js", "-sd", str(tmp_path / "store")) as broker:
        await fill(broker)
        async with console("--server", broker.url) as url, browser() as page:
            await log_in(page, url)
            await page.goto(f"{url}/streams/ORDERS/messages")
            await expect(page.get_by_text("<img src=x").first).to_be_visible(timeout=SECONDS)
            assert await page.evaluate("window.hacked") is None
            assert "id" not in await page.evaluate("Object.keys(window.localStorage).join()")
            await broker.kill()
            await expect(page.get_by_text("cannot be reached; trying again")).to_be_visible(timeout=SECONDS)
            await broker.restart()
            await expect(page.get_by_text("cannot be reached; trying again")).to_be_hidden(timeout=SECONDS)
            await page.get_by_role("button", name="Log out").click()
            await expect(page.get_by_role("button", name="Log in")).to_be_visible(timeout=SECONDS)
            await page.goto(f"{url}/streams")
            await expect(page).to_have_url(re.compile(r"/login\?"), timeout=SECONDS)


async def test_the_pages_of_a_real_nats_server(nats_server: NatsServerProcess) -> None:
    await fill(nats_server)
    async with console("--server", nats_server.url, "--monitor", nats_server.monitor_url) as url, browser() as page:
        await log_in(page, url)
        await expect(page.get_by_text("nats-server 2.")).to_be_visible(timeout=SECONDS)
        await expect(page.get_by_text("a month")).to_be_hidden()
        await page.goto(f"{url}/streams/ORDERS")
        await expect(page.get_by_text("worker").first).to_be_visible(timeout=SECONDS)


async def test_a_wrong_password_is_said(tmp_path: Path) -> None:
    async with (BrokerProcess("--user", "admin", "--pass", "secret", "-js", "-sd", str(tmp_path)) as broker,
                console("--server", broker.url) as url, browser() as page):
        await page.goto(url)
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_role("alert")).to_contain_text("Authorization Violation", timeout=SECONDS)
