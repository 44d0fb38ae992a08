"""A request in the inbox of a shard's owner: append these runs to a stream."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

from broker.storage.format.document import decode_document, encode_document, field
from broker.storage.format.errors import Corrupt, VersionUnknown
from broker.storage.format.header import NUMBER_MAX, ObjectKind, Position, object_name
from broker.storage.format.section import SECTIONS, SectionCodec
from broker.storage.format.staged import STAGED_EPOCH

__all__ = ["BLOCKS_MAX", "BLOCK_MESSAGES_MAX", "BYTES_MAX", "RUNS_MAX", "Acting", "Request", "StagedRun", "Times",
           "Version", "excess", "request_id_of"]

RUNS_MAX = 4096
BLOCKS_MAX = 4096
"""Blocks of one request: they become one record, which is applied in one turn of the loop, in some milliseconds."""
BYTES_MAX = 64 << 30
"""Bytes of the runs of one request, as stored: the owner reads them all."""
BLOCK_MESSAGES_MAX = 1 << 17
"""Messages of one block: some steps handle a whole block at once."""

_Choice = TypeVar("_Choice", bound=StrEnum)

WRITER_BYTES_MAX = 255
"""UTF-8 bytes of a writer's name."""
VERSION_MAX = (1 << 63) - 1

_PLAIN, _EXTENDED, _ACTING = 1, 2, 3
"""Versions of the object. A request with a writer, or about times, has the second; one whose headers act has the third.
So an earlier release, which would ignore these members, leaves it in the inbox."""


class Version(NamedTuple):
    """The number of a request among those of one writer, which ascend. A stream grants each of them once, and none
    below the last one that it granted."""

    writer: str
    number: int

    def request_id(self, stream_id: int) -> int:
        """Return the id that the request must have. So the object of a version is never that of another one."""
        return request_id_of(f"{stream_id:016x}", self.writer, str(self.number))

    def flaw(self) -> str | None:
        """Return the reason why no request can have this version; None: one can."""
        if not self.writer.isprintable() or not 0 < len(self.writer.encode()) <= WRITER_BYTES_MAX:
            return f"a writer's name has 1 to {WRITER_BYTES_MAX} bytes of UTF-8, without control characters"
        if not 0 <= self.number <= VERSION_MAX:
            return f"{self.number} is no version: 0 to {VERSION_MAX} are"
        return None


class Times(StrEnum):
    """The treatment of messages with times below an earlier message's."""

    RAISE = "raise"
    """Each of them gets the earlier message's time, and the answer counts them."""
    REFUSE = "refuse"
    """The request is refused."""


class Acting(StrEnum):
    """The treatment of messages with headers that ask the stream for something, as Nats-TTL and Nats-Rollup do."""

    REFUSE = "refuse"
    """The request is refused."""
    APPLY = "apply"
    """The stream acts on Nats-TTL and Nats-Rollup as if the messages were published. Others are refused."""


class StagedRun(NamedTuple):
    """A run to append: the number and the id in its key, the size of the object, its numbers of blocks and messages."""

    number: int
    run_id: int
    size: int
    blocks: int
    messages: int

    @property
    def position(self) -> Position:
        return Position(STAGED_EPOCH, self.number)


