"""The configuration language beside the real server's: jetblock accepts and refuses what ``nats-server -t`` does.

Each snippet is a file of its own, in a directory with others to include and an environment with variables. The few
where jetblock knowingly differs are listed with the reason.
"""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path

import pytest

from broker.config.flags import read_flags
from broker.config.load import load
from broker.config.settings import ConfigError
from tests.harness import NatsServerProcess

pytestmark = pytest.mark.shows("operation.grammar")

HASH = "$2a$11$3kIDaCxw.Glsl1.u5nKa6eUnNDLV5HV9tIuUp7EHhMt6Nm9myW1aS"
OTHERS = {
    "inc.conf": "port: 4333\n", "var.conf": "port: $outer\n", "loop.conf": "include loop.conf\n",
    "users.conf": "user: a\npassword: b\n", "bad.conf": "port: [\n", "brace.conf": "{ port: 4333 }\n",
    "def.conf": "inner: 4555\n", "sub/one.conf": "include two.conf\n", "sub/two.conf": "debug: true\n",
}
ENVIRON = {"ENVPORT": "4321", "ENVWORD": "abc", "ENVEMPTY": "", "ENVREF": "$ENVPORT", "ENVLOOP": "$ENVLOOP"}

SNIPPETS = [
    # Keys, and their separators from values.
    "port: 4222", "port = 4222", "port 4222", "port:4222", "port  =  4222", "port:: 4222", "port:= 4222",
    "port:\n4222", "port\n4222", "port:", "port", '"port": 1', "'port': 1", '"port" 1', '"po\\x72t": 1', "PORT: 1",
    "port: 1\nport: 2", "\tport:\t4222\t", "$x: 1", "x: 1", "unknown { nested: { deep: 1 } }",
    # Ends of items.
    "port: 1 ; debug: true", "port: 1, debug: true", "port: 1;", "port: 1,", ",port: 1", "port: 1 debug: true",
    "port: 1,,", "port: 1;;debug: true", "port: 1\n;debug: true", "port: 1\r\ndebug: true\r\n", "port: 1\n\n\n",
    # Comments, the whole file as a map, files with nothing in them.
    "# c\nport: 1", "// c\nport: 1", "port: 1 # c", "port: 1 // c", "port: 1# c", "port: 1// c", "port: 1 / c",
    "/* c */ port: 1", "{ port: 1 }", "{ port: 1", "{}", "", "# only\n",
    # Text.
    "server_name: a b", 'server_name: "ab"', "server_name: 'ab'", "server_name: 'a b'", 'server_name: "a\\tb"',
    'server_name: "a\\qb"', "server_name: 'a\\qb'", 'server_name: "a\\x41b"', 'server_name: "a\\xZZb"',
    'server_name: "a\\x4"', 'server_name: "a\nb"', 'server_name: "abc', "server_name: 'abc", 'server_name: "a"b"',
    "server_name: (\na\n)", "server_name: (a)", "server_name: (a", "server_name: a:b", "server_name: a=b",
    "server_name: foo-bar.baz/qux", 'server_name: ""', "server_name: é", "server_name: [a", "server_name: {a: 1}",
    # Numbers, sizes, booleans, durations.
    "port: 4222.0", "port: 4k", "port: -1", "port: +1", "port: 0x10", "port: 04222", "port: -", "port: 1-2", "port: 1a",
    "max_payload: 1K", "max_payload: 1KB", "max_payload: 1Ki", "max_payload: 1KiB", "max_payload: 1 KB",
    "max_payload: 1KBB", "max_payload: 1B", "max_payload: 1.5KB", "max_payload: 1e3",
    "max_payload: 9223372036854775808", 'ping_interval: "10s"', 'ping_interval: "1h30m"', 'ping_interval: "1.5s"',
    "ping_interval: true", "debug: yes", "debug: on", "debug: TRUE", "debug: tRuE", "debug: 1", "debug: [true]",
    # Arrays.
    "server_tags: [a, b]", "server_tags: [a b]", "server_tags: [a\nb]", "server_tags: [a;b]", "server_tags: [a,,b]",
    "server_tags: [,a]", "server_tags: [a,]", "server_tags: [ # c\n a # d\n b // e\n]", "server_tags: []",
    "server_tags: [a [b]]", "server_tags: [a", "server_tags: ['a' \"b\"]", "server_tags: [a}", "server_tags [a, b]",
    "server_tags[a, b]", "server_tags: [a\n,b]", "server_tags: [a # c\n, b]", "port: [1]",
    # Maps.
    "authorization { user: a, password: b }", "authorization: { user: a, password: b }",
    "authorization = { user: a\n password: b }", "authorization{user:a,password:b}", "authorization{user a password b}",
    "authorization {\n user:\n a\n password: b }", "authorization\n{ user: a, password: b }",
    "authorization {{ user: a }}", "authorization { user: a, password: b", "authorization {}",
    "authorization { , user: a, password: b }", "authorization { user: a,, password: b }",
    "authorization { user: a\n, password: b }",
    "authorization { users [ {user: a, password: b} {user: c, password: d} ] }",
    "authorization { users = [\n {user: a, password: b}\n {user: c, password: d}\n ] }",
    "authorization { users [ {user: a, password: b},, {user: c, password: d} ] }",
    "authorization { users [ a ] }", "jetstream", "jetstream {store_dir:x,limits{max_ack_pending:1}}",
    # bcrypt hashes: not variables, if they begin with $2a$.
    f"authorization {{ user: a, password: {HASH} }}", f'authorization {{ user: a, password: "{HASH}" }}',
    f"authorization {{ user: a, password: {HASH.replace('$2a$', '$2b$')} }}",
    # Variables: set before, in this or an outer map, otherwise from the environment.
    "x: 4222\nport: $x", "port: $x\nx: 4222", "port: $nope", "port: $ENVPORT", "server_name: $ENVWORD",
    "server_name: $ENVEMPTY", "server_name: a$ENVWORD", "port: ${ENVPORT}", "port: $ENVREF", "port: $ENVLOOP",
    "x: u\nauthorization { user: $x, password: b }", "x: u\nauthorization { x: v, user: $x, password: b }",
    "authorization { x: v, user: $x, password: b }\nserver_name: $x", "x: [a, b]\nserver_tags: $x",
    "x: { user: a, password: b }\nauthorization: $x", "x: {}\nport: $x",
    # Included files: relative to the including one, at the top or within a map.
    "include inc.conf", 'include "inc.conf"', "include 'inc.conf'", "include ./inc.conf", "include: inc.conf",
    "include = inc.conf", '"include" inc.conf', "INCLUDE inc.conf", "include nope.conf", "include bad.conf",
    "include sub/one.conf", "include brace.conf", "include loop.conf", "authorization { include users.conf }",
    "authorization {\n include users.conf\n timeout: 1 }", "outer: 4444\ninclude var.conf",
    "include def.conf\nport: $inner", "include inc.conf; debug: true", "include inc.conf # c",
    "include inc.conf debug: true", "server_name: include",
]

