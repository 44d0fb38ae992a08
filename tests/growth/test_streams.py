"""Operations of clients on streams need processor time like n log n, and never stop the loop.

The default run plays the cases that once failed, and one of each kind; the long run plays all others.
"""

from __future__ import annotations

import pytest

from tests.growth.meter import Case, check
from tests.growth.stage import Template
from tests.growth.stream_cases import CASES

DEFAULT = frozenset((
    "Nats-Msg-Id", "Nats-Rollup", "schedules", "atomic batches", "repeated expectations", "repeated schedules",
    "pull requests served", "pull requests that do not wait, behind others", "pull requests by priority",
    "abandoned pull requests", "acks in any order", "acks of a work queue", "ack all, backwards", "malformed acks",
    "negative acks with delays", "consumers of a work queue created", "consumers: a publish", "messages deleted",
    "messages of which one of each subject is kept", "copies through transforms", "snapshot", "ADOPT",
    "republished", "restore of more than a subject may have"))


def test_the_default_cases_exist() -> None:
    assert {case.name for case in CASES} >= DEFAULT


@pytest.mark.parametrize("case", [
    pytest.param(case, id=case.name, marks=() if case.name in DEFAULT else pytest.mark.soak) for case in CASES])
def test_growth(template: Template, case: Case) -> None:
    check(template, case)
