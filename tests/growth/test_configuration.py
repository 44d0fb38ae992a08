"""Starts and reloads need processor time like n log n, for each long list of the configuration file."""

from __future__ import annotations

import pytest

from tests.growth.configuration_cases import CASES
from tests.growth.meter import Case, check, parameters
from tests.growth.stage import Template

SOAK = frozenset(f"start with {what}" for what in (
    "users with permissions", "accounts", "service exports and imports", "stream exports and imports",
    "importing accounts", "export to accounts", "mappings", "destinations", "permissions"))
"""Cases of the long runs only: a reload, too, reads the same configuration."""


@pytest.mark.parametrize("case", parameters(CASES, SOAK))
def test_growth(template: Template, case: Case) -> None:
    check(template, case)
