"""Staged messages join a stream by a request in the inbox, seen through a client's socket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
import zstandard

from broker.access.accounts import AccountLimits
from broker.base.clock import SystemClock
from broker.config.settings import JetStreamSettings, ServerLimits
from broker.jetstream.inbox import inbox as inbox_module
from broker.jetstream.inbox import staged_runs
from broker.jetstream.inbox.inbox import Inbox, InboxSettings
from broker.jetstream.stream import appending
from broker.jetstream.stream.publish.dedupe import Dedupe
from broker.jetstream.stream.staged_ids import StagedIds
from broker.jetstream.stream.state.block import LiveBlock
from broker.jetstream.stream.stream import Stream
from broker.jetstream.wire.errors import ApiError
from broker.protocol import headers as header_block
from broker.storage.format.block import BlockPlace, BlockRef
from broker.storage.format.document import encode_document
from broker.storage.format.header import ObjectKind, Position
from broker.storage.format.index import Head, decode_index
from broker.storage.format.message_size import message_size
from broker.storage.format.record import Record
from broker.storage.format.records.append import Append
from broker.storage.format.request import Request
from broker.storage.log.putter import Segment
from broker.storage.objectstore.base import Buffers, StoreRefused
from broker.storage.paths import ShardPaths
from broker.storage.put import Fenced
from broker.storage.staging.answers import REFUSED, answer_in
from broker.storage.staging.check import Ids, Staged, StagedBlock, read_staged
from broker.storage.staging.writer import RunWriter, request_id_of
from broker.storage.state.applied import ShardState
from broker.storage.state.stream import StreamState
from tests.jetstream.in_process import Inside
from tests.jetstream.inbox.staging import eventually, request, stage, text_id


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[Inside]:
    async with Inside() as inside:
        yield inside


async def adopt(broker: Inside, stream: str, rows: list[tuple[bytes, ...]], *name: str,
                **how: object) -> dict[str, object]:
    writer = await stage(broker.store, broker.state, stream, rows, **how)  # type: ignore[arg-type]
    asked = await request(broker.store, writer, *(name or ("job",)))
    return await broker.api(f"JETBLOCK.ADOPT.{stream}", {"request": asked})


async def contents(broker: Inside, stream: str) -> list[tuple[int, str, bytes]]:
    """Return every message, read by a consumer."""
    js = broker.client.jetstream()
    info = await js.stream_info(stream)
    if not info.state.messages:
        return []
    subscription = await js.subscribe(">", stream=stream, ordered_consumer=True)
    found = [await subscription.next_msg(timeout=30) for _ in range(info.state.messages)]
    await subscription.unsubscribe()
    return [(msg.metadata.sequence.stream, msg.subject, msg.data) for msg in found]


async def settled(broker: Inside, stream: str, messages: int) -> None:
    """Wait until the stream has ``messages`` messages."""
    async def holds() -> bool:
        return bool((await broker.ok(f"STREAM.INFO.{stream}"))["state"]["messages"] == messages)

    await eventually(holds)


async def test_staged_messages_are_the_streams_as_if_published(broker: Inside) -> None:
    """Shows sequences after the last one, in order over several runs and blocks; publishing continues after them.

    Gets, the last of a subject, a waiting consumer, its pending count and counts by subject agree; also after a
    restart.
    """
    await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    await broker.publish("s.a", b"0")
    js = broker.client.jetstream()
    waiting = await js.subscribe("s.>", stream="S", ordered_consumer=True)
    assert (await waiting.next_msg(timeout=30)).data == b"0"
    rows = [(b"s.%d" % (i % 7), b"staged %d" % i) for i in range(1000)]
    answer = await adopt(broker, "S", rows, block_messages=90, run_bytes=2000)
    assert (answer["first_seq"], answer["last_seq"], answer["messages"],
            answer["duplicates"]) == (2, 1001, 1000, 0), answer
    assert answer["type"] == "io.nats.jetstream.api.v1.jetblock_adopt_response"
    assert await broker.publish("s.z", b"after") == 1002
    got = [(await waiting.next_msg(timeout=30)).data for _ in range(1001)]
    assert got == [payload for _, payload in rows] + [b"after"]
    assert (await js.get_msg("S", 500)).data == b"staged 498"
    assert (await js.get_last_msg("S", "s.3")).seq == max(i for i in range(1000) if i % 7 == 3) + 2
    expected = [(1, "s.a", b"0"), *((i + 2, subject.decode(), payload) for i, (subject, payload) in enumerate(rows)),
                (1002, "s.z", b"after")]
    for _ in range(2):
        info = await broker.ok("STREAM.INFO.S", {"subjects_filter": ">"})
        assert info["state"]["messages"] == 1002
        assert info["state"]["subjects"]["s.3"] == 143
        assert await contents(broker, "S") == expected
        made = await broker.ok("CONSUMER.CREATE.S", {"stream_name": "S", "config": {"filter_subject": "s.3"}})
        assert made["num_pending"] == 143
        await broker.restart()
    assert not [key for key in broker.store.objects if "/inbox/" in key]


async def test_pending_counts_do_not_count_twice(broker: Inside) -> None:
    """Shows that a consumer that existed before, with and without a filter, has each message pending once."""
    await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    await broker.publish("s.a")
    for name, subject in (("all", ""), ("some", "s.1")):
        await broker.ok(f"CONSUMER.DURABLE.CREATE.S.{name}",
                        {"stream_name": "S", "config": {"durable_name": name, "ack_policy": "explicit",
                                                        "filter_subject": subject}})
    await adopt(broker, "S", [(b"s.%d" % (i % 4), b"") for i in range(400)], block_messages=37)
    assert (await broker.ok("CONSUMER.INFO.S.all"))["num_pending"] == 401
    assert (await broker.ok("CONSUMER.INFO.S.some"))["num_pending"] == 100


async def test_a_request_is_granted_once(broker: Inside) -> None:
    """Shows that repeating the request gives the same answer, except for the time at which it was given, and adds
    nothing.

    It is repeated at once, after it was carried out, with the same runs or with others, and after a restart.
    """
    await broker.ok("STREAM.CREATE.S", {"name": "S"})
    writer = await stage(broker.store, broker.state, "S", [(b"S", b"1"), (b"S", b"2")])
    asked = await request(broker.store, writer, "job")
    answers = await asyncio.gather(*[broker.ok("JETBLOCK.ADOPT.S", {"request": asked}) for _ in range(5)])
    answers.append(await adopt(broker, "S", [(b"S", b"other")], "job"))
    await broker.restart()
    answers.append(await adopt(broker, "S", [(b"S", b"other")], "job"))
    for answer in answers:
        del answer["ts"]
    assert all(answer == answers[0] for answer in answers)
    assert (await broker.ok("STREAM.INFO.S"))["state"]["messages"] == 2
    assert (await adopt(broker, "S", [(b"S", b"3")], "job", "2"))["first_seq"] == 3


async def test_ids_that_were_seen_are_dropped_and_new_ones_remembered(broker: Inside) -> None:
    """Shows duplicates of published messages and within the request, counted in the answer; no message is stored for
    them.

    A publish with a staged id is a duplicate of it, before and after a restart.
    """
    await broker.ok("STREAM.CREATE.S", {"name": "S"})
    js = broker.client.jetstream()
    await js.publish("S", b"p", headers={"Nats-Msg-Id": "1"})
    rows = [(b"S", b"a", b"1"), (b"S", b"b", b"2"), (b"S", b"c", b"2"), (b"S", b"d", b"3"), (b"S", b"e")]
    answer = await adopt(broker, "S", rows)
    assert (answer["messages"], answer["duplicates"], answer["first_seq"], answer["last_seq"]) == (3, 2, 2, 6)
    assert [row[::2] for row in await contents(broker, "S")] == [(1, b"p"), (3, b"b"), (5, b"d"), (6, b"e")]
    for _ in range(2):
        for msg_id, seq in (("1", 1), ("2", 3), ("3", 5)):
            ack = await js.publish("S", b"x", headers={"Nats-Msg-Id": msg_id})
            assert (ack.duplicate, ack.seq) == (True, seq)
        info = await broker.ok("STREAM.INFO.S")
        assert (info["state"]["messages"], info["state"]["num_deleted"]) == (4, 2)
        await broker.restart()
    answer = await adopt(broker, "S", [(b"S", b"a", b"1"), (b"S", b"d", b"3")], "all of them")
    assert (answer["messages"], answer["duplicates"]) == (0, 2)
    assert (await broker.ok("STREAM.INFO.S"))["state"]["last_seq"] == 6


async def test_scattered_duplicates(broker: Inside) -> None:
    """Shows every second message of some blocks dropped, all of one block, and none of another.

    Contents, counts and the window are right, before and after a restart. The request has several records, each with at
    most a row for each block.
    """
    await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s.*"]})
    seen = [(b"s.0", b"first %d" % i, b"%d" % i) for i in range(0, 200,
                                                                2)] + [(b"s.0", b"",
                                                                        b"%d" % i) for i in range(201, 300, 2)]
    await adopt(broker, "S", seen, "1")
    rows = [(b"s.%d" % (i % 3), b"%d" % i, b"%d" % i) for i in range(400)]
    records: list[Append] = []
    apply = ShardState._append

    def noted(state: ShardState, stream: StreamState, record: Record) -> None:
        records.append(Append.decode(record.body))
        apply(state, stream, record)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShardState, "_append", noted)
        patch.setattr(appending, "_BLOCKS_AT_ONCE", 3)
        answer = await adopt(broker, "S", rows, "2", block_messages=50)
    assert (answer["messages"], answer["duplicates"]) == (250, 150)
    assert [(len(record.blocks), len(record.dead)) for record in records] == [(3, 3), (3, 3), (2, 0), (0, 0)]
    kept = [(151 + i, f"s.{i % 3}", b"%d" % i) for i in range(400) if (i % 2 if i < 200 else i >= 300 or not i % 2)]
    expected = [(1 + n, subject.decode(), payload) for n, (subject, payload, _) in enumerate(seen)] + kept
    headers = [b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n" % msg_id for *_, msg_id in seen] + [
        b"NATS/1.0\r\nNats-Msg-Id: %d\r\n\r\n" % (seq - 151) for seq, *_ in kept]
    sizes = [message_size(b"s.0", len(some), some + payload)
             for some, (_, _, payload) in zip(headers, expected, strict=True)]
    js = broker.client.jetstream()
    for _ in range(2):
        info = await broker.ok("STREAM.INFO.S")
        assert (info["state"]["messages"], info["state"]["num_deleted"]) == (400, 150)
        assert info["state"]["bytes"] == sum(sizes)
        assert await contents(broker, "S") == expected
        for msg_id, seq in (("0", 1), ("201", 101), ("1", 152), ("399", 550)):
            ack = await js.publish("s.1", b"", headers={"Nats-Msg-Id": msg_id})
            assert (ack.duplicate, ack.seq) == (True, seq)
        await broker.restart()


async def test_copies_filters_and_limits_over_scattered_duplicates(broker: Inside) -> None:
    """Shows a mirror, a source with a filter and consumers of a stream of which every second staged message was
    dropped.

    A limit for each subject is set afterwards. All get the live messages and no others, and count them right.
    """
    await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s.*"]})
    await broker.ok("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "S"}})
    await broker.ok("STREAM.CREATE.F", {"name": "F", "sources": [{"name": "S", "filter_subject": "s.1"}]})
    for name, subject in (("all", "s.*"), ("some", "s.1")):
        await broker.ok(f"CONSUMER.DURABLE.CREATE.S.{name}", {"stream_name": "S", "config": {
            "durable_name": name, "ack_policy": "explicit", "filter_subject": subject}})
    await adopt(broker, "S", [(b"s.9", b"", b"%d" % i) for i in range(0, 300, 2)], "1")
    await adopt(broker, "S", [(b"s.%d" % (i % 3), b"%d" % i, b"%d" % i) for i in range(300)], "2", block_messages=40)
    kept = [(151 + i, f"s.{i % 3}", b"%d" % i) for i in range(1, 300, 2)]
    some = [row for row in kept if row[1] == "s.1"]
    assert (await contents(broker, "S"))[150:] == kept
    for name, pending in (("all", 300), ("some", len(some))):
        assert (await broker.ok(f"CONSUMER.INFO.S.{name}"))["num_pending"] == pending
    batch = await (await broker.client.jetstream().pull_subscribe_bind("some", "S")).fetch(len(some), timeout=30)
    assert [(msg.metadata.sequence.stream, msg.subject, msg.data) for msg in batch] == some
    await settled(broker, "M", 300)
    assert (await contents(broker, "M"))[150:] == kept
    await settled(broker, "F", len(some))
    assert [payload for _, _, payload in await contents(broker, "F")] == [payload for _, _, payload in some]
    config = (await broker.ok("STREAM.INFO.S"))["config"]
    await broker.ok("STREAM.UPDATE.S", {**config, "max_msgs_per_subject": 2})
    await settled(broker, "S", 8)
    for _ in range(2):
        assert [payload for _, _, payload in await contents(broker,
                                                            "S")] == [b"", b"",
                                                                      *[b"%d" % i for i in range(289, 300, 2)]]
        await broker.restart()


async def test_the_last_sequence(broker: Inside) -> None:
    """Shows that staged messages may have a stream's last sequence, but none beyond it, and that all or none join."""
    await broker.ok("STREAM.CREATE.S", {"name": "S", "first_seq": (1 << 63) - 5})
    refused = await adopt(broker, "S", [(b"S", b"")] * 6, "1")
    assert "used its last sequence" in refused["error"]["description"]  # type: ignore[index]
    assert (await adopt(broker, "S", [(b"S", b"%d" % i) for i in range(5)], "2"))["last_seq"] == (1 << 63) - 1
    for _ in range(2):
        assert [seq for seq, *_ in await contents(broker, "S")] == list(range((1 << 63) - 5, 1 << 63))
        answer = await adopt(broker, "S", [(b"S", b"")], "3")
        assert "last sequence" in answer["error"]["description"]  # type: ignore[index]
        assert (await broker.refusal("S"))["err_code"] == 10077
        await broker.restart()