class Request(NamedTuple):
    """A request to append ``runs``, in their order, to the stream of this incarnation: all of them or none.

    ``request_id`` is that of the key; a stream grants a request with the same id once. ``nonce`` is the object's: each
    attempt at the same request has another one. ``version`` is None if the request belongs to no writer; otherwise it
    determines the id.
    """

    request_id: int
    account: str
    stream: str
    stream_id: int
    runs: Sequence[StagedRun]
    nonce: bytes = b""
    version: Version | None = None
    times: Times = Times.RAISE
    acting: Acting = Acting.REFUSE

    def encode(self, codec: SectionCodec = SECTIONS) -> bytes:
        """Return the whole object."""
        body: dict[str, Any] = {
            "version": _PLAIN, "account": self.account, "stream": self.stream, "incarnation": self.stream_id,
            "runs": [list(run) for run in self.runs]}
        if self.acting != Acting.REFUSE:
            body |= {"version": _ACTING, "times": str(self.times), "acting": str(self.acting)}
        elif self.version is not None or self.times != Times.RAISE:
            body |= {"version": _EXTENDED, "times": str(self.times)}
        if self.version is not None:
            body["writer"] = list(self.version)
        return encode_document(ObjectKind.INBOX, Position(0, 0), self.nonce, body, self.request_id, codec)

    @classmethod
    def decode(cls, data: bytes, request_id: int) -> Request:
        """Decode the request with this id. Raises: Corrupt; VersionUnknown."""
        header, body = decode_document(data, ObjectKind.INBOX, None, request_id)
        name = object_name(ObjectKind.INBOX, Position(0, 0), request_id)
        version = field(body, "version", int, name)
        if not _PLAIN <= version <= _ACTING:
            raise (VersionUnknown if version > _ACTING else Corrupt)(
                name, "version", 72, f"it is of version {version}; this reader knows {_PLAIN} to {_ACTING}")
        rows = field(body, "runs", list, name)
        if not all(_is_run(row) for row in rows):
            raise Corrupt(name, "runs", 72, "not a list of runs")
        account, stream, stream_id = (field(body, key, kind, name) for key, kind in (
            ("account", str), ("stream", str), ("incarnation", int)))
        if not account or not stream or not 0 < stream_id < 1 << 64:
            raise Corrupt(name, "incarnation", 72, "no stream has these names and this incarnation")
        asked = cls(request_id, account, stream, stream_id, [StagedRun(*row) for row in rows], header.nonce,
                    *(_extensions(body, version, name) if version > _PLAIN else ()))
        if asked.version is not None and asked.version.request_id(stream_id) != request_id:
            raise Corrupt(name, "writer", 72, "its id is not that of the writer's version")
        return asked


def _extensions(body: dict[str, Any], version: int, name: str) -> tuple[Version | None, Times, Acting]:
    """Return the members that a request has from version 2 on. Raises: Corrupt."""
    times = _choice(Times, body, "times", name)
    acting = _choice(Acting, body, "acting", name) if version >= _ACTING else Acting.REFUSE
    return _writer(body, name), times, acting


def _choice(kind: type[_Choice], body: dict[str, Any], key: str, name: str) -> _Choice:
    value = field(body, key, str, name)
    if value not in set(kind):
        raise Corrupt(name, key, 72, f"{value!r} is none of {', '.join(kind)}")
    return kind(value)


def _writer(body: dict[str, Any], name: str) -> Version | None:
    row = body.get("writer")
    if row is None:
        return None
    if type(row) is not list or [*map(type, row)] != [str, int] or (version := Version(*row)).flaw() is not None:
        raise Corrupt(name, "writer", 72, "not a writer's name and version")
    return version


def excess(runs: Sequence[StagedRun]) -> str | None:
    """Return the reason why one request cannot have all of these runs; None: it can."""
    blocks, size = sum(run.blocks for run in runs), sum(run.size for run in runs)
    if len(runs) <= RUNS_MAX and blocks <= BLOCKS_MAX and size <= BYTES_MAX:
        return None
    return (f"{len(runs)} runs of {blocks} blocks and {size} bytes are too many for one request, which has at most "
            f"{RUNS_MAX} runs, {BLOCKS_MAX} blocks and {BYTES_MAX} bytes: make several requests of them, or larger "
            f"blocks")


def request_id_of(*parts: str) -> int:
    """Return the id of a request that must be granted only once; it depends only on ``parts``."""
    return int.from_bytes(blake2b(b"".join(b"%d:%b" % (len(part.encode()), part.encode()) for part in parts),
                                  digest_size=8).digest(), "little") or 1


def _is_run(row: Any) -> bool:
    return (type(row) is list and [*map(type, row)] == [int] * 5 and min(row) >= 0 and row[0] <= NUMBER_MAX
            and row[1] < 1 << 64)
