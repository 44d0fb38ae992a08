"""HTML pages for reports: one file that loads nothing else and runs no script.

Every value is escaped, also unprintable characters, so nothing in a store can change a page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final, NamedTuple

from broker.base.output import count, printable

__all__ = ["Bar", "Split", "bar_chart", "facts_table", "page", "rows_table", "shortened",
           "split_chart", "text"]

_WIDTH: Final = 900
_HEIGHT: Final = 160
_LABEL_WIDTH: Final = 260
_ROW: Final = 20
_LABEL_CHARS: Final = 36
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #222; --page: #fff; --line: #ddd; --faint: #555; --bar: #3f6fb5;
  --dead: #b9c4d4; --hover: #d9822b; --bad: #b3261e }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e4e4; --page: #16181c; --line: #3a3e45; --faint: #a5a9b0;
  --bar: #6f9fe0; --dead: #4a5361; --hover: #f0a050; --bad: #ff8a80 } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 940px; margin: 2em auto; padding: 0 1em; color: var(--ink);
  background: var(--page) }
h1 { font-size: 1.5em; overflow-wrap: anywhere } h2 { font-size: 1.15em; margin-top: 2em }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .15em 1.2em .15em 0; border-bottom: 1px solid var(--line); vertical-align: top }
td { overflow-wrap: anywhere; min-width: 7em } td.number { min-width: 0 }
td.number, th.number { text-align: right; white-space: nowrap }
svg { width: 100%; min-width: 560px; height: auto } svg rect { fill: var(--bar) } svg rect.dead { fill: var(--dead) }
svg rect:hover { fill: var(--hover) } svg text { font-size: 11px; fill: var(--faint) }
li { margin-bottom: .4em } .bad { color: var(--bad) }
@media print { :root { --ink: #000; --page: #fff } body { margin: 0 } }
"""


class Bar(NamedTuple):
    """A bar of a chart."""

    place: int
    label: str
    value: int
    about: str
    """The text that is shown under the pointer."""


class Split(NamedTuple):
    """A bar with two parts, beside its label."""

    label: str
    live: int
    dead: int
    about: str


def page(title: str, heading: str, body: str) -> str:
    """Return the whole page. Args: ``title`` and ``heading`` are plain text, ``body`` is HTML."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{text(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{text(heading)}</h1>
{body}
</body>
</html>
"""


def text(value: Any) -> str:
    """Return a value as escaped HTML text."""
    return escape(printable(value))


def facts_table(facts: Mapping[str, Any]) -> str:
    """Return a table of names and values."""
    rows = "".join(f'<tr><th scope="row">{text(name)}</th><td>{text(value)}</td></tr>' for name, value in facts.items())
    return f"<table>{rows}</table>"


def rows_table(names: Sequence[str], rows: Iterable[Sequence[Any]], numbers: Iterable[str] = ()) -> str:
    """Return a table; the columns in ``numbers`` are aligned to the right."""
    kinds = [' class="number"' if name in set(numbers) else "" for name in names]
    head = "".join(f'<th scope="col"{kind}>{text(name)}</th>' for name, kind in zip(names, kinds, strict=True))
    body = "".join("<tr>" + "".join(f"<td{kind}>{text(value)}</td>" for value, kind in zip(row, kinds, strict=True))
                   + "</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>' if body else "<p>None.</p>"


def bar_chart(bars: Sequence[Bar], places: int, *, labels: int, unit: Callable[[int], str], about: str) -> str:
    """Return a bar chart as SVG.

    Args: ``places``: bars that there is room for; ``labels``: labels that are shown at most; ``unit`` formats the
        highest value; ``about``: what the chart shows, for screen readers.
    """
    if not bars:
        return "<p>There are no messages.</p>"
    highest = max(max(bar.value for bar in bars), 1)
    step = _WIDTH / places
    drawn = []
    next_label = 0.0
    for bar in bars:
        height = max(1.0, _HEIGHT * bar.value / highest)
        x = bar.place * step
        drawn.append(f'<rect x="{x:.1f}" y="{_HEIGHT - height + 14:.1f}" width="{max(step * 0.9, 1):.1f}" '
                     f'height="{height:.1f}"><title>{text(bar.about)}</title></rect>')
        if x >= next_label:
            next_label = x + _WIDTH / labels - 1
            drawn.append(f'<text x="{x:.1f}" y="{_HEIGHT + 28}">{text(bar.label)}</text>')
    return (f'<div class="wide"><svg viewBox="0 0 {_WIDTH} {_HEIGHT + 34}" role="img" aria-label="{text(about)}">'
            f'<text x="0" y="10">{text(unit(highest))}</text>{"".join(drawn)}</svg></div>')


def split_chart(bars: Sequence[Split], *, about: str) -> str:
    """Return horizontal bars as SVG, each with a live and a dead part."""
    if not bars:
        return "<p>None.</p>"
    highest = max(max(bar.live + bar.dead for bar in bars), 1)
    scale = (_WIDTH - _LABEL_WIDTH) / highest
    drawn = []
    for number, bar in enumerate(bars):
        y = number * _ROW
        label = bar.label if len(bar.label) <= _LABEL_CHARS else bar.label[:_LABEL_CHARS - 1] + "…"
        live, dead = max(bar.live * scale, 1.0), bar.dead * scale
        drawn.append(
            f'<text x="0" y="{y + 14}">{text(label)}<title>{text(bar.label)}</title></text>'
            f'<rect x="{_LABEL_WIDTH}" y="{y + 3}" width="{live:.1f}" height="{_ROW - 6}">'
            f'<title>{text(bar.about)}</title></rect>'
            f'<rect class="dead" x="{_LABEL_WIDTH + live:.1f}" y="{y + 3}" width="{dead:.1f}" height="{_ROW - 6}">'
            f'<title>{text(bar.about)}</title></rect>')
    return (f'<div class="wide"><svg viewBox="0 0 {_WIDTH} {len(bars) * _ROW + 4}" role="img" '
            f'aria-label="{text(about)}">{"".join(drawn)}</svg></div>')


def shortened(shown: int, of: int, where: str) -> str:
    """Return a line that says that a list was cut, if it was."""
    return f"<p>The first {count(shown)} of {count(of)}; {text(where)}.</p>" if of > shown else ""
