"""Single parts of sharing: subjects that an import receives, weights of mappings, expiry of responses."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.access.accounts import AccountSettings
from broker.access.sharing import Destination, Export, Import, SubjectMapping, mapping_problem, sharing_problems
from broker.base.clock import SystemClock
from broker.protocol import headers
from broker.protocol.run import Msg
from broker.protocol.subject import is_literal, matches
from broker.server.routing.router import Router
from broker.server.sharing import responses
from broker.server.sharing.latency import HEADERS_MAX, sampled_by_headers
from broker.server.sharing.lost_interest import LostInterest
from broker.server.sharing.mapping import Mappings
from broker.server.sharing.responses import Response, Responses
from broker.server.sharing.stream_imports import StreamImport, StreamImports

_WORD = st.sampled_from(["a", "b", "c"])
_LITERAL = st.lists(_WORD, min_size=1, max_size=4).map(".".join)


@st.composite
def _patterns(draw: st.DrawFn) -> str:
    tokens = draw(st.lists(st.one_of(_WORD, st.just("*")), min_size=0 if (rest := draw(st.booleans())) else 1,
                           max_size=3))
    return ".".join([*tokens, ">"] if rest else tokens)


def _router(name: str = "A") -> Router:
    return Router(SystemClock(), random.Random(1), lambda call: None, name)


@st.composite
def _imports(draw: st.DrawFn) -> Import:
    source = draw(_patterns())
    kind = draw(st.sampled_from(["same", "prefix", "to"]))
    if kind == "prefix":
        return Import("stream", "A", source, prefix=draw(_LITERAL))
    if kind == "same" or is_literal(source.encode()):
        return Import("stream", "A", source)
    stars = [f"${at}" for at in range(1, source.split(".").count("*") + 1)]
    tokens = draw(st.permutations([*stars, *draw(st.lists(_WORD, max_size=2))]))
    return Import("stream", "A", source, to=".".join([*tokens, *([">"] if source.endswith(">") else [])]) or source)


def test_measured_requests_keep_little() -> None:
    """The headers kept of a measured request are bounded, and include the header that requests the measurement."""
    asking = (b"Traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    for state in (b"x" * 100, b"x" * 500_000):
        kept = sampled_by_headers(headers.build([(b"Tracestate", state), asking, (b"Other", b"y")]))
        assert kept is not None
        assert kept["Traceparent"] == [asking[1].decode()]
        assert ("Tracestate" in kept) == (len(state) < HEADERS_MAX)
        assert "Other" not in kept
    many = sampled_by_headers(headers.build([(b"Uberctx-%d" % at, b"z" * 50) for at in range(5000)] + [
        (b"Uber-Trace-Id", b"1:2:3:1")]))
    assert many is not None
    assert sum(len(name) + len(values[0]) for name, values in many.items()) <= HEADERS_MAX
    assert "Uber-Trace-Id" in many


@given(_imports(), _patterns(), st.lists(_LITERAL, min_size=1, max_size=8))
def test_shadows_receive_what_the_subscription_would(settings: Import, wanted: str, subjects: list[str]) -> None:
    """A published subject matches the shadow exactly if its local name matches the subscription."""
    one = StreamImport(settings, _router())
    shadow = one.source_of(wanted.encode())
    for text in subjects:
        subject = text.encode()
        if matches(settings.subject.encode(), subject):
            local = one.rename(subject)
            assert matches(one.local, local)
            assert (shadow is not None and matches(shadow, subject)) == matches(wanted.encode(), local)


def test_shadows_follow_their_subscriptions() -> None:
    """Subscriptions before and after the import have shadows while both last."""
    exporter, importer = _router(), _router("B")
    imports = StreamImports(importer)
    early = importer.subscribe(b"x.a", lambda *_: None)
    imports.set([StreamImport(Import("stream", "A", "a", prefix=prefix), exporter) for prefix in ("", "x")])
    late = importer.subscribe(b">", lambda *_: None)
    assert sorted(sub.subject for sub in exporter.subscriptions()) == [b"a", b"a", b"a"]
    importer.unsubscribe(late)
    assert [(sub.subject, sub.original) for sub in exporter.subscriptions()] == [(b"a", early)]
    imports.set([])
    assert exporter.subscriptions() == []
    imports.set([StreamImport(Import("stream", "A", "a", prefix="x"), exporter)])
    importer.unsubscribe(early)
    assert exporter.subscriptions() == []


# Mappings

def _mapped(mapping: SubjectMapping, subject: bytes, count: int = 1000) -> Counter[bytes]:
    mappings = Mappings([mapping], random.Random(7))
    ops: list[Msg] = [(subject, b"", 0, b"")] * count
    taken = mappings.map_run(ops, 0, count)
    return Counter(subject for subject, *_ in taken or ops)


@pytest.mark.shows("core.mappings")
def test_weights() -> None:
    """Each destination gets its share. The rest stays at the source, or is lost if the source is a destination."""
    shares = _mapped(SubjectMapping("a.*", (Destination("b.$1", 20), Destination("c.$1", 30))), b"a.x")
    assert shares.keys() == {b"b.x", b"c.x", b"a.x"}
    assert all(abs(shares[subject] - wanted) < 60 for subject, wanted in ((b"b.x", 200), (b"c.x", 300), (b"a.x", 500)))
    lossy = _mapped(SubjectMapping("a", (Destination("a", 50),)), b"a")
    assert lossy.keys() == {b"a", b""}
    assert abs(lossy[b""] - 500) < 60
    assert _mapped(SubjectMapping("a", (Destination("b", 100),)), b"a") == {b"b": 1000}
    assert _mapped(SubjectMapping("a", (Destination("b", 100, "east"),)), b"a") == {b"a": 1000}
    assert len(_mapped(SubjectMapping("a", (Destination("b.{{random(4)}}"),)), b"a")) == 4


@pytest.mark.shows("core.mappings")
@given(st.lists(st.tuples(_patterns(), _LITERAL), min_size=1, max_size=4, unique_by=lambda pair: pair[0]),
       st.lists(_LITERAL, min_size=1, max_size=30))
def test_first_mapping_applies(pairs: list[tuple[str, str]], subjects: list[str]) -> None:
    """The first matching source applies, whether a subject is new or cached, alone or in a run."""
    given = [SubjectMapping(source, (Destination(to),)) for source, to in pairs]
    usable = [one for one in given if not mapping_problem(one)]
    mappings = Mappings(usable, random.Random(1))
    wanted = [next((one.destinations[0].subject for one in usable if matches(one.source.encode(), subject.encode())),
                   subject)
              for subject in subjects]
    ops: list[Msg] = [(subject.encode(), b"r", 0, b"x") for subject in subjects]
    for _ in range(2):
        taken = mappings.map_run(ops, 0, len(ops)) or ops
        assert [subject.decode() for subject, *_ in taken] == wanted
        assert [mappings.map(subject).decode() for subject, *_ in ops] == wanted


# Responses

class _Timers:
    """A clock, and the calls that are due later."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000
        self._calls: list[tuple[int, Callable[[], None]]] = []

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Any:
        call = (self.now_ns + int(seconds * 1e9), callback)
        self._calls.append(call)
        return _Timer(self._calls, call)

    def advance(self, seconds: float) -> None:
        end_ns = self.now_ns + int(seconds * 1e9)
        while self._calls and (call := min(self._calls, key=lambda one: one[0]))[0] <= end_ns:
            self._calls.remove(call)
            self.now_ns = call[0]
            call[1]()
        self.now_ns = end_ns

    def __len__(self) -> int:
        return len(self._calls)


