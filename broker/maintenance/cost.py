"""What a load costs on S3: requests and bytes from the rules by which the log, checkpoints and compaction work. Arithmetic alone.

    commits        one for each message, at most one for each commit_interval, and one for each full segment
    log            commits; an idle owner's heartbeats, every third of the lease
    checkpoints    a round for 256 commits, or a minute after the first: a root, and pages in two objects; one listing
    compaction     64 objects are read by a GET each and put as one; each byte is written again once a tier
    deletion       each object's header is read once before it goes; deleting is free
    inbox          one listing each inbox_interval
    standbys       two GETs every sixth of the lease, each

A steady state is meant: as much is removed as comes in. ``tests/maintenance/test_cost.py`` counts the requests of the real engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from broker.storage.checkpoint.checkpointer import CheckpointSettings
from broker.storage.compaction.settings import CompactionSettings

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
_CHECKPOINT = CheckpointSettings()
_COMPACTION = CompactionSettings()


@dataclass(frozen=True, slots=True)
class Load:
    """messages a second, each of ``size`` bytes (headers, subject and payload), over ``streams``, kept for ``days``.

    stored: share of a message's bytes after compression. cold_gets: messages a second that are read one by one and are not in the
    cache. The rest are the broker's settings.
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
    rounds = heartbeats / _CHECKPOINT.empty_segments
    if commits:
        interval_s = (_CHECKPOINT.interval_ns or 0) / 1e9
        rounds = max(commits / _CHECKPOINT.segments, 1 / (interval_s + 0.5 / commits))
    merged = load.compaction and raw / commits < _COMPACTION.large_bytes if commits else False
    # 1/64 of the commits, of these again 1/64, and so on.
    runs = commits / (_COMPACTION.segments - 1) if merged else 0.0
    puts = {"commits": commits, "heartbeats": heartbeats, "checkpoints": rounds * _PUTS_A_ROUND, "compaction": runs}
    all_puts = sum(puts.values())
    lists = rounds + (1 / load.inbox_interval_s if load.inbox_interval_s else 0.0)
    standby_gets = load.standbys * 12 / load.lease_s
    gets = runs * _COMPACTION.segments + commits + heartbeats + standby_gets + 2 * load.cold_gets
    blocks = min(commits * load.streams, load.messages)
    body = raw * load.stored + load.messages * _MESSAGE_BYTES
    log_bytes = body + blocks * _BLOCK_BYTES + heartbeats * 104
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
