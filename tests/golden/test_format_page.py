"""The golden objects, read by the layouts and tables of docs/FORMAT.md, without the broker's decoders."""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

import msgpack
import pytest
import zstandard

from broker.storage.format.records.kinds import RecordKind
from tests.golden.generate import HERE

PAGE = (Path(__file__).parent.parent.parent / "docs" / "FORMAT.md").read_text()

SOUND = {path.stem: json.loads(path.read_text()) for path in sorted(HERE.glob("*.json"))
         if '"values"' in path.read_text()}


VERSIONS = ["", "-format-4"]
"""The suffixes of the objects' names: empty for those of version 1."""


@cache
def layout(name: str) -> dict[str, tuple[int, int]]:
    """The fields of a layout: offset and size by name. They must follow one another without a gap."""
    text = PAGE.split(f"<!-- layout: {name} -->\n```\n")[1].split("```")[0]
    found = {field: (int(offset), int(size))
             for offset, size, field in re.findall(r"^ *(\d+) +(\d+)  (\w+)", text, re.MULTILINE)}
    assert len(found) == text.count("\n"), text
    places = list(found.values())
    assert [at + size for at, size in places[:-1]] == [at for at, _ in places[1:]], name
    return found


def fields(name: str, data: bytes, at: int = 0) -> dict[str, Any]:
    """Return the values of a layout that begins ``at``, as integers or raw bytes. Offsets count from ``at``."""
    values: dict[str, Any] = {}
    for field, (offset, size) in layout(name).items():
        raw = data[at + offset:at + offset + size]
        values[field] = raw if field in ("magic", "nonce") else int.from_bytes(raw, "little")
    return values


def end_of(name: str) -> int:
    """Return the offset after a layout's last field."""
    offset, size = list(layout(name).values())[-1]
    return offset + size


def section_of(name: str, data: bytes, at: int = 0) -> tuple[bytes, bytes]:
    """Return the section whose header is in the fixed part ``name``, which begins ``at``; and the bytes after the
    section.

    In version 1, the fixed part has the lengths itself.
    """
    if data[at + 4] == 1:
        section, end = fields(f"{name}, version 1", data, at), at + end_of(f"{name}, version 1")
        compressed = bool(data[at + 6] & 1)
        assert compressed == (section["raw_bytes"] != section["stored_bytes"])
    else:
        end = at + end_of(name)
        section = header_of(data, at + layout(name)["header"][0])
        compressed = section["compression"] == 1
        section["body_crc"] = section.pop("crc")
        assert not data[at + 6] & 1
    check(data, at, end - 4, int.from_bytes(data[end - 4:end], "little"))
    stop = end + section["stored_bytes"]
    check(data, end, stop, section["body_crc"])
    return unpacked(data[end:stop], section["raw_bytes"], compressed), data[stop:]


def header_of(data: bytes, at: int) -> dict[str, Any]:
    """Return the section header at ``at``, which must have a form that this page describes."""
    header = fields("section header", data, at)
    assert (header["cipher"], header["key"]) == (0, 0)
    return header


def check(data: bytes, start: int, end: int, crc: int) -> None:
    assert crc32(data[start:end]) == crc


def unpacked(stored: bytes, size: int, compressed: bool) -> bytes:
    raw = zstandard.ZstdDecompressor().decompress(stored) if compressed else stored
    assert len(raw) == size
    return raw


def columns(data: bytes, at: int, lengths: list[int]) -> tuple[list[list[int]], int]:
    """Return columns of these lengths as values, for width 0 the base; and the offset after them."""
    described = [(int.from_bytes(data[at + 9 * i:at + 9 * i + 8], "little"), data[at + 9 * i + 8])
                 for i in range(len(lengths))]
    at += 9 * len(lengths)
    found = []
    for (base, width), length in zip(described, lengths, strict=True):
        cells = data[at:at + width * length]
        found.append([base + int.from_bytes(cells[width * i:width * (i + 1)], "little") for i in range(length)])
        at += width * length
    return found, at


