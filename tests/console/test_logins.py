"""Every way to log in, at both servers, and in the browser's form at jetblock."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from broker.base.nkeys import USER, seed_text
from broker.console.login import BadLogin, Login
from broker.console.server import Refused, Server
from tests import tokens
from tests.certificates import Authority
from tests.console.browsers import SECONDS, browser, heading, press
from tests.console.consoles import console
from tests.harness import BrokerProcess, NatsServerProcess
from tests.keys import key, secret

SERVERS = {"jetblock": BrokerProcess, "nats-server": NatsServerProcess}
NKEY = key(USER, "browser")


def _seed(name: str) -> str:
    return seed_text(USER, secret(USER, name))


def _creds(name: str = "u") -> str:
    return (f"-----BEGIN NATS USER JWT-----\n{tokens.user(name)}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{_seed(name)}\n------END USER NKEY SEED------\n")


def _cases(tmp_path: Path) -> dict[str, tuple[str, dict[str, str], dict[str, str]]]:
    """Return configurations, the credentials that each one accepts, and some that it refuses."""
    authority = Authority(tmp_path)
    server, client = authority.server(), authority.client("client")
    text = {name: Path(path).read_text() for name, path in (
        ("ca", authority.ca), ("cert", client.cert), ("key", client.key))}
    tls = f"tls {{ cert_file: {server.cert}, key_file: {server.key}, ca_file: {authority.ca}, verify: true }}"
    return {
        "user": ('authorization { user: annette, password: "pass word" }',
                 {"user": "annette", "password": "pass word"}, {"user": "annette", "password": "wrong"}),
        "token": ("authorization { token: s3cret }", {"token": "s3cret"}, {"token": "guess"}),
        "nkey": (f"authorization {{ users: [ {{ nkey: {NKEY.public} }} ] }}",
                 {"nkey": _seed("browser")}, {"nkey": _seed("other")}),
        "creds": (tokens.configuration({"A": tokens.account(limits={
            "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1})}),
                  {"creds": _creds()}, {"creds": _creds().replace(_seed("u"), _seed("browser"))}),
        "certificates": (tls, text, {"ca": text["ca"]}),
    }


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("case", ["user", "token", "nkey", "creds", "certificates"])
async def test_each_way_to_log_in(tmp_path: Path, case: str, name: str) -> None:
    """The right credentials list streams; wrong ones are one sentence, which does not have them."""
    text, right, wrong = _cases(tmp_path)[case]
    file = tmp_path / "server.conf"
    file.write_text(f"jetstream {{ store_dir: {tmp_path / 'store'} }}\n{text}\n")
    async with SERVERS[name]("-c", str(file)) as server:
        made = await Server.connect(Login(server.url, **right))
        assert await made.pages("STREAM.LIST", "streams") == []
        await made.close()
        with pytest.raises(BadLogin) as refused:
            await Server.connect(Login(server.url, **wrong))
        assert len(str(refused.value).splitlines()) == 1
        assert not any(value in str(refused.value) for value in wrong.values())


@pytest.mark.parametrize("wrong", [
    {"nkey": "SUnot"}, {"creds": "nothing"}, {"cert": "no", "key": "no"}, {"ca": "-----BEGIN"}, {"inbox_prefix": "a.>"},
    {"url": "nats://"}, {"url": "nats://127.0.0.1:99999"}, {"url": "nats://[::1"}])
def test_credentials_that_cannot_be_used_are_one_sentence(wrong: dict[str, str]) -> None:
    with pytest.raises(BadLogin) as refused:
        replace(Login("nats://127.0.0.1:4222"), **wrong).options()
    assert str(refused.value).endswith(".")


async def test_a_user_with_an_inbox_of_its_own(tmp_path: Path) -> None:
    """A user who may not subscribe to _INBOX.> gets a sentence about it, and can log in with an inbox prefix."""
    file = tmp_path / "server.conf"
    file.write_text(f"""jetstream {{ store_dir: {tmp_path / 'store'} }}
        authorization {{ users [ {{ user: ann, password: pw, permissions: {{
            publish: ">", subscribe: "_INBOX_ann.>" }} }} ] }}""")
    async with BrokerProcess("-c", str(file)) as server:
        login = Login(server.url, user="ann", password="pw")
        with pytest.raises(BadLogin, match="enter an inbox prefix"):
            await Server.connect(login)
        made = await Server.connect(replace(login, inbox_prefix="_INBOX_ann"))
        assert await made.pages("STREAM.LIST", "streams") == []
        await made.close()


async def test_permissions_are_learned_again_after_a_reconnect(tmp_path: Path) -> None:
    file = tmp_path / "server.conf"
    store = f"jetstream {{ store_dir: {tmp_path / 'store'} }}\n"
    user = "authorization { users [ { user: ann, password: pw, permissions: { publish: %s, subscribe: _INBOX.> } } ] }"
    file.write_text(store + user % '["$SYS.REQ.USER.INFO", "$JS.API.STREAM.LIST"]')
    async with BrokerProcess("-c", str(file)) as server:
        made = await Server.connect(Login(server.url, user="ann", password="pw"))
        assert (made.restricted, made.may_call("STREAM.CREATE.S")) == (True, False)
        with pytest.raises(Refused, match=r"may not publish to \$JS.API.STREAM.CREATE.S"):
            await made.api("STREAM.CREATE.S", {"name": "S"})
        await server.kill()
        file.write_text(store + user % '">"')
        await server.restart()
        async with asyncio.timeout(60):
            while made.restricted:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert made.may_call("STREAM.CREATE.S")
        await made.api("STREAM.CREATE.S", {"name": "S"})
        await made.close()


@pytest.mark.soak
@pytest.mark.parametrize("case", ["user", "token", "nkey", "creds", "certificates"])
async def test_the_form(tmp_path: Path, case: str) -> None:
    """The browser logs in, goes to the page that it wanted, and keeps no credentials."""
    text, right, wrong = _cases(tmp_path)[case]
    file = tmp_path / "server.conf"
    file.write_text(f"jetstream {{ store_dir: {tmp_path / 'store'} }}\n{text}\n")
    async with BrokerProcess("-c", str(file)) as server, console("--server", server.url) as url, browser() as page:
        await page.goto(f"{url}/streams?a=b")
        for given in (wrong, right):
            await _fill(page, case, given, tmp_path)
            await press(page, "Log in")
            if given is wrong:
                await expect(page.get_by_role("alert").first).to_contain_text("cannot be used", timeout=SECONDS)
        await heading(page, "Streams")
        assert page.url == f"{url}/streams?a=b"
        kept = await page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
        cookies = str(await page.context.cookies())
        for value in right.values():
            assert value not in kept
            assert value not in cookies


async def _fill(page: Page, case: str, given: dict[str, str], folder: Path) -> None:
    if case == "certificates":
        if not await page.get_by_text("Client key (PEM)").is_visible():
            await page.get_by_text("TLS certificates, JetStream domain, inbox prefix").click()
        for name, label in (("ca", "Certificate authority (PEM)"), ("cert", "Client certificate (PEM)"),
                            ("key", "Client key (PEM)")):
            if name in given:
                await _upload(page, label, given[name], folder / f"{name}-upload.pem")
        return
    labels = {"user": "User and password", "token": "Token", "nkey": "NKey seed", "creds": "Credentials file"}
    await page.get_by_role("combobox", name="Login with").click()
    await page.get_by_role("option", name=labels[case], exact=True).click()
    if case == "creds":
        await _upload(page, "Credentials file", given["creds"], folder / "upload.creds")
        return
    for name, label in (("user", "User"), ("password", "Password"), ("token", "Token"),
                        ("nkey", "Seed, which begins with SU")):
        if name in given:
            await page.get_by_label(label, exact=True).fill(given[name])


async def _upload(page: Page, label: str, text: str, file: Path) -> None:
    file = file.with_stem(f"{file.stem}-{hashlib.sha256(text.encode()).hexdigest()[:8]}")
    await asyncio.to_thread(file.write_text, text)
    field = page.locator(".q-uploader").filter(has_text=label)
    await field.locator("input[type=file]").set_input_files(file)
    await expect(page.get_by_text(f"{label}: {file.name}")).to_be_visible(timeout=SECONDS)

