"""Hostile data, hostile sites, and users who try to get at what is not theirs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgpack
import nats
import pytest
from nats.js.api import ObjectMeta
from playwright.async_api import expect

from broker.console.login import Login
from broker.console.session import Sessions, Settings
from tests.console.browsers import HOSTILE, SECONDS, browser, browsers, dialog, heading, log_in, press, says
from tests.console.consoles import console
from tests.harness import BrokerProcess

MARKUP = f"```\n{HOSTILE}\n# [x](javascript:window.hacked=1) {{{{ window.hacked=1 }}}} </pre></script>"


async def test_a_key_of_a_session_is_made_at_the_login(broker: BrokerProcess) -> None:
    """Shows that a ticket works once, in one browser, and that a cookie from before the login works no more."""
    sessions = Sessions(Settings(Login(broker.url)))
    ticket = await sessions.open("browser", Login(broker.url))
    assert await sessions.enter(ticket, "another browser", "") is None
    assert await sessions.enter(ticket, "browser", "") is None
    ticket = await sessions.open("browser", Login(broker.url))
    key = await sessions.enter(ticket, "browser", "")
    assert key is not None
    assert await sessions.enter(ticket, "browser", "") is None
    session = await sessions.get(key)
    assert session is not None
    for guess in ("", "browser", ticket, "shared"):
        assert await sessions.get(guess) is None
    second = await sessions.enter(await sessions.open("browser", Login(broker.url)), "browser", key)
    assert (session.ended, await sessions.get(key)) == (True, None)
    assert await sessions.get(second or "") is not None
    await sessions.close()


async def test_a_session_ends_when_nobody_uses_it(broker: BrokerProcess) -> None:
    sessions = Sessions(Settings(Login(broker.url), idle_seconds=0.2))
    key = await sessions.enter(await sessions.open("browser", Login(broker.url)), "browser", "")
    session = await sessions.get(key or "")
    assert session is not None
    async with asyncio.timeout(30):
        while not session.ended:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert await sessions.get(key or "") is None
    assert not session.server.connected
    await sessions.close()


@pytest.mark.soak
async def test_everything_from_the_server_is_text(tmp_path: Path) -> None:
    """Names, descriptions, subjects, headers, payloads, keys and values that are HTML or Markdown are shown as text."""
    async with (BrokerProcess("-js", "-sd", str(tmp_path / "store")) as broker,
                console("--server", broker.url, "--monitor", broker.monitor_url, "--store",
                        f"file://{tmp_path / 'store'}") as url, browser() as page):
        client = await nats.connect(broker.url)
        context = client.jetstream()
        evil = "<img/src=x/onerror=window['hacked']=1"
        config = {"name": evil.replace("/", "_"), "subjects": ["evil", "evil.*"], "description": HOSTILE,
                  "metadata": {HOSTILE: HOSTILE}}
        name = config["name"]
        answer = json.loads((await client.request(f"$JS.API.STREAM.CREATE.{name}", json.dumps(config).encode())).data)
        assert "error" not in answer, answer
        await client.publish("evil.<script>window['hacked']=1</script>", MARKUP.encode(), headers={"X": HOSTILE})
        await context.publish("evil", msgpack.packb({HOSTILE: [MARKUP]}))
        await context.publish("evil", json.dumps({HOSTILE: MARKUP}).encode())
        await context.pull_subscribe("evil.>", "img_src=x_onerror=window[hacked]=1", stream=name)
        bucket = await context.create_key_value(bucket="config")
        await bucket.put("key", MARKUP.encode())
        objects = await context.create_object_store("files")
        for number, object_name in enumerate((HOSTILE, "../../../etc/passwd", "a\r\nSet-Cookie: b=c")):
            await objects.put(object_name, b"%d" % number, ObjectMeta(name=object_name, description=HOSTILE))
        await log_in(page, url)
        await page.goto(f"{url}/streams")
        await page.get_by_role("link", name=name).click()
        await heading(page, name)
        for tab in ("Subjects", "Over time", "Configuration"):
            await page.get_by_role("tab", name=tab).click()
            await page.wait_for_timeout(500)
        await page.goto(f"{page.url}/messages")
        for seq in (1, 2, 3):
            await page.get_by_role("button", name=str(seq), exact=True).click()
            for view in ("text", "json", "msgpack", "hex"):
                await press(dialog(page), view)
                await page.wait_for_timeout(200)
            await press(dialog(page), "Close")
            await expect(page.get_by_role("dialog")).to_have_count(0, timeout=SECONDS)
        await page.goto(f"{url}/kv/config")
        await page.get_by_role("button", name="key", exact=True).click()
        await says(page, "javascript:window.hacked=1")
        await page.goto(f"{url}/objects/files")
        for object_name, saved in ((HOSTILE, None), ("../../../etc/passwd", "passwd")):
            await page.get_by_role("button", name=object_name, exact=True).click()
            async with page.expect_download() as downloaded:
                await press(dialog(page), "Download")
            if saved is not None:
                assert (await downloaded.value).suggested_filename == saved
        await page.goto(f"{url}/store")
        await page.get_by_role("button", name=f"$G/{name}", exact=False).click(timeout=SECONDS)
        await expect(page.get_by_role("img", name="Map of blocks")).to_be_visible(timeout=SECONDS)
        for path in ("/streams/a.b", "/streams/*", "/kv/%3E", "/objects/a%20b"):
            await page.goto(url + path)
            await expect(page.get_by_role("alert").first).to_be_visible(timeout=SECONDS)
        assert (await page.request.get(f"{url}/streams/..%2F..%2Fetc%2Fpasswd")).status == 404
        await client.close()


@pytest.mark.soak
async def test_two_users_with_different_rights(tmp_path: Path) -> None:
    """Each browser does what its user may, at the same time; a planted cookie is no way into a session."""
    file = tmp_path / "server.conf"
    file.write_text(f"""jetstream {{ store_dir: {tmp_path / 'store'} }}
        authorization {{ users [
            {{ user: admin, password: pw }}
            {{ user: reader, password: pw, permissions: {{ publish: [
                "$JS.API.INFO", "$JS.API.STREAM.INFO.*", "$JS.API.STREAM.LIST", "$JS.API.CONSUMER.LIST.*",
                "$SYS.REQ.USER.INFO"], subscribe: "_INBOX.>" }} }} ] }}""")
    async with (BrokerProcess("-c", str(file)) as broker,
                console("--server", broker.url, "--store", f"file://{tmp_path / 'store'}") as url,
                browsers(2) as pages):
        client = await nats.connect(broker.url, user="admin", password="pw")
        await client.jetstream().add_stream(name="ORDERS", subjects=["orders.>"])
        planted = [{"name": f"jetblock_console_{url.rpartition(':')[2]}", "value": "planted", "url": url}]
        await pages[0].context.add_cookies(planted)  # type: ignore[arg-type]
        for page, user in zip(pages, ("admin", "reader"), strict=True):
            await page.goto(f"{url}/streams/ORDERS")
            await page.get_by_role("combobox", name="Login with").click()
            await page.get_by_role("option", name="User and password").click()
            await page.get_by_label("User", exact=True).fill(user)
            await page.get_by_label("Password").fill("pw")
            await press(page, "Log in")
            await heading(page, "ORDERS")
            await says(page, f"as {user}")
        keys = [one["value"] for page in pages for one in await page.context.cookies()
                if one["name"] == planted[0]["name"]]
        assert len(set(keys)) == 2
        assert "planted" not in keys
        admin, reader = pages
        await expect(admin.get_by_role("button", name="Purge")).to_be_visible(timeout=SECONDS)
        await expect(reader.get_by_role("button", name="Purge")).to_have_count(0, timeout=SECONDS)
        await expect(reader.get_by_role("button", name="New consumer")).to_have_count(0, timeout=SECONDS)
        await expect(reader.get_by_role("link", name="Store")).to_have_count(0, timeout=SECONDS)
        await reader.goto(f"{url}/store")
        await says(reader, "not shown to users with restrictions")
        await reader.goto(f"{url}/streams/ORDERS/messages")
        await says(reader, "may not publish to $JS.API.CONSUMER.CREATE.ORDERS")
        assert (await reader.request.get(f"{url}/download/message/ORDERS/1")).status == 404
        await press(reader, "Log out")
        await expect(reader).to_have_url(f"{url}/login", timeout=SECONDS)
        await says(admin, "as admin")
        await client.close()
