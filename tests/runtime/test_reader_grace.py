"""The setting ``reader_grace`` decides how long an object is kept: the real shard owner, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from broker.config.flags import read_flags
from broker.config.load import load
from broker.storage.format.header import Position
from broker.storage.objectstore.memory import MemoryStore
from tests.runtime.brokers import Broker, TrustedClock, in_virtual_time
from tests.storage.rig import PATHS, SECOND, Stream

DEFAULTS = "port: 4222"
SHORT = "jetblock { reader_grace: 90s }"


@pytest.mark.parametrize(("text", "environ", "seconds"), [
    (DEFAULTS, {}, 600),
    (SHORT, {}, 90),
    (DEFAULTS, {"JETBLOCK_READER_GRACE": "3m"}, 180),
    (SHORT, {"JETBLOCK_READER_GRACE": "0s"}, 0)])
def test_a_released_object_stays_for_reader_grace(text: str, environ: dict[str, str], seconds: int) -> None:
    """The grace counts from the release in the log: the object exists until its end, and not a second later."""
    settings = load(read_flags(["-c", "jetblock.conf"]), environ, lambda path: text).storage

    async def main(clock: TrustedClock) -> None:
        shared = MemoryStore()
        owner = Broker("a", shared, clock, reader_grace_ns=settings.reader_grace_ns)
        await owner.serving(5)
        shard = owner.shard_owner.shard
        assert shard is not None
        stream = Stream(shard.log)
        stream.create()
        await shard.log.persisted()
        stream.publish()
        await shard.log.persisted()
        released = Position(shard.log.epoch, shard.log.position.number)
        assert PATHS.log(released) in shared.objects
        stream.remove(1, 1)
        began_ns = clock.monotonic_ns()
        while not any(released in one.segments for one in shard.state.released.values()):
            assert clock.monotonic_ns() - began_ns < 3600 * SECOND, "it is never released"
            await asyncio.sleep(0.1)
        if seconds:
            await asyncio.sleep(seconds - 1)
            assert PATHS.log(released) in shared.objects
        await asyncio.sleep(2)
        assert PATHS.log(released) not in shared.objects
        await owner.kill()
    in_virtual_time(main)
