"""Monitoring pages and requests of the system account need processor time like n log n, and never stop the loop."""

from __future__ import annotations

import pytest

from tests.growth.meter import Case, check, parameters
from tests.growth.monitoring_cases import CASES
from tests.growth.stage import Template

SOAK = frozenset((
    "/subsz with subscriptions", "/connz sorted by idle time", "/accountz of one with exports", "SUBSZ request"))
"""Cases of the long runs only: another case asks for the same page or the same work."""


@pytest.mark.parametrize("case", parameters(CASES, SOAK))
def test_growth(template: Template, case: Case) -> None:
    check(template, case)
