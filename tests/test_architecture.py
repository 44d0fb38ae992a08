"""The imports between the parts of ``broker``, read from the source.

A *room* is a package or a single module. A module belongs to the room with the longest matching name. MAY lists the
rooms that each room imports besides itself; imports within functions and under TYPE_CHECKING count, too. No modules and
no rooms import each other in a circle.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from broker.jetstream.wire.error_table import ERROR_TABLE

ROOT = Path(__file__).parent.parent

MAY: dict[str, set[str]] = {
    "compiled": set(),
    "version": {"compiled"},
    # Used everywhere.
    "base": set(),
    "protocol": set(),
    # Values of accounts, tokens, and the configuration.
    "access": {"base", "protocol"},
    "jwt": {"access", "base", "protocol"},
    "config.arguments": {"config.kinds"},
    "config.kinds": {"base"},
    "config.callout": {"base"},
    "config.leafnodes": {"access", "base", "config.kinds"},
    "config.operator": {"base"},
    "config.upstreams": {"access", "base", "config.leafnodes"},
    "config.section": {"base", "config.kinds"},
    "config.settings": {
        "access", "base", "config.callout", "config.kinds", "config.leafnodes", "config.operator", "config.section",
        "config.storage", "config.streaming", "config.upstreams", "protocol"},
    "config.storage": {"config.kinds", "config.section"},
    "config.streaming": {"base", "config.kinds", "config.section", "protocol"},
    "config.syntax": set(),
    "config.reading": {
        "access", "base", "config.callout", "config.kinds", "config.leafnodes", "config.operator", "config.settings",
        "config.streaming", "config.syntax", "config.upstreams", "jwt", "protocol", "version"},
    "config": {
        "access", "base", "config.callout", "config.kinds", "config.leafnodes", "config.operator", "config.reading",
        "config.settings", "config.streaming", "config.syntax", "config.upstreams", "jwt", "protocol", "version"},
    # Stored bytes, and their ownership.
    "storage.format": set(),
    "storage.paths": {"storage.format"},
    "storage.objectstore": {"base"},
    "storage.put": {"base", "storage.format", "storage.objectstore"},
    "storage.state": {"storage.format"},
    "storage.read": {"base", "storage.format", "storage.objectstore", "storage.paths", "storage.put", "storage.state"},
    "storage.log": {"base", "config.settings", "storage.format", "storage.objectstore", "storage.put", "storage.state"},
    "storage.unsynced_tail": {"storage.format", "storage.objectstore", "storage.paths"},
    "storage.journal_reader": {"storage.format", "storage.objectstore", "storage.paths"},
    "storage.journal_replay": {
        "storage.format", "storage.journal_reader", "storage.log", "storage.objectstore", "storage.paths"},
    "storage.staging": {"base", "protocol", "storage.format", "storage.log", "storage.objectstore", "storage.paths"},
    "storage.checkpoint": {
        "base", "storage.format", "storage.log", "storage.objectstore", "storage.paths", "storage.put", "storage.read",
        "storage.state"},
    "storage.compaction": {
        "base", "storage.checkpoint", "storage.format", "storage.log", "storage.objectstore", "storage.paths",
        "storage.put", "storage.state"},
    "storage.erasure": {
        "base", "storage.checkpoint", "storage.compaction", "storage.format", "storage.log", "storage.objectstore",
        "storage.paths", "storage.put", "storage.state"},
    "storage.shard": {
        "base", "config.settings", "storage.checkpoint", "storage.compaction", "storage.erasure", "storage.format",
        "storage.log", "storage.objectstore", "storage.paths", "storage.put", "storage.read", "storage.state"},
    "storage.keys": {"base", "storage.format", "storage.objectstore", "storage.paths", "storage.state"},
    "cluster": {"base", "storage.format", "storage.objectstore", "storage.paths", "storage.put"},
    # Streams and consumers.
    "jetstream.bus": set(),
    "jetstream.filters": {"protocol"},
    "jetstream.inflight": {"base", "config.settings", "jetstream.bus"},
    "jetstream.usage": {"jetstream.wire"},
    "jetstream.wire": {"base", "jetstream.bus"},
    "jetstream.settings": {"jetstream.wire", "protocol", "version"},
    "jetstream.config": {"access", "base", "config.settings", "jetstream.wire", "protocol", "version"},
    "jetstream.stream.state": {
        "base", "jetstream.filters", "jetstream.usage", "storage.format", "storage.log", "storage.objectstore",
        "storage.read", "storage.state"},
    "jetstream.stream.shared": {
        "base", "jetstream.bus", "jetstream.config", "jetstream.filters", "jetstream.stream.state", "jetstream.wire",
        "protocol", "storage.format", "storage.log", "storage.objectstore", "storage.read"},
    "jetstream.stream.retention": {
        "base", "jetstream.bus", "jetstream.config", "jetstream.filters", "jetstream.stream.shared",
        "jetstream.stream.state", "protocol", "storage.format", "storage.log", "storage.objectstore", "storage.state"},
    "jetstream.stream.publish": {
        "base", "jetstream.bus", "jetstream.config", "jetstream.filters", "jetstream.inflight", "jetstream.settings",
        "jetstream.stream.retention", "jetstream.stream.shared", "jetstream.stream.state", "jetstream.wire",
        "protocol", "storage.format", "storage.log", "storage.objectstore", "storage.paths", "storage.put",
        "storage.read", "storage.staging", "storage.state"},
    "jetstream.stream.upstream": {
        "base", "jetstream.bus", "jetstream.config", "jetstream.filters", "jetstream.stream.publish",
        "jetstream.stream.shared", "jetstream.stream.state", "jetstream.wire", "protocol", "storage.format",
        "storage.objectstore"},
    "jetstream.stream": {
        "base", "jetstream.bus", "jetstream.config", "jetstream.filters", "jetstream.inflight", "jetstream.settings",
        "jetstream.stream.publish", "jetstream.stream.retention", "jetstream.stream.shared", "jetstream.stream.state",
        "jetstream.stream.upstream", "jetstream.usage", "jetstream.wire", "protocol", "storage.format", "storage.log",
        "storage.objectstore", "storage.read", "storage.staging", "storage.state"},
    "jetstream.consumer.cursor": {"jetstream.filters", "storage.format"},
    "jetstream.consumer.acks": {
        "base", "jetstream.bus", "jetstream.config", "jetstream.consumer.cursor", "jetstream.wire", "storage.format"},
    "jetstream.consumer.delivery": {
        "base", "jetstream.bus", "jetstream.config", "jetstream.consumer.acks", "jetstream.consumer.cursor",
        "jetstream.settings", "jetstream.wire", "protocol", "storage.format"},
    "jetstream.consumer.stream_view": {
        "jetstream.config", "jetstream.consumer.cursor", "jetstream.filters", "storage.format", "storage.log"},
    "jetstream.consumer": {
        "base", "jetstream.bus", "jetstream.config", "jetstream.consumer.acks", "jetstream.consumer.cursor",
        "jetstream.consumer.delivery", "jetstream.consumer.stream_view", "jetstream.filters", "jetstream.wire",
        "storage.format", "storage.state"},
    "jetstream.account": {
        "access", "base", "config.settings", "jetstream.bus", "jetstream.config", "jetstream.consumer",
        "jetstream.consumer.delivery", "jetstream.filters", "jetstream.stream", "jetstream.stream.shared",
        "jetstream.stream.upstream", "jetstream.usage", "jetstream.wire", "protocol", "storage.erasure",
        "storage.format", "storage.log", "storage.objectstore", "storage.staging", "storage.state", "version"},
    "jetstream.archive": {"base"},
    "jetstream.backup": {
        "jetstream.account", "jetstream.archive", "jetstream.bus", "jetstream.config", "jetstream.consumer",
        "jetstream.stream", "jetstream.stream.shared", "jetstream.stream.state", "jetstream.wire", "protocol",
        "storage.format", "storage.objectstore", "storage.state"},
    "jetstream.api": {
        "base", "config.settings", "jetstream.account", "jetstream.backup", "jetstream.bus", "jetstream.config",
        "jetstream.consumer", "jetstream.filters", "jetstream.settings", "jetstream.stream", "jetstream.stream.state",
        "jetstream.wire", "protocol", "storage.erasure", "storage.format", "storage.objectstore",
        "storage.state"},
    "jetstream.inbox": {
        "base", "jetstream.stream", "jetstream.stream.state", "jetstream.wire", "storage.format", "storage.log",
        "storage.objectstore", "storage.paths", "storage.staging"},
    "jetstream.moves": {
        "jetstream.account", "storage.format", "storage.log", "storage.paths", "storage.read", "storage.state"},
    "jetstream.catalogue": {
        "base", "jetstream.account", "jetstream.config", "jetstream.moves", "jetstream.shard_streams",
        "jetstream.stream", "jetstream.wire", "storage.format", "storage.log", "storage.state"},
    "jetstream.owners": {
        "base", "jetstream.account", "jetstream.bus", "jetstream.catalogue", "jetstream.config", "jetstream.moves",
        "jetstream.shard_streams", "jetstream.stream", "jetstream.stream.upstream", "jetstream.wire", "storage.format",
        "storage.log", "storage.objectstore", "storage.put", "storage.state"},
    "jetstream.shard_streams": {
        "base", "jetstream.account", "jetstream.inbox", "jetstream.stream", "storage.erasure", "storage.format",
        "storage.log", "storage.paths", "storage.read", "storage.state"},
    "jetstream.purging": {
        "jetstream.account", "jetstream.catalogue", "jetstream.owners", "jetstream.shard_streams", "jetstream.wire"},
    "jetstream.engine": {
        "access", "base", "config.settings", "jetstream.account", "jetstream.api", "jetstream.bus",
        "jetstream.catalogue", "jetstream.config", "jetstream.consumer.delivery", "jetstream.inbox",
        "jetstream.inflight", "jetstream.owners", "jetstream.purging", "jetstream.shard_streams", "jetstream.stream",
        "jetstream.stream.shared", "jetstream.stream.upstream", "jetstream.usage", "jetstream.wire",
        "storage.erasure", "storage.format", "storage.log", "storage.read", "storage.staging", "storage.state"},
    "jetstream.overview": {"base", "jetstream.account", "jetstream.consumer", "jetstream.stream"},
    # NATS Streaming.
    "streaming": {
        "base", "config.streaming", "jetstream.account", "jetstream.bus", "jetstream.config", "jetstream.consumer",
        "jetstream.engine", "jetstream.filters", "jetstream.stream", "jetstream.stream.publish", "jetstream.wire",
        "protocol", "storage.objectstore", "streaming.names", "streaming.stored", "streaming.wire"},
    "streaming.names": {"protocol"},
    "streaming.stored": {"config.streaming", "streaming.names"},
    "streaming.wire": {"protocol"},
    # Core NATS.
    "server.routing": {"base", "protocol"},
    "server.auth": {"access", "base", "config.callout", "config.settings", "jwt", "protocol", "server.routing"},
    "server.operator": {
        "access", "base", "config.operator", "config.settings", "jwt", "server.routing", "server.system"},
    "server.sharing": {"access", "base", "protocol", "server.routing"},
    "server.accounts": {"access", "config.settings", "server.routing", "server.sharing"},
    "server.connection": {
        "access", "base", "config.settings", "protocol", "server.accounts", "server.auth", "server.routing"},
    "server.listeners": {"base", "config.settings", "server.auth", "server.connection"},
    "server.leaf": {
        "access", "base", "config.leafnodes", "config.settings", "protocol", "server.accounts", "server.auth",
        "server.connection", "server.listeners", "server.routing", "version"},
    "server.system": {
        "access", "base", "config.settings", "protocol", "server.accounts", "server.connection", "server.routing",
        "server.sharing"},
    "server": {
        "access", "base", "config.settings", "server.accounts", "server.auth", "server.connection", "server.leaf",
        "server.listeners", "server.operator", "server.routing", "server.sharing", "server.system", "version"},
    # Connections of this broker and its commands to other servers, as their client.
    "client": {"base"},
    "upstreams": {
        "base", "client", "config.leafnodes", "config.upstreams", "jetstream.bus", "jetstream.stream.upstream",
        "protocol"},
    # Pages and tools.
    "monitor": {"base", "protocol"},
    "inspect": {
        "base", "config.arguments", "protocol", "storage.format", "storage.journal_reader", "storage.journal_replay",
        "storage.keys", "storage.objectstore", "storage.paths", "storage.read", "storage.state",
        "storage.unsynced_tail"},
    "maintenance.scrub": {"base", "inspect", "storage.format", "storage.objectstore", "storage.paths", "storage.state"},
    "maintenance.cost": {"storage.checkpoint", "storage.compaction", "storage.format", "storage.state"},
    "maintenance": {
        "base", "cluster", "config.arguments", "inspect", "maintenance.cost", "storage.checkpoint", "storage.format",
        "storage.journal_replay", "storage.keys", "storage.log", "storage.objectstore", "storage.paths",
        "storage.put", "storage.shard", "storage.state", "storage.unsynced_tail", "version"},
    "pipeline.errors": {"storage.format"},
    "pipeline.store": {
        "base", "pipeline.errors", "storage.format", "storage.keys", "storage.objectstore", "storage.paths",
        "storage.unsynced_tail"},
    "pipeline.plan": {
        "base", "pipeline.errors", "pipeline.store", "protocol", "storage.format", "storage.objectstore",
        "storage.paths", "storage.read", "storage.state"},
    "pipeline.read": {
        "pipeline.errors", "pipeline.plan", "pipeline.store", "protocol", "storage.format", "storage.state"},
    "pipeline.write": {
        "base", "client", "pipeline.errors", "pipeline.plan", "pipeline.store", "storage.format", "storage.keys",
        "storage.objectstore", "storage.paths", "storage.read", "storage.staging"},
    "pipeline.spark": {
        "pipeline.errors", "pipeline.plan", "pipeline.read", "pipeline.store", "pipeline.write", "storage.format"},
    "pipeline.jobs": {
        "base", "client", "erasure", "pipeline.errors", "pipeline.spark", "pipeline.write", "storage.format",
        "storage.objectstore", "storage.state"},
    "pipeline": {"base", "pipeline.errors", "pipeline.jobs", "pipeline.read", "pipeline.spark"},
    # The one place where the parts meet, and the programs that start it.
    "runtime.store_host": {
        "base", "cluster", "config.settings", "storage.format", "storage.keys", "storage.log", "storage.objectstore",
        "storage.paths", "storage.read", "storage.shard"},
    "runtime.shard_owner": {
        "base", "cluster", "maintenance.scrub", "runtime.store_host", "storage.format", "storage.journal_replay",
        "storage.keys", "storage.log", "storage.objectstore", "storage.paths", "storage.put", "storage.read",
        "storage.shard", "storage.unsynced_tail"},
    "runtime.shard_set": {
        "base", "jetstream.catalogue", "maintenance.scrub", "runtime.shard_owner", "runtime.store_host",
        "storage.objectstore", "storage.shard"},
    "runtime.own_shards": {
        "base", "cluster", "jetstream.owners", "maintenance.scrub", "runtime.shard_owner", "runtime.store_host",
        "storage.format", "storage.objectstore", "storage.paths", "storage.put", "storage.shard"},
    "runtime.adopt": {
        "access", "base", "config.settings", "jetstream.engine", "jetstream.inbox", "jetstream.wire",
        "runtime.shard_set", "runtime.store_host", "server.accounts", "server.routing", "storage.objectstore",
        "storage.shard"},
    "runtime.shards_cli": {"base", "client"},
    "front": {"access", "base", "config.settings", "jwt", "monitor", "server.accounts", "version"},
    "runtime": {
        "access", "base", "config", "config.kinds", "config.settings", "front", "jetstream.account", "jetstream.engine",
        "jetstream.inbox", "jetstream.overview", "jetstream.owners", "jetstream.wire", "maintenance.scrub", "monitor",
        "runtime.adopt", "runtime.own_shards", "runtime.shard_owner", "runtime.shard_set", "runtime.store_host",
        "server", "server.accounts", "server.auth", "server.listeners", "server.operator", "server.routing",
        "server.system", "storage.log",
        "storage.objectstore", "storage.paths", "storage.put", "storage.read", "storage.shard", "streaming",
        "upstreams", "version"},
    "runtime.embedded": {"base", "config", "config.settings", "runtime"},
    "runtime.broker_thread": {"runtime.embedded"},
    "runtime.inside": {
        "access", "base", "client", "config", "config.settings", "runtime.embedded", "storage.objectstore"},
    "archive": {"base", "client", "config.leafnodes", "config.upstreams", "runtime.inside"},
    "erasure": {
        "base", "client", "runtime.inside", "storage.erasure", "storage.format", "storage.keys", "storage.objectstore",
        "storage.paths", "storage.read", "storage.state"},
    "migration": {
        "access", "base", "client", "config.streaming", "jetstream.archive", "jetstream.wire", "runtime.inside",
        "streaming.names", "streaming.stored", "streaming.wire"},
    "console": {
        "base", "inspect", "jetstream.wire", "maintenance", "maintenance.cost", "protocol", "storage.objectstore"},
    "completion": {
        "archive", "config", "config.settings", "console", "erasure", "inspect", "maintenance", "migration", "pipeline",
        "runtime", "runtime.shards_cli"},
    "cli": {
        "archive", "base", "completion", "config", "config.settings", "console", "erasure", "front", "inspect",
        "maintenance", "migration", "pipeline", "runtime", "runtime.shards_cli", "storage.format", "version"},
    "__main__": {"cli"},
}
"""The rooms that each room may import. It imports all of them: an entry that no module needs is removed."""

KNOWN: set[tuple[str, str]] = set()
"""(importing module, imported module): imports that break a rule above, or close a circle, and must be removed."""


def modules() -> dict[str, Path]:
    """Return every module of ``broker`` by its name without that prefix; the package itself is ``version``."""
    found = {}
    for path in sorted((ROOT / "broker").rglob("*.py")):
        if path.name == "__init__.py" and not path.read_text():
            continue
        name = ".".join(path.relative_to(ROOT / "broker").with_suffix("").parts)
        found["version" if name == "__init__" else name.removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imports(name: str) -> set[str]:
    """Return our modules that a module imports, anywhere in its text."""
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
    """Return a dotted name as a module of ours, or an empty string."""
    if dotted == "broker":
        return "version"
    name = dotted.removeprefix("broker.")
    return name if name != dotted and name in MODULES else ""


@cache
def import_graph() -> dict[str, set[str]]:
    """Return the imports of each module. It is not built when this file is imported, because each worker that collects
    tests would parse all modules."""
    return {name: imports(name) for name in MODULES}


def room_of(name: str) -> str:
    """Return the room of a module."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        if (room := ".".join(parts[:end])) in MAY:
            return room
    pytest.fail(f"broker.{name} is in no room: give its package a line in MAY")


