"""An account's exports, imports and mappings in a file.

Source: nats-server, server/opts.go (parseExportStreamOrService, parseServiceLatency, parseImportStreamOrService,
parseAccountMappings).
"""

from __future__ import annotations

from typing import Any, Literal

from broker.access.sharing import Destination, Export, Import, Latency, SubjectMapping, mapping_problem
from broker.base.gotime import parse_duration
from broker.config import kinds
from broker.config.reading.findings import Findings, aliases, go_type, go_value
from broker.config.syntax import Value
from broker.protocol.subject import is_valid

__all__ = ["read_exports", "read_imports", "read_mappings"]

_EXPORT = aliases("stream", "service", "response_type response", "accounts", "latency", "account_token_position",
                  "threshold response_threshold response_max_time response_time", "allow_trace")
_IMPORT = aliases("stream", "service", "prefix", "to", "share", "allow_trace")
_RESPONSE_TYPES: dict[str, Literal["singleton", "stream", "chunked"]] = {
    "single": "singleton", "singleton": "singleton", "stream": "stream", "chunk": "chunked", "chunked": "chunked"}
_SERVICES_ONLY = {"response_type": "response", "threshold": "response", "latency": "latency",
                  "allow_trace": "allow_trace"}


def read_exports(value: Value, found: Findings) -> tuple[Export, ...]:
    """Read a list of exports; leave out those with errors."""
    if not isinstance(value.value, list):
        found.wrong(value, f"Exports should be an array, got {go_type(value)}")
        return ()
    exports = (_read_export(row, found) for row in value.value)
    return tuple(export for export in exports if export is not None)


def _read_export(row: Value, found: Findings) -> Export | None:
    if not isinstance(row.value, dict):
        found.wrong(row, f"Export Items should be a map with type entry, got {go_type(row)}")
        return None
    before = len(found.errors)
    parts = {name: (written, value) for name, written, value in found.fields(row, _EXPORT)}
    if "stream" in parts and "service" in parts:
        found.wrong(row, f'Detected service "{parts["service"][1].value}" but already saw a stream')
    if "stream" in parts:
        for name in parts:
            if name in _SERVICES_ONLY:
                found.wrong(parts[name][1], f"Detected {_SERVICES_ONLY[name]} directive on non-service")
    made: dict[str, Any] = {}
    for name, (written, value) in parts.items():
        if name in ("stream", "service"):
            made |= {"kind": name, "subject": _text(value, f"Expected {name} name to be string", found)}
        elif name == "response_type":
            made[name] = _read_response_type(value, found)
        elif name == "threshold":
            made["response_threshold_ns"] = _read_threshold(value, found)
        elif name == "accounts":
            made[name] = tuple(found.texts("accounts", value) or ()) or None
        elif name == "latency":
            made[name] = _read_latency(value, found)
        elif name == "account_token_position":
            made[name] = found.convert(kinds.integer(0), written, value)
        else:
            made[name] = found.convert(kinds.boolean, written, value)
    # An export without a kind shares nothing; nats-server accepts it.
    return Export(**made) if len(found.errors) == before and "kind" in made else None


def _text(value: Value, expected: str, found: Findings) -> str:
    if not isinstance(value.value, str):
        found.wrong(value, f"{expected}, got {go_type(value)}")
        return ""
    return value.value


def _read_response_type(value: Value, found: Findings) -> str:
    word = _text(value, "Expected response type to be string", found)
    if word and word.lower() not in _RESPONSE_TYPES:
        found.wrong(value, f'Unknown response type: "{word}"')
    return _RESPONSE_TYPES.get(word.lower(), "singleton")


def _read_threshold(value: Value, found: Findings) -> int:
    expected = "Expected response threshold to be a parseable time duration"
    words = _text(value, expected, found)
    try:
        return parse_duration(words) if words else 0
    except ValueError:
        found.wrong(value, f'{expected}, got "{words}"')
        return 0


def _read_latency(value: Value, found: Findings) -> Latency | None:
    if isinstance(value.value, str):
        return Latency(value.value)
    if not isinstance(value.value, dict):
        found.wrong(value, f"Expected latency entry to be a map/struct or string, got {go_type(value)}")
        return None
    parts = {name: inner for name, _, inner in found.fields(value, aliases("sampling", "subject"))}
    if "subject" not in parts:
        found.wrong(value, "Latency subject required, but missing")
        return None
    latency = Latency(_text(parts["subject"], "Expected latency subject to be a string", found))
    if "sampling" in parts:
        latency = latency.replace(sampling=_read_sampling(parts["sampling"], found))
    return latency


def _read_sampling(value: Value, found: Findings) -> int:
    if isinstance(value.value, str) and value.value.strip().lower() == "headers":
        return 0
    percent = _percent(value)
    if percent is None:
        found.wrong(value, "Failed to parse latency sample: it must be a number of percent, or headers")
    elif not 1 <= percent <= 100:
        found.wrong(value, "bad sampling percentage, should be 1-100")
    return percent or 0


