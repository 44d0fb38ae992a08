"""A mirror of another account's stream, while the accounts' imports change."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import ExternalStream, StreamSource

from tests.harness import BrokerProcess

_API = 'service: {account: A, subject: "$JS.API.CONSUMER.CREATE.>"}, to: "JS.a.API.CONSUMER.CREATE.>"'
_DELIVERIES = 'stream: {account: A, subject: "deliver.b.>"}'
NOTHING, API, BOTH = "", f"{{ {_API} }}", f"{{ {_API} }}, {{ {_DELIVERIES} }}"


def _config(directory: Path, imports: str) -> Path:
    path = directory / "accounts.conf"
    path.write_text(f"""
jetstream {{ store_dir: "{directory / 'store'}" }}
accounts {{
  A {{ jetstream: enabled, users: [ {{user: a, password: a}} ]
      exports: [ {{service: "$JS.API.CONSUMER.CREATE.>"}}, {{stream: "deliver.>"}} ] }}
  B {{ jetstream: enabled, users: [ {{user: b, password: b}} ], imports: [ {imports} ] }}
}}
""")
    return path


@pytest.mark.shows("copy.other_accounts")
async def test_imports_come_and_go(tmp_path: Path) -> None:
    """A mirror copies nothing without the import of the API, or of the deliveries, and its info has the cause.

    With both imports it continues where it was, also after a restart of the broker.
    """
    async def until(client: Any, last_seq: int, error: str) -> None:
        async with asyncio.timeout(30):
            while True:
                info = await client.jetstream().stream_info("M")
                cause = info.mirror.error["description"] if info.mirror.error else ""
                if info.state.last_seq == last_seq and (error in cause if error else not cause):
                    return
                await asyncio.sleep(0.01)

    async with BrokerProcess("-c", str(_config(tmp_path, NOTHING))) as server:
        a, b = [await nats.connect(f"nats://{name}:{name}@127.0.0.1:{server.port}") for name in "ab"]
        await a.jetstream().add_stream(name="S", subjects=["s"])
        await b.jetstream().add_stream(name="M", mirror=StreamSource(
            name="S", external=ExternalStream(api="JS.a.API", deliver="deliver.b")))
        published = copied = 0
        await until(b, 0, "needs an import of that service")
        for imports, error in ((API, "needs an import of that stream"), (BOTH, ""),
                               (NOTHING, "needs an import of that service"),
                               (BOTH, "")):
            _config(tmp_path, imports)
            server.send_signal(signal.SIGHUP)
            await server.wait_line("Reloaded server configuration")
            await until(b, published if imports == BOTH else copied, error)
            await a.jetstream().publish("s", b"more")
            published += 1
            if imports == BOTH:
                await until(b, published, "")
                copied = published
        await a.jetstream().delete_stream("S")
        await until(b, published, "stream not found")
        await a.close()
        await b.close()
    async with BrokerProcess("-c", str(_config(tmp_path, BOTH))) as server:
        a, b = [await nats.connect(f"nats://{name}:{name}@127.0.0.1:{server.port}") for name in "ab"]
        await until(b, published, "stream not found")
        await a.jetstream().add_stream(name="S", subjects=["s"])
        for _ in range(published + 1):
            await a.jetstream().publish("s", b"again")
        await until(b, published + 1, "")
        assert (await b.jetstream().get_msg("M", published + 1)).data == b"again"
        await a.close()
        await b.close()
