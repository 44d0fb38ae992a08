"""Which way the imports point, read from the source: imports within functions and under TYPE_CHECKING count too.

A *room* is a package,
or a single module beside packages; a module belongs to the room with the longest matching name. MAY says
what each room may import beside itself. That there are no circles, neither of modules nor of rooms,
follows from nothing
and is checked on its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from broker.jetstream.wire.error_table import ERROR_TABLE

ROOT = Path(__file__).parent.parent

LEAVES = {"clock", "descriptors", "errors", "garbage", "gojson", "gotime", "histogram", "machine", "nats_server_store", "nkeys",
          "output", "store_url", "suggest", "value", "version"}
"""Import nothing of ours."""

STORAGE = {"storage.format", "storage.paths", "storage.objectstore", "storage.put", "storage.state", "storage.read",
           "storage.log", "storage.staging"}

STREAM = {"config.settings", "garbage", "gojson", "jetstream.bus", "jetstream.inflight", "jetstream.usage", "jetstream.filters",
          "jetstream.settings",
          "jetstream.wire", "jetstream.config", "protocol", "clock", "version",
          *STORAGE}
"""What every part of a stream or consumer may know."""

MAY: dict[str, set[str]] = {
    **{leaf: set() for leaf in LEAVES},
    "listen_socket": {"descriptors"},
    "arguments": {"config.kinds"},
    "protocol": set(),
    "jwt": {"config.access", "config.sharing", "gojson", "nkeys", "protocol"},
    "storage.format": set(),
    "storage.paths": {"storage.format"},
    "storage.objectstore": {"clock", "store_url"},
    "storage.put": {"clock", "storage.format", "storage.objectstore"},
    "storage.state": {"storage.format"},
    "storage.read": {"clock", "storage.format", "storage.paths", "storage.objectstore", "storage.put", "storage.state"},
    "storage.log": {"clock", "config.settings",
                    "storage.format", "storage.paths", "storage.objectstore", "storage.put", "storage.state"},
    "storage.unsynced_tail": {"storage.format", "storage.objectstore", "storage.paths"},
    "storage.staging": {"protocol", "storage.format", "storage.paths", "storage.objectstore", "storage.log", "value"},
    "storage.checkpoint": {"clock", *STORAGE},
    "storage.compaction": {"clock", "storage.checkpoint", *STORAGE},
    "storage.shard": {"clock", "config.settings", "storage.checkpoint", "storage.compaction", *STORAGE},
    "cluster": {"clock", "storage.format", "storage.paths", "storage.objectstore", "storage.put"},
    "jetstream.bus": set(),
    "jetstream.filters": {"protocol"},
    "jetstream.inflight": {"config.settings", "jetstream.bus", "value"},
    "jetstream.usage": {"jetstream.wire"},
    "jetstream.wire": {"clock", "gojson", "gotime", "jetstream.bus"},
    "jetstream.settings": {"jetstream.wire", "protocol", "version"},
    "jetstream.config": {"config.settings", "gotime", "jetstream.settings", "jetstream.wire", "protocol", "version"},
    "jetstream.stream.state": STREAM,
    "jetstream.stream.retention": STREAM | {"jetstream.stream.state"},
    "jetstream.stream.publish": STREAM | {"gotime", "jetstream.stream.state"},
    "jetstream.stream.upstream": STREAM | {"gotime", "jetstream.stream.state", "jetstream.stream.publish"},
    "jetstream.stream": STREAM | {"gotime", "jetstream.stream.state", "jetstream.stream.retention",
                                  "jetstream.stream.publish", "jetstream.stream.upstream"},
    "jetstream.consumer.cursor": STREAM,
    "jetstream.consumer.acks": STREAM | {"gotime", "jetstream.consumer.cursor"},
    "jetstream.consumer.delivery": STREAM | {"gotime", "jetstream.consumer.cursor", "jetstream.consumer.acks"},
    "jetstream.consumer": STREAM | {"gotime", "jetstream.consumer.cursor", "jetstream.consumer.acks",
                                    "jetstream.consumer.delivery"},
    "jetstream.account": STREAM | {"gotime", "jetstream.stream", "jetstream.stream.upstream", "jetstream.consumer"},
    "jetstream.archive": {"gojson", "gotime"},
    "jetstream.backup": STREAM | {"gotime", "jetstream.archive", "jetstream.stream", "jetstream.stream.state",
                                  "jetstream.consumer", "jetstream.account"},
    "jetstream.api": STREAM | {"gotime", "jetstream.stream", "jetstream.stream.state", "jetstream.consumer",
                               "jetstream.account", "jetstream.backup"},
    "jetstream.inbox": STREAM | {"jetstream.stream", "jetstream.stream.state"},
    "jetstream.engine": STREAM | {"jetstream.inbox", "jetstream.stream", "jetstream.account", "jetstream.api"},
    "jetstream.overview": {"gotime", "jetstream.account", "jetstream.consumer", "jetstream.stream", "jetstream.wire"},
    "server.routing": {"clock", "protocol"},
    "server.auth": {"clock", "config.access", "config.callout", "config.settings", "jwt", "nkeys", "protocol", "server.routing",
                    "value"},
    "server.operator": {"clock", "config.access", "config.operator", "config.settings", "gotime", "jwt", "nkeys", "protocol",
                        "server.accounts", "server.auth", "server.routing", "server.system"},
    "server.sharing": {"config.sharing", "config.sharing_index", "gotime", "protocol", "server.routing"},
    "server.accounts": {"config.access", "config.settings", "config.sharing", "server.routing", "server.sharing"},
    "server.connection": {"clock", "config.access", "config.settings", "garbage", "gojson", "gotime", "protocol",
                          "server.accounts", "server.auth", "server.routing"},
    "server.listeners": {"config.settings", "listen_socket", "server.auth", "server.connection", "value"},
    "server.system": {"clock", "config.access", "config.settings", "gojson", "gotime", "protocol", "server.accounts",
                      "server.connection", "server.routing", "server.sharing"},
    "server": {"clock", "config.access", "config.callout", "config.settings", "gotime", "listen_socket", "nkeys", "protocol",
               "version",
               "server.accounts", "server.auth", "server.routing", "server.sharing", "server.connection", "server.listeners",
               "server.operator",
               "server.system"},
    "monitor": {"clock", "gojson", "gotime", "listen_socket", "protocol", "version"},
    # The values and how one of them is read are for everyone; the readers of files and flags for runtime and cli alone.
    "config.kinds": {"gotime"},
    "config.sharing_index": {"protocol"},
    "config.sharing": {"config.sharing_index", "protocol", "value"},
    "config.access": {"config.sharing", "protocol", "value"},
    "config.callout": {"value"},
    "config.operator": {"value"},
    "config.section": {"config.kinds", "value"},
    "config.settings": {"config.access", "config.callout", "config.kinds", "config.operator", "config.section", "protocol",
                        "suggest", "value"},
    "config": {"config.access", "config.callout", "config.kinds", "config.operator", "config.settings", "config.sharing",
               "gotime", "jwt",
               "machine", "nkeys", "protocol", "store_url", "suggest", "value", "version"},
    "inspect": {"arguments", "clock", "gotime", "nats_server_store", "output", "protocol", "suggest", "storage.format",
                "storage.paths",
                "storage.objectstore", "storage.read", "storage.unsynced_tail",
                "storage.state"},
    "maintenance": {"arguments", "clock", "cluster", "gotime", "inspect", "output", "progress", "suggest", "storage.format",
                    "storage.paths",
                    "storage.objectstore", "storage.put", "storage.read", "storage.state", "storage.log", "storage.unsynced_tail",
                    "storage.checkpoint", "storage.compaction", "storage.shard"},
    "progress": {"output"},
    "migration": {"config.access", "config.settings", "embedded", "errors", "gotime", "jetstream.archive",
                  "jetstream.wire", "nats_server_store", "nkeys", "output", "progress", "storage.objectstore", "store_url",
                  "suggest"},
    "maintenance.scrub": {"clock", "inspect", "storage.format", "storage.objectstore", "storage.paths", "storage.state"},
    "pipeline.errors": {"storage.format"},
    "pipeline.store": {"pipeline.errors", "storage.format", "storage.objectstore", "storage.paths", "storage.unsynced_tail",
                       "store_url"},
    "pipeline.plan": {"gotime", "pipeline.errors", "pipeline.store", "protocol", "storage.format",
                      "storage.objectstore",
                      "storage.paths", "storage.read", "storage.state", "store_url"},
    "pipeline.read": {"pipeline.errors", "pipeline.plan", "pipeline.store", "protocol", "storage.format",
                      "storage.state"},
    "pipeline.spark": {"pipeline.errors", "pipeline.plan", "pipeline.read", "pipeline.store"},
    "pipeline": {"output", "suggest", "version", "pipeline.errors", "pipeline.plan", "pipeline.read",
                 "pipeline.spark", "pipeline.store"},
    # The one place where the parts meet, and what starts it.
    "runtime": {"clock", "cluster", "config", "config.access", "config.settings", "config.sharing", "descriptors", "errors",
                "garbage",
                "gotime", "histogram", "listen_socket", "machine", "nats_server_store", "output", "jetstream.account",
                "jetstream.api", "jetstream.engine", "jetstream.inbox",
                "jetstream.overview", "jetstream.settings", "jetstream.wire", "maintenance.scrub", "monitor", "server",
                "server.accounts",
                "server.auth", "server.listeners", "server.operator", "server.routing", "server.system",
                "storage.shard", "storage.unsynced_tail", "store_url",
                "version", *STORAGE},
    "embedded": {"config", "config.settings", "errors", "runtime", "store_url"},
    "cli": {"config", "config.settings", "errors", "inspect", "maintenance", "migration", "pipeline",
            "runtime", "suggest", "version"},
    "__main__": {"cli"},
}

KNOWN: set[tuple[str, str]] = set()
"""(importing module, imported module): imports that break a rule above, or close a circle, and are to go."""


def modules() -> dict[str, Path]:
    """Every module of ``broker`` by its name without that prefix; the package itself is ``version``."""
    found = {}
    for path in sorted((ROOT / "broker").rglob("*.py")):
        if path.name == "__init__.py" and not path.read_text():
            continue
        name = ".".join(path.relative_to(ROOT / "broker").with_suffix("").parts)
        found["version" if name == "__init__" else name.removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imports(name: str) -> set[str]:
    """The modules of ours that a module imports, wherever in its text."""
    found = set()
    path = MODULES[name]
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[:len(package) - node.level + 1] if node.level else ()
            origin = ".".join([*base, *([node.module] if node.module else [])])
            found |= {_ours(f"{origin}.{alias.name}") or _ours(origin) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {_ours(alias.name) for alias in node.names}
    return {one for one in found if one and one != name}


def _ours(dotted: str) -> str:
    """A dotted name as a module of ours, or an empty string."""
    if dotted == "broker":
        return "version"
    name = dotted.removeprefix("broker.")
    return name if name != dotted and name in MODULES else ""


@cache
def import_graph() -> dict[str, set[str]]:
    """What each module imports. Not made at import: each of several workers that collect tests would parse all modules."""
    return {name: imports(name) for name in MODULES}


def room_of(name: str) -> str:
    """The room that a module is in."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        if (room := ".".join(parts[:end])) in MAY:
            return room
    pytest.fail(f"broker.{name} is in no room: give its package a line in MAY")


