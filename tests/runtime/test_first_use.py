"""The modules of JetStream that a start does not import."""

from __future__ import annotations

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
        started = len(broker.stderr)
        client = await nats.connect(broker.url)
        js = client.jetstream()
        await js.add_stream(StreamConfig(name="S", subjects=["s"], allow_direct=True))
        await js.publish("s", b"one")
        [msg] = await (await js.pull_subscribe("s", "C")).fetch(1)
        await msg.ack_sync()
        assert (await js.get_msg("S", 1, direct=True)).data == b"one"
        await client.close()
        assert [line for line in list(broker.stderr)[started:] if "imported by the loop" in line] == []
