"""Writes the golden objects: ``python -m tests.golden.generate`` adds missing ones, and changes none.

Each is ``blocks/<what it is, or what is wrong with it>.bin``. A ``.json`` beside it has the parts of the key, and
either the values that a reader gets from it or the error that reading it must raise. They are kept for ever: a later
version of the format adds its own, and still reads these.

Objects whose name ends in ``-format-4`` were made by this generator. Those of versions 1 and 2 were made by generators
of earlier releases: they cannot be made again, and some of them exist in these versions only.
"""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from broker.storage.format.block import BlockPlace, BlockRef
from broker.storage.format.checkpoint import Root
from broker.storage.format.claim import Claim, Seal
from broker.storage.format.codec import pack_value
from broker.storage.format.document import encode_document
from broker.storage.format.errors import FormatError
from broker.storage.format.header import FORMAT_VERSION, HEADER_BYTES, ObjectKind, Position
from broker.storage.format.page import Page, PageKind, PageRef, encode_pages
from broker.storage.format.record import Record
from broker.storage.format.records.kinds import RecordKind
from broker.storage.format.records.opening import Opening
from broker.storage.format.request import Version
from broker.storage.format.section import UNCOMPRESSED
from broker.storage.format.staged import placed
from broker.storage.format.store import StoreFormat
from broker.storage.log.open_block import OpenBlock
from broker.storage.log.writer import encode_segment, seal_block
from broker.storage.staging.writer import RunWriter, ToPut
from broker.storage.state.erasures import ALL_SEQS, Erasure, StoredFile
from broker.storage.state.pages import StreamCopy, directory_page
from broker.storage.state.stream import StreamState
from broker.storage.state.stream_entry import pack_whole
from tests.plain_records import add_record
from tests.storage.format.whole import AT, NONCE, Row, decode_plain, encode, head_of, open_block

HERE = Path(__file__).parent / "blocks"
T0 = 1_700_000_000_000_000_000
STREAM = 0x0123_4567_89AB_CDEF


class Golden(NamedTuple):
    """An object and the key it is read from."""

    name: str
    data: bytes
    kind: ObjectKind = ObjectKind.SEGMENT
    position: Position = AT
    object_id: int = 0


def _one_message() -> OpenBlock[None]:
    return open_block(STREAM, [[Row(1, T0, b"orders.eu", 0, b"hello")]], first_seq=1, last_seq=1, msgs=1, bytes=44,
                      first_time_ns=T0)


def _everything() -> list[OpenBlock[None]]:
    """Headers, gaps, repeating and moving times, removed ranges, records before, between and after messages."""
    block: OpenBlock[None] = OpenBlock(STREAM, None)
    add_record(block, RecordKind.STREAM_CREATE, {"account": "$G", "name": "ORDERS",
                                                 "config": {"subjects": ["orders.>"]}, "created_ns": T0})
    block.append_run(10, [b"orders.eu", b"orders.us"], None, [b"one", b""], T0)
    add_record(block, RecordKind.MESSAGE_IDS, [[0, "id-0"]])
    block.append_run(12, [b"orders.eu"], [21], [b"NATS/1.0\r\nA: value\r\n\r\n" + b"x" * 300], T0 + 5)
    block.append_run(70_000, [b"orders.\xc3\xa9"], None, [bytes(range(256))], T0 + 3_600_000_000_000)
    add_record(block, RecordKind.CONSUMER_STATE, {"n": "c", "d": [3, 12, T0], "re": {11: 2}})
    block.remove(1, 9, 9, 900)
    block.remove(11, 11, 1, 47)
    block.outcome = block.outcome._replace(first_seq=10, last_seq=70_000, msgs=3, bytes=700, first_time_ns=T0)
    shard: OpenBlock[None] = OpenBlock(0, None)
    add_record(shard, RecordKind.RELEASE, {"roots": [[2, 7]]})
    return [shard, block, _one_message()]