def circles(graph: dict[str, set[str]]) -> Iterator[list[str]]:
    """Yield the strongly connected components of more than one node (Tarjan's algorithm)."""
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
    """Modules do not form circles through others, either."""
    assert list(circles(_without(import_graph(), KNOWN))) == []


def test_no_two_rooms_import_each_other() -> None:
    """Rooms do not form circles through others, either."""
    rooms: dict[str, set[str]] = {room: set() for room in MAY}
    for name, others in _without(import_graph(), KNOWN).items():
        rooms[room_of(name)] |= {room_of(other) for other in others} - {room_of(name)}
    assert list(circles(rooms)) == []


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_what_its_room_may(name: str) -> None:
    """Each import is allowed by MAY."""
    room = room_of(name)
    for other in import_graph()[name]:
        if (name, other) not in KNOWN:
            assert room_of(other) in MAY[room] | {room}, f"{room} may not import broker.{other}"


def test_known_exceptions_exist() -> None:
    """An entry of KNOWN is removed with the import that it excuses."""
    assert [pair for pair in KNOWN if pair[1] not in import_graph().get(pair[0], ())] == []


def test_a_room_may_import_only_what_it_does_import() -> None:
    """MAY has no room without modules, and no entry that no module needs."""
    used: dict[str, set[str]] = {}
    for name, others in import_graph().items():
        used.setdefault(room_of(name), set()).update(room_of(other) for other in others)
    assert {room: rooms - used.get(room, set()) for room, rooms in MAY.items() if rooms - used.get(room, set())} == {}
    assert set(MAY) == set(used)


def test_the_public_package_has_only_names() -> None:
    """``jetblock`` defines only the hooks of pytest, and ``broker`` never imports it."""
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
