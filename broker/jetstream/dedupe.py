"""Which message ids a stream has seen within its ``duplicate_window``, and the id of its very last message.

Owns: the window's ids in memory, their expiry, and which ids the open block must record.
Does not own: when a duplicate is an error or an answer (sequencer), nor where ids are stored (MSG_IDS records).

Times never decrease, so the ids lie in order of time: they are kept by runs, and expiry takes whole runs off the front.
Removing messages does not forget their ids: an id lives for the window whatever happens to its message.

Memory: about 140 bytes and the id itself for each id; ``bytes_max`` bounds it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Dedupe"]

_ENTRY_BYTES = 140
"""A dictionary entry, the id's bytes object, its sequence and its place in the queue; measured (perf-notes)."""


class Dedupe:
    """The ids of one stream. ``window_ns`` 0: nothing is remembered but the last id.

    Attributes:
        last_id: id of the stream's last message, b"" when it had none; None: not known since the restart.
        known: False after a restart until ``restore`` brought the window's ids back.
        bytes: estimate of the memory held; ``full`` when it reached ``bytes_max``.
    """

    __slots__ = ("_runs", "_seqs", "bytes", "bytes_max", "known", "last_id", "recorded", "window_ns")

    def __init__(self, window_ns: int, *, bytes_max: int = 256 << 20, known: bool = True) -> None:
        self.window_ns = window_ns
        self.bytes_max = bytes_max
        self.bytes = 0
        self.known = known or window_ns <= 0
        self.last_id: bytes | None = b"" if known else None
        self.recorded: list[tuple[int, bytes]] = []
        self._seqs: dict[bytes, int] = {}
        self._runs: deque[tuple[int, list[bytes]]] = deque()

    def __len__(self) -> int:
        return len(self._seqs)

    @property
    def full(self) -> bool:
        return self.bytes >= self.bytes_max

    @property
    def next_expiry_ns(self) -> int | None:
        """When the oldest id leaves the window, or None when there is none."""
        return self._runs[0][0] + self.window_ns if self._runs else None

    def seen(self, msg_id: bytes) -> int:
        """The sequence of the message that brought this id, or 0."""
        return self._seqs.get(msg_id, 0)

    def add(self, ids: Mapping[bytes, int], last_id: bytes, time_ns: int) -> None:
        """Remember the ids of messages, just sequenced at ``time_ns``, with their sequences, and that the open block must
        record them. ``last_id`` is the last message's, b"" when it has none."""
        self.last_id = last_id
        if not ids:
            return
        self.recorded += [(seq, msg_id) for msg_id, seq in ids.items()]
        if self.window_ns > 0:
            self._seqs.update(ids)
            self.bytes += _ENTRY_BYTES * len(ids) + sum(map(len, ids))
            self._runs.append((time_ns, list(ids)))

    def news(self, ids: Sequence[bytes]) -> bool:
        """Whether no id in ``ids`` (b"": none) was seen before, nor stands in it twice."""
        given = [msg_id for msg_id in ids if msg_id]
        return self._seqs.keys().isdisjoint(given) and len(set(given)) == len(given)

    def add_run(self, ids: Sequence[bytes], first_seq: int, time_ns: int) -> None:
        """``add`` for all messages from ``first_seq`` on; b"" has no id."""
        self.last_id = ids[-1]
        pairs = [(seq, msg_id) for seq, msg_id in enumerate(ids, first_seq) if msg_id]
        self.recorded += pairs
        if self.window_ns > 0:
            given = [msg_id for _, msg_id in pairs]
            self._seqs.update(zip(given, (seq for seq, _ in pairs), strict=True))
            self.bytes += _ENTRY_BYTES * len(given) + sum(map(len, given))
            self._runs.append((time_ns, given))

    def _remember(self, msg_id: bytes, seq: int, time_ns: int) -> None:
        if self.window_ns <= 0:
            return
        self._seqs[msg_id] = seq
        self.bytes += _ENTRY_BYTES + len(msg_id)
        runs = self._runs
        if runs and runs[-1][0] == time_ns:
            runs[-1][1].append(msg_id)
        else:
            runs.append((time_ns, [msg_id]))

    def expire(self, now_ns: int) -> None:
        """Forget the ids whose window is over."""
        limit = now_ns - self.window_ns
        runs, seqs = self._runs, self._seqs
        while runs and runs[0][0] <= limit:
            for msg_id in runs.popleft()[1]:
                del seqs[msg_id]
                self.bytes -= _ENTRY_BYTES + len(msg_id)
        if not seqs:
            # A dictionary never gives its table back while it lives.
            self._seqs = {}

    def take_recorded(self) -> list[tuple[int, bytes]]:
        """(sequence, id) of the messages with ids since the last call, in order: the open block's MSG_IDS."""
        recorded, self.recorded = self.recorded, []
        return recorded

    def restore(self, ids: Iterable[tuple[int, bytes, int]], last_seq: int, now_ns: int) -> None:
        """Take the ids that stored blocks recorded: (sequence, id, time_ns) in order of sequence.

        Called once after a restart, before the first id is looked up: publishes with ids wait for it.
        """
        last_id = b""
        for seq, msg_id, time_ns in ids:
            if seq == last_seq:
                last_id = msg_id
            if time_ns + self.window_ns > now_ns and msg_id not in self._seqs:
                self._remember(msg_id, seq, time_ns)
        if self.last_id is None:
            self.last_id = last_id
        self.known = True
