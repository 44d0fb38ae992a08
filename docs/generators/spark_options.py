"""Write the tables of options and the list of columns in docs/SPARK.md: ``python docs/generators/spark_options.py``.

A test compares the two, so that each option and each column is on the page.
"""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import wrap

from broker.pipeline.plan.options import OPTIONS, VIEWS, Option
from broker.pipeline.plan.schema import VIEWS as COLUMNS
from broker.pipeline.plan.schema import Column, spark_type
from broker.pipeline.write.options import WRITE_OPTIONS

PAGE = Path(__file__).resolve().parent.parent / "SPARK.md"

_KINDS = {"both": "both", "batch": "batch", "stream": "streaming"}


def page() -> str:
    """Return the whole page, with options and columns as the code has them."""
    text = PAGE.read_text()
    for name, part in (("options", _options()), ("columns", _columns()), ("write options", _write_options())):
        text, found = re.subn(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)",
                              lambda match, part=part: match[1] + part + match[2], text, flags=re.DOTALL)
        assert found == 1, f"docs/SPARK.md has no place for {name}"
    return text


def _options() -> str:
    rows = "".join(f"| `{option.name}` | {option.about} | {_KINDS[option.kind]} | {_views(option)} |\n"
                   for option in OPTIONS.values())
    return "| option | meaning | queries | views |\n|---|---|---|---|\n" + rows


def _write_options() -> str:
    rows = "".join(f"| `{option.name}` | {option.about} | {_KINDS[option.kind]} |\n"
                   for option in WRITE_OPTIONS.values())
    return "| option | meaning | writes |\n|---|---|---|\n" + rows


def _views(option: Option) -> str:
    return "all" if option.views == VIEWS else ", ".join(option.views)


def _columns() -> str:
    lines = []
    for view, columns in COLUMNS.items():
        text = f"**`{view}`**: {', '.join(_column(one) for one in columns if not one.optional)}."
        if optional := [_column(one) for one in columns if one.optional]:
            text += f" Only if `.schema(…)` names them: {', '.join(optional)}."
        for part in re.findall("`[^`]*`", text):  # a line does not end within code
            text = text.replace(part, part.replace(" ", "\0"))
        lines += wrap(text, 120, initial_indent="* ", subsequent_indent="  ", break_long_words=False)
    return "".join(f"{line}\n" for line in lines).replace("\0", " ")


def _column(column: Column) -> str:
    other = f" or {spark_type(column.other)}" if column.other is not None else ""
    return f"`{column.name} {spark_type(column.type)}{other}`"


if __name__ == "__main__":
    PAGE.write_text(page())