def core_of(data: bytes) -> dict[str, Any]:
    """Return a core with its sections."""
    core = fields("core", data)
    assert core["magic"] == b"JBLK"
    sections, rest = section_of("core", data)
    assert not rest
    at, core["removed"] = 0, []
    if core["removed_rows"]:
        (first, more, messages, size), at = columns(sections, 0, [core["removed_rows"]] * 4)
        core["removed"] = [[a, a + b, c, d] for a, b, c, d in zip(first, more, messages, size, strict=True)]
    core["records"], stop = [], at + core["records_bytes"]
    while at < stop:
        record, begin = fields("record", sections, at), at + end_of("record")
        at = begin + record["body_bytes"]
        record["body"] = msgpack.unpackb(sections[begin:at], strict_map_key=False)
        core["records"].append(record)
    assert core["flags"] & 6 != 6
    core["summary"] = msgpack.unpackb(sections[at:]) if core["flags"] & 2 else None
    core["filter"] = sections[at:] if core["flags"] & 4 else None
    assert core["summary_bytes"] == len(sections) - at
    return core


def messages_of(data: bytes, frames: bytes) -> list[tuple[int, int, bytes, int, bytes]]:
    """Return the messages of an index and its frames: sequence, time, subject, header bytes, body."""
    index = fields("index", data)
    assert index["magic"] == b"JIDX"
    body, rest = section_of("index", data)
    assert not rest
    if index["version"] == 1:
        size = end_of("frame row, version 1")
        table = [fields("frame row, version 1", body, size * i) for i in range(index["frames"])]
        for row in table:
            row["compression"] = int(row["stored_bytes"] != row["raw_bytes"])
    else:
        size = end_of("frame row")
        table = [header_of(body, size * i + layout("frame row")["header"][0]) for i in range(index["frames"])]
    at, count, subjects = size * len(table), index["messages"], index["subjects"]
    runs_on = body[at + 8] == 0
    (seqs, times, ids, headers, sizes, name_sizes, *_), at = columns(body, at, [count] * 5 + [subjects] * 4)
    if runs_on:
        seqs = [index["first_seq"] + i for i in range(count)]
    assert len(body) - at == index["names_bytes"]
    ends = list(accumulate(name_sizes, initial=at))
    names = [body[a:b] for a, b in pairwise(ends)]
    raw, at = b"", 0
    for row in table:
        stored = frames[at:at + row["stored_bytes"]]
        check(stored, 0, len(stored), row["crc"])
        raw += unpacked(stored, row["raw_bytes"], bool(row["compression"]))
        at += row["stored_bytes"]
    assert at == len(frames)
    order = list(range(count))
    if index["flags"] & 4:
        starts = sorted({fields("frame row", body, size * i)["first_ordinal"] for i in range(len(table))})
        order = [i for start, end in pairwise([*starts, count]) for i in sorted(range(start, end), key=ids.__getitem__)]
    bodies, at = {}, 0
    for i in order:
        bodies[i] = raw[at:at + sizes[i]]
        at += sizes[i]
    assert at == len(raw)
    return [(seqs[i], times[i], names[ids[i]], headers[i], bodies[i]) for i in range(count)]


def entries(subject: bytes) -> list[bytes]:
    """Return a subject and its beginnings before a dot."""
    tokens = subject.split(b".")
    return [b".".join(tokens[:n]) for n in range(1, len(tokens) + 1)]


def in_filter(data: bytes, names: set[bytes]) -> float:
    """Return the share of ``names`` that a subject filter seems to have."""
    places, values = int.from_bytes(data[:4], "little"), set(accumulate(data[4:]))
    return sum(crc32(name) % places in values for name in names) / len(names)


@pytest.mark.parametrize("name", SOUND)
def test_headers(name: str) -> None:
    """Shows that each sound object begins with the page's header."""
    data = (HERE / f"{name}.bin").read_bytes()
    header = fields("header", data)
    assert header["magic"] == b"JETBLOCK"
    assert header["size"] == len(data)
    assert [header["epoch"], header["number"]] == SOUND[name]["position"]
    check(data, 0, 60, header["crc"])