def _every_record() -> list[OpenBlock[None]]:
    """A record of each kind, with all of its keys, as plain values: the bytes do not depend on any schema."""
    config = {"name": "ORDERS", "subjects": ["orders.>"]}
    column = struct.pack("<9q", *range(1, 10))
    shard: OpenBlock[None] = OpenBlock(0, None)
    add_record(shard, RecordKind.OPENING, {"owner": "broker-a", "reader_version": 1, "at_ns": T0,
                                           "ends": [[1, 17], [2, 0]]})
    add_record(shard, RecordKind.RELEASE, {"segments": [[1, 3, 9], [2, 0, 0]], "pages": [[1, 9]], "roots": [[1, 8]],
                                           "done": [[1, 2]]})
    block = _one_message()
    add_record(block, RecordKind.STREAM_CREATE, {"account": "$G", "name": "ORDERS", "config": config, "created_ns": T0,
                                                 "ceiling": 512, "per_subject": 5})
    add_record(block, RecordKind.STREAM_UPDATE, {"config": config, "per_subject": None})
    add_record(block, RecordKind.CONSUMER_CREATE, {"name": "c", "config": {"durable_name": "c"}, "created_ns": T0,
                                                   "d": [0, 4, 0], "f": [0, 4], "x": {"resume": 9}})
    add_record(block, RecordKind.CONSUMER_UPDATE, {"name": "c", "config": {"durable_name": "c", "max_ack_pending": 5}})
    add_record(block, RecordKind.CONSUMER_STATE, {"n": "c", "d": [3, 12, T0], "f": [1, 5], "la": T0 + 1})
    add_record(block, RecordKind.CONSUMER_STATE, {
        "n": "c", "d": [3, 12, T0], "f": [1, 5], "la": T0 + 1, "add": [[6, 7], [2, 0], [T0, 0]], "drop": [4, 5],
        "re": {6: 1, 5: 0}, "x": {"resume": None}})
    add_record(block, RecordKind.CONSUMER_STATE, {"n": "c", "add": [column, column, column], "drop": column})
    add_record(block, RecordKind.MESSAGE_IDS, [[0, b"id-0"]], False)
    add_record(block, RecordKind.CEILING, {"seq": 65_536})
    add_record(block, RecordKind.CONSUMER_DELETE, {"name": "c"})
    add_record(block, RecordKind.STREAM_DELETE, {})
    return [shard, block]


def _expiring() -> list[OpenBlock[None]]:
    """Messages that expire: a few, and more than a column stores as a list."""
    few = open_block(STREAM, [[Row(8, T0, b"a", 0, b"1"), Row(9, T0, b"a", 0, b"1")]])
    many = open_block(STREAM + 1, [[Row(1, T0, b"a", 0, b"1")]])
    add_record(few, RecordKind.EXPIRY, {"seqs": [8, 9], "expires_at_ns": [T0 + 1_000_000_000, (1 << 63) - 1]})
    add_record(many, RecordKind.EXPIRY, {"seqs": struct.pack("<9q", *range(1, 10)),
                                         "expires_at_ns": struct.pack("<9q", *[1 << 60] * 9)})
    return [few, many]


def _scheduled() -> OpenBlock[None]:
    block = open_block(STREAM, [[Row(8, T0, b"a", 0, b"1"), Row(9, T0, b"b", 0, b"1")]])
    add_record(block, RecordKind.SCHEDULE, {"seqs": [3, 8, 9], "due_at_ns": [0, T0 + 1_000_000_000, T0]})
    return block


def _adoption() -> OpenBlock[None]:
    """Two blocks of a run, of two streams, replace others; runs are released."""
    other = open_block(STREAM + 1, [[Row(9, T0, b"logs", 0, b"a")], [Row(11, T0, b"logs", 0, b"b")]])
    sealed = [seal_block(block, AT, object_id=77) for block in (_one_message(), other)]
    encode_segment(AT, NONCE, sealed, kind=ObjectKind.RUN, object_id=77, place=BlockPlace.RUN)
    shard: OpenBlock[None] = OpenBlock(0, None)
    add_record(shard, RecordKind.ADOPTION, {"blocks": [[1, 1, sealed[0].packed], [2, 40, sealed[1].packed]]})
    add_record(shard, RecordKind.RELEASE, {"runs": [
        "v1/shards/0/runs/00000003-00000000002a-000000000000004d",
        "v1/streams/%24%47/s/0123456789abcdef/runs/00000003-00000000002a-0000000000000005"]})
    return shard


