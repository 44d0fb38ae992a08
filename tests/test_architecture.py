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

STORAGE = {"storage.format", "storage.log", "storage.objectstore", "storage.paths", "storage.put", "storage.read",
           "storage.staging", "storage.state"}

STREAM = {"base", "config.settings", "jetstream.bus", "jetstream.config", "jetstream.filters", "jetstream.inflight",
          "jetstream.settings", "jetstream.usage", "jetstream.wire", "protocol", "version", *STORAGE}
"""What every part of a stream or consumer may know."""

MAY: dict[str, set[str]] = {
    "version": set(),
    "base": set(),
    "config.arguments": {"config.kinds"},
    "protocol": set(),
    "jwt": {"base", "config.access", "config.sharing", "protocol"},
    "storage.format": set(),
    "storage.paths": {"storage.format"},
    "storage.objectstore": {"base"},
    "storage.put": {"base", "storage.format", "storage.objectstore"},
    "storage.state": {"storage.format"},
    "storage.read": {"base", "storage.format", "storage.objectstore", "storage.paths", "storage.put", "storage.state"},
    "storage.log": {"base", "config.settings", "storage.format", "storage.objectstore", "storage.paths", "storage.put",
                    "storage.state"},
    "storage.unsynced_tail": {"storage.format", "storage.objectstore", "storage.paths"},
    "storage.staging": {"base", "protocol", "storage.format", "storage.log", "storage.objectstore", "storage.paths"},
    "storage.checkpoint": {"base", *STORAGE},
    "storage.compaction": {"base", "storage.checkpoint", *STORAGE},
    "storage.shard": {"base", "config.settings", "storage.checkpoint", "storage.compaction", *STORAGE},
    "cluster": {"base", "storage.format", "storage.objectstore", "storage.paths", "storage.put"},
    "jetstream.bus": set(),
    "jetstream.filters": {"protocol"},
    "jetstream.inflight": {"base", "config.settings", "jetstream.bus"},
    "jetstream.usage": {"jetstream.wire"},
    "jetstream.wire": {"base", "jetstream.bus"},
    "jetstream.settings": {"jetstream.wire", "protocol", "version"},
    "jetstream.config": {"base", "config.settings", "jetstream.settings", "jetstream.wire", "protocol", "version"},
    "jetstream.stream.state": STREAM,
    "jetstream.stream.shared": STREAM | {"jetstream.stream.state"},
    "jetstream.stream.retention": STREAM | {"jetstream.stream.shared", "jetstream.stream.state"},
    "jetstream.stream.publish": STREAM | {"jetstream.stream.retention", "jetstream.stream.shared",
                                          "jetstream.stream.state"},
    "jetstream.stream.upstream": STREAM | {"jetstream.stream.publish", "jetstream.stream.shared",
                                           "jetstream.stream.state"},
    "jetstream.stream": STREAM | {"jetstream.stream.publish", "jetstream.stream.retention",
                                  "jetstream.stream.shared", "jetstream.stream.state", "jetstream.stream.upstream"},
    "jetstream.consumer.cursor": STREAM,
    "jetstream.consumer.acks": STREAM | {"jetstream.consumer.cursor"},
    "jetstream.consumer.delivery": STREAM | {"jetstream.consumer.acks", "jetstream.consumer.cursor"},
    "jetstream.consumer": STREAM | {"jetstream.consumer.acks", "jetstream.consumer.cursor",
                                    "jetstream.consumer.delivery"},
    "jetstream.account": STREAM | {"jetstream.consumer", "jetstream.stream", "jetstream.stream.shared",
                                   "jetstream.stream.upstream"},
    "jetstream.archive": {"base"},
    "jetstream.backup": STREAM | {"jetstream.account", "jetstream.archive", "jetstream.consumer",
                                  "jetstream.stream", "jetstream.stream.shared", "jetstream.stream.state"},
    "jetstream.api": STREAM | {"jetstream.account", "jetstream.backup", "jetstream.consumer",
                               "jetstream.stream", "jetstream.stream.state"},
    "jetstream.inbox": STREAM | {"jetstream.stream", "jetstream.stream.state"},
    "jetstream.shard_streams": STREAM | {"jetstream.account", "jetstream.inbox", "jetstream.stream"},
    "jetstream.engine": STREAM | {"jetstream.account", "jetstream.api", "jetstream.inbox", "jetstream.shard_streams",
                                   "jetstream.stream", "jetstream.stream.shared"},
    "jetstream.overview": {"base", "jetstream.account", "jetstream.consumer", "jetstream.stream", "jetstream.wire"},
    "server.routing": {"base", "protocol"},
    "server.auth": {"base", "config.access", "config.callout", "config.settings", "jwt", "protocol", "server.routing"},
    "server.operator": {"base", "config.access", "config.operator", "config.settings", "jwt", "protocol",
                        "server.accounts", "server.auth", "server.routing", "server.system"},
    "server.sharing": {"base", "config.sharing", "config.sharing_index", "protocol", "server.routing"},
    "server.accounts": {"config.access", "config.settings", "config.sharing", "server.routing", "server.sharing"},
    "server.connection": {"base", "config.access", "config.settings", "protocol", "server.accounts", "server.auth",
                          "server.routing"},
    "server.listeners": {"base", "config.settings", "server.auth", "server.connection"},
    "server.system": {"base", "config.access", "config.settings", "protocol", "server.accounts", "server.connection",
                      "server.routing", "server.sharing"},
    "server": {"base", "config.access", "config.callout", "config.settings", "protocol", "server.accounts",
               "server.auth", "server.connection", "server.listeners", "server.operator", "server.routing",
               "server.sharing", "server.system", "version"},
    "monitor": {"base", "protocol", "version"},
    # The values and how one of them is read are for everyone; the readers of files and flags for runtime and cli alone.
    "config.kinds": {"base"},
    "config.sharing_index": {"protocol"},
    "config.sharing": {"base", "config.sharing_index", "protocol"},
    "config.access": {"base", "config.sharing", "protocol"},
    "config.callout": {"base"},
    "config.operator": {"base"},
    "config.section": {"base", "config.kinds"},
    "config.settings": {"base", "config.access", "config.callout", "config.kinds", "config.operator", "config.section",
                        "protocol"},
    "config": {"base", "config.access", "config.callout", "config.kinds", "config.operator", "config.settings",
               "config.sharing", "jwt", "protocol", "version"},
    "inspect": {"base", "config.arguments", "protocol", "storage.format", "storage.objectstore", "storage.paths",
                "storage.read", "storage.state", "storage.unsynced_tail"},
    "maintenance": {"base", "cluster", "config.arguments", "inspect", "storage.checkpoint", "storage.compaction",
                    "storage.format", "storage.log", "storage.objectstore", "storage.paths", "storage.put",
                    "storage.read", "storage.shard", "storage.state", "storage.unsynced_tail"},
    "migration": {"base", "config.access", "config.settings", "jetstream.archive", "jetstream.wire",
                  "runtime.embedded", "storage.objectstore"},
    "maintenance.scrub": {"base", "inspect", "storage.format", "storage.objectstore", "storage.paths", "storage.state"},
    "pipeline.errors": {"storage.format"},
    "pipeline.store": {"base", "pipeline.errors", "storage.format", "storage.objectstore", "storage.paths",
                       "storage.unsynced_tail"},
    "pipeline.plan": {"base", "pipeline.errors", "pipeline.store", "protocol", "storage.format", "storage.objectstore",
                      "storage.paths", "storage.read", "storage.state"},
    "pipeline.read": {"pipeline.errors", "pipeline.plan", "pipeline.store", "protocol", "storage.format",
                      "storage.state"},
    "pipeline.spark": {"pipeline.errors", "pipeline.plan", "pipeline.read", "pipeline.store"},
    "pipeline": {"base", "pipeline.errors", "pipeline.plan", "pipeline.read", "pipeline.spark", "pipeline.store",
                 "version"},
    # The one place where the parts meet, and what starts it.
    "runtime": {"base", "cluster", "config", "config.access", "config.settings", "config.sharing", "jetstream.account",
                "jetstream.api", "jetstream.engine", "jetstream.inbox", "jetstream.overview", "jetstream.settings",
                "jetstream.wire", "maintenance.scrub", "monitor", "server", "server.accounts", "server.auth",
                "server.listeners", "server.operator", "server.routing", "server.system", "storage.shard",
                "storage.unsynced_tail", "version", *STORAGE},
    "runtime.embedded": {"base", "config", "config.settings", "runtime"},
    "runtime.broker_thread": {"runtime.embedded"},
    "cli": {"base", "config", "config.settings", "inspect", "maintenance", "migration", "pipeline", "runtime",
            "version"},
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
    """What each module imports. Not made at import: each of several workers that collect tests would parse all
    modules."""
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


def test_the_public_package_has_only_names() -> None:
    """``jetblock`` defines nothing but what pytest asks for, and ``broker`` never imports it."""
    for path in sorted((ROOT / "jetblock").rglob("*.py")):
        defined = {node.name
                   for node in ast.parse(path.read_text()).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        assert defined <= {"__getattr__", "pytest_configure", "nats_broker"}, path
    assert [name for name, path in MODULES.items() for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "jetblock"] == []


def test_error_codes_are_named() -> None:
    """JetStream's error codes are written as ``ApiErrors.NAME``; only the generated table has numbers."""
    bare = [f"{path}:{node.lineno}: {node.value}"
            for name, path in MODULES.items() if name != "jetstream.wire.error_table"
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant) and type(node.value) is int and node.value in ERROR_TABLE]
    assert bare == []
