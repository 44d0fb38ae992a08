"""Mirrors and sources over restarts, and with origins that come and go. Differential scenarios compare the copies."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.jetstream.in_process import Inside


async def info(broker: Inside, stream: str) -> dict[str, Any]:
    return await broker.ok(f"STREAM.INFO.{stream}")


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition holds that only requests can check."""
    async with asyncio.timeout(30):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.01)


async def grown(broker: Inside, stream: str, last_seq: int) -> None:
    """Wait until the stream's last sequence is ``last_seq``."""
    async def there() -> bool:
        return bool((await info(broker, stream))["state"]["last_seq"] >= last_seq)
    await until(there)
    assert (await info(broker, stream))["state"]["last_seq"] == last_seq


async def stored(broker: Inside, stream: str) -> dict[int, tuple[str, bytes]]:
    """Return each message of the stream: sequence → subject and payload."""
    state = (await info(broker, stream))["state"]
    found = {}
    for seq in range(state["first_seq"], state["last_seq"] + 1):
        msg = await broker.ask(f"DIRECT.GET.{stream}", {"seq": seq})
        if msg.headers and "Nats-Subject" in msg.headers:
            found[seq] = msg.headers["Nats-Subject"], msg.data
    return found


async def make(broker: Inside, name: str, **config: Any) -> None:
    await broker.ok(f"STREAM.CREATE.{name}", {"name": name, "allow_direct": True, **config})


@pytest.mark.shows("copy.restart")
@pytest.mark.parametrize("storage", ["file", "memory"])
async def test_a_mirror_continues_after_a_restart(storage: str) -> None:
    """Shows messages before, while and after the mirror's broker is down: each has its origin's sequence and time.

    A mirror in memory starts from the beginning.
    """
    async with Inside() as broker:
        await make(broker, "S", subjects=["s.>"])
        await make(broker, "M", mirror={"name": "S"}, storage=storage)
        for n in range(5):
            await broker.publish(f"s.{n}", b"%d" % n)
        await grown(broker, "M", 5)
        await broker.ok("STREAM.MSG.DELETE.S", {"seq": 3})
        await broker.restart()
        if storage == "memory":
            await make(broker, "M", mirror={"name": "S"}, storage=storage)
        await broker.publish("s.5", b"5")
        await grown(broker, "M", 6)
        kept = await stored(broker, "M")
        assert kept == {seq: (f"s.{seq - 1}", b"%d" % (seq - 1)) for seq in range(1, 7) if seq != 3
                        or storage == "file"}
        times = [(await broker.ok(f"STREAM.MSG.GET.{name}", {"seq": 6}))["message"]["time"] for name in "SM"]
        assert times[0] == times[1]


@pytest.mark.shows("copy.mirror")
async def test_a_mirror_reads_many_blocks() -> None:
    """Shows a backlog of several commits, larger than one read, with a filter and gaps;
    the cache holds little of it."""
    async with Inside() as broker:
        await make(broker, "S", subjects=["s.>"])
        for n in range(1500):
            await broker.client.publish(f"s.{n % 3}", b"x" * 300 + b"%d" % n)
            if n % 500 == 0:
                await broker.publish("s.mark")
        await broker.publish("s.end", b"")
        last_seq = (await info(broker, "S"))["state"]["last_seq"]
        await broker.restart()
        await make(broker, "M", mirror={"name": "S",
                                        "subject_transforms": [{"src": "s.1", "dest": "m.one"}, {"src": "s.end"}]})
        await make(broker, "D", sources=[{"name": "S", "filter_subject": "s.2"}])
        await grown(broker, "M", last_seq)
        state = (await info(broker, "M"))["state"]
        assert (state["messages"], state["num_subjects"]) == (501, 2)
        await grown(broker, "D", 500)


@pytest.mark.shows("copy.restart")
async def test_sources_take_each_message_once_over_restarts() -> None:
    """Shows two sources and restarts between publishes, once also after all copies are purged."""
    async with Inside() as broker:
        await make(broker, "A", subjects=["a.>"])
        await make(broker, "B", subjects=["b.>"])
        await make(broker, "D", sources=[{"name": "A"}, {"name": "B", "filter_subject": "b.yes"}])
        for n in range(1, 5):
            await broker.publish("a.x", b"a%d" % n)
            await broker.publish("b.no", b"")
            await broker.publish("b.yes", b"b%d" % n)
            await grown(broker, "D", 2 * n)
            if n == 3:
                await broker.ok("STREAM.PURGE.D")
            await broker.restart()
        assert sorted(body for _, body in (await stored(broker, "D")).values()) == [b"a4", b"b4"]
        sources = {one["name"]: one for one in (await info(broker, "D"))["sources"]}
        assert (sources["A"]["seq"], sources["A"]["lag"], sources["B"]["seq"]) == (4, 0, 8)


