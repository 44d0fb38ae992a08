"""A streaming query's offsets, its start, and the division of a batch's limit among streams.

Spark keeps offsets in its checkpoint as JSON:

    {"v": 1, "streams": {"ACCOUNT/NAME": {"id": "<incarnation, 16 hex digits>", "next": <first sequence not read>}}}

The first two offsets carry more. If Spark restarts before the first batch was committed, it requests the initial offset
again and replays that batch up to the recorded end. By then "latest" is a later place. So an initial offset is marked
as such, and the end of the first batch records where the query really began:

    initial   {"v": 1, "initial": true, "streams": …}
    first end {"v": 1, "began": {as streams}, "streams": …}

Spark compares offsets as text, so equal offsets must have equal text: streams are sorted by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from broker.pipeline.errors import BadOption, Newer, PipelineError
from broker.pipeline.plan.selection import SEQ_MAX, time_ns

__all__ = ["Backlog", "Offsets", "Place", "Start", "share"]

VERSION = 1
_ID = re.compile(r"[0-9a-f]{16}")
_SEQ = re.compile(r"[0-9]{1,20}")


class Place(NamedTuple):
    """A place in one stream: its incarnation and the first unread sequence."""

    stream_id: int
    next_seq: int


@dataclass(frozen=True)
class Offsets:
    """Places by "ACCOUNT/NAME", sorted. ``began`` is set at the end of the first batch: the places where the query
    began."""

    streams: Mapping[str, Place]
    initial: bool = False
    began: Mapping[str, Place] | None = None

    @classmethod
    def of(cls, streams: Mapping[str, Place], *, initial: bool = False, began: Mapping[str, Place] | None = None
           ) -> Offsets:
        return cls(dict(sorted(streams.items())), initial, None if began is None else dict(sorted(began.items())))

    @classmethod
    def parse(cls, value: object) -> Offsets:
        """Parse an offset that ``to_json`` returned. Raises: Newer; PipelineError naming the wrong part."""
        if not isinstance(value, dict):
            raise PipelineError(f"not an offset of jetblock: {_short(value)}; does the checkpoint belong to another "
                                "source?")
        version = value.get("v")
        if type(version) is int and version > VERSION:
            raise Newer(f"the offset is of version {version}, and this jetblock knows {VERSION}: a newer jetblock "
                        f"wrote the checkpoint; use that version or a newer one")
        if version != VERSION or type(version) is not int:
            raise PipelineError(f'not an offset of jetblock, "v" is {_short(version)}: {_short(value)}; does the '
                                'checkpoint belong to another source?')
        if unknown := set(value) - {"v", "streams", "initial", "began"}:
            raise PipelineError(f"an offset with unknown parts {', '.join(sorted(map(repr, unknown)))}: "
                                f"{_short(value)}")
        if type(value.get("initial", False)) is not bool:
            raise PipelineError(f'"initial" of an offset is {_short(value["initial"])}, not true or false')
        began = _places(value["began"], "began") if "began" in value else None
        return cls.of(_places(value.get("streams"), "streams"), initial=value.get("initial", False), began=began)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; equal offsets give dicts in the same order."""
        value: dict[str, Any] = {"v": VERSION}
        if self.initial:
            value["initial"] = True
        if self.began is not None:
            value["began"] = _packed(self.began)
        value["streams"] = _packed(self.streams)
        return value

    def start_of(self, end: Offsets) -> Mapping[str, Place]:
        """Return the places where the batch from this offset to ``end`` begins."""
        return end.began if self.initial and end.began is not None else self.streams


def _packed(places: Mapping[str, Place]) -> dict[str, Any]:
    return {name: {"id": f"{place.stream_id:016x}", "next": place.next_seq} for name, place in places.items()}


