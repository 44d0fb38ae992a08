"""What a load costs on S3: requests and bytes from the rules by which the log, checkpoints and compaction work. Arithmetic alone.

    commits        one for each message, at most one for each commit_interval, and one for each full segment
    log            commits; an idle owner's heartbeats, every third of the lease
    checkpoints    a round for 256 commits, or a minute after the first: a root, and pages in two objects; one listing; where
                   nothing is published, a root and a record after 20 heartbeats
    ids            one object of pages more in each round, for streams whose message ids do not fit beside their entry; pages
                   that are joined are read, one for each of those streams, 64 at most
    subjects       of a stream whose blocks have more than 16 subjects each: an object of pages in each round with 128 new blocks,
                   whose indexes are read
    compaction     64 objects are put as one; small commits of this owner are in memory still, all else is read by a GET each;
                   each byte is written again once a tier
    expiry         a GET for each 256 KiB of indexes of runs, or for each block that holds more
    deletion       free, without a request before it
    inbox          one listing each inbox_interval
    standbys       each looks at the log every sixth of the lease, up to every 24th if there are more than three commits between
                   two looks: two GETs, and two for each commit, 32 at most

A steady state is meant: as much is removed as comes in. ``tests/maintenance/test_cost.py`` counts the requests of the real engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from broker.storage.checkpoint.checkpointer import CheckpointSettings
from broker.storage.checkpoint.subject_pages import BLOCKS_MIN
from broker.storage.compaction.settings import CompactionSettings
from broker.storage.format.block import SUMMARY_SUBJECTS_MAX
from broker.storage.state.pages import INLINE_IDS_BYTES_MAX

__all__ = ["MONTH_SECONDS", "Bill", "Load", "Prices", "bill"]

MONTH_SECONDS = 30 * 86_400
GB = 10**9

_BLOCK_BYTES = 420
"""What a block has beside its messages: directory row, core, index, and its share of the segment's header; compressed."""
_MESSAGE_BYTES = 9
"""What a message has in an index: columns of times and lengths."""
_TIERS_WRITTEN = 1.8
"""How often compaction writes a byte of small commits (docs/adr/0006)."""
_PUTS_A_ROUND = 3
_PUTS_AN_IDLE_ROUND = 2
_ID_BYTES = 50
"""What a message id takes in a page, and in the log."""
_ID_PAGES_READ_MAX = 64
_INDEX_BYTES = 160
"""What the index of a block takes that holds few messages of one subject."""
_NEIGHBOURS_BYTES = 256 << 10
_CHECKPOINT = CheckpointSettings()
_COMPACTION = CompactionSettings()


@dataclass(frozen=True, slots=True)
class Load:
    """messages a second, each of ``size`` bytes (headers, subject and payload), over ``streams``, kept for ``days``.

    stored: share of a message's bytes after compression. cold_gets: messages a second that are read one by one and are not in the
    cache. subjects: distinct ones in each stream; ids: messages have a Nats-Msg-Id. The rest are the broker's settings.
    """

    messages: float
    size: float = 500
    streams: int = 1
    days: float = 30
    stored: float = 0.4
    cold_gets: float = 0
    standbys: int = 0
    commit_interval_s: float = 0.02
    segment_bytes: int = 4 << 20
    lease_s: float = 15
    inbox_interval_s: float = 60
    compaction: bool = True
    subjects: int = 1
    ids: bool = False
    duplicate_window_s: float = 120


@dataclass(frozen=True, slots=True)
class Prices:
    """Dollars. The defaults are the list prices of AWS S3 Standard in us-east-1, as of 2025: a thousand PUTs or LISTs, a thousand
    GETs, a GB for a month; and for a GB that leaves the region, 0 within it."""

    puts: float = 0.005
    gets: float = 0.0004
    storage: float = 0.023
    egress: float = 0.0


@dataclass(frozen=True, slots=True)
class Bill:
    """A month. puts, lists, gets, deletes: requests. written, read: bytes. stored: bytes that lie there on average."""

    puts: float
    lists: float
    gets: float
    deletes: float
    written: float
    read: float
    stored: float
    parts: dict[str, float]
    """Puts by what they are for."""
    puts_dollars: float
    gets_dollars: float
    storage_dollars: float
    egress_dollars: float

    @property
    def dollars(self) -> float:
        return self.puts_dollars + self.gets_dollars + self.storage_dollars + self.egress_dollars

    def to_json(self) -> dict[str, Any]:
        """Whole requests and bytes, dollars to the cent."""
        counts = {name: round(getattr(self, name)) for name in
                  ("puts", "lists", "gets", "deletes", "written", "read", "stored")}
        return {**counts, "puts_by_purpose": {name: round(n) for name, n in self.parts.items()}, "dollars": {
            "puts_and_lists": round(self.puts_dollars, 2), "gets": round(self.gets_dollars, 2),
            "storage": round(self.storage_dollars, 2), "egress": round(self.egress_dollars, 2), "all": round(self.dollars, 2)}}


