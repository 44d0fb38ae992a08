"""The meaning of a file, compared with the real server: both run with it, and /varz shows their settings."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess

SHOWN = ("server_name", "max_connections", "max_payload", "max_control_line", "max_pending", "ping_interval",
         "ping_max",
         "auth_required", "auth_timeout", "write_deadline", "tags", "max_subscriptions", "http_base_path")

FILES: dict[str, str] = {
    "sizes with every kind of suffix": "max_payload: 1K, max_pending: 64MiB; max_control_line = 2kb\nmax_connections "
                                       "1k",
    "sizes in Go's words": "max_payload: 1MB\nmax_pending: 1GB\nmax_control_line: 4096\nmax_connections: 2Ki",
    "negative and zero bounds": "max_connections: -1\nmax_subscriptions: 0",
    "durations": 'ping_interval: "1m30s"\nwrite_deadline: "1.5s"\nping_max: 7\n'
                 "authorization { user: a, password: b, timeout: 0.5 }",
    "numbers as seconds": "ping_interval: 30\nauthorization { user: a, password: b, timeout: 3 }",
    "quoting": "server_name: 'a\"b\\t'\nserver_tags: [ 'x:1', \"y\\t2\", z.3, é ]",
    "escapes": 'server_name: "caf\\x65-\\"x\\""',
    "a block of text": "server_name: (\nabc\n)\n",
    "variables": "name: outer\nsize: 2KB\nserver_name: $name\nmax_payload: $size\n"
                 "authorization { name: inner, user: $name, password: $PASSWORD }\nserver_tags: [ $name, $PORTLIKE ]",
    "included files": "include 'more.conf'\nping_max: $included_max\nauthorization { include users.conf }",
    "the later key": "ping_max: 3\nping_max: 5",
    "JSON": '{"server_name": "json", "max_payload": 2048, "server_tags": ["a", "b"], "ping_interval": "10s"}',
    "comments": "# one\nmax_payload: 100 // two\n// three\nserver_tags: [ a # four\n b ] # five",
}
OTHERS = {"more.conf": "included_max: 4\nserver_name: included", "users.conf": "user: a\npassword: b\ntimeout: 1"}
ENVIRON = {"PASSWORD": "secret", "PORTLIKE": "p4222"}


async def understood(process: type[ServerProcess], path: Path) -> dict[str, Any]:
    async with process("-c", path.name, cwd=path.parent, environ={
            **ENVIRON, "PYTHONPATH": str(Path(__file__).parents[2])}) as server:
        page = await server.monitor("/varz")
    if page["server_name"] == page["server_id"]:
        del page["server_name"]
    # A missing value, 0, -1 and false mean the same.
    return {name: page[name] for name in SHOWN if page.get(name, -1) not in (0, -1)}


@pytest.mark.shows("operation.grammar")
@pytest.mark.parametrize("name", FILES)
async def test_both_understand_the_same(name: str, tmp_path: Path) -> None:
    """Both servers show the same values in /varz."""
    for other, text in OTHERS.items():
        (tmp_path / other).write_text(text)
    path = tmp_path / "x.conf"
    path.write_text(FILES[name])
    ours, theirs = await asyncio.gather(understood(BrokerProcess, path), understood(NatsServerProcess, path))
    assert ours == theirs