@pytest.mark.shows("copy.missing")
async def test_an_origin_that_comes_goes_and_comes_back() -> None:
    """A missing origin is an error in the info. When it is recreated, a source copies all of it,
    a mirror only new sequences."""
    async with Inside() as broker:
        await make(broker, "M", mirror={"name": "S"})
        await make(broker, "D", sources=[{"name": "S"}])

        async def missing() -> bool:
            shown = [(await info(broker, "M"))["mirror"], *(await info(broker, "D"))["sources"]]
            return all(one.get("error", {}).get("err_code") == 10059 for one in shown)
        await until(missing)
        await make(broker, "S", subjects=["s"])
        await broker.publish("s", b"old 1")
        await broker.publish("s", b"old 2")
        await grown(broker, "M", 2)
        await grown(broker, "D", 2)
        assert "error" not in (await info(broker, "M"))["mirror"]
        await broker.ok("STREAM.DELETE.S")
        await until(missing)
        await make(broker, "S", subjects=["s"])
        for n in range(1, 4):
            await broker.publish("s", b"new %d" % n)
        await grown(broker, "M", 3)
        await grown(broker, "D", 5)
        assert [body for _, body in (await stored(broker, "M")).values()] == [b"old 1", b"old 2", b"new 3"]
        assert [body for _,
                body in (await stored(broker, "D")).values()] == [b"old 1", b"old 2", b"new 1", b"new 2", b"new 3"]


@pytest.mark.shows("copy.mirror_direct", "stream.mirror_direct")
async def test_a_mirror_answers_direct_gets_for_an_origin_that_is_gone() -> None:
    async with Inside() as broker:
        await make(broker, "S", subjects=["s"])
        await make(broker, "M", mirror={"name": "S"}, mirror_direct=True)
        await broker.publish("s", b"kept")
        await grown(broker, "M", 1)
        await broker.ok("STREAM.DELETE.S")
        msg = await broker.ask("DIRECT.GET.S", {"seq": 1})
        assert (msg.data, msg.headers["Nats-Stream"]) == (b"kept", "M")  # type: ignore[index]


async def test_a_full_stream_takes_what_it_was_offered_once_there_is_room() -> None:
    """A source whose stream discards new messages waits, and skips none."""
    async with Inside() as broker:
        await make(broker, "S", subjects=["s"])
        await make(broker, "D", sources=[{"name": "S"}], max_msgs=2, discard="new")
        for n in range(4):
            await broker.publish("s", b"%d" % n)
        await grown(broker, "D", 2)
        await broker.ok("STREAM.PURGE.D")
        await grown(broker, "D", 4)
        assert [body for _, body in (await stored(broker, "D")).values()] == [b"2", b"3"]


async def test_publishes_and_copies_share_a_stream() -> None:
    """Shows a stream with subjects of its own: acknowledged publishes and copies all have sequences of their own."""
    async with Inside() as broker:
        await make(broker, "S", subjects=["s"])
        await make(broker, "D", subjects=["d"], sources=[{"name": "S"}])
        inbox = broker.client.new_inbox()
        acks = await broker.client.subscribe(inbox)
        for n in range(200):
            await broker.client.publish("s", b"s%d" % n)
            await broker.client.publish("d", b"d%d" % n, reply=inbox)
        seqs = [int(json.loads((await acks.next_msg()).data)["seq"]) for _ in range(200)]
        await grown(broker, "D", 400)
        bodies = [body for _, body in (await stored(broker, "D")).values()]
        assert [bodies[seq - 1] for seq in seqs] == [b"d%d" % n for n in range(200)]
        assert [body for body in bodies if body[:1] == b"s"] == [b"s%d" % n for n in range(200)]


@pytest.mark.shows("copy.external")
async def test_an_origin_that_no_import_reaches_is_an_error_in_the_info() -> None:
    async with Inside() as broker:
        external = {"api": "JS.other.API", "deliver": "d"}
        await make(broker, "M", mirror={"name": "S", "external": external})
        await make(broker, "D", sources=[{"name": "S", "external": external}])

        async def shown() -> bool:
            found = [(await info(broker, "M"))["mirror"], *(await info(broker, "D"))["sources"]]
            return [one.get("error", {}).get("err_code") for one in found] == [10029, 10045]
        await until(shown)
        assert "import of that service" in (await info(broker, "M"))["mirror"]["error"]["description"]