TAKEN_HERE = {
    'port: "4222"': "a number in quotes is clear, and what a variable holds may be quoted",
    'max_payload: "1KB"': "the same",
    "ping_interval: 10m": "ten minutes: nobody means ten million",
    "ping_interval: 10": "seconds, as nats-server has it where it warns only",
    "authorization { user: a, password: 123 }": "text that looks like a number, as written",
    'debug: "true"': "a boolean in quotes is clear",
    "\ufeffport: 4222": "editors begin files with a byte order mark",
}
"""Texts that nats-server refuses, with the reason why jetblock accepts them."""

REFUSED_HERE = {
    "port: 1 }": "nats-server reads no further than a stray brace, in silence",
    "{ port: 1 } debug: true": "the same",
    "server_name: a{b}": "the same",
}
"""Texts that nats-server accepts, with the reason why jetblock refuses them."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the files that snippets include."""
    found = tmp_path_factory.mktemp("grammar")
    (found / "sub").mkdir()
    for name, text in OTHERS.items():
        (found / name).write_text(text)
    return found


def real(path: Path) -> bool:
    """Return whether the real server accepts the file."""
    return checked(path).returncode == 0


def checked(path: Path) -> subprocess.CompletedProcess[str]:
    """Run the real server's check of the file.

    The server reads a file that includes itself until its stack has a gigabyte. So it is ended after a second of CPU
    time, twenty times as much as any other file takes.
    """
    return subprocess.run([*NatsServerProcess.command, "-t", "-c", str(path)], capture_output=True, text=True,
                          timeout=100, check=False, cwd=path.parent, env={**os.environ, **ENVIRON},
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (1, 2)))


def ours(path: Path) -> bool:
    """Return whether jetblock accepts the file; it raises nothing but ConfigError."""
    try:
        load(read_flags(["-t", "-c", str(path)]), ENVIRON)
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize("text", SNIPPETS)
def test_as_the_real_server(directory: Path, text: str) -> None:
    """Both accept it, or both refuse it."""
    path = directory / "x.conf"
    path.write_text(text, newline="")
    assert ours(path) == real(path)


@pytest.mark.parametrize("text", [*TAKEN_HERE, *REFUSED_HERE])
def test_known_differences(directory: Path, text: str) -> None:
    """Each known difference is one: the two servers decide differently."""
    path = directory / "x.conf"
    path.write_text(text, newline="")
    assert (ours(path), real(path)) == (text in TAKEN_HERE, text in REFUSED_HERE)


SAME_WORDS = [
    "port: $nope", "port: ${ENVPORT}", "include nope.conf", "server_tags: [a b]", "server_tags: [a [b]]",
    "server_tags: [a}",
    'server_name: "a\\xZZb"', 'server_name: "a\\qb"', "port: 1 debug: true",
    "authorization { users [ {user: a} {user: c} ] }",
    "feature_flags { bar: 5 }",
    "authorization { user: a password: b }", "port: 9223372036854775808", "x: 1", "authorization { x: 1 }",
]


@pytest.mark.shows("operation.unknown_keys")
@pytest.mark.parametrize("text", SAME_WORDS)
def test_mistakes_in_the_words_of_the_real_server(directory: Path, text: str) -> None:
    """Errors have the text that programs and people search for; the file's name may precede it."""
    path = directory / "x.conf"
    path.write_text(text)
    theirs = checked(path).stderr.replace("nats-server: ", "").replace(f"{directory}/", "").strip()
    with pytest.raises(ConfigError) as caught:
        load(read_flags(["-t", "-c", str(path)]), ENVIRON)
    assert theirs
    assert theirs in str(caught.value).replace(f"{directory}/", "")