def _catalogue() -> OpenBlock[None]:
    """A stream of shard 2 is created, another of shard 1 is about to be deleted, a third is gone."""
    shard: OpenBlock[None] = OpenBlock(0, None)
    add_record(shard, RecordKind.CATALOGUE, {"entries": [
        {"id": STREAM, "shard": 2, "account": "$G", "name": "S", "config": {"name": "S", "subjects": ["s"]},
         "created_ns": T0},
        {"id": STREAM + 1, "shard": 1, "account": "A", "name": "T", "config": {"name": "T"}, "created_ns": T0,
         "deleting": True}], "gone": [STREAM + 2]})
    return shard


def _moves() -> list[OpenBlock[None]]:
    """A stream leaves for shard 2, another one arrives from shard 1."""
    leaves: OpenBlock[None] = OpenBlock(STREAM, None)
    add_record(leaves, RecordKind.DEPARTURE, {"to": 2})
    moved = StreamState(STREAM + 1, "A", "T", {"name": "T", "duplicate_window": 120_000_000_000}, T0)
    moved.first_seq, moved.last_seq, moved.msgs, moved.bytes = 1, 40, 1, 30
    moved.first_time_ns = moved.last_time_ns = T0
    sealed = seal_block(_one_message(), AT, object_id=77)
    encode_segment(AT, NONCE, [sealed], kind=ObjectKind.RUN, object_id=77, place=BlockPlace.STREAM_RUN)
    assert sealed.packed is not None
    moved.blocks.append((*sealed.packed[:4], moved.stream_id, *sealed.packed[5:]))
    moved.expiries.add([1], [T0 + 9])
    moved.position = Position(2, 7)
    comes: OpenBlock[None] = OpenBlock(STREAM + 1, None)
    add_record(comes, RecordKind.ARRIVAL, {"source": 1, "entry": pack_whole(moved)})
    return [leaves, comes]


def _remains() -> OpenBlock[None]:
    """The shard has removed the bytes of a stream that had left it."""
    block: OpenBlock[None] = OpenBlock(STREAM, None)
    held = StoredFile("v1/shards/1/log/00000001-000000000002", 70, b"\1" * 32)
    made = StoredFile("v1/shards/1/runs/00000001-000000000002-000000000000004d", 60, b"\2" * 32)
    erasure = Erasure("", T0, ALL_SEQS, True, T0 + 9, (held,), (made,))
    add_record(block, RecordKind.REMAINS, {"erasure": erasure.pack()})
    return block


_VERSION = Version("orders of shop 7", 41)


def _staged() -> list[ToPut]:
    """Two staged blocks, whose writer did not know the sequences nor all times of the messages; and two requests."""
    writer = RunWriter("$G", "ORDERS", STREAM, now_ns=T0, block_messages=3, randbytes=random.Random(15).randbytes)
    for subject, payload, headers, time_ns, msg_id in (
            (b"orders.eu", b"one", b"", None, b"id-1"), (b"orders.us", b"two", b"NATS/1.0\r\nA: b\r\n\r\n", None, None),
            (b"orders.eu", b"three", b"", T0 + 7, b"id-3"), (b"orders.eu", b"four", b"", T0 + 9, None)):
        writer.add(subject, payload, headers, time_ns=time_ns, msg_id=msg_id)
    return [*writer.finish(), writer.request(5, 0), writer.request(_VERSION, 0, times="refuse")]


def _staged_refs() -> list[BlockRef]:
    """The stream's references to them, after its message 70 000."""
    run, *_ = _staged()
    assert run.entry is not None
    head = head_of(b"".join(run.data), run.entry.position, kind=ObjectKind.RUN, object_id=run.entry.run_id)
    first, second = (head.rows[i].ref(BlockPlace.STAGED, head.core(i)) for i in range(2))
    return [placed(first, 70_001, T0 + 5, T0 + 8), placed(second, 70_004, T0 + 7, T0 + 8)]


def _appended(*dead: list[Any]) -> OpenBlock[None]:
    """Both blocks join, without some messages that are duplicates; a message is published after them."""
    block: OpenBlock[None] = OpenBlock(STREAM, None)
    add_record(block, RecordKind.APPEND, {"blocks": [ref.pack() for ref in _staged_refs()], "dead": list(dead)})
    block.append_run(70_005, [b"orders.eu"], None, [b"five"], T0 + 10)
    block.outcome = block.outcome._replace(first_seq=10, last_seq=70_005, msgs=7, bytes=900, first_time_ns=T0)
    return block


