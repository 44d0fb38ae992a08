"""Servers that go away, streams that are deleted while they are shown, stores that cannot be read, long absences."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import nats
import pytest
from playwright.async_api import expect

from tests.console.browsers import SECONDS, browser, fill, heading, log_in, press, says
from tests.console.consoles import console
from tests.harness import BrokerProcess

pytestmark = pytest.mark.soak


async def test_the_server_is_killed_under_each_page(tmp_path: Path) -> None:
    """Each page says in one sentence that the server is away; after the restart they go on, following too."""
    async with (BrokerProcess("-js", "-sd", str(tmp_path / "store")) as broker,
                console("--server", broker.url, "--monitor", broker.monitor_url) as url, browser() as page):
        await fill(broker)
        await log_in(page, url)
        await page.goto(f"{url}/streams/ORDERS/messages")
        await press(page, "Follow")
        await says(page, "Following")
        await broker.kill()
        await says(page, "cannot be reached; trying again")
        for path in ("", "streams", "streams/ORDERS", "kv/config", "objects/files"):
            other = await page.context.new_page()
            await other.goto(f"{url}/{path}")
            await expect(other.get_by_role("alert").first).to_be_visible(timeout=SECONDS)
            await other.close()
        await broker.restart()
        await expect(page.get_by_text("cannot be reached; trying again")).to_be_hidden(timeout=SECONDS)
        client = await nats.connect(broker.url)
        await client.jetstream().publish("orders.after", b"the restart")
        await says(page, "orders.after")
        await client.close()


async def test_a_stream_is_deleted_while_it_is_shown(tmp_path: Path) -> None:
    async with (BrokerProcess("-js", "-sd", str(tmp_path / "store")) as broker,
                console("--server", broker.url) as url, browser() as page):
        await fill(broker)
        await log_in(page, url)
        await page.goto(f"{url}/streams/ORDERS")
        await says(page, "worker")
        messages = await page.context.new_page()
        await messages.goto(f"{url}/streams/ORDERS/messages")
        await says(messages, "50 messages, sequences 12 to 61")
        client = await nats.connect(broker.url)
        await client.jetstream().delete_stream("ORDERS")
        await says(page, "The stream ORDERS was deleted in the meantime.")
        await messages.get_by_role("button", name="61", exact=True).click()
        await says(messages, "Stream not found.")
        await press(messages, "Latest")
        await says(messages, "Stream not found.")
        await client.close()


async def test_stores_that_cannot_be_read(tmp_path: Path) -> None:
    """A store that is gone, one of a newer version, and one that is not a store: a sentence, and the rest works."""
    store, shown = tmp_path / "store", tmp_path / "shown"
    async with BrokerProcess("-js", "-sd", str(store)) as broker:
        await fill(broker)
        await asyncio.to_thread(shutil.copytree, store, shown)
        async with console("--server", broker.url, "--store", f"file://{shown}") as url, browser() as page:
            await log_in(page, url)
            await page.goto(f"{url}/store")
            await says(page, "No problems were found")
            file = next(path for path in shown.rglob("*") if path.is_file() and "format" in path.name.lower())
            good = file.read_bytes()
            for damage in (lambda: file.write_bytes(good[:4] + b"\xff\xff" + good[6:]), file.unlink,
                           lambda: shutil.rmtree(shown)):
                damage()
                await press(page, "Read again")
                await expect(page.get_by_role("alert").first).to_be_visible(timeout=SECONDS)
            await page.goto(f"{url}/streams/ORDERS")
            await heading(page, "ORDERS")


async def test_a_browser_comes_back_after_its_session(tmp_path: Path) -> None:
    """An unused session ends, and its page says so; after the login the browser is where it was."""
    async with (BrokerProcess("-js", "-sd", str(tmp_path / "store")) as broker,
                console("--server", broker.url, "--session-minutes", "0.15") as url, browser() as page):
        await fill(broker)
        await log_in(page, url)
        await page.goto(f"{url}/streams/ORDERS")
        await heading(page, "ORDERS")
        await says(page, "Your session has ended. Log in again to go on.")
        await press(page, "Log in")
        await heading(page, "ORDERS")


async def test_large_messages_and_many_subjects(tmp_path: Path) -> None:
    """A page of 50 messages of 8 MB, 10 000 streams and a tree of 100 000 subjects are shown in seconds."""
    file = tmp_path / "server.conf"
    file.write_text(f"max_payload: 16MB\njetstream {{ store_dir: {tmp_path / 'store'} }}\n")
    async with BrokerProcess("-c", str(file)) as broker, console("--server", broker.url) as url, browser() as page:
        client = await nats.connect(broker.url, pending_size=64 << 20)
        context = client.jetstream()
        await context.add_stream(name="LARGE", subjects=["large"])
        for number in range(50):
            await context.publish("large", number.to_bytes(4, "big") * (2 << 20), timeout=60)
        await context.add_stream(name="MANY", subjects=["many.>"], max_msgs_per_subject=1)
        for number in range(100_000):
            await client.publish(f"many.{number % 7}.{number}", b"")
        await client.flush(60)
        for start in range(0, 10_000, 250):
            await asyncio.gather(*(context.add_stream(name=f"S{number:05}", subjects=[f"s.{number}"])
                                   for number in range(start, start + 250)))
        await log_in(page, url)
        await page.goto(f"{url}/streams/LARGE/messages")
        await says(page, "50 messages, sequences 1 to 50")
        await page.get_by_role("button", name="50", exact=True).click()
        await says(page, "The first 256 KiB of 8,388,608 bytes are shown.")
        async with page.expect_download() as downloaded:
            await press(page.get_by_role("dialog"), "Download")
        path = await (await downloaded.value).path()
        assert path.stat().st_size == 8 << 20
        await page.goto(f"{url}/streams")
        await says(page, "10,002 streams")
        await page.get_by_label("Find a stream").fill("s09999")
        await page.get_by_role("link", name="S09999").click()
        await heading(page, "S09999")
        await page.goto(f"{url}/streams/MANY")
        await page.get_by_role("tab", name="Subjects").click()
        await says(page, "100,000 subjects")
        await page.locator(".q-tree__arrow").first.click()
        await says(page, "0 (14,286 in 14,286 subjects)")
        await page.locator(".q-tree__arrow").nth(1).click()
        await says(page, "… and 14,086 more subjects")
        await client.close()
