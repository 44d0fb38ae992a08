"""Writes the tables of options and columns in docs/SPARK.md: ``python docs/generators/spark_options.py``.

A test compares the two, so an option or a column cannot appear without its line.
"""

from __future__ import annotations

import re
from pathlib import Path

from broker.pipeline.plan.options import OPTIONS, VIEWS, Option
from broker.pipeline.plan.schema import VIEWS as COLUMNS
from broker.pipeline.plan.schema import Column, spark_type

PAGE = Path(__file__).resolve().parent.parent / "SPARK.md"

_KINDS = {"both": "both", "batch": "batch", "stream": "streaming"}


def page() -> str:
    """The whole page, with its tables as the code has them."""
    text = PAGE.read_text()
    for name, table in (("options", _options()), ("columns", _columns())):
        text, found = re.subn(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", lambda match, table=table: match[1] + table + match[2],
                              text, flags=re.DOTALL)
        assert found == 1, f"docs/SPARK.md has no place for {name}"
    return text


def _options() -> str:
    rows = "".join(f"| `{option.name}` | {option.about} | {_KINDS[option.kind]} | {_views(option)} |\n"
                   for option in OPTIONS.values())
    return "| option | what it says | queries | views |\n|---|---|---|---|\n" + rows


def _views(option: Option) -> str:
    return "all" if option.views == VIEWS else ", ".join(option.views)


def _columns() -> str:
    rows = "".join(f"| `{view}` | {', '.join(_column(c) for c in columns if not c.optional)} "
                   f"| {', '.join(_column(c) for c in columns if c.optional)} |\n" for view, columns in COLUMNS.items())
    return "| view | columns | when `.schema(…)` names them |\n|---|---|---|\n" + rows


def _column(column: Column) -> str:
    other = f" or {spark_type(column.other)}" if column.other is not None else ""
    return f"`{column.name} {spark_type(column.type)}{other}`"


if __name__ == "__main__":
    PAGE.write_text(page())