def bill(load: Load, prices: Prices | None = None) -> Bill:
    """What a month of constant load costs."""
    prices = prices or Prices()
    raw = load.messages * load.size
    commits = load.messages
    if load.commit_interval_s > 0:
        commits = min(commits, 1 / load.commit_interval_s)
    commits = max(commits, raw / load.segment_bytes)
    heartbeats = max(0.0, 3 / load.lease_s - commits)
    rounds, round_puts = heartbeats / _CHECKPOINT.empty_segments, _PUTS_AN_IDLE_ROUND
    if commits:
        interval_s = (_CHECKPOINT.interval_ns or 0) / 1e9
        rounds = max(rounds, commits / _CHECKPOINT.segments, 1 / (interval_s + 0.5 / commits))
        round_puts = _PUTS_A_ROUND
    merged = load.compaction and raw / commits < _COMPACTION.large_bytes if commits else False
    # 1/64 of the commits, of these again 1/64, and so on.
    runs = commits / (_COMPACTION.segments - 1) if merged else 0.0
    ids = _of_ids(load, rounds) if load.ids else _NOTHING
    subjects = _of_subjects(load, commits, rounds, merged) if commits else _NOTHING
    puts = {"commits": commits, "heartbeats": heartbeats, "checkpoints": rounds * round_puts + ids.puts + subjects.puts,
            "compaction": runs}
    all_puts = sum(puts.values())
    lists = rounds + (1 / load.inbox_interval_s if load.inbox_interval_s else 0.0)
    looks = max(6 / load.lease_s, min(24 / load.lease_s, commits / 3))
    standby_gets = load.standbys * (2 * looks + min(2 * commits, 32 * looks))
    blocks = min(commits * load.streams, load.messages)
    body = raw * load.stored + load.messages * _MESSAGE_BYTES
    log_bytes = body + blocks * _BLOCK_BYTES + heartbeats * 104 + ids.written
    gets = standby_gets + 2 * load.cold_gets + ids.gets + subjects.gets
    if merged:
        in_memory = _COMPACTION.segments * log_bytes <= _COMPACTION.recent_bytes * commits
        gets += runs * _COMPACTION.segments - (commits if in_memory else 0.0) + _of_expiry(load, raw, commits)
    kept = body if merged else body + blocks * _BLOCK_BYTES
    rewritten = body * _TIERS_WRITTEN if merged else 0.0
    seconds = MONTH_SECONDS
    stored = kept * load.days * 86_400
    read = (log_bytes + rewritten if merged else 0.0) + 2 * load.cold_gets * 64 * 1024
    return Bill(
        all_puts * seconds, lists * seconds, gets * seconds, all_puts * seconds, (log_bytes + rewritten) * seconds, read * seconds,
        stored, {name: n * seconds for name, n in puts.items()},
        (all_puts + lists) * seconds / 1000 * prices.puts, gets * seconds / 1000 * prices.gets, stored / GB * prices.storage,
        read * seconds / GB * prices.egress)


class _Part(NamedTuple):
    """A second's worth."""

    puts: float
    gets: float
    written: float


_NOTHING = _Part(0, 0, 0)


def _of_ids(load: Load, rounds: float) -> _Part:
    """Pages of message ids: in each round for the streams with enough new ones; half of these join one that is there."""
    of_stream = load.messages / load.streams * _ID_BYTES
    if not rounds or of_stream * load.duplicate_window_s <= INLINE_IDS_BYTES_MAX:
        return _Part(0, 0, load.messages * _ID_BYTES)
    share = min(1.0, of_stream / rounds / INLINE_IDS_BYTES_MAX)
    return _Part(min(rounds, share * load.streams * rounds), rounds * min(_ID_PAGES_READ_MAX, share * load.streams / 2),
                 load.messages * _ID_BYTES * 2)


def _of_subjects(load: Load, commits: float, rounds: float, merged: bool) -> _Part:
    """Pages of subjects, for streams whose blocks have more than a reference lists."""
    if min(load.messages / commits / load.streams, load.subjects) <= SUMMARY_SUBJECTS_MAX:
        return _NOTHING
    # Where rounds come often, half of the segments since the last one are not merged yet.
    share = 1.0 if not merged else 0.5 if rounds >= commits / _CHECKPOINT.segments else 0.05
    gets = min(load.streams * commits * share, rounds * _CHECKPOINT.segments)
    return _Part(gets / BLOCKS_MIN, gets, 0)


def _of_expiry(load: Load, raw: float, commits: float) -> float:
    """GETs of the indexes of runs of which a part has expired: blocks of one run are due at about the same time."""
    kept_s = load.days * 86_400
    # Merged until it is large, or until what it holds is about to expire.
    run_s = min(_COMPACTION.merge_bytes / raw, max(_COMPACTION.segments / commits, kept_s / _COMPACTION.segments))
    messages = load.messages * run_s
    blocks = max(min(load.streams, messages), raw * run_s / _COMPACTION.block_bytes)
    return min(blocks, max(1.0, (blocks * _INDEX_BYTES + messages * _MESSAGE_BYTES) / _NEIGHBOURS_BYTES)) / run_s