class _Timer:
    def __init__(self, calls: list[Any], call: Any) -> None:
        self._calls, self._call = calls, call

    def cancel(self) -> None:
        self._calls.remove(self._call)


def _responses(timers: _Timers, *, single: bool) -> tuple[Responses, Router, Router]:
    exporter, importer = _router(), _router("B")
    return Responses(exporter, single=single, threshold_ns=2_000_000_000, call_later=timers.call_later,
                     now_ns=lambda: timers.now_ns, as_responder=lambda source: source), exporter, importer


def _response(router: Router, timers: _Timers) -> Response:
    return Response(b"_INBOX.1", router, b"req", None, timers.now_ns, None)


def test_reply_subjects_cannot_be_predicted() -> None:
    """Anyone who knew a reply subject could answer instead of the service: equal seeds of the router's generator
    differ."""
    def replies() -> list[bytes]:
        random.seed(7)
        timers = _Timers()
        expected, _, importer = _responses(timers, single=True)
        return [expected.expect(_response(importer, timers)) for _ in range(3)]

    first, second = replies(), replies()
    assert len({*first, *second}) == 6
    assert first[0][:9] != second[0][:9]


@pytest.mark.shows("accounts.service_sharing")
def test_responses_expire() -> None:
    """A response expires after the threshold, but not while a stream of responses continues."""
    timers = _Timers()
    for single in (True, False):
        expected, exporter, importer = _responses(timers, single=single)
        importer.subscribe(b"_INBOX.>", lambda *_: None)
        reply = expected.expect(_response(importer, timers))
        assert exporter.interest(reply)
        timers.advance(1.9)
        assert len(expected) == 1
        expected.pass_on([(reply, b"", 0, b"x")], None, timers.now_ns, b"")
        timers.advance(1.9)
        assert len(expected) == (0 if single else 1)
        timers.advance(1)
        assert (len(expected), len(timers), exporter.interest(reply)) == (0, 0, False)


