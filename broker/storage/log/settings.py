"""Bounds and intervals of one shard's log."""

from __future__ import annotations

from broker.config.settings import StorageSettings
from broker.storage.format.section import SECTIONS, SectionCodec
from broker.storage.format.segment import PUTS_IN_FLIGHT_MAX

__all__ = ["LogSettings"]

_DEFAULTS = StorageSettings()


class LogSettings:
    """Bounds and intervals of one log.

    Args: commit_interval_ns is the least time between the beginnings of two puts; 0: no minimum. commit_burst is the
        number of puts that may begin before it is over, after intervals without a put. lease_ns is the period of the
        lease; None: a lock is the lease. journal_ns is how long a segment stays open after its first commit in a
        journal; synced_journal_ns the same if each commit is flushed, since the two flushes of a segment then compete
        with those of commits.
    """

    def __init__(self, *, segment_bytes: int = _DEFAULTS.segment_bytes, segment_count: int = 20_000,
                 puts_in_flight: int = _DEFAULTS.puts_in_flight, commit_interval_ns: int = 0,
                 commit_burst: int = _DEFAULTS.commit_burst, lazy_ns: int = 1_000_000_000,
                 journal_ns: int = 50_000_000, synced_journal_ns: int = 100_000_000,
                 tail_bytes_max: int = _DEFAULTS.tail_bytes_max, inline_bytes_max: int = 256 << 10,
                 lease_ns: int | None = None, put_timeout_ns: int | None = None,
                 codec: SectionCodec = SECTIONS) -> None:
        if not 1 <= puts_in_flight <= PUTS_IN_FLIGHT_MAX:
            raise ValueError(f"puts_in_flight is 1 to {PUTS_IN_FLIGHT_MAX}")
        self.segment_bytes = segment_bytes
        self.segment_count = segment_count
        self.puts_in_flight = puts_in_flight
        self.commit_interval_ns = commit_interval_ns
        self.commit_burst = commit_burst
        self.lazy_ns = lazy_ns
        self.journal_ns = journal_ns
        self.synced_journal_ns = synced_journal_ns
        self.tail_bytes_max = tail_bytes_max
        self.inline_bytes_max = inline_bytes_max
        self.lease_ns = lease_ns
        self.put_timeout_ns = put_timeout_ns
        self.codec = codec
