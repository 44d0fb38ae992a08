"""A picture of each page in two sizes, beside a real broker with load, and of some in the dark.

``JETBLOCK_PICTURES=docs/pictures`` keeps those that docs/console.md shows.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest
from playwright.async_api import Page, expect

from tests.console.browsers import SECONDS, browser, heading, log_in
from tests.console.consoles import console
from tests.harness import BrokerProcess

pytestmark = pytest.mark.soak
SHOWN = {"overview-1200", "stream-1200", "messages-1200", "message-1200", "store-1200"}


@asynccontextmanager
async def load(broker: BrokerProcess) -> AsyncIterator[None]:
    """Fill a broker with what a small shop has, and go on publishing."""
    rng = random.Random(27)
    client = await nats.connect(broker.url)
    context = client.jetstream()
    await context.add_stream(name="ORDERS", subjects=["orders.>"], description="all orders, for a year")
    await context.add_stream(name="EVENTS", subjects=["events.>"])

    async def publish(number: int) -> None:
        subject = f"orders.{rng.choice(['eu', 'us', 'asia'])}.{rng.choice(['created', 'paid', 'shipped'])}"
        body = {"number": number, "customer": f"c{number % 77}", "total": rng.randrange(100, 50_000) / 100}
        await context.publish(subject, json.dumps(body).encode(), headers={"Traceparent": f"00-{number:032x}"})

    await asyncio.gather(*(publish(number) for number in range(2000)))
    for name, fetched in (("worker", 1900), ("billing", 300), ("audit", 0)):
        consumer = await context.pull_subscribe("orders.>", name)
        for msg in await consumer.fetch(fetched) if fetched else ():
            if name == "worker":
                await msg.ack()
    bucket = await context.create_key_value(bucket="config", history=5)
    for number in range(12):
        await bucket.put(f"service.{number}.timeout", b"%d" % number)
    await (await context.create_object_store("files")).put("report.pdf", bytes(300_000))

    async def go_on() -> None:
        number = 2000
        while True:
            await asyncio.gather(*(publish(number + at) for at in range(rng.randrange(5, 40))))
            number += 40
            await asyncio.sleep(0.2)

    going = asyncio.ensure_future(go_on())
    try:
        yield
    finally:
        going.cancel()
        await client.close()


@pytest.mark.parametrize("width", [1200, 480])
async def test_pictures(tmp_path: Path, width: int) -> None:
    kept = Path(os.environ.get("JETBLOCK_PICTURES") or tmp_path)
    store = tmp_path / "store"
    async with (BrokerProcess("-js", "-sd", str(store)) as broker, load(broker),
                console("--server", broker.url, "--monitor", broker.monitor_url, "--store", f"file://{store}") as url,
                browser(width, 800) as page):
        async def picture(name: str) -> None:
            wide = await page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert wide <= 0, f"{name} is wider than the window by {wide} pixels"
            if f"{name}-{width}" in SHOWN or "JETBLOCK_PICTURES" not in os.environ:
                await page.screenshot(path=kept / f"{name}-{width}.png")

        await log_in(page, url)
        await expect(page.get_by_text("on S3")).to_be_visible(timeout=SECONDS)
        await page.wait_for_timeout(20_000)
        await picture("overview")
        for path, title, name in (("streams", "Streams", "streams"),
                                  ("streams/ORDERS/messages", "Messages", "messages"),
                                  ("kv/config", "config", "bucket"), ("objects/files", "files", "objects")):
            await page.goto(f"{url}/{path}")
            await heading(page, title)
            await page.wait_for_timeout(3000)
            await picture(name)
            if name == "messages":
                await page.locator("tbody a").first.click()
                await expect(page.get_by_role("dialog")).to_be_visible(timeout=SECONDS)
                await page.wait_for_timeout(1000)
                await picture("message")
        await page.goto(f"{url}/streams/ORDERS")
        await page.wait_for_timeout(12_000)
        await picture("stream")
        for tab in ("Subjects", "Over time", "Configuration"):
            await page.get_by_role("tab", name=tab).click()
            await page.wait_for_timeout(2000)
            await picture(f"stream-{tab.lower().replace(' ', '-')}")
        await page.goto(f"{url}/store")
        await page.get_by_role("button", name="$G/ORDERS").click(timeout=SECONDS)
        await expect(page.get_by_role("img", name="Map of blocks")).to_be_visible(timeout=SECONDS)
        await page.wait_for_timeout(1500)
        await picture("store")
        for tab in ("Shards and epochs", "Compaction and scrub", "Verify", "Bill"):
            await page.get_by_role("tab", name=tab).click()
            await page.wait_for_timeout(2500)
            await picture(f"store-{tab.lower().replace(' ', '-')}")
        await in_the_dark(page, url, picture)


async def in_the_dark(page: Page, url: str, picture: object) -> None:
    await page.get_by_role("button", name="Light or dark").click()
    await expect(page.locator("body.body--dark")).to_have_count(1, timeout=SECONDS)
    for path in ("", "streams/ORDERS", "streams/ORDERS/messages"):
        await page.goto(f"{url}/{path}")
        await page.wait_for_timeout(3000)
        assert callable(picture)
        await picture(f"dark-{path.replace('/', '-') or 'overview'}")
