"""Dumps: all parts of an object; of a damaged object all parts that can be decoded, and the places of the damage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker.base.output import outline
from broker.inspect.dump import dump
from broker.storage.format.header import Position
from broker.storage.objectstore.memory import MemoryStore
from tests.inspect.stores import PATHS, filled

GOLDEN = sorted((Path(__file__).parent.parent / "golden" / "blocks").glob("*.bin"))


async def store_of() -> MemoryStore:
    store = MemoryStore()
    owner = await filled(store)
    await owner.kill()
    return store


def rows(dumped: dict[str, Any]) -> list[tuple[int, str]]:
    return [(row["seq"], row["begins"]) for block in dumped["blocks"] for row in block.get("rows", ())
            if "begins" in row]


async def test_every_object_is_shown_whole() -> None:
    """A dump of an undamaged object lists no damage, and can be shown as JSON and text."""
    store = await store_of()
    for key, data in store.objects.items():
        dumped = dump(key, data)
        assert dumped["wrong"] == [], (key, dumped["wrong"])
        assert dumped["bytes"] == len(data)
        json.dumps(dumped)
        assert outline(dumped)
    segment = dump(PATHS.log(Position(1, 3)), store.objects[PATHS.log(Position(1, 3))])
    assert len(rows(segment)) == 302
    assert rows(segment)[0] == (1, "order 0")
    assert segment["blocks"][0]["rows"][0]["headers"] == "Nats-Msg-Id: 1"
    assert dump(PATHS.epoch(1), store.objects[PATHS.epoch(1)])["body"]["owner"] == "broker-a"


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_objects(path: Path) -> None:
    """A golden object that must be refused has damage in the section that its expectation names. An undamaged one
    has none, and no bytes make a dump fail."""
    expectation = json.loads(path.with_suffix(".json").read_text())
    epoch, number = expectation["position"]
    key = {"FORMAT": "v1/format", "CLAIM": PATHS.epoch(epoch), "INBOX": PATHS.inbox(expectation["object_id"]),
           "ROOT": PATHS.checkpoint(Position(epoch, number)), "PAGES": PATHS.pages(Position(epoch, number)),
           "RUN": PATHS.run(Position(epoch, number), expectation["object_id"])}.get(
               expectation["kind"], PATHS.log(Position(epoch, number)))
    found = dump(key, path.read_bytes())
    name = path.stem.removesuffix("-format-4")
    json.dumps(found)
    if "error" not in expectation:
        assert found["wrong"] == []
    elif name in ("unknown-record-that-must-be-understood", "record-of-a-newer-version"):
        assert not found["blocks"][0]["records"][-1]["understood"]
    elif name != "seal-instead-of-segment":  # it may be at a log's key
        assert expectation["error"]["section"] in [row["section"] for row in found["wrong"]]


async def test_blocks_are_found_without_header_or_directory() -> None:
    """Damage of header, fixed part or directory costs no message, and damage elsewhere costs only its own part."""
    store = await store_of()
    key = PATHS.log(Position(1, 4))
    data = store.objects[key]
    whole = rows(dump(key, data))
    assert len(whole) == 302
    for at in (0, 8, 16, 61, 64, 70, 97, 105, 150, 200):
        dumped = dump(key, data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1:])
        assert dumped["wrong"], at
        assert rows(dumped) == whole, at
    blocks = dump(key, data)["blocks"]
    lost = {blocks[1]["core_offset"] + 3: 302, blocks[0]["index_offset"] + 80: 300, len(data) - 1: 262}
    for at, left in lost.items():
        dumped = dump(key, data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1:])
        assert len(rows(dumped)) == left, at
    both = bytearray(data)
    both[110] ^= 1  # no directory, and the first block's index damaged: the second is found from the object's end
    both[blocks[0]["index_offset"] + 80] ^= 1
    assert len(rows(dump(key, bytes(both)))) == 300
    cut = dump(key, data[:-300])
    assert len(rows(cut)) == 2 + 88 + 86  # the last two frames are cut
    assert {row["section"] for row in cut["wrong"]} > {"header"}


async def test_a_broken_map_is_read_up_to_the_break() -> None:
    """A small object that was cut shows the members before the cut."""
    store = await store_of()
    key = PATHS.epoch(2)
    dumped = dump(key, store.objects[key][:-4])
    assert dumped["body"] == {"owner": "broker-a"}
    assert dumped["wrong"]


def test_foreign_objects() -> None:
    """Any bytes under any key are shown."""
    dumped = dump("v1/notes.txt", b"hello")
    assert "no key of a jetblock store" in dumped["names"]
    assert dumped["wrong"][0]["what"] == "cut short: 5 of 64 bytes"
    assert dump("v1/format", bytes(500))["wrong"]
