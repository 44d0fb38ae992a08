"""Snapshots and restores over the API: the transfer, what is restored, and that a failed restore leaves nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from nats.aio.subscription import Subscription
from nats.errors import NoRespondersError

from broker.access.accounts import AccountLimits
from broker.jetstream.account.incoming import Provenance
from broker.jetstream.archive.contents import ArchiveReader, ArchiveWriter
from broker.jetstream.archive.framing import FrameWriter
from broker.jetstream.archive.values import ArchivedConsumer, ArchivedMsg, ArchivedStream
from broker.jetstream.backup import chunks, restore, transfers
from tests.jetstream.archives import Backup, Failed, api, begin_restore, take_snapshot
from tests.jetstream.archives import restore as restored
from tests.jetstream.in_process import Inside

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[Inside]:
    async with Inside() as inside:
        yield inside


async def fill(broker: Inside, count: int = 20, size: int = 10, **config: Any) -> None:
    """Make a stream S with ``count`` messages, of which the second and the last are deleted, and a consumer C."""
    await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], **config})
    for n in range(count):
        await broker.publish(f"s.{n % 3}", b"%d " % n * (size // 2))
    for seq in (2, count):
        await broker.ok("STREAM.MSG.DELETE.S", {"seq": seq})
    await broker.ok("CONSUMER.CREATE.S.C", {"stream_name": "S",
                                            "config": {"durable_name": "C", "ack_policy": "explicit"}})


async def until(broker: Inside, holds: Callable[[dict[str, Any]], bool]) -> None:
    """Wait until the state of S is as wanted."""
    async with asyncio.timeout(30):
        while True:
            if holds((await broker.ok("STREAM.INFO.S"))["state"]):
                return
            await asyncio.sleep(0.01)


async def messages(broker: Inside, stream: str) -> list[tuple[int, dict[str, Any]]]:
    """Return all messages as MSG.GET shows them."""
    state = (await broker.ok(f"STREAM.INFO.{stream}"))["state"]
    found = []
    for seq in range(state["first_seq"], state["last_seq"] + 1):
        answer = await broker.api(f"STREAM.MSG.GET.{stream}", {"seq": seq})
        if "message" in answer:
            found.append((seq, answer["message"]))
    return found


def archive(stream: ArchivedStream, msgs: list[ArchivedMsg], *consumers: ArchivedConsumer, end: bool = True) -> bytes:
    writer = ArchiveWriter(1)
    return b"".join((writer.begin(stream), *map(writer.consumer, consumers), writer.messages(msgs),
                     writer.end() if end else b""))


def small(last_seq: int = 3, consumers: int = 0) -> ArchivedStream:
    return ArchivedStream(last_seq, 100, 1, last_seq, "", "", consumers)


def made(msgs: list[ArchivedMsg], *consumers: ArchivedConsumer, **config: Any) -> Backup:
    last_seq = msgs[-1].seq if msgs else 0
    return Backup({"name": "S", "subjects": ["s.>"], **config}, {},
                  archive(small(last_seq, len(consumers)), msgs, *consumers))


LONG_AGO_NS = 1_700_000_000_000_000_000


def msg(seq: int, subject: bytes = b"s.1", body: bytes = b"x", *, hlen: int = 0,
        time_ns: int = LONG_AGO_NS) -> ArchivedMsg:
    return ArchivedMsg(seq, time_ns + seq, subject, hlen, body)


def with_consumer(name: str, config: dict[str, Any], *state: Any, count: int = 1) -> bytes:
    """Return an archive without messages, with ``count`` consumers that are all the same."""
    return archive(small(3, count), [], *[ArchivedConsumer(name, config, *state)] * count)


def nothing_is_left(broker: Inside) -> None:
    assert "S" not in broker.js.accounts["$G"].streams
    assert not broker.js.accounts["$G"].incoming.names
    assert broker.js.server_usage("file").size_bytes == broker.js.server_usage("memory").size_bytes == 0


# --- there and back ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("storage", ["file", "memory"])
async def test_a_stream_comes_back_as_it_was(broker: Inside, storage: str) -> None:
    await fill(broker, storage=storage)
    for _ in range(5):
        delivery = await broker.pull("S.C")
    await broker.client.request(delivery.reply, b"+ACK", timeout=30)
    before = await messages(broker, "S"), await broker.ok("STREAM.INFO.S"), await broker.ok("CONSUMER.INFO.S.C")
    backup = await take_snapshot(broker.client, "S")
    await broker.ok("STREAM.DELETE.S")
    info = await restored(broker.client, backup)
    after = await messages(broker, "S"), await broker.ok("STREAM.INFO.S"), await broker.ok("CONSUMER.INFO.S.C")
    assert after[0] == before[0]
    for key in ("messages", "bytes", "first_seq", "last_seq", "num_deleted", "num_subjects", "consumer_count",
                "first_ts"):
        assert info["state"][key] == after[1]["state"][key] == before[1]["state"][key], key
    for key in ("num_pending", "num_ack_pending", "num_redelivered", "config"):
        assert after[2][key] == before[2][key], key
    for key in ("delivered", "ack_floor"):
        assert {name: after[2][key][name] for name in ("consumer_seq", "stream_seq")} == {
            name: before[2][key][name] for name in ("consumer_seq", "stream_seq")}
    # It continues where it was.
    assert await broker.publish("s.1") == 21
    delivery = await broker.pull("S.C")
    assert delivery.subject == "s.0"
    assert delivery.reply.split(".")[4:7] == ["1", "7", "6"]


async def test_a_restored_stream_survives_a_restart(broker: Inside) -> None:
    await fill(broker)
    await broker.pull("S.C")
    backup = await take_snapshot(broker.client, "S")
    before = await messages(broker, "S")
    await restored(broker.client, backup, name="T", subjects=["t.>"])
    await broker.restart()
    assert await messages(broker, "T") == before
    info = await broker.ok("CONSUMER.INFO.T.C")
    assert (info["num_ack_pending"], info["num_pending"]) == (1, 17)


async def test_without_consumers(broker: Inside) -> None:
    await fill(broker)
    backup = await take_snapshot(broker.client, "S", no_consumers=True)
    assert (await restored(broker.client, backup, name="T", subjects=["t"]))["state"]["consumer_count"] == 0


@pytest.mark.shows("api.snapshot")
async def test_chunks_are_as_large_as_asked(broker: Inside) -> None:
    await fill(broker, 40, 4000)
    backup = await take_snapshot(broker.client, "S", chunk_size=1)
    assert set(backup.chunks[:-1]) == {1024}
    assert backup.status == "204"
    again = await take_snapshot(broker.client, "S", chunk_size=4096, window_size=4096)
    assert set(again.chunks[:-1]) == {4096}
    assert sum(again.chunks) == sum(backup.chunks)
    assert (await take_snapshot(broker.client, "S")).status is None  # a single chunk


async def test_no_more_than_the_window_is_unanswered(broker: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(broker, 40, 4000)
    events = await broker.client.subscribe("$JS.EVENT.ADVISORY.STREAM.SNAPSHOT_COMPLETE.S")
    for seconds in (0.2, 2.0, 10.0):  # on a busy machine the two acks may take longer
        monkeypatch.setattr(chunks, "ACK_SECONDS", seconds)
        backup = await take_snapshot(broker.client, "S", chunk_size=1024, window_size=3 * 1024, acks=2)
        assert backup.status == "408"
        assert json.loads((await events.next_msg()).data)["error"] == "no flow response"
        if len(backup.chunks) >= 5:
            break
    assert backup.chunks == [1024] * 5


async def test_a_client_that_leaves_ends_its_snapshot(broker: Inside) -> None:
    await fill(broker, 40, 4000)
    events = await broker.client.subscribe("$JS.EVENT.ADVISORY.STREAM.SNAPSHOT_COMPLETE.S")
    subscription = await broker.client.subscribe("to.me")
    await api(broker.client, "STREAM.SNAPSHOT.S", {"deliver_subject": "to.me", "chunk_size": 1024, "window_size": 1024})
    await subscription.next_msg()
    await subscription.unsubscribe()
    assert json.loads((await events.next_msg()).data)["error"] == "no interest"


async def comes_whole(broker: Inside, subscription: Subscription, answer: dict[str, Any]) -> None:
    """Check that the archive that arrives is all of S."""
    parts = []
    while (chunk := await subscription.next_msg()).data:
        parts.append(chunk.data)
        if chunk.reply:
            await chunk.respond(b"")
    before = await messages(broker, "S")
    await broker.ok("STREAM.DELETE.S")
    await restored(broker.client, Backup(answer["config"], answer["state"], b"".join(parts)))
    assert await messages(broker, "S") == before


@pytest.mark.shows("api.snapshot")
async def test_a_client_may_subscribe_after_the_answer(broker: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows the `nats` CLI's way: its wildcard for replies matches the inbox before it subscribes to the inbox
    itself."""
    monkeypatch.setattr(chunks, "INTEREST_SECONDS", 30.0)
    await fill(broker, 40, 4000)
    inbox = broker.client.new_inbox()
    looking_on = await broker.client.subscribe(f"{inbox}.*")
    answer = await api(broker.client, "STREAM.SNAPSHOT.S", {"deliver_subject": f"{inbox}.backup"})
    with pytest.raises(TimeoutError):
        await looking_on.next_msg(0.2)
    subscription = await broker.client.subscribe(f"{inbox}.backup")
    await comes_whole(broker, subscription, answer)


