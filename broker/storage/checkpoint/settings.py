"""Bounds of checkpoints: when a round starts, how many roots are kept, and when commits wait for a root."""

from __future__ import annotations

from broker.storage.checkpoint.subject_pages import SubjectSettings

__all__ = ["CheckpointSettings"]


class CheckpointSettings:
    """The conditions for a round to start. One of these bounds must be reached since the last round began:

        segments          segments with blocks of streams, or with changes of the catalogue
        head_bytes        bytes of the heads of these segments
        interval_ns       time after the first of these segments
        empty_segments    segments without such blocks
    """

    def __init__(self, *, segments: int = 256, head_bytes: int = 64 << 20, empty_segments: int = 20,
                 interval_ns: int | None = 60_000_000_000, hold_factor: int = 4, roots_kept: int = 3,
                 replayed_segments: int = 64, replayed_epochs: int = 8,
                 subjects: SubjectSettings | None = None) -> None:
        self.segments = segments
        self.head_bytes = head_bytes
        self.empty_segments = empty_segments
        """The bound for heartbeats and for segments with only the shard's own records. It is large enough that the
        segments which a round itself writes do not soon start the next round. An idle log has up to (``roots_kept`` +
        1) times as many. Each round costs two puts and a listing."""
        self.interval_ns = interval_ns
        """None: time alone starts no round. An owner's first round comes at the latest this long after its start."""
        self.hold_factor = hold_factor
        """Commits wait for a new root once ``segments`` or ``head_bytes`` is exceeded by this factor."""
        self.roots_kept = roots_kept
        self.replayed_segments = replayed_segments
        """A round starts at once after a recovery that replayed more segments, or more than ``replayed_epochs``
        epochs."""
        self.replayed_epochs = replayed_epochs
        self.subjects = subjects or SubjectSettings()
