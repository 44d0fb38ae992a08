"""The page of the job ``audit``: one HTML file that loads nothing else and runs no script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from broker.base.html_page import Bar, bar_chart, facts_table, page, rows_table, shortened
from broker.base.output import count, size, when

__all__ = ["audit_page"]

_LISTS: Final = {
    "gaps": ("Gaps", "Ranges of sequences without a message: deleted, expired, replaced, or left out by a mirror."),
    "duplicates": ("Repeated message IDs", "IDs (Nats-Msg-Id) that several messages have. closest_ns is the shortest "
                   "time between two of them: within the duplicate window, the second would have been dropped."),
    "clock_steps": ("Clock steps", "Messages that share one time over several commits: the broker's clock was set back "
                    "by about held_ns, or staged messages had earlier times. A stream never stores a time below its "
                    "last one."),
}


def audit_page(facts: Mapping[str, Any], rows: Mapping[str, Sequence[Mapping[str, Any]]], store: str, listed: int
               ) -> str:
    """Return the page.

    Args: facts are those of ``Audited``; rows are the tables by name, lists cut to ``listed`` rows.
    """
    title = f"Stream {facts['stream']}"
    totals = {"gaps": facts["gaps"], "duplicates": facts["duplicate_ids"], "clock_steps": facts["clock_steps"]}
    lists = "".join(f"<h2>{name}: {count(totals[table])}</h2><p>{about}</p>{_table(rows[table], totals[table], listed)}"
                    for table, (name, about) in _LISTS.items())
    return page(f"{title}: audit", title, f"""{_summary(facts, store)}
<h2>Messages by time</h2>
{_rates(rows["rates"])}
<h2>Messages by size of the payload</h2>
{_sizes(rows["sizes"])}
{lists}""")


def _summary(facts: Mapping[str, Any], store: str) -> str:
    shown = {
        "store": store, "account": facts["account"],
        "messages": f"{count(facts['messages'])}, payloads {size(facts['bytes'])}",
        "sequences": f"{count(facts['first_seq'])} to {count(facts['last_seq'])}" if facts["messages"] else "-",
        "times": f"{when(facts['first_time_ns'] or 0)} to {when(facts['last_time_ns'] or 0)}",
        "missing sequences": f"{count(facts['missing'])} in {count(facts['gaps'])} gaps",
        "repeated message IDs": count(facts["duplicate_ids"]),
        "clock steps": f"{count(facts['clock_steps'])}, the longest {facts['held_ns'] / 1e9:.3f} s",
    }
    return facts_table(shown)


def _table(rows: Sequence[Mapping[str, Any]], total: int, listed: int) -> str:
    return rows_table(list(rows[0]) if rows else [], [list(row.values()) for row in rows]) + shortened(
        listed, total, "the Parquet table has all")


def _sizes(rows: Sequence[Mapping[str, Any]]) -> str:
    bars = [Bar(number, f"{size(row['from_bytes'])}", row["messages"],
                f"{size(row['from_bytes'])} to below {size(row['to_bytes'])}: {count(row['messages'])} messages, "
                f"{size(row['bytes'])}") for number, row in enumerate(rows)]
    return bar_chart(bars, len(bars), labels=len(bars), unit=_messages, about="Messages by size of the payload")


def _rates(rows: Sequence[Mapping[str, Any]]) -> str:
    starts = [datetime.fromisoformat(row["from_time"]).timestamp() for row in rows]
    bars = [Bar(round((start - starts[0]) / row["seconds"]), row["from_time"], row["messages"],
                f"{row['from_time']} and {count(row['seconds'])} s: {count(row['messages'])} messages, "
                f"{size(row['bytes'])}") for start, row in zip(starts, rows, strict=True)]
    return bar_chart(bars, bars[-1].place + 1 if bars else 0, labels=4, unit=_messages, about="Messages by time")


def _messages(number: int) -> str:
    return f"{count(number)} messages"
