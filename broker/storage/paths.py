"""Object keys: the only module that builds or parses them. Keys are relative to the store's own prefix.

    v1/format
    v1/copying
    v1/keys/<shard>-<id>
    v1/heartbeats/<run>-<number>
    v1/shards/<shard>/epochs/<epoch>
                      log/<epoch>-<number>
                      checkpoint/<epoch>-<number>
                      pages/<epoch>-<number>
                      runs/<epoch>-<position>-<id>
                      inbox/<id>
    v1/streams/<account>/<name>/<incarnation>/runs/<epoch>-<position>-<id>

Numbers are lower-case hexadecimal of fixed width (epoch 8 digits, number 12, id and incarnation 16; the shard is
decimal, the run is the nonce of a process run), so key order is number order. Names are escaped: ``[a-z0-9_-]`` stand
for themselves, any other byte of their UTF-8 becomes ``%`` and two digits, so that names stay distinct on a file system
that folds case, and cannot leave their folder. An escaped name longer than 120 bytes is replaced by its beginning,
``~`` and 128 bits of a hash: the name cannot be recovered from such a key, but records identify a stream by its
incarnation anyway.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final, NamedTuple

from broker.storage.format.block import BlockPlace, BlockRef
from broker.storage.format.header import EPOCH_MAX, NUMBER_MAX, ObjectKind, Position

__all__ = ["COPYING", "FORMAT", "HEARTBEATS", "ID_MAX", "KEYS", "NAME_BYTES_MAX", "PROBE", "ROOT", "STREAMS",
           "HeartbeatPaths", "Key", "ShardPaths", "StreamPaths", "escape", "object_key", "parse", "run_key", "unescape"]

ROOT: Final = "v1/"
"""All our keys begin with this."""
FORMAT: Final = "v1/format"
"""The store's own object: format version and id; also the probe of put-if-absent."""
COPYING: Final = "v1/copying"
"""A mark in a store that is being copied: the bytes that ``format`` will have. A store with this object and without
``format`` is not served. While a finished copy is being brought up to date, it is the newest claim of the copy's source
(see ``format.log_end``)."""
PROBE: Final = "v1/probe/"
"""Prefix of objects that a broker puts and deletes before there is a ``format``, to check whether the store works."""
KEYS: Final = "v1/keys/"
"""Prefix of the objects with wrapped data keys, of all shards."""
HEARTBEATS: Final = "v1/heartbeats/"
"""Prefix of the heartbeats of processes that own several shards. Readers and copies of a store ignore them, so
``parse`` does not know their keys."""
STREAMS: Final = "v1/streams/"
"""Prefix of objects that belong to one stream alone."""
ID_MAX: Final = (1 << 64) - 1
NAME_BYTES_MAX: Final = 120
"""The longest escaped name. File systems allow names of 255 bytes; temporary files and a prefix need some of them."""

_HASH_DIGITS: Final = 32
_HEARTBEAT_DIGITS: Final = 12
_HEX: Final = frozenset("0123456789abcdef")
_PREFIX_BYTES: Final = NAME_BYTES_MAX - 1 - _HASH_DIGITS
_KEPT: Final = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-")
_ESCAPES: Final = tuple(chr(byte) if byte in _KEPT else f"%{byte:02x}" for byte in range(256))
_NAME: Final = re.compile(r"(?:[a-z0-9_-]|%[0-9a-f]{2})+", re.ASCII)
_CUT_NAME: Final = re.compile(r"(?:[a-z0-9_-]|%[0-9a-f]{2})+~[0-9a-f]{32}", re.ASCII)


def escape(name: str) -> str:
    """Return ``name`` as one part of a key. Raises: ValueError for an empty name."""
    if not name:
        raise ValueError("an empty name has no key")
    data = name.encode("utf-8", "surrogatepass")
    whole = "".join([_ESCAPES[byte] for byte in data])
    if len(whole) <= NAME_BYTES_MAX:
        return whole
    # Never cut inside an escape: the part before the ~ must be well formed.
    cut = _PREFIX_BYTES
    percent = whole.rfind("%", cut - 2, cut)
    if percent >= 0:
        cut = percent
    return f"{whole[:cut]}~{blake2b(data, digest_size=_HASH_DIGITS // 2).hexdigest()}"


