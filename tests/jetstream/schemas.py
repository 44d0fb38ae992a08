"""Checks JetStream's messages against their JSON schemas (``schemas.json``, made by ``docs/generators/schemas.py``).

The schemas are those by which the ``nats`` CLI validates answers. Some of them refuse messages of nats-server, which is
then no fault of the broker: the tests that play requests to both servers check that jetblock breaks no rule that
nats-server keeps.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

__all__ = ["TYPES", "broken", "broken_by"]

_ALL = json.loads(Path(__file__).with_suffix(".json").read_text())
TYPES: dict[str, Any] = _ALL["types"]
"""The schemas by the ``type`` of their messages."""
_DEFINITIONS: dict[str, Any] = _ALL["definitions"]

PUB_ACK = "io.nats.jetstream.api.v1.pub_ack_response"
"""The type of a PubAck, which has no member ``type``."""
_KINDS: dict[str, type | tuple[type, ...]] = {
    "array": list, "boolean": bool, "integer": int, "null": type(None), "number": (int, float), "object": dict,
    "string": str}
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)")


@lru_cache(maxsize=4096)
def broken(payload: bytes) -> frozenset[str]:
    """Return the rules of its type's schema that a message breaks, each as ``TYPE: PATH: RULE``.

    The answer within an audit is checked, too. A message that is no JSON, or of a type without a schema, breaks no
    rule.
    """
    try:
        message = json.loads(payload) if payload[:1] == b"{" else None
    except ValueError:
        return frozenset()
    if not isinstance(message, dict):
        return frozenset()
    found = broken_by(message, message.get("type", PUB_ACK if {"stream", "seq"} <= message.keys() else ""))
    inner = message.get("response")
    return found | broken(inner.encode()) if isinstance(inner, str) else found


def broken_by(message: Any, kind: str) -> frozenset[str]:
    """Return the rules of the schema of ``kind`` that ``message`` breaks."""
    return frozenset(f"{kind}: {fault}" for fault in _faults(message, TYPES.get(kind, {}), ""))


def _faults(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    for keyword, rule in schema.items():
        yield from _CHECKS[keyword](value, rule, path, schema)


def _ref(value: Any, rule: str, path: str, _: Any) -> Iterator[str]:
    return _faults(value, _DEFINITIONS[rule], path)


def _all_of(value: Any, rule: list[Any], path: str, _: Any) -> Iterator[str]:
    for one in rule:
        yield from _faults(value, one, path)


def _one_of(value: Any, rule: list[Any], path: str, _: Any) -> Iterator[str]:
    """Yield the faults by the best schema if none fits; that several fit is a fault of the schemas."""
    found = [list(_faults(value, one, path)) for one in rule]
    yield from min(found, key=len)


def _type(value: Any, rule: str | list[str], path: str, _: Any) -> Iterator[str]:
    kinds = [rule] if isinstance(rule, str) else rule
    if not any(isinstance(value, _KINDS[kind]) and (kind == "boolean") >= isinstance(value, bool) for kind in kinds):
        yield f"{path}: not {' or '.join(kinds)}"


def _properties(value: Any, rule: dict[str, Any], path: str, _: Any) -> Iterator[str]:
    for name in rule.keys() & value.keys() if isinstance(value, dict) else ():
        yield from _faults(value[name], rule[name], f"{path}/{name}")


def _pattern_properties(value: Any, rule: dict[str, Any], path: str, _: Any) -> Iterator[str]:
    for name in value if isinstance(value, dict) else ():
        for pattern in rule:
            if re.search(pattern, name):
                yield from _faults(value[name], rule[pattern], f"{path}/*")


def _additional(value: Any, rule: bool | dict[str, Any], path: str, schema: dict[str, Any]) -> Iterator[str]:
    known = schema.get("properties", {})
    patterns = list(schema.get("patternProperties", ()))
    for name in value if isinstance(value, dict) else ():
        if name in known or any(re.search(pattern, name) for pattern in patterns):
            continue
        if rule is False:
            yield f"{path}/{name}: not known"
        elif isinstance(rule, dict):
            yield from _faults(value[name], rule, f"{path}/*")


def _required(value: Any, rule: list[str], path: str, _: Any) -> Iterator[str]:
    for name in rule if isinstance(value, dict) else ():
        if name not in value:
            yield f"{path}/{name}: missing"


def _items(value: Any, rule: dict[str, Any], path: str, _: Any) -> Iterator[str]:
    for one in value if isinstance(value, list) else ():
        yield from _faults(one, rule, f"{path}[]")


def _among(value: Any, rule: list[Any], path: str, _: Any) -> Iterator[str]:
    if value not in rule:
        yield f"{path}: not one of {rule}"


def _equal(value: Any, rule: Any, path: str, _: Any) -> Iterator[str]:
    if value != rule:
        yield f"{path}: not {rule!r}"


def _minimum(value: Any, rule: float, path: str, _: Any) -> Iterator[str]:
    if isinstance(value, (int, float)) and value < rule:
        yield f"{path}: below {rule}"


def _maximum(value: Any, rule: float, path: str, _: Any) -> Iterator[str]:
    if isinstance(value, (int, float)) and value > rule:
        yield f"{path}: above {rule}"


def _min_length(value: Any, rule: int, path: str, _: Any) -> Iterator[str]:
    if isinstance(value, str) and len(value) < rule:
        yield f"{path}: shorter than {rule}"


def _max_length(value: Any, rule: int, path: str, _: Any) -> Iterator[str]:
    if isinstance(value, str) and len(value) > rule:
        yield f"{path}: longer than {rule}"


def _pattern(value: Any, rule: str, path: str, _: Any) -> Iterator[str]:
    if isinstance(value, str) and not re.search(rule, value):
        yield f"{path}: not like {rule}"


def _format(value: Any, rule: str, path: str, _: Any) -> Iterator[str]:
    if isinstance(value, str) and not {"date-time": _TIME}[rule].fullmatch(value):
        yield f"{path}: no {rule}"


_CHECKS = {
    "$ref": _ref, "additionalProperties": _additional, "allOf": _all_of, "const": _equal, "enum": _among,
    "format": _format,
    "items": _items, "maxLength": _max_length, "maximum": _maximum, "minLength": _min_length, "minimum": _minimum,
    "oneOf": _one_of,
    "pattern": _pattern, "patternProperties": _pattern_properties, "properties": _properties, "required": _required,
    "type": _type}
"""The checks by keyword: each gets a value, the keyword's value, the value's path, and the schema with the keyword."""
