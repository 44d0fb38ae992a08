"""Writes rows for a stream into runs. No I/O: the caller puts the objects, each with put-if-absent.

    writer = RunWriter("$G", "ORDERS", incarnation, now_ns=time.time_ns())
    for row in rows:
        writer.add(row.subject, row.data, row.headers, msg_id=row.id)
        for run in writer.take():              # complete runs, if any
            store.put(run.key, run.data)
    for run in writer.finish():
        store.put(run.key, run.data)
    request = writer.request(request_id_of("my job", "1"), shard=0)
    store.put(request.key, request.data)       # from now on the owner may let them join

Rows of several writers may join together: ``request_object`` makes a request with all their entries, in their order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import groupby
from typing import Final, NamedTuple

from broker.protocol import headers as header_block
from broker.storage.format.block import BlockPlace
from broker.storage.format.header import NONCE_BYTES, ObjectKind
from broker.storage.format.records.message_ids import MessageIds
from broker.storage.format.request import (
    BLOCK_MESSAGES_MAX,
    Acting,
    Request,
    StagedRun,
    Times,
    Version,
    excess,
    request_id_of,
)
from broker.storage.format.sealing import staging_codec
from broker.storage.format.section import SectionCodec
from broker.storage.format.staged import staged_position
from broker.storage.log.open_block import NAMES_BYTES, OpenBlock
from broker.storage.log.writer import PlainColumns, SealedBlock, encode_segment, seal_block, seal_columns
from broker.storage.paths import ShardPaths, StreamPaths
from broker.storage.staging.headers import MSG_ID, MSG_ID_BLOCK, flaw
from broker.storage.staging.subjects import is_stageable

__all__ = ["Acting", "PlainColumns", "RowRefused", "RunWriter", "ToPut", "Version", "request_id_of", "request_object"]

_RUN_BYTES: Final = 32 << 20
_BLOCK_BYTES: Final = 4 << 20
_BLOCK_BYTES_MAX: Final = 32 << 20
_BLOCK_MESSAGES: Final = 32_768
_BLOCKS_OF_A_SIZE: Final = 8
"""The number of blocks after which a writer makes larger ones: one request has a limited number of them."""
_HEADERS_BYTES_MAX: Final = 65_535
_BODY_BYTES_MAX: Final = 32 << 20
_TIME_MAX: Final = (1 << 63) - 1
_SUBJECTS_KNOWN_MAX: Final = 65_536

class _Rows:
    """The rows of a block as columns: lists of plain values cost the garbage collector nothing.

    ``bodies`` are headers and payload, ``hlens`` the bytes of the headers. A row without a time has 0 in ``times``, one
    without an id b"" in ``ids``.
    """

    __slots__ = ("bodies", "hlens", "ids", "subjects", "times")

    def __init__(self) -> None:
        self.subjects: list[bytes] = []
        self.bodies: list[bytes] = []
        self.hlens: list[int] = []
        self.times: list[int] = []
        self.ids: list[bytes] = []

    def __len__(self) -> int:
        return len(self.bodies)


class RowRefused(ValueError):
    """A row that no stream could store. The writer has not changed."""


class ToPut(NamedTuple):
    """An object to put: ``entry`` is a run's entry for a request; None for the request itself."""

    key: str
    data: Sequence[bytes]
    entry: StagedRun | None