def _percent(value: Value) -> int | None:
    """Parse ``50`` or ``"50%"``."""
    if isinstance(value.value, int) and not isinstance(value.value, bool):
        return value.value
    digits = value.value.removesuffix("%") if isinstance(value.value, str) else ""
    return int(digits) if digits.lstrip("+-").isascii() and digits.lstrip("+-").isdigit() and len(digits) < 10 else None


def read_imports(value: Value, found: Findings) -> tuple[Import, ...]:
    """Read a list of imports; leave out those with errors."""
    if not isinstance(value.value, list):
        found.wrong(value, f"Imports should be an array, got {go_type(value)}")
        return ()
    imports: list[Import] = []
    services: dict[tuple[str, str], Import] = {}
    for row in value.value:
        one = _read_import(row, found)
        if one is None:
            continue
        same = services.setdefault((one.account, one.to or one.subject), one) if one.kind == "service" else one
        if same is not one:
            found.wrong(row, f'Duplicate service import subject "{one.to or one.subject}", previously used in import '
                             f'for '
                             f'account "{one.account}", subject "{same.subject}"')
        else:
            imports.append(one)
    return tuple(imports)


def _read_import(row: Value, found: Findings) -> Import | None:
    if not isinstance(row.value, dict):
        found.wrong(row, f"Import Items should be a map with type entry, got {go_type(row)}")
        return None
    before = len(found.errors)
    parts = {name: (written, value) for name, written, value in found.fields(row, _IMPORT)}
    if "stream" in parts and "service" in parts:
        found.wrong(row, "Detected service but already saw a stream")
    if "service" in parts and "allow_trace" in parts:
        found.wrong(parts["allow_trace"][1], "Detected allow_trace directive on a non-stream")
    if "stream" in parts and "prefix" in parts and "to" in parts:
        found.wrong(parts["to"][1], "Stream import can not have a 'prefix' and a 'to' property")
    made: dict[str, Any] = {}
    for name, (written, value) in parts.items():
        if name in ("stream", "service"):
            made |= {"kind": name, **_read_source(name, value, found)}
        else:
            kind = kinds.boolean if name in ("share", "allow_trace") else kinds.text
            made[name] = found.convert(kind, written, value)
    if made.get("kind") == "service":
        made.pop("prefix", None)
    elif made.get("kind") == "stream":
        made.pop("share", None)
    return Import(**made) if len(found.errors) == before and "kind" in made else None


def _read_source(kind: str, value: Value, found: Findings) -> dict[str, str]:
    """Read the exporting account and its subject."""
    if not isinstance(value.value, dict):
        found.wrong(value, f"{kind.capitalize()} entry should be an account map, got {go_type(value)}")
        return {}
    parts = {name: found.convert(kinds.text, written, inner)
             for name, written, inner in found.fields(value, aliases("account", "subject"))}
    if not parts.get("account") or not parts.get("subject"):
        found.wrong(value, "Expect an account name and a subject")
    return parts


def read_mappings(value: Value, found: Findings) -> tuple[SubjectMapping, ...]:
    """Read ``mappings { FROM: TO }``; TO may have blocks with ``destination``, ``weight`` and ``cluster``."""
    if not isinstance(value.value, dict):
        found.wrong(value, f"Expected mappings to be a map/struct, got {go_type(value)}")
        return ()
    mappings = []
    for source, inner in value.value.items():
        if not is_valid(source.encode()):
            found.wrong(inner, f'Subject "{source}" is not a valid subject')
            continue
        before = len(found.errors)
        to = ""
        if isinstance(inner.value, str):
            destinations = [Destination(inner.value)]
            to = f' to "{inner.value}"'
        else:
            rows = inner.value if isinstance(inner.value, list) else [inner]
            destinations = [one for row in rows if (one := _read_destination(row, found)) is not None]
        mapping = SubjectMapping(source, tuple(destinations))
        if len(found.errors) == before and (why := mapping_problem(mapping)):
            found.wrong(inner, f'Error adding mapping for "{source}"{to} : {why}')
        mappings.append(mapping)
    return tuple(mappings)


def _read_destination(row: Value, found: Findings) -> Destination | None:
    if not isinstance(row.value, dict):
        found.wrong(row, "Expected an entry for the mapping destination")
        return None
    parts: dict[str, Any] = {}
    names = aliases("destination dest", "weight", "cluster")
    for name, written, value in found.fields(row, names, 'Unknown field "{}" for mapping destination'):
        if name != "weight":
            parts[name] = found.convert(kinds.text, written, value) or ""
        elif (percent := _percent(value)) is None or not 0 <= percent <= 100:
            weight = f'"{value.value.removesuffix("%")}"' if isinstance(value.value, str) else go_value(value)
            found.wrong(value, f"Invalid weight {weight} for mapping destination")
            return None
        else:
            parts[name] = percent
    if "weight" not in parts:
        found.wrong(row, f'Missing weight for mapping destination "{parts.get("destination", "")}"')
        return None
    return Destination(parts.get("destination", ""), parts["weight"], parts.get("cluster", ""))
