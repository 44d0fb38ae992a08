"""The longest turns of a broker's loop with very many unacknowledged messages of one consumer, and very many readers of
a stream or a server.

    python -m bench.many_consumers [--pending 200000] [--consumers 1000] [--sources 300]

Prints one JSON line: {operation: [[ms, of garbage collection, of the longest callback, which], …]}, the two longest
turns of each. A real client uses a broker on a loop that measures itself (``bench.turns``): processor time of the
longest turn, the part of garbage collection, and the longest callback in it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from bench.servers import Server, jetblock

__all__ = ["main"]

_AT_ONCE = 1000


class _Measured:
    """A broker that measures its turns; ``longest`` returns those since its last call."""

    def __init__(self) -> None:
        self.server: Server = jetblock()
        self.server.words[1:3] = ["-m", "bench.turns", "{dir}/turns"]
        self._lines = 0

    def longest(self) -> dict[str, Any]:
        assert self.server.child
        if self.server.child.poll() is None:
            self.server.child.send_signal(signal.SIGRTMIN)
        path = self.server.dir / "turns"
        while not path.exists() or len(lines := path.read_text().splitlines()) <= self._lines:
            time.sleep(0.01)
        self._lines = len(lines)
        found: dict[str, Any] = json.loads(lines[-1])
        return found


class _Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.found: dict[str, Any] = {}

    async def connect(self) -> None:
        self.client: Client = await nats.connect(f"nats://127.0.0.1:{self.broker.server.port}",
                                                 max_outstanding_pings=1000)

    async def ask(self, subject: str, **body: Any) -> dict[str, Any]:
        answer = await self.client.request(f"$JS.API.{subject}", json.dumps(body).encode() if body else b"", timeout=60)
        answered: dict[str, Any] = json.loads(answer.data)
        if "error" in answered:
            raise RuntimeError(f"{subject}: {answered['error']}")
        return answered

    def note(self, what: str) -> None:
        """Record the turns since the last record, once ``what`` is done."""
        found = self.broker.longest()
        self.found[what] = found["longest"][:2]
        print(what, found["longest"][:3], file=sys.stderr, flush=True)

    async def publish(self, subject: str, count: int, of: int = 1) -> None:
        for at in range(0, count, _AT_ONCE):
            for i in range(at, min(at + _AT_ONCE, count) - 1):
                await self.client.publish(subject if of == 1 else f"{subject}.{i % of}", b"x" * 16)
            await self.client.request(subject if of == 1 else f"{subject}.0", b"x", timeout=60)

    async def pending(self, policy: str) -> Msg:
        """Have all messages of P delivered to a consumer; return the last delivery."""
        count = self.args.pending
        await self.ask("CONSUMER.CREATE.P.C", stream_name="P", config={
            "durable_name": "C", "ack_policy": policy, "max_ack_pending": -1, "ack_wait": 3600 * 10**9})
        got, last, done = 0, [], asyncio.Event()

        async def on_delivery(msg: Msg) -> None:
            nonlocal got
            got += 1
            if got == count:
                last.append(msg)
                done.set()

        inbox = self.client.new_inbox()
        subscription = await self.client.subscribe(inbox, cb=on_delivery, pending_msgs_limit=0, pending_bytes_limit=0)
        await self.client.publish("$JS.API.CONSUMER.MSG.NEXT.P.C", json.dumps({"batch": count}).encode(), reply=inbox)
        await done.wait()
        await subscription.unsubscribe()
        await asyncio.sleep(2)
        return last[0]

    async def acks(self) -> None:
        await self.ask("STREAM.CREATE.P", name="P", subjects=["p"])
        await self.publish("p", self.args.pending)
        last = await self.pending("all")
        self.note("delivered")
        await last.ack_sync(timeout=60)
        await asyncio.sleep(2)
        self.note("an ack of all")
        assert (await self.ask("CONSUMER.INFO.P.C"))["num_ack_pending"] == 0
        await self.ask("CONSUMER.DELETE.P.C")
        await self.pending("explicit")
        self.broker.longest()
        await asyncio.sleep(1)
        info = await self.ask("CONSUMER.INFO.P.C")
        assert info["num_ack_pending"] == self.args.pending
        self.broker.longest()

    async def restart(self, what: str, stops: str) -> None:
        await self.client.close()
        self.broker.server.stop()
        self.note(stops)
        self.broker.server.start()
        await self.connect()
        await self.ask("INFO")
        self.note(what)

    async def consumers(self) -> None:
        await self.ask("STREAM.CREATE.Q", name="Q", subjects=["q.*"])
        for number in range(self.args.consumers):
            await self.ask(f"CONSUMER.CREATE.Q.c{number}", stream_name="Q", config={
                "durable_name": f"c{number}", "ack_policy": "explicit"})
        self.broker.longest()
        await self.publish("q", 20_000, of=50)
        await asyncio.sleep(1)
        self.note("commits")
        for what, body in (("a purge of a subject", {"filter": "q.7"}), ("a purge of some", {"keep": 5000}),
                           ("a purge of all", {})):
            await self.ask("STREAM.PURGE.Q", **body)
            await asyncio.sleep(2)
            self.note(what)

    async def sources(self) -> None:
        await self.ask("STREAM.CREATE.O", name="O", subjects=["o.*"])
        for number in range(self.args.sources):
            await self.ask(f"STREAM.CREATE.O{number}", name=f"O{number}",
                           sources=[{"name": "O", "filter_subject": f"o.{number}"}])
        await self.publish("o", 3000, of=self.args.sources)
        await asyncio.sleep(2)

    async def run(self) -> None:
        if "acks" in self.args.only:
            await self.one(self.acks, "all pending")
        if "consumers" in self.args.only:
            await self.one(self.consumers, "many consumers")
        if "sources" in self.args.only:
            await self.one(self.sources, "many sources")

    async def one(self, work: Any, what: str) -> None:
        self.broker = _Measured()
        with self.broker.server:
            await self.connect()
            await work()
            await self.restart(f"a start with {what}", f"a checkpoint and a stop with {what}")
            await asyncio.sleep(3)
            self.note(f"just after a start with {what}")
            await self.client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pending", type=int, default=200_000)
    parser.add_argument("--consumers", type=int, default=1000)
    parser.add_argument("--sources", type=int, default=300)
    parser.add_argument("--only", nargs="*", default=["acks", "consumers", "sources"])
    bench = _Bench(parser.parse_args())
    asyncio.run(bench.run())
    print(json.dumps(bench.found))


if __name__ == "__main__":
    main()
