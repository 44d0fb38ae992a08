"""Erasure on request: chooses the messages of a stream and of the streams that copy from it, and erases them.

Messages are chosen from all stored blocks, not from the stream: an old revision of a key, which a limit has removed
long ago, may still be in the store, and leaves it too. The choice becomes sequences before anything is recorded, so
neither a subject nor a header of a person enters the log.

Owns: the choice, and the copies of a stream. Does not own: marks and removals (``Stream.erase``), the bytes
(``storage.erasure``).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.jetstream.config.stream import ExternalStream, StreamConfig, StreamSource
from broker.jetstream.config.upstream_rules import stream_name
from broker.jetstream.filters import Filters
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.protocol import headers
from broker.storage.format.errors import FormatError
from broker.storage.objectstore.base import NotFound
from broker.storage.state.seq_ranges import SeqRanges

if TYPE_CHECKING:
    from broker.jetstream.stream.stream import Stream
    from broker.storage.erasure.stored_blocks import StoredBlock, StoredBlocks
    from broker.storage.format.frame import Chunk
    from broker.storage.format.index import Head

__all__ = ["ASKED_MAX", "CopyOf", "Erased", "Wanted", "copies_elsewhere", "copies_of", "erase", "parse_seqs",
           "wanted_headers"]

_log = logging.getLogger(__name__)

_MSG_IDS: Final = re.compile(rb"\r\nNats-Msg-Id:([^\r\n]*)")
_SOURCE: Final = b"Nats-Stream-Source"
_CONSUMER: Final = b":C="
"""Between the name of an origin and a hash, if messages were copied by a named consumer."""
_ALL: Final = SeqRanges(((0, (1 << 64) - 1),))
_RANGE: Final = re.compile(r"([0-9]{1,20})(?:-([0-9]{1,20}))?", re.ASCII)
_RANGES_MAX: Final = 100_000
"""The most ranges of one erasure: its mark is a record of the log, and part of each checkpoint until it is done."""
_HEADERS_AT_ONCE: Final = 500
"""Messages whose headers are compared in one turn of the loop: about 2 ms."""
ASKED_MAX: Final = 10_000
"""The most ranges in one request: they are parsed in one turn of the loop."""


@dataclass(frozen=True)
class Wanted:
    """The messages to erase: those with one of the sequences, or those that fulfil all other conditions.

    ``subjects`` are filters. ``headers`` are names, each with the value it must have, or None for any.
    ``origin`` has the names of the stream from which messages were copied, and the sequences of the messages in it.
    """

    seqs: SeqRanges = field(default_factory=SeqRanges)
    subjects: Filters | None = None
    headers: Mapping[bytes, bytes | None] = field(default_factory=dict)
    ids: frozenset[bytes] = frozenset()
    origin: tuple[frozenset[bytes], SeqRanges] | None = None

    def __bool__(self) -> bool:
        return bool(self.seqs or self.subjects is not None or self.needs_headers)

    @property
    def needs_headers(self) -> bool:
        """True if subjects and sequences do not decide."""
        return bool(self.headers or self.ids or self.origin)

    def has(self, block: bytes) -> bool:
        """Return whether a message with this header block fulfils the conditions about headers."""
        # Many ids are searched in all messages: to parse the other headers would take ten times as long.
        if self.ids and self.ids.isdisjoint(map(bytes.strip, _MSG_IDS.findall(block))):
            return False
        if not (self.headers or self.origin):
            return True
        found = headers.items(block) if block else []
        if any(not any(name == has and value in (None, is_) for has, is_ in found)
               for name, value in self.headers.items()):
            return False
        if self.origin is None:
            return True
        names, seqs = self.origin
        for name, value in found:
            words = value.split(b" ", 2)
            if name == _SOURCE and len(words) > 1 and words[0].partition(_CONSUMER)[0] in names and words[1].isdigit():
                return int(words[1]) in seqs
        return False


class Erased(NamedTuple):
    """An erasure in one stream: the sequences, and how many of them were messages of the stream.

    ``conditions`` are those that its messages fulfilled; None: the sequences suffice.
    """

    stream: Stream
    seqs: SeqRanges
    removed: int
    conditions: Wanted | None


class CopyOf(NamedTuple):
    """The messages that were erased in the origin of a stream; see ``Erased``."""

    origin: str
    seqs: SeqRanges
    conditions: Wanted | None


def parse_seqs(text: str) -> SeqRanges:
    """Return the sequences of a text such as ``5,7-9``. Raises: ValueError."""
    if text.count(",") >= ASKED_MAX:
        raise ValueError(f"one request has at most {ASKED_MAX} ranges of sequences: erase in parts")
    ranges = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{part.strip()!r} is no sequence and no range of sequences")
        first = int(match[1])
        last = int(match[2] or first)
        if not 0 < first <= last < 1 << 64:
            raise ValueError(f"{part.strip()!r} is no range of sequences")
        ranges.append((first, last))
    return SeqRanges(ranges)


async def erase(streams: Mapping[str, Stream], stream: Stream, blocks_of: Callable[[Stream], StoredBlocks],
                wanted: Wanted, erasure_id: str, *, domain: str = "", shredding: bool = False,
                read_again: Callable[[str], object] = lambda _: None, copy_of: CopyOf | None = None,
                unreadable: dict[str, str] | None = None) -> list[Erased]:
    """Erase messages of ``stream``, and their copies in the other ``streams`` of the account.

    Args: ``blocks_of`` returns the blocks of the shard that has a stream. ``domain``: that of the server, by whose API
        streams of this account may be named, too. ``shredding``: the stream itself will be
        deleted, so it cannot forbid the loss of its messages. ``read_again`` lets the copies of a stream drop messages
        that they have read and not stored. ``copy_of``: the stream is a copy of one that another broker has, and loses
        what that one has lost; ``wanted`` is not used then. ``unreadable`` receives the objects that may have more of
        the messages and cannot be read, with the reasons.
    Returns once the removals are sequenced: what was erased in ``stream``, and in each copy in this broker, even if
        that is nothing. Raises: ApiError; StoreError; FormatError.
    """
    origins = copies_of(stream.name, {one.name: one.config for one in streams.values() if one.stored}, domain)
    for name in (stream.name, *origins):
        if not shredding or name != stream.name:
            check(streams[name])
    done: dict[str, Erased] = {}
    for name, origin in {stream.name: "", **origins}.items():
        one = streams[name]
        above = CopyOf(origin, done[origin].seqs, done[origin].conditions) if origin else copy_of
        if above is None:
            seqs = (await choose(one, blocks_of(one), wanted, unreadable)).cut(1, one.last_seq)
            conditions = None if wanted.seqs else wanted
        else:
            seqs = SeqRanges()
            if above.seqs:
                seqs = await choose(one, blocks_of(one), _copied(one, above, domain), unreadable)
            conditions = _conditions_of_copy(one, above, domain)
            if conditions is not None:
                seqs |= await choose(one, blocks_of(one), conditions, unreadable)
        if len(seqs) > _RANGES_MAX:
            raise ApiError(ApiErrors.STREAM_MSG_DELETE_FAILED, err=(
                f"{len(seqs)} ranges of sequences in stream {name}, and one erasure has at most {_RANGES_MAX}: "
                f"erase in parts"))
        removed = await one.erase(seqs, erasure_id) if seqs or one is stream else 0
        done[name] = Erased(one, seqs, removed, conditions)
        read_again(name)
    return list(done.values())


def check(stream: Stream) -> None:
    """Check that messages of a stream may be erased: whoever may purge it or delete from it may erase.

    A bucket of keys and values denies deletes but not purges. Raises: ApiError.
    """
    check_stored(stream)
    if stream.config.sealed:
        raise ApiError(ApiErrors.STREAM_SEALED)
    if stream.config.deny_delete and stream.config.deny_purge:
        raise ApiError(ApiErrors.STREAM_MSG_DELETE_FAILED, err=f"stream {stream.name} permits neither delete nor purge")


def check_stored(stream: Stream) -> None:
    """Check that a stream is in the store. Raises: ApiError."""
    if not stream.stored:
        raise ApiError(ApiErrors.STREAM_MSG_DELETE_FAILED,
                       err="a memory stream stores nothing that could be erased; purge it")


def copies_of(name: str, configs: Mapping[str, StreamConfig], domain: str) -> dict[str, str]:
    """Return the streams that copy from a stream, also by way of others, each with the one that it copies from.

    A stream follows the one that it copies from, which is unique: a stream that reaches another in two ways can't be
    made.
    """
    copies: dict[str, list[str]] = {}
    for copy, config in configs.items():
        for origin in _named(config, domain)[0]:
            copies.setdefault(origin, []).append(copy)
    found: dict[str, str] = {}
    left = [name]
    for one in left:
        new = [copy for copy in copies.get(one, ()) if copy not in found and copy != name]
        found.update(dict.fromkeys(new, one))
        left += new
    return found


def copies_elsewhere(streams: Mapping[str, Stream], names: Collection[str], domain: str) -> list[str]:
    """Return the streams that copy from a stream with one of these names by the API of another account or server, which
    may lead back to this account."""
    return [one.name for one in streams.values() if one.stored and one.name not in names
            and not _named(one.config, domain)[1].isdisjoint(names)]


def _named(config: StreamConfig, domain: str) -> tuple[set[str], set[str]]:
    """Return the names of a stream's origins in this account, and elsewhere."""
    here: set[str] = set()
    elsewhere: set[str] = set()
    for origin in (config.mirror, *config.sources):
        if origin is not None:
            own = origin.external is None or (domain and origin.external.api == f"$JS.{domain}.API")
            (here if own else elsewhere).add(origin.name)
    return here, elsewhere


