"""The check for messages that no consumer waits for, in a stream that stores only what some consumer receives.

Does not own: the subjects that consumers wait for (retention.interest), the handling of the message (sequencer).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.jetstream.stream.publish.candidate import Unwanted

if TYPE_CHECKING:
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.publish.candidate import Candidate, Check
    from broker.jetstream.stream.publish.context import CheckContext

__all__ = ["unwanted"]


def unwanted(context: CheckContext, config: StreamConfig) -> Check | None:
    """End the checks of a message that no consumer waits for: it gets a sequence and a PubAck, but is not stored."""
    interest, rollups = context.interest, context.rollups

    def check(candidate: Candidate) -> None:
        if not interest.wants(candidate.subject):
            context.commit_pending(candidate.pending)
            if candidate.rollup:
                candidate.after = rollups.plan(candidate.subject if candidate.rollup == b"sub" else None)
            raise Unwanted
    return check if config.retention == "interest" else None
