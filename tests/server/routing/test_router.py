"""The router alone: cached routes stay correct, and JetStream's batches are delivered exactly."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from broker.jetstream.bus import Bus, Deliveries, Source
from broker.protocol import encoder
from broker.protocol.parser import Parser
from broker.protocol.run import AnyRun, Msg, Run
from broker.protocol.subject import matches
from broker.server.routing.inward import MSGS_AT_ONCE
from broker.server.routing.router import Router
from broker.server.routing.routes import ROUTES_KEPT
from broker.server.routing.statistics import routing_statistics
from broker.server.routing.subscription import Subscription
from tests.manual_clock import ManualClock


def at_once(fn: Callable[[], None]) -> None:
    """Call ``fn`` at once: a ``call_soon`` for tests in which later calls do not matter."""
    fn()


class Later(list[Callable[[], None]]):
    """The ``call_soon`` of a loop; ``turn`` is one turn of the loop."""

    def __call__(self, fn: Callable[[], None]) -> None:
        self.append(fn)

    def turn(self) -> None:
        ready = self[:]
        self.clear()
        for fn in ready:
            fn()


class FakePeer:
    """A client that records the bytes sent to it."""

    def __init__(self, router: Router, *, headers: bool = True, no_echo: bool = False) -> None:
        self.router = router
        self.headers = headers
        self.no_echo = no_echo
        self.wants_no_responders = True
        self.pending_bytes = 0
        self.closed = False
        self.fan_outs = 0
        self.got: list[bytes] = []
        self.missed: list[tuple[bytes, bytes]] = []
        self.refused: list[bytes] = []
        self.counted = [0, 0]

    @property
    def peer(self) -> FakePeer:
        return self

    def sub(self, subject: bytes, sid: bytes = b"1", queue: bytes = b"") -> Subscription:
        sub = Subscription(subject, queue, peer=self, sid=sid)
        self.router.add(sub)
        return sub

    def deliver(self, sub: Subscription, run: AnyRun) -> None:
        if not self.headers:
            run = run.without_headers()
        self._record(b"".join(encoder.encode(run, sub.sid)), run.count, run.bytes)

    def deliver_each(self, subs: Sequence[Subscription], msgs: Sequence[Msg]) -> None:
        run = Run(msgs) if self.headers else Run(msgs).without_headers()
        lines = [encoder.encode_one(sub.sid, msg) for sub, msg in zip(subs, run.msgs, strict=True)]
        self._record(b"".join(lines), run.count, run.bytes)

    def deliver_to_all(self, subs: Sequence[Subscription], run: Run) -> None:
        run = run if self.headers else run.without_headers()
        self._record(encoder.encode_for_all(run, [sub.sid for sub in subs]), len(subs), run.bytes * len(subs))

    def _record(self, data: bytes, count: int, body_bytes: int) -> None:
        self.counted[0] += count
        self.counted[1] += body_bytes
        self.got.append(data)

    def expire(self, sub: Subscription) -> None:
        self.router.remove(sub)

    def no_responders(self, subject: bytes, reply: bytes) -> None:
        self.missed.append((subject, reply))

    def refuse_publish(self, subject: bytes) -> None:
        self.refused.append(subject)

    def identity(self) -> dict[str, Any]:
        return {}

    def fan_out_began(self) -> None:
        self.fan_outs += 1

    def fan_out_ended(self) -> None:
        self.fan_outs -= 1

    def hold(self) -> None: ...

    def release(self) -> None: ...

    def pop_sent(self) -> bytes:
        data = b"".join(self.got)
        self.got.clear()
        return data


class Recorder:
    """An in-process subscriber that records its runs."""

    def __init__(self) -> None:
        self.runs: list[list[Msg]] = []
        self.sources: list[Any] = []

    def __call__(self, ops: Sequence[Msg], start: int, end: int, source: Any, now_ns: int) -> None:
        self.runs.append(list(ops[start:end]))
        self.sources.append(source)


def msg(subject: bytes, body: bytes = b"x", reply: bytes = b"") -> Msg:
    return (subject, reply, 0, body)


@pytest.fixture
def router() -> Router:
    return Router(ManualClock(), random.Random(1), at_once)


@pytest.mark.shows("core.wildcards")
def test_is_a_bus(router: Router) -> None:
    """The type checker verifies that the router is JetStream's ``Bus``."""
    bus: Bus = router
    source: Source = FakePeer(router)
    assert bus is not None
    assert source is not None


def test_subjects_of_the_same_receivers_are_one_run(router: Router) -> None:
    """Messages of many subjects of a stream arrive in one call; another receiver ends the run."""
    stream, other = Recorder(), Recorder()
    router.subscribe(b"a.>", stream)
    router.subscribe(b"b", other)
    ops = [msg(b"a.1"), msg(b"a.2"), msg(b"a.1"), msg(b"b"), msg(b"a.3"), msg(b"nobody"), msg(b"a.1")]
    publisher = FakePeer(router)
    for _ in range(2):
        router.route(ops, 0, len(ops), publisher, 5)
    assert stream.runs == [ops[:3], ops[4:5], ops[6:]] * 2
    assert other.runs == [ops[3:4]] * 2
    assert set(stream.sources) == {publisher}


def test_acks_are_runs(router: Router) -> None:
    """Ack subjects never repeat. Still, acks of one consumer travel together, 512 in a call, and no cache grows."""
    consumer = Recorder()
    router.subscribe(b"$JS.ACK.S.C.>", consumer)
    ops = [msg(b"$JS.ACK.S.C.1.%d.%d.99.0" % (i, i)) for i in range(20_000)]
    router.route(ops, 0, len(ops), FakePeer(router), 5)
    assert consumer.runs == [ops[at:at + 512] for at in range(0, len(ops), 512)]
    assert not router.routes.by_subject