@pytest.mark.parametrize("name", [name for name, expected in SOUND.items() if expected["kind"] in ("SEGMENT", "RUN")])
def test_segments_and_runs(name: str) -> None:
    """Shows that blocks, records and messages are those of the JSON beside the object."""
    data = (HERE / f"{name}.bin").read_bytes()
    fixed, expected = fields("fixed part", data), SOUND[name]["values"]["blocks"]
    first = end_of("fixed part")
    rows = [fields("directory row", data, first + i * end_of("directory row")) for i in range(fixed["blocks"])]
    core_at = first + len(rows) * end_of("directory row")
    check(data, 64, first - 4, fixed["crc"])
    header, values = fields("header", data), SOUND[name]["values"]
    assert (header["number"] - fixed["landed"] if fixed["landed"] else None) == values.get("landed")
    assert header["version"] in ((2, 4) if fixed["landed"] else (1, 2, 4))
    check(data, first, core_at, fixed["directory_crc"])
    index_at = core_at + fixed["cores_bytes"]
    frames_at = index_at + fixed["indexes_bytes"]
    assert frames_at + fixed["frames_bytes"] == len(data)
    assert len(expected) == len(rows)
    for row, block in zip(rows, expected, strict=True):
        core = core_of(data[core_at:core_at + row["core_bytes"]])
        assert core["stream"] == row["stream"] == block["stream_id"]
        assert [core[f"out_{name}"] for name in ("first_seq", "last_seq", "messages", "bytes", "first_time")] == (
            block["outcome"])
        assert [core[name] for name in ("bytes", "raw_bytes", "first_seq", "last_seq", "first_time", "last_time")] == [
            block[name] for name in ("bytes", "raw_bytes", "first_seq", "last_seq", "first_time_ns", "last_time_ns")]
        assert core["removed"] == block["removed"]
        known = [record for record in core["records"] if record["kind"] in set(RecordKind)]
        assert [[record["kind"], record["version"] & 0x7F, bool(record["version"] & 0x80), record["after_seq"],
                 json.loads(json.dumps(record["body"], default=lambda data: data.decode("latin-1")))]
                for record in known] == block["records"]
        for record in known:
            follows_the_page(record["kind"], record["body"])
        assert (core["summary"] is None) == (block["subjects"] is None)
        assert (core["filter"] is None) == ("subject_filter" not in block)
        if core["filter"] is not None:
            assert in_filter(core["filter"], {entry for _, _, subject, *_ in block["messages"]
                                              for entry in entries(subject.encode("latin-1"))}) == 1
            assert in_filter(core["filter"], {b"absent.%d" % i for i in range(2000)}) < 0.05
        if core["messages"]:
            found = messages_of(data[index_at:index_at + row["index_bytes"]],
                                data[frames_at:frames_at + row["frames_bytes"]])
            assert [[seq, time_ns, subject.decode("latin-1"), header]
                    for seq, time_ns, subject, header, _ in found] == [message[:4] for message in block["messages"]]
            for (*_, body), message in zip(found, block["messages"], strict=True):
                if " B, sha256 " in message[4]:
                    assert message[4].startswith(f"{len(body)} B")
                else:
                    assert body.decode("latin-1") == message[4]
        core_at += row["core_bytes"]
        index_at += row["index_bytes"]
        frames_at += row["frames_bytes"]


@pytest.mark.parametrize("name", [name for name, expected in SOUND.items()
                                  if expected["kind"] in ("FORMAT", "CLAIM", "SEAL", "ROOT", "INBOX")])
def test_small_objects(name: str) -> None:
    """Shows that each has one map, after its length and checksum."""
    data = (HERE / f"{name}.bin").read_bytes()
    if fields("header", data)["version"] == 1:
        document = fields("document, version 1", data)
        end = end_of("document, version 1")
        assert end + document["body_bytes"] == len(data)
        assert crc32(data[end:], crc32(data[64:68])) == document["crc"]
    else:
        document = fields("document", data)
        end = end_of("document")
        check(data, 64, end - 4, document["crc"])
        header = header_of(data, 64)
        assert end + header["stored_bytes"] == end + header["raw_bytes"] == len(data)
        assert header["compression"] == 0
        check(data, end, len(data), header["crc"])
    assert isinstance(msgpack.unpackb(data[end:], strict_map_key=False), dict)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["pages", "pages-with-a-subject-filter", "pages-with-staged-blocks"])
