"""The times of a start and of a take-over, by messages and by streams.

    python -m bench.restarts [--messages 1000 --messages 50000000] [--streams 1 --streams 10000] [--minio] [--turns 2]

Stores are written by the broker's own log and checkpointer (``bench.many_blocks``), in blocks of at most 5000 messages.
Three times are measured for each, in turns:

    stop         a start after a clean stop
    kill         a start after 500 publishes and kill -9
    take-over    a second broker waits as a standby, 500 more messages are published one by one, and the first is
    killed;
                 the time runs until the second accepts clients. On MinIO it waits for the lease first, 2 s here

Prints a JSON line for each store: the least of the turns, in seconds; the processor time of each, which is comparable
on
a busy machine; and the memory after a start.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import tempfile
import threading
import time
import urllib.error
import urllib.request
from typing import Any

from bench.load import Connection
from bench.many_blocks import fill
from bench.servers import Minio, Server, environment, jetblock
from broker.storage.objectstore.url import open_store

__all__ = ["main"]

_BLOCK_MESSAGES = 5000
_AT_ONCE = 100
"""Number of streams in one segment."""
_LATER = 500
"""Number of messages since the last checkpoint, each in its own segment."""
_LEASE_SECONDS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, action="append")
    parser.add_argument("--streams", type=int, action="append")
    parser.add_argument("--minio", action="store_true", help="use MinIO in place of a directory")
    parser.add_argument("--turns", type=int, default=2)
    args = parser.parse_args()
    for messages in args.messages or (1000, 50_000_000):
        for streams in args.streams or (1, 10_000):
            print(json.dumps(_measured(messages, streams, args.minio, args.turns)), flush=True)


def _measured(messages: int, streams: int, minio: bool, turns: int) -> dict[str, Any]:
    blocks, each = _blocks(messages, streams)
    with contextlib.ExitStack() as stack:
        env = {"JETBLOCK_LEASE": f"{_LEASE_SECONDS}s", "JETBLOCK_PUT_TIMEOUT": "1s", "JETBLOCK_COMPACTION": "false"}
        if minio:
            bucket = stack.enter_context(Minio())
            url, env = bucket.url, env | bucket.env
        else:
            url = "file://" + stack.enter_context(tempfile.TemporaryDirectory(prefix="jetblock-bench-"))
        with environment(env):
            asyncio.run(_fill(url, streams, blocks, each))
        # The brokers have two names, because one with its predecessor's name takes a store back without waiting.
        brokers = [jetblock(store=url, env=env) for _ in range(2)]
        for number, broker in enumerate(brokers):
            broker.words += ["--server_name", f"broker{number}"]
            stack.push(broker.__exit__)
        brokers[0].start()
        wanted = blocks * each
        found: list[dict[str, float]] = []
        for _ in range(turns):
            brokers[0].stop(signal.SIGTERM)
            took = {"after a clean stop": brokers[0].start(), "its CPU": brokers[0].cpu_s()}
            _check(brokers[0], wanted)
            took["MiB"] = brokers[0].rss_mib()
            wanted += _publish(brokers[0])
            brokers[0].stop(signal.SIGKILL)
            took |= {"after kill -9": brokers[0].start(), "CPU of that": brokers[0].cpu_s()}
            _check(brokers[0], wanted)
            took["take-over"], took["CPU of the take-over"], wanted = _take_over(brokers[0], brokers[1], wanted)
            found.append(took)
            brokers.reverse()
        return {"messages": streams * blocks * each, "streams": streams, "blocks": streams * blocks,
                **{what: round(min(took[what] for took in found), 2) for what in found[0]}}


def _blocks(messages: int, streams: int) -> tuple[int, int]:
    """Return the number of blocks of each stream, and of messages in each."""
    each = max(messages // streams, 1)
    blocks = -(-each // _BLOCK_MESSAGES)
    return blocks, each // blocks


async def _fill(url: str, streams: int, blocks: int, messages: int) -> None:
    store = open_store(url)
    try:
        await fill(store, streams, blocks, messages, _AT_ONCE)
    finally:
        await store.close()


def _take_over(owner: Server, standby: Server, wanted: int) -> tuple[float, float, int]:
    """Kill the owner; return the seconds until the standby accepts clients, its processor seconds, and the last
    sequence by then."""
    waiting = threading.Thread(target=standby.start)
    waiting.start()
    while not _stands_by(standby):
        time.sleep(0.05)
    wanted += _publish(owner)
    began, cpu_s = time.perf_counter(), standby.cpu_s()
    owner.stop(signal.SIGKILL)
    waiting.join()
    took, cpu_s = time.perf_counter() - began, standby.cpu_s() - cpu_s
    _check(standby, wanted)
    return took, cpu_s, wanted


def _stands_by(server: Server) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{server.http}/healthz", timeout=5).close()
    except urllib.error.HTTPError as error:
        return b"standby" in error.read()
    except OSError:
        pass
    return False


def _publish(server: Server) -> int:
    """Publish messages of the first stream, each in its own segment."""
    con = Connection(server.port)
    for _ in range(_LATER):
        con.request("many.0", "y" * 100)
    return _LATER


def _check(server: Server, last_seq: int) -> None:
    found = Connection(server.port).request("$JS.API.STREAM.INFO.S0")["state"]["last_seq"]
    if found != last_seq:
        raise RuntimeError(f"the stream ends at {found}, not at {last_seq}")


if __name__ == "__main__":
    main()
