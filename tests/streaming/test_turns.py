"""The member of a queue group that gets a message, compared with a plain search by the rule."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.streaming.subscription import Subscription
from broker.streaming.turns import Turns

MEMBERS = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4)), min_size=1, max_size=6)
"""Messages that each member has, and the most that it may have."""
STEPS = st.lists(st.one_of(st.none(), st.tuples(st.integers(1, 9)), st.integers(0, 5)), max_size=40)
"""A message that may go to any member (None); so many that may not; or one less for the member of that number."""


def members_of(sizes: list[tuple[int, int]]) -> list[Subscription]:
    return [Subscription(str(number), "c", "me", "inbox", most, 30, "", "q", "consumer", held=held)
            for number, (held, most) in enumerate(sizes)]


def searched(members: list[Subscription], *, any_member: bool) -> Subscription | None:
    free = [member for member in members if member.held < member.max_in_flight]
    best = min(free or (members if any_member else []), key=lambda member: member.held, default=None)
    if best is not None:
        best.held += 1
        if best is members[0]:
            members.append(members.pop(0))
    return best


@given(MEMBERS, STEPS)
def test_the_same_member(sizes: list[tuple[int, int]], steps: list[int | tuple[int] | None]) -> None:
    ours, plain = members_of(sizes), members_of(sizes)
    named = [*zip(ours, plain, strict=True)]
    turns = Turns(ours)
    for step in steps:
        if step is None:
            best = searched(plain, any_member=True)
            assert best is not None
            assert turns.take_any().id == best.id
        elif isinstance(step, tuple):
            found = [searched(plain, any_member=False) for _ in range(*step)]
            assert [one.id for one in turns.take_new(*step)] == [one.id for one in found if one is not None]
        elif step < len(named):
            turns.count(named[step][0], -1)
            named[step][1].held -= 1
        assert [(member.id, member.held) for member in ours] == [(member.id, member.held) for member in plain]
