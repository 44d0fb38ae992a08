"""A real Chromium for tests, and what they do with its pages.

These runs need Chromium: ``make parts`` installs Debian's package if it may.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import nats
from playwright.async_api import Locator, Page, async_playwright, expect

from tests.harness import ServerProcess
from tests.real.parts import chromium

__all__ = ["HOSTILE", "SECONDS", "browser", "browsers", "confirm", "dialog", "fill", "heading", "log_in", "press",
           "says", "write"]

HOSTILE = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>"
SECONDS = 60_000


@asynccontextmanager
async def browsers(number: int, width: int = 1366, height: int = 900) -> AsyncIterator[list[Page]]:
    """Open pages that share nothing, in one Chromium; at its end, check that no script of a page failed."""
    failed: list[str] = []
    async with async_playwright() as playwright:
        program = await playwright.chromium.launch(executable_path=str(chromium()), args=["--no-sandbox"])
        pages = []
        for _ in range(number):
            context = await program.new_context(viewport={"width": width, "height": height})
            page = await context.new_page()
            page.set_default_timeout(SECONDS)
            page.on("pageerror", lambda error: failed.append(str(error)))
            pages.append(page)
        yield pages
        for page in pages:
            assert await page.evaluate("window.hacked") is None
        await program.close()
    assert not failed


@asynccontextmanager
async def browser(width: int = 1366, height: int = 900) -> AsyncIterator[Page]:
    """Open a page in Chromium; at its end, check that no script of a page failed."""
    async with browsers(1, width, height) as pages:
        yield pages[0]


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


async def press(where: Page | Locator, name: str) -> None:
    await where.get_by_role("button", name=name, exact=True).click()


async def says(page: Page, text: str) -> None:
    await expect(page.get_by_text(text).first).to_be_visible(timeout=SECONDS)


def dialog(page: Page) -> Locator:
    return page.get_by_role("dialog").last


async def confirm(page: Page, name: str, action: str) -> None:
    """Type the name that the dialog wants, and agree; before that the button does nothing."""
    box = page.get_by_role("dialog").filter(has_text=f"Type {name} to confirm")
    await expect(box.get_by_role("button", name=action)).to_be_disabled(timeout=SECONDS)
    await box.get_by_label(f"Type {name} to confirm").fill(name)
    await press(box, action)


async def write(page: Page, config: object) -> None:
    """Replace the text of the dialog's editor."""
    await dialog(page).locator(".cm-content").fill(json.dumps(config))
