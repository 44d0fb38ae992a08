"""Configurations with very many subjects: checks give the same answers as comparing all pairs; shapes are bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.access.accounts import AccountLimits
from broker.config.settings import ServerLimits
from broker.jetstream.config.consumer_rules import check_consumer
from broker.jetstream.config.stream_rules import check_stream
from broker.jetstream.config.types import ConsumerConfig, StreamConfig
from broker.jetstream.config.upstream_rules import check_prefixes
from broker.jetstream.wire.errors import ApiError
from broker.protocol.subject import collide
from broker.protocol.subject_shapes import SHAPES_MAX

_TOKENS = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=4)
SUBJECTS = st.lists(st.builds(lambda tokens, rest: ".".join([*tokens, ">"] if rest else tokens), _TOKENS,
                              st.booleans()),
                    min_size=1, max_size=6)
PREFIXES = st.lists(st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=3).map(".".join), min_size=1, max_size=6)

DIFFERENT = [".".join("*" if place >> bit & 1 else "a" for bit in range(9)) + f".{place}"
             for place in range(SHAPES_MAX + 1)]
"""Subjects with their wildcards in different places, each."""


@given(PREFIXES, SUBJECTS)
def test_a_delivery_prefix_must_not_lead_back_to_the_origin(prefixes: list[str], subjects: list[str]) -> None:
    """Shows that the error names the first such prefix, and the first subject."""
    config = StreamConfig.from_json({"name": "S", "sources": [
        {"name": "O"}, *({"name": "P", "external": {"api": "x", "deliver": prefix}} for prefix in prefixes)]})
    cycle = next(((prefix, subject) for prefix in prefixes for subject in subjects
                  if collide(subject.encode(), f"{prefix}.{subject}".encode())), None)
    neighbours = {"O": StreamConfig(name="O", subjects=subjects)}
    if cycle is None:
        check_prefixes(config, neighbours)
        return
    with pytest.raises(ApiError) as refused:
        check_prefixes(config, neighbours)
    assert refused.value.description == ApiError(10022, prefix=cycle[0], subject=cycle[1]).description


@pytest.mark.parametrize("field", ["subjects", "mirror", "sources"])
def test_the_places_of_wildcards_are_bounded_in_a_stream(field: str) -> None:
    transforms = [{"src": subject, "dest": ""} for subject in DIFFERENT]
    value = {"subjects": DIFFERENT, "mirror": {"name": "O", "subject_transforms": transforms},
             "sources": [{"name": "O", "subject_transforms": transforms}]}
    with pytest.raises(ApiError, match="wildcards in more than 256 different places") as refused:
        check_stream(StreamConfig.from_json({"name": "S", field: value[field]}), {}, AccountLimits(), ServerLimits())
    assert refused.value.err_code == 10052


def test_the_places_of_wildcards_are_bounded_in_a_consumer() -> None:
    stream = StreamConfig(name="S")
    given_config = ConsumerConfig(name="C", filter_subjects=DIFFERENT)
    with pytest.raises(ApiError, match="wildcards in more than 256 different places"):
        check_consumer(given_config, stream, AccountLimits(), ServerLimits())
    given_config.filter_subjects = DIFFERENT[1:]
    check_consumer(given_config, stream, AccountLimits(), ServerLimits())