class RunWriter:
    """Writes rows of one stream, in order, into runs of about ``run_bytes``.

    Args: ``stream_id`` is the stream's incarnation. ``now_ns`` goes into the keys, so that abandoned runs are found by
        their age and swept. ``randbytes`` must never return the same bytes in two processes.
    ``acting`` "apply": the stream acts on the headers Nats-TTL and Nats-Rollup of the rows. By default, rows with such
        headers are refused.
    ``block_bytes`` and ``block_messages`` bound a block. By default, they are doubled after some blocks, up to 32 MiB
        and 131 072 messages.
    ``codec`` seals what is stored. By default, it encrypts if the store is encrypted, and this process has opened the
        store (``jetblock.store``).
    Raises: ValueError for blocks of more messages than a stream accepts; KeyMissing if this process has a master key,
        and has not read the keys of the store.
    """

    def __init__(self, account: str, stream: str, stream_id: int, *, now_ns: int, acting: str = Acting.REFUSE,
                 codec: SectionCodec | None = None, run_bytes: int = _RUN_BYTES, block_bytes: int | None = None,
                 block_messages: int | None = None, randbytes: Callable[[int], bytes] = os.urandom) -> None:
        if block_messages is not None and not 0 < block_messages <= BLOCK_MESSAGES_MAX:
            raise ValueError(f"a block has 1 to {BLOCK_MESSAGES_MAX} messages, not {block_messages}")
        self.entries: list[StagedRun] = []
        """The entries of all runs that ``take`` has returned, in order."""
        self.raised = 0
        """Number of rows whose time was below an earlier row's, and was replaced by it."""
        self._account, self._stream, self._stream_id = account, stream, stream_id
        self._paths = StreamPaths(account, stream, stream_id)
        self._position = staged_position(now_ns)
        self._now_ns = now_ns
        self._acting = Acting(acting)
        self._codec = codec or staging_codec(stream_id)
        self._run_bytes = run_bytes
        self.block_bytes, self._block_bytes_max = block_bytes or _BLOCK_BYTES, block_bytes or _BLOCK_BYTES_MAX
        self.block_messages = block_messages or _BLOCK_MESSAGES
        """The bounds of the current block."""
        self._block_messages_max = block_messages or BLOCK_MESSAGES_MAX
        self._blocks = 0
        self._randbytes = randbytes
        self._nonce = randbytes(NONCE_BYTES)
        self._request_nonce = self._nonce
        self._subjects: set[bytes] = set()
        """A bounded set of subjects that were checked."""
        self._rows = _Rows()
        self._rows_bytes = 0
        self._run_id = self._new_id()
        self._sealed: list[SealedBlock[None]] = []
        self._sealed_bytes = 0
        self._last_time_ns = 0
        self._done: list[ToPut] = []

    def add(self, subject: bytes, payload: bytes = b"", headers: bytes = b"", *, time_ns: int | None = None,
            msg_id: bytes | None = None) -> None:
        """Add a row. Times may not descend within a stream: a lower time is replaced by the previous row's.

        Args: ``headers`` is a header block ("NATS/1.0…"), or b"". ``time_ns`` None: the time of the previous row, or
            the time of adoption. ``msg_id`` becomes the header Nats-Msg-Id; None: the id in ``headers``, if any.
        Raises: RowRefused.
        """
        if subject not in self._subjects:
            self._check_subject(subject)
        if headers or msg_id:
            headers, msg_id = _with_id(headers, msg_id, self._acting == Acting.APPLY)
        if len(headers) > _HEADERS_BYTES_MAX or len(headers) + len(payload) > _BODY_BYTES_MAX:
            raise RowRefused(
                f"headers of {len(headers)} bytes and a payload of {len(payload)} are too large for a message")
        if time_ns is not None and not 0 < time_ns <= _TIME_MAX:
            raise RowRefused(f"its time is {time_ns} ns since 1970, and a message's time is after 1970 and before 2262")
        size = len(headers) + len(payload)
        rows = self._rows
        if rows and (self._rows_bytes + size > self.block_bytes or len(rows) >= self.block_messages):
            self._end_block()
            rows = self._rows
        if time_ns is not None:
            self.raised += time_ns < self._last_time_ns
            self._last_time_ns = max(self._last_time_ns, time_ns)
        rows.subjects.append(subject)
        rows.bodies.append(headers + payload)
        rows.hlens.append(len(headers))
        rows.times.append(self._last_time_ns)
        rows.ids.append(msg_id or b"")
        self._rows_bytes += size

    def add_columns(self, columns: PlainColumns) -> None:
        """Add rows without headers, ids and times as one block: the same as ``add`` for each, in a tenth of the time.

        They have passed ``check``, and keep to ``block_bytes`` and ``block_messages``; a single row may exceed them.
        """
        if self._rows:
            self._end_block()
        self._keep(seal_columns(columns, self._stream_id, self._last_time_ns, self._position, object_id=self._run_id),
                   len(columns.bodies))

    def check(self, subjects: Iterable[bytes], longest: int) -> None:
        """Check rows for ``add_columns``: their subjects, and the length of the longest payload. Raises: RowRefused."""
        for subject in subjects:
            if subject not in self._subjects:
                self._check_subject(subject)
        if longest > _BODY_BYTES_MAX:
            raise RowRefused(f"a payload of {longest} bytes is too large for a message")

    def _check_subject(self, subject: bytes) -> None:
        if not is_stageable(subject):
            raise RowRefused(f"no message can have the subject {subject[:80]!r}")
        if len(self._subjects) >= _SUBJECTS_KNOWN_MAX:
            self._subjects.clear()
        self._subjects.add(subject)

    def take(self) -> list[ToPut]:
        """Return the runs completed since the last call, to be put in any order."""
        done, self._done = self._done, []
        self.entries += [run.entry for run in done if run.entry is not None]
        return done

    def finish(self) -> list[ToPut]:
        """Return the remaining runs, including a last one of the rest of the rows."""
        if self._rows:
            self._end_block()
        if self._sealed:
            self._end_run()
        return self.take()

    def request(self, identity: int | Version, shard: int, *, times: str = Times.RAISE) -> ToPut:
        """Return the request to adopt all runs that ``take`` has returned, for the owner of ``shard``, which has the
        stream.

        Put it after all runs. Each call makes another attempt: after a refusal, put a new one.
        Args and Raises: as ``request_object``.
        """
        if times == Times.REFUSE and self.raised:
            raise ValueError(f"the times of {self.raised} rows are below an earlier row's: add the rows in the order "
                             f"of their times, or request with times that may be raised")
        nonce, self._request_nonce = self._request_nonce, blake2b(self._request_nonce, digest_size=NONCE_BYTES).digest()
        return request_object(self._account, self._stream, self._stream_id, identity, self.entries, shard=shard,
                              times=times, acting=self._acting, nonce=nonce, codec=self._codec)

    def _end_block(self) -> None:
        rows, self._rows, self._rows_bytes = self._rows, _Rows(), 0
        block: OpenBlock[None] = OpenBlock(self._stream_id, None)
        # If some rows have a time, earlier rows without one cannot have the time of adoption.
        first_ns = next(filter(None, rows.times), 0)
        for start, end in _equal_runs(rows.times):
            time_ns = rows.times[start] or min(first_ns, self._now_ns)
            if end - start == 1 and not rows.hlens[start] and len(rows.subjects[start]) <= NAMES_BYTES:
                block.append_one(start + 1, rows.subjects[start], rows.bodies[start], time_ns)
            else:
                hlens = rows.hlens[start:end]
                block.append_run(start + 1, rows.subjects[start:end], hlens if any(hlens) else None,
                                 rows.bodies[start:end], time_ns)
        if any(rows.ids):
            places = [at for at, msg_id in enumerate(rows.ids) if msg_id]
            block.add(MessageIds(places, [rows.ids[at] for at in places]))
        self._keep(seal_block(block, self._position, object_id=self._run_id), block.raw_bytes)

    def _keep(self, sealed: SealedBlock[None], raw_bytes: int) -> None:
        sealed.core.staged = True
        self._sealed.append(sealed)
        self._sealed_bytes += raw_bytes
        self._blocks += 1
        if self._blocks % _BLOCKS_OF_A_SIZE == 0:
            self.block_bytes = min(2 * self.block_bytes, self._block_bytes_max)
            self.block_messages = min(2 * self.block_messages, self._block_messages_max)
        if self._sealed_bytes >= self._run_bytes:
            self._end_run()

    def _end_run(self) -> None:
        data = encode_segment(self._position, self._nonce, self._sealed, self._codec, kind=ObjectKind.RUN,
                              object_id=self._run_id, place=BlockPlace.STAGED)
        messages = sum(block.core.count for block in self._sealed)
        entry = StagedRun(self._position.number, self._run_id, sum(map(len, data)), len(self._sealed), messages)
        self._done.append(ToPut(self._paths.run(self._position, self._run_id), data, entry))
        self._sealed, self._sealed_bytes = [], 0
        self._run_id = self._new_id()

    def _new_id(self) -> int:
        return int.from_bytes(self._randbytes(8), "little") or 1


