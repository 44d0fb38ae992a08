"""Write the table of metrics in docs/MONITORING.md: ``python docs/generators/metrics.py``. A test compares the two."""

from __future__ import annotations

from pathlib import Path

from broker.monitor.metrics import FAMILIES

PAGE = Path(__file__).resolve().parent.parent / "MONITORING.md"
BEGIN, END = "<!-- metrics: made by docs/generators/metrics.py -->\n", "<!-- end of metrics -->\n"


def page() -> str:
    """Return the page with a new table."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    lines = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for family in FAMILIES:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        lines.append(f"| `{family.name}` | {family.kind} | {labels} | {family.help} |")
    return before + BEGIN + "\n".join(lines) + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page())