def _conditions_of_copy(copy: Stream, of: CopyOf, domain: str) -> Wanted | None:
    """Return the conditions that the copies of wanted messages fulfil, whether or not the origin still has them.

    A copy may keep messages for longer than its origin. The origin has erased some already if the broker was killed
    before the copy was marked. None: the conditions do not say which messages of the copy came from the stream.
    """
    config, wanted = copy.config, of.conditions
    if wanted is None or config.subject_transform is not None or any(
            one.subject_transforms for one in (config.mirror, *config.sources) if one is not None):
        return None
    if config.mirror is not None:
        return wanted
    return None if wanted.origin is not None else replace(wanted, origin=(_names(of.origin, domain), _ALL))


def _copied(copy: Stream, of: CopyOf, domain: str) -> Wanted:
    """Return which messages of a stream are copies of those that were erased in its origin."""
    if copy.config.mirror is not None:
        return Wanted(of.seqs)
    return Wanted(origin=(_names(of.origin, domain), of.seqs))


def _names(origin: str, domain: str) -> frozenset[bytes]:
    """Return how copied messages name a stream of this account, as it is and by its own domain (``stream_name``)."""
    own = StreamSource(origin, external=ExternalStream(api=f"$JS.{domain}.API"))
    return frozenset({origin.encode(), stream_name(own).encode()})