def unescape(part: str) -> str | None:
    """Return the name whose escaped form is ``part``; None for a long name, which cannot be recovered.

    Raises: ValueError if ``part`` is no escaped name.
    """
    if _NAME.fullmatch(part):
        data = bytearray()
        i = 0
        while i < len(part):
            if part[i] == "%":
                data.append(int(part[i + 1:i + 3], 16))
                i += 3
            else:
                data.append(ord(part[i]))
                i += 1
        name = data.decode("utf-8", "surrogatepass")
        if escape(name) == part:
            return name
    elif _CUT_NAME.fullmatch(part) and len(part) <= NAME_BYTES_MAX:
        return None
    raise ValueError(f"not an escaped name: {part!r}")


def _number(value: int, most: int, digits: int) -> str:
    if not 0 <= value <= most:
        raise ValueError(f"{value} does not fit into {digits} digits of a key")
    return f"{value:0{digits}x}"


def _position(position: Position) -> str:
    return f"{_number(position.epoch, EPOCH_MAX, 8)}-{_number(position.number, NUMBER_MAX, 12)}"


class _RunPaths:
    """Keys of the runs below one prefix."""

    prefix: str

    @property
    def runs(self) -> str:
        """Prefix of the runs."""
        return f"{self.prefix}runs/"

    def run(self, position: Position, run_id: int) -> str:
        """Return the key of a run planned at ``position``, whose epoch is the writer's."""
        return f"{self.prefix}runs/{_position(position)}-{_number(run_id, ID_MAX, 16)}"


class ShardPaths(_RunPaths):
    """Keys of one shard. Each method raises ValueError for numbers that do not fit into a key."""

    def __init__(self, shard: int) -> None:
        if not 0 <= shard <= 0xFFFF_FFFF:
            raise ValueError(f"no shard has the number {shard}")
        self.shard = shard
        self.prefix = f"v1/shards/{shard}/"
        self.epochs = f"{self.prefix}epochs/"
        self.logs = f"{self.prefix}log/"
        self.checkpoints = f"{self.prefix}checkpoint/"
        self.page_objects = f"{self.prefix}pages/"
        self.requests = f"{self.prefix}inbox/"
        self.keys = f"{KEYS}{shard}-"

    def epoch(self, epoch: int) -> str:
        """Return the key of the claim of an epoch."""
        return f"{self.epochs}{_number(epoch, EPOCH_MAX, 8)}"

    def log(self, position: Position) -> str:
        """Return the key of a segment or a seal."""
        return f"{self.logs}{_position(position)}"

    def checkpoint(self, position: Position) -> str:
        """Return the key of the root that includes everything up to ``position``."""
        return f"{self.checkpoints}{_position(position)}"

    def pages(self, position: Position) -> str:
        """Return the key of the pages that belong to the round of that root."""
        return f"{self.page_objects}{_position(position)}"

    def wrapped_keys(self, keys_id: int) -> str:
        """Return the key of an object with wrapped data keys of this shard."""
        return f"{self.keys}{_number(keys_id, ID_MAX, 16)}"

    def inbox(self, request_id: int) -> str:
        """Return the key of a request to the owner."""
        return f"{self.requests}{_number(request_id, ID_MAX, 16)}"


class HeartbeatPaths:
    """Keys of the heartbeats of one process run."""

    def __init__(self, run_id: bytes) -> None:
        self.prefix = f"{HEARTBEATS}{run_id.hex()}-"

    def heartbeat(self, number: int) -> str:
        """Return the key of the heartbeat with this number."""
        return f"{self.prefix}{_number(number, NUMBER_MAX, _HEARTBEAT_DIGITS)}"

    def number_of(self, key: str) -> int:
        """Return the number of the heartbeat at ``key``; 0 if it is none of this run."""
        digits = key.removeprefix(self.prefix)
        return int(digits, 16) if len(digits) == _HEARTBEAT_DIGITS and _HEX.issuperset(digits) else 0


class StreamPaths(_RunPaths):
    """Keys of objects that belong to one stream alone."""

    def __init__(self, account: str, name: str, incarnation: int) -> None:
        self.prefix = f"{STREAMS}{escape(account)}/{escape(name)}/{_number(incarnation, ID_MAX, 16)}/"