def _many_subjects() -> OpenBlock[None]:
    rows = [Row(1 + i, T0 + i // 50, b"sensor.%d.%s" % (i * 7 % 40, b"temp" if i % 3 else b"hum"), 0,
                b'{"value": %d.%d}' % (i % 40, i % 10)) for i in range(150)]
    return open_block(STREAM, [rows[i:i + 50] for i in range(0, 150, 50)], first_seq=1, last_seq=150, msgs=150)


def _few_subjects_of_many_tokens() -> OpenBlock[None]:
    """More subjects than a summary has, with differences above 255 among the filter's values."""
    rows = [Row(9 + i, T0, b".".join([b"deep"] * (i + 1)) + b".\xff", 0, b"") for i in range(20)]
    return open_block(STREAM + 1, [rows], first_seq=9, last_seq=28, msgs=20)


def _grouped() -> OpenBlock[None]:
    """Messages of eight subjects in turn, of more than one frame, with one message that is larger than a part."""
    rows = [Row(9 + i, T0, b"logs.%d" % (i * 5 % 8), 0, (b"line %d of a long and repetitive log " % i)[:30] * (
        2000 if i == 40 else 340)) for i in range(120)]
    return open_block(STREAM, [rows])


def _merged() -> OpenBlock[None]:
    """Messages of four commits in two epochs, after some that had been staged."""
    block = open_block(STREAM, [[Row(5 + i, T0 + i, b"logs", 0, b"line %d" % i) for i in range(20)]])
    add_record(block, RecordKind.COMMITS, {"epochs": [[0, [0], [6]], [2, [9, 1, 300], [7, 1, 4]], [3, [1], [24]]]},
               False)
    return block


def _frames() -> OpenBlock[None]:
    rows = [Row(5 + i, T0, b"logs", 0, b"line %d of a long and repetitive log " % i * 60) for i in range(120)]
    return open_block(STREAM, [rows], first_seq=5, last_seq=124, msgs=120)


def _with_record(record: Record) -> bytes:
    block = _one_message()
    block.records = [*block.records, record]
    return encode(block)


def _changed(data: bytes, at: int, patch: bytes) -> bytes:
    return data[:at] + patch + data[at + len(patch):]


def _sealed_anew(data: bytes, start: int, end: int) -> bytes:
    """Return ``data`` with the CRC at the end of ``start..end`` computed again."""
    return _changed(data, end - 4, crc32(data[start:end - 4]).to_bytes(4, "little"))


def sound() -> Iterator[Golden]:
    """Objects that must be read."""
    yield from map(_of_this_version, _sound())


def damaged() -> Iterator[Golden]:
    """Objects that must be refused."""
    yield from map(_of_this_version, _damaged())


def _of_this_version(golden: Golden) -> Golden:
    return golden._replace(name=f"{golden.name}-format-{FORMAT_VERSION}")


