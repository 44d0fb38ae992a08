"""The template from which the brokers of one worker are forked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.growth.stage import Template


@pytest.fixture(scope="session")
def template() -> Iterator[Template]:
    template = Template()
    yield template
    template.close()
