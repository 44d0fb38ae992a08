"""Operations of the client protocol need processor time like n log n, and never stop the loop."""

from __future__ import annotations

import pytest

from tests.growth.meter import Case, check, parameters
from tests.growth.protocol_cases import CASES
from tests.growth.stage import Template

SOAK = frozenset((
    "UNSUB with a maximum", "PUB to queue groups", "SUB of wildcards with permissions", "CONNECT again",
    "PUB of deep subjects", "disconnect of all", "PUB with permissions"))
"""Cases of the long runs only: other cases play the same code."""


@pytest.mark.parametrize("case", parameters(CASES, SOAK))
def test_growth(template: Template, case: Case) -> None:
    check(template, case)
