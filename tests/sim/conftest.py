"""Bounds so small that a few dozen messages reach states that need millions in production."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

import broker.jetstream.stream.dropping as dropping
import broker.jetstream.stream.publish.ceiling as ceiling
import broker.jetstream.stream.publish.sequencer as sequencer
import broker.storage.checkpoint.directory_pages as directory_pages
import broker.storage.checkpoint.subject_pages as subject_pages
import broker.storage.state.ids as state_ids
import broker.storage.state.packed as packed
import broker.storage.state.pages as pages
import broker.storage.state.table as table


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use pages of a few blocks, so that every form of a checkpoint occurs; unpack none of them, and keep no idle
    stream's blocks for long. A run of messages reaches a ceiling."""
    make_small(monkeypatch)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "PAGE_ENTRIES", 4)
    monkeypatch.setattr(pages, "INLINE_BLOCKS_MAX", 3)
    monkeypatch.setattr(pages, "LISTED_BLOCKS_MAX", 1)
    monkeypatch.setattr(packed, "_recent", packed._Recent(4))
    monkeypatch.setattr(dropping, "_BLOCKS_MAX", 0)
    monkeypatch.setattr(dropping, "_IDLE_NS", 0)
    monkeypatch.setattr(pages, "INLINE_CONSUMER_MAX", 25)
    monkeypatch.setattr(pages, "DIRECTORY_STREAMS", 2)
    monkeypatch.setattr(directory_pages, "DIRECTORY_STREAMS", 2)
    monkeypatch.setattr(directory_pages, "_PAGE_OBJECTS_MAX", 4)
    monkeypatch.setattr(subject_pages, "BLOCKS_MIN", 8)
    monkeypatch.setattr(subject_pages, "ROWS_MAX", 20)
    monkeypatch.setattr(state_ids, "PART_IDS", 12)
    monkeypatch.setattr(pages, "INLINE_IDS_BYTES_MAX", 60)
    monkeypatch.setattr(directory_pages, "_IDS_BYTES_MAX", 200)
    monkeypatch.setattr(ceiling, "_STEP", 64)
    monkeypatch.setattr(sequencer, "_CEILING_MARGIN", 16)