@pytest.mark.shows("copy.restart")
@pytest.mark.parametrize("seed", range(2))
async def test_crashes_neither_repeat_nor_lose_what_is_copied(seed: int) -> None:
    """The process ends again and again while messages are published, copied and purged from the copying stream.

    Each message of the origin is copied once, in order. Messages not stored at the end of a process are lost, in the
    origin as in the copies.
    """
    rng = random.Random(seed)
    async with Inside() as broker:
        await make(broker, "S", subjects=["s.>"])
        await make(broker, "D", sources=[{"name": "S"}])
        await make(broker, "M", mirror={"name": "S", "filter_subject": "s.1"},
                   persist_mode=rng.choice(["default", "async"]))
        copied: dict[int, bytes] = {}
        for turn in range(6):
            for n in range(rng.randrange(100)):
                await broker.client.publish(f"s.{n % 2}", b"%d.%d" % (turn, n))
            await broker.client.flush()
            await asyncio.sleep(rng.random() * 0.02)
            if turn == 3:
                copied = {seq: body for seq, (_, body) in (await stored(broker, "D")).items()}
                await broker.ok("STREAM.PURGE.D")
            await broker.js.close()
            await broker.log.close()
            await broker.open()
        last_seq = await broker.publish("s.1", b"end")
        await grown(broker, "M", last_seq)
        await grown(broker, "D", last_seq)
        origin = await stored(broker, "S")
        copied |= {seq: body for seq, (_, body) in (await stored(broker, "D")).items()}
        assert copied == {seq: body for seq, (_, body) in origin.items() if seq in copied}
        assert last_seq in copied
        assert await stored(broker, "M") == {seq: one for seq, one in origin.items() if one[0] == "s.1"}


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
async def test_sources_of_a_stream_that_keeps_what_consumers_wait_for(retention: str) -> None:
    """A copy that no consumer waits for takes a sequence and is removed at once;
    in a work queue it waits for a consumer."""
    async with Inside() as broker:
        await make(broker, "S", subjects=["s.>"])
        await make(broker, "D", sources=[{"name": "S"}], retention=retention)
        await broker.ok("CONSUMER.DURABLE.CREATE.D.C", {"stream_name": "D", "config": {
            "durable_name": "C", "ack_policy": "explicit", "filter_subject": "s.b"}})
        for n, subject in enumerate(("s.a", "s.b", "s.a", "s.b")):
            await broker.publish(subject, b"%d" % n)
        await grown(broker, "D", 4)
        wanted = {2: ("s.b", b"1"), 4: ("s.b", b"3")}
        others = {1: ("s.a", b"0"), 3: ("s.a", b"2")} if retention == "workqueue" else {}
        assert await stored(broker, "D") == wanted | others
        await broker.restart()
        assert await stored(broker, "D") == wanted | others


@pytest.mark.shows("publish.counter_sources")
@pytest.mark.parametrize("seed", range(3))
async def test_sums_of_counters_are_those_of_a_plain_model(seed: int) -> None:
    """Shows two origins, a stream that sums them up with increments of its own, and a stream that copies those sums.

    Through crashes, purges and origins that are deleted and made anew, each sum is that of the totals last counted.
    """
    rng = random.Random(seed)
    counted: dict[str, dict[str, int]] = {"A": {}, "B": {}, "D": {}}
    over: set[tuple[str, str]] = set()
    """(stream, name): its next total begins at 0."""

    async def increment(broker: Inside, stream: str, name: str) -> None:
        amount, counts = rng.choice([1, -7, 10 ** 25]), counted[stream]
        counts[name] = amount + (0 if (stream, name) in over else counts.get(name, 0))
        over.discard((stream, name))
        answer = await broker.client.request(f"{stream}.{name}", b"", timeout=30, headers={"Nats-Incr": str(amount)})
        if stream != "D":
            assert json.loads(answer.data)["val"] == str(counts[name])

    async def totals(broker: Inside, subject: str) -> list[int]:
        msgs = [await broker.ask(f"DIRECT.GET.{stream}.{subject}") for stream in "DE"]
        return [int(json.loads(msg.data)["val"]) if msg.data else 0 for msg in msgs]

    async with Inside() as broker:
        async def origin(name: str) -> None:
            await make(broker, name, subjects=[f"{name}.*"], allow_msg_counter=True,
                       max_msgs_per_subject=rng.choice([-1, 1]))

        for name in "AB":
            await origin(name)
        await make(broker, "D", subjects=["D.*"], allow_msg_counter=True, max_msgs_per_subject=rng.choice([-1, 1]),
                   sources=[
            {"name": name, "subject_transforms": [{"src": f"{name}.*", "dest": "D.$1"}]} for name in "AB"])
        await make(broker, "E", allow_msg_counter=True, sources=[{"name": "D"}])
        for _ in range(10):
            for _ in range(rng.randrange(12)):
                await increment(broker, rng.choice("ABD"), rng.choice("xyz"))
            if rng.random() < 0.5:
                await broker.js.close()
                await broker.log.close()
                await broker.open()
            for name in "xyz":
                expected = sum(counts.get(name, 0) for counts in counted.values())

                async def there(subject: str = f"D.{name}", expected: int = expected) -> bool:
                    return await totals(broker, subject) == [expected] * 2
                await until(there)
            event = rng.random()
            if event < 0.3:
                await broker.ok("STREAM.DELETE.A")
                await origin("A")
                over.update(("A", name) for name in "xyz")
            elif event < 0.6:
                await broker.ok("STREAM.PURGE.E")
                for name in "xyz":
                    await increment(broker, "D", name)


