"""The configuration language: a table of texts and their values, positions of errors, and arbitrary text.

If a row of the table is marked, the real nats-server has accepted the same text (``-t``).
"""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.config.syntax import SyntaxFailure, Value, parse, plain
from tests.harness import NatsServerProcess

READS: list[tuple[str, dict[str, Any]]] = [
    ("", {}),
    ("# only a comment", {}),
    ("port: 4222", {"port": 4222}),
    ("port = 4222", {"port": 4222}),
    ("port 4222", {"port": 4222}),
    ("port:-1", {"port": -1}),
    ("a: 1, b: 2; c: 3,\n\nd: 4;", {"a": 1, "b": 2, "c": 3, "d": 4}),
    ("a: 1 # one\nb: 2 // two\n// three\n", {"a": 1, "b": 2}),
    ("a: 1\r\nb: 2\r\n", {"a": 1, "b": 2}),
    ("\ufeffa: 1", {"a": 1}),
    ("url: nats://127.0.0.1:6222 // not a comment before", {"url": "nats://127.0.0.1:6222"}),
    ("listen: 127.0.0.1:-1", {"listen": "127.0.0.1:-1"}),
    ("listen: localhost:4222", {"listen": "localhost:4222"}),
    ("tags: [id:0xQy5, 'b', \"c\"\nd] # end", {"tags": ["id:0xQy5", "b", "c", "d"]}),
    ("sub: foo.>\npub: foo.*.bar", {"sub": "foo.>", "pub": "foo.*.bar"}),
    ("p: §12§12§12", {"p": "§12§12§12"}),
    ("p: 'it\"s \\n raw'", {"p": 'it"s \\n raw'}),
    (r'p: "tab\t \"quoted\" \\ \x41\n"', {"p": 'tab\t "quoted" \\ A\n'}),
    ("p: $2a$11$abc.def/ghi", {"p": "$2a$11$abc.def/ghi"}),
    ("a { b { c: 1 }, d: [ { e: 2 }, { e: 3 } ] }", {"a": {"b": {"c": 1}, "d": [{"e": 2}, {"e": 3}]}}),
    ("a: {b: 1}\nc: {\n  d\n: 2\n}", {"a": {"b": 1}, "c": {"d": 2}}),
    ("a: {b:\n 1}", {"a": {"b": 1}}),
    ('{"port": 4222, "a": {"b": [1, true, "x"]}}\n', {"port": 4222, "a": {"b": [1, True, "x"]}}),
    ('{\n"a": 1\n"b": 2\n}', {"a": 1, "b": 2}),
    ("a: 128KB, b: 1Gb, c: 64MiB, d: 10TB, e: 1k, f: 2m", {
        "a": 128 << 10, "b": 1 << 30, "c": 64 << 20, "d": 10 << 40, "e": 1000, "f": 2_000_000}),
    ("a: 0.001, b: -1.5, c: 300ms, d: 2s, e: 1.5s", {"a": 0.001, "b": -1.5, "c": "300ms", "d": "2s", "e": "1.5s"}),
    ("a: true, b: yes, c: On, d: false, e: NO, f: off, g: enabled", {
        "a": True, "b": True, "c": True, "d": False, "e": False, "f": False, "g": "enabled"}),
    ("at: 2026-01-02T03:04:05Z", {"at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)}),
    ("text (\nfirst\nsecond )\n)\nb: 1", {"text": "\nfirst\nsecond )\n", "b": 1}),
    ("a: 1\na: 2", {"a": 2}),
    ("user: alice\nauthorization { name: $user }", {"user": "alice", "authorization": {"name": "alice"}}),
    ("x: 1\na { x: 2, b { c: $x } }\nd: $x", {"x": 1, "a": {"x": 2, "b": {"c": 2}}, "d": 1}),
    ("perms { publish: a }\nusers [ { permissions: $perms } ]", {
        "perms": {"publish": "a"}, "users": [{"permissions": {"publish": "a"}}]}),
    ("port: $PORT\nlist: $LIST", {"port": 4321, "list": [1, 2]}),
    ("'quoted key': 1\n\"k:2\": 2", {"quoted key": 1, "k:2": 2}),
    ("includes: 1\ninclude: x", {"includes": 1, "include": "x"}),
]
ENVIRON = {"PORT": "4321", "LIST": "[1, 2]", "LOOP": "$LOOP", "BROKEN": "[1"}

FAILS: list[tuple[str, str]] = [
    ("port: [", "line 1: 'Unexpected EOF processing array"),
    ("a {", "line 1: 'Unexpected EOF processing map"),
    ("a: 1\nb: {\n c: 'x\n", "line 3: 'Unexpected EOF in a quoted string"),
    ("a: 1 b: 2", "line 1: 'Expected a top-level value to end with a new line"),
    ("a:\n1", "line 1: 'Expected value but found new line"),
    ("a", "line 1: 'Expected a value for the key 'a'"),
    (": 1", "line 1: 'Unexpected key separator"),
    ("\n\n]", "line 3: 'Unexpected ']'"),
    ("{ a: 1 } b: 2", "line 1: 'Expected nothing after"),
    ("a: [1}", "line 1: 'Expected an array value terminator"),
    ("a: [{b: 1]}", "line 1: 'Expected a map value terminator"),
    ('a: "\\q"', "Invalid escape character 'q'"),
    ('a: "\\xZZ"', "Expected two hexadecimal digits"),
    ("a: 99999999999999999999", "out of the range"),
    ("a: 9223372036854775807KB", "out of the range"),
    ("a: " + "9" * 5000, "out of the range"),
    ("\na: $nowhere", "line 2: 'variable reference for 'nowhere' on line 2 can not be found"),
    ("a: $LOOP", "variable reference cycle for 'LOOP'"),
    ("a: $BROKEN", "Parse error"),
    ("a: (\nnever ends", "Unexpected EOF processing block"),
    ("[" * 5000, "Unexpected '['"),
    ("a: ['b' \"c\"]", "Expected an array value terminator"),
    ("a: " + "[" * 5000, "within each other"),
    ("a {" * 5000, "within each other"),
    ("include 'other.conf'", "Nothing can be included"),
    ("a: 2026-13-45T00:00:00Z", "Zulu"),
]


@pytest.mark.shows("operation.grammar")
@pytest.mark.parametrize(("text", "wanted"), READS)
def test_reads(text: str, wanted: dict[str, Any]) -> None:
    """Each text has the table's values."""
    assert plain(parse(text, environ=ENVIRON)) == wanted


@pytest.mark.parametrize(("text", "why"), FAILS)
def test_fails(text: str, why: str) -> None:
    """Each broken text is refused with the line and the reason, never with another Python exception."""
    with pytest.raises(SyntaxFailure) as caught:
        parse(text, file="x.conf", environ=ENVIRON)
    assert why in str(caught.value)
    assert "Parse error" in str(caught.value)


def test_places() -> None:
    """A key's position is its line and nats-server's column; inside an included file it is that file's."""
    files = {"dir/inner.conf": "\n  inner: 2\n"}
    top = parse("outer: 1\n  block {\n include 'inner.conf'\n   deep: 3\n}", file="dir/outer.conf",
                read=files.__getitem__).value
    block = top["block"].value
    assert top["outer"].place == "dir/outer.conf:1:0"
    assert top["block"].place == "dir/outer.conf:2:3"
    assert block["inner"].place == "dir/inner.conf:2:3"
    assert block["deep"].place == "dir/outer.conf:4:4"


def test_included_files() -> None:
    """Includes are relative to the including file; a loop and a missing file are refused by name."""
    files = {"a/one.conf": "include two.conf\nx: 1", "a/two.conf": "y: 2", "a/loop.conf": "include loop.conf",
             "a/gone.conf": "include nothing.conf"}

    def read(path: str) -> str:
        if path not in files:
            raise FileNotFoundError(2, "No such file or directory", path)
        return files[path]

    assert plain(parse(files["a/one.conf"], file="a/one.conf", read=read)) == {"x": 1, "y": 2}
    with pytest.raises(SyntaxFailure, match=r"a/loop\.conf' includes itself"):
        parse(files["a/loop.conf"], file="a/loop.conf", read=read)
    with pytest.raises(SyntaxFailure, match=r"include file 'a/nothing\.conf', open a/nothing\.conf: no such file or "
                                            r"directory"):
        parse(files["a/gone.conf"], file="a/gone.conf", read=read)


def test_referred_keys_are_marked() -> None:
    """A key that a variable refers to is marked, because it may have any name."""
    top: dict[str, Value] = parse("mine: 1\nother: 2\nport: $mine").value
    assert top["mine"].used
    assert not top["other"].used


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet=st.sampled_from("ab:= \n\t{}[]()'\"\\$#/,;0123.-kmZT§x"), max_size=60) | st.text(max_size=40))
def test_any_text(text: str) -> None:
    """Any text is either read or refused as a syntax error."""
    try:
        plain(parse(text, environ=ENVIRON))
    except SyntaxFailure:
        pass


# Texts that nats-server's checks would refuse as settings, not as syntax, cannot be compared.
JUDGED = [text for text, _ in READS if text and not any(
    word in text for word in ("$PORT", "include:", "2026-", "\ufeff", "1.5", "perms", "user: alice", "x: 1\na { x"))]


@pytest.mark.parametrize("text", JUDGED)
def test_real_server_reads_the_same(text: str, tmp_path: Path) -> None:
    """nats-server reports no syntax error in texts that we read (though it reports unknown fields)."""
    path = tmp_path / "x.conf"
    path.write_text(text)
    done = subprocess.run([*NatsServerProcess.command, "-t", "-c", str(path)], capture_output=True, text=True,
                          timeout=100, check=False)
    assert "Parse error" not in done.stderr, done.stderr