def _sound() -> Iterator[Golden]:
    yield Golden("segment-without-blocks", encode())
    yield Golden("segment-of-one-message", encode(_one_message()))
    yield Golden("segment-of-one-message-uncompressed", encode(_one_message(), codec=UNCOMPRESSED))
    yield Golden("segment-with-everything", encode(*_everything()))
    yield Golden("segment-of-every-record", encode(*_every_record()))
    yield Golden("segment-of-expiring-messages", encode(*_expiring()))
    yield Golden("segment-of-schedules", encode(_scheduled()))
    yield Golden("segment-of-many-subjects", encode(_many_subjects()))
    yield Golden("segment-of-several-frames", encode(_frames()))
    yield Golden("segment-of-an-adoption", encode(_adoption()))
    yield Golden("segment-of-a-catalogue", encode(_catalogue()))
    yield Golden("segment-of-moves", encode(*_moves()))
    yield Golden("segment-of-remains", encode(_remains()))
    yield Golden("segment-of-staged-blocks", encode(_appended([70_003, 70_003, 1, 62])))
    yield Golden("segment-of-staged-blocks-less-scattered-ones", encode(_appended(
        [70_001, 70_003, 2, 107, b"\x05"])))
    run, asked, versioned = _staged()
    assert run.entry is not None
    yield Golden("run-of-staged-blocks", b"".join(run.data), ObjectKind.RUN, run.entry.position, run.entry.run_id)
    yield Golden("request", b"".join(asked.data), ObjectKind.INBOX, Position(0, 0), 5)
    yield Golden("request-of-a-writer", b"".join(versioned.data), ObjectKind.INBOX, Position(0, 0),
                 _VERSION.request_id(STREAM))
    yield Golden("segment-with-unknown-optional-record", _with_record(
        Record(250, 1, pack_value({"from": "later"}), must_understand=False)))
    yield Golden("segment-with-a-subject-filter", encode(_many_subjects(), _few_subjects_of_many_tokens()))
    opening = OpenBlock(0, None)
    opening.add(Opening("broker-a", (Position(2, 9),), T0))
    yield Golden("opening", encode(opening, position=Position(3, 0)), position=Position(3, 0))
    sealed = [seal_block(block, AT, object_id=77) for block in (_one_message(), _many_subjects())]
    yield Golden("run", b"".join(encode_segment(AT, NONCE, sealed, kind=ObjectKind.RUN, object_id=77,
                                                place=BlockPlace.RUN)), ObjectKind.RUN, object_id=77)
    yield Golden("run-with-commits", b"".join(encode_segment(AT, NONCE, [seal_block(_merged(), AT, object_id=78)],
                                                             kind=ObjectKind.RUN, object_id=78, place=BlockPlace.RUN)),
                 ObjectKind.RUN, object_id=78)
    yield Golden("run-of-a-grouped-block", b"".join(encode_segment(
        AT, NONCE, [seal_block(_grouped(), AT, object_id=79, grouped=True)], kind=ObjectKind.RUN, object_id=79,
        place=BlockPlace.RUN)), ObjectKind.RUN, object_id=79)
    for landed in (AT.number - 1, AT.number - 16):
        yield Golden(f"segment-that-says-{landed}-had-landed", b"".join(encode_segment(
            AT, NONCE, [seal_block(_one_message(), AT)], UNCOMPRESSED, landed=landed)))
    yield Golden("heartbeat", b"".join(encode_segment(AT, NONCE, [], landed=AT.number - 1)))
    yield Golden("seal-that-says-what-had-landed", Seal(AT, "broker-b", 4, NONCE, T0, AT.number - 1).encode(),
                 ObjectKind.SEAL)
    yield Golden("seal", Seal(AT, "broker-b", 4, NONCE, T0).encode(), ObjectKind.SEAL)
    yield Golden("claim", Claim(3, "broker-a", NONCE, T0).encode(), ObjectKind.CLAIM, Position(3, 0))
    yield Golden("format", StoreFormat.make(NONCE, T0).encode(), ObjectKind.FORMAT, Position(0, 0))
    yield Golden("inbox-request", encode_document(ObjectKind.INBOX, Position(0, 0), NONCE, {"adopt": ["a"]}, 5),
                 ObjectKind.INBOX, Position(0, 0), 5)
    buffers, refs = encode_pages(AT, NONCE, [Page(PageKind.DIRECTORY, Position(3, 40), 0, {"streams": ["s"] * 100}),
                                             Page(PageKind.BLOCKS, AT, STREAM, [[1, 2], b"\x00"])])
    yield Golden("pages", b"".join(buffers), ObjectKind.PAGES)
    yield Golden("root", Root(AT, Position(3, 40), tuple(refs), {"letgo": []}).encode(NONCE), ObjectKind.ROOT)
    offline = {"segments": [[3, 1, 42]], "opening": {}, "letgo": [], "held": [[STREAM, [[3, 7], [3, 9]]]],
               "roots": [[[3, 20], [[3, 4]]], [list(AT), [[3, 4], [3, 5]]]],
               "roots_held": [[[3, 20], [[3, 2, 3], [3, 5, 5]]]]}
    yield Golden("root-with-an-offline-stream", Root(AT, AT, tuple(refs), offline).encode(NONCE), ObjectKind.ROOT)
    head = head_of(encode(_many_subjects()))
    filtered = head.ref(0, head.core(0))
    assert filtered is not None
    buffers, refs = encode_pages(AT, NONCE, [Page(PageKind.BLOCKS, AT, STREAM, [1023, [[filtered.pack()]]],
                                                  filters=True)])
    yield Golden("pages-with-a-subject-filter", b"".join(buffers), ObjectKind.PAGES)
    buffers, refs = encode_pages(AT, NONCE, [Page(
        PageKind.BLOCKS, AT, STREAM, [1022, [[ref.pack()] for ref in _staged_refs()]], staged=True)])
    yield Golden("pages-with-staged-blocks", b"".join(buffers), ObjectKind.PAGES)
    yield Golden("pages-with-summaries", b"".join(encode_pages(AT, NONCE, [_directory_with_summaries()])[0]),
                 ObjectKind.PAGES)