async def test_an_id_that_is_published_meanwhile_is_stored_once() -> None:
    """Shows that ids are compared with messages between the comparison and the record,
    with few and with many of them."""
    async def unread() -> Head:
        raise AssertionError("the index is not read again")

    clock = SystemClock()
    ids = [b"%d" % i for i in range(2000)]
    for published in ([b"7"], [b"x", b"1999", b"7", b"0"], [b"%d" % i for i in range(1500, 3500)]):
        ref = BlockRef(BlockPlace.STAGED, Position(0, 1), 1, 7, 0, 200, 200, 50, 250, 100, 1, 2000, 2000, 60_000, 0, 0,
                       None)
        block = StagedBlock(ref, Ids(range(2000), ids, [0] * 2000, [30] * 2000, [0] * 2000, [b"s"]), unread)
        window = Dedupe(10**12)
        window.add({b"5": 1}, b"5", clock.now_ns())
        found = StagedIds(Staged([block], ids_bytes=1), window, clock)
        await found.compare()
        assert found.msgs == 1
        await found.catch_up()
        assert found.msgs == 1
        for seq, msg_id in enumerate(published, 2):
            window.add({msg_id: seq}, msg_id, clock.now_ns())
        await found.catch_up()
        both = sorted({5, *(int(msg_id) for msg_id in published if msg_id in set(ids))})
        assert sorted(found.dropped[0].places) == both
        assert found.size_bytes == 30 * len(both)
        assert [seq - 1 for low, high in found.dropped[0].dead.seqs() for seq in range(low, high + 1)] == both


