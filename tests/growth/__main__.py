"""Show the figures of cases without checking them: ``python -m tests.growth [NAME …]``; no name: all of them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from tests.growth.meter import Case, measure, report
from tests.growth.stage import Template


def main(names: list[str]) -> None:
    modules = sorted(path.stem for path in Path(__file__).parent.glob("*_cases.py"))
    cases: list[Case] = [case for module in modules for case in importlib.import_module(f"tests.growth.{module}").CASES]
    template = Template()
    for case in cases:
        if not names or case.name in names:
            played = {n: measure(template, case, n) for n in (case.n, 2 * case.n, 4 * case.n)}
            print(f"{case.name:32}", report(played), flush=True)
    template.close()


main(sys.argv[1:])