async def test_a_client_may_subscribe_with_a_wildcard(broker: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that it gets the archive, too, if no subscription to the inbox itself has come for some time."""
    monkeypatch.setattr(chunks, "INTEREST_SECONDS", 0.1)
    await fill(broker, 40, 4000)
    subscription = await broker.client.subscribe("to.*")
    answer = await api(broker.client, "STREAM.SNAPSHOT.S", {"deliver_subject": "to.me"})
    await comes_whole(broker, subscription, answer)


async def test_deleting_a_stream_ends_its_snapshot(broker: Inside) -> None:
    await fill(broker, 300, 4000)
    events = await broker.client.subscribe("$JS.EVENT.ADVISORY.STREAM.SNAPSHOT_COMPLETE.S")
    subscription = await broker.client.subscribe("to.me")
    await api(broker.client, "STREAM.SNAPSHOT.S", {"deliver_subject": "to.me", "chunk_size": 1024, "window_size": 1024})
    first = await subscription.next_msg()
    await broker.ok("STREAM.DELETE.S")
    await broker.client.publish(first.reply)
    while (chunk := await subscription.next_msg()).data:
        await broker.client.publish(chunk.reply)
    assert chunk.header is not None
    assert chunk.header["Status"] == "500"
    assert json.loads((await events.next_msg()).data)["error"] == "stream not found"


async def test_a_snapshot_has_what_was_there_when_it_began(broker: Inside) -> None:
    await fill(broker, 30, 4000)
    subscription = await broker.client.subscribe("to.me")
    answer = await api(broker.client, "STREAM.SNAPSHOT.S",
                       {"deliver_subject": "to.me", "chunk_size": 1024, "window_size": 1024})
    for _ in range(10):
        await broker.publish("s.later")
    parts = []
    while (chunk := await subscription.next_msg()).data:
        parts.append(chunk.data)
        if chunk.reply:
            await broker.client.publish(chunk.reply)
    reader = ArchiveReader()
    found = [one for batch in reader.feed(b"".join(parts)) if isinstance(batch, list) for one in batch]
    assert answer["state"]["last_seq"] == 30
    assert [one.seq for one in found] == [1, *range(3, 30)]


# --- what is restored -------------------------------------------------------------------------------------------------

async def test_limits_of_the_new_configuration_hold(broker: Inside) -> None:
    backup = made([msg(seq, b"s.%d" % (seq % 3)) for seq in range(1, 31)])
    for changes, left in (({"max_msgs": 4}, 4), ({"max_msgs_per_subject": 2}, 6), ({"max_bytes": 400}, 11),
                          ({"max_msgs": 4, "discard": "new"}, 30)):
        assert (await restored(broker.client, backup, **changes))["state"]["messages"] == left
        await broker.ok("STREAM.DELETE.S")
    assert (await restored(broker.client, backup, max_age=10**9))["state"]["last_seq"] == 30
    await until(broker, lambda state: not state["messages"])


async def test_messages_expire_as_they_would_have(broker: Inside) -> None:
    def with_ttl(seq: int, ttl: bytes, ago_seconds: int) -> ArchivedMsg:
        head = b"NATS/1.0\r\nNats-TTL: %b\r\n\r\n" % ttl
        return ArchivedMsg(seq, broker.clock.now_ns() - ago_seconds * 10**9, b"s.1", len(head), head)

    backup = made([with_ttl(1, b"5", 10), with_ttl(2, b"1h", 10), with_ttl(3, b"never", 10), with_ttl(4, b"10", 9),
                   msg(9)],
                  allow_msg_ttl=True)
    await restored(broker.client, backup)
    assert [seq for seq, _ in await messages(broker, "S")][:3] in ([2, 3, 4], [2, 3, 9])
    await until(broker, lambda state: state["messages"] == 3)
    await broker.restart()
    assert [seq for seq, _ in await messages(broker, "S")] == [2, 3, 9]
    with pytest.raises(Failed, match="failed to parse message TTL"):
        await restored(broker.client, made([with_ttl(1, b"soon", 1)], allow_msg_ttl=True), name="T", subjects=["t"])


async def test_message_ids_of_the_window_are_known(broker: Inside) -> None:
    await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    await broker.client.request("s.1", b"x", headers={"Nats-Msg-Id": "one"})
    backup = await take_snapshot(broker.client, "S")
    await broker.ok("STREAM.DELETE.S")
    await restored(broker.client, backup)
    for _ in range(2):
        answer = json.loads((await broker.client.request("s.1", b"x", headers={"Nats-Msg-Id": "one"})).data)
        assert (answer["seq"], answer["duplicate"]) == (1, True)
        await broker.restart()


async def test_a_source_continues_after_what_was_copied(broker: Inside) -> None:
    await broker.ok("STREAM.CREATE.O", {"name": "O", "subjects": ["o"]})
    for _ in range(3):
        await broker.publish("o")
    config = {"name": "S", "sources": [{"name": "O"}]}
    await broker.ok("STREAM.CREATE.S", config)
    await until(broker, lambda state: state["messages"] == 3)
    backup = await take_snapshot(broker.client, "S")
    await broker.ok("STREAM.DELETE.S")
    await restored(broker.client, backup)
    await broker.publish("o")
    await until(broker, lambda state: state["messages"] >= 4)
    await broker.publish("o")
    await until(broker, lambda state: state["messages"] >= 5)
    assert (await broker.ok("STREAM.INFO.S"))["state"]["messages"] == 5


async def test_a_schedule_continues(broker: Inside) -> None:
    await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "allow_msg_schedules": True})
    await broker.client.request("s.plan", b"x", headers={"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": "s.out"})
    backup = await take_snapshot(broker.client, "S")
    await broker.ok("STREAM.DELETE.S")
    await restored(broker.client, backup)
    following = backup.state["last_seq"] + 1
    await until(broker, lambda state: state["last_seq"] >= following)
    assert (await broker.ok("STREAM.MSG.GET.S", {"seq": following}))["message"]["subject"] == "s.out"


async def test_acked_messages_of_a_work_queue_do_not_come_back(broker: Inside) -> None:
    consumer = ArchivedConsumer("C", {"durable_name": "C", "ack_policy": "explicit"}, (3, 3), (1, 1), {3: (3, 1)})
    backup = made([msg(seq) for seq in (1, 2, 3, 4)], consumer, retention="workqueue")
    assert (await restored(broker.client, backup))["state"]["messages"] == 2
    assert [seq for seq, _ in await messages(broker, "S")] == [3, 4]


# --- refusals ---------------------------------------------------------------------------------------------------------

async def test_requests_that_are_refused(broker: Inside) -> None:
    await fill(broker)
    config = {"name": "T", "subjects": ["t"]}
    for subject, body, code in (
        ("STREAM.SNAPSHOT.S", {}, 10003), ("STREAM.SNAPSHOT.S", {"deliver_subject": "a b"}, 10015),
        ("STREAM.SNAPSHOT.S", {"deliver_subject": "a.*"}, 10015), ("STREAM.SNAPSHOT.S", {"chunk_size": "x"}, 10025),
        ("STREAM.SNAPSHOT.T", {"deliver_subject": "a"}, 10059), ("STREAM.RESTORE.T", {}, 10003),
        ("STREAM.RESTORE.T", {"config": config | {"name": "U"}}, 10056), ("STREAM.RESTORE.S", {"config": {}}, 10130),
        ("STREAM.RESTORE.T", {"config": config | {"max_age": 5}}, 10052), ("STREAM.RESTORE.T", {"what": 1}, 10025),
    ):
        assert await broker.error(subject, body) == code, (subject, body)


async def test_a_name_that_is_being_restored_is_taken(broker: Inside) -> None:
    backup = made([msg(1)])
    to = await begin_restore(broker.client, backup)
    assert await broker.error("STREAM.CREATE.S", {"name": "S", "subjects": ["x"]}) == 10058
    assert await broker.error("STREAM.RESTORE.S", {"config": backup.config}) == 10130
    await broker.client.request(to, backup.archive)
    assert await broker.error("STREAM.CREATE.T", {"name": "T", "subjects": ["s.1"]}) == 10065
    assert await broker.error("STREAM.INFO.S") == 10059
    assert (await broker.ok("STREAM.NAMES"))["streams"] is None
    await broker.client.request(to, b"")
    assert (await broker.ok("STREAM.NAMES"))["streams"] == ["S"]


async def test_subjects_of_another_stream_are_refused(broker: Inside) -> None:
    await broker.ok("STREAM.CREATE.T", {"name": "T", "subjects": ["s.1"]})
    with pytest.raises(Failed, match="restore failed: error adding stream: subjects overlap"):
        await restored(broker.client, made([msg(1)]))
    nothing_is_left(broker)


BAD = {
    "no archive": b"anything but an archive",
    "cut off": archive(small(), [msg(1), msg(2)])[:-10],
    "no end": archive(small(), [msg(1), msg(2)], end=False),
    "flipped": bytes(byte ^ (at == 150) for at, byte in enumerate(archive(small(), [msg(1), msg(2)]))),
    "subject with a space": archive(small(), [msg(1), msg(2, b"s. 1")]),
    "wildcard": archive(small(), [msg(1, b"s.>")]),
    "no subject": archive(small(), [msg(1), msg(2, b"")]),
    "headers": archive(small(), [msg(1), msg(2, body=b"no headers", hlen=5)]),
    "time": archive(small(), [msg(1), msg(2, time_ns=-5)]),
    "time to come": archive(small(), [msg(1), msg(2, time_ns=(1 << 63) - 5)]),
    "too large": archive(small(), [msg(1)], end=False) + FrameWriter().write(b"\x03\x02\x02\x00\x80\x80\x80\x11s.1"),
    "sequence": archive(small(), [msg(1), msg(1 << 63)]),
    "bad consumer": with_consumer("C", {"durable_name": "C", "ack_policy": "some"}),
    "misnamed consumer": with_consumer("../C", {"durable_name": "C"}),
    "dotted consumer": with_consumer("C.D", {"name": "C.D"}),
    "consumer state": with_consumer("C", {"durable_name": "C"}, (1, 1), (2, 2)),
    "pending": with_consumer("C", {"durable_name": "C", "ack_policy": "explicit"}, (1, 1), (0, 0), {3: (1, 1)}),
    "twice": with_consumer("C", {"durable_name": "C"}, count=2),
    "empty": b"",
}


@pytest.mark.shows("api.restore")
@pytest.mark.parametrize("storage", ["file", "memory"])
async def test_a_bad_archive_leaves_nothing(broker: Inside, storage: str) -> None:
    for what, data in BAD.items():
        with pytest.raises(Failed) as failed:
            await restored(broker.client, Backup({"name": "S", "subjects": ["s.>"], "storage": storage}, {}, data))
        assert failed.value.error["err_code"] == 10062, what
        assert failed.value.error["description"].startswith("restore failed: "), what
        nothing_is_left(broker)
    await broker.log.drain()
    assert not broker.state.streams
    assert (await restored(broker.client, made([msg(1)])))["state"]["messages"] == 1


async def test_a_full_storage_refuses_the_rest() -> None:
    async with Inside(limits=AccountLimits(max_storage=2000)) as broker:
        with pytest.raises(Failed) as failed:
            await restored(broker.client, made([msg(seq, body=bytes(100)) for seq in range(1, 100)]))
        assert failed.value.error["err_code"] == 10047
        nothing_is_left(broker)


async def test_chunks_need_a_reply_subject(broker: Inside) -> None:
    events = await broker.client.subscribe("$JS.EVENT.ADVISORY.STREAM.RESTORE_COMPLETE.S")
    backup = made([msg(1)])
    to = await begin_restore(broker.client, backup)
    await broker.client.publish(to, backup.archive)
    await events.next_msg()
    nothing_is_left(broker)


# --- what is abandoned ------------------------------------------------------------------------------------------------

async def test_a_client_that_leaves_leaves_nothing(broker: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    backup = made([msg(seq) for seq in range(1, 1000)])
    for seconds in (0.1, 1.0, 10.0):  # on a busy machine it takes a while until the client sends something
        monkeypatch.setattr(restore, "IDLE_SECONDS", seconds)
        to = await begin_restore(broker.client, backup)
        tasks = [task for task in asyncio.all_tasks() if task.get_name() == "restore of S"]
        with suppress(NoRespondersError, TimeoutError):
            await broker.client.request(to, backup.archive[:-40], timeout=5 + seconds)
            break
        await asyncio.gather(*tasks, return_exceptions=True)
    else:
        pytest.fail("it gives each client up")
    await asyncio.wait_for(asyncio.gather(*tasks), 30)
    nothing_is_left(broker)
    await broker.log.drain()
    assert not broker.state.streams


@pytest.mark.parametrize("ended", [False, True])
async def test_a_restart_drops_what_is_not_complete(broker: Inside, ended: bool) -> None:
    backup = made([msg(seq) for seq in range(1, 1000)])
    to = await begin_restore(broker.client, backup)
    await broker.client.request(to, backup.archive if ended else backup.archive[:-40])
    await broker.log.drain()
    [state] = broker.state.streams.values()
    assert state.restoring
    await broker.restart()
    nothing_is_left(broker)
    await broker.log.drain()
    assert not broker.state.streams
    assert (await restored(broker.client, backup))["state"]["messages"] == 999
    [state] = broker.state.streams.values()
    assert not state.restoring


async def test_a_client_that_does_not_wait_is_held_back(broker: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "_HELD_BYTES", 64 << 10)
    msgs = [msg(seq, body=b"%d" % seq * 500) for seq in range(1, 2000)]
    backup = made(msgs)
    to = await begin_restore(broker.client, backup)
    inbox = broker.client.new_inbox()
    answers = await broker.client.subscribe(inbox)
    pieces = [backup.archive[at:at + 2048] for at in range(0, len(backup.archive), 2048)]
    for piece in (*pieces, b""):
        await broker.client.publish(to, piece, reply=inbox)
    for _ in pieces:
        assert not (await answers.next_msg()).data
    assert json.loads((await answers.next_msg()).data)["state"]["messages"] == 1999


async def test_a_client_that_sends_nothing_over_and_over_is_held_back() -> None:
    """Shows that empty chunks count, because they take memory, too."""
    class Source:
        held = 0

        def hold(self) -> None:
            self.held += 1

    account, config = SimpleNamespace(name="A"), SimpleNamespace(name="S")
    begun, source = restore.Restore(account, config, Provenance()), Source()  # type: ignore[arg-type]
    begun.on_chunks([(b"to", b"reply", 0, b"")] * 50_000, 0, 50_000, source, 0)  # type: ignore[arg-type]
    assert source.held == 1


async def test_chunks_after_the_end_hold_nobody_back(broker: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "_HELD_BYTES", 0)
    to = await begin_restore(broker.client, made([]))
    inbox = broker.client.new_inbox()
    answers = await broker.client.subscribe(inbox)
    for _ in range(100):
        await broker.client.publish(to, b"no archive", reply=inbox)
    assert json.loads((await answers.next_msg()).data)["error"]["err_code"] == 10062
    assert (await broker.ok("STREAM.NAMES"))["streams"] is None


async def test_streams_that_are_being_restored_count() -> None:
    async with Inside(limits=AccountLimits(max_streams=2, max_storage=3000)) as broker:
        backup = made([msg(1)], max_bytes=1000)
        to = await begin_restore(broker.client, backup)
        await broker.client.request(to, backup.archive)
        assert await broker.error("STREAM.CREATE.A", {"name": "A", "subjects": ["a"], "max_bytes": 2001}) == 10047
        await broker.ok("STREAM.CREATE.A", {"name": "A", "subjects": ["a"], "max_bytes": 2000})
        assert await broker.error("STREAM.CREATE.B", {"name": "B", "subjects": ["b"]}) == 10027
        await broker.client.request(to, b"")
        assert (await broker.ok("INFO"))["streams"] == 2


async def test_only_so_many_at_once(broker: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "AT_ONCE", 2)
    await begin_restore(broker.client, made([]))
    await begin_restore(broker.client, made([], name="T"))
    assert await broker.error("STREAM.RESTORE.U", {"config": {"name": "U", "subjects": ["u"]}}) == 10062
    await broker.ok("STREAM.CREATE.V", {"name": "V", "subjects": ["v"]})
    assert await broker.error("STREAM.SNAPSHOT.V", {"deliver_subject": "x"}) == 10064