async def test_a_request_while_the_ids_of_another_are_remembered(broker: Inside) -> None:
    """Shows that ids which have joined, and are not all in the window yet,
    are already duplicates for the next request."""
    await broker.ok("STREAM.CREATE.S", {"name": "S"})
    stream = broker.js.stream("$G", "S")
    both = []
    for ids in (range(9000), range(8999, -1, -1)):  # the second begins with ids that the first has not reached
        writer = await stage(broker.store, broker.state, "S", [(b"S", b"", b"%d" % i) for i in ids])
        both.append(await read_staged(broker.store, Request(1, "$G", "S", stream.stream_id, writer.entries),
                                      ids_bytes_max=1 << 30, rules=stream.appending.subject_rules()))
    first = stream.appending.append(1, both[0])
    while not stream.live.last_seq:  # noqa: ASYNC110 (each turn counts)
        await asyncio.sleep(0)
    assert len(stream.dedupe) < 9000
    second = stream.appending.append(2, both[1])
    assert ((await first).messages, (await second).duplicates) == (9000, 9000)


@pytest.mark.parametrize("limited", ["account", "server"])
async def test_requests_granted_at_once_pass_no_limit_together(limited: str) -> None:
    """Shows two requests for two streams, each of which fits alone: the second is refused while the first is being
    stored.

    The reserved bytes are free again when the stream is deleted.
    """
    limits = AccountLimits(max_storage=3000) if limited == "account" else AccountLimits()
    settings = JetStreamSettings(server=ServerLimits(max_storage=3000 if limited == "server" else -1))
    rows = 3 if limited == "server" else 2
    async with Inside(settings, limits=limits) as broker:
        assert broker.js.shards[0].inbox is not None
        for name in ("A", "B"):
            await broker.ok(f"STREAM.CREATE.{name}", {"name": name})
            writer = await stage(broker.store, broker.state, name, [(name.encode(), b"x" * 1000)] * rows)
            await request(broker.store, writer, name)
        a, b = (broker.js.stream("$G", name) for name in "AB")
        both = await asyncio.gather(broker.js.shards[0].inbox.carry_out(request_id_of("A"), a),
                                    broker.js.shards[0].inbox.carry_out(request_id_of("B"), b), return_exceptions=True)
        assert sorted(isinstance(one, ApiError) for one in both) == [False, True], both
        assert sorted((a.msgs, b.msgs)) == [0, rows]
        used = a.live.usage
        assert used.size_bytes == a.live.size_bytes + b.live.size_bytes
        for name in ("A", "B"):
            await broker.ok(f"STREAM.DELETE.{name}")
        assert used.size_bytes == 0


