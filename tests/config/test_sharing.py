"""A configuration may have the exports and imports of accounts that the real server accepts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from broker.access.sharing import Export, Latency, without_repetitions
from broker.config.flags import read_flags
from broker.config.load import load
from broker.config.settings import ConfigError
from tests.harness import NatsServerProcess

ORDERS_MAX = 60
"""The most tries of a configuration with a cycle: the real server adds accounts' imports in a random order."""


def ours(path: Path) -> str:
    """Return why jetblock refuses the configuration; "": it accepts it."""
    try:
        load(read_flags(["-t", "-c", str(path)]), {})
    except ConfigError as error:
        return str(error)
    return ""


def real(path: Path) -> str:
    done = subprocess.run([*NatsServerProcess.command, "-t", "-c", str(path)], capture_output=True, text=True,
                          timeout=100, check=False)
    return done.stderr if done.returncode else ""


def accounts(a: str, b: str = "", c: str = "") -> str:
    return (f"accounts {{\n A {{ users: [{{user: a, password: p}}], {a} }}\n B {{ users: [{{user: b, password: p}}], "
            f"{b} }}\n"
            f" C {{ users: [{{user: c, password: p}}], {c} }}\n}}\n")


PRIVATE, PUBLIC = '{%s: "q.>", accounts: [B]}', '{%s: "q.>"}'


@pytest.mark.parametrize("kind", ["service", "stream"])
@pytest.mark.parametrize("exports, importer, allowed", [
    ((PRIVATE, PUBLIC), "C", False), ((PUBLIC, PRIVATE), "C", False), ((PRIVATE,), "C", False), ((PUBLIC,), "C", True),
    ((PUBLIC, PUBLIC), "C", True), ((PRIVATE, PUBLIC), "B", True), ((PRIVATE, '{%s: "q.>", accounts: [C]}'), "B", True),
    ((PRIVATE, '{%s: "q.>", accounts: [C]}'), "C", True), ((PRIVATE, PUBLIC, PUBLIC), "C", False)])
def test_an_export_that_repeats_another_makes_nothing_public(
        tmp_path: Path, kind: str, exports: tuple[str, ...], importer: str, allowed: bool) -> None:
    """An export that was private once stays private; lists of accounts add up."""
    listed = f"exports: [{', '.join(export % kind for export in exports)}]"
    imports = f'imports: [{{{kind}: {{account: A, subject: "q.>"}}}}]'
    path = tmp_path / "x.conf"
    path.write_text(accounts(listed, **{importer.lower(): imports}))
    for said in (ours(path), real(path)):
        assert (said == "") is allowed
        assert allowed or f"{kind} import not authorized" in said


def test_of_wider_exports_every_one_must_permit_an_import(tmp_path: Path) -> None:
    """All wider exports must permit an import; the real server asks a random one of them."""
    path = tmp_path / "x.conf"
    path.write_text(accounts('exports: [{service: ">"}, {service: "q.>", accounts: [B]}]', "",
                             'imports: [{service: {account: A, subject: "q.1"}}]'))
    assert "service import not authorized" in ours(path)


@pytest.mark.parametrize("before, after, both", [
    (Export("service", "q", ("B",), "stream"), Export("service", "q"), Export("service", "q", ("B",), "stream")),
    (Export("service", "q", ()), Export("service", "q"), Export("service", "q", ())),
    (Export("service", "q.*", account_token_position=2), Export("service", "q.*"),
     Export("service", "q.*", account_token_position=2)),
    (Export("service", "q", latency=Latency("l"), allow_trace=True), Export("service", "q", ("B",)),
     Export("service", "q", ("B",), latency=Latency("l"), allow_trace=True))])
def test_what_a_repetition_leaves(before: Export, after: Export, both: Export) -> None:
    """A repetition has the restrictions and options of both; other kinds and subjects are other exports."""
    other = Export("stream", "q")
    assert without_repetitions((before, other, after)) == (both, other)