async def choose(stream: Stream, blocks: StoredBlocks, wanted: Wanted, unreadable: dict[str, str] | None = None
                 ) -> SeqRanges:
    """Return the sequences of the wanted messages that the store may have, live or removed.

    Objects that cannot be read, and may have such messages, are added to ``unreadable``, with the reason.
    """
    unreadable = {} if unreadable is None else unreadable
    await stream.log.persisted()
    if wanted.seqs:
        return wanted.seqs
    found: list[tuple[int, int]] = []
    async with aclosing(blocks.objects({stream.stream_id: (stream.account, stream.name)})) as objects:
        async for one in objects:
            if one.unreadable is not None:
                unreadable[one.key] = one.unreadable.why
            for block in one.blocks:
                try:
                    found += [(seq, seq) for seq in await _chosen(block, blocks, wanted)]
                except NotFound:
                    continue  # it was deleted meanwhile; if it was compacted, its messages are in another object
                except FormatError as error:
                    unreadable[block.key] = str(error)
    for key, why in unreadable.items():
        _log.warning("erasure cannot read %s, which may have messages of stream %s: %s", key, stream.name, why)
    return SeqRanges(found)


async def _chosen(block: StoredBlock, blocks: StoredBlocks, wanted: Wanted) -> list[int]:
    subjects, known = wanted.subjects, block.ref.subjects
    if subjects is not None and known is not None and not subjects.any(row[0] for row in known):
        return []
    head = await blocks.head(block)
    ids = None if subjects is None else {i for i, name in enumerate(head.subjects) if subjects.decide(name)}
    if ids is not None and not ids:
        return []
    if not wanted.needs_headers:
        return [seq for number in sorted(ids or ()) for seq in map(head.seq_of, head.postings(number))]
    seqs: list[int] = []
    async with aclosing(blocks.chunks(block, head)) as chunks:
        async for chunk in chunks:
            for start in range(0, len(chunk), _HEADERS_AT_ONCE):
                some = range(start, min(start + _HEADERS_AT_ONCE, len(chunk)))
                seqs += _with_headers(chunk, some, wanted, head, ids)
                await asyncio.sleep(0)
    return seqs


def _with_headers(chunk: Chunk, rows: Iterable[int], wanted: Wanted, head: Head, ids: set[int] | None
                  ) -> Iterator[int]:
    for i in rows:
        hlen = 0 if chunk.hlens is None else chunk.hlens[i]
        if ids is not None and head.subject_ids is not None and head.subject_ids[chunk.start + i] not in ids:
            continue
        if wanted.has(bytes(chunk.bodies[i][:hlen])):
            yield chunk.seq(i)


def wanted_headers(texts: Sequence[str]) -> dict[bytes, bytes | None]:
    """Return the conditions that texts such as ``Name: value`` and ``Name`` give."""
    found: dict[bytes, bytes | None] = {}
    for text in texts:
        name, colon, value = text.partition(":")
        found[name.strip().encode()] = value.strip().encode() if colon else None
    return found
