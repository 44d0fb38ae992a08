"""The page of ``jetblock report``: what is in a store, how it grows, what it costs, what is wrong, what to do.

All figures come from a survey: listings and the replayed state. ``inspect.verify`` adds what only a reading of all
bytes can find.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, NamedTuple

from broker import __version__
from broker.base.html_page import Bar, Split, bar_chart, facts_table, page, rows_table, shortened, split_chart, text
from broker.base.output import count, printable, size, when
from broker.inspect.problems import Problem
from broker.inspect.survey import StreamRow, Survey, stream_row
from broker.inspect.verify import Verified
from broker.maintenance.cost import Bill, Load, bill
from broker.maintenance.cost_cli import TooYoung, measure_load
from broker.storage.state.stream import StreamState

__all__ = ["report_page"]

STREAMS_LISTED: Final = 100
STREAMS_DRAWN: Final = 20
PROBLEMS_LISTED: Final = 200
CONSUMERS_LISTED: Final = 50
EPOCHS_LISTED: Final = 10
_NAMED: Final = 5
"""Streams that a line of advice names."""
_INTERVALS: Final = 60
_DAY_NS: Final = 86_400 * 10**9
_WIDTHS_NS: Final = tuple(seconds * 10**9 for seconds in (
    1, 10, 60, 600, 3600, 6 * 3600, 86_400, 7 * 86_400, 30 * 86_400, 365 * 86_400))
"""Widths of an interval of the growth; the first one that gives at most _INTERVALS of them."""
_DEAD_SHARE: Final = 0.3
_DEAD_BYTES: Final = 64 << 20
_IDLE_DAYS: Final = 30
_REPLAYED_SEGMENTS: Final = 20_000
_OWNERS_A_DAY: Final = 10


class _Row(NamedTuple):
    """A stream with its figures."""

    stream: StreamState
    figures: StreamRow

    @property
    def name(self) -> str:
        return f"{self.stream.account}/{self.stream.name}"

    @property
    def live(self) -> int:
        return self.figures.stored_bytes - self.figures.dead_stored_bytes


def report_page(survey: Survey, verified: Verified | None, now_ns: int) -> str:
    """Return the page. Args: ``verified``: None if no payload was read."""
    rows = sorted((_Row(stream, stream_row(stream)) for _, stream in survey.streams),
                  key=lambda row: (-row.figures.stored_bytes, row.name))
    problems = [*survey.problems, *(verified.problems if verified is not None else ())]
    load = _load(survey, now_ns)
    body = "\n".join((
        facts_table(_facts(survey, rows, verified, problems, now_ns)),
        "<h2>What to do</h2>", _advice(survey, rows, problems, load, now_ns),
        f"<h2>Problems: {count(len(problems))}</h2>", _problems(problems, verified),
        "<h2>Growth</h2>", _growth(rows),
        f"<h2>Streams: {count(len(rows))}</h2>", _streams(rows, now_ns),
        "<h2>Consumers</h2>", _consumers(rows, now_ns),
        "<h2>Bill</h2>", _bill(load),
        "<h2>Owners</h2>", _owners(survey)))
    return page(f"jetblock report: {printable(survey.url)}", f"Store {printable(survey.url)}", body)


def _facts(survey: Survey, rows: Sequence[_Row], verified: Verified | None, problems: Sequence[Problem],
           now_ns: int) -> dict[str, str]:
    extent = survey.extent
    stored, dead = (sum(row.figures.stored_bytes for row in rows), sum(row.figures.dead_stored_bytes for row in rows))
    checked = "not read: run with --verify" if verified is None else (
        f"{count(verified.objects)} objects, {size(verified.bytes)}, all read")
    return {
        "made": f"{when(now_ns)}, by jetblock {__version__}",
        "format": "-" if survey.format is None else
        f"version {survey.format.version}, since {when(survey.format.made_at_ns)}",
        "shards": count(len(survey.shards)),
        "streams": f"{count(len(rows))} in {_number(len({row.stream.account for row in rows}), 'account')}",
        "messages": f"{count(sum(row.stream.msgs for row in rows))}, "
                    f"{size(sum(row.stream.bytes for row in rows))} before compression",
        "objects": f"{count(extent.count)}, {size(extent.bytes)}",
        "blocks": f"{size(stored)}, of which {size(dead)} ({_share(dead, stored)}) are dead: deleted, expired or acked",
        "checked": checked,
        "problems": count(len(problems)),
    }


def _advice(survey: Survey, rows: Sequence[_Row], problems: Sequence[Problem], load: Load | str, now_ns: int) -> str:
    lines = list(_lines_of_advice(survey, rows, problems, load, now_ns))
    if not lines:
        return "<p>Nothing.</p>"
    return "<ul>" + "".join(f"<li>{text(line)}</li>" for line in lines) + "</ul>"


def _lines_of_advice(survey: Survey, rows: Sequence[_Row], problems: Sequence[Problem], load: Load | str,
                     now_ns: int) -> Iterator[str]:
    if problems:
        yield (f"{_number(len(problems), 'problem')} found: jetblock fsck says what is lost, and with --repair it "
               f"repairs what it can. The first one: {problems[0]}; {problems[0].remedy}.")
    if offline := [row for row in rows if row.stream.offline]:
        yield (f"{_number(len(offline), 'stream')} cannot be used: {_names(offline)}. The first one: "
               f"{offline[0].stream.offline}.")
    stored, dead = (sum(row.figures.stored_bytes for row in rows), sum(row.figures.dead_stored_bytes for row in rows))
    if dead > _DEAD_BYTES and dead > _DEAD_SHARE * stored:
        yield (f"{size(dead)} of {size(stored)} are dead. Compaction removes them: see that it runs "
               "(compaction: true), and raise compaction_bytes_per_second if it cannot keep up.")
    if unlimited := [row for row in rows if _grows_for_ever(row.stream)]:
        yield (f"{_number(len(unlimited), 'stream')} without max_age, max_bytes, max_msgs or max_msgs_per_subject: "
               f"{_names(unlimited)}. They grow for ever; set a limit unless that is what you want.")
    idle = [f"{row.name} > {consumer.name}" for row in rows if row.stream.config.get("retention") in ("interest",
            "workqueue") for consumer in row.stream.consumers.values()
            if 0 < max(consumer.last_active_ns, consumer.last_ack_ns) < now_ns - _IDLE_DAYS * _DAY_NS]
    if idle:
        yield (f"{_number(len(idle), 'consumer')} inactive for {_IDLE_DAYS} days on streams that keep messages until "
               f"they are acknowledged: {', '.join(idle[:_NAMED])}{_and_more(len(idle))}. Delete what nobody uses.")
    for shard in survey.shards:
        snapshot = shard.view.snapshot
        if snapshot is not None and snapshot.segments > _REPLAYED_SEGMENTS:
            yield (f"A start would replay {count(snapshot.segments)} segments of shard {shard.paths.shard}: "
                   "the broker's log says why it writes no checkpoints.")
        recent = sum(1 for epoch in shard.epochs
                     if epoch.claim is not None and 0 <= now_ns - epoch.claim.at_ns < _DAY_NS)
        if recent > _OWNERS_A_DAY:
            yield (f"Shard {shard.paths.shard} had {count(recent)} owners within a day: brokers replace each other, or "
                   "one restarts often.")
    if isinstance(load, Load):
        for name, saved in _savings(load):
            yield f"With {name}, the bill of a month is ${saved:,.2f} lower."


def _grows_for_ever(stream: StreamState) -> bool:
    config = stream.config
    limits = (config.get("max_age"), config.get("max_bytes"), config.get("max_msgs"),
              config.get("max_msgs_per_subject"))
    return config.get("retention", "limits") == "limits" and not any(
        isinstance(limit, int) and limit > 0 for limit in limits)


def _problems(problems: Sequence[Problem], verified: Verified | None) -> str:
    listed = rows_table(["object", "problem", "means", "remedy"],
                        [(one.object, str(one).partition(": ")[2] or one.what, one.means, one.remedy)
                         for one in problems[:PROBLEMS_LISTED]])
    note = "" if verified is not None else "<p>Only listings and small objects were read; --verify reads all bytes.</p>"
    return note + listed + shortened(PROBLEMS_LISTED, len(problems), "jetblock inspect lists all")


def _growth(rows: Sequence[_Row]) -> str:
    """Draw the live messages by the time at which they were stored, from the times of their blocks."""
    first = min((row.stream.first_time_ns for row in rows if row.stream.msgs), default=0)
    last = max((row.stream.last_time_ns for row in rows if row.stream.msgs), default=0)
    if not last:
        return "<p>There are no messages.</p>"
    width = next((width for width in _WIDTHS_NS if (last - first) // width < _INTERVALS), _WIDTHS_NS[-1])
    start = first // width
    stored: Counter[int] = Counter()
    messages: Counter[int] = Counter()
    for row in rows:
        for entry in row.stream.blocks:
            ref = entry.ref
            live = ref.count - entry.dead_count
            if live <= 0 or ref.last_seq < row.stream.first_seq:
                continue
            bytes_ = (ref.core_bytes + ref.index_bytes + ref.frames_bytes) * live // ref.count
            # A block of a long time counts in each of its intervals alike.
            low, high = max(ref.first_time_ns // width, start), max(ref.last_time_ns // width, start)
            low = max(low, high - _INTERVALS + 1)
            for interval in range(low, high + 1):
                stored[interval] += bytes_ // (high - low + 1)
                messages[interval] += live // (high - low + 1)
    bars = [Bar(interval - start, _day(interval * width, width), stored[interval],
                f"from {when(interval * width)}: about {size(stored[interval])}, {count(messages[interval])} messages")
            for interval in sorted(stored) if interval - start <= _INTERVALS]
    about = f"Stored bytes of the messages that are there, by the time at which they were stored, per {_span(width)}."
    return f"<p>{text(about)}</p>" + bar_chart(bars, max(bar.place for bar in bars) + 1 if bars else 1, labels=5,
                                               unit=size, about=about)


def _streams(rows: Sequence[_Row], now_ns: int) -> str:
    drawn = split_chart([Split(row.name, row.live, row.figures.dead_stored_bytes,
                               f"{row.name}: {size(row.live)} live, {size(row.figures.dead_stored_bytes)} dead")
                         for row in rows[:STREAMS_DRAWN]],
                        about="Stored bytes of the largest streams, live and dead")
    listed = rows_table(
        ["stream", "messages", "bytes", "stored", "dead", "blocks", "oldest", "newest", "consumers", "state"],
        [(row.name, count(row.stream.msgs), size(row.stream.bytes), size(row.figures.stored_bytes),
          _share(row.figures.dead_stored_bytes, row.figures.stored_bytes), count(row.figures.blocks),
          _age(row.stream.first_time_ns if row.stream.msgs else 0, now_ns),
          _age(row.stream.last_time_ns if row.stream.msgs else 0, now_ns), count(len(row.stream.consumers)),
          f"offline: {row.stream.offline}" if row.stream.offline else
          "being restored" if row.stream.restoring else "") for row in rows[:STREAMS_LISTED]],
        ["messages", "bytes", "stored", "dead", "blocks", "oldest", "newest", "consumers"])
    return drawn + listed + shortened(STREAMS_LISTED, len(rows), "jetblock inspect STORE streams lists all")


def _consumers(rows: Sequence[_Row], now_ns: int) -> str:
    found = [(max(0, row.stream.last_seq - consumer.delivered_sseq), row, consumer) for row in rows
             for consumer in row.stream.consumers.values()]
    found.sort(key=lambda one: (-one[0], one[1].name, one[2].name))
    about = "<p>Those furthest behind. Sequences that a filter leaves out count, too.</p>" if found else ""
    return about + rows_table(
        ["stream", "consumer", "behind", "ack pending", "redelivered", "last active"],
        [(row.name, consumer.name, count(behind), count(len(consumer.pending)), count(len(consumer.redelivered)),
          _age(max(consumer.last_active_ns, consumer.last_ack_ns), now_ns))
         for behind, row, consumer in found[:CONSUMERS_LISTED]],
        ["behind", "ack pending", "redelivered", "last active"]) + shortened(
            CONSUMERS_LISTED, len(found), "jetblock inspect STORE consumers NAME lists those of a stream")


def _load(survey: Survey, now_ns: int) -> Load | str:
    """Measure the load; return why that is impossible."""
    try:
        load = measure_load(survey, now_ns)
    except TooYoung:
        return ("No stream is an hour old, and less does not show the load of a month: jetblock cost STORE "
                "--messages N computes a bill for N messages a second.")
    return load if load.messages else "The store has no messages."


def _bill(load: Load | str) -> str:
    if isinstance(load, str):
        return f"<p>{text(load)}</p>"
    found = bill(load)
    about = (f"At {load.messages:.3g} messages/s of {load.size:.0f} bytes, kept for {load.days:.3g} days, a month on "
             f"S3 costs about ${found.dollars:,.2f}, by AWS's list prices. jetblock cost has other prices and loads.")
    return f"<p>{text(about)}</p>" + rows_table(["for", "in a month", "dollars"], _bill_rows(found),
                                                ["in a month", "dollars"])


def _bill_rows(found: Bill) -> list[tuple[str, str, str]]:
    return [(name, amount, f"{dollars:,.2f}") for name, amount, dollars in (
        ("PUT and LIST requests", count(round(found.puts + found.lists)), found.puts_dollars),
        ("GET requests", count(round(found.gets)), found.gets_dollars),
        ("stored", size(round(found.stored)), found.storage_dollars),
        ("all", "", found.dollars))]


def _savings(load: Load) -> Iterator[tuple[str, float]]:
    """Yield changes that make the bill lower by more than a cent and two percent, and by how much."""
    now = bill(load).dollars
    slower = max(load.commit_interval_s * 5, 0.1)
    for name, other in ((f"commit_interval: {slower:.3g}s", replace(load, commit_interval_s=slower)),
                        ("half of the retention", replace(load, days=load.days / 2))):
        saved = now - bill(other).dollars
        if saved > max(now * 0.02, 0.01):
            yield name, saved


def _owners(survey: Survey) -> str:
    found = [(shard.paths.shard, epoch) for shard in survey.shards for epoch in shard.epochs[-EPOCHS_LISTED:]]
    return rows_table(["shard", "epoch", "owner", "since", "segments", "bytes"],
                      [(shard, epoch.number, epoch.claim.owner if epoch.claim is not None else None,
                        when(epoch.claim.at_ns) if epoch.claim is not None else None, count(epoch.log.count),
                        size(epoch.log.bytes)) for shard, epoch in found], ["shard", "epoch", "segments", "bytes"])


def _names(rows: Sequence[_Row]) -> str:
    return ", ".join(row.name for row in rows[:_NAMED]) + _and_more(len(rows))


def _and_more(number: int) -> str:
    return f" and {count(number - _NAMED)} more" if number > _NAMED else ""


def _number(number: int, noun: str) -> str:
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"


def _age(at_ns: int, now_ns: int) -> str:
    """Format the time since ``at_ns``; "-" for 0."""
    if not at_ns:
        return "-"
    seconds = (now_ns - at_ns) / 1e9
    if seconds < 0:
        return "in the future"
    for unit, name in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= unit or unit == 1:
            return f"{seconds / unit:.{0 if seconds >= 10 * unit else 1}f} {name}"
    raise AssertionError


def _day(at_ns: int, width_ns: int) -> str:
    try:
        at = datetime.fromtimestamp(at_ns // 10**9, UTC)
    except (OverflowError, ValueError, OSError):
        return "-"
    if width_ns >= _DAY_NS:
        return f"{at:%Y-%m-%d}"
    return f"{at:%m-%d %H:%M}" if width_ns >= 60 * 10**9 else f"{at:%H:%M:%S}"


def _span(width_ns: int) -> str:
    seconds = width_ns // 10**9
    return next(name if seconds == unit else f"{seconds // unit} {name}s" for unit, name in (
        (86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second")) if seconds >= unit)