REFUSED = {
    "through a local subject with a wildcard": accounts(
        'exports: [{service: "a.*.b"}], imports: [{service: {account: B, subject: "*.d"}}]',
        'exports: [{service: "*.d"}], imports: [{service: {account: A, subject: "a.*.b"}, to: "c.$1"}]'),
    "of services": accounts(
        "exports: [{service: x}], imports: [{service: {account: B, subject: y}, to: x}]",
        "exports: [{service: y}], imports: [{service: {account: A, subject: x}, to: y}]"),
    "of services, around": accounts(
        "exports: [{service: x}], imports: [{service: {account: B, subject: x}}]",
        "exports: [{service: x}], imports: [{service: {account: C, subject: x}}]",
        "exports: [{service: x}], imports: [{service: {account: A, subject: x}}]"),
    "of streams": accounts(
        'exports: [{stream: "b.*"}], imports: [{stream: {account: B, subject: "b.x"}}]',
        'exports: [{stream: "b.x"}], imports: [{stream: {account: A, subject: "b.x"}}]'),
    "that shows in one order alone": accounts(
        'exports: [{stream: "b.*.b"}], imports: [{stream: {account: B, subject: b}}]',
        "exports: [{stream: b}], imports: [{stream: {account: A, subject: b.b.b}, to: b}]"),
    "a subject twice": accounts(
        'exports: [{service: "a.*"}]',
        'imports: [{service: {account: A, subject: "a.*"}, to: "a.$1"}, {service: {account: A, subject: "a.*"}}]'),
}


@pytest.mark.parametrize("case, text", REFUSED.items(), ids=REFUSED)
def test_imports_that_the_real_server_refuses(tmp_path: Path, case: str, text: str) -> None:
    """jetblock refuses imports that the real server refuses in any of its orders."""
    path = tmp_path / "x.conf"
    path.write_text(text)
    why = "duplicate service import subject" if case == "a subject twice" else "import forms a cycle"
    assert why in ours(path)
    assert any(why in real(path) for _ in range(ORDERS_MAX))


@pytest.mark.parametrize("text", [
    accounts("exports: [{service: x}]", "exports: [{service: x}], imports: [{service: {account: A, subject: x}}]",
             "imports: [{service: {account: A, subject: x}, to: y}, {service: {account: B, subject: x}}]"),
    accounts("exports: [{service: x}], imports: [{service: {account: B, subject: y}}]",
             "exports: [{service: y}], imports: [{service: {account: A, subject: x}}]")])
def test_imports_that_form_no_cycle(tmp_path: Path, text: str) -> None:
    """Accounts may share with one another in several ways."""
    path = tmp_path / "x.conf"
    path.write_text(text)
    assert (ours(path), real(path)) == ("", "")


RESULTS = {
    "of the service itself": ('{service: "a.>", latency: "a.b"}', "invalid publish subject"),
    "of a service before": ('{service: b}, {service: a, latency: b}', "invalid publish subject"),
    "of a wider service before": ('{service: ">"}, {service: a, latency: b}, {service: b}', "invalid publish subject"),
    "of a service between two exports of one subject": (
        "{service: a}, {service: b}, {service: a, latency: b}", "invalid publish subject"),
    "of a service after": ("{service: a, latency: b}, {service: b}", ""),
    "of a service after, whose export repeats": ("{service: a, latency: b}, {service: b}, {service: a}", ""),
    "of a stream": ("{stream: b}, {service: a, latency: b}", ""),
}


@pytest.mark.parametrize("exports, why", RESULTS.values(), ids=RESULTS)
def test_latency_results_that_are_requests_to_a_service(tmp_path: Path, exports: str, why: str) -> None:
    """Results of latencies must not be requests to a service that the account has exported so far."""
    path = tmp_path / "x.conf"
    path.write_text(accounts(f"exports: [{exports}]"))
    for said in (ours(path), real(path)):
        assert (f': {why}' in said and "latency sampling" in said) if why else said == ""
