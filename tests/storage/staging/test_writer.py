"""Runs that a RunWriter makes: the rows that were added are read back, at any place in the stream."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.protocol import headers as header_block
from broker.storage.format.block import BlockPlace
from broker.storage.format.document import decode_document
from broker.storage.format.errors import Corrupt
from broker.storage.format.frames import decode_frame
from broker.storage.format.header import ObjectKind, Position
from broker.storage.format.index import decode_index
from broker.storage.format.records.message_ids import MessageIds
from broker.storage.format.request import Request, Version
from broker.storage.format.segment import SegmentHead, decode_head
from broker.storage.format.staged import placed
from broker.storage.paths import parse
from broker.storage.staging.headers import MSG_ID
from broker.storage.staging.writer import RowRefused, RunWriter, ToPut, request_id_of

STREAM = 0x0123456789ABCDEF
NOW = 1_800_000_000_000_000_000

rows = st.lists(st.tuples(
    st.sampled_from((b"a", b"a.b", b"orders.eu.7", "größe.x".encode())),
    st.binary(max_size=60),
    st.sampled_from((b"", header_block.build([(b"Trace", b"7")]))),
    st.none() | st.integers(1, 1 << 62),
    st.sampled_from((None, None, b"id-1", b"id 2"))), min_size=1, max_size=60)


def written(added: list[tuple[bytes, bytes, bytes, int | None, bytes | None]], *, block_messages: int = 32_768,
            run_bytes: int = 1 << 20, block_bytes: int = 1 << 20) -> tuple[RunWriter, list[ToPut]]:
    writer = RunWriter("$G", "ORDERS", STREAM, now_ns=NOW, run_bytes=run_bytes, block_bytes=block_bytes,
                       block_messages=block_messages, randbytes=random.Random(5).randbytes)
    runs: list[ToPut] = []
    for subject, payload, headers, time_ns, msg_id in added:
        writer.add(subject, payload, headers, time_ns=time_ns, msg_id=msg_id)
        runs += writer.take()
    return writer, runs + writer.finish()


@given(rows, st.integers(1, 9), st.integers(1, 1 << 40), st.integers(0, 1 << 62), st.integers(0, 1 << 62))
@settings(max_examples=120, deadline=None)
def test_every_row_is_read_back_at_its_place_in_the_stream(
        added: list[tuple[bytes, bytes, bytes, int | None, bytes | None]], block_messages: int, base: int, low: int,
        more: int) -> None:
    """Shows subjects, headers, payloads, ids and order of all rows. Sequences ascend by one from any place; times
    ascend and stay within any bounds. The objects agree with their keys and with the entries of the request."""
    writer, runs = written(added, block_messages=block_messages, run_bytes=200)
    seq, found, times = base, [], []
    floor = low
    for run, entry in zip(runs, writer.entries, strict=True):
        data = b"".join(run.data)
        key = parse(run.key)
        assert key is not None
        assert key.position == Position(0, NOW // 1_000_000)
        assert (key.account, key.stream, key.incarnation, key.object_id) == ("$G", "ORDERS", STREAM, entry.run_id)
        head = decode_head(data, entry.position, kind=ObjectKind.RUN, object_id=entry.run_id, complete=True)
        assert isinstance(head, SegmentHead)
        assert (len(data), len(head.rows)) == (entry.size, entry.blocks)
        for i in range(len(head)):
            core = head.core(i)
            assert core.staged
            ref = head.ref(i, core, BlockPlace.STAGED)
            assert ref is not None
            ref = placed(ref, seq, floor, low + more)
            floor = ref.last_time_ns
            index = decode_index(data[ref.index_offset:ref.index_offset + ref.index_bytes], ref)
            ids = {}
            for record in core.records:
                listed = MessageIds.decode(record.body)
                ids = dict(zip(listed.ordinals, listed.ids, strict=True))
            for number, frame in enumerate(index.frames):
                at = ref.frames_offset + frame.offset
                chunk = decode_frame(index, number, data[at:at + frame.stored_bytes])
                for n, body in enumerate(chunk.bodies):
                    hlen = 0 if chunk.hlens is None else chunk.hlens[n]
                    found.append((chunk.seq(n), chunk.subjects[n], body[hlen:], body[:hlen], ids.get(chunk.start + n)))
                times += chunk.times
            seq += ref.count
    expected = []
    for n, (subject, payload, headers, _, msg_id) in enumerate(added):
        stored = header_block.set(headers, MSG_ID, msg_id) if msg_id else headers
        expected.append((base + n, subject, payload, stored, msg_id))
    assert found == expected
    assert times == sorted(times)
    latest = 0
    for at, (time_ns, row) in enumerate(zip(times, added, strict=True)):
        latest = max(latest, row[3] or 0)
        in_block = [other[3] for other in added[at:] if other[3]][:1] if not latest else []
        expected_ns = {latest, min(in_block[0], NOW)} if in_block else {latest}
        assert time_ns in {min(max(one, low), low + more) for one in expected_ns}
    assert sum(entry.messages for entry in writer.entries) == len(added)


def test_a_request_agrees_with_its_key() -> None:
    """Shows the request's round trip, and that ids are equal only for the same names."""
    writer, _ = written([(b"a", b"x", b"", None, None)] * 5)
    to_put = writer.request(request_id_of("job", "7"), 0)
    request = Request.decode(b"".join(to_put.data), request_id_of("job", "7"))
    assert (request.account, request.stream, request.stream_id, request.runs) == (
        "$G", "ORDERS", STREAM, writer.entries)
    key = parse(to_put.key)
    assert key is not None
    assert (key.kind, key.object_id) == (ObjectKind.INBOX, request.request_id)
    assert len({request_id_of("a", "bc"), request_id_of("ab", "c"), request_id_of("abc"),
                request_id_of("a", "b", "c")}) == 4


