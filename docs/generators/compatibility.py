"""Write docs/COMPATIBILITY.md: ``python docs/generators/compatibility.py``.

The features are in compatibility.toml. The tests say which features they show: by the mark ``shows("area.feature", …)``
of a test or, as ``pytestmark``, of a module, and by the table ``SHOWS`` of a module whose tests are data by name. A
feature without a test is listed as missing. A test compares the page.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

__all__ = ["PAGE", "Area", "Feature", "Shown", "areas", "page", "page_of", "scenarios", "shown"]

ROOT = Path(__file__).resolve().parent.parent.parent
TESTS = ROOT / "tests"
PAGE = ROOT / "docs" / "COMPATIBILITY.md"
NAMED_DATA = ("SCENARIOS", "DIALOGUES", "GUARDED", "CONFIGURED")
"""The tables in which a module with ``SHOWS`` has its tests by name."""
NOT_RUN = ("skip", "skipif", "xfail")
CELL_MAX = 160
"""Characters in a cell, without the addresses of links: tests/docs/test_markdown.py has the same bound."""

HEAD = """# Compatibility

This page lists the features of nats-server 2.15 that clients, users and operators may rely on, and says which of them
jetblock has. `docs/generators/compatibility.py` makes it from `docs/generators/compatibility.toml` and from the marks
of the tests.

* **yes**: jetblock has the feature, and the tests beside it show it. Differences from nats-server are below the
  feature.
* **no**: no test shows the feature, so do not rely on it.
* **absent**: jetblock does not have the feature; the reason is below it. The tests, if any, show how jetblock answers
  whoever asks for it.

Every run of the tests plays {scenarios} scenarios of requests, publishing and consuming, and {dialogues} dialogues
of the core protocol, to the real nats-server and to jetblock, and compares all answers. These tests are in *italics*.
In their names, `*` stands for any text.

| area | yes | no | absent |
|---|---:|---:|---:|
"""

ERROR_CODES = """
## Error codes

Of the {total} JetStream error codes of nats-server, {given} occur in the scenarios that both servers play, and
{elsewhere} in other tests. The scenarios and tests also have {types} types of answers, advisories and metrics, with the
same fields as nats-server's. `tests/jetstream/differential/coverage.py` has both lists. Each message is checked against
its JSON schema, which is the one of the `nats` CLI (`tests/jetstream/schemas.py`). These codes do not occur:

