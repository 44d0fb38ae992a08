"""``jetblock console``: its arguments, who reaches its pages, and a user's connection to a server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from broker.console.login import BadLogin, Login
from broker.console.server import Refused, Server
from tests.console.consoles import console, started
from tests.harness import BrokerProcess

PASSWORD = "correct horse"


async def refused(*arguments: str) -> str:
    process = await started(*arguments)
    async with asyncio.timeout(60):
        _, errors = await process.communicate()
    assert process.returncode == 2, errors
    return errors.decode()


async def test_pages_are_for_those_who_log_in_and_for_this_site(broker: BrokerProcess) -> None:
    async with console("--server", broker.url) as url, aiohttp.ClientSession() as http:
        for page, login in (("/", "/login"), ("/streams", "/login?next=%2Fstreams"),
                            ("/streams/S/messages?a=b", "/login?next=%2Fstreams%2FS%2Fmessages%3Fa%3Db"),
                            ("/kv/B", "/login?next=%2Fkv%2FB")):
            async with http.get(url + page, allow_redirects=False) as answer:
                assert (answer.status, answer.headers.get("location")) == (307, login), page
        for path in ("/download/message/S/1", "/download/object/B?name=x"):
            async with http.get(url + path) as answer:
                assert (answer.status, await answer.text()) == (401, "Log in to the console first."), path
        async with http.get(f"{url}/nowhere") as answer:
            assert (answer.status, "There is no such page." in await answer.text()) == (404, True)
        async with http.post(f"{url}/enter", data=b"a guess") as answer:
            assert answer.status == 403
        async with http.get(f"{url}/login") as answer:
            assert answer.status == 200
            assert answer.headers["X-Frame-Options"] == "DENY"
            assert answer.headers["Cache-Control"] == "no-store"
            assert "httponly" in answer.headers["Set-Cookie"]
            assert "jetblock console" in await answer.text()
        async with http.get(f"{url}/login", headers={"Host": "evil.example"}) as answer:
            assert (answer.status, "--allow-host" in await answer.text()) == (400, True)
        async with http.get(f"{url}/login", headers={"Host": "192.0.2.1:80"}) as answer:
            assert answer.status == 200
        for path in ("/_nicegui_ws/socket.io/?EIO=4&transport=websocket",):
            with pytest.raises(aiohttp.WSServerHandshakeError):
                await http.ws_connect(url + path, headers={"Origin": "http://evil.example"})
        async with http.get(f"{url}/login", headers={"Origin": "http://evil.example"}) as answer:
            assert (answer.status, await answer.text()) == (403, "Requests from other sites are refused.")
        port = url.rpartition(":")[2]
        assert f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another --port" in await refused(
            "--server", broker.url, "--port", port)


@pytest.mark.parametrize(("arguments", "text"), [
    (("--server", "http://127.0.0.1:4222"), "The address must look like nats://host:4222"),
    (("--no-login", "--host", "0.0.0.0"), "it may not listen on 0.0.0.0"),
    (("--port", "99999"), "--port must be from 1 to 65535, not 99999"),
    (("--store", "data"), "--store: 'data' is not the URL of a store"),
    (("--store", "memory://"), "--store: memory:// exists only inside its broker"),
    (("--creds", "/nonexistent.creds"), "/nonexistent.creds cannot be read"),
])
async def test_arguments_that_cannot_be_used(arguments: tuple[str, ...], text: str) -> None:
    errors = await refused(*arguments)
    assert text in errors
    assert len(errors.splitlines()) == 1


async def test_a_connection_does_what_its_user_may(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(f"""authorization {{ users [
        {{ user: admin, password: "{PASSWORD}" }}
        {{ user: reader, password: "{PASSWORD}", permissions: {{
            publish: ["$JS.API.STREAM.INFO.*", "$JS.API.STREAM.LIST", "$SYS.REQ.USER.INFO"], subscribe: "_INBOX.>" }} }}
    ] }}""")
    async with BrokerProcess("-c", str(file), "-js", "-sd", str(tmp_path / "store")) as broker:
        with pytest.raises(BadLogin, match="Authorization Violation"):
            await Server.connect(Login(broker.url, user="admin", password="wrong"))
        admin = await Server.connect(Login(broker.url, user="admin", password=PASSWORD))
        await admin.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
        assert (await admin.publish("s.1", b"one"))["seq"] == 1
        with pytest.raises(Refused, match="Stream not found"):
            await admin.api("STREAM.INFO.NOPE")
        reader = await Server.connect(Login(broker.url, user="reader", password=PASSWORD))
        assert reader.may_call("STREAM.INFO.S")
        assert not reader.may_call("STREAM.DELETE.S")
        with pytest.raises(Refused, match="may not publish"):
            await reader.api("STREAM.DELETE.S")
        looking = await Server.connect(Login(broker.url, user="admin", password=PASSWORD), read_only=True)
        assert not looking.may_call("STREAM.PURGE.S")
        for request in (looking.api("STREAM.PURGE.S"), looking.publish("s.2", b"two")):
            with pytest.raises(Refused, match="--read-only"):
                await request
        assert (await looking.api("STREAM.INFO.S"))["state"]["messages"] == 1
        for server in (admin, reader, looking):
            await server.close()
