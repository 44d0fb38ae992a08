"""A store with very many small blocks that no compaction has joined, and the cost of a restart on it.

    python -m bench.many_blocks [--streams 10000] [--blocks 100] [--store DIRECTORY]

The store is written by the broker's own log and checkpointer, as if each stream had stored a message in each segment;
publishing them over the network would take an hour. With --store it is kept in that directory, and reused from there.
Prints one JSON line: seconds until ready, CPU seconds and RSS after a clean stop; the same again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.servers import jetblock
from broker.access.accounts import AccountLimits
from broker.base.clock import SystemClock
from broker.cluster.identity import Identity
from broker.cluster.ownership import seal_at, take_shard
from broker.config.settings import ServerLimits
from broker.jetstream.config.stream import StreamConfig
from broker.jetstream.config.stream_rules import check_stream
from broker.storage.checkpoint.settings import CheckpointSettings
from broker.storage.format.block import Outcome
from broker.storage.format.message_size import message_size
from broker.storage.format.record import Record
from broker.storage.format.records.stream_create import StreamCreate
from broker.storage.format.store import StoreFormat
from broker.storage.log.log import Log
from broker.storage.log.open_block import OpenBlock
from broker.storage.log.settings import LogSettings
from broker.storage.objectstore.base import ObjectStore
from broker.storage.objectstore.file import FileStore
from broker.storage.objectstore.probe import probe
from broker.storage.paths import FORMAT, ShardPaths
from broker.storage.shard import Shard, ShardSettings

__all__ = ["Writer", "fill", "main"]

_NEVER = 1 << 60
_BODY = b"x" * 100


class Writer:
    """The owner of one stream's blocks."""

    def __init__(self, log: Log, number: int) -> None:
        self._log = log
        self.stream_id = 1_000 + number
        self._name = f"S{number}"
        self._subject = b"many.%d" % number
        self._first_time_ns = self._size = self._last_seq = 0

    def create(self) -> None:
        given = StreamConfig.from_json({"name": self._name, "subjects": [self._subject.decode()], "storage": "file"})
        config = check_stream(given, {}, AccountLimits(), ServerLimits())
        self._log.block(self).add(StreamCreate("$G", self._name, config.to_json(), time.time_ns()))

    def publish(self, now_ns: int, messages: int = 1) -> None:
        self._log.block(self).append_run(self._last_seq + 1, [self._subject] * messages, None, [_BODY] * messages,
                                         now_ns)
        self._last_seq += messages
        self._first_time_ns = self._first_time_ns or now_ns
        self._size += messages * message_size(self._subject, 0, _BODY)

    followed = False

    def journaling(self, block: OpenBlock[Any], start: int) -> Sequence[Record]:
        self.sealing(block)
        return ()

    def sealing(self, block: OpenBlock[Any]) -> None:
        block.outcome = Outcome(1, self._last_seq, self._last_seq, self._size, self._first_time_ns)

    def persisted(self, block: object) -> None:
        pass

    def failed(self, error: Exception) -> None:
        raise error


async def fill(store: ObjectStore, streams: int, blocks: int, messages: int = 1, at_once: int = 1 << 30) -> None:
    """Write ``blocks`` blocks of ``messages`` for each of ``streams``, in segments with up to ``at_once`` streams; cut
    a checkpoint, and stop cleanly."""
    clock, rng, paths = SystemClock(), random.Random(), ShardPaths(0)
    await probe(store, FORMAT, [StoreFormat.make(rng.randbytes(16), clock.now_ns()).encode()])
    me = Identity.make("", rng)
    taken = await take_shard(store, paths, me, clock, rng)
    settings = ShardSettings(log=LogSettings(segment_bytes=1 << 30, tail_bytes_max=1 << 34),
                             checkpoint=CheckpointSettings(segments=_NEVER, head_bytes=_NEVER, empty_segments=_NEVER,
                                                           interval_ns=None, hold_factor=1))
    with ThreadPoolExecutor(1) as executor:
        shard = await Shard.open(store, paths, taken.epoch, me.nonce, clock, rng, settings, executor=executor)
        writers = [Writer(shard.log, number) for number in range(streams)]
        for writer in writers:
            writer.create()
        for _ in range(blocks):
            now_ns = clock.now_ns()
            for some in range(0, streams, at_once):
                for writer in writers[some:some + at_once]:
                    writer.publish(now_ns, messages)
                shard.log.urgent()
                await shard.log.persisted()
        await seal_at(store, paths, await shard.close(), taken.epoch, me, clock, rng)


def main() -> None:
    """Fill a store, start a broker on it twice, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--blocks", type=int, default=100, help="of each stream")
    parser.add_argument("--store", type=Path)
    args = parser.parse_args()
    with jetblock(env={"JETBLOCK_COMPACTION": "false"}) as server:
        server.stop(signal.SIGTERM)
        kept, used = args.store, server.dir / "store"
        shutil.rmtree(used, ignore_errors=True)
        if kept is not None and kept.exists():
            shutil.copytree(kept, used)
        else:
            asyncio.run(fill(FileStore(used), args.streams, args.blocks))
            if kept is not None:
                shutil.copytree(used, kept)
        figures = []
        for _ in range(2):
            seconds = server.start()
            time.sleep(1)
            figures.append({"seconds": round(seconds, 2), "cpu": round(server.cpu_s(), 2),
                            "rss_mib": round(server.rss_mib())})
            server.stop(signal.SIGTERM)
    print(json.dumps({"streams": args.streams, "blocks": args.streams * args.blocks, "starts": figures}))


if __name__ == "__main__":
    main()