def _directory_with_summaries() -> Page:
    """A stream with an inline table and one with a page of its own: blocks in segments of two epochs, and in runs."""
    def reference(stream: int, seq: int, place: BlockPlace, position: Position, run_id: int) -> BlockRef:
        return BlockRef(place, position, run_id, stream, 144, 160, 304, 120, 424, 90, seq, seq + 1, 2, 88, T0 + seq,
                        T0 + seq,
                        ((b"orders.eu", 2, seq, seq + 1),))

    places = [(BlockPlace.RUN, Position(2, 8), 77)] * 2 + [(BlockPlace.STREAM_RUN, Position(3, 1), 78)] + [
        (BlockPlace.LOG, Position(3, number), 0) for number in (9, 10, 12, 300)] + [(BlockPlace.LOG, Position(4, 1), 0)]
    copies = []
    for stream_id in (STREAM, STREAM + 1):
        stream = StreamState(stream_id, "$G", f"S{stream_id & 1}", {"subjects": ["orders.>"]}, T0)
        for i, place in enumerate(places):
            stream.blocks.append(reference(stream_id, 2 * i + 1, *place).pack())
        stream.blocks.remove(4, 4, 1, 44)
        stream.first_seq, stream.last_seq, stream.msgs, stream.bytes = 1, 16, 15, 660
        stream.first_time_ns, stream.last_time_ns, stream.position = T0 + 1, T0 + 15, Position(4, 1)
        copies.append(StreamCopy(stream, inline_max=64 if stream_id == STREAM else 0))
    for _, place_it in copies[1].parts(lambda: AT, lambda ref: False):
        place_it(PageRef(AT, 4096, 300, PageKind.BLOCKS, STREAM + 1))
    return directory_page(AT, 0, copies)


def _landed(position: Position, before: int) -> bytes:
    """A segment whose ``landed`` field is ``before``: all numbers up to so many before it were stored."""
    front = b"".join(encode_segment(position, NONCE, [], landed=position.number - 1))
    return _sealed_anew(_changed(front, 68, bytes((before,))), 64, 104)