def request_object(account: str, stream: str, stream_id: int, identity: int | Version, entries: Sequence[StagedRun], *,
                   shard: int, times: str = Times.RAISE, acting: str = Acting.REFUSE,
                   nonce: bytes | None = None, codec: SectionCodec | None = None) -> ToPut:
    """Return the request to adopt these runs in this order.

    Args: ``identity`` is the id of the request, or the version that a writer gives it; the stream grants each once.
        ``times`` "refuse": the request is refused if a message has a time below an earlier message's. ``acting`` is
        that of the runs' writers: "apply" if one of them has it.
    Raises: ValueError for no runs, or too many for one record; for an impossible version.
    """
    version = None
    if isinstance(identity, Version):
        if (why := identity.flaw()) is not None:
            raise ValueError(why)
        version, identity = identity, identity.request_id(stream_id)
    if not entries:
        raise ValueError("a request without messages: nothing was added to the writer, or its runs were not taken")
    if (why := excess(entries)) is not None:
        raise ValueError(why)
    request = Request(identity, account, stream, stream_id, entries, nonce or os.urandom(NONCE_BYTES), version,
                      Times(times), Acting(acting))
    return ToPut(ShardPaths(shard).inbox(identity), [request.encode(codec or staging_codec(stream_id, shard))], None)


def _with_id(headers: bytes, msg_id: bytes | None, acting: bool) -> tuple[bytes, bytes]:
    """Return the header block with the message id, and the id. Raises: RowRefused."""
    if msg_id and not headers:
        return MSG_ID_BLOCK % _checked_id(msg_id), msg_id
    if (why := flaw(headers, acting=acting)) is not None:
        raise RowRefused(why)
    own = header_block.get(headers, MSG_ID)
    if msg_id is None or msg_id == own:
        return headers, own or b""
    if own is not None:
        raise RowRefused(f"the header Nats-Msg-Id is {own[:80]!r}, and the row's id is {msg_id[:80]!r}")
    if not msg_id:
        return headers, b""
    return header_block.set(headers, MSG_ID, _checked_id(msg_id)), msg_id


def _checked_id(msg_id: bytes) -> bytes:
    """Return the id, if a header can have it. Raises: RowRefused."""
    if b"\r" in msg_id or b"\n" in msg_id or msg_id != msg_id.strip(b" "):
        raise RowRefused(f"{msg_id[:80]!r} is no message id: it has line breaks, or spaces around it")
    try:
        msg_id.decode()
    except UnicodeDecodeError:
        raise RowRefused(f"{msg_id[:80]!r} is no message id: it is not UTF-8") from None
    return msg_id


def _equal_runs(values: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Divide values, at least one, into runs of equal ones; yield the start and end of each."""
    if values.count(values[0]) == len(values):
        yield 0, len(values)
        return
    start = 0
    for _, some in groupby(values):
        end = start + sum(1 for _ in some)
        yield start, end
        start = end
