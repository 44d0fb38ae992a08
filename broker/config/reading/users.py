"""A file's users and permissions: ``users [ … ]``, ``permissions { … }``.

Source: nats-server, server/opts.go (parseUsers, parseUserPermissions, parseAllowResponses, checkPermSubjectArray).
"""

from __future__ import annotations

from typing import Any

from broker.access.accounts import (
    CONNECTION_TYPES,
    DEFAULT_ACCOUNT,
    NkeyUser,
    Permissions,
    ResponsePermission,
    SubjectPermission,
    User,
)
from broker.base.gotime import parse_duration
from broker.base.nkeys import USER, is_public_key
from broker.config import kinds
from broker.config.reading.findings import Findings, aliases, go_type, go_value
from broker.config.syntax import Value
from broker.protocol.subject import is_valid

__all__ = ["AnyUser", "read_patterns", "read_permissions", "read_users", "with_defaults"]

AnyUser = User | NkeyUser

_USER = aliases("user username", "password pass", "nkey", "permissions permission authorization",
                "connection_types allowed_connection_types clients", "proxy_required")
_PERMISSIONS = aliases("publish pub import", "subscribe sub export", "allow_responses publish_allow_responses")
_RESPONSES = aliases("max max_msgs max_messages max_responses", "expires expiration ttl")


def read_users(value: Value, found: Findings, account: str = DEFAULT_ACCOUNT) -> list[AnyUser]:
    """Read a list of users, in order; leave out those with errors."""
    if not isinstance(value.value, list):
        found.wrong(value, f"Expected users field to be an array, got {go_value(value)}")
        return []
    users = (_read_user(row, found, account) for row in value.value)
    return [user for user in users if user is not None]


def with_defaults(users: list[AnyUser], permissions: Permissions | None) -> list[AnyUser]:
    """Return the users, with ``permissions`` for those without their own."""
    if permissions is None:
        return users
    return [user if user.permissions is not None else user.replace(permissions=permissions) for user in users]


def _read_user(row: Value, found: Findings, account: str) -> AnyUser | None:
    if not isinstance(row.value, dict):
        found.wrong(row, f"Expected user entry to be a map/struct, got {go_value(row)}")
        return None
    before = len(found.errors)
    texts: dict[str, str] = {}
    common: dict[str, Any] = {"account": account}
    for name, written, value in found.fields(row, _USER):
        if name == "permissions":
            common["permissions"] = read_permissions(value, found)
        elif name == "connection_types":
            common["connection_types"] = _read_connection_types(value, found)
        elif name == "proxy_required":
            common["proxy_required"] = found.convert(kinds.boolean, written, value) or False
        else:
            texts[name] = found.convert(kinds.text, written, value, secret=name == "password") or ""
    if len(found.errors) > before:
        return None
    if nkey := texts.get("nkey"):
        if not is_public_key(nkey, USER):
            found.wrong(row, "Not a valid public nkey for a user")
        elif texts.get("user") or texts.get("password"):
            found.wrong(row, "Nkey users do not take usernames or passwords")
        else:
            return NkeyUser(nkey, **common)
    elif not texts.get("user"):
        found.wrong(row, "User entry requires a user")
    else:
        return User(texts["user"], texts.get("password", ""), **common)
    return None


def _read_connection_types(value: Value, found: Findings) -> frozenset[str]:
    names = [name.upper() for name in found.texts("allowed connection types", value) or ()]
    unknown = [name for name in names if name not in CONNECTION_TYPES]
    if unknown:
        found.wrong(value, "invalid connection types [" + " ".join(f'"{name}"' for name in unknown) + "]")
    return frozenset(names)


def read_permissions(value: Value, found: Findings) -> Permissions | None:
    """Read permissions; add an error and return None if they are invalid."""
    if not isinstance(value.value, dict):
        found.wrong(value, f"Expected permissions to be a map/struct, got {go_value(value)}")
        return None
    before = len(found.errors)
    parts: dict[str, Any] = {}
    for name, _, inner in found.fields(value, _PERMISSIONS, 'Unknown field "{}" parsing permissions'):
        parts[name] = (_read_responses(inner, found) if name == "allow_responses" else
                       _read_subjects(inner, found, queues=name == "subscribe"))
    return Permissions(**parts) if len(found.errors) == before else None


def _read_subjects(value: Value, found: Findings, *, queues: bool) -> SubjectPermission:
    """Read subjects: a subject or a list is allowed, and a block lists allowed and denied ones."""
    if not isinstance(value.value, dict):
        return SubjectPermission(read_patterns(value, found, queues=queues) or None)
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    words = "Unknown field name \"{}\" parsing subject permissions, only 'allow' or 'deny' are permitted"
    for name, _, inner in found.fields(value, aliases("allow", "deny"), words):
        if name == "allow":
            allow = read_patterns(inner, found, queues=queues)
        else:
            deny = read_patterns(inner, found, queues=queues)
    return SubjectPermission(allow or None, deny)


def read_patterns(value: Value, found: Findings, *, queues: bool) -> tuple[str, ...]:
    """Read one subject or a list of subjects, with wildcards; ``queues``: each may be followed by a queue group."""
    if isinstance(value.value, list):
        if not all(isinstance(row.value, str) for row in value.value):
            found.wrong(value, "Subject in permissions array cannot be cast to string")
            return ()
        patterns = [row.value for row in value.value]
    elif isinstance(value.value, str):
        patterns = [value.value]
    else:
        found.wrong(value, "Expected subject permissions to be a subject, or array of subjects, got " + go_type(value))
        return ()
    for pattern in patterns:
        why = _pattern_problem(pattern, queues=queues)
        if why:
            found.wrong(value, why)
            break
    return tuple(patterns)


def _pattern_problem(pattern: str, *, queues: bool) -> str:
    if is_valid(pattern.encode()):
        return ""
    words = pattern.split()
    if not queues or len(words) != 2:
        return f'subject "{pattern}" is not a valid subject'
    if not is_valid(words[0].encode()):
        return f'subject "{words[0]}" is not a valid subject'
    return "" if is_valid(words[1].encode()) else f'queue "{words[1]}" is not a valid queue'


def _read_responses(value: Value, found: Findings) -> ResponsePermission | None:
    """Read ``true``, or a block with number and duration; negative: no limit, 0: the default."""
    if isinstance(value.value, bool):
        return ResponsePermission() if value.value else None
    if not isinstance(value.value, dict):
        found.wrong(value, "error parsing response permissions, expected a boolean or a map")
        return None
    terms = ResponsePermission()
    for name, written, inner in found.fields(value, _RESPONSES, 'Unknown field "{}" parsing permissions'):
        if name == "max":
            terms = terms.replace(max_msgs=found.convert(kinds.integer(), written, inner) or terms.max_msgs)
        elif not isinstance(inner.value, str):
            found.wrong(inner, "error parsing expires, not a duration string")
        else:
            try:
                terms = terms.replace(expires_ns=parse_duration(inner.value) or terms.expires_ns)
            except ValueError:
                found.wrong(inner, f'error parsing expires: time: invalid duration "{inner.value}"')
    return terms
