"""The reads of a stream for the first question about its subjects or message ids after a restart.

    python -m bench.first_questions [--blocks 2000] [--messages 500] [--subjects 100000] [--size 100] [--ids]
                                    [--compaction] [--question id] [--clean]

The real engine runs on a counting store in memory, in virtual time: blocks are written as a busy stream writes them,
the broker is killed or stopped, and another one is asked. Ids are 22 random letters and digits each, as clients make
them. Prints a JSON line for each question: GETs, bytes, objects, and processor time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import string
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from bench.months.broker import SECOND, VirtualBroker
from broker.storage.objectstore.memory import MemoryStore
from tests.manual_clock import ManualClock
from tests.sim.loop import SimLoop

__all__ = ["main"]

_LETTERS = string.ascii_letters + string.digits


def _with_id(subject: bytes, reply: bytes, body: bytes, **headers: str) -> Any:
    block = b"NATS/1.0\r\n" + b"".join(
        b"%b: %b\r\n" % (name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()) + b"\r\n"
    return subject, reply, len(block), block + body


class _Inline(ThreadPoolExecutor):
    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


class _Bench:
    def __init__(self, args: argparse.Namespace, clock: ManualClock, loop: asyncio.AbstractEventLoop) -> None:
        self.args = args
        self.clock = clock
        self.loop = loop
        self.memory = MemoryStore()

    def broker(self) -> VirtualBroker:
        return VirtualBroker(self.clock, self.loop, commit_interval_s=0.02, compaction=self.args.compaction,
                             memory=self.memory)

    async def fill(self) -> None:
        args, rng = self.args, random.Random(1)
        broker = self.broker()
        await broker.start()
        await broker.ask("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "storage": "file", "allow_direct": True,
                                             "duplicate_window": 120 * SECOND})
        names = [b"s.device-%06d.status" % i for i in range(args.subjects)]
        body = b"x" * args.size
        sent = 0
        assert broker.shard is not None
        for _ in range(args.blocks):
            ops = []
            for _ in range(args.messages):
                sent += 1
                subject = rng.choice(names)
                ops.append(_with_id(subject, b"_A.x", body, Nats_Msg_Id="".join(rng.choices(_LETTERS, k=22)))
                           if args.ids
                           else (subject, b"_A.x", 0, body))
            broker._route(ops)
            await broker.shard.log.persisted()  # raises the error that stopped the log
        puts = broker.store.operations["put"]
        state = broker.shard.state.streams
        blocks = sum(len(stream.blocks) for stream in state.values())
        gets = broker.store.operations["get"]
        print(json.dumps({"filled": sent, "blocks": blocks, "puts": puts.count, "put_bytes": puts.bytes,
                          "gets": gets.count, "get_bytes": gets.bytes}), flush=True)
        if args.clean:
            await broker.js.close()
            await broker.shard.close()
            await broker.js.stop()
        else:
            await broker.stop()

    async def ask(self, what: str) -> None:
        broker = self.broker()
        began_s = time.process_time()
        await broker.start()
        gets = broker.store.operations["get"]
        before, size, start_s = gets.count, gets.bytes, time.process_time()
        name = b"s.device-000007.status"
        reply = b"_R.first"
        answer = broker._answers[reply] = self.loop.create_future()
        if what == "publish":
            op: Any = (name, reply, 0, b"y")
        elif what == "last by subject":
            op = (b"$JS.API.STREAM.MSG.GET.S", reply, 0, json.dumps({"last_by_subj": name.decode()}).encode())
        elif what == "expected-last-subject":
            op = _with_id(name, reply, b"y", Nats_Expected_Last_Subject_Sequence="1")
        elif what == "id":
            op = _with_id(name, reply, b"y", Nats_Msg_Id="id-new")
        else:
            op = (b"$JS.API.STREAM.INFO.S", reply, 0, b"")
        broker._route([op])
        answered = await answer
        print(json.dumps({"first": what, "gets": gets.count - before, "bytes": gets.bytes - size,
                          "cpu_s": round(time.process_time() - start_s, 2), "start": {
                              "gets": before, "bytes": size, "cpu_s": round(start_s - began_s, 2)},
                          "answer": str(answered)[:90]}), flush=True)
        await broker.stop()

    async def run(self) -> None:
        await self.fill()
        for what in ("publish", "last by subject", "expected-last-subject", "info", *(["id"] if self.args.ids else [])):
            if self.args.question in (None, what):
                await self.ask(what)


def main() -> None:
    """Fill a store, and ask a new broker each question."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--blocks", type=int, default=2000)
    parser.add_argument("--messages", type=int, default=500, help="in each block")
    parser.add_argument("--subjects", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--ids", action="store_true")
    parser.add_argument("--question", help="ask this one alone, instead of each after another restart")
    parser.add_argument("--clean", action="store_true", help="stop the broker instead of killing it")
    parser.add_argument("--compaction", action="store_true")
    args = parser.parse_args()
    clock = ManualClock()
    loop = SimLoop(clock)
    loop.set_default_executor(_Inline())  # virtual time does not wait for threads
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(_Bench(args, clock, loop).run())
    finally:
        loop.close()


if __name__ == "__main__":
    main()