def circles(graph: dict[str, set[str]]) -> Iterator[list[str]]:
    """The strongly connected components of more than one node (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(node: str) -> Iterator[list[str]]:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                yield from visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = stack[stack.index(node):]
            del stack[stack.index(node):]
            if len(component) > 1:
                yield sorted(component)

    for node in sorted(graph):
        if node not in index:
            yield from visit(node)


def _without(graph: dict[str, set[str]], pairs: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    left = {name: set(others) for name, others in graph.items()}
    for name, other in pairs:
        left[name].discard(other)
    return left


def test_no_two_modules_import_each_other() -> None:
    """Also not by way of others."""
    assert list(circles(_without(import_graph(), KNOWN))) == []


def test_no_two_rooms_import_each_other() -> None:
    """Also not by way of others."""
    rooms: dict[str, set[str]] = {room: set() for room in MAY}
    for name, others in _without(import_graph(), KNOWN).items():
        rooms[room_of(name)] |= {room_of(other) for other in others} - {room_of(name)}
    assert list(circles(rooms)) == []


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_what_its_room_may(name: str) -> None:
    """See MAY."""
    room = room_of(name)
    for other in import_graph()[name]:
        if (name, other) not in KNOWN:
            assert room_of(other) in MAY[room] | {room}, f"{room} may not import broker.{other}"


def test_what_is_known_is_still_there() -> None:
    """An entry of KNOWN goes with the import that it excuses."""
    assert [pair for pair in KNOWN if pair[1] not in import_graph().get(pair[0], ())] == []


def test_every_rule_speaks_of_rooms_that_are_there() -> None:
    """A rule about a room that has gone is no rule."""
    taken = {room_of(name) for name in MODULES}
    assert set(MAY) <= taken | {"errors"}
    assert set().union(*MAY.values()) <= set(MAY)


def test_error_codes_are_named() -> None:
    """JetStream's error codes are written as ``ApiErrors.NAME``; only the generated table has numbers."""
    bare = [f"{path}:{node.lineno}: {node.value}"
            for name, path in MODULES.items() if name != "jetstream.wire.error_table"
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant) and type(node.value) is int and node.value in ERROR_TABLE]
    assert bare == []
