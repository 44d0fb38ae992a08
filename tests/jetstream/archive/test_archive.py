"""The archive format: nats-server's bytes are read, ours are read back in pieces of any size,
and bad ones are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.jetstream.archive import s2
from broker.jetstream.archive.contents import ArchiveReader, ArchiveWriter
from broker.jetstream.archive.entries import MAGIC, Entry, EntryReader, encode_entry
from broker.jetstream.archive.errors import ArchiveError
from broker.jetstream.archive.framing import FrameReader, FrameWriter
from broker.jetstream.archive.values import END, ArchivedConsumer, ArchivedMsg, ArchivedStream

REAL = (Path(__file__).parent / "nats-server-2.15.1.s2").read_bytes()
"""An archive as nats-server 2.15.1 sent it: ten messages on three subjects, two of them deleted, and two consumers."""

STREAM = ArchivedStream(3, 100, 5, 9, "2026-11-22T10:54:28.700820478Z", "2026-11-22T10:54:28.70488539Z", 1)
CONSUMER = ArchivedConsumer("C", {"durable_name": "C"}, (6, 9), (1, 5), {7: (2, 1_700_000_000_000_000_000)}, {7: 3})
MSGS = [ArchivedMsg(5, 1, b"a.b", 0, b""), ArchivedMsg(7, 2, b"c", 12, b"NATS/1.0\r\n\r\nxyz"),
        ArchivedMsg(9, 3, b"c", 0, b"x" * 300_000)]


def read(data: bytes, step: int = 1 << 20) -> list[Any]:
    reader = ArchiveReader()
    found = [item for at in range(0, len(data), step) for item in reader.feed(data[at:at + step])]
    reader.finish()
    return found


def written() -> bytes:
    writer = ArchiveWriter(1)
    return writer.begin(STREAM) + writer.consumer(CONSUMER) + writer.messages(MSGS) + writer.end()


@pytest.mark.shows("api.restore")
@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_nats_servers_archive(step: int) -> None:
    stream, durable, other, *batches, end = read(REAL, step)
    assert (stream.msgs, stream.bytes, stream.first_seq, stream.last_seq, stream.consumers) == (8, 561, 1, 10, 2)
    assert (durable.name, durable.delivered, durable.ack_floor) == ("C", (6, 7), (1, 1))
    assert sorted(durable.pending) == [2, 5, 6, 7]
    assert durable.pending[5] == (4, 1_795_344_868_703_164_015)
    assert other.config["filter_subject"] == "s.1"
    msgs = [msg for batch in batches for msg in batch]
    assert [msg.seq for msg in msgs] == [1, 2, 3, 5, 6, 7, 8, 9]
    assert msgs[1] == (2, 1_795_344_868_701_883_565, b"s.1", 18, b"NATS/1.0\r\nA: b\r\n\r\nhello 1")
    assert end is END


@pytest.mark.shows("api.snapshot")
@pytest.mark.parametrize("step", [1 << 20, 1000, 13])
def test_an_archive_of_ours(step: int) -> None:
    stream, consumer, *batches, end = read(written(), step)
    assert (stream, consumer, end) == (STREAM, CONSUMER, END)
    assert [msg for batch in batches for msg in batch] == MSGS


def test_a_truncated_archive_is_noticed() -> None:
    whole = written()
    for size in (0, 5, 10, 30, 200, len(whole) // 2, len(whole) - 20, len(whole) - 1):
        with pytest.raises(ArchiveError):
            read(whole[:size])


def test_very_many_messages_in_few_bytes_come_a_few_at_a_time() -> None:
    """Shows a block of 4 MiB that compresses well; a larger block is refused."""
    head = MAGIC + entry(b"state.json", body=json.dumps({"last_seq": 1 << 40}).encode())
    many = b"".join(encode_entry(Entry(b"s", 0, seq, 0, b"")) for seq in range(1, 200_000))
    data = FrameWriter().write(head + many)
    reader = ArchiveReader()
    sizes = [len(batch) for batch in reader.feed(data) if isinstance(batch, list)]
    assert sum(sizes) == 199_999
    assert max(sizes) == 512


def test_bytes_after_the_end_are_ignored() -> None:
    assert len(read(REAL + b"anything", 1 << 20)) == len(read(REAL, 1 << 20)) == len(read(REAL + b"anything", 10))


def test_each_flipped_bit_of_the_data_is_noticed() -> None:
    good = read(REAL)
    for at in range(len(REAL)):
        bad = bytearray(REAL)
        bad[at] ^= 1 << at % 8
        try:
            found = read(bytes(bad))
        except ArchiveError:
            continue
        # If a flipped bit turns a chunk into one that readers skip, the chunk is missing, which is noticed.
        assert found == good, at


def entry(name: bytes, seq: int = 0, time_ns: int = 0, header_bytes: int = 0, body: bytes = b"") -> bytes:
    return encode_entry(Entry(name, time_ns, seq, header_bytes, body))


def state(**more: object) -> bytes:
    return MAGIC + entry(b"state.json",
                         body=json.dumps({"messages": 0, "first_seq": 1, "last_seq": 9, **more}).encode())


@pytest.mark.parametrize("raw, why", [
    (b"ustar and other formats", "not an archive"),
    (b"meta.inf" + bytes(504), "before 2.15: restore it in nats-server 2.15"),
    (b"PaxHeaders.0/meta.inf" + bytes(504), "before 2.15"),
    (MAGIC + entry(b"s.1", seq=1), "expected state.json first"),
    (MAGIC + entry(b"state.json", body=b"{"), "error in state.json"),
    (MAGIC + entry(b"state.json", body=b"[" * 100_000), "error in state.json"),
    (MAGIC + entry(b"state.json", body=b"[1]"), "not an object"),
    (state(first_seq=-1), "first_seq is not a number that it may be"),
    (state(first_seq=11), "above last_seq"),
    (state(messages="7"), "messages is not a number"),
    (state(last_seq=1 << 63), "last_seq is not a number"),
    (state(consumer_count=1) + entry(b"s.1", seq=1), "expected consumer, found s.1"),
    (state(consumer_count=1) + entry(b"consumers/C", body=b"{}"), "consumer C is missing config"),
    (state(consumer_count=1) + entry(b"consumers/C", body=b'{"config": {}}'), "consumer C is missing state"),
    (state(consumer_count=1) + entry(b"consumers/C", body=b'{"config": {}, "state": {"pending": {"x": {}}}}'),
     "a sequence"),
    (state(consumer_count=1) + entry(b"consumers/C", body=b'{"config": {}, "state": {"pending": {"1": 2}}}'),
     "map of objects"),
    (state(consumer_count=1) + entry(b"consumers/C", body=b'{"config": {}, "state": {"redelivered": {"1": -2}}}'),
     "redelivered"),
    (state() + entry(b"s.1", seq=2) + entry(b"s.1", seq=2), "message sequence 2 out of order"),
    (state() + entry(b"s.1", seq=0, time_ns=5), "expected message sequence"),
    (state(), "truncated"),
    (state() + b"\xff" * 11, "more than 64 bits"),
    (state() + b"\x01\x00\x01\x00\xff\xff\xff\xff\x7f", "an entry with"),
])
def test_bytes_that_are_no_archive_are_refused(raw: bytes, why: str) -> None:
    with pytest.raises(ArchiveError, match=why):
        read(FrameWriter().write(raw))


@given(st.lists(st.tuples(st.binary(max_size=300), st.integers(-(1 << 63), (1 << 63) - 1),
                          st.integers(0, (1 << 64) - 1),
                          st.binary(max_size=40), st.binary(max_size=600)), max_size=8), st.integers(1, 50))
@settings(max_examples=60, deadline=None)
def test_entries_in_any_pieces(values: list[tuple[bytes, int, int, bytes, bytes]], step: int) -> None:
    entries = [Entry(name, time_ns, seq, len(headers), headers + body) for name, time_ns, seq, headers, body in values]
    data = b"".join(map(encode_entry, entries))
    reader = EntryReader()
    found = [one for at in range(0, len(data), step) for one in reader.feed(data[at:at + step])]
    assert found == entries
    assert reader.between


@given(st.lists(st.binary(max_size=2000) | st.binary(max_size=20).map(lambda part: part * 400), max_size=5),
       st.integers(1, 5000))
@settings(max_examples=60, deadline=None)
def test_frames_in_any_pieces(parts: list[bytes], step: int) -> None:
    writer = FrameWriter()
    data = b"".join(map(writer.write, parts))
    reader = FrameReader()
    assert b"".join(raw for at in range(0, len(data),
                                        step) for raw in reader.feed(data[at:at + step])) == b"".join(parts)
    if parts:
        reader.finish()


@given(st.binary(max_size=400))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for start in (b"", b"\xff\x06\x00\x00S2sTwO"):
        try:
            read(start + data)
        except ArchiveError:
            pass
    try:
        s2.decompress(data)
    except ArchiveError:
        pass


# --- framing ----------------------------------------------------------------------------------------------------------

NAME = b"\xff\x06\x00\x00S2sTwO"


def chunk(kind: int, data: bytes) -> bytes:
    return bytes((kind,)) + len(data).to_bytes(3, "little") + data


def masked(raw: bytes) -> bytes:
    crc = google_crc32c.value(raw)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF).to_bytes(4, "little")


def test_streams_put_together_and_chunks_to_pass_over() -> None:
    data = (NAME + chunk(0x01, masked(b"one") + b"one") + chunk(0xFE, b"padding") + chunk(0x99, bytes(70_000))
            + b"\xff\x06\x00\x00sNaPpY" + chunk(0x01, masked(b"two") + b"two"))
    for step in (1, 10_000, len(data)):
        reader = FrameReader()
        assert b"".join(raw for at in range(0, len(data), step) for raw in reader.feed(data[at:at + step])) == b"onetwo"
        reader.finish()


@pytest.mark.parametrize("data, why", [
    (b"\x1f\x8b\x08\x00gzip", "no S2 or Snappy"),
    (chunk(0xFE, b"padding first"), "no S2 or Snappy"),
    (chunk(0xFF, b"sNAPPY"), "no S2 or Snappy"),
    (NAME + chunk(0x02, b"reserved"), "unknown kind"),
    (NAME + chunk(0x01, b"abc"), "and 3 bytes"),
    (NAME + chunk(0x01, bytes(4) + b"abc"), "checksum"),
    (NAME + b"\x00\xff\xff\xff", "and 16777215 bytes"),
    (NAME + chunk(0x00, bytes(4) + b"\x81\x80\x80\x02" + bytes(8)), "4194305 bytes"),
    (NAME + chunk(0x00, bytes(4) + b"\xff\xff\xff\xff\xff"), "without a size"),
    (NAME + chunk(0x00, bytes(4) + b"\x05\x00"), "end"),
    (NAME + b"\x01\x08", "cut off"),
    (NAME + b"\xfe\xff\x00\x00ab", "cut off"),
])
def test_bad_frames(data: bytes, why: str) -> None:
    def read_frames() -> None:
        reader = FrameReader()
        list(reader.feed(data))
        reader.finish()

    with pytest.raises(ArchiveError, match=why):
        read_frames()


@pytest.mark.parametrize("elements, raw", [
    (b"\x08abc" + b"\x01\x03", b"abcabca"),                               # copy, 11 bits: 4 from 3 back
    (b"\x08abc" + b"\x01\x03" + b"\x01\x00", b"abcabcabcab"),             # the same offset again, 4 bytes
    (b"\x08abc" + b"\x01\x03" + b"\x15\x00\x00", b"abcabca" + b"bcabcabc"),     # 8 + 0
    (b"\x08abc" + b"\x01\x03" + b"\x19\x00\x00\x00", b"abc" * 87 + b"abcabc"),  # 260 + 0
    (b"\x08abc" + b"\x01\x03" + b"\x1d\x00\x00\x00\x00", b"abc" * 21849),       # 65540 + 0
    (b"\x08abc" + b"\x0a\x03\x00" + b"\x01\x00", b"abcabcabca"),          # after a copy of 16 bits
    (b"\x08abc" + b"\x0b\x03\x00\x00\x00" + b"\x01\x00", b"abcabcabca"),  # and of 32
    (b"\xf0\x3f" + b"z" * 64 + b"\x01\x01\x01\x00", b"z" * 72),           # a literal with its length in a byte
])
def test_s2s_repeated_offsets(elements: bytes, raw: bytes) -> None:
    size, length = bytearray(), len(raw)
    while length >= 0x80:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    assert s2.decompress(bytes((*size, length)) + elements) == raw


@pytest.mark.parametrize("block", [
    b"\x07\x01\x00",               # a repeated offset before any
    b"\x07\x08abc\x01\x04",        # from before the beginning
    b"\x06\x08abc\x01\x03",        # beyond the end
    b"\x08\x08abc\x01\x03",        # short of it
    b"\x07\x08abc\x01",            # cut off
    b"\x20\x08abc\x01\x03\x15",
    b"\x07\xf4\x00",
    b"\x07\xfc\xff\xff\xff\xff",
    b"\x00\x00a",                  # data after nothing
    b"",
])
def test_bad_blocks(block: bytes) -> None:
    with pytest.raises(ArchiveError):
        s2.decompress(block)