@pytest.mark.parametrize(("config", "rows", "why"), [
    ({"subjects": ["a.*"]}, [(b"a.b", b""), (b"b", b"")], "subject 'b' is not one of the stream's"),
    ({"max_msg_size": 5}, [(b"S", b"12345"), (b"S", b"123456")], "message size exceeds maximum allowed"),
    ({"max_msgs": 2, "discard": "new"}, [(b"S", b"")] * 3, "maximum messages exceeded"),
    ({"max_bytes": 200, "discard": "new"}, [(b"S", b"x" * 100)] * 2, "maximum bytes exceeded"),
    ({"subjects": ["a.*"], "max_msgs_per_subject": 2, "discard": "new", "discard_new_per_subject": True},
     [(b"a.1", b"")] * 2 + [(b"a.2", b"")] * 3, "maximum messages per subject exceeded"),
    ({"republish": {"src": ">", "dest": "r.>"}}, [(b"S", b"")],
     "staged messages cannot join a stream that republishes"),
    ({"subject_transform": {"src": "S", "dest": "T"}}, [(b"S", b"")], "a stream with a subject transform"),
    ({"allow_msg_counter": True}, [(b"S", b"")], "a stream of counters"),
    ({"sealed": True}, [(b"S", b"")], "invalid operation on sealed stream"),
])
async def test_a_rule_that_refuses_a_publish_refuses_all(broker: Inside, config: dict[str, object],
                                                               rows: list[tuple[bytes, ...]], why: str,
                                                               caplog: pytest.LogCaptureFixture) -> None:
    """Shows the error, that nothing joined, that the answer is in the store for programs without a client, and no
    request.

    The same request may be put again. The log has no error of the broker.
    """
    sealed = config.pop("sealed", False)
    made = await broker.ok("STREAM.CREATE.S", {"name": "S", **config})
    if sealed:
        await broker.ok("STREAM.UPDATE.S", {**made["config"], "sealed": True})
    for _ in range(2):
        error = (await adopt(broker, "S", rows))["error"]
        assert isinstance(error, dict)
        assert why in str(error["description"])
        assert (await broker.ok("STREAM.INFO.S"))["state"]["last_seq"] == 0
        state = broker.state.stream("$G", "S")
        assert state is not None
        answer = answer_in(state.extra, request_id_of("job"))
        assert answer is not None
        assert (answer.state, answer.why) == (REFUSED, error["description"])
        assert not [key for key in broker.store.objects if "/inbox/" in key]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_limits_hold_after_they_joined(broker: Inside) -> None:
    """Shows max_msgs, max_bytes, max_msgs_per_subject and max_age over published and staged messages together."""
    await broker.ok("STREAM.CREATE.M", {"name": "M", "subjects": ["m"], "max_msgs": 10})
    await broker.ok("STREAM.CREATE.P", {"name": "P", "subjects": ["p.*"], "max_msgs_per_subject": 2})
    await broker.ok("STREAM.CREATE.A", {"name": "A", "subjects": ["a"], "max_age": 3600 * 10**9})
    for subject in ("m", "p.1", "p.2"):
        await broker.publish(subject, b"first")
    await adopt(broker, "M", [(b"m", b"%d" % i) for i in range(25)], block_messages=4)
    assert [payload for _, _, payload in await contents(broker, "M")] == [b"%d" % i for i in range(15, 25)]
    await adopt(broker, "P", [(b"p.%d" % (i % 3), b"%d" % i) for i in range(30)], block_messages=7)
    await broker.publish("p.1", b"last")
    await settled(broker, "P", 6)
    assert sorted((subject, payload) for _, subject, payload in await contents(broker, "P")) == [
        ("p.0", b"24"), ("p.0", b"27"), ("p.1", b"28"), ("p.1", b"last"), ("p.2", b"26"), ("p.2", b"29")]
    # Messages beyond a subject's limit make room for other subjects' messages.
    await broker.ok("STREAM.CREATE.K", {"name": "K", "subjects": ["k.*"], "max_msgs_per_subject": 1, "max_msgs": 5})
    for subject in ("k.1", "k.2"):
        await broker.publish(subject, b"first")
    await adopt(broker, "K", [(b"k.2", b"%d" % i) for i in range(30)], block_messages=7)
    assert [(subject, payload) for _, subject,
            payload in await contents(broker, "K")] == [("k.1", b"first"), ("k.2", b"29")]
    old = broker.clock.now_ns() - 2 * 3600 * 10**9
    answer = await adopt(broker, "A", [(b"a", b"old"), (b"a", b"new")], times=[old, broker.clock.now_ns()])
    assert answer["messages"] == 2
    await settled(broker, "A", 1)
    assert [payload for _, _, payload in await contents(broker, "A")] == [b"new"]


