"""Requests an erasure from a broker, and follows it until the last object is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from broker.client.connection import ApiRefusal, Connection
from broker.storage.state.seq_ranges import SeqRanges

__all__ = ["Choice", "Followed", "follow", "known_ones", "parse_ranges", "request", "request_all", "shred"]

_SECONDS: Final = 3600.0
"""The longest time for the choice of messages: a header is looked for in every frame of the stream."""
_POLL_SECONDS: Final = 0.5
_UNAVAILABLE: Final = 503
_UNAVAILABLE_SECONDS: Final = 60.0
"""The kind of the error "temporarily unavailable", and how long it may last."""
_AT_ONCE: Final = 10_000
"""Ranges or ids in one request."""
_BYTES_MAX: Final = 250_000
"""Bytes of ids in one request: servers permit a megabyte, and JSON may take three times as many."""


class Choice(NamedTuple):
    """The messages to erase, as the command line names them."""

    seqs: SeqRanges = SeqRanges()
    subjects: Sequence[str] = ()
    headers: Sequence[str] = ()
    ids: Sequence[str] = ()

    @property
    def kind(self) -> str:
        """The kind of condition, without the values: those may be personal data."""
        return " and ".join(name for name, values in (("sequence", self.seqs), ("subject", self.subjects),
                                                      ("header", self.headers), ("message id", self.ids)) if values)

    def bodies(self) -> Iterable[dict[str, Any]]:
        """Yield the bodies of the requests."""
        if self.seqs:
            yield from ({"seqs": some.text()} for some in self.seqs.parts(_AT_ONCE))
            return
        some: list[str] = []
        size = 0
        for one in self.ids:
            size += len(one.encode())
            if some and (size > _BYTES_MAX or len(some) == _AT_ONCE):
                yield self._others(some)
                some, size = [], len(one.encode())
            some.append(one)
        yield self._others(some)

    def _others(self, ids: list[str]) -> dict[str, Any]:
        return {"subjects": list(self.subjects), "headers": list(self.headers), "ids": ids}


class Followed(NamedTuple):
    """Finished erasures: ``streams`` and objects of all of them.

    ``damaged`` are objects that hold messages and stay, with the reason, and ``unowned`` are shards without a broker
    that may have objects with messages: streams and numbers. ``done`` is empty if there are any.
    """

    erasures: list[str]
    messages: int
    requested: str
    due: str
    done: str
    streams: list[dict[str, Any]]
    deleted: list[dict[str, Any]]
    made: list[dict[str, Any]]
    damaged: dict[str, str]
    unowned: list[tuple[str, int]]


def parse_ranges(text: str) -> SeqRanges:
    """Return the sequences of ``5,7-9``. Raises: ValueError."""
    ranges = []
    for part in filter(None, text.split(",")):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()) or not 0 < int(first) <= int(last or first):
            raise ValueError(f"{part.strip()!r} is no sequence and no range of sequences, such as 5 or 7-9")
        ranges.append((int(first), int(last or first)))
    return SeqRanges(ranges)


async def request(connection: Connection, stream: str, choice: Choice, asks: Callable[[], object] = lambda: None,
                  requested: Callable[[str, int], object] = lambda _id, _messages: None,
                  elsewhere: Callable[[str], object] = lambda _: None,
                  unreadable: Callable[[str, str], object] = lambda _key, _why: None) -> tuple[list[str], int]:
    """Erase messages; return the ids of the erasures and the number of messages that were in streams.

    Args: ``asks`` is called before each request, and ``requested`` receives the id and the number of its answer at
        once; ``elsewhere`` receives each stream that copies from one of this name somewhere else, ``unreadable`` each
        object that may have more of the messages, with the reason.
    Raises: ApiRefusal; ConnectionFailed.
    """
    ids, messages = [], 0
    for body in choice.bodies():
        asks()
        answer = await connection.api(f"JETBLOCK.ERASE.{stream}", body, seconds=_SECONDS)
        ids.append(str(answer["erasure"]))
        requested(ids[-1], int(answer["messages"]))
        for name in answer.get("elsewhere", ()):
            elsewhere(str(name))
        for one in answer.get("unreadable", ()):
            unreadable(str(one["key"]), str(one["reason"]))
        messages += int(answer["messages"])
    return ids, messages


async def known_ones(connection: Connection, stream: str, ids: Sequence[str]) -> list[str]:
    """Return those erasures whose reports the broker still has. Raises: ConnectionFailed."""
    known = []
    for one in ids:
        with suppress(ApiRefusal):
            await connection.api(f"JETBLOCK.ERASURE.{stream}", {"erasure": one})
            known.append(one)
    return known


async def follow(connection: Connection, stream: str, ids: Sequence[str], messages: int,
                 show: Callable[[str, int, int], object]) -> Followed:
    """Wait until all erasures are done; return what became of them. Raises: ApiRefusal; ConnectionFailed."""
    streams: dict[str, tuple[dict[str, Any], SeqRanges]] = {}
    deleted: dict[str, dict[str, Any]] = {}
    made: dict[str, dict[str, Any]] = {}
    requested, due, done = [], [], []
    damaged: dict[str, str] = {}
    unowned: dict[tuple[str, int], None] = {}
    for number, erasure_id in enumerate(ids):
        unowned_at = time.monotonic()
        while True:
            answer = await _state(connection, stream, {"erasure": erasure_id})
            slowest = min(answer["streams"], key=_order)
            behind = slowest.get("progress", {"doing": "done", "bytes": 0, "of": 0})
            if shards := slowest.get("shards"):
                numbers = ", ".join(str(shard["shard"]) for shard in shards)
                behind = {"doing": f"waiting for shard {numbers}, which the stream has left", "bytes": 0, "of": 0}
            show(behind["doing"] + (f" ({number + 1} of {len(ids)})" if len(ids) > 1 else ""), behind["bytes"],
                 behind["of"])
            if not any(one.get("shards") for one in answer["streams"]):
                unowned_at = time.monotonic()
            if all(_ended(one, time.monotonic() - unowned_at) for one in answer["streams"]):
                break
            await asyncio.sleep(_POLL_SECONDS)
        offset = 0
        while True:
            due.append(answer["due"])
            for one in answer["streams"]:
                known = streams.get(one["stream"])
                seqs = parse_ranges(one["sequences"])
                streams[one["stream"]] = one, seqs if known is None else known[1] | seqs
                requested.append(one["requested"])
                done.append(one.get("done", ""))
                for where in (one, *one.get("shards", ())):
                    damaged.update((file["key"], file["reason"]) for file in where.get("damaged", ()))
                unowned.update(((one["stream"], shard["shard"]), None) for shard in one.get("shards", ())
                               if not shard.get("damaged"))
                deleted.update((file["key"], file) for file in one["held"])
                made.update((file["key"], file) for file in one["made"])
                offset = max(offset, one["offset"])
            if all(one["offset"] >= one["objects"] for one in answer["streams"]):
                break
            answer = await _state(connection, stream, {"erasure": erasure_id, "offset": offset})
    return Followed(list(ids), messages, min(requested), max(due), max(done) if all(done) else "", [
        {"stream": name, "incarnation": one["incarnation"], "sequences": seqs.text()}
        for name, (one, seqs) in streams.items()], list(deleted.values()),
        [one for key, one in made.items() if key not in deleted], damaged, list(unowned))


async def _state(connection: Connection, stream: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return what became of an erasure. A broker may be unavailable for a moment, such as one that takes a shard."""
    end = time.monotonic() + _UNAVAILABLE_SECONDS
    while True:
        try:
            return await connection.api(f"JETBLOCK.ERASURE.{stream}", body)
        except ApiRefusal as refusal:
            if refusal.code != _UNAVAILABLE or time.monotonic() > end:
                raise
        await asyncio.sleep(_POLL_SECONDS)