@pytest.mark.parametrize(("row", "why"), [
    ({"subject": b""}, "subject"), ({"subject": b"a..b"}, "subject"), ({"subject": b"a.*"}, "subject"),
    ({"subject": b"a b"}, "subject"), ({"subject": b"a", "headers": b"X: y"}, "header block"),
    ({"subject": b"a", "headers": header_block.build([(b"Nats-TTL", b"5s")])}, "Nats-TTL"),
    ({"subject": b"a", "headers": header_block.build([(MSG_ID, b"1")]), "msg_id": b"2"}, "Nats-Msg-Id"),
    ({"subject": b"a", "msg_id": b"1\r\nNats-TTL: 5s"}, "message id"),
    ({"subject": b"a", "msg_id": b"\xff"}, "not UTF-8"),
    ({"subject": b"a", "time_ns": -1}, "time"), ({"subject": b"a", "time_ns": 1 << 63}, "time"),
    ({"subject": b"a", "headers": header_block.build([(b"X", b"y" * 65_600)])}, "too large"),
])
def test_a_row_that_no_stream_could_store_is_refused_and_the_others_are_kept(row: dict[str, object], why: str) -> None:
    """Shows the reason, and that the rows before and after make a run without it."""
    writer = RunWriter("$G", "S", STREAM, now_ns=NOW)
    writer.add(b"a", b"before")
    with pytest.raises(RowRefused, match=why):
        writer.add(**row)  # type: ignore[arg-type]
    writer.add(b"a", b"after")
    writer.finish()
    assert writer.entries[0].messages == 2


def test_the_key_of_a_version_follows_from_stream_writer_and_number() -> None:
    """Shows the round trip of a request with a writer. Each of its parts changes the id, and an object at another id,
    or with an impossible version, is refused."""
    writer, _ = written([(b"a", b"x", b"", None, None)])
    version = Version("größe, shop 7", 41)
    to_put = writer.request(version, 0, times="refuse")
    key = parse(to_put.key)
    assert key is not None
    assert key.object_id == version.request_id(STREAM)
    request = Request.decode(b"".join(to_put.data), key.object_id)
    assert (request.version, request.times, request.runs) == (version, "refuse", writer.entries)
    others = {version.request_id(STREAM + 1), Version("größe, shop 74", 1).request_id(STREAM),
              Version(version.writer, 42).request_id(STREAM), version.request_id(STREAM)}
    assert len(others) == 4
    moved = request._replace(request_id=5)
    with pytest.raises(Corrupt, match="not that of the writer's version"):
        Request.decode(moved.encode(), 5)
    for wrong in (Version("", 1), Version("x" * 256, 1), Version("a\n", 1), Version("a", -1), Version("a", 1 << 63),
                  Version("\udc80", 1)):
        with pytest.raises(ValueError, match=r"writer's name|no version"):
            writer.request(wrong, 0)
    with pytest.raises(ValueError, match="never"):
        writer.request(version, 0, times="never")


def test_a_request_without_new_members_is_one_that_earlier_releases_read() -> None:
    """Shows version 1 of the object for a plain request, and version 2 for one that asks for more."""
    writer, _ = written([(b"a", b"x", b"", None, None)])
    found = []
    for identity, times in ((7, "raise"), (7, "refuse"), (Version("w", 1), "raise")):
        data = b"".join(writer.request(identity, 0, times=times).data)
        request_id = identity if isinstance(identity, int) else identity.request_id(STREAM)
        found.append(decode_document(data, ObjectKind.INBOX, None, request_id)[1]["version"])
    assert found == [1, 2, 2]


def test_lower_times_are_counted_as_they_are_raised() -> None:
    """Shows the number of rows of one writer whose time was below an earlier row's."""
    writer, _ = written([(b"a", b"", b"", time_ns, None) for time_ns in (5, 7, 6, None, 7, 1, 9)])
    assert writer.raised == 2
    writer.request(1, 0)
    with pytest.raises(ValueError, match="the times of 2 rows"):
        writer.request(1, 0, times="refuse")


def test_an_empty_request_is_refused() -> None:
    """Shows that a request without messages is an error."""
    writer = RunWriter("$G", "S", STREAM, now_ns=NOW)
    assert writer.finish() == []
    with pytest.raises(ValueError, match="without messages"):
        writer.request(7, 0)
