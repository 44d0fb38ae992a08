"""Objects of earlier releases are read with the same result as then, and damaged ones are refused as then."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.storage.format.header import ObjectKind, Position
from tests.golden.generate import HERE, Golden, damaged, expectation, sound

FILES = sorted(HERE.glob("*.bin"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_golden(path: Path) -> None:
    """Shows that each object gives its values, or its error with the same section and offset."""
    expected = json.loads(path.with_suffix(".json").read_text())
    golden = Golden(path.stem, path.read_bytes(), ObjectKind[expected["kind"]], Position(*expected["position"]),
                    expected["object_id"])
    assert expectation(golden) == expected


def test_every_golden_object_is_there() -> None:
    """Shows that none was lost: each object of the generator is in the folder, with its expectation."""
    names = {path.stem for path in FILES}
    assert {golden.name for golden in [*sound(), *damaged()]} <= names
    assert names == {path.stem for path in HERE.glob("*.json")}


@pytest.mark.parametrize("golden", [one for one in sound() if len(one.data) < 600], ids=lambda golden: golden.name)
def test_the_layout_is_written_as_it_was(golden: Golden) -> None:
    """Shows that today's writer produces exactly the same bytes, for objects that are not compressed."""
    assert (HERE / f"{golden.name}.bin").read_bytes() == golden.data
