"""Names of channels and of their streams."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.streaming.names import channel_of, is_literal_channel, stream_of

CHANNELS = st.text(min_size=1).filter(is_literal_channel)


@pytest.mark.parametrize(("channel", "stream"), [
    ("orders", "STAN_orders"), ("orders.new", "STAN_orders:new"), ("a:b", "STAN_a%3Ab"), ("a%b", "STAN_a%25b"),
    ("a\\b", "STAN_a%5Cb"), ("ä.ö", "STAN_ä:ö")])
def test_names(channel: str, stream: str) -> None:
    assert stream_of(channel) == stream
    assert channel_of(stream) == channel


@given(CHANNELS, CHANNELS)
def test_each_channel_has_its_own_stream(one: str, other: str) -> None:
    """A stream's name can be converted back, so two channels never share a stream; it is a valid name of a stream."""
    assert channel_of(stream_of(one)) == one
    assert (one == other) == (stream_of(one) == stream_of(other))
    assert not set(stream_of(one)) & set(".*>/\\ \t\r\n")


@pytest.mark.parametrize("stream", ["orders", "STAN", "STAN_", "STAN_a.b", "STAN_a%3ab", "STAN_a%41", "STAN_:a"])
def test_other_streams_are_no_channels(stream: str) -> None:
    assert channel_of(stream) == ""
