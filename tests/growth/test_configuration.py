"""Starts and reloads need processor time like n log n, for each long list of the configuration file."""

from __future__ import annotations

import pytest

from tests.growth.configuration_cases import CASES
from tests.growth.meter import Case, check
from tests.growth.stage import Template


@pytest.mark.parametrize("case", CASES, ids=str)
def test_growth(template: Template, case: Case) -> None:
    check(template, case)
