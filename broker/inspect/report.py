"""Reports: surveys, shards, epochs and streams as JSON values, and the overview as text.

The report's keys are stable: orphans are called ``strays`` there, and released objects ``let_go``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from broker.base.output import Table, count, plain, printable, size, when
from broker.inspect.problems import Problem
from broker.inspect.repaired import Repaired
from broker.inspect.survey import Epoch, ShardSurvey, Survey, stream_row
from broker.inspect.verify import Verified
from broker.storage.state.consumer import ConsumerState
from broker.storage.state.stream import StreamState

__all__ = ["consumer_json", "epoch_json", "epoch_table", "overview_json", "overview_text", "problem_lines",
           "shard_json", "stream_detail", "stream_json", "stream_table"]

_EPOCHS_SHOWN = 8


def overview_json(survey: Survey, verified: Verified | None = None) -> dict[str, Any]:
    """Return a survey as JSON, with its verification if there is one."""
    store = survey.format
    value: dict[str, Any] = {
        "url": survey.url,
        "format": None if store is None else {"version": store.version, "store_id": store.store_id.hex(),
                                              "made_at": when(store.made_at_ns), "made_at_ns": store.made_at_ns},
        "shards": [shard_json(shard) for shard in survey.shards],
        "stream_runs": {"objects": survey.stream_runs.count, "bytes": survey.stream_runs.bytes},
        "streams": [stream_json(stream, shard) for shard, stream in survey.streams]}
    problems = list(survey.problems)
    if verified is not None:
        value["verified"] = {
            "objects": verified.objects, "bytes": verified.bytes,
            "checkpoints_compared": [{"shard": shard, "position": str(position)} for shard, position in verified.roots],
            "strays": [orphan._asdict() for orphan in verified.orphans]}
        problems += verified.problems
    value["problems"] = [problem.to_json() for problem in problems]
    value["repairs"] = [repair.to_json() for repair in survey.repairs]
    return value


def shard_json(shard: ShardSurvey) -> dict[str, Any]:
    """Return a shard as JSON."""
    view = shard.view
    snapshot = view.snapshot
    root = snapshot.root if snapshot is not None else None
    extent = shard.log.extent
    return {
        "shard": shard.paths.shard,
        "position": str(view.state.position) if snapshot is not None else None,
        "whole": view.whole,
        "sealed": snapshot.sealed if snapshot is not None else None,
        "owner": view.state.opening.owner if view.state.opening is not None else None,
        "epochs": [epoch_json(epoch) for epoch in shard.epochs],
        "log": {"segments": extent.count - sum(1 for epoch in shard.epochs if epoch.sealed_by is not None),
                "seals": sum(1 for epoch in shard.epochs if epoch.sealed_by is not None), "bytes": extent.bytes,
                "live_bytes": shard.live_bytes, "dead_bytes": shard.dead_bytes,
                "held": {"segments": shard.held.count, "bytes": shard.held.bytes}},
        "checkpoints": [{"position": str(position), "bytes": bytes_} for position, bytes_ in shard.roots],
        "used_checkpoint": str(root.position) if root is not None else None,
        "replayed_segments": snapshot.segments if snapshot is not None else None,
        "pages": {"objects": len(shard.pages), "bytes": sum(bytes_ for _, bytes_ in shard.pages)},
        "runs": {"objects": shard.runs.count, "bytes": shard.runs.bytes},
        "requests": shard.requests.count,
        "streams": len(view.state.streams),
        "let_go": {"segments": sum(len(released.segments) for released in view.state.released.values()),
                   "pages": sum(len(released.pages) for released in view.state.released.values()),
                   "checkpoints": sum(len(released.roots) for released in view.state.released.values())}}


def epoch_json(epoch: Epoch) -> dict[str, Any]:
    """Return an epoch as JSON."""
    claim, opening = epoch.claim, epoch.opening
    return {
        "epoch": epoch.number, "owner": claim.owner if claim is not None else None,
        "claimed_at": when(claim.at_ns) if claim is not None else None,
        "claimed_at_ns": claim.at_ns if claim is not None else None,
        "run_id": claim.run_id.hex() if claim is not None else None,
        "begun": epoch.begun, "opened_at": when(opening.at_ns) if opening is not None else None,
        "ends_earlier": [list(end) for end in opening.ends] if opening is not None else None,
        "end": epoch.end, "sealed_by": epoch.sealed_by, "entries": epoch.log.count, "bytes": epoch.log.bytes,
        "first_entry": epoch.first, "last_entry": epoch.last}


def stream_json(stream: StreamState, shard: ShardSurvey | None = None) -> dict[str, Any]:
    """Return a stream as the JSON of a list's row."""
    row = stream_row(stream)
    value: dict[str, Any] = {
        "account": stream.account, "name": stream.name, "incarnation": f"{stream.stream_id:016x}",
        "messages": stream.msgs, "bytes": stream.bytes, "first_seq": stream.first_seq, "last_seq": stream.last_seq,
        "first_time": when(stream.first_time_ns), "last_time": when(stream.last_time_ns), "blocks": row.blocks,
        "stored_bytes": row.stored_bytes, "dead_messages": row.dead_messages, "dead_bytes": row.dead_stored_bytes,
        "consumers": len(stream.consumers), "offline": stream.offline}
    if shard is not None:
        value["shard"] = shard.paths.shard
    return value


