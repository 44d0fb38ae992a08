"""Write the table of docs/COST.md from ``broker.maintenance.cost``: ``python docs/generators/cost.py``.

A test compares the two.
"""

from __future__ import annotations

from pathlib import Path

from broker.base.output import count, size
from broker.maintenance.cost import Load, bill

PAGE = Path(__file__).resolve().parent.parent / "COST.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"

LOADS: list[tuple[str, Load]] = [
    ("nothing published", Load(messages=0)),
    ("a message a minute", Load(messages=1 / 60)),
    ("1 message/s", Load(messages=1)),
    ("1000 streams, 1 message/s each", Load(messages=1000, streams=1000)),
    ("the same, `commit_interval: 250ms`", Load(messages=1000, streams=1000, commit_interval_s=0.25)),
    ("the same, 250 ms, `compaction: false`",
     Load(messages=1000, streams=1000, commit_interval_s=0.25, compaction=False)),
    ("10 000 messages/s", Load(messages=10_000, streams=10)),
    ("50 000 messages/s, kept 7 days", Load(messages=50_000, streams=1, days=7)),
    ("50 000 messages/s, 7 days, 250 ms", Load(messages=50_000, streams=1, days=7, commit_interval_s=0.25)),
]


def table() -> str:
    """Return the table: a row for a month of each load."""
    lines = ["| load | PUT | LIST | GET | written | stored | requests | storage | a month |",
             "|---|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for name, load in LOADS:
        found = bill(load)
        requests = " | ".join(count(round(number)) for number in (found.puts, found.lists, found.gets))
        lines.append(f"| {name} | {requests} | {size(round(found.written))} | {size(round(found.stored))} | "
                     f"${found.puts_dollars + found.gets_dollars:,.2f} | ${found.storage_dollars:,.2f} | "
                     f"${found.dollars:,.2f} |")
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """Return the page with a new table."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
