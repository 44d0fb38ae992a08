"""Charts over time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nicegui import ui

__all__ = ["Chart", "bars"]

_COLORS = ["#3b82c4", "#e0883a", "#4fa36b", "#b45fb0", "#c4534f", "#8a8a3b", "#4aa5a5", "#7a6fd0"]


_BYTES = """value => { const units = ["B", "kB", "MB", "GB", "TB"]; let at = 0;
while (value >= 1000 && at < 4) { value /= 1000; at++; } return `${+value.toFixed(1)} ${units[at]}`; }"""
"""Units of ten, because the chart's lines are at round decimal numbers."""
_COUNT = "value => value >= 10000 ? value.toLocaleString('en-US') : `${value}`"


def _options(title: str, *, of_bytes: bool = False) -> dict[str, Any]:
    grey = {"color": "#888"}
    values = {":formatter": _BYTES if of_bytes else _COUNT, **grey}
    return {"title": {"text": title, "left": 0, "top": 0, "textStyle": {"fontSize": 13, **grey}}, "animation": False,
            "color": _COLORS, "useUTC": True, "tooltip": {"trigger": "axis", "confine": True, "renderMode": "richText"},
            "legend": {"type": "scroll", "right": 0, "top": 0, "left": "40%", "textStyle": grey, "show": True},
            "grid": {"left": 12, "right": 16, "top": 40, "bottom": 8, "containLabel": True},
            "xAxis": {"type": "time", "axisLabel": {"hideOverlap": True, **grey}},
            "yAxis": {"type": "value", "min": 0, "axisLabel": values, "splitLine": {"lineStyle": {"opacity": 0.3}}},
            "series": []}


class Chart:
    """Lines over the last minutes."""

    def __init__(self, title: str, names: Sequence[str] = (), *, of_bytes: bool = False) -> None:
        options = _options(title, of_bytes=of_bytes)
        options["legend"]["show"] = len(names) != 1
        options["series"] = [_line(name, []) for name in names]
        self._chart = ui.echart(options).classes("w-full h-56").props(f'role="img" aria-label="{title}"')

    @property
    def visible(self) -> bool:
        return bool(self._chart.visible)

    @visible.setter
    def visible(self, visible: bool) -> None:
        self._chart.visible = visible

    def show(self, lines: Iterable[tuple[str, Sequence[tuple[float, float]]]]) -> None:
        """Show lines: names, and pairs of seconds since 1970 and values."""
        series = [_line(name, [[at * 1000, round(value, 3)] for at, value in points]) for name, points in lines]
        ends = [line["data"][-1][0] for line in series if line["data"]]
        begins = [line["data"][0][0] for line in series if line["data"]]
        axis = self._chart.options["xAxis"]
        if ends:  # a chart that was just opened shows a minute, and not one moment
            axis["min"], axis["max"] = min(min(begins), max(ends) - 60_000), max(ends)
        self._chart.options["graphic"] = {"type": "text", "left": "center", "top": "middle", "invisible": bool(ends),
                                          "style": {"text": "Nothing yet", "fill": "#888", "fontSize": 13}}
        self._chart.options["series"] = series
        self._chart.update()


def _line(name: str, data: list[list[float]]) -> dict[str, Any]:
    return {"name": name, "type": "line", "showSymbol": len(data) == 1, "data": data}


def bars(title: str, points: Sequence[tuple[float, int]]) -> ui.echart:
    """Show numbers by the times at which their bars begin, in seconds since 1970."""
    options = _options(title)
    options["legend"]["show"] = False
    options["series"] = [{"type": "bar", "barCategoryGap": "10%",
                          "data": [[round(at * 1000), value] for at, value in points]}]
    return ui.echart(options).classes("w-full h-80").props(f'role="img" aria-label="{title}"')