def test_responses_are_bounded(monkeypatch: Any) -> None:
    """Beyond the bound the oldest request is dropped; all have their own reply subject."""
    monkeypatch.setattr(responses, "WAITING_MAX", 100)
    timers = _Timers()
    expected, exporter, importer = _responses(timers, single=True)
    importer.subscribe(b"_INBOX.>", lambda *_: None)
    replies = [expected.expect(_response(importer, timers)) for _ in range(250)]
    assert len(set(replies)) == 250
    assert [exporter.interest(reply) for reply in replies] == [False] * 150 + [True] * 100
    expected.close()
    assert (len(expected), len(timers), exporter.subscriptions()) == (0, 0, [])


def test_many_responses_expire_in_parts() -> None:
    """Expiry in parts does not block the loop."""
    timers = _Timers()
    expected, _, importer = _responses(timers, single=True)
    for _ in range(25_000):
        expected.expect(_response(importer, timers))
    timers.advance(2.0015)
    assert 0 < len(expected) < 25_000
    timers.advance(1)
    assert len(expected) == 0


# Measured requests whose requester has unsubscribed

def test_removed_wildcards_are_checked_together() -> None:
    """Any number of removals causes one check, in slices; requests that have a subscriber, or never had one, stay."""
    timers, router, lost = _Timers(), _router(), list[bytes]()
    watched = LostInterest(router, timers.call_later)
    kept = [router.subscribe(b"kept.>", lambda *_: None)]
    gone = [router.subscribe(b"gone.%d.*" % at, lambda *_: None) for at in range(100)]
    replies = [b"%b.%d.%d" % (word, at, n) for word in (b"kept", b"gone", b"none") for at in range(100)
               for n in range(30)]
    for reply in replies:
        watched.watch(reply, b"expected." + reply, lost.append)
    for subscription in gone:
        router.unsubscribe(subscription)
    again = router.subscribe(b"gone.7.3", lambda *_: None)
    assert (lost, len(timers)) == ([], 1)
    timers.advance(0.06)
    expected = [b"expected." + reply for reply in replies if reply.startswith(b"gone.") and reply != b"gone.7.3"]
    assert lost == expected
    for name in lost:
        watched.forget(name.removeprefix(b"expected."), name)
    router.unsubscribe(again)
    assert lost[len(expected):] == [b"expected.gone.7.3"], "a literal one at once"
    router.unsubscribe(kept[0])
    timers.advance(0.06)
    assert len(lost) == len(expected) + 1 + 3000
    assert len(timers) == 0


# Configurations

def test_accounts_that_share_in_very_many_ways() -> None:
    """Two accounts in each of 25 layers import a service from both of the next, which is checked in spite of 33
    million paths."""
    def imports(layer: int) -> tuple[Import, ...]:
        return tuple(Import("service", f"{layer + 1}{other}", "svc") for other in "ab") if layer < 24 else ()

    layers = [[AccountSettings(f"{layer}{name}", exports=(Export("service", "svc"),), imports=imports(layer))
               for name in "ab"] for layer in range(25)]
    few = [AccountSettings("x", imports=layers[-6][0].imports), *(one for layer in layers[-5:] for one in layer)]
    assert not [why for _, why in sharing_problems(few) if "cycle" in why]
    assert [why for _, why in sharing_problems([one for layer in reversed(layers) for one in layer]) if "cycle" in why]
