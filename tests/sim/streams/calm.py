"""The checks after all faults have ended, with one live broker on a live store: progress within a stated time, and no
leftovers.

    serves       a broker answers for each stream within PROGRESS_SECONDS of virtual time
    limits       hold in the store, at whatever point the broker was killed
    consumers    have delivered each live message that matches
    quiet        without streams the store has a bounded number of objects, and nothing waits in the broker
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.sim.streams.checker import Message
from tests.sim.streams.record import ConsumerRecord, Lost, StreamRecord, matches_filter
from tests.sim.streams.until import PROGRESS_SECONDS, until
from tests.sim.streams.usage import MOVING

if TYPE_CHECKING:
    from tests.sim.streams.process import Process
    from tests.sim.streams.world import World

__all__ = ["OBJECTS_LEFT", "QUIET_SECONDS", "restore_and_check"]

SECOND = 1_000_000_000

QUIET_SECONDS = 120
"""Time within which deleted objects leave the store."""
OBJECTS_LEFT = 96
"""Upper bound of objects in a store without streams, beside those that each epoch leaves for ever: a claim, seals, its
first entry. Most are segments since the oldest root that is kept, because checkpoints came late during the faults."""
_OBJECTS_AN_EPOCH = 3
_GONE: dict[str, Any] = {"gone": True}


async def restore_and_check(world: World) -> None:
    """End all faults, then check that the promises hold. Raises: Lost."""
    world.calm = True
    if world.clocks is not None:
        world.clocks.set_all_right()
    if world.storms is not None:
        world.storms.end()
    await asyncio.sleep(0)  # Events of this instant happen before the check.
    for at, process in enumerate(world.processes):
        if process.dead or process.ended:
            await process.kill()
            world.start(at)
    for process in world.processes:
        process.store.faults = process.store.faults.scaled(0.0)
        process.resume()
    owner = await _owner(world)
    records = await _existing(world, owner)
    await _check_publishing(world, owner, records)
    for special in dict.fromkeys(world.specials.values()):
        await special.check_end(owner)
    for record in records:
        for consumer in list(record.consumers.values()):
            await _check_delivered(world, owner, record, consumer)
    await until(world, lambda: not _unneeded(world), lambda: f"acked messages leave: {_unneeded(world)}")
    await until(world, lambda: _ask(owner, "INFO", None), "the account's INFO is answered")
    # Messages that exceed a limit may have to be read before their removal.
    await until(world, lambda: not _over_limit(records, world.check_store()),
                lambda: "limits hold: " + _over_limit(records, world.check_store()))
    if world.empties:
        await _check_empty(world, owner, records)


async def _owner(world: World) -> Process:
    """Return the broker that serves, once it is the only one and keeps the shard."""
    def serving() -> Process | None:
        found = [p for p in world.processes if p.serving and p.shard is not None and p.shard.log.failure is None
                 and not p.shard.log.lease_expired]
        return found[0] if len(found) == 1 else None

    found = await until(world, serving, "a broker serves")
    # A put that was late in the network arrives in this time.
    await asyncio.sleep(30)
    return found if found.serving else await until(world, serving, "a broker serves")


async def _existing(world: World, owner: Process) -> list[StreamRecord]:
    """Return the records of the existing streams; each stream must answer."""
    records = []
    for name in list(owner.streams()):
        shown = await until(world, lambda name=name: _ask_info(owner, name), f"{name} shows itself, or is gone")
        if shown is _GONE:
            continue
        stream = owner.streams()[name]
        record = world.records.get(stream.stream_id) or world.stream_appeared(owner, stream)
        state = shown["state"]
        # The broker's own advisories, and messages that expire, change while it counts.
        if sum(state.get("subjects", {}).values()) != state["messages"] and record.kind not in MOVING:
            raise Lost(f"{record} shows {state}")
        record.shown = shown["config"]
        if record.status in ("asked", "going"):
            record.status = "made"
        records.append(record)
    return records


async def _ask_info(owner: Process, name: str) -> dict[str, Any] | None:
    """Return the answer to STREAM.INFO if it is about the stream that the broker lists, else None.

    A request from before the end of the faults may be carried out late. Returns ``_GONE`` if one deleted the stream.
    """
    answer = await _ask(owner, f"STREAM.INFO.{name}", {"subjects_filter": ">"})
    if (stream := owner.streams().get(name)) is None:
        return _GONE
    if answer is None or answer["config"]["metadata"]["life"] != stream.config.metadata["life"]:
        return None
    return answer


async def _check_publishing(world: World, owner: Process, records: list[StreamRecord]) -> None:
    """Check that each stream accepts or refuses a message."""
    for record in records:
        if record.kind != "audit":
            owner.client.publish(record)
    publishing = [m for record in records for m in record.sent.values()
                  if m.asked_ns == world.clock.now_ns() and m.answers]
    await until(world, lambda: all(m.seq or m.refused for m in publishing),
                 lambda: f"publishes are answered: {[m for m in publishing if not (m.seq or m.refused)]}")


async def _check_delivered(world: World, owner: Process, record: StreamRecord, consumer: ConsumerRecord) -> None:
    """Check that the consumer has delivered everything, and that its acks were accepted."""
    name = consumer.name
    pulls = "deliver_subject" not in consumer.config
    suspended_ns = world.clocks.suspended_ns if world.clocks is not None else 0
    end_ns = world.clock.monotonic_ns() + PROGRESS_SECONDS * SECOND + suspended_ns
    while True:
        if pulls:
            owner.client.consumers.pull_from(record, name, 100)
        await asyncio.sleep(1.0)
        shown = await until(world, lambda: _ask(owner, f"CONSUMER.INFO.{record.name}.{name}", None),
                             f"consumer {name} of {record} shows itself")
        # A message that had its last delivery stays pending for ever.
        if not shown["num_pending"] and (not shown["num_ack_pending"] or consumer.config["max_deliver"] > 0):
            break
        if world.clock.monotonic_ns() >= end_ns:
            raise Lost(f"{record}: consumer {name} has messages left to deliver: {shown}")
    messages = world.check_store().get(record.stream_id, {})
    due = [seq for seq, message in messages.items() if consumer.wants(message.subject) and consumer.begins_at_all
            and not record.ended(seq, world.clock.now_ns())]
    missed = sorted(set(due) - record.seen[name])
    if missed and not record.memory:
        raise Lost(f"{record}: consumer {name} never delivered {missed}")


def _unneeded(world: World) -> str:
    """Return a message of a work queue or interest stream that no consumer waits for, "" for none.

    As on nats-server, a message that a consumer has skipped, because it is not the last of its subject, may stay.
    """
    found = world.check_store()
    assert world.checker.state is not None
    for stream in world.checker.state.streams.values():
        retention = stream.config.get("retention", "limits")
        for seq, message in found[stream.stream_id].items() if retention != "limits" else ():
            getting = [consumer
                       for consumer in stream.consumers.values() if matches_filter(consumer.config, message.subject)]
            waits = any(seq > consumer.delivered_sseq or seq in consumer.pending or seq in consumer.redelivered
                        or consumer.config["deliver_policy"] == "last_per_subject" for consumer in getting)
            if not waits and (getting or retention == "interest"):
                return f"{stream!r}: {seq}, which no consumer waits for, of {[consumer.name for consumer in getting]}"
    return ""


def _over_limit(records: list[StreamRecord], found: dict[int, dict[int, Message]]) -> str:
    """Return the first stream that exceeds a limit, "" if none does."""
    for record in records:
        messages, config = found.get(record.stream_id), record.shown
        if messages is None:
            continue
        per_subject = Counter(message.subject for message in messages.values())
        size = sum(message.size for message in messages.values())
        for limit, held in (("max_msgs_per_subject", max(per_subject.values(), default=0)), ("max_msgs", len(messages)),
                            ("max_bytes", size)):
            if 0 < config[limit] < held:
                return f"{record} has {held}, {limit} is {config[limit]}"
    return ""


async def _check_empty(world: World, owner: Process, records: list[StreamRecord]) -> None:
    """Delete everything, wait, and count the remaining objects."""
    for record in records:
        await until(world, lambda record=record: _deleted(owner, record), f"{record} is deleted")
        record.status = "gone"
    await asyncio.sleep(QUIET_SECONDS)
    world.check_store()
    left = len(world.shared.objects)
    bound = OBJECTS_LEFT + _OBJECTS_AN_EPOCH * len([key for key in world.shared.objects if "/epochs/" in key])
    if left > bound:
        raise Lost(f"{left} objects are left without streams, at most {bound} may be")
    assert owner.shard is not None
    log = owner.shard.log
    await until(world, lambda: not (log.tail_bytes or log.waiting_bytes), "an idle log holds nothing")


async def _deleted(owner: Process, record: StreamRecord) -> bool:
    """Delete a stream; return whether it is gone: an erasure may have to end before, and ``_ask`` does not wait for
    that."""
    return await _ask(owner, f"STREAM.DELETE.{record.name}", None) is not None or record.name not in owner.streams()


async def _ask(owner: Process, subject: str, body: Any) -> dict[str, Any] | None:
    """Return the answer to a request; None for an error, or for no answer within 10 s."""
    future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    owner.client.requests.request(subject, body, lambda answer: future.done() or future.set_result(answer))
    try:
        answer = await asyncio.wait_for(future, 10)
    except TimeoutError:
        return None
    return None if "error" in answer else answer