async def test_interest_and_work_queues_treat_them_as_published(broker: Inside) -> None:
    """Shows that an interest stream keeps only messages that its consumers get,
    and that acks remove staged messages."""
    for name, retention in (("I", "interest"), ("W", "workqueue")):
        await broker.ok(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.*"], "retention": retention})
        await broker.ok(f"CONSUMER.DURABLE.CREATE.{name}.d", {"stream_name": name, "config": {
            "durable_name": "d", "ack_policy": "explicit", "filter_subject": f"{name}.1"}})
        await adopt(broker, name, [(b"%b.%d" % (name.encode(), i % 2), b"%d" % i) for i in range(10)])
    await settled(broker, "I", 5)
    assert (await broker.ok("STREAM.INFO.W"))["state"]["messages"] == 10
    js = broker.client.jetstream()
    for name, left in (("I", 0), ("W", 5)):
        for msg in await (await js.pull_subscribe_bind("d", name)).fetch(5):
            await msg.ack_sync()
        assert (await broker.ok(f"STREAM.INFO.{name}"))["state"]["messages"] == left


async def test_times_never_fall_nor_lie_ahead(broker: Inside) -> None:
    """Shows given times: kept in an empty stream, raised to the stream's last, lowered to now;
    messages without get now."""
    await broker.ok("STREAM.CREATE.S", {"name": "S"})
    past, now = 1_600_000_000_000_000_000, broker.clock.now_ns()
    await adopt(broker, "S", [(b"S", b"")] * 3, "1", times=[past, past + 5, past + 10])
    await adopt(broker, "S", [(b"S", b"")] * 3, "2", times=[past - 9, past + 7, past + 99])
    await adopt(broker, "S", [(b"S", b"")] * 2, "3", times=[past + 100, now + 10**15])
    await adopt(broker, "S", [(b"S", b"")], "4")
    state = broker.state.stream("$G", "S")
    assert state is not None
    times = []
    for entry in state.blocks:
        head = await broker.reader.head(LiveBlock.of_entry(entry))
        times += [head.time_of(at) for at in range(head.count)]
    assert times[:7] == [past, past + 5, past + 10, past + 10, past + 10, past + 99, past + 100]
    assert times == sorted(times)
    assert now <= times[7] <= times[8] <= broker.clock.now_ns()


async def test_sources_and_mirrors_get_them(broker: Inside) -> None:
    """Shows that messages that joined are copied as published messages are."""
    await broker.ok("STREAM.CREATE.S", {"name": "S"})
    await broker.ok("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "S"}})
    await broker.ok("STREAM.CREATE.T", {"name": "T", "sources": [{"name": "S"}]})
    await broker.publish("S", b"0")
    await adopt(broker, "S", [(b"S", b"%d" % i) for i in range(1, 50)], block_messages=9)
    for name in ("M", "T"):
        await settled(broker, name, 50)
        assert [payload for _, _, payload in await contents(broker, name)] == [b"%d" % i for i in range(50)]
    error = (await adopt(broker, "M", [(b"S", b"x")], "to the mirror"))["error"]
    assert "no subjects of its own" in str(error)


async def test_invalid_requests_are_refused_with_the_reason(broker: Inside) -> None:
    """Shows the reasons for refusals.

    A request may not exist, or be for another stream or another incarnation; its runs may be missing, damaged,
    truncated, different from the request, named twice, or joined already; a body may name no request.
    """
    await broker.ok("STREAM.CREATE.S", {"name": "S"})
    await broker.ok("STREAM.CREATE.T", {"name": "T"})

    async def why(stream: str = "S", asked: str = text_id("job")) -> str:
        answer = await broker.api(f"JETBLOCK.ADOPT.{stream}", {"request": asked})
        return str(answer["error"]["description"])

    assert "no request" in await why()
    assert await broker.error("JETBLOCK.ADOPT.S", {"request": "7"}) == 10003
    assert await broker.error("JETBLOCK.ADOPT.S") == 10003
    assert await broker.error("JETBLOCK.ADOPT.X", {"request": text_id("job")}) == 10059
    writer = await stage(broker.store, broker.state, "S", [(b"S", b"x" * 100)] * 50)
    await request(broker.store, writer, "job")
    assert "is for another stream: 'S'" in await why("T")
    [key] = [key for key in broker.store.objects if key.endswith(f"{writer.entries[0].run_id:016x}")]
    sound = broker.store.objects[key]
    for at in (0, 70, 120, 400, len(sound) // 2, len(sound) - 3):
        broker.store.objects[key] = sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1:]
        assert key in await why(), at
        await request(broker.store, writer, "job")
    for data in (sound[:-1], sound + b"x", b"", sound[:500]):
        broker.store.objects[key] = data
        assert key in await why()
        await request(broker.store, writer, "job")
    await broker.store.delete(key)
    assert f"{key} is not there" in await why()
    broker.store.objects[key] = sound
    for change in ({"messages": 49}, {"blocks": 2}, {"size": len(sound) - 1}):
        writer.entries[0] = (entry := writer.entries[0])._replace(**change)
        await request(broker.store, writer, "job")
        assert "does not match the request" in await why()
        writer.entries[0] = entry
    writer.entries *= 2
    await request(broker.store, writer, "job")
    assert "names a run twice" in await why()
    del writer.entries[1]
    await request(broker.store, writer, "job")
    await broker.ok("JETBLOCK.ADOPT.S", {"request": text_id("job")})
    await request(broker.store, writer, "job", "again")
    assert "joined the stream already" in await why(asked=text_id("job", "again"))
    late = await stage(broker.store, broker.state, "S", [(b"S", b"")])
    await broker.ok("STREAM.DELETE.S")
    await broker.ok("STREAM.CREATE.S", {"name": "S"})
    await request(broker.store, late, "late")
    assert await why(asked=text_id("late")) == "stream not found"
    assert (await broker.ok("STREAM.INFO.S"))["state"]["last_seq"] == 0
    assert not [key for key in broker.store.objects if "/inbox/" in key]


async def test_an_owner_that_may_be_deposed_does_not_deny_a_request(
        broker: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that this answer waits until a put is stored: another owner may have granted and deleted the request."""
    await broker.ok("STREAM.CREATE.S", {"name": "S"})
    opened, held, put = asyncio.Event(), asyncio.Event(), broker.store.put

    async def waits(key: str, data: Buffers) -> None:
        held.set()
        await opened.wait()
        await put(key, data)

    monkeypatch.setattr(broker.store, "put", waits)
    asked = asyncio.ensure_future(broker.api("JETBLOCK.ADOPT.S", {"request": text_id("job")}, seconds=30))
    await asyncio.wait_for(held.wait(), 30)
    assert not asked.done()
    opened.set()
    error = (await asked)["error"]
    assert error["err_code"] == 10051
    assert "there is no request" in error["description"]


async def test_a_refused_request_is_not_granted_later(broker: Inside) -> None:
    """Shows a request whose owner ended between the refusal and the request's deletion: it stays refused.

    It would be granted by now. Callers that come after it is deleted get the refusal, too; another attempt with the
    same id is granted.
    """
    made = await broker.ok("STREAM.CREATE.S", {"name": "S", "max_msg_size": 3})
    writer = await stage(broker.store, broker.state, "S", [(b"S", b"large")])
    first = writer.request(request_id_of("job"), 0)
    await broker.store.put(first.key, first.data)
    why = (await broker.api("JETBLOCK.ADOPT.S", {"request": text_id("job")}))["error"]
    assert why["err_code"] == 10054
    await broker.ok("STREAM.UPDATE.S", {**made["config"], "max_msg_size": -1})
    await broker.store.put(first.key, first.data)
    for _ in range(3):
        await broker.restart()
        assert (await broker.api("JETBLOCK.ADOPT.S", {"request": text_id("job")}))["error"] == why
        assert first.key not in broker.store.objects
    second = writer.request(request_id_of("job"), 0)
    await broker.store.put(second.key, second.data)
    assert (await broker.ok("JETBLOCK.ADOPT.S", {"request": text_id("job")}))["messages"] == 1


@pytest.mark.parametrize("subject", [b"s.a b", b"s.a\r\nPING", b"s.*", b"s.>", b"s..a", b"s.", b"s.\0", b"s.\v",
                                     b"s.\xff", b"s." + b"x" * 70_000])
async def test_a_subject_that_no_message_can_have(broker: Inside, monkeypatch: pytest.MonkeyPatch,
                                                  subject: bytes) -> None:
    """Another program's writer may put such a subject: delivered, it would end the protocol's line."""
    await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    monkeypatch.setattr("broker.storage.staging.writer.is_stageable", lambda _: True)
    answer = await adopt(broker, "S", [(b"s.a", b"1"), (subject, b"2")])
    assert "which no message can have" in answer["error"]["description"]  # type: ignore[index]
    assert await contents(broker, "S") == []


async def test_headers_join_as_they_are(broker: Inside) -> None:
    """Shows headers and ids of messages over several frames and blocks, some without any, as a consumer gets them."""
    await broker.ok("STREAM.CREATE.S", {"name": "S"})
    writer = RunWriter("$G", "S", broker.js.stream("$G", "S").stream_id, now_ns=broker.clock.now_ns(),
                       block_messages=700)
    expected: list[dict[str, str] | None] = []
    for n in range(1500):
        headers = {} if n % 3 == 0 else {"Trace": f"größe {n}"}
        block = header_block.build([(name.encode(), value.encode())
                                    for name, value in headers.items()]) if headers else b""
        writer.add(b"S", b"x" * 300, block, msg_id=b"%d" % n if n % 2 else None)
        expected.append(headers | ({"Nats-Msg-Id": str(n)} if n % 2 else {}) or None)
    for run in writer.finish():
        await broker.store.put(run.key, run.data)
    answer = await broker.ok("JETBLOCK.ADOPT.S", {"request": await request(broker.store, writer, "job")})
    assert (answer["messages"], answer["duplicates"]) == (1500, 0)
    subscription = await broker.client.jetstream().subscribe("S", ordered_consumer=True)
    assert [(await subscription.next_msg(timeout=30)).headers for _ in expected] == expected


@pytest.mark.parametrize(("block", "msg_id", "why"), [
    (b"no header block", b"", "no header block"), (b"NATS/1.0\r\nX: \xff\r\n\r\n", b"", "not UTF-8"),
    (b"NATS/1.0 100 Idle Heartbeat\r\n\r\n", b"", "no header block"),
    (b"NATS/1.0\r\nNats-Expected-Stream: T\r\n\r\n", b"", "Nats-Expected-Stream"),
    (b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n", b"2", "message id"),
    (b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n", b"", "message id"),
    (b"", b"1", "message id"), (b"NATS/1.0\r\nX: " + b"y" * 65_600 + b"\r\n\r\n", b"", "header size exceeds")])
async def test_headers_that_a_reader_could_not_parse(broker: Inside, monkeypatch: pytest.MonkeyPatch, block: bytes,
                                                     msg_id: bytes,
                                                     why: str) -> None:
    """Another program's writer may put any headers: the request is refused as a whole, with the message in the reason.

    The answer is in the store, and a valid request joins afterwards.
    """
    await broker.ok("STREAM.CREATE.S", {"name": "S"})
    with monkeypatch.context() as careless:
        careless.setattr("broker.storage.staging.writer._with_id", lambda headers, msg_id, acting: (block, msg_id))
        careless.setattr("broker.storage.staging.writer._HEADERS_BYTES_MAX", 1 << 20)
        writer = RunWriter("$G", "S", broker.js.stream("$G", "S").stream_id, now_ns=broker.clock.now_ns())
        for _ in range(1000):
            writer.add(b"S", b"x" * 200)
        writer.add(b"S", b"payload", b"any", msg_id=msg_id)
        for run in writer.finish():
            await broker.store.put(run.key, run.data)
    error = (await broker.api("JETBLOCK.ADOPT.S", {"request": await request(broker.store, writer, "job")}))["error"]
    assert why in error["description"]
    assert why == "header size exceeds" or "number 1001 of its block, subject 'S'" in error["description"]
    state = broker.state.stream("$G", "S")
    assert state is not None
    answer = answer_in(state.extra, request_id_of("job"))
    assert answer is not None
    assert (answer.state, answer.why) == (REFUSED, error["description"])
    assert (await broker.ok("STREAM.INFO.S"))["state"]["last_seq"] == 0
    assert (await adopt(broker, "S", [(b"S", b"")]))["first_seq"] == 1


@pytest.mark.parametrize("made", [
    lambda raw: zstandard.ZstdCompressor(write_content_size=False).compress(raw),
    lambda raw: zstandard.ZstdCompressor().compress(raw + b"more"), lambda raw: b"not what zstd writes"])
async def test_frames_that_nobody_could_read(broker: Inside, monkeypatch: pytest.MonkeyPatch,
                                             made: Callable[[bytes], bytes]) -> None:
    """Another program's writer may compress them in its way, with checksums: granted, they would stop each consumer."""
    await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    with monkeypatch.context() as patch:
        patch.setattr("broker.storage.format.section.compress_all", lambda frames: list(map(made, frames)))
        writer = await stage(broker.store, broker.state, "S", [(b"s.a", b"payload " * 200)])
    asked = await request(broker.store, writer, "job")
    answer = await broker.api("JETBLOCK.ADOPT.S", {"request": asked})
    assert "zstd content size does not match" in answer["error"]["description"]
    assert await contents(broker, "S") == []


async def test_frames_that_are_not_as_long_as_their_messages(broker: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lengths in core, directory and frames agree with each other, but not with the messages' lengths."""
    await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})

    def longer(data: bytes, ref: BlockRef, key: str) -> Head:
        head = decode_index(data, ref, key)
        assert head.body_lens is not None
        head.body_lens = [size + 1 for size in head.body_lens]
        return head

    monkeypatch.setattr("broker.storage.staging.check.decode_index", longer)
    answer = await adopt(broker, "S", [(b"s.a", b"one"), (b"s.b", b"four")])
    assert "its messages' lengths do not add up to its own" in answer["error"]["description"]  # type: ignore[index]


async def test_a_damaged_request_is_dropped(broker: Inside) -> None:
    """Shows bytes that are no request, and one whose bytes were changed."""
    await broker.ok("STREAM.CREATE.S", {"name": "S"})
    writer = await stage(broker.store, broker.state, "S", [(b"S", b"")])
    asked = writer.request(request_id_of("job"), 0)
    for data in ([b"nonsense"], [asked.data[0][:-1] + b"?"]):
        await broker.store.put(asked.key, data)
        answer = await broker.api("JETBLOCK.ADOPT.S", {"request": text_id("job")})
        assert "damaged" in str(answer["error"]["description"])
        assert asked.key not in broker.store.objects


async def test_a_request_of_a_newer_release_stays_with_its_runs(broker: Inside) -> None:
    """Shows that it is not dropped as damaged, that no run that it may name is swept, and that others are granted."""
    await broker.ok("STREAM.CREATE.S", {"name": "S"})
    state = broker.state.stream("$G", "S")
    assert state is not None
    body = {"version": 4, "account": "$G", "stream": "S", "incarnation": state.stream_id, "what": "unknown"}
    newer = ShardPaths(0).inbox(1)
    await broker.store.put(newer, [encode_document(ObjectKind.INBOX, Position(0, 0), bytes(16), body, 1)])
    await stage(broker.store, broker.state, "S", [(b"S", b"")], now_ns=1_000_000_000)
    await request(broker.store, await stage(broker.store, broker.state, "S", [(b"S", b"")]), "job")
    deleted: list[str] = []
    inbox = Inbox(broker.js, broker.log, ShardPaths(0), broker.clock, InboxSettings(poll_ns=0), deleted.extend)
    done = {one.request_id: one for one in await inbox.carry_out_all()}
    assert done[1].stays
    assert "version 4" in done[1].why
    assert done[request_id_of("job")].answer is not None
    await inbox.sweep()
    assert (newer in broker.store.objects, deleted) == (True, [])
    await broker.store.delete(newer)
    inbox.staged._swept_at_ns = None
    await inbox.sweep()
    assert len(deleted) == 1


async def test_runs_of_an_offline_stream_stay_until_it_is_deleted(broker: Inside) -> None:
    """A record that could not be applied may name them. Runs of another stream are swept."""
    for name in ("S", "T"):
        await broker.ok(f"STREAM.CREATE.{name}", {"name": name})
        await stage(broker.store, broker.state, name, [(b"S", b"")], now_ns=1_000_000_000)
    await broker.log.drain()
    state = broker.state.stream("$G", "S")
    assert state is not None
    broker.state.set_offline(state.stream_id, "a record of a newer release")
    await broker.restart()
    deleted: list[str] = []
    inbox = Inbox(broker.js, broker.log, ShardPaths(0), broker.clock, InboxSettings(poll_ns=0), deleted.extend)
    await inbox.sweep()
    assert ["/%54/" in key for key in deleted] == [True]
    await broker.ok("STREAM.DELETE.S")
    inbox.staged._swept_at_ns = None
    await inbox.sweep()
    assert ["/%53/" in key for key in deleted] == [False, True]


async def test_sweeping_is_bounded(broker: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows abandoned runs deleted some at a time, although the first ones by key are asked for.

    They are forgotten once they are deleted, but not before requests that had read them are answered.
    """
    monkeypatch.setattr(staged_runs, "_SWEPT_AT_ONCE", 3)
    for module in (inbox_module, staged_runs):
        monkeypatch.setattr(module, "_LISTED_AT_ONCE", 2)
    await broker.ok("STREAM.CREATE.S", {"name": "S"})
    writers = [await stage(broker.store, broker.state, "S", [(b"S", b"")], now_ns=n * 10**9) for n in range(1, 12)]
    keys = [key for key in sorted(broker.store.objects) if "/runs/" in key]
    for n, writer in enumerate(writers[:4]):
        await request(broker.store, writer, str(n))
    deleted: list[str] = []
    inbox = Inbox(broker.js, broker.log, ShardPaths(0), broker.clock, InboxSettings(poll_ns=0), deleted.extend)
    for _ in range(4):
        await inbox.sweep()
    assert sorted(deleted) == keys[4:]
    reached, may_go_on = asyncio.Event(), asyncio.Event()
    read = inbox._read

    async def held_up(stream: Stream, asked: Request) -> Staged:
        staged = await read(stream, asked)
        reached.set()
        await may_go_on.wait()
        return staged

    monkeypatch.setattr(inbox, "_read", held_up)
    late = await request(broker.store, writers[5], "late")
    granting = asyncio.create_task(inbox.carry_out(int(late, 16)))
    await reached.wait()
    for key in deleted:
        await broker.store.delete(key)
    for _ in range(4):
        inbox.staged._swept_at_ns = None
        await inbox.sweep()
    assert len(inbox.staged._gone) == 7
    may_go_on.set()
    with pytest.raises(ApiError, match="was deleted: stage its messages again"):
        await granting
    inbox.staged._swept_at_ns = None
    await inbox.sweep()
    assert (len(inbox.staged._gone), len(deleted)) == (0, 7)


@pytest.mark.parametrize("change", [
    {"incarnation": 0}, {"account": ""}, {"stream": ""}, {"stream": 5}, {"runs": [[1 << 48, 1, 1, 1, 1]]},
    {"runs": [[1, 1, 1, 1]]}, {"runs": [[1, 1, 1, 1, -1]]}, {"runs": {}}, {"runs": []}, {"version": "1"}])
async def test_a_request_with_impossible_values_harms_no_other(broker: Inside, change: dict[str, object]) -> None:
    """Shows extreme values and wrong types in a request with a valid checksum: it is deleted,
    and the next one is granted."""
    await broker.ok("STREAM.CREATE.S", {"name": "S"})
    state = broker.state.stream("$G", "S")
    assert state is not None
    body = {"version": 1, "account": "$G", "stream": "S", "incarnation": state.stream_id, "runs": [[1, 1, 1, 1, 1]],
            **change}
    await broker.store.put(ShardPaths(0).inbox(1),
                           [encode_document(ObjectKind.INBOX, Position(0, 0), bytes(16), body, 1)])
    await request(broker.store, await stage(broker.store, broker.state, "S", [(b"S", b"")]), "job")
    assert broker.js.shards[0].inbox is not None
    done = {one.request_id: one for one in await broker.js.shards[0].inbox.carry_out_all()}
    assert done[1].answer is None
    assert not done[1].stays
    assert done[request_id_of("job")].answer is not None
    assert not [key for key in broker.store.objects if "/inbox/" in key]


async def test_a_request_that_cannot_be_read_delays_no_other(broker: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows an object that the store does not return: its request stays, with the reason; the next one is granted."""
    await broker.ok("STREAM.CREATE.S", {"name": "S"})
    refused, get = ShardPaths(0).inbox(1), broker.store.get

    async def get_others(key: str, start: int = 0, end: int | None = None) -> bytes:
        if key == refused:
            raise StoreRefused(f"get {key}: access denied")
        return await get(key, start, end)

    await broker.store.put(refused, [b""])
    monkeypatch.setattr(broker.store, "get", get_others)
    await request(broker.store, await stage(broker.store, broker.state, "S", [(b"S", b"")]), "job")
    assert broker.js.shards[0].inbox is not None
    done = {one.request_id: one for one in await broker.js.shards[0].inbox.carry_out_all()}
    assert done[1].stays
    assert "access denied" in done[1].why
    assert done[request_id_of("job")].answer is not None


async def test_publishes_purges_and_updates_continue_meanwhile(broker: Inside) -> None:
    """Shows that every publish is acknowledged and every request granted once, with contiguous sequences.

    They come in any order, while the stream is purged and updated.
    """
    await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    js = broker.client.jetstream()
    acks: list[int] = []

    async def publish(worker: int) -> None:
        for i in range(60):
            acks.append((await js.publish(f"s.{worker}", b"%d" % i)).seq)

    async def stage_some() -> list[dict[str, object]]:
        return [await adopt(broker, "S", [(b"s.x", b"%d" % n)] * 20, "job", str(n), block_messages=6) for n in range(8)]

    async def disturb() -> None:
        for n in range(6):
            await broker.ok("STREAM.PURGE.S", {"keep": 5} if n % 2 else {"filter": "s.1"})
            await broker.ok("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "max_msgs": 10_000 + n})

    granted, *_ = await asyncio.gather(stage_some(), publish(1), publish(2), disturb())
    given = sorted([*acks,
                    *(seq for one in granted for seq in range(int(str(one["first_seq"])),
                                                              int(str(one["last_seq"])) + 1))])
    assert given == list(range(1, 60 * 2 + 20 * 8 + 1))
    info = await broker.ok("STREAM.INFO.S")
    assert info["state"]["last_seq"] == len(given)
    before = await contents(broker, "S")
    await broker.restart()
    assert await contents(broker, "S") == before
    state = broker.state.stream("$G", "S")
    assert state is not None
    assert (state.msgs, state.bytes) == (info["state"]["messages"], info["state"]["bytes"])


async def test_a_stop_while_messages_join_gives_no_sequence_twice(broker: Inside,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that a clean stop does not acknowledge publishes that wait for the record of the staged messages."""
    await broker.ok("STREAM.CREATE.S", {"name": "S"})
    writer = await stage(broker.store, broker.state, "S", [(b"S", b"1"), (b"S", b"2"), (b"S", b"3")])
    asked = await request(broker.store, writer, "job")
    stream, inbox, put, reachable = broker.js.stream("$G",
                                                     "S"), broker.js.shards[0].inbox, broker.store.put, asyncio.Event()
    assert inbox is not None

    async def held_up(key: str, data: Buffers) -> None:
        await reachable.wait()
        await put(key, data)

    monkeypatch.setattr(broker.store, "put", held_up)
    granting = asyncio.create_task(inbox.carry_out(int(asked, 16), stream))
    await eventually(lambda: asyncio.sleep(0, stream.live.joining is not None))
    published = [asyncio.create_task(broker.publish("S")) for _ in range(3)]
    await eventually(lambda: asyncio.sleep(0, stream.queue.bytes))
    await broker.js.close(notify=True)
    reachable.set()
    await broker.log.drain()
    assert isinstance(*await asyncio.gather(granting, return_exceptions=True), asyncio.CancelledError)
    for task in published:
        assert not task.done()
        task.cancel()
    await broker.log.close()
    await broker.open()
    assert await contents(broker, "S") == [(1, "S", b"1"), (2, "S", b"2"), (3, "S", b"3")]
    assert await broker.publish("S") == 4


async def test_a_broker_that_is_deposed_meanwhile_logs_no_fault(broker: Inside, monkeypatch: pytest.MonkeyPatch,
                                                                caplog: pytest.LogCaptureFixture) -> None:
    """Shows that the caller is asked to try again, at the next owner, and that the log has no error."""
    await broker.ok("STREAM.CREATE.S", {"name": "S"})
    writer = await stage(broker.store, broker.state, "S", [(b"S", b"1")])
    asked = await request(broker.store, writer, "job")
    stream, inbox = broker.js.stream("$G", "S"), broker.js.shards[0].inbox
    assert inbox is not None

    async def fenced(segment: Segment) -> int:
        raise Fenced("two has taken the shard", "two")

    monkeypatch.setattr(broker.log._putter, "put", fenced)
    with pytest.raises(ApiError) as refused:
        await inbox.carry_out(int(asked, 16), stream)
    assert refused.value.err_code == 10008
    assert isinstance(broker.log.failure, Fenced)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_stream_deleted_meanwhile_takes_the_request_with_it(broker: Inside) -> None:
    """Shows that there is an answer, whether the messages joined before or not, and that nothing of either is left."""
    for n in range(10):
        await broker.ok("STREAM.CREATE.S", {"name": "S"})
        writer = await stage(broker.store, broker.state, "S", [(b"S", b"")] * 50, block_messages=3)
        asked = await request(broker.store, writer, str(n))
        answer, _ = await asyncio.gather(broker.api("JETBLOCK.ADOPT.S", {"request": asked}),
                                         broker.ok("STREAM.DELETE.S"))
        assert answer.get("messages") == 50 or answer["error"]["err_code"] in (10059, 10008, 10194), answer
        assert broker.js.shards[0].inbox is not None
        await broker.js.shards[0].inbox.carry_out_all()
        assert not [key for key in broker.store.objects if "/inbox/" in key]


async def test_the_answers_are_bounded(broker: Inside) -> None:
    """Shows that a stream remembers the latest thousand requests, and the newest after a restart."""
    await broker.ok("STREAM.CREATE.S", {"name": "S"})
    stream = broker.js.stream("$G", "S")
    for n in range(1010):
        writer = await stage(broker.store, broker.state, "S", [(b"S", b"")])
        await request(broker.store, writer, str(n))
        assert broker.js.shards[0].inbox is not None
        await broker.js.shards[0].inbox.carry_out(request_id_of(str(n)), stream)
    state = broker.state.stream("$G", "S")
    assert state is not None
    assert sum(key.startswith("request:") for key in state.extra) == 1000
    await broker.restart()
    answers = broker.js.stream("$G", "S").appending.requests
    assert answers.granted(request_id_of("9")) is None
    assert answers.granted(request_id_of("1009")) is not None
    assert state.msgs == 1010