def _damaged() -> Iterator[Golden]:
    good = encode(*_everything())
    row = head_of(good).rows[1]
    yield Golden("empty-object", b"")
    yield Golden("not-an-object-of-ours", b"PAR1" + bytes(200))
    yield Golden("header-flipped", _changed(good, 16, b"\xff"))
    yield Golden("segment-header-of-a-newer-version", _sealed_anew(_changed(good, 10, b"\x05"), 0, HEADER_BYTES))
    yield Golden("seal-header-of-a-newer-version", _sealed_anew(_changed(
        Seal(AT, "broker-b", 4, NONCE, T0).encode(), 10, b"\x05"), 0, HEADER_BYTES), ObjectKind.SEAL)
    yield Golden("landed-before-the-epoch", _landed(Position(3, 4), 5), position=Position(3, 4))
    yield Golden("landed-longer-ago-than-can-be", _landed(AT, 17))
    yield Golden("seal-of-what-had-landed-beyond-it", Seal(AT, "broker-b", 4, NONCE, T0, AT.number).encode(),
                 ObjectKind.SEAL)
    yield Golden("segment-of-another-key", encode(_one_message(), position=Position(3, 0x2B)))
    yield Golden("seal-instead-of-segment", Seal(AT, "broker-b", 4, NONCE, T0).encode())
    yield Golden("cut-in-directory", good[:150])
    yield Golden("cut-in-frames", good[:-1])
    yield Golden("extended", good + b"\x00")
    yield Golden("fixed-part-flipped", _changed(good, 64, b"\x09"))
    yield Golden("directory-flipped", _changed(good, 110, b"\xff"))
    yield Golden("core-flipped", _changed(good, row.core_offset + 100, b"\xff"))
    yield Golden("core-sections-flipped", _changed(good, row.core_offset + row.core_bytes - 1, b"\xff"))
    yield Golden("index-flipped", _changed(good, row.index_offset + 20, b"\xff"))
    yield Golden("index-body-flipped", _changed(good, row.index_offset + row.index_bytes - 1, b"\xff"))
    yield Golden("frame-flipped", _changed(good, row.frames_offset + row.frames_bytes - 1, b"\xfe"))
    core_end = row.core_offset + 164
    yield Golden("core-of-a-newer-version", _sealed_anew(
        _changed(good, row.core_offset + 4, b"\x05"), row.core_offset, core_end))
    yield Golden("core-of-an-unknown-compression", _sealed_anew(
        _changed(good, row.core_offset + 156, b"\x09"), row.core_offset, core_end))
    yield Golden("core-with-cipher", _sealed_anew(
        _changed(good, row.core_offset + 157, b"\x01"), row.core_offset, core_end))
    yield Golden("index-with-cipher", _sealed_anew(
        _changed(good, row.index_offset + 73, b"\x01"), row.index_offset, row.index_offset + 80))
    yield Golden("core-of-another-stream", _sealed_anew(
        _changed(good, row.core_offset + 16, struct.pack("<Q", 5)), row.core_offset, core_end))
    yield Golden("core-with-too-many-removed-ranges", _sealed_anew(
        _changed(good, row.core_offset + 132, b"\xff" * 4), row.core_offset, core_end))
    yield Golden("index-with-too-many-subjects", _sealed_anew(
        _changed(good, row.index_offset + 52, b"\xff" * 4), row.index_offset, row.index_offset + 80))
    yield Golden("unknown-record-that-must-be-understood", _with_record(Record(250, 1, pack_value({"from": "later"}))))
    yield Golden("record-of-a-newer-version", _with_record(
        Record(RecordKind.CEILING, 1, pack_value({"seq": 9}), version=2)))
    yield Golden("record-body-is-not-msgpack", _with_record(Record(RecordKind.CEILING, 1, b"\xc1")))
    seal = Seal(AT, "broker-b", 4, NONCE, T0).encode()
    yield Golden("seal-flipped", _changed(seal, len(seal) - 3, b"\xff"), ObjectKind.SEAL)
    yield Golden("seal-with-cipher", _sealed_anew(_changed(seal, 77, b"\x01"), 64, 84), ObjectKind.SEAL)
    yield Golden("seal-without-sealer", encode_document(ObjectKind.SEAL, AT, NONCE, {"at_ns": 1}), ObjectKind.SEAL)
    root = encode_document(ObjectKind.ROOT, AT, NONCE, {"replay_from": [9, 9], "pages": [], "extra": {}})
    yield Golden("root-that-replays-from-beyond-itself", root, ObjectKind.ROOT)
    buffers, (ref,) = encode_pages(AT, NONCE, [Page(PageKind.BLOCKS, AT, 1, ["page"])])
    data = b"".join(buffers)
    yield Golden("page-flipped", _changed(data, ref.offset + 60, b"\xff"), ObjectKind.PAGES)
    yield Golden("page-with-cipher", _sealed_anew(
        _changed(data, ref.offset + 53, b"\x01"), ref.offset, ref.offset + 60), ObjectKind.PAGES)


def expectation(golden: Golden) -> dict[str, Any]:
    """Return the result of reading an object with the reader of today."""
    expected: dict[str, Any] = {"kind": golden.kind.name, "position": list(golden.position),
                                "object_id": golden.object_id}
    try:
        expected["values"] = decode_plain(golden.data, golden.kind, golden.position, golden.object_id)
    except FormatError as error:
        expected["error"] = {"type": type(error).__name__, "section": error.section, "offset": error.offset}
    return expected


def _json(expected: dict[str, Any]) -> str:
    """Return JSON with one line for each block, record or message: short, but with useful diffs."""
    return re.sub(r"\n {5,}", " ", json.dumps(expected, indent=1)) + "\n"


def main() -> None:
    """Add the missing objects."""
    HERE.mkdir(exist_ok=True)
    for golden, readable in [(one, True) for one in sound()] + [(one, False) for one in damaged()]:
        path = HERE / f"{golden.name}.bin"
        if path.exists():
            continue
        expected = expectation(golden)
        assert ("values" in expected) == readable, (golden.name, expected)
        path.write_bytes(golden.data)
        path.with_suffix(".json").write_text(_json(expected))
        print(f"added {golden.name}")


if __name__ == "__main__":
    main()
