"""The delays before retries grow to a bound."""

from __future__ import annotations

import random

from broker.base.backoff import Backoff


def test_delays_double_up_to_the_most_and_begin_again() -> None:
    """Without jitter, the delays are exact; ``reset`` starts over."""
    backoff = Backoff(0.5, 3.0)
    assert [backoff.next() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert backoff.tries == 5
    backoff.reset()
    assert (backoff.tries, backoff.next()) == (0, 0.5)


def test_jitter_shortens_a_delay_by_half_at_most() -> None:
    """Brokers that fail together do not retry together."""
    backoff, exact = Backoff(1.0, 30.0, random.Random(1)), Backoff(1.0, 30.0)
    for _ in range(100):
        whole = exact.next()
        assert whole / 2 <= backoff.next() <= whole


def test_very_many_tries_stay_at_the_most() -> None:
    """No delay overflows, however long the failure lasts."""
    backoff = Backoff(0.05, 60.0)
    assert [backoff.next() for _ in range(5000)][-1] == 60.0