async def request_all(connection: Connection, stream: str) -> tuple[list[str], int]:
    """Erase all messages of a stream that will be shredded, whatever it permits; return the same as ``request``."""
    answer = await connection.api(f"JETBLOCK.SHRED.{stream}", {"erase_only": True}, seconds=_SECONDS)
    return [str(answer["erasure"])], int(answer["messages"])


async def shred(connection: Connection, stream: str) -> Mapping[str, Any]:
    """Delete a stream and destroy its key; return the broker's answer. Raises: ApiRefusal; ConnectionFailed."""
    return await connection.api(f"JETBLOCK.SHRED.{stream}", {}, seconds=_SECONDS)


def _ended(one: dict[str, Any], seconds: float) -> bool:
    """Return whether an erasure is done in a stream, as far as it can be: damaged objects stay, and so do those of
    shards without a broker. ``seconds``: for how long other shards have been waited for."""
    left, damaged = int(one.get("left", 0)), len(one.get("damaged", ()))
    if shards := one.get("shards"):
        return left == damaged and all(shard.get("damaged") or (seconds > _UNAVAILABLE_SECONDS and not shard["owned"])
                                       for shard in shards)
    if one["state"] != "deleting":
        return bool(one["state"] == "done")
    return 0 < left == damaged


def _order(one: dict[str, Any]) -> int:
    return ("marked", "deleting", "done").index(one["state"])
