"""The page of the job ``audit``: one HTML file that loads nothing else and runs no script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any, Final

from broker.base.output import count, printable, size, when

__all__ = ["audit_page"]

_WIDTH: Final = 900
_HEIGHT: Final = 160
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 940px; margin: 2em auto; padding: 0 1em; color: #222 }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin-top: 2em }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .15em 1.2em .15em 0; border-bottom: 1px solid #ddd }
svg { width: 100%; height: auto } svg rect { fill: #3f6fb5 } svg rect:hover { fill: #d9822b }
svg text { font-size: 11px; fill: #555 }
"""
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
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{_text(title)}: audit</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{_text(title)}</h1>
{_summary(facts, store)}
<h2>Messages by time</h2>
{_rates(rows["rates"])}
<h2>Messages by size of the payload</h2>
{_sizes(rows["sizes"])}
{lists}
</body>
</html>
"""


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
    return "<table>" + "".join(f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>"
                               for name, value in shown.items()) + "</table>"


def _table(rows: Sequence[Mapping[str, Any]], total: int, listed: int) -> str:
    if not rows:
        return "<p>None.</p>"
    head = "".join(f"<th>{_text(name)}</th>" for name in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{_text(value)}</td>" for value in row.values()) + "</tr>" for row in rows)
    more = f"<p>The first {count(listed)} of {count(total)}; the Parquet table has all.</p>" if total > listed else ""
    return f"<table><tr>{head}</tr>{body}</table>{more}"


def _sizes(rows: Sequence[Mapping[str, Any]]) -> str:
    bars = [(number, f"{size(row['from_bytes'])}", row["messages"],
             f"{size(row['from_bytes'])} to below {size(row['to_bytes'])}: {count(row['messages'])} messages, "
             f"{size(row['bytes'])}") for number, row in enumerate(rows)]
    return _chart(bars, len(bars), labels=len(bars))


def _rates(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return _chart([], 0, labels=0)
    starts = [datetime.fromisoformat(row["from_time"]).timestamp() for row in rows]
    seconds = rows[0]["seconds"]
    bars = [(round((start - starts[0]) / seconds), row["from_time"], row["messages"],
             f"{row['from_time']} and {count(seconds)} s: {count(row['messages'])} messages, {size(row['bytes'])}")
            for start, row in zip(starts, rows, strict=True)]
    return _chart(bars, bars[-1][0] + 1, labels=4)


def _chart(bars: Sequence[tuple[int, str, int, str]], places: int, *, labels: int) -> str:
    """Return a bar chart as SVG. Each bar is its place, its label, its value, and the text shown under the pointer."""
    if not bars:
        return "<p>There are no messages.</p>"
    highest = max(value for _, _, value, _ in bars)
    step = _WIDTH / places
    drawn = []
    next_label = 0.0
    for place, label, value, text in bars:
        height = max(1.0, _HEIGHT * value / highest)
        x = place * step
        drawn.append(f'<rect x="{x:.1f}" y="{_HEIGHT - height + 14:.1f}" width="{max(step * 0.9, 1):.1f}" '
                     f'height="{height:.1f}"><title>{_text(text)}</title></rect>')
        if x >= next_label:
            next_label = x + _WIDTH / labels - 1
            drawn.append(f'<text x="{x:.1f}" y="{_HEIGHT + 28}">{_text(label)}</text>')
    return (f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + 34}" role="img"><text x="0" y="10">{count(highest)} messages'
            f'</text>{"".join(drawn)}</svg>')


def _text(value: Any) -> str:
    return escape(printable(value))
