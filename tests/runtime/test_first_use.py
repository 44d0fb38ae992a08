"""The modules of JetStream that a start does not import."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import nats
from nats.js.api import StreamConfig

from tests.harness import BrokerProcess

WATCHED = """
import sys, threading
def find_spec(name, path=None, target=None):
    if name.startswith("broker.") and threading.current_thread() is threading.main_thread():
        print("imported by the loop:", name, file=sys.stderr, flush=True)
sys.meta_path.insert(0, type("Watch", (), {"find_spec": staticmethod(find_spec)}))
"""


async def test_the_loop_imports_nothing_for_the_first_requests(tmp_path: Path) -> None:
    """Shows that a thread imports what the first requests need, so that other clients do not wait for 0.1 s."""
    (tmp_path / "sitecustomize.py").write_text(WATCHED)
    broker = BrokerProcess("--store", f"file://{tmp_path}/store", forked=False, environ={"PYTHONPATH": str(tmp_path)})
    async with broker:
        await broker.wait_line("Server is ready")
        client = await nats.connect(broker.url)
        js = client.jetstream()
        answers = [json.loads(answer.data) for answer in await asyncio.gather(*[
            client.request(f"$JS.API.STREAM.{what}.T", body, timeout=20)
            for what, body in (("CREATE", b'{"name": "T"}'), ("INFO", b""), ("DELETE", b""))])]
        assert [answer.get("error") for answer in answers] == [None] * 3  # served in the order in which they came
        await js.add_stream(StreamConfig(name="S", subjects=["s"], allow_direct=True))
        await js.publish("s", b"one")
        [msg] = await (await js.pull_subscribe("s", "C")).fetch(1)
        await msg.ack_sync()
        assert (await js.get_msg("S", 1, direct=True)).data == b"one"
        await client.close()
    lines = list(broker.stderr)
    [started] = [at for at, line in enumerate(lines) if "Server is ready" in line]
    stopping = next(at for at, line in enumerate(lines) if "Initiating Shutdown" in line)
    assert [line for line in lines[started:stopping] if "imported by the loop: broker.jetstream." in line] == []
