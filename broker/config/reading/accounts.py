"""A file's accounts: ``accounts { NAME { users, jetstream, limits, exports, imports, mappings, … } }``.

Source: nats-server, server/opts.go (parseAccounts, parseJetStreamForAccount, parseAccountLimits).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from broker.access.accounts import DEFAULT_ACCOUNT, AccountLimits, AccountSettings, Permissions
from broker.access.sharing import sharing_problems
from broker.base.nkeys import ACCOUNT, is_public_key
from broker.config import kinds
from broker.config.reading.findings import Findings, aliases, go_type, go_value
from broker.config.reading.sharing import read_exports, read_imports, read_mappings
from broker.config.reading.tracing import read_outer_trace
from broker.config.reading.users import AnyUser, read_permissions, read_users, with_defaults
from broker.config.syntax import Value

__all__ = ["Directory", "read_accounts"]

_ACCOUNT = aliases("nkey", "users", "jetstream", "limits", "default_permissions", "exports", "imports", "mappings maps",
                   "msg_trace trace_dest")
_LIMITS = aliases("max_connections max_conn", "max_subscriptions max_subs", "max_payload max_pay",
                  "max_leafnodes max_leafs")
_JETSTREAM = aliases(
    "max_memory max_mem mem memory", "max_storage max_store max_file max_disk store disk", "max_streams streams",
    "max_consumers consumers", "max_ack_pending", "memory_max_stream_bytes mem_max_stream_bytes",
    "storage_max_stream_bytes disk_max_stream_bytes store_max_stream_bytes",
    "max_bytes_required max_stream_bytes max_bytes", "cluster_traffic")
_SHARING: dict[str, Callable[[Value, Findings], tuple[Any, ...]]] = {
    "exports": read_exports, "imports": read_imports, "mappings": read_mappings}


@dataclass(slots=True)
class Directory:
    """The accounts of a file and their users, each in the file's order, with their places."""

    accounts: list[AccountSettings] = field(default_factory=list)
    users: list[AnyUser] = field(default_factory=list)
    places: dict[str, Value] = field(default_factory=dict)
    """The places of each account and of its users: ``NAME``, ``NAME.users``."""

    unsupported: list[tuple[Value, str, str]] = field(default_factory=list)
    """Keys that are read but not supported: place, key and reason."""


def read_accounts(value: Value, found: Findings) -> Directory:
    """Return all accounts that could be read; a list names accounts without any settings."""
    directory = Directory()
    if isinstance(value.value, list):
        _read_names(value, found, directory)
        return directory
    if not isinstance(value.value, dict):
        found.wrong(value, f"Expected map entries for accounts, got {go_type(value)}")
        return directory
    before = len(found.errors)
    for name, block in value.value.items():
        if block.used:  # a variable's value
            continue
        if not isinstance(block.value, dict):
            found.wrong(block, "Expected map entries for accounts")
        elif name == DEFAULT_ACCOUNT:
            found.wrong(block, f'"{name}" is a Reserved Account')
        else:
            directory.places[name] = block
            _read_account(name, block, found, directory)
    if len(found.errors) == before:
        for name, why in sharing_problems(directory.accounts):
            found.wrong(directory.places[name], why)
    return directory


def _read_names(value: Value, found: Findings, directory: Directory) -> None:
    for row in value.value:
        name = found.convert(kinds.text, "account", row)
        if name == DEFAULT_ACCOUNT:
            found.wrong(row, f'"{name}" is a Reserved Account')
        elif name in directory.places:
            found.wrong(row, f"Duplicate Account Entry: {name}")
        elif name:
            directory.places[name] = row
            directory.accounts.append(AccountSettings(name))


def _read_account(name: str, block: Value, found: Findings, directory: Directory) -> None:
    parts: dict[str, Any] = {}
    users: list[AnyUser] = []
    permissions: Permissions | None = None
    for key, written, value in found.fields(block, _ACCOUNT):
        if key == "users":
            users = read_users(value, found, name)
            directory.places[f"{name}.users"] = value
        elif key == "default_permissions":
            permissions = read_permissions(value, found)
        elif key == "jetstream":
            parts["jetstream"] = _read_jetstream(value, found)
        elif key == "limits":
            parts |= _read_limits(value, found)
        elif key in _SHARING:
            parts[key] = _SHARING[key](value, found)
        elif key == "msg_trace":
            parts["outer_trace"] = read_outer_trace(written, value, found)
        elif not isinstance(value.value, str) or not is_public_key(value.value, ACCOUNT):
            found.wrong(value, f'Not a valid public nkey for an account: "{value.value}"')
        else:
            found.notice(value, f"{written} has no effect here: accounts of a file are known by their names")
    directory.accounts.append(AccountSettings(name, **parts))
    directory.users += with_defaults(users, permissions)


def _read_limits(block: Value, found: Findings) -> dict[str, int]:
    if not isinstance(block.value, dict):
        found.wrong(block, f"Expected account limits to be a map/struct, got {go_value(block)}")
        return {}
    limits = {}
    for name, written, value in found.fields(block, _LIMITS, 'Unknown field "{}" parsing account limits'):
        number = found.convert(kinds.size(-1), written, value)
        if number is not None:
            limits[name] = number
    return limits


def _read_jetstream(value: Value, found: Findings) -> AccountLimits | None:
    if not isinstance(value.value, dict):
        word = str(value.value).lower()
        if value.value is True or word in ("enabled", "enable"):
            return AccountLimits()
        if isinstance(value.value, str) and word not in ("disabled", "disable"):
            found.wrong(value, f"Expected 'enabled' or 'disabled' for string value, got '{value.value}'")
        elif not isinstance(value.value, bool | str):
            found.wrong(value, f"Expected map, bool or string to define JetStream, got {go_type(value)}")
        return None
    limits: dict[str, Any] = {}
    for name, written, inner in found.fields(value, _JETSTREAM):
        if name == "cluster_traffic":
            if inner.value not in ("system", "owner", ""):
                found.wrong(inner, f"Expected 'system' or 'owner' string value for \"{written}\", got {inner.value}")
            else:
                found.notice(inner, f"{written} has no effect here: there is no cluster")
        elif name == "max_bytes_required":
            limits[name] = bool(found.convert(kinds.boolean, written, inner))
        elif (number := found.convert(kinds.size(-1), written, inner)) is not None:
            limits[name] = number
    return AccountLimits(**limits)
