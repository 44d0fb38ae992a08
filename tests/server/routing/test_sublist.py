"""The tree of subscriptions, compared with a linear search."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.protocol.subject import matches
from broker.server.routing.sublist import Sublist
from broker.server.routing.subscription import Subscription

TOKENS = st.sampled_from([b"a", b"b", b"c", b"*"])
PATTERNS = st.builds(lambda tokens, rest: b".".join([*tokens, *([b">"] if rest else [])]) or b">",
                     st.lists(TOKENS, min_size=0, max_size=3), st.booleans())
LITERALS = st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), min_size=1, max_size=4).map(b".".join)
QUEUES = st.sampled_from([b"", b"", b"q", b"r"])


class SublistMachine(RuleBasedStateMachine):
    """Insertions and removals in any order; after each, the matches equal those of a list."""

    def __init__(self) -> None:
        super().__init__()
        self.tree: Sublist[Subscription] = Sublist()
        self.listed: list[Subscription] = []

    @rule(subject=PATTERNS, queue=QUEUES)
    def insert(self, subject: bytes, queue: bytes) -> None:
        sub = Subscription(subject, queue)
        self.tree.insert(sub)
        self.listed.append(sub)

    @rule(at=st.integers(0, 1000))
    def remove(self, at: int) -> None:
        if self.listed:
            sub = self.listed.pop(at % len(self.listed))
            assert self.tree.remove(sub)
            assert not self.tree.remove(sub)

    @rule(subject=LITERALS)
    def match(self, subject: bytes) -> None:
        found = self.tree.match(subject)
        wanted = [sub for sub in self.listed if matches(sub.subject, subject)]
        assert set(found.plain) == {sub for sub in wanted if not sub.queue}
        assert {queue: set(members) for queue, members in found.groups.items()} == {
            queue: {sub for sub in wanted if sub.queue == queue} for queue in {sub.queue for sub in wanted} - {b""}}
        assert len(found.plain) + sum(map(len, found.groups.values())) == len(wanted)

    @rule(prefix=LITERALS, token=st.sampled_from([b"a", b"b", b"zz"]))
    def match_prefix(self, prefix: bytes, token: bytes) -> None:
        found = self.tree.match_prefix(prefix)
        if found is not None:
            exact = self.tree.match(prefix + b"." + token)
            assert (set(found.plain), set(found.groups)) == (set(exact.plain), set(exact.groups))

    @invariant()
    def count(self) -> None:
        assert self.tree.count == len(self.listed)
        if not self.listed:
            assert self.tree._root.empty


TestSublist = SublistMachine.TestCase
TestSublist.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)


def test_a_subject_with_an_empty_token_reaches_nobody() -> None:
    """Such a subject matches not even ``>``, as on nats-server."""
    tree: Sublist[Subscription] = Sublist()
    for subject in (b">", b"a.*.b", b"*"):
        tree.insert(Subscription(subject, b""))
    for subject in (b"", b"a..b", b".a", b"a."):
        assert not tree.match(subject).plain
    assert tree.match_prefix(b"a.") is None


def test_subscriptions_may_change_while_they_are_listed() -> None:
    """All subscriptions that stay are listed once, whatever is removed and inserted between two of them."""
    sublist: Sublist[Subscription] = Sublist()
    subs = [Subscription(b"a.%d.%b" % (i % 7, (b"b", b"*", b">")[i % 3]), b"q" if i % 5 == 0 else b"")
            for i in range(300)]
    for sub in subs:
        sublist.insert(sub)
    seen = []
    for number, sub in enumerate(sublist):
        seen.append(sub)
        if number < 100:
            sublist.remove(subs[number])
            sublist.insert(Subscription(b"a.%d.b" % (number % 9), b""))
    stayed = set(subs[100:])
    assert stayed <= set(seen)
    assert len(seen) == len(set(seen))