class Slow:
    """A handler that counts much work for each message."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self.handled = 0

    def __call__(self, ops: Sequence[Msg], start: int, end: int, source: object, now_ns: int) -> None:
        self.handled += end - start
        self.router.count_work(20 * (end - start))


@pytest.mark.parametrize("with_client", [False, True])
def test_much_work_of_a_handler_leaves_messages_for_later_turns(router: Router, with_client: bool) -> None:
    """The rest of a client's messages waits, even if a client receives them, too. The broker's own messages do not
    wait."""
    slow, peer = Slow(router), FakePeer(router)
    router.subscribe(b"s.*", slow)
    if with_client:
        FakePeer(router).sub(b"s.>")
    ops = [msg(b"s.%d" % i) for i in range(2000)]
    done, calls = 0, 0
    while done < len(ops):
        router.outward.work = 0
        done = router.route(ops, done, len(ops), peer, 5)
        calls += 1
        assert slow.handled == done
    assert calls == 4


def test_inboxes_do_not_fill_the_cache(router: Router) -> None:
    """A hundred thousand replies to one muxed inbox cost one route."""
    peer = FakePeer(router)
    peer.sub(b"_INBOX.me.*")
    for i in range(100_000):
        router.publish(b"_INBOX.me.%d" % i, b"", 0, b"")
    assert peer.counted == [100_000, 0]
    assert not router.routes.by_subject


@pytest.mark.shows("monitoring.subsz")
def test_hits_are_part_of_the_lookups(router: Router) -> None:
    """Lookups of inboxes are counted for single messages and for runs of PubAcks; the share of hits is at most 1."""
    peer = FakePeer(router)
    peer.sub(b"_INBOX.me.*")
    peer.sub(b"other")
    for i in range(10):
        router.publish(b"_INBOX.me.%d" % i, b"", 0, b"")
        router.pub_acks(None, [b"_INBOX.me.%d" % i, b"_INBOX.me.b"], b"", 1, b"")
        router.publish(b"other", b"", 0, b"")
    figures = routing_statistics(router)
    assert (figures.lookups, figures.family_hits) == (21, 19)


def test_the_cache_is_bounded(router: Router) -> None:
    """New subjects evict old ones."""
    router.subscribe(b">", Recorder())
    for i in range(3 * ROUTES_KEPT):
        router.publish(b"s.%d" % i, b"", 0, b"")
    assert len(router.routes.by_subject) <= ROUTES_KEPT


def test_a_full_cache_takes_subjects_that_come_again(router: Router) -> None:
    """A subject that comes for the first time evicts none of the others."""
    router.subscribe(b"t.1.x", Recorder())  # so subjects with this prefix have no route in common
    for i in range(ROUTES_KEPT):
        router.publish(b"s.%d.x" % i, b"", 0, b"")
    known = set(router.routes.by_subject)
    router.publish(b"t.1.x", b"", 0, b"")
    assert set(router.routes.by_subject) == known
    router.publish(b"t.1.x", b"", 0, b"")
    assert b"t.1.x" in router.routes.by_subject


def test_a_subject_does_not_compete_with_its_own_prefix(router: Router) -> None:
    """A subject that comes again is cached, also if its hash and that of its prefix have the same remainder."""
    subject = next(subject for subject in map(b"t.%d.x".__mod__, range(1 << 30))
                   if hash(subject) % ROUTES_KEPT == hash(subject.rpartition(b".")[0]) % ROUTES_KEPT)
    router.subscribe(subject, Recorder())  # so subjects with this prefix have no route in common
    for i in range(ROUTES_KEPT):
        router.publish(b"s.%d.x" % i, b"", 0, b"")
    router.publish(subject, b"", 0, b"")
    router.publish(subject, b"", 0, b"")
    assert subject in router.routes.by_subject


@pytest.mark.parametrize(("receivers", "kept"), [(2, False), (15, False), (16, True), (2000, True), (2001, False)])
def test_new_subjects_with_many_receivers(router: Router, receivers: int, kept: bool) -> None:
    """One of them is cached at once if that keeps a route that is worth it. The others evict none."""
    for _ in range(receivers):
        FakePeer(router).sub(b"t.*.x")
    for i in range(ROUTES_KEPT):
        router.publish(b"s.%d.x" % i, b"", 0, b"")
    for i in range((1 << 21) // 2001 + 1):
        route = router.routes.route_of(b"t.%d.x" % i)
        assert route.kept is kept
    router.publish(b"_INBOX.a.1", b"", 0, b"")  # the caches are cleared here if they have too many receivers
    known = len(router.routes.by_subject)
    assert ROUTES_KEPT // 2 < known < ROUTES_KEPT if kept else known == ROUTES_KEPT


@pytest.mark.parametrize(("change", "got"), [("none", (6, 0)), ("limit", (3, 0)), ("end", (1, 0)), ("add", (6, 5)),
                                             ("add a wildcard", (6, 5))])
def test_changes_affect_routes_that_were_dropped(router: Router, change: str, got: tuple[int, int]) -> None:
    """A subject that comes again after half of the cache was dropped has its route back, unless that is stale."""
    peer, other, routes = FakePeer(router), FakePeer(router), router.routes
    sub = peer.sub(b"d.one.x")
    router.publish(b"d.one.x", b"", 0, b"")
    router.subscribe(b"e.one", Recorder())  # so subjects with this prefix have no route in common
    for subject in (*(b"s.%d.x" % i for i in range(ROUTES_KEPT)), b"e.one", b"e.one"):
        router.publish(subject, b"", 0, b"")
    assert b"d.one.x" in routes._dropped
    routes._roots.update(map(b"r%d".__mod__, range(4 * ROUTES_KEPT)))  # so they are counted again
    routes._record_root(b"s")
    if change == "limit":
        router.limit(sub, 3)
    elif change == "end":
        router.remove(sub)
    elif change != "none":
        other.sub(b"d.one.x" if change == "add" else b"d.one.*")
    route = routes._dropped.get(b"d.one.x")
    for _ in range(5):
        router.publish(b"d.one.x", b"", 0, b"")
    assert (peer.counted[0], other.counted[0]) == got
    assert change != "none" or routes.by_subject[b"d.one.x"] is route


def test_a_flood_of_new_subjects_leaves_the_others(router: Router) -> None:
    """Although some of them come twice, and so drop half of a full cache once."""
    router.subscribe(b"t.*.y", Recorder())  # so subjects with these prefixes have no route in common
    known = [b"s.%d.x" % i for i in range(ROUTES_KEPT)]
    for subject in known:
        router.publish(subject, b"", 0, b"")
    for i in range(2 * ROUTES_KEPT):
        router.publish(b"t.%d.x" % (i - i % 100 // 99), b"", 0, b"")
        router.publish(known[i % 1000], b"", 0, b"")
    caches = router.routes.by_subject | router.routes._dropped
    assert caches.keys() >= set(known)


@pytest.mark.parametrize("receivers", ["none", "a stream", "a slow stream", "clients"])
def test_long_reads_of_new_subjects_evict_none(router: Router, receivers: str) -> None:
    """Few messages are looked up twice, although runs are cut and the rest waits for a later turn."""
    if receivers == "clients":
        for _ in range(1000):
            FakePeer(router).sub(b"t.*.x")
    elif receivers != "none":
        router.subscribe(b"t.*.x", Recorder() if receivers == "a stream" else Slow(router))
    else:
        router.subscribe(b"t.none.x", Recorder())  # so subjects with this prefix have no route in common
        router.subs.count += 100_000  # subscriptions elsewhere
    for i in range(ROUTES_KEPT):
        router.publish(b"s.%d.x" % i, b"", 0, b"")
    lookups, total, source = router.routes.lookups, 8000 if receivers != "clients" else 2000, FakePeer(router)
    for at in range(0, total, 2000):
        ops, done = [msg(b"t.%d.x" % i) for i in range(at, at + 2000)], 0
        while done < len(ops):
            router.outward.work = 0
            done = router.route(ops, done, len(ops), source, 5)
    kept = sum(subject.startswith(b"s.") for subject in router.routes.by_subject)
    assert kept == (ROUTES_KEPT // 2 if receivers == "clients" else ROUTES_KEPT)  # one route to 1000 clients is cached
    assert router.routes.lookups - lookups < 1.25 * total


def test_messages_through_other_routes_drop_no_cached_ones(router: Router) -> None:
    """Deliveries that leave out subscribers use routes that are not cached, and are not counted as such."""
    for _ in range(50):
        FakePeer(router).sub(b"d")
        FakePeer(router).sub(b"d").hides = b"s.0".__eq__
    for _ in range(10):
        assert router.deliver(b"d", deliveries(5)) == 5
    assert router.routes._receivers_kept == 100


@pytest.mark.parametrize("seed", range(5))
def test_a_full_cache_delivers_as_an_empty_one(seed: int) -> None:
    """Mixed bursts of new, repeated, inbox and ack subjects reach the same subscribers in the same order."""
    rng, received = random.Random(seed), []
    new = iter(range(1_000_000))
    makers: list[Callable[[], bytes]] = [
        lambda: b"o.%d.made" % next(new), lambda: b"o.%d.made" % rng.randrange(20), lambda: b"k.%d" % next(new),
        lambda: b"_INBOX.a.%d" % next(new), lambda: b"_INBOX.b.%d" % rng.randrange(9),
        lambda: b"$JS.ACK.S.C%d.1.%d.3.4.5" % (rng.randrange(2), next(new)), lambda: b"n.%d" % next(new)]
    ops = [msg(maker()) for maker in rng.choices(makers, k=2000) for _ in range(rng.randrange(1, 4))]
    for full in (False, True):
        router = Router(ManualClock(), random.Random(1), at_once)
        for i in range(ROUTES_KEPT if full else 0):
            router.publish(b"full.%d.x" % i, b"", 0, b"")
        peers = [FakePeer(router) for _ in range(3)]
        for peer, subject in zip([*peers, *peers], (b"o.>", b"o.*.made", b"k.*", b"_INBOX.a.*", b"_INBOX.b.4", b"n.*"),
                                 strict=True):
            peer.sub(subject, b"%d" % len(subject))
        handler = Recorder()
        router.subscribe(b"$JS.ACK.>", handler)
        source, at = FakePeer(router), 0
        while at < len(ops):
            router.outward.work = 0
            at = router.route(ops, at, len(ops), source, 5)
        received.append([b"".join(peer.got) for peer in peers] + [op for run in handler.runs for op in run])
    assert received[0] == received[1]


def test_subjects_beyond_the_cache_are_one_run(router: Router) -> None:
    """Subjects with one prefix share a route until a subscription distinguishes them.

    Subjects of other prefixes, and malformed ones, do not belong to the family.
    """
    every, one, two = Recorder(), Recorder(), Recorder()
    router.subscribe(b"kv.>", every)
    ops = [msg(b"kv.%d.k%d" % (i % 7, i)) for i in range(3 * ROUTES_KEPT)]
    router.route(ops, 0, len(ops), FakePeer(router), 5)
    again = ops[ROUTES_KEPT:]
    every.runs.clear()
    router.route(again, 0, len(again), FakePeer(router), 5)
    assert every.runs == [again[at:at + 512] for at in range(0, len(again), 512)]
    assert len(router.routes.by_subject) <= ROUTES_KEPT
    some = [msg(subject)
            for subject in (b"kv.1.k99998", b"kv.1.k99999", b"kv.1.", b"kv..k1", b"kv.1.k99999.x", b"kw.1.k99999")]
    router.subscribe(b"kv.1.k99999", one)
    router.subscribe(b"*.1.k99999.*", two)
    every.runs.clear()
    router.route(some, 0, len(some), FakePeer(router), 5)
    assert [op for run in every.runs for op in run] == [some[0], some[1], some[4]]
    assert one.runs == [[some[1]]]
    assert two.runs == [[some[4]]]


def test_prefixes_of_one_subject_each_fill_no_cache(router: Router) -> None:
    """New prefixes are cached up to a bound, and none gets a route of its own."""
    router.subscribe(b"kv.>", Recorder())
    for i in range(3 * ROUTES_KEPT):
        router.publish(b"kv.%d.state" % i, b"", 0, b"")
    assert len(router.routes.by_subject) <= ROUTES_KEPT
    assert len(router.routes._missed) == ROUTES_KEPT
    assert not router.routes._inboxes


def test_publish_counts_receivers(router: Router) -> None:
    """Clients count, and in-process subscribers, and one member of each queue group."""
    assert router.publish(b"a", b"", 0, b"") == 0
    FakePeer(router).sub(b"a")
    FakePeer(router).sub(b"*")
    FakePeer(router).sub(b"a", queue=b"q")
    FakePeer(router).sub(b"a", queue=b"q")
    router.subscribe(b"a", Recorder())
    router.subscribe(b"a", Recorder(), queue=b"h")
    assert router.publish(b"a", b"r", 0, b"body") == 5


def test_queue_members_share(router: Router) -> None:
    """Each message of a batch goes to one member; of many messages, each member gets its share, in order."""
    members = [FakePeer(router) for _ in range(4)]
    for member in members:
        member.sub(b"a", queue=b"q")
    ops = [msg(b"a", b"%05d" % i) for i in range(4000)]
    router.route(ops, 0, len(ops), None, 0)
    seen: list[bytes] = []
    for member in members:
        bodies = [line for line in member.pop_sent().split(b"\r\n") if line.isdigit()]
        assert 800 < len(bodies) < 1200
        assert bodies == sorted(bodies)
        seen += bodies
    assert sorted(seen) == [op[3] for op in ops]


def test_queue_members_get_equal_shares_of_a_batch(router: Router) -> None:
    """The shares of two members differ by one message at most; a random member gets the larger share."""
    members = [FakePeer(router) for _ in range(4)]
    for member in members:
        member.sub(b"a", queue=b"q")
    for count in (1, 2, 3, 5, 41):
        ahead, behind = set[int](), set[int]()
        for _ in range(60):
            before = [member.counted[0] for member in members]
            router.route([msg(b"a")] * count, 0, count, None, 0)
            got = [member.counted[0] - had for member, had in zip(members, before, strict=True)]
            assert sum(got) == count
            assert max(got) - min(got) == 1
            ahead.update(at for at, more in enumerate(got) if more == max(got))
            behind.update(at for at, more in enumerate(got) if more == min(got))
        assert len(ahead) == len(behind) == 4


def test_messages_of_many_subjects_to_few_clients_keep_their_order(router: Router) -> None:
    """Single messages go to different subscriptions: to handlers, to nobody, to two clients, to the publisher itself.

    Some are large. Each client gets its messages in order, with headers only if it supports them.
    """
    plain, bare, own = FakePeer(router), FakePeer(router, headers=False), FakePeer(router, no_echo=True)
    for peer, name in ((plain, b"p"), (bare, b"b"), (own, b"o")):
        for at in range(5):
            peer.sub(b"%b.%d.*" % (name, at), b"%d" % at)
        peer.sub(b"all", b"9")
    recorder = Recorder()
    router.subscribe(b"h.*", recorder)
    rng = random.Random(7)
    expected: dict[bytes, list[bytes]] = {b"p": [], b"b": [], b"o": []}
    ops: list[Msg] = []
    for at in range(400):
        kind = rng.choice([b"p", b"p", b"p", b"b", b"b", b"o", b"h", b"all", b"none"])
        body = b"%03d" % at + b"x" * rng.choice([0, 0, 0, 5000])
        reply = b"r" if at % 3 else b""
        head = b"NATS/1.0\r\nA: b\r\n\r\n" if at % 4 == 0 else b""
        subject = b"h.1" if kind == b"h" else kind if len(kind) > 1 else b"%b.%d.%d" % (kind, rng.randrange(5), at)
        ops.append((subject, reply, len(head), head + body))
        for name in expected:
            if name == kind or (kind == b"all" and name != b"o"):
                expected[name].append(body)
    router.route(ops, 0, len(ops), own, 0)
    for peer, name in ((plain, b"p"), (bare, b"b")):
        got = _bodies(peer.pop_sent())
        assert [body for _, body in got] == expected[name]
        assert any(headers for headers, _ in got) == peer.headers
        assert peer.counted[0] == len(got)
    assert own.pop_sent() == b""
    assert own.missed == [(op[0], b"r") for op in ops if op[1] and op[0][:2] in (b"o.", b"no")]
    assert len(recorder.runs) == len([op for op in ops if op[0] == b"h.1"]) - sum(len(run) - 1 for run in recorder.runs)


def _bodies(data: bytes) -> list[tuple[bool, bytes]]:
    """Return, for each message in ``data``, whether it has headers, and its body."""
    found = []
    while data:
        line, _, rest = data.partition(b"\r\n")
        words = line.split(b" ")
        size, hlen = int(words[-1]), int(words[-2]) if words[0] == b"HMSG" else 0
        found.append((bool(hlen), rest[hlen:size]))
        data = rest[size + 2:]
    return found


def test_a_limit_after_the_route_was_cached(router: Router) -> None:
    """``limit`` affects routes of single subscriptions that are cached by many subjects."""
    peer, publisher = FakePeer(router), FakePeer(router)
    sub = peer.sub(b"a.*")
    ops = [msg(b"a.%d" % at, reply=b"r") for at in range(6)]
    for op in ops:
        router.route([op], 0, 1, publisher, 0)
    router.limit(sub, 8)
    for op in ops:
        router.route([op], 0, 1, publisher, 0)
    assert peer.counted[0] == 8
    assert [subject for subject, _ in publisher.missed] == [b"a.2", b"a.3", b"a.4", b"a.5"]


def test_a_client_that_ends_while_it_is_sent_to(router: Router) -> None:
    """Its subscriptions end in the middle of a run, when its collected messages are sent; others get theirs."""
    class Slow(FakePeer):
        def _record(self, data: bytes, count: int, body_bytes: int) -> None:
            super()._record(data, count, body_bytes)
            for sub in subs:
                self.router.remove(sub)

    slow, other, publisher = Slow(router), FakePeer(router), FakePeer(router)
    subs = [slow.sub(b"s.%d" % at) for at in range(3)]
    other.sub(b"o.>")
    ops = [msg(subject, reply=b"r") for subject in (b"s.0", b"s.1", b"o.1", b"s.2", b"o.2", b"s.0")]
    router.route(ops, 0, len(ops), publisher, 0)
    assert (slow.counted[0], other.counted[0]) == (2, 2)
    assert [subject for subject, _ in publisher.missed] == [b"s.2", b"s.0"]


def test_a_limited_queue_member_leaves_the_rest_to_others(router: Router) -> None:
    """A member with two messages left gets two, and the others get the rest; there is no interest when all are full."""
    one, other = FakePeer(router), FakePeer(router)
    router.limit(one.sub(b"a", queue=b"q"), 2)
    router.limit(other.sub(b"a", queue=b"q"), 5)
    ops = [msg(b"a", reply=b"r") for _ in range(10)]
    publisher = FakePeer(router)
    router.route(ops, 0, 10, publisher, 0)
    assert (one.counted[0], other.counted[0]) == (2, 5)
    assert len(publisher.missed) == 3
    assert not router.interest(b"a")


def test_a_limit_in_the_middle_of_a_run(router: Router) -> None:
    """A subscription for two messages gets two of a batch of five; a later message finds no receiver."""
    peer, publisher = FakePeer(router), FakePeer(router)
    sub = peer.sub(b"a.*")
    router.publish(b"a.1", b"", 0, b"0")
    router.limit(sub, 3)
    ops = [msg(b"a.%d" % i, b"%d" % i, b"r") for i in range(1, 6)]
    router.route(ops, 0, 5, publisher, 0)
    assert peer.pop_sent() == b"MSG a.1 1 1\r\n0\r\nMSG a.1 1 r 1\r\n1\r\nMSG a.2 1 r 1\r\n2\r\n"
    assert [subject for subject, _ in publisher.missed] == [b"a.3", b"a.4", b"a.5"]


def test_a_handler_may_change_subscriptions(router: Router) -> None:
    """A stream created by the first message of a batch receives the second."""
    late = Recorder()

    def create(ops: Sequence[Msg], start: int, end: int, source: Any, now_ns: int) -> None:
        router.subscribe(b"s.>", late)

    router.subscribe(b"api", create)
    ops = [msg(b"s.1"), msg(b"api"), msg(b"s.1"), msg(b"s.2")]
    router.route(ops, 0, 4, None, 0)
    assert late.runs == [ops[2:]]


def replies(count: int, inbox: bytes = b"_INBOX.me.%d") -> list[bytes]:
    return [inbox % i for i in range(count)]


@pytest.mark.parametrize("also", [None, b">", b"_INBOX.me.>", b"_INBOX.me.3", b"_INBOX.me.*", b"_INBOX.*.4"])
@pytest.mark.parametrize("blank", [False, True])
def test_pub_acks_are_exact(router: Router, also: bytes | None, blank: bool) -> None:
    """A batch of PubAcks equals as many single publishes, for any subscribers and any empty replies."""
    wanted = replies(12)
    if blank:
        wanted[0] = wanted[5] = b""
    outcomes = []
    for batched in (True, False):
        made = Router(ManualClock(), random.Random(1), at_once)
        peer, other = FakePeer(made), FakePeer(made)
        peer.sub(b"_INBOX.me.*", b"7")
        if also:
            other.sub(also, b"9")
        if batched:
            made.pub_acks(None, wanted, b'{"seq":', 95, b"%}")
        else:
            for i, reply in enumerate(wanted):
                if reply:
                    made.publish(reply, b"", 0, b'{"seq":%d%%}' % (95 + i))
        outcomes.append((peer.pop_sent(), other.pop_sent(), peer.counted))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0].count(b"MSG") == len([reply for reply in wanted if reply])


@pytest.mark.parametrize("also", [None, b">", b"_INBOX.me.3", b"_INBOX.*.4"])
@pytest.mark.parametrize("different", [b"", b"_INBOX.me.", b"_INBOX.me.1.2", b"other.1"])
def test_pub_acks_of_many_streams_are_exact(also: bytes | None, different: bytes) -> None:
    """PubAcks with different prefixes and numbers equal as many single publishes, for any subscribers."""
    acks: list[bytes | int] = []
    for i, reply in enumerate([*replies(5), different, *replies(3)] if different else replies(8)):
        acks += (reply, b'{"stream":"S%d%%","seq":' % i, 10 ** (i % 3) - i % 2)
    outcomes = []
    for batched in (True, False):
        made = Router(ManualClock(), random.Random(1), at_once)
        peer, other = FakePeer(made), FakePeer(made)
        peer.sub(b"_INBOX.me.*", b"%7")
        if also:
            other.sub(also, b"9")
        if batched:
            made.pub_acks_each(acks)
        else:
            for reply, prefix, seq in zip(acks[::3], acks[1::3], acks[2::3], strict=True):
                made.publish(reply, b"", 0, b"%b%d}" % (prefix, seq))  # type: ignore[str-format]
        outcomes.append((peer.pop_sent(), other.pop_sent(), peer.counted))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("also", [None, b">", b"_INBOX.me"])
def test_a_run_to_one_subject_is_exact(also: bytes | None) -> None:
    """A run equals as many single messages, for any subscribers, and reaches no handler of the broker."""
    outcomes = []
    for batched in (True, False):
        made, handler = Router(ManualClock(), random.Random(1), at_once), Recorder()
        made.subscribe(b"_INBOX.me", handler)
        peer, other = FakePeer(made), FakePeer(made)
        peer.sub(b"_INBOX.*", b"%7")
        if also:
            other.sub(also, b"9")
        bodies = [b"%d" % 10 ** (number % 3) for number in range(9)]
        for subject in (b"_INBOX.me", b"nobody"):
            if batched:
                made.send_run(subject, bodies)
            else:
                for body in bodies:
                    made.send(subject, b"", 0, body)
        assert not handler.runs
        outcomes.append((peer.pop_sent(), other.pop_sent(), peer.counted))
    assert outcomes[0] == outcomes[1]


def test_pub_acks_to_mixed_inboxes(router: Router) -> None:
    """A batch has replies to two clients, replies of different depths, and a reply without a receiver."""
    one, other = FakePeer(router), FakePeer(router)
    one.sub(b"_INBOX.a.*")
    other.sub(b"_INBOX.b.c.*")
    assert not router.publish(b"_INBOX.a.", b"", 0, b"")
    router.pub_acks(None, [b"_INBOX.a.", b"_INBOX.a."], b"", 1, b"")
    assert one.pop_sent() == b""
    mixed = [b"_INBOX.a.1", b"_INBOX.b.c.1", b"_INBOX.a.2", b"x", b"_INBOX.a.3.4", b"_INBOX.a.5"]
    router.pub_acks(None, mixed, b"", 1, b"")
    assert one.pop_sent() == b"MSG _INBOX.a.1 1 1\r\n1\r\nMSG _INBOX.a.2 1 1\r\n3\r\nMSG _INBOX.a.5 1 1\r\n6\r\n"
    assert other.pop_sent() == b"MSG _INBOX.b.c.1 1 1\r\n2\r\n"


def deliveries(count: int, *, prefix: bytes = b"$JS.ACK.S.C.", hlens: list[int] | None = None) -> Deliveries:
    ones = [1] * count
    return Deliveries(prefix, [b"s.%d" % i for i in range(count)], hlens, [b"body%d" % i for i in range(count)], ones,
                      list(range(10, 10 + count)), list(range(1, 1 + count)), [5] * count, [0] * count)


def test_deliver_to_one_client(router: Router) -> None:
    """Messages keep their own subjects and carry the ack reply."""
    peer = FakePeer(router)
    peer.sub(b"_INBOX.me.*", b"3")
    assert router.deliver(b"_INBOX.me.1", deliveries(2)) == 2
    assert peer.pop_sent() == (b"MSG s.0 3 $JS.ACK.S.C.1.10.1.5.0 5\r\nbody0\r\n"
                            b"MSG s.1 3 $JS.ACK.S.C.1.11.2.5.0 5\r\nbody1\r\n")
    assert peer.counted == [2, 10]


@pytest.mark.shows("core.headers")
def test_deliver_strips_headers(router: Router) -> None:
    """A client without headers gets the payload alone."""
    peer = FakePeer(router, headers=False)
    peer.sub(b"d")
    assert router.deliver(b"d", deliveries(2, prefix=b"", hlens=[4, 0])) == 2
    assert peer.pop_sent() == b"MSG s.0 1 1\r\n0\r\nMSG s.1 1 5\r\nbody1\r\n"


def test_deliver_counts_receivers_from_the_front(router: Router) -> None:
    """Cases: no subscriber; a subscription with a limit; a queue group with members, and without."""
    assert router.deliver(b"d", deliveries(3)) == 0
    peer = FakePeer(router)
    sub = peer.sub(b"d")
    router.limit(sub, 2)
    assert router.deliver(b"d", deliveries(3)) == 2
    assert peer.counted[0] == 2
    assert router.deliver(b"d", deliveries(3)) == 0
    plain, member = FakePeer(router), FakePeer(router)
    plain.sub(b"d")
    assert router.deliver(b"d", deliveries(3), queue=b"q") == 0
    member.sub(b"d", queue=b"q")
    assert router.deliver(b"d", deliveries(3), queue=b"q") == 3
    assert member.pop_sent().count(b"MSG s.") == 3


def test_deliver_in_process(router: Router) -> None:
    """An in-process subscriber gets the batch as messages with their own subjects and replies."""
    recorder = Recorder()
    router.subscribe(b"d", recorder)
    assert router.deliver(b"d", deliveries(2, hlens=[4, 0])) == 2
    assert recorder.runs == [[(b"s.0", b"$JS.ACK.S.C.1.10.1.5.0", 4, b"body0"),
                           (b"s.1", b"$JS.ACK.S.C.1.11.2.5.0", 0, b"body1")]]


def test_client_interest(router: Router) -> None:
    """Handlers of the broker do not count, subscriptions with wildcards do."""
    router.subscribe(b"a.>", Recorder())
    assert not router.has_client_interest(b"a.b")
    sub = FakePeer(router).sub(b"*.b", b"1", queue=b"q")
    assert router.has_client_interest(b"a.b")
    assert not router.has_client_interest(b"a.c")
    router.remove(sub)
    assert not router.has_client_interest(b"a.b")


def test_watches(router: Router) -> None:
    """A watch is notified of each change that matters to its subject and queue group, and of no other.

    Subscriptions with wildcards, or of another queue group, do not matter to it.
    """
    changes: list[tuple[str, bool]] = []
    plain = router.watch_interest(b"d.1", b"", lambda now: changes.append(("plain", now)))
    group = router.watch_interest(b"d.1", b"q", lambda now: changes.append(("q", now)))
    peer = FakePeer(router)
    wildcard = peer.sub(b"d.*", b"1")
    peer.sub(b"d.*", b"2", queue=b"q")
    peer.sub(b"d.1", b"3", queue=b"r")
    assert not plain.interested
    assert not group.interested
    literal = peer.sub(b"d.1", b"4")
    member = peer.sub(b"d.1", b"5", queue=b"q")
    router.remove(wildcard)
    assert plain.interested
    assert group.interested
    router.remove(literal)
    router.remove(member)
    peer.sub(b"e.1", b"6")
    assert changes == [("plain", True), ("q", True), ("plain", False), ("q", False)]
    plain.cancel()
    group.cancel()
    peer.sub(b"d.1", b"7", queue=b"q")
    assert len(changes) == 4
    assert not router._watches


def test_a_watched_subject_with_many_subscriptions(router: Router) -> None:
    """Adding or removing one of them examines no others, so that thousands of them cost no more than elsewhere."""
    changes: list[bool] = []
    router.watch_interest(b"d", b"", changes.append)
    peer = FakePeer(router)
    router.outward.work = 0
    for sub in [peer.sub(b"d", b"%d" % sid) for sid in range(1000)]:
        router.remove(sub)
    assert changes == [True, False]
    assert not router.outward.work


def test_watches_are_notified_later() -> None:
    """A notification never comes from within the delivery that ended the interest; a reverted change is not
    reported."""
    later = Later()
    router = Router(ManualClock(), random.Random(1), later)
    changes: list[bool] = []
    watch = router.watch_interest(b"d", b"", changes.append)
    peer = FakePeer(router)
    sub = peer.sub(b"d")
    assert watch.interested
    assert not changes
    router.remove(sub)
    assert not watch.interested
    later.turn()
    assert changes == []


@pytest.mark.parametrize("queue", [b"", b"q"])
def test_what_the_broker_publishes_reaches_handlers_on_a_later_turn(queue: bytes) -> None:
    """A handler is called by no way of publishing before the publish has returned. Clients are served at once."""
    later = Later()
    router = Router(ManualClock(), random.Random(1), later)
    stream, peer = Recorder(), FakePeer(router)
    router.subscribe(b"_INBOX.>", stream, queue=queue)
    peer.sub(b"_INBOX.>")
    inbox = replies(3)
    assert router.publish(inbox[0], b"", 0, b"advisory") == 2
    router.pub_acks(None, inbox, b"n", 1, b"")
    router.pub_acks_each((inbox[0], b"n", 7, inbox[1], b"n", 8))
    assert router.deliver(inbox[2], deliveries(2), queue=queue) == 2
    assert not stream.runs
    assert peer.pop_sent().count(b"MSG ") == 8
    later.turn()
    bodies = [body for run in stream.runs for _, _, _, body in run]
    assert bodies == [b"advisory", b"n1", b"n2", b"n3", b"n7}", b"n8}", b"body0", b"body1"]
    assert set(stream.sources) == {None}


def test_a_handler_that_publishes_is_not_called_from_within() -> None:
    """A handler that answers every message on its own subject is called once in each turn."""
    later = Later()
    router = Router(ManualClock(), random.Random(1), later)
    inside, deepest, calls = 0, 0, 0

    def handler(ops: Sequence[Msg], start: int, end: int, source: Any, now_ns: int) -> None:
        nonlocal inside, deepest, calls
        inside += 1
        deepest, calls = max(deepest, inside), calls + 1
        router.publish(b"s", b"", 0, b"again")
        inside -= 1

    router.subscribe(b"s", handler)
    router.route([msg(b"s")], 0, 1, FakePeer(router), 0)
    for _ in range(5000):
        later.turn()
    assert (calls, deepest) == (5001, 1)


def test_an_ended_subscription_receives_nothing_more() -> None:
    """A message that is published before its subscription ends, and would be handled afterwards, is dropped."""
    later = Later()
    router = Router(ManualClock(), random.Random(1), later)
    stays, goes = Recorder(), Recorder()
    router.subscribe(b"s", stays)
    gone = router.subscribe(b"s", goes)
    router.publish(b"s", b"", 0, b"x")
    router.unsubscribe(gone)
    later.turn()
    assert [len(stays.runs), len(goes.runs)] == [1, 0]


def test_a_turn_has_a_bound() -> None:
    """Many replies are handled over several turns, in order; a long queue is handled in larger parts than a short
    one."""
    later = Later()
    router = Router(ManualClock(), random.Random(1), later)
    stream = Recorder()
    router.subscribe(b"_INBOX.>", stream)
    inbox = replies(10 * MSGS_AT_ONCE)
    router.pub_acks(None, inbox, b"", 1, b"")
    sizes = []
    while later:
        before = sum(map(len, stream.runs))
        later.turn()
        sizes.append(sum(map(len, stream.runs)) - before)
    assert sizes[0] == 5 * MSGS_AT_ONCE
    assert sizes[-1] <= MSGS_AT_ONCE
    assert [reply for run in stream.runs for reply, *_ in run] == inbox


def test_a_failing_handler_does_not_affect_others() -> None:
    """Its error goes to the loop's exception handler; messages queued behind it are handled on the next turn."""
    later = Later()
    router = Router(ManualClock(), random.Random(1), later)
    stream = Recorder()

    def fails(ops: Sequence[Msg], start: int, end: int, source: Any, now_ns: int) -> None:
        raise ValueError("unforeseen")

    router.subscribe(b"s", fails)
    router.subscribe(b"s", stream)
    router.publish(b"s", b"", 0, b"x")
    with pytest.raises(ValueError, match="unforeseen"):
        later.turn()
    later.turn()
    assert len(stream.runs) == 1
    assert not later