def object_key(shard: ShardPaths, ref: BlockRef, stream: StreamPaths | None = None) -> str:
    """Return the key of the object with ``ref``'s block; a block in the stream's own runs needs ``stream``."""
    if ref.place is BlockPlace.LOG:
        return shard.log(ref.position)
    if ref.place is BlockPlace.RUN:
        return shard.run(ref.position, ref.object_id)
    if stream is None:
        raise ValueError(f"the key of {ref!r} needs its stream's names")
    return stream.run(ref.position, ref.object_id)


def block_key(shard: ShardPaths, account: str, name: str, ref: BlockRef) -> str:
    """Return ``object_key`` for a block of the stream with these names."""
    own = StreamPaths(account, name, ref.stream_id) if ref.place.of_stream else None
    return object_key(shard, ref, own)


def run_key(shard: ShardPaths, run: tuple[int, int, int, int], account: str, name: str) -> str:
    """Return the key of a run, given as epoch, number, id, and the incarnation of the only stream in it, or 0.

    The names are those of that stream.
    """
    epoch, number, run_id, stream_id = run
    folder: _RunPaths = StreamPaths(account, name, stream_id) if stream_id else shard
    return folder.run(Position(epoch, number), run_id)


class Key(NamedTuple):
    """A parsed key. ``kind`` is the kind of object at this key; SEGMENT includes seals, since both are log entries.

    Parts that a key does not have are None; so are ``account`` and ``stream`` if the key has only a hash of them.
    """

    kind: ObjectKind
    shard: int | None = None
    position: Position | None = None
    object_id: int = 0
    account: str | None = None
    stream: str | None = None
    incarnation: int | None = None


_POSITION: Final = r"(?P<epoch>[0-9a-f]{8})-(?P<number>[0-9a-f]{12})"
_RUN: Final = rf"runs/{_POSITION}-(?P<id>[0-9a-f]{{16}})"
_SHARD: Final = r"v1/shards/(?P<shard>0|[1-9][0-9]{0,9})/"
_PATTERNS: Final = tuple((kind, re.compile(pattern, re.ASCII)) for kind, pattern in (
    (ObjectKind.FORMAT, re.escape(FORMAT)),
    (ObjectKind.CLAIM, rf"{_SHARD}epochs/(?P<epoch>[0-9a-f]{{8}})"),
    (ObjectKind.SEGMENT, rf"{_SHARD}log/{_POSITION}"),
    (ObjectKind.ROOT, rf"{_SHARD}checkpoint/{_POSITION}"),
    (ObjectKind.PAGES, rf"{_SHARD}pages/{_POSITION}"),
    (ObjectKind.RUN, _SHARD + _RUN),
    (ObjectKind.INBOX, rf"{_SHARD}inbox/(?P<id>[0-9a-f]{{16}})"),
    (ObjectKind.KEYS, rf"{KEYS}(?P<shard>0|[1-9][0-9]{{0,9}})-(?P<id>[0-9a-f]{{16}})"),
    (ObjectKind.RUN, rf"v1/streams/(?P<account>[^/]+)/(?P<stream>[^/]+)/(?P<incarnation>[0-9a-f]{{16}})/{_RUN}"),
))


def parse(key: str) -> Key | None:
    """Parse a key. Returns: None if it is none of ours (a lock file, a temporary file, an operator's note)."""
    for kind, pattern in _PATTERNS:
        match = pattern.fullmatch(key)
        if match is None:
            continue
        parts = match.groupdict()
        try:
            account, stream = (unescape(parts[part]) if parts.get(part) else None for part in ("account", "stream"))
        except ValueError:
            return None
        shard = int(parts["shard"]) if parts.get("shard") else None
        if shard is not None and shard > 0xFFFF_FFFF:
            return None
        epoch, number, object_id, incarnation = (
            int(parts[part], 16) if parts.get(part) else None for part in ("epoch", "number", "id", "incarnation"))
        position = None if epoch is None else Position(epoch, number or 0)
        return Key(kind, shard, position, object_id or 0, account, stream, incarnation)
    return None
