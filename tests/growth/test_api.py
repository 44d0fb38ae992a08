"""Requests to JetStream's API need processor time like n log n, and never stop the loop."""

from __future__ import annotations

import pytest

from tests.growth.api_cases import CASES
from tests.growth.meter import Case, check, parameters
from tests.growth.stage import Template

SOAK = frozenset((
    "subjects of a stream updated", "subjects of a stream created again", "subjects of which the last overlaps",
    "source transforms", "sources with prefixes", "sources updated", "metadata", "backoff", "filters updated",
    "STREAM.NAMES with a filter", "multi_last with wildcards", "JSON with white space",
    "JSON objects after each other"))
"""Cases of the long runs only: other cases play the same code, with lists of another name or a new stream."""


@pytest.mark.parametrize("case", parameters(CASES, SOAK))
def test_growth(template: Template, case: Case) -> None:
    check(template, case)
