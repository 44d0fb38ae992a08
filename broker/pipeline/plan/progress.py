"""A streaming query without Spark: its start, the end of the next batch, the blocks that the batch reads, and the
detection of messages that were lost before it read them.

    initial ── latest ── tasks ── latest ── tasks ── …        the store is read once for each ``latest``

A batch is all live messages between two offsets, so a batch that Spark plans again after a restart has the same rows,
except for messages removed in between.

Data loss means that the store shows a removal before the read: a stream that was deleted, or deleted and
recreated; a stream that went back (a store restored from a backup); and unread sequences below the stream's first one,
whether a limit, age, purge or delete removed them. Sequences missing after the first one are no loss. Nor is a removal
in streams whose rules remove single messages: max_msgs_per_subject (hence all key-value buckets) and the retentions
``workqueue`` and ``interest``. ``failOnDataLoss`` decides whether a loss ends the query or is logged.

If a restart leaves a stream out of the option ``stream``, its place stays in the offsets. A later restart that names
the stream resumes there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from broker.pipeline.errors import BadOption, DataLoss, NoStream
from broker.pipeline.plan.backlog import StreamBacklog
from broker.pipeline.plan.follow import FollowedStream, Follower
from broker.pipeline.plan.offsets import Offsets, Place, Start, share
from broker.pipeline.plan.options import Options
from broker.pipeline.plan.plan import ScanTask, tasks
from broker.pipeline.plan.selection import SEQ_MAX
from broker.pipeline.plan.snapshot import matcher, names, no_stream, seq_at_time, wanted_by
from broker.pipeline.store.objects import ObjectClient

__all__ = ["Progress", "removes_singly"]

_log = logging.getLogger(__name__)


class Progress:
    """The progress of one streaming query through its streams."""

    def __init__(self, objects: ObjectClient, options: Options) -> None:
        self._objects = objects
        self._options = options
        self._start = Start.parse(options.startingoffsets)
        self._selection = options.selection()
        self._follower = Follower(objects, options.account, options.stream)
        self._wanted = wanted_by(options.account, options.stream)
        self._seen: dict[str, FollowedStream] | None = None
        self._target: dict[str, Place] | None = None
        self._reported: set[str] = set()

    def initial(self) -> Offsets:
        """Return the offsets at which a new query starts.

        Raises: NoStream for a name without ``*`` that no stream has; BadOption if ``startingOffsets`` does not fit the
            streams; otherwise as ``Follower.refresh``.
        """
        seen = self._refresh()
        for pattern in names(self._options.stream):
            if "*" not in pattern and not any(matcher(pattern)(one.state.name) for one in seen.values()):
                there = [*((one.state.account, one.state.name) for one in seen.values()), *self._follower.others()]
                error = no_stream(self._objects.url, self._options.account, pattern, there)
                raise NoStream(f"{error}; to follow streams created later, use a name with *")
        given = self._start.offsets.streams if self._start.offsets is not None else {}
        for name in given:
            if name not in seen:
                raise BadOption(f"option startingOffsets names the stream {name}, which is not there or not among "
                                f"those of the options account and stream: {', '.join(seen) or 'none'}")
        return Offsets.of({name: self._begin(one, given.get(name)) for name, one in seen.items()}, initial=True)

    def stop_at_present_end(self) -> None:
        """Set the query's end to the present end of the streams (``Trigger.AvailableNow``)."""
        self._target = {name: _end(one) for name, one in self._refresh().items()}

    def latest(self, start: Offsets, rows: int | None = None, size: int | None = None) -> Offsets:
        """Return the end of a batch from ``start``: at most ``rows`` messages and ``size`` bytes further; None means no
        limit.

        Returns: ``start`` itself if nothing is new. Raises: DataLoss; otherwise as ``Follower.refresh``.
        """
        seen = self._refresh()
        places = self._resumed(start, seen)
        ends = {name: place for name, place in start.streams.items() if self._left_out(name)}
        backlogs: dict[str, StreamBacklog] = {}
        for name, place in places.items():
            end = _end(seen[name])
            if self._target is not None:
                target = self._target.get(name)
                if target is None or target.stream_id != place.stream_id:
                    if name in start.streams:
                        ends[name] = place
                    continue  # created later
                end = min(end, target)
            ends[name] = max(place, end)
            if (rows is not None or size is not None) and end > place:
                one = seen[name]
                backlogs[name] = StreamBacklog(one.entries(place.next_seq), place.next_seq, end.next_seq,
                                               self._selection, partial(self._follower.seqs, one))
        if backlogs:
            turn = sum(place.next_seq for place in places.values())
            share(list(backlogs.values()), SEQ_MAX if rows is None else rows, SEQ_MAX if size is None else size, turn)
            for name, backlog in backlogs.items():
                ends[name] = Place(ends[name].stream_id, backlog.next_seq)
        if start.initial:
            return Offsets.of(ends, began=start.streams)
        return start if ends == start.streams else Offsets.of(ends)

    def newest(self) -> Offsets | None:
        """Return the end of all streams when they were last refreshed, without reading the store; None before that."""
        return None if self._seen is None else Offsets.of({name: _end(one) for name, one in self._seen.items()})

    def tasks(self, start: Offsets, end: Offsets) -> list[ScanTask]:
        """Return the scan tasks of a batch, by stream and sequence. Raises: DataLoss; otherwise as
        ``Follower.refresh``."""
        seen = self._refresh() if self._seen is None else self._seen
        begun = start.start_of(end)
        found: list[ScanTask] = []
        for name, upto in end.streams.items():
            one = seen.get(name)
            if one is None or one.state.stream_id != upto.stream_id:
                if begun.get(name) == upto:
                    continue
                if self._left_out(name):
                    self._report_loss(f"stream {name} was left out of the options account and stream while a batch "
                                      f"with its messages up to {upto.next_seq - 1} was under way: name it until that "
                                      "batch is done")
                else:
                    self._report_loss(f"stream {name} of incarnation {upto.stream_id:016x} was deleted, and its "
                                      f"messages up to {upto.next_seq - 1} were not read")
                continue
            place = begun.get(name)
            first_seq = place.next_seq if place is not None and place.stream_id == upto.stream_id else _first(one)
            if first_seq >= upto.next_seq:
                continue
            self._check(one, first_seq)
            wanted = replace(self._selection, first_seq=max(self._selection.first_seq, first_seq),
                             last_seq=min(self._selection.last_seq or SEQ_MAX, upto.next_seq - 1))
            found += tasks(one.snapshot(first_seq, upto.next_seq), wanted)
        return found

    def _refresh(self) -> dict[str, FollowedStream]:
        self._seen = None
        self._seen = self._follower.refresh()
        return self._seen

    def _begin(self, one: FollowedStream, given: Place | None) -> Place:
        """Return the place in one stream at which a new query starts."""
        state, start = one.state, self._start
        if start.latest:
            return _end(one)
        if start.time_ns is not None:
            return Place(state.stream_id, max(1, seq_at_time(self._objects, one.snapshot(), start.time_ns)))
        if given is not None and given.stream_id != state.stream_id:
            raise BadOption(f"option startingOffsets: stream {one.name} is now of incarnation {state.stream_id:016x}, "
                            f"not {given.stream_id:016x}: it was deleted and recreated")
        seq = given.next_seq if given is not None else start.seq
        if seq is None:
            return Place(state.stream_id, max(1, state.first_seq))
        if seq > state.last_seq + 1:
            raise BadOption(f"option startingOffsets: stream {one.name} ends at sequence {state.last_seq}, before "
                            f"{seq}")
        return Place(state.stream_id, seq)

    def _resumed(self, start: Offsets, seen: Mapping[str, FollowedStream]) -> dict[str, Place]:
        """Return the place at which to resume in each existing stream."""
        for name, place in start.streams.items():
            one = seen.get(name)
            if one is None:
                if self._left_out(name):
                    continue
                self._report_loss(f"stream {name} of incarnation {place.stream_id:016x} was deleted; expected its "
                                  f"sequence {place.next_seq}, found no stream of that name")
            elif one.state.stream_id != place.stream_id:
                self._report_loss(f"stream {name} was deleted and recreated; expected sequence {place.next_seq} of "
                                  f"incarnation {place.stream_id:016x}, found incarnation {one.state.stream_id:016x}")
        places = {}
        for name, one in seen.items():
            state = one.state
            known = start.streams.get(name)
            place = (known if known is not None and known.stream_id == state.stream_id
                     else Place(state.stream_id, _first(one)))
            if place.next_seq > state.last_seq + 1 and place.next_seq > _first(one):
                self._report_loss(f"stream {name} went back: expected sequence {place.next_seq}, found that it ends at "
                                  f"{state.last_seq}; was the store restored from a backup?")
                place = _end(one)
            self._check(one, place.next_seq)
            places[name] = place
        return places

    def _check(self, one: FollowedStream, next_seq: int) -> None:
        """Report data loss if the stream begins after ``next_seq``."""
        state = one.state
        if state.first_seq > next_seq and not removes_singly(state.config):
            self._report_loss(f"stream {one.name} lost messages before they were read: expected sequence {next_seq}, "
                              f"found that it begins at {state.first_seq}")

    def _left_out(self, name: str) -> bool:
        """Return whether the options no longer name the stream ACCOUNT/NAME."""
        account, _, stream = name.rpartition("/")
        return not self._wanted(account, stream)

    def _report_loss(self, what: str) -> None:
        if self._options.failondataloss:
            raise DataLoss(f"{self._objects.url}: {what}; to continue with what remains, set failOnDataLoss=false")
        if what not in self._reported:
            self._reported.add(what)
            _log.warning("%s: %s", self._objects.url, what)


def _end(one: FollowedStream) -> Place:
    """Return the place after a stream's last message."""
    return Place(one.state.stream_id, max(one.state.last_seq + 1, _first(one)))


def _first(one: FollowedStream) -> int:
    """Return the lowest sequence that a stream can ever have."""
    return max(1, int(one.state.config.get("first_seq") or 1))


def removes_singly(config: Mapping[str, Any]) -> bool:
    """Return whether the stream's rules remove single messages anywhere, not only the oldest ones."""
    return int(config.get("max_msgs_per_subject") or 0) > 0 or config.get("retention", "limits") != "limits"
