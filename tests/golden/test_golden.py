"""Objects written long ago are read as they were then, and damaged ones are refused as they were then."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.storage.format.header import ObjectKind, Position
from tests.golden.generate import HERE, Golden, damaged, expectation, sound

FILES = sorted(HERE.glob("*.bin"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_golden(path: Path) -> None:
    """Shows that each object still gives its values, or its error with the same section and offset."""
    said = json.loads(path.with_suffix(".json").read_text())
    golden = Golden(path.stem, path.read_bytes(), ObjectKind[said["kind"]], Position(*said["position"]),
                    said["object_id"])
    assert expectation(golden) == said


def test_every_golden_object_is_there() -> None:
    """Shows that none was lost: what the generator knows lies here, each with its expectation."""
    names = {path.stem for path in FILES}
    assert {golden.name for golden in [*sound(), *damaged()]} <= names
    assert names == {path.stem for path in HERE.glob("*.json")}


@pytest.mark.parametrize("golden", [one for one in sound() if len(one.data) < 600], ids=lambda golden: golden.name)
def test_the_layout_is_written_as_it_was(golden: Golden) -> None:
    """Shows that today's writer gives the very bytes, where no compressor has a say in them."""
    assert (HERE / f"{golden.name}.bin").read_bytes() == golden.data