def _places(value: object, part: str) -> dict[str, Place]:
    if not isinstance(value, dict):
        raise PipelineError(f'"{part}" of an offset must be {{"ACCOUNT/NAME": {{"id": …, "next": …}}}}, not '
                            f'{_short(value)}')
    places = {}
    for name, place in value.items():
        account, slash, stream = name.rpartition("/")
        if not (account and slash and stream):
            raise PipelineError(f'"{part}" of an offset names {name!r}, which is not "ACCOUNT/NAME"')
        if not isinstance(place, dict) or set(place) != {"id", "next"}:
            raise PipelineError(f'{name} in an offset must be {{"id": …, "next": …}}, not {_short(place)}')
        stream_id, next_seq = place["id"], place["next"]
        if not isinstance(stream_id, str) or not _ID.fullmatch(stream_id):
            raise PipelineError(f'"id" of {name} in an offset must be 16 hexadecimal digits, not {_short(stream_id)}')
        if type(next_seq) is not int or not 0 < next_seq <= SEQ_MAX:
            raise PipelineError(f'"next" of {name} in an offset must be a sequence from 1 on, not {_short(next_seq)}')
        places[name] = Place(int(stream_id, 16), next_seq)
    return places


def _short(value: object) -> str:
    text = json.dumps(value, default=repr, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}…"


@dataclass(frozen=True)
class Start:
    """The start of a new query, from the option ``startingOffsets``. At most one field is set; if none is, it is
    ``latest``."""

    earliest: bool = False
    seq: int | None = None
    """The first sequence to read, in each stream."""
    time_ns: int | None = None
    """The first message of this time or later."""
    offsets: Offsets | None = None

    @property
    def latest(self) -> bool:
        return not self.earliest and self.seq is None and self.time_ns is None and self.offsets is None

    @classmethod
    def parse(cls, text: str) -> Start:
        """Parse the option. Raises: BadOption naming the value and what is allowed."""
        word = text.strip()
        kind, colon, rest = word.partition(":")
        if word.lower() == "earliest":
            return cls(earliest=True)
        if word.lower() == "latest":
            return cls()
        try:
            if word.startswith("{"):
                return cls(offsets=Offsets.parse(json.loads(word)))
            if colon and kind.lower() == "seq":
                return cls(seq=_seq(rest))
            if colon and kind.lower() == "time":
                return cls(time_ns=time_ns(rest))
            return cls(seq=_seq(word)) if word.isdigit() else cls(time_ns=time_ns(word))
        except (ValueError, PipelineError) as error:
            raise BadOption(f"option startingOffsets={text!r}: {error}; write earliest, latest, seq:N, a time "
                            f"(2026-11-21T14:00:00Z), or an offset's JSON") from None


def _seq(text: str) -> int:
    if not _SEQ.fullmatch(text) or not 0 < int(text) <= SEQ_MAX:
        raise ValueError(f"{text!r} is no sequence: sequences are whole numbers from 1")
    return int(text)


class Backlog(Protocol):
    """The unread part of one stream."""

    @property
    def done(self) -> bool:
        """Return whether all messages have been passed."""

    def advance(self, rows: int, size: int) -> tuple[int, int]:
        """Advance past as many messages as fit into ``rows`` and ``size`` bytes; return their number and size."""


def share(backlogs: Sequence[Backlog], rows: int, size: int, turn: int) -> None:
    """Advance ``backlogs`` by at most ``rows`` messages and ``size`` bytes in all.

    Each backlog gets an equal part; if one does not use its part, the others share the rest. So a quiet stream is read
    to its end, however large a busy one's backlog is. ``turn`` rises from batch to batch and selects the backlog that
    gets an indivisible remainder first. A message larger than ``size`` makes a batch of its own.
    """
    order = list(backlogs[turn % len(backlogs):]) + list(backlogs[:turn % len(backlogs)]) if backlogs else []
    waiting = [backlog for backlog in order if not backlog.done]
    anything = False
    while waiting and rows > 0 and size > 0:
        moved = False
        part_rows, part_size = max(1, rows // len(waiting)), max(1, size // len(waiting))
        for backlog in waiting:
            used_rows, used_size = backlog.advance(min(part_rows, rows), min(part_size, size))
            rows, size = rows - used_rows, size - used_size
            moved = moved or used_rows > 0
            if not rows or size <= 0:
                break
        anything = anything or moved
        waiting = [backlog for backlog in waiting if not backlog.done]
        if not moved:
            break
    for backlog in waiting:  # A part was smaller than one message: give the remainder to one backlog after another.
        used_rows, used_size = backlog.advance(rows, size)
        rows, size = rows - used_rows, size - used_size
        anything = anything or used_rows > 0
    if not anything:
        for backlog in waiting:
            if backlog.advance(1, SEQ_MAX)[0]:
                return
