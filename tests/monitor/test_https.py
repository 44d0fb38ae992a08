"""HTTPS pages of a broker as a process, beside the real nats-server: configuration, certificate and its reload."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import Authority
from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess

BOTH = pytest.mark.parametrize("process", [BrokerProcess, NatsServerProcess], ids=["jetblock", "nats-server"])


async def varz(server: ServerProcess, trust: ssl.SSLContext) -> dict[str, Any]:
    """Fetch /varz by HTTPS, as any client would."""
    host, _, port = server.ports["monitoring"][0].removeprefix("https://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=trust)
    writer.write(b"GET /varz HTTP/1.0\r\n\r\n")
    _, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return json.loads(body)  # type: ignore[no-any-return]


def configure(path: Path, authority: Authority, **tls: str) -> None:
    files = authority.server()
    more = "".join(f", {name}: {value}" for name, value in tls.items())
    path.write_text(f'listen: "127.0.0.1:-1"\nhttps: "127.0.0.1:-1"\n'
                    f'tls {{ cert_file: "{files.cert}", key_file: "{files.key}", ca_file: "{authority.ca}"{more} }}\n')


@pytest.mark.shows("monitoring.https")
@BOTH
async def test_certificate_and_reload(tmp_path: Path, process: type[ServerProcess]) -> None:
    """Pages need no client certificate, even if clients need one; SIGHUP loads another certificate."""
    first, second = (Authority(tmp_path, name) for name in ("first", "second"))
    path = tmp_path / "c.conf"
    configure(path, first, verify="true")
    async with process("-c", str(path), listen=False, monitor=False) as server:
        assert server.ports["monitoring"][0].startswith("https://")
        page = await varz(server, first.trust())
        assert (page["http_port"], page["tls_verify"]) == (0, True)
        assert page["tls_cert_not_after"] == "2100-01-01T00:00:00Z"
        configure(path, second, verify="true")
        server.send_signal(signal.SIGHUP)
        await server.wait_line(r"Reloaded: tls")
        async with asyncio.timeout(30):
            # The log has the line before the page shows the reload.
            while (after := await varz(server, second.trust()))["config_load_time"] == page["config_load_time"]:
                pass
        assert after["config_digest"] != ""
        assert after["config_load_time"] > page["config_load_time"]


@BOTH
@pytest.mark.parametrize("lines", ["https: 8443", "http: 8222, https: 8443"], ids=["no tls", "two ports"])
async def test_refused(tmp_path: Path, process: type[ServerProcess], lines: str) -> None:
    """HTTPS needs a certificate, and there is one monitoring port."""
    path = tmp_path / "c.conf"
    tls = ""
    if "http:" in lines:
        files = Authority(tmp_path).server()
        tls = f'tls {{ cert_file: "{files.cert}", key_file: "{files.key}" }}\n'
    path.write_text("listen: \"127.0.0.1:-1\"\n" + lines.replace(", ", "\n") + "\n" + tls)
    server = process("-c", str(path), listen=False, monitor=False)
    await server.start(ready=False)
    await server.wait_line("TLS cert and key required for HTTPS" if not tls else
                           r"can't specify both HTTP \(.*8222\) and HTTPs \(.*8443\) ports")
    assert await server.wait_end() == 1
    await server.close()


@BOTH
async def test_config_digest(tmp_path: Path, process: type[ServerProcess]) -> None:
    """A configuration has the same digest in both, however it is written."""
    digests = []
    for n, text in enumerate((
            'listen: "127.0.0.1:-1"\nhttp: "127.0.0.1:-1"\nP = pw\nmax_payload: 64k\nserver_name: "<é>&"\n'
            'accounts { A { users: [ {user: u, password: $P} ] } }\nauthorization { timeout: 1.5 }\n',
            '# other words\nauthorization = { timeout 1.5 }; server_name "<é>&"\nmax_payload = 64k\nP pw\n'
            'http "127.0.0.1:-1"\nlisten "127.0.0.1:-1"\naccounts { A { users [ {password $P, user u} ] } }')):
        path = tmp_path / f"{n}.conf"
        path.write_text(text)
        async with process("-c", str(path), listen=False, monitor=False) as server:
            digests.append((await server.monitor("/varz"))["config_digest"])
    assert digests == ["sha256:01418c729b48f93d8568e58524180f9ed396296cefdfb685ae59004cc57192b8"] * 2