def test_refused_subjects(router: Router) -> None:
    """Messages of a client to subjects of servers reach no subscriber."""
    recorder = Recorder()
    router.subscribe(b">", recorder)
    publisher = FakePeer(router)
    router.route([msg(b"$NRG.x"), msg(b"_GR_.x"), msg(b"$NRG")], 0, 3, publisher, 0)
    assert publisher.refused == [b"$NRG.x", b"_GR_.x"]
    assert recorder.runs == [[msg(b"$NRG")]]


def test_pending_bytes(router: Router) -> None:
    """The result is that of the subscriber that is furthest behind."""
    for pending in (5, 70, 0):
        peer = FakePeer(router)
        peer.pending_bytes = pending
        peer.sub(b"d")
    assert router.pending_bytes(b"d") == 70
    assert router.pending_bytes(b"e") == 0


PATTERNS = st.sampled_from([
    b"a", b"a.b", b"a.*", b"*.b", b">", b"a.>", b"_INBOX.x.*", b"_INBOX.x.1", b"_INBOX.>", b"_INBOX.*.1", b"_INBOX.x.>",
    b"_INBOX.1", b"$JS.ACK.S.C.>", b"$JS.ACK.S.*.>", b"$JS.>", b"$JS.ACK.S.C.1.*.*.*.*", b"*.*.*.*.*.*.*.*.*",
    b"$JS.ACK.S.C.1.2.3.4.5", b"$JS.ACK.*.*.S.C.>", b"$JS.ACK.S.C.*.2.>",
    b"$JS.API.>", b"$JS.API.DIRECT.GET.S.*", b"$JS.API.DIRECT.GET.S.a", b"a.b.>",
    b"$JS.EVENT.ADVISORY.CONSUMER.CREATED.S.C", b"$JS.EVENT.ADVISORY.CONSUMER.*.S.*"])