def stream_detail(stream: StreamState, shard: int) -> dict[str, Any]:
    """Return a stream as JSON, with its configuration and consumers."""
    value = stream_json(stream) | {"shard": shard, "created": when(stream.created_ns), "position": str(stream.position)}
    if stream.ceiling:
        value["ceiling"] = stream.ceiling
    if stream.extra:
        value["extra"] = plain(stream.extra)
    value["config"] = plain(stream.config)
    value["consumers"] = [consumer_json(consumer) for consumer in stream.consumers.values()]
    return value


def consumer_json(consumer: ConsumerState, *, whole: bool = False) -> dict[str, Any]:
    """Return a consumer as JSON; ``whole`` also lists its pending and redelivered messages, and its configuration."""
    value: dict[str, Any] = {
        "name": consumer.name, "created": when(consumer.created_ns),
        "delivered_stream_seq": consumer.delivered_sseq, "delivered_consumer_seq": consumer.delivered_cseq,
        "ack_floor_stream_seq": consumer.floor_sseq, "ack_floor_consumer_seq": consumer.floor_cseq,
        "num_ack_pending": len(consumer.pending), "num_redelivered": len(consumer.redelivered),
        "last_active": when(consumer.last_active_ns), "last_ack": when(consumer.last_ack_ns)}
    if whole:
        value["pending"] = [[seq, cseq, at] for seq, (cseq, at) in consumer.pending.items()]
        value["redelivered"] = [[seq, times] for seq, times in consumer.redelivered.items()]
        value["config"] = plain(consumer.config)
        value["extra"] = plain(consumer.extra)
    return value


def stream_table(survey: Survey) -> list[str]:
    """Return the lines of the table of streams."""
    table = Table(["account", "stream", "incarnation", "messages", "bytes", "first_seq", "last_seq", "blocks", "stored",
                   "dead", "consumers", "last message"],
                  ["messages", "bytes", "first_seq", "last_seq", "blocks", "stored", "dead", "consumers"])
    for _, stream in survey.streams:
        row = stream_row(stream)
        note = " (offline)" if stream.offline else " (being restored)" if stream.restoring else ""
        table.add(stream.account, stream.name + note,
                  f"{stream.stream_id:016x}", count(stream.msgs), size(stream.bytes), stream.first_seq, stream.last_seq,
                  count(row.blocks), size(row.stored_bytes), size(row.dead_stored_bytes), len(stream.consumers),
                  when(stream.last_time_ns))
    return table.flush() if len(table) else ["no streams"]


def epoch_table(shard: ShardSurvey, last: int | None = None) -> list[str]:
    """Return the lines of the table of epochs, or only of the ``last`` ones."""
    table = Table(["epoch", "owner", "claimed", "begun", "end", "sealed by", "entries", "bytes"],
                  ["epoch", "end", "entries", "bytes"])
    for epoch in shard.epochs if last is None else shard.epochs[-last:]:
        claim = epoch.claim
        table.add(epoch.number, claim.owner if claim else None, when(claim.at_ns) if claim else None, epoch.begun,
                  epoch.end, epoch.sealed_by, count(epoch.log.count), size(epoch.log.bytes))
    return table.flush()