| codes | why not |
|---|---|
"""


@dataclass(frozen=True)
class Feature:
    """A row of the page."""

    text: str
    differs: str = ""
    absent: str = ""


@dataclass(frozen=True)
class Area:
    """A table of the page: features by their keys, "area.feature"."""

    title: str
    features: dict[str, Feature]


@dataclass(frozen=True, order=True)
class Shown:
    """A test that shows a feature: a function, a whole module (without a name), or a row of data by name."""

    path: str
    """Path relative to tests/."""
    name: str = ""
    data: bool = False


def areas() -> list[Area]:
    """Read compatibility.toml."""
    found = []
    for area, table in tomllib.loads(Path(__file__).with_suffix(".toml").read_text()).items():
        rows = {}
        for key, given in table["features"].items():
            row = {"is": given} if isinstance(given, str) else dict(given)
            rows[f"{area}.{key}"] = Feature(row.pop("is"), **row)
        found.append(Area(table["title"], rows))
    return found


# ---- the marks of the tests


def shown(tests: Path = TESTS) -> dict[str, list[Shown]]:
    """Return the tests by the features that they name, known or unknown."""
    found: dict[str, set[Shown]] = {}
    for path in sorted(tests.rglob("*.py")):
        source = path.read_text()
        if "shows(" in source or "SHOWS" in source:
            for feature, test in _of_module(path.relative_to(tests), ast.parse(source)):
                found.setdefault(feature, set()).add(test)
    return {feature: sorted(named) for feature, named in found.items()}


def _of_module(path: Path, module: ast.Module) -> Iterator[tuple[str, Shown]]:
    where = path.as_posix()
    for statement in module.body:
        for function in statement.body if isinstance(statement, ast.ClassDef) else [statement]:
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from ((feature, Shown(where, function.name.removeprefix("test_")))
                            for feature in _features_of(function.decorator_list))
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            target = targets[0].id if isinstance(targets[0], ast.Name) else ""
            if target == "pytestmark":
                marks = statement.value.elts if isinstance(statement.value, ast.List) else [statement.value]
                yield from ((feature, Shown(where)) for feature in _features_of(marks))
            elif target == "SHOWS":
                yield from _of_data(where, ast.literal_eval(statement.value))


def _of_data(where: str, shows: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, Shown]]:
    known = _named_data(where)
    for feature, names in shows.items():
        for name in names:
            if not any(fnmatchcase(one, name) for one in known):
                raise ValueError(f"tests/{where}: SHOWS has {name!r} for {feature}, and there is none of that name")
            yield feature, Shown(where, name, data=True)


def _named_data(where: str) -> list[str]:
    module = importlib.import_module("tests." + where.removesuffix(".py").replace("/", "."))
    return [name for table in NAMED_DATA for name in getattr(module, table, ())]


def _features_of(marks: list[ast.expr]) -> list[str]:
    """Return the features that these marks name; none if a mark skips the test, or ignores its failure."""
    found: list[str] = []
    for mark in marks:
        called, args = (mark.func, mark.args) if isinstance(mark, ast.Call) else (mark, [])
        name = ast.unparse(called).removeprefix("pytest.mark.")
        if name in NOT_RUN:
            return []
        if name == "shows":
            found += map(ast.literal_eval, args)
    return found


# ---- the page


def page() -> str:
    """Return the page as it should be.

    Raises: ValueError if a test names an unknown feature, or unknown data.
    """
    return page_of(areas(), shown())


def page_of(areas: list[Area], tests: dict[str, list[Shown]]) -> str:
    if unknown := sorted(tests.keys() - {key for area in areas for key in area.features}):
        raise ValueError(f"not in compatibility.toml: {', '.join(f'{key} ({tests[key][0].path})' for key in unknown)}")
    out = [HEAD.format(scenarios=scenarios(), dialogues=len(_named_data("server/test_differential.py")))]
    for area in areas:
        verdicts = Counter(_verdict(row, tests.get(key, [])) for key, row in area.features.items())
        anchor = area.title.lower().replace(" ", "-")
        out.append(f"| [{area.title}](#{anchor}) | {verdicts['yes']} | {verdicts['no']} | {verdicts['absent']} |\n")
    for area in areas:
        out.append(f"\n## {area.title}\n\n| feature | here | shown by |\n|---|---|---|\n")
        out += (_row(row, tests.get(key, [])) for key, row in area.features.items())
    return "".join([*out, *_error_codes()])


def _error_codes() -> Iterator[str]:
    coverage = importlib.import_module("tests.jetstream.differential.coverage")
    given, elsewhere, never = len(coverage.CODES), len(coverage.CODES_ELSEWHERE), coverage.CODES_NEVER_GIVEN
    yield ERROR_CODES.format(total=given + elsewhere + sum(map(len, never.values())), given=given, elsewhere=elsewhere,
                             types=len(coverage.TYPES) + len(coverage.TYPES_ELSEWHERE))
    yield from (f"| {', '.join(map(str, codes))} | {reason} |\n" for reason, codes in never.items())


def scenarios() -> int:
    """Return the number of scenarios that are played beside the real nats-server."""
    paths = [path for path in (TESTS / "jetstream" / "differential").glob("*.py") if "\nSCENARIOS" in path.read_text()]
    return sum(len(_named_data(path.relative_to(TESTS).as_posix())) for path in paths)


def _verdict(row: Feature, tests: list[Shown]) -> str:
    return "absent" if row.absent else "yes" if tests else "no"


def _row(row: Feature, tests: list[Shown]) -> str:
    text = "<br>".join(filter(None, (row.text, row.absent or row.differs)))
    return f"| {text} | **{_verdict(row, tests)}** | {_tests(tests)} |\n"


def _tests(tests: list[Shown]) -> str:
    """Return a cell with each file once, and as many names of each file's tests as there is room for."""
    for count in range(max(map(len, _by_file(tests).values()), default=0), -1, -1):
        cell = "; ".join(_file(path, names, count) for path, names in _by_file(tests).items())
        if len(re.sub(r"\]\([^)]*\)", "]", cell)) <= CELL_MAX:
            break
    return cell


def _by_file(tests: list[Shown]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in tests:
        names = found.setdefault(one.path, [])
        if one.name:
            names.append(f"*{_escaped(one.name)}*" if one.data else _escaped(one.name))
    return found


def _file(path: str, names: list[str], count: int) -> str:
    link = f"[{path.removesuffix('.py')}](../tests/{path})"
    if not names:
        return link
    if not count:
        return f"[{Path(path).stem}](../tests/{path})"
    return f"{link}: {', '.join(names[:count])}" + (f" and {len(names) - count} more" if len(names) > count else "")


def _escaped(name: str) -> str:
    return name.replace("*", "\\*").replace("_", "\\_").replace("|", "\\|")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(page())