SUBJECTS = st.sampled_from([
    b"a", b"a.b", b"a.c", b"c.b", b"_INBOX.x.1", b"_INBOX.x.2", b"_INBOX.x.1.2", b"_INBOX.1", b"_INBOX.2", b"_INBOX.x.",
    b"$JS.ACK.S.C.1.2.3.4.5", b"$JS.ACK.S.C.9.9.9.9.9", b"$JS.ACK.S.D.1.2.3.4.5", b"$JS.ACK.S.C", b"$JS.ACK.S.C.1",
    b"$JS.API.DIRECT.GET.S.a", b"$JS.API.DIRECT.GET.S.b", b"$JS.API.DIRECT.GET.S.a.b", b"a.b.c",
    b"$JS.EVENT.ADVISORY.CONSUMER.CREATED.S.C", b"$JS.EVENT.ADVISORY.CONSUMER.CREATED.S.D"])


class RouterMachine(RuleBasedStateMachine):
    """Any order of SUB, UNSUB, limits and publishes: each message reaches exactly the subscribers of that moment.

    This would detect a route that is cached for too long.
    """

    def __init__(self) -> None:
        super().__init__()
        self.router = Router(ManualClock(), random.Random(1), at_once)
        self.subs: list[Subscription] = []
        self.sid = 0

    @rule(subject=PATTERNS, limit=st.sampled_from([0, 0, 0, 1, 2]))
    def sub(self, subject: bytes, limit: int) -> None:
        self.sid += 1
        sub = FakePeer(self.router).sub(subject, b"%d" % self.sid)
        if limit:
            self.router.limit(sub, limit)
        self.subs.append(sub)

    @rule(at=st.integers(0, 1000))
    def unsub(self, at: int) -> None:
        if self.subs:
            self.router.remove(self.subs.pop(at % len(self.subs)))

    @rule(subjects=st.lists(SUBJECTS, min_size=1, max_size=6), one_by_one=st.booleans())
    def publish(self, subjects: list[bytes], one_by_one: bool) -> None:
        ops = [msg(subject) for subject in subjects]
        if one_by_one:
            for op in ops:
                self.router.route([op], 0, 1, None, 0)
        else:
            self.router.route(ops, 0, len(ops), None, 0)
        for sub in list(self.subs):
            peer = sub.peer
            assert isinstance(peer, FakePeer)
            wanted = [subject for subject in subjects if matches(sub.subject, subject)]
            got = [line.split()[1] for line in peer.pop_sent().split(b"\r\n") if line.startswith(b"MSG ")]
            if sub.max:
                assert got == wanted[:len(got)]
                assert len(got) == len(wanted) or sub.delivered == sub.max
                if sub.delivered == sub.max:
                    self.subs.remove(sub)
            else:
                assert got == wanted, (sub.subject, subjects)
        assert self.router.interest(subjects[0]) == any(matches(other.subject, subjects[0]) for other in self.subs)


TestRoutes = RouterMachine.TestCase
TestRoutes.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def test_wire_bytes_are_parsable(router: Router) -> None:
    """A client parser reads each message of a batch of mixed messages."""
    peer = FakePeer(router)
    peer.sub(b">", b"5")
    ops = [msg(b"a", b"1"), (b"b", b"r", 2, b"hhx"), msg(b"c", b"y" * 9000), (b"d", b"", 3, b"hhh")]
    router.route(ops, 0, 4, None, 0)
    data = peer.pop_sent().replace(b"HMSG ", b"HPUB ").replace(b"MSG ", b"PUB ").replace(b" 5 ", b" ")
    parser = Parser()
    parser.headers = True
    assert parser.feed(data) == ops