def overview_text(survey: Survey, verified: Verified | None = None) -> list[str]:
    """Return the lines of the overview."""
    store = survey.format
    lines = [f"store        {printable(survey.url)}"]
    if store is not None:
        lines.append(f"format       {store.version}, store {store.store_id.hex()}, made {when(store.made_at_ns)}")
    for shard in survey.shards:
        lines += ["", *_shard_lines(shard)]
    lines += ["", *stream_table(survey)]
    if verified is not None:
        lines += ["", f"verified     {count(verified.objects)} objects, {size(verified.bytes)}: every checksum; "
                  f"{len(verified.roots)} checkpoints replayed and compared"]
        if verified.orphans:
            table = Table(["orphan object", "bytes", "why it may be there"], ["bytes"])
            for orphan in verified.orphans:
                table.add(orphan.object, orphan.bytes, orphan.what)
            lines += ["", *table.flush()]
    problems = survey.problems + (verified.problems if verified is not None else [])
    lines += ["", *problem_lines(problems)] if problems else [
        "", "no problems found" + ("" if verified is not None else "; --verify reads every byte")]
    return lines + repair_lines(survey.repairs)


def repair_lines(repairs: Sequence[Repaired]) -> list[str]:
    """Return lines about earlier repairs and the messages lost then."""
    lines = []
    for repair in repairs:
        what = "these messages were lost then" if repair.lost else "no message was lost then"
        lines += ["", f"repaired at {when(repair.at_ns)}, what was replaced is kept below {repair.folder}: {what}"]
        if repair.lost:
            lines += lost_table(repair.lost)
    return lines


def lost_table(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the lines of the table of lost messages, with the objects that had them."""
    table = Table(["account", "stream", "first", "last", "messages", "object"], ["first", "last", "messages"])
    for row in rows:
        table.add(row["account"], row["stream"], row["first_seq"], row["last_seq"], row["messages"], row["object"]
                  or "-")
    return table.flush()


def _shard_lines(shard: ShardSurvey) -> list[str]:
    view, extent = shard.view, shard.log.extent
    snapshot = view.snapshot
    state = "cannot be read"
    if snapshot is not None:
        state = f"at {view.state.position}" + (", sealed" if snapshot.sealed else "") + (
            "" if view.whole else ", which is not its end: see the problems")
    lines = [f"shard {shard.paths.shard}      {state}"]
    if view.state.opening is not None:
        lines.append(f"owner        {printable(view.state.opening.owner)}" + (
            " (ended)" if snapshot is not None and snapshot.sealed else ""))
    lines.append(f"log          {count(extent.count)} entries, {size(extent.bytes)}; "
                 f"{size(shard.live_bytes)} live, {size(shard.dead_bytes)} dead" + (
                     f"; {count(shard.held.count)} segments, {size(shard.held.bytes)}, are kept for offline streams"
                     if shard.held.count else ""))
    root = snapshot.root.position if snapshot is not None and snapshot.root is not None else None
    lines.append(f"checkpoints  {len(shard.roots)}" + (f", {root} in use" if root is not None else "") + (
        f"; {count(snapshot.segments)} segments replayed" if snapshot is not None else ""))
    lines.append(f"pages        {len(shard.pages)} objects, {size(sum(bytes_ for _, bytes_ in shard.pages))}")
    if shard.runs.count or shard.requests.count:
        lines.append(f"runs         {count(shard.runs.count)} objects, {size(shard.runs.bytes)}; "
                     f"{shard.requests.count} requests")
    hidden = len(shard.epochs) - _EPOCHS_SHOWN
    lines += ["", *epoch_table(shard, _EPOCHS_SHOWN)]
    if hidden > 0:
        lines.append(f"and {hidden} earlier: see `epochs`")
    return lines


def problem_lines(problems: list[Problem]) -> list[str]:
    """Return three lines for each problem."""
    lines = [f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"]
    for problem in problems:
        lines += [f"  {printable(str(problem))}", f"      means:  {printable(problem.means)}",
                  f"      remedy: {printable(problem.remedy)}"]
    return lines
