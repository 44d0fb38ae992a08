"""Operations of the client protocol need processor time like n log n, and never stop the loop."""

from __future__ import annotations

import pytest

from tests.growth.meter import Case, check
from tests.growth.protocol_cases import CASES
from tests.growth.stage import Template


@pytest.mark.parametrize("case", CASES, ids=str)
def test_growth(template: Template, case: Case) -> None:
    check(template, case)
