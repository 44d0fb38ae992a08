"""A tree of patterns finds the same owners as a linear search, and drops removed patterns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.protocol.subject import collide
from broker.protocol.subject_tree import SubjectTree

TOKENS = st.sampled_from([b"a", b"b", b"*", b"a*"])
PATTERNS = st.builds(lambda tokens, rest: b".".join(tokens + [b">"] * (rest or not tokens)),
                     st.lists(TOKENS, max_size=4), st.booleans())


@given(st.lists(st.tuples(PATTERNS, st.integers(0, 3)), max_size=30), st.data())
def test_owners_agree_with_a_linear_search(rows: list[tuple[bytes, int]], data: st.DataObject) -> None:
    """Patterns may be added twice, and removed although they were not added."""
    tree: SubjectTree[int] = SubjectTree()
    there: set[tuple[bytes, int]] = set()
    for row in rows:
        if data.draw(st.booleans(), label=f"add {row}"):
            tree.add(*row)
            there.add(row)
        else:
            tree.discard(*row)
            there.discard(row)
    wanted = data.draw(PATTERNS)
    assert set(tree.overlapping(wanted)) == {owner for pattern, owner in there if collide(pattern, wanted)}
    for row in there:
        tree.discard(*row)
    assert not list(tree.overlapping(b">"))
    assert not tree._root.below
