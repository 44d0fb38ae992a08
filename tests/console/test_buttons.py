"""Every button of the console that changes something or reads more, pressed in a real Chromium."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import nats
import pytest
from playwright.async_api import expect

from tests.console.browsers import (
    SECONDS,
    browser,
    confirm,
    dialog,
    fill,
    heading,
    log_in,
    press,
    says,
    write,
)
from tests.console.consoles import console
from tests.harness import BrokerProcess

pytestmark = pytest.mark.soak


async def test_streams_and_consumers(tmp_path: Path) -> None:
    async with (BrokerProcess("-js", "-sd", str(tmp_path / "store")) as broker,
                console("--server", broker.url) as url, browser() as page):
        await fill(broker)
        await log_in(page, url)
        await page.goto(f"{url}/streams")
        await press(page, "New stream")
        await write(page, {"name": "bad.name", "subjects": ["new.>"]})
        await press(dialog(page), "Create")
        await expect(dialog(page).get_by_role("alert")).to_contain_text("ame", timeout=SECONDS)
        await write(page, {"name": "NEW", "subjects": ["new.>"]})
        await press(dialog(page), "Create")
        await heading(page, "NEW")

        await page.get_by_role("tab", name="Configuration").click()
        await press(page, "Edit")
        config = json.loads(await page.locator(".jb-code").first.inner_text())
        await write(page, {**config, "max_msgs": 77})
        await press(dialog(page), "Compare")
        await expect(dialog(page).get_by_text('"max_msgs": 77').last).to_be_visible(timeout=SECONDS)
        await press(dialog(page), "Apply")
        await expect(page.get_by_role("dialog")).to_have_count(0, timeout=SECONDS)
        client = await nats.connect(broker.url)
        assert (await client.jetstream().stream_info("NEW")).config.max_msgs == 77

        await page.goto(f"{url}/streams/ORDERS")
        await press(page, "New consumer")
        await write(page, {"durable_name": "made", "ack_policy": "explicit"})
        await press(dialog(page), "Compare")
        await press(dialog(page), "Apply")
        await page.get_by_role("button", name="made", exact=True).click(timeout=SECONDS)
        await press(dialog(page), "Pause")
        await expect(page.get_by_role("row", name="made")).to_contain_text("paused", timeout=SECONDS)
        await page.get_by_role("button", name="made", exact=True).click()
        await press(dialog(page), "Delete")
        await confirm(page, "made", "Delete")
        await expect(page.get_by_role("cell", name="made", exact=True)).to_have_count(0, timeout=SECONDS)

        await page.get_by_role("tab", name="Subjects").click()
        await says(page, "4 subjects")
        await page.locator(".q-tree__arrow").first.click()
        await says(page, "hostile (1)")
        await page.get_by_role("tab", name="Over time").click()
        await expect(page.get_by_role("img", name="Messages over time")).to_be_visible(timeout=SECONDS)
        await press(page, "Purge")
        await confirm(page, "ORDERS", "Purge")
        await says(page, "Removed 61 messages.")
        await press(page, "Delete")
        await confirm(page, "ORDERS", "Delete")
        await heading(page, "Streams")
        assert "ORDERS" not in {info.config.name for info in await client.jetstream().streams_info()}
        await client.close()


async def test_messages(tmp_path: Path) -> None:
    async with (BrokerProcess("-js", "-sd", str(tmp_path / "store")) as broker,
                console("--server", broker.url) as url, browser() as page):
        await fill(broker)
        client = await nats.connect(broker.url)
        await client.jetstream().publish("orders.large", b"L" * 900_000)
        await log_in(page, url)
        await page.goto(f"{url}/streams/ORDERS/messages")
        await page.get_by_label("Search for").fill('"number": 7}')
        await press(page, "Search")
        await says(page, "1 found up to sequence 62")
        await press(page, "Latest")
        await page.get_by_role("cell", name="orders.large").click(timeout=SECONDS)
        await says(page, "The first 256 KiB of 900,000 bytes are shown.")
        await press(dialog(page), "Close")

        await press(page, "Publish")
        await dialog(page).get_by_label("Subject").fill("orders.mine")
        await dialog(page).get_by_label("Headers, one a line").fill("Kind: a test")
        await dialog(page).get_by_label("Payload").fill('{"by": "hand"}')
        await press(dialog(page), "Publish")
        await says(page, "Stored in ORDERS as sequence 63.")
        stored = await client.jetstream().get_msg("ORDERS", 63)
        assert (stored.subject, stored.data, stored.headers) == ("orders.mine", b'{"by": "hand"}', {"Kind": "a test"})
        await press(page, "Latest")
        await page.get_by_role("cell", name="orders.mine").click(timeout=SECONDS)
        await says(page, "a test")
        await press(dialog(page), "Delete")
        await confirm(page, "63", "Delete")
        await says(page, "Message 63 is deleted.")

        await press(page, "Follow")
        await expect(page.get_by_role("button", name="Stop following")).to_be_visible(timeout=SECONDS)
        while await page.get_by_role("cell", name="orders.live").count() == 0:
            await client.jetstream().publish("orders.live", b"now")
            await page.wait_for_timeout(300)
        await page.get_by_label("From time").fill("yesterday")
        await press(page, "Show")
        await says(page, "The time is not RFC 3339")
        await client.close()


async def test_buckets_and_objects(tmp_path: Path) -> None:
    async with (BrokerProcess("-js", "-sd", str(tmp_path / "store")) as broker,
                console("--server", broker.url) as url, browser() as page):
        await fill(broker)
        await log_in(page, url)
        await page.goto(f"{url}/kv")
        await press(page, "New bucket")
        await dialog(page).get_by_label("Name").fill("made")
        await press(dialog(page), "Create")
        await heading(page, "made")
        client = await nats.connect(broker.url)
        bucket = await client.jetstream().key_value("made")
        await press(page, "New key")
        await dialog(page).get_by_label("Key").fill("color")
        await dialog(page).get_by_label("Value").fill("green")
        await press(dialog(page), "Put")
        await says(page, "green")
        assert (await bucket.get("color")).value == b"green"
        await press(page, "Edit")
        await bucket.put("color", b"changed by somebody else")
        await dialog(page).get_by_label("Value").fill("blue")
        await press(dialog(page), "Put")
        await says(page, "Somebody has changed the key in the meantime; nothing was written.")
        assert (await bucket.get("color")).value == b"changed by somebody else"
        await press(dialog(page), "Cancel")
        await page.get_by_role("cell", name="color", exact=True).click()
        await says(page, "changed by somebody else")
        await press(page, "Delete")
        await confirm(page, "color", "Delete")
        await expect(page.get_by_role("cell", name="DEL")).to_be_visible(timeout=SECONDS)

        await page.goto(f"{url}/objects/files")
        file = tmp_path / "upload.bin"
        file.write_bytes(bytes(range(256)) * 4000)
        await page.locator("input[type=file]").set_input_files(file)
        await says(page, "upload.bin is stored.")
        store = await client.jetstream().object_store("files")
        assert (await store.get("upload.bin")).data == file.read_bytes()
        await page.get_by_role("cell", name="upload.bin").click()
        async with page.expect_download() as downloaded:
            await press(dialog(page), "Download")
        assert (await asyncio.to_thread((await (await downloaded.value).path()).read_bytes)) == file.read_bytes()
        await page.get_by_role("cell", name="upload.bin").click()
        await press(dialog(page), "Delete")
        await confirm(page, "upload.bin", "Delete")
        await expect(page.get_by_role("cell", name="upload.bin")).to_have_count(0, timeout=SECONDS)
        await client.close()


async def test_the_store(tmp_path: Path) -> None:
    store = tmp_path / "store"
    async with (BrokerProcess("-js", "-sd", str(store)) as broker,
                console("--server", broker.url, "--store", f"file://{store}") as url, browser() as page):
        await fill(broker)
        await log_in(page, url)
        await page.goto(f"{url}/store")
        for tab in ("Epochs", "Bill", "Verify"):
            await page.get_by_role("tab", name=tab).click()
        await press(page, "Verify")
        await says(page, "objects are sound")


async def test_read_only(tmp_path: Path) -> None:
    async with (BrokerProcess("-js", "-sd", str(tmp_path / "store")) as broker,
                console("--server", broker.url, "--read-only") as url, browser() as page):
        await fill(broker)
        await log_in(page, url)
        for path, offered in (("streams/ORDERS", "Messages"), ("streams/ORDERS/messages", "Latest"),
                              ("kv/config", "Read again")):
            await page.goto(f"{url}/{path}")
            await expect(page.get_by_role("button", name=offered).first).to_be_visible(timeout=SECONDS)
            names = [await one.inner_text() for one in await page.get_by_role("button").all()]
            assert not {name.strip().lower() for name in names} & {
                "delete", "purge", "edit", "publish", "new key", "new consumer", "new stream"}
