"""The console's pages in a real Chromium, with a real broker.

These runs need the machine's own Chromium (Debian: ``apt install chromium``), so they are among the long ones.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest
from playwright.async_api import Page, async_playwright, expect

from tests.console.consoles import console
from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess

pytestmark = pytest.mark.soak
HOSTILE = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>"
SECONDS = 60_000


@asynccontextmanager
async def browser(width: int = 1366) -> AsyncIterator[Page]:
    """Open a page in Chromium; at its end, check that no script of a page failed."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    assert program, "no Chromium on this machine; on Debian: apt install chromium"
    failed: list[str] = []
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = await chromium.new_page(viewport={"width": width, "height": 900})
        page.set_default_timeout(SECONDS)
        page.on("pageerror", lambda error: failed.append(str(error)))
        yield page
        await chromium.close()
    assert not failed


async def fill(server: ServerProcess) -> None:
    """Make a stream with a consumer, a bucket and an object store."""
    client = await nats.connect(server.url)
    context = client.jetstream()
    await context.add_stream(name="ORDERS", subjects=["orders.>"])
    for number in range(60):
        await context.publish(f"orders.{number % 3}", json.dumps({"number": number}).encode())
    await context.publish("orders.hostile", HOSTILE.encode())
    await context.pull_subscribe("orders.>", "worker")
    await (await context.create_key_value(bucket="config", history=5)).put("color", b"red")
    await (await context.create_object_store("files")).put("report", b"x" * 300_000)
    await client.close()


async def log_in(page: Page, url: str) -> None:
    await page.goto(url)
    await page.get_by_role("button", name="Log in").click()
    await heading(page, "Overview")


async def heading(page: Page, text: str) -> None:
    await expect(page.get_by_role("heading", name=text, exact=True)).to_be_visible(timeout=SECONDS)


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
        await expect(page.get_by_text("not jetblock")).to_be_visible(timeout=SECONDS)
        await page.goto(f"{url}/streams/ORDERS")
        await expect(page.get_by_text("worker").first).to_be_visible(timeout=SECONDS)


async def test_a_wrong_password_is_said(tmp_path: Path) -> None:
    async with (BrokerProcess("--user", "admin", "--pass", "secret", "-js", "-sd", str(tmp_path)) as broker,
                console("--server", broker.url) as url, browser() as page):
        await page.goto(url)
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_role("alert")).to_contain_text("Authorization Violation", timeout=SECONDS)
