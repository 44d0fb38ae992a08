"""Users, permissions and accounts in nats-server's configuration, made from the values for our server."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from broker.access.accounts import DEFAULT_ACCOUNT, AccountSettings, Permissions, SubjectPermission, User
from tests.server.in_process import LOGIN_SECONDS

__all__ = ["configuration", "connect"]


def configuration(users: Sequence[User], accounts: Iterable[AccountSettings] = (), *, no_auth_user: str = "") -> str:
    """Return nats-server's configuration file for these users and accounts."""
    lines = [f"no_auth_user: {json.dumps(no_auth_user)}"] if no_auth_user else []
    default, named = f"authorization {{ timeout: {LOGIN_SECONDS} }}", []
    for account in accounts:
        parts = [f"users: [{_users(users, account.name)}]"]
        if account.default_permissions is not None:
            parts.append(f"default_permissions: {_permissions(account.default_permissions)}")
        if account.max_connections >= 0:
            parts.append(f"limits: {{ max_connections: {account.max_connections} }}")
        body = "{ " + ", ".join(parts) + " }"
        if account.name == DEFAULT_ACCOUNT:
            default = default.replace(" }", "," + body[1:])
        else:
            named.append(f"{account.name} {body}")
    return "\n".join([*lines, default, "accounts {", *named, "}", ""])


def connect(user: str, **fields: object) -> bytes:
    """Return the CONNECT of a user of ``USERS``; the password of each is ``p``."""
    return b"CONNECT " + json.dumps({"verbose": False, "user": user, "pass": "p", **fields}).encode() + b"\r\n"


def _users(users: Iterable[User], account: str) -> str:
    rows = []
    for user in users:
        if user.account == account:
            row = [f"user: {user.user}, password: {user.password}"]
            if user.permissions is not None:
                row.append(f"permissions: {_permissions(user.permissions)}")
            if user.connection_types:
                row.append(f"allowed_connection_types: {json.dumps(sorted(user.connection_types))}")
            rows.append("{ " + ", ".join(row) + " }")
    return ", ".join(rows)


def _permissions(permissions: Permissions) -> str:
    parts = [f"{name}: {_subjects(permission)}"
             for name, permission in (("publish", permissions.publish), ("subscribe", permissions.subscribe))
             if permission != SubjectPermission()]
    responses = permissions.allow_responses
    if responses is not None:
        expires = f"{responses.expires_ns // 1_000_000}ms"
        parts.append(f'allow_responses: {{ max: {responses.max_msgs}, expires: "{expires}" }}')
    return "{ " + ", ".join(parts) + " }"


def _subjects(permission: SubjectPermission) -> str:
    parts = [f"{name}: {json.dumps(patterns)}" for name,
             patterns in (("allow", permission.allow), ("deny", permission.deny))
             if patterns]
    return "{ " + ", ".join(parts) + " }"
