"""The costs of a load on S3: requests and bytes by the rules of the log, checkpoints and compaction. Arithmetic only.

    commits        one for each message, at most one for each commit_interval, and one for each full segment
    log            commits; an idle owner's heartbeats, every third of the lease
    checkpoints    a round for 256 commits, or a minute after the first: a root, pages in two objects, and one listing;
                   if nothing is published, a root and a record after 20 heartbeats
    ids            one more object of pages in each round, for streams whose message ids do not fit into their entry;
                   pages that are joined are read: one for each of those streams, 64 at most
    subjects       for streams whose blocks have more than 16 subjects each: one object of pages in each round with 128
                   new blocks, and reads of the indexes of these blocks
    compaction     64 objects are put as one; small commits of this owner are in memory, every other object is read by
                   one GET; each byte is rewritten once per tier
    expiry         a GET for each 256 KiB of indexes of runs, or for each block with a larger index
    deletion       free, and without other requests
    inbox          one listing each inbox_interval
    shards         a process with several puts heartbeats every third of the lease, and asks for each idle shard then
                   whether it was claimed; each has an inbox
    standbys       each polls the log every sixth of the lease, up to every 24th if there are more than three commits
                   between two polls: two GETs, and two for each commit, 32 at most; of several shards, it asks
                   for each heartbeat two or three times, and polls the log of an idle one about once in a lease

The figures hold for a steady state: as much is removed as comes in. ``tests/maintenance/test_cost.py`` counts the
requests of the real engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from broker.storage.checkpoint.settings import CheckpointSettings
from broker.storage.checkpoint.subject_pages import BLOCKS_MIN
from broker.storage.compaction.settings import CompactionSettings
from broker.storage.format.block import SUMMARY_SUBJECTS_MAX
from broker.storage.state.pages import INLINE_IDS_BYTES_MAX

__all__ = ["MONTH_SECONDS", "Bill", "Load", "Prices", "bill"]

MONTH_SECONDS = 30 * 86_400
GB = 10**9

_BLOCK_BYTES = 420
"""The compressed bytes of a block beside its messages: directory row, core, index, a share of the header."""
_MESSAGE_BYTES = 9
"""The bytes of a message in an index: columns of times and lengths."""
_TIERS_WRITTEN = 1.8
"""The number of times that compaction writes a byte of small commits (docs/adr/0006)."""
_PUTS_A_ROUND = 3
_PUTS_AN_IDLE_ROUND = 2
_ID_BYTES = 50
"""The bytes of a message id in a page, and in the log."""
_ID_PAGES_READ_MAX = 64
_INDEX_BYTES = 160
"""The bytes of the index of a block with few messages of one subject."""
_NEIGHBOURS_BYTES = 256 << 10
_CHECKPOINT = CheckpointSettings()
_COMPACTION = CompactionSettings()


@dataclass(frozen=True, slots=True)
class Load:
    """A constant load, and the settings of the broker that receives it."""

    messages: float
    """Messages published in a second."""
    size: float = 500
    """Bytes of a message: headers, subject and payload."""
    streams: int = 1
    """The number of streams that share the messages."""
    days: float = 30
    """Days for which messages are kept."""
    stored: float = 0.4
    """The share of a message's bytes that compression leaves."""
    cold_gets: float = 0
    """Messages in a second that are read one by one and are not in the cache."""
    standbys: int = 0
    shards: int = 1
    """The store's shards. All messages go to one of them; the others are idle."""
    commit_interval_s: float = 0.02
    segment_bytes: int = 4 << 20
    lease_s: float = 15
    inbox_interval_s: float = 60
    compaction: bool = True
    subjects: int = 1
    """Distinct subjects in each stream."""
    ids: bool = False
    """True if messages have a Nats-Msg-Id."""
    duplicate_window_s: float = 120


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in dollars. The defaults are the list prices of AWS S3 Standard in us-east-1, as of 2025."""

    puts: float = 0.005
    """The price of a thousand PUTs or LISTs."""
    gets: float = 0.0004
    """The price of a thousand GETs."""
    storage: float = 0.023
    """The price of storing a GB for a month."""
    egress: float = 0.0
    """The price of reading a GB; reads within the region are free."""


@dataclass(frozen=True, slots=True)
class Bill:
    """The requests, bytes and dollars of a month."""

    puts: float
    lists: float
    gets: float
    deletes: float
    written: float
    """Bytes written."""
    read: float
    """Bytes read."""
    stored: float
    """Bytes stored, on average."""
    parts: dict[str, float]
    """Puts by their purpose."""
    puts_dollars: float
    gets_dollars: float
    storage_dollars: float
    egress_dollars: float

    @property
    def dollars(self) -> float:
        return self.puts_dollars + self.gets_dollars + self.storage_dollars + self.egress_dollars

    def to_json(self) -> dict[str, Any]:
        """Return whole requests and bytes, and dollars to the cent."""
        counts = {name: round(getattr(self, name)) for name in
                  ("puts", "lists", "gets", "deletes", "written", "read", "stored")}
        return {**counts, "puts_by_purpose": {name: round(n) for name, n in self.parts.items()}, "dollars": {
            "puts_and_lists": round(self.puts_dollars, 2), "gets": round(self.gets_dollars, 2),
            "storage": round(self.storage_dollars, 2), "egress": round(self.egress_dollars, 2),
            "all": round(self.dollars, 2)}}


def bill(load: Load, prices: Prices | None = None) -> Bill:
    """Calculate the costs of a month of constant load."""
    prices = prices or Prices()
    raw = load.messages * load.size
    commits = load.messages
    if load.commit_interval_s > 0:
        commits = min(commits, 1 / load.commit_interval_s)
    commits = max(commits, raw / load.segment_bytes)
    heartbeats, idle = max(0.0, 3 / load.lease_s - commits), load.shards - 1
    own_heartbeats = heartbeats
    if idle:  # the log puts one after a commit, and is quiet then
        own_heartbeats = min(commits, heartbeats)
        heartbeats = own_heartbeats + 3 / load.lease_s
    rounds, round_puts = own_heartbeats / _CHECKPOINT.empty_segments, _PUTS_AN_IDLE_ROUND
    if commits:
        interval_s = (_CHECKPOINT.interval_ns or 0) / 1e9
        rounds = max(rounds, commits / _CHECKPOINT.segments, 1 / (interval_s + 0.5 / commits))
        round_puts = _PUTS_A_ROUND
    merged = load.compaction and raw / commits < _COMPACTION.large_bytes if commits else False
    # Every 64 commits give a run, every 64 of these runs give another, and so on.
    runs = commits / (_COMPACTION.segments - 1) if merged else 0.0
    ids = _id_costs(load, rounds) if load.ids else _NOTHING
    subjects = _subject_costs(load, commits, rounds, merged) if commits else _NOTHING
    puts = {"commits": commits, "heartbeats": heartbeats,
            "checkpoints": rounds * round_puts + ids.puts + subjects.puts,
            "compaction": runs}
    all_puts = sum(puts.values())
    lists = rounds + (load.shards / load.inbox_interval_s if load.inbox_interval_s else 0.0)
    seldom = 1.15 / load.lease_s
    polls = seldom if idle and not commits else max(6 / load.lease_s, min(24 / load.lease_s, commits / 3))
    standby_gets = load.standbys * (2 * polls + min(2 * commits, 32 * polls)
                                    + (2 * seldom * idle + 7.5 / load.lease_s if idle else 0.0))
    quiet_gets = (load.shards if not commits else idle) * 3 / load.lease_s if idle else 0.0
    blocks = min(commits * load.streams, load.messages)
    body = raw * load.stored + load.messages * _MESSAGE_BYTES
    log_bytes = body + blocks * _BLOCK_BYTES + puts["heartbeats"] * 104 + ids.written
    gets = standby_gets + quiet_gets + 2 * load.cold_gets + ids.gets + subjects.gets
    if merged:
        in_memory = _COMPACTION.segments * log_bytes <= _COMPACTION.recent_bytes * commits
        gets += runs * _COMPACTION.segments - (commits if in_memory else 0.0) + _expiry_gets(load, raw, commits)
    kept = body if merged else body + blocks * _BLOCK_BYTES
    rewritten = body * _TIERS_WRITTEN if merged else 0.0
    seconds = MONTH_SECONDS
    stored = kept * load.days * 86_400
    read = (log_bytes + rewritten if merged else 0.0) + 2 * load.cold_gets * 64 * 1024
    return Bill(
        all_puts * seconds, lists * seconds, gets * seconds, all_puts * seconds, (log_bytes + rewritten) * seconds,
        read * seconds, stored, {name: n * seconds for name, n in puts.items()},
        (all_puts + lists) * seconds / 1000 * prices.puts, gets * seconds / 1000 * prices.gets,
        stored / GB * prices.storage, read * seconds / GB * prices.egress)


class _Part(NamedTuple):
    """The requests and bytes of one second for one purpose."""

    puts: float
    gets: float
    written: float


_NOTHING = _Part(0, 0, 0)


def _id_costs(load: Load, rounds: float) -> _Part:
    """Count pages of message ids: a round writes one for each stream with enough new ids; half join an old page."""
    of_stream = load.messages / load.streams * _ID_BYTES
    if not rounds or of_stream * load.duplicate_window_s <= INLINE_IDS_BYTES_MAX:
        return _Part(0, 0, load.messages * _ID_BYTES)
    share = min(1.0, of_stream / rounds / INLINE_IDS_BYTES_MAX)
    return _Part(min(rounds, share * load.streams * rounds), rounds * min(_ID_PAGES_READ_MAX, share * load.streams / 2),
                 load.messages * _ID_BYTES * 2)


def _subject_costs(load: Load, commits: float, rounds: float, merged: bool) -> _Part:
    """Count pages of subjects, for streams whose blocks have more subjects than a block's reference lists."""
    if min(load.messages / commits / load.streams, load.subjects) <= SUMMARY_SUBJECTS_MAX:
        return _NOTHING
    # If rounds are frequent, half of the segments since the last one are not merged yet.
    share = 1.0 if not merged else 0.5 if rounds >= commits / _CHECKPOINT.segments else 0.05
    gets = min(load.streams * commits * share, rounds * _CHECKPOINT.segments)
    return _Part(gets / BLOCKS_MIN, gets, 0)


def _expiry_gets(load: Load, raw: float, commits: float) -> float:
    """Count GETs of the indexes of partly expired runs; the blocks of one run expire at about the same time."""
    kept_s = load.days * 86_400
    # A run is merged again until it is large, or until its messages are about to expire.
    run_s = min(_COMPACTION.merge_bytes / raw, max(_COMPACTION.segments / commits, kept_s / _COMPACTION.segments))
    messages = load.messages * run_s
    blocks = max(min(load.streams, messages), raw * run_s / _COMPACTION.block_bytes)
    return min(blocks, max(1.0, (blocks * _INDEX_BYTES + messages * _MESSAGE_BYTES) / _NEIGHBOURS_BYTES)) / run_s
