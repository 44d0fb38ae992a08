"""Subscriptions that change while messages are routed, beside a matcher of a line."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from broker.protocol.run import Msg
from broker.protocol.subject import matches
from broker.server.routing.router import Router
from broker.server.routing.routes import ROUTES_KEPT
from broker.server.routing.subscription import Subscription
from tests.manual_clock import ManualClock
from tests.server.routing.test_router import FakePeer, Recorder, at_once, msg


def random_subject(rng: random.Random, *, wildcards: bool = False) -> bytes:
    """Return a subject of few, of which many match each other, or with wildcards."""
    kind = rng.random()
    tokens = ([b"_INBOX", b"a", b"%d" % rng.randrange(3)] if kind < 0.15
              else [*b"$JS.ACK.S.C.1.2.3.4".split(b"."), b"%d" % rng.randrange(3)] if kind < 0.25
              else [rng.choice((b"a", b"b", b"c")) for _ in range(rng.randrange(1, 4))])
    if wildcards:
        tokens = [b"*" if rng.random() < 0.3 else token for token in tokens]
        if rng.random() < 0.3:
            tokens[rng.randrange(len(tokens)):] = [b">"]
    return b".".join(tokens)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_changes_between_the_runs_of_one_read(seed: int, full: bool) -> None:
    """A handler subscribes and unsubscribes while a client's messages are routed: later runs see that, and no earlier.

    Every message reaches each plain subscriber of its moment once, in order, and one member of each queue group.
    """
    rng = random.Random(seed)
    router = Router(ManualClock(), random.Random(seed), at_once)
    source = FakePeer(router, no_echo=True)
    numbers = range(1 << 30)
    known: list[tuple[Subscription, list[int], Callable[[], list[int]]]] = []
    """Subscriptions, the numbers of the first message and the one after the last that they see, and what they got."""

    def add(at: int) -> None:
        subject = random_subject(rng, wildcards=True)
        if rng.random() < 0.3:
            recorder = Recorder()

            def handle(ops: Sequence[Msg], start: int, end: int, source: Any, now_ns: int) -> None:
                recorder(ops, start, end, source, now_ns)
                if rng.random() < 0.3:
                    change(int(ops[end - 1][3][1:]) + 1)

            sub = router.subscribe(subject, handle)
            known.append((sub, [at], lambda: [int(op[3][1:]) for run in recorder.runs for op in run]))
        else:
            peer = FakePeer(router)
            sub = peer.sub(subject, queue=rng.choice((b"", b"", b"q")))
            known.append((sub, [at], lambda: [int(word[1:]) for word in b"".join(peer.got).split()
                                              if word.startswith(b"#")]))

    def change(at: int) -> None:
        live = [one for one in known if len(one[1]) == 1]
        if live and rng.random() < len(live) / 16:
            sub, seen, _ = rng.choice(live)
            router.remove(sub)
            seen.append(at)
        else:
            add(at)

    sent: list[bytes] = []
    filler = dict.fromkeys(map(b"full.%d".__mod__, numbers[:ROUTES_KEPT]), router.routes._nobody)
    for _ in range(60):
        change(len(sent))
        some = [random_subject(rng) for _ in range(4)]
        ops = [msg(bytes(bytearray(rng.choice(some))), b"#%d" % number)
               for number in numbers[len(sent):len(sent) + rng.randrange(1, 30)]]
        sent += [op[0] for op in ops]
        if full:
            router.routes.by_subject.update(filler)
        done = 0
        while done < len(ops):
            router.outward.work = 0
            done = router.route(ops, done, len(ops), source, 5)
    of_group: list[int] = []
    in_group: set[int] = set()
    for sub, seen, got in known:
        wanted = [number for number in numbers[seen[0]:(*seen, len(sent))[1]] if matches(sub.subject, sent[number])]
        if sub.queue:
            of_group += got()
            in_group.update(wanted)
            assert set(got()) <= set(wanted)
        else:
            assert got() == wanted, sub.subject
    assert sorted(of_group) == sorted(in_group)