def test_pages(name: str, version: str) -> None:
    """Shows that each page is whole and at its place, and that flags show subject filters and staged blocks."""
    data = (HERE / f"{name}{version}.bin").read_bytes()
    fixed, first, size = fields("pages", data), end_of("pages"), end_of("page row")
    check(data, first, first + size * fixed["pages"], fixed["directory_crc"])
    for i in range(fixed["pages"]):
        row = fields("page row", data, first + size * i)
        page = data[row["offset"]:row["offset"] + row["bytes"]]
        head = fields("page", page)
        assert (head["magic"], head["kind"], head["key"]) == (b"JPAG", row["kind"], row["key"])
        section, rest = section_of("page", page)
        assert not rest
        body = msgpack.unpackb(section)
        assert body is not None
        if head["flags"] & 16:
            assert [reference[0] for [reference] in body[1]] == [4, 4]
        assert head["flags"] & 22 == {"pages": 0, "pages-with-a-subject-filter": 2,
                                      "pages-with-staged-blocks": 16}[name]
        if head["flags"] & 2:
            _, [[reference]] = body
            assert in_filter(reference[-1], {b"sensor", b"sensor.7", b"sensor.7.temp"}) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_summaries(version: str) -> None:
    """Shows that a table's summary agrees with its blocks: inline, and of a page elsewhere."""
    data = (HERE / f"pages-with-summaries{version}.bin").read_bytes()
    row = fields("page row", data, end_of("pages"))
    page = data[row["offset"]:row["offset"] + row["bytes"]]
    head = fields("page", page)
    assert head["flags"] & 8
    body = msgpack.unpackb(section_of("page", page)[0])
    [[[room, inline, place, summary]]], [[[_, nothing, elsewhere, other]]] = [stream[14:15] for stream in body]
    assert (place, nothing, elsewhere[4]) == (None, None, 3)
    if head["version"] == 1:
        size, stored = inline
        raw = unpacked(stored, size, size != len(stored))
    else:
        section, stored = header_of(inline, 0), inline[end_of("section header"):]
        check(stored, 0, section["stored_bytes"], section["crc"])
        raw = unpacked(stored, section["raw_bytes"], section["compression"] == 1)
    inside, entries = msgpack.unpackb(raw)
    refs = [entry[0] for entry in entries]
    assert (inside, room) == (room, 1024 - len(refs))
    for first, front, last, count, msgs, size, first_time, last_time, segments, runs in (summary, other):
        assert (first, front, last, count) == (refs[0][11], refs[0][12], refs[-1][12], len(refs))
        dead = [entry for entry in entries if len(entry) > 1]
        assert (msgs, size) == (sum(ref[13] for ref in refs) - sum(entry[2] for entry in dead),
                                sum(ref[14] for ref in refs) - sum(entry[3] for entry in dead))
        assert (first_time, last_time) == (refs[0][15], refs[-1][16])
        found = []
        for epoch, number, of, base, width, cells in segments:
            steps = [base + int.from_bytes(cells[i * width:i * width + width], "little") for i in range(of - 1)]
            found += [[1, epoch, at, 0] for at in accumulate(steps, initial=number)]
        found += [run[:4] for run in runs for _ in range(run[4])]
        assert sorted(found) == sorted(ref[:4] for ref in refs)


TYPES = {"str": str, "int": int, "map": dict, "list": list, "column": (list, bytes), "nil": type(None)}


def record_table(kind: int) -> dict[str, tuple[tuple[Any, ...], bool]] | None:
    """Return types, and whether the key may be missing, by key; None if the section has no table."""
    section = re.split(rf"^### {kind}: ", PAGE, flags=re.MULTILINE)[1].split("\n#")[0]
    table = {}
    for keys, value in re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|", section, re.MULTILINE):
        words = value.replace(",", " ").split()
        for key in re.findall(r"`(\w+)`", keys):
            table[key] = tuple(TYPES[word] for word in words if word in TYPES), "optional" in words
    return table or None


def follows_the_page(kind: int, body: Any) -> None:
    """Check that a record's body has the keys and types that its section names."""
    table = record_table(kind)
    if table is None:
        return
    missing = {key for key, (_, optional) in table.items() if not optional} - set(body)
    assert not missing
    assert set(body) <= set(table)
    for key, value in body.items():
        assert not table[key][0] or any(isinstance(value, one) for one in table[key][0]), (kind, key)


@pytest.mark.parametrize("kind", list(RecordKind), ids=lambda kind: kind.name)
def test_every_kind_of_record_has_its_section(kind: RecordKind) -> None:
    """Shows that each kind of record is described."""
    assert len(re.findall(rf"^### {int(kind)}: ", PAGE, re.MULTILINE)) == 1
    assert record_table(kind) or kind in (RecordKind.STREAM_DELETE, RecordKind.MESSAGE_IDS)