@pytest.mark.parametrize("seed", range(2))
async def test_a_named_consumer_acks_what_is_stored(seed: int) -> None:
    """A work queue whose one consumer delivers to a source in another stream, with crashes on the way.

    Each message is copied once, in order, and leaves the queue only then. Another consumer delivers to a mirror of a
    second stream.
    """
    rng = random.Random(seed)
    by_flow = {"ack_policy": "flow_control", "flow_control": True, "idle_heartbeat": 100_000_000,
               "max_ack_pending": 1000}

    async def named(broker: Inside, stream: str, subject: str) -> dict[str, Any]:
        await broker.ok(f"CONSUMER.DURABLE.CREATE.{stream}.C", {"stream_name": stream, "config": {
            "durable_name": "C", "deliver_subject": subject, **by_flow}})
        return {"name": stream, "consumer": {"name": "C", "deliver_subject": subject}}

    async with Inside() as broker:
        await make(broker, "Q", subjects=["q.>"], retention="workqueue")
        await make(broker, "S", subjects=["s.>"])
        await make(broker, "D", sources=[await named(broker, "Q", "to.d")])
        await make(broker, "M", mirror=await named(broker, "S", "to.m"))
        acked: list[bytes] = []
        for turn in range(4):
            for n in range(rng.randrange(1, 150)):
                await broker.client.publish("q.x", b"%d.%d" % (turn, n))
                await broker.client.publish("s.x", b"%d.%d" % (turn, n))
            await broker.publish("s.x", b"%d" % turn)
            await broker.publish("q.x", b"%d" % turn)
            acked.append(b"%d" % turn)
            await asyncio.sleep(rng.random() * 0.05)
            if turn < 3:
                await broker.js.close()
                await broker.log.close()
                await broker.open()
        last_seq = (await info(broker, "Q"))["state"]["last_seq"]
        await grown(broker, "D", last_seq)
        await grown(broker, "M", (await info(broker, "S"))["state"]["last_seq"])
        bodies = [body for _, body in (await stored(broker, "D")).values()]
        assert len(set(bodies)) == len(bodies) == last_seq
        assert [body for body in bodies if b"." not in body] == acked
        assert await stored(broker, "M") == await stored(broker, "S")

        async def drained() -> bool:
            return not (await info(broker, "Q"))["state"]["messages"]
        await until(drained)


async def test_a_named_consumer_that_comes_later() -> None:
    """Shows the reason in the info until the consumer exists. A client's publish to the delivery subject is ignored."""
    async with Inside() as broker:
        await make(broker, "S", subjects=["s"])
        await make(broker, "D", sources=[{"name": "S", "consumer": {"name": "C", "deliver_subject": "d"}}])
        create = {"stream_name": "S", "config": {"durable_name": "C", "deliver_subject": "d",
                                                 "ack_policy": "flow_control",
                  "flow_control": True, "idle_heartbeat": 100_000_000, "max_ack_pending": 10}}

        async def refused() -> bool:
            [source] = (await info(broker, "D"))["sources"]
            return "does not answer" in source.get("error", {}).get("description", "")
        await until(refused)
        for _ in range(30):
            await broker.publish("s", b"x")
        await broker.ok("CONSUMER.DURABLE.CREATE.S.C", create)
        await grown(broker, "D", 30)
        await broker.client.publish("d", b"forged", reply="$JS.ACK.S.C.1.31.31.1.0")
        await broker.client.flush()
        await broker.publish("s", b"y")
        await grown(broker, "D", 31)
        assert [body for _, body in (await stored(broker, "D")).values()] == [b"x"] * 30 + [b"y"]
